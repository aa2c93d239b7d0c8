"""Process groups, how far each came, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_forensics.show import pictures, wait_graph
from nccl_forensics.show.page.markup import below, prose
from nccl_forensics.show.page.rows import GraphView
from nccl_forensics.show.page.sentences import member_words
from nccl_forensics.show.page.tables import Cell, Column, Layout, Table
from nccl_forensics.show.page.words import (
    ROW_CHARS,
    Doc,
    clean,
    count_words,
    duration_words,
    numbers_of,
    or_na,
    ranges_words,
    rank_name,
    ranks_words,
)
from nccl_forensics.text.language import N_, _, counted, said
from nccl_forensics.text.messages import upper_first

MAX_GROUPS = 40
MAX_EDGES = 40
MOST_RANGES = 6
"""Ranges of ranks in one cell."""
LONGEST_LABEL = 19
"""Characters that a node of the graph has room for."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A process group as the columns ask for it."""

    doc: Doc
    first: bool
    """The one that holds up the others."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How many ranks of a group came how far, as a bar."""

    shares: tuple[pictures.Share, ...]
    spoken: str
    """The bar in words."""


def _name(row: GroupRow) -> str:
    name = or_na(row.doc.get("name") or row.doc.get("process_group"))
    description = clean(row.doc["description"], 80) if row.doc.get("description") else ""
    backend = or_na(row.doc.get("backend"))
    return below(name, description, "" if backend == "n/a" else backend)


def _timeout(row: GroupRow) -> str:
    timeout_ms = row.doc.get("timeout_ms")
    return "n/a" if timeout_ms is None else duration_words(timeout_ms / 1000)


def _progress(row: GroupRow) -> str | Cell:
    def count(key: str) -> int:
        return len(set(numbers_of(row.doc.get(key))))

    waiting = max(0, count("arrived") - count("completed"))
    parts = [("done", count("completed")), ("in", waiting), ("out", count("missing")), ("none", count("no_data"))]
    shares = pictures.shares(parts, max(count("members"), sum(n for _, n in parts)))
    words = {"done": _("completed"), "in": _("arrived and waiting"), "out": _("missing"), "none": _("without data")}
    spoken = ", ".join(f"{n:,} {words[kind]}" for kind, n in parts if n)
    return Cell(Progress(shares, spoken), drawing="progress") if shares else "n/a"


def _expected(row: GroupRow) -> str:
    members = numbers_of(row.doc.get("members"))
    return _counted(members, member_words(row.doc, len(members))) if row.doc.get("members") else "n/a"


def _who(row: GroupRow, key: str) -> str:
    """The ranks under `key`, and how many they are."""
    ranks = numbers_of(row.doc.get(key))
    return "n/a" if row.doc.get(key) is None else _counted(ranks, count_words(len(ranks), "rank"))


def _counted(ranks: Sequence[int], how_many: str) -> str:
    if len(ranks) < 2:
        return rank_name(ranks[0]) if ranks else _("none")
    return f"{ranges_words(ranks, MOST_RANGES)} ({how_many})"


GROUPS: Layout[GroupRow] = Layout(
    columns=(
        Column(N_("Group"), _name, heads_row=True),
        Column(N_("Operation"), lambda g: or_na(g.doc.get("op")), css="mono"),
        Column(N_("No."), lambda g: or_na(g.doc.get("seq")), numeric=True),
        Column(N_("Timeout"), _timeout),
        Column(N_("How far"), _progress, css="bar"),
        Column(N_("Expected"), _expected),
        Column(N_("Arrived"), lambda g: _who(g, "arrived")),
        Column(N_("Started"), lambda g: _who(g, "started")),
        Column(N_("Completed"), lambda g: _who(g, "completed")),
        Column(N_("Missing"), lambda g: _who(g, "missing"), css="miss"),
        Column(N_("No data"), lambda g: _who(g, "no_data")),
    ),
    css=lambda g: "lead" if g.first else "",
    note=lambda g: prose(clean(said(g.doc["note"]))) if g.doc.get("note") else "",
)


def groups_table(incident: Doc) -> Table:
    groups = list(incident.get("groups") or ())
    if not groups and incident.get("collective"):
        groups = [incident["collective"]]
    return GROUPS.cut([GroupRow(group, first=n == 0) for n, group in enumerate(groups)], MAX_GROUPS)


def waits_of(incident: Doc, rows: Sequence[Doc]) -> list[Doc]:
    """Who waits for whom, as the incident tells it, or else as the ranks' own rows do."""
    if incident.get("waits"):
        return list(incident["waits"])
    return [
        {"waiter": r["rank"], "waited": r["waiting_on"], "why": "", "group": None, "seq": None}
        for r in rows
        if r.get("waiting_on")
    ]


def edge_rows(waits: Sequence[Doc]) -> Iterator[tuple[str, str]]:
    """(who waits for whom, why): ranks that wait for the same ones, for the same reason, share a sentence."""
    together: dict[tuple[tuple[int, ...], object, int | None, str], list[int]] = {}
    for wait in waits:
        why = clean(said(wait.get("why") or ""), ROW_CHARS)
        key = (numbers_of(wait.get("waited")), wait.get("group"), wait.get("seq"), why)
        together.setdefault(key, []).append(wait["waiter"])
    for (waited, group, seq, why), waiters in together.items():
        text = counted("{who} waits for {whom}", "{who} wait for {whom}", len(set(waiters))).format(
            who=upper_first(ranks_words(waiters)), whom=ranks_words(waited)
        )
        if group is not None:
            text += _(" in group {group}").format(group=clean(group, 60))
        if seq is not None:
            text += _(" at no. {n}").format(n=f"{seq:,}")
        yield text, why


def graph_view(waits: Sequence[Doc], culprits: set[int]) -> GraphView | None:
    """The drawing of it; None where it would be empty, or too full to read."""
    picture = wait_graph.graph((w["waiter"], numbers_of(w.get("waited"))) for w in waits)
    if picture is None:
        return None
    return GraphView(picture=picture, labels=tuple((_label(n), _look(n, culprits)) for n in picture.nodes))


def _label(node: wait_graph.Node) -> str:
    first = node.ranks[0]
    name = rank_name(first)
    if len(node.ranks) > 1:
        name = _("ranks {numbers}").format(numbers=ranges_words(node.ranks, 2))
    if len(name) > LONGEST_LABEL:
        return _("{ranks} from {first}").format(ranks=count_words(len(node.ranks), "rank"), first=first)
    return name


def _look(node: wait_graph.Node, culprits: set[int]) -> str:
    if culprits & set(node.ranks):
        return "culprit"
    return "sink" if node.sink else "waiting"
