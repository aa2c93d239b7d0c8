"""What several job-log parsers need: the lines that go on with a message, wrapped lines put together, small values.

Holds no parser of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import accumulate
from typing import Any

from nccl_forensics.lines.line import Line
from nccl_forensics.model import Stamp

HEADER_RANK = re.compile(r"\[rank(\d{1,7})\]:")
"""PyTorch >= 2.2 puts the global rank before each line that it prints itself."""

BLOCK_RANK = re.compile(r"^\s*rank\s*: (\d{1,7}) \(local_rank: (\d{1,5})\)")
BLOCK_HOST = re.compile(r"^\s*host\s*: (\S{1,255})")
BLOCK_REACH = 120
"""Lines of one entry of torchrun's failure block that are looked through; our judgement."""

PEER = re.compile(r"\b(?:peer|from|to) (?P<host>\[?[\w.:%-]{1,255}?\]?)<(?P<port>\d{1,5})>")
"""NCCL writes a peer as host<port>."""


PART = re.compile(r"Traceback \(most recent call last\):? ?\(RANK (?P<rank>\d{1,7})\)")
"""torch's CheckpointException holds other ranks' tracebacks, each under such a line (torch/distributed/checkpoint/
api.py); every rank raises it, also those that could write."""
PART_REACH, PART_BYTES = 200, 1 << 15
"""Lines of one such traceback, and bytes; our judgement."""

LONGEST = 4000
"""Characters of a line that patterns run on; no message of these formats is longer."""


DATA = re.compile(
    r"[{,]\s*['\"](?:text|prompt|question|answer|instruction|completion|response|conversations|document|chosen|rejected)['\"]\s*:"
)
"""Keys of training data that a job prints as samples; loggers do not write them. Our judgement."""
DATA_BEGIN = re.compile(r"(?:^|\]\s?)\[?\{\s*['\"]")
"""At the start of a line, or glued to a progress bar."""
LOGGED = re.compile(
    r"['\"](?:msg|message|err|error|exc|exc_info|exception|traceback|stack|stack_trace|log|event|reason|detail|details"
    r"|output|stderr|stdout|text)['\"]\s*:\s*$",
    re.IGNORECASE,
)
REPORTED = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|[Ee]rror:|[Ff]ailed|raised)")
CLASS_BEFORE = re.compile(r"(?:[\w.]{1,120}(?:Error|Exception|Fault)\b(?:\([\w, ]{0,40}\))?: ?)$")


def is_data(text: str) -> bool:
    """Whether a message is a record of training data that was printed: what it tells happened to somebody else."""
    found = DATA_BEGIN.search(text[:LONGEST])
    return found is not None and DATA.search(text[found.start() : LONGEST]) is not None


def is_quoted(text: str, at: int) -> bool:
    """Whether what stands at `at` is a quotation in prose or data, rather than said by the program itself.

    It is if a quotation mark stands right before it (and before the class of its exception), or a double one is open
    there, unless the string is an argument (`RuntimeError('…')`), the value of a key that loggers write, or reported as
    an error.
    """
    before = text[max(0, at - LONGEST) : at]
    if found := CLASS_BEFORE.search(before[-200:]):
        before = before[: len(before) - len(found[0])]
    if before[-1:] in ("'", '"', "`") and before:
        opened = len(before) - 1
    elif before.count('"') % 2:
        opened = before.rindex('"')
    else:
        return False
    head = before[:opened].rstrip()
    if not head or head.endswith(("(", "what():", "=")):
        return False
    return LOGGED.search(head[-60:]) is None and REPORTED.search(head) is None


