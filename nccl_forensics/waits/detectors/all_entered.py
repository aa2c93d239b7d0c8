"""Every member has entered and none has completed: a GPU that never starts, one that never ends, or all of them."""

from __future__ import annotations

from nccl_forensics import catalog
from nccl_forensics.model import Suspect
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.waits.judgement import GAPS, WEAK, Judgement
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_shape, group_state, rank_list, witness_evidence


def never_started(picture: Picture) -> Judgement | None:
    """With timing on: all that have a dump entered, most GPUs started the operation, and some GPUs did not."""
    for group in picture.by_program(x for x in picture.job.stuck if not x.missing and len(x.arrived) > 1):
        running = [x for x in group.arrived if group.members[x].ran(group.stuck_seq)]
        idle = [x for x in group.arrived if x not in running and _stands_first(picture, group, x)]
        all_timed = all(group.members[x].timed for x in group.arrived)
        if all_timed and 0 < len(idle) <= len(running):
            return _idle(picture, group, idle, running)
    return None


def _stands_first(picture: Picture, group: Standing, rank: int) -> bool:
    """Nothing older in the rank's queue is open."""
    row = group.members[rank].row(group.stuck_seq)
    return row is not None and row <= picture.job.histories[rank].first_pending


def _idle(picture: Picture, group: Standing, idle: list[int], running: list[int]) -> Judgement:
    says = say_many(
        "All of {arrived} enqueued collective {seq} of group {label} ({shape}), and the GPUs of "
        "{running} started it; that of {idle} never did.",
        "All of {arrived} enqueued collective {seq} of group {label} ({shape}), and the GPUs of "
        "{running} started it; those of {idle} never did.",
        len(idle),
        arrived=rank_list(group.arrived),
        seq=group.seq,
        label=group.label,
        shape=call_shape(group.op(group.stuck_seq)),
        running=rank_list(running),
        idle=rank_list(idle),
    )
    suspect = Suspect(
        ranks=tuple(idle),
        cause="gpu_stall",
        weight=GAPS if picture.job.gaps else GAPS + 0.5,
        says=says,
        group=group_state(group),
        evidence=witness_evidence(group, group.stuck_seq, [*idle[:2], *running[:2]]),
    )
    return Judgement(suspects=(suspect,), groups=(group,))


def one_behind(picture: Picture) -> Judgement | None:
    """One rank alone has not seen ends that all its peers have."""
    found = _group_of_one_behind(picture)
    if found is None:
        return None
    (rank,) = found.lagging
    says = say(
        "Rank {rank} has not seen the end of collectives of group {label} that all its peers "
        "completed (up to {agreed}): its GPU took part in it and never reported back.",
        rank=rank,
        label=found.label,
        agreed=found.agreed,
    )
    suspect = Suspect(
        ranks=(rank,),
        cause="gpu_other",
        weight=WEAK + 0.5,
        says=says,
        group=group_state(found),
        evidence=witness_evidence(found, found.agreed, [rank, *found.arrived]),
    )
    return Judgement(suspects=(suspect,), groups=(found,))


def _group_of_one_behind(picture: Picture) -> Standing | None:
    """The first group that it lags in; None where another rank lags, too, or the peers do not agree."""
    with_lag = [x for x in picture.job.groups.values() if x.lagging]
    if len(picture.behind) != 1 or not all(_peers_agree(x) for x in with_lag):
        return None
    return with_lag[0]


def _peers_agree(group: Standing) -> bool:
    """All but those that lag have completed the same."""
    progress = {group.members[x].completed for x in group.members if x not in group.lagging}
    return len(progress) == 1 and len(group.members) > 2


def nobody_apart(picture: Picture) -> Judgement | None:
    """One GPU that hangs and the way between them look the same."""
    if not picture.joint:
        return None
    group = picture.joint[0]
    says = say(
        "All {arrived} members of group {label} entered collective {seq} ({shape}) and none "
        "completed it; the dumps tell nobody from the others.",
        arrived=len(group.arrived),
        label=group.label,
        seq=group.seq,
        shape=call_shape(group.op(group.stuck_seq)),
    )
    shown = witness_evidence(group, group.stuck_seq, group.arrived)
    suspects = tuple(
        Suspect(ranks=(), cause=cause, weight=weight, says=says, group=group_state(group), evidence=shown)
        for cause, weight in (
            ("fabric_error", catalog.weight("nobody_apart_fabric")),
            ("gpu_stall", catalog.weight("nobody_apart_gpu")),
        )
    )
    return Judgement(suspects=suspects, groups=picture.joint)
