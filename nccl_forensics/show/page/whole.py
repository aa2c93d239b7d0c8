"""The whole page as rows."""

from __future__ import annotations

from nccl_forensics.show.page.background import (
    MAX_PROBLEMS,
    alias_words,
    clock_rows,
    clocks_scale,
    coverage_words,
    digest_of,
    event_rows,
    gpu_rows,
    input_rows,
    inputs_summary,
    rates_view,
)
from nccl_forensics.show.page.incident import incident_view
from nccl_forensics.show.page.lookup import MAX_INPUTS, Lookup
from nccl_forensics.show.page.ranks import ranks_view
from nccl_forensics.show.page.rows import Page, some
from nccl_forensics.show.page.sentences import NOTHING_FAILED, NOTHING_READ, ranks_left_out, readable
from nccl_forensics.show.page.words import Doc, clean, duration_words, full_sentence
from nccl_forensics.text.language import _, said

MAX_INCIDENTS = 12


def page_of(doc: Doc) -> Page:
    lookup = Lookup(doc)
    world = len(doc["ranks"])
    shown = list(doc["incidents"])[:MAX_INCIDENTS]
    table_rows = max(32, 1024 // max(1, len(shown)))
    incidents = tuple(incident_view(doc, i, lookup, table_rows) for i in shown)
    events = event_rows(lookup, min(60_000 + 300 * world, 240_000))
    gpus = gpu_rows(doc, lookup)
    tool = doc["tool"]
    if not doc["incidents"]:
        title = _(NOTHING_FAILED if readable(doc) else NOTHING_READ)
    elif len(doc["incidents"]) == 1:
        title = incidents[0].headline
    else:
        title = _("{n} failures were found").format(n=len(doc["incidents"]))
    scale = clocks_scale(doc["clocks"])
    own_ranks = any(i.ranks.total for i in incidents)
    return Page(
        title=title,
        readable=readable(doc),
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
        ranks=None
        if own_ranks or not world
        else ranks_view(doc["ranks"], "", set(), 1024, len(ranks_left_out(doc)), {}),
        gpus=gpus,
        gpus_details=any(g.details for g in gpus.rows),
        gpus_trends=any(g.trends for g in gpus.rows),
        rates=rates_view(doc["rates"], lookup) if doc.get("rates") else None,
        clocks=some(clock_rows(doc["clocks"], scale), MAX_INPUTS),
        clocks_scale=duration_words(scale) if scale else "",
        inputs=input_rows(doc, lookup),
        inputs_summary=inputs_summary(doc),
        problems=some(
            (
                (full_sentence(clean(said(p["says"]))), lookup.path(p["source"]) if p.get("source") else "")
                for p in doc["problems"]
            ),
            MAX_PROBLEMS,
        ),
        events=events,
        events_total=len(lookup.events),
        hosts_total=len(doc["hosts"]),
    )
