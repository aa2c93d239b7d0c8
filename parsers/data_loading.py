"""PyTorch's DataLoader: workers that died. Written by torch/utils/data; time: the line's own prefix, mostly none.

Examples:

RuntimeError: DataLoader worker (pid 108439) is killed by signal: Killed.
RuntimeError: DataLoader worker (pid(s) 108439) exited unexpectedly
ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._lines import failure_block, near, rank_list

KILLED = re.compile(r"DataLoader worker \(pid (?P<pid>\d{1,9})\) is killed by signal: (?P<signal>[\w ]{1,40})")
EXITED = re.compile(r"DataLoader worker \(pid\(s\) (?P<pids>\d[\d, ]{0,2000})\) exited unexpectedly")


@parser(title="DataLoader: a worker was killed", literals=["DataLoader worker (pid"])
def dataloader_worker(line: Line) -> Iterator[Event]:
    text = near(line)
    if found := KILLED.search(text):
        name = found["signal"].strip()
        yield line.event(
            "dataloader-killed",
            role="cause",
            severity="error",
            cause="shm_full" if name == "Bus error" else "dataloader_failure",
            details={"worker_pid": int(found["pid"]), "signal": name},
            **failure_block(line),
        )
    elif found := EXITED.search(text):
        yield line.event(
            "dataloader-exit",
            role="consequence",
            severity="warning",
            details={"worker_pids": rank_list(found["pids"], 256)},
            **failure_block(line),
        )


@parser(title="DataLoader: shared memory is full", literals=["Unexpected bus error encountered in worker"])
def shm_bus_error(line: Line) -> Iterator[Event]:
    yield line.event(
        "shm-bus-error", role="cause", severity="error", cause="shm_full", details={}, **failure_block(line)
    )
