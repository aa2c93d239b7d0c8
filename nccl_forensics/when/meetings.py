"""What ties clocks together: meetings that nobody leaves before everybody has entered (skew.py has the arithmetic).

From Flight Recorder dumps: `time_created_ns` is written before an operation is handed to NCCL,
`time_discovered_completed_ns` after somebody saw it complete, both on the host's wall clock (fr-format.md §1). From
logs: communicators that are set up (`Init START`, `Init COMPLETE` with one commId), training steps whose lines state
the same loss on several hosts, and dump signals that name the rank that gave them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_forensics.model import Event, number
from nccl_forensics.recorder.dumps import COMPLETED, P2P, Dump
from nccl_forensics.recorder.groups import choose, group_keys
from nccl_forensics.when import skew

SYNCHRONOUS = frozenset(
    {"allreduce", "allgatherbase", "allgatherintotensor", "reducescatterbase", "reducescattertensor", "barrier"}
    | {"allgatherintotensorcoalesced", "reducescattertensorcoalesced", "allreducecoalesced"}
)
"""Operations that complete nowhere before every member has entered, given that there is data. Not broadcasts, sends,
gathers; nor all-to-all, where two members may have nothing for each other."""
NO_COMPLETION = frozenset({"gloo", "c10d", "mpi", "ucc"})
"""Backends whose records tell no completion, and the recorder's own twin of another backend's operation."""
MOST_CELLS = 6_000_000
"""Clocks times collectives of one group that are looked at; of more, the newest collectives."""
SAME_LOSS = 3
"""Different losses that two hosts must both state, each at the same step, before these count as one. Our judgement."""
JUMP_S = 0.5
"""A watchdog's line and its dump tell the same moment to within milliseconds; further apart, the clock was set in
between. Our judgement: a busy host prints late."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entered:
    """When each rank entered which collective, as its own dump tells."""

    _dumps: Mapping[int, Dump] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._dumps)

    def at(self, rank: int, seq: int, numel_in: int | None) -> tuple[int, ...]:
        """Epoch ns on the rank's host; several where the line does not tell which group it is about."""
        dump = self._dumps.get(rank)
        if dump is None:
            return ()
        rows = np.nonzero((dump.seq == seq) & ((dump.flags & P2P) == 0) & (dump.created_ns > 0))[0]
        if numel_in is not None:
            fits = [r for r in rows.tolist() if _numel(dump, r) in (None, numel_in)]
        else:
            fits = rows.tolist()
        return tuple(sorted({int(dump.created_ns[r]) for r in fits}))


def _numel(dump: Dump, row: int) -> int | None:
    sizes = dump.calls[dump.call[row]].sizes_in
    if not sizes:
        return None
    return sum(_product(x) for x in sizes)


def _product(size: Sequence[int]) -> int:
    product = 1
    for n in size:
        product *= n
    return product


def entered(dumps: Sequence[Dump]) -> Entered:
    """Of each rank's dump that the analysis uses."""
    return Entered(choose(dumps, []))


@dataclass(frozen=True, slots=True)
class _Rows:
    """What one rank did in one group: columns, rising in `seq`."""

    clock: int
    seq: Ints
    created: Ints
    completed: Ints
    """0: not, or not in order."""
    signature: Ints
    """Equal calls have equal numbers; 0: not synchronous."""
    partial: bool


def of_dumps(dumps: Sequence[Dump], clock_of: Mapping[int, str]) -> list[skew.Block]:
    """One block for each process group that spans several clocks. `clock_of`: rank → its host's clock."""
    chosen = {rank: dump for rank, dump in choose(dumps, []).items() if rank in clock_of and dump.count}
    found: list[skew.Block] = []
    signatures: dict[Any, int] = {}
    numbers: dict[int, Ints] = {}
    keys, _ = group_keys(chosen)
    for (members, _, _), where in keys.items():
        clocks = tuple(sorted({clock_of[rank] for rank in where}))
        if len(clocks) < 2 or not members or any(len(infos) != 1 for infos in where.values()):
            continue
        place = {clock: n for n, clock in enumerate(clocks)}
        rows = []
        for rank, (info,) in where.items():
            dump = chosen[rank]
            if rank not in numbers:
                numbers[rank] = _signatures(dump, signatures)
            if (one := _rows(dump, info, numbers[rank], place[clock_of[rank]])) is not None:
                rows.append(one)
        if (made := _block(rows, clocks)) is not None:
            found.append(made)
    return found


