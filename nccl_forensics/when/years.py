"""Which year a stamp is in that writes none, and which lines of a file lie on one stretch of it."""

from __future__ import annotations

import re
from calendar import isleap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from heapq import merge
from itertools import pairwise

from nccl_forensics.lines.stamps import DAY, in_year_near, with_year
from nccl_forensics.model import Event, InputRow, number
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.aligned import Arrival

NO_YEAR = 1972
"""Where Stamp puts a date without a year: a leap year, so that 29 February exists."""
NEAR_DAYS = 4
"""A date without a year takes the year of a full date this near to it: a bundle is collected within days."""


def apart_in_any_year(wall_ns: int, other_ns: int) -> int:
    """How far two times are apart at least, of which one is dated and one has no year, ns."""
    dated, unsaid = (wall_ns, other_ns) if is_dated(wall_ns) else (other_ns, wall_ns)
    return abs(in_year_near(unsaid, dated) - dated)


HOUR = DAY // 24
SUNDAY = 6
FOLD_GAP = 10 * 60 * SECOND
"""So far apart may the last line before an hour is repeated and the first one behind be. Our judgement."""
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
    need: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.stamp is not None and event.stamp.wall_ns is not None and not event.stamp.has_year:
            need[event.evidence.source].append(event)
    found: dict[str, int | None] = dict.fromkeys(need, declared)
    if need and declared is None:
        full_dates = FullDates(_dates(events, arrivals))
        journals = _ends_of_journals(events)
        for source, inside in need.items():
            days = {(wall // DAY * DAY, back) for wall, back in turns(inside, in_sections(source, rows))}
            newest = _newest_day(days)
            year = _by_own_lines(inside, in_sections(source, rows))
            if year is None:
                year = full_dates.year(source, inside[-1].host, days)
            if year is None and source in journals:
                year = _between_ends(newest, *journals[source])
            found[source] = _by_rotation(newest, source) if year is None else year
    return _with_rotated_years(found, need, declared)


def _by_own_lines(inside: Sequence[Event], sections: bool) -> int | None:
    """The year of the newest line by one of the file that prints UTC beside its stamp, such as an audit record's."""
    for event, (wall, back) in zip(inside, turns(inside, sections), strict=True):
        if (epoch_ns := number(event, "epoch_ns")) is not None and number(event, "since_ns") is None:
            written = in_year_near(wall, epoch_ns)
            if abs(written - epoch_ns) <= 2 * DAY:
                return _year(written) + back
    return None


def _newest_day(days: Iterable[tuple[int, int]]) -> int:
    """Of a file's days, as `turns` gives them, the last."""
    return max(day for day, back in days if back == 0)


def _dates(events: Iterable[Event], arrivals: Iterable[Arrival]) -> Iterator[tuple[str | None, str, int]]:
    """(Host, file, ns) of all that tells its year, as written or in UTC."""
    for arrival in arrivals:
        yield None, "", arrival.last_ns
    for event in events:
        if event.stamp is not None and event.stamp.wall_ns is not None and event.stamp.has_year:
            yield event.host, event.evidence.source, event.stamp.wall_ns
        if (epoch_ns := number(event, "epoch_ns")) is not None:
            yield event.host, event.evidence.source, epoch_ns


def _ends_of_journals(events: Iterable[Event]) -> dict[str, tuple[int, int]]:
    """File → between which moments (ns) it was written, as a journal's own lines tell."""
    found: dict[str, tuple[int, int]] = {}
    for event in events:
        until_ns = number(event, "epoch_ns")
        if until_ns is not None and (since_ns := number(event, "since_ns")) is not None:
            found[event.evidence.source] = (since_ns, until_ns)
    return found


def _year(ns: int) -> int:
    return datetime.fromtimestamp(ns // SECOND, timezone.utc).year


def _between_ends(newest: int, since_ns: int, until_ns: int) -> int | None:
    """What a journal holds lies between its ends."""
    years = range(_year(since_ns), _year(until_ns) + 1)
    fits = [year for year in years if since_ns - DAY <= with_year(newest, year) <= until_ns + DAY]
    return fits[0] if len(fits) == 1 else None


DATE_IN_NAME = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")
"""logrotate's dateext: the day on which the file was rotated."""


def _by_rotation(newest: int, source: str) -> int | None:
    """The file was rotated on the day in its name, so its lines are no younger."""
    rotated = DATE_IN_NAME.search(re.split(r"[/!]", source)[-1])
    if rotated is None:
        return None
    last = datetime.fromtimestamp(newest // SECOND, timezone.utc).strftime("%m%d")
    return int(rotated[1]) if last <= f"{rotated[2]}{rotated[3]}" else int(rotated[1]) - 1


def _with_rotated_years(
    known: Mapping[str, int | None], need: Mapping[str, Sequence[Event]], declared: int | None
) -> dict[str, int | None]:
    """Years of rotated files from that of their neighbour: it begins where they end."""
    found = dict(known)
    for chain in chains(need):
        for newer, older in zip(chain[:0:-1], chain[-2::-1], strict=True):  # from young to old
            year = found[newer]
            if year is not None and (found[older] is None or declared is not None):
                found[older] = year - _years_between(need[older], need[newer])
        for older, newer in pairwise(chain):  # from old to young
            year = found[older]
            if year is not None and found[newer] is None:
                found[newer] = year + _years_between(need[older], need[newer])
    return found


def _years_between(older: Sequence[Event], newer: Sequence[Event]) -> int:
    """How often the year turned between the ends of two files of which one goes on with the other."""
    (ended, _), (began, turned) = turns(older)[-1], turns(newer)[0]
    return turned + (ended > began + HALF_YEAR)


class FullDates:
    """Dates that were written with a year, by whose they are and by day."""

    def __init__(self, dated: Iterable[tuple[str | None, str, int]]) -> None:
        """`dated`: (host, file, wall time or UTC in ns)."""
        self._groups: dict[tuple[str, ...], dict[int, list[tuple[int, int]]]] = {}
        for place, (host, source, full) in enumerate(dated):
            day = full // DAY
            own = [("host", short(host)), ("file", source, short(host))] if host else []
            for group in [(), ("file", source), *own]:
                self._groups.setdefault(group, {}).setdefault(day, []).append((place, full))
        self._years = {_year(day * DAY) for day in self._groups.get((), ())}

    def year(self, source: str, host: str | None, days: Collection[tuple[int, int]]) -> int | None:
        """The year of the file's newest line by the first full date near to one of its own.

        Full dates of the same file come first, then those of its host, each in the order given. Where it is near to
        lines of two years, the one is taken after which the file ends sooner: a bundle is collected within days.
        `days`: (day in `NO_YEAR`, ns; turns of the year between it and the file's end).
        """
        newest = _newest_day(days)
        leaps = {turns for day, turns in days if _is_leap_day(day)}
        moved = [
            (with_year(day, year), year + turns)
            for day, turns in days
            for year in sorted({y + by for y in self._years for by in (-1, 0, 1)})
            if 1 <= year <= 9999 and all(isleap(year + turns - back) for back in leaps)
        ]
        close = {at // DAY + by for at, _ in moved for by in range(-NEAR_DAYS - 1, NEAR_DAYS + 2)}
        for by_day in self._of(source, host):
            for _, full in merge(*(by_day[day] for day in sorted(by_day.keys() & close))):
                if near := [year for at, year in moved if abs(at - full) <= NEAR_DAYS * DAY]:
                    return min(near, key=lambda year: (abs(with_year(newest, year) - full), -year))
        return None

    def _of(self, source: str, host: str | None) -> Iterator[dict[int, list[tuple[int, int]]]]:
        """Day → full dates: those of the host's lines in the file, of the file, of the host, all."""
        if host:
            yield self._groups.get(("file", source, short(host)), {})
        yield self._groups.get(("file", source), {})
        if host:
            yield self._groups.get(("host", short(host)), {})
        yield self._groups.get((), {})


def _is_leap_day(ns: int) -> bool:
    """Is it 29 February? Of a time in `NO_YEAR`, which has one."""
    return datetime.fromtimestamp(ns // SECOND, timezone.utc).strftime("%m%d") == "0229"


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
    by_source: dict[str, list[Event]] = defaultdict(list)
    unsaid: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.stamp is not None and event.stamp.wall_ns is not None:
            by_source[event.evidence.source].append(event)
            if not event.stamp.has_year and years.get(event.evidence.source) is None:
                unsaid[event.evidence.source].append(event)
    stand_ins = _stand_ins(unsaid, rows)
    found: dict[int, int] = {}
    for source, inside in by_source.items():
        found |= {id(event): wall for event, wall in zip(inside, walls_of(inside), strict=True)}
        year = years.get(source)
        if year is None:
            year = stand_ins.get(source)
        if year is not None:
            found |= _in_year(inside, year, in_sections(source, rows))
        if not in_sections(source, rows):
            _unfold([e for e in inside if e.stamp is not None and e.stamp.zone_s is None], found)
    return found


def _unfold(inside: Sequence[Event], walls: dict[int, int]) -> None:
    """Add the hour that local time went back, to all behind it: the file's clock runs on in its first lines' zone.

    `inside`: the lines of one file that write no zone, in its order.
    """
    for n, (old, new) in enumerate(pairwise(inside), 1):
        before, behind = walls[id(old)], walls[id(new)]
        if 0 < before - behind <= HOUR and behind + HOUR - before <= FOLD_GAP and _ends_summer_time(before):
            for event in inside[n:]:
                walls[id(event)] += HOUR
            return


def _ends_summer_time(wall_ns: int) -> bool:
    """Is it a night in which clocks go back somewhere: a Sunday in autumn, north or south, before four?"""
    at = datetime.fromtimestamp(wall_ns // SECOND, timezone.utc)
    return at.month in (3, 4, 10, 11) and at.hour < 4 and (at.weekday() == SUNDAY or not is_dated(wall_ns))


def _stand_ins(unsaid: Mapping[str, Sequence[Event]], rows: Mapping[str, InputRow]) -> dict[str, int | None]:
    """File → a year near `NO_YEAR` for its newest line where nothing tells the real one, so that December comes before
    January and 29 February is a day. `unsaid`: by file, what was written without a year."""
    days = {
        source: {(wall // DAY * DAY, back) for wall, back in turns(inside, in_sections(source, rows))}
        for source, inside in unsaid.items()
    }
    newest = {chain[-1]: _newest_day(days[chain[-1]]) for chain in chains(unsaid)}
    begin = _begin_of_year(newest.values())
    found: dict[str, int | None] = dict.fromkeys(unsaid)
    found |= {source: NO_YEAR - (begin is not None and day >= begin) for source, day in newest.items()}
    found = _with_rotated_years(found, unsaid, None)
    leaps = {(year or NO_YEAR) - back for s, year in found.items() for day, back in days[s] if _is_leap_day(day)}
    later = next((by for by in range(4) if all(isleap(year + by) for year in leaps)), 0)
    return {source: year + later for source, year in found.items() if year is not None}


def _begin_of_year(newest: Iterable[int]) -> int | None:
    """From which day on (in `NO_YEAR`) files end in the year before the others, which end after New Year: half a year
    or more in between, in which none ends."""
    ends = sorted(set(newest))
    return next((later for end, later in pairwise(ends) if later - end > HALF_YEAR), None)


def _in_year(inside: Sequence[Event], year: int, sections: bool) -> dict[int, int]:
    """id(event) → its wall time, of those that tell no year. `year`: that of the file's newest line."""
    unsaid = [e for e in inside if e.stamp is not None and not e.stamp.has_year]
    dated = walls_of([e for e in inside if e.stamp is not None and e.stamp.has_year])
    # A report was made when its newest full date was written: what seems to be much younger is of the year before.
    latest = max(dated) + DAY + HALF_YEAR if sections and dated else None
    found: dict[int, int] = {}
    for event, (written, back) in zip(unsaid, turns(unsaid, sections), strict=True):
        wall = with_year(written, year - back)
        if latest is not None and wall > latest:
            wall = with_year(wall, _year(wall) - 1)
        found[id(event)] = wall
    return found
