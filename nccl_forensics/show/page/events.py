"""All events, as far as they fit on the page."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.markup import below, code, in_file
from nccl_forensics.show.page.tables import Column, Layout, Table
from nccl_forensics.show.page.words import ROW_CHARS, Doc, clean, kind_words, or_na, plain_word, plus_minus
from nccl_forensics.text.language import N_, _
from nccl_forensics.text.moments import micros, timestamp

_SEVERITY = {"critical": 0, "error": 1, "warning": 2, "info": 3}
ROW_MARKUP = 330
"""Characters of a row beside its text and its path."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as the columns ask for it."""

    doc: Doc
    lookup: Lookup

    @property
    def role(self) -> str:
        return clean(self.doc.get("role", "context"), 20)


def _when(row: EventRow) -> str:
    at, error = micros(row.doc.get("time")), row.doc.get("time_uncertainty_s")
    unzoned = _("zone not written") if row.doc.get("zone_not_written") else ""
    return _("not known") if at is None else below(timestamp(at, error), plus_minus(error), unzoned)


def _what(row: EventRow) -> str:
    repeats = int(row.doc.get("repeats") or 1)
    return below(kind_words(row.doc), _("%(n)s times") % {"n": repeats} if repeats > 1 else "")


def _line(row: EventRow) -> str:
    return code(clean(row.doc.get("text", ""), ROW_CHARS)) + " " + in_file(row.lookup.where_of(row.doc))


EVENTS: Layout[EventRow] = Layout(
    columns=(
        Column(N_("Time, UTC"), _when, css="when"),
        Column(N_("Host"), lambda e: or_na(e.doc.get("host"))),
        Column(N_("Rank"), lambda e: or_na(e.lookup.rank(e.doc)), numeric=True),
        Column("GPU", lambda e: or_na(e.doc.get("gpu_pci")), css="mono"),
        Column(N_("Role"), lambda e: plain_word(e.role)),
        Column(N_("Severity"), lambda e: plain_word(clean(e.doc.get("severity", "info"), 20))),
        Column(N_("What"), _what),
        Column(N_("Line"), _line, css="line"),
    ),
    css=lambda e: e.role,
)


def events_table(lookup: Lookup, budget: int) -> Table:
    """Rows until they fill `budget` characters: the weightiest are chosen, and shown in the document's order."""
    events = lookup.events

    def lightness(n: int) -> tuple[bool, bool, int, int]:
        event = events[n]
        severity = _SEVERITY.get(event.get("severity", "info"), 3)
        return not event.get("key"), event.get("role") == "context", severity, n

    chosen: list[int] = []
    for n in sorted(range(len(events)), key=lightness):
        budget -= ROW_MARKUP + min(len(str(events[n].get("text", ""))), ROW_CHARS) + len(str(events[n].get("source")))
        if budget < 0:
            break
        chosen.append(n)
    return EVENTS.filled([EventRow(events[n], lookup) for n in sorted(chosen)], len(events) - len(chosen))
