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
_NUMBERS = (
    "record_id",
    "pg_id",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "time_created_ns",
    "timeout_ms",
)
"""Fields of an entry that are numbers."""
_NOTICED = ("time_discovered_started_ns", "time_discovered_completed_ns")
"""Numbers, or None."""
_FIELDS = (
    *_NUMBERS,
    *_NOTICED,
    "process_group",
    "profiling_name",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "retired",
    "is_p2p",
)
"""What is read of an entry; besides, `frames`, which not all have."""
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


def _row(entry: Mapping[Any, Any]) -> dict[str, Any]:
    """One entry of any version with the fields of `_FIELDS`, every value of the type that it should have."""
    get = entry.get
    name = _text(get("profiling_name"))
    found = _NAME.match(name)
    p2p = get("is_p2p") is True or (found is not None and found[2] in ("send", "recv"))
    local = _int(get("pg_id"))
    seq = get("collective_seq_id")
    p2p_seq = get("p2p_seq_id")
    if seq is None and get("seq_id") is not None:  # 2.2 and 2.3 have one number for both
        seq, p2p_seq = (0, get("seq_id")) if p2p else (get("seq_id"), 0)
    state = get("state")
    return {
        "record_id": _int(get("record_id")),
        "pg_id": local,
        "process_group": _pair(get("process_group"), local),
        "collective_seq_id": _int(seq),
        "p2p_seq_id": _int(p2p_seq),
        "op_id": _int(get("op_id")),
        "profiling_name": name,
        "time_created_ns": _int(get("time_created_ns")) or _int(get("time_created_us")) * 1000,
        "input_sizes": _sizes(get("input_sizes")),
        "output_sizes": _sizes(get("output_sizes")),
        "input_dtypes": _texts(get("input_dtypes")),
        "output_dtypes": _texts(get("output_dtypes")),
        "state": state if type(state) is str else "",
        "time_discovered_started_ns": _int(get("time_discovered_started_ns")),
        "time_discovered_completed_ns": _int(get("time_discovered_completed_ns")),
        "retired": get("retired") is True,
        "timeout_ms": _int(get("timeout_ms")),
        "is_p2p": p2p,
    }


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

    numbers: Mapping[str, Ints]
    """Those of `_NUMBERS` and `_NOTICED`."""
    flags: NDArray[np.uint8]
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
    column: dict[str, Any] = dict(zip(fields, zip(*map(get, entries), strict=True), strict=True))
    count = len(entries)
    numbers = {x: np.fromiter(column[x], np.int64, count) for x in _NUMBERS}
    numbers |= {x: np.fromiter([n or 0 for n in column[x]], np.int64, count) for x in _NOTICED}
    frames = column["frames"] if "frames" in column else [x.get("frames") for x in entries]
    return _Columns(
        numbers, _flags(column), Part(np.arange(count), column["process_group"]), _calls(column), _shared(frames)
    )


def _calls(column: Mapping[str, Sequence[Any]]) -> Part:
    """What tells each entry's call from others. Raises TypeError for what is not plain."""
    names = column["profiling_name"]
    types_in, types_out = _joined(column["input_dtypes"]), _joined(column["output_dtypes"])
    # Sums, joins and `fromiter` raise TypeError, too: a tuple of tuples of tuples … is small and takes for ever to
    # hash or to turn into an array.
    if {*map(type, names), *map(type, column["state"]), *map(type, types_in), *map(type, types_out)} != {str}:
        raise TypeError("a name is not text")
    return _numbered(list(map(_key, names, types_in, types_out, column["input_sizes"], column["output_sizes"])))


def _joined(types: Sequence[Any]) -> list[Any]:
    """Each entry's data types, as one text; the only one as it stands."""
    return [x[0] if len(x) == 1 else "\n".join(x) for x in types]


def _flags(column: Mapping[str, Sequence[Any]]) -> NDArray[np.uint8]:
    code = _STATES.get
    flags = np.array([code(s, 0) for s in column["state"]], dtype=np.uint8)
    flags |= np.array([x is True for x in column["retired"]], dtype=np.uint8) * np.uint8(RETIRED)
    flags |= np.array([x is True for x in column["is_p2p"]], dtype=np.uint8) * np.uint8(P2P)
    return flags


def _from_entries(entries: list[dict[str, Any]]) -> _Columns:
    """The same as `_columns`, also of entries with fields amiss or of an old version. Never raises."""
    if not entries:
        return _nothing()
    try:
        return _columns(entries)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return replace(_columns([_row(x) for x in entries]), frames=_shared([x.get("frames") for x in entries]))


