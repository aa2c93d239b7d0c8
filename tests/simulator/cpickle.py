"""Writes Flight Recorder dumps in the dialect of PyTorch's C++ pickler (formats: protocol 2, 18 opcodes, no classes).

A string is written once and fetched by number from then on; so is a stack frame, a dict that many entries share.
Other containers get no number.
"""

from __future__ import annotations

import struct
from typing import Any


class Frame(dict[str, Any]):
    """A stack frame: the one kind of dict that is remembered."""


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + value.to_bytes(1, "little")
    if 0 <= value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.memo: dict[object, int] = {}

    def recall(self, key: object) -> bool:
        number = self.memo.get(key)
        if number is None:
            return False
        self.out += b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)
        return True

    def remember(self, key: object) -> None:
        number = self.memo[key] = len(self.memo)
        self.out += b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def write(self, value: Any) -> None:
        if value is None:
            self.out += b"N"
        elif isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self.out += _number(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            if not self.recall(value):
                raw = value.encode()
                self.out += b"X" + struct.pack("<I", len(raw)) + raw
                self.remember(value)
        elif isinstance(value, tuple):
            first, second = value  # the recorder has pairs only
            self.write(first)
            self.write(second)
            self.out += b"\x86"
        elif isinstance(value, list):
            self.out += b"]("
            for item in value:
                self.write(item)
            self.out += b"e"
        elif isinstance(value, Frame):
            key = tuple(value.items())
            if not self.recall(key):
                self.mapping(value)
                self.remember(key)
        else:
            self.mapping(value)

    def mapping(self, value: dict[Any, Any]) -> None:
        self.out += b"}("
        for key, item in value.items():
            self.write(key)
            self.write(item)
        self.out += b"u"


def dumps(value: Any) -> bytes:
    """`value` (dicts, lists, pairs, str, int, float, bool, None) as PyTorch's C++ code would pickle it."""
    writer = _Writer()
    writer.write(value)
    return bytes(writer.out + b".")
