"""Reads the entries of a Flight Recorder dump as columns, straight from the bytes that PyTorch's pickler writes.

Its entries are alike: the same keys in the same order, fetched from the memo, and values that are numbers, None, bools
or things that were written before. So numpy walks over all entries at once, key by key. What is written for the first
time stands in a few entries, and lists are alike in most; only those entries and each distinct list go through the
unpickler, with the head. What is not so regular (another pickler, torch before 2.5, damage) is left to `unpickle`.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_forensics.recorder import unpickle

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
NUMBERS = frozenset(
    {"record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "time_created_ns", "timeout_ms"}
    | {"time_discovered_started_ns", "time_discovered_completed_ns"}
)
BOOLS = frozenset({"retired", "is_p2p"})
TEXTS = frozenset({"profiling_name", "state", "thread_name", "thread_id"})
LISTS = frozenset({"frames", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes"})
SIZES = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
"""They stand side by side, and what they say together is what distinguishes one call from another."""
NEEDED = NUMBERS | BOOLS | {"profiling_name", "state", "process_group", *SIZES}
_FIRST = re.compile(
    re.escape(unpickle.ENTRIES) + rb"(?:q.|r.{4})\]\(\}\((?=X[\x01-\x40]\0\0\0\w{1,64}(q.|r.{4}))", re.DOTALL
)
"""The key `entries`, its list, and the first entry up to its first key, which is written out."""
_LAST = re.compile(rb"ueu(?:q.|r.{4})?\.\Z", re.DOTALL)
"""The ends of the last entry, of the list and of the dump."""
_NUMBER = rb"K.|M..|J.{4}|\x8a\x08.{8}"
_FETCH = rb"h.|j.{4}"
_LIST = rb"\]\((?:%s|%s|\]\((?:%s)*e)*e" % (_FETCH, _NUMBER, _NUMBER)
_WHOLE = re.compile(rb"%s(?:(?:%s)%s){0,3}" % (_LIST, _FETCH, _LIST), re.DOTALL)
"""Lists with the keys between them: nothing in them is written for the first time."""
LONGEST = 20_000
"""Bytes of a call's lists. A judgement: 1,000 tensors take so many."""