def _nothing() -> _Columns:
    none = _numbered([])
    numbers = {x: np.zeros(0, np.int64) for x in (*_NUMBERS, *_NOTICED)}
    return _Columns(numbers, np.zeros(0, np.uint8), none, none, _shared([]))


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
    numbers = {x: table.numbers[x] for x in (*_NUMBERS, *_NOTICED)}
    return _Columns(numbers, flags, table.pair, Part(call.codes[table.call.codes], call.values), table.frames)


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
    name, types_in, types_out = key[:3]
    found = _NAME.match(_text(name))
    if found is None:
        return Call("", "unknown")
    backend, op, a, _, b = found.groups()
    types = (*_texts(types_in.split("\n")), "|", *_texts(types_out.split("\n"))) if types_in or types_out else ()
    ins, outs = _sizes_of(key)
    return Call(
        (backend or "").lower(),
        op.lower(),
        int(b) if b and b != "?" else None,
        int(a) if a and a != "?" else None,
        _sizes(ins),
        _sizes(outs),
        tuple(x for x in types if x),
    )


def _sizes_of(key: tuple[Any, ...]) -> tuple[Any, Any]:
    """Sizes in and out, as `_key` put them into a key."""
    _, _, _, number, *sizes = key
    if sizes and type(sizes[-1]) is tuple:
        ins, outs = sizes
        return ins, outs
    # One tensor in and one out, flattened: the length of the first, a sum, the sizes of both.
    return (sizes[1 : 1 + number],), (sizes[1 + number :],)


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
    head: Mapping[str, Any] = content if type(content) is dict else content.head if type(content) is Table else {}
    says: list[str | None] = []
    if type(content) is Table:
        columns = _from_table(content)
    else:
        listed, entries = _entries(content)
        if len(entries) < listed:
            says.append(f"{listed - len(entries)} entries are not entries")
        columns = _from_entries(entries)
    numbers = columns.numbers
    stack, stacks = _stacks(columns.frames)
    told = _groups(head, numbers["pg_id"], columns.pair)
    call = columns.call.codes.astype(np.int32)
    calls = tuple(map(_call, columns.call.values))
    rank, rank_from, odd = _whose(_possible(told, call, calls), name_rank)
    says.append(odd)
    dump = Dump(
        path=path,
        form=form,
        version=_text(head.get("version")) or None,
        rank=rank,
        rank_from=rank_from,
        partial=partial,
        mtime_ns=mtime_ns,
        library=_text(head.get("comm_lib_version")) or _text(head.get("nccl_version")) or None,
        groups=told.groups,
        has_status=told.has_status,
        all_named=told.all_named,
        idle=told.idle,
        group=told.group,
        seq=numbers["collective_seq_id"],
        p2p_seq=numbers["p2p_seq_id"],
        op_id=numbers["op_id"],
        record_id=numbers["record_id"],
        call=call,
        stack=stack,
        created_ns=numbers["time_created_ns"],
        started_ns=numbers["time_discovered_started_ns"],
        completed_ns=numbers["time_discovered_completed_ns"],
        timeout_ms=numbers["timeout_ms"],
        flags=columns.flags,
        calls=calls,
        stacks=stacks,
        others=told.others,
    )
    return dump, [Problem(says=x, source=path) for x in says if x is not None]


def _entries(content: Any) -> tuple[int, list[dict[str, Any]]]:
    """How many entries a decoded dump lists, and those that are entries."""
    raw = content.get("entries") if type(content) is dict else content
    listed = raw if isinstance(raw, list | tuple) else []
    return len(listed), [x for x in listed if type(x) is dict]


_Pair = tuple[str, str]
"""A group's name and description."""
_Members = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Config:
    """A dump's pg_config: who is in which group."""

    by_pair: Mapping[_Pair, _Members]
    """From 2.4 on."""
    by_local: Mapping[int, _Members]
    """By the number that a group has in its process: 2.3."""
    others: tuple[int, ...]
    """Ranks of gloo's nameless group."""

    def members(self, local: int, pair: _Pair) -> _Members:
        return self.by_local.get(local) if self.by_local else self.by_pair.get(pair)


