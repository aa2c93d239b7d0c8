"""Single cards beside the logs: their heat, tests of them alone, the exporter's last Xid, and their error counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nccl_forensics.catalog import weight
from nccl_forensics.fields import NumberField
from nccl_forensics.model import Event, Finding, Gpu, number, text
from nccl_forensics.names import same_host
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import SECOND
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.evidence_rises import Look, largest_rise
from nccl_forensics.verdict.rules.evidence_subjects import (
    Card,
    Subjects,
    card_key,
    card_name,
    only_beside,
    told_apart,
)
from nccl_forensics.verdict.rules.host import other_matter

LASTING_S = 300
"""Five minutes: a shorter spell makes no rank minutes late. Our judgement."""


def _says_heat(event: Event) -> bool:
    if event.kind == "gpu-metric":
        return text(event, "metric") == "temperature_c"
    return event.kind in ("gpu-hot", "gpu-throttled", "smi-thermal") and event.role != "context"


@dataclass(frozen=True)
class _HotCard:
    """A card that was hot, and what makes that matter."""

    who: Subjects
    gpu: Gpu
    lines: Sequence[Event]
    like_its_neighbours: bool
    """Most GPUs of its host were hot: that sets none of them apart."""

    @property
    def without_a_job(self) -> bool:
        return not self.who.case.job

    @cached_property
    def rank(self) -> int | None:
        return self.who.rank(self.gpu)

    @cached_property
    def timing(self) -> tuple[float, str | None]:
        """What `Case.timing` says of the spell that is nearest to the failure."""
        case = self.who.case
        return max((case.timing(_until(case, event)) for event in self.lines), key=lambda timing: timing[0])

    @cached_property
    def lasting(self) -> bool:
        return any((number(event, "lasted_s") or 0) >= LASTING_S for event in self.lines)

    @cached_property
    def slows_its_rank(self) -> bool:
        """Is the very rank on this card late, and is heat of its own what sets it apart?"""
        if self.rank is None or self.rank not in self.who.late:
            return False
        in_time = self.timing[0] > -1
        apart = self.lasting and in_time and not self.like_its_neighbours
        return apart and not _explained(self.who.case, self.rank, self.gpu)

    @property
    def slowed_for_itself(self) -> bool:
        """Without any job: did it slow down for long, and not with its neighbours?"""
        throttled = any(event.kind == "gpu-throttled" for event in self.lines)
        return self.without_a_job and self.lasting and throttled and not self.like_its_neighbours

    @property
    def is_named(self) -> bool:
        return self.slows_its_rank or self.without_a_job

    def finding(self) -> Finding:
        shift, why = self.timing
        by_heat = weight(
            "hot_and_late" if self.slows_its_rank else "hot_alone" if self.slowed_for_itself else "hot_besides"
        )
        return Finding(
            cause="gpu_thermal",
            says=_heat(self.gpu, self.lines)
            + (say(" while its rank {rank} was late", rank=self.rank) if self.slows_its_rank else "")
            + phrases.aside(why)
            + (say(" – like most GPUs there") if self.like_its_neighbours else ""),
            weight=by_heat + shift,
            ranks=if_known(self.rank) if self.is_named else (),
            hosts=if_known(self.gpu.host) if self.is_named else (),
            gpus=told_apart([self.gpu]) if self.is_named else (),
            events=tuple(self.lines[:3]),
            onset_ns=self.lines[0].time_ns,
        )


def _until(case: Case, event: Event) -> Event:
    """The event at the part of its spell that is nearest to the failure."""
    lasted_s, onset = number(event, "lasted_s"), case.onset_ns
    if onset is None and case.detected is not None:
        onset = case.detected.time_ns
    if event.time_ns is None or lasted_s is None or onset is None:
        return event
    return replace(event, time_ns=max(event.time_ns, min(event.time_ns + lasted_s * SECOND, onset)))


def _explained(case: Case, rank: int, gpu: Gpu) -> bool:
    """Does some line of this matter state another cause on this rank, its card, or its host?"""
    for event in case.events:
        if event.role != "cause" or event.cause in (None, "gpu_thermal"):
            continue
        if other_matter(case, event):
            continue
        if event.rank == rank:
            return True
        here = event.host is not None and gpu.host is not None and same_host(event.host, gpu.host)
        if here and event.rank is None and event.gpu_pci in (None, gpu.pci):
            return True
    return False


def _highest(events: Sequence[Event], key: NumberField) -> int:
    return max((number(event, key) or 0 for event in events), default=0)


def _heat(gpu: Gpu, lines: Sequence[Event]) -> str:
    """'GPU 3 in node-a was above 90 °C for 12 min 0 s (up to 95 °C) and slowed down because of heat'."""
    hot = [e for e in lines if e.kind == "gpu-hot"]
    slow = [e for e in lines if e.kind in ("gpu-throttled", "smi-thermal")]
    parts: list[str] = []
    if hot:
        parts.append(
            say(
                "was above {limit_c} °C for {time} (up to {peak} °C)",
                limit_c=number(hot[0], "limit_c"),
                time=phrases.duration(_highest(hot, "lasted_s")),
                peak=_highest(hot, "peak_c"),
            )
        )
    if slow:
        lasted_s = _highest(slow, "lasted_s")
        parts.append(
            say("slowed down because of heat")
            + (say(" for {time}", time=phrases.duration(lasted_s)) if lasted_s else "")
        )
    if not parts:
        readings = [e for e in lines if text(e, "metric") == "temperature_c"]
        parts.append(say("was at {peak} °C", peak=_highest(readings, "value")))
    return card_name(gpu) + " " + phrases.listing(parts)


def _most_of_its_cards(case: Case, host: str | None, hot: int) -> bool:
    """Are so many hot cards most of those that files list on this host?"""
    listed = sum(len(cards) for name, cards in case.known.gpus.items() if name and host and same_host(name, host))
    return hot > 2 and hot * 2 > listed


@rule
def gpu_hot(case: Case) -> Iterator[Finding]:
    """Heat slows a card down. It counts where the slow card's rank is the late one and its neighbours are cooler."""
    who = case.once(Subjects.of)
    cards = who.cards(e for e in case.events if _says_heat(e))
    hot_there = Counter(host for host, _ in cards)
    hot = [
        _HotCard(who, gpu, lines, _most_of_its_cards(case, host, hot_there[host]))
        for (host, _), (gpu, lines) in cards.items()
    ]
    yield from (card.finding() for card in hot if card.is_named)
    aside = [card.finding() for card in hot if not card.is_named]
    if aside:
        first = max(aside, key=lambda f: f.weight)
        more = say("; {gpus} in the same way", gpus=phrases.count(len(aside) - 1, "more GPU")) if len(aside) > 1 else ""
        yield replace(first, says=first.says + more)


