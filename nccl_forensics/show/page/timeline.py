"""The timeline: which events are drawn, and the table below it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.show import pictures
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.markup import below, breakable, link
from nccl_forensics.show.page.rows import Tick, TimelineView, some
from nccl_forensics.show.page.tables import Column, Layout, unbroken
from nccl_forensics.show.page.words import Doc, kind_words, meanings, numbers_of, plain_word, plus_minus, zoned
from nccl_forensics.text.language import N_, _
from nccl_forensics.text.moments import calendar, micros, timestamp

MAX_DRAWN = 48
"""Key events in the timeline and its table."""
MAX_ALIKE = 12
"""Of them, bystanders' events of one kind."""
LONGEST_WAIT_MS = 30 * 86_400_000
"""A month: a longer wait is a garbled number, and is not drawn. Our judgement."""
MAX_UNTIMED = 12
SECOND_US, MINUTE_US, DAY_US = 1_000_000, 60_000_000, 86_400_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """The stretch of time, µs, whose events belong to an incident; None where no other one bounds it."""

    after: int | None
    before: int | None

    def hold(self, at_us: int) -> bool:
        return (self.after is None or at_us > self.after) and (self.before is None or at_us < self.before)


def bounds_us(doc: Doc, incident: Doc) -> Bounds:
    """From the incident before it to the one after."""
    every = sorted(doc["incidents"], key=lambda i: i["id"])
    at = next(n for n, i in enumerate(every) if i["id"] == incident["id"])
    low = high = None
    if at:
        low = micros(every[at - 1].get("ended") or every[at - 1].get("detected"))
    if at + 1 < len(every):
        high = micros(every[at + 1].get("onset") or every[at + 1].get("detected"))
    return Bounds(low, high)


ROLE_WEIGHT = {"cause": 30, "symptom": 20, "consequence": 10, "context": 0}


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """An event that is worth drawing."""

    doc: Doc
    weight: int
    """How much."""
    at_us: int | None
    """None: it can't be drawn."""

    @property
    def error_s(self) -> float | None:
        return self.doc.get("time_uncertainty_s")

    @property
    def kind(self) -> str:
        return str(self.doc.get("kind"))

    @property
    def role(self) -> str:
        return str(self.doc.get("role", "context"))


def key_events(doc: Doc, incident: Doc, lookup: Lookup) -> list[KeyEvent]:
    """What is worth drawing, in the document's order."""
    evidence = {id(e) for item in incident["verdict"]["evidence"] if (e := lookup.event(item))}
    marked = any(e.get("key") for e in lookup.events)
    bounds = bounds_us(doc, incident)
    alone = len(doc["incidents"]) == 1
    culprits = set(numbers_of(incident["verdict"]["culprit_ranks"]))
    found = []
    for event in lookup.events:
        at = micros(event.get("time"))
        linked = id(event) in evidence
        important = event.get("key") if marked else event.get("severity") == "critical"
        belongs = alone if at is None else bounds.hold(at)
        if linked or (important and belongs):
            weight = ROLE_WEIGHT.get(event.get("role", ""), 0) + 15 * linked + 50 * (event.get("rank") in culprits)
            found.append(KeyEvent(event, weight, at))
    return found


def _weightiest(found: Sequence[KeyEvent]) -> set[int]:
    """Places in `found` of those that are drawn one by one."""
    alike: Counter[str] = Counter()
    best: set[int] = set()
    for i in sorted(range(len(found)), key=lambda i: (-found[i].weight, i)):
        event = found[i]
        alike[event.kind] += 1
        if len(best) < MAX_DRAWN and (event.weight > ROLE_WEIGHT["cause"] or alike[event.kind] <= MAX_ALIKE):
            best.add(i)
    return best


@dataclass(frozen=True, slots=True)
class _Scene:
    """What an event is drawn with."""

    lookup: Lookup
    anchors: Mapping[tuple[object, object], str]
    """(source, line) → anchor of the same line in the chain of evidence"""
    incident: int

    def moment(self, number: int, event: KeyEvent, at_us: int) -> pictures.Moment:
        """`number` in the table; 0: one of the crowd."""
        doc, lane, error = event.doc, self.lookup.place(event.doc), event.error_s
        return pictures.Moment(
            number=number,
            lane=lane,
            at_us=at_us,
            error_us=None if error is None else round(error * 1e6),
            role=event.role,
            label=f"{number}: {_spoken(event, lane[1], at_us)}" if number else "",
            href=self.anchors.get((doc.get("source"), doc.get("line")), f"i{self.incident}-t{number}"),
            waited_us=waited_us(doc),
            weight=event.weight,
        )


def _spoken(event: KeyEvent, who: str, at_us: int) -> str:
    when = zoned(timestamp(at_us, event.error_s), event.doc)
    return f"{kind_words(event.doc)}, {who}, {when} {plus_minus(event.error_s)}"


def waited_us(event: Doc) -> int | None:
    """How long a watchdog's timeout says that it waited; None for another event and a garbled number."""
    fields = event.get("fields") or {}
    waited = fields.get("waited_ms") or fields.get("timeout_ms")
    if event.get("kind") != "watchdog-timeout" or not isinstance(waited, (int, float)):
        return None
    return round(waited * 1000) if 0 < waited < LONGEST_WAIT_MS else None


