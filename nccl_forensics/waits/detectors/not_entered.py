"""Ranks that others wait for in a collective, and that wait for nobody themselves."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_forensics.model import Detail, Suspect
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.waits.judgement import CLEAN, GAPS, WEAK, Judgement
from nccl_forensics.waits.mismatch import departs_at
from nccl_forensics.waits.parting import parting_of, shifted_sentence
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_shape, group_state, rank_list, wait_for, witness_evidence


def one_call_more(picture: Picture) -> Judgement | None:
    """A few ranks wait in a call that most of the group never made: theirs may be the one too many."""
    groups = picture.missing_any(picture.culprits)
    if not groups:
        return None
    top = groups[0]
    missing = [x for x in top.missing if x in picture.culprits]
    first_seq = _seq_of_one_more(picture, top, missing) if _are_just_before(top, missing) else None
    if first_seq is None:
        return None
    says = say(
        "{waiters} in collective {seq} of group {label} ({shape}), a call that its earlier "
        "steps did not have there and that {missing} never made.",
        waiters=wait_for(top.arrived).capitalize(),
        seq=top.seq,
        label=top.label,
        shape=call_shape(top.op(top.stuck_seq)),
        missing=rank_list(missing),
    )
    suspect = Suspect(
        ranks=top.arrived,
        cause="collective_skipped",
        weight=GAPS if picture.job.gaps else CLEAN - 1,
        says=says,
        group=group_state(top),
        evidence=witness_evidence(top, top.stuck_seq, [*top.arrived, *missing]),
        details={"first_divergence_seq": first_seq},
    )
    return Judgement(suspects=(suspect,), groups=groups)


def _are_just_before(top: Standing, missing: Sequence[int]) -> bool:
    """One or two wait for as many or more, all of whom have made every call before that one."""
    few_wait = len(top.arrived) <= 2 and len(top.arrived) <= len(missing) and len(top.ranks) > 2
    return few_wait and {top.members[x].enqueued for x in missing} == {top.stuck_seq - 1}


def _seq_of_one_more(picture: Picture, top: Standing, missing: Sequence[int]) -> int | None:
    """Where the call too many was made; None: not all that wait depart from their habits, or from their peers."""
    odd = {x for x in top.arrived if departs_at(picture.job, top, x, top.stuck_seq)}
    partings = {x: parting_of(top, x, missing) for x in top.arrived}
    with_one_more = {x: parting.seq for x, parting in partings.items() if parting is not None and parting.by < 0}
    if odd | with_one_more.keys() != set(top.arrived):
        return None
    return min(with_one_more.values(), default=top.stuck_seq)


def never_entered(picture: Picture) -> Judgement | None:
    """They have finished all their earlier calls."""
    groups = picture.missing_any(picture.culprits)
    if not groups:
        return None
    top = groups[0]
    ranks = tuple(sorted({*picture.culprits, *picture.behind}))
    missing = [x for x in ranks if x in top.missing] or list(ranks)
    cause, says = "rank_not_arrived", _sentence(top, ranks, missing)
    detail: dict[str, Detail] = {}
    parting = parting_of(top, ranks[0], top.arrived) if len(ranks) == 1 else None
    if parting is not None:
        cause, says = "collective_skipped", shifted_sentence(top, ranks, parting) + " " + says
        detail = {"first_divergence_seq": parting.seq}
    shown = [x for x in missing if x in top.members]
    suspect = Suspect(
        ranks=ranks,
        cause=cause,
        weight=_weight(picture, top, ranks, missing),
        says=says,
        group=group_state(top),
        evidence=witness_evidence(top, top.stuck_seq, [*shown[:2], *top.arrived[:2]]),
        details=detail,
    )
    return Judgement(suspects=(suspect,), groups=groups)


def _weight(picture: Picture, top: Standing, ranks: Sequence[int], missing: Sequence[int]) -> float:
    clean = not top.no_data and not top.unknown and not picture.job.gaps
    weight = CLEAN if clean else GAPS
    if len(missing) > max(1, len(top.arrived)):
        weight = min(weight, WEAK + 0.5)
    if len(ranks) > 2 and len(ranks) * 2 >= len(picture.job.world):
        weight = min(weight, WEAK)  # half of the job behind: as likely their dumps are merely older
    return weight


def _sentence(top: Standing, ranks: Sequence[int], missing: Sequence[int]) -> str:
    says = say_many(
        "{missing} never entered collective {seq} of group {label} ({shape}), in which {wait}; it had finished "
        "all its earlier calls.",
        "{missing} never entered collective {seq} of group {label} ({shape}), in which {wait}; they had finished "
        "all their earlier calls.",
        len(missing),
        missing=rank_list(missing).capitalize(),
        seq=top.seq,
        label=top.label,
        shape=call_shape(top.op(top.stuck_seq)),
        wait=wait_for(top.arrived),
    )
    extra = [x for x in ranks if x not in missing]
    if extra:
        says += say(
            " {extra} fell behind in a collective that the peers completed, or never entered another one.",
            extra=rank_list(extra).capitalize(),
        )
    return says
