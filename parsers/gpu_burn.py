"""gpu-burn: a stress test that compares each GPU's results with its first ones.

Written by gpu_burn (github.com/wilicc/gpu-burn). Time: none that counts. GPUs are numbered in CUDA's order; their UUIDs
stand at the top. A GPU is FAULTY if it computed wrong results or its process died. Examples:

100.0%  proc'd: 810 (52047 Gflop/s) - -1 (0 Gflop/s)   errors: 0 - -1  (DIED!)  temps: 71 C - 45 C
Tested 2 GPUs:
        GPU 1: FAULTY
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._blocks import may_read, rows
from .gpu_inventory import SMI_LIST

TESTED = re.compile(r"^Tested (?P<number>\d{1,3}) GPUs:\s*$")
RESULT = re.compile(r"^\s+GPU (?P<index>\d{1,3}): (?P<result>OK|FAULTY)\s*$")
MOST_GPUS = 128


def _listed(line: Line, uuids: dict[int, str], listed: re.Match[str]) -> None:
    """Remembers the UUID of a GPU from the list at the top."""
    if len(uuids) >= MOST_GPUS:
        line.leave_out("GPU list")
    else:
        uuids[int(listed["index"])] = listed["uuid"]


def _results(line: Line) -> Iterator[tuple[Line, int, bool]]:
    """(row, index of the GPU, whether it is faulty) below the head."""
    for row in rows(line, "gpu-burn", MOST_GPUS):
        found = RESULT.match(row.text)
        if found is None:
            return
        yield row, int(found["index"]), found["result"] == "FAULTY"


@parser(title="gpu-burn", literals=[" GPUs:", "(UUID: GPU-"])
def gpu_burn(line: Line) -> Iterator[Event]:
    """All of them FAULTY is the run's fault (no memory left, wrong binary), not the cards'."""
    uuids: dict[int, str] = line.window.state.setdefault("gpu_burn.uuids", {})
    if listed := SMI_LIST.match(line.text):
        _listed(line, uuids, listed)
        return
    found = TESTED.match(line.text)
    if found is None or not may_read(line, "gpu-burn"):
        return
    results = list(_results(line))
    faulty = [(row, index) for row, index, is_faulty in results if is_faulty]
    of_the_run = len(faulty) == len(results) and len(results) > 1
    for row, index in faulty:
        yield _faulty(row, index, uuids.get(index), of_the_run=of_the_run)
    yield line.event(
        "gpu-burn",
        role="context",
        details={"tested": int(found["number"]), "faulty": tuple(index for _, index in faulty)},
        pid=None,
    )


def _faulty(row: Line, index: int, uuid: str | None, *, of_the_run: bool) -> Event:
    details: dict[str, Detail] = {"index": index}
    if uuid is not None:
        details["uuid"] = uuid
    return row.event(
        "gpu-burn-faulty",
        role="context" if of_the_run else "cause",
        severity="warning" if of_the_run else "error",
        cause=None if of_the_run else "gpu_other",
        details=details,
        pid=None,
    )
