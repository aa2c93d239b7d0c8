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

from nccl_forensics import catalog
from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.model import Event, Incident, InputRow
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
OF_PROGRAMS = frozenset({"host_oom_kill", "process_signal", "preempted"})
"""Causes of other families that programs or people bring about."""
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
    """`events` are aligned. None where no host's log covers a week and tells how many cards it has.

    A host's log covers the time from its first to its last event: lines that tell nothing have no time here.
    """
    of_hosts = {r.path for r in rows if r.format in HOST_FORMATS}
    logged: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.host and event.evidence.source in of_hosts and event.time_ns and moments.is_dated(event.time_ns):
            logged[event.host].append(event)
    spans: dict[str, tuple[int, int]] = {}
    for host, lines in logged.items():
        times = [e.time_ns for e in lines if e.time_ns is not None]
        if known.gpus.get(host) and max(times) - min(times) >= LEAST_H * HOUR_NS:
            spans[host] = (min(times), max(times))
    if not spans:
        return None
    hours = {host: (last - first) / HOUR_NS for host, (first, last) in spans.items()}
    failures = sorted(
        (f for host in spans for f in _failures(host, logged[host])), key=lambda f: (f.event.time_ns or 0, f.host)
    )
    gpu_hours = sum(hours[h] * len(known.gpus[h]) for h in spans)
    low, high = interval(len(failures), SURE)
    return Rates(
        since_ns=min(first for first, _ in spans.values()),
        until_ns=max(last for _, last in spans.values()),
        hosts=len(spans),
        gpus=sum(len(known.gpus[h]) for h in spans),
        gpu_hours=gpu_hours,
        failures=tuple(failures),
        expected=gpu_hours / HOURS_PER_FAILURE,
        low=low,
        high=high,
        offenders=tuple(_offenders(failures, hours, known)),
    )


def _figure(value: float) -> str:
    """Two figures that count: '0.16', '4.2', '55'."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _failures(host: str, lines: Iterable[Event]) -> Iterator[Failure]:
    faults = sorted((e for e in lines if e.role == "cause" and _of_machines(e)), key=lambda e: e.time_ns or 0)
    last: int | None = None
    for fault in faults:
        at = fault.time_ns or 0
        if last is None or at - last > APART_NS:
            yield Failure(event=fault, host=host, gpu_pci=fault.gpu_pci)
        last = at


def with_offenders(incidents: Sequence[Incident], found: Rates | None) -> tuple[Incident, ...]:
    """The incidents, with a contributing row for each card or host they blame that fails again and again."""
    if found is None or not found.offenders:
        return tuple(incidents)
    made = []
    for incident in incidents:
        verdict = incident.verdict
        cards = {(g.host, g.pci) for g in verdict.gpus}
        rows: list[Mapping[str, object]] = []
        for one in found.offenders:
            blamed = one.host in verdict.hosts if one.gpu_pci is None else (one.host, one.gpu_pci) in cards
            if blamed and verdict.status != "undetermined":
                last = next(
                    f for f in reversed(found.failures) if one.gpu_pci in (None, f.gpu_pci) and f.host == one.host
                )
                place = last.event.evidence
                row = {"cause": verdict.cause, "kind": "repeat-offender", "says": one.says + "."}
                rows.append({**row, "source": place.source, "line": place.line})
        made.append(replace(incident, contributing=(*incident.contributing, *rows)) if rows else incident)
    return tuple(made)


def _of_machines(fault: Event) -> bool:
    """Is it a fault of a machine, not of a program that runs there? A program's bug follows the program."""
    cause = catalog.load("causes").get(fault.cause or "")
    return cause is None or (cause["family"] != "program" and fault.cause not in OF_PROGRAMS)


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


def _offenders(failures: Sequence[Failure], hours: Mapping[str, float], known: Identities) -> Iterator[Offender]:
    """Cards first, then hosts whose failures are not those of one such card."""
    cards = {(h, g.pci): t for h, t in hours.items() for g in known.gpus[h] if g.pci}
    of_cards = [(f.host, f.gpu_pci) for f in failures if f.gpu_pci and (f.host, f.gpu_pci) in cards]
    named: set[str] = set()
    for (host, pci), count, q in _more_than_their_share(of_cards, cards):
        named.add(host)
        says = say(
            "GPU {gpu} of {host} was the first to fail in {n} of the {all} failures of a GPU",
            gpu=pci,
            host=host,
            n=count,
            all=len(of_cards),
        )
        yield Offender(host=host, gpu_pci=pci, failures=count, q=q, says=says)
    for host, count, q in _more_than_their_share([f.host for f in failures], hours):
        if host not in named:
            says = say("{host} had {n} of the {all} failures", host=host, n=count, all=len(failures))
            yield Offender(host=host, gpu_pci=None, failures=count, q=q, says=says)


def _more_than_their_share(failed: Sequence[Who], hours: Mapping[Who, float]) -> list[tuple[Who, int, float]]:
    """(who, failures, q) of those that failed more often than their hours explain; the surest first."""
    counts = Counter(failed)
    whole = sum(hours.values())
    chances = {who: at_least(counts[who], len(failed), part / whole) for who, part in hours.items()}
    sure = dict(zip(chances, adjusted(list(chances.values())), strict=True))
    found = [(who, count, sure[who]) for who, count in counts.items() if count > 1 and sure[who] <= 1 - SURE]
    return sorted(found, key=lambda x: (x[2], -x[1]))
