"""Launchers of one's own: whom they started and how it ended, as `key=value` or in words.

No one form: any line that gives a global rank and a process id as fields, in whatever order, with the local rank, the
host and the exit code where it has them. Exit codes as a shell gives them (128 + signal). Time: that of the prefix.

[launch.sh 14:31:18] rank=1 local_rank=1 CUDA_VISIBLE_DEVICES=1 pid=7731 log=/data/run44/rank1.log
[launch.sh 17:51:08] rank=1 pid=7731 exit=137
ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Event
from nccl_forensics.names import MOST_RANKS

from ._lines import number
from .torchrun import exit_event

LONGEST = 600
"""Characters looked at; such lines are short."""
FIELD = re.compile(r"(?<![\w.-])(?P<key>[A-Za-z_]{2,24})=(?P<value>[^\s,;)\]]{1,100})")
RANKS = ("rank", "global_rank", "RANK", "world_rank")
WORDED = re.compile(
    r"\b[Rr]ank[ #=:]{0,2}(?P<rank>\d{1,7})(?: \(?pid[ =:]{1,2}(?P<pid>\d{1,9})\)?)?(?: \w{1,12}){0,2}?"
    r" (?:crashed|exited|failed|died|terminated|ended|finished),?(?: \w{1,12}){0,3}? "
    r"(?:(?:exit ?|return ?)?code|(?:exit )?status)[ =:]{1,2}(?P<code>-?[1-9]\d{0,4})\b"
)
"""`Rank 2 crashed with exit code -7` (MosaicML Composer, cli/launcher.py) and whatever others write alike."""
ENDS = ("exit", "exit_code", "exitcode", "rc", "returncode", "status")
NUMBER = re.compile(r"-?\d{1,9}")


def _number(fields: dict[str, str], *keys: str) -> int | None:
    found = next((fields[key] for key in keys if key in fields), None)
    return int(found) if found is not None and NUMBER.fullmatch(found) else None


@parser(title="A launcher's fields: rank, pid, exit code", literals=["pid="])
def launched(line: Line) -> Iterator[Event]:
    if "rank=" not in line.text and "RANK=" not in line.text:
        return
    fields = {found["key"]: found["value"] for found in FIELD.finditer(line.text[:LONGEST])}
    rank, pid = _number(fields, *RANKS), _number(fields, "pid")
    if rank is None or pid is None or not 0 <= rank < MOST_RANKS or line.peeled.rank not in (None, rank):
        return
    host = fields.get("host") or line.host
    code = _number(fields, *ENDS)
    if code:
        yield exit_event(line, code, rank=rank, pid=pid, host=host)
        return
    local = _number(fields, "local_rank", "LOCAL_RANK")
    yield line.event("rank-identity", role="context", rank=rank, pid=pid, local_rank=local, host=host)


@parser(
    title="A launcher's words: a rank's exit code", literals=["exit code", "exitcode", "return code", "exit status"]
)
def launched_ended(line: Line) -> Iterator[Event]:
    found = WORDED.search(line.text[:LONGEST])
    if found is None or int(found["rank"]) >= MOST_RANKS:
        return
    yield exit_event(line, int(found["code"]), rank=int(found["rank"]), pid=number(found["pid"]))
