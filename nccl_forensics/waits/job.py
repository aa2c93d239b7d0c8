"""All ranks' dumps of one job, and where every process group stands by them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nccl_forensics.recorder.dumps import P2P, Dump
from nccl_forensics.recorder.groups import Key, group_keys
from nccl_forensics.waits.history import History
from nccl_forensics.waits.member import Member, member_of, member_without_entries, work_done
from nccl_forensics.waits.standing import Standing, is_default, members_known, stand
from nccl_forensics.who.roster import likely_world


@dataclass(frozen=True, eq=False)
class Job:
    """What the dumps of a job hold."""

    dumps: Mapping[int, Dump]
    """One for each rank that left one."""
    histories: Mapping[int, History]
    """The same dumps as each rank's calls in order."""
    groups: Mapping[Key, Standing]
    index: Mapping[int, Mapping[int, Key]]
    """Rank → its dump's own index of a group → the group."""
    world: tuple[int, ...]
    """All ranks, as far as known."""
    older: frozenset[int] = frozenset()
    """Ranks of which there is a dump, of an earlier moment than all others': left out, so they are without data."""

    @cached_property
    def stuck(self) -> tuple[Standing, ...]:
        """Groups in which somebody waits."""
        return tuple(x for x in self.groups.values() if x.seq is not None)

    @cached_property
    def no_data(self) -> tuple[int, ...]:
        return tuple(x for x in self.world if x not in self.dumps)

    @cached_property
    def gaps(self) -> bool:
        """Some dumps are missing or damaged."""
        return bool(self.no_data) or any(x.partial for x in self.dumps.values())

    def group_at(self, rank: int, row: int) -> Standing:
        """The group of a rank's entry."""
        return self.groups[self.index[rank][int(self.dumps[rank].group[row])]]

    def peer_at(self, rank: int, row: int) -> int | None:
        """The rank at the other end of a rank's entry, if that is a send or receive whose name says it."""
        if not self.dumps[rank].flags[row] & P2P:
            return None
        return self.group_at(rank, row).peer_of(self.histories[rank].call(row))


def job_of(dumps: Mapping[int, Dump], expected_world: int | None, older: frozenset[int] = frozenset()) -> Job:
    """`expected_world`: how many ranks the job had, where something else tells it."""
    world = world_of(dumps, expected_world)
    histories = {rank: History(dump, work_done(dump)) for rank, dump in dumps.items()}
    keys, names = group_keys(dumps)
    groups, moved = _part_namesakes(
        {key: _standing(key, names[key], where, world, histories) for key, where in keys.items()}
    )
    index: dict[int, dict[int, Key]] = defaultdict(dict)
    for key, where in keys.items():
        for rank, infos in where.items():
            index[rank].update(dict.fromkeys(infos, moved.get((rank, key), key)))
    absent = tuple(x for x in world if x not in dumps)
    return Job(dumps, histories, _with_perhaps(groups, absent, len(world)), index, world, older)


def world_of(dumps: Mapping[int, Dump], expected: int | None) -> tuple[int, ...]:
    ranks = set(dumps)
    for dump in dumps.values():
        ranks.update(dump.others)
        for group in dump.groups:
            ranks.update(group.members or ())
    whole = likely_world(ranks)
    return tuple(range(max(whole, expected or 0))) if whole is not None else tuple(sorted(ranks))


def _standing(
    key: Key,
    name: str,
    where: Mapping[int, Sequence[int]],
    world: tuple[int, ...],
    histories: Mapping[int, History],
) -> Standing:
    """`where`: rank → the indices under which its dump knows the group."""
    ranks = key[0] or (world if is_default(key) else tuple(sorted(where)))
    with_p2p = any(_sends_or_receives(histories[rank], infos) for rank, infos in where.items())
    members: dict[int, Member] = {}
    for rank, infos in where.items():
        members[rank] = member_of(histories[rank].dump, rank, infos, histories[rank].over, with_p2p)
    for rank in ranks:
        if rank not in where and rank in histories:
            members[rank] = member_without_entries(histories[rank].dump, rank)
    return stand(key, name, members, ranks)


def _sends_or_receives(history: History, infos: Sequence[int]) -> bool:
    """Does the rank send or receive in the group that its dump knows under these indices?"""
    return len(history.p2p) > 0 and bool(np.isin(history.dump.group[history.p2p], infos).any())


def _with_perhaps(groups: Mapping[Key, Standing], absent: tuple[int, ...], world: int) -> Mapping[Key, Standing]:
    """The groups with those without a dump (`absent`) as perhaps missing, where they may be members."""
    if not absent:
        return groups
    lacking = {key for key, group in groups.items() if _may_lack_members(group, groups, world)}
    return {key: replace(group, perhaps=absent) if key in lacking else group for key, group in groups.items()}


def _may_lack_members(group: Standing, groups: Mapping[Key, Standing], world: int) -> bool:
    """No dump lists the group's members (gloo).

    Groups of one description part the job among them: one that has its full share lacks nobody.
    """
    if members_known(group.key):
        return False
    sisters = [x for x in groups.values() if x.description == group.description and not x.key[0]]
    apart = len({r for x in sisters for r in x.ranks}) == sum(len(x.ranks) for x in sisters)
    has_full_share = bool(group.description) and apart and len(group.ranks) * len(sisters) >= world
    return not has_full_share


def _part_namesakes(groups: Mapping[Key, Standing]) -> tuple[dict[Key, Standing], dict[tuple[int, Key], Key]]:
    """Take apart what has only a process-local number in common (torch 2.2): several groups that look like one.

    Gives the groups, and for (rank, old key) the key of the group that the rank was moved to.
    """
    stuck = [x for x in groups.values() if x.seq is not None]
    late = {x for group in stuck if members_known(group.key) for x in group.missing}
    parted = dict(groups)
    moved: dict[tuple[int, Key], Key] = {}
    for key, group in groups.items():
        if members_known(key) or group.seq is not None or not late:
            continue
        parts, rest = _parts_of(group, late)
        parted[key] = rest
        for part in parts:
            parted[part.key] = part
            moved |= {(rank, key): part.key for rank in part.ranks}
    return parted, moved


def _parts_of(group: Standing, late: set[int]) -> tuple[list[Standing], Standing]:
    """The groups that look like this one, and the rest, which may be one group or several that nobody waits in.

    Who completed an operation is in another group than who still waits in the one of that number. Only ranks that a
    group with known members misses (`late`) are looked for among those who have not entered.
    """
    waiting: dict[int, set[int]] = defaultdict(set)
    for rank, member in group.members.items():
        if member.strict and (pending := member.pending):
            waiting[pending[0]].add(rank)
    parts: list[Standing] = []
    rest = group
    for seq, ranks in sorted(waiting.items()):
        absent = {x for x in late & rest.members.keys() if rest.members[x].enqueued == seq - 1} - ranks
        if not absent:
            continue
        apart = tuple(sorted(ranks | absent))
        own: Key = (apart, group.key[1], group.key[2])
        parts.append(stand(own, group.name, {x: rest.members[x] for x in apart}, apart))
        others = {x: m for x, m in rest.members.items() if x not in apart}
        rest = stand(group.key, group.name, others, tuple(sorted(others)))
    return parts, rest
