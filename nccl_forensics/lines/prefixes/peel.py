"""Takes off, layer by layer, what collectors, launchers and loggers put before a message; each layer gives its time
and identity.

One line can hold all of these, from the outside in: a collector's stamp (CRI, docker, syslog, the journal), a
launcher's tag (kubectl, pdsh, srun, mpirun, torchrun, Ray), PyTorch's `[rankN]:`, a logger's head, and a progress bar
to which the message was glued. A layer is a function that gets the text and returns the rest behind its own prefix, or
None if the text does not start with it; the first character says which layers can. What the signatures' regexes look
for stays in the text: `[Rank 3]` and `[PG ID 2 …]` (ranks inside a group), `NVRM:`, NCCL's `host:pid:tid [0]`.

Shapes: util-linux dmesg.c, systemd logs-show.c, rsyslog, RFC 5424, c10/util/Logging.cpp, torch.distributed.elastic, and
the samples in tests/cases/prefixes.
"""

from __future__ import annotations

import re
from typing import Final

from nccl_forensics.lines.prefixes.headings import of_heading
from nccl_forensics.lines.prefixes.launchers import NCCL_HEAD, is_host, may_be_host
from nccl_forensics.lines.prefixes.layers import layers, unwrap
from nccl_forensics.lines.prefixes.learnt import without_learnt
from nccl_forensics.lines.prefixes.peeled import Peeled, decode
from nccl_forensics.lines.prefixes.records import binary_field, export_record, exported, verbose
from nccl_forensics.lines.stamps import in_zone_of
from nccl_forensics.lines.window import RawLine

_INNER = re.compile(
    r"\[rank\d{1,7}\]: ?(?:\[[EWIF][^\]\n]{3,240}:\d{1,7}\] |Traceback \(most recent call last\):)?"
    r"|\[[EWIF](?:\d{3,4} \d\d:\d\d:\d\d\.\d{6,9})? [\w./+-]{1,200}\.(?:cpp|cc|cu|cuh|hpp|h):\d{1,7}\] "
    r"|Traceback \(most recent call last\):",
    re.ASCII,
)
_INNER_NCCL = re.compile(
    r"(?<![\w.:/-])[A-Za-z][\w.-]{0,100}:\d{1,9}:\d{1,9} \[\d{1,4}\] "
    r"(?=[\w./]{0,60}(?::\d{1,6} )?(?:\([\w]{1,60}\) )?NCCL )",
    re.ASCII,
)
_BAR = re.compile(
    r"\d\S{0,12}/\S{1,12} \[[\d:]{4,12}<[^\]\[\n]{1,300}\]"
    r"|%\|[^|\n]{0,200}\|[^\[\n]{0,80}\[[\d:]{4,12}<[^\]\[\n]{1,300}\]"
)
_BEFORE_INNER = re.compile(r"(?:^|[\]\s.;])([A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?): $", re.ASCII)


def _hit(text: str, line: RawLine) -> int:
    """Where in `text` the first of the scanner's literals stands; its end if there is none."""
    found = [at for hit in line.hits if (at := text.find(hit.decode("utf-8", "replace"))) >= 0]
    return min(found, default=len(text))


_TAG_BEFORE = re.compile(r"\[default(\d{1,5})\]: ?$")
"""torchrun's tag right before a glued message (torch/distributed/elastic/multiprocessing/tail_log.py)."""


def _unglue(text: str, peeled: Peeled, line: RawLine) -> str:
    """The message that was glued to a progress bar or to another message, instead of the whole line.

    Of several, the one in which the scanner's literal stands: what is before it was written by somebody else.
    """
    starts = _starts(text)
    if starts and starts[-1] > 0:
        hit = _hit(text, line) if line.hits else starts[0] or starts[1]
        begin = max((at for at in starts if at <= hit), default=0)
        end = min((at for at in starts if at > hit), default=len(text))
        if begin == 0:
            return text[:end] if text[:end].strip() else text
        _of_another_writer(text[max(0, begin - 80) : begin], peeled, line)
        return layers(text[begin:end], peeled, line)
    if "[" in text and (bars := list(_BAR.finditer(text))):
        rest = text[bars[-1].end() :]
        if rest.strip() and bars[-1].end() <= _hit(text, line):
            peeled.final = False
            return layers(rest.lstrip(" "), peeled, line)
    return text


def _starts(text: str) -> list[int]:
    """Where in `text` messages begin, as far as their heads show it; rising."""
    # A traceback is quoted in prose too ("hit an exception: Traceback …"): only behind a bar was it glued.
    bar = text.find("%|") if "%|" in text else text.find("it/s")
    starts = [m.start() for m in _INNER.finditer(text) if m.start() == 0 or m[0][0] != "T" or 0 <= bar < m.start()]
    if "NCCL " in text:
        starts = sorted(starts + [m.start() for m in _INNER_NCCL.finditer(text)])
    return starts


def _of_another_writer(before: str, peeled: Peeled, line: RawLine) -> None:
    """Forget what the line's head says of its writer: the message behind `before` has another."""
    word = _BEFORE_INNER.search(before)
    if word and may_be_host(word[1], "") and is_host(word[1], line):
        peeled.host = word[1]
    peeled.rank, peeled.final = None, False
    tag = _TAG_BEFORE.search(before[-24:])
    peeled.local_rank = int(tag[1]) if tag else None  # the one at the line's head wrote the bar
    # The collector's stamp holds for the whole line; that of the message before does not.
    peeled.stamp, peeled.outer = peeled.outer or peeled.stamp, None
    if peeled.stamp is not None and peeled.stamp.zone_s is None:
        peeled.stamp = None


