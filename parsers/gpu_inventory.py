"""Which GPUs a host has, and in what state: nvidia-smi, /proc/driver/nvidia, lspci, and the driver's own lines.

Several programs say it, each in a form of its own; each statement becomes a `gpu-info` event and who/cards.py puts them
together. A lost card silences nvidia-smi, so that one source is never enough. Index and minor number are renumbered at
every boot; within a boot the PCI address tells cards apart, over boots UUID and serial.

Time: the report's own (`Timestamp`), local, no zone; None where it has none. Examples (one line each):
GPU 00000000:C1:00.0
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-93ce2001-2652-a4c2-f7a6-41dfcd7d1af9)
|   0  NVIDIA A40                     On  |   00000000:4F:00.0 Off |                    0 |
0, NVIDIA A40, GPU-93ce2001-2652-a4c2-f7a6-41dfcd7d1af9, 00000000:4F:00.0
Bus Location: 	 0000:01:00.0
41:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev ff)
[drm] [nvidia-drm] [GPU ID 0x00000f00] Loading driver
NVRM: GPU at PCI:0000:c1:00: GPU-93ce2001-2652-a4c2-f7a6-41dfcd7d1af9
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nccl_forensics.lines.plugins import parser
from nccl_forensics.lines.stamps import parse_date_line
from nccl_forensics.model import Detail, Event, Stamp

from ._kernel import LONGEST_MESSAGE, address_of_gpu_id, is_quoted, lines_of_block, pci_address
from ._smi import CSV_NAMES, LOST, UUID, WORDS, column_names, field_value, identity

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

BLOCK = 1 << 15
"""Bytes of `nvidia-smi -q` that one GPU takes at most; a new driver prints about 16,000."""
ROWS = 128
"""Rows of a CSV table that are read behind its header: more GPUs than a host has."""
SEPARATOR = "\n" + "_" * 44
"""Ends a section of nvidia-bug-report.log."""

SMI_BLOCK = re.compile(r"^GPU (?P<pci>[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])\s*$", re.IGNORECASE)
SMI_FIELD = re.compile(r"^(?P<indent> *)(?P<name>[^:\n]{1,60}?) *(?:: (?P<value>[^\n]{0,200}))?$", re.MULTILINE)
SMI_LIST = re.compile(
    rf"^GPU (?P<index>\d{{1,3}}): (?P<model>[^(\n]{{1,100}}?) \(UUID: (?P<uuid>{UUID})\)", re.IGNORECASE
)
SMI_ROW = re.compile(
    r"^\| +(?P<index>\d{1,3}) +(?P<model>\S[^|\n]{0,60}?) +(?:On|Off|N/A) +\| +"
    r"(?P<pci>[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]) +(?:On|Off|N/A) +\| *(?P<ecc>[^|\s]+)",
    re.IGNORECASE,
)
SMI_ROW_2 = re.compile(r"(?P<temperature>\d{1,3})C .*?(?P<draw>\d{1,4})W */ *(?P<limit>\d{1,4})W")
PROC_FIELD = re.compile(r"^(?P<name>[A-Z][A-Za-z ]{1,20}):\s+(?P<value>\S[^\n]{0,100}?)\s*$")
PROC_NAMES: Mapping[str, str] = {"Model": "model", "GPU UUID": "uuid"}
DRM = re.compile(r"\[nvidia-drm\] \[GPU ID 0x(?P<id>[0-9a-f]{8})\] Loading driver")
DRM_MINOR = re.compile(
    r"Initialized nvidia-drm \S+(?: \d+)? for (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"on minor (?P<minor>\d+)"
)
NVRM_UUID = re.compile(
    rf"NVRM: GPU at (?P<pci>(?:PCI:)?[0-9a-f]{{4,8}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}(?:\.[0-7])?): (?P<uuid>{UUID})"
)
NVRM_SERIAL = re.compile(
    r"NVRM: (?:GPU Board Serial Number: (?P<board>\S{1,40})"
    r"|GPU (?P<pci>[0-9a-f:.]{7,16}): GPU serial number is (?P<own>\S{1,40}?)\.?$"
    r"|GPU is on Board (?P<on>\S{1,40}?)\.?$)"
)
LSPCI = re.compile(
    r"^(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.0) (?:VGA compatible|3D) controller(?: \[03\d\d\])?: "
    r"NVIDIA Corporation (?P<chip>[^\n]{0,120}?)(?: \[10de:(?P<id>[0-9a-f]{4})\])?(?: \(rev (?P<rev>[0-9a-f]{2})\))?"
    r"(?: \(prog-if[^\n]*)?$"
)
LNK = re.compile(r"Lnk(?P<what>Cap|Sta):.*?Speed (?P<speed>[\d.]+)GT/s[^,]*, Width x(?P<width>\d+)")

SMI_NAMES: Mapping[str, str] = {
    "Minor Number": "minor",
    "Module ID": "module",
    "Module Id": "module",
    "PCI/GPU Link Info/PCIe Generation/Max": "pcie_gen_max",
    "PCI/GPU Link Info/PCIe Generation/Current": "pcie_gen",
    "PCI/GPU Link Info/Link Width/Max": "pcie_width_max",
    "PCI/GPU Link Info/Link Width/Current": "pcie_width",
    "PCI/Replays Since Reset": "pcie_replays",
    "Remapped Rows/Correctable Error": "remapped_corrected",
    "Remapped Rows/Uncorrectable Error": "remapped_uncorrected",
    "Remapped Rows/Pending": "remap_pending",
    "Remapped Rows/Remapping Failure Occurred": "remap_failed",
    "Retired Pages/Single Bit ECC": "retired_single_bit",
    "Retired Pages/Double Bit ECC": "retired_double_bit",
    "Retired Pages/Pending Page Blacklist": "retired_pending",
    "Temperature/GPU Current Temp": "temperature_c",
    "Temperature/Memory Current Temp": "memory_temperature_c",
    "Temperature/GPU Slowdown Temp": "slowdown_temperature_c",
    "Temperature/GPU Shutdown Temp": "shutdown_temperature_c",
    "GPU Reset Status/Reset Required": "reset_required",
}
"""Path of headings in `nvidia-smi -q` → our name."""
SMI_IDENTITIES: Mapping[str, str] = {
    "Product Name": "model",
    "Serial Number": "serial",
    "GPU UUID": "uuid",
    "GPU Recovery Action": "recovery",
}
SMI_POWER: Mapping[str, str] = {
    "Power Draw": "power_draw_w",
    "Average Power Draw": "power_draw_w",
    "Instantaneous Power Draw": "power_draw_w",
    "Power Limit": "power_limit_w",
    "Current Power Limit": "power_limit_w",
}
"""Last heading → our name: the headings above it differ by driver."""
POWERS = frozenset(SMI_POWER.values())
ECC_COUNTS = ("ECC Errors/Volatile/", "ECC Errors/Aggregate/")
CLOCK_REASONS = ("Clocks Event Reasons/", "Clocks Throttle Reasons/")
MOST_PIDS = 64
ODD_FIELDS = 3
"""Fields that say 'GPU is lost' or the like, up to which the card is none; our judgement."""
CAPACITY = frozenset({"Idle", "Applications Clocks Setting", "Display Clock Setting", "Sync Boost"})
"""Reasons for low clocks that are no trouble."""


def _emit(line: Line, pci: str | None, details: Mapping[str, Detail], stamp: Stamp | None = None) -> Event:
    known: dict[str, Detail] = {key: value for key, value in details.items() if value is not None}
    return line.event(
        "gpu-info", role="context", details=known, gpu_pci=pci, pid=None, stamp=line.stamp if stamp is None else stamp
    )


# --- nvidia-smi -----------------------------------------------------------------------------------------------------


def _smi_sections(block: str) -> Iterator[tuple[str, str]]:
    """('ECC Errors/Volatile/DRAM Uncorrectable', '2') for each field below a `GPU …` line."""
    path: list[tuple[int, str]] = []
    for found in SMI_FIELD.finditer(block):
        indent, name = len(found["indent"]), found["name"].strip()
        if not name or indent == 0:
            continue
        while path and path[-1][0] >= indent:
            path.pop()
        if found["value"] is None:
            path.append((indent, name))
        else:
            yield "/".join([*(x for _, x in path), name]), found["value"].strip()
            path.append((indent, name))  # 'HW Slowdown : Active' has fields below it


def _ecc_name(path: str) -> str | None:
    """Our name of a count of ECC errors; None for a part of one, or for none."""
    parts = path.split("/")
    last = parts[-1]
    if "Single Bit" in parts or "Double Bit" in parts:  # before R450: the total stands beside its parts
        if last != "Total":
            return None
        corrected = "Single Bit" in parts
    elif "Correctable" in last or "Uncorrectable" in last:
        corrected = "Uncorrectable" not in last
    else:
        return None
    return f"ecc_{parts[1].lower()}_{'corrected' if corrected else 'uncorrected'}"


def _smi_field(path: str, written: str) -> tuple[str, Detail] | None:
    """Our name of one field of `nvidia-smi -q`, and its value; None for one that we do not keep."""
    if name := SMI_NAMES.get(path):
        return name, field_value(written)
    if name := SMI_IDENTITIES.get(path):
        return name, identity(name, written)
    if path.startswith(ECC_COUNTS):
        count, name = field_value(written), _ecc_name(path)
        return (name, count) if name and isinstance(count, int) and not isinstance(count, bool) else None
    if path.startswith(CLOCK_REASONS):
        return None
    last = path.rpartition("/")[2]
    if name := SMI_POWER.get(last):
        return name, field_value(written)
    if path.startswith("Fabric/") and last in ("State", "Status"):
        return f"fabric_{last.lower()}", identity("fabric", written)
    return None


def _smi_merged(name: str, before: Detail, now: Detail) -> Detail:
    """Of a field that comes again: counts of ECC errors add up, the first power counts, of all others the last one."""
    if name.startswith("ecc_") and isinstance(before, int) and isinstance(now, int):
        return before + now
    return before if name in POWERS else now


def _slow_reasons(fields: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Why the clocks are slow, capacity left out."""
    named = [
        path.rpartition("/")[2]
        for path, written in fields
        if path.startswith(CLOCK_REASONS) and field_value(written) is True
    ]
    return tuple(x for x in named if x not in CAPACITY)[:8]


