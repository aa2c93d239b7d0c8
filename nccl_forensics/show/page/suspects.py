"""Who else it could have been: other explanations, who was cleared, who is not to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.markup import code, in_file, prose
from nccl_forensics.show.page.sentences import took_all_of_them
from nccl_forensics.show.page.tables import Column, Layout, Table
from nccl_forensics.show.page.words import (
    ROW_CHARS,
    Doc,
    cause_title,
    clean,
    full_sentence,
    numbers_of,
    rank_state,
    ranks_words,
)
from nccl_forensics.text import phrases
from nccl_forensics.text.language import N_, _, counted, said
from nccl_forensics.text.messages import upper_first

MAX_ALTERNATIVES = 20
MAX_CLEARED = 40


def _explanation(other: Doc) -> Markup:
    title, cause = cause_title(other["cause"]), clean(other["cause"], 60)
    return Markup('{} <span class="sub mono">{}</span>').format(title, cause)


def _other_culprits(other: Doc) -> str:
    ranks = other["culprit_ranks"]
    return upper_first(ranks_words(numbers_of(ranks))) if ranks else _("no rank in particular")


ALTERNATIVES: Layout[Doc] = Layout(
    columns=(
        Column(N_("Explanation"), _explanation, heads_row=True),
        Column(N_("Who"), _other_culprits),
        Column(N_("Confidence"), lambda a: f"{a['confidence']:.2f}", numeric=True),
        Column(N_("Why not"), lambda a: prose(clean(said(a["why_not"]))), css="wide"),
    )
)


def alternatives_table(verdict: Doc) -> Table:
    return ALTERNATIVES.filled(verdict["alternatives"][:MAX_ALTERNATIVES])


@dataclass(frozen=True, slots=True)
class ClearedRow:
    """Who is cleared, by what."""

    who: str
    why: str
    where: str
    """file:line; '' for none."""
    text: str | None


def _seen_in(row: ClearedRow) -> str:
    if not row.where:
        return "n/a"
    return in_file(row.where) + Markup("<br>") + code(row.text) if row.text else in_file(row.where)


CLEARED: Layout[ClearedRow] = Layout(
    columns=(
        Column(N_("Who"), lambda c: c.who, heads_row=True),
        Column(N_("Why not"), lambda c: prose(c.why), css="wide"),
        Column(N_("Seen in"), _seen_in, css="wide"),
    )
)


def cleared_table(verdict: Doc, lookup: Lookup) -> Table:
    return CLEARED.cut(cleared_rows(verdict, lookup), MAX_CLEARED)


def cleared_rows(verdict: Doc, lookup: Lookup | None) -> list[ClearedRow]:
    """The cleared suspects; ranks with the same reason and no line of their own share a row.

    Without a `lookup` no lines are shown.
    """
    together: dict[tuple[object, ...], list[Doc]] = {}
    for n, one in enumerate(verdict.get("cleared") or ()):
        card = one.get("gpu_pci") is not None
        alone = (one.get("rank") is None and not card) or (one.get("text") and lookup)
        together.setdefault((n,) if alone else (card, one["why"]), []).append(one)
    return [_cleared_row(alike, lookup) for alike in together.values()]


def _cleared_row(alike: Sequence[Doc], lookup: Lookup | None) -> ClearedRow:
    first = alike[0]
    return ClearedRow(
        who=upper_first(cleared_together(alike)) if len(alike) > 1 else clean(said(first["who"]), 160),
        why=full_sentence(clean(said(first["why"]))),
        where=lookup.where_of(first) if lookup and first.get("source") else "",
        text=clean(first["text"], ROW_CHARS) if first.get("text") else None,
    )


def cleared_together(alike: Sequence[Doc]) -> str:
    """Who was cleared for one reason: 'ranks 0–2', 'the GPUs of ranks 0, 4', 'GPUs 0000:20:1c.0, 0000:90:1c.0'."""
    ranks = [c["rank"] for c in alike if c.get("rank") is not None]
    if alike[0].get("gpu_pci") is None:
        return ranks_words(ranks)
    if len(ranks) == len(alike):
        return counted("the GPU of {ranks}", "the GPUs of {ranks}", len(alike)).format(ranks=ranks_words(ranks))
    return "GPUs " + said(phrases.listing((clean(c["gpu_pci"], 40) for c in alike), most=4, brief=True))


def not_to_blame(verdict: Doc, rows: Sequence[Doc] = ()) -> list[tuple[str, str]]:
    """(who, why); `rows`: the ranks' states. Those against whom nothing speaks come last."""
    found = [(row.who, row.why) for row in cleared_rows(verdict, None)]
    if took_all_of_them(verdict):
        return found  # who reported it is one of those who made it
    told = _told_of(verdict)
    reporters = [r for r in numbers_of(verdict["reporting_ranks"]) if r not in told]
    if reporters and (verdict["status"] != "undetermined" or not found):
        found.append((upper_first(ranks_words(reporters)), _reporters_words(verdict, reporters)))
    if verdict["status"] == "identified":
        told.update(reporters, *(numbers_of(other["culprit_ranks"]) for other in verdict["alternatives"]))
        if others := [r["rank"] for r in rows if r["rank"] not in told and rank_state(r) in UNSUSPICIOUS]:
            why = counted(
                "Nothing in its data speaks against it.", "Nothing in their data speaks against them.", len(others)
            )
            found.append((upper_first(ranks_words(others)), why))
    return found


UNSUSPICIOUS = frozenset(("waiting", "blocked", "completed"))
"""States of ranks that left data, and stand where they should."""


def _told_of(verdict: Doc) -> set[int]:
    """Ranks that are named, that cannot be excluded, or that are cleared by name."""
    told = {*numbers_of(verdict["culprit_ranks"]), *numbers_of(verdict.get("cannot_exclude"))}
    for one in verdict.get("cleared") or ():
        told.update(numbers_of(one.get("ranks")))
        if one.get("rank") is not None:
            told.add(one["rank"])
    return told


def _reporters_words(verdict: Doc, reporters: Sequence[int]) -> str:
    if verdict["status"] == "undetermined":
        return _("Reporting the failure is no sign of guilt: a reporter waits for others.")
    return counted(
        "It reported the failure. A reporter waits for somebody else.",
        "They reported the failure. A reporter waits for somebody else.",
        len(reporters),
    )
