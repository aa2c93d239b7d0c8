"""The ticket: twelve lines at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_forensics.show.page.facts import facts_of, onset_words, start_words
from nccl_forensics.show.page.inputs import coverage_words, inputs_summary
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.sentences import (
    STATUS_WORDS,
    headline_of,
    nothing_found,
    sure_words,
)
from nccl_forensics.show.page.suspects import not_to_blame
from nccl_forensics.show.page.words import Doc, clean, numbers_of, ranks_words
from nccl_forensics.text import language
from nccl_forensics.text.language import _, said

TICKET_LINES, TICKET_CHARS = 12, 400
MOST_ALARMS = 3
MOST_IN_SHORT = 3
"""Failures that one line names, the newest."""


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
    rows = list(_of_incidents(doc, lookup) if doc["incidents"] else _of_no_incident(doc))
    tool = f"nccl-forensics {clean(doc['tool']['version'], 40)}, {inputs_summary(doc)}"
    return [*rows[: TICKET_LINES - 1], TicketLine(label=_("Made by"), text=tool)]


def _of_no_incident(doc: Doc) -> Iterator[TicketLine]:
    yield TicketLine(label=_("Result"), text=nothing_found(doc))
    yield TicketLine(label=_("Seen"), text=coverage_words(doc))
    lookup = Lookup(doc)
    for alarm in doc.get("alarms", ())[:MOST_ALARMS]:
        why = "; ".join(said(reason) for reason in alarm["why"])
        where = lookup.where_of(alarm) + (f" ({why})" if why else "")
        yield TicketLine(label=_("Not understood"), text=where, code=clean(alarm["text"], 160))
    for problem in doc["problems"][:3]:
        yield TicketLine(label=_("Problem"), text=clean(said(problem["says"]), TICKET_CHARS))


def _of_incidents(doc: Doc, lookup: Lookup) -> Iterator[TicketLine]:
    """All of the one that counts; of several, a line for each of the first, and less of that one."""
    first, alone = primary_of(doc), len(doc["incidents"]) == 1
    verdict, facts = first["verdict"], facts_of(first, lookup)
    if alone:
        headline = headline_of(verdict, lookup.host_of)
        yield TicketLine(label=_("Result"), text=f"{headline} ({sure_words(verdict)})")
    else:
        yield from _overview(doc["incidents"], first, lookup)
    if facts.job:
        yield TicketLine(label=_("Job"), text=clean(facts.job, TICKET_CHARS))
    yield TicketLine(label=_("Summary"), text=clean(said(verdict["summary"]), TICKET_CHARS))
    if alone:
        yield TicketLine(label=_("What"), text=facts.what)
        yield TicketLine(label=_("When"), text=facts.when)
    for item in verdict["evidence"][: 2 if alone else 1]:
        line = clean(item.get("text") or said(item["says"]), 160)
        yield TicketLine(label=_("Evidence"), text=lookup.where_of(item), code=line)
    yield from _not_blamed(verdict)
    yield from _not_known(verdict)
    for label, action in zip((_("Do first"), _("Then")), verdict["actions"], strict=False):
        command = clean(action.get("command") or "", 240)
        yield TicketLine(label=label, text=clean(said(action["do"]), 240), code=command)


def _overview(incidents: Sequence[Doc], first: Doc, lookup: Lookup) -> Iterator[TicketLine]:
    """The first incidents, the ticket's own among them."""
    yield TicketLine(label=_("Result"), text=_("{n} failures, in time order").format(n=len(incidents)))
    for incident in incidents[:3] if first["id"] <= 3 else [*incidents[:2], first]:
        yield TicketLine(label=_("No. {n}").format(n=incident["id"]), text=_in_one_line(incident, lookup))
    if len(incidents) > 3:
        more = _("{n} more failures are in the report").format(n=len(incidents) - 3)
        yield TicketLine(label=_("More"), text=more)


def _in_one_line(incident: Doc, lookup: Lookup) -> str:
    """'Rank 3 …: GPU fell off the bus (identified, high confidence, 0.96), 2026-04-22 03:14:17.000 UTC'."""
    verdict = incident["verdict"]
    start = f"{start_words(incident)}: " if incident.get("job") else ""
    status = _(STATUS_WORDS[verdict["status"]]).lower()
    when = onset_words({**incident, "onset": incident["onset"] or incident["detected"] or incident.get("ended")})
    return f"{start}{headline_of(verdict, lookup.host_of)} ({status}, {sure_words(verdict)}), {when}"


def _not_blamed(verdict: Doc) -> Iterator[TicketLine]:
    if blameless := not_to_blame(verdict):
        (who, why), left = blameless[0], len(blameless) - 1
        more = _(" ({n} more cleared in the report)").format(n=left) if left else ""
        yield TicketLine(label=_("Not to blame"), text=clean(f"{who}: {why}", 240) + more)


def _not_known(verdict: Doc) -> Iterator[TicketLine]:
    unknown = [clean(said(x), 240) for x in verdict["missing_evidence"][:1]]
    if excluded := numbers_of(verdict.get("cannot_exclude")):
        unknown.insert(0, _("cannot be excluded: {ranks}").format(ranks=ranks_words(excluded)))
    if unknown:
        yield TicketLine(label=_("Not known"), text="; ".join(unknown))


def in_short(doc: Doc, lang: str = "en") -> str:
    """The answer in one line: what failed and how surely, of several failures the first ones."""
    with language.speaking(lang):
        if not doc["incidents"]:
            return clean(nothing_found(doc), TICKET_CHARS)
        lookup = Lookup(doc)
        verdicts = [i["verdict"] for i in doc["incidents"][-MOST_IN_SHORT:]]
        heads = [f"{headline_of(v, lookup.host_of)} ({sure_words(v)})" for v in verdicts]
        if (number := len(doc["incidents"])) > 1:
            heads.insert(0, _("{n} failures, in time order").format(n=number))
        return "; ".join(heads)


def ticket(doc: Doc, lang: str = "en") -> str:
    """Plain text for a terminal or a ticket: at most 12 lines, no control characters, a newline at the end."""
    with language.speaking(lang):
        rows = ticket_rows(doc)
    width = max(len(r.label) for r in rows) + 2
    lines = [f"{r.label + ':':<{width}}{r.text}{'  ' + r.code if r.code else ''}" for r in rows]
    return "".join(line[: 2 * TICKET_CHARS].rstrip() + "\n" for line in lines)
