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

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING

from nccl_forensics.model import ClockRow, Event, GroupState, InputRow
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated, moment
from nccl_forensics.when import beside, between
from nccl_forensics.when.aligned import Aligned, Arrival, clock_of_dumps, ordered, whose_clock
from nccl_forensics.when.belief import Beliefs, ZoneOf
from nccl_forensics.when.boots import Up, with_shown
from nccl_forensics.when.jumps import Told, same_step
from nccl_forensics.when.process_zones import Tie
from nccl_forensics.when.readings import Reading, Readings
from nccl_forensics.when.steps import Shown, Unwatched, of_any_zone, shown

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump
    from nccl_forensics.when.meetings import Entered
    from nccl_forensics.when.offsets import Offsets


def arrivals_of(groups: Iterable[GroupState]) -> list[Arrival]:
    """When the members of groups arrived, as far as dumps tell: they write UTC."""
    return [
        Arrival(g.seq, g.first_arrival_ns, g.last_arrival_ns or g.first_arrival_ns)
        for g in groups
        if g.first_arrival_ns is not None
    ]


def align(
    events: Sequence[Event],
    rows: Sequence[InputRow],
    *,
    zone: tzinfo | None = None,
    year: int | None = None,
    arrivals: Sequence[Arrival] = (),
    dumps: Sequence[Dump] = (),
    places: Mapping[int, str | None] | None = None,
    asides: Sequence[Event] = (),
) -> Aligned:
    """`events` (in file order) with time_ns, uncertainty_ns, time_basis, boot and clock filled in, sorted.

    `zone` and `year` are the user's word for stamps that were written without; `arrivals` and `dumps` are from Flight
    Recorder, whose times are UTC as the rank's host has it; `places`: rank → host; `asides`: lines that are no events,
    and get their times without moving anything else.
    """
    entered = _entered(dumps)
    by_path = {row.path: row for row in rows}
    silent = beside.of_silent(asides, events, by_path)
    events = with_shown(events)
    readings = Readings.of([*silent, *events], by_path, zone, year, arrivals, entered)
    aligned = _compared(_placed(events, readings), _Recorded(dumps, places or {}, entered))
    aligned, silent = _with_silent(aligned, _placed(silent, readings))
    return replace(
        aligned,
        events=tuple(ordered(between.bounded(aligned.events, by_path, aligned.assumed))),
        asides=tuple(beside.placed(asides, silent, aligned.events)),
    )


def _with_silent(aligned: Aligned, silent: _Placed) -> tuple[Aligned, list[Event]]:
    """What the zones of clocks are on which only silent logs write, and these logs' lines on the reference."""
    beliefs = replace(aligned.beliefs, of={**silent.beliefs.of, **aligned.beliefs.of})
    offsets = aligned.offsets
    moved = [e if offsets is None else _moved(e, offsets, silent.owners) for e in silent.events]
    return replace(aligned, beliefs=beliefs), moved


def _entered(dumps: Sequence[Dump]) -> Entered | None:
    if not dumps:
        return None
    from nccl_forensics.when import meetings  # numpy: only when there are dumps

    return meetings.entered(dumps)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Events with the times that their own clocks show, before these are compared."""

    events: Sequence[Event]
    clocks: Mapping[str, ClockRow]
    assumed: frozenset[str]
    """Clocks whose zone is only assumed."""
    owners: Mapping[str, str]
    """Clock → whose it is."""
    beliefs: Beliefs
    """How likely each zone is."""

    def whose(self, event: Event) -> str:
        return self.owners[event.clock] if event.clock is not None else ""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What Flight Recorder tells."""

    dumps: Sequence[Dump]
    places: Mapping[int, str | None]
    """Rank → host."""
    entered: Entered | None


