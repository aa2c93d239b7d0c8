"""Which host, card and rank a measurement beside the logs is about. No rules, but what all evidence_*.py ask.

Measurements and reports beside the logs are states at the moment somebody looked, before or after the failure, and most
states are harmless. So each rule of the family asks for a second thing that makes a state matter: the late rank, a
write that failed there, the same port up elsewhere, the same card listed elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.model import Event, Gpu, number, text
from nccl_forensics.names import same_host, short
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case

Card = tuple[str | None, str]
"""Host and what tells a card from the others there."""


def card_key(gpu: Gpu) -> Card:
    return (
        short(gpu.host) if gpu.host else None,
        gpu.pci or gpu.uuid or gpu.serial or f"index {gpu.index}",
    )


@dataclass(frozen=True, slots=True)
class Subjects:
    """Which host, card and rank the events of a case are about."""

    case: Case
    lone: str | None
    """The only machine that the pile speaks of; None if there are several."""
    late: frozenset[int]
    """Ranks that the collectives miss or suspect."""
    by_name: Mapping[str, Gpu]
    """UUID or serial → card."""
    by_index: Mapping[tuple[str, int], str]
    """(host, nvidia-smi's index) → address, as NCCL's own lines state it (nvmlDev, busId)."""

    @classmethod
    def of(cls, case: Case) -> Subjects:
        """Those of this case; `case.once` keeps them for the next rule."""
        cards = [g for gpus in case.known.gpus.values() for g in gpus]
        by_name = {name: g for g in cards for name in (g.uuid, g.serial) if name}
        return cls(case, _lone_host(case), _late_ranks(case), by_name, _stated_addresses(case))

    def host(self, event: Event) -> str | None:
        return event.host if event.host is not None else self.lone

    def gpu(self, event: Event) -> Gpu | None:
        """The card that an event names by address, UUID, serial number or index; None if it names none."""
        host = self.host(event)
        if event.gpu_pci is not None:
            return self.case.known.gpu(host, event.gpu_pci)
        uuid, serial, index = text(event, "uuid"), text(event, "serial"), number(event, "index")
        for name in (uuid, serial):
            if name is not None and name in self.by_name:
                return self.by_name[name]
        if index is None:
            return Gpu(host=host, uuid=uuid, serial=serial) if uuid or serial else None
        stated = self._as_nccl_states(host, index)
        if stated is not None:
            return replace(stated, index=index, uuid=stated.uuid or uuid, serial=stated.serial or serial)
        listed = self._as_files_list(host, index) if not (uuid or serial) else None
        return listed if listed is not None else Gpu(host=host, index=index, uuid=uuid, serial=serial)

    def _as_nccl_states(self, host: str | None, index: int) -> Gpu | None:
        """The card with this index by NCCL's own lines."""
        address = self.by_index.get((short(host), index)) if host is not None else None
        return self.case.known.gpu(host, address) if address is not None else None

    def _as_files_list(self, host: str | None, index: int) -> Gpu | None:
        """The only card of this host that some file lists with this index."""
        for name, cards in self.case.known.gpus.items():
            if name and host is not None and same_host(name, host):
                here = [g for g in cards if g.index == index]
                if len(here) == 1:
                    return here[0]
        return None

    def rank(self, gpu: Gpu) -> int | None:
        """The rank on this card: as a file states it; else the late rank whose local rank is the card's index."""
        known = self.case.known
        stated = known.rank_of_gpu(gpu.host, gpu.pci) if gpu.pci else None
        if stated is not None:
            return stated
        likely = known.likely_rank_of_gpu(gpu.host, gpu.pci) if gpu.pci else None
        if likely is None:
            likely = self._by_local_rank(gpu)
        return likely if likely in self.late else None

    def _by_local_rank(self, gpu: Gpu) -> int | None:
        """The only rank on this host whose local rank is the card's index, and of whose own card nothing is known."""
        known = self.case.known
        if gpu.index is None or gpu.host is None or known.devices_chosen:
            return None
        places = {rank: known.ranks[rank] for rank in known.ranks_on(gpu.host)}
        found = [
            rank
            for rank, place in places.items()
            if place.local_rank == gpu.index and (place.gpu is None or not place.gpu.pci)
        ]
        return found[0] if len(found) == 1 else None

    def cards(self, events: Iterable[Event]) -> dict[Card, tuple[Gpu, list[Event]]]:
        """The events, by the card that they name."""
        found: dict[Card, tuple[Gpu, list[Event]]] = {}
        for event in events:
            gpu = self.gpu(event)
            if gpu is not None:
                found.setdefault(card_key(gpu), (gpu, []))[1].append(event)
        return found


def _lone_host(case: Case) -> str | None:
    """The only machine that events and the ranks' table name."""
    hosts = {short(h): h for e in case.events if (h := e.host)}
    hosts |= {short(h): h for p in case.known.ranks.values() if (h := p.host)}
    return next(iter(hosts.values())) if len(hosts) == 1 else None


def _late_ranks(case: Case) -> frozenset[int]:
    """Whom the collectives miss, have nothing of, or suspect."""
    late = {r for g in case.collectives.groups for r in (*g.missing, *g.no_data)}
    late |= set(case.collectives.cannot_exclude)
    return frozenset(late | {r for s in case.collectives.suspects for r in s.ranks})


def _stated_addresses(case: Case) -> dict[tuple[str, int], str]:
    """(host, nvidia-smi's index) → the only address that NCCL's lines state for it."""
    stated: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in case.of("nccl-init"):
        index = number(event, "nvml_dev")
        if event.host is not None and event.gpu_pci is not None and index is not None:
            stated[short(event.host), index].add(event.gpu_pci)
    return {key: next(iter(found)) for key, found in stated.items() if len(found) == 1}


def card_name(gpu: Gpu) -> str:
    """'GPU 3 (0000:c1:00.0) in node-a'."""
    said = (
        say("GPU {index}", index=gpu.index)
        if gpu.index is not None
        else say("GPU {pci}", pci=gpu.pci or gpu.uuid or gpu.serial)
    )
    if gpu.index is not None and gpu.pci:
        said += say(" ({pci})", pci=gpu.pci)
    return said + (say(" in {host}", host=gpu.host) if gpu.host else "")


def only_beside(case: Case, *, sure: bool = False) -> bool:
    """Is this worth showing, but no ground to call anybody the culprit?

    The engine weighs up whatever struck the late rank's host. A state that may be as old as the machine must not gain
    by that, so beside a job's failure it is told of without a subject.
    """
    return case.job and not sure


def told_apart(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Cards that the engine can hold apart: it compares addresses, so one without may only stand alone."""
    with_address = tuple(g for g in gpus if g.pci)
    if with_address:
        return with_address
    return tuple(gpus) if len(gpus) == 1 else ()
