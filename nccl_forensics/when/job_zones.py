"""Zones of job logs that write none: from the dumps' UTC, else from what a host of a known zone wrote of the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nccl_forensics.lines.stamps import east_of, is_in_use
from nccl_forensics.model import Event, InputRow, number
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.aligned import Arrival
from nccl_forensics.when.zones import SKEW_S, TEARDOWN, KnownZone, Zones, is_of_host

if TYPE_CHECKING:
    from nccl_forensics.when.meetings import Entered

COINCIDENCE_S = 60
"""A lost GPU stops its peers within the next collective; only used to choose between two zones. Our judgement."""
END_S = COINCIDENCE_S * 5
"""A process ends up to minutes after its watchdog gave up."""
BEFORE_NS = 2 * SECOND
"""So much earlier than the loss of the GPU a wait may seem to have begun."""
TEARDOWN_S = 120
"""Between a process's end in the kernel's log and in its launcher's: polling and flushing. Our judgement."""
LOST = 79
"""The Xid of a GPU that has fallen off the bus."""
FROM_DUMPS = "its collectives stand in Flight Recorder dumps, which write UTC"


def zones_of_jobs(
    events: Sequence[Event],
    walls: Mapping[int, int],
    rows: Mapping[str, InputRow],
    zones: Zones,
    arrivals: Sequence[Arrival],
    entered: Entered | None,
) -> dict[str, KnownZone]:
    """File → its zone, by the first of its lines that proves one, else by the ends of its processes, else by the other
    files of its host.

    `walls`: id(event) → its written wall time, ns; `zones`: those of hosts; `arrivals` and `entered` tell UTC.
    """
    unzoned = [event for event in events if _writes_no_zone(event) and not is_of_host(event, rows)]
    owners = {event.evidence.source: short(event.host) for event in unzoned if event.host is not None}
    lost = list(_lost_gpus(events, walls, zones))
    found: dict[str, KnownZone] = {}
    for wait in _waits(events, unzoned, walls):
        source = wait.event.evidence.source
        if source not in found:
            zone = _by_own_dump(wait, entered) or _by_arrival(wait, arrivals) or _by_lost_gpu(wait, lost, zones)
            if zone is not None:
                found[source] = zone
    found |= _by_teardown(events, walls, zones, {s: host for s, host in owners.items() if s not in found})
    found |= _by_owner(owners, found)
    return found


def _writes_no_zone(event: Event) -> bool:
    return event.stamp is not None and event.stamp.wall_ns is not None and event.stamp.zone_s is None


@dataclass(frozen=True, slots=True)
class _Wait:
    """A line of a job that tells when it began to wait for others."""

    event: Event
    began_ns: int
    """On the clock as written."""
    measured: bool
    """The line itself tells how long it waited; else a process ended, as late as others had waited in its file."""


def _waits(events: Iterable[Event], unzoned: Iterable[Event], walls: Mapping[int, int]) -> Iterator[_Wait]:
    longest_ms: dict[str, int] = {}
    for event in events:
        if (waited_ms := number(event, "waited_ms")) is not None:
            source = event.evidence.source
            longest_ms[source] = max(longest_ms.get(source, 0), waited_ms)
    for event in unzoned:
        waited_ms = number(event, "waited_ms")
        if waited_ms is not None or event.kind == "exit":
            before_ms = longest_ms.get(event.evidence.source, 0) if waited_ms is None else waited_ms
            yield _Wait(event, walls[id(event)] - before_ms * 1_000_000, waited_ms is not None)


def _by_own_dump(wait: _Wait, entered: Entered | None) -> KnownZone | None:
    """The dump of this very rank, and so the same clock, tells when it entered the operation."""
    event, seq = wait.event, number(wait.event, "seq")
    if not entered or event.rank is None or seq is None or not wait.measured or not is_dated(wait.began_ns):
        return None
    told = entered.at(event.rank, seq, number(event, "numel_in"))
    fits = {east for at_ns in told if (east := east_of(wait.began_ns, at_ns, SKEW_S * SECOND)) is not None}
    if len(fits) != 1:
        return None
    (east,) = fits
    return KnownZone(east, FROM_DUMPS) if is_in_use(east) else None


