"""Words of the page: names, numbers and times of the document as its cells and sentences write them.

`..._words` are phrases in the page's language (text/phrases.py has them in English, here in their brief form).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from nccl_forensics import catalog
from nccl_forensics.text import phrases
from nccl_forensics.text.language import N_, _, said
from nccl_forensics.text.visible import visible

Doc = Mapping[str, Any]
HIGH, MEDIUM = 0.8, 0.4
"""The contract's bounds of 'identified' and 'suspected'."""
NO_HOST = N_("host not known")
RAW_CHARS, CONTEXT_CHARS, ROW_CHARS = 2000, 300, 400
"""Characters of a log line shown as evidence, as its neighbour, in a table row."""


def clean(text: object, limit: int = RAW_CHARS) -> str:
    """`text` on one line and fit for any output: control characters as escapes, no lone surrogates, cut at `limit`."""
    whole = str(text).encode("utf-8", "backslashreplace").decode().replace("\n", " ").replace("\t", " ")
    return visible(whole if len(whole) <= limit else whole[: limit - 1] + "…")


def ranks_words(numbers: Iterable[int]) -> str:
    """'rank 3', 'ranks 0–2, 5', 'ranks 0–516, 518–1023 (1,023 ranks)'."""
    return said(phrases.ranks(numbers, brief=True))


def ranges_words(numbers: Iterable[int], most: int = 12) -> str:
    """'0–2, 5', at most `most` of them: '0–2, 5 and 512 more'."""
    return said(phrases.ranges(numbers, most))


def rank_name(number: int) -> str:
    """'rank 3'."""
    return said(phrases.rank(number))


def count_words(number: int, one: str) -> str:
    """'1 GPU', '1,024 GPUs'; `one` is of phrases.NOUNS."""
    return said(phrases.count(number, one))


def noun(number: int, one: str) -> str:
    """The form of `one` (of phrases.NOUNS) that goes with `number`."""
    return said(phrases.noun(number, one))


def duration_words(seconds: float) -> str:
    """'0.5 ms', '12 s', '30 min', '2.1 h', '3 days'."""
    return said(phrases.duration(seconds, brief=True))


def full_sentence(text: str) -> str:
    """`text` with a capital and a full stop, where it begins with a plain word and ends with one."""
    first = text.split(" ", 1)[0].rstrip(",:;")
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text + "." if text[-1:].isalnum() or text[-1:] in ")`" else text


def plus_minus(error_s: float | None) -> str:
    return "± " + _("not known") if error_s is None else f"± {duration_words(error_s)}"


def confidence_word(confidence: float) -> str:
    return _("high") if confidence >= HIGH else _("medium") if confidence >= MEDIUM else _("low")


@cache
def kinds() -> Mapping[str, str]:
    """Kind of an event → what it is called, in few words (catalog/kinds.toml)."""
    return {id_: kind.title for id_, kind in catalog.kinds().items()}


@cache
def xids() -> dict[int, str]:
    """Xid → what it means, in few words (catalog/xid.toml)."""
    rows = catalog.load("xid").get("xid", [])
    return {r["number"]: str(r["short"]) for r in rows if isinstance(r, dict) and "number" in r and "short" in r}


@cache
def meanings() -> dict[str, str]:
    """Kind of a kernel or report line → what it means, in a sentence (catalog/kernel.toml)."""
    rows = catalog.load("kernel").get("entry", [])
    return {str(r["id"]): re.split(r"(?<=[.;]) ", str(r["meaning"]))[0].rstrip(";") for r in rows if "meaning" in r}


def kind_words(event: Doc) -> str:
    """'Xid 79', 'NCCL watchdog timeout', 'Python exception' …"""
    kind = str(event.get("kind", ""))
    words = _(kinds()[kind]) if kind in kinds() else kind.replace("-", " ").replace("_", " ")
    return clean(words + _more_of_its_kind(kind, event.get("fields") or {}), 80)


def _more_of_its_kind(kind: str, fields: Doc) -> str:
    """Which one of its kind: ' 79, GPU has fallen off the bus', ', allreduce no. 842', ', SIGABRT'."""
    if kind in ("xid", "sxid") and fields.get(kind) is not None:
        number = fields[kind]
        known = kind == "xid" and isinstance(number, int) and number in xids()
        return f" {number}, {xids()[number]}" if known else f" {number}"
    if kind == "watchdog-timeout" and fields.get("seq") is not None:
        return ", " + str(fields.get("op") or _("operation")).lower() + _(" no. {n}").format(n=fields["seq"])
    if kind == "exit" and fields.get("signal"):
        return f", {fields['signal']}"
    if kind == "exit" and fields.get("code") is not None:
        return ", " + _("code {n}").format(n=fields["code"])
    return ""


def cause_title(cause: str) -> str:
    entry = catalog.load("causes").get(cause)
    return (
        _(str(entry["title"])) if isinstance(entry, dict) and "title" in entry else clean(cause.replace("_", " "), 80)
    )


def numbers_of(numbers: object) -> tuple[int, ...]:
    return tuple(n for n in numbers if isinstance(n, int)) if isinstance(numbers, (list, tuple)) else ()


def plain_word(text: str) -> str:
    """One of WORDS in the page's language; '' is ''."""
    return _(text) if text else ""


WORDS = (
    *(N_("cause"), N_("symptom"), N_("consequence"), N_("context")),
    *(N_("critical"), N_("error"), N_("warning"), N_("info")),
    *(N_("read"), N_("partial"), N_("skipped"), N_("failed")),
    *(N_("onset"), N_("detected"), N_("ended")),
    *(N_("waiting"), N_("from first to last")),
    *(N_("the embedded data"), N_("the event table")),
)
"""Words of the document and of the drawings that templates hand to `word`."""


def or_na(value: object) -> str:
    """A cell: 'n/a' for what is not known (the model's None; never -1)."""
    return "n/a" if value is None or value == "" else clean(value, ROW_CHARS)


def gpu_words(gpu: Doc) -> str:
    """'GPU 3 at 0000:4b:00.0', 'GPU 0000:4b:00.0', 'GPU GPU-8c1f…' or 'GPU' as far as it is known."""
    index, pci = gpu.get("index"), gpu.get("pci")
    if index is not None:
        return _("GPU {index} at {pci}").format(index=index, pci=clean(pci, 40)) if pci else f"GPU {index}"
    name = pci or gpu.get("uuid") or gpu.get("serial")
    return f"GPU {clean(name, 60)}" if name else "GPU"


STATES = {
    "culprit": ("X", N_("cause")),
    "waiting": ("W", N_("waiting")),
    "blocked": ("B", N_("blocked behind others")),
    "completed": ("F", N_("nothing overdue")),
    "dead": ("D", N_("dead")),
    "no-data": ("?", N_("no data")),
}
"""A rank's state → letter in the map, word in tables."""


def rank_state(row: Doc) -> str:
    state = row.get("state")
    return state if state in STATES else "no-data"


def zoned(time: str, row: Doc) -> str:
    """A moment of this incident or event with its zone, as far as one is known."""
    return _("{time} (zone not written)").format(time=time) if row.get("zone_not_written") else f"{time} UTC"
