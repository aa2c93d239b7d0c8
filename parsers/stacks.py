"""Stacks of a process that hung, taken with py-spy, Python's faulthandler or gdb: in files of their own, and in logs.

Written by `py-spy dump` (newest call first, "Process PID:" on top, threads by name), by faulthandler (newest call
first, the main thread last) and by gdb's `thread apply all bt` (thread 1 is the main one). Time: none, in a log that of
the line's prefix. py-spy's form:

Process 4711: python train.py
Python v3.11.9 (/usr/bin/python3.11)
Thread 4711 (idle): "MainThread"
    read (dataset.py:31)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import Stream, file_parser, parser
from nccl_forensics.model import Detail, Event, Evidence, Problem
from nccl_forensics.text.visible import visible

LARGEST = 16 << 20
PROCESSES = 4096
"""That are kept of one file."""
FRAMES = 40
"""Frames of one thread that are kept."""
REACH = (16, 128, 1000)
"""Lines of a log around a thread's head in which its frames are looked for, others' among them; few as a rule."""
APART = 200
"""Lines of others between two of one process's stack. A judgement, like the reach."""
MOST_LOOKED = 150_000
"""Lines of one log whose prefix is taken off to know whose they are: 3 s."""
LOOKED = "stacks.looked"
"""Key of `Window.state`: how many that were so far."""
DEEPER = " " * 8
"""Before what `py-spy dump --locals` writes between the frames."""
PROCESS = re.compile(r"^Process (?P<pid>\d{1,9}): ?(?P<command>.{0,400})$")
THREAD = re.compile(
    r"^Thread (?:\d{1,9}|0x[0-9A-Fa-f]{1,16}) \((?:active|idle)[\w+ ]{0,20}\)(?:: \"(?P<name>[^\"]{0,100})\")?$"
)
FAULT = re.compile(r"^(?P<current>Current t|T)hread 0x[0-9a-fA-F]{1,16}(?: \[.{0,40}\])? \(most recent call first\):$")
CURRENT = "Current t"
FAULT_FRAME = re.compile(
    r"^ {1,8}File \"(?P<file>.{1,300})\", line (?P<line>\d{1,7}|\?\?\?) in (?P<function>.{1,200})$"
)
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
HELPER = re.compile(r"^_worker_loop \S*data/_utils/worker\.py")
"""A frame of PyTorch's data-loader worker: a process of the rank, but not the one that trains."""
CRASH = re.compile(r"^Fatal Python error: (?P<why>.{1,200})$")
LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|<frozen |^<|torch/|importlib|threading\.py|runpy\.py|\.so(?:[.\d]|$)"
)
WRAPPERS = frozenset({"wrapper", "inner", "_fn", "__call__", "_call_impl", "_wrapped_call_impl"})
"""Functions that only stand around what was called."""


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
        if (told := _told(one.frames)) is None:
            continue
        yield Event(
            kind="process-stack",
            role="context",
            evidence=Evidence(source=file.path, line=one.line, text=visible("; ".join(one.frames[:12]))),
            rank=next(iter(named)) if len(named) == len(main) == 1 else None,
            pid=one.pid,
            details=told,
        )


def _told(frames: Sequence[str]) -> dict[str, Detail] | None:
    """What a main thread's frames tell; None: it is that of a helper.

    `doing`: whether it waits; `place`: the innermost in the program itself; `call`: what was called there.
    """
    if any(map(HELPER.search, frames)):
        return None
    named = [x for x in frames if not x.startswith("?? ")] or frames
    own = next((n for n, x in enumerate(named) if not LIBRARY.search(x.partition(" ")[2])), 0)
    call = _call(named[: own + 1]) or named[0]
    return {"doing": _doing(frames), "call": call[:100], "place": named[own][:300], "frames": tuple(frames[:FRAMES])}


def _doing(frames: Sequence[str]) -> str:
    if any(map(WAITS.search, frames)):
        return "waits"
    return "unsure" if any(map(UNSURE.search, frames)) else "works"


def _call(frames: Sequence[str]) -> str | None:
    """The function that the last of these frames called, wrappers passed over; itself, where it called none."""
    calls = [name for x in frames if (name := x.partition(" ")[0]) not in WRAPPERS]
    return calls[-2] if len(calls) > 1 else calls[-1] if calls else None


@parser(
    title="Stacks of a process in a log",
    literals=["(most recent call first):", '"MainThread"', "Thread 1 (Thread 0x"],
)
def stacks_in_log(line: Line) -> Iterator[Event]:
    """The same for a stack that a process, or a script beside it, wrote into the job's log.

    `crash`: the words of the crash that Python wrote it for; None where it was asked for.
    """
    text = line.text.rstrip()
    fault, gdb, spied = FAULT.match(text), GDB.match(text), THREAD.match(text)
    if not (fault or (spied and spied["name"] == "MainThread") or (gdb and gdb["number"] == "1")):
        return
    frames, behind = _frames_below(line)
    main, why = _main_of_fault(line, fault, behind) if fault else (True, None)
    told = _told(frames) if main and frames else None
    if told is None:
        return
    pid = int(gdb["lwp"]) if gdb else _spied_pid(line) if spied else None
    known: dict[str, Any] = {} if pid is None else {"pid": pid}
    yield line.event("process-stack", role="context", details={**told, "crash": why}, **known)


