"""What NCCL's Inspector tells of all ranks together: who comes last to the collectives again and again.

A collective's kernel runs from when its rank has come until all have, so whoever comes last has the shortest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from nccl_forensics.catalog import weight
from nccl_forensics.model import Evidence, Reconstruction, Suspect
from nccl_forensics.recorder.timed import Timed
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.who.identities import Identities

if TYPE_CHECKING:
    from nccl_forensics.waits.lateness import Late, Spans

Group = tuple[str, int, str]
"""A communicator's id, how many ranks it has, and one kind of operation in it."""
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
    groups = _complete_groups(timed)
    if not groups:
        return None
    from nccl_forensics.waits import lateness  # numpy: only where there is something to compare

    found: dict[Group, tuple[Late, tuple[int, ...]]] = {}
    paths: dict[Group, str] = {}
    for group, members in groups.items():
        placed = {r: x for x in members if (r := known.rank_of_pid(x.host, x.pid)) is not None}
        if len(placed) < len(members):
            continue
        late = lateness.chronic({rank: _spans(x) for rank, x in placed.items()}, floor_ns=FLOOR_NS)
        if late is not None:
            found[group] = late, tuple(sorted(placed))
            paths[group] = placed[late.rank].path
    culprit = lateness.culprit(found) if found else None
    return _suspect(*culprit, path=paths[culprit[0]]) if culprit is not None else None


def _complete_groups(timed: Iterable[Timed]) -> dict[Group, list[Timed]]:
    """Operations of communicators of which all members are here; of several files of one member the newest."""
    groups: dict[Group, dict[int, Timed]] = defaultdict(dict)
    for one in timed:
        members = groups[one.comm, one.comm_ranks, one.op]
        if one.seqs[-1] > members.setdefault(one.comm_rank, one).seqs[-1]:
            members[one.comm_rank] = one
    return {group: list(members.values()) for group, members in groups.items() if len(members) == group[1]}


def _spans(one: Timed) -> Spans:
    """Its collectives as if all had begun at one moment: only spans are compared."""
    import numpy as np

    from nccl_forensics.waits import lateness

    took_ns = np.array(one.took_us, np.int64) * 1000
    began = np.ones_like(took_ns)
    return lateness.Spans(np.array(one.seqs, np.int64), began, np.zeros_like(took_ns), began + took_ns)


def _suspect(group: Group, late: Late, path: str) -> Suspect:
    comm, size, op = group
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
        evidence=(Evidence(source=path, line=None, text=text),),
        details={"late_ms": late.by_ns // 10**6, "since_seq": late.since_seq},
    )
