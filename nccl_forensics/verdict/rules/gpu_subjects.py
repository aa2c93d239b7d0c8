"""Cards of one host, and the ranks on them. No rules, but what those of gpu.py and gpu_trends.py say things of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, Gpu
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known


@dataclass(frozen=True, slots=True)
class GpuHost:
    """A host of the case on which cards failed; None as its name where no line tells it."""

    case: Case
    name: str | None

    @property
    def where(self) -> str:
        return say(" in {host}", host=self.name) if self.name else ""

    def gpus(self, addresses: Iterable[str]) -> tuple[Gpu, ...]:
        return tuple(self.case.known.gpu(self.name, pci) for pci in sorted(addresses))

    def boards(self, addresses: Iterable[str]) -> list[list[str]]:
        """Addresses, grouped by board: two functions with one serial are one dual-GPU board (K80)."""
        boards: dict[str, list[str]] = defaultdict(list)
        for pci in addresses:
            serial = self.case.known.gpu(self.name, pci).serial
            boards[serial if serial and serial.strip("0") else pci].append(pci)
        return list(boards.values())

    def is_unused(self, gpus: Collection[Gpu]) -> bool:
        """Are all ranks of the job known, and did none run on any of these cards?"""
        known = self.case.known
        return bool(gpus) and self.case.whole and all(known.unused(gpu.host or self.name, gpu.pci) for gpu in gpus)

    def _shift(self, first: Event, gpus: Collection[Gpu]) -> tuple[float, str | None]:
        """(log-odds, words) for when the first line came, and for cards that no rank used."""
        shift, why = self.case.timing(first)
        if self.is_unused(gpus):
            return shift + weight("gpu_unused"), say("no rank of the job ran on it")
        return shift, why

    def _nearest_first(self, events: Sequence[Event]) -> Sequence[Event]:
        """The lines, those in front that do not lie far from the failure: a card can fail more than once."""
        far = weight("long_before")
        if self.case.timing(events[0])[0] > far:
            return events
        near = [event for event in events if self.case.timing(event)[0] > far]
        return [*near, *(event for event in events if event not in near)] if near else events

    def finding(
        self,
        *,
        cause: str,
        says: str,
        weight: float,
        events: Sequence[Event],
        gpus: tuple[Gpu, ...] = (),
        detail: str | None = None,
        ranks: tuple[int, ...] | None = None,
        identifies: bool = True,
    ) -> Finding:
        """What these lines say of these cards, by when the first came and who ran there.

        `weight`: log-odds of what they say; `ranks`: instead of those on the cards; `identifies`: as in Finding.
        """
        events = self._nearest_first(events)
        shift, why = self._shift(events[0], gpus)
        return Finding(
            cause=cause,
            says=says + phrases.aside(why),
            weight=weight + shift,
            identifies=identifies,
            ranks=ranks_on(self.case, gpus) if ranks is None else ranks,
            hosts=if_known(self.name),
            gpus=gpus,
            events=tuple(events),
            detail=detail,
            onset_ns=events[0].time_ns,
        )


def ranks_on(case: Case, gpus: Iterable[Gpu]) -> tuple[int, ...]:
    """The ranks on these GPUs: as a file states it, or by index where the collectives miss that very rank."""
    absent = case.once(_absent)
    found: set[int] = set()
    for gpu in gpus:
        rank = case.known.rank_of_gpu(gpu.host, gpu.pci)
        if rank is None:
            likely = case.known.likely_rank_of_gpu(gpu.host, gpu.pci)
            rank = likely if likely in absent else None
        if rank is not None:
            found.add(rank)
    return tuple(sorted(found))


def _absent(case: Case) -> frozenset[int]:
    """Ranks that the collectives miss or have nothing of."""
    missed = {r for g in case.collectives.groups for r in (*g.missing, *g.no_data)}
    return frozenset(missed.union(case.collectives.cannot_exclude))
