"""Starts that only the ends of processes show: torchrun's agent tells once per start that its workers failed.

Without its INFO lines (the usual log) torchrun says nothing when it starts its workers again; its next word is the
failure of a worker with another pid (SubprocessContext._poll in torch/distributed/elastic/multiprocessing/api.py). Only
when it gives up it lists all that failed. Two agents on one host that held the same local ranks are two runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.model import Event, number

LAUNCHERS = kinds_marked("launcher-tells")
"""Lines of a launcher on its workers: no work of theirs."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A start after the first, by the lines around it."""

    event: Event
    """Its first line with a time."""
    line: int
    """In that event's file: lines from here on are of this start."""
    after_ns: int | None
    """When the workers before had failed, on the reference clock."""
    until_ns: int | None
    """When its own had."""
    other_agent: bool
    """The workers before were another agent's."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """Workers that an agent started together, from the line that tells that they failed."""

    told: Event
    line: int
    agent: tuple[str | None, int | None, int]
    """Host, task of the line, pid."""
    seats: frozenset[int]
    """Their local ranks, as far as they are told."""
    last: int
    """The last line of its file on them."""

    def follows(self, before: _Failed) -> bool:
        """Did other processes hold these seats before? Agents in containers have one number on all hosts."""
        host = self.told.host
        if host is None or host != before.told.host or self.told.pid == before.told.pid:
            return False
        return self.agent == before.agent or bool(self.seats & before.seats)


def begun(events: Sequence[Event]) -> Iterator[Begun]:
    """The starts, in the order in which they failed. `events`: those of the job's files, aligned."""
    files: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.evidence.line is not None:
            files[event.evidence.source].append(event)
    failed: list[_Failed] = []
    for inside in files.values():
        inside.sort(key=_line)
        failed += _of_file(inside)
    failed.sort(key=lambda f: (f.told.time_ns or 0, f.line))
    for n, new in enumerate(failed):
        before = next((old for old in reversed(failed[:n]) if new.follows(old)), None)
        if before is not None:
            yield _first_of(new, before, files[new.told.evidence.source])


def _line(event: Event) -> int:
    return event.evidence.line or 0


def _of_file(events: Sequence[Event]) -> Iterator[_Failed]:
    """`events`: those of one file, in the order of its lines."""
    told = [e for e in events if e.pid is not None and number(e, "agent") is not None]
    ended = [e for e in events if e.kind == "exit"]
    for n, event in enumerate(told):
        until = _line(told[n + 1]) if n + 1 < len(told) else math.inf
        ends = [e for e in ended if _line(event) <= _line(e) < until]
        yield _Failed(
            event,
            _line(event),
            (event.host, event.task, number(event, "agent") or 0),
            frozenset(e.local_rank for e in ends if e.local_rank is not None),
            _line(ends[-1]),
        )


def _first_of(new: _Failed, before: _Failed, lines: Sequence[Event]) -> Begun:
    """`lines`: those of the new one's file."""
    same_file = new.told.evidence.source == before.told.evidence.source
    since = before.last + 1 if same_file else 1
    own = (e for e in lines if since <= _line(e) <= new.line and e.kind not in LAUNCHERS and e.time_ns is not None)
    return Begun(
        next(own, new.told), since, before.told.time_ns, new.told.time_ns, other_agent=new.agent != before.agent
    )