def _smi_query(line: Line, pci: str | None) -> Event:
    """The block of one GPU behind its `GPU …` line."""
    start = line.end
    block = bytes(line.window.buffer[start : min(start + BLOCK, line.window.end)]).decode("utf-8", "replace")
    block = block.replace("\r\n", "\n").partition("\nGPU ")[0].partition(SEPARATOR)[0]
    fields = list(_smi_sections(block))
    details: dict[str, Detail] = {"pci": pci}
    for path, written in fields:
        if told := _smi_field(path, written):
            name, now = told
            details[name] = _smi_merged(name, details[name], now) if name in details else now
    if slow := _slow_reasons(fields):
        details["throttle"] = slow
    pids = [x for path, x in fields if path.rpartition("/")[2] == "Process ID" and x.isdigit()]
    if pids:
        details["pids"] = tuple(int(x) for x in pids[:MOST_PIDS])
    if sum(LOST.search(written) is not None for _, written in fields) > ODD_FIELDS:
        details["lost"] = True
    return _emit(line, pci, details, line.window.state.get("smi.when"))


def _smi_table(line: Line, found: re.Match[str]) -> Event:
    details: dict[str, Detail] = {"pci": pci_address(found["pci"]), "index": int(found["index"])}
    if not found["model"].endswith("..."):  # older tables cut the name
        details["model"] = identity("model", found["model"])
    if found["ecc"].isdigit():
        details["ecc_volatile_uncorrected"] = int(found["ecc"])
    second = next(iter(lines_of_block(line, 1)), "")
    if "ERR!" in second or "ERR!" in line.text:
        details["lost"] = True
    elif state := SMI_ROW_2.search(second):
        details["temperature_c"] = int(state["temperature"])
        details["power_draw_w"] = int(state["draw"])
        details["power_limit_w"] = int(state["limit"])
    return _emit(line, pci_address(found["pci"]), details)


