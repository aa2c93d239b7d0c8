"""Which rank a number in a file's name counts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from nccl_forensics.model import Event, number
from nccl_forensics.names import MOST_RANKS

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
    in_groups: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.rank is not None and not event.relayed:
            said[event.evidence.source].add(event.rank)
        elif (inside := number(event, "group_rank")) is not None and not event.relayed:
            in_groups[event.evidence.source].add(inside)
    ranks: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))  # file → rank → places
    for place, files in _alike_but_for_a_number(paths):
        told = {n: said[path] for n, path in files.items() if path in said}
        shift = _ahead(told)
        if not told and _count_within_groups(len(files), files, in_groups):
            shift = 0
        if shift is not None:
            for n, path in files.items():
                ranks[path][n + shift].add(place)
    return {
        path: Numbered(rank, frozenset(places))
        for path, inside in ranks.items()
        for rank, places in inside.items()
        if len(inside) == 1 and 0 <= rank < MOST_RANKS
    }


def _alike_but_for_a_number(paths: Iterable[str]) -> Iterator[tuple[int, dict[int, str]]]:
    """Where a number begins in paths that differ in it alone, and number → path."""
    alike: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for path in paths:
        for found in list(NUMBER.finditer(path))[-MOST_NUMBERS:]:
            alike[path[: found.start()], path[found.end() :]][int(found[0])] = path
    for (before, _), files in alike.items():
        yield len(before), files


def _count_within_groups(size: int, files: Mapping[int, str], in_groups: Mapping[str, Collection[int]]) -> bool:
    """Do the numbers count from 0 without a gap, and do lines tell each as its rank in a group of neighbours?

    PyTorch up to 2.1 writes a rank's number in its group: 0, 1 and 3 in files 4, 5 and 7 are of groups of four.
    """
    told = {n: in_groups[path] for n, path in files.items() if path in in_groups}
    if sorted(files) != list(range(size)) or any(len(inside) > 1 for inside in told.values()):
        return False
    return any(
        all({n % group} == set(inside) for n, inside in told.items()) and sum(n >= group for n in told) >= AGREE_SHIFTED
        for group in range(2, size)
        if size % group == 0
    )


def _ahead(told: Mapping[int, Collection[int]]) -> int | None:
    """By how much ranks are ahead of the numbers of their files, if it is the same wherever lines tell.

    `told`: number → the ranks that the lines of that file tell.
    """
    if len(told) < AGREE or any(len(inside) > 1 for inside in told.values()):
        return None
    shifts = {next(iter(inside)) - n for n, inside in told.items()}
    if len(shifts) > 1 or (shifts != {0} and len(told) < AGREE_SHIFTED):
        return None
    return shifts.pop()
