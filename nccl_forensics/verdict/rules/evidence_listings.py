"""Listings of a host's cards that disagree: nvidia-smi, lspci and the driver's own, before and after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.evidence_subjects import Subjects, card_name, told_apart

MOST_GONE = 2
"""Cards missing from a listing. More of them is rather another view of the machine. Our judgement."""


@dataclass(slots=True)
class _Listing:
    """The cards that one run of one tool saw, by address, or by UUID where only that is known."""

    tool: str
    source: str
    time_ns: int | None
    cards: dict[str, Event]

    def what(self) -> str:
        return {"smi": "nvidia-smi", "lspci": "lspci", "proc": "/proc/driver/nvidia"}[self.tool]


def _tool(event: Event) -> str | None:
    said = event.evidence.text
    if "NVRM" in said or "[nvidia-drm]" in said or "Initialized nvidia-drm" in said:
        return None  # single lines of the kernel log, no listing
    if "Bus Location" in said:
        return "proc"
    return "lspci" if "NVIDIA Corporation" in said else "smi"


def _listings(case: Case, who: Subjects) -> dict[str, list[_Listing]]:
    """Host → listings. A card that comes again in one file begins another listing."""
    address = {g.uuid: g.pci for gpus in case.known.gpus.values() for g in gpus if g.uuid and g.pci}
    open_: dict[tuple[str, str, str], _Listing] = {}
    found: dict[str, list[_Listing]] = defaultdict(list)
    for event in _listed_cards(case):
        host, tool, source = who.host(event), _tool(event), event.evidence.source
        uuid = text(event, "uuid")
        card = event.gpu_pci or (address.get(uuid, uuid) if uuid else None)
        if host is None or tool is None or card is None:
            continue
        key = (short(host), tool, source)
        listing = open_.get(key)
        if listing is None or card in listing.cards:
            listing = open_[key] = _Listing(tool, source, event.time_ns, {})
            found[short(host)].append(listing)
        listing.cards[card] = event
    return found


def _listed_cards(case: Case) -> list[Event]:
    """Lines of cards in files that no job wrote, by file and line."""
    jobs = {e.evidence.source for e in case.of("nccl-init", "watchdog-timeout", "progress", "torch-version")}
    listed = [e for e in case.of("gpu-info") if e.evidence.source not in jobs and not e.details.get("excluded")]
    return sorted(listed, key=lambda e: (e.evidence.source, e.evidence.line or 0))


def _gone(larger: _Listing, smaller: _Listing) -> list[str]:
    """Cards of one listing that the other lacks, if the other is a listing of the same machine's like cards."""
    missing = sorted(set(larger.cards) - set(smaller.cards))
    if not missing or len(missing) > MOST_GONE or not set(smaller.cards) <= set(larger.cards):
        return []
    if len(smaller.cards) < 2 or len(smaller.cards) < len(missing) * 2:
        return []
    others = {text(larger.cards[p], "model") for p in smaller.cards}
    # a card of another make may be there for the screen, and not for the driver
    return missing if all(text(larger.cards[p], "model") in others for p in missing) else []


@dataclass(frozen=True, slots=True)
class _Disagreement:
    """Two listings of one host of which one lacks cards."""

    missing: list[str]
    larger: _Listing
    smaller: _Listing
    weight: float
    lacking: str
    """What the smaller one is to the larger, in words."""


def _disagreement(larger: _Listing, smaller: _Listing) -> _Disagreement | None:
    """What it says that one listing lacks cards of the other; None if it lacks none."""
    missing = _gone(larger, smaller)
    if not missing:
        return None
    value, lacking = _how_telling(larger, smaller)
    return _Disagreement(missing, larger, smaller, value, lacking)


def _how_telling(larger: _Listing, smaller: _Listing) -> tuple[float, str]:
    """(log-odds, what the smaller one is to the larger): a later one tells most, then the driver's own."""
    if larger.time_ns is not None and smaller.time_ns is not None and larger.time_ns != smaller.time_ns:
        if smaller.time_ns > larger.time_ns:
            return weight("no_longer_listed"), say("a later listing")
        return weight("no_longer_listed") - 1.0, say("an earlier listing")
    if larger.tool == "lspci" and smaller.tool != "lspci":
        return weight("no_longer_listed") - 0.4, say("the driver's own listing")
    return weight("no_longer_listed") - 0.5, say("another listing of the same host")


def _most_telling(listings: Sequence[_Listing]) -> _Disagreement | None:
    found = [d for larger, smaller in permutations(listings, 2) if (d := _disagreement(larger, smaller)) is not None]
    return max(found, key=lambda d: d.weight, default=None)


@rule
def gpu_no_longer_listed(case: Case) -> Iterator[Finding]:
    """A card that one listing of a host has and another has not: gone, without any message."""
    who = case.once(Subjects.of)
    yield from _no_more_samples(case, who)
    for listings in _listings(case, who).values():
        if (found := _most_telling(listings)) is not None:
            yield _missing_from(who, found)


def _no_more_samples(case: Case, who: Subjects) -> Iterator[Finding]:
    """A monitor's samples of one card end while those of its neighbours go on."""
    for event in case.of("gpu-vanished"):
        gpu = who.gpu(event)
        if gpu is None:
            continue
        shift, why = case.timing(event)
        yield Finding(
            cause="gpu_off_bus",
            says=say(
                "{name} gave no more samples while {others} others went on",
                name=card_name(gpu),
                others=number(event, "others"),
            )
            + phrases.aside(why),
            weight=weight("no_longer_listed") + shift,
            ranks=if_known(who.rank(gpu)),
            hosts=if_known(gpu.host),
            gpus=told_apart([gpu]),
            events=(event,),
            inference=True,
            onset_ns=event.time_ns,
        )


def _missing_from(who: Subjects, found: _Disagreement) -> Finding:
    larger, smaller = found.larger.cards, found.smaller.cards
    shown = [larger[card] for card in found.missing]
    host = who.host(shown[0])
    gpus = [gpu for event in shown if (gpu := who.gpu(event)) is not None]
    return Finding(
        cause="gpu_off_bus",
        says=say(
            "GPU {missing} stands in {what} ({cards} GPUs) and is missing from {how} ({other}, "
            "{others} GPUs) of {host}",
            missing=phrases.listing(found.missing),
            what=found.larger.what(),
            cards=len(larger),
            how=found.lacking,
            other=found.smaller.what(),
            others=len(smaller),
            host=host,
        ),
        weight=found.weight,
        ranks=tuple(sorted({rank for gpu in gpus if (rank := who.rank(gpu)) is not None})),
        hosts=if_known(host),
        gpus=told_apart(gpus),
        events=(*shown, next(iter(smaller.values()))),
        inference=True,
        detail="bus",
    )
