"""The job ran when the dumps were written: a dump holds no time of its own, so a hang looks like a moment of that."""

from __future__ import annotations

from nccl_forensics.waits.judgement import Judgement
from nccl_forensics.waits.owed import older_by_p2p
from nccl_forensics.waits.picture import Picture

ONE_MOMENT_NS = 10**9
"""The watchdog looks every 100 ms for what has ended: what began within this time before is no hang. A judgement."""


def dumps_of_different_moments(picture: Picture) -> Judgement | None:
    """Peers completed what some ranks' dumps don't hold: the job moved on while they were written."""
    if any(group.stale for group in picture.job.groups.values()) or older_by_p2p(picture.job):
        return Judgement(healthy=True)
    return None


def nothing_is_open(picture: Picture) -> Judgement | None:
    """Every rank has a dump, and nobody waits by any of them."""
    return Judgement(healthy=True) if picture.nothing_is_open and not picture.job.no_data else None


def still_completing(picture: Picture) -> Judgement | None:
    """Some have seen more ends than others: operations were still completing when the dumps were written."""
    progress = {member.completed for group in picture.joint for member in group.members.values()}
    if not picture.joint or len(progress) > len(picture.joint) or picture.behind or _just_begun(picture):
        return Judgement(healthy=True)
    return None


def _just_begun(picture: Picture) -> bool:
    """Had an operation just ended when the dumps were written, and had all that is pending begun at that moment?

    Its end is seen by some members and not yet by others, who are in none of the groups that wait: a GPU that hangs
    would hold those up.
    """
    ending = _ending_ns(picture)
    begun = [m.created_ns(group.stuck_seq) for group in picture.joint for m in group.members.values()]
    return bool(ending and begun) and all(t is not None and max(ending) - t <= ONE_MOMENT_NS for t in begun)


def _ending_ns(picture: Picture) -> list[int]:
    """When those operations were called whose end some members have seen and these have not, who wait nowhere."""
    waiting = {x for group in picture.joint for x in group.members}
    return [
        called_ns
        for group in picture.job.groups.values()
        if group.seq is None
        for rank, member in group.members.items()
        if member.strict and rank not in waiting
        for seq in member.pending
        if seq <= group.agreed and (called_ns := member.created_ns(seq)) is not None
    ]