def _signatures(dump: Dump, known: dict[Any, int]) -> Ints:
    """For each of the dump's calls a number that equal calls of all dumps share; 0 if it is not synchronous."""
    found = []
    for call in dump.calls:
        fits = call.kind in SYNCHRONOUS and call.backend not in NO_COMPLETION
        full = call.kind == "barrier" or (bool(call.sizes_in) and all(_product(x) > 0 for x in call.sizes_in))
        found.append(known.setdefault((call.backend, call.signature), len(known) + 1) if fits and full else 0)
    return np.array(found, dtype=np.int64)


def _rows(dump: Dump, info: int, signature: Ints, clock: int) -> _Rows | None:
    collective = (dump.group == info) & ((dump.flags & P2P) == 0) & (dump.created_ns > 0)
    twins = [n for n, call in enumerate(dump.calls) if call.backend == "c10d"]
    if twins:
        collective &= ~np.isin(dump.call, twins)
    at = np.nonzero(collective)[0]
    if not len(at) or (dump.version in (None, "1.4") and bool(np.any((dump.group == info) & (dump.flags & P2P > 0)))):
        return None  # up to 2.3 one number counts sends and collectives alike
    seq = dump.seq[at]
    back = np.nonzero(np.diff(seq) <= 0)[0]
    if len(back):  # the recorder was reset, or one number stands for a batch
        at, seq = at[back[-1] + 1 :], seq[back[-1] + 1 :]
    created, completed = dump.created_ns[at], dump.completed_ns[at]
    limit = dump.timeout_ms[at] * 1_000_000
    # What took as long as its timeout was aborted, and an abort also looks like an end.
    done = ((dump.flags[at] & COMPLETED) > 0) & (completed >= created) & ((limit == 0) | (completed - created < limit))
    return _Rows(clock, seq, created, np.where(done, completed, 0), signature[dump.call[at]], dump.partial)


