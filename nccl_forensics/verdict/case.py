"""All that is known when the causes are weighed."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from nccl_forensics.catalog import kinds_marked, weight
from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.model import Detail, Event, Evidence, InputRow, Reconstruction, number
from nccl_forensics.names import short
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import is_dated
from nccl_forensics.verdict.timing import IN_TIME, Failure, Timing, Timings
from nccl_forensics.when.aligned import Aligned, clock_of_dumps
from nccl_forensics.who.identities import Identities

DETECTED = kinds_marked("notices")
"""Lines by which the job itself noticed."""
JOB_KINDS = kinds_marked("of-failure")
"""Lines that a failing training job writes, as against a kernel."""

MAY_PASS = kinds_marked("may-pass")
"""Waits that may yet end."""

T = TypeVar("T")


def _handled(event: Event) -> bool:
    """An exception that was caught or ignored is no failure of the job."""
    return event.kind in ("python-exception", "cuda-oom") and event.role == "context"


def _strings(event: Event, key: str) -> tuple[str, ...]:
    found = event.details.get(key)
    return tuple(str(x) for x in found) if isinstance(found, tuple) else ()


@dataclass(slots=True)
class Used:
    """What NCCL uses of one host's network."""

    adapters: dict[str, Event] = field(default_factory=dict)
    """Adapter with RDMA → the first line that says so."""
    interfaces: set[str] = field(default_factory=set)
    """Of sockets, or out of band beside RDMA."""


