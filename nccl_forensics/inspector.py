"""What NCCL's Inspector tells of all ranks together: who comes last to the collectives again and again.

A collective's kernel runs from when its rank has come until all have, so whoever comes last has the shortest.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from nccl_forensics import words
from nccl_forensics.catalog import weight
from nccl_forensics.identify import Identities
from nccl_forensics.model import Evidence, Reconstruction, Suspect

KEPT = 4096
"""Collectives of one kind, rank and communicator that are kept, the newest."""
ONE_SIDED = frozenset({"Broadcast", "Reduce", "Send", "Recv", "SendRecv", "Gather", "Scatter"})
"""Kinds that one rank can end before all have come."""
FLOOR_NS = 20_000_000
"""Kernels are timed to microseconds, and the ranks of a collective end within milliseconds. A judgement."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The collectives of one kind that one rank has completed in one communicator."""

    path: str
    host: str
    pid: int
    comm: str
    comm_rank: int
    comm_ranks: int
    op: str
    """As NCCL calls it: 'AllReduce'."""
    seqs: array[int]
    """Rising; counted for each kind apart."""
    took_us: array[int]


def with_lateness(made: Reconstruction, timed: Iterable[Timed], known: Identities) -> Reconstruction:
    """`made` with the rank that comes last again and again, where nobody is suspected of worse."""
    if made.suspects:
        return made
    suspect = _always_late([x for x in timed if x.op not in ONE_SIDED and x.comm_ranks > 2], known)
    return made if suspect is None else replace(made, suspects=(suspect,))


def _always_late(timed: Iterable[Timed], known: Identities) -> Suspect | None:
    groups: dict[tuple[str, int, str], dict[int, Timed]] = defaultdict(dict)
    for one in timed:
        other = groups[one.comm, one.comm_ranks, one.op].setdefault(one.comm_rank, one)
        if other is not one and one.seqs[-1] > other.seqs[-1]:
            groups[one.comm, one.comm_ranks, one.op][one.comm_rank] = one
    groups = {key: members for key, members in groups.items() if len(members) == key[1]}
    if not groups:
        return None
    import numpy as np

    from nccl_forensics import lateness  # numpy: only where there is something to compare

    found: dict[tuple[str, int, str], tuple[lateness.Late, tuple[int, ...]]] = {}
    for key, members in groups.items():
        ranks = {r: known.rank_of_pid(x.host, x.pid) for r, x in members.items()}
        if None in ranks.values() or len(set(ranks.values())) < len(ranks):
            continue
        spans = {}
        for r, x in members.items():
            rank, took_ns = ranks[r], np.array(x.took_us, np.int64) * 1000
            assert rank is not None
            began = np.ones_like(took_ns)  # only spans are compared
            spans[rank] = lateness.Spans(np.array(x.seqs, np.int64), began, np.zeros_like(took_ns), began + took_ns)
        late = lateness.chronic(spans, floor_ns=FLOOR_NS)
        if late is not None:
            found[key] = late, tuple(sorted(spans))
    culprit = lateness.culprit(found) if found else None
    if culprit is None:
        return None
    (comm, size, op), late = culprit
    own = next(x for x in groups[comm, size, op].values() if known.rank_of_pid(x.host, x.pid) == late.rank)
    says = (
        f"Rank {late.rank} came last to {late.count:,} {op} operations of a communicator of {size} ranks, from number "
        f"{late.since_seq:,} on: its kernels ran {words.duration(late.by_ns / 1e9)} shorter than the others' (median), "
        "which waited in theirs."
    )
    text = f"communicator {comm}, {op} {late.since_seq}: from here on its kernels are the shortest"
    return Suspect(
        ranks=(late.rank,),
        cause="rank_slow",
        weight=weight("inspector_late"),
        says=says,
        evidence=(Evidence(source=own.path, line=None, text=text),),
        details={"late_ms": late.by_ns // 10**6, "since_seq": late.since_seq},
    )
