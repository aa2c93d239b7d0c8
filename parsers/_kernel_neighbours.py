"""What the lines around a kernel or report line add to it: whose GPU, what a stack waits for, how a boot ended.

kernel.toml says what a line means by itself; an entry that needs its neighbours has a function here, in `BY_ENTRY`, or
its whole kind of report has one, in `BY_LOG`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nccl_forensics.catalog import KernelEntry
from nccl_forensics.model import Detail, Role, Severity

from ._kernel import address_of_gpu_id, build_date, lines_of_block, pci_address

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

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
MEMORY_CALL = re.compile(
    r"^(?:__\w+_sys_(?:m(?:un|re)?map|mprotect|madvise|brk|exit_group)|exit_mmap|unmap_region|\w*_page_fault|do_user_addr_fault"
    r"|mem_cgroup_|try_to_free_|shrink_|compact_|kcompactd|khugepaged|migrate_pages|lru_add_drain)"
)
"""Kernel functions that change or fill an address space, or look for free memory."""
GPU_MODULE = re.compile(r"^nvidia(?:_uvm|_modeset|_drm)?$")
STACK = 40
"""Lines of a kernel stack that are read."""
LAST_LINES = 200
"""Lines before a boot among which an orderly shutdown shows; our judgement."""
SHORT_BOOT = 40
"""Lines that are looked at before more of them are taken from memory."""
NEW_BOOT = re.compile(r"Linux version \d|^-- (?:Boot|Reboot)\b")
NEWEST = 5
"""Lines of a boot's end of which one should have a time."""
ORDERLY = re.compile(
    r"systemd-shutdown\[1\]|Reached target (?:System )?(?:Power.?Off|Reboot|Shutdown|Halt)|reboot: |Journal stopped"
    r"|systemd\[1\]: Shutting down"
)
MCI_STATUS_UC = 1 << 61
"""IA32_MCi_STATUS, bit 61: the error was not corrected (Intel SDM volume 3B, chapter 'Machine-Check Architecture')."""


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """What a line says, first by itself, then with its neighbours."""

    details: dict[str, Detail]
    role: Role
    severity: Severity
    gpu: str | None = None
    """Address of the GPU that it speaks of."""

    def and_details(self, more: Mapping[str, Detail]) -> KernelMessage:
        return replace(self, details={**self.details, **more}) if more else self


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


def _calls(line: Line) -> Iterator[tuple[str, str]]:
    """(function, module or '') of the stack that the kernel prints behind the message, innermost first."""
    for text in lines_of_block(line, STACK):
        if "</TASK>" in text or "INFO: task" in text:
            return
        if found := FRAME.search(text):
            yield found[1], found[2] or ""


def _waits_on(calls: Sequence[tuple[str, str]]) -> dict[str, Detail]:
    if any(GPU_MODULE.match(module) for _, module in calls):
        return {"waits_on": "gpu"}
    if any(STORAGE.match(module) or STORAGE_CALL.match(name) for name, module in calls):
        return {"waits_on": "storage"}
    if any(MEMORY_CALL.match(name) for name, _ in calls):
        return {"waits_on": "memory"}
    return {}


def _lines_back(line: Line) -> Iterator[Line]:
    """The lines before, nearest first; in a log of many short boots the last one's first line is near."""
    done = 0
    for most in (SHORT_BOOT, LAST_LINES):
        lines = line.before(most)
        yield from lines[done:]
        if len(lines) < most:
            return
        done = most


def _lines_of_the_boot_before(line: Line) -> Iterator[tuple[Line, str]]:
    """Its last lines and their texts, newest first."""
    begun = False
    for one in _lines_back(line):
        text = one.raw.decode("utf-8", "replace")
        if not NEW_BOOT.search(text):
            begun = True
            yield one, text
        elif begun:  # that is another boot's end; before, '-- Boot …' and 'Linux version' stand together
            return


def _end_of_the_boot_before(line: Line) -> dict[str, Detail]:
    """When the boot before was last heard of, on the clock as written, and whether it was shut down.

    `orderly` is only there if the log is one that would show a shutdown: it has lines of systemd.
    """
    lines = list(_lines_of_the_boot_before(line))
    found: dict[str, Detail] = {}
    stamps = (one.stamp for one, _ in lines[:NEWEST])
    last_ns = next((x.wall_ns for x in stamps if x is not None and x.wall_ns is not None), None)
    if last_ns is not None:
        found["last_wall_ns"] = last_ns
    if any(ORDERLY.search(text) for _, text in lines):
        found["orderly"] = True
    elif any("systemd" in text for _, text in lines):
        found["orderly"] = False
    return found


