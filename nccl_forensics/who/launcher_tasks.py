"""Where a launcher's task number (`srun --label`, mpirun's tags) is the global rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from nccl_forensics.model import Event, number


def tasks_of(event: Event) -> tuple[int, ...]:
    """The tasks of a launcher that a line is about."""
    if event.task is not None:
        return (event.task,)
    tasks = event.details.get("tasks")
    return tuple(n for n in tasks if isinstance(n, int)) if isinstance(tasks, tuple) else ()


def tasks_are_ranks(events: Sequence[Event], world_size: int | None) -> set[str]:
    """Files in which a launcher's task number is the global rank: something shows it, and nothing speaks against it."""
    shown: dict[str, set[bool]] = defaultdict(set)
    proofs = chain(
        _by_same_line(events),
        _by_numbers_in_groups(events),
        _by_height(events, world_size),
        _by_ends_on_one_node(events),
    )
    for source, agrees in proofs:
        shown[source].add(agrees)
    return {source for source, said in shown.items() if said == {True}}


Proofs = Iterator[tuple[str, bool]]
"""(File, whether the task is the rank)."""


def _by_same_line(events: Iterable[Event]) -> Proofs:
    """Both numbers stand in one line."""
    for event in events:
        if event.task is not None and event.rank is not None:
            yield event.evidence.source, event.task == event.rank


def _by_numbers_in_groups(events: Sequence[Event]) -> Proofs:
    """Releases up to 2.1 write no global rank: there the rank in the widest communicator, else in the group of a
    timeout, which may be a smaller one, has to agree for two tasks or more."""
    widest = max((n for e in events if (n := number(e, "nranks")) is not None), default=None)
    unranked = [e for e in events if e.task is not None and e.rank is None]
    inside = ((e, number(e, "comm_rank")) for e in unranked if number(e, "nranks") == widest and e.kind == "nccl-init")
    of_all = _pairs(inside)
    in_some = _pairs((e, number(e, "group_rank")) for e in unranked if e.kind == "watchdog-timeout")
    for source in {*of_all, *in_some}:
        for task, number_ in of_all.get(source) or in_some[source]:
            yield source, task == number_


def _pairs(numbered: Iterable[tuple[Event, int | None]]) -> dict[str, set[tuple[int, int]]]:
    """File → (task, number in a group), of those where two tasks or more tell one."""
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for event, inside in numbered:
        if event.task is not None and inside is not None:
            found[event.evidence.source].add((event.task, inside))
    return {source: seen for source, seen in found.items() if len({task for task, _ in seen}) > 1}


def _by_height(events: Iterable[Event], world_size: int | None) -> Proofs:
    """A task number in the upper half of the world: tasks that start two ranks each or more are half as many as ranks
    at most."""
    if not world_size:
        return
    for event in events:
        if any(world_size <= 2 * task < 2 * world_size for task in tasks_of(event)):
            yield event.evidence.source, True


def _by_ends_on_one_node(events: Iterable[Event]) -> Proofs:
    """Two tasks that srun saw end on one node: a launcher that starts a node's ranks is one task there."""
    on_node: dict[tuple[str, str], set[int]] = defaultdict(set)
    for event in events:
        if event.kind in ("srun-exit", "slurm-oom") and event.host:
            on_node[event.evidence.source, event.host] |= set(tasks_of(event))
    yield from ((source, True) for (source, _), tasks in on_node.items() if len(tasks) > 1)