def _config(table: Mapping[Any, Any]) -> _Config:
    by_pair: dict[_Pair, _Members] = {}
    by_local: dict[int, _Members] = {}
    others: tuple[int, ...] = ()
    for key, value in table.items():
        if type(value) is dict:
            pair = (_text(value.get("name")) or _text(key), _text(value.get("desc")))
            if pair == ("", ""):  # gloo: one nameless group, the newest one
                others = _ranks(value.get("ranks")) or ()
            else:
                by_pair[pair] = _ranks(value.get("ranks"))
        elif type(value) in (list, tuple) and type(key) in (int, str):
            by_local[_int(key)] = _ranks(value)
    return _Config(by_pair, by_local, others)


@dataclass(frozen=True, slots=True)
class _Told:
    """What a dump tells of its process groups; the fields are those of `Dump`."""

    groups: tuple[Group, ...]
    group: NDArray[np.int32]
    has_status: bool
    all_named: bool
    idle: bool | None
    others: tuple[int, ...]


def _groups(head: Mapping[str, Any], local: Ints, pairs: Part) -> _Told:
    """All groups of a dump: those of its entries, then those of which only its head tells."""
    config, status = _config(_dict(head.get("pg_config"))), _dict(head.get("pg_status"))
    ids, first, inverse = np.unique(local, return_index=True, return_inverse=True)
    used = {
        number: _pair(pairs.values[pairs.codes[at]], number)
        for number, at in zip(ids.tolist(), first.tolist(), strict=True)
    }
    found = [Group(*pair, config.members(x, pair), x, *_counters(status, x)) for x, pair in used.items()]
    in_status = [int(x) for x in status if type(x) is str and len(x) < 9 and x.isdecimal()]
    nameless = [x for x in in_status if x not in used]
    unused = [pair for pair in config.by_pair if pair not in used.values()]
    if len(nameless) == len(unused) == 1:
        # Names are not tied to local ids but by entries; only one of each left is no guess.
        (number,), (pair,) = nameless, unused
        found.append(Group(*pair, config.by_pair[pair], number, *_counters(status, number)))
        nameless, unused = [], []
    found += [Group(*pair, config.by_pair[pair]) for pair in unused]
    found += [Group(str(x), "", ranks, x) for x, ranks in config.by_local.items() if x not in used]
    return _Told(
        groups=tuple(found),
        group=inverse.astype(np.int32).reshape(-1),
        has_status=bool(status),
        all_named=not nameless,
        idle=_is_idle([_counters(status, x) for x in in_status]),
        others=config.others,
    )


def _dict(value: Any) -> dict[Any, Any]:
    return value if type(value) is dict else {}


_Counters = tuple[int | None, int | None, int | None]
"""Sequence numbers of the last operation of a group that was enqueued, started and completed."""


def _counters(status: Mapping[Any, Any], local: int) -> _Counters:
    row = status.get(str(local), status.get(local))
    if type(row) is not dict:
        return None, None, None
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    enqueued, started, completed = (_int(row[key]) if row.get(key) is not None else None for key in keys)
    return enqueued, started, completed


def _is_idle(rows: Sequence[_Counters]) -> bool | None:
    """Whether all that was enqueued is completed; None: nothing tells."""
    if not rows:
        return None
    return all(enqueued is not None and enqueued == completed for enqueued, _, completed in rows)


def _possible(told: _Told, call: NDArray[np.int32], calls: Sequence[Call]) -> set[int] | None:
    """The ranks whose dump it may be: members of all its groups, and what p2p names say; None: nothing tells."""
    possible: set[int] | None = None
    for one in told.groups:
        if one.members:
            possible = set(one.members) if possible is None else possible & set(one.members)
    if possible is None or len(possible) == 1:
        return possible
    for number, index in set(zip(told.group.tolist(), call.tolist(), strict=True)):
        me, ranks = calls[index].me, told.groups[number].members
        if me is not None and ranks is not None and me < len(ranks):
            possible = possible & {ranks[me]}
    return possible


def _whose(possible: set[int] | None, name_rank: int | None) -> tuple[int | None, str | None, str | None]:
    """The global rank, where it is from ('content' or 'file name'), and what is odd about it."""
    if possible is not None and len(possible) == 1:
        (rank,) = possible
        if name_rank is None or name_rank == rank:
            return rank, "content", None
        says = f"the file name says rank {name_rank}, its process groups say rank {rank}; the groups are believed"
        return rank, "content", says
    if name_rank is None:
        return None, None, "neither content nor file name tells whose dump this is"
    if possible is not None and name_rank not in possible:
        says = f"the file name says rank {name_rank}, which none of its process groups can have; the dump is left out"
        return None, None, says
    return name_rank, "file name", None
