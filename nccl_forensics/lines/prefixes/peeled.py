"""A line without its prefixes, and what every layer of prefix needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nccl_forensics.model import Stamp

MOST_LAYERS: Final = 12
"""More prefixes than this on one line are not prefixes (a judgement; the longest chain seen has six)."""
RECORD: Final = 1 << 16
"""Bytes on either side of a line in which its journal record's other fields are looked for."""


@dataclass(slots=True)
class Peeled:
    """A line without its prefixes, and what they said."""

    text: str
    """The message; ANSI colours are gone."""
    stamp: Stamp | None = None
    """The innermost time before the message: the clock of the program that wrote it."""
    outer: Stamp | None = None
    """The collector's own time (CRI, docker, syslog relay), where there is one besides."""
    rank: int | None = None
    """Global rank: only from `[rankN]:` of PyTorch >= 2.2, Ray/vLLM's rank= and the like."""
    local_rank: int | None = None
    """From torchrun's `[defaultN]:`."""
    task: int | None = None
    """From `srun --label` or mpirun's tags: a global rank only with one process per task."""
    host: str | None = None
    pid: int | None = None
    program: str | None = None
    """Syslog identifier ('kernel', 'systemd') or the like."""
    pod: str | None = None
    repeats: int = 1
    """How often syslog says that the message was repeated (`message repeated 7 times: [ … ]`)."""
    cut: bool = False
    """A pager cut the line off (`>` at its end)."""
    boot_id: str | None = None
    """The journal's _BOOT_ID."""
    final: bool = False
    """The message itself has been reached: nothing more is taken off."""


def give(peeled: Peeled, stamp: Stamp | None) -> None:
    """The next stamp, further inside than those before."""
    if stamp is None:
        return
    if peeled.stamp is not None and peeled.outer is None:
        peeled.outer = peeled.stamp
    peeled.stamp = stamp


def after_blank(text: str, at: int) -> str:
    """The text from `at`, without the one blank that stands there."""
    return text[at + 1 :] if text.startswith(" ", at) else text[at:]


ANSI = re.compile(
    r"(?:\x1b|\^\[|#033)(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cDEHMZ])"
)


def decode(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "backslashreplace")
    if "\x1b" in text or "#033" in text or "^[" in text:
        text = ANSI.sub("", text)
    return text
