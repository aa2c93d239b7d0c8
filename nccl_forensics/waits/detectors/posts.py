"""Sends and receives whose counterpart will not come, because its rank has gone on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.model import Detail, Evidence, GroupState, Suspect
from nccl_forensics.text.messages import say
from nccl_forensics.waits.history import History
from nccl_forensics.waits.job import Job
from nccl_forensics.waits.judgement import CLEAN, GAPS, Judgement
from nccl_forensics.waits.owed import Owed
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_place, group_state, numel, owed_evidence, rank_list, towards_peers

NEWEST = 16
"""How many of a rank's newest calls are looked at where the dumps hide which of them are open. A judgement."""
P2P_KINDS = frozenset({"send", "recv"})


@dataclass(frozen=True, slots=True)
class _Wrong:
    """The call that does not fit."""

    rank: int
    row: int
    departs: bool
    """The rank's own earlier steps had another call there."""
    weight: float


def passed_over(picture: Picture) -> Judgement | None:
    """A post whose counterpart's rank entered later collectives without it: one of the two left the program."""
    gone_on = [x for x in picture.owed if x.passed is not None]
    if not gone_on:
        return None
    departing = _departing(picture.job, _since(picture.job, gone_on))
    group = gone_on[0].group
    wrong = _wrong_post(picture.job, gone_on, departing)
    if wrong is not None:
        return _accused(picture.job, wrong, gone_on, group)
    involved = {x.waiter for x in gone_on} | {x.ower for x in gone_on}
    return _undecided(involved, GAPS, _never_pair(involved), group)


def perhaps_unmet(picture: Picture) -> Judgement | None:
    """Several ranks' newest calls are sends and receives of a hook, which look finished even when they block."""
    job, blind = picture.job, _late_and_blind(picture)
    never_came = picture.missing - blind - picture.edges.keys()
    if len(blind) < 2 or never_came:
        return None
    group = next(iter(picture.stuck or (x for x in job.groups.values() if blind & x.members.keys())))
    involved = blind.union(*(x.arrived for x in job.stuck))
    departing = _departing(job, {x: max(0, job.dumps[x].count - NEWEST) for x in involved})
    wrong = _wrong_post(job, (), departing)
    if wrong is not None:
        return _accused(job, wrong, (), group)
    if job.stuck:
        return _undecided(blind, 1.5, _never_pair(blind), group)
    says = say(
        "The last calls of {names} are sends and receives, which may or may not be over.",
        names=rank_list(blind),
    )
    return _undecided(blind, 0.0, says, group)


def _late_and_blind(picture: Picture) -> set[int]:
    """Ranks that may stand in such a call, of those that others wait for; of all where nobody waits."""
    late = picture.missing if picture.job.stuck else picture.job.dumps.keys()
    return {x for x in late if picture.job.histories[x].ends_blind}


def _since(job: Job, gone_on: Sequence[Owed]) -> dict[int, int]:
    """From which entry on each rank's calls may be wrong: a post left out shows where the collective stands instead."""
    since: dict[int, int] = {}
    for one in gone_on:
        for rank in (one.waiter, one.ower):
            since.setdefault(rank, job.histories[rank].first_pending)
        since[one.ower] = min(since[one.ower], one.passed or 0)
    return since


def _departing(job: Job, since: Mapping[int, int]) -> dict[int, int]:
    """Rank → its first entry that its own history did not lead to expect."""
    found = {rank: job.histories[rank].departs(row) for rank, row in sorted(since.items())}
    return {rank: row for rank, row in found.items() if row is not None}


def _wrong_post(job: Job, gone_on: Sequence[Owed], departing: Mapping[int, int]) -> _Wrong | None:
    """The only rank that departs from its habits, or the only one that both waits and is waited for."""
    first_open = {x.waiter: x.row for x in reversed(gone_on)}
    both = first_open.keys() & {x.ower for x in gone_on}
    odd = departing.keys() if len(departing) == 1 else both & departing.keys()
    if len(odd) == 1:
        (rank,) = odd
        return _Wrong(rank, departing[rank], True, _weight(job))
    if len(both) == 1 and not departing:
        (rank,) = both
        return _Wrong(rank, first_open[rank], False, GAPS)
    return None


def _weight(job: Job) -> float:
    return GAPS if job.gaps else CLEAN - 0.5


def _never_pair(ranks: set[int]) -> str:
    return say(
        "Sends and receives of {names} never pair, and the dumps do not tell whose post is wrong.",
        names=rank_list(ranks),
    )


def _undecided(ranks: set[int], weight: float, says: str, group: Standing) -> Judgement:
    suspect = Suspect(ranks=(), cause="deadlock", weight=weight, says=says, group=group_state(group))
    return Judgement(suspects=(suspect,), groups=(group,), cannot_exclude=frozenset(ranks))


def _accused(job: Job, wrong: _Wrong, gone_on: Sequence[Owed], group: Standing) -> Judgement:
    rank, row, history = wrong.rank, wrong.row, job.histories[wrong.rank]
    call, peer = history.call(row), job.peer_at(rank, row)
    towards = towards_peers(call, peer) if peer is not None else ""
    says = say("The sends and receives of rank {culprit} do not fit its peers' program.", culprit=rank)
    says += say(
        " Where its own earlier steps had another call, it posted {op}{towards}{place}.",
        op=call.op,
        towards=towards,
        place=call_place(history.stack(row)),
    )
    text = f"rank {rank}, entry {int(history.dump.record_id[row])}: {call.op}{towards}"
    detail: dict[str, Detail] = {"p2p_seq": int(history.dump.p2p_seq[row])} if call.kind in P2P_KINDS else {}
    suspect = Suspect(
        ranks=(rank,),
        cause="collective_skipped" if wrong.departs and _had_a_collective(history, row) else "deadlock",
        weight=wrong.weight,
        says=says,
        group=group_state(group),
        evidence=(
            Evidence(source=history.dump.path, line=None, text=text),
            *(owed_evidence(x) for x in gone_on[:3]),
        ),
        details=detail,
    )
    return Judgement(suspects=(suspect,), groups=(group,))


def _had_a_collective(history: History, row: int) -> bool:
    """The rank's earlier steps had neither a send nor a receive where this entry is."""
    return not history.usual(row) & P2P_KINDS


def never_posted(picture: Picture) -> Judgement | None:
    """Ranks that owe a send or receive, and wait for nobody: like a collective never entered, between two."""
    culprits = set(picture.culprits)
    if not culprits or picture.missing_any(culprits):
        return None
    owed = [x for x in picture.owed if x.ower in culprits]
    waiters = {x.waiter for x in owed} or {x for x, targets in picture.edges.items() if targets & culprits}
    says = say(
        "{sinks} never posted the sends and receives that {waiters} wait for.",
        sinks=rank_list(culprits).capitalize(),
        waiters=rank_list(waiters),
    )
    suspect = Suspect(
        ranks=picture.culprits,
        cause="rank_not_arrived",
        weight=_weight(picture.job),
        says=says,
        group=_state_of(owed[0], waiters, picture.culprits) if owed else None,
        evidence=tuple(owed_evidence(x) for x in owed[:4]),
    )
    return Judgement(suspects=(suspect,))


def _state_of(one: Owed, waiters: set[int], missing: tuple[int, ...]) -> GroupState:
    """The group as if the send or receive were a collective that all wait in."""
    member = one.group.members[one.waiter]
    call = member.dump.calls[member.dump.call[one.row]]
    return replace(
        group_state(one.group),
        op=call.op,
        numel_in=numel(call.sizes_in),
        arrived=tuple(sorted(waiters)),
        missing=missing,
    )
