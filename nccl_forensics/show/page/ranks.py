"""Ranks, process groups, and who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nccl_forensics.show import pictures
from nccl_forensics.show.page.evidence import STATES, rank_state
from nccl_forensics.show.page.rows import Cell, GraphView, GroupRow, HostCells, RankRow, RanksView, Some
from nccl_forensics.show.page.sentences import member_words
from nccl_forensics.show.page.words import (
    NO_HOST,
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
from nccl_forensics.text.language import _, counted, said
from nccl_forensics.text.messages import upper_first
from nccl_forensics.who.layout import PIPELINE

MAX_CELLS = 2048
"""Ranks that have a cell of their own in the map; above, hosts that look alike share one."""
MAX_GROUPS = 40
MAX_EDGES = 40
_INTEREST = {"culprit": 0, "dead": 1, "no-data": 2, "blocked": 3, "completed": 4, "waiting": 5}


def stages_of(groups: Sequence[Doc]) -> dict[int, int]:
    """Rank → its stage: its place in a pipeline's group, by the names that Megatron, DeepSpeed and DeviceMesh give."""
    found: dict[int, set[int]] = {}
    for group in groups:
        name = f"{group.get('description') or group.get('name') or ''}"
        if PIPELINE.search(name) and not group.get("members_at_least"):
            for stage, rank in enumerate(numbers_of(group.get("members"))):
                found.setdefault(rank, set()).add(stage)
    return {rank: stages.pop() for rank, stages in found.items() if len(stages) == 1}


def ranks_view(
    rows: Sequence[Doc], prefix: str, reporters: set[int], limit: int, silent: int, stages: Mapping[int, int]
) -> RanksView:
    """`silent`: how many more ranks there are of which nothing is known."""
    counts = Counter(rank_state(r) for r in rows)
    counts["no-data"] += silent
    legend = tuple((s, STATES[s][0], _(STATES[s][1]), counts[s]) for s in STATES if counts[s])
    by_host: dict[tuple[int, str], list[Doc]] = {}
    compressed = len(rows) + silent > MAX_CELLS
    for row in sorted(rows, key=lambda r: r["rank"]):
        stage = -1 if compressed else stages.get(row["rank"], len(stages))
        by_host.setdefault((stage, clean(row["host"], 80) if row.get("host") else NO_HOST), []).append(row)
    hosts: list[HostCells] = []
    if compressed:
        alike: dict[tuple[tuple[str, str, int], ...], list[str]] = {}
        for (_stage, host), members in by_host.items():
            tally = Counter(rank_state(r) for r in members)
            if host == NO_HOST:
                tally["no-data"] += silent
            alike.setdefault(tuple((s, STATES[s][0], tally[s]) for s in STATES if tally[s]), []).append(host)
        order = sorted(alike, key=lambda c: (min(_INTEREST[s] for s, _, _ in c), len(alike[c])))
        for pattern in order[:400]:
            names = alike[pattern]
            name = _(NO_HOST) if names[0] == NO_HOST else names[0]
            if len(names) > 1:
                name = _("{hosts} alike: {first} to {last}").format(
                    hosts=count_words(len(names), "host"), first=names[0], last=names[-1]
                )
            hosts.append(HostCells(name=name, stage="", cells=(), counts=pattern))
    else:
        said: int | None = None
        for (stage, host), members in sorted(by_host.items(), key=lambda x: x[0][0]):
            title = ""
            if stages and stage != said:
                title = _("Stage {n}").format(n=stage) if stage < len(stages) else _("No stage known")
            said = stage
            cells = tuple(
                Cell(
                    rank=r["rank"],
                    state=rank_state(r),
                    letter=STATES[rank_state(r)][0],
                    reporter=r["rank"] in reporters,
                )
                for r in members
            )
            hosts.append(HostCells(name=_(NO_HOST) if host == NO_HOST else host, stage=title, cells=cells, counts=()))
    spoken = f"{count_words(len(rows) + silent, 'rank')}: " + ", ".join(f"{n:,} {word}" for _, _, word, n in legend)
    chosen = sorted(sorted(rows, key=lambda r: (_INTEREST[rank_state(r)], r["rank"]))[:limit], key=lambda r: r["rank"])
    table = tuple(rank_row(r, prefix, stages.get(r["rank"])) for r in chosen)
    return RanksView(
        total=len(rows) + silent,
        legend=legend,
        hosts=tuple(hosts),
        compressed=compressed,
        spoken=spoken,
        table=Some(rows=table, more=len(rows) + silent - len(table)),
        notes=any(r.note for r in table),
        stages=bool(stages),
        reporters=any(c.reporter for h in hosts for c in h.cells),
    )


