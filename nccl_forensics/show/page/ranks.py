"""The ranks: a map of all of them, and a table of those that tell most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from nccl_forensics.show.page.rows import HostCells, MapCell, RanksView
from nccl_forensics.show.page.tables import Column, Layout, unbroken
from nccl_forensics.show.page.words import (
    NO_HOST,
    ROW_CHARS,
    STATES,
    Doc,
    clean,
    count_words,
    numbers_of,
    or_na,
    ranges_words,
    rank_state,
)
from nccl_forensics.text.language import N_, _, said
from nccl_forensics.who.layout import PIPELINE

MAX_CELLS = 2048
"""Ranks that have a cell of their own in the map; above, hosts that look alike share one."""
MAX_ALIKE_ROWS = 400
"""Rows of hosts that look alike."""
_INTEREST = {"culprit": 0, "dead": 1, "no-data": 2, "blocked": 3, "completed": 4, "waiting": 5}
"""A rank's state → how early it comes where there is no room for all."""


def stages_of(groups: Sequence[Doc]) -> dict[int, int]:
    """Rank → its stage: its place in a pipeline's group, by the names that Megatron, DeepSpeed and DeviceMesh give."""
    found: dict[int, set[int]] = {}
    for group in groups:
        name = f"{group.get('description') or group.get('name') or ''}"
        if PIPELINE.search(name) and not group.get("members_at_least"):
            for stage, rank in enumerate(numbers_of(group.get("members"))):
                found.setdefault(rank, set()).add(stage)
    return {rank: stages.pop() for rank, stages in found.items() if len(stages) == 1}


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank as the columns ask for it."""

    doc: Doc
    prefix: str
    """Before its anchor: a rank has a row for each incident."""
    stages: Mapping[int, int]
    """Rank → its stage in a pipeline, of all whose stage is known."""

    @property
    def number(self) -> int:
        return int(self.doc["rank"])

    @property
    def gpu(self) -> Doc:
        return self.doc.get("gpu") or {}

    @property
    def note(self) -> str:
        return clean(said(self.doc["note"]), ROW_CHARS) if self.doc.get("note") else ""


def _state(row: RankRow) -> Markup:
    state = rank_state(row.doc)
    letter, word = STATES[state]
    return Markup(f'<i class="c {state}"><b>{letter}</b></i> {escape(_(word))}')


def _waits_for(row: RankRow) -> str:
    waited = numbers_of(row.doc.get("waiting_on"))
    return ranges_words(waited, 4) if waited else "–"


RANKS: Layout[RankRow] = Layout(
    columns=(
        Column(N_("Rank"), lambda r: str(r.number), numeric=True, heads_row=True),
        Column(N_("State"), _state),
        Column(N_("Host"), lambda r: unbroken(or_na(r.doc.get("host")))),
        Column("GPU", lambda r: or_na(r.gpu.get("index")), numeric=True),
        Column(N_("PCI address"), lambda r: or_na(r.gpu.get("pci")), css="mono"),
        Column(N_("Last enqueued"), lambda r: or_na(r.doc.get("last_enqueued")), numeric=True),
        Column(N_("Last started"), lambda r: or_na(r.doc.get("last_started")), numeric=True),
        Column(N_("Last completed"), lambda r: or_na(r.doc.get("last_completed")), numeric=True),
        Column(N_("Exit"), lambda r: or_na(r.doc.get("exit"))),
        Column(N_("Waits for"), _waits_for),
        Column(N_("Local rank"), lambda r: or_na(r.doc.get("local_rank")), numeric=True),
        Column(N_("Process"), lambda r: or_na(r.doc.get("pid")), numeric=True),
        Column(
            N_("Stage"),
            lambda r: or_na(r.stages.get(r.number)),
            numeric=True,
            shown=lambda rows: any(r.stages for r in rows),
        ),
        Column(N_("Note"), lambda r: r.note, css="wide", shown=lambda rows: any(r.note for r in rows)),
    ),
    anchor=lambda r: f"{r.prefix}r{r.number}",
)


def ranks_view(
    rows: Sequence[Doc], prefix: str, reporters: set[int], limit: int, silent: int, stages: Mapping[int, int]
) -> RanksView:
    """`silent`: how many more ranks there are of which nothing is known."""
    counts = _states_of(rows)
    counts["no-data"] += silent
    legend = tuple((s, STATES[s][0], _(STATES[s][1]), counts[s]) for s in STATES if counts[s])
    total = len(rows) + silent
    compressed = total > MAX_CELLS
    told = [RankRow(row, prefix, stages) for row in _most_telling(rows, limit)]
    return RanksView(
        total=total,
        legend=legend,
        hosts=tuple(_alike_hosts(rows, silent) if compressed else _hosts_by_stage(rows, reporters, stages)),
        compressed=compressed,
        spoken=f"{count_words(total, 'rank')}: " + ", ".join(f"{n:,} {word}" for _, _, word, n in legend),
        table=RANKS.filled(told, total - len(told)),
        reporters=not compressed and any(r["rank"] in reporters for r in rows),
    )


def _states_of(rows: Sequence[Doc]) -> Counter[str]:
    return Counter(rank_state(r) for r in rows)


def _most_telling(rows: Sequence[Doc], limit: int) -> list[Doc]:
    """Those whose state tells most, in the order of their numbers."""
    by_interest = sorted(rows, key=lambda r: (_INTEREST[rank_state(r)], r["rank"]))
    return sorted(by_interest[:limit], key=lambda r: r["rank"])


def _host_of(row: Doc) -> str:
    return clean(row["host"], 80) if row.get("host") else NO_HOST


def _hosts_by_stage(rows: Sequence[Doc], reporters: Container[int], stages: Mapping[int, int]) -> list[HostCells]:
    """Hosts with a cell for each rank; those of one stage of a pipeline stand together, below its name."""
    unknown = len(stages)  # sorts behind every stage
    together: dict[tuple[int, str], list[Doc]] = {}
    for row in sorted(rows, key=lambda r: r["rank"]):
        together.setdefault((stages.get(row["rank"], unknown), _host_of(row)), []).append(row)
    hosts: list[HostCells] = []
    before: int | None = None
    for (stage, host), members in sorted(together.items(), key=lambda x: x[0][0]):
        heading = ""
        if stages and stage != before:
            heading = _("Stage {n}").format(n=stage) if stage < unknown else _("No stage known")
        before = stage
        cells = tuple(_cell(r, reporters) for r in members)
        hosts.append(HostCells(name=_(NO_HOST) if host == NO_HOST else host, stage=heading, cells=cells, counts=()))
    return hosts


def _cell(row: Doc, reporters: Container[int]) -> MapCell:
    state = rank_state(row)
    return MapCell(rank=row["rank"], state=state, letter=STATES[state][0], reporter=row["rank"] in reporters)


def _alike_hosts(rows: Sequence[Doc], silent: int) -> list[HostCells]:
    """Hosts whose ranks are in the same states share a row, and their ranks are counted."""
    by_host: dict[str, list[Doc]] = {}
    for row in sorted(rows, key=lambda r: r["rank"]):
        by_host.setdefault(_host_of(row), []).append(row)
    alike: dict[tuple[tuple[str, str, int], ...], list[str]] = {}
    for host, members in by_host.items():
        tally = _states_of(members)
        if host == NO_HOST:
            tally["no-data"] += silent
        alike.setdefault(tuple((s, STATES[s][0], tally[s]) for s in STATES if tally[s]), []).append(host)
    order = sorted(alike, key=lambda c: (min(_INTEREST[s] for s, _, _ in c), len(alike[c])))
    return [
        HostCells(name=_alike_words(alike[counts]), stage="", cells=(), counts=counts)
        for counts in order[:MAX_ALIKE_ROWS]
    ]


def _alike_words(hosts: Sequence[str]) -> str:
    if len(hosts) == 1:
        return _(NO_HOST) if hosts[0] == NO_HOST else hosts[0]
    how_many = count_words(len(hosts), "host")
    return _("{hosts} alike: {first} to {last}").format(hosts=how_many, first=hosts[0], last=hosts[-1])
