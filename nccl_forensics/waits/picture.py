"""Where every rank stood in every process group, from dumps alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nccl_forensics.model import Problem
from nccl_forensics.recorder.dumps import COMPLETED, P2P, RETIRED, STARTED, Call, Dump, Ints
from nccl_forensics.recorder.groups import Key, group_keys
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.waits import lateness
from nccl_forensics.who.roster import likely_world

LENIENT = frozenset({"gloo", "c10d", "mpi", "ucc", "fake"})
"""Backends whose entries stay "scheduled": `retired` is all that tells of progress, also of failed work."""
ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "coalesced", "unknown"})
"""Operations that one member can complete before all have entered: a root that only sends, a leaf that only gives."""
CONTEXTS = (16, 8, 4)
"""How many calls before a call must be equal for the calls after them to be expected to be equal. A judgement."""


@dataclass(slots=True)
class Member:
    """What one rank has done in one group."""

    rank: int
    dump: Dump
    all_seqs: Ints
    """Collective sequence numbers of its entries, rising; one stands several times for a coalesced batch or a hook."""
    all_rows: Ints
    """The entries, in that order."""
    over: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether each is over."""
    p2p: Ints
    """Entries of sends and receives."""
    enqueued: int | None
    """Last sequence number entered; None: this dump cannot tell."""
    completed: int | None
    strict: bool
    """Its backend tells completed from failed."""
    timed: bool
    """Its backend tells when the GPU started."""

    @property
    def seqs(self) -> list[int]:
        return sorted(set(self.all_seqs.tolist()))  # np.unique would import numpy.ma

    @property
    def pending(self) -> list[int]:
        return sorted(set(self.all_seqs[~self.over].tolist()))

    def rows(self, seq: int) -> list[int]:
        """The entries of `seq`; [] if the ring lacks it."""
        low, high = np.searchsorted(self.all_seqs, [seq, seq + 1])
        return list(map(int, self.all_rows[low:high]))

    def is_over(self, seq: int, default: bool = False) -> bool:
        low, high = np.searchsorted(self.all_seqs, [seq, seq + 1])
        return bool(self.over[low:high].all()) if high > low else default

    def after(self, row: int) -> int | None:
        """The first sequence number that it called after its entry `row`."""
        later = self.all_seqs[self.all_rows > row]
        return int(later[0]) if len(later) else None

    def calls(self, seq: int) -> tuple[Call, ...]:
        """The operation at `seq`, without the twin that FlightRecorderHook records of it; () if the ring lacks it."""
        calls = [self.dump.calls[self.dump.call[row]] for row in self.rows(seq)]
        own = [x for x in calls if x.backend != "c10d"]
        return tuple(own or calls)

    def signature(self, seq: int) -> tuple[Any, ...] | None:
        calls = self.calls(seq)
        return tuple(x.signature for x in calls) if calls else None

    def row(self, seq: int) -> int | None:
        rows = self.rows(seq)
        return rows[-1] if rows else None

    def stack(self, seq: int) -> tuple[str, ...]:
        row = self.row(seq)
        if row is None or self.dump.stack[row] < 0:
            return ()
        return self.dump.stacks[self.dump.stack[row]]

    def created_ns(self, seq: int) -> int | None:
        row = self.row(seq)
        return int(self.dump.created_ns[row]) or None if row is not None else None


def spans(member: Member) -> lateness.Spans:
    """Its completed collectives; of several entries with one number the last."""
    rows, seqs = member.all_rows, member.all_seqs
    last = np.append(seqs[1:] != seqs[:-1], True) if len(seqs) else np.zeros(0, np.bool_)
    kept = last & (member.dump.completed_ns[rows] > 0) & (member.dump.created_ns[rows] > 0)
    rows, dump = rows[kept], member.dump
    return lateness.Spans(seqs[kept], dump.created_ns[rows], dump.started_ns[rows], dump.completed_ns[rows])


