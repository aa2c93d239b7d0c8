"""Lists of hosts and ranks that people and launchers keep beside a job: who ran where.

Time: none. Forms: `gpu001 0-7` or `gpu001: 0,1,2` (host and its ranks), `3 gpu001` (rank and host; what follows is not
read), `rank 3=gpu001 slot=3` (Open MPI's rankfile), `gpu001 slots=8` (hostfile of Open MPI and DeepSpeed: ranks are
numbered in the order of the lines). A list counts only whole: every line is of one form, and the ranks are 0 to the
highest, each once; one number a host may be that of the node. Example:

gpu001 0-7
gpu002 8-15
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from nccl_forensics.lines.plugins import Stream, file_parser
from nccl_forensics.model import Event, Evidence
from nccl_forensics.names import MOST_RANKS
from nccl_forensics.text.visible import visible

LARGEST = 1 << 20
"""Bytes that are read; 16,384 ranks, one a line, have half of it."""
NAMED_SO = re.compile(
    r"(?:hosts?|host_?(?:file|list|map)|machine_?(?:s|file)|node_?(?:s|list|file|map)|rank_?(?:s|file|map)|mapping"
    r"|placement)(?:[._-][\w.-]{0,40})?",
    re.I,
)
HOST = r"(?P<host>[A-Za-z][\w.-]{0,252}|\d{1,3}(?:\.\d{1,3}){3})"
SPAN = r"\d{1,6}(?:-\d{1,6})?"
HOST_RANKS = re.compile(rf"{HOST}\s*[:=\s]\s*(?:ranks?\s*[:=]?\s*)?\[?(?P<ranks>{SPAN}(?:,\s*{SPAN})*)\]?")
RANK_HOST = re.compile(rf"(?P<ranks>\d{{1,6}})[\s,;:=]\s*{HOST}(?:[\s,;].{{0,200}})?")
RANKFILE = re.compile(rf"rank\s+(?P<ranks>\d{{1,6}})\s*=\s*{HOST}(?:\s.{{0,200}})?")
SLOTS = re.compile(rf"{HOST}\s+(?:.{{0,100}}?\s)??slots?\s*=\s*(?P<slots>\d{{1,4}})(?:\s.{{0,100}})?")
FORMS = (HOST_RANKS, RANKFILE, RANK_HOST, SLOTS)


def claims(head: bytes, name: str) -> bool:
    """By its name and its first line; the rest decides whether anything in it counts."""
    if NAMED_SO.fullmatch(name) is None:
        return False
    rows = _rows(head.decode("utf-8", "replace"))
    return bool(rows) and _form([text for _, text in rows[:3]]) is not None


def _rows(text: str) -> list[tuple[int, str]]:
    """(line, its text without a comment), of lines that say something."""
    lines = ((n, line.split("#", 1)[0].strip()) for n, line in enumerate(text.lstrip("\ufeff").splitlines(), 1))
    return [(n, line) for n, line in lines if line and not re.match(r"(?i)(?:rank|host|node)\b[\s,]+[a-z_]+", line)]


def _form(texts: Sequence[str]) -> re.Pattern[str] | None:
    """The one form of all these lines."""
    return next((form for form in FORMS if all(form.fullmatch(text) for text in texts)), None)


def _ranks(written: str) -> list[int]:
    """'0-3,7' → 0, 1, 2, 3, 7; none where that is too many."""
    found: list[int] = []
    for part in written.split(","):
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < MOST_RANKS:
            return []
        found += range(low, high + 1)
    return found


@file_parser(title="list of hosts and ranks", claims=claims)
def host_table(stream: Stream) -> Iterator[Event]:
    rows = _rows(stream.stream.read(LARGEST).decode("utf-8", "replace"))
    form = _form([text for _, text in rows])
    if form is None:
        return
    placed: list[tuple[int, str, int, int, str]] = []
    for line, text in rows:
        found = form.fullmatch(text)
        assert found is not None
        first = len(placed)
        ranks = range(first, first + int(found["slots"])) if form is SLOTS else _ranks(found["ranks"])
        placed += [(rank, found["host"], local, line, text) for local, rank in enumerate(ranks)]
    several = form in (HOST_RANKS, SLOTS)
    of_nodes = several and len(placed) == len(rows)
    if of_nodes or len(placed) > MOST_RANKS or sorted(rank for rank, *_ in placed) != list(range(len(placed))):
        return
    for rank, host, local, line, text in placed:
        yield Event(
            kind="rank-placed",
            role="context",
            evidence=Evidence(source=stream.path, line=line, text=visible(text)),
            rank=rank,
            local_rank=local if several else None,
            host=host,
            relayed=True,
        )