@dataclass(frozen=True)
class Case:
    """All that is known when the causes are weighed."""

    events: tuple[Event, ...]
    known: Identities
    collectives: Reconstruction
    aligned: Aligned
    rows: tuple[InputRow, ...] = ()

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Kind → where its events stand in `events`."""
        found: dict[str, list[int]] = {}
        for place, event in enumerate(self.events):
            found.setdefault(event.kind, []).append(place)
        return found

    @cached_property
    def _known(self) -> dict[object, Any]:
        """What `of`, `on` and `once` have answered before."""
        return {}

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """The events of these kinds, in the order of `events`."""
        found: tuple[Event, ...] | None = self._known.get(kinds)
        if found is None:
            places = sorted(place for kind in set(kinds) for place in self._places.get(kind, ()))
            found = self._known[kinds] = tuple(self.events[place] for place in places)
        return found

    def on(self, host: str | None, *kinds: str) -> tuple[Event, ...]:
        """The events of these kinds whose host is written exactly so, in the order of `events`."""
        by_host: dict[str | None, list[Event]] | None = self._known.get(("on", kinds))
        if by_host is None:
            by_host = self._known["on", kinds] = {}
            for event in self.of(*kinds):
                by_host.setdefault(event.host, []).append(event)
        return tuple(by_host.get(host, ()))

    def once(self, function: Callable[[Case], T]) -> T:
        """What this function of a case says of this one, worked out once."""
        if function not in self._known:
            self._known[function] = function(self)
        found: T = self._known[function]
        return found

    @cached_property
    def job(self) -> bool:
        """Does the pile hold a trace of a training job that failed?"""
        return any(
            e.kind in JOB_KINDS
            and not _handled(e)
            and e.evidence.source not in self.of_hosts
            and not (e.kind in MAY_PASS and self.went_on(e))
            for e in self.events
        ) or bool(self.collectives.suspects or (self.collectives.groups and not self.collectives.healthy))

    @cached_property
    def has_job_log(self) -> bool:
        """Is there a job's log in the pile, whether or not it tells of a failure?"""
        return any(r.format == "job-log" and r.status in ("read", "partial") for r in self.rows)

    @cached_property
    def whole(self) -> bool:
        """Are all ranks of the job in the table, each with its host?

        As many as a log states, or as the widest communicator has; and where ranks wait, who is waited for is one of
        them: otherwise the logs may be those of one group of a larger job.
        """
        known = self.known
        if known.world_size is None or known.disputed or len(known.ranks) < known.world_size:
            return False
        if any(p.host is None for p in known.ranks.values()):
            return False
        awaited = [s for s in self.collectives.suspects if s.ranks and known.ranks.keys() >= set(s.ranks)]
        return bool(awaited) or not self.of("watchdog-timeout")

    @cached_property
    def nccl_used(self) -> Mapping[str, Used]:
        """Short name of a host → what NCCL's own lines there say that it uses of the network."""
        found: dict[str, Used] = {}
        for event in self.of("nccl-ports"):
            used = found.setdefault(short(event.host or ""), Used())
            for port in _strings(event, "ports"):
                used.adapters.setdefault(port.rsplit(":", 1)[0], event)
            used.interfaces.update(_strings(event, "interfaces"))
        return found

    @cached_property
    def _job_hosts(self) -> frozenset[str]:
        """Short names of the hosts that a rank's place, or what a job wrote, ties to the job."""
        placed = (place.host for place in self.known.ranks.values())
        wrote = (e.host for e in self.events if e.evidence.source not in self.of_hosts)
        logged = (r.host for r in self.rows if r.format == "job-log")
        return frozenset(short(host) for host in chain(placed, wrote, logged) if host)

    @property
    def hosts_are_known(self) -> bool:
        """Is any host known to be of the job?"""
        return bool(self._job_hosts)

    def is_of_the_job(self, host: str) -> bool:
        """Does anything tie this host to the job: a rank, a line of the job, the user's word?"""
        return self.known.stated or short(host) in self._job_hosts

    @cached_property
    def of_hosts(self) -> frozenset[str]:
        """Files that a host wrote, as against a job."""
        return frozenset(r.path for r in self.rows if r.format in HOST_FORMATS)

    @cached_property
    def _steps(self) -> list[int]:
        """When the job ended a training step before its ranks began to wait, sorted."""
        onset = self.onset_ns if self.onset_ns is not None else self.detected.time_ns if self.detected else None
        if onset is None:
            return []
        steps = (e for e in self.of("progress") if e.details.get("step") is not None)
        return sorted(e.time_ns for e in steps if e.time_ns is not None and e.time_ns <= onset)

    @cached_property
    def _starts(self) -> list[int]:
        return sorted(e.time_ns for e in self.of(*STARTS_ANEW) if e.time_ns is not None)

    @cached_property
    def _marks(self) -> dict[str, list[tuple[int, Detail]]]:
        """Source → (line, step; None where a run starts or ends), by line."""
        found: dict[str, list[tuple[int, Detail]]] = {}
        for event in self.of("progress", *STARTS_ANEW):
            step = event.details.get("step") if event.kind == "progress" else None
            if event.evidence.line is not None and (event.kind != "progress" or step is not None):
                found.setdefault(event.evidence.source, []).append((event.evidence.line, step))
        for marks in found.values():
            marks.sort(key=lambda x: x[0])
        return found

    def went_on(self, event: Event) -> bool:
        """Do two further steps stand behind this line in its own file? One can have been under way."""
        line = event.evidence.line
        if line is None or event.evidence.source in self.of_hosts:
            return False
        steps: set[Detail] = set()
        marks = self._marks.get(event.evidence.source, [])
        for _, step in marks[bisect.bisect_right(marks, line, key=lambda x: x[0]) :]:
            if step is None or len(steps) > 1:
                break
            steps.add(step)
        return len(steps) > 1

    @cached_property
    def detected(self) -> Event | None:
        """The first line, in time, by which the job itself noticed; by file order where no line has a time."""
        found = [e for e in self.events if e.kind in DETECTED]
        timed = [e for e in found if e.time_ns is not None]
        sure = [e for e in timed if e.kind != "python-exception"] or timed
        return min(sure, key=lambda e: e.time_ns or 0) if sure else next(iter(found), None)

    @cached_property
    def onset_ns(self) -> int | None:
        """When the first waiter began to wait, on the reference clock."""
        return min((*self._arrivals, *self._told_starts), default=None)

    @property
    def _arrivals(self) -> Iterator[int]:
        """When the first waiter entered, as the group tells in which all wait."""
        yield from (g.first_arrival_ns for g in self.collectives.groups[:1] if g.first_arrival_ns is not None)

    @property
    def _told_starts(self) -> Iterator[int]:
        """When waits began by what their lines tell; none where dumps tell it on a clock that nothing ties to them."""
        dumped = self._dumped
        for event in self.of("watchdog-timeout"):
            waited_ms = number(event, "waited_ms")
            if event.time_ns is None or waited_ms is None:
                continue
            if dumped is None or len(self.aligned.apart(event, dumped)) == 1:
                yield event.time_ns - waited_ms * 1_000_000

    @cached_property
    def _timings(self) -> Timings:
        own = [
            e.time_ns
            for e in self.events
            if e.time_ns is not None and is_dated(e.time_ns) and e.evidence.source not in self.of_hosts
        ]
        span_ns = (min(own), max(own)) if own else None
        return Timings(self.aligned, tuple(self._failures), self._steps, self._starts, self.of_hosts, span_ns)

    @property
    def _failures(self) -> Iterator[Failure]:
        """The job's failure as its logs and its dumps tell it: one, unless nothing ties their clocks."""
        seen, dumped = self.detected, self._dumped
        if seen is not None and seen.time_ns is not None:
            tied = dumped is None or len(self.aligned.apart(seen, dumped)) == 1
            onset_ns = self.onset_ns if tied else None
            yield Failure(seen, seen.time_ns, onset_ns if onset_ns is not None else seen.time_ns)
            if tied:
                return
        if dumped is not None and dumped.time_ns is not None and self.onset_ns is not None:
            yield Failure(dumped, dumped.time_ns, self.onset_ns)

    @property
    def has_dumps(self) -> bool:
        """Do dumps tell when the first waiter entered?"""
        return self._dumped is not None

    @cached_property
    def _dumped(self) -> Event | None:
        """Where dumps alone tell: when the wait that they show had lasted as long as it may, on their clocks (UTC)."""
        group = next(iter(self.collectives.groups), None)
        if group is None or group.first_arrival_ns is None:
            return None
        calls = [c for c in self.collectives.counters if c.last_created_ns is not None]
        if not calls:
            return None
        newest = max(calls, key=lambda c: c.last_created_ns or 0)
        ended_ns = group.first_arrival_ns + (group.timeout_ms or 0) * 1_000_000
        return Event(
            kind="flight-recorder-dump",
            role="context",
            evidence=Evidence(source=newest.source or "", line=None, text=""),
            rank=newest.rank,
            host=newest.host,
            time_ns=max(ended_ns, newest.last_created_ns or 0),
            clock=clock_of_dumps(newest.host),
            uncertainty_ns=1_000_000,
            time_basis="stamp",
        )

    def timing(self, event: Event) -> Timing:
        """When this event came relative to the job's failure; `IN_TIME` if there is no job."""
        if not self.job:
            return IN_TIME
        if event.time_basis != "stamp" and self.went_on(event):
            return weight("long_before"), say("the job made further steps after it")
        return self._timings.of(event)

    def order_is_shown(self, event: Event) -> bool:
        """Do the clocks show when this came, if it is to be why the job stopped? True where there is no job."""
        return not self.job or self._timings.is_shown(event)


ONE_START = 25
"""Lines within which several boot messages belong to one start. Our judgement."""
STARTS_ANEW = tuple(sorted(kinds_marked("parts-starts")))
"""Lines between a fault and a step that show two runs or attempts."""


def listed(event: Event) -> tuple[int, ...]:
    """The ranks that a line lists, whoever wrote it."""
    ranks = event.details.get("ranks")
    return tuple(r for r in ranks if isinstance(r, int)) if isinstance(ranks, tuple) else ()


def ranks_of(event: Event) -> tuple[int, ...]:
    """The ranks that a launcher's line is about: one, those that it lists, or () where it names none."""
    return (event.rank,) if event.rank is not None else listed(event)


def at(event: Event) -> int:
    """For sorting and gaps inside one host: reference time, else uptime, else 0."""
    if event.time_ns is not None:
        return event.time_ns
    return event.stamp.boot_ns if event.stamp is not None and event.stamp.boot_ns is not None else 0