def _placed(events: Sequence[Event], readings: Readings) -> _Placed:
    clocks: dict[str, ClockRow] = {}
    assumed: set[str] = set()
    zones: dict[str, ZoneOf] = {}
    placed: list[Event] = []
    for event, reading in zip(events, _read(events, readings), strict=True):
        boot = readings.boot(event)
        if reading is None:
            placed.append(replace(event, time_ns=None, uncertainty_ns=None, time_basis="none", boot=boot, clock=None))
            continue
        if reading.clock not in clocks:
            clocks[reading.clock] = reading.row(event)
            zones[reading.clock] = readings.zone(event, reading)
        if reading.assumed:
            assumed.add(reading.clock)
            zones[reading.clock] = readings.zone(event, reading)
        placed.append(
            replace(
                event,
                time_ns=reading.time_ns,
                uncertainty_ns=reading.uncertainty_ns,
                time_basis="none" if reading.time_ns is None else "stamp",
                boot=boot,
                clock=reading.clock,
            )
        )
    beliefs = Beliefs(zones, _tied(events, placed, readings.ties, zones))
    owners: dict[str, str] = {}
    for event in placed:
        if event.clock is not None and event.clock not in owners:
            owners[event.clock] = whose_clock(event, beliefs.is_proved(event.clock))
    up = Up(placed, owners)
    placed = [replace(e, details={**e.details, "refuted": True}) if up.refutes(e) else e for e in placed]
    return _Placed(placed, clocks, frozenset(assumed), owners, beliefs)


def _read(events: Sequence[Event], readings: Readings) -> list[Reading | None]:
    """What each stamp means. A clock has one zone: a file whose zone nothing proves beside others of the same host and
    sort that are proved is a clock of its own."""
    found = [readings.read(event) for event in events]
    proved = {reading.clock for reading in found if reading is not None and reading.basis == "shared-event"}
    return [
        replace(reading, clock=f"{reading.clock} in {event.evidence.source}")
        if reading is not None and reading.clock in proved and (reading.assumed or reading.declared)
        else reading
        for event, reading in zip(events, found, strict=True)
    ]


def _tied(
    events: Sequence[Event], placed: Sequence[Event], ties: Sequence[Tie], zones: Mapping[str, ZoneOf]
) -> dict[tuple[str, str], int]:
    """(Clock, clock) → by how much the difference of their readings is wrong, as processes that both name show."""
    if not ties:
        return {}
    clocks = {id(event): made.clock for event, made in zip(events, placed, strict=True)}
    found: dict[tuple[str, str], int] = {}
    for tie in ties:
        host, job = clocks.get(id(tie.of_host)), clocks.get(id(tie.of_job))
        if host is not None and job is not None and host != job:
            found.setdefault((host, job), tie.apart_ns - zones[host].east_ns + zones[job].east_ns)
    return found


def _compared(placed: _Placed, recorded: _Recorded) -> Aligned:
    """The events, in their order, on the clock of one host, as far as anything ties their own clocks to it."""
    owners = placed.owners
    machines = {*owners.values()}
    if recorded.dumps:
        machines |= {short(host) for host in recorded.places.values() if host}
    found = shown(placed.events, placed.whose)
    if len(machines) < 2:
        moved, clocks = _set_right(placed, placed.events, placed.clocks, found)
        return Aligned(
            tuple(moved),
            tuple(clocks[name] for name in sorted(clocks)),
            placed.assumed,
            steps=tuple(one.step(moved) for one in found),
            beliefs=placed.beliefs,
        )
    offsets = _offsets(placed, recorded, found)
    moved = [_moved(event, offsets, owners) for event in placed.events]
    clocks = {name: _row(row, owners, offsets) for name, row in placed.clocks.items()}
    clocks |= {row.clock: row for row in _earlier_rows(placed.clocks, owners, offsets)}
    clocks |= _clocks_of_dumps(offsets, owners)
    unwatched = [one for one in found if _was_unwatched(one.told(placed.events), offsets)]
    moved, clocks = _set_right(placed, moved, clocks, unwatched)
    steps = [(one.step(moved), moved[one.first]) for one in found]
    unseen = [step for step, _ in steps if not any(same_step(step, seen) for seen in offsets.steps)]
    unseen += [loose for step, line in steps if (loose := of_any_zone(step, line)) is not None]
    return Aligned(
        tuple(moved),
        tuple(clocks[name] for name in sorted(clocks)),
        placed.assumed,
        frozenset(offsets.clocks),
        (*offsets.steps, *unseen),
        offsets,
        placed.beliefs,
    )