def work_done(dump: Dump) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Per entry: is the operation over? A coalesced batch is over when its closing entry is: its parts never are."""
    done = (dump.flags & COMPLETED) > 0
    states = bool(np.any(dump.flags & (COMPLETED | STARTED)))
    lenient = np.array(
        [x.backend in LENIENT or (not states and x.backend not in ("nccl", "nccl2")) for x in dump.calls]
    )
    if dump.count and lenient.any():
        done |= lenient[dump.call] & ((dump.flags & RETIRED) > 0)
    closing = [i for i, x in enumerate(dump.calls) if x.kind == "coalesced"]
    if closing:
        for end in np.nonzero(np.isin(dump.call, closing))[0].tolist():
            at = end - 1
            while (
                at >= 0
                and dump.group[at] == dump.group[end]
                and dump.seq[at] == dump.seq[end]
                and dump.p2p_seq[at] == dump.p2p_seq[end]
                and dump.calls[dump.call[at]].kind != "coalesced"
            ):
                done[at] = done[end]
                at -= 1
    return done


def member_of(
    dump: Dump, rank: int, infos: Sequence[int], done: np.ndarray[Any, np.dtype[np.bool_]], peers_p2p: bool
) -> Member:
    """`infos`: indices into dump.groups that are this group. `peers_p2p`: somebody sends or receives in it."""
    mine = np.nonzero(np.isin(dump.group, infos))[0] if len(infos) > 1 else np.nonzero(dump.group == infos[0])[0]
    p2p = (dump.flags[mine] & P2P) > 0
    collective = mine[~p2p]
    order = np.argsort(dump.seq[collective], kind="stable")
    rows = collective[order]
    seqs, over = dump.seq[rows], done[rows]
    backends = {dump.calls[i].backend for i in set(dump.call[mine[-64:]].tolist())}
    lenient = bool(backends & LENIENT)
    info = next((dump.groups[i] for i in infos if dump.groups[i].enqueued is not None), None)
    enqueued = int(seqs[-1]) if len(seqs) else None
    finished = seqs[over]
    completed = int(finished[-1]) if len(finished) else None
    if len(mine) and not dump.partial:
        # A p2p entry carries the number of collectives before it.
        enqueued = max(enqueued or 0, int(dump.seq[mine].max()))
    if info is not None and not peers_p2p and not p2p.any():
        offset = offset_of(dump, collective)
        if offset is not None and info.enqueued is not None:
            enqueued = max(enqueued or 0, info.enqueued - offset)
            if info.completed is not None:
                completed = max(completed or 0, info.completed - offset)
    elif dump.partial:
        enqueued = None
    if enqueued is None and not dump.partial and not len(mine) and info is None:
        # Nothing recorded and no counter: not used yet, unless the ring or an only-active dump has dropped it.
        whole = dump.count > 0 and int(dump.record_id.min()) == 0 and bool(done.any())
        if whole or (dump.has_status and dump.all_named):
            enqueued = completed = 0
    if info is not None and enqueued is None and peers_p2p is False and info.enqueued == -1:
        enqueued = completed = 0
    timed = bool(np.any(dump.flags[mine] & STARTED)) or bool(np.any(dump.started_ns[mine]))
    return Member(
        rank,
        dump,
        seqs,
        rows,
        over,
        mine[p2p],
        enqueued,
        completed,
        not lenient,
        timed and backends <= {"nccl", "nccl2"},
    )


def offset_of(dump: Dump, collective: Ints) -> int | None:
    """op_id minus sequence number: what pg_status counts where it counts op ids. None: it varies, so don't use it."""
    if not len(collective):
        return 0
    if dump.calls[dump.call[collective[-1]]].backend == "nccl":
        return 0
    differences = np.unique(dump.op_id[collective] - dump.seq[collective])
    return int(differences[0]) if len(differences) == 1 else None


