"""What stands first in each rank's queue, and how another rank's calls stand to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.recorder.dumps import COMPLETED, P2P, STARTED
from nccl_forensics.waits.job import Job
from nccl_forensics.waits.owed import Owed, pair_of, posted_by
from nccl_forensics.waits.standing import Standing


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A rank's oldest operation that is not over: what its queue, or its program, stands in."""

    group: Standing
    row: int
    peer: int | None = None
    """Of a send or receive: the rank at its other end."""
    pair: tuple[int, int] | None = None
    """Of a send or receive: (sender, receiver)."""

    def is_of(self, other: Head) -> bool:
        """Do both ranks stand in the same operation?"""
        return self.group is other.group and self.pair == other.pair


@dataclass(frozen=True, eq=False)
class Queues:
    job: Job
    owed: Sequence[Owed]
    heads: Mapping[int, Head]
    """Rank → its oldest operation that is not over, if its group is stuck in that, or it is a send or receive."""

    def row(self, head: Head, rank: int) -> int | None:
        """The rank's own entry of that operation; of a send or receive the oldest that is not over."""
        if rank not in head.group.members:
            return None
        if head.pair is None:
            return head.group.members[rank].row(head.group.seq or 0)
        sender, receiver = head.pair
        kind, peer = ("send", receiver) if rank == sender else ("recv", sender)
        over = self.job.histories[rank].over
        return next((x for x in posted_by(head.group, rank, kind, peer) if not over[x]), None)

    def lacks(self, head: Head, rank: int) -> bool:
        """The rank has not called the operation at all."""
        if head.pair is None:
            return rank in head.group.missing
        return any(x.ower == rank and x.waiter in head.pair and x.group is head.group for x in self.owed)

    def runs(self, head: Head, rank: int) -> bool:
        """The rank's GPU has started that operation, whatever stands before it."""
        row = self.row(head, rank)
        return row is not None and bool(self.job.dumps[rank].flags[row] & (STARTED | COMPLETED))

    def holds_up(self, other: int, head: Head) -> bool:
        """`other` stands in another operation, and comes to that one only after it, if at all."""
        if other not in self.heads or self.heads[other].is_of(head) or self.runs(head, other):
            return False
        return head.pair is None or self.lacks(head, other) or self.row(head, other) is not None


def queues_of(job: Job, owed: Sequence[Owed]) -> Queues:
    heads = {rank: head for rank in job.dumps if (head := _head(job, rank)) is not None}
    return Queues(job, owed, heads)


def _head(job: Job, rank: int) -> Head | None:
    dump, row = job.dumps[rank], job.histories[rank].first_pending
    if row >= dump.count:
        return None
    group = job.group_at(rank, row)
    if not dump.flags[row] & P2P:
        is_stuck = group.seq == int(dump.seq[row]) and rank in group.arrived
        return Head(group, row) if is_stuck else None
    call = job.histories[rank].call(row)
    peer = group.peer_of(call)
    if call.kind not in ("send", "recv") or peer is None or peer == rank:
        return None
    return Head(group, row, peer, pair_of(call.kind, rank, peer))