def _was_unwatched(told: Told, offsets: Offsets) -> bool:
    """Was it set before the first meeting that shows its offset, or does none show it?"""
    began_ns = offsets.began_ns(told.clock)
    return began_ns is None or told.after_ns <= began_ns


def _set_right(
    placed: _Placed, events: Sequence[Event], clocks: Mapping[str, ClockRow], found: Sequence[Shown]
) -> tuple[Sequence[Event], dict[str, ClockRow]]:
    """What was written before a clock was set, as it would have read since, and a row for what it was off by then."""
    if not found:
        return events, dict(clocks)
    before = Unwatched(placed.events, found, placed.whose)
    moved = [before.moved(event, raw.time_ns or 0) for event, raw in zip(events, placed.events, strict=True)]
    rows = {row.clock: row for row in before.rows(clocks, placed.owners)}
    return moved, {**clocks, **rows}


def _earlier_rows(clocks: Mapping[str, ClockRow], owners: Mapping[str, str], offsets: Offsets) -> Iterator[ClockRow]:
    """For clocks that were set as their meetings show: what each was off before."""
    for name, row in clocks.items():
        if row.offset_s is None or row.basis == "boot-time":
            continue
        for offset, until_ns in offsets.earlier(owners.get(name, "")):
            yield replace(
                row,
                clock=f"{name}, before {moment(until_ns)}",
                offset_s=row.offset_s - offset.shift_ns / SECOND,
                uncertainty_s=(row.uncertainty_s or 0.0) + offset.bar_ns / SECOND,
                basis="collectives",
                compared=True,
                note="until it was set",
            )


def _offsets(placed: _Placed, recorded: _Recorded, found: Sequence[Shown]) -> Offsets:
    """By how much clocks differ, by all that ties them to each other and tells that they were set."""
    from nccl_forensics.when import meetings, skew  # numpy: only when there is something to compare

    dated = [e for e in placed.events if is_dated(e.time_ns)]
    blocks = meetings.of_logs(dated, placed.whose)
    if recorded.dumps:
        blocks += meetings.of_dumps(recorded.dumps, _clocks_of_ranks(placed, recorded))
    waits = list(meetings.waits(dated, recorded.entered, placed.whose)) if recorded.entered else []
    shown_by_waits = [
        Told(clock=w.clock, before_ns=w.before_ns, after_ns=w.after_ns, by_ns=w.set_by_ns, bar_ns=w.bar_ns)
        for w in waits
        if w.set_by_ns
    ]
    told = [one.told(placed.events) for one in found]
    offsets = skew.offsets(blocks, [*shown_by_waits, *told])
    for wait in waits:
        if not wait.set_by_ns:
            offsets.kept(wait.clock, wait.before_ns, wait.after_ns)
    for one in shown_by_waits:
        offsets.set_later(one)
    seen = offsets.steps
    moved = [_moved(event, offsets, placed.owners) for event in placed.events]
    for step, one in zip(found, told, strict=True):
        if not any(same_step(step.step(moved), other) for other in seen):
            offsets.set_later(one)
    return offsets


def _clocks_of_dumps(offsets: Offsets, owners: Mapping[str, str]) -> dict[str, ClockRow]:
    """The rows of clocks that no line was written on."""
    found: dict[str, ClockRow] = {}
    for name in set(offsets.clocks) - set(owners.values()):
        clock = clock_of_dumps(name)
        bare = ClockRow(clock=clock, host=name, offset_s=0.0, uncertainty_s=0.0, basis="reference")
        found[clock] = _row(bare, {clock: name}, offsets)
    return found


def _clocks_of_ranks(placed: _Placed, recorded: _Recorded) -> dict[int, str]:
    """Rank → whose clock its dump was written on. Without a host: the file in which the rank writes, if it is one."""
    files: dict[int, set[str]] = defaultdict(set)
    for event in placed.events:
        if event.rank is not None and event.host is None and event.clock is not None:
            files[event.rank].add(placed.owners[event.clock])
    found = {}
    for rank in {d.rank for d in recorded.dumps if d.rank is not None}:
        host = recorded.places.get(rank)
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
