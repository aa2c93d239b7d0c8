"""What every process group was doing when the job stopped: its ranks' Flight Recorder dumps held against each other.

A group is known by its members and description, never by its process-local id; operations are aligned by
`collective_seq_id`, never by record_id; nothing is concluded from clocks of different hosts.

The way: dumps → one per rank (`choose`) → per group a `Standing` (which operation is stuck, who entered, who did not)
→ the `Picture` of who waits for whom → the detectors, in their order → what goes out. A dump holds no time of its own,
so a hang looks like a moment of a running job; they are told apart by a peer that has completed what another rank's
dump does not hold yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nccl_forensics.model import GroupState, Problem, RankCounters, Reconstruction, Wait
from nccl_forensics.recorder.dumps import COMPLETED, STARTED, Dump
from nccl_forensics.recorder.groups import OLD_FILE_NS, choose
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.waits.detectors import judge
from nccl_forensics.waits.job import Job, job_of
from nccl_forensics.waits.judgement import Judgement
from nccl_forensics.waits.member import Member
from nccl_forensics.waits.picture import Picture
from nccl_forensics.waits.standing import Standing, is_default
from nccl_forensics.waits.wording import group_state, rank_list, towards_peers


def reconstruct(dumps: Sequence[Dump], *, expected_world: int | None = None) -> Reconstruction:
    """Who entered, who did not, and on whom the others wait, from the dumps of a job's ranks.

    `expected_world`: how many ranks the job had, where something else tells it. Independent of the order of `dumps`.
    """
    problems: list[Problem] = []
    chosen = choose(dumps, problems)
    if not chosen:
        return Reconstruction(problems=tuple(problems))
    job = job_of(chosen, expected_world)
    old = _left_over(job)
    if old:
        problems += [_left_out(chosen[rank], rank) for rank in old]
        of_this_moment = {rank: dump for rank, dump in chosen.items() if rank not in old}
        job = job_of(of_this_moment, max(expected_world or 0, len(job.world)), frozenset(old))
    picture = Picture(job)
    return _reconstruction(picture, judge(picture), problems)


def _left_over(job: Job) -> set[int]:
    """Ranks whose dump is of an earlier moment than all others', by minutes; none where they are half of all."""
    found = {rank for group in job.groups.values() for rank in _far_behind(group)}
    return found if len(found) * 2 < len(job.dumps) else set()


def _far_behind(group: Standing) -> Iterator[int]:
    newest = {rank: t for rank, x in group.members.items() if (t := x.dump.newest_ns) is not None}
    others = [t for rank, t in newest.items() if rank not in group.stale]
    for rank in group.stale if others else ():
        if rank in newest and float(np.median(others)) - newest[rank] > OLD_FILE_NS:
            yield rank


def _left_out(dump: Dump, rank: int) -> Problem:
    says = say("the dump of rank {rank} is older than what its peers went on to; it is left out", rank=rank)
    return Problem(says=says, source=dump.path)


def _reconstruction(picture: Picture, judgement: Judgement, problems: Sequence[Problem]) -> Reconstruction:
    job, suspects = picture.job, judgement.suspects
    shown = () if judgement.healthy else _shown(picture, judgement)
    accused_of = tuple(x.group for x in suspects[:1] if x.group is not None)
    made = Reconstruction(
        groups=tuple(map(group_state, shown)) or accused_of,
        suspects=suspects,
        counters=tuple(_counters(job, shown[0] if shown else None)),
        ranks_seen=tuple(sorted(job.dumps)),
        members=tuple(_members(job)),
        healthy=judgement.healthy,
        problems=tuple(problems),
    )
    return made if judgement.healthy else _with_waits(made, picture, judgement)


def _shown(picture: Picture, judgement: Judgement) -> tuple[Standing, ...]:
    """The groups in which somebody waits, those that the judgement speaks of first."""
    return tuple(x for x in dict.fromkeys((*judgement.groups, *picture.stuck)) if x.seq is not None)


