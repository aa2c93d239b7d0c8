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
from dataclasses import replace
from datetime import tzinfo
from typing import TYPE_CHECKING

from nccl_forensics.model import ClockRow, Event, GroupState, InputRow, Stamp
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated, moment
from nccl_forensics.when import between
from nccl_forensics.when.aligned import DRIFT_PPM, DRIFT_S, Aligned, Arrival, ordered, whose_clock
from nccl_forensics.when.boots import boot_offsets, boots_of
from nccl_forensics.when.years import walls_of_file, years_of
from nccl_forensics.when.zones import is_of_host, zone_of, zones_of_hosts, zones_of_jobs

if TYPE_CHECKING:
    from nccl_forensics.recorder.dumps import Dump
    from nccl_forensics.when.meetings import Entered
    from nccl_forensics.when.skew import Offsets, Step, Told


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
) -> Aligned:
    """`events` (in file order) with time_ns, uncertainty_ns, time_basis, boot and clock filled in, sorted.

    `zone` and `year` are the user's word for stamps that were written without; `arrivals` and `dumps` are from Flight
    Recorder, whose times are UTC as the rank's host has it; `places`: rank → host.
    """
    entered: Entered | None = None
    if dumps:
        from nccl_forensics.when import meetings  # numpy: only when there are dumps

        entered = meetings.entered(dumps)
    by_path = {row.path: row for row in rows}
    boots = boots_of(events)
    years = years_of(events, by_path, year, arrivals)
    walls = walls_of_file(events, years, by_path)
    zones = zones_of_hosts(events, walls, by_path)
    zones.update(zones_of_jobs(events, walls, by_path, zones, arrivals, entered))
    offsets = boot_offsets(events, walls, zones, zone, boots, by_path)

    clocks: dict[str, ClockRow] = {}
    assumed: set[str] = set()
    placed: list[Event] = []
    for event in events:
        stamp = event.stamp
        time_ns = uncertainty = clock = None
        if stamp is not None and stamp.wall_ns is not None:
            wall = walls[id(event)]
            shift, basis, note = zone_of(stamp, wall, event, zones, zone, by_path)
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
            owners[event.clock] = whose_clock(event, event.clock in assumed)
    steps = tuple(_told_steps(placed))
    machines = {*owners.values(), *(short(h) for h in places.values() if h)} if dumps else {*owners.values()}
    if len(machines) < 2:
        return Aligned(tuple(placed), tuple(clocks[k] for k in sorted(clocks)), assumed, steps=steps)
    from nccl_forensics.when import meetings, skew  # numpy: only when there is something to compare

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
                found.setdefault((whose_clock(event, False), by_ns), event)
    if found:
        from nccl_forensics.when.skew import Step
    for (owner, by_ns), event in found.items():
        assert event.time_ns is not None
        yield Step(clock=owner, after_ns=event.time_ns - abs(by_ns), before_ns=event.time_ns, by_ns=by_ns)


def _told(step: Step) -> Told:
    """The same as readings of the clock: the line was written just after it was set."""
    from nccl_forensics.when.skew import Told

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


def _clock_name(event: Event, basis: str, rows: Mapping[str, InputRow]) -> str:
    owner = event.host or event.evidence.source
    whose = "wall clock" if is_of_host(event, rows) else "clock of the job's log"
    return f"{owner}: {whose}" + (", zone written" if basis == "reference" else "")
