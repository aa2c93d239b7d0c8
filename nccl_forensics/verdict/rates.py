"""How often machines fail against what their size makes one expect, and who fails again and again.

One incident tells what broke; weeks of a host's logs tell whether that is bad luck or a bad card. Times are on the
reference clock. docs/reasoning.md tells how the figures are made.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from nccl_forensics.catalog import causes_marked
from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.model import Event, Gpu, Incident, InputRow, Verdict
from nccl_forensics.text import moments, phrases
from nccl_forensics.text.messages import say
from nccl_forensics.who.identities import Identities

Who = TypeVar("Who", bound=Hashable)
HOUR_NS = 3600 * 10**9
LEAST_H = 7 * 24.0
"""Hours of a host's log: in less, a failure says nothing about how often. Our judgement."""
APART_NS = HOUR_NS
"""Lines of faults of one host that are closer than this are of one failure: 79, its followers, and the reboot after it.
Our judgement."""
HOURS_PER_FAILURE = 50_677
"""GPU-hours: 419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, 2024, section 3.3.4,
table 5). They count hosts, network and software as well, so a machine's own faults should be rarer."""
SURE = 0.95
"""Of the interval; 1 - SURE is the share of false names among the repeat offenders (Benjamini and Hochberg, 1995)."""
OF_PROGRAMS = causes_marked("of-the-program")
"""Causes that programs or people bring about."""
MOST_FAILURES = 100
"""Failures that are listed; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure of a host: its first line, and the card that it named first, if any."""

    event: Event
    host: str
    gpu_pci: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offender:
    """A host, or a card of it, that fails more often than chance would have one of as many do."""

    host: str
    gpu_pci: str | None
    failures: int
    q: float
    """Share of false names that one accepts with this one (adjusted p value)."""
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    since_ns: int
    until_ns: int
    hosts: int
    gpus: int
    gpu_hours: float
    failures: tuple[Failure, ...]
    expected: float
    """Failures that a large cluster would have had in as many GPU-hours."""
    low: float
    high: float
    """Interval of the mean of which `len(failures)` was drawn (Poisson, exact, `SURE`)."""
    offenders: tuple[Offender, ...]

    @property
    def says(self) -> str:
        days = round((self.until_ns - self.since_ns) / (24 * HOUR_NS))
        told = say(
            "{failures} in {days} on {gpus}, {hours} GPU-hours of logs; a large cluster has {expected} in as many (one "
            "in {each} GPU-hours).",
            failures=phrases.count(len(self.failures), "failure"),
            days=phrases.count(days, "day"),
            gpus=phrases.count(self.gpus, "GPU"),
            hours=f"{self.gpu_hours:,.0f}",
            expected=_figure(self.expected),
            each=f"{HOURS_PER_FAILURE:,}",
        )
        sure = f"{100 * SURE:.0f} %"
        low, high = self.low / self.expected, self.high / self.expected
        if low > 1:
            verdict = say(
                " That is {low} to {high} times as often, with a certainty of {sure}.",
                low=_figure(low),
                high=_figure(high),
                sure=sure,
            )
        elif high < 1:
            verdict = say(" That is less often, with a certainty of {sure}.", sure=sure)
        else:
            verdict = say(" That can be chance.")
        return told + verdict


def rates(events: Sequence[Event], rows: Sequence[InputRow], known: Identities) -> Rates | None:
    """`events` are aligned. None where no host's log covers a week and tells how many cards it has."""
    watched = _watched(events, rows, known)
    if not watched:
        return None
    failures = [failure for host in watched for failure in _failures(host)]
    failures.sort(key=lambda f: (f.event.time_ns or 0, f.host))
    gpu_hours = sum(host.hours * len(host.gpus) for host in watched)
    low, high = interval(len(failures), SURE)
    return Rates(
        since_ns=min(host.since_ns for host in watched),
        until_ns=max(host.until_ns for host in watched),
        hosts=len(watched),
        gpus=sum(len(host.gpus) for host in watched),
        gpu_hours=gpu_hours,
        failures=tuple(failures),
        expected=gpu_hours / HOURS_PER_FAILURE,
        low=low,
        high=high,
        offenders=tuple(_offenders(failures, watched)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """A host whose log is long enough to say how often it fails.

    It covers the time from its first to its last event: lines that tell nothing have no time here.
    """

    name: str
    gpus: tuple[Gpu, ...]
    since_ns: int
    until_ns: int
    events: Sequence[Event]

    @property
    def hours(self) -> float:
        return (self.until_ns - self.since_ns) / HOUR_NS


def _watched(events: Iterable[Event], rows: Iterable[InputRow], known: Identities) -> list[_Watched]:
    found = []
    for name, dated in _dated_by_host(events, rows).items():
        since_ns, until_ns = min(t for t, _ in dated), max(t for t, _ in dated)
        gpus = known.gpus.get(name, ())
        if gpus and until_ns - since_ns >= LEAST_H * HOUR_NS:
            lines = [event for _, event in dated]
            found.append(_Watched(name=name, gpus=gpus, since_ns=since_ns, until_ns=until_ns, events=lines))
    return found


def _dated_by_host(events: Iterable[Event], rows: Iterable[InputRow]) -> dict[str, list[tuple[int, Event]]]:
    """Host → (time, event) of the lines in hosts' own files that have a real time."""
    of_hosts = {r.path for r in rows if r.format in HOST_FORMATS}
    found: dict[str, list[tuple[int, Event]]] = defaultdict(list)
    for event in events:
        at = event.time_ns
        if event.host and at is not None and moments.is_dated(at) and event.evidence.source in of_hosts:
            found[event.host].append((at, event))
    return found


def _figure(value: float) -> str:
    """Two figures that count: '0.16', '4.2', '55'."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _failures(host: _Watched) -> Iterator[Failure]:
    faults = sorted((e for e in host.events if e.role == "cause" and _of_machines(e)), key=lambda e: e.time_ns or 0)
    last: int | None = None
    for fault in faults:
        at = fault.time_ns or 0
        if last is None or at - last > APART_NS:
            yield Failure(event=fault, host=host.name, gpu_pci=fault.gpu_pci)
        last = at


def with_offenders(incidents: Sequence[Incident], found: Rates | None) -> tuple[Incident, ...]:
    """The incidents, with a contributing row for each card or host they blame that fails again and again."""
    if found is None or not found.offenders:
        return tuple(incidents)
    return tuple(
        replace(one, contributing=(*one.contributing, *_repeats(one.verdict, found)))
        if one.verdict.status != "undetermined"
        else one
        for one in incidents
    )


def _repeats(verdict: Verdict, found: Rates) -> Iterator[Mapping[str, object]]:
    """A row for each repeat offender that this verdict blames, with the line of its last failure."""
    for one in found.offenders:
        if _blames(verdict, one):
            mine = (f for f in reversed(found.failures) if f.host == one.host and one.gpu_pci in (None, f.gpu_pci))
            place = next(mine).event.evidence
            yield {
                "cause": verdict.cause,
                "kind": "repeat-offender",
                "says": one.says + ".",
                "source": place.source,
                "line": place.line,
            }


def _blames(verdict: Verdict, one: Offender) -> bool:
    if one.gpu_pci is None:
        return one.host in verdict.hosts
    return (one.host, one.gpu_pci) in {(g.host, g.pci) for g in verdict.gpus}


def _of_machines(fault: Event) -> bool:
    """Is it a fault of a machine, not of a program that runs there? A program's bug follows the program."""
    return fault.cause not in OF_PROGRAMS


def interval(count: int, sure: float) -> tuple[float, float]:
    """The means of a Poisson distribution from which `count` is not too rare a draw: exact (Garwood, 1936)."""
    tail = (1 - sure) / 2
    low = _crossing(lambda mean: 1 - _at_most(count - 1, mean), tail, count) if count else 0.0
    high = _crossing(lambda mean: -_at_most(count, mean), -tail, count)
    return low, high


def _at_most(count: int, mean: float) -> float:
    """P(X <= count) of a Poisson distribution."""
    if mean <= 0:
        return 1.0
    return min(1.0, math.fsum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1)))


