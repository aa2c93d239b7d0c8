"""Reads the pickles that PyTorch's Flight Recorder writes, without importing or calling anything.

A dump is plain data: dicts, lists, pairs, strings, ints, floats, bools and None, in protocol 2 as C++ writes it, or in
any protocol as Python writes it again. `check` walks over the instructions first (regular expressions, no Python per
instruction) and stops at the first that plain data does not need or that asks for more memory than the file can
justify. What passes goes to the C unpickler, with every class refused besides; what does not is read up to that place
by `salvage`, a small interpreter of the same instructions.

Instruction names and encodings: Lib/pickletools.py of CPython.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LARGEST = 64 << 20
"""Bytes of one dump. A judgement: 20,000 entries with stacks take about 10 MB."""
MOST_CONTAINERS = 3_000_000
"""Dicts, lists and tuples of one dump; each costs about 90 bytes. A judgement: 20,000 entries of 64 tensors each."""
ROOM = 256 << 20
"""Bytes that decoding one dump may take besides 16 for each of its own. A judgement: genuine ones take 9 for each."""
ENTRIES = b"X\x07\0\0\0entries"
"""The key as PyTorch writes it, once."""


BINUNICODE, SHORT_BINUNICODE = ord(pickle.BINUNICODE), ord(pickle.SHORT_BINUNICODE)
BINGET, LONG_BINGET, BINPUT, LONG_BINPUT, MEMOIZE = (
    ord(x) for x in (pickle.BINGET, pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE)
)
BININT1, BININT2, BININT, LONG1, BINFLOAT = (
    ord(x) for x in (pickle.BININT1, pickle.BININT2, pickle.BININT, pickle.LONG1, pickle.BINFLOAT)
)
SETITEM, SETITEMS, APPEND, APPENDS = (ord(x) for x in (pickle.SETITEM, pickle.SETITEMS, pickle.APPEND, pickle.APPENDS))
FRAME, STOP = ord(pickle.FRAME), ord(pickle.STOP)
# Instructions with fixed lengths. LONG_BINPUT (r) only below 2^22: the C unpickler's memo grows to the largest number
# asked for, whatever the file's size (2^27 takes 2 GB).
_RUN = re.compile(
    rb"(?:[}\](uesaN\x88\x89\x85\x86\x87)\x94]|[qhK].|M..|J.{4}|j.{4}|\x8a\x08.{8}|r..[\x00-\x3f]\x00|G.{8}"
    rb"|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7})){1,2000}",
    re.DOTALL,
)


class Refused(Exception):
    """The pickle is cut, foreign or dangerous; `at` is the first byte that was not accepted."""

    def __init__(self, says: str, at: int) -> None:
        super().__init__(says)
        self.at = at


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError("a dump has no classes")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a dump has no persistent objects")


def check(data: bytes) -> int:
    """Length of the pickle in `data`, which holds only instructions of plain data. Raises Refused."""
    if len(data) < 2 or data[0] != 0x80 or not 2 <= data[1] <= 5:
        raise Refused("not a pickle of protocol 2 to 5", 0)
    if sum(map(data.count, (b"}", b"]", b"\x85", b"\x86", b"\x87", b")"))) > MOST_CONTAINERS:
        raise Refused(f"more than {MOST_CONTAINERS:,} containers", 0)
    at, end, match = 2, len(data), _RUN.match
    while at < end:
        run = match(data, at)
        if run is not None:
            at = run.end()
        elif data[at] == STOP:
            return at + 1
        else:
            at = _behind(data, at, end)
    raise Refused("cut", end)


def _behind(data: bytes, at: int, end: int) -> int:
    """Where the instruction at `at`, which tells its own length, ends. Raises Refused if it is cut or another one."""
    op, left = data[at], end - at
    if op == BINUNICODE and left >= 5:
        after = at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
    elif op == SHORT_BINUNICODE and left >= 2:
        after = at + 2 + data[at + 1]
    elif op == FRAME and left >= 9:  # a hint to the reader, who allocates what it says
        after = at + 9
        if int.from_bytes(data[at + 1 : at + 9], "little") > end - after:
            raise Refused("cut", at)
    else:
        # Too short for its argument: cut. Else an instruction that plain data has no use for.
        cut = op in b"XqhKMJjrG\x8a\x8c\x95" and left < 10 and not (op == LONG_BINPUT and left >= 5)
        raise Refused("cut" if cut else f"instruction 0x{op:02x} at byte {at:,}, which no dump has", at)
    if after > end:
        raise Refused("cut", at)
    return after


@contextmanager
def _bounded(extra: int) -> Iterator[bool]:
    """This process can't grow by more than `extra` bytes meanwhile; False where the system has no such bound.

    The decoder holds the interpreter's lock, so that no other thread allocates while the bound stands.
    """
    try:
        import resource

        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError, ValueError, IndexError):
        yield False
        return
    wanted = now + extra
    if soft != resource.RLIM_INFINITY and soft <= wanted:
        yield True
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    except (OSError, ValueError):
        yield False
        return
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def loads(data: bytes) -> Any:
    """The plain data in a pickle. Raises Refused, and pickle.UnpicklingError and its kin where it makes no sense."""
    return load(data)[0]


def load(data: bytes) -> tuple[Any, dict[int, Any]]:
    """The same, and what the pickle has put into its memo by number.

    Where the process's memory can be bounded, the C unpickler goes first: `check` takes as long as it does. Whatever
    it objects to is looked at by `check`, which says where and why.
    """
    with _lock, _bounded(ROOM + 16 * len(data)) as bounded:
        if not bounded:
            check(data)
        try:
            # The C unpickler reads a buffered file in large pieces, a BytesIO byte by byte (2.5 x slower).
            unpickler = _NoClasses(io.BufferedReader(io.BytesIO(data)))
            return unpickler.load(), unpickler.memo.copy()
        except Exception:
            if not bounded:
                raise
    check(data)
    raise Refused("its parts do not fit together", len(data))


_MARK = object()
_lock = threading.Lock()


def salvage(data: bytes, end: int) -> Any:
    """What the instructions before `end` had built: None, or the outermost container with its complete parts.

    An unfinished dict or list that stands in another one is dropped, but for the outermost and for the list `entries`
    in it. Never raises.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    with suppress(struct.error, IndexError, KeyError, ValueError, TypeError, OverflowError, AttributeError):
        _interpret(data, end, stack, memo)
    # What is open: [outer, MARK, key, value, …, 'entries', list, MARK, entry, …, dict, MARK, key, …]
    closed, *open_ = _levels(stack)
    if not closed:
        return None
    outer = closed[-1]
    if open_ and type(outer) is dict:
        pairs, *deeper = open_
        for key, value in zip(pairs[::2], pairs[1::2], strict=False):
            if type(key) in (str, int):
                outer[key] = value
        if deeper and len(pairs) >= 2 and type(pairs[-1]) is list and pairs[-2] == "entries":
            pairs[-1].extend(_whole(deeper))
    elif open_ and type(outer) is list:
        outer.extend(_whole(open_))
    return outer


