"""Who waits for whom, as a drawing: where its nodes and arrows stand, in pixels of its own view box."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_NODES = 24
"""Nodes of a wait-for graph that is still readable. Our judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    ranks: tuple[int, ...]
    """Ranks that wait for the same ranks and are waited for by the same ones share a node."""
    x: int
    y: int
    sink: bool
    """Others wait for it, and it waits for nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int, int, int, int, int], ...]
    """(x1, y1, bend x, bend y, x2, y2), from waiter to waited."""
    width: int
    height: int
    cycle: bool
    """Nobody is a sink: they wait for each other."""


NODE_WIDTH, NODE_HEIGHT = 150, 34
_GAP_X, _GAP_Y = 110, 22
_TOO_MANY = 20_000
"""Edges between single ranks beyond which no drawing is tried."""


def graph(waits: Iterable[tuple[int, Sequence[int]]]) -> Graph | None:
    """The wait-for graph, alike ranks in one node, sinks on the right; None without edges or with too many nodes."""
    out = _waited_for(waits)
    groups = _alike(out)
    if not groups or len(groups) > MAX_NODES:
        return None
    of = {rank: i for i, ranks in enumerate(groups) for rank in ranks}
    edges = sorted({(of[a], of[b]) for a, waited in out.items() for b in waited if of[a] != of[b]})
    sinks = {i for i, ranks in enumerate(groups) if not out.get(ranks[0])}
    centre, width, height = _columns(_depths(len(groups), edges)) if sinks else _ring(len(groups))
    return Graph(
        nodes=tuple(
            Node(ranks=tuple(ranks), x=centre[i][0], y=centre[i][1], sink=i in sinks) for i, ranks in enumerate(groups)
        ),
        edges=tuple(_edge(centre[a], centre[b], (b, a) in edges) for a, b in edges),
        width=width,
        height=height,
        cycle=not sinks,
    )


def _waited_for(waits: Iterable[tuple[int, Sequence[int]]]) -> dict[int, set[int]]:
    """Waiter → whom it waits for; empty where they are too many to be drawn."""
    out: dict[int, set[int]] = {}
    count = 0
    for waiter, waited in waits:
        count += len(waited)
        if count > _TOO_MANY:
            return {}
        if waited:
            out.setdefault(waiter, set()).update(waited)
    return out


def _alike(out: Mapping[int, set[int]]) -> list[list[int]]:
    """Ranks that wait for the same ones and are waited for by the same ones, together."""
    into: dict[int, set[int]] = {}
    for waiter, waited in out.items():
        for one in waited:
            into.setdefault(one, set()).add(waiter)
    alike: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for rank in sorted(out.keys() | into.keys()):
        alike.setdefault((frozenset(out.get(rank, ())), frozenset(into.get(rank, ()))), []).append(rank)
    return list(alike.values())


def _columns(depth: Sequence[int]) -> tuple[list[tuple[int, int]], int, int]:
    """Centres of the nodes, width and height: sinks in the right column, who waits for them in the next one."""
    columns: dict[int, list[int]] = {}
    for i, d in enumerate(depth):
        columns.setdefault(d, []).append(i)
    deepest, tallest = max(columns), max(map(len, columns.values()))
    height = tallest * (NODE_HEIGHT + _GAP_Y) + (3 * _GAP_Y if deepest > 1 else 0)
    centre = [(0, 0)] * len(depth)
    for d, column in columns.items():
        free = height - len(column) * NODE_HEIGHT
        for k, i in enumerate(column):
            y = free * (k + 1) // (len(column) + 1) + k * NODE_HEIGHT + NODE_HEIGHT // 2
            centre[i] = ((deepest - d) * (NODE_WIDTH + _GAP_X) + NODE_WIDTH // 2 + 10, y)
    return centre, (deepest + 1) * (NODE_WIDTH + _GAP_X) - _GAP_X + 20, height


def _ring(count: int) -> tuple[list[tuple[int, int]], int, int]:
    """The same on an ellipse, for nodes that wait for each other in a circle."""
    across, down = max(170, count * 38), max(64, count * 22)
    middle_x, middle_y = across + NODE_WIDTH // 2 + 10, down + NODE_HEIGHT // 2 + _GAP_Y
    turns = [2 * math.pi * i / count - math.pi / 2 for i in range(count)]
    if count == 2:
        turns = [math.pi, 0.0]
    centre = [(round(middle_x + across * math.cos(t)), round(middle_y + down * math.sin(t))) for t in turns]
    return centre, 2 * middle_x, 2 * middle_y


def _depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Columns from the right: one more than the farthest node waited for. Edges that close a cycle do not count."""
    out: dict[int, list[int]] = {}
    for a, b in edges:
        out.setdefault(a, []).append(b)
    depth = [-1] * count
    open_: set[int] = set()

    def visit(i: int) -> int:
        if depth[i] < 0:
            open_.add(i)
            depth[i] = 1 + max((visit(j) for j in out.get(i, ()) if j not in open_), default=-1)
            open_.discard(i)
        return depth[i]

    for i in range(count):
        visit(i)
    return depth


def _edge(a: tuple[int, int], b: tuple[int, int], both: bool) -> tuple[int, int, int, int, int, int]:
    """From rim to rim; bent where there is an edge back, and where a straight line could run through another node."""
    along, down = b[0] - a[0], b[1] - a[1]
    length = math.hypot(along, down) or 1.0
    far = abs(along) > NODE_WIDTH + _GAP_X and abs(down) < NODE_HEIGHT + _GAP_Y
    bend = 34 if far else 24 if both else 0
    mid = (round((a[0] + b[0]) / 2 - down / length * bend), round((a[1] + b[1]) / 2 + along / length * bend))
    x1, y1 = _rim(a, mid)
    x2, y2 = _rim(b, mid)
    return x1, y1, *mid, x2, y2


def _rim(centre: tuple[int, int], towards: tuple[int, int]) -> tuple[int, int]:
    """Where the line from a node's centre leaves its frame."""
    along, down = towards[0] - centre[0], towards[1] - centre[1]
    if not along and not down:
        return centre
    share = min(
        NODE_WIDTH / 2 / abs(along) if along else math.inf, NODE_HEIGHT / 2 / abs(down) if down else math.inf, 1.0
    )
    return round(centre[0] + along * share), round(centre[1] + down * share)
