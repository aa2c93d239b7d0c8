"""One rank's Flight Recorder dump as columns, whatever version wrote it (listed in parsers/flight_recorder.py).

Its content is untrusted: only known keys are looked at, and what is not of the expected type reads as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_forensics.model import Problem
from nccl_forensics.recorder.columns import Part, Table

Ints = NDArray[np.int64]
COMPLETED, STARTED, RETIRED, P2P = 1, 2, 4, 8
"""Bits of `Dump.flags`."""
ANY_SIZE = frozenset({"alltoall", "alltoallsingle", "alltoallbase", "gather", "scatter", "allgather", "coalesced"})
"""Operations whose sizes may differ between members legitimately."""
MOST_RANKS = 1_000_000
LONGEST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Call:
    """What an entry says about an operation, without the moment: entries with equal calls share one."""

    backend: str
    op: str
    """Lower case profiling name without backend and peers: 'all_reduce', '_all_gather_base', 'send'."""
    peer: int | None = None
    """Rank inside the group that a send goes to or a recv comes from; None: not a p2p operation, or not said."""
    me: int | None = None
    """Own rank inside the group, where a p2p name says it."""
    sizes_in: tuple[tuple[int, ...], ...] = ()
    sizes_out: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`op` in the one spelling that hook (allreduce) and backends (all_reduce) share."""
        return self.op.replace("_", "")

    @property
    def signature(self) -> tuple[Any, ...]:
        """What must be equal on all members."""
        if self.kind in ANY_SIZE:
            return (self.kind, frozenset(self.dtypes))
        return (self.kind, self.sizes_in, self.sizes_out, self.dtypes)


@dataclass(frozen=True, slots=True)
class Group:
    """One process group as one rank knows it."""

    name: str
    description: str
    members: tuple[int, ...] | None
    """Global ranks; None: this dump does not tell."""
    local_id: int | None = None
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    """From pg_status: sequence numbers (NCCL) or op ids (gloo, hook) of the last operation; None: not told; -1 → 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The Flight Recorder dump of one rank, entries as columns of equal length, oldest first."""

    path: str
    form: str
    """'pickle' or 'json'."""
    version: str | None
    """'2.10' is newer than '2.9'; None: the bare list of torch 2.2."""
    rank: int | None
    """Global rank; None where neither content nor file name tells."""
    rank_from: str | None
    """'content' or 'file name'."""
    partial: bool
    """Damaged: the newest entries may be missing."""
    mtime_ns: int | None
    library: str | None
    """Version of the communication library."""
    groups: tuple[Group, ...]
    has_status: bool
    """pg_status is there, which counts for every group that was used."""
    all_named: bool
    """Every row of pg_status is tied to a group in `groups`."""
    idle: bool | None
    """By pg_status, all that was enqueued is completed; None: there is no pg_status."""
    group: NDArray[np.int32]
    """Index into `groups`."""
    seq: Ints
    p2p_seq: Ints
    op_id: Ints
    record_id: Ints
    call: NDArray[np.int32]
    """Index into `calls`."""
    stack: NDArray[np.int32]
    """Index into `stacks`; -1: no stack."""
    created_ns: Ints
    started_ns: Ints
    completed_ns: Ints
    """Epoch nanoseconds on the rank's host; 0: unknown. The latter two are when a CPU thread noticed."""
    timeout_ms: Ints
    """0: not said."""
    flags: NDArray[np.uint8]
    calls: tuple[Call, ...]
    stacks: tuple[tuple[str, ...], ...]
    """'function file:line', innermost first."""
    others: tuple[int, ...] = ()
    """Ranks that a group without a name tells of (gloo): they exist, and no more is known."""

    @property
    def count(self) -> int:
        return len(self.seq)

    @property
    def newest_ns(self) -> int | None:
        """When the newest recorded operation was enqueued."""
        return int(self.created_ns.max()) if self.count else None


_NAME = re.compile(r"(?:([\w.\-]{1,40}):)?(\w{1,80})(?: (\d{1,7}|\?)(->|<-)(\d{1,7}|\?))?")
_RANK_LIST = re.compile(r"\d{1,7}")
_FIELDS = (
    "record_id",
    "pg_id",
    "process_group",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "profiling_name",
    "time_created_ns",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "retired",
    "timeout_ms",
    "is_p2p",
)
_STATES = {"completed": COMPLETED, "started": STARTED}


