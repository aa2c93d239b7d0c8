"""Nobody holds the others up for good, but one rank comes last again and again."""

from __future__ import annotations

from nccl_forensics.model import Suspect
from nccl_forensics.recorder.groups import Key
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.waits import lateness
from nccl_forensics.waits.judgement import WEAK, Judgement
from nccl_forensics.waits.member import spans
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import dump_evidence, group_state


def always_late(picture: Picture) -> Judgement | None:
    groups = picture.job.groups
    found: dict[Key, tuple[lateness.Late, tuple[int, ...]]] = {}
    for key, group in groups.items():
        if set(group.members) == set(group.ranks) and all(x.strict for x in group.members.values()):
            late = lateness.chronic({rank: spans(member) for rank, member in group.members.items()})
            if late is not None:
                found[key] = late, group.ranks
    culprit = lateness.culprit(found) if found else None
    if culprit is None:
        return None
    key, late = culprit
    return Judgement(suspects=(_suspect(groups[key], late),))


def _suspect(group: Standing, late: lateness.Late) -> Suspect:
    side = (
        say("It called them late")
        if late.side == "cpu"
        else say("It called them in time, and its GPU started them late")
    )
    says = say(
        "Rank {rank} came last to {count} collectives of group {label}, from number {since_seq} on, "
        "{time} after the others (median). {side}.",
        rank=late.rank,
        count=f"{late.count:,}",
        label=group.label,
        since_seq=f"{late.since_seq:,}",
        time=phrases.duration(late.by_ns / 1e9),
        side=side,
    )
    member = group.members[late.rank]
    text = say(
        "group {label}, collective {since_seq}: from here on it comes last",
        label=group.label,
        since_seq=late.since_seq,
    )
    return Suspect(
        ranks=(late.rank,),
        cause="rank_slow",
        weight=WEAK + 0.5,
        says=says,
        group=group_state(group),
        evidence=(dump_evidence(member, member.row(late.since_seq), text),),
        details={"late_ms": late.by_ns // 10**6, "side": late.side, "since_seq": late.since_seq},
    )
