"""What Flight Recorder dumps tell of each rank's last moments, as rows of the timeline where no line has a time.

Every entry carries `time_created_ns`, when the operation was handed over, and, once a thread of the process saw it
complete, `time_discovered_completed_ns`: ns since 1970 on the rank's host, UTC as that has it (fr-format.md §1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from nccl_forensics.model import ClockRow, Event, Evidence
from nccl_forensics.names import short
from nccl_forensics.recorder.dumps import COMPLETED, Dump
from nccl_forensics.recorder.groups import choose
from nccl_forensics.text.moments import is_dated
from nccl_forensics.when.aligned import Aligned, clock_of_dumps, ordered

ENTERED, COMPLETE = "recorded-entry", "recorded-end"
MOST_RANKS = 64
"""Ranks that get rows; of more, those that entered their newest operation first, and last. Our judgement."""
BAR_NS = 1_000_000
"""As of any stamp: clocks are read to the millisecond here."""


def with_dumps(aligned: Aligned, dumps: Sequence[Dump], places: Mapping[int, str | None]) -> Aligned:
    """With a row for each rank's newest operation and for the last one that it saw complete; unchanged where a line
    has a time. `places`: rank → host."""
    if any(is_dated(event.time_ns) for event in aligned.events):
        return aligned
    chosen = [dump for dump in choose(dumps, []).values() if dump.rank is not None and dump.newest_ns]
    chosen.sort(key=lambda dump: dump.newest_ns or 0)
    if len(chosen) > MOST_RANKS:
        chosen = [*chosen[: MOST_RANKS // 2], *chosen[-MOST_RANKS // 2 :]]
    found = [event for dump in chosen for event in _of(dump, places.get(dump.rank or 0), aligned)]
    known = {row.clock for row in aligned.clocks}
    clocks = {event.clock: event.host for event in found if event.clock is not None and event.clock not in known}
    rows = tuple(_row(clock, host) for clock, host in sorted(clocks.items()))
    return replace(aligned, events=tuple(ordered([*aligned.events, *found])), clocks=(*aligned.clocks, *rows))


def _of(dump: Dump, host: str | None, aligned: Aligned) -> Iterator[Event]:
    owner = short(host) if host else f"rank {dump.rank}"
    newest = int(np.argmax(dump.created_ns))
    entered = _event(dump, newest, ENTERED, host, clock_of_dumps(owner))
    yield _at(entered, int(dump.created_ns[newest]), owner, aligned)
    done = np.nonzero(((dump.flags & COMPLETED) > 0) & (dump.completed_ns > 0))[0]
    if len(done):
        last = int(done[np.argmax(dump.completed_ns[done])])
        complete = _event(dump, last, COMPLETE, host, clock_of_dumps(owner))
        yield _at(complete, int(dump.completed_ns[last]), owner, aligned)


def _event(dump: Dump, row: int, kind: str, host: str | None, clock: str) -> Event:
    call, group = dump.calls[dump.call[row]], dump.groups[dump.group[row]]
    seq = int(dump.seq[row])
    return Event(
        kind=kind,
        role="context",
        evidence=Evidence(source=dump.path, line=None, text=f"{call.op} {seq} of {group.description or group.name}"),
        rank=dump.rank,
        host=host,
        details={"op": call.op, "seq": seq},
        time_basis="stamp",
        clock=clock,
    )


def _at(event: Event, read_ns: int, owner: str, aligned: Aligned) -> Event:
    """With its time as `owner`'s clock read, on the reference clock where something ties the two."""
    offset = aligned.offsets.at(owner, read_ns) if aligned.offsets is not None else None
    shift_ns, bar_ns = (offset.shift_ns, offset.bar_ns) if offset is not None else (0, 0)
    return replace(event, time_ns=read_ns - shift_ns, uncertainty_ns=BAR_NS + bar_ns)


def _row(clock: str, host: str | None) -> ClockRow:
    return ClockRow(
        clock=clock,
        host=host,
        offset_s=0.0,
        uncertainty_s=None,
        basis="reference",
        note="dumps write UTC as their host has it; nothing in the pile compares it with another host's clock",
        compared=False,
    )