def _text(value: Any) -> str:
    return value[:LONGEST_TEXT] if type(value) is str else ""


def _int(value: Any) -> int:
    """An int that a column can hold; 0 for anything else. JSON dumps have numbers in strings."""
    if type(value) is int:
        return value if -(1 << 62) < value < 1 << 62 else 0
    if type(value) is str and len(value) < 20 and value.lstrip("-").isdecimal() and value.isascii():
        return _int(int(value))
    return 0


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    if type(value) not in (list, tuple):
        return ()
    return tuple(tuple(_int(n) for n in size[:16]) for size in value[:4096] if type(size) in (list, tuple))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(x) for x in value[:4096]) if type(value) in (list, tuple) else ()


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Members of a group: "[0, 1]" from 2.4 on, a list before."""
    if type(value) is str:
        found = [int(x) for x in _RANK_LIST.findall(value[: 8 * MOST_RANKS])]
    elif type(value) in (list, tuple):
        found = [x for x in value[:MOST_RANKS] if type(x) is int and 0 <= x < MOST_RANKS]
    else:
        return None
    return tuple(sorted(set(found))) or None


def _pair(value: Any, local: int) -> tuple[str, str]:
    """Name and description of an entry's group; before 2.4 there is only the process-local number."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return _text(value[0]), _text(value[1])
    return str(local), ""


def _row(entry: Mapping[Any, Any]) -> tuple[Any, ...]:
    """One entry of any version, in the order of `_FIELDS`, every value of the type that it should have."""
    get = entry.get
    name = _text(get("profiling_name"))
    found = _NAME.match(name)
    p2p = get("is_p2p") is True or (found is not None and found[2] in ("send", "recv"))
    local = _int(get("pg_id"))
    pair = _pair(get("process_group"), local)
    seq = get("collective_seq_id")
    p2p_seq = get("p2p_seq_id")
    if seq is None and get("seq_id") is not None:  # 2.2 and 2.3 have one number for both
        seq, p2p_seq = (0, get("seq_id")) if p2p else (get("seq_id"), 0)
    created = _int(get("time_created_ns")) or _int(get("time_created_us")) * 1000
    state = get("state")
    return (
        _int(get("record_id")),
        local,
        pair,
        _int(seq),
        _int(p2p_seq),
        _int(get("op_id")),
        name,
        created,
        _sizes(get("input_sizes")),
        _sizes(get("output_sizes")),
        _texts(get("input_dtypes")),
        _texts(get("output_dtypes")),
        state if type(state) is str else "",
        _int(get("time_discovered_started_ns")),
        _int(get("time_discovered_completed_ns")),
        get("retired") is True,
        _int(get("timeout_ms")),
        p2p,
    )


def _key(name: str, types_in: str, types_out: str, ins: Any, outs: Any) -> tuple[Any, ...]:
    """What tells one call from another; `_call` reads it. Raises TypeError for sizes that are not plain numbers."""
    if len(ins) == 1 and len(outs) == 1:
        return (name, types_in, types_out, len(ins[0]), sum(sizes := ins[0] + outs[0]), *sizes)
    total = sum(map(sum, ins)) + sum(map(sum, outs))
    return (name, types_in, types_out, total, tuple(map(tuple, ins)), tuple(map(tuple, outs)))


def _numbered(keys: Sequence[Any]) -> Part:
    """Equal keys as one value."""
    index = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return Part(np.fromiter(map(index.__getitem__, keys), np.int64, len(keys)), list(index))


def _shared(objects: Sequence[Any]) -> Part:
    """What is the same object as one value: frames are long to compare."""
    values = {id(x): x for x in objects}
    number = {key: place for place, key in enumerate(values)}
    return Part(np.array([number[id(x)] for x in objects], np.int64), list(values.values()))


@dataclass(frozen=True, slots=True)
class _Columns:
    """The fields of the entries."""

    arrays: Sequence[Any]
    """record_id, pg_id, collective_seq_id, p2p_seq_id, op_id, time_created_ns, timeout_ms, discovery times, flags"""
    pair: Part
    """process_group"""
    call: Part
    """The keys that `_call` reads."""
    frames: Part


