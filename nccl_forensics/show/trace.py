"""The incidents as a trace that opens in ui.perfetto.dev, made from the JSON document alone.

Format: JSON object form of Chrome's Trace Event Format (Catapult project), phases M (names), X (slices), i (instants),
s/t/f (arrows). A process is a host; a thread is a rank, or what has no rank on that host: a GPU, the system. Times are
µs since `otherData.origin` on the reference clock (UTC); error bars are args.

Every arrow starts and ends where a slice begins: viewers differ in which of several open slices they tie an arrow to,
and none can differ there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_forensics.show.page.lookup import Lookup
from nccl_forensics.show.page.timeline import bounds_us, waited_us
from nccl_forensics.show.page.words import NO_HOST, Doc, cause_title, clean, kind_words, numbers_of, ranks_words
from nccl_forensics.text.moments import micros, rfc3339

MOST_ARROWS = 5_000
"""From waiters to those they wait for; the others are counted in `otherData`. Our judgement of what a viewer bears."""
SECOND_US = 1_000_000
Lane = tuple[str, str]
"""(host; rank, GPU or 'system'), named as in the report's timeline."""
OVERVIEW = "Incidents"
ENDINGS = ("pg-abort", "exit")
"""Kinds of events that end a process after its watchdog's timeout."""
_ORDER = {"i": 0, "X": 1, "s": 2, "t": 2, "f": 2}
"""Rows of one time: an arrow needs its slice before it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """A stretch of time in one lane; µs since 1970 on the reference clock."""

    lane: Lane
    start: int
    end: int
    name: str
    category: str
    args: Mapping[str, Any]


class _Drawing:
    """Slices and arrows of all incidents."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.arrows: list[tuple[str, tuple[Slice, ...]]] = []
        """(name, slices from first to last in time)."""
        self.waits: list[tuple[Slice, Slice]] = []
        """(waiter, waited)."""
        self.undrawn = 0
        """Waits that have no arrow."""

    def add(self, lane: Lane, start: int, end: int, name: str, category: str, **args: Any) -> Slice:
        known = {k: v for k, v in args.items() if v is not None}
        self.slices.append(Slice(lane=lane, start=start, end=end, name=name, category=category, args=known))
        return self.slices[-1]


def trace(doc: Doc) -> str:
    """`doc` (incident.schema.json) as trace-event JSON; the same document gives the same text.

    Events that are farther from every incident than that lasted are counted, not drawn: an incident of ten minutes
    can't be found in a picture of ten days.
    """
    lookup = Lookup(doc)
    drawing = _Drawing()
    for incident in doc["incidents"]:
        _draw(doc, incident, lookup, drawing)
    timed = [(at, e) for e in lookup.events if (at := micros(e.get("time"))) is not None]
    around = [(2 * s.start - s.end, 2 * s.end - s.start) for s in drawing.slices if s.lane[0] == OVERVIEW]
    shown = [(at, e) for at, e in timed if not around or any(a <= at <= b for a, b in around)]
    starts = [at for at, _ in shown] + [s.start for s in drawing.slices]
    origin = min(starts, default=0) // SECOND_US * SECOND_US
    other = {
        "tool": f"nccl-forensics {clean(doc['tool']['version'], 40)}",
        "clock": "microseconds since origin on the reference clock, UTC; error bars are in the args",
        "origin": rfc3339(origin * 1000),
        "events_without_a_time": len(lookup.events) - len(timed),
        "events_farther_off": len(timed) - len(shown),
        "waits_without_an_arrow": drawing.undrawn,
    }
    rows = _rows(drawing, shown, lookup, origin)
    head = json.dumps({"displayTimeUnit": "ms", "otherData": other}, ensure_ascii=False)
    return head[:-1] + ', "traceEvents": [\n' + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]}\n"


def _draw(doc: Doc, incident: Doc, lookup: Lookup, drawing: _Drawing) -> None:
    """The cause, the stalls it led to, their timeouts and aborts; and who waits for whom."""
    verdict, onset = incident["verdict"], micros(incident["onset"])
    timeouts = _timeouts(doc, incident, lookup)
    ended = micros(incident.get("ended"))
    detected = micros(incident["detected"]) or ended
    begun = onset if onset is not None else min((at - waited for at, _, waited in timeouts), default=detected)
    if begun is None or detected is None:
        return
    detected = max(begun, detected)
    title = cause_title(verdict["cause"])
    about = {
        "status": verdict["status"],
        "confidence": verdict["confidence"],
        "summary": clean(verdict["summary"]),
        "onset_uncertainty_s": incident.get("onset_uncertainty_s"),
        "basis": None if onset is not None else "The onset is not known: the first wait begins here.",
    }
    lane, until = (OVERVIEW, f"incident {incident['id']}"), max(detected, ended or detected)
    whole = drawing.add(lane, begun, until, f"{incident['id']}: {title}", "cause", **about)
    causes = [drawing.add(lane, begun, detected, title, "cause", **about) for lane in _culprits(verdict, lookup)]
    first = (causes or [whole])[0] if onset is not None and verdict["cause"] != "undetermined" else None
    waiting: dict[int, Slice] = {}
    for rank, (stall, *after) in _stalls(incident, timeouts, (begun, detected), lookup, drawing).items():
        waits = stall
        if stall.start < begun < stall.end:
            waits = drawing.add(stall.lane, begun, stall.end, f"since: {title}" if first else "waits", "stall")
        waiting[rank] = waits
        before = (first,) if first and first.start <= waits.start else ()
        if before or after:
            drawing.arrows.append(("cause to abort", (*before, waits, *after)))
    held = dict(zip(numbers_of(verdict["culprit_ranks"]), causes, strict=False))
    _wait_arrows(incident, waiting, held, (begun, detected), lookup, drawing)