def near(line: Line) -> str:
    """The message, or of a very long one the part around the literal that was found. Empty for printed data."""
    text = line.text
    if "{" in text and is_data(text):
        return ""
    if len(text) <= LONGEST:
        return text
    at = min((x for hit in line.hits if (x := text.find(hit.decode("utf-8", "replace"))) >= 0), default=0)
    begin = max(0, at - LONGEST // 4)
    return text[begin : begin + LONGEST]


def follows(first: Line, other: Line) -> bool:
    """Can `other` be the next line of the process that wrote `first`? A line without a tag can be anybody's."""
    a, b = first.peeled, other.peeled
    return (
        (b.rank is None or b.rank == a.rank)
        and (b.local_rank is None or b.local_rank == a.local_rank)
        and (b.task is None or b.task == a.task)
        and (b.host is None or b.host == a.host)
        and (b.pid is None or a.pid is None or b.pid == a.pid)
        and (b.pod is None or b.pod == a.pod)
    )


def followers(line: Line, most: int, reach: int | None = None) -> Iterator[Line]:
    """Up to `most` lines behind `line` that the same process may have written, among the next `reach` (4 × most)."""
    found = 0
    for other in line.after(reach or 4 * most):
        if follows(line, other):
            yield other
            found += 1
            if found == most:
                return


def leaders(line: Line, most: int, reach: int | None = None) -> Iterator[Line]:
    """Up to `most` lines before `line`, nearest first, that the same process may have written."""
    found = 0
    for other in line.before(reach or 4 * most):
        if follows(other, line) or follows(line, other):
            yield other
            found += 1
            if found == most:
                return


def loose(pattern: str) -> re.Pattern[str]:
    """A pattern whose blanks match any blank or none: for text put together again from wrapped lines."""
    return re.compile(pattern.replace(" ", r"\s*"))


def whole(
    line: Line, pattern: re.Pattern[str], literals: Sequence[str], most: int = 3
) -> Iterator[tuple[re.Match[str], str, Line]]:
    """Matches of a `loose` pattern in the line, or in it and its neighbours when the message was wrapped.

    Terminals and mail programs cut long lines, between words or inside one. A match that spans lines belongs to the
    first of them that holds one of `literals`, so that each is found once. Gives the match, the text it is in, and the
    line where it begins, whose prefix says who wrote it.
    """
    text = near(line)
    if not text:
        return
    if len(line.raw) <= LONGEST and any(line.raw.count(x.encode()) > text.count(x) for x in literals):
        text = line.raw.decode("utf-8", "backslashreplace")  # several processes' messages in one line
    alone = False
    for found in pattern.finditer(text):
        alone = True
        yield found, text, line
    if not alone and len(line.raw) <= LONGEST:
        yield from _wrapped(line, pattern, literals, most)


def _wrapped(
    line: Line, pattern: re.Pattern[str], literals: Sequence[str], most: int
) -> Iterator[tuple[re.Match[str], str, Line]]:
    """Matches that begin or end in a neighbour."""
    before = [*leaders(line, most, most)][::-1]
    lines = [*before, line, *followers(line, most, most)]
    pieces = [near(x) for x in lines]
    starts = [0, *accumulate(map(len, pieces))]
    joined = "".join(pieces)
    for found in pattern.finditer(joined):
        spanned = [i for i in range(len(pieces)) if starts[i] < found.end() and starts[i + 1] > found.start()]
        owner = next((i for i in spanned if any(x in pieces[i] for x in literals)), None)
        if owner == len(before) and len(spanned) > 1:
            yield found, joined, lines[spanned[0]]


def rank_before(line: Line, text: str, at: int) -> int | None:
    """Global rank of the header nearest before `at`, where several processes' messages stand in one line."""
    rank = line.rank
    for found in HEADER_RANK.finditer(text, 0, at):
        rank = int(found[1])
    return rank


def told_of(rank: int, line: Line) -> dict[str, Any]:
    """What is known of an event of `rank` in a line that any rank may print: of a stranger's prefix, nothing is its."""
    if line.rank == rank:
        return {"rank": rank}
    return {"rank": rank, "local_rank": None, "task": None, "host": None, "pid": None, "relayed": True}


def _part(line: Line) -> dict[str, Any]:
    """Whose traceback this line ends, where a rank prints those of others; empty elsewhere."""
    if not line.holds_before(b"(RANK ", PART_BYTES):
        return {}
    for other in leaders(line, PART_REACH, PART_REACH):
        if found := PART.search(other.text):
            return told_of(int(found["rank"]), line)
        if not other.text.startswith(" "):
            break
    return {}


def failure_block(line: Line, *, inside: bool = False) -> dict[str, Any]:
    """Of whom the lines around speak: torchrun's failure block, with its indented tracebacks, or a relayed traceback.

    Empty elsewhere.
    """
    if part := _part(line):
        return part
    if not inside and (line.rank is not None or not line.text.startswith("  ")):
        return {}
    return _block_above(line)


def _block_above(line: Line) -> dict[str, Any]:
    """Rank and host of the entry of torchrun's failure block that the line stands in."""
    known: dict[str, Any] = {}
    for other in leaders(line, BLOCK_REACH, BLOCK_REACH):
        text = other.text
        if text.strip() and not text.startswith((" ", "Traceback (most recent call last)")):
            break
        if "rank" not in known:
            if found := BLOCK_RANK.match(text):
                known = {"rank": int(found[1]), "local_rank": int(found[2])}
        elif found := BLOCK_HOST.match(text):
            return {**known, "host": found[1]}
    return known


def number(text: str | None) -> int | None:
    """The integer, or None for None and for 2^64 - 1, PyTorch's 'no size' of coalesced operations."""
    if text is None:
        return None
    value = int(text[:25])
    return None if value >= 2**64 - 1 else value


def wall(text: str, form: str, *, resolution_ns: int = 1_000_000_000) -> Stamp | None:
    """A written date and time without zone, read as if it were UTC; None if it is no date."""
    try:
        moment = datetime.strptime(text, form).replace(tzinfo=timezone.utc)
        return Stamp(wall_ns=int(moment.timestamp()) * 10**9, resolution_ns=resolution_ns)
    except (ValueError, OverflowError):
        return None


def rank_list(text: str, most: int = 65_536) -> tuple[int, ...]:
    """'1, 3-5' → (1, 3, 4, 5)."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?", text[:100_000]):
        for rank in range(int(first), int(last or first) + 1):
            if len(found) >= most:
                return tuple(found)
            found.append(rank)
    return tuple(found)


CUDA_CAUSES: tuple[tuple[str, str], ...] = (
    ("uncorrectable ECC", "gpu_memory"),
    ("ECC_UNCORRECTABLE", "gpu_memory"),
    ("NVLink", "nvlink"),
    ("NVLINK_UNCORRECTABLE", "nvlink"),
    ("out of memory", "cuda_oom"),
    ("OUT_OF_MEMORY", "cuda_oom"),
    ("illegal memory access", "gpu_app_fault"),
    ("ILLEGAL_ADDRESS", "gpu_app_fault"),
    ("device-side assert", "gpu_app_fault"),
    ("misaligned address", "gpu_app_fault"),
    ("illegal instruction", "gpu_app_fault"),
    ("ILLEGAL_INSTRUCTION", "gpu_app_fault"),
    ("invalid program counter", "gpu_app_fault"),
    ("unspecified launch failure", "gpu_app_fault"),
    ("LAUNCH_FAILED", "gpu_app_fault"),
    ("GPU is lost", "gpu_off_bus"),
    ("Unable to determine the device handle", "gpu_off_bus"),
    ("no CUDA-capable device", "gpu_off_bus"),
    ("unknown error", "gpu_other"),
    ("over nvlink", "nvlink"),
    ("launch timed out", "gpu_app_fault"),
    ("hardware stack error", "gpu_app_fault"),
    ("invalid address space", "gpu_app_fault"),
    ("CUBLAS_STATUS_ALLOC_FAILED", "cuda_oom"),
    ("CUBLAS_STATUS_EXECUTION_FAILED", "gpu_app_fault"),
    ("CUDNN_STATUS_EXECUTION_FAILED", "gpu_app_fault"),
    ("CUDNN_STATUS_INTERNAL_ERROR", "gpu_app_fault"),
    ("invalid device ordinal", "nccl_setup"),
    ("busy or unavailable", "gpu_other"),
    ("system not yet initialized", "gpu_other"),
)
"""Texts of CUDA's error codes (cuda-runtime-api, "CUDART error types") and what each mostly stands for: judgement."""


def cuda_cause(text: str) -> str | None:
    """Id of the cause that a CUDA error text speaks for; None where it can be anything."""
    return next((cause for part, cause in CUDA_CAUSES if part in text), None)
