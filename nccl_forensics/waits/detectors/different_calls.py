"""Ranks that called something else than their peers: that makes everybody wait, also those that never arrive."""

from __future__ import annotations

from nccl_forensics.model import Suspect
from nccl_forensics.waits.judgement import Judgement
from nccl_forensics.waits.mismatch import Mismatch
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import group_state, witness_evidence


def different_calls(picture: Picture) -> Judgement | None:
    """The first mismatch in the programs: the others follow from it."""
    if not picture.mismatches:
        return None
    first = picture.by_program(x.group for x in picture.mismatches)[0]
    mismatch = next(x for x in picture.mismatches if x.group is first)
    group = mismatch.group
    peers = [x for x in group.arrived if x not in mismatch.ranks]
    suspect = Suspect(
        ranks=mismatch.ranks,
        cause=mismatch.cause,
        weight=mismatch.weight,
        says=mismatch.says,
        group=group_state(group),
        evidence=witness_evidence(group, group.stuck_seq, [*mismatch.ranks[:2], *peers[:2]]),
        details=mismatch.detail,
    )
    return Judgement(
        suspects=(suspect,),
        groups=(*_left_undone(picture, mismatch), group),
        cannot_exclude=frozenset() if mismatch.ranks else frozenset(group.arrived),
    )


def _left_undone(picture: Picture, mismatch: Mismatch) -> tuple[Standing, ...]:
    """What a rank that left the loop left undone first may be in a smaller group."""
    return picture.missing_any(mismatch.ranks) if mismatch.cause == "uneven_inputs" else ()