def timeline_view(
    doc: Doc, incident: Doc, lookup: Lookup, anchors: Mapping[tuple[object, object], str]
) -> TimelineView:
    found = key_events(doc, incident, lookup)
    best = _weightiest(found)
    chosen = [found[i] for i in sorted(best)]
    timed = sorted(((e.at_us, e) for e in chosen if e.at_us is not None), key=lambda x: x[0])
    scene = _Scene(lookup, anchors, incident["id"])
    moments = [scene.moment(n, event, at) for n, (at, event) in enumerate(timed, 1)]
    # A thousand alike victims still show, as one bar.
    crowd = [scene.moment(0, e, e.at_us) for i, e in enumerate(found) if i not in best and e.at_us is not None]
    picture = pictures.timeline([*moments, *crowd], _named_times(incident))
    far = set(picture.outside) if picture else set()
    return TimelineView(
        picture=picture,
        ticks=_ticks(picture) if picture else (),
        day=_day(picture) if picture else "",
        table=KEY_EVENTS.filled(_occurrences(moments, [e for _, e in timed], lookup, far), len(found) - len(best)),
        untimed=some(
            (
                (kind_words(e.doc), ", ".join(lookup.place(e.doc)), lookup.where_of(e.doc))
                for e in chosen
                if e.at_us is None
            ),
            MAX_UNTIMED,
        ),
    )


def _named_times(incident: Doc) -> dict[str, tuple[int, int | None]]:
    """The incident's own times by name: (µs, error in µs)."""
    named: dict[str, tuple[int, int | None]] = {}
    for name in ("onset", "detected", "ended"):
        error = incident.get("onset_uncertainty_s") if name == "onset" else None
        if (at := micros(incident.get(name))) is not None:
            named[name] = (at, None if error is None else round(error * 1e6))
    return named


def _ticks(picture: pictures.Timeline) -> tuple[Tick, ...]:
    days = picture.last_us // DAY_US != picture.first_us // DAY_US
    return tuple(Tick(x=t.x, label=tick_of(t.at_us, picture.step_us, days)) for t in picture.ticks)


def _day(picture: pictures.Timeline) -> str:
    first, last = (f"{calendar(at):%Y-%m-%d}" for at in (picture.first_us, picture.last_us))
    return first if first == last else _("{first} to {last}").format(first=first, last=last)


def tick_of(at_us: int, step_us: int, days: bool) -> str:
    """What stands at a tick: no more of its date and time than tells it from the next, `step_us` later."""
    when = calendar(at_us)
    if step_us >= DAY_US:
        return f"{when:%Y-%m-%d}"
    clock = f"{when:%H:%M}" if step_us >= MINUTE_US else f"{when:%H:%M:%S}"
    if step_us < SECOND_US:
        clock += f".{at_us % SECOND_US // 1000:03d}"
    return f"{when:%m-%d} {clock}" if days else clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A key event as the columns of the table ask for it."""

    moment: pictures.Moment
    event: KeyEvent
    lookup: Lookup
    unordered: int | None
    """Number of the one before it, if their order is not known."""
    drawn: bool

    @property
    def has_own_anchor(self) -> bool:
        """It is not in the chain of evidence: its row is what the drawing's mark leads to."""
        return re.fullmatch(r"i\d+-t\d+", self.moment.href) is not None


_BASIS = {
    "neighbour": N_("from its neighbours in the file"),
    "derived": N_("computed"),
    "none": N_("none"),
    "stamp": N_("written"),
}


def _when(row: Occurrence) -> str:
    basis = row.event.doc.get("time_basis")
    told = "" if basis in (None, "stamp") else plain_word(_BASIS.get(basis, ""))
    far = "" if row.drawn else _("not drawn: too far away")
    unzoned = _("zone not written") if row.event.doc.get("zone_not_written") else ""
    return below(timestamp(row.moment.at_us, row.event.error_s), told, unzoned, far)


def _what(row: Occurrence) -> str:
    words = kind_words(row.event.doc)
    named = words if row.has_own_anchor else link(row.moment.href, words)
    return below(named, meanings().get(row.event.kind, ""))


def _order(row: Occurrence) -> str:
    return "–" if row.unordered is None else _("may be before {n}").format(n=row.unordered)


KEY_EVENTS: Layout[Occurrence] = Layout(
    columns=(
        Column(N_("No."), lambda o: str(o.moment.number), numeric=True, heads_row=True),
        Column(N_("Time, UTC"), _when, css="when"),
        Column(N_("Error"), lambda o: plus_minus(o.event.error_s), css="when"),
        Column(N_("Host"), lambda o: unbroken(o.moment.lane[0])),
        Column(N_("Who"), lambda o: o.moment.lane[1], css="nw"),
        Column(N_("Role"), lambda o: plain_word(o.event.role)),
        Column(N_("What"), _what),
        Column(N_("Where"), lambda o: breakable(o.lookup.where_of(o.event.doc)), css="where"),
        Column(N_("Order"), _order),
    ),
    anchor=lambda o: o.moment.href if o.has_own_anchor else "",
    css=lambda o: o.event.role,
)


def _occurrences(
    moments: Sequence[pictures.Moment], events: Sequence[KeyEvent], lookup: Lookup, far: set[int]
) -> Iterator[Occurrence]:
    for n, (moment, event) in enumerate(zip(moments, events, strict=True)):
        unordered = n > 0 and _may_be_first(event, events[n - 1], moment.at_us - moments[n - 1].at_us, lookup)
        yield Occurrence(
            moment=moment,
            event=event,
            lookup=lookup,
            unordered=moments[n - 1].number if unordered else None,
            drawn=moment.number not in far,
        )


def _may_be_first(event: KeyEvent, before: KeyEvent, apart_us: int, lookup: Lookup) -> bool:
    """May `event` lie before the one that its stamp is `apart_us` behind?"""
    if event.doc.get("source") == before.doc.get("source"):
        return False  # lines of one file share their clock: their order is that of the file
    if event.error_s is None or before.error_s is None:
        return True
    clocks_s = lookup.apart_s(event.doc.get("host"), before.doc.get("host"))
    return apart_us <= (event.error_s + before.error_s + clocks_s) * 1e6
