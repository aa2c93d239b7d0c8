"""How a counter of a card or a port rose between two looks at it. No rules, but what those about counters ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nccl_forensics.model import Event, number

Look = tuple[int, Event]
"""Where a counter stood, and the line that shows it."""


@dataclass(frozen=True, slots=True)
class Rise:
    """Where a counter stood before and after, and the lines that show it: one, or the first and the last."""

    before: int
    after: int
    events: tuple[Event, ...]

    @property
    def by(self) -> int:
        return self.after - self.before


def largest_rise(looks: Sequence[Look]) -> Rise | None:
    """The largest rise of one counter: inside a file as its scrapes show it, between files by their times."""
    found = [
        Rise(before, value, (event,))
        for value, event in looks
        if (before := number(event, "before")) is not None and value > before
    ]
    if (over_time := _rise_over_time(looks)) is not None:
        found.append(over_time)
    return max(found, key=lambda rise: rise.by, default=None)


def _rise_over_time(looks: Sequence[Look]) -> Rise | None:
    """From the first look to the last, where their times tell which they are."""
    timed = sorted((look for look in looks if look[1].time_ns is not None), key=lambda look: look[1].time_ns or 0)
    if not timed:
        return None
    (low, first), (high, last) = timed[0], timed[-1]
    return Rise(low, high, (first, last)) if high > low and first.time_ns != last.time_ns else None


def rise_of_files(looks: Sequence[Look]) -> Rise | None:
    """Between files: by their times, or, where they tell none, from the smaller to the larger: counters only rise."""
    if any(event.time_ns is not None for _, event in looks):
        return largest_rise(looks)
    if len(looks) < 2:
        return None
    (low, first), *_, (high, last) = sorted(looks, key=lambda look: look[0])
    return Rise(low, high, (first, last))
