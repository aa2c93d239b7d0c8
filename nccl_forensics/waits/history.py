"""What one rank called, in order, and what its own earlier steps lead to expect: a program goes in a loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nccl_forensics.recorder.dumps import P2P, Call, Dump, Ints
from nccl_forensics.waits.member import LENIENT, Bools

CONTEXTS = (16, 8, 4)
"""How many calls before a call must be equal for the calls after them to be expected to be equal. A judgement."""

Token = tuple[int, tuple[str, int | None, tuple[Any, ...]], int | None]
"""A call, to be compared with others of its rank: group, (kind, peer, signature), from which line of the program."""
Bare = tuple[int, str, int | None, int | None]
"""A token without the sizes, which vary from step to step anyway: group, kind, peer, line."""


@dataclass(frozen=True, eq=False)
class History:
    """One rank's calls, oldest first."""

    dump: Dump
    over: Bools
    """Per entry: is the operation over?"""

    def call(self, row: int) -> Call:
        return self.dump.calls[int(self.dump.call[row])]

    def stack(self, row: int) -> tuple[str, ...]:
        """Python frames of an entry, innermost first; () where they were not recorded."""
        index = int(self.dump.stack[row])
        return self.dump.stacks[index] if index >= 0 else ()

    @cached_property
    def first_pending(self) -> int:
        """The oldest entry that is not over, or the number of entries."""
        open_rows = np.nonzero(~self.over)[0]
        return int(open_rows[0]) if len(open_rows) else self.dump.count

    @cached_property
    def p2p(self) -> Ints:
        """Entries of sends and receives."""
        return np.nonzero(self.dump.flags & P2P)[0]

    @property
    def ends_blind(self) -> bool:
        """Its newest entry is a send or receive of a hook, which looks finished even when it blocks."""
        if self.dump.partial or not self.dump.count:
            return False
        call = self.call(-1)
        return call.kind in ("send", "recv") and call.backend in LENIENT

    @cached_property
    def tokens(self) -> list[Token]:
        dump = self.dump
        words = [(x.kind, x.peer, x.signature) for x in dump.calls]
        stacks = [hash(x) for x in dump.stacks]
        rows = zip(dump.group.tolist(), dump.call.tolist(), dump.stack.tolist(), strict=True)
        return [(g, words[c], stacks[s] if s >= 0 else None) for g, c, s in rows]

    def departs(self, since: int) -> int | None:
        """First entry from `since` on that the rank's own history did not lead to expect; None: there is none."""
        for row in range(since, len(self.tokens)):
            expected = self._expected(row)
            if expected and _bare(self.tokens[row]) not in expected:
                return row
        return None

    def usual(self, row: int) -> set[str]:
        """Kinds of calls that the rank's history leads to expect at its entry `row`."""
        return {kind for _, kind, _, _ in self._expected(row)}

    def next_groups(self) -> set[int]:
        """Indices of the groups that the rank's history leads to expect its next call in."""
        end = len(self.tokens)
        followed = (self._followed(end, width) for width in CONTEXTS if end > width)
        return {group for group, _, _, _ in next(filter(None, followed), set())}

    def _expected(self, row: int) -> set[Bare]:
        followed = (self._followed(row, width) for width in CONTEXTS if row >= 2 * width)
        return next(filter(None, followed), set())

    def _followed(self, row: int, width: int) -> set[Bare]:
        """What has followed, at earlier places, the very calls that are the last `width` before `row`."""
        tokens = self.tokens
        before = tokens[row - width : row]
        last = before[-1]
        return {
            _bare(tokens[i]) for i in range(width, row) if tokens[i - 1] == last and tokens[i - width : i] == before
        }


def _bare(token: Token) -> Bare:
    group, (kind, peer, _), line = token
    return group, kind, peer, line
