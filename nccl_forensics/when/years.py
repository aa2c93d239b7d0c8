"""Which year a stamp is in that writes none, and which lines of a file lie on one stretch of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from heapq import merge
from itertools import pairwise

from nccl_forensics.model import Event, InputRow
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND
from nccl_forensics.when.aligned import Arrival

DAY = 86_400 * SECOND
NO_YEAR = 1972
"""Where Stamp puts a date without a year: a leap year, so that 29 February exists."""
NEAR_DAYS = 4
"""A date without a year takes the year of a full date this near to it: a bundle is collected within days."""


def with_year(wall_ns: int, year: int) -> int:
    """The same month, day and time of day in another year; 29 February becomes 1 March where there is none."""
    seconds, rest = divmod(wall_ns, SECOND)
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    try:
        moved = moment.replace(year=year)
    except ValueError:
        moved = moment.replace(year=year, month=3, day=1)
    return int(moved.timestamp()) * SECOND + rest


ROTATED = re.compile(r"^(?P<base>[A-Za-z_][\w-]*(?:\.log)?)(?:\.(?P<age>\d{1,3}))?(?:\.(?:gz|xz|zst|bz2))?$")
"""logrotate's names without dateext: kern.log, kern.log.1, kern.log.2.gz, from young to old."""


def chains(by_source: Mapping[str, Sequence[Event]]) -> list[list[str]]:
    """Rotated files of one log, oldest first, as far as each ends before the next one begins; all others alone."""
    logs: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for source in by_source:
        folder, _, name = source.rpartition("/")
        found = ROTATED.match(name)
        logs[f"{folder}/{found['base']}" if found else source].append((int(found["age"] or 0) if found else 0, source))
    chains: list[list[str]] = []
    for files in logs.values():
        ages = [age for age, _ in files]
        if len(set(ages)) < len(ages):
            chains += [[source] for _, source in files]
            continue
        chain: list[str] = []
        for _, source in sorted(files, reverse=True):
            if chain and not goes_on(by_source[chain[-1]], by_source[source]):
                chains.append(chain)
                chain = []
            chain.append(source)
        chains.append(chain)
    return chains


def walls_of(inside: Sequence[Event]) -> list[int]:
    return [e.stamp.wall_ns for e in inside if e.stamp is not None and e.stamp.wall_ns is not None]


def goes_on(older: Sequence[Event], newer: Sequence[Event]) -> bool:
    """Can `newer` be what was written after `older`? Copies of one log, and logs that overlap, cannot."""
    ended, began = walls_of(older), walls_of(newer)
    if not ended or not began:
        return not ended and not began
    return ended[-1] <= began[0] + 60 * SECOND or ended[-1] - began[0] > HALF_YEAR


