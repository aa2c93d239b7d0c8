"""Zones of what hosts write about themselves, from what their own lines show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from nccl_forensics.lines.stamps import IN_USE_S, east_of, in_year_near, is_in_use
from nccl_forensics.model import Event, InputRow, number
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.zones import KnownZone, Zones, is_of_host

LATE_BOOT_LINE_NS = 300 * SECOND - 1
"""A boot line's stamp is the time of ingestion, up to minutes late (kernel-log-formats.md §0.5)."""
SAME_XID_NS = 20 * SECOND
"""How far apart two logs may date one Xid of one card."""
DRIFTED_NS = 720 * SECOND
"""How far `dmesg -T` may be off where it is to tell a zone: somewhat more than the 11.5 minutes that were seen. Our
judgement."""


def zones_of_hosts(
    events: Sequence[Event], walls: Mapping[int, int], rows: Mapping[str, InputRow], boots: Mapping[int, int]
) -> Zones:
    """What the files show; of several proofs for one file or host the first counts.

    `walls`: id(event) → its written wall time, ns; `rows`: by path; `boots`: id(event) → boot in its file.
    """
    of_files: dict[str, KnownZone] = {}
    of_hosts: dict[str, KnownZone] = {}
    for event in events:
        if "zone_s" not in event.details and "epoch_ns" not in event.details:
            continue
        for zone in (_stated(event), _beside_utc(event, walls)):
            if zone is not None:
                of_files.setdefault(event.evidence.source, zone)
                if event.host and is_of_host(event, rows):
                    of_hosts.setdefault(short(event.host), zone)
    for source, zone in _by_same_xid(events, walls):
        of_files.setdefault(source, zone)
    for source, host, zone in _by_same_uptime(events, walls, boots):
        of_files.setdefault(source, zone)
        of_hosts.setdefault(host, zone)
    return Zones(of_files, of_hosts)


def _stated(event: Event) -> KnownZone | None:
    """A line that says in which zone its file is."""
    east_s = number(event, "zone_s")
    return None if east_s is None else KnownZone(east_s * SECOND, f"{event.evidence.source} states its zone")


def _beside_utc(event: Event, walls: Mapping[int, int]) -> KnownZone | None:
    """A line without a zone that prints UTC as well, such as an audit record or the clock's setting at boot."""
    epoch_ns, stamp = number(event, "epoch_ns"), event.stamp
    if epoch_ns is None or stamp is None or stamp.wall_ns is None or stamp.zone_s is not None:
        return None
    east = _east(_in_year_of(epoch_ns, walls[id(event)]), epoch_ns, LATE_BOOT_LINE_NS, drifts=stamp.drifts)
    if east is None:
        return None
    return KnownZone(east, f"line {event.evidence.line} of {event.evidence.source} prints UTC beside it")


def _by_same_xid(events: Sequence[Event], walls: Mapping[int, int]) -> Iterator[tuple[str, KnownZone]]:
    """The same Xid on the same card, or SXid on the same switch, in a log with a zone and in one without."""
    zoned: dict[tuple[object, ...], list[int]] = defaultdict(list)  # → UTC, ns
    bare: list[Event] = []
    for event in events:
        if event.kind in ("xid", "sxid") and event.stamp is not None and event.stamp.wall_ns is not None:
            if event.stamp.zone_s is None:
                bare.append(event)
            elif not event.stamp.drifts:
                zoned[_xid(event)].append(walls[id(event)] - event.stamp.zone_s * SECOND)
    for event in bare:
        for utc_ns in zoned.get(_xid(event), ()):
            drifts = event.stamp is not None and event.stamp.drifts
            east = _east(_in_year_of(utc_ns, walls[id(event)]), utc_ns, SAME_XID_NS, drifts=drifts)
            if east is not None:
                yield event.evidence.source, KnownZone(east, "the same Xid stands in a log that writes its zone")


_Boot = tuple[str, int]
"""A file and the number of a boot in it."""


def _by_same_uptime(
    events: Sequence[Event], walls: Mapping[int, int], boots: Mapping[int, int]
) -> Iterator[tuple[str, str, KnownZone]]:
    """(File, host, zone), where another file dates a line at the same uptime, and so the same boot, in UTC."""
    utc: dict[_Boot, list[int]] = defaultdict(list)
    local: dict[_Boot, list[int]] = defaultdict(list)
    printed: dict[tuple[str, str, int, str], set[_Boot]] = defaultdict(set)
    for event in events:
        stamp = event.stamp
        if stamp is None or stamp.boot_ns is None or event.host is None:
            continue
        boot = event.evidence.source, boots[id(event)]
        if (epoch_ns := number(event, "epoch_ns")) is not None:
            utc[boot].append(epoch_ns - stamp.boot_ns)
        if stamp.boot_ns <= LATE_BOOT_LINE_NS:
            continue  # many boots print the same then
        if stamp.wall_ns is not None and stamp.zone_s is not None:
            utc[boot].append(walls[id(event)] - stamp.zone_s * SECOND - stamp.boot_ns)
        elif stamp.wall_ns is not None and not stamp.drifts:
            local[boot].append(walls[id(event)] - stamp.boot_ns)
        printed[event.kind, short(event.host), stamp.boot_ns // 1000, event.evidence.text[-160:]].add(boot)
    for (_, host, *_), shared in printed.items():
        for one in shared & local.keys():
            for other in (shared & utc.keys()) - {one}:
                local_ns, utc_ns = int(median(local[one])), int(median(utc[other]))
                east = _east(_in_year_of(utc_ns, local_ns), utc_ns, LATE_BOOT_LINE_NS, drifts=False)
                if east is not None:
                    yield one[0], host, KnownZone(east, f"{other[0]} dates the same uptime in UTC")


def _east(local_ns: int, utc_ns: int, within_ns: int, *, drifts: bool) -> int | None:
    """The zone, ns east of UTC, in which a clock read this then; `drifts`: by minutes, so that the one zone counts that
    is near enough."""
    if not drifts:
        east = east_of(local_ns, utc_ns, within_ns)
        return east if east is not None and is_in_use(east) else None
    near = [east_s * SECOND for east_s in IN_USE_S if abs(local_ns - utc_ns - east_s * SECOND) <= DRIFTED_NS]
    return near[0] if len(near) == 1 else None


def _xid(event: Event) -> tuple[object, ...]:
    told = (event.details.get(key) for key in ("xid", "sxid", "switch_pci", "link"))
    return (*told, event.gpu_pci, event.host)


def _in_year_of(utc_ns: int, wall_ns: int) -> int:
    """The wall time in the year that brings it nearest to this moment, where nothing told its own: at New Year the two
    can be in different ones."""
    return wall_ns if is_dated(wall_ns) else in_year_near(wall_ns, utc_ns)
