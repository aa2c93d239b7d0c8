"""What ties clocks together: meetings that nobody leaves before everybody has entered (bounds.py has the arithmetic).

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
from nccl_forensics.when.bounds import Block, block

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
ZONES_NS = 1800 * 10**9
"""Zones are apart by whole half hours, with few exceptions."""
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


def of_dumps(dumps: Sequence[Dump], clock_of: Mapping[int, str]) -> list[Block]:
    """One block for each process group that spans several clocks. `clock_of`: rank → its host's clock."""
    chosen = {rank: dump for rank, dump in choose(dumps, []).items() if rank in clock_of and dump.count}
    found: list[Block] = []
    signatures: dict[Any, int] = {}
    numbers: dict[int, Ints] = {}
    keys, _ = group_keys(chosen)
    for (members, _, _), where in keys.items():
        clocks = tuple(sorted({clock_of[rank] for rank in where}))
        if len(clocks) < 2 or not members or any(len(infos) != 1 for infos in where.values()):
            continue
        for rank in where:
            if rank not in numbers:
                numbers[rank] = _signatures(chosen[rank], signatures)
        place = {clock: n for n, clock in enumerate(clocks)}
        rows = [_rows(chosen[rank], info, numbers[rank], place[clock_of[rank]]) for rank, (info,) in where.items()]
        if (made := _block([r for r in rows if r is not None], clocks)) is not None:
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


def _block(rows: Sequence[_Rows], clocks: tuple[str, ...]) -> Block | None:
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
    return Block(clocks=clocks, entered=entered[:, good], left=left[:, good], base_ns=base, ordered=True)


Attended = tuple[object, str, int | None, int | None]
"""(meeting, clock, entered ns, left ns)."""


def of_logs(events: Sequence[Event], clock_of: Callable[[Event], str]) -> list[Block]:
    """Blocks of each kind of meeting that log lines tell of. `events` have times, as their own clocks show them."""
    timed = [e for e in events if e.time_ns is not None and e.stamp is not None and not e.stamp.drifts]
    kinds = (_set_up(timed, clock_of), _steps(timed, clock_of), _signals(timed, clock_of))
    return [made for kind in kinds if (made := block(kind)) is not None]


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
    lines, again = _stated_losses(events, clock_of)
    if len(lines) < 2:
        return
    stated: dict[tuple[int, float], list[str]] = defaultdict(list)  # (step, loss) → clocks
    for clock in sorted(lines):
        for step, (loss, _) in lines[clock].items():
            stated[step, loss].append(clock)
    agreed: dict[tuple[str, str], set[float]] = defaultdict(set)
    for (_, loss), (first, *others) in stated.items():
        for other in others:
            agreed[first, other].add(loss)
    for (step, loss), (first, *others) in stated.items():
        same = [other for other in others if len(agreed[first, other]) >= SAME_LOSS]
        for clock in (first, *same) if same else ():
            if (clock, step) not in again and (clock, step - 1) not in again:
                before = lines[clock].get(step - 1)
                came = _read(before[1])[0] if before is not None else None
                yield ("step", step, loss), clock, came, _read(lines[clock][step][1])[1]


_Losses = Mapping[str, Mapping[int, tuple[float, Event]]]
"""Clock → step → its loss and the first line that states it."""


def _stated_losses(events: Sequence[Event], clock_of: Callable[[Event], str]) -> tuple[_Losses, set[tuple[str, int]]]:
    """(What lines state, the (clock, step) pairs that one writer states twice: there the job was started again)."""
    lines: dict[str, dict[int, tuple[float, Event]]] = defaultdict(dict)
    again: set[tuple[str, int]] = set()
    for event in events:
        step, loss = number(event, "step"), event.details.get("loss")
        if event.kind == "progress" and step is not None and isinstance(loss, float):
            clock = clock_of(event)
            _, known = lines[clock].setdefault(step, (loss, event))
            if known is not event and (known.evidence.source, known.rank) == (event.evidence.source, event.rank):
                again.add((clock, step))
    return lines, again


def _signals(events: Sequence[Event], clock_of: Callable[[Event], str]) -> Iterator[Attended]:
    """Who says that it saw rank r's dump signal in the store saw it after r's watchdog had given up."""
    gave = _first_to_give_up(events)
    for event in events:
        source = number(event, "src_rank")
        if event.kind == "pg-dump-remote" and source is not None and source in gave and source != event.rank:
            yield ("signal", source), clock_of(gave[source]), _read(gave[source])[0], None
            yield ("signal", source), clock_of(event), None, _read(event)[1]


def _first_to_give_up(events: Sequence[Event]) -> dict[int, Event]:
    """Rank → its watchdog's first line."""
    gave: dict[int, Event] = {}
    for event in events:
        if event.kind == "watchdog-timeout" and event.rank is not None and not event.details.get("repeated"):
            known = gave.get(event.rank)
            if known is None or (known.time_ns or 0) > (event.time_ns or 0):
                gave[event.rank] = event
    return gave


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


@dataclass(frozen=True, slots=True)
class _Jump:
    """How far a clock went beyond what a watchdog waited; ns."""

    begun: int
    """When the wait began, as the dump tells."""
    ended: int
    by: int
    bar: int

    def is_of_zones(self) -> bool:
        """Is it that the line was read in another zone than it was written in?"""
        return round(self.by / ZONES_NS) != 0 and abs(self.by - round(self.by / ZONES_NS) * ZONES_NS) <= JUMP_S * 1e9

    def shows_a_step(self) -> bool:
        return abs(self.by) > JUMP_S * 1e9 + self.bar


def waits(events: Sequence[Event], known: Entered, clock_of: Callable[[Event], str]) -> Iterator[Waited]:
    """For each clock whether it was set while a watchdog waited; nothing where its watchdogs disagree.

    A watchdog's line tells how long it waited, on a clock that nobody sets; the same rank's dump tells when it began.
    """
    jumps: dict[str, list[_Jump]] = defaultdict(list)
    for event in events:
        jump = _jump(event, known)
        if jump is not None and not jump.is_of_zones():
            jumps[clock_of(event)].append(jump)
    for clock, inside in jumps.items():
        inside.sort(key=lambda jump: jump.by)
        middle = inside[len(inside) // 2]
        agree = inside[-1].by - inside[0].by < abs(middle.by) / 2 + 2 * middle.bar
        if not any(jump.shows_a_step() for jump in inside):
            yield Waited(clock, min(j.begun for j in inside), max(j.ended for j in inside), 0, middle.bar)
        elif middle.shows_a_step() and agree:
            yield Waited(clock, middle.begun, middle.ended, middle.by, middle.bar)


def _jump(event: Event, known: Entered) -> _Jump | None:
    """Of a watchdog's line whose clock can be trusted, where the dump of its rank tells one begin."""
    if event.kind != "watchdog-timeout" or event.rank is None or event.time_ns is None or event.stamp is None:
        return None
    waited_ms, seq = number(event, "waited_ms"), number(event, "seq")
    if waited_ms is None or seq is None or event.details.get("repeated") or event.stamp.drifts:
        return None
    told = known.at(event.rank, seq, number(event, "numel_in"))
    if len(told) != 1:
        return None
    by = event.time_ns - waited_ms * 1_000_000 - told[0]
    return _Jump(told[0], event.time_ns, by, (event.uncertainty_ns or 0) + 200_000_000)