def _from_line_head(peeled: Peeled, line: RawLine) -> None:
    """A piece behind a carriage return has no prefix of its own: the launcher's stands at the head of the line."""
    buffer = line.window.buffer
    start = buffer.rfind(b"\n", max(0, line.start - (1 << 14)), line.start) + 1
    if start == 0 and line.start > 1 << 14:
        return
    head = decode(bytes(buffer[start : min(start + 300, line.start)]).split(b"\r", 1)[0])
    other = Peeled(head)
    layers(head, other, line)
    peeled.host, peeled.pod, peeled.task = other.host, other.pod, other.task
    peeled.local_rank = other.local_rank
    peeled.stamp = other.outer or (other.stamp if other.stamp and other.stamp.zone_s is not None else None)


_CONTINUED: Final = " " * 10
"""dmesg and journalctl indent a record's further lines by the width of the stamp, 14 blanks or more."""
_RECORD_LINES: Final = 6
"""The driver's longest multi-line print has three (a judgement: twice that)."""


def _continued(rest: str, peeled: Peeled, line: RawLine) -> str:
    """An indented line without a stamp is the rest of the kernel record above it (the driver's multi-line prints)."""
    for above in line.before(_RECORD_LINES):
        raw = decode(above.raw)
        other = Peeled(raw)
        text = layers(raw, other, line)
        if not text.startswith(_CONTINUED) or (other.stamp is not None and other.stamp.boot_ns is not None):
            if other.program == "kernel":
                peeled.stamp, peeled.host, peeled.program = other.stamp, other.host, other.program
                peeled.outer = peeled.outer or other.outer
            break
    return rest.lstrip(" ") if peeled.program == "kernel" else rest


_FOUR: Final = "    "
"""How `journalctl -o verbose` indents a field."""
_MOST_TRIES: Final = 8
"""How often in a file an indented line is looked at as such a field, when it was none."""


def _in_record(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """The message, where the line stands inside a journal's record; None: it doesn't, as far as can be told."""
    state = line.window.state
    if text.startswith(_FOUR) and state.get("verbose", 0) < _MOST_TRIES:
        if (body := verbose(text, peeled, line)) is not None:
            return body
        state["verbose"] = state.get("verbose", 0) + 1
    elif state.get("records") == "export" and peeled.stamp is None:
        export_record(peeled, line)
        return text
    return None


def _of_nccl(head: re.Match[str], peeled: Peeled) -> None:
    """NCCL's own head `host:pid:tid [0] `, which stays in the text."""
    peeled.host, peeled.pid = peeled.host or head[1], int(head[2])


def _message(text: str, peeled: Peeled, line: RawLine) -> str:
    """The message in what is left of a line that is not the kernel's: it may be glued to something else."""
    nccl = "NCCL " in text
    if nccl and (head := NCCL_HEAD.match(text)) and "[rank" not in text:
        _of_nccl(head, peeled)
        return text
    if nccl or "[rank" in text or "%|" in text or "it/s" in text or (".cpp:" in text and "[E" in text):
        text = _unglue(text, peeled, line)
        if nccl and (head := NCCL_HEAD.match(text)):
            _of_nccl(head, peeled)
    return text


def _binary_record(raw: bytes, line: RawLine) -> Peeled | None:
    """The line as the first of a binary field in a journal's export; None if it is none."""
    body = binary_field(raw)
    if body is None or not exported(line):
        return None
    peeled = Peeled(decode(body))
    export_record(peeled, line)
    return peeled


def peel(line: RawLine) -> Peeled:
    """Everything that stands before the message of `line`, taken off and read.

    Never raises; what does not look like a prefix stays in the text. `line.window.state` remembers what a file's lines
    look like (host names of a launcher, the last minute of `dmesg -H`, the record format of a journal).
    """
    raw = line.raw
    if raw[:1] in (b"\0", b"\xef", b"\xff") or b"\0\0\0" in raw[:8]:
        if (record := _binary_record(raw, line)) is not None:
            return record
        raw = raw.lstrip(b"\0").removeprefix(b"\xef\xbb\xbf")
    text = decode(raw)
    peeled = Peeled(text)
    start = line.start
    if start and line.window.buffer[start - 1] == 0x0D:
        _from_line_head(peeled, line)
    rest = unwrap(text, peeled, line) if peeled.stamp is None else layers(text, peeled, line)
    if rest is text and (text.startswith(_FOUR) or "records" in line.window.state):
        body = _in_record(text, peeled, line)
        if body is not None:
            peeled.text = body
            return peeled
    if rest.startswith(_CONTINUED) and (peeled.stamp is None or peeled.stamp.boot_ns is None):
        rest = _continued(rest, peeled, line)
    if peeled.program != "kernel":
        if not peeled.final:
            rest = without_learnt(rest, peeled, line)
        rest = _message(rest, peeled, line)
    if peeled.host is None:
        of_heading(peeled, line)
    if peeled.stamp is not None and peeled.outer is not None:
        peeled.stamp = in_zone_of(peeled.stamp, peeled.outer)
    peeled.text = rest
    return peeled
