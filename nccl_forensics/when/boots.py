"""Boots of a host, and where uptime lies on the wall clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from itertools import accumulate
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from nccl_forensics.model import Event, InputRow, Stamp, number
from nccl_forensics.text.moments import SECOND
from nccl_forensics.when.drift import Drift, grown
from nccl_forensics.when.years import chains
from nccl_forensics.when.zones import Zones, zone_of

JITTER_NS = 5 * SECOND
"""Uptimes that go back by more are of another boot."""
INGESTED_NS = 60 * SECOND
"""Up to this uptime a line's wall time is that of ingestion."""
BESIDE_NS = 2 * SECOND
"""How far apart a line's uptime and the UTC that it prints may be."""
UP_NS = 300 * SECOND
"""How long before and after a boot was said to begin its host must have been up for it to be none: what syslog is late
by, and clocks that are set at boot. Our judgement."""
TOGETHER_NS = 600 * SECOND
"""Lines within which printk's clock and the wall clock part by less than syslog's resolution. Our judgement."""


def boots_of(events: Sequence[Event]) -> dict[int, int]:
    """id(event) → boot in its file, 0 = the last; events must be in file order. Rotated files count as one."""
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_source[event.evidence.source].append(event)
    found: dict[int, int] = {}
    for chain in chains(by_source):
        inside = [e for source in chain for e in by_source[source]]
        numbers = list(_count_boots(inside))
        found |= {id(event): number - numbers[-1] for event, number in zip(inside, numbers, strict=True)}
    return found


def _count_boots(inside: Iterable[Event]) -> Iterator[int]:
    """For each event the boot that it is of, from 0: by the journal's ids, else by what begins a boot, and uptime."""
    boot, last_ns, seen = 0, None, False
    last_id: str | None = None
    for event in inside:
        now_ns = event.stamp.boot_ns if event.stamp else None
        if event.boot_id is not None and last_id is not None:
            boot, last_ns, seen = boot + (event.boot_id != last_id), now_ns, True
        elif event.kind == "boot-start" and seen and not _goes_on(now_ns, last_ns):
            boot, last_ns, seen = boot + 1, now_ns, False
        elif now_ns is not None:
            if last_ns is not None and now_ns + JITTER_NS < last_ns:
                boot += 1
            last_ns, seen = now_ns, True
        elif event.stamp is not None:
            seen = True
        last_id = event.boot_id or last_id
        yield boot


def _goes_on(now_ns: int | None, last_ns: int | None) -> bool:
    """Does the uptime run on here? A boot's own first line has none to speak of."""
    return now_ns is not None and last_ns is not None and now_ns > INGESTED_NS and now_ns + JITTER_NS >= last_ns


def with_shown(events: Sequence[Event]) -> list[Event]:
    """The events, with the beginning of each boot that only the journal's ids show, at its first line."""
    begun = {(e.evidence.source, e.boot_id) for e in events if e.kind == "boot-start" and e.boot_id is not None}
    last: dict[str, str] = {}
    found: list[Event] = []
    for event in events:
        if event.stamp is not None and (boot_id := event.boot_id) is not None:
            source = event.evidence.source
            if last.get(source, boot_id) != boot_id and (source, boot_id) not in begun:
                begun.add((source, boot_id))
                found.append(_first_of_boot(event))
            last[source] = boot_id
        found.append(event)
    return found


def _first_of_boot(event: Event) -> Event:
    return Event(
        kind="boot-start",
        role="context",
        evidence=event.evidence,
        stamp=event.stamp,
        host=event.host,
        boot_id=event.boot_id,
        details={"by_id": True},
    )


class Up:
    """When hosts are shown to have been up without a boot, so that what looks like one then is none.

    By the journal's ids: from the first to the last line that bears one; by a line's uptime: for so long before it.
    """

    def __init__(self, events: Iterable[Event], owners: Mapping[str, str]) -> None:
        """`events` have times; `owners`: clock → whose it is, so that times of one owner compare."""
        self._owners = owners
        by_id: dict[tuple[str, str], list[int]] = defaultdict(list)
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for event in events:
            stamp, owner = event.stamp, self._owner(event)
            if owner is None or event.time_ns is None or stamp is None or stamp.drifts or stamp.wall_ns is None:
                continue
            if event.boot_id is not None:
                by_id[owner, event.boot_id].append(event.time_ns)
            elif stamp.boot_ns is not None:
                spans[owner].append((event.time_ns, event.time_ns - stamp.boot_ns))
        for (owner, _), times in by_id.items():
            spans[owner].append((max(times), min(times)))
        self._until: dict[str, list[int]] = {}
        """Whose → ends of stretches, sorted."""
        self._since: dict[str, list[int]] = {}
        """Whose → the earliest begin of a stretch that ends there or later."""
        for owner, own in spans.items():
            own.sort()
            self._until[owner] = [until for until, _ in own]
            self._since[owner] = list(accumulate((since for _, since in reversed(own)), min))[::-1]

    def _owner(self, event: Event) -> str | None:
        return self._owners.get(event.clock) if event.host is not None and event.clock is not None else None

    def refutes(self, start: Event) -> bool:
        """Was its host up for minutes before and after?"""
        owner = self._owner(start)
        if start.kind != "boot-start" or start.time_ns is None or owner not in self._until:
            return False
        place = bisect_right(self._until[owner], start.time_ns + UP_NS)
        since = self._since[owner][place : place + 1]
        return bool(since) and since[0] < start.time_ns - UP_NS


