"""What one rank has done in one process group, from its dump alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nccl_forensics.recorder.dumps import COMPLETED, P2P, RETIRED, STARTED, Call, Dump, Group, Ints
from nccl_forensics.waits.lateness import Spans

Bools = np.ndarray[Any, np.dtype[np.bool_]]
LENIENT = frozenset({"gloo", "c10d", "mpi", "ucc", "fake"})
"""Backends whose entries stay "scheduled": `retired` is all that tells of progress, also of failed work."""
STRICT = frozenset({"nccl", "nccl2"})
"""Backends whose entries tell when the GPU started and ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """What one rank has done in one group."""

    rank: int
    dump: Dump
    all_seqs: Ints
    """Collective sequence numbers of its entries, rising; one stands several times for a coalesced batch or a hook."""
    all_rows: Ints
    """The entries, in that order."""
    over: Bools
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

    def ran(self, seq: int) -> bool:
        """Its GPU has started the operation, as far as it was seen."""
        row = self.row(seq)
        return row is not None and bool(self.dump.flags[row] & (STARTED | COMPLETED))


def member_of(dump: Dump, rank: int, infos: Sequence[int], done: Bools, with_p2p: bool) -> Member:
    """`infos`: indices into dump.groups that are this group. `with_p2p`: somebody sends or receives in it."""
    mine = np.nonzero(_is_in(dump, infos))[0]
    is_p2p = (dump.flags[mine] & P2P) > 0
    collectives = mine[~is_p2p]
    rows = collectives[np.argsort(dump.seq[collectives], kind="stable")]
    seqs, over = dump.seq[rows], done[rows]
    counters = next((dump.groups[i] for i in infos if dump.groups[i].enqueued is not None), None)

    enqueued, completed = _newest_recorded(dump, mine, seqs, over)
    if counters is not None and not with_p2p:
        enqueued, completed = _newest_counted(counters, offset_of(dump, collectives), enqueued, completed)
    elif dump.partial:
        enqueued = None
    elif counters is None and not len(mine) and _lists_all_that_was_used(dump, done):
        enqueued = completed = 0

    backends = {dump.calls[i].backend for i in set(dump.call[mine[-64:]].tolist())}
    timed = bool(np.any(dump.flags[mine] & STARTED)) or bool(np.any(dump.started_ns[mine]))
    return Member(
        rank=rank,
        dump=dump,
        all_seqs=seqs,
        all_rows=rows,
        over=over,
        p2p=mine[is_p2p],
        enqueued=enqueued,
        completed=completed,
        strict=not backends & LENIENT,
        timed=timed and backends <= STRICT,
    )


def _is_in(dump: Dump, infos: Sequence[int]) -> Bools:
    """Per entry: is it in the group that is known under these indices?"""
    return np.isin(dump.group, infos) if len(infos) > 1 else dump.group == infos[0]


def member_without_entries(dump: Dump, rank: int) -> Member:
    """A member whose dump does not know the group: it has not used it, if the dump is one that lists what was used."""
    unused = not dump.partial and (dump.has_status or _from_the_first_entry(dump))
    zero = 0 if unused else None
    none = np.zeros(0, np.int64)
    return Member(
        rank=rank,
        dump=dump,
        all_seqs=none,
        all_rows=none,
        over=np.zeros(0, np.bool_),
        p2p=none,
        enqueued=zero,
        completed=zero,
        strict=True,
        timed=False,
    )


def _newest_recorded(dump: Dump, mine: Ints, seqs: Ints, over: Bools) -> tuple[int | None, int | None]:
    """(last number entered, last number over) by the entries; None where there is none."""
    finished = seqs[over]
    enqueued = int(seqs[-1]) if len(seqs) else None
    completed = int(finished[-1]) if len(finished) else None
    if len(mine) and not dump.partial:
        # A p2p entry carries the number of collectives before it.
        enqueued = max(enqueued or 0, int(dump.seq[mine].max()))
    return enqueued, completed


def _newest_counted(
    counters: Group, offset: int | None, enqueued: int | None, completed: int | None
) -> tuple[int | None, int | None]:
    """The same where pg_status counts further than the entries; `offset`: by how much its numbers are higher."""
    if offset is None or counters.enqueued is None:
        return enqueued, completed
    enqueued = max(enqueued or 0, counters.enqueued - offset)
    if counters.completed is not None:
        completed = max(completed or 0, counters.completed - offset)
    return enqueued, completed


def offset_of(dump: Dump, collectives: Ints) -> int | None:
    """op_id minus sequence number: what pg_status counts where it counts op ids. None: it varies, so don't use it."""
    if not len(collectives):
        return 0
    if dump.calls[dump.call[collectives[-1]]].backend == "nccl":
        return 0
    differences = np.unique(dump.op_id[collectives] - dump.seq[collectives])
    return int(differences[0]) if len(differences) == 1 else None


def _lists_all_that_was_used(dump: Dump, done: Bools) -> bool:
    """A group without an entry and a counter is not used yet: neither the ring nor an only-active dump dropped it."""
    return (_from_the_first_entry(dump) and bool(done.any())) or (dump.has_status and dump.all_named)


def _from_the_first_entry(dump: Dump) -> bool:
    return dump.count > 0 and int(dump.record_id.min()) == 0


def work_done(dump: Dump) -> Bools:
    """Per entry: is the operation over? A coalesced batch is over when its closing entry is: its parts never are."""
    done = (dump.flags & COMPLETED) > 0
    states = bool(np.any(dump.flags & (COMPLETED | STARTED)))
    lenient = np.array([x.backend in LENIENT or (not states and x.backend not in STRICT) for x in dump.calls])
    if dump.count and lenient.any():
        done |= lenient[dump.call] & ((dump.flags & RETIRED) > 0)
    closing = [i for i, x in enumerate(dump.calls) if x.kind == "coalesced"]
    if closing:
        for end in np.nonzero(np.isin(dump.call, closing))[0].tolist():
            done[_first_of_batch(dump, end) : end] = done[end]
    return done


def _first_of_batch(dump: Dump, end: int) -> int:
    """The first entry of the coalesced batch that the entry `end` closes."""
    first = end
    while first and _is_part(dump, first - 1, end):
        first -= 1
    return first


def _is_part(dump: Dump, row: int, end: int) -> bool:
    return bool(
        dump.group[row] == dump.group[end]
        and dump.seq[row] == dump.seq[end]
        and dump.p2p_seq[row] == dump.p2p_seq[end]
        and dump.calls[dump.call[row]].kind != "coalesced"
    )


def spans(member: Member) -> Spans:
    """Its completed collectives; of several entries with one number the last."""
    rows, seqs = member.all_rows, member.all_seqs
    last = np.append(seqs[1:] != seqs[:-1], True) if len(seqs) else np.zeros(0, np.bool_)
    kept = last & (member.dump.completed_ns[rows] > 0) & (member.dump.created_ns[rows] > 0)
    rows, dump = rows[kept], member.dump
    return Spans(seqs[kept], dump.created_ns[rows], dump.started_ns[rows], dump.completed_ns[rows])
