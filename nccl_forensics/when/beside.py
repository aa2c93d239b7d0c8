"""Times of lines that are no events: where logs begin, and what looks like an error and nobody understands.

In a file that gave events with a time such a line is dated by the event that stands nearest to it, so that it can move
nothing; in another one by its own stamp, like an event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nccl_forensics.model import Event, InputRow
from nccl_forensics.when.years import apart_in_any_year


def of_silent(lines: Iterable[Event], events: Iterable[Event], rows: Mapping[str, InputRow]) -> list[Event]:
    """Those of files that gave no event with a time, with rank and host of the file. `rows`: by path."""
    told = {event.evidence.source for event in events if event.stamp is not None}
    silent = (line for line in lines if line.evidence.source not in told and line.stamp is not None)
    return [of_its_file(line, rows) for line in silent]


def of_its_file(line: Event, rows: Mapping[str, InputRow]) -> Event:
    """With the rank and the host of its file, where it tells none. `rows`: by path."""
    row = rows.get(line.evidence.source)
    if row is None:
        return line
    return replace(line, rank=row.rank if line.rank is None else line.rank, host=line.host or row.host)


def placed(lines: Iterable[Event], silent: Iterable[Event], events: Iterable[Event]) -> list[Event]:
    """The lines with their times, in their order. `silent`: those that `of_silent` gave, with times; `events`: all
    events, with times."""
    found = {_place(line): line for line in silent}
    timed: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.time_ns is not None and event.time_basis == "stamp":
            timed[event.evidence.source].append(event)
    for inside in timed.values():
        inside.sort(key=_number)
    return [found.get(_place(line)) or _by_nearest(line, timed.get(line.evidence.source, ())) for line in lines]


def _place(line: Event) -> tuple[str, int, str]:
    return line.evidence.source, _number(line), line.kind


def _number(line: Event) -> int:
    return line.evidence.line or 0


def _by_nearest(line: Event, inside: Sequence[Event]) -> Event:
    """The line as the event that stands nearest to it, of these of its file, dates it; itself where none can."""
    at = bisect_left(inside, _number(line), key=_number)
    around = sorted(inside[max(0, at - 1) : at + 1], key=lambda event: abs(_number(event) - _number(line)))
    return next((made for event in around if (made := _beside(event, line)) is not None), line)


def _beside(event: Event, line: Event) -> Event | None:
    ahead_ns = _ahead_ns(line, event)
    if event.time_ns is None or ahead_ns is None:
        return None
    return replace(
        line,
        host=line.host or event.host,
        clock=event.clock,
        time_ns=event.time_ns - ahead_ns,
        uncertainty_ns=event.uncertainty_ns,
        time_basis=event.time_basis,
    )


def _ahead_ns(line: Event, event: Event) -> int | None:
    """How long before the event the line was written, as their own clock has it; negative behind it."""
    a, b = line.stamp, event.stamp
    if a is None or b is None:
        return None
    if a.wall_ns is not None and b.wall_ns is not None:
        if a.has_year == b.has_year:
            return b.wall_ns - a.wall_ns
        apart_ns = apart_in_any_year(a.wall_ns, b.wall_ns)
        return apart_ns if _number(line) < _number(event) else -apart_ns
    if a.boot_ns is not None and b.boot_ns is not None and (a.boot_ns <= b.boot_ns) == (_number(line) < _number(event)):
        return b.boot_ns - a.boot_ns
    return None
