"""Who is who, once it is known: rank ↔ host ↔ process ↔ GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from nccl_forensics.model import Event, Gpu, Problem, number
from nccl_forensics.names import MOST_RANKS, same_host, short
from nccl_forensics.who.lifetimes import Lifetime, Process
from nccl_forensics.who.roster import likely_world


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of one rank."""

    host: str | None = None
    local_rank: int | None = None
    pid: int | None = None
    gpu: Gpu | None = None

    @property
    def pci(self) -> str | None:
        """The address of its card."""
        return self.gpu.pci if self.gpu is not None else None


@dataclass(frozen=True, slots=True)
class Identities:
    ranks: Mapping[int, Place] = field(default_factory=dict)
    gpus: Mapping[str | None, tuple[Gpu, ...]] = field(default_factory=dict)
    """Every GPU that some file mentions, by host, by PCI address."""
    world_size: int | None = None
    """As a log states it; None if none does."""
    at_least: int = 0
    """How many ranks there were at least, as launchers show (roster.py); 0: they show none."""
    devices_chosen: bool = False
    """Some line sets CUDA_VISIBLE_DEVICES or a device order, so that indices are no local ranks."""
    visible: Mapping[str | None, tuple[str, ...]] = field(default_factory=dict)
    """Host → the cards that its processes see, as UUIDs or indices of nvidia-smi, where files tell in which order."""
    disputed: frozenset[int] = frozenset()
    """Ranks of which files say different hosts or cards: two jobs in one pile, or two runs."""
    machines: frozenset[str] = frozenset()
    """Short names of hosts that wrote files of their own; other names of ranks' hosts can be containers'."""
    stated: bool = False
    """The user said who ran where (`--hosts`)."""
    behind: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """('switch' or 'block', its name) → the short names of the hosts that share it."""
    processes: Mapping[Process, int | None] = field(default_factory=dict)
    """Process → its rank, in every start of the job; None where lines name several."""
    lived: Mapping[Process, Lifetime] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    """Short names of hosts on which the job's processes have numbers of their own, in a container."""
    first_ranks: Mapping[str, int] = field(default_factory=dict)
    """Short name of a host → the rank that uses its device 0, where devices run with ranks there."""
    problems: tuple[Problem, ...] = ()
    _ranks_by: dict[tuple[str, object], dict[str | None, list[int]]] = field(
        init=False, repr=False, compare=False, default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """("pid", process id) or ("pci", address) → short name of a host → the ranks that have it there."""
    _ranks_on: dict[str | None, list[int]] = field(
        init=False, repr=False, compare=False, default_factory=lambda: defaultdict(list)
    )
    """Short name of a host → the ranks on it."""
    _gpus_on: dict[str | None, list[Gpu]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for rank, place in self.ranks.items():
            host = short(place.host) if place.host is not None else None
            self._ranks_on[host].append(rank)
            if place.pid is not None:
                self._ranks_by["pid", place.pid][host].append(rank)
            if place.pci is not None:
                self._ranks_by["pci", place.pci][host].append(rank)
        self._gpus_on.update(cards_by_short_name(self.gpus))

    def size(self, seen: Iterable[int] = ()) -> int | None:
        """How many ranks, if these are seen beside those in the table; None where that can't be told."""
        return self.world_size or max(likely_world({*seen, *self.ranks}) or 0, self.at_least) or None

    def existed(self, rank: int) -> bool:
        """Is it shown that there was such a rank, whether or not it wrote anything?"""
        return rank in self.ranks or rank < (self.world_size or self.at_least)

    def rank_of_gpu(self, host: str | None, pci: str | None) -> int | None:
        """The rank that ran on this GPU, if exactly one can have."""
        return _only(self._having("pci", pci, host))

    def _having(self, what: str, value: object, host: str | None) -> list[int]:
        """The ranks with this address or process id that can be on this host."""
        if (what, value) not in self._ranks_by:
            return []
        by_host = self._ranks_by[what, value]
        if host is None:
            return [rank for ranks in by_host.values() for rank in ranks]
        return [*by_host.get(short(host), ()), *by_host.get(None, ())]

    def likely_rank_of_gpu(self, host: str | None, pci: str | None) -> int | None:
        """The rank that uses this card if rank n of a node uses the n-th card that it sees. Only a hint.

        On a host that has no ranks by its own name, the only rank in a container that has a card at this address.
        """
        gpu = self.gpu(host, pci) if pci else None
        if gpu is None or host is None:
            return None
        alone = self.machines == {short(host)} and self._ranks_on.keys() <= {None}
        here: Collection[int] = self.ranks if alone else self.ranks_on(host)
        if not alone and not here:
            return self._in_container(host, gpu)
        local_rank = self._place_among_cards(host, gpu)
        if local_rank is None:
            return None
        return _only(r for r in here if self.ranks[r].gpu is None and self.ranks[r].local_rank == local_rank)

    def _place_among_cards(self, host: str, gpu: Gpu) -> int | None:
        """The how many-eth of the cards that processes of this host see it is, from 0."""
        seen = next((cards for name, cards in self.visible.items() if same_host(name, host)), None)
        if seen is None and not self.devices_chosen and gpu.index is not None:
            return gpu.index
        return _only(n for n, card in enumerate(seen or ()) if _is_card(card, gpu))

    def _in_container(self, host: str, gpu: Gpu) -> int | None:
        """The rank with this card, where the host's name is a machine's and the rank's is none."""
        if short(host) not in self.machines:
            return None
        rank = _only(self._having("pci", gpu.pci, None))
        if rank is None or any(p.pci is None for p in self.ranks.values()):
            return None  # a rank whose card is not known can be the one
        name = self.ranks[rank].host
        return rank if name is not None and short(name) not in self.machines else None

    def perhaps_on_gpu(self, host: str | None, pci: str | None) -> tuple[int, ...]:
        """The ranks of which one ran on this card, if any did; () where it is known who did, or nothing tells.

        Whoever is known to be on another host or card can't have. Names of containers say nothing of the host.
        """
        if host is None or pci is None or self._owner_is_known(host, pci):
            return ()
        everyone = {*self.ranks, *range(min(self.world_size or self.at_least, MOST_RANKS))}
        of_containers = short(host) in self.machines and not self.ranks_on(host)
        found = {rank for rank in everyone if self._can_be_on(self.ranks.get(rank, Place()), host, pci, of_containers)}
        placed = all(rank in self.ranks and self.ranks[rank].host for rank in found)
        return tuple(sorted(found)) if len(found) > 1 and (placed or len(found) < len(everyone)) else ()

    def _owner_is_known(self, host: str, pci: str) -> bool:
        return any(p.pci == pci and p.host is not None and same_host(p.host, host) for p in self.ranks.values())

    def _can_be_on(self, place: Place, host: str, pci: str, of_containers: bool) -> bool:
        """Does nothing place it on another card or host? `of_containers`: the host's ranks can go by their names."""
        if place.pci not in (None, pci):
            return False
        if place.host is None or same_host(place.host, host):
            return True
        return of_containers and short(place.host) not in self.machines

    def rank_of_pid(self, host: str | None, pid: int | None) -> int | None:
        """The rank with this process id, if exactly one can have it. Container and host pids differ: only a hint."""
        return _only(self._having("pid", pid, host))

    def rank_of_process(self, event: Event, host: str | None) -> int | None:
        """The rank whose process a line names by its number, while it can have lived and in the container that counts
        it. `host`: where the line was written."""
        pid = number(event, "pid") or event.pid
        if pid is None or host is None:
            return self.rank_of_pid(host, pid)
        process = Process(short(host), pid)
        if process.host in self.apart and "container" not in event.details:
            return None
        if process in self.lived and not self.lived[process].holds(event):
            return None
        return self.processes[process] if process in self.processes else self.rank_of_pid(host, pid)

    def rank_of_device(self, host: str | None, device: int | None) -> int | None:
        """The rank that uses this CUDA device of a host, if ranks run with devices there.

        0 tells nobody: a process that sees one card alone calls it so, and one that chooses none uses it.
        """
        if host is None or not device:
            return None
        here = self.ranks_on(host)
        if (first := self.first_ranks.get(short(host))) is not None:
            return first + device if first + device in here else None
        if self.devices_chosen:
            return None
        return _only(rank for rank in here if self.ranks[rank].local_rank == device)

    def unused(self, host: str | None, pci: str | None) -> bool:
        """Is this none of the cards of the ranks on this host, which are all known? Of those in the table, that is."""
        mine = self.ranks_on(host)
        if pci is None or not mine:
            return False
        cards = {self.ranks[r].pci for r in mine}
        return None not in cards and pci not in cards

    def ranks_on(self, host: str | None) -> tuple[int, ...]:
        return tuple(sorted(self._ranks_on.get(short(host), ()))) if host else ()

    def gpu(self, host: str | None, pci: str) -> Gpu:
        """All that is known of the GPU at this address."""
        for gpu in cards_on_host(self._gpus_on, host):
            if gpu.pci == pci:
                return gpu if gpu.host or not host else replace(gpu, host=host)
        return Gpu(host=host, pci=pci)


def _only(found: Iterable[int]) -> int | None:
    """The one, if there is exactly one."""
    several = list(found)
    return several[0] if len(several) == 1 else None


def cards_by_short_name(gpus: Mapping[str | None, Iterable[Gpu]]) -> dict[str | None, list[Gpu]]:
    """Short name of a host → the cards that files mention there."""
    found: dict[str | None, list[Gpu]] = defaultdict(list)
    for host, cards in gpus.items():
        found[short(host) if host is not None else None] += cards
    return dict(found)


def cards_on_host(by_host: Mapping[str | None, list[Gpu]], host: str | None) -> Iterator[Gpu]:
    """The cards that can be this host's, those of no stated host first."""
    if host is None:
        for cards in by_host.values():
            yield from cards
        return
    yield from by_host.get(None, ())
    yield from by_host.get(short(host), ())


def _is_card(card: str, gpu: Gpu) -> bool:
    """Does an item of CUDA_VISIBLE_DEVICES mean this card? CUDA takes a UUID's beginning for the whole."""
    if card.isdigit():
        return gpu.index == int(card)
    return len(card) > len("GPU-") and gpu.uuid is not None and gpu.uuid.lower().startswith(card.lower())


def hosts_of(known: Identities, events: Iterable[Event]) -> Iterator[tuple[str, tuple[Gpu, ...]]]:
    """(host, its GPUs), by name; hosts that only events mention have none."""
    names = (
        {h for h in known.gpus if h}
        | {e.host for e in events if e.host}
        | {p.host for p in known.ranks.values() if p.host}
    )
    for name in sorted(names):
        yield name, known.gpus.get(name, ())
