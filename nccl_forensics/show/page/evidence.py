"""The chain of evidence with its lines, and what each step of it weighs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.rows import Raw, Step
from nccl_forensics.show.page.tables import Column, Layout, Table
from nccl_forensics.show.page.words import CONTEXT_CHARS, Doc, clean, full_sentence, plus_minus, zoned
from nccl_forensics.text.language import N_, _, said
from nccl_forensics.text.moments import micros, timestamp

MAX_STEPS = 40
"""Of one evidence chain."""
MAX_LINES = 6
"""Of one step."""
Anchors = dict[tuple[object, object], str]
"""(source, line) → anchor of the line that is shown"""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What one or several lines say."""

    says: str
    items: list[tuple[str, Doc]]
    """(anchor, evidence of the document)"""

    def shown(self) -> list[tuple[str, Doc]]:
        return self.items[:MAX_LINES]


def steps_of(incident: Doc, lookup: Lookup) -> tuple[list[Step], Anchors]:
    """The evidence chain, and the anchors of the lines that are shown in it."""
    claims = _claims(incident)
    anchors = {
        (item["source"], item.get("line")): anchor
        for claim in claims[:MAX_STEPS]
        for anchor, item in claim.shown()
        if item.get("source")
    }
    return [_step(claim, lookup) for claim in claims], anchors


def _claims(incident: Doc) -> list[_Claim]:
    """Neighbours that say the same, or only what is in their own line, are one claim with several lines."""
    claims: list[_Claim] = []
    for anchor, item in _anchored(incident):
        says = clean(said(item["says"])).removeprefix("also: ")
        if claims and (claims[-1].says == says or _only_repeats_its_line(item, says)):
            claims[-1].items.append((anchor, item))
        else:
            claims.append(_Claim(says, [(anchor, item)]))
    return claims


def _anchored(incident: Doc) -> Iterator[tuple[str, Doc]]:
    """Each piece of evidence with an anchor: its own id, if nothing speaks against it, or its number."""
    taken: set[str] = set()
    for n, item in enumerate(incident["verdict"]["evidence"], 1):
        own = item.get("id")
        usable = isinstance(own, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,60}", own) and own not in taken
        taken |= {str(own), f"e{n}"}
        yield f"i{incident['id']}-{own if usable else f'e{n}'}", item


def _only_repeats_its_line(item: Doc, says: str) -> bool:
    words = clean(item.get("text") or "", 48).rstrip("…")
    return item.get("weight") is None and len(words) > 8 and words in says


def _step(claim: _Claim, lookup: Lookup) -> Step:
    weights = [item["weight"] for _, item in claim.items if item.get("weight") is not None]
    return Step(
        says=full_sentence(claim.says),
        lines=tuple(_raw(anchor, item, lookup) for anchor, item in claim.shown()),
        more=len(claim.items) - len(claim.shown()),
        inference=bool(claim.items[0][1].get("inference")),
        weight=f"{max(weights, key=abs):+.1f}" if weights else "",
    )


def _raw(anchor: str, item: Doc, lookup: Lookup) -> Raw:
    event = lookup.event(item) or {}
    at, error = micros(item.get("time") or event.get("time")), event.get("time_uncertainty_s")
    return Raw(
        anchor=anchor,
        when=_("time not known") if at is None else zoned(timestamp(at, error), event),
        error="" if at is None else plus_minus(error),
        place=", ".join(x for x in lookup.place(event) if x) if event else "",
        where=lookup.where_of(item),
        file=lookup.anchor_of.get(item.get("source"), ""),
        sha256=lookup.sha_of.get(item.get("source"), "")[:16],
        before=tuple(clean(x, CONTEXT_CHARS) for x in (item.get("before") or ())[-3:]),
        text=None if item.get("text") is None else clean(item["text"]),
        after=tuple(clean(x, CONTEXT_CHARS) for x in (item.get("after") or ())[:3]),
    )


WEIGHTS: Layout[tuple[int, Step]] = Layout(
    columns=(
        Column(N_("Step"), lambda s: str(s[0]), numeric=True, heads_row=True),
        Column(N_("Log-odds"), lambda s: s[1].weight or "n/a", numeric=True),
        Column(N_("Kind"), lambda s: _("inference") if s[1].inference else _("written in a log")),
    )
)


def weights_table(steps: list[Step]) -> Table | None:
    """None where no step weighs anything."""
    shown = steps[:MAX_STEPS]
    return WEIGHTS.filled(enumerate(shown, 1)) if any(s.weight for s in shown) else None