def _smi_csv(line: Line, text: str) -> Iterator[Event]:
    """The rows under a header of `nvidia-smi --query-gpu=… --format=csv`."""
    names = column_names(text)
    columns = [CSV_NAMES.get(x) for x in names]
    if len(names) < 2 or not {"pci", "uuid"} & set(columns) or "pid" in names:
        return
    for row in line.after(ROWS):
        written = row.raw[:LONGEST_MESSAGE].decode("utf-8", "replace")
        fields = next(csv.reader([written], skipinitialspace=True), [])
        if len(fields) != len(names):
            return
        details = _csv_details(columns, fields)
        if LOST.search(written):
            details["lost"] = True
        pci = details.get("pci")
        if not pci and not details.get("uuid"):
            return
        yield _emit(row, pci if isinstance(pci, str) else None, details)


def _csv_details(columns: Sequence[str | None], fields: Sequence[str]) -> dict[str, Detail]:
    details: dict[str, Detail] = {}
    for name, written in zip(columns, fields, strict=True):
        if name == "pci":
            details[name] = pci_address(written)
        elif name in WORDS:
            details[name] = identity(name, written)
        elif name:
            details[name] = field_value(written)
    return details


@parser(
    title="nvidia-smi: list, table, query",
    literals=(
        *("GPU 0000", "(UUID: GPU-", ".0 Off |", ".0  On |", ".0 N/A |", "Timestamp             "),
        *("pci.bus_id", "gpu_bus_id", "uuid,", ", uuid"),
    ),
)
def nvidia_smi(line: Line) -> Iterator[Event]:
    text = line.text[:LONGEST_MESSAGE]
    if text.startswith("Timestamp "):
        line.window.state["smi.when"] = parse_date_line(text.partition(": ")[2])
    elif found := SMI_BLOCK.match(text):
        yield _smi_query(line, pci_address(found["pci"]))
    elif found := SMI_LIST.match(text):
        details: dict[str, Detail] = {"index": int(found["index"]), "model": found["model"]}
        yield _emit(line, None, {**details, "uuid": identity("uuid", found["uuid"])})
    elif found := SMI_ROW.match(text):
        yield _smi_table(line, found)
    elif "," in text and not line.hits.isdisjoint((b"pci.bus_id", b"gpu_bus_id", b"uuid,", b", uuid")):
        yield from _smi_csv(line, text)


