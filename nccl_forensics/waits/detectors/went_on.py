"""Ranks that entered a later collective of their peers' program without the one in which those wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nccl_forensics.model import Suspect
from nccl_forensics.text.messages import say
from nccl_forensics.waits.job import Job
from nccl_forensics.waits.judgement import CLEAN, GAPS, Judgement
from nccl_forensics.waits.mismatch import departs_by
from nccl_forensics.waits.owed import passed_by
from nccl_forensics.waits.parting import parting_of, shifted_sentence
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_shape, group_state, rank_list, wait_for, witness_evidence


def went_on(picture: Picture) -> Judgement | None:
    for group in picture.stuck:
        passed = _passed(picture.job, group)
        if passed:
            return _judged(picture.job, group, passed)
    return None


def _passed(job: Job, group: Standing) -> dict[int, int]:
    """Rank that went on without the stuck operation → its first entry after the last collective before that."""
    passed: dict[int, int] = {}
    for rank in group.missing:
        for waiter in group.arrived:
            row = group.members[waiter].row(group.stuck_seq)
            start = passed_by(job, waiter, row, rank) if row is not None else None
            if start is not None:
                passed[rank] = start
                break
    return passed


@dataclass(frozen=True, slots=True)
class _Side:
    """Who departed from the common program."""

    ranks: tuple[int, ...]
    """() where nobody can tell."""
    says: str


def _judged(job: Job, group: Standing, passed: Mapping[int, int]) -> Judgement:
    side = _who_departed(job, group, passed)
    seq, says = group.stuck_seq, side.says
    parting = parting_of(group, side.ranks[0], group.arrived) if len(side.ranks) == 1 else None
    if parting is not None:
        seq, says = parting.seq, shifted_sentence(group, side.ranks, parting) + " " + says
    suspect = Suspect(
        ranks=side.ranks,
        cause="collective_skipped",
        weight=CLEAN if side.ranks and not job.gaps else GAPS,
        says=says,
        group=group_state(group),
        evidence=witness_evidence(group, group.stuck_seq, [*list(passed)[:2], *group.arrived[:2]]),
        details={"first_divergence_seq": seq},
    )
    return Judgement(
        suspects=(suspect,),
        groups=(group,),
        cannot_exclude=frozenset() if side.ranks else frozenset({*passed, *group.arrived}),
    )


def _who_departed(job: Job, group: Standing, passed: Mapping[int, int]) -> _Side:
    """The few who went on; where they are not few, those who left the habits of their own earlier steps."""
    left_out = say(
        "{ranks} went on to later collectives without number {seq} of group {label} ({call}), in which {waiters}.",
        ranks=rank_list(passed.keys()).capitalize(),
        seq=group.seq,
        label=group.label,
        call=call_shape(group.op(group.stuck_seq)),
        waiters=wait_for(group.arrived),
    )
    if len(passed) < len(group.arrived):
        return _Side(tuple(sorted(passed)), left_out)
    odd = tuple(x for x in sorted(passed) if job.histories[x].departs(passed[x]) is not None)
    more = tuple(x for x in group.arrived if departs_by(job, group, x, group.stuck_seq))
    if odd and more:
        return _Side((), left_out)
    return _Side(more, _one_more(group, more, passed)) if more else _Side(odd, left_out)


def _one_more(group: Standing, more: tuple[int, ...], passed: Mapping[int, int]) -> str:
    return say(
        "{more} called collective {seq} of group {label} ({call}) where its earlier steps had none, "
        "and {passed} went on without it.",
        more=rank_list(more).capitalize(),
        seq=group.seq,
        label=group.label,
        call=call_shape(group.op(group.stuck_seq)),
        passed=rank_list(passed.keys()),
    )
