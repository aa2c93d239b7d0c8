"""The ticket: twelve lines at most."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_forensics.show.page.background import coverage_words, inputs_summary
from nccl_forensics.show.page.evidence import not_to_blame
from nccl_forensics.show.page.incident import facts_of, start_words
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.sentences import (
    NOTHING_FAILED,
    NOTHING_READ,
    STATUS_WORDS,
    headline_of,
    readable,
    sure_words,
)
from nccl_forensics.show.page.words import Doc, clean, numbers_of, ranks_words
from nccl_forensics.text import language
from nccl_forensics.text.language import _, said
from nccl_forensics.text.moments import micros, timestamp

TICKET_LINES, TICKET_CHARS = 12, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketLine:
    label: str
    text: str
    code: str = ""
    """A log line or command, quoted."""


def primary_of(doc: Doc) -> Doc:
    """The incident that the ticket is about."""
    wanted = doc.get("primary")
    found: Doc = next((i for i in doc["incidents"] if i["id"] == wanted), doc["incidents"][0])
    return found


def ticket_rows(doc: Doc) -> list[TicketLine]:
    lookup = Lookup(doc)
    incidents = doc["incidents"]
    tool = f"nccl-forensics {clean(doc['tool']['version'], 40)}, {inputs_summary(doc)}"
    if not incidents:
        rows = [
            TicketLine(label=_("Result"), text=_(NOTHING_FAILED if readable(doc) else NOTHING_READ)),
            TicketLine(label=_("Seen"), text=coverage_words(doc)),
        ]
        rows += [TicketLine(label=_("Problem"), text=clean(said(p["says"]), TICKET_CHARS)) for p in doc["problems"][:3]]
        return [*rows, TicketLine(label=_("Made by"), text=tool)]
    rows = []
    first = primary_of(doc)
    if len(incidents) > 1:
        rows.append(TicketLine(label=_("Result"), text=_("{n} failures, in time order").format(n=len(incidents))))
        for i in incidents[:3] if first["id"] <= 3 else [*incidents[:2], first]:
            v, when = i["verdict"], micros(i["onset"] or i["detected"] or i.get("ended"))
            rows.append(
                TicketLine(
                    label=_("No. {n}").format(n=i["id"]),
                    text=(f"{start_words(i)}: " if i.get("job") else "")
                    + f"{headline_of(v, lookup.host_of)} ({_(STATUS_WORDS[v['status']]).lower()}, {sure_words(v)}), "
                    + (_("time not known") if when is None else f"{timestamp(when, i.get('onset_uncertainty_s'))} UTC"),
                )
            )
        if len(incidents) > 3:
            rows.append(
                TicketLine(label=_("More"), text=_("{n} more failures are in the report").format(n=len(incidents) - 3))
            )
    verdict = first["verdict"]
    facts = dict(facts_of(first, lookup))
    if len(incidents) == 1:
        rows.append(
            TicketLine(label=_("Result"), text=f"{headline_of(verdict, lookup.host_of)} ({sure_words(verdict)})")
        )
    if _("Job") in facts:
        rows.append(TicketLine(label=_("Job"), text=clean(facts[_("Job")], TICKET_CHARS)))
    rows.append(TicketLine(label=_("Summary"), text=clean(said(verdict["summary"]), TICKET_CHARS)))
    if len(incidents) == 1:
        rows.append(TicketLine(label=_("What"), text=facts[_("What")]))
        rows.append(TicketLine(label=_("When"), text=facts[_("When")]))
    for item in verdict["evidence"][: 2 if len(incidents) == 1 else 1]:
        rows.append(
            TicketLine(
                label=_("Evidence"),
                text=lookup.where(item.get("source"), item.get("line")),
                code=clean(item.get("text") or said(item["says"]), 160),
            )
        )
    if blameless := not_to_blame(verdict):
        left = len(blameless) - 1
        more = _(" ({n} more cleared in the report)").format(n=left) if left else ""
        rows.append(
            TicketLine(label=_("Not to blame"), text=clean(f"{blameless[0][0]}: {blameless[0][1]}", 240) + more)
        )
    unknown = [clean(said(x), 240) for x in verdict["missing_evidence"][:1]]
    if excluded := numbers_of(verdict.get("cannot_exclude")):
        unknown.insert(0, _("cannot be excluded: {ranks}").format(ranks=ranks_words(excluded)))
    if unknown:
        rows.append(TicketLine(label=_("Not known"), text="; ".join(unknown)))
    for label, action in zip((_("Do first"), _("Then")), verdict["actions"], strict=False):
        rows.append(
            TicketLine(label=label, text=clean(said(action["do"]), 240), code=clean(action.get("command") or "", 240))
        )
    rows = rows[: TICKET_LINES - 1]
    return [*rows, TicketLine(label=_("Made by"), text=tool)]


def ticket(doc: Doc, lang: str = "en") -> str:
    """Plain text for a terminal or a ticket: at most 12 lines, no control characters, a newline at the end."""
    with language.speaking(lang):
        rows = ticket_rows(doc)
    width = max(len(r.label) for r in rows) + 2
    lines = [f"{r.label + ':':<{width}}{r.text}{'  ' + r.code if r.code else ''}" for r in rows]
    return "".join(line[: 2 * TICKET_CHARS].rstrip() + "\n" for line in lines)