@dataclass(slots=True)
class Standing:
    """Where one group stands: the oldest operation that somebody has entered and nobody has completed."""

    key: Key
    name: str
    members: dict[int, Member]
    """Those with a dump."""
    ranks: tuple[int, ...]
    """All of them, as far as known."""
    agreed: int = 0
    """Newest sequence number that a member completed and that needs all of them."""
    seq: int | None = None
    """The stuck operation; None: nobody waits."""
    arrived: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    """Members with a dump that cannot tell."""
    no_data: tuple[int, ...] = ()
    perhaps: tuple[int, ...] = ()
    """Ranks without a dump that may be members: no dump lists who belongs to this group."""
    stale: tuple[int, ...] = ()
    """Members whose dump was written before others completed what it does not hold: they went on after it."""
    lagging: tuple[int, ...] = ()
    """Members that have not noticed the end of an operation that peers completed."""

    @property
    def description(self) -> str:
        return self.key[1]

    @property
    def waited(self) -> tuple[int, ...]:
        """Those that whoever has arrived may be waiting for."""
        return tuple(sorted({*self.missing, *self.no_data, *self.unknown, *self.perhaps}))

    @property
    def blocked(self) -> tuple[int, ...]:
        """Those that stand in the stuck operation, whoever holds it up."""
        return tuple(x for x in self.arrived if self.seq is not None and not self.members[x].is_over(self.seq))

    @property
    def label(self) -> str:
        """As people call it: the group of all by its description, others by name and, if one was given, description."""
        if self.description == "default_pg":
            return self.description
        return f"{self.name} ({self.description})" if self.description not in ("", "undefined") else self.name

    def op(self, seq: int) -> Call | None:
        votes: Counter[Call] = Counter()
        for rank in self.arrived or self.members:
            votes.update(self.members[rank].calls(seq)[:1])
        return votes.most_common(1)[0][0] if votes else None

    def one_sided(self, seq: int) -> bool:
        call = self.op(seq)
        return call is not None and call.kind in ONE_SIDED


def would_show(dump: Dump) -> bool:
    """An operation that is not over would be among its entries: it has some, or its counters say none is open."""
    return dump.count > 0 or dump.idle is True


def last_is_unsure(member: Member, seq: int, done_at: Mapping[int, int]) -> bool:
    """gloo retires failed work too: only an operation that its rank went on from is certainly over."""
    row = member.row(seq)
    return not member.strict and row is not None and row >= done_at[member.rank]


def stand(
    key: Key, name: str, members: dict[int, Member], ranks: tuple[int, ...], last_row: Mapping[int, int]
) -> Standing:
    here = Standing(key, name, members, ranks)
    here.no_data = tuple(x for x in ranks if x not in members)
    agreed = 0
    for member in members.values():
        seq = member.completed or 0
        while seq > agreed:
            calls = member.calls(seq) or next((m.calls(seq) for m in members.values() if m.rows(seq)), ())
            one_sided = bool(calls) and calls[-1].kind in ONE_SIDED and len(ranks) > 1
            if not one_sided and not last_is_unsure(member, seq, last_row) and member.is_over(seq, True):
                agreed = seq
                break
            seq -= 1
            if (member.completed or 0) - seq > 1000:
                break
    here.agreed = agreed
    waiting: dict[int, int] = {}
    unsure: dict[int, int] = {}
    for rank, member in members.items():
        later = [x for x in member.pending if x > agreed]
        if later:
            waiting[rank] = min(later)
        elif (
            (member.dump.partial or not len(member.all_seqs))
            and (member.enqueued or 0) > max(member.completed or 0, agreed)
            and member.completed is not None
        ):
            waiting[rank] = max(member.completed, agreed) + 1
        elif member.completed is not None and member.completed > agreed and not member.strict:
            unsure[rank] = member.completed
    if not waiting:
        return here
    seq = min(waiting.values())
    here.seq = seq
    arrived, missing, unknown, stale = [], [], [], []
    for rank, member in members.items():
        if member.enqueued is not None and member.enqueued >= seq:
            arrived.append(rank)
        elif member.enqueued is None and not member.dump.partial and would_show(member.dump):
            missing.append(rank)
        elif member.enqueued is None or (member.dump.partial and not member.dump.has_status):
            unknown.append(rank)
        elif member.enqueued < agreed:
            if key[0] or is_default(key):  # else it may be in another group of the same local number
                stale.append(rank)
        else:
            missing.append(rank)
    here.arrived, here.missing = tuple(sorted(arrived)), tuple(sorted(missing))
    here.unknown, here.stale = tuple(sorted(unknown)), tuple(sorted(stale))
    here.lagging = tuple(
        sorted(
            rank
            for rank, member in members.items()
            if member.strict
            and rank not in stale
            and (
                any(x <= agreed for x in member.pending)
                or (member.completed is not None and member.completed < agreed <= (member.enqueued or 0))
            )
            and not member.dump.partial
        )
    )
    return here


