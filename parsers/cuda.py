"""CUDA errors as PyTorch, drivers and tools print them in a job's log. Time: the line's own prefix, mostly none.

Examples:

torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which
1.20 GiB is free. Process 4242 has 30.20 GiB memory in use. Including non-PyTorch memory, this process has 47.00 GiB ...
RuntimeError: CUDA error: an illegal memory access was encountered

The device number in these texts is the process's own, after CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._lines import cuda_cause, failure_block, is_quoted, near, number

SIZE = r"(?<![\d.])(\d{1,12}(?:\.\d{1,6})?) ?([KMGT]i?B|bytes|B)"
UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

RETRIED = re.compile(r"(?i)\bWARN(?:ING)?\b.{0,200}\b(?:retry|skip)")
"""A program that caught it and goes on."""
REQUESTED = re.compile(r"CUDA out of memory\. Tried to allocate " + SIZE)
GARBAGE = "Tried to allocate more than 1EB"
DEVICE = re.compile(r"GPU (\d{1,3})(?:;| has a total)")
TOTAL = re.compile(r"total capac(?:i)?ty of " + SIZE + "|" + SIZE + " total capacity")
FREE = re.compile(r"of which " + SIZE + " is free|" + SIZE + r" free\b")
ALLOCATED = re.compile(r"allocated memory " + SIZE + " is allocated by PyTorch|" + SIZE + " already allocated")
UNALLOCATED = re.compile(SIZE + " is reserved by PyTorch but unallocated")
RESERVED = re.compile(SIZE + " reserved in total by PyTorch")
OTHER = re.compile(r"Process (\d{1,9}) has " + SIZE + " memory in use")

PEER_SHARE = 0.02
"""Share of the card above which another process is more than a bare CUDA context: our judgement."""

TEXT = re.compile(
    r"(?:CUDA error|cuDNN error): (?P<text>[^\n]{1,300})|(?P<name>CUDA_ERROR_[A-Z_]{3,60})"
    r"|(?P<lost>Unable to determine the device handle for (?:GPU|gpu) ?[^\n]{0,120}|GPU is lost)"
    r"|(?P<bare>uncorrectable ECC error encountered|an illegal memory access was encountered"
    r"|device-side assert triggered"
    r"|unspecified launch failure|CUDA-capable device\(s\) is/are busy or unavailable|No CUDA GPUs are available)"
)
ASSERTION = re.compile(
    r"block: \[\d{1,10},\d{1,10},\d{1,10}\], thread: \[[\d,]{1,40}\] Assertion `(?P<what>.{1,300})` failed"
)
ADDRESS = re.compile(r"\b([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])\b")


def _bytes(found: re.Match[str] | None) -> int | None:
    if not found:
        return None
    groups = [x for x in found.groups() if x is not None][-2:]
    return int(float(groups[0]) * UNITS[groups[1][0].lower()])


class _Pool(NamedTuple):
    """PyTorch's pool of memory on one device, in bytes."""

    allocated: int | None
    unallocated: int | None
    reserved: int | None
    """The whole of it."""

    @classmethod
    def of(cls, text: str) -> _Pool:
        """Two of the three tell the third."""
        allocated, unallocated, reserved = (_bytes(x.search(text)) for x in (ALLOCATED, UNALLOCATED, RESERVED))
        if allocated is not None and reserved is None and unallocated is not None:
            reserved = allocated + unallocated
        elif allocated is not None and reserved is not None and unallocated is None:
            unallocated = reserved - allocated
        return cls(allocated, unallocated, reserved)


def _lacking(requested: int | None, unallocated: int | None) -> str | None:
    """Why the pool had no room: its free memory was in pieces, or there was not enough."""
    if requested is None or unallocated is None:
        return None
    return "fragmentation" if unallocated >= requested else "growth"


def oom_details(text: str) -> dict[str, Detail]:
    """What an out-of-memory text says, sizes in bytes; `reserved_bytes` is the whole of PyTorch's pool."""
    device = DEVICE.search(text)
    requested, total, free = _bytes(REQUESTED.search(text)), _bytes(TOTAL.search(text)), _bytes(FREE.search(text))
    pool = _Pool.of(text)
    others = [(int(x[1]), _bytes(x) or 0) for x in OTHER.finditer(text)]
    other_pid, other_bytes = max(others, key=lambda x: x[1], default=(None, 0))
    peer = other_pid is not None and other_bytes >= PEER_SHARE * (total or 0)
    return {
        "device": int(device[1]) if device else None,
        "requested_bytes": requested,
        "total_bytes": total,
        "free_bytes": free,
        "allocated_bytes": pool.allocated,
        "reserved_bytes": pool.reserved,
        "other_pid": other_pid,
        "detail": "peer process" if peer else _lacking(requested, pool.unallocated),
    }


