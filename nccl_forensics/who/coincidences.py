"""Ranks and cards that met the same in the same second, and nobody else near it: the rank ran on that card.

A process that says what its GPU met mostly does not say on which card it was, and the driver, which does, not whose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from nccl_forensics.catalog import causes_marked
from nccl_forensics.lines.stamps import SECOND
from nccl_forensics.model import Event
from nccl_forensics.names import same_host
from nccl_forensics.who.identities import Identities, Place

ON_A_CARD = causes_marked("on-a-card")
"""Causes that strike one card."""
TOGETHER = 2 * SECOND
"""So near is what the driver logs to what the process says of it; so well must both times be known. Our judgement."""
NEAR = 60 * SECOND
"""So near must be no other rank and no other card of which the same is said: it could be theirs. Our judgement."""

_T = TypeVar("_T", bound=Hashable)


class _Card(NamedTuple):
    host: str | None
    """None: of a log that names no machine."""
    pci: str


def with_coincidences(known: Identities, events: Sequence[Event]) -> Identities:
    """The table with the cards, and the hosts, that a fault of one card tells of one rank. `events`: on one clock."""
    ranks, cards = _met(events, _rank), _met(events, _card)
    found: dict[int, Place] = {}
    for cause in ranks.keys() & cards.keys():
        for rank, card in _pairs(ranks[cause], cards[cause]):
            place = known.ranks.get(rank, Place())
            if rank not in known.disputed and _can_be_on(known, place, card):
                found[rank] = replace(place, host=place.host or card.host, gpu=known.gpu(card.host, card.pci))
    return replace(known, ranks={**known.ranks, **found}) if found else known


def _rank(event: Event) -> int | None:
    """The rank that says what it met."""
    return event.rank if event.gpu_pci is None and not event.relayed else None


def _card(event: Event) -> _Card | None:
    return _Card(event.host, event.gpu_pci) if event.gpu_pci else None


def _met(events: Iterable[Event], whom: Callable[[Event], _T | None]) -> dict[str, dict[_T, list[int]]]:
    """Cause → whom it struck → when, of the lines whose time is known well enough."""
    found: dict[str, dict[_T, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.cause not in ON_A_CARD or event.role != "cause" or (struck := whom(event)) is None:
            continue
        if event.time_ns is not None and event.uncertainty_ns is not None and event.uncertainty_ns <= TOGETHER:
            found[event.cause][struck].append(event.time_ns)
    return found


def _pairs(ranks: Mapping[int, list[int]], cards: Mapping[_Card, list[int]]) -> Iterator[tuple[int, _Card]]:
    """A rank and a card that were struck together, and each with no other."""
    for rank, times in ranks.items():
        near = [card for card, faults in cards.items() if _apart(times, faults) <= NEAR]
        if len(near) == 1 and _apart(times, cards[near[0]]) <= TOGETHER:
            (card,) = near
            if sum(_apart(others, cards[card]) <= NEAR for others in ranks.values()) == 1:
                yield rank, card


def _apart(times: Iterable[int], others: Sequence[int]) -> int:
    """How far the nearest two lie from each other."""
    return min(abs(a - b) for a in times for b in others)


def _can_be_on(known: Identities, place: Place, card: _Card) -> bool:
    """Is neither the rank known to be on another card or host, nor the card to be another rank's?"""
    if place.gpu is not None or not same_host(place.host, card.host):
        return False
    return known.rank_of_gpu(card.host, card.pci) is None
