"""The timeline: which events are drawn, and the table below it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from nccl_forensics.show import pictures
from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.rows import Occurrence, Tick, TimelineView, some
from nccl_forensics.show.page.words import Doc, kind_words, meanings, numbers_of, plain_word, plus_minus, ranges_words
from nccl_forensics.text.language import N_, _
from nccl_forensics.text.moments import calendar, micros, timestamp

MAX_DRAWN = 48
"""Key events in the timeline and its table."""
MAX_ALIKE = 12
"""Of them, bystanders' events of one kind."""
LONGEST_WAIT_MS = 30 * 86_400_000
"""A month: a longer wait is a garbled number, and is not drawn. Our judgement."""
MAX_UNTIMED = 12
DAY_US = 86_400_000_000


def bounds_us(doc: Doc, incident: Doc) -> tuple[int | None, int | None]:
    """The stretch of time, µs, whose events belong to this incident: from the one before it to the one after."""
    every = sorted(doc["incidents"], key=lambda i: i["id"])
    at = next(n for n, i in enumerate(every) if i["id"] == incident["id"])
    low = high = None
    if at:
        low = micros(every[at - 1].get("ended") or every[at - 1].get("detected"))
    if at + 1 < len(every):
        high = micros(every[at + 1].get("onset") or every[at + 1].get("detected"))
    return low, high


ROLE_WEIGHT = {"cause": 30, "symptom": 20, "consequence": 10, "context": 0}


def key_events(doc: Doc, incident: Doc, lookup: Lookup) -> list[tuple[Doc, int]]:
    """(event, importance) of what is worth drawing, in the document's order."""
    evidence = {id(e) for item in incident["verdict"]["evidence"] if (e := lookup.event(item))}
    marked = any(e.get("key") for e in lookup.events)
    low, high = bounds_us(doc, incident)
    alone = len(doc["incidents"]) == 1
    culprits = set(numbers_of(incident["verdict"]["culprit_ranks"]))
    found = []
    for event in lookup.events:
        at = micros(event.get("time"))
        linked = id(event) in evidence
        if not linked:
            if not (event.get("key") if marked else event.get("severity") == "critical"):
                continue
            if at is None and not alone:
                continue
            if at is not None and ((low is not None and at <= low) or (high is not None and at >= high)):
                continue
        weight = ROLE_WEIGHT.get(event.get("role", ""), 0) + 15 * linked + 50 * (event.get("rank") in culprits)
        found.append((event, weight))
    return found


_BASIS = {
    "neighbour": N_("from its neighbours in the file"),
    "derived": N_("computed"),
    "none": N_("none"),
    "stamp": N_("written"),
}


def timeline_view(
    doc: Doc, incident: Doc, lookup: Lookup, anchors: Mapping[tuple[object, object], str]
) -> TimelineView:
    found = key_events(doc, incident, lookup)
    alike: Counter[str] = Counter()
    best: list[int] = []
    for i in sorted(range(len(found)), key=lambda i: (-found[i][1], i)):
        event, weight = found[i]
        alike[str(event.get("kind"))] += 1
        if len(best) < MAX_DRAWN and (weight > ROLE_WEIGHT["cause"] or alike[str(event.get("kind"))] <= MAX_ALIKE):
            best.append(i)
    timed: list[tuple[int, int, Doc, int]] = []
    untimed: list[Doc] = []
    for i in sorted(best):
        event, weight = found[i]
        at = micros(event.get("time"))
        if at is None:
            untimed.append(event)
        else:
            timed.append((at, i, event, weight))
    timed.sort(key=lambda x: x[:2])
    moments = [
        in_words(n, at, event, weight, lookup, anchors, incident["id"])
        for n, (at, _, event, weight) in enumerate(timed, 1)
    ]
    # A thousand alike victims still show, as one bar.
    drawn = set(best)
    crowd = [
        in_words(0, at, event, weight, lookup, anchors, incident["id"])
        for i, (event, weight) in enumerate(found)
        if i not in drawn and (at := micros(event.get("time"))) is not None
    ]
    named: dict[str, tuple[int, int | None]] = {}
    for name, key in (("onset", "onset"), ("detected", "detected"), ("ended", "ended")):
        at = micros(incident.get(key))
        if at is not None:
            error = incident.get("onset_uncertainty_s") if key == "onset" else None
            named[name] = (at, None if error is None else round(error * 1e6))
    picture = pictures.timeline([*moments, *crowd], named)
    outside = set(picture.outside) if picture else set()
    ticks: tuple[Tick, ...] = ()
    day = ""
    if picture:
        days = picture.last_us // DAY_US != picture.first_us // DAY_US
        ticks = tuple(Tick(x=t.x, label=tick_of(t.at_us, picture.step_us, days)) for t in picture.ticks)
        first, last = (f"{calendar(at):%Y-%m-%d}" for at in (picture.first_us, picture.last_us))
        day = first if first == last else _("{first} to {last}").format(first=first, last=last)
    rows = tuple(occurrences(moments, timed, lookup, outside))
    return TimelineView(
        picture=picture,
        ticks=ticks,
        day=day,
        rows=rows,
        untimed=some(
            (
                (kind_words(e), ", ".join(lookup.place(e)), lookup.where(e.get("source"), e.get("line")))
                for e in untimed
            ),
            MAX_UNTIMED,
        ),
        more=len(found) - len(best),
        outside=ranges_words(outside),
    )


