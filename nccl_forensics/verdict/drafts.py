"""Drafts of hypotheses: the findings of one cause about one subject, before drafts are weighed against each other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import cache

from nccl_forensics import catalog
from nccl_forensics.model import Finding, Gpu
from nccl_forensics.names import same_host
from nccl_forensics.verdict import advice
from nccl_forensics.who.identities import Identities, Place

MOST_CARDS = 64
"""A draft of more ranks does not name the card of each."""


@dataclass(slots=True)
class Draft:
    """A hypothesis while its findings are being collected."""

    cause: str
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    gpus: list[Gpu] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    bonus: float = 0.0
    """Log-odds that it gains or loses by what else is known."""
    borrowed: list[Finding] = field(default_factory=list)
    """Findings of others that support this one."""
    _own: float | None = None
    """What `own` has answered since the last finding came."""

    def own(self) -> float:
        """Log-odds of its findings; each further one counts half of the one before, for they are not independent.

        One that says little, because it came too early or of another host, says nothing against the others.
        """
        if self._own is None:
            for_it = sorted((f.weight for f in self.findings if not f.refutes), reverse=True)
            against = sum(f.weight for f in self.findings if f.refutes)
            positive = [w for w in for_it if w > 0] or for_it[:1]
            self._own = sum((w / float(2**i) for i, w in enumerate(positive)), 0.0) + against
        return self._own

    def total(self) -> float:
        """Log-odds of all that is known."""
        return self.own() + self.bonus + prior(self.cause)

    def shares_subject(self, other: Draft | Finding) -> bool | None:
        """Are both about one rank, else one card, else one host? None where there is nothing of a kind in both."""
        if self.ranks and other.ranks:
            return not self.ranks.isdisjoint(other.ranks)
        if self.gpus and other.gpus:
            return any(same_gpu(theirs, mine) for theirs in other.gpus for mine in self.gpus)
        if self.hosts and other.hosts:
            return any(same_host(theirs, mine) for theirs in other.hosts for mine in self.hosts)
        return None

    def touches(self, finding: Finding) -> bool:
        """Can the finding be about the same? Rank against host tells nothing: they are kept apart."""
        shared = self.shares_subject(finding)
        return shared if shared is not None else _is_about_nobody(finding) or _is_about_nobody(self)

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self._own = None
        self.ranks |= set(finding.ranks)
        for host in finding.hosts:
            _add_host(self.hosts, host)
        for gpu in finding.gpus:
            _add_gpu(self.gpus, gpu)

    def places(self, known: Identities) -> tuple[set[str], list[Gpu]]:
        """Its hosts and cards, and those on which its ranks are known to have run."""
        hosts, gpus = set(self.hosts), list(self.gpus)
        for rank in self.ranks:
            place = known.ranks.get(rank, Place())
            if place.host:
                _add_host(hosts, place.host)
            if place.gpu is not None and place.gpu.pci and len(self.ranks) <= MOST_CARDS:
                _add_gpu(gpus, place.gpu)
        return hosts, gpus

    def change(self, by: Change) -> None:
        self.bonus += by.bonus
        self.ranks |= by.ranks
        self.borrowed += by.borrowed


@dataclass(frozen=True, slots=True)
class Change:
    """What something else that is known does to a draft."""

    bonus: float = 0.0
    """Log-odds that it gains or loses."""
    ranks: Set[int] = frozenset()
    """Whom it is laid to."""
    borrowed: tuple[Finding, ...] = ()
    """Findings of others that support it."""


def _add_host(hosts: set[str], host: str) -> None:
    if not any(same_host(host, mine) for mine in hosts):
        hosts.add(host)


def _add_gpu(gpus: list[Gpu], gpu: Gpu) -> None:
    if not any(same_gpu(gpu, mine) for mine in gpus):
        gpus.append(gpu)


def _is_about_nobody(one: Draft | Finding) -> bool:
    return not (one.ranks or one.gpus or one.hosts)


def same_gpu(a: Gpu, b: Gpu) -> bool:
    """Can both be one card? By address where one has an address, else by index."""
    mine, other = (a.pci, b.pci) if a.pci or b.pci else (a.index, b.index)
    return mine is not None and mine == other and same_host(a.host, b.host)


@cache
def prior(cause: str) -> float:
    """Tie-breaker from published failure statistics (catalog/priors.toml)."""
    table = catalog.load("priors")
    share = float(table["share"].get(cause, table["rest"]))
    return 0.25 * math.log(share / float(table["rest"]))


def collected(found: Sequence[Finding]) -> list[Draft]:
    """Drafts of all findings, those of the strongest first: each finding joins the first draft that it can be of."""
    collection = _Collection()
    for finding in sorted(found, key=lambda f: -f.weight):
        collection.add(finding)
    return collection.drafts


@dataclass(slots=True)
class _Collection:
    """Drafts while findings come in, and what tells fast which of them can be about the same.

    A place is an index of `drafts`.
    """

    drafts: list[Draft] = field(default_factory=list)
    of_cause: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Cause → the places of its drafts."""
    without_ranks: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Cause → the places of its drafts that name no rank."""
    first_with: dict[tuple[str, int], int] = field(default_factory=dict)
    """(cause, rank) → the first place whose draft names that rank."""

    def add(self, finding: Finding) -> None:
        place = self._place(finding)
        if place is None:
            place = len(self.drafts)
            self.drafts.append(Draft(finding.cause))
            self.of_cause[finding.cause].append(place)
        self.drafts[place].add(finding)
        self._note(finding, place)

    def _place(self, finding: Finding) -> int | None:
        """Of the first draft that the finding can be of."""
        if _says_who_is_late(finding):
            return next(iter(self.of_cause[finding.cause]), None)  # one draft holds all who are late
        return next((p for p in self._candidates(finding) if self.drafts[p].touches(finding)), None)

    def _candidates(self, finding: Finding) -> Iterable[int]:
        cause = finding.cause
        if not finding.ranks:
            return self.of_cause[cause]
        # Drafts of other ranks are not touched.
        same = {place for rank in finding.ranks if (place := self.first_with.get((cause, rank))) is not None}
        return sorted(same | self.without_ranks[cause])

    def _note(self, finding: Finding, place: int) -> None:
        cause = finding.cause
        if self.drafts[place].ranks:
            self.without_ranks[cause].discard(place)
        else:
            self.without_ranks[cause].add(place)
        for rank in finding.ranks:
            self.first_with[cause, rank] = min(place, self.first_with.get((cause, rank), place))


def _says_who_is_late(finding: Finding) -> bool:
    return finding.cause in advice.LOCATES and finding.inference and finding.weight > 0