def _timeouts(doc: Doc, incident: Doc, lookup: Lookup) -> list[tuple[int, Doc, int]]:
    """(when, event, µs waited) of the incident's watchdog timeouts, in time order; what is printed twice, once."""
    bounds = bounds_us(doc, incident)
    found = []
    for event in lookup.events:
        at, waited = micros(event.get("time")), waited_us(event)
        if at is None or waited is None or (event.get("fields") or {}).get("repeated"):
            continue
        if bounds.hold(at):
            found.append((at, event, waited))
    return sorted(found, key=lambda x: x[0])


def _culprits(verdict: Doc, lookup: Lookup) -> list[Lane]:
    """One lane for each rank that is named; without ranks for each GPU, without GPUs for each host."""
    if ranks := numbers_of(verdict["culprit_ranks"]):
        return [lookup.place({"rank": r}) for r in ranks]
    if gpus := [g for g in verdict["culprit_gpus"] if g.get("pci")]:
        return [lookup.place({"host": g.get("host"), "gpu_pci": g["pci"]}) for g in gpus]
    return [lookup.place({"host": h}) for h in verdict["culprit_hosts"]]


def _stalls(
    incident: Doc,
    timeouts: Sequence[tuple[int, Doc, int]],
    span: tuple[int, int],
    lookup: Lookup,
    drawing: _Drawing,
) -> dict[int, list[Slice]]:
    """Rank → its first stall, then its timeout and abort as far as known.

    Where a rank is known to wait and has written no timeout, its stall takes `span`.
    """
    endings: dict[int, list[tuple[int, Doc]]] = {}
    for event in lookup.events:
        at = micros(event.get("time"))
        if event.get("kind") in ENDINGS and event.get("rank") is not None and at is not None:
            endings.setdefault(event["rank"], []).append((at, event))
    found: dict[int, list[Slice]] = {}
    for at, event, waited in timeouts:
        fields, rank, lane = event.get("fields") or {}, event.get("rank"), lookup.place(event)
        about = {"uncertainty_s": event.get("time_uncertainty_s"), "where": _where(event, lookup)}
        name = _operation(fields.get("op"), fields.get("seq"))
        stall = drawing.add(lane, at - waited, at, name, "stall", waited_s=waited / 1e6, **about)
        if rank is None or rank in found:
            continue
        found[rank] = [stall]
        if after := sorted((x for x in endings.get(rank, ()) if x[0] >= at), key=lambda x: x[0]):
            abort, words = after[0][0], kind_words(after[0][1])
            gone = next((t for t, e in after if e["kind"] == "exit"), abort)
            found[rank].append(drawing.add(lane, at, abort, "timeout", "timeout", **about))
            found[rank].append(drawing.add(lane, abort, gone, words, "abort", where=_where(after[0][1], lookup)))
    op = (incident.get("collective") or {}).get("op")
    for wait in incident.get("waits") or ():
        if wait["waiter"] not in found:
            lane, name = lookup.place({"rank": wait["waiter"]}), _operation(op, wait.get("seq"))
            basis = "From the incident's onset to its detection: the files do not tell this rank's own times."
            found[wait["waiter"]] = [
                drawing.add(lane, *span, name, "stall", basis=basis, why=clean(wait.get("why") or ""))
            ]
    return found


def _operation(op: object, seq: object) -> str:
    name = clean(str(op or "operation").lower(), 60)
    return name if seq is None else f"{name} no. {seq}"


def _where(event: Doc, lookup: Lookup) -> str:
    return lookup.where(event.get("source"), event.get("line"))