def _crossing(rising: Callable[[float], float], level: float, near: int) -> float:
    """Where a rising function of a mean reaches `level`."""
    low, high = 0.0, near + 10 * math.sqrt(near + 1) + 10
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return (low + high) / 2


def at_least(count: int, draws: int, share: float) -> float:
    """P(X >= count) of a binomial distribution: so many of all failures, where `share` would be its part."""
    if count <= 0 or share >= 1:
        return 1.0
    if share <= 0:
        return 0.0
    whole = 0.0
    for n in range(count, draws + 1):
        term = math.exp(
            math.lgamma(draws + 1)
            - math.lgamma(n + 1)
            - math.lgamma(draws - n + 1)
            + n * math.log(share)
            + (draws - n) * math.log1p(-share)
        )
        whole += term
        if n > draws * share and term < whole * 1e-12:  # they only fall from here on
            break
    return min(1.0, whole)


def adjusted(chances: Sequence[float]) -> list[float]:
    """p values → q values that hold the share of false discoveries (Benjamini and Hochberg, 1995), in their order."""
    order = sorted(range(len(chances)), key=lambda n: chances[n])
    made = [1.0] * len(chances)
    least = 1.0
    for place in range(len(order), 0, -1):
        n = order[place - 1]
        least = min(least, chances[n] * len(chances) / place)
        made[n] = least
    return made


def _offenders(failures: Sequence[Failure], watched: Sequence[_Watched]) -> Iterator[Offender]:
    """Cards first, then hosts whose failures are not those of one such card."""
    cards = list(_cards_that_fail_again(failures, watched))
    yield from cards
    named = {card.host for card in cards}
    hours = {host.name: host.hours for host in watched}
    for host, count, q in _more_than_their_share([f.host for f in failures], hours):
        if host not in named:
            says = say("{host} had {n} of the {all} failures", host=host, n=count, all=len(failures))
            yield Offender(host=host, gpu_pci=None, failures=count, q=q, says=says)


def _cards_that_fail_again(failures: Sequence[Failure], watched: Sequence[_Watched]) -> Iterator[Offender]:
    hours = {(host.name, gpu.pci): host.hours for host in watched for gpu in host.gpus if gpu.pci}
    failed = [(f.host, f.gpu_pci) for f in failures if f.gpu_pci and (f.host, f.gpu_pci) in hours]
    for (host, pci), count, q in _more_than_their_share(failed, hours):
        says = say(
            "GPU {gpu} of {host} was the first to fail in {n} of the {all} failures of a GPU",
            gpu=pci,
            host=host,
            n=count,
            all=len(failed),
        )
        yield Offender(host=host, gpu_pci=pci, failures=count, q=q, says=says)


def _more_than_their_share(failed: Sequence[Who], hours: Mapping[Who, float]) -> list[tuple[Who, int, float]]:
    """(who, failures, q) of those that failed more often than their hours explain; the surest first."""
    counts = Counter(failed)
    whole = sum(hours.values())
    chances = {who: at_least(counts[who], len(failed), part / whole) for who, part in hours.items()}
    sure = dict(zip(chances, adjusted(list(chances.values())), strict=True))
    found = [(who, count, sure[who]) for who, count in counts.items() if count > 1 and sure[who] <= 1 - SURE]
    return sorted(found, key=lambda x: (x[2], -x[1]))