@dataclass(frozen=True, slots=True)
class Part:
    """One value for each entry: the number of one of `values`."""

    codes: Ints
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A dump with its entries as columns of equal length."""

    head: dict[str, Any]
    numbers: dict[str, Ints]
    """None reads as 0."""
    true: dict[str, NDArray[np.bool_]]
    call: Part
    """(profiling_name, {input_sizes, input_dtypes, output_sizes, output_dtypes})"""
    pair: Part
    """process_group"""
    state: Part
    frames: Part
    """Lists of dicts; equal frames are one object. None where the entries have none."""


def read(data: bytes) -> Table | None:
    """The dump in `data`; None: it has to be read the slow way, which also tells what is wrong with it."""
    first, last = _FIRST.search(data), _LAST.search(data, max(0, len(data) - 12))
    if first is None or last is None:
        return None
    try:
        return _Walk(data, first.end() - 2, last.start(), _fetch(first[1])).table()
    except (_Irregular, unpickle.Refused, pickle.UnpicklingError, MemoryError, RecursionError):
        return None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OverflowError, struct.error):
        return None


class _Irregular(Exception):
    pass


def _fetch(put: bytes) -> bytes:
    """The instruction that fetches what this one put into the memo."""
    return (b"h" if put[:1] == b"q" else b"j") + put[1:]


class _Walk:
    """All entries but the first, side by side: `at` is where each is being read."""

    def __init__(self, data: bytes, start: int, end: int, first_key: bytes) -> None:
        self.data, self.start = data, start
        self.between = b"u}(" + first_key
        self.bodies = data[start:end].split(self.between)
        if len(self.bodies) < 3:
            raise _Irregular
        lengths = np.fromiter(map(len, self.bodies), np.int64, len(self.bodies))
        steps = np.cumsum(lengths + len(self.between))
        self.at = start + steps[:-1]
        self.ends = self.at + lengths[1:]
        # Who reads on behind an entry's end (by some bytes for each key) is found out; behind the dump's are zeros.
        self.bytes: Bytes = np.frombuffer(data + bytes(1000), np.uint8)
        self.fine = np.ones(len(self.at), np.bool_)
        self.memo: dict[int, Any] = {}

    def table(self) -> Table:
        keys, fetch = self._keys()
        numbers: dict[str, Ints] = {}
        true: dict[str, NDArray[np.bool_]] = {}
        refs: dict[str, Ints] = {}
        lists: dict[str, Sequence[bytes]] = {}
        place = 0
        while place < len(keys):
            key = keys[place]
            if place:
                self._pass(fetch[key], optional=key == "duration_ms")
            place += 1
            if key in NUMBERS:
                numbers[key] = self._number()
            elif key in BOOLS:
                true[key] = self._bool()
            elif key in TEXTS:
                refs[key] = self._ref()
            elif key == "process_group":
                refs[key] = (self._ref() << 32) | self._ref()
                self._expect(0x86, 1)
            elif key in LISTS:
                while key in SIZES and place < len(keys) and keys[place] in SIZES:
                    place += 1
                if place == len(keys):
                    raise _Irregular
                lists[key] = self._lists(fetch[keys[place]])
            elif key != "duration_ms":
                raise _Irregular
        self.fine &= self.at == self.ends
        return self._made(numbers, true, refs, lists, fetch)

    def _keys(self) -> tuple[list[str], dict[str, bytes]]:
        """The first entry's keys in order, and the instruction that fetches each from the memo."""
        content, memo = unpickle.load(self.data[: self.start] + self.bodies[0] + b"ueu.")
        (entry,) = content["entries"]
        keys = list(entry)
        if not set(keys) >= NEEDED or [x for x in keys if x in SIZES] != list(SIZES):
            raise _Irregular
        together = [x in SIZES for x in keys]
        if sum(together[i] and not together[i - 1] for i in range(1, len(keys))) != 1:
            raise _Irregular
        number = {value: number for number, value in memo.items() if type(value) is str}
        return keys, {x: b"h%c" % number[x] if number[x] < 256 else b"j" + struct.pack("<I", number[x]) for x in keys}

    def _look(self, ahead: int = 0) -> Bytes:
        return self.bytes[self.at + ahead]

    def _expect(self, op: int, length: int) -> None:
        self.fine &= self._look() == op
        self.at += length

    def _pass(self, fetch: bytes, optional: bool = False) -> None:
        """Over a key; over `duration_ms` with its value, which only timed and completed entries have."""
        here = self._look() == fetch[0]
        for ahead, byte in enumerate(fetch[1:], 1):
            here &= self._look(ahead) == byte
        if optional:
            self.at += here * (len(fetch) + 9)
        else:
            self.fine &= here
            self.at += len(fetch)

    def _little(self, ahead: int, width: int, kind: str) -> Ints:
        """Numbers of `width` bytes, low byte first."""
        places = (self.at + ahead)[:, None] + np.arange(width)
        found: Ints = self.bytes[places].view(kind)[:, 0].astype(np.int64)
        return found

    def _number(self) -> Ints:
        op = self._look()
        found = np.zeros(len(op), np.int64)
        length = np.ones(len(op), np.int64)
        known = (op == 0x4E) | (op == 0x88) | (op == 0x89)
        found[op == 0x88] = 1
        for code, ahead, width, kind in (
            (0x4B, 1, 1, "u1"),
            (0x4D, 1, 2, "<u2"),
            (0x4A, 1, 4, "<i4"),
            (0x8A, 2, 8, "<i8"),
        ):
            here = op == code
            if here.any():
                found = np.where(here, self._little(ahead, width, kind), found)
                length[here] = ahead + width
                known |= here
        long = op == 0x8A
        if long.any():
            known &= ~long | (self._look(1) == 8)
        self.fine &= known
        self.at += length
        return found

    def _bool(self) -> NDArray[np.bool_]:
        op = self._look()
        self.fine &= (op == 0x88) | (op == 0x89)
        self.at += 1
        return np.asarray(op == 0x88)

    def _ref(self) -> Ints:
        op = self._look()
        short, long = op == 0x68, op == 0x6A
        self.fine &= short | long
        found = self._look(1).astype(np.int64)
        if long.any():
            found = np.where(long, self._little(1, 4, "<u4"), found)
            self.fine &= found < len(self.data)  # what is given takes a byte or more
        self.at += np.where(long, 5, 2)
        return found

    def _lists(self, next_key: bytes) -> Sequence[bytes]:
        """The bytes up to the next key."""
        if self.data.count(next_key) > 4 * len(self.at) + 1000:
            raise _Irregular  # it stands elsewhere, too, and as many pieces would take many times the dump's bytes
        starts, pieces = self.at, self.data.split(next_key)
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        places = np.cumsum(lengths + len(next_key)) - len(next_key)  # of the key; the last is the dump's end
        self.at = places[np.searchsorted(places[:-1], starts)]
        self.fine &= self.at <= self.ends
        self.at = np.minimum(self.at, self.ends)
        stops = np.where(self.at - starts < LONGEST, self.at, starts)
        return list(map(self.data.__getitem__, map(slice, starts.tolist(), stops.tolist())))

    def _made(
        self,
        numbers: dict[str, Ints],
        true: dict[str, NDArray[np.bool_]],
        refs: dict[str, Ints],
        lists: dict[str, Sequence[bytes]],
        fetch: dict[str, bytes],
    ) -> Table:
        parts = {key: _Numbered(several) for key, several in lists.items()}
        for part in parts.values():
            sound = [_WHOLE.fullmatch(x) is not None for x in part.values]
            self.fine &= np.array(sound, np.bool_)[part.codes]
            part.values = [x if ok else None for x, ok in zip(part.values, sound, strict=True)]
        odd = np.flatnonzero(~self.fine).tolist()
        if len(odd) * 2 > len(self.fine) + 100:
            raise _Irregular
        head, written = self._decode(odd, parts, fetch)
        return _fill(head, _Odd([0, *(x + 1 for x in odd)], written), self.memo, numbers, true, refs, parts)

    def _decode(
        self, odd: Sequence[int], parts: dict[str, _Numbered], fetch: dict[str, bytes]
    ) -> tuple[dict[str, Any], list[Any]]:
        """The head and the entries that are not like the others; `parts` get their values. One run of the unpickler."""
        pieces = [self.data[: self.start], self.bodies[0], b"u"]
        for row in odd:
            pieces += (self.between[1:], self.bodies[row + 1], b"u")
        for key, part in parts.items():
            pieces.append(b"](")
            for value in part.values:
                if value is None:  # of odd entries only, which are decoded as they stand
                    pieces.append(b"N")
                elif key in SIZES:
                    pieces += (b"}(", fetch[key], value, b"u")
                else:
                    pieces.append(value)
            pieces.append(b"e")
        content, self.memo = unpickle.load(b"".join((*pieces, b"eu.")))
        if max(self.memo, default=0) != len(self.memo) - 1:
            raise _Irregular  # a number was given twice: what it stands for depends on the place
        entries = content.pop("entries")
        for part, values in zip(parts.values(), entries[1 + len(odd) :], strict=True):
            if type(values) is not list or len(values) != len(part.values):
                raise _Irregular
            part.values = values
        return content, entries[: 1 + len(odd)]