def years_of(
    events: Sequence[Event], rows: Mapping[str, InputRow], declared: int | None, arrivals: Sequence[Arrival]
) -> dict[str, int | None]:
    """File → year of its newest line that was written without one."""
    dated: list[tuple[str | None, str, int]] = [(None, "", a.last_ns) for a in arrivals]
    need: dict[str, list[Event]] = defaultdict(list)
    spans: dict[str, tuple[int, int]] = {}
    for event in events:
        stamp = event.stamp
        if stamp is not None and stamp.wall_ns is not None:
            if stamp.has_year:
                dated.append((event.host, event.evidence.source, stamp.wall_ns))
            else:
                need[event.evidence.source].append(event)
        if isinstance(epoch := event.details.get("epoch_ns"), int):
            dated.append((event.host, event.evidence.source, epoch))
            if isinstance(since := event.details.get("since_ns"), int):
                spans[event.evidence.source] = (since, epoch)
    full_dates = FullDates(dated) if need and declared is None else None
    found: dict[str, int | None] = {}
    for source, inside in need.items():
        if full_dates is None:
            found[source] = declared
            continue
        days = {(w // DAY * DAY, k) for w, k in turns(inside, in_sections(source, rows))}
        year = full_dates.year(source, inside[-1].host, days)
        if year is None and source in spans:  # what a journal holds lies between its ends
            newest, (since, until) = max(w for w, k in days if k == 0), spans[source]
            low, high = (datetime.fromtimestamp(t // SECOND, timezone.utc).year for t in (since, until))
            fits = [y for y in range(low, high + 1) if since - DAY <= with_year(newest, y) <= until + DAY]
            year = fits[0] if len(fits) == 1 else None
        stem = re.search(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)", re.split(r"[/!]", source)[-1])
        if year is None and stem:
            # logrotate's dateext: the file was rotated on that day, so its lines are no younger
            newest = max(w for w, k in days if k == 0)
            last = datetime.fromtimestamp(newest // SECOND, timezone.utc).strftime("%m%d")
            year = int(stem[1]) if last <= f"{stem[2]}{stem[3]}" else int(stem[1]) - 1
        found[source] = year
    _rotated_years(found, need, declared)
    return found


def _rotated_years(found: dict[str, int | None], need: Mapping[str, Sequence[Event]], declared: int | None) -> None:
    """Years of rotated files from that of their neighbour: it begins where they end."""
    for chain in chains(need):
        for newer, older in zip(chain[:0:-1], chain[-2::-1], strict=True):  # from young to old
            year = found[newer]
            if year is None or (found[older] is not None and declared is None):
                continue
            began, ended = turns(need[newer])[0], turns(need[older])[-1]
            found[older] = year - began[1] - (ended[0] > began[0] + HALF_YEAR)
        for older, newer in pairwise(chain):  # from old to young
            year = found[older]
            if year is None or found[newer] is not None:
                continue
            began, ended = turns(need[newer])[0], turns(need[older])[-1]
            found[newer] = year + began[1] + (ended[0] > began[0] + HALF_YEAR)


class FullDates:
    """Dates that were written with a year, by whose they are and by day."""

    def __init__(self, dated: Iterable[tuple[str | None, str, int]]) -> None:
        """`dated`: (host, file, wall time or UTC in ns)."""
        self._groups: dict[tuple[str, ...], dict[int, list[tuple[int, int]]]] = {}
        self._years: set[int] = set()
        for place, (host, source, full) in enumerate(dated):
            day = full // DAY
            self._years.add(datetime.fromtimestamp(full // SECOND, timezone.utc).year)
            own = [("host", short(host)), ("file", source, short(host))] if host else []
            for group in [(), ("file", source), *own]:
                self._groups.setdefault(group, {}).setdefault(day, []).append((place, full))

    def year(self, source: str, host: str | None, days: Iterable[tuple[int, int]]) -> int | None:
        """The year of the file's newest line by the first full date near to one of its own.

        Full dates of the same file come first, then those of its host, each in the order given. `days`: (day in
        `NO_YEAR`, ns; turns of the year between it and the file's end).
        """
        moved = [
            (with_year(day, year), year + turns)
            for day, turns in days
            for year in sorted({y + by for y in self._years for by in (-1, 0, 1)})
            if 1 <= year <= 9999
        ]
        close = {at // DAY + by for at, _ in moved for by in range(-NEAR_DAYS - 1, NEAR_DAYS + 2)}
        own = [("file", source, short(host)), ("file", source), ("host", short(host))] if host else [("file", source)]
        for group in [*own, ()]:
            by_day = self._groups.get(group, {})
            for _, full in merge(*(by_day[day] for day in sorted(by_day.keys() & close))):
                if near := [year for at, year in moved if abs(at - full) <= NEAR_DAYS * DAY]:
                    return max(near)
        return None


def in_sections(source: str, rows: Mapping[str, InputRow]) -> bool:
    """A bug report holds one log several times over, and its boots newest first, so that its lines go back in time."""
    row = rows.get(source)
    return row is not None and row.format == "nvidia-bug-report"


def turns(inside: Sequence[Event], sections: bool = False) -> list[tuple[int, int]]:
    """(wall time in 1972, how many turns of the year lie between it and the file's end), in file order.

    `sections`: a leap of more than half a year forward is the next section, which begins a year earlier.
    """
    found: list[tuple[int, int]] = []
    newer: int | None = None
    turns = 0
    for event in reversed(inside):
        assert event.stamp is not None
        assert event.stamp.wall_ns is not None
        wall = event.stamp.wall_ns
        if newer is not None and wall - newer > HALF_YEAR:
            turns += 1  # going back in the file, from January to December
        elif sections and newer is not None and newer - wall > HALF_YEAR:
            turns -= 1
        newer = wall
        found.append((wall, turns))
    return found[::-1]


HALF_YEAR = 180 * DAY


def walls_of_file(
    events: Sequence[Event], years: Mapping[str, int | None], rows: Mapping[str, InputRow]
) -> dict[int, int]:
    """id(event) → its written wall time, ns, in the right year (or 1972), not yet in UTC."""
    found: dict[int, int] = {}
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.stamp is not None and event.stamp.wall_ns is not None:
            by_source[event.evidence.source].append(event)
    for source, inside in by_source.items():
        year = years.get(source)
        sections, full = in_sections(source, rows), [e for e in inside if e.stamp is not None and e.stamp.has_year]
        made = max((e.stamp.wall_ns or 0 for e in full if e.stamp), default=0) + DAY
        unsaid = [e for e in inside if e.stamp is not None and not e.stamp.has_year]
        back = {id(e): k for e, (_, k) in zip(unsaid, turns(unsaid, sections), strict=True)}
        for event in inside:
            assert event.stamp is not None
            assert event.stamp.wall_ns is not None
            wall = event.stamp.wall_ns
            if not event.stamp.has_year and year is not None:
                wall = with_year(wall, year - back[id(event)])
                if sections and full and wall > made + HALF_YEAR:
                    wall = with_year(wall, datetime.fromtimestamp(wall // SECOND, timezone.utc).year - 1)
            found[id(event)] = wall
    return found
