"""What every process group was doing when the job stopped: its ranks' Flight Recorder dumps held against each other.

A group is known by its members and description, never by its process-local id; operations are aligned by
`collective_seq_id`, never by record_id; nothing is concluded from clocks of different hosts.

The way: dumps → one per rank → per group a `_Standing` (which operation is stuck, who entered, who did not) → waits →
the ranks at the end of the chains → suspects. A dump holds no time of its own, so a hang looks like a moment of a
running job; they are told apart by a peer that has completed what another rank's dump does not hold yet.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nccl_forensics import catalog, lateness, words
from nccl_forensics.dumps import COMPLETED, P2P, RETIRED, STARTED, Call, Dump, Ints
from nccl_forensics.dumps import dump_of as dump_of
from nccl_forensics.identify import likely_world
from nccl_forensics.messages import joined, say, say_many
from nccl_forensics.model import Detail, Evidence, GroupState, Problem, RankCounters, Reconstruction, Suspect, Wait

LENIENT = frozenset({"gloo", "c10d", "mpi", "ucc", "fake"})
"""Backends whose entries stay "scheduled": `retired` is all that tells of progress, also of failed work."""
ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "coalesced", "unknown"})
"""Operations that one member can complete before all have entered: a root that only sends, a leaf that only gives."""
OLD_FILE_NS = 300 * 10**9
"""A dump that lags behind its peers' progress by more than this was left by something earlier. A judgement."""
ONE_MOMENT_NS = 10**9
"""The watchdog looks every 100 ms for what has ended: what began within this time before is no hang. A judgement."""
CONTEXTS = (16, 8, 4)
"""How many calls before a call must be equal for the calls after them to be expected to be equal. A judgement."""

PARTING = 2000
"""How many collectives back a shift against the peers is looked for. A judgement."""

CLEAN, GAPS, WEAK = 3.5, 2.0, 1.0
"""Log-odds of a finding: all dumps are there and agree; some are missing or cut; a hint. Judgements."""
CIRCLE_ROOTS = 64
"""From how many ranks a shortest circle of waits is looked for. A judgement."""
SHOWN = 8
"""How many ranks a sentence names before it counts the rest."""
OUTLIERS = 0.25
"""Ranks behind the others mean something while they are few; NCCL's own reports (RAS) draw the line at a quarter."""

Key = tuple[tuple[int, ...], str, str]
"""A group: members, description, and the name where the members aren't known."""


# --- one rank in one group ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Member:
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


def _spans(member: _Member) -> lateness.Spans:
    """Its completed collectives; of several entries with one number the last."""
    rows, seqs = member.all_rows, member.all_seqs
    last = np.append(seqs[1:] != seqs[:-1], True) if len(seqs) else np.zeros(0, np.bool_)
    kept = last & (member.dump.completed_ns[rows] > 0) & (member.dump.created_ns[rows] > 0)
    rows, dump = rows[kept], member.dump
    return lateness.Spans(seqs[kept], dump.created_ns[rows], dump.started_ns[rows], dump.completed_ns[rows])


def _done(dump: Dump) -> np.ndarray[Any, np.dtype[np.bool_]]:
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