def _columns(entries: list[dict[str, Any]]) -> _Columns:
    """Raises where a field is amiss. One pass over the entries, which are too many for the processor's caches."""
    fields = (*_FIELDS, "frames") if "frames" in entries[0] and "frames" in entries[-1] else _FIELDS
    # Entries share their keys: the very objects are found three times faster than equal strings.
    own = dict(zip(entries[0], entries[0], strict=True))
    get = itemgetter(*(own.get(x, x) for x in fields))
    columns: list[Any] = list(zip(*map(get, entries), strict=True))
    frames = columns[18] if len(columns) > 18 else [x.get("frames") for x in entries]
    names, ins, outs, states = (columns[i] for i in (6, 8, 9, 12))
    types = [[x[0] if len(x) == 1 else "\n".join(x) for x in columns[i]] for i in (10, 11)]
    # Sums, joins and `fromiter` raise TypeError for what is not plain: a tuple of tuples of tuples … is small and
    # takes for ever to hash or to turn into an array.
    if {*map(type, names), *map(type, states), *map(type, types[0]), *map(type, types[1])} != {str}:
        raise TypeError("a name is not text")
    keys = list(map(_key, names, *types, ins, outs))
    count = len(entries)
    arrays = [np.fromiter(columns[i], np.int64, count) for i in (0, 1, 3, 4, 5, 7, 16)]
    arrays += [np.fromiter([x or 0 for x in columns[i]], np.int64, count) for i in (13, 14)]
    code = _STATES.get
    flags = np.array([code(s, 0) for s in states], dtype=np.uint8)
    flags |= np.array([x is True for x in columns[15]], dtype=np.uint8) * np.uint8(RETIRED)
    flags |= np.array([x is True for x in columns[17]], dtype=np.uint8) * np.uint8(P2P)
    return _Columns([*arrays, flags], Part(np.arange(count), columns[2]), _numbered(keys), _shared(frames))


def _from_entries(entries: list[dict[str, Any]]) -> _Columns:
    """The same as `_columns`, also of entries with fields amiss or of an old version. Never raises."""
    try:
        if not entries:
            raise ValueError
        return _columns(entries)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        rows = [_row(x) for x in entries]
        names = [dict(zip(_FIELDS, row, strict=True)) for row in rows]
        frames = _shared([x.get("frames") for x in entries])
        if not names:
            nothing = _numbered([])
            return _Columns([np.zeros(0, np.int64)] * 9 + [np.zeros(0, np.uint8)], nothing, nothing, frames)
        return replace(_columns(names), frames=frames)


def _from_table(table: Table) -> _Columns:
    """What `_columns` gives, where it was read straight from the bytes. Raises if a field is amiss."""
    keys = []
    for name, entry in table.call.values:
        types = ["\n".join(entry[x]) for x in ("input_dtypes", "output_dtypes")]
        if type(name) is not str:
            raise TypeError("a name is not text")
        keys.append(_key(name, types[0], types[1], entry["input_sizes"], entry["output_sizes"]))
    call = _numbered(keys)
    states = np.array([_STATES.get(x, 0) if type(x) is str else 0 for x in table.state.values], np.uint8)
    flags = states[table.state.codes]
    flags |= table.true["retired"] * np.uint8(RETIRED)
    flags |= table.true["is_p2p"] * np.uint8(P2P)
    arrays = [table.numbers[_FIELDS[i]] for i in (0, 1, 3, 4, 5, 7, 16, 13, 14)]
    return _Columns([*arrays, flags], table.pair, Part(call.codes[table.call.codes], call.values), table.frames)


def _stacks(frames: Part) -> tuple[NDArray[np.int32], tuple[tuple[str, ...], ...]]:
    """Each entry's stack as a number (-1: none), and the stacks. What many entries share is one object."""
    lists = frames.values
    if len(lists) == 1 and not lists[0]:
        return np.full(len(frames.codes), -1, dtype=np.int32), ((),)
    parts = [tuple(map(id, x)) if type(x) is list else () for x in lists]
    first = dict(zip(reversed(parts), reversed(lists), strict=True))
    index = {part: number for number, part in enumerate(dict.fromkeys(parts))}
    stacks = tuple(_stack(first[part]) if part else () for part in index)
    number = np.array([index[part] if stacks[index[part]] else -1 for part in parts], dtype=np.int32)
    return number[frames.codes], stacks