# --- one entry of kernel.toml each ------------------------------------------------------------------------------------


def _fallen_probe(line: Line, message: KernelMessage) -> KernelMessage:
    """The driver names the GPU that it could not reach in a message of its own, before this one or with it."""
    if message.gpu is not None:
        return message
    texts = (x.text for x in (*line.before(4), line))
    refused = next((found for text in texts if (found := REFUSED.search(text))), None)
    gpu = pci_address(refused["pci"]) if refused else None
    return replace(message, gpu=gpu, details={**message.details, "pci": gpu}) if gpu else message


def _gpu_addr(line: Line, message: KernelMessage) -> KernelMessage:
    following = " ".join(x.strip() for x in lines_of_block(line, 3))
    return message.and_details({"why": "fallen off the bus"} if "fallen off the bus" in following else {})


def _aer(line: Line, message: KernelMessage) -> KernelMessage:
    """The kinds of errors, which follow with the device's address before them."""
    device = device_of(message.details)
    bits: list[str] = []
    for text in lines_of_block(line, AER_BLOCK):
        if "AER: " in text and "error received" in text:
            break
        if device is not None and device in text and (found := AER_BIT.search(text)):
            bits.append(found[1].strip())
    return message.and_details({"bits": tuple(bits[:8])} if bits else {})


def _pcie_bus_error(line: Line, message: KernelMessage) -> KernelMessage:
    written = str(message.details.get("severity"))
    severity: Severity = "warning"
    if "Uncorrect" in written:
        severity = "critical" if "(Fatal)" in written else "error"
    return replace(_aer(line, message), severity=severity)


def _mce(line: Line, message: KernelMessage) -> KernelMessage:
    if int(str(message.details["status"]), 16) & MCI_STATUS_UC:
        return message
    return replace(message.and_details({"corrected": True}), role="context", severity="warning")


def _hung_task(line: Line, message: KernelMessage) -> KernelMessage:
    """What a blocked task waits for, by its stack."""
    calls = list(_calls(line))
    if not calls:
        return message
    frames = tuple(f"{name} [{module}]" if module else name for name, module in calls[:8])
    return message.and_details({"frames": frames, **_waits_on(calls)})


def _boot_start(line: Line, message: KernelMessage) -> KernelMessage:
    return message.and_details({**build_date(line.text), **_end_of_the_boot_before(line)})


def _ghes(line: Line, message: KernelMessage) -> KernelMessage:
    """A record of APEI; its severity stands in a line behind its first one."""
    if "sev" in message.details:
        return message
    record = f"{{{message.details['n']}}}[Hardware Error]"
    ours = (text for text in lines_of_block(line, GHES_BLOCK) if record in text)
    written = next((found[1] for text in ours if (found := GHES_SEVERITY.search(text))), None)
    if written is None:
        return message
    message = message.and_details({"sev": written})
    return replace(message, role="context", severity="info") if written in ("corrected", "info") else message


def _ghes_device(line: Line, message: KernelMessage) -> KernelMessage:
    written = next((found[1] for x in line.before(14) if (found := GHES_SEVERITY.search(x.text))), None)
    return message.and_details({"severity": written} if written else {})


def _drm_fail(line: Line, message: KernelMessage) -> KernelMessage:
    return replace(message, gpu=address_of_gpu_id(str(message.details["gpuid"])))


def _vbios_unknown(line: Line, message: KernelMessage) -> KernelMessage:
    """The card's address stands in the same file of /proc, below or above."""

    def around() -> Iterator[str]:
        yield from lines_of_block(line, 8)
        yield from (x.raw.decode("utf-8", "replace") for x in line.before(4))

    place = next((text for text in around() if text.startswith("Bus Location:")), None)
    return message if place is None else replace(message, gpu=pci_address(place.partition(":")[2]))


