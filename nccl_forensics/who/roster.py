"""How many ranks a job has, as far as its files tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from nccl_forensics.model import Event, number
from nccl_forensics.names import MOST_RANKS


def likely_world(seen: Iterable[int]) -> int | None:
    """How many ranks a job has that shows these: one more than the highest, for most of a job usually shows.

    None if that is far more than the ranks that are seen: then it is a guess, or a misread number. Our judgement.
    """
    ranks = set(seen)
    world = max(ranks, default=-1) + 1
    return world if 0 < world <= min(4 * len(ranks) + 64, MOST_RANKS) else None


_Agent = tuple[str | None, int | None, int | None]
"""A launcher: its host, pid and task, as its line tells."""


@dataclass(slots=True)
class _Children:
    """The processes that one launcher, or several that write in one file, told of before it started anew."""

    pids: set[int] = field(default_factory=set)
    seats: set[tuple[int, int]] = field(default_factory=set)
    """(rank, local rank)."""
    agents: set[_Agent] = field(default_factory=set)
    """Those that stopped children, and those that saw one fail."""
    ended: bool = False
    """The failure block is there; what comes behind it is of another start."""

    def at_least(self) -> int:
        """How many ranks there must have been: those of a failure block, and as many as there were children.

        Where all is one launcher's, its children stand behind the ranks of the nodes before.
        """
        begins = {rank - local for rank, local in self.seats}
        alone = len(self.agents) == 1 and all(pid is not None or task is not None for _, pid, task in self.agents)
        begin = max(begins) if alone and len(begins) == 1 else 0
        return max(max(begin, 0) + len(self.pids), 1 + max((rank for rank, _ in self.seats), default=-1))

    def add_stopped(self, event: Event, pid: int) -> None:
        """A launcher tells that it stops a process."""
        self.pids.add(pid)
        self.agents.add((event.host, event.pid, event.task))

    def add_exit(self, event: Event, pid: int) -> None:
        """A launcher tells that a process ended."""
        self.pids.add(pid)
        if event.rank is not None and event.local_rank is not None:
            self.seats.add((event.rank, event.local_rank))
        if "agent" in event.details:
            self.agents.add((event.host, number(event, "agent"), event.task))
        self.ended |= bool(event.details.get("first"))


def _children(events: Iterable[Event]) -> Iterator[_Children]:
    """`events` in the order of their lines."""
    current: dict[str, _Children] = {}
    for event in events:
        source = event.evidence.source
        stopped = number(event, "target_pid") if event.kind == "sigterm-sent" else None
        anew = event.kind in ("restart", "rendezvous")
        if source in current and (anew or (stopped is not None and current[source].ended)):
            yield current.pop(source)
        if stopped is not None:
            current.setdefault(source, _Children()).add_stopped(event, stopped)
        elif event.kind == "exit" and event.pid is not None:
            current.setdefault(source, _Children()).add_exit(event, event.pid)
    yield from current.values()


def at_least(events: Sequence[Event]) -> int:
    """How many ranks the launchers' lines prove; 0 if none.

    Children of different files are not added up: they can be those of different runs.
    """
    counted = [one.at_least() for one in _children(events)]
    if (started := ranks_a_host(events)) is not None:
        counted.append(started)
    return max((n for n in counted if n <= MOST_RANKS), default=0)


def ranks_a_host(events: Iterable[Event]) -> int | None:
    """How many ranks a launcher was told to start on each host. Two numbers are two jobs, or two kinds of hosts."""
    told = {n for e in events if (n := number(e, "local_world")) is not None}
    return told.pop() if len(told) == 1 else None


def stated_world(events: Sequence[Event], widest: int | None) -> int | None:
    """How many ranks there are by most statements: lines that say so, what the launcher was told to start, and the
    widest communicator (`widest`)."""
    sizes: Counter[int] = Counter()
    for event in events:
        size = number(event, "world_size")
        if size is not None and 0 < size <= MOST_RANKS:
            sizes[size] += 1
    for stated in (widest, _started(events)):
        if stated:
            sizes[stated] += AS_MANY_LINES
    return sizes.most_common(1)[0][0] if sizes else None


AS_MANY_LINES = 10
"""What a communicator's size, or the launcher's own settings, weigh against lines that state a size. Our judgement."""


def _started(events: Iterable[Event]) -> int | None:
    """Ranks by what a launcher was told to start: so many processes on each of so many nodes."""
    found = {
        (nodes, local)
        for e in events
        if (nodes := number(e, "nodes")) is not None and (local := number(e, "local_world")) is not None
    }
    if len(found) != 1:
        return None
    ((nodes, local),) = found
    return nodes * local if 0 < nodes * local <= MOST_RANKS else None
