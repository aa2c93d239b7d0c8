"""Which of several dumps of one rank counts, and which process groups of several dumps are one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from nccl_forensics.model import Problem
from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.text.messages import say

OLD_FILE_NS = 300 * 10**9
"""A dump that lags behind its peers' progress by more than this was left by something earlier. A judgement."""
Key = tuple[tuple[int, ...], str, str]
"""A group: members, description, and the name where the members aren't known."""


def choose(dumps: Iterable[Dump], problems: list[Problem]) -> dict[int, Dump]:
    """One dump for each rank: whole before damaged, of the newest incident, with stacks and newest within it."""
    by_rank: dict[int, list[Dump]] = defaultdict(list)
    for dump in dumps:
        if dump.rank is not None:
            by_rank[dump.rank].append(dump)
    chosen: dict[int, Dump] = {}
    for rank, several in sorted(by_rank.items()):
        newest = max(x.newest_ns or 0 for x in several)
        best = max(
            several,
            key=lambda x: (
                newest - (x.newest_ns or newest) < OLD_FILE_NS,
                not x.partial,
                x.has_status,
                bool(x.stacks and any(x.stacks)),
                x.newest_ns or 0,
                x.form,
                x.path,
            ),
        )
        chosen[rank] = best
        for other in several:
            if other is not best and newest - (other.newest_ns or newest) >= OLD_FILE_NS:
                says = say("an older dump of rank {rank}; {path} is used", rank=rank, path=best.path)
                problems.append(Problem(says=says, source=other.path))
    return chosen


def group_keys(dumps: Mapping[int, Dump]) -> tuple[dict[Key, dict[int, list[int]]], dict[Key, str]]:
    """Group → rank → indices into that rank's dump.groups; and each group's name."""
    known: dict[tuple[str, str], set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps.values():
        for group in dump.groups:
            if group.members:
                known[group.name, group.description].add(group.members)
    found: dict[Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    names: dict[Key, str] = {}
    for rank, dump in dumps.items():
        for index, group in enumerate(dump.groups):
            members = group.members
            if members is None:
                fitting = [x for x in known.get((group.name, group.description), ()) if rank in x]
                members = fitting[0] if len(fitting) == 1 else None
            key: Key = (members, group.description, "") if members else ((), group.description, group.name)
            found[key][rank].append(index)
            names[key] = min(names.get(key, group.name), group.name)
    return found, names