@parser(title="CUDA out of memory", literals=["Tried to allocate "])
def cuda_oom(line: Line) -> Iterator[Event]:
    text = near(line)
    if GARBAGE in text:
        yield line.event(
            "cuda-oom", role="consequence", severity="warning", details={"detail": None}, **failure_block(line)
        )
    elif (found := REQUESTED.search(text)) and not is_quoted(text, found.start()):
        details = oom_details(text)
        if details["reserved_bytes"] is None:  # wrapped by a terminal or mail program
            details = oom_details(text + "".join(x.text for x in line.after(5)))
        if RETRIED.search(line.raw[:600].decode("utf-8", "replace")):
            yield line.event("cuda-oom", role="context", severity="warning", details=details)
            return
        yield line.event(
            "cuda-oom", role="cause", severity="error", cause="cuda_oom", details=details, **failure_block(line)
        )


@parser(
    title="CUDA error",
    literals=[
        "CUDA error: ",
        "cuDNN error: ",
        "CUDA_ERROR_",
        "uncorrectable ECC error encountered",
        "an illegal memory access was encountered",
        "device-side assert triggered",
        "unspecified launch failure",
        "is/are busy or unavailable",
        "No CUDA GPUs are available",
        "Unable to determine the device handle",
        "GPU is lost",
    ],
)
def cuda_error(line: Line) -> Iterator[Event]:
    text = near(line)
    found = TEXT.search(text)
    if not found or _is_elsewhere(text, found):
        return
    error = next(x for x in (found["text"], found["name"], found["lost"], found["bare"]) if x).strip()
    cause = cuda_cause(text[found.start() : found.start() + 400])
    if cause == "cuda_oom" and "Tried to allocate" in text:
        return
    yield line.event(
        "cuda-error",
        role="cause" if cause else "symptom",
        severity="critical" if cause else "error",
        cause=cause,
        gpu_pci=_address(found["lost"]),
        details={"error": error},
        **failure_block(line),
    )


def _is_elsewhere(text: str, found: re.Match[str]) -> bool:
    """A quotation, words of NCCL's or of its watchdog, or nvidia-smi's about a lost card, which kernel.toml has."""
    return (
        is_quoted(text, found.start())
        or "watchdog thread terminated with exception" in text
        or "NCCL WARN" in text
        or (found["lost"] is not None and "Error:" not in text)
    )


def _address(text: str | None) -> str | None:
    """The PCI address in it."""
    found = ADDRESS.search(text) if text else None
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}".lower() if found else None


@parser(title="CUDA: an assertion in a kernel", literals=["Assertion `"])
def cuda_assertion(line: Line) -> Iterator[Event]:
    """One event for a run of such lines: each thread prints its own, without rank or pid."""
    found = ASSERTION.search(near(line))
    if found and not any(ASSERTION.search(x.text) for x in line.before(1)):
        yield line.event(
            "cuda-error",
            role="cause",
            severity="error",
            cause="gpu_app_fault",
            details={"error": f"Assertion `{found['what']}` failed"},
        )


NAN_RERUN = re.compile(
    r"Unexpected result (?P<what>nan|inf|spiky\w{0,10}) on rank (?P<rank>\d{1,7}) at iteration #(?P<step>\d{1,12})"
)
NAN_CHECK = re.compile(r"Rank (?P<rank>\d{1,7}): found (?:NaN|Inf) in")
"""Megatron's check before rerun_state_machine.py came (2025): an assertion that ends the process."""
NAN = re.compile(r"(?i)found NaN in|\bloss(?:=|: | is )\s{0,4}nan\b|detected nan|nan loss")


@parser(
    title="NaN",
    literals=[
        "found NaN in",
        "oss: nan",
        "oss=nan",
        "oss is nan",
        "oss: NAN",
        "oss is NaN",
        "oss: NaN",
        "NaN loss",
        "found Inf in",
        "Unexpected result ",
    ],
)
def nan(line: Line) -> Iterator[Event]:
    text = near(line)
    if found := NAN_RERUN.search(text) or NAN_CHECK.search(text):
        yield line.event(
            "nan",
            role="cause",
            severity="error",
            cause="python_exception",
            rank=int(found["rank"]),
            details={"step": number(found.groupdict().get("step"))},
        )
    elif NAN.search(text):
        yield line.event("nan", role="symptom", severity="warning", details={"step": None}, **failure_block(line))
