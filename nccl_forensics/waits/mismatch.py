"""Ranks of one group that made different calls at one sequence number, and who of them departed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nccl_forensics.model import Detail
from nccl_forensics.recorder.dumps import Call
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.waits.job import Job
from nccl_forensics.waits.judgement import CLEAN, GAPS
from nccl_forensics.waits.member import Member
from nccl_forensics.waits.parting import parting_of, shifted_sentence
from nccl_forensics.waits.standing import Standing
from nccl_forensics.waits.wording import call_place, call_shape, rank_list

Votes = Mapping[Any, list[int]]
"""Signature of a call → the ranks that made it."""


@dataclass(frozen=True, slots=True, eq=False)
class Mismatch:
    group: Standing
    ranks: tuple[int, ...]
    """Who differs; () where neither side has the majority."""
    cause: str
    says: str
    first_seq: int
    """Where the calls parted."""
    weight: float

    @property
    def detail(self) -> dict[str, Detail]:
        return {"first_divergence_seq": self.first_seq}


def mismatches_of(job: Job) -> Iterator[Mismatch]:
    """Groups whose members entered the stuck place with different calls."""
    for group in job.stuck:
        votes = _votes(group, group.stuck_seq)
        if len(votes) > 1:
            yield _mismatch(job, group, group.stuck_seq, votes)


def _votes(group: Standing, seq: int) -> Votes:
    votes: dict[Any, list[int]] = defaultdict(list)
    for rank in group.arrived:
        signature = group.members[rank].signature(seq)
        if signature is not None:
            votes[signature].append(rank)
    return votes


def _mismatch(job: Job, group: Standing, seq: int, votes: Votes) -> Mismatch:
    sides = sorted(votes.values(), key=lambda x: (-len(x), x))
    parted = _majority(sides) or _by_sisters(job, group, seq, votes) or _by_habits(job, group, seq)
    if parted is not None:
        most, rest = parted
        return judged(Clash(job, group, seq, most, rest))
    shown = joined((rank_list(x) + ": " + call_shape(group.members[x[0]].calls(seq)[-1]) for x in sides[:4]), "; ")
    says = say(
        "In group {label} the members called different things as collective {seq} ({sides}), and "
        "neither side has a majority.",
        label=group.label,
        seq=seq,
        sides=shown,
    )
    return Mismatch(group, (), "collective_mismatch", says, seq, GAPS)


# Who is right and who differs: (those who made the call that belongs there, those who did not), or None.


def _majority(sides: Sequence[list[int]]) -> tuple[list[int], list[int]] | None:
    most, rest = sides[0], sorted(x for side in sides[1:] for x in side)
    return (most, rest) if len(most) > len(sides[1]) and len(most) >= len(rest) else None


def _by_sisters(job: Job, group: Standing, seq: int, votes: Votes) -> tuple[list[int], list[int]] | None:
    """The call that most members of sister groups made at `seq`, if it is the only one of ours among theirs."""
    theirs = Counter(
        signature
        for sister in _sisters(job, group)
        for member in sister.members.values()
        if (signature := member.signature(seq)) is not None
    )
    ours = theirs.keys() & votes.keys()
    if len(ours) != 1:
        return None
    (usual,) = ours
    if theirs[usual] * 2 <= theirs.total():
        return None
    return votes[usual], sorted(x for call, side in votes.items() if call != usual for x in side)


def _sisters(job: Job, group: Standing) -> list[Standing]:
    """Other groups of the same description and size."""
    described = [x for x in job.groups.values() if x is not group and x.description == group.description]
    return [x for x in described if len(x.ranks) == len(group.ranks)]


def _by_habits(job: Job, group: Standing, seq: int) -> tuple[list[int], list[int]] | None:
    """Few ranks whose own earlier steps had another call there."""
    departing = [x for x in group.arrived if departs_at(job, group, x, seq)]
    most = [x for x in group.arrived if x not in departing and group.members[x].signature(seq)]
    return (most, departing) if most and 0 < len(departing) * 2 <= len(group.arrived) else None


def departs_at(job: Job, group: Standing, rank: int, seq: int) -> bool:
    row = group.members[rank].row(seq)
    return row is not None and job.histories[rank].departs(row) == row


def departs_by(job: Job, group: Standing, rank: int, seq: int) -> bool:
    """The rank's calls leave its habits between the group's collective before `seq` and that one."""
    row, before = group.members[rank].row(seq), group.members[rank].row(seq - 1)
    if row is None:
        return False
    where = job.histories[rank].departs(before + 1 if before is not None else row)
    return where is not None and where <= row


# What those who differ did: something wrong, or the right thing a place early or late.


@dataclass(frozen=True, eq=False)
class Clash:
    """`rest` called something else at `seq` than `most`, who made the call that belongs there."""

    job: Job
    group: Standing
    seq: int
    most: Sequence[int]
    rest: Sequence[int]

    @property
    def member(self) -> Member:
        """The first of those who differ, who stands for them."""
        return self.group.members[self.rest[0]]

    @property
    def peer(self) -> Member:
        """The first of the others."""
        return self.group.members[self.most[0]]

    @cached_property
    def own(self) -> Call:
        return self.member.calls(self.seq)[-1]

    @cached_property
    def theirs(self) -> Call:
        return self.peer.calls(self.seq)[-1]

    @property
    def weight(self) -> float:
        return CLEAN if not self.job.gaps and len(self.most) > len(self.rest) else GAPS

    @cached_property
    def plain(self) -> str:
        """What was called, in a sentence."""
        return say(
            "In group {label}, collective {seq}, {rest} called {shape}{place}, where {most} called "
            "{other_shape}{other_place}.",
            label=self.group.label,
            seq=self.seq,
            rest=rank_list(self.rest),
            shape=call_shape(self.own),
            place=call_place(self.member.stack(self.seq)),
            most=rank_list(self.most),
            other_shape=call_shape(self.theirs),
            other_place=call_place(self.peer.stack(self.seq)),
        )

    @cached_property
    def goes_on_straight(self) -> bool:
        """The next calls of both are equal, number by number: nothing is shifted."""
        later = [x for x in self.later if self.peer.rows(x)]
        return bool(later) and all(self.member.signature(x) == self.peer.signature(x) for x in later)

    @property
    def later(self) -> list[int]:
        """The next numbers that those who differ went on to."""
        return [x for x in (self.seq + 1, self.seq + 2, self.seq + 3) if self.member.rows(x)]

    def mismatch(self, cause: str, says: str, *, less: float = 0.0, first_seq: int | None = None) -> Mismatch:
        """A reading of it; `less`: by how much it weighs less than others."""
        where = self.seq if first_seq is None else first_seq
        return Mismatch(self.group, tuple(self.rest), cause, says, where, self.weight - less)


def judged(clash: Clash) -> Mismatch:
    """The first reading that fits."""
    found = (reading(clash) for reading in READINGS)
    return next((x for x in found if x is not None), clash.mismatch("collective_mismatch", clash.plain))


def _runs_shifted(clash: Clash) -> Mismatch | None:
    parting = parting_of(clash.group, clash.member.rank, clash.most)
    if parting is None:
        return None
    says = shifted_sentence(clash.group, clash.rest, parting) + " " + clash.plain
    return clash.mismatch("collective_skipped", says, first_seq=parting.seq)


def _left_one_out(clash: Clash) -> Mismatch | None:
    """It called what follows there."""
    if clash.goes_on_straight or clash.member.signature(clash.seq) not in _following(clash):
        return None
    says = say(
        "{plain} That is the call that follows there: {rest} left one out.",
        plain=clash.plain,
        rest=rank_list(clash.rest),
    )
    return clash.mismatch("collective_skipped", says)


def _made_one_more(clash: Clash) -> Mismatch | None:
    """What the others called came next there."""
    member, peer, seq = clash.member, clash.peer, clash.seq
    if clash.goes_on_straight or not clash.later or peer.signature(seq) != member.signature(seq + 1):
        return None
    says = say(
        "{plain} What the others called comes next there: {rest} made one call more.",
        plain=clash.plain,
        rest=rank_list(clash.rest),
    )
    return clash.mismatch("collective_skipped", says)


def _left_the_loop(clash: Clash) -> Mismatch | None:
    """It called, once and last of all, the barrier behind the loop, and has more than one call fewer than its peers."""
    if not _is_at_barrier_alone(clash):
        return None
    if not all(_is_its_only_and_last(clash.job, clash.group, x, clash.seq) for x in clash.rest):
        return None
    if _short_of(clash.job, clash.group, clash.rest[0], clash.seq, clash.most) <= 1:
        return None
    says = say_many(
        "{plain} {rest} had never called that before and called nothing after it: it had left the loop in "
        "which the others still are.",
        "{plain} {rest} had never called that before and called nothing after it: they had left the loop in "
        "which the others still are.",
        len(clash.rest),
        plain=clash.plain,
        rest=rank_list(clash.rest).capitalize(),
    )
    return clash.mismatch("uneven_inputs", says, less=0.5)


def _came_early_to_a_barrier(clash: Clash) -> Mismatch | None:
    if clash.own.kind != "barrier" or not _is_at_barrier_alone(clash):
        return None
    rest = rank_list(clash.rest).capitalize()
    if clash.member.stack(clash.seq):
        says = say("{plain} {rest} had left the loop in which the others still are.", plain=clash.plain, rest=rest)
        return clash.mismatch("uneven_inputs", says, less=1)
    says = say(
        "{plain} {rest} reached a barrier with fewer calls than the others have made.", plain=clash.plain, rest=rest
    )
    return clash.mismatch("collective_skipped", says, less=1)


READINGS: tuple[Callable[[Clash], Mismatch | None], ...] = (
    _runs_shifted,
    _left_one_out,
    _made_one_more,
    _left_the_loop,
    _came_early_to_a_barrier,
)
"""In the order in which they are tried; what fits none is a wrong call."""


def _following(clash: Clash) -> set[Any]:
    """Signatures of the call that comes after the others' call."""
    following = clash.peer.signature(clash.seq + 1)
    return {following} if following is not None else _followed_before(clash.group, clash.most, clash.seq)


