"""Horovod's stall inspector: which ranks have not submitted tensors for which the others wait.

Written by the coordinator, rank 0, once in HOROVOD_STALL_CHECK_TIME_SECONDS (60): horovod/common/stall_inspector.cc,
and operations.cc before 0.17. Time: local wall clock in brackets; none before 0.15. Three forms, by release:

Stalled ops: allreduce.a [ready ranks: 1, 0], allreduce.b [ready ranks: 1, 0]      (up to 0.13, all in one line)
Stalled ops:                                     and below it   allreduce.a [missing ranks: 2, 3]   (up to 0.16)
Missing ranks:  (or "Stalled ranks:")            and below it   1: [allreduce.a, allreduce.b ...]   or 1!: [...]

A list of tensors is cut after six; `!` marks who makes Horovod shut down. Ranks are those of the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._lines import followers, is_data, is_quoted, rank_list

SAYS = "tensors were submitted to be reduced"
LONGEST = 100_000
"""Characters of the lists in one line; 1,000 ranks are 5 kB for each tensor. Our judgement."""
WAITED = re.compile(r"remainder of ranks for more than (?P<s>\d{1,7}) seconds")
BY_TENSOR = re.compile(r"(?P<tensor>[^\s,\[\]]{1,400}) ?\[(?P<what>ready|missing) ranks:(?P<ranks>[\d, ]{0,40000})\]")
BY_RANK = re.compile(r"^(?P<rank>\d{1,7})(?P<ends>!?): \[(?P<tensors>.{1,8000}?)\]?\s*$")
HEADS = ("Missing ranks:", "Stalled ranks:", "Stalled ops:")
SHUTS_DOWN = "Will shutdown."
MOST_LINES = 4096
"""Lines of one report: a rank each, or a tensor each. Our judgement."""


@dataclass(slots=True)
class _Report:
    """What one report tells."""

    missing: dict[int, set[str]] = field(default_factory=dict)
    """Rank → tensors that it did not submit, as far as they are listed."""
    ready: dict[str, set[int]] = field(default_factory=dict)
    """Tensor → ranks that submitted it, of releases that list those."""
    cut: set[int] = field(default_factory=set)
    """Ranks of which not all tensors are listed."""
    shuts_down: bool = False

    def take(self, text: str) -> bool:
        """Reads one line below the first; False if it is none of the report's."""
        if found := BY_RANK.match(text):
            tensors = found["tensors"].removesuffix(" ...").split(", ")
            if found["tensors"].endswith(" ..."):
                self.cut.add(int(found["rank"]))
            self.missing.setdefault(int(found["rank"]), set()).update(tensors)
            return True
        if self.listed(text):
            return True
        if SHUTS_DOWN in text:
            self.shuts_down = True
        return SHUTS_DOWN in text or text.strip() in HEADS

    def listed(self, text: str) -> bool:
        """Whether the text lists tensors, each with ranks."""
        found = False
        for found_one in BY_TENSOR.finditer(text[:LONGEST]):
            found = True
            ranks = rank_list(found_one["ranks"])
            if found_one["what"] == "ready":
                self.ready.setdefault(found_one["tensor"], set()).update(ranks)
            else:
                for rank in ranks:
                    self.missing.setdefault(rank, set()).add(found_one["tensor"])
        return found

    def details(self) -> dict[str, Detail]:
        absent = tuple(sorted(self.missing))
        told = [tensors for rank, tensors in self.missing.items() if rank not in self.cut]
        came = set.intersection(*self.ready.values()) if self.ready else set[int]()
        return {
            "missing": absent,
            "ready": tuple(sorted(came)),
            "tensors_differ": _apart(told) or _apart(self.ready.values()),
            "shuts_down": self.shuts_down,
            "tensor": min(self.ready or set().union(*self.missing.values()), default=None),
        }


def _apart(sets: Iterable[set[str]] | Iterable[set[int]]) -> bool:
    """Are there two of which neither holds anything of the other?"""
    kept: list[set[str] | set[int]] = []
    for one in sets:
        if any(not one & other for other in kept):
            return True
        if one not in kept:
            kept.append(one)
        if len(kept) > 64:
            break
    return False


@parser(title="Horovod: ranks did not submit tensors", literals=[SAYS])
def horovod_stall(line: Line) -> Iterator[Event]:
    """`missing`: the ranks by name; `ready`: those that came, where only these are told.

    `tensors_differ`: two of the ranks wait for different tensors, so neither is simply late.
    """
    text = line.text
    at = text.find(SAYS)
    if at < 0 or is_data(text) or is_quoted(text, at):
        return
    waited = WAITED.search(text, at)
    if waited is None:
        return
    report = _Report()
    report.listed(text[waited.end() :])
    for other in followers(line, MOST_LINES, MOST_LINES) if not report.ready else ():
        if not report.take(other.text.rstrip()):
            break
    if report.missing or report.ready:
        yield line.event(
            "horovod-stall",
            role="symptom",
            severity="error" if report.shuts_down else "warning",
            details={**report.details(), "waited_s": int(waited["s"])},
        )