def _wait_arrows(
    incident: Doc,
    waiting: Mapping[int, Slice],
    causes: Mapping[int, Slice],
    span: tuple[int, int],
    lookup: Lookup,
    drawing: _Drawing,
) -> None:
    """From each waiter's stall to a slice 'ranks … wait for it' of the one it waits for.

    That slice begins when the last of them waits, and lies in the other's own stall where there is one.
    """
    waiters: dict[int, list[int]] = {}
    for wait in incident.get("waits") or ():
        for waited in wait["waited"]:
            waiters.setdefault(waited, []).append(wait["waiter"])
    for waited, ranks in sorted(waiters.items()):
        holder = causes.get(waited) or waiting.get(waited)
        end = holder.end if holder else span[1]
        drawn = [r for r in ranks if r in waiting and waiting[r].start <= end][: MOST_ARROWS - len(drawing.waits)]
        drawing.undrawn += len(ranks) - len(drawn)
        if drawn:
            lane = holder.lane if holder else lookup.place({"rank": waited})
            start = max([waiting[r].start for r in drawn] + ([holder.start] if holder else []))
            verb = "waits" if len(drawn) == 1 else "wait"
            held = drawing.add(lane, start, end, f"{ranks_words(drawn)} {verb} for it", "waited for")
            drawing.waits += [(waiting[r], held) for r in drawn]


def _rows(drawing: _Drawing, shown: Sequence[tuple[int, Doc]], lookup: Lookup, origin: int) -> list[dict[str, Any]]:
    depth = _spread(drawing.slices)
    used = {(s.lane, depth[s]) for s in drawing.slices} | {(lookup.place(e), 0) for _, e in shown}
    threads: dict[tuple[Lane, int], dict[str, int]] = {}
    rows: list[dict[str, Any]] = []
    names = sorted({host for (host, _), _ in used}, key=lambda h: (h != OVERVIEW, h == NO_HOST, h))
    for pid, host in enumerate(names, 1):
        label = f"{host} (0 is {rfc3339(origin * 1000)})" if host == OVERVIEW else host
        rows += _name("process", label, pid, {"pid": pid, "tid": 0})
        own = sorted((key for key in used if key[0][0] == host), key=_thread_order)
        for n, key in enumerate(own, 1):
            threads[key] = {"pid": pid, "tid": pid * THREADS + n}
            rows += _name("thread", key[0][1] + (f" ({key[1] + 1})" if key[1] else ""), n, threads[key])
    timed: list[dict[str, Any]] = []
    for at, event in shown:
        about = {k: event.get(k) for k in ("time", "time_uncertainty_s", "time_basis", "role", "severity", "gpu_pci")}
        about |= {"where": _where(event, lookup), "text": clean(event.get("text") or "")}
        row = {"ph": "i", "s": "t", "name": kind_words(event), "cat": f"event,{event['role']}", "ts": at - origin}
        args = {k: v for k, v in about.items() if v is not None}
        timed.append({**row, **threads[lookup.place(event), 0], "args": args})
    for s in drawing.slices:
        row = {"ph": "X", "name": s.name, "cat": s.category, "ts": s.start - origin, "dur": s.end - s.start}
        timed.append({**row, **threads[s.lane, depth[s]], "args": dict(s.args)})
    arrows = [("waits for", pair) for pair in drawing.waits] + drawing.arrows
    for n, (name, way) in enumerate(arrows, 1):
        for step, s in enumerate(way):
            phase = {"ph": "s"} if step == 0 else {"ph": "f", "bp": "e"} if s is way[-1] else {"ph": "t", "bp": "e"}
            row = {**phase, "name": name, "cat": "flow", "id": n, "ts": s.start - origin}
            timed.append({**row, **threads[s.lane, depth[s]]})
    # Of slices that begin together the longer is the outer one.
    return rows + sorted(timed, key=lambda r: (r["ts"], _ORDER[r["ph"]], -r.get("dur", 0)))


THREADS = 1_000_000
"""Thread ids of one process: ids of two processes must differ, too."""


def _name(what: str, name: str, order: int, where: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {"ph": "M", "name": f"{what}_name", **where, "args": {"name": name}},
        {"ph": "M", "name": f"{what}_sort_index", **where, "args": {"sort_index": order}},
    ]


def _thread_order(key: tuple[Lane, int]) -> tuple[bool, int, str, int]:
    """Numbered lanes (ranks, incidents) first, by number."""
    (_, name), depth = key
    number = name.partition(" ")[2]
    return not number.isdecimal(), int(number) if number.isdecimal() else 0, name, depth


def _spread(slices: Sequence[Slice]) -> dict[Slice, int]:
    """On which thread of its lane each slice lies, from 0: on one thread they must lie in one another or apart."""
    depth: dict[Slice, int] = {}
    open_: dict[Lane, list[list[int]]] = {}
    order = {s: n for n, s in enumerate(slices)}
    for s in sorted(slices, key=lambda s: (s.start, -s.end, order[s])):
        threads = open_.setdefault(s.lane, [])
        for ends in threads:
            while ends and ends[-1] <= s.start:
                ends.pop()
        depth[s] = next((n for n, ends in enumerate(threads) if not ends or s.end <= ends[-1]), len(threads))
        if depth[s] == len(threads):
            threads.append([])
        threads[depth[s]].append(s.end)
    return depth
