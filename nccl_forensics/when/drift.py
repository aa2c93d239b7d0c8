"""How far the stamps of `dmesg -T` are off: the kernel's own clock, which nobody disciplines, laid on the wall clock.

dmesg takes the moment of the boot, as the wall clock tells it when dmesg runs, and adds the uptime that printk wrote
(util-linux, sys-utils/dmesg.c; dmesg(1) warns of it). So the error grows with the uptime of the line, and a sleeping
machine adds the time that it slept. What the wall clock really read shows in lines that print UTC (audit records), and
in another log of the host that holds the same line.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.model import Event, InputRow, number
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND
from nccl_forensics.when.zones import Zones, is_of_host

RATE_PPM = 280
"""How fast printk's clock and the disciplined wall clock part at most. 11.5 minutes after 47 days were seen, which is
170 ppm, and 11.3 s after ten days (13 ppm) elsewhere; the rest is our judgement."""
BOOTED_NS = SECOND
"""How well dmesg knows the moment of the boot: to a second, where it has that from sysinfo(2)."""
UNKNOWN_UPTIME_NS = 50 * 86_400 * SECOND
"""Of a line whose boot nothing shows. Our judgement: nodes of clusters are seldom up for longer."""
MOST_NS = 1800 * SECOND
"""Two printings of one line are no further apart. Our judgement."""
PRINTED_NS = SECOND
"""Between what a line prints as UTC and when it was written: less than a second. Our judgement."""


LEFT_NS = 15 * SECOND
"""An error that is known and no larger is left in the time, which so reads as in the file, and stands in the bar. Our
judgement."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Of one line; ns."""

    late_ns: int
    """How much later it reads than the wall clock did."""
    bar_ns: int
    """Half-width of the error bar of that, the stamp's resolution left aside."""


@dataclass(frozen=True, slots=True, order=True)
class _Known:
    """A line of which another source tells what the wall clock read."""

    at_ns: int
    """As written."""
    late_ns: int
    bar_ns: int


def grown(elapsed_ns: int) -> int:
    """How far printk's clock and the wall clock can part in that time, ns."""
    return abs(elapsed_ns) * RATE_PPM // 1_000_000


def drifts_of(
    events: Sequence[Event],
    walls: Mapping[int, int],
    zones: Zones,
    boots: Mapping[int, int],
    rows: Mapping[str, InputRow],
) -> dict[int, Drift]:
    """id(event) → its error, of all whose stamps drift.

    `walls`: id(event) → its written wall time, ns; `boots`: id(event) → boot in its file.
    """
    groups: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.stamp is not None and event.stamp.drifts and id(event) in walls:
            groups[event.evidence.source, boots[id(event)]].append(event)
    if not groups:
        return {}
    elsewhere = _Elsewhere(events, walls, zones, rows)
    found: dict[int, Drift] = {}
    for inside in groups.values():
        known = sorted([*_beside_utc(inside, walls, zones), *elsewhere.same_lines(inside)])
        booted_ns = elsewhere.booted_ns(inside)
        for event in inside:
            up_ns = _uptime_ns(event, walls[id(event)], booted_ns)
            found[id(event)] = _by_nearest(walls[id(event)], known, Drift(0, BOOTED_NS + grown(up_ns)))
    return found


def _uptime_ns(event: Event, wall_ns: int, booted_ns: int | None) -> int:
    if event.stamp is not None and event.stamp.boot_ns is not None:
        return event.stamp.boot_ns
    return UNKNOWN_UPTIME_NS if booted_ns is None else max(0, wall_ns - booted_ns)


def _by_nearest(wall_ns: int, known: Sequence[_Known], by_uptime: Drift) -> Drift:
    """From the known line nearest to it, where that tells more than its uptime does; between two of which one was
    written after the clock was set, either may be right."""
    if not known:
        return by_uptime
    place = bisect(known, wall_ns, key=lambda k: k.at_ns)
    about = known[max(0, place - 1) : place + 1]
    nearest = min(about, key=lambda k: abs(k.at_ns - wall_ns))
    bar = nearest.bar_ns + grown(wall_ns - nearest.at_ns)
    if not _agree(about[0], about[-1]):
        bar = max(bar, abs(about[-1].late_ns - about[0].late_ns))
    # A clock that was set since the boot is off by more than its uptime tells.
    sets = abs(nearest.late_ns) > by_uptime.bar_ns + nearest.bar_ns
    if not sets and bar > by_uptime.bar_ns:
        return by_uptime
    if abs(nearest.late_ns) <= LEFT_NS:
        return Drift(0, bar + abs(nearest.late_ns))
    return Drift(nearest.late_ns, bar)


