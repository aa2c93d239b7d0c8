"""Where things stand in the report's drawings: the timeline, the wait-for graph, and the small ones in its tables.

Numbers only; a template draws. Horizontal places are percent of a drawing's width (0–100, so that the page may be of
any width), vertical ones are pixels. The graph and the sparklines: pixels of their own view box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.text.language import _

MAX_LANES = 12
"""Lanes drawn one by one; the rest share one. Our judgement of what an eye can follow."""
MAX_MARKS = 14
"""Marks drawn in one lane; the rest is counted."""
MAX_NODES = 24
"""Nodes of a wait-for graph that is still readable. Our judgement."""
_EDGE = 3.0
"""Percent kept free at both ends of a track; report.js counts on it."""
_NAMED = 9.0
"""Percent that a guide's name may take."""
_NEAR = 4.5
"""Percent: marks closer than this are put on rows above each other."""
_ROW = 20
"""Pixels between such rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An event as the timeline wants it."""

    number: int
    """Its number in the table below the drawing; 0: counted in its lane, not drawn."""
    lane: tuple[str, str]
    """(host, rank or device), in words."""
    at_us: int
    """Microseconds since 1970 on the reference clock."""
    error_us: int | None
    """Half-width of its error bar; None: not known."""
    role: str
    label: str
    href: str
    waited_us: int | None = None
    """A wait that ended with this event."""
    weight: int = 0
    """Lanes and marks with more of it are drawn first when there is no room for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    number: int
    x: float
    low: float | None
    high: float | None
    y: int
    role: str
    label: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    x: float
    width: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    host: str
    who: str
    marks: tuple[Mark, ...]
    bars: tuple[Bar, ...]
    height: int
    base: int
    """y of the track's line."""
    more: int
    """Events of this lane that are not drawn."""
    find: str
    """What finds its events in the event table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    x: float
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """A moment of the incident, drawn through all lanes; `low` and `high` are its error bar."""

    x: float
    low: float
    high: float
    name: str
    row: int
    """Its name is written on this line, so that names do not cover each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    guides: tuple[Guide, ...]
    guide_rows: int
    step_us: int
    """Between two ticks."""
    first_us: int
    last_us: int
    outside: tuple[int, ...]
    """Numbers of events too far away from the incident to be drawn on the same scale."""


_STEPS = [
    *(n * 10**e for e in range(6) for n in (1, 2, 5)),
    *(s * 10**6 for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)),
    *(d * 86_400 * 10**6 for d in (1, 2, 7, 14, 30, 90, 365, 3650, 36500)),
]
"""Microseconds that a reader can count in."""


