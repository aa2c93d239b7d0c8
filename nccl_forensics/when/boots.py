"""Boots of a host, and where uptime lies on the wall clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from statistics import median

from nccl_forensics.model import Event, InputRow
from nccl_forensics.text.moments import SECOND
from nccl_forensics.when.years import chains
from nccl_forensics.when.zones import zone_of


def boots_of(events: Sequence[Event]) -> dict[int, int]:
    """id(event) → boot in its file, 0 = the last; events must be in file order. Rotated files count as one."""
    found: dict[int, int] = {}
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_source[event.evidence.source].append(event)
    for inside in ([e for source in chain for e in by_source[source]] for chain in chains(by_source)):
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


def boot_offsets(
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
            shift, basis, _ = zone_of(stamp, wall, event, zones, declared, rows)
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