def tick_of(at_us: int, step_us: int, days: bool) -> str:
    """What stands at a tick: no more of its date and time than tells it from the next, `step_us` later."""
    when = calendar(at_us)
    if step_us >= DAY_US:
        return f"{when:%Y-%m-%d}"
    clock = f"{when:%H:%M}" if step_us >= 60_000_000 else f"{when:%H:%M:%S}"
    if step_us < 1_000_000:
        clock += f".{at_us % 1_000_000 // 1000:03d}"
    return f"{when:%m-%d} {clock}" if days else clock


def in_words(
    number: int,
    at: int,
    event: Doc,
    weight: int,
    lookup: Lookup,
    anchors: Mapping[tuple[object, object], str],
    incident: int,
) -> pictures.Moment:
    fields = event.get("fields") or {}
    waited = fields.get("waited_ms") or fields.get("timeout_ms") if event.get("kind") == "watchdog-timeout" else None
    error = event.get("time_uncertainty_s")
    lane = lookup.place(event)
    return pictures.Moment(
        number=number,
        lane=lane,
        at_us=at,
        error_us=None if error is None else round(error * 1e6),
        role=event.get("role", "context"),
        label=""
        if not number
        else f"{number}: {kind_words(event)}, {lane[1]}, {timestamp(at, error)} UTC {plus_minus(error)}",
        href=anchors.get((event.get("source"), event.get("line")), f"i{incident}-t{number}"),
        waited_us=round(waited * 1000) if isinstance(waited, (int, float)) and 0 < waited < LONGEST_WAIT_MS else None,
        weight=weight,
    )


def occurrences(
    moments: Sequence[pictures.Moment],
    timed: Sequence[tuple[int, int, Doc, int]],
    lookup: Lookup,
    outside: set[int],
) -> Iterator[Occurrence]:
    for n, (m, (at, _order, event, _weight)) in enumerate(zip(moments, timed, strict=True)):
        host, who = lookup.place(event)
        error = event.get("time_uncertainty_s")
        order = ""
        if n:
            before = timed[n - 1]
            # Lines of one file share their clock: their order is that of the file.
            if before[2].get("source") != event.get("source"):
                bar, other = error, before[2].get("time_uncertainty_s")
                apart = lookup.apart_s(event.get("host"), before[2].get("host"))
                if bar is None or other is None or at - before[0] <= (bar + other + apart) * 1e6:
                    order = _("may be before {n}").format(n=moments[n - 1].number)
        yield Occurrence(
            number=m.number,
            anchor=m.href if re.fullmatch(r"i\d+-t\d+", m.href) else "",
            href="" if re.fullmatch(r"i\d+-t\d+", m.href) else m.href,
            when=timestamp(at, error),
            error=plus_minus(error),
            basis="" if event.get("time_basis") in (None, "stamp") else plain_word(_BASIS.get(event["time_basis"], "")),
            host=host,
            who=who,
            role=event.get("role", "context"),
            what=kind_words(event),
            means=meanings().get(str(event.get("kind")), ""),
            where=lookup.where(event.get("source"), event.get("line")),
            order=order,
            drawn=m.number not in outside,
        )
