"""Processes by their numbers, and for how long each can have lived, so that a number that came again is not the same
process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nccl_forensics.lines.stamps import DAY, SECOND, in_year_near
from nccl_forensics.model import Event, Stamp

HOUR = 3600 * SECOND
"""So long before the first line of a process, or after the last of its file, another can be of it. Our judgement."""


class Process(NamedTuple):
    """A process, as long as its number is its own."""

    host: str
    """Short name."""
    pid: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From the first line that names a process to the last of the files that do, as they are written."""

    first: Stamp
    last: Stamp

    def holds(self, event: Event) -> bool:
        """Can a line that names the number be of the same process? Also where one of them has no time; a day before and
        after where a zone is not written."""
        stamp = event.stamp
        if stamp is None or stamp.wall_ns is None:
            return True
        around = DAY if None in (stamp.zone_s, self.first.zone_s, self.last.zone_s) else HOUR
        moment, first, last = _moment(stamp), _moment(self.first), _moment(self.last)
        if not stamp.has_year:
            moment = in_year_near(moment, first)
        elif not self.first.has_year:
            near = in_year_near(first, moment)
            first, last = near, last + near - first
        return first - around <= moment <= last + around


def lifetimes(events: Iterable[Event], named: Mapping[Process, Sequence[Event]]) -> dict[Process, Lifetime]:
    """Of each process of which some time is known. `named`: the lines that name them."""
    in_files: dict[str, list[Stamp]] = defaultdict(list)
    for event in events:
        in_files[event.evidence.source] += _written(event)
    ends = {source: _ends(stamps) for source, stamps in in_files.items() if stamps}
    found: dict[Process, Lifetime] = {}
    for process, lines in named.items():
        around = [ends[source] for source in {line.evidence.source for line in lines} & ends.keys()]
        own = [stamp for line in lines for stamp in _written(line)]
        if around:
            first, last = _ends(stamp for both in around for stamp in both)
            begin, _ = _ends(own) if own else (first, last)
            found[process] = Lifetime(begin if begin.has_year == last.has_year else first, last)
    return found


def on_hosts(lived: Mapping[Process, Lifetime]) -> dict[str, Lifetime]:
    """Short name of a host → from the first line to the last of all processes there."""
    found: dict[str, list[Stamp]] = defaultdict(list)
    for process, lifetime in lived.items():
        found[process.host] += lifetime.first, lifetime.last
    return {host: Lifetime(*_ends(stamps)) for host, stamps in found.items()}


def _ends(stamps: Iterable[Stamp]) -> tuple[Stamp, Stamp]:
    """The first and the last of those with a year, if there are any, else of all: the two can't be compared."""
    every = list(stamps)
    among = [stamp for stamp in every if stamp.has_year] or every
    return min(among, key=_moment), max(among, key=_moment)


def _written(event: Event) -> list[Stamp]:
    """The day and time of a line, if it has them."""
    return [event.stamp] if event.stamp is not None and event.stamp.wall_ns is not None else []


def _moment(stamp: Stamp) -> int:
    return (stamp.wall_ns or 0) - (stamp.zone_s or 0) * SECOND
