"""Everything else that a kernel, systemd, a BMC or a report tool writes about a failing host: kernel.toml.

The catalogue holds the literals, the regexes, what each line means and where its form comes from. A literal that was
found in a line picks the few regexes that are tried on it; the first entry that matches, in the catalogue's order, is
the line's event. Time: the log's own. Example (one line):
[74889.542031] pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:00:02.0
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from nccl_forensics.catalog import KernelEntry, kernel_entries, kernel_noise
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event, Role, Severity

from ._kernel import (
    LONGEST_MESSAGE,
    address_of_gpu_id,
    build_date,
    is_early,
    is_quoted,
    lines_of_block,
    note_boot,
    pci_address,
)

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

ELSEWHERE = frozenset(
    {"rsyslog-repeat", "slurm-oom", "fm-fatal", "nvidia-drm-gpu", "nvrm-gpu-uuid", "nvrm-board-serial"}
)
"""Entries whose lines another parser of this folder reads, or lines/prefixes unfolds."""
ANCHORS = {"audit-stamp": "audit", "rtc-stamp": "rtc"}
"""Lines that tell the time twice: on the host's wall clock and, before the message, on the log's own."""
ANCHOR_EVERY_NS = 60_000_000_000
"""A chatty audit log would give an anchor a line: one a minute is plenty; our judgement."""
WORDS = frozenset(
    {"addr", "addr2", "addr3", "addr4", "addr5", "base", "client", "code", "cs", "csts", "device", "driver"}
    | {
        "emask",
        "err",
        "flags",
        "gfp",
        "ip",
        "lba",
        "len",
        "mask",
        "mcg",
        "pcis",
        "reason",
        "sc",
        "sct",
        "serial",
        "serial2",
    }
    | {"serial3", "server", "slot", "sp", "ss", "status", "task", "unit", "vendor", "version"}
)
"""Groups that stay text although they may hold digits only: hexadecimal or names. `err` of a fault is hexadecimal."""

FUNCTION = re.compile(
    r"^(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<class>[^\n]{1,200})$", re.MULTILINE
)
"""First line of a device in lspci's output."""
SMI_GPU = re.compile(
    r"^(?:GPU (?P<pci>[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])\s*$|GPU (?P<index>\d{1,3}): [^\n]{1,200}$|_{44})",
    re.MULTILINE | re.IGNORECASE,
)
"""What tells whose block of nvidia-smi a line stands in; the end of a bug report's section ends all blocks."""
IS_GPU = re.compile(r"(?:VGA compatible|3D) controller[^:]*: NVIDIA")
WRITTEN_PCI = re.compile(r"\b[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b")
REFUSED = re.compile(r"The NVIDIA GPU (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
GSP_WAIT = re.compile(r"Timeout after (\d{1,4})s of waiting for RPC")
GHES_SEVERITY = re.compile(r"event severity: (\w+)")
GHES_BLOCK = 4
"""Lines behind the first of a record of APEI among which its severity stands (drivers/acpi/apei/ghes.c: the next or
the one behind it), with room for others between."""
AER_BIT = re.compile(r"\[ ?\d{1,2}\] (\w[\w ]{1,30}?\w)(?:\s{2,}|\s*\(First\)|\s*$)")
AER_BLOCK = 8
"""Lines that one AER report prints behind its first one, at most."""
FRAME = re.compile(r"\b([A-Za-z_][\w.]{1,60})\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(\w{1,40})\])?")
"""A call in a kernel stack, and its module."""
STORAGE = re.compile(
    r"^(?:nfs|nfsv4|sunrpc|lustre|lov|osc|mdc|ptlrpc|ceph|libceph|cifs|fuse|xfs|ext4|jbd2|btrfs|nvme|md_mod)$"
)
STORAGE_CALL = re.compile(
    r"^(?:nfs\d?_|rpc_wait|xfs_|ext4_|jbd2_|btrfs_|blk_|io_schedule|wait_on_page|folio_wait|submit_bio)"
)
GPU_MODULE = re.compile(r"^nvidia(?:_uvm|_modeset|_drm)?$")
STACK = 40
"""Lines of a kernel stack that are read."""
LAST_LINES = 200
"""Lines before a boot among which an orderly shutdown shows; our judgement."""
SHORT_BOOT = 40
"""Lines that are looked at before more of them are taken from memory."""
NEW_BOOT = re.compile(r"Linux version \d|^-- (?:Boot|Reboot)\b")
ORDERLY = re.compile(
    r"systemd-shutdown\[1\]|Reached target (?:System )?(?:Power.?Off|Reboot|Shutdown|Halt)|reboot: |Journal stopped"
    r"|systemd\[1\]: Shutting down"
)
MCI_STATUS_UC = 1 << 61
"""IA32_MCi_STATUS, bit 61: the error was not corrected (Intel SDM volume 3B, chapter 'Machine-Check Architecture')."""


@cache
def _by_needle() -> dict[bytes, tuple[int, ...]]:
    """Needle → places in `kernel_entries()`."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for place, entry in enumerate(kernel_entries()):
        for needle in entry.needles:
            found[needle].append(place)
    return {needle: tuple(places) for needle, places in found.items()}


def winner(text: str, hits: Iterable[bytes], tagged: str | None = None) -> tuple[KernelEntry, re.Match[str]] | None:
    """The catalogue's entry for a message that holds the needles `hits`, and how it matched; None for noise.

    `tagged`: the message with its program's tag (`systemd[1]: …`), for entries that need one.
    """
    table = _by_needle()
    for place in sorted({place for hit in hits for place in table.get(hit, ())}):
        entry = kernel_entries()[place]
        found = entry.regex.search(text) or (entry.regex.search(tagged) if tagged else None)
        if found is None:
            continue
        if entry.id not in ANCHORS and any(regex.search(text) for _, regex in kernel_noise()):
            return None
        return entry, found
    return None


def _tagged(line: Line, text: str) -> str | None:
    """The message as it stood behind its syslog tag, if the tag was taken off with the prefix."""
    program, pid = line.peeled.program, line.peeled.pid
    if program is None or program == "kernel" or text.startswith(program):
        return None
    return f"{program}: {text}" if pid is None else f"{program}[{pid}]: {text}"


def _details(found: re.Match[str]) -> dict[str, Detail]:
    details: dict[str, Detail] = {}
    for name, value in found.groupdict().items():
        if value is None:
            continue
        value = value.strip()
        if name in ("pci", "source", "from") and (pci := pci_address(value)):
            details[name] = pci
        elif name not in WORDS and re.fullmatch(r"-?\d{1,18}", value):
            details[name] = int(value)
        else:
            details[name] = value[:300]
    return details


def _text_before(line: Line, bytes_back: int) -> str:
    start = max(0, line.start - bytes_back)
    return bytes(line.window.buffer[start : line.start]).decode("utf-8", "replace")


def _smi_gpu(line: Line) -> tuple[str | None, int | None]:
    """Address or index of the GPU in whose block of nvidia-smi's output the line stands."""
    headers = list(SMI_GPU.finditer(_text_before(line, 1 << 15)))
    if not headers:
        return None, None
    last = headers[-1]
    return pci_address(last["pci"]), int(last["index"]) if last["index"] else None


def _lspci_function(line: Line) -> tuple[str | None, bool]:
    """Address of the device in whose block of lspci's output the line stands, and whether it is an NVIDIA GPU."""
    devices = list(FUNCTION.finditer(_text_before(line, 1 << 13)))
    if not devices:
        return None, False
    return pci_address(devices[-1]["pci"]), IS_GPU.search(devices[-1]["class"]) is not None


def _stack(line: Line, details: dict[str, Detail]) -> None:
    """What a blocked task waits for, from the stack that the kernel prints behind the message."""
    calls: list[tuple[str, str]] = []
    for text in lines_of_block(line, STACK):
        if "</TASK>" in text or "INFO: task" in text:
            break
        if found := FRAME.search(text):
            calls.append((found[1], found[2] or ""))
    if not calls:
        return
    details["frames"] = tuple(f"{name} [{module}]" if module else name for name, module in calls[:8])
    if any(GPU_MODULE.match(module) for _, module in calls):
        details["waits_on"] = "gpu"
    elif any(STORAGE.match(module) or STORAGE_CALL.match(name) for name, module in calls):
        details["waits_on"] = "storage"


def _lines_back(line: Line) -> Iterator[Line]:
    """The lines before, nearest first; in a log of many short boots the last one's first line is near."""
    done = 0
    for most in (SHORT_BOOT, LAST_LINES):
        lines = line.before(most)
        yield from lines[done:]
        if len(lines) < most:
            return
        done = most


def _end_of_the_boot_before(line: Line, details: dict[str, Detail]) -> None:
    """When the boot before was last heard of, on the clock as written, and whether it was shut down.

    `orderly` is only there if the log is one that would show a shutdown: it has lines of systemd.
    """
    written: list[str] = []
    for one in _lines_back(line):
        text = one.raw.decode("utf-8", "replace")
        if NEW_BOOT.search(text):
            if written:
                break  # that is another boot's end
            continue  # '-- Boot …' and 'Linux version' stand together
        written.append(text)
        if (
            len(written) <= 5
            and "last_wall_ns" not in details
            and one.stamp is not None
            and one.stamp.wall_ns is not None
        ):
            details["last_wall_ns"] = one.stamp.wall_ns
    if any(ORDERLY.search(text) for text in written):
        details["orderly"] = True
    elif any("systemd" in text for text in written):
        details["orderly"] = False


def _join(
    line: Line, entry: KernelEntry, details: dict[str, Detail], role: Role, severity: Severity
) -> tuple[Role, Severity, str | None]:
    """What the neighbours of a line add: to `details`, to its role, and which GPU it speaks of."""
    pci = details.get("pci")
    if isinstance(source := details.get("source"), str) and ":" in source:
        pci = source  # the port only reports it
    gpu = pci if entry.indicts in ("gpu", "device") and isinstance(pci, str) else None
    if entry.id == "nvrm-fallen-probe" and gpu is None:
        for before in line.before(4):
            if found := REFUSED.search(before.text):
                gpu = pci_address(found["pci"])
                break
        else:
            if found := REFUSED.search(line.text):
                gpu = pci_address(found["pci"])
        if gpu:
            details["pci"] = gpu
    elif entry.id == "nvrm-gpu-addr":
        following = " ".join(x.strip() for x in lines_of_block(line, 3))
        if "fallen off the bus" in following:
            details["why"] = "fallen off the bus"
    elif entry.id in ("aer-corrected", "aer-uncorrected", "pcie-bus-error"):
        bits: list[str] = []
        for text in lines_of_block(line, AER_BLOCK):
            if "AER: " in text and "error received" in text:
                break
            if isinstance(pci, str) and pci in text and (found := AER_BIT.search(text)):
                bits.append(found[1].strip())
        if bits:
            details["bits"] = tuple(bits[:8])
        if entry.id == "pcie-bus-error" and "Uncorrect" in str(details.get("severity")):
            severity = "critical" if "(Fatal)" in str(details["severity"]) else "error"
        elif entry.id == "pcie-bus-error":
            severity = "warning"
    elif entry.id == "mce":
        if not int(str(details["status"]), 16) & MCI_STATUS_UC:
            details["corrected"] = True
            role, severity = "context", "warning"
    elif entry.id == "hung-task":
        _stack(line, details)
    elif entry.id == "boot-start":
        details.update(build_date(line.text))
        _end_of_the_boot_before(line, details)
    elif entry.id == "ghes" and "sev" not in details:
        record = f"{{{details['n']}}}[Hardware Error]"
        for text in lines_of_block(line, GHES_BLOCK):
            if record in text and (told := GHES_SEVERITY.search(text)):
                details["sev"] = told[1]
                if told[1] in ("corrected", "info"):
                    role, severity = "context", "info"
                break
    elif entry.id == "ghes-device":
        for before in line.before(14):
            if found := GHES_SEVERITY.search(before.text):
                details["severity"] = found[1]
                break
    elif entry.id == "nvidia-drm-fail":
        gpu = address_of_gpu_id(str(details["gpuid"]))
    elif entry.log == "nvidia-smi" and gpu is None and "Unable to determine" not in line.text:
        row = WRITTEN_PCI.search(line.text)  # of a CSV table
        gpu, index = (pci_address(row[0]), None) if row else _smi_gpu(line)
        if index is not None:
            details["index"] = index
        if "Pending" in str(details.get("what")):  # asks for a reset; who knows how long ago the row failed
            role, severity = "symptom", "warning"
    elif entry.log == "lspci" and gpu is None:
        address, is_gpu = _lspci_function(line)
        if address:
            details["pci"] = address
        gpu = address if is_gpu else None
        if not is_gpu:
            role = "context"
    elif entry.id == "lspci-gone" and not IS_GPU.search(line.text):
        role, gpu = "context", None
    elif entry.id == "proc-vbios-unknown":
        for text in (*lines_of_block(line, 8), *(x.raw.decode("utf-8", "replace") for x in line.before(4))):
            if text.startswith("Bus Location:"):
                gpu = pci_address(text.partition(":")[2])
                break
    return role, severity, gpu


def _anchor(line: Line, what: str, epoch_ns: int, details: dict[str, Detail]) -> Iterator[Event]:
    """A clock-anchor, unless this file gave one less than a minute ago."""
    last: int | None = line.window.state.get(f"kernel.anchor.{what}")
    if last is not None and 0 <= epoch_ns - last < ANCHOR_EVERY_NS:
        return
    line.window.state[f"kernel.anchor.{what}"] = epoch_ns
    details = {"epoch_ns": epoch_ns, "what": what, **details}
    yield line.event("clock-anchor", role="context", details=details, pid=None)


def _epoch_ns(written: str) -> int:
    """Nanoseconds since 1970 from decimal seconds, without a float in between."""
    seconds, _, fraction = written.partition(".")
    return int(seconds) * 1_000_000_000 + int((fraction + "000000000")[:9])


def _gsp_history(line: Line, found: re.Match[str]) -> Iterator[Event]:
    """One row of the table that follows Xid 119: microseconds since 1970, UTC.

    The request that hung (entry 0, no end) began as long before this line was printed as the driver waited for it.
    """
    started_ns, ended_ns = int(found["ts_start"], 16) * 1_000, int(found["ts_end"], 16) * 1_000
    if int(found["entry"]) == 0 and ended_ns == 0:
        for before in line.before(8):
            if waited := GSP_WAIT.search(before.raw.decode("utf-8", "replace")):
                yield from _anchor(
                    line, "gsp-history", started_ns + int(waited[1]) * 1_000_000_000, {"resolution_ns": 10**9}
                )
                return
    details: dict[str, Detail] = {
        "entry": int(found["entry"]),
        "fn": int(found["fn"]),
        "name": found["name"],
        "started_ns": started_ns,
    }
    if ended_ns:
        details["ended_ns"] = ended_ns
    yield line.event("gsp-rpc-history", role="context", details=details, pid=None)


def _event(line: Line, text: str, entry: KernelEntry, found: re.Match[str], host: str | None) -> Iterator[Event]:
    if entry.id == "boot-start":
        note_boot(line)
    if entry.id in ANCHORS:
        yield from _anchor(line, ANCHORS[entry.id], _epoch_ns(found["epoch"]), {})
        return
    if entry.id == "gsp-rpc-history":
        yield from _gsp_history(line, found)
        return
    if entry.id == "nvrm-driver-load":
        line.window.state["driver.version"] = found["version"]
        yield line.event(
            "driver-version",
            role="context",
            details={
                "version": found["version"],
                "flavour": "open" if found["flavour"] else "closed",
                "load": True,
                **build_date(text),
            },
            pid=None,
        )
        return
    details = _details(found)
    role, severity, gpu = _join(line, entry, details, entry.role, entry.severity)
    if entry.harmless is not None and entry.harmless.search(text):
        role, severity = "context", "info"
    if role != "context" and not entry.at_boot and entry.log in ("kernel", "journal", "syslog") and is_early(line):
        role = "context"
        details["early"] = True
    pid = details.get("pid") or details.get("pid2") if entry.indicts == "pid" or entry.subject == "pid" else None
    yield line.event(
        entry.id,
        role=role,
        severity=severity,
        cause=None if details.get("waits_on") == "gpu" else entry.cause,
        details=details,
        pid=pid if isinstance(pid, int) and pid else None,
        gpu_pci=gpu,
        host=host,
        repeats=line.peeled.repeats,
    )


NEEDLES = tuple(needle for entry in kernel_entries() if entry.id not in ELSEWHERE for needle in entry.needles)


@parser(title="Kernel, systemd, BMC and report lines (kernel.toml)", literals=NEEDLES)
def kernel_log(line: Line) -> Iterator[Event]:
    text = line.text[:LONGEST_MESSAGE]
    if "Xid (" in text:  # xid.py's
        return
    won, host = winner(text, line.hits, _tagged(line, text)), line.host
    if won is None:
        # Without a stamp 'mce: …' or 'nfs: …' looks as if a host named mce or nfs had written the line.
        written = line.raw[:LONGEST_MESSAGE].decode("utf-8", "replace")
        won, host = winner(written, line.hits), None
    if won is None:
        return
    entry, found = won
    if entry.id not in ELSEWHERE and not is_quoted(line, found.string, found.start(), at_start=False):
        yield from _event(line, found.string, entry, found, host)
