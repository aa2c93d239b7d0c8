"""What of a document is looked up again and again."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_forensics.show.page.words import NO_HOST, ROW_CHARS, Doc, clean, rank_name
from nccl_forensics.show.paths import common_folder
from nccl_forensics.text.language import _
from nccl_forensics.when.aligned import UNCOMPARED_S

MAX_INPUTS = 300
SHORT_BASE = 16
"""Characters of a common folder that may stand before every path."""


def base_of(paths: Sequence[str]) -> str:
    """The longest folder, with its slash, that all `paths` begin with; '' where it is too short to be in the way."""
    base = common_folder(paths)
    return base if len(base) > SHORT_BASE and "!" not in base else ""


def _rows(doc: Doc, key: str) -> Sequence[Doc]:
    return doc.get(key) or ()


def _rank_of(ranks: Sequence[Doc]) -> dict[tuple[object, str], int]:
    """(host, PCI address) → the rank that ran on that card"""
    cards = ((r, (r.get("gpu") or {}).get("pci")) for r in ranks)
    return {(r.get("host"), pci): r["rank"] for r, pci in cards if pci}


class Lookup:
    """Events by place, ranks by number and GPU; made once for a document."""

    def __init__(self, doc: Doc) -> None:
        self.events = _rows(doc, "events")
        self.at: dict[tuple[object, object], list[Doc]] = {}
        """(source, line) → the events there"""
        for event in self.events:
            self.at.setdefault((event.get("source"), event.get("line")), []).append(event)
        ranks, inputs = _rows(doc, "ranks"), _rows(doc, "inputs")
        self.host_of: dict[int, str] = {r["rank"]: r["host"] for r in ranks if r.get("host")}
        self.rank_of = _rank_of(ranks)
        self._uncompared = {c.get("host") for c in _rows(doc, "clocks") if c.get("compared") is False}
        self.cards = {(host["name"], gpu.get("pci")) for host in _rows(doc, "hosts") for gpu in _rows(host, "gpus")}
        self.sha_of = {r["path"]: clean(r["sha256"], 64) for r in inputs if r.get("sha256")}
        self.anchor_of = {row["path"]: f"f{n}" for n, row in kept_inputs(doc)}
        self.base = base_of([str(r["path"]) for r in inputs])
        """The folder that all inputs lie in; left off where a path is shown."""

    def apart_s(self, a: str | None, b: str | None) -> float:
        """How far two hosts' clocks may differ beyond their error bars: far where nothing compares them."""
        alike = a == b and a is not None
        return UNCOMPARED_S if not alike and self._uncompared & {a, b} else 0.0

    def path(self, source: object) -> str:
        return clean(str(source).removeprefix(self.base), ROW_CHARS)

    def where(self, source: object, line: object) -> str:
        """'file:line' for a reader."""
        return _("no file") if not source else self.path(source) + ("" if line is None else f":{line}")

    def where_of(self, item: Doc) -> str:
        """The same for a row of the document that has a source and a line."""
        return self.where(item.get("source"), item.get("line"))

    def event(self, evidence: Doc) -> Doc | None:
        """The event at the evidence's place; with the same text where a binary file has no lines."""
        found = self.at.get((evidence.get("source"), evidence.get("line")), ())
        same = [e for e in found if e.get("text") == evidence.get("text")]
        return same[0] if same else found[0] if found and evidence.get("line") is not None else None

    def rank(self, event: Doc) -> int | None:
        """Its rank, or that of its GPU."""
        rank, pci = event.get("rank"), event.get("gpu_pci")
        return self.rank_of.get((event.get("host"), pci)) if rank is None and pci else rank

    def place(self, event: Doc) -> tuple[str, str]:
        """(host, rank or device), in words: the event's lane."""
        rank, host, pci = self.rank(event), event.get("host"), event.get("gpu_pci")
        if host is None and rank is not None:
            host = self.host_of.get(rank)
        card = not pci or not self.cards or (event.get("host"), pci) in self.cards or event.get("kind") == "xid"
        kind = "GPU" if card else _("PCI device")
        device = f"{kind} {clean(pci, 40)}" if pci else _("system")
        who = rank_name(rank) if rank is not None else device
        return (clean(host, 80) if host else _(NO_HOST)), who


_STATUS_ORDER = {"failed": 0, "partial": 1, "skipped": 2, "read": 3}


def kept_inputs(doc: Doc) -> list[tuple[int, Doc]]:
    """(number, row) of the inputs that are shown, those with trouble first to stay, in the document's order."""
    rows = list(enumerate(_rows(doc, "inputs"), 1))
    return sorted(sorted(rows, key=lambda r: (_STATUS_ORDER.get(r[1]["status"], 3), r[0]))[:MAX_INPUTS])
