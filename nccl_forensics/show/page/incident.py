"""One incident, from its headline to what to collect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_forensics.show.page.evidence import MAX_STEPS, steps_of, weights_table
from nccl_forensics.show.page.facts import facts_of, onset_words, start_words
from nccl_forensics.show.page.groups import MAX_EDGES, edge_rows, graph_view, groups_table, waits_of
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.ranks import ranks_view, stages_of
from nccl_forensics.show.page.rows import ActionRow, IncidentView, some
from nccl_forensics.show.page.sentences import (
    STATUS_WORDS,
    headline_of,
    ranks_left_out,
    sure_words,
    took_all_of_them,
)
from nccl_forensics.show.page.suspects import alternatives_table, cleared_table, not_to_blame
from nccl_forensics.show.page.timeline import timeline_view
from nccl_forensics.show.page.words import Doc, cause_title, clean, full_sentence, numbers_of, plain_word, ranks_words
from nccl_forensics.text.language import N_, _, said

MAX_CONTRIBUTING = 20
MAX_MISSING = 20
MAX_BLAMELESS = 4
"""On the first screen; the rest is linked."""


def incident_view(doc: Doc, incident: Doc, lookup: Lookup, rank_rows: int) -> IncidentView:
    """`rank_rows`: how many the table of ranks may have."""
    verdict = incident["verdict"]
    holder: Doc = incident if incident.get("ranks") or len(doc["incidents"]) != 1 else doc
    ranks: Sequence[Doc] = holder.get("ranks") or ()
    steps, anchors = steps_of(incident, lookup)
    blameless = not_to_blame(verdict, ranks)
    actions = [_action(a) for a in verdict["actions"]]
    missing = _not_asked_for_first(verdict)
    waits = waits_of(incident, ranks)
    culprits, reporters = (set(numbers_of(verdict[key])) for key in ("culprit_ranks", "reporting_ranks"))
    excluded = numbers_of(verdict.get("cannot_exclude"))
    return IncidentView(
        id=incident["id"],
        anchor=f"incident-{incident['id']}",
        status=verdict["status"],
        status_word=_(STATUS_WORDS[verdict["status"]]),
        headline=headline_of(verdict, lookup.host_of),
        start=start_words(incident),
        sure=sure_words(verdict),
        summary=clean(said(verdict["summary"])),
        facts=tuple(facts_of(incident, lookup).rows()),
        first=actions[0] if actions else None,
        actions=tuple(_not_asked_for_again(actions[1:], verdict["actions"][1:], missing)),
        not_to_blame=tuple(blameless[:MAX_BLAMELESS]),
        not_to_blame_more=max(0, len(blameless) - MAX_BLAMELESS),
        nobody_cleared=_nobody_cleared(verdict),
        unknown=tuple(full_sentence(clean(said(x))) for x in missing),
        cannot_exclude=ranks_words(excluded) if excluded else "",
        onset=onset_words(incident),
        steps=some(steps, MAX_STEPS),
        weights=weights_table(steps),
        timeline=timeline_view(doc, incident, lookup, anchors),
        ranks=ranks_view(
            ranks,
            f"i{incident['id']}-",
            reporters,
            rank_rows,
            len(ranks_left_out(holder)),
            stages_of(incident.get("groups") or ()),
        ),
        groups=groups_table(incident),
        edges=some(edge_rows(waits), MAX_EDGES),
        graph=graph_view(waits, culprits),
        alternatives=alternatives_table(verdict),
        cleared=cleared_table(verdict, lookup),
        contributing=some(contributing_rows(incident, lookup), MAX_CONTRIBUTING),
    )


def _action(action: Doc) -> ActionRow:
    return ActionRow(
        do=clean(said(action["do"])),
        because=clean(said(action["because"])),
        command=clean(action["command"]) if action.get("command") else None,
    )


def _bare(text: str) -> str:
    """What is to be collected, however it is asked for: an action and a gap in the evidence may be the same."""
    return text.removeprefix("Collect: ").rstrip(".").lower()


def _not_asked_for_first(verdict: Doc) -> list[str]:
    """What is missing, but for what the first action asks for."""
    first = {_bare(action["do"]) for action in verdict["actions"][:1]}
    return [x for x in verdict["missing_evidence"][:MAX_MISSING] if _bare(x) not in first]


def _not_asked_for_again(rows: Sequence[ActionRow], actions: Sequence[Doc], missing: Sequence[str]) -> list[ActionRow]:
    """The actions' rows, but for those whose request stands among what is missing."""
    asked = {_bare(x) for x in missing}
    return [row for row, action in zip(rows, actions, strict=True) if _bare(action["do"]) not in asked]


def _nobody_cleared(verdict: Doc) -> str:
    if took_all_of_them(verdict):
        return _("No single rank is to blame: it took all of those that are named here.")
    return _("Nobody could be cleared.")


BESIDE = {"setting": N_("A setting"), "pulse": N_("Before it failed")}
"""Titles of rows that name no cause, by their `kind`."""


def contributing_rows(incident: Doc, lookup: Lookup) -> Iterator[tuple[str, str, str]]:
    """(title, what, which line) of what is worth a ticket of its own."""
    for row in incident.get("contributing") or ():
        if row.get("kind") == "restarts":
            continue  # stands among the facts
        title = plain_word(BESIDE.get(str(row.get("kind")), "")) or cause_title(str(row["cause"]))
        yield title, clean(said(row["says"])), lookup.where_of(row) if row.get("source") else ""
