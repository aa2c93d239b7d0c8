"""Numbers that rise with ranks.

Launchers start the processes of a host one after another, in the order of their ranks (torchrun in `_start` of
elastic/multiprocessing/api.py, slurmstepd and mpirun's daemons likewise), and the kernel counts processes up, until it
begins again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

FURTHEST = 16_384
"""So far apart are the numbers of one start at most: half of what the kernel counts to at least (PID_MAX_DEFAULT,
include/linux/threads.h, is 32,768). Our judgement."""
FEWEST = 3
"""Ranks whose numbers must be equally far apart before another rank is read off them. Our judgement."""


def all_in_order(pids: Collection[int], ranks: Sequence[int], known: Mapping[int, int]) -> dict[int, int]:
    """Pid → rank, where these are all processes of these ranks; {} where one that is known stands elsewhere.

    `ranks` rising; `known`: pid → rank, of some.
    """
    ordered = sorted(pids)
    if len(ordered) != len(ranks) or not ordered or ordered[-1] - ordered[0] > FURTHEST:
        return {}
    found = dict(zip(ordered, ranks, strict=True))
    return found if all(found.get(pid, rank) == rank for pid, rank in known.items()) else {}


def in_step(pid: int, known: Mapping[int, int]) -> int | None:
    """The rank of a process whose number lies on the line through those of all known ranks of its host and start.

    `known`: pid → rank.
    """
    line = sorted((rank, number) for number, rank in known.items())
    if len(line) < FEWEST or abs(pid - line[0][1]) > FURTHEST:
        return None
    (first, start), (last, end) = line[0], line[-1]
    step, rest = divmod(end - start, last - first) if last > first else (0, 1)
    if rest or step < 1 or any((b - a) * step != q - p for (a, p), (b, q) in pairwise(line)):
        return None
    ahead, between = divmod(pid - start, step)
    return first + ahead if not between and first + ahead >= 0 else None
