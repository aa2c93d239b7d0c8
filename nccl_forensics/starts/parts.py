"""Files that belong to one job for sure, and what they tell of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from nccl_forensics.lines.stamps import with_year
from nccl_forensics.model import Event, number
from nccl_forensics.names import short

POD = re.compile(r"(?P<job>[a-z0-9][a-z0-9.-]{0,200})-(?:master|worker|launcher|chief)(?:-\d{1,5})?(?:-[a-z0-9]{5})?")
"""Pods of Kubeflow's operators: JOB-worker-3."""
Window = tuple[int, int]
"""First and last time, as written."""


@dataclass(slots=True)
class Part:
    """Files that belong to one job for sure."""

    sources: list[str] = field(default_factory=list)
    labels: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    hosts: set[str] = field(default_factory=set)
    worlds: set[int] = field(default_factory=set)
    times: dict[bool, Window] = field(default_factory=dict)
    """Whether the year is known → when it wrote."""
    places: dict[tuple[int, str, bool], Window] = field(default_factory=dict)
    """(Rank, host, whether the year is known) → when it was there."""
    seats: set[int] = field(default_factory=set)
    """Ranks whose host is told, whether or not their time is."""
    cards: dict[tuple[int, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """(Rank, host) → PCI addresses."""
    agents: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Host → pids of torchrun's agents there."""

    def order(self) -> tuple[int, str]:
        return min((w[0] for w in self.times.values()), default=0), self.sources[0]

    def is_another_job(self, other: Part) -> bool:
        """Is there an id that both have, and not the same? An agent's pid is one on its host."""
        if any(self.launched_apart(other, host) for host in self.agents):
            return True
        mine = {**self.labels, "world": {str(w) for w in self.worlds}}
        its = {**other.labels, "world": {str(w) for w in other.worlds}}
        return any(mine[kind] and its.get(kind) and not mine[kind] & its[kind] for kind in mine)

    def launched_apart(self, other: Part, host: str) -> bool:
        """Did other agents start its workers on this host?"""
        mine, its = self.agents.get(host), other.agents.get(host)
        return mine is not None and its is not None and not mine & its

    def take(self, event: Event, of_file: str | None, worlds: Collection[int], year: int | None) -> None:
        """One of its lines. `of_file`: its file's host; `worlds`: sizes of the job; `year`: the file's, if known."""
        host, rank = event.host or of_file, _rank_in_job(event, worlds)
        if host is not None:
            self._take_host(host)
            if rank is not None:
                self._take_seat(rank, short(host), event.gpu_pci)
            if (agent := number(event, "agent")) is not None:
                self.agents[short(host)].add(agent)
        if (told := _when(event, year)) is not None:
            since, at, dated = told
            self.times[dated] = wider(wider(self.times.get(dated), since), at)
            if rank is not None and host is not None:
                place = rank, short(host), dated
                self.places[place] = wider(wider(self.places.get(place), since), at)

    def take_all(self, other: Part) -> None:
        """What another tells of the job it is of: ids, hosts, sizes, agents."""
        for kind, values in other.labels.items():
            self.labels[kind] |= values
        for host, agents in other.agents.items():
            self.agents[host] |= agents
        self.hosts |= other.hosts
        self.worlds |= other.worlds

    def _take_host(self, host: str) -> None:
        self.hosts.add(short(host))
        if pod := POD.fullmatch(host):
            self.labels["pods"].add(pod["job"])

    def _take_seat(self, rank: int, host: str, pci: str | None) -> None:
        self.seats.add(rank)
        if pci is not None:
            self.cards[rank, host].add(pci)


def _rank_in_job(event: Event, worlds: Collection[int]) -> int | None:
    """The line's rank, else that in a communicator of the whole job."""
    if event.rank is None and event.kind == "nccl-init" and number(event, "nranks") in worlds:
        return number(event, "comm_rank")
    return event.rank


def _when(event: Event, year: int | None) -> tuple[int, int, bool] | None:
    """(Since when it lasted, when it was written, both ns as written; whether the year is known)."""
    if event.stamp is None or event.stamp.wall_ns is None:
        return None
    at, dated = event.stamp.wall_ns, event.stamp.has_year
    if not dated and year is not None:
        at, dated = with_year(at, year), True
    waited_ms = number(event, "waited_ms") if event.kind == "watchdog-timeout" else None
    return at - max(waited_ms or 0, 0) * 1_000_000, at, dated


def wider(window: Window | None, at: int) -> Window:
    return (min(at, window[0]), max(at, window[1])) if window else (at, at)


def overlap(a: Window, b: Window) -> int:
    """Nanoseconds for which both last; negative: those between them."""
    return min(a[1], b[1]) - max(a[0], b[0])


def folders_above(path: str) -> list[str]:
    """The folders in which a file lies, the nearest first; an archive is one."""
    parts = re.split(r"(?<=[/!])", path)
    return ["".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]