def timeline(moments: Sequence[Moment], anchors: Mapping[str, tuple[int, int | None]]) -> Timeline | None:
    """Lanes, marks and ticks for `moments`; `anchors` are the incident's own times by name, (µs, error in µs).

    None where nothing has a time. Moments farther from the anchors than the incident is long are `outside`.
    """
    if not moments:
        return None
    if anchors:
        low, high = min(at for at, _ in anchors.values()), max(at for at, _ in anchors.values())
        room = max(high - low, 120 * 10**6)
        inside = [m for m in moments if low - room <= m.at_us <= high + room]
    else:
        inside = list(moments)
        low, high = min(m.at_us for m in inside), max(m.at_us for m in inside)
        room = max(high - low, 10**6)
    for m in inside:
        begun = m.at_us - (m.waited_us or 0)
        low, high = min(low, begun), max(high, m.at_us)
    if high - low < 1000:
        low, high = low - 500_000, high + 500_000
    kept = set(map(id, inside))
    outside = tuple(m.number for m in moments if id(m) not in kept and m.number)

    def place(at_us: int) -> float:
        share = (at_us - low) / (high - low)
        return round(min(100.0, max(0.0, _EDGE + (100 - 2 * _EDGE) * share)), 4)

    guides: list[Guide] = []
    for name, (at, error) in sorted(anchors.items(), key=lambda a: a[1][0]):
        x = place(at)
        near = {g.row for g in guides if x - g.x < _NAMED}
        row = next(n for n in range(len(guides) + 1) if n not in near)
        guides.append(Guide(x=x, low=place(at - (error or 0)), high=place(at + (error or 0)), name=name, row=row))
    step = next((s for s in _STEPS if (high - low) / s <= 6), _STEPS[-1])
    first = -(-low // step) * step
    return Timeline(
        lanes=tuple(_lanes(inside, place)),
        ticks=tuple(Tick(x=place(at), at_us=at) for at in range(first, high + 1, step)),
        guides=tuple(guides),
        guide_rows=max((g.row + 1 for g in guides), default=0),
        step_us=step,
        first_us=low,
        last_us=high,
        outside=outside,
    )


def _lanes(moments: Sequence[Moment], place: Callable[[int], float]) -> Iterable[Lane]:
    by_lane: dict[tuple[str, str], list[Moment]] = {}
    for moment in moments:
        by_lane.setdefault(moment.lane, []).append(moment)
    names = sorted(
        by_lane, key=lambda name: (-max(m.weight for m in by_lane[name]), min(m.number or 10**9 for m in by_lane[name]))
    )
    drawn = set(names[:MAX_LANES]) if len(names) > MAX_LANES + 1 else set(names)
    for name in sorted(drawn, key=_in_order):
        yield _lane(name, by_lane[name], place)
    rest = [m for name in names if name not in drawn for m in by_lane[name]]
    if rest:
        begun = min(m.at_us - (m.waited_us or 0) for m in rest)
        ended = max(m.at_us for m in rest)
        bar = Bar(x=place(begun), width=round(max(place(ended) - place(begun), 0.3), 4), label="from first to last")
        yield Lane(
            host=_("{n} more lanes").format(n=f"{len(names) - len(drawn):,}"),
            who=_("{n} events").format(n=f"{len(rest):,}"),
            marks=(),
            bars=(bar,),
            height=38,
            base=19,
            more=len(rest),
            find="",
        )


def _in_order(name: tuple[str, str]) -> tuple[str, int, str]:
    digits = "".join(c for c in name[1] if c.isdigit())
    return (name[0], int(digits[:9]) if name[1].casefold().startswith("rank ") and digits else -1, name[1])


def _find(name: tuple[str, str]) -> str:
    """'host:node-1 rank:6', the search that report.js understands."""
    host, (kind, _, which) = name[0], name[1].rpartition(" ")
    column = "rank" if kind.casefold() == "rank" else "gpu" if kind else ""
    words = [f"host:{host}"] if host and " " not in host else []
    return " ".join([*words, *([f"{column}:{which}"] if column else [])])


def _lane(name: tuple[str, str], moments: Sequence[Moment], place: Callable[[int], float]) -> Lane:
    numbered = sorted((m for m in moments if m.number), key=lambda m: (-m.weight, m.number))
    kept = sorted(numbered[:MAX_MARKS], key=lambda m: (m.at_us, m.number))
    ends: list[float] = []
    placed: list[tuple[Moment, float, int]] = []
    for moment in kept:
        x = place(moment.at_us)
        row = next((i for i, end in enumerate(ends) if x - end >= _NEAR), len(ends))
        if row == len(ends):
            ends.append(x)
        ends[row] = x
        placed.append((moment, x, row))
    base = max(14 + _ROW * max(len(ends) - 1, 0), 19)
    marks = tuple(
        Mark(
            number=m.number,
            x=x,
            low=None if m.error_us is None else place(m.at_us - m.error_us),
            high=None if m.error_us is None else place(m.at_us + m.error_us),
            y=base - _ROW * row,
            role=m.role,
            label=m.label,
            href=m.href,
        )
        for m, x, row in placed
    )
    spans = sorted({(place(m.at_us - m.waited_us), x) for m, x, _ in placed if m.waited_us})
    bars = tuple(Bar(x=x, width=round(max(end - x, 0.3), 4), label="waiting") for x, end in spans)
    return Lane(
        host=name[0],
        who=name[1],
        marks=marks,
        bars=bars,
        height=max(base + 14, 38),
        base=base,
        more=len(moments) - len(kept),
        find=_find(name),
    )


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
    out: dict[int, set[int]] = {}
    into: dict[int, set[int]] = {}
    count = 0
    for waiter, waited in waits:
        count += len(waited)
        if count > _TOO_MANY:
            return None
        for one in waited:
            out.setdefault(waiter, set()).add(one)
            into.setdefault(one, set()).add(waiter)
    alike: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for rank in sorted(out.keys() | into.keys()):
        alike.setdefault((frozenset(out.get(rank, ())), frozenset(into.get(rank, ()))), []).append(rank)
    groups = list(alike.values())
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


SPARK_WIDTH, SPARK_HEIGHT = 120, 22
_SPARK_POINTS = 60
"""Corners of a sparkline: one for every two pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """A series as one line: 'x,y x,y' in its own view box."""

    points: str
    guide: float | None
    """Where the incident began, if that is inside."""
    end: tuple[float, float]


def spark(values: Sequence[tuple[int, float]], onset_us: int | None) -> Spark | None:
    """A sparkline of (µs, value) pairs in order of time; None for fewer than two moments.

    Where there are too many, the highest of each stretch stands for it: peaks are what such a line is read for.
    """
    if len(values) < 2 or values[0][0] == values[-1][0]:
        return None
    first, last = values[0][0], values[-1][0]
    low, high = min(v for _, v in values), max(v for _, v in values)
    tall = (high - low) or 1.0
    highest: dict[int, tuple[int, float]] = {}
    for at, value in values:
        column = (at - first) * (_SPARK_POINTS - 1) // (last - first)
        if column not in highest or value >= highest[column][1]:
            highest[column] = (at, value)

    def x(at: int) -> float:
        return round(3 + (SPARK_WIDTH - 6) * (at - first) / (last - first), 1)

    corners = [
        (x(at), round(SPARK_HEIGHT - 4 - (SPARK_HEIGHT - 8) * (value - low) / tall, 1))
        for _, (at, value) in sorted(highest.items())
    ]
    inside = onset_us is not None and first <= onset_us <= last
    return Spark(
        points=" ".join(f"{a:g},{b:g}" for a, b in corners),
        guide=x(onset_us) if inside and onset_us is not None else None,
        end=corners[-1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One stretch of a bar."""

    x: float
    width: float
    kind: str


def shares(parts: Sequence[tuple[str, int]], whole: int) -> tuple[Share, ...]:
    """A bar of `whole`, cut into `parts` (kind, how many) from the left."""
    found, begun = [], 0
    for kind, count in parts:
        if count > 0 and whole > 0:
            found.append(Share(x=round(100 * begun / whole, 2), width=round(100 * count / whole, 2), kind=kind))
            begun += count
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where a clock may be, percent of the scale: its own reading and the ends of its error bar."""

    x: float
    low: float
    high: float


def reach(deviation_s: float, error_s: float, scale_s: float) -> Reach:
    """`scale_s` seconds to either side of the middle fill the drawing."""

    def place(seconds: float) -> float:
        return round(min(98.0, max(2.0, 50 + 46 * seconds / scale_s)), 2)

    return Reach(x=place(deviation_s), low=place(deviation_s - error_s), high=place(deviation_s + error_s))
