"""One incident, from its headline to what to collect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_forensics.show.page.evidence import MAX_STEPS, bare, cleared_rows, not_to_blame, step_rows
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.ranks import (
    MAX_EDGES,
    MAX_GROUPS,
    edge_rows,
    graph_view,
    group_rows,
    ranks_view,
    stages_of,
    waits_of,
)
from nccl_forensics.show.page.rows import ActionRow, Alternative, IncidentView, some
from nccl_forensics.show.page.sentences import (
    STATUS_WORDS,
    collective_words,
    culprit_words,
    has_a_place,
    headline_of,
    ranks_left_out,
    sure_words,
)
from nccl_forensics.show.page.timeline import timeline_view
from nccl_forensics.show.page.words import (
    Doc,
    cause_title,
    clean,
    confidence_word,
    duration_words,
    full_sentence,
    gpu_words,
    numbers_of,
    plain_word,
    plus_minus,
    ranks_words,
)
from nccl_forensics.text.language import N_, _, said
from nccl_forensics.text.messages import upper_first
from nccl_forensics.text.moments import micros, timestamp

MAX_CONTRIBUTING = 20


def start_words(incident: Doc) -> str:
    """Which start of which job failed; nothing where the pile tells of one job that was started once."""
    parts = [clean(said(incident["job"]), 120)] if incident.get("job") else []
    if incident.get("attempt") is not None:
        parts.append(_("start no. {n}").format(n=incident["attempt"] + 1))
    return upper_first(", ".join(parts))


def job_words(incident: Doc) -> str:
    """The same, and what was found of all its starts together."""
    told = [f"{start}."] if (start := start_words(incident)) else []
    told += [clean(said(c["says"])) for c in incident.get("contributing") or () if c.get("kind") == "restarts"]
    return " ".join(told)


BESIDE = {"setting": N_("A setting"), "pulse": N_("Before it failed")}
"""Titles of rows that name no cause, by their `kind`."""


def contributing_rows(incident: Doc, lookup: Lookup) -> Iterator[tuple[str, str, str]]:
    for row in incident.get("contributing") or ():
        if row.get("kind") == "restarts":
            continue  # stands among the facts
        where = lookup.where(row.get("source"), row.get("line")) if row.get("source") else ""
        yield (
            plain_word(BESIDE.get(str(row.get("kind")), "")) or cause_title(str(row["cause"])),
            clean(said(row["says"])),
            where,
        )


def facts_of(incident: Doc, lookup: Lookup) -> Iterator[tuple[str, str]]:
    verdict = incident["verdict"]
    who = culprit_words(verdict, lookup.host_of)
    gpus = verdict["culprit_gpus"]
    if len(gpus) == 1:
        g = gpus[0]
        known = [clean(g["model"], 60)] if g.get("model") else []
        known += [
            f"{word} {clean(g[key], 60)}" for key, word in (("serial", _("serial")), ("uuid", "UUID")) if g.get(key)
        ]
        who = ", ".join([who, *known])
    elif gpus:
        who += ": " + ", ".join(gpu_words(g) for g in gpus[:8])
    yield _("Who"), upper_first(who) if who else _("Nobody is named")
    if job := job_words(incident):
        yield _("Job"), job
    yield _("What"), collective_words(incident)
    onset, error = micros(incident["onset"]), incident.get("onset_uncertainty_s")
    detected = micros(incident["detected"])
    if onset is not None:
        text = f"{timestamp(onset, error)} UTC {plus_minus(error)}"
        if error is not None and len({h for h in lookup.host_of.values() if h}) > 1:
            text += _(", as its own host's clock reads")  # the error is that of reading; hosts disagree by more
        if detected is not None and detected > onset:
            text += _("; noticed {time} later").format(time=duration_words((detected - onset) / 1e6))
    elif detected is not None:
        text = _("Onset not known; noticed {time} UTC").format(time=timestamp(detected))
    else:
        text = _("No time with its year is in these files")
    yield _("When"), text
    text = _("{word}, {number} of 1").format(
        word=upper_first(confidence_word(verdict["confidence"])), number=f"{verdict['confidence']:.2f}"
    )
    if verdict["status"] == "undetermined":
        text = upper_first(sure_words(verdict))
    if verdict["alternatives"]:
        other = max(verdict["alternatives"], key=lambda a: a["confidence"])
        who = f" ({ranks_words(numbers_of(other['culprit_ranks']))})" if other["culprit_ranks"] else ""
        title = f"“{cause_title(other['cause'])}”{who}"
        if other["cause"] == verdict["cause"] and not who:
            title = ""
        if title and other["confidence"] >= 0.05:
            text += _("; the next best explanation, {title}, has {number}").format(
                title=title, number=f"{other['confidence']:.2f}"
            )
    yield _("How sure"), text
    cost = incident.get("cost") or {}
    parts = [
        f"{words} {duration_words(cost[key])}"
        for key, words in (
            ("lost_work_s", _("work since the last checkpoint")),
            ("detection_s", _("waiting for the watchdog")),
            ("restart_s", _("restart")),
        )
        if cost.get(key)
    ]
    if (cost.get("gpu_hours") or 0) >= 0.05:
        parts.insert(0, _("{n} GPU hours").format(n=f"{cost['gpu_hours']:,.1f}"))
    if parts:
        yield _("Cost"), upper_first("; ".join(parts))


def onset_words(incident: Doc) -> str:
    """When it began, or was noticed where that is not known."""
    onset, detected = micros(incident["onset"]), micros(incident["detected"])
    if onset is not None:
        return f"{timestamp(onset, incident.get('onset_uncertainty_s'))} UTC"
    if detected is not None:
        return _("noticed {time} UTC").format(time=timestamp(detected))
    return _("time not known")


def incident_view(doc: Doc, incident: Doc, lookup: Lookup, table_rows: int) -> IncidentView:
    verdict = incident["verdict"]
    holder: Doc = incident if incident.get("ranks") or len(doc["incidents"]) != 1 else doc
    rows: Sequence[Doc] = holder.get("ranks") or ()
    steps, anchors = step_rows(incident, lookup)
    prefix = f"i{incident['id']}-"
    actions = tuple(
        ActionRow(
            do=clean(said(a["do"])),
            because=clean(said(a["because"])),
            command=clean(a["command"]) if a.get("command") else None,
        )
        for a in verdict["actions"]
    )
    asked_for = [bare(a["do"]) for a in verdict["actions"]]
    unknown = tuple(x for x in verdict["missing_evidence"][:20] if bare(x) not in asked_for[:1])
    wanted = {bare(x) for x in unknown}
    blameless = not_to_blame(verdict, rows)
    waits = waits_of(incident, rows)
    excluded = numbers_of(verdict.get("cannot_exclude"))
    return IncidentView(
        id=incident["id"],
        anchor=f"incident-{incident['id']}",
        status=verdict["status"],
        status_word=_(STATUS_WORDS[verdict["status"]]),
        headline=headline_of(verdict, lookup.host_of),
        sure=sure_words(verdict),
        summary=clean(said(verdict["summary"])),
        facts=tuple(facts_of(incident, lookup)),
        first=actions[0] if actions else None,
        actions=tuple(a for a, asked in zip(actions[1:], asked_for[1:], strict=True) if asked not in wanted),
        not_to_blame=tuple(blameless[:4]),
        not_to_blame_more=max(0, len(blameless) - 4),
        nobody_cleared=_("No single rank is to blame: it took all of those that are named here.")
        if verdict["status"] == "identified"
        and not culprit_words(verdict, lookup.host_of)
        and not has_a_place(verdict["cause"])
        else _("Nobody could be cleared."),
        unknown=tuple(full_sentence(clean(said(x))) for x in unknown),
        cannot_exclude=ranks_words(excluded) if excluded else "",
        start=start_words(incident),
        onset=onset_words(incident),
        steps=some(steps, MAX_STEPS),
        weights=any(s.weight for s in steps[:MAX_STEPS]),
        timeline=timeline_view(doc, incident, lookup, anchors),
        ranks=ranks_view(
            rows,
            prefix,
            set(numbers_of(verdict["reporting_ranks"])),
            table_rows,
            len(ranks_left_out(holder)),
            stages_of(incident.get("groups") or ()),
        ),
        groups=some(group_rows(incident), MAX_GROUPS),
        edges=some(edge_rows(waits), MAX_EDGES),
        graph=graph_view(waits, set(numbers_of(verdict["culprit_ranks"]))),
        alternatives=tuple(
            Alternative(
                title=cause_title(a["cause"]),
                cause=clean(a["cause"], 60),
                who=upper_first(ranks_words(numbers_of(a["culprit_ranks"])))
                if a["culprit_ranks"]
                else _("no rank in particular"),
                confidence=f"{a['confidence']:.2f}",
                why_not=clean(said(a["why_not"])),
            )
            for a in verdict["alternatives"][:20]
        ),
        cleared=some(cleared_rows(verdict, lookup), 40),
        contributing=some(contributing_rows(incident, lookup), MAX_CONTRIBUTING),
    )