SPECIFIC_FIRST = ("gpu_off_bus", "gpu_memory", "nvlink", "pcie_link", "gpu_thermal", "gpu_other")
"""Of what one card fails in, the test that says most."""


def _how_specific(event: Event) -> int:
    return SPECIFIC_FIRST.index(event.cause) if event.cause in SPECIFIC_FIRST else len(SPECIFIC_FIRST)


@rule
def diagnostic_failed(case: Case) -> Iterator[Finding]:
    """A test of the card alone, made for this question, failed: DCGM's diagnostic, gpu-burn."""
    who = case.once(Subjects.of)
    cards = who.cards(e for e in case.of("dcgm-fail", "gpu-burn-faulty") if e.role == "cause" and e.cause)
    failed = [(host, gpu, sorted(lines, key=_how_specific)) for (host, _), (gpu, lines) in cards.items()]
    alike = Counter((host, lines[0].cause) for host, _, lines in failed)
    for host, gpu, lines in failed:
        first = lines[0]
        alone = alike[host, first.cause] == 1
        tests = list(dict.fromkeys(text(e, "test") or "gpu-burn" for e in lines))
        says = text(first, "says")
        yield Finding(
            cause=first.cause or "gpu_other",
            says=say("{name} failed {tests}", name=card_name(gpu), tests=phrases.listing(tests))
            + (f": {says[:140]}" if says else ""),
            weight=weight("diagnostic_failed"),
            ranks=if_known(who.rank(gpu)),
            hosts=if_known(gpu.host),
            gpus=told_apart([gpu]) if alone or gpu.pci else (),
            events=tuple(lines[:3]),
            detail="diagnostic",
        )