def _followed_before(group: Standing, ranks: Sequence[int], seq: int) -> set[Any]:
    """Signatures that have followed the group's call at `seq` after the same two calls before."""
    found: set[Any] = set()
    for rank in ranks[:4]:
        member = group.members[rank]
        here = [member.signature(x) for x in (seq - 2, seq - 1, seq)]
        if None in here:
            continue
        for old in member.seqs[:-1]:
            if old < seq and [member.signature(x) for x in (old - 2, old - 1, old)] == here:
                found.add(member.signature(old + 1))
    return found - {None}


def _is_at_barrier_alone(clash: Clash) -> bool:
    return _is_barrier(clash.own) and not _is_barrier(clash.theirs)


def _is_barrier(call: Call) -> bool:
    """A barrier, also where the all_reduce of one byte or number that carries it out is recorded instead."""
    return "barrier" in call.kind or (
        call.kind == "allreduce"
        and call.sizes_in == ((1,),)
        and {"Byte", "Int"} >= {x for x in call.dtypes if x != "|"}
    )


def _is_its_only_and_last(job: Job, group: Standing, rank: int, seq: int) -> bool:
    """The rank's call at `seq` is its newest of all, and in its whole history the only one of its kind."""
    dump, row = job.dumps[rank], group.members[rank].row(seq)
    if row is None or dump.partial or int(dump.call[row + 1 :].size) > 0:
        return False
    kind = dump.calls[dump.call[row]]
    alike = [i for i, x in enumerate(dump.calls) if (x.kind, x.signature) == (kind.kind, kind.signature)]
    places = dump.group == dump.group[row]
    return int(np.count_nonzero(np.isin(dump.call, alike) & places)) == len(group.members[rank].rows(seq))


def _short_of(job: Job, group: Standing, rank: int, seq: int, peers: Sequence[int]) -> int:
    """How many of its peers' calls from `seq` on the rank has not made; one may have been left out by mistake."""
    here = max((sum(x >= seq for x in group.members[peer].seqs[-8:]) for peer in peers), default=0)
    return here + sum(rank in x.missing for x in job.stuck if x is not group)
