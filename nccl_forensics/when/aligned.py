"""All events on one clock, and what may be said about their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from nccl_forensics.model import LOG_BEGINS, ClockRow, Event, InputRow
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.belief import CERTAIN, SHOWN, Beliefs, Chances

if TYPE_CHECKING:
    from nccl_forensics.when.jumps import Step
    from nccl_forensics.when.offsets import Offsets


UNCOMPARED_S = 300
"""How far two clocks may differ that nothing in the pile compares: what Kerberos (`clockskew`) and Slurm's munge
(its credentials' life) put up with by default, so that a cluster beyond it is noticed."""


UNPROVED = " (zone not known)"
"""How the name of a clock ends whose zone nothing proves."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When the first and the last rank entered a collective, UTC ns, as dumps tell."""

    seq: int | None
    first_ns: int
    last_ns: int


def clock_of_dumps(whose: str | None) -> str:
    """The name of the clock by which a host's dumps are written, or a rank's."""
    return f"{whose}: clock of its dumps"


@dataclass(frozen=True)
class Aligned:
    events: tuple[Event, ...]
    """By reference time; those with none stand where their neighbours in the file put them."""
    clocks: tuple[ClockRow, ...]
    assumed: frozenset[str]
    """Clocks whose zone is only assumed: in UTC, until `apart` says how likely that is."""
    compared: frozenset[str] = frozenset()
    """Whose clocks (`whose`) are bound to the reference by what they have to do with each other."""
    steps: tuple[Step, ...] = ()
    """Clocks that were set while they wrote."""
    offsets: Offsets | None = None
    """By how much clocks differ; None: there is only one."""
    beliefs: Beliefs = field(default_factory=Beliefs)
    """How likely other zones are than those that the times were read in."""
    asides: tuple[Event, ...] = ()
    """Lines that are no events, with their times: kinds 'log-begins' (the first of a kernel's log) and 'alarm'."""

    @cached_property
    def begins(self) -> Mapping[str, Event]:
        """Kernel's log → its first line with a time."""
        return {line.evidence.source: line for line in self.asides if line.kind == LOG_BEGINS}

    def whose(self, event: Event) -> str:
        """The clock behind a stamp: that of its host; of its file where the host isn't known."""
        return whose_clock(event, self.beliefs.is_proved(event.clock))

    def apart(self, a: Event, b: Event) -> Chances:
        """By how much (time of `a`) - (time of `b`) may be wrong by zones, and how likely: to be taken off."""
        if self.whose(a) in self.compared and self.whose(b) in self.compared:
            return SHOWN
        return self.beliefs.apart(self._read_on(a), self._read_on(b))

    def _read_on(self, event: Event) -> str | None:
        """The clock whose zone its time depends on: the reference if it was moved to that; None: one that is proved."""
        owner = self.whose(event)
        if owner not in self.compared or self.offsets is None or self.offsets.reference is None:
            return event.clock
        clock, unproved, _ = self.offsets.reference.rpartition(UNPROVED)
        return clock if unproved else None

    def slack_ns(self, a: Event, b: Event, apart_ns: int = 0) -> int:
        """How far their times must be apart for an order to be claimed, if zones are wrong by this. Both have one."""
        slack = self._slack_on_one_clock(a, b) if a.clock == b.clock else self._slack_between_clocks(a, b)
        if not self.steps or a.time_ns is None or b.time_ns is None:
            return slack
        times = a.time_ns - apart_ns, b.time_ns
        low, high = min(times), max(times)
        whose = {self.whose(a), self.whose(b), *(short(e.host) for e in (a, b) if e.host)}
        for step in self.steps:
            if a.clock == b.clock and not step.moment_known:
                continue
            reach = abs(step.by_ns)
            lies_between = low <= step.before_ns + reach and high >= step.after_ns - reach
            if lies_between and (not step.clock or step.clock in whose):
                slack += reach
        return slack

    def _slack_on_one_clock(self, a: Event, b: Event) -> int:
        """What its lines state needs none, unless one of them multiplies the uptime instead (`dmesg -T`)."""
        drifts = [e.stamp is not None and e.stamp.drifts for e in (a, b)]
        beside = any(drifts) and not (all(drifts) and a.evidence.source == b.evidence.source)
        return sum(e.uncertainty_ns or 0 for e in (a, b) if beside or e.time_basis != "stamp")

    def _slack_between_clocks(self, a: Event, b: Event) -> int:
        """Both error bars, and what two hosts may be apart by unless something watches both clocks."""
        mine, other = self.whose(a), self.whose(b)
        tied = mine in self.compared and other in self.compared
        slack = (a.uncertainty_ns or 0) + (b.uncertainty_ns or 0)
        watched = tied and self._watched(a, mine) and self._watched(b, other)
        of_one_host = a.host is not None and b.host is not None and short(a.host) == short(b.host)
        if mine != other and {mine, other} & self.compared:
            of_one_host = False  # one was moved to the reference, and by how much the other is off is not known
        if a.time_basis != "stamp" or b.time_basis != "stamp":
            of_one_host = False  # its neighbours need not be of the host that it speaks of
        if not watched and not of_one_host and not _written_so(a, b):
            slack += UNCOMPARED_S * SECOND
        return slack

    def _watched(self, event: Event, owner: str) -> bool:
        """Would it show if its clock had been set before it wrote this?"""
        if self.offsets is None or event.time_ns is None or (event.stamp is not None and event.stamp.drifts):
            return False
        return self.offsets.holds(owner, event.time_ns)

    def before(self, a: Event, b: Event) -> bool | None:
        """Did `a` happen before `b`? None when the error bars, or zones that nothing proves, leave it open."""
        if a.time_ns is None or b.time_ns is None:
            return None
        if a.clock != b.clock and is_dated(a.time_ns) != is_dated(b.time_ns):
            return None  # one of them has no year
        earlier = later = 0.0
        for apart_ns, chance in self.apart(a, b).items():
            gap_ns = a.time_ns - apart_ns - b.time_ns
            if abs(gap_ns) > self.slack_ns(a, b, apart_ns):
                earlier += chance if gap_ns < 0 else 0.0
                later += chance if gap_ns > 0 else 0.0
        if earlier >= CERTAIN:
            return True
        return False if later >= CERTAIN else None


def _written_so(a: Event, b: Event) -> bool:
    """Does one file, in which several hosts write, hold the two in the order of their times?"""
    place, other = a.evidence, b.evidence
    if place.source != other.source or place.line is None or other.line is None:
        return False
    assert a.time_ns is not None
    assert b.time_ns is not None
    return place.line != other.line and (place.line < other.line) == (a.time_ns < b.time_ns)


def whose_clock(event: Event, zone_is_proved: bool = True) -> str:
    """The clock behind a stamp: that of its host. Where nothing proves its zone, a host's own logs and those of jobs
    there can be hours apart, and each is compared by itself."""
    owner = short(event.host) if event.host else f"file {event.evidence.source}"
    return owner if zone_is_proved else f"{event.clock or owner}{UNPROVED}"


def ordered(events: Sequence[Event]) -> list[Event]:
    """By time; events without one stand behind the last timed event of their own file (or before the first)."""
    last: dict[str, int] = {}
    for event in reversed(events):
        if event.time_ns is not None:
            last[event.evidence.source] = event.time_ns
    keyed = []
    for number, event in enumerate(events):
        source = event.evidence.source
        if event.time_ns is not None:
            last[source] = event.time_ns
        at = last.get(source)
        keyed.append((at is None, at or 0, source, event.evidence.line or 0, number, event))
    keyed.sort(key=lambda x: x[:5])
    return [x[-1] for x in keyed]


def covered(rows: Sequence[InputRow], events: Sequence[Event]) -> list[InputRow]:
    """The rows with the times of the first and the last event that their files gave."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for event in events:
        if event.time_ns is not None:
            path = event.evidence.source
            first[path] = min(first.get(path, event.time_ns), event.time_ns)
            last[path] = max(last.get(path, event.time_ns), event.time_ns)
    return [replace(r, first_ns=first.get(r.path), last_ns=last.get(r.path)) for r in rows]
