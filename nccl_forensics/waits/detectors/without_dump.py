"""Everybody with a dump waits, or may wait: for ranks without one, or in something that their dumps do not show."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_forensics.model import Suspect
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.waits.judgement import GAPS, Judgement
from nccl_forensics.waits.member import LENIENT
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_shape, group_state, rank_list, witness_evidence


def nobody_here_waits(picture: Picture) -> Judgement | None:
    """What the absent ranks did nobody knows: their peers may have left, or be about to wait for them.

    In the dumps that are here nobody waits; gloo and the hook call over what has failed, too.
    """
    job = picture.job
    if not (picture.nothing_is_open and job.no_data):
        return None
    unsure = {
        rank for rank, dump in job.dumps.items() if dump.count and job.histories[rank].call(-1).backend in LENIENT
    }
    groups = sorted(job.groups.values(), key=lambda x: (-len(x.ranks), x.key))
    group = next((x for x in groups if unsure & x.members.keys()), None)
    if group is None:
        return Judgement()
    says = say(
        "The newest calls of {unsure} are over or have failed, which their dumps do not tell, and "
        "{no_data} left no dump.",
        unsure=rank_list(unsure),
        no_data=rank_list(job.no_data),
    )
    suspect = Suspect(ranks=(), cause="rank_not_arrived", weight=0.0, says=says, group=group_state(group))
    return Judgement(suspects=(suspect,))


def perhaps_the_absent(picture: Picture) -> Judgement | None:
    """Everybody waits, some of them for ranks that left no dump: those, or one whose GPU fell behind."""
    if not picture.dark:
        return None
    groups = picture.by_program(x for x in picture.job.stuck if set(picture.dark) & set(x.waited))
    nobody_knows = tuple(sorted({*picture.job.no_data, *picture.unknown}))
    is_running = picture.behind and not picture.few_are_behind  # operations were still completing
    return Judgement(
        suspects=_suspects(picture, groups, nobody_knows),
        groups=groups,
        cannot_exclude=frozenset({*nobody_knows, *(picture.behind if is_running else ())}),
    )


def _suspects(picture: Picture, groups: Sequence[Standing], nobody_knows: tuple[int, ...]) -> tuple[Suspect, ...]:
    if picture.behind:
        return (_fell_behind(picture, nobody_knows),) if picture.few_are_behind else ()
    top = (*groups, *picture.stuck, *picture.job.groups.values())[0]
    if len(nobody_knows) > 1 or top.seq is None:
        return ()
    older = picture.job.older & set(nobody_knows)
    return (_older_dump(top, nobody_knows) if older else _left_no_dump(top, nobody_knows),)


def _fell_behind(picture: Picture, nobody_knows: tuple[int, ...]) -> Suspect:
    behind = picture.behind
    group = next(x for x in picture.by_program(picture.job.groups.values()) if set(behind) & set(x.lagging))
    says = say_many(
        "{behind} has not seen the end of collectives of group {label} that the peers completed (up to "
        "{agreed}); of {everybody}, for whom others wait, there is no dump.",
        "{behind} have not seen the end of collectives of group {label} that the peers completed (up to "
        "{agreed}); of {everybody}, for whom others wait, there is no dump.",
        len(behind),
        behind=rank_list(behind).capitalize(),
        label=group.label,
        agreed=group.agreed,
        everybody=rank_list(nobody_knows),
    )
    shown = [*(x for x in behind if x in group.members), *group.arrived]
    return Suspect(
        ranks=behind,
        cause="gpu_other",
        weight=GAPS,
        says=says,
        group=group_state(group),
        evidence=witness_evidence(group, group.agreed, shown),
    )


def _older_dump(top: Standing, older: tuple[int, ...]) -> Suspect:
    """It did not stop writing dumps: this file was copied, or its newest one overwritten, at another moment."""
    says = say(
        "Every member of group {label} with a dump of this moment stands in collective {seq} ({shape}); the "
        "dump of {older} is of an earlier one, and tells nothing of it.",
        label=top.label,
        seq=top.seq,
        shape=call_shape(top.op(top.stuck_seq)),
        older=rank_list(older),
    )
    return Suspect(
        ranks=(),
        cause="rank_not_arrived",
        weight=-1.0,
        says=says,
        group=group_state(top),
        evidence=witness_evidence(top, top.stuck_seq, top.arrived),
    )


def _left_no_dump(top: Standing, absent: tuple[int, ...]) -> Suspect:
    (rank,) = absent
    says = say(
        "Rank {rank} left no dump, and every member of group {label} that did stands in collective {seq} ({shape}).",
        rank=rank,
        label=top.label,
        seq=top.seq,
        shape=call_shape(top.op(top.stuck_seq)),
    )
    return Suspect(
        ranks=absent,
        cause="process_missing",
        weight=GAPS,
        says=says,
        group=group_state(top),
        evidence=witness_evidence(top, top.stuck_seq, top.arrived),
        details={"undumped": True},
    )


def last_call_unsure(picture: Picture) -> Judgement | None:
    """One of those that others wait for may stand in a send or receive that its dump shows as over."""
    if len(picture.perhaps_blocked) != 1:
        return None
    (rank,) = picture.perhaps_blocked
    top = picture.stuck[0] if picture.stuck else next(iter(picture.job.groups.values()))
    says = say(
        "Rank {unsure} never entered collective {seq} of group {label}, in which {arrived} wait; its "
        "last recorded call is a send or receive that may or may not be over.",
        unsure=rank,
        seq=top.seq,
        label=top.label,
        arrived=rank_list(top.arrived),
    )
    suspect = Suspect(
        ranks=(rank,),
        cause="rank_not_arrived",
        weight=GAPS,
        says=says,
        group=group_state(top),
        evidence=witness_evidence(top, top.seq or 0, [rank, *top.arrived]),
    )
    return Judgement(suspects=(suspect,), groups=picture.stuck)


def everybody_waits(picture: Picture) -> Judgement | None:
    """All that are waited for wait themselves, as far as their dumps tell: any of them may be the one."""
    if not picture.waited:
        return None
    return Judgement(groups=picture.stuck, cannot_exclude=frozenset(picture.perhaps_blocked) or picture.waited)