def _call(key: tuple[Any, ...]) -> Call:
    name, types_in, types_out, number, *sizes = key
    if sizes and type(sizes[-1]) is tuple:
        ins, outs = sizes
    else:  # one tensor in and one out, flattened: the length of the first, a sum, the sizes of both
        ins, outs = (sizes[1 : 1 + number],), (sizes[1 + number :],)
    found = _NAME.match(_text(name))
    if found is None:
        return Call("", "unknown")
    backend, op, a, _, b = found.groups()
    types = (*_texts(types_in.split("\n")), "|", *_texts(types_out.split("\n"))) if types_in or types_out else ()
    return Call(
        (backend or "").lower(),
        op.lower(),
        int(b) if b and b != "?" else None,
        int(a) if a and a != "?" else None,
        _sizes(ins),
        _sizes(outs),
        tuple(x for x in types if x),
    )


_shared_stacks: dict[tuple[str, ...], tuple[str, ...]] = {}
"""All ranks run the same program: equal stacks of different dumps are kept once."""


def _stack(frames: Any) -> tuple[str, ...]:
    lines = []
    for frame in frames[:64]:
        if type(frame) is dict:
            name, file, line = _text(frame.get("name")), _text(frame.get("filename")), _int(frame.get("line"))
            lines.append(f"{name} {file}:{line}")
    stack = tuple(lines)
    if len(_shared_stacks) > 20_000:
        _shared_stacks.clear()
    return _shared_stacks.setdefault(stack, stack)


def dump_of(
    content: Any, *, path: str, form: str, name_rank: int | None, partial: bool = False, mtime_ns: int | None = None
) -> tuple[Dump, list[Problem]]:
    """The columns of a decoded dump, whatever its version, and what is odd about it.

    `content` is untrusted plain data, or a Table of it; only known keys are looked at. `name_rank`: the rank that the
    file name tells. Raises ValueError, TypeError, KeyError or AttributeError for a Table with fields amiss.
    """
    problems: list[Problem] = []
    head: Mapping[str, Any] = content if type(content) is dict else content.head if type(content) is Table else {}
    if type(content) is Table:
        columns = _from_table(content)
    else:
        raw = head.get("entries") if type(content) is dict else content
        listed = raw if isinstance(raw, list | tuple) else []
        entries = [x for x in listed if type(x) is dict]
        if len(entries) < len(listed):
            problems.append(Problem(says=f"{len(listed) - len(entries)} entries are not entries", source=path))
        columns = _from_entries(entries)
    record, local, seq, p2p_seq, op_id, created, timeout, started, completed, flags = columns.arrays
    stack, stacks = _stacks(columns.frames)
    groups, group, (has_status, all_named, idle), others = _groups(head, local, columns.pair, problems, path)
    call = columns.call.codes.astype(np.int32)
    calls = tuple(map(_call, columns.call.values))
    rank, rank_from = _whose(groups, group, call, calls, others, name_rank, problems, path)
    version = _text(head.get("version")) or None
    library = _text(head.get("comm_lib_version")) or _text(head.get("nccl_version")) or None
    dump = Dump(
        path=path,
        form=form,
        version=version,
        rank=rank,
        rank_from=rank_from,
        partial=partial,
        mtime_ns=mtime_ns,
        library=library,
        groups=groups,
        has_status=has_status,
        all_named=all_named,
        idle=idle,
        group=group,
        seq=seq,
        p2p_seq=p2p_seq,
        op_id=op_id,
        record_id=record,
        call=call,
        stack=stack,
        created_ns=created,
        started_ns=started,
        completed_ns=completed,
        timeout_ms=timeout,
        flags=flags,
        calls=calls,
        stacks=stacks,
        others=others,
    )
    return dump, problems