# --- /proc, lspci ---------------------------------------------------------------------------------------------------


@parser(title="/proc/driver/nvidia/gpus/*/information", literals=["Bus Location:"])
def proc_information(line: Line) -> Iterator[Event]:
    """The driver's file of one card; a lost card keeps its UUID and loses its BIOS version (??.??…)."""
    found = PROC_FIELD.match(line.text)
    pci = pci_address(found["value"]) if found else None
    if found is None or found["name"] != "Bus Location" or pci is None:
        return
    above = _proc_above(line)
    details: dict[str, Detail] = {"pci": pci}
    for name, written in above:
        if ours := PROC_NAMES.get(name):
            details[ours] = identity(ours, written)
    details.update(_proc_below(line))
    dark = any("?" in written for name, written in above if name == "Video BIOS")
    if dark and details.get("uuid"):  # a card that nobody has opened yet has no UUID either
        details["lost"] = True
    yield _emit(line, pci, details)


def _proc_above(line: Line) -> list[tuple[str, str]]:
    """The fields of this card above its address, nearest first, up to its model, which is its first line."""
    fields: list[tuple[str, str]] = []
    for before in line.before(8):
        field = PROC_FIELD.match(before.raw.decode("utf-8", "replace"))
        if field is None or field["name"] in ("Bus Location", "Device Minor"):
            break
        fields.append((field["name"], field["value"]))
        if field["name"] == "Model":
            break
    return fields