def _frames_below(line: Line) -> tuple[list[str], str]:
    """The frames below a thread's head, and the text that ends them."""
    frames: list[str] = []
    text = ""
    for text in _own(line, line.after):
        frame = _frame(text)
        if frame is None and text.strip() not in ("", "...") and not text.startswith(DEEPER):
            break
        if frame is not None and len(frames) < FRAMES:
            frames.append(frame)
    return frames, text


def _main_of_fault(line: Line, head: re.Match[str], behind: str) -> tuple[bool, str | None]:
    """(Whether a thread of faulthandler's is the one that counts, of what Python crashed).

    The main one is written last; a crashing one says so itself.
    """
    current = head["current"] == CURRENT
    if not current and FAULT.match(behind):
        return False, None
    why, crashed = _above(line)
    return current or not crashed, why


def _own(line: Line, way: Callable[[int], list[Line]]) -> Iterator[str]:
    """The texts behind, or before, a line that the same process wrote, as its prefix says."""
    state, seen, others, tag = line.window.state, 0, 0, _tag(line)
    text = line.text.encode("utf-8", "surrogateescape")
    prefix = line.raw[: -len(text)] if line.raw.endswith(text) else b""
    for reach in REACH:
        for other in way(reach)[seen:]:
            seen += 1
            equal = prefix != b"" and other.raw.startswith(prefix)
            state[LOOKED] = state.get(LOOKED, 0) + (0.1 if equal else 1)
            if state[LOOKED] > MOST_LOOKED:
                line.leave_out("stacks")
                return
            if equal:
                yield other.raw[len(prefix) :][:1000].decode("utf-8", "replace").rstrip()
            elif _tag(other) == tag:
                yield other.text.rstrip()[:1000]
            else:
                others += 1
                if others > APART:
                    return
                continue
            others = 0


def _tag(line: Line) -> tuple[object, ...]:
    peeled = line.peeled
    return peeled.rank, peeled.local_rank, peeled.task, peeled.host, peeled.pid, peeled.pod


def _above(line: Line) -> tuple[str | None, bool]:
    """(what Python crashed of, whether a thread above says that it is the one that crashed), for a thread's head."""
    crashed = False
    for text in _own(line, line.before):
        if found := CRASH.match(text):
            return found["why"], crashed
        if found := FAULT.match(text):
            crashed |= found["current"] == CURRENT
        elif text.strip() and text.strip() != "..." and _frame(text) is None:
            break
    return None, crashed


def _spied_pid(line: Line) -> int | None:
    """The process of py-spy's block that the line is in."""
    return next((int(m["pid"]) for text in _own(line, line.before) if (m := PROCESS.match(text))), None)


def _frame(line: str) -> str | None:
    """'function file:line' of a line in any of the three forms."""
    if found := FAULT_FRAME.match(line):
        return f"{found['function']} {found['file']}:{found['line']}"
    if found := GDB_FRAME.match(line):
        _, mark, file = line.rpartition(" from ")
        return (
            f"{found['function']} {(file if mark else line.rpartition(' at ')[2] if ' at ' in line else '?').strip()}"
        )
    if line.startswith("  ") and line.endswith(")"):
        function, mark, file = line.strip()[:-1].rpartition(" (")
        return f"{function} {file}" if mark and function else None
    return None


def _threads(text: str) -> Iterator[_Thread]:
    """All threads of a file, in any of the three forms."""
    pid: int | None = None
    made: _Thread | None = None
    fault: list[_Thread] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw[:1000].rstrip()
        if found := PROCESS.match(line):
            yield from _with_main(fault)
            pid, made, fault = int(found["pid"]), None, []
        elif found := THREAD.match(line):
            made = _Thread(number, found["name"] == "MainThread", pid)
            yield made
        elif found := FAULT.match(line):
            made = _Thread(number, found["current"] == CURRENT)
            fault.append(made)
        elif found := GDB.match(line):
            main = found["number"] == "1"
            made = _Thread(number, main, int(found["lwp"]) if main else None)
            yield made
        elif made is not None and len(made.frames) < FRAMES and (frame := _frame(line)):
            made.frames.append(frame)
    yield from _with_main(fault)


def _with_main(fault: list[_Thread]) -> list[_Thread]:
    """Of Python's own threads the main one is written last, a crashing one says so itself."""
    if fault and not any(x.main for x in fault):
        fault[-1].main = True
    return fault