def _with_waits(made: Reconstruction, picture: Picture, judgement: Judgement) -> Reconstruction:
    """With who waits for whom in a hang, who is cleared by it, and who may be the culprit as well."""
    guilty = {x for one in made.suspects for x in one.ranks}
    open_to = {*judgement.cannot_exclude, *_uncleared(picture, bool(guilty))}
    return replace(
        made,
        waits=tuple(_waits(picture)),
        cannot_exclude=tuple(sorted(open_to - guilty)),
        cleared=tuple(_cleared(picture, guilty | open_to)) if made.suspects else (),
    )


def _uncleared(picture: Picture, somebody_is_guilty: bool) -> set[int]:
    """Ranks that no wait of theirs clears: without a dump, with one that cannot tell, outside of all groups."""
    job = picture.job
    found = {*job.no_data, *picture.behind, *picture.unknown, *(picture.missing - picture.blocked)}
    if somebody_is_guilty or not job.no_data:
        return found
    arrived = {x for group in job.stuck for x in group.arrived}
    return found | (job.dumps.keys() - picture.blocked - arrived) | _with_unusual_posts(job)


def _with_unusual_posts(job: Job) -> set[int]:
    """Who waits by a send or receive for a rank without a dump may itself be the one with the wrong peer."""
    found: set[int] = set()
    for rank, history in job.histories.items():
        posts = history.p2p[~history.over[history.p2p]]
        if len(posts):
            first = int(posts[0])
            if not history.usual(first) or history.departs(first) is not None:
                found.add(rank)
    return found


def _waits(picture: Picture) -> Iterator[Wait]:
    for group in picture.job.stuck:
        why = say("entered collective {seq} of group {label}", seq=group.seq, label=group.label)
        waited = group.waited
        for rank in group.blocked if waited else ():
            yield Wait(waiter=rank, waited=waited, why=why, group=group.label, seq=group.seq)
    for one in picture.owed:
        call = picture.job.histories[one.waiter].call(one.row)
        why = say("posted a {op}{towards}", op=call.op, towards=towards_peers(call, one.ower))
        yield Wait(waiter=one.waiter, waited=(one.ower,), why=why, group=one.group.label)


def _cleared(picture: Picture, open_to: set[int]) -> Iterator[tuple[int, str]]:
    """Ranks that wait for others, and for whom; not those that are named or left open."""
    stands: dict[int, str] = {}
    for group in picture.stuck:
        why = _stands_in(group)
        for rank in group.arrived if group.waited else ():
            stands.setdefault(rank, why)
    for rank in sorted(picture.job.dumps.keys() - open_to):
        if rank in stands:
            yield rank, stands[rank]
        elif rank in picture.edges:
            names = rank_list(picture.edges[rank])
            yield rank, say_many("waits for {names}", "wait for {names}", 1, names=names)


def _stands_in(group: Standing) -> str:
    return say_many(
        "waits in collective {seq} of group {label} for {names}",
        "wait in collective {seq} of group {label} for {names}",
        1,
        seq=group.seq,
        label=group.label,
        names=rank_list(group.waited),
    )


def _counters(job: Job, top: Standing | None) -> Iterator[RankCounters]:
    """How far every rank came in the group that hangs (`top`), or else in that of all."""
    default = next((x for x in job.groups.values() if is_default(x.key)), None)
    groups = [x for x in (top, default) if x is not None]
    for rank, history in sorted(job.histories.items()):
        member = next((x.members[rank] for x in groups if rank in x.members), None)
        dump = history.dump
        yield RankCounters(
            rank=rank,
            source=dump.path,
            last_enqueued=_positive(member.enqueued) if member else None,
            last_started=_last_started(member) if member else None,
            last_completed=_positive(member.completed) if member else None,
            frames=history.stack(-1) if dump.count else (),
            last_created_ns=dump.newest_ns,
        )


def _last_started(member: Member) -> int | None:
    """None also where its backend does not tell."""
    ran = member.all_seqs[(member.dump.flags[member.all_rows] & (STARTED | COMPLETED)) > 0]
    return int(ran[-1]) if len(ran) and member.timed else None


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None


def _members(job: Job) -> Iterator[GroupState]:
    """Of every group whose members are known."""
    for group in sorted(job.groups.values(), key=lambda x: x.key):
        if group.key[0]:
            yield GroupState(name=group.name, description=group.description or None, members=group.ranks)
