"""What a program's own logger puts before a message: glog, Python's logging, logrus, NeMo.

Shapes: c10/util/Logging.cpp and the samples in tests/cases/prefixes.
"""

from __future__ import annotations

import re

from nccl_forensics.lines import stamps
from nccl_forensics.lines.prefixes.peeled import Peeled, after_blank, give
from nccl_forensics.lines.window import RawLine

LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SUCCESS|EXCEPTION)"
_LOGGER_TAIL = re.compile(
    r" ?(?:"
    rf"- [^\s|]{{1,100}} - {LEVEL} +- ?"  # logging: - root - INFO -
    rf"|- {LEVEL} +- (?:\w*[._]\w[\w.]* +-+ ?)?"  # transformers: - INFO - __main__ -
    rf"|\| *{LEVEL} *\| (?:[\w.<>-]{{1,100}}:[\w.<>-]{{1,100}}:\d+ - )?"  # loguru
    rf"|[\w.]{{1,100}}: \[{LEVEL}\] ?"  # torchrun 2.1 - 2.3
    rf"|\[[\w.:-]{{1,100}}\]\[{LEVEL}\] ?-? ?"  # hydra
    rf"|\[{LEVEL} *\]:? "  # DeepSpeed
    rf"|{LEVEL}:? +"
    r"|>> "  # transformers
    r"|- (?=\S)"
    r"|: (?=\S)"
    r")"
)
_RANK_IN_TAIL = re.compile(r"\[rank[ :=]?(\d{1,7})\]", re.ASCII | re.IGNORECASE)
_DEEPSPEED_RANK = re.compile(r"\[[\w.]+:\d+:log_dist\] \[Rank (\d{1,7})\] ", re.ASCII)


def after_stamp(text: str, at: int, peeled: Peeled) -> str:
    """The text behind a logger's stamp, without the logger's name and level."""
    m = _LOGGER_TAIL.match(text, at)
    rest = text[m.end() :] if m else after_blank(text, at)
    if m is not None and "ank" in m[0] and (named := _RANK_IN_TAIL.search(m[0])):
        peeled.rank = int(named[1])
    if rest.startswith("[") and (rank := _DEEPSPEED_RANK.match(rest)):
        peeled.rank = int(rank[1])
    return rest


def us_date(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`12/09 06:49:23 - mmengine - INFO - `, `05/28/2024 10:11:12 - INFO - __main__ - `."""
    found = stamps.slashed(text)
    if found is None:
        return None
    give(peeled, found[0])
    return after_stamp(text, found[1], peeled)


_GLOG_TAIL = re.compile(r" +(\d{1,20}) ([^\s\]]{1,300}):(\d{1,7})\] ?", re.ASCII)
_LEVEL_FIRST = re.compile(rf"\[?({LEVEL})\]?(?:\|[^\]\s]{{1,200}}\])?[: ] *(?=\d\d)")


def glog(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`W1129 11:56:59.150000 12345 torch/run.py:792] `: torchrun from 2.4 (pid); glog, absl, klog (thread)."""
    found = stamps.glog(text)
    m = _GLOG_TAIL.match(text, found[1]) if found else None
    if found is None or m is None:
        return None
    give(peeled, found[0])
    if m[2].startswith("torch/") and len(m[1]) < 10:
        peeled.pid = int(m[1])
    return text[m.end() :]


def level_first(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`INFO 01-29 08:52:43 file.py:12] ` (vLLM), `[INFO] 2021-12-08 12:28:26,050 run: `, `[INFO|a.py:2] 2024-…`."""
    m = _LEVEL_FIRST.match(text)
    if m is None:
        return None
    found = stamps.iso(text, m.end()) or stamps.dashed(text, m.end()) or stamps.slashed(text, m.end())
    if found is None:
        return None
    give(peeled, found[0])
    rest = after_stamp(text, found[1], peeled)
    tag = _VLLM_TAG.match(rest)
    return rest[tag.end() :] if tag else rest


_VLLM_TAG = re.compile(r"\[[\w./-]{1,200}\.py:\d{1,6}\] ?")
"""The file of vLLM's logger, also before each line of a traceback."""
_LOGRUS = re.compile(r'time="?([^"\s]{19,40}|\d{4}-\d\d-\d\d [^"]{8,30})"? (?:level=\w+ )?(?:msg=)?')


def logrus(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`time="2026-03-04T10:19:54Z" level=info msg=`."""
    m = _LOGRUS.match(text)
    found = stamps.iso(m[1]) if m else None
    if m is None or found is None:
        return None
    give(peeled, found[0])
    return text[m.end() :]


_BRACKET_TAIL = re.compile(
    r"(?: ([EWIDC]) (\d{1,9}) (\d{1,9})|: [TDIWEF] [^\]\[\s]{1,300}:\d{1,6}| [^\]\[]{1,80})?\] ?", re.ASCII
)
_NAMED = re.compile(rf"\[(?!rank|Rank|PG )([\w.:|-]{{1,60}})\] (?=\d{{4}}-\d\d-\d\d[ T]|{LEVEL} )", re.IGNORECASE)
_NEMO = re.compile(r"\[NeMo [A-Z] ")
_LOST_COLOUR = re.compile(r"\[\d{1,2}(?:;\d{1,3}){0,4}m", re.ASCII)


_SGLANG = re.compile(r" TP(\d{1,6})(?: EP\d{1,6})?\]", re.ASCII)
"""Where SGLang names the place in the tensor-parallel group alone, that is the rank: with DP or PP it is not."""


def bracket_date(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[2026-04-22 21:34:20] `, also with a tail.

    ` TP5]` (SGLang), ` E 12 34] ` (Ray), ` d2.engine]: `, `: W a.cc:9] ` (Horovod).
    """
    found = stamps.iso(text, 1) or stamps.slashed(text, 1) or stamps.syslog(text, 1)
    m = _BRACKET_TAIL.match(text, found[1]) if found else None
    if found is None or m is None:
        return None
    give(peeled, found[0])
    if m[2]:
        peeled.pid = int(m[2])
    if tensor := _SGLANG.match(text, found[1]):
        peeled.rank = int(tensor[1])
    return after_stamp(text, m.end() - (text[m.end() - 1] == " "), peeled)


def named_rank(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[titan] ` before a date, `[NeMo I 2024-05-28 10:11:12 file:12] `."""
    if m := _NAMED.match(text):
        return text[m.end() :]
    if m := _NEMO.match(text):
        found = stamps.iso(text, m.end())
        if found and (tail := _BRACKET_TAIL.match(text, found[1])):
            give(peeled, found[0])
            return text[tail.end() :]
    return None


def lost_colour(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`[36m`: a colour whose escape character was lost in copying."""
    m = _LOST_COLOUR.match(text)
    return None if m is None else text[m.end() :]
