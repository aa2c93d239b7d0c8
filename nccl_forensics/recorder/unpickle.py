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
from collections.abc import Iterator
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
            continue
        op = data[at]
        if op == 0x58 and at + 5 <= end:  # BINUNICODE
            after = at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        elif op == 0x8C and at + 2 <= end:  # SHORT_BINUNICODE
            after = at + 2 + data[at + 1]
        elif op == 0x95 and at + 9 <= end:  # FRAME: a hint to the reader, who allocates what it says
            after = at + 9
            if int.from_bytes(data[at + 1 : at + 9], "little") > end - after:
                raise Refused("cut", at)
        elif op == 0x2E:  # STOP
            return at + 1
        else:
            # Too short for its argument: cut. Else an instruction that plain data has no use for.
            cut = op in b"XqhKMJjrG\x8a\x8c\x95" and end - at < 10 and not (op == 0x72 and at + 5 <= end)
            raise Refused("cut" if cut else f"instruction 0x{op:02x} at byte {at:,}, which no dump has", at)
        if after > end:
            raise Refused("cut", at)
        at = after
    raise Refused("cut", end)


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
    # Fold what is open: [outer, MARK, key, value, …, 'entries', list, MARK, entry, …, dict, MARK, key, …]
    levels: list[list[Any]] = [[]]
    for item in stack:
        if item is _MARK:
            levels.append([])
        else:
            levels[-1].append(item)
    if not levels[0]:
        return None
    outer = levels[0][-1]
    if len(levels) > 1 and type(outer) is dict:
        pairs = levels[1]
        for key, value in zip(pairs[::2], pairs[1::2], strict=False):
            if type(key) in (str, int):
                outer[key] = value
        if len(levels) > 2 and len(pairs) >= 2 and type(pairs[-1]) is list and pairs[-2] == "entries":
            whole = levels[2][:-1] if len(levels) > 3 else levels[2]
            pairs[-1].extend(x for x in whole if type(x) is dict and x)
    elif len(levels) > 1 and type(outer) is list:
        whole = levels[1][:-1] if len(levels) > 2 else levels[1]
        outer.extend(x for x in whole if type(x) is dict and x)
    return outer


def _interpret(data: bytes, end: int, stack: list[Any], memo: dict[int, Any]) -> None:
    """Carry out the instructions of data[:end] on `stack`; raises at the first that can't be."""
    at = 2

    def since_mark() -> list[Any]:
        where = len(stack) - 1
        while stack[where] is not _MARK:
            where -= 1
            if where < 0:
                raise IndexError
        items = stack[where + 1 :]
        del stack[where:]
        return items

    while at < end:
        op = data[at]
        at += 1
        if op == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif op == 0x71:  # BINPUT
            memo[data[at]] = stack[-1]
            at += 1
        elif op == 0x72:  # LONG_BINPUT
            memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
            at += 4
        elif op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op == 0x58 or op == 0x8C:  # BINUNICODE, SHORT_BINUNICODE
            width = 4 if op == 0x58 else 1
            size = int.from_bytes(data[at : at + width], "little")
            at += width
            if at + size > end:
                return
            stack.append(data[at : at + size].decode("utf-8", "surrogatepass"))
            at += size
        elif op == 0x4B:  # BININT1
            stack.append(data[at])
            at += 1
        elif op == 0x4D:  # BININT2
            stack.append(struct.unpack_from("<H", data, at)[0])
            at += 2
        elif op == 0x4A:  # BININT
            stack.append(struct.unpack_from("<i", data, at)[0])
            at += 4
        elif op == 0x8A:  # LONG1
            size = data[at]
            stack.append(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
            at += 1 + size
        elif op == 0x47:  # BINFLOAT
            stack.append(struct.unpack_from(">d", data, at)[0])
            at += 8
        elif op == 0x4E:
            stack.append(None)
        elif op == 0x88 or op == 0x89:
            stack.append(op == 0x88)
        elif op == 0x7D:
            stack.append({})
        elif op == 0x5D:
            stack.append([])
        elif op == 0x29:
            stack.append(())
        elif op == 0x28:
            stack.append(_MARK)
        elif op == 0x75 or op == 0x73:  # SETITEMS, SETITEM
            items = since_mark() if op == 0x75 else [stack.pop(-2), stack.pop()]
            stack[-1].update(zip(items[::2], items[1::2], strict=False))
        elif op == 0x65 or op == 0x61:  # APPENDS, APPEND
            items = since_mark() if op == 0x65 else [stack.pop()]
            stack[-1].extend(items)
        elif op in (0x85, 0x86, 0x87):
            size = op - 0x84
            if len(stack) < size:
                return
            items = stack[-size:]
            del stack[-size:]
            stack.append(tuple(items))
        elif op == 0x95:  # FRAME
            at += 8
        else:  # STOP, or what check() refused
            return
