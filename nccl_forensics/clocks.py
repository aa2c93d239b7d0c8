"""Puts every event on one reference clock (UTC), each with an error bar, and says how each clock was read.

What is known of a clock is used in this order: what the line itself writes (zone, year), what the user declares
(`--timezone`, `--year`), what the same file or host shows (kernel lines that print UTC, the same event in two logs,
dates with a year), and last the assumption that a clock without a zone is UTC, which is said in the clock's row.
The year is never assumed: where nothing tells it, times stay in 1972 inside and are null outside.

Then clocks are compared with each other (skew.py, meetings.py): where something bounds how far one is off, its times
are moved to the reference clock and their error bars grow by what the bounds leave open. Where nothing does, that is
said, and no order is claimed that a clock off by minutes would turn round.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from heapq import merge
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nccl_forensics import between
from nccl_forensics.identify import short
from nccl_forensics.model import ClockRow, Event, InputError, InputRow, Stamp
from nccl_forensics.sniff import HOST_FORMATS
from nccl_forensics.words import SECOND, is_dated, moment

if TYPE_CHECKING:
    from nccl_forensics.dumps import Dump
    from nccl_forensics.meetings import Entered
    from nccl_forensics.skew import Offsets, Step, Told

DAY = 86_400 * SECOND
QUARTER = 900 * SECOND
"""All zones in use lie on whole quarters of an hour."""
NO_YEAR = 1972
"""Where Stamp puts a date without a year: a leap year, so that 29 February exists."""
DRIFT_PPM = 20
"""printk's clock against NTP time: 11.3 s after ten days were measured on a real server (kernel-log-formats.md §0.2),
which is 13 ppm; half as much again for worse ones."""
DRIFT_S = 15.0
"""For `dmesg -T` stamps whose uptime isn't known: the measured 11.3 s and some."""
NEAR_DAYS = 4
"""A date without a year takes the year of a full date this near to it: a bundle is collected within days."""


def parse_zone(text: str) -> tzinfo:
    """'Europe/Copenhagen', 'UTC', '+02:00', '-0800' → tzinfo. Raises InputError for anything else."""
    if found := re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2}):?(\d{2})?", text.strip()):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        if minutes <= 15 * 60:
            return timezone(timedelta(minutes=-minutes if found[1] == "-" else minutes))
    if text.strip().upper() in ("UTC", "GMT", "Z"):
        return timezone.utc
    try:
        return ZoneInfo(text.strip())
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise InputError(
            f"--timezone {text!r} is not known here. Use an offset such as +02:00, or a name such as Europe/Copenhagen."
        ) from err


@dataclass(frozen=True, slots=True)
class Arrival:
    """When the first and the last rank entered a collective, UTC ns, as dumps tell."""

    seq: int | None
    first_ns: int
    last_ns: int


COINCIDENCE_S = 60
"""A lost GPU stops its peers within the next collective; only used to choose between two zones. Our judgement."""
SKEW_S = 120
"""How far two hosts' clocks are likely to differ at most where nothing in the pile compares them: what is claimed must
hold for `UNCOMPARED_S`, what is only weighed, and a zone, which is a matter of quarters of an hour, for this. Our
judgement; NTP keeps far less."""


UNCOMPARED_S = 300
"""How far two clocks may differ that nothing in the pile compares: what Kerberos (`clockskew`) and Slurm's munge
(its credentials' life) put up with by default, so that a cluster beyond it is noticed."""