@rule
def exporter_keeps_last_xid(case: Case) -> Iterator[Finding]:
    """The exporter's gauge has the number of the last Xid only, from whenever; the kernel log would have the story."""
    who = case.once(Subjects.of)
    logged = {(number(e, "xid"), e.gpu_pci) for e in case.of("xid")}
    for gpu, lines in who.cards(e for e in case.of("exporter-xid") if e.role == "symptom").values():
        first = lines[0]
        if first.cause is not None and (number(first, "value"), gpu.pci) not in logged:
            yield _last_xid(who, gpu, first, first.cause)


def _last_xid(who: Subjects, gpu: Gpu, shown: Event, cause: str) -> Finding:
    case, rank = who.case, who.rank(gpu)
    new = number(shown, "before") is not None
    shift, why = case.timing(shown) if new else (0.0, None)
    aside = only_beside(case, sure=new or rank in who.late)
    return Finding(
        cause=cause,
        says=say(
            "dcgm-exporter shows Xid {xid} ({short}) as the last one of {name}",
            xid=number(shown, "value"),
            short=text(shown, "short"),
            name=card_name(gpu),
        )
        + (say("; the scrape before did not") if new else say("; when it came is not known"))
        + phrases.aside(why),
        weight=weight("beside") if aside else weight("last_xid") + (0.6 if new else 0.0) + shift,
        ranks=() if aside else if_known(rank),
        hosts=() if aside else if_known(gpu.host),
        gpus=() if aside else told_apart([gpu]),
        events=(shown,),
        inference=not new,
        onset_ns=shown.time_ns,
    )


RISES: Mapping[NumberField, tuple[str, int, str]] = {
    "ecc_volatile_corrected": ("gpu_ecc_leak", 10, say("corrected memory errors")),
    "ecc_aggregate_corrected": ("gpu_ecc_leak", 10, say("corrected memory errors")),
    "remapped_corrected": ("gpu_ecc_leak", 1, say("memory rows remapped for corrected errors")),
    "ecc_volatile_uncorrected": ("gpu_memory", 1, say("uncorrectable memory errors")),
    "ecc_aggregate_uncorrected": ("gpu_memory", 1, say("uncorrectable memory errors")),
    "remapped_uncorrected": ("gpu_memory", 1, say("memory rows remapped for uncorrectable errors")),
}
"""Counter → (cause, smallest rise that means something, words). The rise of ten is our judgement."""


def _counted(event: Event) -> list[tuple[NumberField, int]]:
    """(counter, where it stands) of those in RISES that a line shows."""
    if event.kind == "gpu-metric":
        metric, value = text(event, "metric"), number(event, "value")
        return [(name, value) for name in RISES if name == metric and value is not None]
    if event.time_ns is None:
        return []
    return [(name, value) for name in RISES if (value := number(event, name)) is not None]


def _counters(case: Case, who: Subjects) -> dict[tuple[Card, NumberField], tuple[Gpu, list[Look]]]:
    """(card, counter) → the looks at it."""
    series: dict[tuple[Card, NumberField], tuple[Gpu, list[Look]]] = {}
    for event in case.of("gpu-metric", "gpu-info"):
        counted = _counted(event)
        gpu = who.gpu(event) if counted else None
        if gpu is not None:
            for name, value in counted:
                series.setdefault((card_key(gpu), name), (gpu, []))[1].append((value, event))
    return series


@rule
def counters_rose(case: Case) -> Iterator[Finding]:
    """Memory errors counted between two looks at the same card. One look proves nothing: counters never go down."""
    who = case.once(Subjects.of)
    told: set[tuple[Card, str]] = set()
    for (card, name), (gpu, looks) in _counters(case, who).items():
        cause, least, what = RISES[name]
        rise = largest_rise(looks)
        if rise is None or rise.by < least or (card, cause) in told:
            continue
        told.add((card, cause))
        shift, why = case.timing(rise.events[-1])
        yield Finding(
            cause=cause,
            says=say(
                "{name}: {what} rose from {before} to {after}",
                name=card_name(gpu),
                what=what,
                before=f"{rise.before:,}",
                after=f"{rise.after:,}",
            )
            + phrases.aside(why),
            weight=weight("counter_rose") + (0.6 if cause == "gpu_memory" else 0.0) + max(shift, -0.5),
            ranks=if_known(who.rank(gpu)),
            hosts=if_known(gpu.host),
            gpus=told_apart([gpu]),
            events=rise.events,
            onset_ns=rise.events[0].time_ns,
            detail="trend" if cause == "gpu_ecc_leak" else None,
        )