def _groups(
    head: Mapping[str, Any], local: Ints, pairs: Part, problems: list[Problem], path: str
) -> tuple[tuple[Group, ...], NDArray[np.int32], tuple[bool, bool, bool | None], tuple[int, ...]]:
    """All groups of a dump, each entry's index into them, (has_status, all_named, idle), and ranks known to exist."""
    config = head.get("pg_config")
    config = config if type(config) is dict else {}
    status = head.get("pg_status")
    status = status if type(status) is dict else {}
    members: dict[tuple[str, str], tuple[int, ...] | None] = {}
    by_local: dict[int, tuple[int, ...] | None] = {}
    others: tuple[int, ...] = ()
    for key, value in config.items():
        if type(value) is dict:
            pair = (_text(value.get("name")) or _text(key), _text(value.get("desc")))
            if pair == ("", ""):  # gloo: one nameless group, the newest one
                others = _ranks(value.get("ranks")) or ()
            else:
                members[pair] = _ranks(value.get("ranks"))
        elif type(value) in (list, tuple) and type(key) in (int, str):  # 2.3
            by_local[_int(key)] = _ranks(value)
    ids, first, inverse = np.unique(local, return_index=True, return_inverse=True)
    found: list[Group] = []
    seen: dict[int, tuple[str, str]] = {}
    for number, at in zip(ids.tolist(), first.tolist(), strict=True):
        pair = _pair(pairs.values[pairs.codes[at]], number)
        seen[number] = pair
        ranks = by_local.get(number) if by_local else members.get(pair)
        found.append(Group(*pair, ranks, number, *_counters(status, number)))
    ids_without = [int(x) for x in status if type(x) is str and len(x) < 9 and x.isdecimal() and int(x) not in seen]
    unused = [pair for pair in members if pair not in seen.values()]
    if len(ids_without) == len(unused) == 1:
        # Names are not tied to local ids but by entries; only one of each left is no guess.
        (number,), (pair,) = ids_without, unused
        found.append(Group(*pair, members[pair], number, *_counters(status, number)))
        ids_without, unused = [], []
    found += [Group(*pair, members[pair]) for pair in unused]
    for number, ranks in by_local.items():
        if number not in seen:
            found.append(Group(str(number), "", ranks, number))
    rows = [_counters(status, int(x)) for x in status if type(x) is str and len(x) < 9 and x.isdecimal()]
    idle = all(enqueued is not None and enqueued == completed for enqueued, _, completed in rows) if rows else None
    return tuple(found), inverse.astype(np.int32).reshape(-1), (bool(status), not ids_without, idle), others


def _counters(status: Mapping[Any, Any], local: int) -> tuple[int | None, int | None, int | None]:
    row = status.get(str(local), status.get(local))
    if type(row) is not dict:
        return None, None, None
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return tuple(_int(row[key]) if row.get(key) is not None else None for key in keys)  # type: ignore[return-value]


def _whose(
    groups: Sequence[Group],
    group: NDArray[np.int32],
    call: NDArray[np.int32],
    calls: Sequence[Call],
    others: tuple[int, ...],
    name_rank: int | None,
    problems: list[Problem],
    path: str,
) -> tuple[int | None, str | None]:
    """The global rank and where it is from: the members of all its groups, p2p names, or the file's name."""
    possible: set[int] | None = None
    for one in groups:
        if one.members:
            possible = set(one.members) if possible is None else possible & set(one.members)
    if possible is not None and len(possible) != 1:
        for number, index in set(zip(group.tolist(), call.tolist(), strict=True)):
            me, ranks = calls[index].me, groups[number].members
            if me is not None and ranks is not None and me < len(ranks):
                possible = possible & {ranks[me]}
    if possible is not None and len(possible) == 1:
        (rank,) = possible
        if name_rank is not None and name_rank != rank:
            says = f"the file name says rank {name_rank}, its process groups say rank {rank}; the groups are believed"
            problems.append(Problem(says=says, source=path))
        return rank, "content"
    if name_rank is None:
        problems.append(Problem(says="neither content nor file name tells whose dump this is", source=path))
        return None, None
    if possible is not None and name_rank not in possible:
        says = f"the file name says rank {name_rank}, which none of its process groups can have; the dump is left out"
        problems.append(Problem(says=says, source=path))
        return None, None
    return name_rank, "file name"
