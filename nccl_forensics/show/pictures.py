"""Where things stand in the report's drawings: the timeline, and the small ones in its tables.

Numbers only; a template draws. Horizontal places are percent of a drawing's width (0–100, so that the page may be of
any width), vertical ones are pixels. The sparklines: pixels of their own view box.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.text.language import _

MAX_LANES = 12
"""Lanes drawn one by one; the rest share one. Our judgement of what an eye can follow."""
MAX_MARKS = 14
"""Marks drawn in one lane; the rest is counted."""
_EDGE = 3.0
"""Percent kept free at both ends of a track; report.js counts on it."""
_NAMED = 9.0
"""Percent that a guide's name may take."""
_NEAR = 4.5
"""Percent: marks closer than this are put on rows above each other."""
_ROW = 20
"""Pixels between such rows."""
_THINNEST = 0.3
"""Percent: the shortest bar that is seen."""
MOST_TICKS = 6
_ROOM_US = 120 * 10**6
"""Around the anchors, at least."""
_SHORTEST_US = 1000
"""A shorter stretch is drawn as a second."""


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

    @property
    def begun_us(self) -> int:
        """When the wait began that ended with it."""
        return self.at_us - (self.waited_us or 0)


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


@dataclass(frozen=True, slots=True)
class _Scale:
    """From a time to its place in the drawing; µs."""

    first: int
    last: int

    def place(self, at_us: int) -> float:
        """Percent from the left."""
        share = (at_us - self.first) / (self.last - self.first)
        return round(min(100.0, max(0.0, _EDGE + (100 - 2 * _EDGE) * share)), 4)


Anchors = Mapping[str, tuple[int, int | None]]
"""An incident's own times by name: (µs, error in µs)."""