def _by_arrival(wait: _Wait, arrivals: Iterable[Arrival]) -> KnownZone | None:
    """The last rank of all entered an operation with that number, as dumps tell."""
    for arrival in arrivals:
        if arrival.seq == wait.event.details.get("seq") and is_dated(wait.began_ns):
            east = east_of(wait.began_ns, arrival.last_ns, SKEW_S * SECOND)
            if east is not None and is_in_use(east):
                return KnownZone(east, FROM_DUMPS)
    return None


@dataclass(frozen=True, slots=True)
class _Lost:
    """A GPU that fell off the bus."""

    host: str
    """Short name."""
    at_ns: int
    """With the zone of its host taken off."""


def _lost_gpus(events: Iterable[Event], walls: Mapping[int, int], zones: Zones) -> Iterator[_Lost]:
    """Those whose time is in a known zone."""
    for event in events:
        if event.kind == "xid" and number(event, "xid") == LOST and event.host and id(event) in walls:
            written = event.stamp is not None and event.stamp.zone_s is not None
            if written or zones.of(event) is not None:
                yield _Lost(short(event.host), walls[id(event)] - _east_of_host(event.host, zones))


def _east_of_host(host: str, zones: Zones) -> int:
    """UTC where nothing is known."""
    known = zones.of_host(host)
    return known.east_ns if known is not None else 0


def _by_lost_gpu(wait: _Wait, lost: Iterable[_Lost], zones: Zones) -> KnownZone | None:
    """Its ranks began to wait just after a GPU of its host was lost, if it is in UTC or in the host's zone."""
    host = wait.event.host
    if host is None:
        return None
    latest_ns = (COINCIDENCE_S if wait.measured else END_S) * SECOND
    candidates = sorted({0, _east_of_host(host, zones)})
    for gpu in lost:
        if gpu.host == short(host):
            fits = [east for east in candidates if -BEFORE_NS <= wait.began_ns - east - gpu.at_ns <= latest_ns]
            if fits:
                why = "read so, its ranks began to wait just after the GPU was lost; otherwise hours apart"
                return KnownZone(fits[-1], why)
    return None


def _by_teardown(
    events: Sequence[Event], walls: Mapping[int, int], zones: Zones, owners: Mapping[str, str]
) -> dict[str, KnownZone]:
    """Of processes whose end the kernel logged too: UTC or the host's zone, if one fits. `owners`: file → host."""
    ends = _ends_in_kernel(events, walls, zones)
    fits: dict[str, set[int]] = defaultdict(set)
    for event in events:
        owner = owners.get(event.evidence.source)
        if owner is None or event.kind not in ("exit", "pg-abort", "sigterm-sent") or id(event) not in walls:
            continue
        for east in {0, _east_of_host(owner, zones)}:
            ended_ns = walls[id(event)] - east
            if any(abs(ended_ns - end_ns) <= TEARDOWN_S * SECOND for end_ns in ends.get(owner, ())):
                fits[event.evidence.source].add(east)
    why = "read so, its processes end when the kernel's log says that they ended"
    return {source: KnownZone(easts.pop(), why) for source, easts in fits.items() if len(easts) == 1}


def _ends_in_kernel(events: Iterable[Event], walls: Mapping[int, int], zones: Zones) -> dict[str, list[int]]:
    """Host (short name) → when the driver saw processes end, UTC ns."""
    ends: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.kind != "xid" or number(event, "xid") not in TEARDOWN or not event.host or id(event) not in walls:
            continue
        if (known := zones.of(event)) is not None:
            ends[short(event.host)].append(walls[id(event)] - known.east_ns)
    return ends


def _by_owner(owners: Mapping[str, str], found: Mapping[str, KnownZone]) -> dict[str, KnownZone]:
    """As the other job logs of this host, if these agree. `owners`: file → host."""
    easts: dict[str, set[int]] = defaultdict(set)
    for source, zone in found.items():
        if source in owners:
            easts[owners[source]].add(zone.east_ns)
    return {
        source: KnownZone(next(iter(easts[owner])), "as the other job logs of this host")
        for source, owner in owners.items()
        if source not in found and len(easts[owner]) == 1
    }
