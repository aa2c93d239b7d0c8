"""The GPUs that files mention, host by host, and which of them a process sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.model import Detail, Event, Gpu, text
from nccl_forensics.names import same_host, short
from nccl_forensics.who.files import UNTOLD, OfFiles
from nccl_forensics.who.host_names import HostNames

_Known = dict[str, Detail]
_Cards = dict[tuple[str | None, str], _Known]
"""(Host, PCI address) → what is known of the card there."""


def cards_by_host(events: Iterable[Event], hosts: HostNames) -> dict[str | None, tuple[Gpu, ...]]:
    """Host → every GPU that some file mentions, by PCI address."""
    statements = list(_statements(events, hosts))
    cards = _at_addresses(statements)
    _add_indices(cards, statements)
    named = {host for host, _ in cards if host is not None}
    only = next(iter(named)) if len(named) == 1 else None
    found: dict[str | None, list[Gpu]] = defaultdict(list)
    for (host, pci), known in sorted(cards.items(), key=lambda card: (card[0][0] or "", card[0][1])):
        if host is None and only is not None and (only, pci) in cards:
            continue  # the same card, seen in a file that names no host
        found[host].append(_gpu(host, pci, known))
    return {host: tuple(gpus) for host, gpus in found.items()}


def number_of_cards(gpus: Mapping[str | None, Sequence[Gpu]], host: str | None) -> int:
    """How many GPUs a host has, as far as files tell."""
    return max((len(cards) for name, cards in gpus.items() if same_host(name, host)), default=0)


def mentioned_addresses(events: Iterable[Event]) -> set[tuple[str, str]]:
    """(Short name of a host, address) of every GPU of which a line there speaks."""
    return {(short(event.host), event.gpu_pci) for event in events if event.host and event.gpu_pci}


def mentioned_card(
    gpus: Mapping[str | None, Sequence[Gpu]], addresses: Collection[tuple[str, str]], host: str, pci: str
) -> Gpu | None:
    """The card at this address of a host, if a line speaks of it."""
    here = [card for name, cards in gpus.items() if name and same_host(name, host) for card in cards if card.pci == pci]
    return here[0] if here else Gpu(host=host, pci=pci) if (short(host), pci) in addresses else None


@dataclass(frozen=True, slots=True)
class _Statement:
    """What one line says of a card."""

    host: str | None
    pci: str | None
    """None: it tells no address, as `nvidia-smi -L` does, only index and UUID."""
    known: Mapping[str, Detail]


def _statements(events: Iterable[Event], hosts: HostNames) -> Iterator[_Statement]:
    for event in events:
        if event.kind == "gpu-info":
            known = {key: value for key, value in event.details.items() if value is not None}
            yield _Statement(hosts.spelled(event.host) or hosts.only, event.gpu_pci, known)
        elif event.gpu_pci and event.kind in ("xid", "nccl-init"):
            yield _Statement(hosts.spelled(event.host), event.gpu_pci, {})


def _at_addresses(statements: Iterable[_Statement]) -> _Cards:
    """What is said first of a card counts."""
    cards: _Cards = {}
    for said in statements:
        if said.pci is not None:
            known = cards.setdefault((said.host, said.pci), {})
            for key, value in said.known.items():
                known.setdefault(key, value)
    return cards


def _add_indices(cards: _Cards, statements: Iterable[_Statement]) -> None:
    """Index and model of cards by their UUIDs, from lines without an address."""
    for said in statements:
        uuid = said.known.get("uuid") if said.pci is None else None
        for (host, _), known in cards.items() if uuid else ():
            if known.get("uuid") == uuid and same_host(host, said.host):
                known.setdefault("index", said.known.get("index"))
                known.setdefault("model", said.known.get("model"))


OF_ITS_OWN = ("index", "uuid", "serial", "model", "pci")
"""Details that are fields of a Gpu."""


def _gpu(host: str | None, pci: str, known: Mapping[str, Detail]) -> Gpu:
    index = known.get("index")
    return Gpu(
        host=host,
        pci=pci,
        index=index if isinstance(index, int) else None,
        uuid=_text(known.get("uuid")),
        serial=_text(known.get("serial")),
        model=_text(known.get("model")),
        details={key: value for key, value in known.items() if key not in OF_ITS_OWN},
    )


def _text(value: Detail) -> str | None:
    return str(value) if value is not None and value != "" else None


def devices_chosen(events: Sequence[Event]) -> bool:
    """Does some line hide or turn round devices? 0,1,2 … does neither."""
    lists = [value.split(",") for _, value in _set_to(events, "CUDA_VISIBLE_DEVICES")]
    hidden = any(cards != [str(n) for n in range(len(cards))] for cards in lists)
    return hidden or any(True for _ in _set_to(events, "CUDA_DEVICE_ORDER"))


def visible_cards(events: Sequence[Event], files: OfFiles, hosts: HostNames) -> dict[str | None, tuple[str, ...]]:
    """Host → its CUDA_VISIBLE_DEVICES, where its lines state one list and what it means is sure.

    Numbers are nvidia-smi's only in the order of the bus (CUDA_DEVICE_ORDER=PCI_BUS_ID); the default is the fastest
    first. One host's name can stand for a file that names none.
    """
    in_bus_order = {value.upper() for _, value in _set_to(events, "CUDA_DEVICE_ORDER")} == {"PCI_BUS_ID"}
    lists: dict[str | None, set[tuple[str, ...]]] = defaultdict(set)
    for event, value in _set_to(events, "CUDA_VISIBLE_DEVICES"):
        host = event.host or files.get(event.evidence.source, UNTOLD).host or hosts.only
        lists[host].add(tuple(value.split(",")))
    if None in lists and len(lists) > 1:
        return {}
    agreed = {host: next(iter(said)) for host, said in lists.items() if len(said) == 1}
    return {host: cards for host, cards in agreed.items() if in_bus_order or not any(card.isdigit() for card in cards)}


def _set_to(events: Iterable[Event], name: str) -> Iterator[tuple[Event, str]]:
    """Lines that state what an environment variable is set to, and to what."""
    for event in events:
        value = event.details.get("value") if event.kind == "setting" else None
        if isinstance(value, str) and text(event, "name") == name:
            yield event, value