def timeline(moments: Sequence[Moment], anchors: Anchors) -> Timeline | None:
    """Lanes, marks and ticks for `moments`; `anchors` are the incident's own times.

    None where nothing has a time. Moments farther from the anchors than the incident is long are `outside`.
    """
    if not moments:
        return None
    inside, scale = _fitted(moments, anchors)
    kept = set(map(id, inside))
    guides = _guides(anchors, scale)
    step = next((s for s in _STEPS if (scale.last - scale.first) / s <= MOST_TICKS), _STEPS[-1])
    first_tick = -(-scale.first // step) * step
    return Timeline(
        lanes=tuple(_lanes(inside, scale)),
        ticks=tuple(Tick(x=scale.place(at), at_us=at) for at in range(first_tick, scale.last + 1, step)),
        guides=tuple(guides),
        guide_rows=max((g.row + 1 for g in guides), default=0),
        step_us=step,
        first_us=scale.first,
        last_us=scale.last,
        outside=tuple(m.number for m in moments if id(m) not in kept and m.number),
    )


def _fitted(moments: Sequence[Moment], anchors: Anchors) -> tuple[list[Moment], _Scale]:
    """(what is drawn, on which scale): what lies near the anchors, and the waits that ended there."""
    inside = list(moments)
    if anchors:
        low, high = min(at for at, _ in anchors.values()), max(at for at, _ in anchors.values())
        room = max(high - low, _ROOM_US)
        inside = [m for m in moments if low - room <= m.at_us <= high + room]
    else:
        low, high = min(m.at_us for m in inside), max(m.at_us for m in inside)
    low = min([low, *(m.begun_us for m in inside)])
    high = max([high, *(m.at_us for m in inside)])
    if high - low < _SHORTEST_US:
        low, high = low - 500_000, high + 500_000
    return inside, _Scale(low, high)


def _guides(anchors: Anchors, scale: _Scale) -> list[Guide]:
    """In order of time; a name that would cover another one is written a line lower."""
    guides: list[Guide] = []
    for name, (at, error) in sorted(anchors.items(), key=lambda a: a[1][0]):
        x, bar = scale.place(at), error or 0
        near = {g.row for g in guides if x - g.x < _NAMED}
        row = next(n for n in range(len(guides) + 1) if n not in near)
        guides.append(Guide(x=x, low=scale.place(at - bar), high=scale.place(at + bar), name=name, row=row))
    return guides


def _lanes(moments: Sequence[Moment], scale: _Scale) -> Iterable[Lane]:
    by_lane: dict[tuple[str, str], list[Moment]] = {}
    for moment in moments:
        by_lane.setdefault(moment.lane, []).append(moment)

    def weight(name: tuple[str, str]) -> tuple[int, int]:
        own = by_lane[name]
        return -max(m.weight for m in own), min(m.number or 10**9 for m in own)

    names = sorted(by_lane, key=weight)
    drawn = set(names[:MAX_LANES]) if len(names) > MAX_LANES + 1 else set(names)
    for name in sorted(drawn, key=_in_order):
        yield _lane(name, by_lane[name], scale)
    if rest := [m for name in names if name not in drawn for m in by_lane[name]]:
        yield _shared_lane(rest, len(names) - len(drawn), scale)


def _shared_lane(rest: Sequence[Moment], lanes: int, scale: _Scale) -> Lane:
    """One bar for all that have no lane of their own."""
    begun, ended = min(m.begun_us for m in rest), max(m.at_us for m in rest)
    return Lane(
        host=_("{n} more lanes").format(n=f"{lanes:,}"),
        who=_("{n} events").format(n=f"{len(rest):,}"),
        marks=(),
        bars=(_bar(scale.place(begun), scale.place(ended), "from first to last"),),
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


def _lane(name: tuple[str, str], moments: Sequence[Moment], scale: _Scale) -> Lane:
    numbered = sorted((m for m in moments if m.number), key=lambda m: (-m.weight, m.number))
    kept = sorted(numbered[:MAX_MARKS], key=lambda m: (m.at_us, m.number))
    rows = _rows([scale.place(m.at_us) for m in kept])
    base = max(14 + _ROW * max(rows, default=0), 19)
    waits = {(scale.place(m.begun_us), scale.place(m.at_us)) for m in kept if m.waited_us}
    return Lane(
        host=name[0],
        who=name[1],
        marks=tuple(_mark(m, base - _ROW * row, scale) for m, row in zip(kept, rows, strict=True)),
        bars=tuple(_bar(begun, ended, "waiting") for begun, ended in sorted(waits)),
        height=max(base + 14, 38),
        base=base,
        more=len(moments) - len(kept),
        find=_find(name),
    )


def _rows(places: Sequence[float]) -> list[int]:
    """On which row each mark is put, from 0, so that none covers another; `places` from left to right."""
    ends: list[float] = []
    rows: list[int] = []
    for x in places:
        row = next((i for i, end in enumerate(ends) if x - end >= _NEAR), len(ends))
        ends[row : row + 1] = [x]
        rows.append(row)
    return rows


def _bar(begun: float, ended: float, label: str) -> Bar:
    return Bar(x=begun, width=round(max(ended - begun, _THINNEST), 4), label=label)


def _mark(m: Moment, y: int, scale: _Scale) -> Mark:
    return Mark(
        number=m.number,
        x=scale.place(m.at_us),
        low=None if m.error_us is None else scale.place(m.at_us - m.error_us),
        high=None if m.error_us is None else scale.place(m.at_us + m.error_us),
        y=y,
        role=m.role,
        label=m.label,
        href=m.href,
    )


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
    """A sparkline of (µs, value) pairs in order of time; None for fewer than two moments."""
    if len(values) < 2 or values[0][0] == values[-1][0]:
        return None
    first, last = values[0][0], values[-1][0]
    low, high = min(v for _, v in values), max(v for _, v in values)
    tall = (high - low) or 1.0

    def x(at: int) -> float:
        return round(3 + (SPARK_WIDTH - 6) * (at - first) / (last - first), 1)

    def y(value: float) -> float:
        return round(SPARK_HEIGHT - 4 - (SPARK_HEIGHT - 8) * (value - low) / tall, 1)

    corners = [(x(at), y(value)) for at, value in _peaks(values)]
    return Spark(
        points=" ".join(f"{a:g},{b:g}" for a, b in corners),
        guide=x(onset_us) if onset_us is not None and first <= onset_us <= last else None,
        end=corners[-1],
    )


def _peaks(values: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The highest value of each stretch, where there are too many: peaks are what such a line is read for."""
    first, last = values[0][0], values[-1][0]
    highest: dict[int, tuple[int, float]] = {}
    for at, value in values:
        column = (at - first) * (_SPARK_POINTS - 1) // (last - first)
        if column not in highest or value >= highest[column][1]:
            highest[column] = (at, value)
    return [peak for _column, peak in sorted(highest.items())]


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
