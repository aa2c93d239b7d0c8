"""A bound for parsers that read the lines behind a header: a hostile file may have a header in every line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

MOST_BLOCKS = 400
"""Blocks of one kind in one file that are read; the first ones count. A loop that writes one every five minutes fills
this in a day. Our judgement."""


def may_read(line: Line, kind: str, most: int = MOST_BLOCKS) -> bool:
    """Whether one more block of this kind is read in this line's file; if not, that becomes a problem."""
    state = line.window.state
    seen = state[f"blocks.{kind}"] = state.get(f"blocks.{kind}", 0) + 1
    if seen <= most:
        return True
    line.leave_out(kind)
    return False


def rows(line: Line, kind: str, most: int) -> Iterator[Line]:
    """The lines behind a header, up to `most`. If the reader has not stopped by then, that becomes a problem."""
    found = line.after(most + 1)
    yield from found[:most]
    if len(found) > most:
        line.leave_out(f"{kind} (its rows)")
