"""What serving engines and Python itself say of a process that ended: vLLM, SGLang, faulthandler, a missing program.

Written by vLLM's v1/executor/multiproc_executor.py and ray_executor_v2.py (the first worker that its monitor saw end),
SGLang's srt/entrypoints/engine.py, CPython's pylifecycle.c (fatal errors) and main.c. Time: that of the line. Examples:

Worker proc VllmWorker-2 died unexpectedly, shutting down executor.
RayWorkerProc rank=[3] died unexpectedly, shutting down executor.
Rank 0 scheduler is dead. Please check if there are relevant logs.        and below it   Exit code: -9
Fatal Python error: Segmentation fault
/opt/env/bin/python3: can't open file '/scratch/run/train.py': [Errno 2] No such file or directory
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._lines import followers, is_quoted, near, number
from .torchrun import exit_event

WORKER = re.compile(
    r"^(?:\[[\w./-]{1,200}:\d{1,6}\] )?"
    r"(?:Worker proc VllmWorker-(?P<worker>\d{1,6})|RayWorkerProc rank=\[(?P<ranks>[\d, ]{1,400})\]) died unexpectedly"
)
ENGINE = re.compile(r"\(EngineCore_DP(\d{1,6})\b")
SCHEDULER = re.compile(r"^Rank (?P<rank>\d{1,6}) scheduler is dead\.")
CODE = re.compile(r"Exit code: (?P<code>-?\d{1,6})\s*$")
FATAL = re.compile(r"^Fatal Python error: (?P<why>[^\n]{1,200}?)\s*$")
CRASHES = ("Segmentation fault", "Bus error", "Illegal instruction", "Floating-point exception")
"""What faulthandler writes for SIGSEGV, SIGBUS, SIGILL and SIGFPE; "Aborted" is also how NCCL's watchdog ends one."""
NO_PROGRAM = re.compile(
    r"^\S{0,300}python[\w.]{0,12}: can't open file '(?P<path>[^'\n]{1,500})': "
    r"\[Errno (?P<errno>\d{1,3})\] (?P<why>[^\n]{1,100})"
)


@parser(title="vLLM: a worker died", literals=[" died unexpectedly, shutting down executor"])
def vllm_worker(line: Line) -> Iterator[Event]:
    """The number is that of the worker in its engine: the rank where there is one engine, or of the first."""
    found = WORKER.match(near(line))
    if found is None:
        return
    engine = ENGINE.search(line.raw[:400].decode("utf-8", "replace"))
    first = engine is None or int(engine[1]) == 0
    one = number(found["worker"] or (found["ranks"] if found["ranks"].strip().isdecimal() else None))
    yield line.event(
        "worker-died",
        role="symptom",
        severity="error",
        rank=one if first else None,
        local_rank=None,
        pid=None,
        details={"worker": one},
    )


@parser(title="SGLang: a scheduler died", literals=[" scheduler is dead."])
def sglang_scheduler(line: Line) -> Iterator[Event]:
    """Its exit code stands in the next line."""
    found = SCHEDULER.match(near(line))
    if found is None:
        return
    code = next((m for x in followers(line, 2, 6) if (m := CODE.search(near(x)))), None)
    if code is not None:
        yield exit_event(line, int(code["code"]), rank=int(found["rank"]), local_rank=None, pid=None)


@parser(title="Python: fatal error", literals=["Fatal Python error: "])
def python_fatal(line: Line) -> Iterator[Event]:
    found = FATAL.match(line.text)
    if found is None or is_quoted(line.text, found.start()):
        return
    crashed = found["why"].startswith(CRASHES)
    yield line.event(
        "python-fatal",
        role="cause" if crashed else "symptom",
        severity="error",
        cause="process_signal" if crashed else None,
        details={"why": found["why"]},
    )


@parser(title="Python: the program is not there", literals=["can't open file '"])
def no_program(line: Line) -> Iterator[Event]:
    """The command line is wrong, or the file system that holds the program is not mounted on this host."""
    if found := NO_PROGRAM.match(line.text):
        yield line.event(
            "no-program",
            role="cause",
            severity="error",
            cause="python_exception",
            details={"path": found["path"], "errno": int(found["errno"]), "says": found["why"].strip()},
        )
