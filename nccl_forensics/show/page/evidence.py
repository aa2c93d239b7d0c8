"""The chain of evidence with its lines, and who is cleared."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.rows import ClearedRow, Raw, Step
from nccl_forensics.show.page.sentences import culprit_words, has_a_place
from nccl_forensics.show.page.words import (
    CONTEXT_CHARS,
    ROW_CHARS,
    Doc,
    clean,
    full_sentence,
    numbers_of,
    plus_minus,
    ranks_words,
)
from nccl_forensics.text import phrases
from nccl_forensics.text.language import N_, _, counted, said
from nccl_forensics.text.messages import upper_first
from nccl_forensics.text.moments import micros, timestamp

MAX_STEPS = 40
"""Of one evidence chain."""
MAX_LINES = 6
"""Of one step."""


STATES = {
    "culprit": ("X", N_("cause")),
    "waiting": ("W", N_("waiting")),
    "blocked": ("B", N_("blocked behind others")),
    "completed": ("F", N_("nothing overdue")),
    "dead": ("D", N_("dead")),
    "no-data": ("?", N_("no data")),
}
"""A rank's state → letter in the map, word in tables."""


def step_rows(incident: Doc, lookup: Lookup) -> tuple[list[Step], dict[tuple[object, object], str]]:
    """The evidence chain, and by (source, line) the anchor of each line that is shown in it.

    Neighbours that say the same, or only what is in their own line, are one step with several lines.
    """
    claims: list[tuple[str, list[tuple[str, Doc]]]] = []
    taken: set[str] = set()
    for n, item in enumerate(incident["verdict"]["evidence"], 1):
        own = item.get("id")
        usable = isinstance(own, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,60}", own) and own not in taken
        anchor = f"i{incident['id']}-{own if usable else f'e{n}'}"
        taken |= {str(own), f"e{n}"}
        says = clean(said(item["says"])).removeprefix("also: ")
        own_words = clean(item.get("text") or "", 48).rstrip("…")
        bare = item.get("weight") is None and len(own_words) > 8 and own_words in says
        if claims and (claims[-1][0] == says or bare):
            claims[-1][1].append((anchor, item))
        else:
            claims.append((says, [(anchor, item)]))
    steps: list[Step] = []
    anchors: dict[tuple[object, object], str] = {}
    for says, items in claims:
        weights = [item["weight"] for _, item in items if item.get("weight") is not None]
        for anchor, item in items[:MAX_LINES] if len(steps) < MAX_STEPS else ():
            if item.get("source"):
                anchors[item["source"], item.get("line")] = anchor
        steps.append(
            Step(
                says=full_sentence(says),
                lines=tuple(raw_line(anchor, item, lookup) for anchor, item in items[:MAX_LINES]),
                more=max(0, len(items) - MAX_LINES),
                inference=bool(items[0][1].get("inference")),
                weight=f"{max(weights, key=abs):+.1f}" if weights else "",
            )
        )
    return steps, anchors


def raw_line(anchor: str, item: Doc, lookup: Lookup) -> Raw:
    event = lookup.event(item) or {}
    at, error = micros(item.get("time") or event.get("time")), event.get("time_uncertainty_s")
    host, who = lookup.place(event) if event else ("", "")
    text = item.get("text")
    return Raw(
        anchor=anchor,
        when=_("time not known") if at is None else timestamp(at, error) + " UTC",
        error="" if at is None else plus_minus(error),
        place=", ".join(x for x in (host, who) if x),
        where=lookup.where(item.get("source"), item.get("line")),
        file=lookup.anchor_of.get(item.get("source"), ""),
        sha256=lookup.sha_of.get(item.get("source"), "")[:16],
        before=tuple(clean(x, CONTEXT_CHARS) for x in (item.get("before") or ())[-3:]),
        text=None if text is None else clean(text),
        after=tuple(clean(x, CONTEXT_CHARS) for x in (item.get("after") or ())[:3]),
    )


def rank_state(row: Doc) -> str:
    state = row.get("state")
    return state if state in STATES else "no-data"


def cleared_rows(verdict: Doc, lookup: Lookup | None) -> list[ClearedRow]:
    """The cleared suspects; ranks with the same reason and no line of their own share a row."""
    together: dict[tuple[object, ...], list[Doc]] = {}
    for n, c in enumerate(verdict.get("cleared") or ()):
        card = c.get("gpu_pci") is not None
        alone = (c.get("rank") is None and not card) or (c.get("text") and lookup)
        together.setdefault((n,) if alone else (card, c["why"]), []).append(c)
    rows = []
    for group in together.values():
        c = group[0]
        rows.append(
            ClearedRow(
                who=upper_first(cleared_together(group)) if len(group) > 1 else clean(said(c["who"]), 160),
                why=full_sentence(clean(said(c["why"]))),
                where=lookup.where(c["source"], c.get("line")) if lookup and c.get("source") else "",
                text=clean(c["text"], ROW_CHARS) if c.get("text") else None,
            )
        )
    return rows


def cleared_together(group: Sequence[Doc]) -> str:
    """Who was cleared for one reason: 'ranks 0–2', 'the GPUs of ranks 0, 4', 'GPUs 0000:20:1c.0, 0000:90:1c.0'."""
    ranks = [c["rank"] for c in group if c.get("rank") is not None]
    if group[0].get("gpu_pci") is None:
        return ranks_words(ranks)
    if len(ranks) == len(group):
        return counted("the GPU of {ranks}", "the GPUs of {ranks}", len(group)).format(ranks=ranks_words(ranks))
    names = [clean(c["gpu_pci"], 40) for c in group]
    return "GPUs " + said(phrases.listing(names, most=4, brief=True))


def not_to_blame(verdict: Doc, rows: Sequence[Doc] = ()) -> list[tuple[str, str]]:
    """(who, why); `rows`: the ranks' states. Those against whom nothing speaks come last."""
    found = [(row.who, row.why) for row in cleared_rows(verdict, None)]
    if verdict["status"] == "identified" and not culprit_words(verdict, {}) and not has_a_place(verdict["cause"]):
        return found  # who reported it is one of those who made it
    named = set(numbers_of(verdict["culprit_ranks"])) | set(numbers_of(verdict.get("cannot_exclude")))
    told = named | {c["rank"] for c in verdict.get("cleared") or () if c.get("rank") is not None}
    for c in verdict.get("cleared") or ():
        told.update(numbers_of(c.get("ranks")))
    reporters = [r for r in numbers_of(verdict["reporting_ranks"]) if r not in told]
    if reporters and verdict["status"] != "undetermined":
        why = counted(
            "It reported the failure. A reporter waits for somebody else.",
            "They reported the failure. A reporter waits for somebody else.",
            len(reporters),
        )
        found.append((upper_first(ranks_words(reporters)), why))
    elif reporters and not found:
        found.append(
            (
                upper_first(ranks_words(reporters)),
                _("Reporting the failure is no sign of guilt: a reporter waits for others."),
            )
        )
    if verdict["status"] == "identified":
        told.update(reporters)
        for other in verdict["alternatives"]:
            told.update(numbers_of(other["culprit_ranks"]))
        others = [
            r["rank"] for r in rows if r["rank"] not in told and rank_state(r) in ("waiting", "blocked", "completed")
        ]
        if others:
            why = counted(
                "Nothing in its data speaks against it.", "Nothing in their data speaks against them.", len(others)
            )
            found.append((upper_first(ranks_words(others)), why))
    return found


def bare(text: str) -> str:
    """What is to be collected, however it is asked for: an action and a gap in the evidence may be the same."""
    return text.removeprefix("Collect: ").rstrip(".").lower()