def _utc_ns(event: Event, walls: Mapping[int, int], zones: Zones) -> tuple[int, bool]:
    """(UTC, or the time as written where its zone is not known; whether it is)."""
    assert event.stamp is not None
    if event.stamp.zone_s is not None:
        return walls[id(event)] - event.stamp.zone_s * SECOND, True
    zone = zones.of(event)
    return walls[id(event)] - (zone.east_ns if zone is not None else 0), zone is not None


def _beside_utc(inside: Iterable[Event], walls: Mapping[int, int], zones: Zones) -> Iterator[_Known]:
    for event in inside:
        epoch_ns = number(event, "epoch_ns")
        if epoch_ns is not None and event.stamp is not None:
            utc_ns, zone_is_known = _utc_ns(event, walls, zones)
            if zone_is_known and abs(utc_ns - epoch_ns) <= MOST_NS:
                bar_ns = event.stamp.resolution_ns + PRINTED_NS
                yield _Known(walls[id(event)], utc_ns - epoch_ns, bar_ns)


_Said = tuple[object, ...]


class _Elsewhere:
    """What the other logs of hosts tell of lines and boots."""

    def __init__(
        self, events: Iterable[Event], walls: Mapping[int, int], zones: Zones, rows: Mapping[str, InputRow]
    ) -> None:
        self._walls, self._zones = walls, zones
        self._lines: dict[_Said, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
        """What a line says → file → its printings there, on a clock that does not drift."""
        self._boots: dict[str, list[int]] = defaultdict(list)
        """Host → when it was booted, as written."""
        for event in events:
            if event.stamp is None or event.host is None or id(event) not in walls:
                continue
            if event.kind == "boot-start":
                self._boots[short(event.host)].append(walls[id(event)])
            elif not event.stamp.drifts and is_of_host(event, rows):
                self._lines[_said(event)][event.evidence.source].append(event)

    def booted_ns(self, inside: Sequence[Event]) -> int | None:
        """When the boot of these lines began, as written: by the file itself, else by another log of the host."""
        first_ns = min(self._walls[id(e)] for e in inside)
        own = next((self._walls[id(e)] for e in inside if e.kind == "boot-start"), None)
        if own is not None or inside[0].host is None:
            return own
        return max((at for at in self._boots[short(inside[0].host)] if at <= first_ns), default=None)

    def same_lines(self, inside: Iterable[Event]) -> list[_Known]:
        """Lines that stand as often in another log of the host, with what that tells of the wall clock. One alone
        counts if it names a process; others if a different line says the same."""
        printed: dict[_Said, list[Event]] = defaultdict(list)
        for event in inside:
            if event.host is not None and event.kind != "boot-start":
                printed[_said(event)].append(event)
        found = [
            (known, said, event.pid is not None)
            for said, own in printed.items()
            for others in self._lines.get(said, {}).values()
            if len(others) == len(own)
            for event, other in zip(own, others, strict=True)
            for known in self._both(event, other)
        ]
        return [
            known
            for known, said, by_itself in found
            if by_itself or any(said != also and _agree(known, other) for other, also, _ in found)
        ]

    def _both(self, event: Event, other: Event) -> Iterator[_Known]:
        (own_ns, known), (other_ns, other_known) = (_utc_ns(e, self._walls, self._zones) for e in (event, other))
        if known == other_known and abs(own_ns - other_ns) <= MOST_NS:
            assert event.stamp is not None
            assert other.stamp is not None
            bar_ns = event.stamp.resolution_ns + other.stamp.resolution_ns + PRINTED_NS
            yield _Known(self._walls[id(event)], own_ns - other_ns, bar_ns)


def _agree(a: _Known, b: _Known) -> bool:
    return abs(a.late_ns - b.late_ns) <= a.bar_ns + b.bar_ns + grown(a.at_ns - b.at_ns)


def _said(event: Event) -> _Said:
    return event.kind, short(event.host or ""), event.gpu_pci, event.evidence.text[-160:]