def rank_row(row: Doc, prefix: str, stage: int | None) -> RankRow:
    gpu = row.get("gpu") or {}
    state = rank_state(row)
    waits = numbers_of(row.get("waiting_on"))
    return RankRow(
        rank=row["rank"],
        anchor=f"{prefix}r{row['rank']}",
        state=state,
        letter=STATES[state][0],
        word=_(STATES[state][1]),
        host=or_na(row.get("host")),
        gpu=or_na(gpu.get("index")),
        pci=or_na(gpu.get("pci")),
        local=or_na(row.get("local_rank")),
        pid=or_na(row.get("pid")),
        enqueued=or_na(row.get("last_enqueued")),
        started=or_na(row.get("last_started")),
        completed=or_na(row.get("last_completed")),
        exit=or_na(row.get("exit")),
        waits=ranges_words(waits, 4) if waits else "–",
        stage=or_na(stage),
        note=clean(said(row["note"]), ROW_CHARS) if row.get("note") else "",
    )


def group_row(group: Doc) -> GroupRow:
    def who(key: str) -> str:
        members = numbers_of(group.get(key))
        if group.get(key) is None:
            return "n/a"
        if len(members) < 2:
            return rank_name(members[0]) if members else _("none")
        count = member_words(group, len(members)) if key == "members" else count_words(len(members), "rank")
        return f"{ranges_words(members, 6)} ({count})"

    timeout = group.get("timeout_ms")
    count = {
        key: len(set(numbers_of(group.get(key)))) for key in ("members", "arrived", "completed", "missing", "no_data")
    }
    waiting = max(0, count["arrived"] - count["completed"])
    parts = [("done", count["completed"]), ("in", waiting), ("out", count["missing"]), ("none", count["no_data"])]
    words = {"done": _("completed"), "in": _("arrived and waiting"), "out": _("missing"), "none": _("without data")}
    return GroupRow(
        name=or_na(group.get("name") or group.get("process_group")),
        description=clean(group["description"], 80) if group.get("description") else "",
        backend=or_na(group.get("backend")),
        op=or_na(group.get("op")),
        seq=or_na(group.get("seq")),
        timeout="n/a" if timeout is None else duration_words(timeout / 1000),
        expected=who("members") if group.get("members") else "n/a",
        arrived=who("arrived"),
        started=who("started"),
        completed=who("completed"),
        missing=who("missing"),
        no_data=who("no_data"),
        bar=pictures.shares(parts, max(count["members"], sum(n for _, n in parts))),
        spoken=", ".join(f"{n:,} {words[kind]}" for kind, n in parts if n),
        note=clean(said(group["note"])) if group.get("note") else "",
    )


def group_rows(incident: Doc) -> list[GroupRow]:
    groups = incident.get("groups")
    if groups:
        return [group_row(g) for g in groups]
    collective = incident.get("collective")
    return [group_row(collective)] if collective else []


def waits_of(incident: Doc, rows: Sequence[Doc]) -> list[Doc]:
    if incident.get("waits"):
        return list(incident["waits"])
    return [
        {"waiter": r["rank"], "waited": r["waiting_on"], "why": "", "group": None, "seq": None}
        for r in rows
        if r.get("waiting_on")
    ]


def edge_rows(waits: Sequence[Doc]) -> list[tuple[str, str]]:
    """(who waits for whom, why): ranks that wait for the same ones, for the same reason, share a sentence."""
    together: dict[tuple[tuple[int, ...], object, object, str], list[int]] = {}
    for wait in waits:
        key = (
            numbers_of(wait.get("waited")),
            wait.get("group"),
            wait.get("seq"),
            clean(said(wait.get("why") or ""), ROW_CHARS),
        )
        together.setdefault(key, []).append(wait["waiter"])
    found = []
    for (waited, group, seq, why), waiters in together.items():
        text = counted("{who} waits for {whom}", "{who} wait for {whom}", len(set(waiters))).format(
            who=upper_first(ranks_words(waiters)), whom=ranks_words(waited)
        )
        if group is not None:
            text += _(" in group {group}").format(group=clean(group, 60))
        if seq is not None:
            text += _(" at no. {n}").format(n=f"{seq:,}")
        found.append((text, why))
    return found


def graph_view(waits: Sequence[Doc], culprits: set[int]) -> GraphView | None:
    picture = pictures.graph((w["waiter"], numbers_of(w.get("waited"))) for w in waits)
    if picture is None:
        return None
    labels = []
    for node in picture.nodes:
        name = rank_name(node.ranks[0])
        if len(node.ranks) > 1:
            name = _("ranks {numbers}").format(numbers=ranges_words(node.ranks, 2))
        if len(name) > 19:
            name = _("{ranks} from {first}").format(ranks=count_words(len(node.ranks), "rank"), first=node.ranks[0])
        labels.append((name, "culprit" if culprits & set(node.ranks) else "sink" if node.sink else "waiting"))
    return GraphView(picture=picture, labels=tuple(labels))
