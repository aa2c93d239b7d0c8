"""Boots of a host, and where uptime lies on the wall clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from statistics import median
from typing import NamedTuple

from nccl_forensics.model import Event, InputRow, Stamp, number
from nccl_forensics.text.moments import SECOND
from nccl_forensics.when.years import chains
from nccl_forensics.when.zones import Zones, zone_of

JITTER_NS = 5 * SECOND
"""Uptimes that go back by more are of another boot."""
INGESTED_NS = 60 * SECOND
"""Up to this uptime a line's wall time is that of ingestion."""
BESIDE_NS = 2 * SECOND
"""How far apart a line's uptime and the UTC that it prints may be."""


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
    """For each event the boot that it is of, from 0: by the journal's own ids where lines have them."""
    boot, last_ns, seen = 0, None, False
    last_id: str | None = None
    for event in inside:
        now_ns = event.stamp.boot_ns if event.stamp else None
        if event.boot_id is not None and last_id is not None:
            boot, last_ns, seen = boot + (event.boot_id != last_id), now_ns, True
        elif event.kind == "boot-start" and seen:
            boot, last_ns, seen = boot + 1, now_ns, False
        elif now_ns is not None:
            if last_ns is not None and now_ns + JITTER_NS < last_ns:
                boot += 1
            last_ns, seen = now_ns, True
        elif event.stamp is not None:
            seen = True
        last_id = event.boot_id or last_id
        yield boot


class Uptime(NamedTuple):
    """Where a kernel's clock, which counts from the boot, lies on the wall clock."""

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
) -> dict[Boot, Uptime]:
    """Where the kernel clock of each boot lies, by its own lines, else by those of another file on the same boot."""
    lines = [
        _Line(event, (event.evidence.source, boots[id(event)]), event.stamp, event.stamp.boot_ns)
        for event in events
        if event.stamp is not None and event.stamp.boot_ns is not None
    ]
    samples: dict[Boot, list[Uptime]] = defaultdict(list)
    for line in lines:
        if (epoch_ns := number(line.event, "epoch_ns")) is not None:
            samples[line.boot].append(Uptime(epoch_ns - line.uptime_ns, BESIDE_NS, "reference"))
        if line.stamp.wall_ns is not None and line.uptime_ns > INGESTED_NS:
            wall_ns = walls[id(line.event)]
            east_ns, basis, _ = zone_of(line.stamp, wall_ns, line.event, zones, declared, rows)
            samples[line.boot].append(Uptime(wall_ns - east_ns - line.uptime_ns, line.stamp.resolution_ns, basis))
    return _with_same_xids({boot: _middle(inside) for boot, inside in samples.items()}, lines)


def _middle(samples: Sequence[Uptime]) -> Uptime:
    """Of the samples with the narrowest error bar."""
    narrowest = min(sample.bar_ns for sample in samples)
    chosen = [sample for sample in samples if sample.bar_ns == narrowest]
    offset_ns = int(median(sample.offset_ns for sample in chosen))
    bases = {sample.basis for sample in chosen}
    surest = next((basis for basis in ("reference", "shared-event", "declared") if basis in bases), "assumed")
    return Uptime(offset_ns, narrowest, surest)


def _with_same_xids(known: Mapping[Boot, Uptime], lines: Iterable[_Line]) -> dict[Boot, Uptime]:
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