@dataclass(frozen=True, slots=True)
class Aligned:
    events: tuple[Event, ...]
    """By reference time; those with none stand where their neighbours in the file put them."""
    clocks: tuple[ClockRow, ...]
    assumed: frozenset[str]
    """Clocks whose zone is only assumed: they can't be ordered against other clocks."""
    compared: frozenset[str] = frozenset()
    """Whose clocks (`whose`) are bound to the reference by what they have to do with each other."""
    steps: tuple[Step, ...] = ()
    """Clocks that were set while they wrote."""
    offsets: Offsets | None = None
    """By how much clocks differ; None: there is only one."""

    def whose(self, event: Event) -> str:
        """The clock behind a stamp: that of its host; of its file where the host isn't known."""
        return _whose(event, event.clock in self.assumed)

    def slack_ns(self, a: Event, b: Event) -> int | None:
        """How far their times must be apart for an order to be claimed; None: no distance is enough. Both have one."""
        if a.clock == b.clock:
            slack = sum(e.uncertainty_ns or 0 for e in (a, b) if e.time_basis != "stamp")
        else:
            mine, other = self.whose(a), self.whose(b)
            tied = mine in self.compared and other in self.compared
            if not tied and (a.clock in self.assumed or b.clock in self.assumed):
                return None
            slack = (a.uncertainty_ns or 0) + (b.uncertainty_ns or 0)
            watched = tied and self._watched(a, mine) and self._watched(b, other)
            apart = mine != other or a.host is None or b.host is None
            if not watched and apart and not _written_so(a, b):
                slack += UNCOMPARED_S * SECOND
        if self.steps and a.time_ns is not None and b.time_ns is not None:
            whose = {self.whose(a), self.whose(b)}
            for step in self.steps:
                reach = abs(step.by_ns)
                apart = min(a.time_ns, b.time_ns) <= step.before_ns + reach
                if (
                    apart
                    and max(a.time_ns, b.time_ns) >= step.after_ns - reach
                    and (not step.clock or step.clock in whose)
                ):
                    slack += reach
        return slack

    def _watched(self, event: Event, owner: str) -> bool:
        """Would it show if its clock had been set before it wrote this?"""
        if self.offsets is None or event.time_ns is None or (event.stamp is not None and event.stamp.drifts):
            return False
        return self.offsets.holds(owner, event.time_ns)

    def before(self, a: Event, b: Event) -> bool | None:
        """Did `a` happen before `b`? None when the error bars, or a clock that is only assumed, leave it open."""
        if a.time_ns is None or b.time_ns is None:
            return None
        if a.clock != b.clock and is_dated(a.time_ns) != is_dated(b.time_ns):
            return None  # one of them has no year
        slack = self.slack_ns(a, b)
        if slack is None or abs(a.time_ns - b.time_ns) <= slack:
            return None
        return a.time_ns < b.time_ns


def _written_so(a: Event, b: Event) -> bool:
    """Does one file, in which several hosts write, hold the two in the order of their times?"""
    place, other = a.evidence, b.evidence
    if place.source != other.source or place.line is None or other.line is None:
        return False
    assert a.time_ns is not None
    assert b.time_ns is not None
    return place.line != other.line and (place.line < other.line) == (a.time_ns < b.time_ns)


def _whose(event: Event, assumed: bool) -> str:
    owner = short(event.host) if event.host else f"file {event.evidence.source}"
    return f"{owner} (zone not known)" if assumed else owner


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


def _chains(by_source: Mapping[str, Sequence[Event]]) -> list[list[str]]:
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
            if chain and not _goes_on(by_source[chain[-1]], by_source[source]):
                chains.append(chain)
                chain = []
            chain.append(source)
        chains.append(chain)
    return chains


def _walls_of(inside: Sequence[Event]) -> list[int]:
    return [e.stamp.wall_ns for e in inside if e.stamp is not None and e.stamp.wall_ns is not None]


def _goes_on(older: Sequence[Event], newer: Sequence[Event]) -> bool:
    """Can `newer` be what was written after `older`? Copies of one log, and logs that overlap, cannot."""
    ended, began = _walls_of(older), _walls_of(newer)
    if not ended or not began:
        return not ended and not began
    return ended[-1] <= began[0] + 60 * SECOND or ended[-1] - began[0] > HALF_YEAR


def _boots(events: Sequence[Event]) -> dict[int, int]:
    """id(event) → boot in its file, 0 = the last; events must be in file order. Rotated files count as one."""
    found: dict[int, int] = {}
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_source[event.evidence.source].append(event)
    for inside in ([e for source in chain for e in by_source[source]] for chain in _chains(by_source)):
        boot, last, seen = 0, None, False
        numbered: list[tuple[Event, int]] = []
        for event in inside:
            now = event.stamp.boot_ns if event.stamp else None
            if event.kind == "boot-start" and seen:
                boot, last, seen = boot + 1, now, False
            elif now is not None:
                if last is not None and now + 5 * SECOND < last:
                    boot += 1
                last, seen = now, True
            elif event.stamp is not None:
                seen = True
            numbered.append((event, boot))
        for event, n in numbered:
            found[id(event)] = n - boot
    return found


