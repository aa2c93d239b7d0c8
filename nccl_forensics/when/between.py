"""Times of lines that carry none, from the stamps around them in their file: bounds, never a guess.

A line was written after the stamped line before it and before the stamped line behind it; the last lines of a process,
before its launcher saw it end; the last lines of a file, before the file was last changed. Where both bounds are there
and close, the event's time is their middle and its error bar reaches both (`time_basis` "neighbour"; "derived" where
one bound is no line beside it). Where they are not, the event keeps no time, only its place in the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.lines.stamps import in_year_near
from nccl_forensics.model import Event, InputRow, TimeBasis, number
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated

CLOSE_S = 120
"""Bounds further apart tell no more than the order of the lines. Our judgement."""
CLOSE_BOOT_S = 3600
"""The same for a new boot, whose first line has no time: a machine that lost power is often switched on by hand."""
LATE_S = 2
"""How much later than it was said a line can stand in a file: torchrun looks once a second for what it copies."""
SECTIONS = frozenset({"nvidia-bug-report"})
"""Formats that hold several logs one after the other, so that neighbours need not be."""


@dataclass(frozen=True, slots=True)
class _Bound:
    ns: int
    bar_ns: int
    clock: str | None
    basis: TimeBasis = "neighbour"


def bounded(events: Sequence[Event], rows: Mapping[str, InputRow], assumed: frozenset[str]) -> list[Event]:
    """The same events (in the order of their files' lines), with times for lines between two stamps.

    `events` are on the reference clock; `rows`: path → file; `assumed`: clocks whose zone is only assumed, which no
    file's date can be held against.
    """
    by_source: dict[str, list[int]] = defaultdict(list)
    for n, event in enumerate(events):
        if event.evidence.line is not None:
            by_source[event.evidence.source].append(n)
    exits = _exits(events)
    out = list(events)
    for source, places in by_source.items():
        row = rows.get(source)
        if not any(_wants(events[n]) for n in places) or (row is not None and row.format in SECTIONS):
            continue
        places.sort(key=lambda n: (events[n].evidence.line or 0, n))
        lines = [events[n] for n in places]
        after = _nearest(reversed(lines))[::-1]
        other = _Others(row, exits, assumed)
        for n, low, high in zip(places, _nearest(lines), after, strict=True):
            if _wants(events[n]):
                out[n] = other.timed(events[n], low, high)
    return out


@dataclass(frozen=True, slots=True)
class _Others:
    """What tells of a file's last lines when they had been written, where no line does that stands behind them."""

    row: InputRow | None
    exits: _Exits
    assumed: frozenset[str]

    def timed(self, event: Event, low: Event | None, high: Event | None) -> Event:
        """The event with a time between its neighbours, if they are close."""
        begin, end = _begin(event, low, high), self._end(event, low, high)
        return event if begin is None or end is None else _placed(event, begin, end)

    def _end(self, event: Event, low: Event | None, high: Event | None) -> _Bound | None:
        """When it had been written: by the next line, else by the end of its process, else by that of its file."""
        if high is not None:
            return _of(high)
        if low is None:
            return None
        exits = self.exits.get((event.rank, low.clock), ()) if event.rank is not None else ()
        return _exit(low, exits) or _changed(low, self.row, self.assumed)


_Exits = Mapping[tuple[int, str | None], Sequence[Event]]
"""(Rank, clock) → the lines of launchers that saw its process end."""


def _exits(events: Iterable[Event]) -> _Exits:
    found: dict[tuple[int, str | None], list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "exit" and event.rank is not None and event.time_ns is not None:
            found[event.rank, event.clock].append(event)
    return found


def _wants(event: Event) -> bool:
    """Is it worth a time, and has none? What only describes a machine or a job has no moment."""
    return event.time_ns is None and event.stamp is None and (event.role != "context" or event.kind == "boot-start")


def _nearest(events: Iterable[Event]) -> list[Event | None]:
    """For each event the last one before it that has a time of its own and may be of the same host."""
    last: dict[str | None, tuple[int, Event]] = {}
    found = []
    for n, event in enumerate(events):
        own = [last.get(short(event.host)), last.get(None)] if event.host else list(last.values())
        found.append(max((x for x in own if x is not None), key=lambda x: x[0], default=(0, None))[1])
        if event.time_ns is not None:
            last[short(event.host) if event.host else None] = n, event
    return found


def _of(event: Event) -> _Bound:
    assert event.time_ns is not None
    return _Bound(event.time_ns, event.uncertainty_ns or 0, event.clock)


def _begin(event: Event, low: Event | None, high: Event | None) -> _Bound | None:
    """When it cannot have been written yet."""
    last = number(event, "last_wall_ns")  # the boot before was last heard of then, on the clock as written
    wall = high.stamp.wall_ns if high is not None and high.stamp is not None else None
    if last is not None and high is not None and high.time_ns is not None and wall is not None:
        said = (last if is_dated(last) else in_year_near(last, wall)) + high.time_ns - wall
        if low is None or (low.clock == high.clock and (low.time_ns or 0) <= said):
            return replace(_of(high), ns=said)
    return _of(low) if low is not None else None


def _exit(low: Event, exits: Iterable[Event]) -> _Bound | None:
    """When the launcher had seen the process end, on the same clock."""
    assert low.time_ns is not None
    later = [e for e in exits if e.time_ns is not None and e.time_ns >= low.time_ns - LATE_S * SECOND]
    return replace(_of(min(later, key=lambda e: e.time_ns or 0)), basis="derived") if later else None


def _changed(low: Event, row: InputRow | None, assumed: frozenset[str]) -> _Bound | None:
    """When its file was last changed, where its clock's zone is known."""
    if row is None or row.mtime_ns is None or low.clock in assumed or not is_dated(low.time_ns):
        return None
    return _Bound(row.mtime_ns, 0, low.clock, "derived")


def _placed(event: Event, begin: _Bound, end: _Bound) -> Event:
    bar = max(begin.bar_ns, end.bar_ns) + LATE_S * SECOND
    most = CLOSE_BOOT_S if event.kind == "boot-start" else CLOSE_S
    if begin.clock != end.clock or not -bar <= end.ns - begin.ns <= most * SECOND:
        return event
    low, high = min(begin.ns, end.ns), max(begin.ns, end.ns)
    basis: TimeBasis = "derived" if "derived" in (begin.basis, end.basis) else "neighbour"
    return replace(
        event,
        time_ns=(low + high) // 2,
        uncertainty_ns=(high - low + 1) // 2 + bar,
        time_basis=basis,
        clock=begin.clock,
    )