class Uptime(NamedTuple):
    """Where a kernel's clock, which counts from the boot, lies on the wall clock."""

    at_ns: int
    """The uptime at which that is so."""
    offset_ns: int
    """What to add to it for UTC."""
    bar_ns: int
    """Half-width of the error bar."""
    basis: str
    """How the zone is known, as ClockRow.basis has it."""

    @property
    def assumed(self) -> bool:
        """Is the zone only assumed?"""
        return self.basis == "assumed"


_at = attrgetter("at_ns")


class KernelClock(NamedTuple):
    """Where the clock of one boot lies at some uptimes, in their order."""

    shown: tuple[Uptime, ...]
    basis: str
    """The surest of theirs."""

    def at(self, uptime_ns: int) -> Uptime:
        """By the lines that are nearest to it; the error grows with the distance to them."""
        place = bisect_left(self.shown, uptime_ns, key=_at)
        nearest = min(self.shown[max(0, place - 1) : place + 1], key=lambda shown: abs(shown.at_ns - uptime_ns))
        first = bisect_left(self.shown, nearest.at_ns - TOGETHER_NS, key=_at)
        end = bisect_right(self.shown, nearest.at_ns + TOGETHER_NS, key=_at)
        offset_ns = int(median(shown.offset_ns for shown in self.shown[first:end]))
        bar_ns = nearest.bar_ns + grown(uptime_ns - nearest.at_ns)
        return Uptime(uptime_ns, offset_ns, bar_ns, self.basis)


Boot = tuple[str, int]
"""A file and the number of a boot in it."""


class _Line(NamedTuple):
    """One that tells the uptime."""

    event: Event
    boot: Boot
    stamp: Stamp
    uptime_ns: int


def boot_offsets(
    events: Sequence[Event],
    walls: Mapping[int, int],
    zones: Zones,
    declared: tzinfo | None,
    boots: Mapping[int, int],
    rows: Mapping[str, InputRow],
    drifts: Mapping[int, Drift],
) -> dict[Boot, KernelClock]:
    """Where the kernel clock of each boot lies, by its own lines, else by those of another file on the same boot."""
    lines = [
        _Line(event, (event.evidence.source, boots[id(event)]), event.stamp, event.stamp.boot_ns)
        for event in events
        if event.stamp is not None and event.stamp.boot_ns is not None
    ]
    samples: dict[Boot, list[Uptime]] = defaultdict(list)
    for line in lines:
        if (epoch_ns := number(line.event, "epoch_ns")) is not None:
            shown = Uptime(line.uptime_ns, epoch_ns - line.uptime_ns, BESIDE_NS, "reference")
            samples[line.boot].append(shown)
        if line.stamp.wall_ns is not None and line.uptime_ns > INGESTED_NS:
            wall_ns = walls[id(line.event)]
            east_ns, basis, _ = zone_of(line.stamp, wall_ns, line.event, zones, declared, rows)
            drift = drifts.get(id(line.event))
            bar_ns = line.stamp.resolution_ns + (drift.bar_ns if drift is not None else 0)
            samples[line.boot].append(Uptime(line.uptime_ns, wall_ns - east_ns - line.uptime_ns, bar_ns, basis))
    return _with_same_xids({boot: _narrowest(inside) for boot, inside in samples.items()}, lines)


def _narrowest(samples: Sequence[Uptime]) -> KernelClock:
    """Those with the narrowest error bar."""
    narrowest = min(sample.bar_ns for sample in samples)
    chosen = sorted(sample for sample in samples if sample.bar_ns == narrowest)
    bases = {sample.basis for sample in chosen}
    surest = next((basis for basis in ("reference", "shared-event", "declared") if basis in bases), "assumed")
    return KernelClock(tuple(chosen), surest)


def _with_same_xids(known: Mapping[Boot, KernelClock], lines: Iterable[_Line]) -> dict[Boot, KernelClock]:
    """Also of boots whose lines tell no wall time: the same Xid at the same uptime stands in a log that does."""
    xids = [(line, _mark(line)) for line in lines if line.event.kind == "xid"]
    marks: dict[tuple[object, ...], Boot] = {}
    for line, mark in xids:
        marks[mark] = line.boot if line.stamp.wall_ns is not None else marks.get(mark, line.boot)
    found = dict(known)
    for line, mark in xids:
        if line.boot not in found and marks[mark] in found:
            found[line.boot] = found[marks[mark]]
    return found


def _mark(line: _Line) -> tuple[object, ...]:
    return line.event.details.get("xid"), line.event.gpu_pci, line.uptime_ns // 1000