class _Numbered:
    """Which of its distinct values each row has."""

    def __init__(self, rows: Sequence[Any]) -> None:
        index: defaultdict[Any, int] = defaultdict()
        index.default_factory = index.__len__
        self.codes = np.fromiter(map(index.__getitem__, rows), np.int64, len(rows))
        self.values: list[Any] = list(index)


@dataclass(frozen=True, slots=True)
class _Odd:
    """The entries that are decoded one by one, and where they stand; the columns come without the first."""

    rows: Sequence[int]
    entries: Sequence[dict[str, Any]]

    def numbers(self, key: str, column: Ints) -> Ints:
        made = np.concatenate((np.zeros(1, np.int64), column))
        made[self.rows] = np.fromiter((x[key] or 0 for x in self.entries), np.int64, len(self.rows))
        return made

    def true(self, key: str, column: NDArray[np.bool_]) -> NDArray[np.bool_]:
        made = np.concatenate((np.zeros(1, np.bool_), column))
        made[self.rows] = [x[key] is True for x in self.entries]
        return made

    def part(self, own: Callable[[dict[str, Any]], Any], codes: Ints, value: Callable[[int], Any]) -> Part:
        """`own` gives an odd entry's value, `value` that of a code of the others. Numbered as they first appear."""
        odd = len(self.rows)
        made = np.concatenate((np.zeros(1, np.int64), codes)) + odd
        made[self.rows] = np.arange(odd)
        found, first, number = np.unique(made, return_index=True, return_inverse=True)
        order = np.argsort(first)
        values = [own(self.entries[x]) if x < odd else value(x - odd) for x in found[order].tolist()]
        return Part(np.argsort(order)[number], values)


def _fill(
    head: dict[str, Any],
    odd: _Odd,
    memo: dict[int, Any],
    numbers: dict[str, Ints],
    true: dict[str, NDArray[np.bool_]],
    refs: dict[str, Ints],
    lists: dict[str, _Numbered],
) -> Table:
    """The columns with the values of the odd entries put where they belong."""
    for key in TEXTS & refs.keys():
        if any(type(memo[x]) is not str for x in set(np.delete(refs[key], [x - 1 for x in odd.rows[1:]]).tolist())):
            raise _Irregular
    sizes, frames = lists[SIZES[0]], lists.get("frames")
    if any(set(x) != set(SIZES) for x in sizes.values if x is not None):
        raise _Irregular
    calls = (refs["profiling_name"] << 24) | sizes.codes
    return Table(
        head=head,
        numbers={key: odd.numbers(key, column) for key, column in numbers.items()},
        true={key: odd.true(key, column) for key, column in true.items()},
        call=odd.part(lambda x: (x["profiling_name"], x), calls, lambda c: (memo[c >> 24], sizes.values[c & 0xFFFFFF])),
        pair=odd.part(
            lambda x: x["process_group"], refs["process_group"], lambda c: (memo[c >> 32], memo[c & 0xFFFFFFFF])
        ),
        state=odd.part(lambda x: x["state"], refs["state"], memo.__getitem__),
        frames=odd.part(
            lambda x: x.get("frames"),
            frames.codes if frames else np.zeros_like(calls),
            frames.values.__getitem__ if frames else lambda _: None,
        ),
    )
