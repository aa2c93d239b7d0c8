"""Which of several stuck groups comes first in the ranks' programs: the one behind which the others wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from itertools import combinations

from nccl_forensics.recorder.groups import Key
from nccl_forensics.waits.job import Job
from nccl_forensics.waits.standing import Standing

LATE_RANKS = 16
"""Of how many late ranks the next call is guessed. A judgement."""

Before = Mapping[tuple[str, str], int]
"""(family, family) → how many ranks called the stuck operation of the first before that of the second."""


def called_before(job: Job) -> Before:
    """By all ranks that stand in stuck groups of both families."""
    first_rows: dict[int, dict[str, int]] = defaultdict(dict)
    for group in job.stuck:
        for rank in group.arrived:
            row = group.members[rank].row(group.seq or 0)
            if row is not None:
                rows = first_rows[rank]
                rows[group.family] = min(rows.get(group.family, row), row)
    before: Counter[tuple[str, str]] = Counter()
    for rows in first_rows.values():
        before.update(combinations(sorted(rows, key=lambda x: rows[x]), 2))
    return before


def coming_groups(job: Job, late: Iterable[int]) -> set[Key]:
    """Groups in which a rank that is missing there, and waits for nobody (`late`), would have made its next call."""
    return {job.index[rank][index] for rank in sorted(late)[:LATE_RANKS] for index in job.histories[rank].next_groups()}


def by_program(groups: Iterable[Standing], before: Before, coming: Set[Key]) -> list[Standing]:
    """The groups with the one first whose stuck operation comes first in the members' programs.

    A group comes before another if a rank that stands in both, or in sister groups of them, called it first.
    """
    groups = list(groups)
    families = {x.family for x in groups}
    beaten = {x: sum(before.get((other, x), 0) > before.get((x, other), 0) for other in families) for x in families}

    def place(group: Standing) -> tuple[int, bool, bool, int, int, Key]:
        waits_for_somebody = bool(group.missing or group.no_data or group.perhaps)
        is_coming = group.key in coming
        size = len(group.ranks)
        return beaten[group.family], not waits_for_somebody, not is_coming, size, group.first_called_ns, group.key

    return sorted(groups, key=place)
