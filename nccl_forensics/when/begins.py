"""When logs begin, for what is not in them: nothing is known of the time before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nccl_forensics.model import Event, InputRow
from nccl_forensics.when.years import apart_in_any_year


def of_silent(begins: Iterable[Event], events: Iterable[Event], rows: Mapping[str, InputRow]) -> list[Event]:
    """The first lines of logs that gave no event with a time, with the host of the file. `rows`: by path."""
    told = {event.evidence.source for event in events if event.stamp is not None}
    return [
        replace(begin, host=begin.host or (row.host if (row := rows.get(begin.evidence.source)) is not None else None))
        for begin in begins
        if begin.evidence.source not in told
    ]


def placed(begins: Iterable[Event], silent: Sequence[Event], events: Iterable[Event]) -> dict[str, Event]:
    """Log → its first line with its time: by the first event of the log, else as it was placed by itself.

    `silent`: what `of_silent` gave, with times; `events`: all others, with times.
    """
    first: dict[str, Event] = {}
    for event in events:
        if event.time_ns is not None and event.time_basis == "stamp":
            earliest = first.setdefault(event.evidence.source, event)
            if (event.evidence.line or 0) < (earliest.evidence.line or 0):
                first[event.evidence.source] = event
    found = {begin.evidence.source: begin for begin in silent}
    for begin in begins:
        source = begin.evidence.source
        if source in first and (made := _ahead_of(first[source], begin)) is not None:
            found[source] = made
    return found


def _ahead_of(event: Event, begin: Event) -> Event | None:
    """The first line of a log with its time, by how long before this event of it it stands."""
    ahead_ns = _ahead_ns(begin, event)
    if event.time_ns is None or ahead_ns is None:
        return None
    return replace(
        begin,
        host=event.host,
        clock=event.clock,
        time_ns=event.time_ns - ahead_ns,
        uncertainty_ns=event.uncertainty_ns,
        time_basis=event.time_basis,
    )


def _ahead_ns(begin: Event, event: Event) -> int | None:
    """How long before this event, as their own clock has it."""
    a, b = begin.stamp, event.stamp
    if a is None or b is None:
        return None
    if a.wall_ns is not None and b.wall_ns is not None:
        return b.wall_ns - a.wall_ns if a.has_year and b.has_year else apart_in_any_year(a.wall_ns, b.wall_ns)
    if a.boot_ns is not None and b.boot_ns is not None and a.boot_ns <= b.boot_ns:
        return b.boot_ns - a.boot_ns
    return None
