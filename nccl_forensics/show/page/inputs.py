"""The inputs: each file, what was made of it, and how much of the job left data."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass

from markupsafe import escape

from nccl_forensics.show.page.lookup import Lookup, kept_inputs
from nccl_forensics.show.page.markup import breakable, prose
from nccl_forensics.show.page.sentences import ranks_left_out
from nccl_forensics.show.page.tables import Cell, Column, Layout, Table
from nccl_forensics.show.page.words import Doc, clean, count_words, or_na, plain_word, rank_state, ranks_words
from nccl_forensics.text import phrases
from nccl_forensics.text.language import N_, _
from nccl_forensics.text.moments import TO_THE_SECOND, micros, timestamp


@dataclass(frozen=True, slots=True)
class InputRow:
    """A file as the columns ask for it."""

    doc: Doc
    lookup: Lookup
    events: int


def _status(row: InputRow) -> Cell:
    word = plain_word(row.doc["status"])
    if not row.doc.get("reason"):
        return Cell(word, "")
    return Cell(escape(word) + ": " + prose(clean(row.doc["reason"])), "wide")


def _size(row: InputRow) -> str:
    count = row.doc.get("bytes")
    return "n/a" if count is None else phrases.size(count)


def _time(row: InputRow, key: str) -> str:
    at = micros(row.doc.get(key))
    return "n/a" if at is None else timestamp(at, TO_THE_SECOND)


INPUTS: Layout[InputRow] = Layout(
    columns=(
        Column(N_("File"), lambda f: breakable(f.lookup.path(f.doc["path"])), css="where", heads_row=True),
        Column(N_("Format"), lambda f: or_na(f.doc["format"])),
        Column(N_("Status"), _status),
        Column(N_("Size"), _size, numeric=True),
        Column(N_("Events"), lambda f: f"{f.events:,}", numeric=True),
        Column(N_("Host"), lambda f: or_na(f.doc.get("host"))),
        Column(N_("Rank"), lambda f: or_na(f.doc.get("rank")), numeric=True),
        Column(N_("First event"), lambda f: _time(f, "first_time"), css="when"),
        Column(N_("Last event"), lambda f: _time(f, "last_time"), css="when"),
        Column(N_("SHA-256"), lambda f: clean(f.doc["sha256"], 64) if f.doc.get("sha256") else "n/a", css="hash"),
    ),
    anchor=lambda f: f.lookup.anchor_of[f.doc["path"]],
    css=lambda f: f"s-{f.doc['status']}",
)


def inputs_table(doc: Doc, lookup: Lookup) -> Table:
    listed = Counter(e.get("source") for e in lookup.events)
    rows = [
        InputRow(r, lookup, r["events"] if isinstance(r.get("events"), int) else listed[r["path"]])
        for _number, r in kept_inputs(doc)
    ]
    return INPUTS.filled(rows, len(doc["inputs"]) - len(rows))


_OUTCOMES = {
    "read": N_("read"),
    "partial": N_("read in part"),
    "skipped": N_("skipped"),
    "failed": N_("not readable"),
}
"""A file's status → how the summary counts it."""


def inputs_summary(doc: Doc) -> str:
    """'14 files, 1.2 MB: 12 read, 2 skipped'."""
    counts = Counter(r["status"] for r in doc["inputs"])
    size = phrases.size(sum(r.get("bytes") or 0 for r in doc["inputs"]))
    parts = [f"{counts[status]:,} {_(words)}" for status, words in _OUTCOMES.items() if counts[status]]
    return f"{count_words(len(doc['inputs']), 'file')}, {size}: {', '.join(parts) or _('none')}"


def digest_of(doc: Doc) -> str:
    """SHA-256 over 'hash  path' lines of all inputs, in the document's order; '' where hashes were not taken."""
    lines = [f"{clean(r['sha256'])}  {clean(r['path'])}\n" for r in doc["inputs"] if r.get("sha256")]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def coverage_words(doc: Doc) -> str:
    """'7 of 8 known ranks left data; nothing from rank 3.'"""
    if not doc["ranks"]:
        return _("No rank is known from these files.")
    left_out = ranks_left_out(doc)
    silent = [*_silent(doc), *left_out]
    known = len(doc["ranks"]) + len(left_out)
    text = _("{n} of {ranks} left data").format(n=f"{known - len(silent):,}", ranks=count_words(known, "known rank"))
    return text + (_("; nothing from {ranks}.").format(ranks=ranks_words(silent)) if silent else ".")


def _silent(doc: Doc) -> Iterator[int]:
    """Ranks with a row of their own that left neither a dump nor a line."""
    spoke = {e.get("rank") for e in doc["events"]}
    return (r["rank"] for r in doc["ranks"] if left_nothing(r, spoke))


def left_nothing(row: Doc, spoke: Container[object]) -> bool:
    """Is there no dump and no line of it? So it can be with who is named, too, where others miss it."""
    counted = any(row.get(key) is not None for key in ("last_enqueued", "last_started", "last_completed", "exit"))
    return rank_state(row) == "no-data" or (rank_state(row) == "culprit" and not counted and row["rank"] not in spoke)
