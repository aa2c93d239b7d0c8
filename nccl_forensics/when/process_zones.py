"""Zones of hosts' own logs, and how far they are from those of jobs, by processes that both name.

The kernel tells of a process by its id: killed for want of memory, its channel on a GPU torn down, a fault of its own.
The job's log tells when the process with that id began and ended on that host. The one zone in which the kernel's
lines fall within the process's life is the host's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.lines.stamps import IN_USE_S
from nccl_forensics.model import Event, InputRow, number
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.drift import Drift
from nccl_forensics.when.job_zones import TEARDOWN_S
from nccl_forensics.when.zones import TEARDOWN, KnownZone, Zones, is_of_host

ENDS = frozenset({"oom-constraint", "oom-killed", "oom-reaper"})
"""Lines of the kernel about the end of a process, besides Xids in `TEARDOWN`."""
NOTICED_S = 300
"""A process ends up to so long before its launcher tells it: one that waits for its GPU, or for its dump. Our
judgement."""
LEAST_PID = 300
"""Ids up to here are those of the kernel's own threads, and of a container's processes. Our judgement."""
Process = tuple[str, int]
"""Short name of a host, and the process's id there."""


@dataclass(slots=True)
class _Life:
    """When a process lived, by lines of jobs' logs; ns, on the clock as read."""

    first: Event
    first_ns: int
    last_ns: int
    ended: bool
    """A line tells its end."""

    def fits(self, at_ns: int, bar_ns: int, *, is_end: bool) -> bool:
        """Can the kernel have told of it then, give or take `bar_ns`?"""
        begin_ns = self.last_ns - NOTICED_S * SECOND if is_end and self.ended else self.first_ns - TEARDOWN_S * SECOND
        return begin_ns - bar_ns <= at_ns <= self.last_ns + TEARDOWN_S * SECOND + bar_ns


_Lives = Mapping[Process, _Life]


@dataclass(frozen=True, slots=True)
class Tie:
    """How far the zone of a host's own log is from that of a job's log, where neither is known."""

    of_host: Event
    """A line of each."""
    of_job: Event
    apart_ns: int
    """(Zone of the host's log) - (zone of the job's)."""


def zones_of_processes(
    events: Sequence[Event],
    walls: Mapping[int, int],
    rows: Mapping[str, InputRow],
    zones: Zones,
    drifts: Mapping[int, Drift],
) -> tuple[dict[str, KnownZone], list[Tie]]:
    """(Host → its zone, by job logs of known zones; ties to job logs of zones that are not known).

    `walls`: id(event) → its written wall time, ns; `drifts`: id(event) → how far `dmesg -T` is off.
    """
    named: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.host is None or event.stamp is None or not _names_a_process(event, walls):
            continue
        if is_of_host(event, rows) and event.stamp.zone_s is None and zones.of(event) is None:
            named[short(event.host)].append(event)
    if not named:
        return {}, []
    known, unknown = _lives([e for e in events if not is_of_host(e, rows)], walls, zones)
    found: dict[str, KnownZone] = {}
    ties: list[Tie] = []
    for host, lines in named.items():
        bars = {id(line): drifts[id(line)].bar_ns for line in lines if id(line) in drifts}
        line, east_ns = _east(host, lines, walls, bars, known) or (lines[0], None)
        if east_ns is not None:
            why = f"in that zone the kernel names process {line.pid} while the job's log says that it ran"
            found[host] = KnownZone(east_ns, why)
            continue
        for lives in unknown.values():
            line, apart_ns = _east(host, lines, walls, bars, lives) or (lines[0], None)
            if apart_ns is not None and line.pid is not None:
                ties.append(Tie(line, lives[host, line.pid].first, apart_ns))
    return found, ties


def _names_a_process(event: Event, walls: Mapping[int, int]) -> bool:
    wall_ns = walls.get(id(event))
    return event.pid is not None and event.pid > LEAST_PID and wall_ns is not None and is_dated(wall_ns)


def _lives(
    events: Iterable[Event], walls: Mapping[int, int], zones: Zones
) -> tuple[_Lives, Mapping[str, dict[Process, _Life]]]:
    """(Those that are told on clocks of known zones, in UTC; by file those that are not)."""
    known: dict[Process, _Life] = {}
    unknown: dict[str, dict[Process, _Life]] = defaultdict(dict)
    for event in events:
        if event.host is None or event.pid is None or event.stamp is None or not _names_a_process(event, walls):
            continue
        source = event.evidence.source
        zone = zones.of_files.get(source)
        at_ns = walls[id(event)]
        if event.stamp.zone_s is not None:
            lives, at_ns = known, at_ns - event.stamp.zone_s * SECOND
        elif zone is not None:
            lives, at_ns = known, at_ns - zone.east_ns
        else:
            lives = unknown[source]
        _add(lives, (short(event.host), event.pid), event, at_ns)
    return known, unknown


def _add(lives: dict[Process, _Life], process: Process, event: Event, at_ns: int) -> None:
    ends = event.kind == "exit"
    life = lives.get(process)
    if life is None:
        lives[process] = _Life(event, at_ns, at_ns, ends)
        return
    if at_ns < life.first_ns:
        life.first, life.first_ns = event, at_ns
    life.last_ns = max(life.last_ns, at_ns)
    life.ended |= ends


def _east(
    host: str, lines: Iterable[Event], walls: Mapping[int, int], bars: Mapping[int, int], lives: _Lives
) -> tuple[Event, int] | None:
    """(A line, the zone) if one zone in use, ns east, and no other, lets all lines about these processes fit."""
    fits: set[int] | None = None
    telling: Event | None = None
    for line in lines:
        life = lives.get((host, line.pid or 0))
        if life is None:
            continue
        at_ns, bar_ns, is_end = walls[id(line)], bars.get(id(line), 0), _tells_an_end(line)
        own = {s * SECOND for s in IN_USE_S if life.fits(at_ns - s * SECOND, bar_ns, is_end=is_end)}
        if own:  # else another process had that id on another day
            fits = own if fits is None else fits & own
            telling = telling or line
    if telling is None or fits is None or len(fits) != 1:
        return None
    return telling, fits.pop()


def _tells_an_end(event: Event) -> bool:
    return event.kind in ENDS or (event.kind == "xid" and number(event, "xid") in TEARDOWN)