@dataclass(slots=True)
class Job:
    dumps: dict[int, Dump]
    done: dict[int, np.ndarray[Any, np.dtype[np.bool_]]]
    groups: dict[Key, Standing]
    world: tuple[int, ...]
    problems: list[Problem] = field(default_factory=list)
    index: dict[int, dict[int, Key]] = field(default_factory=lambda: defaultdict(dict))
    """Rank → its dump's own index of a group → the group."""
    older: frozenset[int] = frozenset()
    """Ranks of which there is a dump, of an earlier moment than all others': left out, so they are without data."""
    _tokens: dict[int, list[Any]] = field(default_factory=dict)

    @property
    def stuck(self) -> list[Standing]:
        return [x for x in self.groups.values() if x.seq is not None]

    @property
    def no_data(self) -> tuple[int, ...]:
        return tuple(x for x in self.world if x not in self.dumps)

    @property
    def gaps(self) -> bool:
        return bool(self.no_data) or any(x.partial for x in self.dumps.values())

    def tokens(self, rank: int) -> list[Any]:
        """The rank's calls in order, as things to compare: where, what, with whom, from which line of the program."""
        if rank not in self._tokens:
            dump = self.dumps[rank]
            words = [(x.kind, x.peer, x.signature) for x in dump.calls]
            stacks = [hash(x) for x in dump.stacks]
            rows = zip(dump.group.tolist(), dump.call.tolist(), dump.stack.tolist(), strict=True)
            self._tokens[rank] = [(g, words[c], stacks[s] if s >= 0 else None) for g, c, s in rows]
        return self._tokens[rank]

    def departs(self, rank: int, since: int) -> int | None:
        """First entry from `since` on that the rank's own history did not lead to expect; None: there is none."""
        tokens = self.tokens(rank)
        for at in range(max(since, 2), len(tokens)):
            for width in CONTEXTS:
                if at < 2 * width:
                    continue
                before = tokens[at - width : at]
                expected = {
                    _bare(tokens[i])
                    for i in range(width, at)
                    if tokens[i - 1] == before[-1] and tokens[i - width : i] == before
                }
                if expected:
                    if _bare(tokens[at]) not in expected:
                        return at
                    break
        return None

    def usual(self, rank: int, row: int) -> set[str]:
        """Kinds of calls that the rank's history leads to expect at its entry `row`."""
        tokens = self.tokens(rank)
        for width in CONTEXTS:
            if row >= 2 * width:
                before = tokens[row - width : row]
                found = {tokens[i][1][0] for i in range(width, row) if tokens[i - width : i] == before}
                if found:
                    return found
        return set()

    def next_groups(self, rank: int) -> set[int]:
        """Indices of the groups that the rank's history leads to expect its next call in."""
        tokens = self.tokens(rank)
        for width in CONTEXTS:
            if len(tokens) > width:
                last = tokens[-width:]
                found = {tokens[i][0] for i in range(width, len(tokens)) if tokens[i - width : i] == last}
                if found:
                    return found
        return set()

    def first_pending(self, rank: int) -> int:
        """The oldest entry that is not over, or the number of entries."""
        open_rows = np.nonzero(~self.done[rank])[0]
        return int(open_rows[0]) if len(open_rows) else self.dumps[rank].count


def _bare(token: Any) -> Any:
    """A token without sizes that vary from step to step anyway."""
    group, (kind, peer, _), stack = token
    return group, kind, peer, stack


def world_of(dumps: Mapping[int, Dump], expected: int | None) -> tuple[int, ...]:
    ranks = set(dumps)
    for dump in dumps.values():
        ranks.update(dump.others)
        for group in dump.groups:
            ranks.update(group.members or ())
    whole = likely_world(ranks)
    return tuple(range(max(whole, expected or 0))) if whole is not None else tuple(sorted(ranks))


def is_default(key: Key) -> bool:
    return key[1] == "default_pg" or (not key[1] and key[2] == "0")


