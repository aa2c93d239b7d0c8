"""Files that say the same twice: a log sent on its own and once more in an archive is one witness, not two."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from nccl_forensics.intake.foreign import last
from nccl_forensics.lines.read import Parsed
from nccl_forensics.model import Event
from nccl_forensics.text.messages import say

FIGURES = re.compile(r"\d+")


def without_quotations(parsed: Sequence[Parsed]) -> list[Parsed]:
    """Without what prose quotes, where there are real logs or dumps besides: nobody knows of which run it is."""
    real = any(p.events or p.values for p in parsed if not p.quoted)
    return [_unread(p) if p.quoted and real else p for p in parsed]


def _unread(parsed: Parsed) -> Parsed:
    reason = "it quotes lines of logs, of this run or another: no evidence beside the logs themselves"
    return Parsed(replace(parsed.row, status="skipped", reason=reason, events=0))


def without_copies(found: Sequence[Parsed]) -> list[Parsed]:
    """The same files in their order, all that are copies of another as skipped, with whose as the reason.

    Of copies the one with the shortest name counts: `train.log` rather than `copy of train.log`. Files whose names
    differ in numbers only (`rank_0.log` and `rank_1.log`, `node01/x` and `node02/x`) can say the same of different
    things, as long as no line of theirs says of whom.
    """
    sizes = Counter((p.row.format, p.row.bytes) for p in found)
    alike_in_size = [p for p in found if sizes[p.row.format, p.row.bytes] > 1]
    originals: dict[Hashable, list[Parsed]] = {}
    copy_of: dict[int, str] = {}
    for parsed in sorted(alike_in_size, key=lambda p: (len(last(p.row.path)), p.row.path.count("!"))):
        said = _said(parsed)
        if said is None:
            continue
        alike = originals.setdefault(said, [])
        original = next((p for p in alike if _can_be_copies(p, parsed)), None)
        if original is None:
            alike.append(parsed)
        else:
            copy_of[id(parsed)] = original.row.path
    return [_left_out(p, copy_of[id(p)]) if id(p) in copy_of else p for p in found]


def _left_out(parsed: Parsed, original: str) -> Parsed:
    reason = say("says the same, line by line, as {path}: counted once", path=original)
    return Parsed(replace(parsed.row, status="skipped", reason=reason))


def _said(parsed: Parsed) -> Hashable | None:
    """What a file says, for comparing; None where it says nothing that could count twice."""
    if not parsed.events and not parsed.values:
        return None
    lines = tuple(
        (e.evidence.line, e.kind, e.evidence.text, e.stamp, e.host, e.rank, e.pid, e.gpu_pci) for e in parsed.events
    )
    return parsed.row.format, parsed.row.bytes, lines, tuple(_content(value) for value in parsed.values)


def _content(value: object) -> Hashable:
    """A dump, or what else a file parser gives, by all that can be compared cheaply."""
    rank, newest, count = (getattr(value, name, None) for name in ("rank", "newest_ns", "count"))
    return (type(value).__name__, rank, newest, count) if newest is not None else id(value)


def _can_be_copies(one: Parsed, other: Parsed) -> bool:
    numbered_alike = FIGURES.sub("#", one.row.path) == FIGURES.sub("#", other.row.path)
    return not numbered_alike or bool(one.values) or _tells_of_whom(one.events)


def _tells_of_whom(events: Iterable[Event]) -> bool:
    """Does a line say itself which process or host it is of? There is a rank 0 in every job."""
    return any(e.host is not None or e.pid is not None for e in events)
