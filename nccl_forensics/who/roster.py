"""Who is who: rank ↔ host ↔ local rank ↔ pid ↔ GPU, put together from every statement in the pile.

Statements are trusted in this order: the user's `--hosts` file, torchrun's failure block and rendezvous result, NCCL's
own init lines, prefixes of the lines themselves, file and folder names. A later statement fills gaps and never
overrides; where two of the same weight disagree, both are reported and neither is used.

Three name spaces are kept apart: `[rankN]:` is global, `[Rank r]` lies inside a process group, `[defaultN]:` is local
to a node.
"""

from __future__ import annotations

import re
from collections import defaultdict
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


NUMBER = re.compile(r"(?<!\d)\d{1,5}(?!\d)")


MOST_NUMBERS = 8
"""Numbers of a path that are looked at, from its end."""


AGREE, AGREE_SHIFTED = 2, 3
"""Files whose lines must state the rank that their names count, and as many where names count from elsewhere than 0
(the local ranks of a second node). Our judgement."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """The rank that a number in a file's name counts."""

    rank: int
    places: frozenset[int]
    """Where in the path the number begins; several, if several count alike."""


def numbered(paths: Iterable[str], events: Iterable[Event]) -> dict[str, Numbered]:
    """File → the rank that it is named for: files are named alike but for one number, and that counts ranks wherever
    their lines tell.

    `slurm-123-7.out`, `worker.7.err`, `attempt_0/7/stderr.log`: the names alone do not say what they count.
    """
    said: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.rank is not None and not event.relayed:
            said[event.evidence.source].add(event.rank)
    alike: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for path in paths:
        for found in list(NUMBER.finditer(path))[-MOST_NUMBERS:]:
            alike[path[: found.start()], path[found.end() :]][int(found[0])] = path
    ranks: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))  # file → rank → places
    for (before, _), files in alike.items():
        told = {n: said[path] for n, path in files.items() if said.get(path)}
        if len(told) < AGREE or any(len(inside) > 1 for inside in told.values()):
            continue
        shifts = {next(iter(inside)) - n for n, inside in told.items()}
        if len(shifts) == 1 and (shifts == {0} or len(told) >= AGREE_SHIFTED):
            (shift,) = shifts
            for n, path in files.items():
                ranks[path][n + shift].add(len(before))
    return {
        path: Numbered(rank, frozenset(places))
        for path, inside in ranks.items()
        for rank, places in inside.items()
        if len(inside) == 1 and 0 <= rank < MOST_RANKS
    }


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
            own = current.setdefault(source, _Children())
            own.pids.add(stopped)
            own.agents.add((event.host, event.pid, event.task))
        elif event.kind == "exit" and event.pid is not None:
            own = current.setdefault(source, _Children())
            own.pids.add(event.pid)
            if event.rank is not None and event.local_rank is not None:
                own.seats.add((event.rank, event.local_rank))
            if "agent" in event.details:
                own.agents.add((event.host, number(event, "agent"), event.task))
            own.ended |= bool(event.details.get("first"))
    yield from current.values()


def at_least(events: Sequence[Event]) -> int:
    """How many ranks the launchers' lines prove; 0 if none.

    Children of different files are not added up: they can be those of different runs.
    """
    counted = [one.at_least() for one in _children(events)]
    started = {n for e in events if (n := number(e, "local_world")) is not None}
    if len(started) == 1:  # two numbers are two jobs, or two kinds of nodes
        counted += started
    return max((n for n in counted if n <= MOST_RANKS), default=0)


def world(events: Iterable[Event]) -> int | None:
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
