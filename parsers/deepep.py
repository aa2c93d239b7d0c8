"""DeepEP's barrier between the GPUs of one NVLink domain: which peer's signal is still missing.

Printed by the GPU (`barrier_block` in DeepEP's csrc/kernels/utils.cuh), which then executes `trap`: the process meets
"unspecified launch failure" without any fault of its own. Each thread watches the signal of the peer with its number:
it takes 1024 (FINISHED_SUM_TAG) as its own part and is 0 or less once that peer has come. Ranks are those of the
expert-parallel group on the node. Time: none. Example:

DeepEP timeout check failed: rank = 6, thread = 5, value = 1024)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

SAYS = "DeepEP timeout check failed: rank = "
CHECK = re.compile(
    r"DeepEP timeout check failed: rank = (?P<rank>\d{1,6}), thread = (?P<peer>\d{1,6}), "
    r"value = (?P<value>-?\d{1,10})\)"
)


@parser(title="DeepEP: a peer did not reach the barrier", literals=[SAYS])
def deepep_barrier(line: Line) -> Iterator[Event]:
    """One event a line; `value` above 0: the peer has not come."""
    if found := CHECK.search(line.text):
        yield line.event(
            "deepep-barrier",
            role="symptom",
            severity="error",
            rank=None,
            details={
                "at_member": int(found["rank"]),
                "peer_member": int(found["peer"]),
                "came": int(found["value"]) <= 0,
            },
        )