def _of_nvidia_smi(line: Line, message: KernelMessage) -> KernelMessage:
    """A line of nvidia-smi's report stands in one GPU's block, or is a row of a table."""
    if message.gpu is not None or "Unable to determine" in line.text:
        return message
    row = WRITTEN_PCI.search(line.text)  # of a CSV table
    gpu, index = (pci_address(row[0]), None) if row else _smi_gpu(line)
    message = replace(message.and_details({} if index is None else {"index": index}), gpu=gpu)
    if "Pending" in str(message.details.get("what")):  # asks for a reset; who knows how long ago the row failed
        return replace(message, role="symptom", severity="warning")
    return message


def _of_lspci(line: Line, message: KernelMessage) -> KernelMessage:
    """A line of lspci's report stands in one device's block; only a GPU's is evidence."""
    if message.gpu is not None:
        return message
    address, is_gpu = _lspci_function(line)
    message = message.and_details({"pci": address} if address else {})
    return replace(message, gpu=address) if is_gpu else replace(message, role="context")


def _lspci_gone(line: Line, message: KernelMessage) -> KernelMessage:
    if message.gpu is None:
        return _of_lspci(line, message)
    return message if IS_GPU.search(line.text) else replace(message, role="context", gpu=None)


AMD_CARD = re.compile(r"amdgpu (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): ")
AMD_RESET = 8
"""Lines behind a hanging ring among which the card is named that is reset for it."""


def _ring_timeout(line: Line, message: KernelMessage) -> KernelMessage:
    """Not all such lines name the card; the next one that names one tells of its reset."""
    if message.gpu is not None:
        return message
    found = next((m for text in lines_of_block(line, AMD_RESET) if (m := AMD_CARD.search(text))), None)
    return message if found is None else replace(message, gpu=pci_address(found["pci"]))


def _ata_link_down(line: Line, message: KernelMessage) -> KernelMessage:
    """A port that never had a drive says so at every boot and every resume; a lost drive spoke before."""
    port = message.details["port"]
    had_a_drive = any(line.holds_before(f"{port}{said}".encode(), line.start) for said in (".00: ", ": SATA link up"))
    if had_a_drive or line.number > 1 + line.window.buffer.count(b"\n", 0, line.start):
        return message  # seen, or the file's begin is not in memory any more
    return replace(message, role="context")


def _gim(line: Line, message: KernelMessage) -> KernelMessage:
    """`0:bd:0:0`: domain, bus, device, function, in hex without leading zeros."""
    domain, bus, device, function = (int(part, 16) for part in str(message.details["place"]).split(":"))
    return replace(message, gpu=f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}")


Neighbours = Callable[["Line", KernelMessage], KernelMessage]
BY_ENTRY: Mapping[str, Neighbours] = {
    "nvrm-fallen-probe": _fallen_probe,
    "nvrm-gpu-addr": _gpu_addr,
    "aer-corrected": _aer,
    "aer-uncorrected": _aer,
    "pcie-bus-error": _pcie_bus_error,
    "mce": _mce,
    "hung-task": _hung_task,
    "boot-start": _boot_start,
    "ghes": _ghes,
    "ghes-device": _ghes_device,
    "nvidia-drm-fail": _drm_fail,
    "ata-link-down": _ata_link_down,
    "amdgpu-ring-timeout": _ring_timeout,
    "amdgpu-mes": _ring_timeout,
    "gim-ecc-fatal": _gim,
    "lspci-gone": _lspci_gone,
    "proc-vbios-unknown": _vbios_unknown,
}
"""Id of an entry → how its neighbours are read."""
BY_LOG: Mapping[str, Neighbours] = {"nvidia-smi": _of_nvidia_smi, "lspci": _of_lspci}
"""The same for all other entries of a kind of report."""


def device_of(details: Mapping[str, Detail]) -> str | None:
    """The PCI device that failed, where the line names one; a port (`pci`) only reports the `source`."""
    source, pci = details.get("source"), details.get("pci")
    if isinstance(source, str) and ":" in source:
        return source
    return pci if isinstance(pci, str) else None


def join(line: Line, entry: KernelEntry, details: dict[str, Detail]) -> KernelMessage:
    """What a line of this entry says together with its neighbours."""
    gpu = device_of(details) if entry.indicts in ("gpu", "device") else None
    message = KernelMessage(details, entry.role, entry.severity, gpu)
    read = BY_ENTRY.get(entry.id) or BY_LOG.get(entry.log)
    return message if read is None else read(line, message)