def _years(
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
    full_dates = _FullDates(dated) if need and declared is None else None
    found: dict[str, int | None] = {}
    for source, inside in need.items():
        if full_dates is None:
            found[source] = declared
            continue
        days = {(w // DAY * DAY, k) for w, k in _turns(inside, _in_sections(source, rows))}
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
    for chain in _chains(need):
        for newer, older in zip(chain[:0:-1], chain[-2::-1], strict=True):  # from young to old
            year = found[newer]
            if year is None or (found[older] is not None and declared is None):
                continue
            began, ended = _turns(need[newer])[0], _turns(need[older])[-1]
            found[older] = year - began[1] - (ended[0] > began[0] + HALF_YEAR)
        for older, newer in pairwise(chain):  # from old to young
            year = found[older]
            if year is None or found[newer] is not None:
                continue
            began, ended = _turns(need[newer])[0], _turns(need[older])[-1]
            found[newer] = year + began[1] + (ended[0] > began[0] + HALF_YEAR)


class _FullDates:
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


def _in_sections(source: str, rows: Mapping[str, InputRow]) -> bool:
    """A bug report holds one log several times over, and its boots newest first, so that its lines go back in time."""
    row = rows.get(source)
    return row is not None and row.format == "nvidia-bug-report"


def _turns(inside: Sequence[Event], sections: bool = False) -> list[tuple[int, int]]:
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


def _walls(events: Sequence[Event], years: Mapping[str, int | None], rows: Mapping[str, InputRow]) -> dict[int, int]:
    """id(event) → its written wall time, ns, in the right year (or 1972), not yet in UTC."""
    found: dict[int, int] = {}
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.stamp is not None and event.stamp.wall_ns is not None:
            by_source[event.evidence.source].append(event)
    for source, inside in by_source.items():
        year = years.get(source)
        sections, full = _in_sections(source, rows), [e for e in inside if e.stamp is not None and e.stamp.has_year]
        made = max((e.stamp.wall_ns or 0 for e in full if e.stamp), default=0) + DAY
        unsaid = [e for e in inside if e.stamp is not None and not e.stamp.has_year]
        back = {id(e): k for e, (_, k) in zip(unsaid, _turns(unsaid, sections), strict=True)}
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


def align(
    events: Sequence[Event],
    rows: Sequence[InputRow],
    *,
    zone: tzinfo | None = None,
    year: int | None = None,
    arrivals: Sequence[Arrival] = (),
    dumps: Sequence[Dump] = (),
    places: Mapping[int, str | None] | None = None,
) -> Aligned:
    """`events` (in file order) with time_ns, uncertainty_ns, time_basis, boot and clock filled in, sorted.

    `zone` and `year` are the user's word for stamps that were written without; `arrivals` and `dumps` are from Flight
    Recorder, whose times are UTC as the rank's host has it; `places`: rank → host.
    """
    entered: Entered | None = None
    if dumps:
        from nccl_forensics import meetings  # numpy: only when there are dumps

        entered = meetings.entered(dumps)
    by_path = {row.path: row for row in rows}
    boots = _boots(events)
    years = _years(events, by_path, year, arrivals)
    walls = _walls(events, years, by_path)
    zones = _zones(events, walls, by_path)
    zones.update(_job_zones(events, walls, by_path, zones, arrivals, entered))
    offsets = _boot_offsets(events, walls, zones, zone, boots, by_path)

    clocks: dict[str, ClockRow] = {}
    assumed: set[str] = set()
    placed: list[Event] = []
    for event in events:
        stamp = event.stamp
        time_ns = uncertainty = clock = None
        if stamp is not None and stamp.wall_ns is not None:
            wall = walls[id(event)]
            shift, basis, note = _zone_of(stamp, wall, event, zones, zone, by_path)
            clock = _clock_name(event, basis, by_path)
            time_ns = wall - shift
            uncertainty = _uncertainty(stamp)
            dated = stamp.has_year or years.get(event.evidence.source) is not None
            if not dated:
                note = f"{note}; the year is not in any file" if note else "the year is not in any file"
            if basis == "assumed":
                assumed.add(clock)
            clocks.setdefault(
                clock,
                ClockRow(
                    clock=clock,
                    host=event.host,
                    offset_s=-shift / SECOND,
                    uncertainty_s=None if basis == "assumed" else uncertainty / SECOND,
                    basis=basis,
                    note=note,
                ),
            )
        elif stamp is not None and stamp.boot_ns is not None:
            clock = f"{event.host or event.evidence.source}: kernel clock, boot {boots[id(event)]}"
            found = offsets.get((event.evidence.source, boots[id(event)]))
            if found is not None:
                offset, spread, is_assumed = found
                time_ns = stamp.boot_ns + offset
                uncertainty = spread + int(abs(stamp.boot_ns) * DRIFT_PPM / 1_000_000)
                if is_assumed:
                    assumed.add(clock)
                clocks.setdefault(
                    clock,
                    ClockRow(
                        clock=clock,
                        host=event.host,
                        offset_s=offset / SECOND,
                        uncertainty_s=None if is_assumed else spread / SECOND,
                        basis="boot-time",
                    ),
                )
            else:
                clocks.setdefault(
                    clock,
                    ClockRow(
                        clock=clock,
                        host=event.host,
                        offset_s=None,
                        uncertainty_s=None,
                        basis="none",
                        note="seconds since boot only; no line of this boot carries a wall-clock time",
                    ),
                )
        has_boot = stamp is not None and (stamp.boot_ns is not None or boots[id(event)] < 0)
        row = by_path.get(event.evidence.source)
        if row is not None and row.format == "nvidia-bug-report":
            has_boot = False  # it holds the same boots several times over, newest first
        placed.append(
            replace(
                event,
                time_ns=time_ns,
                uncertainty_ns=uncertainty,
                time_basis="none" if time_ns is None else "stamp",
                boot=boots[id(event)] if has_boot else None,
                clock=clock,
            )
        )
    aligned = _compared(placed, clocks, frozenset(assumed), dumps, places or {}, entered)
    return replace(aligned, events=tuple(ordered(between.bounded(aligned.events, by_path, aligned.assumed))))


def _compared(
    placed: list[Event],
    clocks: dict[str, ClockRow],
    assumed: frozenset[str],
    dumps: Sequence[Dump],
    places: Mapping[int, str | None],
    entered: Entered | None,
) -> Aligned:
    """The events, in their order, on the clock of one host, as far as anything ties their own clocks to it."""
    owners: dict[str, str] = {}  # clock → whose it is
    for event in placed:
        if event.clock is not None and event.clock not in owners:
            owners[event.clock] = _whose(event, event.clock in assumed)
    steps = tuple(_told_steps(placed))
    machines = {*owners.values(), *(short(h) for h in places.values() if h)} if dumps else {*owners.values()}
    if len(machines) < 2:
        return Aligned(tuple(placed), tuple(clocks[k] for k in sorted(clocks)), assumed, steps=steps)
    from nccl_forensics import meetings, skew  # numpy: only when there is something to compare

    def whose(event: Event) -> str:
        return owners[event.clock] if event.clock is not None else ""

    dated = [e for e in placed if is_dated(e.time_ns)]
    blocks = meetings.of_logs(dated, whose)
    if dumps:
        blocks += meetings.of_dumps(dumps, _clocks_of_ranks(dumps, places, placed, owners))
    waits = list(meetings.waits(dated, entered, whose)) if entered else []
    waited = [
        skew.Told(clock=w.clock, before_ns=w.before_ns, after_ns=w.after_ns, by_ns=w.set_by_ns, bar_ns=w.bar_ns)
        for w in waits
        if w.set_by_ns
    ]
    told = [(step, _told(step)) for step in steps]
    offsets = skew.offsets(blocks, [*waited, *(t for _, t in told)])
    for wait in waits:
        if not wait.set_by_ns:
            offsets.kept(wait.clock, wait.after_ns)
    for one in waited:
        offsets.set_later(one)
    shown = offsets.steps
    for (_, one), moved_step in zip(told, _told_steps([_moved(e, offsets, owners) for e in placed]), strict=True):
        if not any(_same_step(moved_step, other) for other in shown):
            offsets.set_later(one)
    moved = [_moved(event, offsets, owners) for event in placed]
    steps = tuple(_told_steps(moved))
    rows = {k: _row(row, owners, offsets) for k, row in clocks.items()}
    for name in set(offsets.clocks) - set(owners.values()):
        bare = ClockRow(
            clock=f"{name}: clock of its dumps", host=name, offset_s=0.0, uncertainty_s=0.0, basis="reference"
        )
        rows[bare.clock] = _row(bare, {bare.clock: name}, offsets)
    return Aligned(
        tuple(moved),
        tuple(rows[k] for k in sorted(rows)),
        assumed,
        frozenset(offsets.clocks),
        (*offsets.steps, *(s for s in steps if not any(_same_step(s, other) for other in offsets.steps))),
        offsets,
    )


def _clocks_of_ranks(
    dumps: Sequence[Dump], places: Mapping[int, str | None], placed: Sequence[Event], owners: Mapping[str, str]
) -> dict[int, str]:
    """Rank → whose clock its dump was written on. Without a host: the file in which the rank writes, if it is one."""
    files: dict[int, set[str]] = defaultdict(set)
    for event in placed:
        if event.rank is not None and event.host is None and event.clock is not None:
            files[event.rank].add(owners[event.clock])
    found = {}
    for rank in {d.rank for d in dumps if d.rank is not None}:
        host = places.get(rank)
        if host:
            found[rank] = short(host)
        elif len(files[rank]) == 1:
            (found[rank],) = files[rank]
        else:
            found[rank] = f"rank {rank}"
    return found


def _moved(event: Event, offsets: Offsets, owners: Mapping[str, str]) -> Event:
    if event.time_ns is None or event.clock is None or not is_dated(event.time_ns):
        return event
    late = event.stamp is not None and event.stamp.drifts
    offset = offsets.at(owners[event.clock], event.time_ns, newest=late)
    if offset is None or (offset.shift_ns == 0 and offset.bar_ns <= 1):
        return event
    bar = (event.uncertainty_ns or 0) + offset.bar_ns
    return replace(event, time_ns=event.time_ns - offset.shift_ns, uncertainty_ns=bar)


def _row(row: ClockRow, owners: Mapping[str, str], offsets: Offsets) -> ClockRow:
    """The clock's row with what the others say of it."""
    owner = owners.get(row.clock, "")
    newest = offsets.newest(owner)
    said = [row.note] if row.note else []
    if row.offset_s is None:
        return replace(row, compared=newest is not None)
    if newest is None:
        said.append("nothing in the pile compares it with another host's clock")
        return replace(row, uncertainty_s=None, compared=False, note="; ".join(said))
    if owner == offsets.reference:
        said.append("the others are held against it")
        return replace(row, note="; ".join(said + _set(owner, offsets)))
    offset, at_ns = newest
    said.append(f"by what nobody can have finished before all had begun, at {moment(at_ns)}")
    return replace(
        row,
        offset_s=row.offset_s - offset.shift_ns / SECOND,
        uncertainty_s=(row.uncertainty_s or 0.0) + offset.bar_ns / SECOND,
        basis="boot-time" if row.basis == "boot-time" else "collectives",
        note="; ".join(said + _set(owner, offsets)),
    )


def _set(owner: str, offsets: Offsets) -> list[str]:
    return [
        f"{'it, or the one it is held against,' if step.clock is None else 'it'} was set "
        f"{'forward' if step.by_ns > 0 else 'back'} by about {abs(step.by_ns) / SECOND:.1f} s between "
        f"{moment(step.after_ns)} and {moment(step.before_ns)}"
        for step in offsets.steps
        if step.clock in (owner, None)
    ]


def _told_steps(placed: Sequence[Event]) -> Iterator[Step]:
    """Clocks that were set, as the time service's own lines tell."""
    found: dict[tuple[str, int], Event] = {}
    for event in placed:
        if event.kind in TIME_SET and event.time_ns is not None:
            by = next((v for k in ("step", "step2") if (v := event.details.get(k)) is not None), None)
            try:
                by_ns = round(float(by) * SECOND) if isinstance(by, (str, int, float)) else 0
            except ValueError:
                continue
            if by_ns:
                found.setdefault((_whose(event, False), by_ns), event)
    if found:
        from nccl_forensics.skew import Step
    for (owner, by_ns), event in found.items():
        assert event.time_ns is not None
        yield Step(clock=owner, after_ns=event.time_ns - abs(by_ns), before_ns=event.time_ns, by_ns=by_ns)


def _told(step: Step) -> Told:
    """The same as readings of the clock: the line was written just after it was set."""
    from nccl_forensics.skew import Told

    assert step.clock is not None
    before = step.before_ns - step.by_ns - SECOND
    return Told(clock=step.clock, before_ns=before, after_ns=step.before_ns, by_ns=step.by_ns, bar_ns=2 * SECOND)


TIME_SET = frozenset({"chrony-step", "ntpd-step"})


def _same_step(a: Step, b: Step) -> bool:
    """Is it one and the same, told by the time service and shown by the collectives?"""
    near = abs(a.by_ns - b.by_ns) <= max(SECOND, abs(a.by_ns) // 10)
    reach = abs(a.by_ns) + SECOND
    return near and b.clock in (a.clock, None) and b.after_ns - reach <= a.before_ns <= b.before_ns + reach


def _uncertainty(stamp: Stamp) -> int:
    spread = max(stamp.resolution_ns, 1_000_000)
    if stamp.drifts:
        drift = (stamp.boot_ns or 0) * DRIFT_PPM // 1_000_000 if stamp.boot_ns else int(DRIFT_S * SECOND)
        spread += drift
    return spread


def _of_host(event: Event, rows: Mapping[str, InputRow]) -> bool:
    row = rows.get(event.evidence.source)
    return row is not None and row.format in HOST_FORMATS


def _job_zones(
    events: Sequence[Event],
    walls: Mapping[int, int],
    rows: Mapping[str, InputRow],
    zones: Mapping[str, tuple[int, str]],
    arrivals: Sequence[Arrival],
    entered: Entered | None,
) -> dict[str, tuple[int, str]]:
    """Zones of job logs that write none: from the dumps' UTC, else from a lost GPU of a host whose zone is known."""
    found: dict[str, tuple[int, str]] = {}
    lost: list[tuple[str, int]] = []
    for event in events:
        if event.kind == "xid" and event.details.get("xid") == 79 and event.host and id(event) in walls:
            known = zones.get(event.evidence.source) or zones.get(f"host:{short(event.host)}")
            if known is not None or (event.stamp is not None and event.stamp.zone_s is not None):
                lost.append((short(event.host), id(event)))
    waits: dict[str, int] = {}
    for event in events:
        if isinstance(waited := event.details.get("waited_ms"), int):
            waits[event.evidence.source] = max(waits.get(event.evidence.source, 0), waited * 1_000_000)
    owners: dict[str, str] = {}
    for event in events:
        source, stamp, waited = event.evidence.source, event.stamp, event.details.get("waited_ms")
        if stamp is None or stamp.wall_ns is None or stamp.zone_s is not None or _of_host(event, rows):
            continue
        if event.host is not None:
            owners[source] = short(event.host)
        if source in found or not (isinstance(waited, int) or event.kind == "exit"):
            continue
        # a process ends up to minutes after its watchdog gave up
        slack = COINCIDENCE_S if isinstance(waited, int) else COINCIDENCE_S * 5
        began = walls[id(event)] - (waited * 1_000_000 if isinstance(waited, int) else waits.get(source, 0))
        its_seq, numel = event.details.get("seq"), event.details.get("numel_in")
        if (
            entered
            and event.rank is not None
            and isinstance(its_seq, int)
            and isinstance(waited, int)
            and is_dated(began)
        ):
            # The dump of this very rank, and so the same clock.
            told = entered.at(event.rank, its_seq, numel if isinstance(numel, int) else None)
            easts = {round((began - at) / QUARTER) * QUARTER for at in told}
            close = {e for e in easts if any(abs(began - at - e) <= SKEW_S * SECOND for at in told)}
            if len(close) == 1 and abs(east := next(iter(close))) <= 14 * 3600 * SECOND:
                found[source] = (east, FROM_DUMPS)
                continue
        for arrival in arrivals:
            if arrival.seq == event.details.get("seq") and is_dated(began):
                east = round((began - arrival.last_ns) / QUARTER) * QUARTER
                if abs(began - arrival.last_ns - east) <= SKEW_S * SECOND and abs(east) <= 14 * 3600 * SECOND:
                    found[source] = (east, FROM_DUMPS)
                    break
        for host, number in lost:
            if source in found or event.host is None or host != short(event.host):
                continue
            its = zones.get(f"host:{host}")
            for east in sorted({0, its[0] if its else 0}):
                struck = walls[number] - (its[0] if its else 0)
                if -2 * SECOND <= began - east - struck <= slack * SECOND:
                    found[source] = (
                        east,
                        "read so, its ranks began to wait just after the GPU was lost; otherwise hours apart",
                    )
    found.update(_by_teardown(events, walls, zones, owners, found))
    by_owner: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for source, known in found.items():
        if source in owners:
            by_owner[owners[source]].add(known)
    for source, owner in owners.items():
        if source not in found and len({east for east, _ in by_owner[owner]}) == 1:
            found[source] = (next(iter(by_owner[owner]))[0], "as the other job logs of this host")
    return found


FROM_DUMPS = "its collectives stand in Flight Recorder dumps, which write UTC"
TEARDOWN = frozenset({43, 45})
"""Xids that the driver writes when a process ends that still held the GPU."""
TEARDOWN_S = 120
"""Between a process's end in the kernel's log and in its launcher's: polling and flushing. Our judgement."""


def _by_teardown(
    events: Sequence[Event],
    walls: Mapping[int, int],
    zones: Mapping[str, tuple[int, str]],
    owners: Mapping[str, str],
    found: Mapping[str, tuple[int, str]],
) -> dict[str, tuple[int, str]]:
    """Zones of job logs from processes whose end the kernel logged too: UTC or the host's zone, if one fits."""
    ends: dict[str, list[int]] = defaultdict(list)
    for event in events:
        known = zones.get(event.evidence.source) or zones.get(f"host:{short(event.host)}" if event.host else "")
        of_kernel = event.kind == "xid" and event.details.get("xid") in TEARDOWN
        if of_kernel and event.host and known is not None and id(event) in walls:
            ends[short(event.host)].append(walls[id(event)] - known[0])
    fits: dict[str, set[int]] = defaultdict(set)
    for event in events:
        owner = owners.get(event.evidence.source)
        if owner is None or event.evidence.source in found or id(event) not in walls:
            continue
        if event.kind not in ("exit", "pg-abort", "sigterm-sent"):
            continue
        for east in {0, zones.get(f"host:{owner}", (0, ""))[0]}:
            if any(abs(walls[id(event)] - east - end) <= TEARDOWN_S * SECOND for end in ends.get(owner, ())):
                fits[event.evidence.source].add(east)
    return {
        source: (next(iter(easts)), "read so, its processes end when the kernel's log says that they ended")
        for source, easts in fits.items()
        if len(easts) == 1
    }


def _zones(
    events: Sequence[Event], walls: Mapping[int, int], rows: Mapping[str, InputRow]
) -> dict[str, tuple[int, str]]:
    """File or host (as 'host:NAME') → (ns east of UTC, how that is known), from what the files show."""
    found: dict[str, tuple[int, str]] = {}
    for event in events:
        stamp, epoch = event.stamp, event.details.get("epoch_ns")
        of_host = [f"host:{short(event.host)}"] if event.host and _of_host(event, rows) else []
        keys = [event.evidence.source, *of_host]
        if isinstance(east := event.details.get("zone_s"), int):
            for key in keys:
                found.setdefault(key, (east * SECOND, f"{event.evidence.source} states its zone"))
        if isinstance(epoch, int) and stamp is not None and stamp.wall_ns is not None and stamp.zone_s is None:
            wall = walls[id(event)]
            if not is_dated(wall):
                wall = with_year(wall, datetime.fromtimestamp(epoch / SECOND, timezone.utc).year)
            east = round((wall - epoch) / QUARTER) * QUARTER
            # a boot line's stamp is the time of ingestion, up to minutes late (kernel-log-formats.md §0.5)
            if abs(wall - epoch - east) < 300 * SECOND and abs(east) <= 14 * 3600 * SECOND:
                for key in keys:
                    found.setdefault(
                        key, (east, f"line {event.evidence.line} of {event.evidence.source} prints UTC beside it")
                    )
    # The same Xid on the same card, in a log with a zone and in one without.
    zoned: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for event in events:
        if event.kind == "xid" and event.stamp and event.stamp.wall_ns is not None and event.stamp.zone_s is not None:
            zoned[event.details.get("xid"), event.gpu_pci, event.host].append(
                walls[id(event)] - event.stamp.zone_s * SECOND
            )
    for event in events:
        if event.kind != "xid" or not event.stamp or event.stamp.wall_ns is None or event.stamp.zone_s is not None:
            continue
        for utc in zoned.get((event.details.get("xid"), event.gpu_pci, event.host), ()):
            wall = walls[id(event)]
            if not is_dated(wall):
                wall = with_year(wall, datetime.fromtimestamp(utc / SECOND, timezone.utc).year)
            east = round((wall - utc) / QUARTER) * QUARTER
            if abs(wall - utc - east) <= 20 * SECOND and abs(east) <= 14 * 3600 * SECOND:
                found.setdefault(event.evidence.source, (east, "the same Xid stands in a log that writes its zone"))
    return found


def _zone_of(
    stamp: Stamp,
    wall: int,
    event: Event,
    zones: Mapping[str, tuple[int, str]],
    declared: tzinfo | None,
    rows: Mapping[str, InputRow],
) -> tuple[int, str, str | None]:
    """(ns east of UTC, basis, note)."""
    if stamp.zone_s is not None:
        return stamp.zone_s * SECOND, "reference", "the zone is written in the line"
    if declared is not None:
        moment = datetime.fromtimestamp(wall // SECOND, timezone.utc).replace(tzinfo=None)
        east = declared.utcoffset(moment) or timedelta(0)
        return int(east.total_seconds()) * SECOND, "declared", "zone given with --timezone"
    host_key = f"host:{short(event.host)}" if event.host and _of_host(event, rows) else ""
    if found := zones.get(event.evidence.source) or zones.get(host_key):
        return found[0], "shared-event", found[1]
    return 0, "assumed", "no zone is written; read as UTC (give --timezone to change that)"


def _clock_name(event: Event, basis: str, rows: Mapping[str, InputRow]) -> str:
    owner = event.host or event.evidence.source
    whose = "wall clock" if _of_host(event, rows) else "clock of the job's log"
    return f"{owner}: {whose}" + (", zone written" if basis == "reference" else "")


def _boot_offsets(
    events: Sequence[Event],
    walls: Mapping[int, int],
    zones: Mapping[str, tuple[int, str]],
    declared: tzinfo | None,
    boots: Mapping[int, int],
    rows: Mapping[str, InputRow],
) -> dict[tuple[str, int], tuple[int, int, bool]]:
    """(file, boot) → (ns to add to its kernel clock, error bar ns, is the zone only assumed?)."""
    samples: dict[tuple[str, int], list[tuple[int, int, bool]]] = defaultdict(list)
    marks: dict[tuple[object, ...], tuple[str, int]] = {}
    for event in events:
        stamp = event.stamp
        if stamp is None or stamp.boot_ns is None:
            continue
        key = (event.evidence.source, boots[id(event)])
        if event.kind == "xid":
            marks[_mark(event)] = key if stamp.wall_ns is not None else marks.get(_mark(event), key)
        if isinstance(epoch := event.details.get("epoch_ns"), int):
            samples[key].append((epoch - stamp.boot_ns, 2 * SECOND, False))
        if stamp.wall_ns is not None and stamp.boot_ns > 60 * SECOND:  # before, the stamp is that of ingestion
            wall = walls[id(event)]
            shift, basis, _ = _zone_of(stamp, wall, event, zones, declared, rows)
            samples[key].append((wall - shift - stamp.boot_ns, stamp.resolution_ns, basis == "assumed"))
    found = {}
    for key, inside in samples.items():
        best = min(x[1] for x in inside)
        chosen = [x for x in inside if x[1] == best]
        found[key] = (int(median(x[0] for x in chosen)), best, all(x[2] for x in chosen))
    for event in events:  # the same Xid at the same uptime in a log that also has the wall clock
        if event.kind == "xid" and event.stamp is not None and event.stamp.boot_ns is not None:
            key = (event.evidence.source, boots[id(event)])
            other = marks.get(_mark(event))
            if key not in found and other in found:
                found[key] = found[other]
    return found


def _mark(event: Event) -> tuple[object, ...]:
    assert event.stamp is not None
    assert event.stamp.boot_ns is not None
    return event.details.get("xid"), event.gpu_pci, event.stamp.boot_ns // 1000


def ordered(events: Sequence[Event]) -> list[Event]:
    """By time; events without one stand behind the last timed event of their own file (or before the first)."""
    last: dict[str, int] = {}
    for event in reversed(events):
        if event.time_ns is not None:
            last[event.evidence.source] = event.time_ns
    keyed = []
    for number, event in enumerate(events):
        source = event.evidence.source
        if event.time_ns is not None:
            last[source] = event.time_ns
        at = last.get(source)
        keyed.append((at is None, at or 0, source, event.evidence.line or 0, number, event))
    keyed.sort(key=lambda x: x[:5])
    return [x[-1] for x in keyed]
