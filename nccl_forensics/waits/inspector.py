"""What NCCL's Inspector tells of all ranks together: who comes last to the collectives again and again.

A collective's kernel runs from when its rank has come until all have, so whoever comes last has the shortest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from nccl_forensics.catalog import weight
from nccl_forensics.model import Evidence, Reconstruction, Suspect
from nccl_forensics.recorder.timed import Timed
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.who.identities import Identities

ONE_SIDED = frozenset({"Broadcast", "Reduce", "Send", "Recv", "SendRecv", "Gather", "Scatter"})
"""Kinds that one rank can end before all have come."""
FLOOR_NS = 20_000_000
"""Kernels are timed to microseconds, and the ranks of a collective end within milliseconds. A judgement."""


def with_lateness(made: Reconstruction, timed: Iterable[Timed], known: Identities) -> Reconstruction:
    """`made` with the rank that comes last again and again, where nobody is suspected of worse."""
    if made.suspects:
        return made
    suspect = _always_late([x for x in timed if x.op not in ONE_SIDED and x.comm_ranks > 2], known)
    return made if suspect is None else replace(made, suspects=(suspect,))


def _always_late(timed: Iterable[Timed], known: Identities) -> Suspect | None:
    groups: dict[tuple[str, int, str], dict[int, Timed]] = defaultdict(dict)
    for one in timed:
        members = groups[one.comm, one.comm_ranks, one.op]
        if one.seqs[-1] > members.setdefault(one.comm_rank, one).seqs[-1]:
            members[one.comm_rank] = one
    groups = {key: members for key, members in groups.items() if len(members) == key[1]}
    if not groups:
        return None
    import numpy as np

    from nccl_forensics.waits import lateness  # numpy: only where there is something to compare

    found: dict[tuple[str, int, str], tuple[lateness.Late, tuple[int, ...]]] = {}
    paths: dict[tuple[str, int, str], str] = {}
    for key, members in groups.items():
        placed = {r: x for x in members.values() if (r := known.rank_of_pid(x.host, x.pid)) is not None}
        if len(placed) < len(members):
            continue
        spans = {}
        for rank, one in placed.items():
            took_ns = np.array(one.took_us, np.int64) * 1000
            began = np.ones_like(took_ns)  # only spans are compared
            spans[rank] = lateness.Spans(np.array(one.seqs, np.int64), began, np.zeros_like(took_ns), began + took_ns)
        late = lateness.chronic(spans, floor_ns=FLOOR_NS)
        if late is not None:
            found[key] = late, tuple(sorted(placed))
            paths[key] = placed[late.rank].path
    culprit = lateness.culprit(found) if found else None
    if culprit is None:
        return None
    key, late = culprit
    comm, size, op = key
    says = say(
        "Rank {rank} came last to {count} {op} operations of a communicator of {size} ranks, from number {since_seq} "
        "on: its kernels ran {time} shorter than the others' (median), which waited in theirs.",
        rank=late.rank,
        count=f"{late.count:,}",
        op=op,
        size=size,
        since_seq=f"{late.since_seq:,}",
        time=phrases.duration(late.by_ns / 1e9),
    )
    text = f"communicator {comm}, {op} {late.since_seq}: from here on its kernels are the shortest"
    return Suspect(
        ranks=(late.rank,),
        cause="rank_slow",
        weight=weight("inspector_late"),
        says=says,
        evidence=(Evidence(source=paths[key], line=None, text=text),),
        details={"late_ms": late.by_ns // 10**6, "since_seq": late.since_seq},
    )