def _member(
    dump: Dump, rank: int, infos: Sequence[int], done: np.ndarray[Any, np.dtype[np.bool_]], peers_p2p: bool
) -> _Member:
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
        offset = _offset(dump, collective)
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
    return _Member(
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


def _offset(dump: Dump, collective: Ints) -> int | None:
    """op_id minus sequence number: what pg_status counts where it counts op ids. None: it varies, so don't use it."""
    if not len(collective):
        return 0
    if dump.calls[dump.call[collective[-1]]].backend == "nccl":
        return 0
    differences = np.unique(dump.op_id[collective] - dump.seq[collective])
    return int(differences[0]) if len(differences) == 1 else None


# --- one group ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Standing:
    """Where one group stands: the oldest operation that somebody has entered and nobody has completed."""

    key: Key
    name: str
    members: dict[int, _Member]
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


def _would_show(dump: Dump) -> bool:
    """An operation that is not over would be among its entries: it has some, or its counters say none is open."""
    return dump.count > 0 or dump.idle is True


def _last_is_unsure(member: _Member, seq: int, done_at: Mapping[int, int]) -> bool:
    """gloo retires failed work too: only an operation that its rank went on from is certainly over."""
    row = member.row(seq)
    return not member.strict and row is not None and row >= done_at[member.rank]


def _stand(
    key: Key, name: str, members: dict[int, _Member], ranks: tuple[int, ...], last_row: Mapping[int, int]
) -> _Standing:
    here = _Standing(key, name, members, ranks)
    here.no_data = tuple(x for x in ranks if x not in members)
    agreed = 0
    for member in members.values():
        seq = member.completed or 0
        while seq > agreed:
            calls = member.calls(seq) or next((m.calls(seq) for m in members.values() if m.rows(seq)), ())
            one_sided = bool(calls) and calls[-1].kind in ONE_SIDED and len(ranks) > 1
            if not one_sided and not _last_is_unsure(member, seq, last_row) and member.is_over(seq, True):
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
        elif member.enqueued is None and not member.dump.partial and _would_show(member.dump):
            missing.append(rank)
        elif member.enqueued is None or (member.dump.partial and not member.dump.has_status):
            unknown.append(rank)
        elif member.enqueued < agreed:
            if key[0] or _is_default(key):  # else it may be in another group of the same local number
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


# --- the whole job --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Job:
    dumps: dict[int, Dump]
    done: dict[int, np.ndarray[Any, np.dtype[np.bool_]]]
    groups: dict[Key, _Standing]
    world: tuple[int, ...]
    problems: list[Problem] = field(default_factory=list)
    index: dict[int, dict[int, Key]] = field(default_factory=lambda: defaultdict(dict))
    """Rank → its dump's own index of a group → the group."""
    older: frozenset[int] = frozenset()
    """Ranks of which there is a dump, of an earlier moment than all others': left out, so they are without data."""
    _tokens: dict[int, list[Any]] = field(default_factory=dict)

    @property
    def stuck(self) -> list[_Standing]:
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


def choose(dumps: Iterable[Dump], problems: list[Problem]) -> dict[int, Dump]:
    """One dump for each rank: whole before damaged, of the newest incident, with stacks and newest within it."""
    by_rank: dict[int, list[Dump]] = defaultdict(list)
    for dump in dumps:
        if dump.rank is not None:
            by_rank[dump.rank].append(dump)
    chosen: dict[int, Dump] = {}
    for rank, several in sorted(by_rank.items()):
        newest = max(x.newest_ns or 0 for x in several)
        best = max(
            several,
            key=lambda x: (
                newest - (x.newest_ns or newest) < OLD_FILE_NS,
                not x.partial,
                x.has_status,
                bool(x.stacks and any(x.stacks)),
                x.newest_ns or 0,
                x.form,
                x.path,
            ),
        )
        chosen[rank] = best
        for other in several:
            if other is not best and newest - (other.newest_ns or newest) >= OLD_FILE_NS:
                says = say("an older dump of rank {rank}; {path} is used", rank=rank, path=best.path)
                problems.append(Problem(says=says, source=other.path))
    return chosen


def group_keys(dumps: Mapping[int, Dump]) -> tuple[dict[Key, dict[int, list[int]]], dict[Key, str]]:
    """Group → rank → indices into that rank's dump.groups; and each group's name."""
    known: dict[tuple[str, str], set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps.values():
        for group in dump.groups:
            if group.members:
                known[group.name, group.description].add(group.members)
    found: dict[Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    names: dict[Key, str] = {}
    for rank, dump in dumps.items():
        for index, group in enumerate(dump.groups):
            members = group.members
            if members is None:
                fitting = [x for x in known.get((group.name, group.description), ()) if rank in x]
                members = fitting[0] if len(fitting) == 1 else None
            key: Key = (members, group.description, "") if members else ((), group.description, group.name)
            found[key][rank].append(index)
            names[key] = min(names.get(key, group.name), group.name)
    return found, names


def _world(dumps: Mapping[int, Dump], expected: int | None) -> tuple[int, ...]:
    ranks = set(dumps)
    for dump in dumps.values():
        ranks.update(dump.others)
        for group in dump.groups:
            ranks.update(group.members or ())
    whole = likely_world(ranks)
    return tuple(range(max(whole, expected or 0))) if whole is not None else tuple(sorted(ranks))


def _is_default(key: Key) -> bool:
    return key[1] == "default_pg" or (not key[1] and key[2] == "0")


def _job(dumps: dict[int, Dump], expected_world: int | None, problems: list[Problem]) -> _Job:
    world = _world(dumps, expected_world)
    done = {rank: _done(dump) for rank, dump in dumps.items()}
    last_row = {rank: dump.count - 1 for rank, dump in dumps.items()}
    posting = {rank for rank, dump in dumps.items() if np.any(dump.flags & P2P)}
    keys, names = group_keys(dumps)
    job = _Job(dumps, done, {}, world, problems)
    for key, where in keys.items():
        for rank, infos in where.items():
            job.index[rank].update(dict.fromkeys(infos, key))
        ranks = key[0] or (world if _is_default(key) else tuple(sorted(where)))
        rest = [x for x in ranks if x not in where and x in dumps]
        p2p = any(
            bool(np.any(dumps[rank].flags[np.isin(dumps[rank].group, infos)] & P2P))
            for rank, infos in where.items()
            if rank in posting
        )
        members = {rank: _member(dumps[rank], rank, infos, done[rank], p2p) for rank, infos in where.items()}
        for rank in rest:
            members[rank] = _absent(dumps[rank], rank)
        job.groups[key] = _stand(key, names[key], members, ranks, last_row)
    _part_namesakes(job, last_row)
    _perhaps_members(job)
    return job


def _perhaps_members(job: _Job) -> None:
    """Where no dump lists a group's members (gloo), those without a dump may be among them.

    Groups of one description part the job among them: one that has its full share lacks nobody.
    """
    absent = job.no_data
    for group in job.groups.values() if absent else ():
        if group.key[0] or _is_default(group.key):
            continue
        sisters = [x for x in job.groups.values() if x.description == group.description and not x.key[0]]
        apart = len({r for x in sisters for r in x.ranks}) == sum(len(x.ranks) for x in sisters)
        if not (group.description and apart and len(group.ranks) * len(sisters) >= len(job.world)):
            group.perhaps = absent


def _part_namesakes(job: _Job, last_row: Mapping[int, int]) -> None:
    """Take apart what has only a process-local number in common (torch 2.2): several groups that look like one.

    Who completed an operation is in another group than who still waits in the one of that number. Only ranks that a
    group with known members misses are looked for among those who have not entered.
    """
    late = {x for group in job.stuck if group.key[0] or _is_default(group.key) for x in group.missing}
    for key, group in list(job.groups.items()):
        if key[0] or _is_default(key) or group.seq is not None or not late:
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
            job.groups[own] = _stand(own, group.name, members, apart, last_row)
            rest = {x: m for x, m in group.members.items() if x not in members}
            group = job.groups[key] = _stand(key, group.name, rest, tuple(sorted(rest)), last_row)
            for rank in apart:
                job.index[rank] = {i: own if k == key else k for i, k in job.index[rank].items()}


def _absent(dump: Dump, rank: int) -> _Member:
    """A member whose dump does not know the group: it has not used it, if the dump is one that lists what was used."""
    unused = not dump.partial and (dump.has_status or (dump.count > 0 and int(dump.record_id.min()) == 0))
    zero = 0 if unused else None
    none = np.zeros(0, np.int64)
    return _Member(rank, dump, none, none, np.zeros(0, np.bool_), none, zero, zero, True, False)


# --- sends and receives ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Owed:
    """A send or receive that was posted and whose counterpart was not."""

    waiter: int
    ower: int
    group: _Standing
    row: int
    """The waiter's entry."""
    passed: int | None
    """The ower's first entry after the last collective that both agree on, if it went on without the counterpart."""


def _owed(job: _Job) -> list[_Owed]:
    """Posted p2p operations without a counterpart, where the names say who the peer is and both have a dump."""
    found: list[_Owed] = []
    for group in job.groups.values():
        posts: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: {"send": [], "recv": []})
        for rank, member in group.members.items():
            for row in member.p2p.tolist():
                if job.done[rank][row]:
                    continue
                call = member.dump.calls[member.dump.call[row]]
                if call.kind not in ("send", "recv") or call.peer is None or call.peer >= len(group.ranks):
                    continue
                peer = group.ranks[call.peer]
                if peer == rank:
                    continue
                posts[(rank, peer) if call.kind == "send" else (peer, rank)][call.kind].append(row)
        whole = {rank for rank, x in group.members.items() if not x.dump.partial and _from_the_start(x.dump)}
        for (sender, receiver), both in posts.items():
            sends, receives = both["send"], both["recv"]
            if len(sends) == len(receives) or ({sender, receiver} <= whole and _paired(group, sender, receiver)):
                continue
            waiter, ower = (sender, receiver) if len(sends) > len(receives) else (receiver, sender)
            rows = sends if waiter == sender else receives
            row = rows[min(len(sends), len(receives))]
            other = group.members.get(ower)
            if other is not None and other.dump.partial:
                continue
            passed = _passed(job, waiter, row, ower) if other is not None else None
            found.append(_Owed(waiter, ower, group, row, passed))
    return found


def _from_the_start(dump: Dump) -> bool:
    """Its ring still holds the first operation, and those that are over."""
    return dump.count > 0 and int(dump.record_id[0]) == 0 and int(dump.record_id[-1]) == dump.count - 1


def _posted(group: _Standing, rank: int, kind: str, peer: int) -> list[int]:
    """The rank's entries of sends to, or receives from, another member."""
    member = group.members[rank]
    calls = member.dump.calls
    wanted = [i for i, x in enumerate(calls) if x.kind == kind and x.peer is not None and x.peer < len(group.ranks)]
    fitting = [i for i in wanted if group.ranks[calls[i].peer or 0] == peer]
    return list(map(int, member.p2p[np.isin(member.dump.call[member.p2p], fitting)]))


def _paired(group: _Standing, sender: int, receiver: int) -> bool:
    """As many sends as receives were ever posted between the two."""
    return len(_posted(group, sender, "send", receiver)) == len(_posted(group, receiver, "recv", sender))


def _older_by_p2p(job: _Job) -> bool:
    """Somebody completed a send or receive whose counterpart the peer's dump lacks: that was written earlier."""
    for group in job.groups.values():
        whole = [r for r, x in group.members.items() if len(x.p2p) and x.strict and not x.dump.partial]
        whole = [x for x in whole if _from_the_start(group.members[x].dump)]
        peers: set[tuple[int, int]] = set()
        for rank in whole:
            member = group.members[rank]
            for index in set(member.dump.call[member.p2p].tolist()):
                peer = member.dump.calls[index].peer
                if peer is not None and peer < len(group.ranks) and group.ranks[peer] in whole:
                    peers.add((rank, group.ranks[peer]))
        for rank, peer in peers:
            for kind, other in (("send", "recv"), ("recv", "send")):
                over = sum(bool(job.done[rank][x]) for x in _posted(group, rank, kind, peer))
                if over > len(_posted(group, peer, other, rank)):
                    return True
    return False


def _passed(job: _Job, waiter: int, row: int, other: int) -> int | None:
    """Whether `other` has entered a collective that `waiter` called after its entry `row`.

    Gives `other`'s first entry after the last collective before that; None: it has not.

    Whatever `waiter` waits for at `row`, `other` will not do it any more, or does it in another order.
    """
    since = None
    for group in job.groups.values():
        mine, theirs = group.members.get(waiter), group.members.get(other)
        if mine is None or theirs is None or theirs.enqueued is None:
            continue
        after = mine.after(row)
        if after is not None and theirs.enqueued >= after:
            before = theirs.row(after - 1)
            start = before + 1 if before is not None else 0
            since = start if since is None else max(since, start)
    return since


def _blind_tail(job: _Job, rank: int) -> int | None:
    """The rank's newest entry, if it is a send or receive of a hook, which looks finished even when it blocks."""
    dump = job.dumps[rank]
    if dump.partial or not dump.count:
        return None
    call = dump.calls[dump.call[-1]]
    return dump.count - 1 if call.kind in ("send", "recv") and call.backend in LENIENT else None


# --- findings -------------------------------------------------------------------------------------------------------


def _ranks(ranks: Collection[int]) -> str:
    return words.ranks(ranks) if ranks else say("nobody")


def _wait(ranks: Collection[int]) -> str:
    return say_many("{ranks} waits", "{ranks} wait", len(ranks), ranks=_ranks(ranks))


def _towards(call: Call, peer: int) -> str:
    return say(" to rank {peer}", peer=peer) if call.kind == "send" else say(" from rank {peer}", peer=peer)


def _shape(call: Call | None) -> str:
    if call is None:
        return say("an operation that its ring no longer holds")
    sizes = "×".join(map(str, call.sizes_in[0])) if len(call.sizes_in) == 1 else f"{len(call.sizes_in)} tensors"
    kind = next((x for x in call.dtypes if x != "|"), "")
    return f"{call.op}({sizes} {kind})".replace(" )", ")") if call.sizes_in else call.op


def _place(stack: Sequence[str]) -> str:
    """The innermost frame outside of torch, for a sentence: ' at train.py:96 (train_step)'; '' without a stack."""
    for frame in stack:
        name, _, where = frame.partition(" ")
        if "site-packages" not in where and "dist-packages" not in where and "torch/distributed" not in where:
            return say(" at {where} ({name})", where=where, name=name)
    return ""


def _evidence(member: _Member, row: int | None, says: str) -> Evidence:
    at = f"entry {int(member.dump.record_id[row])}: " if row is not None and member.dump.count else ""
    return Evidence(source=member.dump.path, line=None, text=f"rank {member.rank}, {at}{says}"[:2000])


def _witnesses(group: _Standing, seq: int, ranks: Iterable[int]) -> tuple[Evidence, ...]:
    """What up to four ranks say of `seq`."""
    rows = []
    for rank in list(ranks)[:4]:
        member = group.members[rank]
        row = member.row(seq)
        if row is not None:
            state = (
                "completed"
                if member.is_over(seq)
                else "started"
                if member.dump.flags[row] & STARTED
                else "not completed"
            )
            call = member.calls(seq)[-1]
            text = f"group {group.label}, collective {seq}: {_shape(call)}, {state}{_place(member.stack(seq))}"
        else:
            text = (
                f"group {group.label}: last enqueued {_said(member.enqueued)}, last completed {_said(member.completed)}"
            )
        rows.append(_evidence(member, row, text))
    return tuple(rows)


def _said(number: int | None) -> str:
    return "unknown" if number is None else "none" if number <= 0 else str(number)


def _numel(sizes: tuple[tuple[int, ...], ...]) -> int | None:
    if not sizes:
        return None
    total = 0
    for size in sizes:
        product = 1
        for n in size:
            product *= n
        total += product
    return total if 0 <= total < 1 << 63 else None


def _state(group: _Standing, note: str | None = None) -> GroupState:
    """The group's row of the report."""
    seq = group.seq
    call = group.op(seq) if seq is not None else None
    first = last = timeout = None
    frames: tuple[str, ...] = ()
    started: list[int] = []
    completed: list[int] = []
    if seq is not None:
        times = [t for x in group.arrived if (t := group.members[x].created_ns(seq)) is not None]
        first, last = (min(times), max(times)) if times else (None, None)
        for rank in group.arrived:
            member = group.members[rank]
            row = member.row(seq)
            if row is None:
                continue
            if member.is_over(seq):
                completed.append(rank)
            if member.dump.flags[row] & (STARTED | COMPLETED) and member.timed:
                started.append(rank)
            frames = frames or member.stack(seq)
            timeout = timeout or int(member.dump.timeout_ms[row]) or None
    return GroupState(
        name=group.name,
        description=group.description or None,
        backend=call.backend or None if call else None,
        members=group.ranks,
        members_at_least=not group.key[0],
        op=call.op if call else None,
        seq=seq,
        numel_in=_numel(call.sizes_in) if call else None,
        numel_out=_numel(call.sizes_out) if call else None,
        timeout_ms=timeout,
        arrived=group.arrived,
        started=tuple(started),
        completed=tuple(completed),
        missing=group.missing,
        no_data=tuple(sorted({*group.no_data, *group.unknown, *group.stale})),
        first_arrival_ns=first,
        last_arrival_ns=last,
        frames=frames,
        note=note,
    )


# --- where the programs of two ranks part ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Parting:
    """The rank's calls are its peers' calls, shifted from `seq` on."""

    seq: int
    by: int
    """+1: the rank left one out (its n is their n+1); -1: it made one more."""
    matched: int
    theirs: tuple[str, ...]
    own: tuple[str, ...]


def _words(member: _Member, since: int, numbers: dict[Any, int]) -> dict[int, int]:
    """What the member called from number `since` on, and from where, as numbers; equal calls have equal ones."""
    dump = member.dump
    signatures = [x.signature for x in dump.calls]
    twins = [x.backend == "c10d" for x in dump.calls]
    start = int(np.searchsorted(member.all_seqs, since))
    rows = member.all_rows[start:]
    entries: dict[int, list[tuple[int, int]]] = {}
    listed = (member.all_seqs[start:].tolist(), dump.call[rows].tolist(), dump.stack[rows].tolist())
    for seq, call, stack in zip(*listed, strict=True):
        entries.setdefault(seq, []).append((call, stack))
    known: dict[tuple[tuple[int, int], ...], int] = {}
    words = {}
    for seq, several in entries.items():
        key = tuple(several)
        if key not in known:
            calls = [c for c, _ in several if not twins[c]] or [c for c, _ in several]
            stack = several[-1][1]
            word = tuple(signatures[c] for c in calls), dump.stacks[stack] if stack >= 0 else ()
            known[key] = numbers.setdefault(word, len(numbers))
        words[seq] = known[key]
    return words


def _parting(group: _Standing, rank: int, peers: Sequence[int]) -> _Parting | None:
    """Where `rank` left its peers' sequence by one call and then ran beside it, shifted; by stacks, sizes and types."""
    member = group.members[rank]
    others = [group.members[x] for x in peers if x != rank][:7]
    if not others or not len(member.all_seqs):
        return None

    since = int(member.all_seqs[-1]) - PARTING
    numbers: dict[Any, int] = {}
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for one in others:
        for seq, word in _words(one, since, numbers).items():
            votes[seq][word] += 1
    reference: dict[int, int] = {}
    for seq, counted in votes.items():
        (word, most), *_ = counted.most_common(1)
        if most * 2 > counted.total():
            reference[seq] = word
    own = _words(member, since, numbers)
    both = sorted(own.keys() & reference.keys())
    first = next((seq for seq in both if own[seq] != reference[seq]), None)
    if first is None:
        return None
    for by in (1, -1):
        start = first if by > 0 else first + 1
        pairs = [(own[s], reference[s + by]) for s in sorted(own) if s >= start and s + by in reference]
        straight = [own[s] == reference[s] for s in both if s >= start]
        matched = sum(a == b for a, b in pairs)
        if matched >= 2 and matched >= 0.8 * len(pairs) and matched > sum(straight) + 1:
            stacks = [next((x.stack(first) for x in others if x.rows(first)), ()), member.stack(first)]
            return _Parting(first, by, matched, *stacks)
    return None


def _expected_next(group: _Standing, ranks: Sequence[int], seq: int) -> set[Any]:
    """Signatures that have followed the group's call at `seq` after the same two calls before."""
    found: set[Any] = set()
    for rank in ranks[:4]:
        member = group.members[rank]
        here = [member.signature(x) for x in (seq - 2, seq - 1, seq)]
        if None in here:
            continue
        for old in member.seqs[:-1]:
            if old < seq and [member.signature(x) for x in (old - 2, old - 1, old)] == here:
                following = member.signature(old + 1)
                if following is not None:
                    found.add(following)
    return found


@dataclass(slots=True)
class _Mismatch:
    group: _Standing
    ranks: tuple[int, ...]
    """Who differs; () where neither side has the majority."""
    cause: str
    says: str
    detail: dict[str, Detail]
    weight: float


def _mismatches(job: _Job) -> Iterator[_Mismatch]:
    """Groups whose members entered the stuck place with different calls."""
    for group in job.stuck:
        seq = group.seq
        assert seq is not None
        votes: dict[Any, list[int]] = defaultdict(list)
        for rank in group.arrived:
            signature = group.members[rank].signature(seq)
            if signature is not None:
                votes[signature].append(rank)
        if len(votes) < 2:
            continue
        ordered = sorted(votes.values(), key=lambda x: (-len(x), x))
        most, rest = ordered[0], sorted(x for side in ordered[1:] for x in side)
        tie = len(most) == len(ordered[1]) or len(most) < len(rest)
        if tie:
            usual = _usual(job, group, seq, votes)
            if usual is not None:
                most = votes[usual]
                rest = sorted(x for side in votes.values() if side is not most for x in side)
                tie = False
            else:
                departing = [x for x in group.arrived if _departs_at(job, group, x, seq)]
                if departing and len(departing) < len(group.arrived) and len(departing) * 2 <= len(group.arrived):
                    rest = departing
                    most = [x for x in group.arrived if x not in departing and group.members[x].signature(seq)]
                    tie = not most
        sides = joined((_ranks(x) + ": " + _shape(group.members[x[0]].calls(seq)[-1]) for x in ordered[:4]), "; ")
        if tie:
            says = say(
                "In group {label} the members called different things as collective {seq} ({sides}), and "
                "neither side has a majority.",
                label=group.label,
                seq=seq,
                sides=sides,
            )
            yield _Mismatch(group, (), "collective_mismatch", says, {"first_divergence_seq": seq}, GAPS)
            continue
        yield _judged(job, group, seq, most, rest)


def _departs_at(job: _Job, group: _Standing, rank: int, seq: int) -> bool:
    row = group.members[rank].row(seq)
    return row is not None and job.departs(rank, row) == row


def _departs_by(job: _Job, group: _Standing, rank: int, seq: int) -> bool:
    """The rank's calls leave its habits between the group's collective before `seq` and that one."""
    row, before = group.members[rank].row(seq), group.members[rank].row(seq - 1)
    if row is None:
        return False
    where = job.departs(rank, before + 1 if before is not None else row)
    return where is not None and where <= row


def _usual(job: _Job, group: _Standing, seq: int, votes: Mapping[Any, list[int]]) -> Any:
    """The signature that sister groups (same description and size) have at `seq`; None if they do not decide."""
    sisters: Counter[Any] = Counter()
    for other in job.groups.values():
        if other is not group and other.description == group.description and len(other.ranks) == len(group.ranks):
            for member in other.members.values():
                signature = member.signature(seq)
                if signature is not None:
                    sisters[signature] += 1
    ours = [x for x in sisters if x in votes]
    return ours[0] if len(ours) == 1 and sisters[ours[0]] * 2 > sum(sisters.values()) else None


def _judged(job: _Job, group: _Standing, seq: int, most: Sequence[int], rest: Sequence[int]) -> _Mismatch:
    """The minority `rest` called something else at `seq`: something wrong, or the right thing a place early or late."""
    who = rest[0]
    member, peer = group.members[who], group.members[most[0]]
    own, theirs = member.calls(seq), peer.calls(seq)
    weight = (CLEAN if not job.gaps else GAPS) if len(most) > len(rest) else GAPS
    detail: dict[str, Detail] = {"first_divergence_seq": seq}
    plain = say(
        "In group {label}, collective {seq}, {rest} called {shape}{place}, where {most} called "
        "{other_shape}{other_place}.",
        label=group.label,
        seq=seq,
        rest=_ranks(rest),
        shape=_shape(own[-1]),
        place=_place(member.stack(seq)),
        most=_ranks(most),
        other_shape=_shape(theirs[-1]),
        other_place=_place(peer.stack(seq)),
    )
    parting = _parting(group, who, most)
    if parting is not None:
        return _Mismatch(
            group,
            tuple(rest),
            "collective_skipped",
            _shifted(group, rest, parting) + " " + plain,
            {"first_divergence_seq": parting.seq},
            weight,
        )
    later = [x for x in (seq + 1, seq + 2, seq + 3) if member.rows(x)]
    if later and all(member.signature(x) == peer.signature(x) for x in later if peer.rows(x)):
        straight = any(peer.rows(x) for x in later)
    else:
        straight = False
    if not straight:
        following = _expected_next(group, most, seq)
        if peer.signature(seq + 1) is not None:
            following = {peer.signature(seq + 1)}
        if member.signature(seq) in following:
            says = say(
                "{plain} That is the call that follows there: {rest} left one out.", plain=plain, rest=_ranks(rest)
            )
            return _Mismatch(group, tuple(rest), "collective_skipped", says, detail, weight)
        if later and peer.signature(seq) == member.signature(seq + 1):
            says = say(
                "{plain} What the others called comes next there: {rest} made one call more.",
                plain=plain,
                rest=_ranks(rest),
            )
            return _Mismatch(group, tuple(rest), "collective_skipped", says, detail, weight)
    if _is_barrier(own[-1]) and not _is_barrier(theirs[-1]):
        if all(_left(job, group, x, seq) for x in rest) and _short_of(job, group, who, seq, most) > 1:
            says = say_many(
                "{plain} {rest} had never called that before and called nothing after it: it had left the loop in "
                "which the others still are.",
                "{plain} {rest} had never called that before and called nothing after it: they had left the loop in "
                "which the others still are.",
                len(rest),
                plain=plain,
                rest=_ranks(rest).capitalize(),
            )
            return _Mismatch(group, tuple(rest), "uneven_inputs", says, detail, weight - 0.5)
        if own[-1].kind == "barrier" and member.stack(seq):
            says = say(
                "{plain} {rest} had left the loop in which the others still are.",
                plain=plain,
                rest=_ranks(rest).capitalize(),
            )
            return _Mismatch(group, tuple(rest), "uneven_inputs", says, detail, weight - 1)
        if own[-1].kind == "barrier":
            says = say(
                "{plain} {rest} reached a barrier with fewer calls than the others have made.",
                plain=plain,
                rest=_ranks(rest).capitalize(),
            )
            return _Mismatch(group, tuple(rest), "collective_skipped", says, detail, weight - 1)
    return _Mismatch(group, tuple(rest), "collective_mismatch", plain, detail, weight)


def _is_barrier(call: Call) -> bool:
    """A barrier, also where the all_reduce of one byte or number that carries it out is recorded instead."""
    return "barrier" in call.kind or (
        call.kind == "allreduce"
        and call.sizes_in == ((1,),)
        and {"Byte", "Int"} >= {x for x in call.dtypes if x != "|"}
    )


def _left(job: _Job, group: _Standing, rank: int, seq: int) -> bool:
    """The rank's call at `seq` is its newest of all, and in its whole history the only one of its kind."""
    dump, row = job.dumps[rank], group.members[rank].row(seq)
    if row is None or dump.partial or int(dump.call[row + 1 :].size) > 0:
        return False
    kind = dump.calls[dump.call[row]]
    alike = [i for i, x in enumerate(dump.calls) if (x.kind, x.signature) == (kind.kind, kind.signature)]
    places = dump.group == dump.group[row]
    return int(np.count_nonzero(np.isin(dump.call, alike) & places)) == len(group.members[rank].rows(seq))


def _short_of(job: _Job, group: _Standing, rank: int, seq: int, peers: Sequence[int]) -> int:
    """How many of its peers' calls from `seq` on the rank has not made; one may have been left out by mistake."""
    here = max((sum(x >= seq for x in group.members[peer].seqs[-8:]) for peer in peers), default=0)
    return here + sum(rank in x.missing for x in job.stuck if x is not group)


def _shifted(group: _Standing, ranks: Sequence[int], parting: _Parting) -> str:
    theirs, own = _place(parting.theirs), _place(parting.own)
    beside = ""
    if theirs and own and theirs != own:
        beside = say(" (there the others were{theirs}, {who}{own})", theirs=theirs, who=_ranks(ranks), own=own)
    values = {"who": _ranks(ranks).capitalize(), "label": group.label, "seq": parting.seq}
    values |= {"beside": beside, "matched": parting.matched}
    if parting.by > 0:
        return say(
            "{who} left out a collective of group {label} at or before number {seq}{beside}: from then on {matched} of "
            "its calls equal its peers' calls one place later.",
            **values,
        )
    return say(
        "{who} made one collective more of group {label} at or before number {seq}{beside}: from then on {matched} of "
        "its calls equal its peers' calls one place earlier.",
        **values,
    )


# --- who waits for whom ---------------------------------------------------------------------------------------------


def _edges(job: _Job, owed: Sequence[_Owed]) -> dict[int, set[int]]:
    """Waiter → those it waits for: members that have not entered, or owe a send or a receive."""
    edges: dict[int, set[int]] = defaultdict(set)
    for group in job.stuck:
        if waited := set(group.waited):
            for rank in group.blocked:
                edges[rank] |= waited
    for one in owed:
        edges[one.waiter].add(one.ower)
    return edges


def _cycle(edges: Mapping[int, set[int]], start: Iterable[int]) -> set[int]:
    """Ranks of a circle of waits (a strongly connected component of two or more); empty if there is none."""
    order: list[int] = []
    seen: set[int] = set()
    for root in start:
        if root in seen:
            continue
        seen.add(root)
        work: list[tuple[int, Iterator[int]]] = [(root, iter(sorted(edges.get(root, ()))))]
        while work:
            node, rest = work[-1]
            for after in rest:
                if after not in seen:
                    seen.add(after)
                    work.append((after, iter(sorted(edges.get(after, ())))))
                    break
            else:
                order.append(node)
                work.pop()
    back: dict[int, set[int]] = defaultdict(set)
    for a, targets in edges.items():
        for b in targets:
            back[b].add(a)
    taken: set[int] = set()
    for root in reversed(order):
        if root in taken:
            continue
        component, todo = set(), [root]
        taken.add(root)
        while todo:
            node = todo.pop()
            component.add(node)
            for before in back.get(node, ()):
                if before not in taken and before in seen:
                    taken.add(before)
                    todo.append(before)
        if len(component) > 1:
            return component
    return set()


def _shortest_circle(edges: Mapping[int, set[int]], within: set[int]) -> list[int]:
    """The ranks of a shortest circle of waits, each waiting for the next, the lowest first; [] if there is none."""
    best: list[int] = []
    for root in sorted(within)[:CIRCLE_ROOTS]:
        came: dict[int, int] = {}
        todo = deque([root])
        while todo and root not in came:
            node = todo.popleft()
            for after in sorted(edges.get(node, set()) & within):
                if after not in came:
                    came[after] = node
                    todo.append(after)
        if root in came:
            path = [came[root]]
            while path[-1] != root:
                path.append(came[path[-1]])
            if not best or len(path) < len(best):
                best = path[::-1]
        if len(best) == 2:
            break
    return best


@dataclass(slots=True)
class _Head:
    """A rank's oldest operation that is not over: what its queue, or its program, stands in."""

    group: _Standing
    row: int
    peer: int | None = None
    """Of a send or receive: the rank at its other end."""
    pair: tuple[int, int] | None = None
    """Of a send or receive: (sender, receiver)."""

    def is_of(self, other: _Head) -> bool:
        """Do both ranks stand in the same operation?"""
        return self.group is other.group and self.pair == other.pair


def _heads(job: _Job) -> dict[int, _Head]:
    """Rank → its oldest operation that is not over, if its group is stuck in that, or it is a send or receive."""
    heads: dict[int, _Head] = {}
    for rank, dump in job.dumps.items():
        row = job.first_pending(rank)
        if row >= dump.count:
            continue
        group = job.groups[job.index[rank][int(dump.group[row])]]
        call = dump.calls[dump.call[row]]
        if not dump.flags[row] & P2P:
            if group.seq == int(dump.seq[row]) and rank in group.arrived:
                heads[rank] = _Head(group, row)
        elif call.kind in ("send", "recv") and call.peer is not None and call.peer < len(group.ranks):
            peer = group.ranks[call.peer]
            if peer != rank:
                heads[rank] = _Head(group, row, peer, (rank, peer) if call.kind == "send" else (peer, rank))
    return heads


# --- the verdict ----------------------------------------------------------------------------------------------------


def reconstruct(dumps: Sequence[Dump], *, expected_world: int | None = None) -> Reconstruction:
    """Who entered, who did not, and on whom the others wait, from the dumps of a job's ranks.

    `expected_world`: how many ranks the job had, where something else tells it. Independent of the order of `dumps`.
    """
    problems: list[Problem] = []
    chosen = choose(dumps, problems)
    if not chosen:
        return Reconstruction(problems=tuple(problems))
    job = _job(chosen, expected_world, problems)
    old = _left_over(job)
    if old:
        for rank in old:
            says = say("the dump of rank {rank} is older than what its peers went on to; it is left out", rank=rank)
            problems.append(Problem(says=says, source=chosen[rank].path))
        rest = {rank: dump for rank, dump in chosen.items() if rank not in old}
        job = _job(rest, max(expected_world or 0, len(job.world)), problems)
        job.older = frozenset(old)
    verdict = _Verdict(job)
    verdict.judge()
    return verdict.result()


def _left_over(job: _Job) -> set[int]:
    """Ranks whose dump is of an earlier moment than all others', by minutes."""
    found: set[int] = set()
    for group in job.groups.values():
        times = [t for x in group.members.values() if (t := x.dump.newest_ns) is not None and x.rank not in group.stale]
        for rank in group.stale:
            newest = group.members[rank].dump.newest_ns
            if times and newest is not None and float(np.median(times)) - newest > OLD_FILE_NS:
                found.add(rank)
    return found if len(found) * 2 < len(job.dumps) else set()


class _Verdict:
    """Collects suspects, waits and acquittals of one job."""

    def __init__(self, job: _Job) -> None:
        self.job = job
        self.suspects: list[Suspect] = []
        self.cannot_exclude: set[int] = set()
        self.top: list[_Standing] = []
        self.healthy = False
        self.owed = _owed(job)
        self.edges = _edges(job, self.owed)
        self._next: dict[int, set[int]] = {}

    def judge(self) -> None:
        self._judge()
        if not self.suspects:
            self._always_late()

    def _judge(self) -> None:
        job = self.job
        if any(group.stale for group in job.groups.values()) or _older_by_p2p(job):
            # Peers completed what these ranks' dumps don't hold: the job moved on while they were written.
            self.healthy = True
            return
        if not job.stuck and not self.owed:
            # What the absent ranks did nobody knows: their peers may have left, or be about to wait for them.
            self.healthy = not job.no_data
            if job.no_data and not self._posts_that_never_pair():
                self._nobody_waits()
            return
        found = list(_mismatches(job))
        if found:
            self._mismatched(found)
            return
        if self._went_on() or self._posts_that_never_pair() or self._never_started():
            return
        if self._never_entered() or self._opposite_order():
            return
        self._all_joined()

    # The order is that of how much a finding explains: a wrong call makes everybody wait, also those that never arrive.

    def _mismatched(self, found: Sequence[_Mismatch]) -> None:
        job = self.job
        named: dict[tuple[int, ...], _Mismatch] = {}
        for one in self._by_program([x.group for x in found]):
            mismatch = next(x for x in found if x.group is one)
            named.setdefault(mismatch.ranks, mismatch)
        for mismatch in named.values():
            seq = mismatch.group.seq
            assert seq is not None
            peers = [x for x in mismatch.group.arrived if x not in mismatch.ranks]
            witnesses = _witnesses(mismatch.group, seq, [*mismatch.ranks[:2], *peers[:2]])
            if mismatch.cause == "uneven_inputs":  # what it left undone first may be in a smaller group
                undone = [x for x in job.stuck if set(mismatch.ranks) & set(x.missing)]
                self.top += self._by_program(undone)
            self.top.append(mismatch.group)
            self._add(
                mismatch.ranks,
                mismatch.cause,
                mismatch.weight,
                mismatch.says,
                mismatch.group,
                witnesses,
                mismatch.detail,
            )
            if not mismatch.ranks:
                self.cannot_exclude |= set(mismatch.group.arrived)
            break

    def _posts_that_never_pair(self) -> bool:
        """Sends and receives whose counterpart will not come, because its rank has gone on without it."""
        owed = [x for x in self.owed if x.passed is not None]
        late = {x for group in self.job.stuck for x in group.missing} if self.job.stuck else set(self.job.dumps)
        blind = {x: row for x in sorted(late) if (row := _blind_tail(self.job, x)) is not None}
        if not owed and len(blind) < 2:
            return False
        if owed:
            involved = {x.waiter for x in owed} | {x.ower for x in owed}
            since = {x: self.job.first_pending(x) for x in involved}
            for one in owed:  # a post left out shows where the collective stands in its place
                since[one.ower] = min(since[one.ower], one.passed or 0)
        else:
            sure = [x for group in self.job.stuck for x in group.missing if x not in blind and not self.edges.get(x)]
            if sure:
                return False
            involved = set(blind)
            for group in self.job.stuck:
                involved |= set(group.arrived)
            since = {x: max(0, self.job.dumps[x].count - 16) for x in involved}
        departing = {x: row for x in sorted(involved) if (row := self.job.departs(x, since[x])) is not None}
        both = {x.waiter for x in owed} & {x.ower for x in owed}
        weight = GAPS if self.job.gaps else CLEAN - 0.5
        culprit: int | None = None
        if len(departing) == 1:
            (culprit,) = departing
        elif len(both & set(departing)) == 1:
            (culprit,) = both & set(departing)
        elif len(both) == 1 and not departing:
            (culprit,) = both
            weight = GAPS
        stuck = self._by_program(self.job.stuck) or [x for x in self.job.groups.values() if set(blind) & set(x.members)]
        group = owed[0].group if owed else stuck[0]
        self.top.append(group)
        if culprit is None:
            names = involved if owed else set(blind)
            says = say(
                "Sends and receives of {names} never pair, and the dumps do not tell whose post is wrong.",
                names=_ranks(names),
            )
            weight = GAPS if owed else 1.5
            if not owed and not self.job.stuck:
                says = say(
                    "The last calls of {names} are sends and receives, which may or may not be over.",
                    names=_ranks(names),
                )
                weight = 0.0
            self._add((), "deadlock", weight, says, group, ())
            self.cannot_exclude |= names
            return True
        dump = self.job.dumps[culprit]
        row = departing.get(culprit)
        own = [x for x in owed if x.waiter == culprit]
        row = row if row is not None else own[0].row if own else None
        says = say("The sends and receives of rank {culprit} do not fit its peers' program.", culprit=culprit)
        witnesses: tuple[Evidence, ...] = ()
        detail: dict[str, Detail] = {}
        if row is not None:
            call = dump.calls[dump.call[row]]
            stack = dump.stacks[dump.stack[row]] if dump.stack[row] >= 0 else ()
            peer = self._global(culprit, row)
            towards = _towards(call, peer) if peer is not None else ""
            says += say(
                " Where its own earlier steps had another call, it posted {op}{towards}{place}.",
                op=call.op,
                towards=towards,
                place=_place(stack),
            )
            if call.kind in ("send", "recv"):
                detail["p2p_seq"] = int(dump.p2p_seq[row])
            text = f"entry {int(dump.record_id[row])}: {call.op}{towards}"
            witnesses = (Evidence(source=dump.path, line=None, text=f"rank {culprit}, {text}"),)
        for one in owed[:3]:
            member = one.group.members[one.waiter]
            call = member.dump.calls[member.dump.call[one.row]]
            text = (
                f"posted {call.op} {'to' if call.kind == 'send' else 'from'} rank {one.ower}, which has no counterpart"
            )
            witnesses += (_evidence(member, one.row, text),)
        cause = "deadlock"
        if row is not None and culprit in departing:
            kinds = {dump.calls[dump.call[row]].kind, *self.job.usual(culprit, row)}
            if not kinds & {"send", "recv", "coalesced"} or not self.job.usual(culprit, row) & {"send", "recv"}:
                cause = "collective_skipped"
        self._add((culprit,), cause, weight, says, group, witnesses, detail)
        return True

    def _nobody_waits(self) -> None:
        """In the dumps that are here; gloo and the hook call over what has failed, too."""
        job = self.job
        unsure = [x for x, dump in job.dumps.items() if dump.count and dump.calls[dump.call[-1]].backend in LENIENT]
        for group in sorted(job.groups.values(), key=lambda x: (-len(x.ranks), x.key)):
            if set(unsure) & set(group.members):
                says = say(
                    "The newest calls of {unsure} are over or have failed, which their dumps do not tell, and "
                    "{no_data} left no dump.",
                    unsure=_ranks(unsure),
                    no_data=_ranks(job.no_data),
                )
                self._add((), "rank_not_arrived", 0.0, says, group, ())
                return

    def _global(self, rank: int, row: int) -> int | None:
        dump = self.job.dumps[rank]
        peer = dump.calls[dump.call[row]].peer
        for group in self.job.groups.values():
            member = group.members.get(rank)
            if member is not None and row in member.p2p and peer is not None and peer < len(group.ranks):
                return int(group.ranks[peer])
        return None

    def _went_on(self) -> bool:
        """Ranks that entered a later collective of their peers' program without the one in which those wait."""
        for group in self._by_program(self.job.stuck):
            seq = group.seq
            assert seq is not None
            passed: dict[int, int] = {}
            for rank in group.missing:
                for waiter in group.arrived:
                    row = group.members[waiter].row(seq)
                    start = _passed(self.job, waiter, row, rank) if row is not None else None
                    if start is not None:
                        passed[rank] = start
                        break
            if not passed:
                continue
            job = self.job
            ranks: tuple[int, ...] = tuple(sorted(passed))
            call = _shape(group.op(seq))
            says = say(
                "{ranks} went on to later collectives without number {seq} of group {label} ({call}), in "
                "which {waiters}.",
                ranks=_ranks(ranks).capitalize(),
                seq=seq,
                label=group.label,
                call=call,
                waiters=_wait(group.arrived),
            )
            if len(passed) >= len(group.arrived):
                odd = [x for x in ranks if job.departs(x, passed[x]) is not None]
                more = [x for x in group.arrived if _departs_by(job, group, x, seq)]
                ranks = tuple(odd) if odd and not more else tuple(more) if more and not odd else ()
                if more and ranks == tuple(more):
                    says = say(
                        "{more} called collective {seq} of group {label} ({call}) where its earlier steps had none, "
                        "and {passed} went on without it.",
                        more=_ranks(more).capitalize(),
                        seq=seq,
                        label=group.label,
                        call=call,
                        passed=_ranks(passed),
                    )
            weight = (GAPS if job.gaps else CLEAN) if ranks else GAPS
            self.top.append(group)
            where = seq
            parting = _parting(group, ranks[0], group.arrived) if len(ranks) == 1 else None
            if parting is not None:
                where = parting.seq
                says = _shifted(group, ranks, parting) + " " + says
            detail: dict[str, Detail] = {"first_divergence_seq": where}
            witnesses = _witnesses(group, seq, [*list(passed)[:2], *group.arrived[:2]])
            self._add(ranks, "collective_skipped", weight, says, group, witnesses, detail)
            if not ranks:
                self.cannot_exclude |= {*passed, *group.arrived}
            return True
        return False

    def _never_entered(self) -> bool:
        """Ranks that others wait for and that wait for nobody themselves."""
        job = self.job
        waited = {x for targets in self.edges.values() for x in targets}
        blocked = self._blocked()
        late = {x for group in job.stuck for x in group.missing} | {x.ower for x in self.owed}
        sinks = sorted(x for x in waited & late if x in job.dumps and x not in blocked and not self._unsure(x))
        behind = self._behind()
        absent = sorted(x for x in waited if x not in job.dumps)
        unknown = sorted({x for group in job.stuck for x in group.unknown})
        if not waited:
            return False
        if not sinks:
            # A rank whose GPU hangs keeps its later operations pending, and looks as if it waited.
            sinks = [x for x in behind if x in waited]
        if not sinks:
            return self._nobody_with_a_dump(waited, absent, unknown)
        groups = [x for x in job.stuck if set(x.missing) & set(sinks)]
        groups = self._by_program(groups)
        if not groups:
            self._never_posted(sinks)
            return True
        top = groups[0]
        self.top += groups
        if self._one_call_more(top, sinks):
            return True
        ranks = tuple(sorted({*sinks, *(x for x in behind if x not in sinks and self._is_behind(x))}))
        clean = not top.no_data and not top.unknown and not job.gaps
        weight = CLEAN if clean else GAPS
        missing = [x for x in ranks if x in top.missing] or list(ranks)
        if len(missing) > len(top.arrived) and len(missing) > 1:
            weight = min(weight, WEAK + 0.5)
        if len(ranks) > 2 and len(ranks) * 2 >= len(job.world):
            weight = min(weight, WEAK)  # half of the job behind: as likely their dumps are merely older
        call = top.op(top.seq or 0)
        wait = _wait(top.arrived)
        says = say_many(
            "{missing} never entered collective {seq} of group {label} ({shape}), in which {wait}; it had finished "
            "all its earlier calls.",
            "{missing} never entered collective {seq} of group {label} ({shape}), in which {wait}; they had finished "
            "all their earlier calls.",
            len(missing),
            missing=_ranks(missing).capitalize(),
            seq=top.seq,
            label=top.label,
            shape=_shape(call),
            wait=wait,
        )
        extra = [x for x in ranks if x not in missing]
        if extra:
            says += say(
                " {extra} fell behind in a collective that the peers completed, or never entered another one.",
                extra=_ranks(extra).capitalize(),
            )
        cause, detail = "rank_not_arrived", {}
        parting = (
            next((p for x in ranks if (p := _parting(top, x, top.arrived)) is not None), None)
            if len(ranks) == 1
            else None
        )
        if parting is not None:
            cause, says = "collective_skipped", _shifted(top, ranks, parting) + " " + says
            detail = {"first_divergence_seq": parting.seq}
        witnesses = _witnesses(top, top.seq or 0, [*[x for x in missing if x in top.members][:2], *top.arrived[:2]])
        self._add(ranks, cause, weight, says, top, witnesses, detail)
        return True

    def _blocked(self) -> set[int]:
        """Ranks that do not get on: they wait for somebody, or stand in what nobody has completed."""
        waiting = {x for x, targets in self.edges.items() if targets}
        return waiting | {x for group in self.job.stuck for x in group.blocked}

    def _never_posted(self, sinks: Sequence[int]) -> None:
        """Ranks that owe a send or receive, and wait for nobody: like a collective never entered, between two."""
        owed = [x for x in self.owed if x.ower in sinks]
        waiters = tuple(sorted({x.waiter for x in owed} or {x for x, to in self.edges.items() if to & set(sinks)}))
        says = say(
            "{sinks} never posted the sends and receives that {waiters} wait for.",
            sinks=_ranks(sinks).capitalize(),
            waiters=_ranks(waiters),
        )
        state, evidence = None, []
        for one in owed[:4]:
            member = one.group.members[one.waiter]
            call = member.dump.calls[member.dump.call[one.row]]
            text = (
                f"posted {call.op} {'to' if call.kind == 'send' else 'from'} rank {one.ower}, which has no counterpart"
            )
            evidence.append(_evidence(member, one.row, text))
            state = state or replace(
                _state(one.group), op=call.op, numel_in=_numel(call.sizes_in), arrived=waiters, missing=tuple(sinks)
            )
        weight = GAPS if self.job.gaps else CLEAN - 0.5
        self.suspects.append(
            Suspect(
                ranks=tuple(sinks),
                cause="rank_not_arrived",
                weight=weight,
                says=says,
                group=state,
                evidence=tuple(evidence),
            )
        )

    def _is_behind(self, rank: int) -> bool:
        """Lags in a group where peers finished, and noticing late (100 ms) cannot explain it: somebody is missing."""
        return rank in self._behind()

    def _unsure(self, rank: int) -> bool:
        """It may be blocked in a send or receive that its backend does not show as pending."""
        return _blind_tail(self.job, rank) is not None

    def _one_call_more(self, top: _Standing, sinks: Sequence[int]) -> bool:
        """A few ranks wait in a call that most of the group never made: theirs may be the one too many."""
        missing = [x for x in top.missing if x in sinks]
        seq = top.seq
        if seq is None or len(missing) < len(top.arrived) or len(top.ranks) < 3 or len(top.arrived) > 2:
            return False
        level = {top.members[x].enqueued for x in missing}
        if level != {seq - 1}:
            return False
        odd = [x for x in top.arrived if _departs_at(self.job, top, x, seq)]
        partings = {x: p for x in top.arrived if (p := _parting(top, x, missing)) is not None and p.by < 0}
        if set(odd) | set(partings) != set(top.arrived):
            return False
        says = say(
            "{waiters} in collective {seq} of group {label} ({shape}), a call that its earlier "
            "steps did not have there and that {missing} never made.",
            waiters=_wait(top.arrived).capitalize(),
            seq=seq,
            label=top.label,
            shape=_shape(top.op(seq)),
            missing=_ranks(missing),
        )
        where = min((p.seq for p in partings.values()), default=seq)
        weight = GAPS if self.job.gaps else CLEAN - 1
        detail: dict[str, Detail] = {"first_divergence_seq": where}
        witnesses = _witnesses(top, seq, [*top.arrived, *missing])
        self._add(top.arrived, "collective_skipped", weight, says, top, witnesses, detail)
        return True

    def _nobody_with_a_dump(self, waited: set[int], absent: Sequence[int], unknown: Sequence[int]) -> bool:
        """Everybody with a dump waits, or may wait: for ranks without one, in a circle, or in something unrecorded."""
        job = self.job
        dark = sorted({*absent, *unknown})
        if self._opposite_order():
            self.cannot_exclude |= set(dark)
            return True
        if dark:
            self._perhaps_the_absent(dark, sorted({*job.no_data, *unknown}))
            return True
        circle = _cycle(self.edges, sorted(self.edges))
        unsure = sorted(x for x in waited if self._unsure(x))
        groups = self._by_program(job.stuck)
        self.top += groups
        top = groups[0] if groups else next(iter(job.groups.values()))
        if circle:
            since = {x: job.first_pending(x) for x in circle}
            departing = [x for x in sorted(circle) if job.departs(x, since[x]) is not None]
            ranks = tuple(departing) if len(departing) == 1 else ()
            says = say(
                "{circle} wait for each other in a circle: {steps}.",
                circle=_ranks(circle).capitalize(),
                steps=self._round(circle),
            )
            self._add(
                ranks,
                "deadlock",
                CLEAN - 0.5 if not ranks else GAPS,
                says,
                top,
                _witnesses(top, top.seq or 0, top.arrived),
                {"circle": tuple(sorted(circle))},
            )
            if not ranks:
                self.cannot_exclude |= circle
            return True
        if len(unsure) == 1:
            says = say(
                "Rank {unsure} never entered collective {seq} of group {label}, in which {arrived} wait; its "
                "last recorded call is a send or receive that may or may not be over.",
                unsure=unsure[0],
                seq=top.seq,
                label=top.label,
                arrived=_ranks(top.arrived),
            )
            self._add(
                tuple(unsure),
                "rank_not_arrived",
                GAPS,
                says,
                top,
                _witnesses(top, top.seq or 0, [*unsure, *top.arrived]),
            )
            return True
        self.cannot_exclude |= set(unsure) or waited
        return True

    def _perhaps_the_absent(self, dark: Sequence[int], everybody: Sequence[int]) -> None:
        """Everybody waits, some of them for ranks that left no dump: those, or one whose GPU fell behind.

        `everybody`: all of whom nothing is known, whether somebody waits for them or not.
        """
        job = self.job
        groups = self._by_program([x for x in job.stuck if set(dark) & set(x.waited)])
        top = (groups or self._by_program(job.stuck) or list(job.groups.values()))[0]
        self.top += groups
        self.cannot_exclude |= set(everybody)
        behind = self._behind()
        if behind and not self._settled():
            self.cannot_exclude |= set(behind)  # operations were still completing: a running job looks like this, too
        elif behind:
            group = next(x for x in self._by_program(list(job.groups.values())) if set(behind) & set(x.lagging))
            says = say_many(
                "{behind} has not seen the end of collectives of group {label} that the peers completed (up to "
                "{agreed}); of {everybody}, for whom others wait, there is no dump.",
                "{behind} have not seen the end of collectives of group {label} that the peers completed (up to "
                "{agreed}); of {everybody}, for whom others wait, there is no dump.",
                len(behind),
                behind=_ranks(behind).capitalize(),
                label=group.label,
                agreed=group.agreed,
                everybody=_ranks(everybody),
            )
            at = [x for x in behind if x in group.members]
            self._add(behind, "gpu_other", GAPS, says, group, _witnesses(group, group.agreed, [*at, *group.arrived]))
        elif len(everybody) == 1 and top.seq is not None and job.older & set(everybody):
            # It did not stop writing dumps: this file was copied, or its newest one overwritten, at another moment.
            says = say(
                "Every member of group {label} with a dump of this moment stands in collective {seq} ({shape}); the "
                "dump of {older} is of an earlier one, and tells nothing of it.",
                label=top.label,
                seq=top.seq,
                shape=_shape(top.op(top.seq)),
                older=_ranks(everybody),
            )
            self._add((), "rank_not_arrived", -1.0, says, top, _witnesses(top, top.seq, top.arrived))
        elif len(everybody) == 1 and top.seq is not None:
            (rank,) = everybody
            says = say(
                "Rank {rank} left no dump, and every member of group {label} that did stands in collective "
                "{seq} ({shape}).",
                rank=rank,
                label=top.label,
                seq=top.seq,
                shape=_shape(top.op(top.seq)),
            )
            witnesses = _witnesses(top, top.seq, top.arrived)
            self._add((rank,), "process_missing", GAPS, says, top, witnesses, {"undumped": True})

    def _behind(self) -> tuple[int, ...]:
        """Ranks that have not seen the end of what all their peers completed."""
        return tuple(sorted({x for group in self.job.groups.values() for x in group.lagging}))

    def _settled(self) -> bool:
        """Few are behind: had operations still been completing, each rank would have seen another part of them."""
        return len(self.job.dumps) > 2 and len(self._behind()) <= max(1, OUTLIERS * len(self.job.dumps))

    def _opposite_order(self) -> bool:
        """Ranks that wait in a circle because they put the same operations into their queues in different orders.

        All may have entered everything: a rank's GPU gets to an operation only after the one that stands before it.
        """
        job = self.job
        heads = _heads(job)
        blocking: dict[int, set[int]] = defaultdict(set)
        for rank, head in heads.items():
            others = (*head.group.arrived, *head.group.missing) if head.peer is None else (head.peer,)
            for other in others:
                if other not in heads or heads[other].is_of(head) or self._runs(head, other):
                    continue
                if head.pair is None or self._lacks(head, other) or self._row(head, other) is not None:
                    blocking[rank].add(other)
        circle = _shortest_circle(blocking, _cycle(blocking, sorted(blocking)))
        if not circle or all(heads[x].peer is not None for x in circle):
            return False
        departing = [x for x in circle if job.departs(x, heads[x].row) is not None]
        if not departing and all(job.usual(x, heads[x].row) for x in circle):
            return False  # they always had this order, and it worked: their operations do not stand in one queue
        if not departing and self._behind():
            return False
        pairs = list(zip(circle[-1:] + circle[:-1], circle, strict=True))
        beside = any(heads[x].peer is not None for x in circle)  # sends and receives may run beside collectives
        if not departing and beside and not all(self._lacks(heads[one], after) for one, after in pairs):
            return False
        groups = list({id(heads[x].group): heads[x].group for x in circle if heads[x].peer is None}.values())
        groups.sort(
            key=lambda x: (min((t for r in x.arrived if (t := x.members[r].created_ns(x.seq or 0))), default=0), x.key)
        )
        self.top += groups
        steps = [self._order(heads, one, after) for one, after in pairs]
        says = say(
            "{circle} wait for each other in a circle, because their calls come in opposite orders: {steps}{more}.",
            circle=_ranks(circle).capitalize(),
            steps=joined(steps[:SHOWN], "; "),
            more="; …" if len(steps) > SHOWN else "",
        )
        if departing:
            says += say(" In earlier steps {departing} had another order.", departing=_ranks(departing))
        weight = GAPS if job.gaps or not departing else GAPS + 0.5
        witnesses = tuple(
            _evidence(
                head.group.members[x],
                head.row,
                f"{self._operation(x, head)}, waits as the first of its queue{self._place_of(x, head.row)}",
            )
            for x in circle[:4]
            for head in (heads[x],)
        )
        self._add((), "deadlock", weight, says, groups[0], witnesses, {"circle": tuple(sorted(circle))})
        self.cannot_exclude |= set(circle)
        return True

    def _round(self, circle: set[int]) -> str:
        """How each of a shortest circle of waits holds up the one before it, with the places of their calls."""
        heads, around = _heads(self.job), _shortest_circle(self.edges, circle)
        if not around or not heads.keys() >= set(around):
            return say("each stands in a group that another is missing in")
        pairs = zip(around[-1:] + around[:-1], around, strict=True)
        steps = [self._order(heads, one, after) for one, after in pairs]
        return joined(steps[:SHOWN], "; ") + ("; …" if len(steps) > SHOWN else "")

    def _order(self, heads: Mapping[int, _Head], waiter: int, waited: int) -> str:
        """How `waited` came to hold up the operation that `waiter` stands in."""
        wanted, first = heads[waiter], heads[waited]
        shape = _shape(first.group.op(first.group.seq or 0)) if first.peer is None else ""
        text = say(
            "rank {waited} called {what}{shape}{place}",
            waited=waited,
            what=self._operation(waited, first),
            shape=f" ({shape})" if shape else "",
            place=self._place_of(waited, first.row),
        )
        what = self._operation(waited, wanted)
        if self._lacks(wanted, waited):
            return say("{text} and has not called {what}", text=text, what=what)
        return say(
            "{text} before {what}{place}", text=text, what=what, place=self._place_of(waited, self._row(wanted, waited))
        )

    def _operation(self, rank: int, head: _Head) -> str:
        """A head as it is called on this rank, one end of it: 'collective 3 of group tp', 'a send to rank 1'."""
        if head.pair is None:
            return say("collective {seq} of group {label}", seq=head.group.seq, label=head.group.label)
        sender, receiver = head.pair
        if rank == sender:
            return say("a send to rank {peer}", peer=receiver)
        return say("a receive from rank {peer}", peer=sender)

    def _row(self, head: _Head, rank: int) -> int | None:
        """The rank's own entry of that operation; of a send or receive the oldest that is not over."""
        if head.pair is None:
            return head.group.members[rank].row(head.group.seq or 0) if rank in head.group.members else None
        sender, receiver = head.pair
        kind, peer = ("send", receiver) if rank == sender else ("recv", sender)
        posted = _posted(head.group, rank, kind, peer) if rank in head.group.members else []
        return next((x for x in posted if not self.job.done[rank][x]), None)

    def _lacks(self, head: _Head, rank: int) -> bool:
        """The rank has not called the operation at all."""
        if head.pair is None:
            return rank in head.group.missing
        return any(x.ower == rank and x.waiter in head.pair and x.group is head.group for x in self.owed)

    def _runs(self, head: _Head, rank: int) -> bool:
        """The rank's GPU has started that operation, whatever stands before it."""
        row = self._row(head, rank)
        return row is not None and bool(self.job.dumps[rank].flags[row] & (STARTED | COMPLETED))

    def _place_of(self, rank: int, row: int | None) -> str:
        dump = self.job.dumps[rank]
        return _place(dump.stacks[dump.stack[row]]) if row is not None and dump.stack[row] >= 0 else ""

    def _joint(self) -> list[_Standing]:
        """Groups in which every member has entered the stuck operation."""
        return [x for x in self.job.stuck if not x.waited and len(x.arrived) > 1]

    def _never_started(self) -> bool:
        """With timing on: all that have a dump entered, most GPUs started the operation, and some GPUs did not."""
        for group in self._by_program([x for x in self.job.stuck if not x.missing and len(x.arrived) > 1]):
            seq = group.seq
            assert seq is not None
            timed = [x for x in group.arrived if group.members[x].timed]
            running = [x for x in group.arrived if self._flag(group, x, seq)]
            idle = [x for x in group.arrived if x not in running and self._is_oldest(group, x, seq)]
            if len(timed) == len(group.arrived) and idle and len(idle) <= len(running):
                says = say_many(
                    "All of {arrived} enqueued collective {seq} of group {label} ({shape}), and the GPUs of "
                    "{running} started it; that of {idle} never did.",
                    "All of {arrived} enqueued collective {seq} of group {label} ({shape}), and the GPUs of "
                    "{running} started it; those of {idle} never did.",
                    len(idle),
                    arrived=_ranks(group.arrived),
                    seq=seq,
                    label=group.label,
                    shape=_shape(group.op(seq)),
                    running=_ranks(running),
                    idle=_ranks(idle),
                )
                self.top += [group]
                weight = GAPS if self.job.gaps else GAPS + 0.5
                witnesses = _witnesses(group, seq, [*idle[:2], *running[:2]])
                self._add(tuple(idle), "gpu_stall", weight, says, group, witnesses)
                return True
        return False

    def _all_joined(self) -> None:
        """Every member has entered and none has completed: a GPU that never starts, one that never ends, or all."""
        joint = self._by_program(self._joint())
        behind = self._one_behind()
        if behind is not None:
            group, rank = behind
            self.top += [group]
            says = say(
                "Rank {rank} has not seen the end of collectives of group {label} that all its peers "
                "completed (up to {agreed}): its GPU took part in it and never reported back.",
                rank=rank,
                label=group.label,
                agreed=group.agreed,
            )
            self._add(
                (rank,), "gpu_other", WEAK + 0.5, says, group, _witnesses(group, group.agreed, [rank, *group.arrived])
            )
            return
        progress = {m.completed for group in joint for m in group.members.values()}
        if not joint or len(progress) > len(joint) or self._behind() or self._under_way(joint):
            # Some have seen more ends than others: operations were still completing when the dumps were written.
            self.healthy = True
            return
        group = joint[0]
        self.top += joint
        says = say(
            "All {arrived} members of group {label} entered collective {seq} ({shape}) and none "
            "completed it; the dumps tell nobody from the others.",
            arrived=len(group.arrived),
            label=group.label,
            seq=group.seq,
            shape=_shape(group.op(group.seq or 0)),
        )
        shown = _witnesses(group, group.seq or 0, group.arrived)
        # One GPU that hangs and the way between them look the same.
        self._add((), "fabric_error", catalog.weight("nobody_apart_fabric"), says, group, shown)
        self._add((), "gpu_stall", catalog.weight("nobody_apart_gpu"), says, group, shown)

    def _under_way(self, joint: Sequence[_Standing]) -> bool:
        """Had an operation just ended when the dumps were written, and had all that is pending begun at that moment?

        Its end is seen by some members and not yet by others, who are in none of the groups that wait: a GPU that hangs
        would hold those up.
        """
        waiting = {x for group in joint for x in group.members}
        ending = [
            when
            for group in self.job.groups.values()
            if group.seq is None
            for rank, member in group.members.items()
            if member.strict and rank not in waiting
            for seq in member.pending
            if seq <= group.agreed and (when := member.created_ns(int(seq))) is not None
        ]
        begun = [m.created_ns(g.seq) for g in joint if g.seq is not None for m in g.members.values()]
        return bool(ending and begun) and all(t is not None and max(ending) - t <= ONE_MOMENT_NS for t in begun)

    def _always_late(self) -> None:
        """Nobody holds the others up for good, but one rank comes last again and again."""
        found: dict[Key, tuple[lateness.Late, tuple[int, ...]]] = {}
        for key, group in self.job.groups.items():
            if set(group.members) == set(group.ranks) and all(x.strict for x in group.members.values()):
                late = lateness.chronic({rank: _spans(member) for rank, member in group.members.items()})
                if late is not None:
                    found[key] = late, group.ranks
        culprit = lateness.culprit(found) if found else None
        if culprit is None:
            return
        group, late = self.job.groups[culprit[0]], culprit[1]
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
            time=words.duration(late.by_ns / 1e9),
            side=side,
        )
        member = group.members[late.rank]
        text = say(
            "group {label}, collective {since_seq}: from here on it comes last",
            label=group.label,
            since_seq=late.since_seq,
        )
        witnesses = (_evidence(member, member.row(late.since_seq), text),)
        detail: dict[str, Detail] = {"late_ms": late.by_ns // 10**6, "side": late.side, "since_seq": late.since_seq}
        self._add((late.rank,), "rank_slow", WEAK + 0.5, says, group, witnesses, detail)

    def _flag(self, group: _Standing, rank: int, seq: int) -> bool:
        row = group.members[rank].row(seq)
        return row is not None and bool(group.members[rank].dump.flags[row] & (STARTED | COMPLETED))

    def _is_oldest(self, group: _Standing, rank: int, seq: int) -> bool:
        row = group.members[rank].row(seq)
        return row is not None and row <= self.job.first_pending(rank)

    def _one_behind(self) -> tuple[_Standing, int] | None:
        found: dict[int, _Standing] = {}
        for group in self.job.groups.values():
            rest = {group.members[x].completed for x in group.members if x not in group.lagging}
            if len(group.lagging) == 1 and len(rest) == 1 and len(group.members) > 2:
                found.setdefault(group.lagging[0], group)
            elif group.lagging:
                return None
        if len(found) != 1:
            return None
        rank, group = next(iter(found.items()))
        return group, rank

    def _by_program(self, groups: Sequence[_Standing]) -> list[_Standing]:
        """The groups with the one first whose stuck operation comes first in the members' programs.

        A group comes before another if a rank that stands in both, or in sister groups of them, called it first.
        """
        order: Counter[tuple[str, str]] = Counter()
        wanted = {x.description or x.name for x in groups}
        sisters = [x for x in self.job.stuck if (x.description or x.name) in wanted]
        called: dict[int, dict[str, int]] = defaultdict(dict)
        for group in sisters:
            what = group.description or group.name
            for rank in group.arrived:
                row = group.members[rank].row(group.seq or 0)
                if row is not None:
                    called[rank][what] = min(called[rank].get(what, row), row)
        for rows in called.values():
            listed = sorted(rows, key=lambda x: rows[x])
            for n, one in enumerate(listed):
                for other in listed[n + 1 :]:
                    order[one, other] += 1
        beaten = {x: sum(order[y, x] > order[x, y] for y in wanted) for x in wanted}

        coming = self._coming()

        def when(group: _Standing) -> int:
            times = [
                t for x in group.arrived if group.seq is not None and (t := group.members[x].created_ns(group.seq))
            ]
            return min(times, default=0)

        return sorted(
            groups,
            key=lambda x: (
                beaten[x.description or x.name],
                not (x.missing or x.no_data or x.perhaps),
                x.key not in coming,
                len(x.ranks),
                when(x),
                x.key,
            ),
        )

    def _coming(self) -> set[Key]:
        """Groups in which a rank that is missing there, and waits for nobody, would have made its next call."""
        found: set[Key] = set()
        late = {x for group in self.job.stuck for x in group.missing if not self.edges.get(x)}
        for rank in sorted(late)[:16]:
            if rank not in self._next:
                self._next[rank] = self.job.next_groups(rank)
            for index in self._next[rank]:
                found.add(self.job.index[rank][index])
        return found

    def _add(
        self,
        ranks: Sequence[int],
        cause: str,
        weight: float,
        says: str,
        group: _Standing,
        evidence: tuple[Evidence, ...],
        details: Mapping[str, Detail] | None = None,
    ) -> None:
        self.suspects.append(
            Suspect(
                ranks=tuple(sorted(ranks)),
                cause=cause,
                weight=weight,
                says=says,
                group=_state(group),
                evidence=evidence,
                details=dict(details or {}),
            )
        )

    # --- what goes out

    def result(self) -> Reconstruction:
        job = self.job
        guilty = {x for one in self.suspects for x in one.ranks}
        hung = not self.healthy
        if hung:
            self.cannot_exclude |= self._uncleared(guilty)
        ordered: list[_Standing] = []
        if hung:
            for group in [*self.top, *self._by_program(job.stuck)]:
                if group not in ordered and group.seq is not None:
                    ordered.append(group)
        top = ordered[0] if ordered else None
        return Reconstruction(
            groups=tuple(map(_state, ordered)) or tuple(x.group for x in self.suspects[:1] if x.group is not None),
            suspects=tuple(self.suspects),
            waits=tuple(self._waits()) if hung else (),
            cannot_exclude=tuple(sorted(self.cannot_exclude - guilty)) if hung else (),
            cleared=tuple(self._cleared(guilty)) if hung and self.suspects else (),
            counters=tuple(self._counters(top)),
            ranks_seen=tuple(sorted(job.dumps)),
            members=tuple(
                GroupState(name=x.name, description=x.description or None, members=x.ranks)
                for x in sorted(job.groups.values(), key=lambda x: x.key)
                if x.key[0]
            ),
            healthy=self.healthy,
            problems=tuple(job.problems),
        )

    def _uncleared(self, guilty: set[int]) -> set[int]:
        """Ranks that no wait of theirs clears: without a dump, with one that cannot tell, outside of all groups.

        Who waits by a send or receive for a rank without a dump may itself be the one with the wrong peer.
        """
        job = self.job
        found = {*job.no_data, *self._behind(), *(x for group in job.stuck for x in group.unknown)}
        blocked = self._blocked()
        found |= {x for group in job.stuck for x in group.missing} - blocked
        if guilty or not job.no_data:
            return found
        found |= job.dumps.keys() - blocked - {x for group in job.stuck for x in group.arrived}
        for rank, dump in job.dumps.items():
            posts = np.nonzero(~job.done[rank] & ((dump.flags & P2P) > 0))[0]
            if len(posts) and (not job.usual(rank, int(posts[0])) or job.departs(rank, int(posts[0])) is not None):
                found.add(rank)
        return found

    def _waits(self) -> Iterator[Wait]:
        for group in self.job.stuck:
            why = say("entered collective {seq} of group {label}", seq=group.seq, label=group.label)
            waited = group.waited
            for rank in group.blocked if waited else ():
                yield Wait(waiter=rank, waited=waited, why=why, group=group.label, seq=group.seq)
        for one in self.owed:
            dump = self.job.dumps[one.waiter]
            call = dump.calls[dump.call[one.row]]
            why = say("posted a {op}{towards}", op=call.op, towards=_towards(call, one.ower))
            yield Wait(waiter=one.waiter, waited=(one.ower,), why=why, group=one.group.label)

    def _cleared(self, guilty: set[int]) -> Iterator[tuple[int, str]]:
        stands: dict[int, tuple[_Standing, str]] = {}
        for group in self._by_program(self.job.stuck):
            waited = group.waited
            for rank in group.arrived if waited else ():
                stands.setdefault(rank, (group, _ranks(waited)))
        for rank in sorted(self.job.dumps):
            if rank in guilty or rank in self.cannot_exclude:
                continue
            if rank in stands:
                group, names = stands[rank]
                why = say_many(
                    "waits in collective {seq} of group {label} for {names}",
                    "wait in collective {seq} of group {label} for {names}",
                    1,
                    seq=group.seq,
                    label=group.label,
                    names=names,
                )
                yield rank, why
            elif self.edges.get(rank):
                yield rank, say_many("waits for {names}", "wait for {names}", 1, names=_ranks(self.edges[rank]))

    def _counters(self, top: _Standing | None) -> Iterator[RankCounters]:
        job = self.job
        default = next((x for x in job.groups.values() if _is_default(x.key)), None)
        for rank, dump in sorted(job.dumps.items()):
            member = None
            for group in (top, default):
                if group is not None and member is None:
                    member = group.members.get(rank)
            frames = dump.stacks[dump.stack[-1]] if dump.count and dump.stack[-1] >= 0 else ()
            started = None
            if member is not None and member.timed:
                ran = member.all_seqs[(dump.flags[member.all_rows] & (STARTED | COMPLETED)) > 0]
                started = int(ran[-1]) if len(ran) else None
            yield RankCounters(
                rank=rank,
                source=dump.path,
                last_enqueued=_positive(member.enqueued) if member else None,
                last_started=started,
                last_completed=_positive(member.completed) if member else None,
                frames=frames,
                last_created_ns=dump.newest_ns,
            )


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None
