"""PyTorch's Gloo process group and Gloo itself: barriers that name the missing ranks, waits, lost peers.

Written by torch/csrc/distributed/c10d/ProcessGroupGloo.cpp and gloo/transport/tcp. Time: none in the exceptions.
Examples:

[E ProcessGroupGloo.cpp:137] [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms
RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete
  what():  [enforce fail at .../gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 68 vs 64
RuntimeError: [.../gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:3500. This is typically ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event

from ._lines import failure_block, near, number, rank_list

MISSING = re.compile(
    r"Ranks? (?P<ranks>\d[\d, ]{0,20000}) failed to pass monitoredBarrier(?: in (?P<waited_ms>\d{1,18}) ms)?"
)
SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<received>\d{1,18}) vs (?P<expected>\d{1,18})")
REACHED = re.compile(r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier, but received errors")
WAIT = re.compile(r"Timed out waiting (?P<wait_ms>\d{1,18})ms for (?P<way>send|recv) operation to complete")
CLOSED = re.compile(
    r"(?:Connection closed by peer |Read error |Write error "
    r"|connection to peer )\[?(?:::ffff:)?(?P<peer>[\w.:%-]{1,255}?)\]?:(?P<port>\d{1,5})\b"
)


@parser(
    title="Gloo: monitored barrier",
    literals=["failed to pass monitoredBarrier", "successfully reached monitoredBarrier"],
)
def gloo_barrier(line: Line) -> Iterator[Event]:
    if found := MISSING.search(near(line)):
        yield line.event(
            "monitored-barrier",
            role="symptom",
            severity="error",
            details={"ranks": rank_list(found["ranks"]), "waited_ms": number(found["waited_ms"])},
            **failure_block(line),
        )
    elif found := REACHED.search(near(line)):
        yield line.event(
            "gloo-reached",
            role="consequence",
            severity="warning",
            details={"reached_rank": int(found["rank"])},
            **failure_block(line),
        )


@parser(title="Gloo: a peer did not answer", literals=["ms for send operation to complete", "ms for recv operation to"])
def gloo_wait(line: Line) -> Iterator[Event]:
    if found := WAIT.search(near(line)):
        yield line.event(
            "gloo-wait",
            role="symptom",
            severity="error",
            details={"wait_ms": int(found["wait_ms"]), "way": found["way"]},
            **failure_block(line),
        )


@parser(
    title="Gloo: a peer is gone",
    literals=["Connection closed by peer [", "Application timeout caused pair closure", "gloo/transport/tcp/pair.cc"],
)
def gloo_closed(line: Line) -> Iterator[Event]:
    found = CLOSED.search(near(line))
    if found or "Application timeout caused pair closure" in line.text:
        yield line.event(
            "gloo-closed",
            role="consequence",
            severity="warning",
            details={"peer": found["peer"] if found else None, "port": int(found["port"]) if found else None},
            **failure_block(line),
        )


@parser(title="Gloo: a peer sent more than expected", literals=["op.preamble.length <= op.nbytes. "])
def gloo_size(line: Line) -> Iterator[Event]:
    """The receiver writes it and aborts: its peer called something larger, or one of both another operation."""
    if found := SIZES.search(near(line)):
        yield line.event(
            "gloo-size",
            role="symptom",
            severity="error",
            cause="collective_mismatch",
            details={"received_bytes": int(found["received"]), "expected_bytes": int(found["expected"])},
            **failure_block(line),
        )
