"""Writes and reads that failed, by errno or in PyTorch's words. Time: the line's own prefix, mostly none.

Written by Python (OSError), PyTorch's serializer (caffe2/serialize/inline_container.cc, which loses the errno), torch's
distributed checkpoint, and shell tools. Examples:

OSError: [Errno 28] No space left on device: '/data/ckpt/step_100.pt'
RuntimeError: [enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/5: file write ...
[rank0]: 2026-08-02 21:16:55 | WARNING | could not update LATEST: [Errno 122] Disk quota exceeded: '/data/.tmp'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._lines import failure_block, is_quoted, near, rank_list, told_of

ERRNOS: tuple[tuple[str, int, str], ...] = (
    ("No space left on device", 28, "no space"),
    ("Disk quota exceeded", 122, "quota"),
    ("Stale file handle", 116, "stale handle"),
    ("Input/output error", 5, "I/O error"),
    ("Read-only file system", 30, "read-only"),
    ("File exists", 17, "exists"),
    ("Permission denied", 13, "permission"),
)
"""Linux's errno numbers (include/uapi/asm-generic/errno-base.h, errno.h) and glibc's texts for them."""
NUMBER = re.compile(r"\[Errno (?P<errno>\d{1,3})\]")
PROSE = re.compile(r"\.\s+[A-Z]")
"""The sentence ends and another begins: a text about the error, not a tool that met it."""
RAISED = re.compile(r"(?:^|[\s|│])(?:[a-z_][\w]{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)\b(?:\([^)]{0,40}\))?: ")
PATH = re.compile(
    r"['\"<`](?P<quoted>/?[^'\"<>`\n]{1,400})['\">`](?:\s*$| ->|:|,|\s\()"
    r"|(?P<plain>(?<![\w.])/[\w.@%+=~-]{1,200}(?:/[\w.@%+=~-]{0,200}){1,40})"
)
TORCH = re.compile(
    r"PytorchStreamWriter failed (?:writing file|closing reader|reading)[^\n]{0,200}?"
    r"|unexpected pos \d{1,19} vs \d{1,19}"
    r"|File (?P<file>\S{1,400}) cannot be opened|Parent directory (?P<parent>\S{1,400}) does not exist"
)
FAILED_ON = re.compile(r"CheckpointException ranks:dict_keys\(\[(?P<ranks>[\d, ]{1,20000})\]\)")


def errno_of(text: str) -> tuple[int, str] | None:
    """(errno, detail) of the storage error that `text` speaks of."""
    number = NUMBER.search(text)
    for words, errno, detail in ERRNOS:
        if (number and int(number["errno"]) == errno) or (not number and words in text):
            return errno, "inodes" if errno == 28 and "inode" in text.lower() else detail
    return None


def _words(errno: int) -> str:
    return next(words for words, number, _ in ERRNOS if number == errno)


def path_of(text: str) -> str | None:
    """The file or folder that the message names: the last one in quotes, else the first that looks like a path."""
    plain = quoted = None
    for found in PATH.finditer(text[:2000]):
        if found["quoted"] and ("/" in found["quoted"] or "." in found["quoted"]):
            quoted = found["quoted"]
        elif found["plain"] and plain is None:
            plain = found["plain"].rstrip(".,:;")
    return quoted or plain


def in_shared_memory(text: str, path: str | None) -> bool:
    return (path or "").startswith("/dev/shm") or "shared memory" in text or "</torch_" in text or "/dev/shm" in text


SHARED_MEMORY_CODE = ("multiprocessing/synchronize.py", "multiprocessing/shared_memory.py", "multiprocessing/heap.py")
"""Files of Python's library whose semaphores and blocks live in /dev/shm (sem_open, shm_open)."""
FRAMES_ABOVE = 6
"""Lines in which the frame that raised stands above its exception, also where two tracebacks are mixed."""


def under_shared_memory(line: Line) -> bool:
    """Was it raised where Python makes a semaphore or a block of shared memory?"""
    own = takewhile(lambda above: b"Traceback (most" not in above.raw, line.before(FRAMES_ABOVE))
    return any(code.encode() in above.raw for above in own for code in SHARED_MEMORY_CODE)


def _has_another_parser(line: Line, text: str) -> bool:
    """NCCL's own words, and the kernel's."""
    return "NCCL WARN" in text or "/dev/shm/nccl-" in text or line.peeled.program in ("kernel", "systemd")


def _was_met(text: str, errno: int, *, raised: bool) -> bool:
    """Whether a program met the error, rather than that somebody wrote about it."""
    if not raised:
        if not any(words in text for words, _, _ in ERRNOS):
            return False  # a number without its words
        if not NUMBER.search(text) and PROSE.match(text.partition(_words(errno))[2]):
            return False
    places = (text.find("[Errno "), text.find(_words(errno)), len(text))
    return not is_quoted(text, min(at for at in places if at >= 0))


@parser(
    title="A file could not be written or read",
    literals=[
        *(words for words, errno, _ in ERRNOS if errno not in (13, 17)),
        *(f"[Errno {n}]" for n in (5, 13, 17, 28, 30, 116, 122)),
    ],
)
def storage_errno(line: Line) -> Iterator[Event]:
    text = near(line)
    if _has_another_parser(line, text) or not (found := errno_of(text)) or "posix_fallocate" in text:
        return
    errno, detail = found
    raised = RAISED.search(text[:2000]) is not None
    if not _was_met(text, errno, raised=raised):
        return
    path = path_of(text)
    shm = in_shared_memory(text, path) or (path is None and under_shared_memory(line))
    warned = "WARN" in line.raw[:400].decode("utf-8", "replace").upper()
    certain = raised and not warned
    yield line.event(
        "storage-error",
        role="cause" if certain else "symptom",
        severity="error" if certain else "warning",
        cause="shm_full" if shm and errno == 28 else "storage_write_failed",
        details={"errno": errno, "detail": detail, "path": path, "shm": shm},
        **failure_block(line),
    )


@parser(
    title="torch.save could not write",
    literals=["PytorchStreamWriter failed", "unexpected pos ", " cannot be opened", "Parent directory "],
)
def storage_torch(line: Line) -> Iterator[Event]:
    text = near(line)
    found = TORCH.search(text)
    if not found or NUMBER.search(text):
        return
    missing = found["parent"] is not None or found["file"] is not None
    yield line.event(
        "storage-error",
        role="cause",
        severity="error",
        cause="storage_write_failed",
        details={
            "errno": None,
            "detail": "write failed",
            "path": (found["parent"] or found["file"] or "").strip("'\"") or None if missing else None,
            "shm": False,
        },
        **failure_block(line),
    )


@parser(title="A distributed checkpoint failed", literals=["CheckpointException ranks:dict_keys"])
def storage_dcp(line: Line) -> Iterator[Event]:
    """The listed ranks could not save or load; each has a traceback of its own below, marked (RANK r).

    Every rank of the job prints it.
    """
    if found := FAILED_ON.search(near(line)):
        ranks = rank_list(found["ranks"])
        yield line.event(
            "storage-error",
            role="symptom",
            severity="error",
            cause="storage_write_failed",
            details={"errno": None, "detail": "write failed", "path": None, "shm": False, "ranks": ranks},
            **(told_of(ranks[0], line) if len(ranks) == 1 else failure_block(line)),
        )