def _proc_below(line: Line) -> dict[str, Detail]:
    details: dict[str, Detail] = {}
    for text in lines_of_block(line, 4):
        field = PROC_FIELD.match(text)
        if field is None or field["name"] == "Model":
            break
        if field["name"] == "Device Minor" and field["value"].isdigit():
            details["minor"] = int(field["value"])
        elif field["name"] == "GPU Excluded" and field["value"] == "Yes":
            details["excluded"] = True
    return details


@parser(title="lspci: NVIDIA GPUs", literals=["controller: NVIDIA Corporation", "]: NVIDIA Corporation"])
def lspci_gpu(line: Line) -> Iterator[Event]:
    """A card and, with -vv, its link. Cards idle at a low speed: only a narrow width means something."""
    found = LSPCI.match(line.text[:LONGEST_MESSAGE])
    if found is None:
        return
    pci = pci_address(found["pci"])
    marketed = re.search(r"\[([^\]]{1,60})\]", found["chip"])
    details: dict[str, Detail] = {"pci": pci, "model": marketed[1] if marketed else None}
    if found["rev"] == "ff":
        details["lost"] = True
    for text in lines_of_block(line, 60):
        if text[:1] not in ("\t", " "):
            break
        if "Unknown header type 7f" in text:
            details["lost"] = True
        elif link := LNK.search(text):
            details["pcie_width_max" if link["what"] == "Cap" else "pcie_width"] = int(link["width"])
    yield _emit(line, pci, details)


# --- the driver's own lines -----------------------------------------------------------------------------------------


def _nvrm_uuid(line: Line, text: str, found: re.Match[str]) -> Iterator[Event]:
    if not is_quoted(line, text, found.start()):
        pci = pci_address(found["pci"])
        yield _emit(line, pci, {"pci": pci, "uuid": identity("uuid", found["uuid"])})


def _nvrm_serial(line: Line, text: str, found: re.Match[str]) -> Iterator[Event]:
    """The card's address stands in the line itself, or in one before."""
    serial = identity("serial", found["board"] or found["own"] or found["on"])
    pci, uuid = pci_address(found["pci"]), None
    if pci is None and (named := next((m for x in line.before(2) if (m := NVRM_UUID.search(x.text))), None)):
        pci, uuid = pci_address(named["pci"]), identity("uuid", named["uuid"])
    if serial and pci and not is_quoted(line, text, found.start()):
        yield _emit(line, pci, {"pci": pci, "serial": serial, "uuid": uuid})


def _drm(line: Line, text: str, found: re.Match[str]) -> Iterator[Event]:
    pci = address_of_gpu_id(found["id"])
    yield _emit(line, pci, {"pci": pci, "registered": True})


def _drm_minor(line: Line, text: str, found: re.Match[str]) -> Iterator[Event]:
    pci = pci_address(found["pci"])
    yield _emit(line, pci, {"pci": pci, "drm_minor": int(found["minor"])})


DRIVER_FORMS = ((NVRM_UUID, _nvrm_uuid), (NVRM_SERIAL, _nvrm_serial), (DRM, _drm), (DRM_MINOR, _drm_minor))


@parser(
    title="NVIDIA driver: which GPU is which",
    literals=(
        *("GPU at PCI:", "GPU at 0", "GPU Board Serial Number", "GPU serial number is", "GPU is on Board"),
        *("[GPU ID 0x", "Initialized nvidia-drm"),
    ),
)
def driver_names_gpu(line: Line) -> Iterator[Event]:
    text = line.text[:LONGEST_MESSAGE]
    for form, read in DRIVER_FORMS:
        if found := form.search(text):
            yield from read(line, text, found)
            return
