"""What of the truth lies in a bundle: read from the files that were written, after all losses and cuts.

Nothing here knows how our parsers read; the words are those of formats/. A fact counts as there if a careful reader
with grep would find it, not if some tool does.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CONSOLE = (".log", ".out")
REPORT = re.compile(
    rb"\[rank(\d+)\]:\[E[^\n]{0,120}Watchdog caught[^\n]{0,80}WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    rb"(?:, NumelIn=(\d+), NumelOut=(\d+))?"
)
OLD_REPORT = re.compile(
    rb"\[Rank (\d+)\] Watchdog caught[^\n]{0,80}WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    rb"(?:, NumelIn=(\d+), NumelOut=(\d+))?"
)
"""Up to PyTorch 2.1 only the rank inside the group is printed."""
TOLD = re.compile(
    rb"\[rank(\d+)\]:\[E[^\n]{0,200}(?:dump signal|global timeout) (?:due to [a-z ]*)?from (?:another)? ?rank"
)
BLOCK = re.compile(rb"rank +: (\d+) \(local_rank: \d+\)[^#]{0,20}?exitcode +: (-?\d+)", re.DOTALL)
INIT = re.compile(rb"rank (\d+) nranks (\d+) [^\n]{0,80}busId ([0-9a-f]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What the files show of ranks, whoever is guilty."""

    reports: Mapping[int, frozenset[tuple[str, ...]]]
    """Global rank → (sequence number, operation, sizes …) of the waits that it reported."""
    told: frozenset[int]
    """Ranks that were told of a timeout, so that they were alive then."""
    exits: Mapping[int, int]
    """Rank → exit code in a launcher's block."""
    cards: Mapping[int, str]
    """Rank in the group of all → NCCL's bus id."""
    consoles: frozenset[str] = field(default_factory=frozenset)
    """Hosts whose console log is there; empty where all wrote to one file."""


def signs(files: Mapping[str, bytes], world: int, minor: int, lone_group: bool) -> Signs:
    """Reads them. `lone_group`: the job has only the group of all, so that a rank inside it is the global one."""
    text = b"\n".join(plain(d) for n, d in sorted(files.items()) if n.endswith(CONSOLE))
    reports: dict[int, set[tuple[str, ...]]] = defaultdict(set)
    pattern = REPORT if minor >= 2 else OLD_REPORT
    if minor >= 2 or lone_group:
        for found in pattern.finditer(text):
            reports[int(found[1])].add(tuple(x.decode() for x in found.groups()[1:] if x is not None))
    return Signs(
        reports={rank: frozenset(said) for rank, said in reports.items()},
        told=frozenset(int(m[1]) for m in TOLD.finditer(text)),
        exits={int(m[1]): int(m[2]) for m in BLOCK.finditer(_unprefixed(text))},
        cards={int(m[1]): m[3].decode() for m in INIT.finditer(text) if int(m[2]) == world},
        consoles=frozenset(n.split("/")[0] for n in files if n.endswith("train.log") and "/" in n),
    )


def plain(data: bytes) -> bytes:
    """A container runtime's JSON lines as the text that they hold; other text as it is."""
    if not data.startswith(b'{"log":'):
        return data
    rows = []
    for row in data.split(b"\n"):
        try:
            rows.append(json.loads(row)["log"].encode())
        except (ValueError, KeyError):
            rows.append(row)
    return b"".join(rows)


def _unprefixed(text: bytes) -> bytes:
    """Without what collectors and launchers put before each line of a block."""
    return re.sub(rb"(?m)^(?:\S+Z (?:stderr|stdout) F |\S+Z |\d+: |[\w.-]+: (?=\[| |=|-|[A-Z]))", b"", text)


def holds(files: Mapping[str, bytes], needles: Iterable[str], names: Sequence[str]) -> bool:
    """Is one of these texts in one of the files whose name ends so?"""
    wanted = [n.encode() for n in needles]
    return any(
        any(needle in text for needle in wanted)
        for name, data in files.items()
        if name.endswith(tuple(names))
        for text in (plain(data),)
    )