def _block(rows: Sequence[_Rows], clocks: tuple[str, ...]) -> skew.Block | None:
    """Collectives that are complete wherever there is a dump, and were the same call everywhere."""
    if len({r.clock for r in rows}) < 2:
        return None
    low = min(int(r.seq[0]) for r in rows)
    ends = [int(r.seq[r.completed > 0].max(initial=low - 1)) for r in rows]
    whole = [end for end, r in zip(ends, rows, strict=True) if not r.partial]
    high = min(whole) if whole else max(ends)
    low = max(low, high + 1 - max(64, MOST_CELLS // len(clocks)))
    width = high + 1 - low
    if width < 1:
        return None
    base = min(int(r.created[0]) for r in rows)
    entered = np.full((len(clocks), width), -np.inf)
    left = np.full((len(clocks), width), np.inf)
    same = np.zeros(width, dtype=np.int64)
    good = np.ones(width, dtype=np.bool_)
    for r in rows:
        inside = (r.seq >= low) & (r.seq <= high)
        column = r.seq[inside] - low
        came, went, what = r.created[inside] - base, r.completed[inside] - base, r.signature[inside]
        done = r.completed[inside] > 0
        entered[r.clock, column] = np.maximum(entered[r.clock, column], came)
        left[r.clock, column[done]] = np.minimum(left[r.clock, column[done]], went[done])
        good[column] &= done & (what > 0) & ((same[column] == 0) | (same[column] == what))
        same[column] = what
    good &= same > 0
    if not good.any():
        return None
    return skew.Block(clocks=clocks, entered=entered[:, good], left=left[:, good], base_ns=base, ordered=True)


Attended = tuple[object, str, int | None, int | None]
"""(meeting, clock, entered ns, left ns)."""


def of_logs(events: Sequence[Event], clock_of: Callable[[Event], str]) -> list[skew.Block]:
    """Blocks of each kind of meeting that log lines tell of. `events` have times, as their own clocks show them."""
    timed = [e for e in events if e.time_ns is not None and e.stamp is not None and not e.stamp.drifts]
    kinds = (_set_up(timed, clock_of), _steps(timed, clock_of), _signals(timed, clock_of))
    return [made for kind in kinds if (made := skew.block(kind)) is not None]


def _read(event: Event) -> tuple[int, int]:
    """Between which readings the line was written."""
    assert event.time_ns is not None
    return event.time_ns, event.time_ns + (event.uncertainty_ns or 0)


def _set_up(events: Sequence[Event], clock_of: Callable[[Event], str]) -> Iterator[Attended]:
    """NCCL: no rank has its communicator before all have asked for it (bootstrap gathers from everybody)."""
    for event in events:
        named, phase = event.details.get("comm_id"), event.details.get("phase")
        if event.kind == "nccl-init" and isinstance(named, str):
            first, last = _read(event)
            if phase == "START":
                yield ("comm", named), clock_of(event), first, None
            elif phase == "COMPLETE":
                yield ("comm", named), clock_of(event), None, last


def _steps(events: Sequence[Event], clock_of: Callable[[Event], str]) -> Iterator[Attended]:
    """A synchronous job: whose line states the loss of step n has heard of everybody's step n.

    That everybody's loss is in it shows in the same value on several clocks. Everybody enters step n after the line on
    step n - 1.
    """
    lines: dict[str, dict[int, Event]] = defaultdict(dict)
    twice: set[tuple[str, int]] = set()
    for event in events:
        step, loss = number(event, "step"), event.details.get("loss")
        if event.kind == "progress" and step is not None and isinstance(loss, float):
            clock = clock_of(event)
            known = lines[clock].setdefault(step, event)
            if known is not event and (known.evidence.source, known.rank) == (event.evidence.source, event.rank):
                twice.add((clock, step))  # the job was started again
    agreed: dict[tuple[str, str], set[float]] = defaultdict(set)
    clocks = sorted(lines)
    if len(clocks) < 2:
        return
    losses: dict[tuple[int, float], list[str]] = defaultdict(list)
    for clock in clocks:
        for step, event in lines[clock].items():
            value = event.details["loss"]
            assert isinstance(value, float)
            losses[step, value].append(clock)
    for (_, value), inside in losses.items():
        for other in inside[1:]:
            agreed[inside[0], other].add(value)
    for (step, value), inside in losses.items():
        fits = [c for c in inside if c == inside[0] or len(agreed[inside[0], c]) >= SAME_LOSS]
        for clock in fits if len(fits) > 1 else ():
            before = lines[clock].get(step - 1)
            if (clock, step) in twice or (clock, step - 1) in twice:
                continue
            came = _read(before)[0] if before is not None else None
            yield ("step", step, value), clock, came, _read(lines[clock][step])[1]


def _signals(events: Sequence[Event], clock_of: Callable[[Event], str]) -> Iterator[Attended]:
    """Who says that it saw rank r's dump signal in the store saw it after r's watchdog had given up."""
    gave: dict[int, Event] = {}
    for event in events:
        if event.kind == "watchdog-timeout" and event.rank is not None and not event.details.get("repeated"):
            known = gave.get(event.rank)
            if known is None or (known.time_ns or 0) > (event.time_ns or 0):
                gave[event.rank] = event
    for event in events:
        source = number(event, "src_rank")
        if event.kind == "pg-dump-remote" and source is not None and source in gave and source != event.rank:
            yield ("signal", source), clock_of(gave[source]), _read(gave[source])[0], None
            yield ("signal", source), clock_of(event), None, _read(event)[1]


@dataclass(frozen=True, slots=True)
class Waited:
    """What a clock did while a watchdog waited; ns."""

    clock: str
    before_ns: int
    """Its reading when the operation was entered."""
    after_ns: int
    """Its reading when the watchdog gave up."""
    set_by_ns: int
    """By how much it was set in between; 0: it kept."""
    bar_ns: int


def waits(events: Sequence[Event], known: Entered, clock_of: Callable[[Event], str]) -> Iterator[Waited]:
    """For each clock whether it was set while a watchdog waited; nothing where its watchdogs disagree.

    A watchdog's line tells how long it waited, on a clock that nobody sets; the same rank's dump tells when it began.
    """
    jumps: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for event in events:
        waited = number(event, "waited_ms")
        seq = number(event, "seq")
        if event.kind != "watchdog-timeout" or event.rank is None or event.time_ns is None or event.stamp is None:
            continue
        if waited is None or seq is None or event.details.get("repeated") or event.stamp.drifts:
            continue
        begun = event.time_ns - waited * 1_000_000
        if len(told := known.at(event.rank, seq, number(event, "numel_in"))) == 1:
            bar = (event.uncertainty_ns or 0) + 200_000_000
            jumps[clock_of(event)].append((told[0], event.time_ns, begun - told[0], bar))
    for clock, inside in jumps.items():
        inside.sort(key=lambda x: x[2])
        before, after, by, bar = inside[len(inside) // 2]
        if all(abs(one[2]) <= JUMP_S * 1e9 + one[3] for one in inside):
            yield Waited(clock, min(one[0] for one in inside), max(one[1] for one in inside), 0, bar)
        elif abs(by) > JUMP_S * 1e9 + bar and inside[-1][2] - inside[0][2] < abs(by) / 2 + 2 * bar:
            yield Waited(clock, before, after, by, bar)