def _levels(stack: list[Any]) -> list[list[Any]]:
    """What lies on the stack before, between and behind its marks."""
    levels: list[list[Any]] = [[]]
    for item in stack:
        if item is _MARK:
            levels.append([])
        else:
            levels[-1].append(item)
    return levels


def _whole(levels: list[list[Any]]) -> list[dict[Any, Any]]:
    """The entries of a list that is open at the first of these levels: but for the last, if a deeper one fills it."""
    entries = levels[0][:-1] if len(levels) > 1 else levels[0]
    return [x for x in entries if type(x) is dict and x]


_NUMBER = {
    BININT1: struct.Struct("<B"),
    BININT2: struct.Struct("<H"),
    BININT: struct.Struct("<i"),
    BINFLOAT: struct.Struct(">d"),
}
"""Instruction → how its number is written."""
_LENGTH = {BINUNICODE: 4, SHORT_BINUNICODE: 1}
"""Instruction → bytes of the length that stands before its text."""
_CONSTANT = {ord(pickle.NONE): None, ord(pickle.NEWTRUE): True, ord(pickle.NEWFALSE): False, ord(pickle.MARK): _MARK}
_EMPTY: dict[int, Callable[[], Any]] = {
    ord(pickle.EMPTY_DICT): dict,
    ord(pickle.EMPTY_LIST): list,
    ord(pickle.EMPTY_TUPLE): tuple,
}
_TUPLE = {ord(pickle.TUPLE1): 1, ord(pickle.TUPLE2): 2, ord(pickle.TUPLE3): 3}
"""Instruction → members of the tuple."""


def _interpret(data: bytes, end: int, stack: list[Any], memo: dict[int, Any]) -> None:
    """Carry out the instructions of data[:end] on `stack`; raises at the first that can't be."""
    at = 2
    while at < end:
        op = data[at]
        at += 1
        if op == BINGET:
            stack.append(memo[data[at]])
            at += 1
        elif op == LONG_BINGET:
            stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif op in _NUMBER:
            stack += _NUMBER[op].unpack_from(data, at)
            at += _NUMBER[op].size
        elif op in _CONSTANT:
            stack.append(_CONSTANT[op])
        elif op == BINPUT:
            memo[data[at]] = stack[-1]
            at += 1
        elif op == LONG_BINPUT:
            memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
            at += 4
        elif op == MEMOIZE:
            memo[len(memo)] = stack[-1]
        elif op in _LENGTH:
            width = _LENGTH[op]
            size = int.from_bytes(data[at : at + width], "little")
            at += width
            if at + size > end:
                return
            stack.append(data[at : at + size].decode("utf-8", "surrogatepass"))
            at += size
        elif op == LONG1:
            size = data[at]
            stack.append(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
            at += 1 + size
        elif op in _EMPTY:
            stack.append(_EMPTY[op]())
        elif op == SETITEMS:
            items = _since_mark(stack)
            stack[-1].update(zip(items[::2], items[1::2], strict=False))
        elif op == SETITEM:
            key, value = stack.pop(-2), stack.pop()
            stack[-1].update({key: value})
        elif op == APPENDS:
            items = _since_mark(stack)
            stack[-1].extend(items)
        elif op == APPEND:
            item = stack.pop()
            stack[-1].append(item)
        elif op in _TUPLE:
            size = _TUPLE[op]
            if len(stack) < size:
                return
            items = stack[-size:]
            del stack[-size:]
            stack.append(tuple(items))
        elif op == FRAME:
            at += 8
        else:  # STOP, or what check() refused
            return


def _since_mark(stack: list[Any]) -> list[Any]:
    """What lies on the stack behind its last mark; it is taken off, and the mark, too."""
    where = len(stack) - 1
    while stack[where] is not _MARK:
        where -= 1
        if where < 0:
            raise IndexError
    items = stack[where + 1 :]
    del stack[where:]
    return items