def job_of(dumps: dict[int, Dump], expected_world: int | None, problems: list[Problem]) -> Job:
    world = world_of(dumps, expected_world)
    done = {rank: work_done(dump) for rank, dump in dumps.items()}
    last_row = {rank: dump.count - 1 for rank, dump in dumps.items()}
    posting = {rank for rank, dump in dumps.items() if np.any(dump.flags & P2P)}
    keys, names = group_keys(dumps)
    job = Job(dumps, done, {}, world, problems)
    for key, where in keys.items():
        for rank, infos in where.items():
            job.index[rank].update(dict.fromkeys(infos, key))
        ranks = key[0] or (world if is_default(key) else tuple(sorted(where)))
        rest = [x for x in ranks if x not in where and x in dumps]
        p2p = any(
            bool(np.any(dumps[rank].flags[np.isin(dumps[rank].group, infos)] & P2P))
            for rank, infos in where.items()
            if rank in posting
        )
        members = {rank: member_of(dumps[rank], rank, infos, done[rank], p2p) for rank, infos in where.items()}
        for rank in rest:
            members[rank] = _absent(dumps[rank], rank)
        job.groups[key] = stand(key, names[key], members, ranks, last_row)
    _part_namesakes(job, last_row)
    _perhaps_members(job)
    return job


def _perhaps_members(job: Job) -> None:
    """Where no dump lists a group's members (gloo), those without a dump may be among them.

    Groups of one description part the job among them: one that has its full share lacks nobody.
    """
    absent = job.no_data
    for group in job.groups.values() if absent else ():
        if group.key[0] or is_default(group.key):
            continue
        sisters = [x for x in job.groups.values() if x.description == group.description and not x.key[0]]
        apart = len({r for x in sisters for r in x.ranks}) == sum(len(x.ranks) for x in sisters)
        if not (group.description and apart and len(group.ranks) * len(sisters) >= len(job.world)):
            group.perhaps = absent


def _part_namesakes(job: Job, last_row: Mapping[int, int]) -> None:
    """Take apart what has only a process-local number in common (torch 2.2): several groups that look like one.

    Who completed an operation is in another group than who still waits in the one of that number. Only ranks that a
    group with known members misses are looked for among those who have not entered.
    """
    late = {x for group in job.stuck if group.key[0] or is_default(group.key) for x in group.missing}
    for key, group in list(job.groups.items()):
        if key[0] or is_default(key) or group.seq is not None or not late:
            continue
        waiting: dict[int, set[int]] = defaultdict(set)
        for rank, member in group.members.items():
            if member.strict and (pending := member.pending):
                waiting[min(pending)].add(rank)
        for seq, ranks in sorted(waiting.items()):
            absent = {x for x in late & group.members.keys() if group.members[x].enqueued == seq - 1} - ranks
            if not absent:
                continue
            apart = tuple(sorted(ranks | absent))
            own: Key = (apart, key[1], key[2])
            members = {x: group.members[x] for x in apart}
            job.groups[own] = stand(own, group.name, members, apart, last_row)
            rest = {x: m for x, m in group.members.items() if x not in members}
            group = job.groups[key] = stand(key, group.name, rest, tuple(sorted(rest)), last_row)
            for rank in apart:
                job.index[rank] = {i: own if k == key else k for i, k in job.index[rank].items()}


def _absent(dump: Dump, rank: int) -> Member:
    """A member whose dump does not know the group: it has not used it, if the dump is one that lists what was used."""
    unused = not dump.partial and (dump.has_status or (dump.count > 0 and int(dump.record_id.min()) == 0))
    zero = 0 if unused else None
    none = np.zeros(0, np.int64)
    return Member(rank, dump, none, none, np.zeros(0, np.bool_), none, zero, zero, True, False)


def rank_list(ranks: Collection[int]) -> str:
    return phrases.ranks(ranks) if ranks else say("nobody")


def numel(sizes: tuple[tuple[int, ...], ...]) -> int | None:
    if not sizes:
        return None
    total = 0
    for size in sizes:
        product = 1
        for n in size:
            product *= n
        total += product
    return total if 0 <= total < 1 << 63 else None
