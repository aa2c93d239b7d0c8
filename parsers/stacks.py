"""Stacks of a process that hung, taken with py-spy, Python's faulthandler or gdb: one file for one or more processes.

Written by `py-spy dump` (newest call first, "Process PID:" on top, threads by name), by faulthandler (newest call
first, the main thread last) and by gdb's `thread apply all bt` (thread 1 is the main one). Time: none. py-spy's form:

Process 4711: python train.py
Python v3.11.9 (/usr/bin/python3.11)
Thread 4711 (idle): "MainThread"
    read (dataset.py:31)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nccl_forensics.model import Event, Evidence, Problem
from nccl_forensics.plugins import Stream, file_parser
from nccl_forensics.visible import visible

LARGEST = 16 << 20
PROCESSES = 4096
"""That are kept of one file."""
FRAMES = 40
"""Frames of one thread that are kept."""
PROCESS = re.compile(r"^Process (?P<pid>\d{1,9}): ?(?P<command>.{0,400})$")
THREAD = re.compile(
    r"^Thread (?:\d{1,9}|0x[0-9A-Fa-f]{1,16}) \((?:active|idle)[\w+ ]{0,20}\)(?:: \"(?P<name>[^\"]{0,100})\")?$"
)
FAULT = re.compile(r"^(?P<current>Current t|T)hread 0x[0-9a-fA-F]{1,16}(?: \[.{0,40}\])? \(most recent call first\):$")
FAULT_FRAME = re.compile(r"^  File \"(?P<file>.{1,300})\", line (?P<line>\d{1,7}|\?\?\?) in (?P<function>.{1,200})$")
GDB = re.compile(r"^Thread (?P<number>\d{1,6}) \(Thread 0x[0-9a-f]{1,16} \(LWP (?P<lwp>\d{1,9})\)")
GDB_FRAME = re.compile(r"^#\d{1,4} {1,3}(?:0x[0-9a-f]{1,16} in )?(?P<function>[^ (]{1,300}) ?\(")
STARTS = re.compile(
    rb"\A\s{0,9}(?:Process \d{1,9}: [^\n]*\nPython v\d"
    rb"|(?:Timeout \([\d:.]{1,20}\)!\n)?(?:Current t|T)hread 0x[0-9a-fA-F]{1,16}(?: \[[^\n]{0,40}\])? "
    rb"\(most recent call first\):"
    rb"|Thread \d{1,6} \(Thread 0x[0-9a-f]{1,16} \(LWP \d)"
)
RANK = re.compile(r"(?i)(?<![a-z])(?:global[_-]?)?rank[_-]?(\d{1,6})(?!\d)")
WAITS = re.compile(
    r"(?i)torch/distributed/|distributed_c10d|ProcessGroup|WorkNCCL|\bnccl[A-Z]|\bpnccl|cuda(?:Stream|Event|Device)Synchronize"
    r"|cu(?:Stream|Event|Ctx)Synchronize|\bsynchronize\b|all_?reduce|all_?gather|reduce_scatter|all_?to_?all"
    r"|\bbroadcast|\bbarrier\b|_wait_for_(?:tensor|comm)|wait_tensor"
)
"""A frame that waits for other ranks, or for the GPU, which waits for them."""
UNSURE = re.compile(
    r"(?i)_engine_run_backward|\bbackward\b|Engine::|\bitem\b|\.cpu\b|\b_local_scalar|\btolist\b|copy_?kernel"
)
"""It waits for the GPU or works: the frame does not tell."""
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|<frozen |^<|torch/|importlib|threading\.py|runpy\.py")


@dataclass
class _Thread:
    line: int
    main: bool
    pid: int | None = None
    frames: list[str] = field(default_factory=list)


def claims(head: bytes, name: str) -> bool:
    return STARTS.search(head) is not None


@file_parser(title="Stacks of a process", claims=claims)
def stacks(file: Stream) -> Iterator[Event | Problem]:
    """A `process-stack` of each process's main thread: its frames, newest first, and whether it waits."""
    text = file.stream.read(LARGEST).decode("utf-8", "replace")
    named = {int(x) for x in RANK.findall(file.path.replace("\\", "/").rsplit("/", 1)[-1])}
    threads = list(_threads(text))
    main = [x for x in threads if x.main and x.frames][:PROCESSES]
    if not main:
        yield Problem(says="stacks without a main thread", source=file.path)
    for one in main:
        users = [x for x in one.frames if not LIBRARY.search(x.partition(" ")[2])]
        waits = any(map(WAITS.search, one.frames))
        doing = "waits" if waits else "unsure" if any(map(UNSURE.search, one.frames)) else "works"
        yield Event(
            kind="process-stack",
            role="context",
            evidence=Evidence(source=file.path, line=one.line, text=visible("; ".join(one.frames[:12]))),
            rank=next(iter(named)) if len(named) == len(main) == 1 else None,
            pid=one.pid,
            details={"doing": doing, "at": (users or one.frames)[0][:300], "frames": tuple(one.frames[:FRAMES])},
        )


def _frame(line: str) -> str | None:
    """'function file:line' of a line in any of the three forms."""
    if found := FAULT_FRAME.match(line):
        return f"{found['function']} {found['file']}:{found['line']}"
    if found := GDB_FRAME.match(line):
        _, mark, file = line.rpartition(" from ")
        return (
            f"{found['function']} {(file if mark else line.rpartition(' at ')[2] if ' at ' in line else '?').strip()}"
        )
    if line.startswith("    ") and line.endswith(")"):
        function, mark, file = line[4:-1].rpartition(" (")
        return f"{function} {file}" if mark and function else None
    return None


def _threads(text: str) -> Iterator[_Thread]:
    pid: int | None = None
    made: _Thread | None = None
    fault: list[_Thread] = []

    def newest() -> Iterator[_Thread]:
        if fault:  # of Python's own threads the main one is written last, a crashing one says so itself
            if not any(x.main for x in fault):
                fault[-1].main = True
            yield from fault
            fault.clear()

    for number, raw in enumerate(text.splitlines(), 1):
        line = raw[:1000].rstrip()
        if found := PROCESS.match(line):
            yield from newest()
            pid, made = int(found["pid"]), None
        elif found := THREAD.match(line):
            made = _Thread(number, found["name"] == "MainThread", pid)
            yield made
        elif found := FAULT.match(line):
            made = _Thread(number, found["current"] == "Current t")
            fault.append(made)
        elif found := GDB.match(line):
            lwp = int(found["lwp"])
            made = _Thread(number, found["number"] == "1", lwp if found["number"] == "1" else None)
            yield made
        elif made is not None and len(made.frames) < FRAMES and (frame := _frame(line)):
            made.frames.append(frame)
    yield from newest()
