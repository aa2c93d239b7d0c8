"""The whole page as rows."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_forensics.show.page.clocks import clocks_table
from nccl_forensics.show.page.events import events_table
from nccl_forensics.show.page.hardware import gpus_table, rates_view
from nccl_forensics.show.page.incident import incident_view
from nccl_forensics.show.page.inputs import coverage_words, digest_of, inputs_summary, inputs_table
from nccl_forensics.show.page.lookup import MAX_INPUTS, Lookup
from nccl_forensics.show.page.ranks import ranks_view
from nccl_forensics.show.page.rows import AlarmView, IncidentView, Page, RanksView, Some, some
from nccl_forensics.show.page.sentences import alarmed, nothing_found, ranks_left_out, readable
from nccl_forensics.show.page.words import CONTEXT_CHARS, Doc, clean, full_sentence
from nccl_forensics.text.language import _, said

MAX_INCIDENTS = 12
MAX_PROBLEMS = 200
MAX_RANK_ROWS = 1024
"""Rows of the tables of ranks, of all incidents together."""


def page_of(doc: Doc) -> Page:
    lookup = Lookup(doc)
    shown = list(doc["incidents"])[:MAX_INCIDENTS]
    rank_rows = max(32, MAX_RANK_ROWS // max(1, len(shown)))
    incidents = tuple(incident_view(doc, i, lookup, rank_rows) for i in shown)
    tool = doc["tool"]
    return Page(
        title=_title(doc, incidents),
        readable=readable(doc),
        alarmed=alarmed(doc),
        alarms=_alarms(doc, lookup),
        version=clean(tool["version"], 40),
        command=clean(tool["command"]) if tool.get("command") else "",
        zone=clean(tool["timezone"], 60) if tool.get("timezone") else "",
        redacted=bool(tool.get("redacted")),
        aliases=alias_words(tool.get("redacted")),
        coverage=coverage_words(doc),
        digest=digest_of(doc),
        base=clean(lookup.base),
        incidents=incidents,
        incidents_more=len(doc["incidents"]) - len(shown),
        ranks=None if any(i.ranks.total for i in incidents) else _ranks_of_all(doc),
        gpus=gpus_table(doc, lookup),
        rates=rates_view(doc["rates"], lookup) if doc.get("rates") else None,
        clocks=clocks_table(doc["clocks"], MAX_INPUTS),
        inputs=inputs_table(doc, lookup),
        inputs_summary=inputs_summary(doc),
        problems=_problems(doc, lookup),
        events=events_table(lookup, min(60_000 + 300 * len(doc["ranks"]), 240_000)),
        events_total=len(lookup.events),
        hosts_total=len(doc["hosts"]),
    )


def _title(doc: Doc, incidents: Sequence[IncidentView]) -> str:
    if not incidents:
        return nothing_found(doc)
    if len(incidents) == 1:
        return incidents[0].headline
    return _("{n} failures were found").format(n=len(doc["incidents"]))


def _ranks_of_all(doc: Doc) -> RanksView | None:
    """The ranks of a document whose incidents have none of their own."""
    if not doc["ranks"]:
        return None
    return ranks_view(doc["ranks"], "", set(), MAX_RANK_ROWS, len(ranks_left_out(doc)), {})


def _problems(doc: Doc, lookup: Lookup) -> Some:
    """(what, which file)."""
    return some(
        (
            (full_sentence(clean(said(p["says"]))), lookup.path(p["source"]) if p.get("source") else "")
            for p in doc["problems"]
        ),
        MAX_PROBLEMS,
    )


def _alarms(doc: Doc, lookup: Lookup) -> tuple[AlarmView, ...]:
    return tuple(
        AlarmView(
            text=clean(alarm["text"], CONTEXT_CHARS),
            where=lookup.where_of(alarm),
            count=alarm["count"],
            files=alarm["files"],
            why="; ".join(clean(said(why)) for why in alarm["why"]),
        )
        for alarm in doc.get("alarms", ())
    )


def alias_words(redacted: object) -> str:
    """How many aliases of which kind a redacted document has; '' for another."""
    if not isinstance(redacted, dict):
        return ""
    from nccl_forensics.show.redact.kinds import summary

    return summary(redacted["aliases"])
