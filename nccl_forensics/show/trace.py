"""The incidents as a trace that opens in ui.perfetto.dev, made from the JSON document alone.

Times are µs since `otherData.origin` on the reference clock (UTC); error bars are args.

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
from nccl_forensics.show.page.words import Doc, cause_title, clean, kind_words, numbers_of, ranks_words
from nccl_forensics.show.slices import OVERVIEW, Drawing, Lane, Slice
from nccl_forensics.show.trace_rows import rows_of
from nccl_forensics.text.moments import micros, rfc3339

MOST_ARROWS = 5_000
"""From waiters to those they wait for; the others are counted in `otherData`. Our judgement of what a viewer bears."""
SECOND_US = 1_000_000
ENDINGS = ("pg-abort", "exit")
"""Kinds of events that end a process after its watchdog's timeout."""


def trace(doc: Doc) -> str:
    """`doc` (incident.schema.json) as trace-event JSON; the same document gives the same text.

    Events that are farther from every incident than that lasted are counted, not drawn: an incident of ten minutes
    can't be found in a picture of ten days.
    """
    lookup = Lookup(doc)
    drawing = _drawn(doc, lookup)
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
    rows = rows_of(drawing, shown, lookup, origin)
    head = json.dumps({"displayTimeUnit": "ms", "otherData": other}, ensure_ascii=False)
    return head[:-1] + ', "traceEvents": [\n' + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]}\n"


def _drawn(doc: Doc, lookup: Lookup) -> Drawing:
    drawing = Drawing()
    for incident in doc["incidents"]:
        if scene := _scene_of(doc, incident, lookup, drawing):
            scene.draw()
    return drawing


@dataclass(frozen=True, slots=True)
class _Timeout:
    """A rank's watchdog gave up, `waited` µs after its wait began."""

    at: int
    waited: int
    event: Doc


def _timeouts(doc: Doc, incident: Doc, lookup: Lookup) -> list[_Timeout]:
    """Those of the incident, in time order; what is printed twice, once."""
    bounds = bounds_us(doc, incident)
    found = []
    for event in lookup.events:
        at, waited = micros(event.get("time")), waited_us(event)
        if at is None or waited is None or (event.get("fields") or {}).get("repeated"):
            continue
        if bounds.hold(at):
            found.append(_Timeout(at, waited, event))
    return sorted(found, key=lambda t: t.at)


def _scene_of(doc: Doc, incident: Doc, lookup: Lookup, drawing: Drawing) -> _Scene | None:
    """None where nothing tells when it was."""
    timeouts = _timeouts(doc, incident, lookup)
    onset, ended = micros(incident["onset"]), micros(incident.get("ended"))
    detected = micros(incident["detected"]) or ended
    begun = onset if onset is not None else min((t.at - t.waited for t in timeouts), default=detected)
    if begun is None or detected is None:
        return None
    return _Scene(
        incident=incident,
        lookup=lookup,
        drawing=drawing,
        timeouts=timeouts,
        begun=begun,
        detected=max(begun, detected),
        until=max(begun, detected, ended or detected),
        onset_known=onset is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """One incident while it is drawn; µs since 1970."""

    incident: Doc
    lookup: Lookup
    drawing: Drawing
    timeouts: Sequence[_Timeout]
    begun: int
    """Its onset; where that is not known, the first wait's."""
    detected: int
    until: int
    onset_known: bool

    def draw(self) -> None:
        """The cause, the stalls it led to, their timeouts and aborts; and who waits for whom."""
        verdict = self.incident["verdict"]
        title = cause_title(verdict["cause"])
        whole, causes = self._causes(title)
        told = self.onset_known and verdict["cause"] != "undetermined"
        cause = (causes or [whole])[0] if told else None
        waiting = {rank: self._course(course, cause, title) for rank, course in self._stalls().items()}
        self._waits(waiting, dict(zip(numbers_of(verdict["culprit_ranks"]), causes, strict=False)))

    def _causes(self, title: str) -> tuple[Slice, list[Slice]]:
        """(the whole incident; the cause in the lane of each that is named)"""
        verdict = self.incident["verdict"]
        about = {
            "status": verdict["status"],
            "confidence": verdict["confidence"],
            "summary": clean(verdict["summary"]),
            "onset_uncertainty_s": self.incident.get("onset_uncertainty_s"),
            "basis": None if self.onset_known else "The onset is not known: the first wait begins here.",
        }
        number, add = self.incident["id"], self.drawing.add
        whole = add((OVERVIEW, f"incident {number}"), self.begun, self.until, f"{number}: {title}", "cause", **about)
        lanes = _culprits(verdict, self.lookup)
        return whole, [add(lane, self.begun, self.detected, title, "cause", **about) for lane in lanes]

    def _course(self, course: Sequence[Slice], cause: Slice | None, title: str) -> Slice:
        """From the cause through a rank's stall to its abort; gives the stall, from the incident's beginning on."""
        stall, *after = course
        if stall.start < self.begun < stall.end:
            name = f"since: {title}" if cause else "waits"
            stall = self.drawing.add(stall.lane, self.begun, stall.end, name, "stall")
        before = (cause,) if cause and cause.start <= stall.start else ()
        if before or after:
            self.drawing.arrows.append(("cause to abort", (*before, stall, *after)))
        return stall

    def _stalls(self) -> dict[int, list[Slice]]:
        """Rank → its first stall, then its timeout and abort as far as known."""
        endings = self._endings()
        found: dict[int, list[Slice]] = {}
        for timeout in self.timeouts:
            rank, stall = timeout.event.get("rank"), self._stall(timeout)
            if rank is not None and rank not in found:
                later = [(at, e) for at, e in endings.get(rank, ()) if at >= timeout.at]
                found[rank] = [stall, *self._aftermath(timeout, later)]
        for wait in self.incident.get("waits") or ():
            if wait["waiter"] not in found:
                found[wait["waiter"]] = [self._silent_stall(wait)]
        return found

    def _endings(self) -> dict[int, list[tuple[int, Doc]]]:
        """Rank → (µs, event) of what ended it, in time order."""
        found: dict[int, list[tuple[int, Doc]]] = {}
        for event in self.lookup.events:
            at = micros(event.get("time"))
            if event.get("kind") in ENDINGS and event.get("rank") is not None and at is not None:
                found.setdefault(event["rank"], []).append((at, event))
        return {rank: sorted(ended, key=lambda x: x[0]) for rank, ended in found.items()}

    def _about(self, timeout: _Timeout) -> dict[str, Any]:
        event = timeout.event
        return {"uncertainty_s": event.get("time_uncertainty_s"), "where": self.lookup.where_of(event)}

    def _stall(self, timeout: _Timeout) -> Slice:
        fields, lane = timeout.event.get("fields") or {}, self.lookup.place(timeout.event)
        name = _operation(fields.get("op"), fields.get("seq"))
        began, waited_s = timeout.at - timeout.waited, timeout.waited / 1e6
        return self.drawing.add(lane, began, timeout.at, name, "stall", waited_s=waited_s, **self._about(timeout))

    def _aftermath(self, timeout: _Timeout, later: Sequence[tuple[int, Doc]]) -> list[Slice]:
        """The time from the timeout to the abort, and from there until the process is gone."""
        if not later:
            return []
        lane, (abort, ending) = self.lookup.place(timeout.event), later[0]
        gone = next((at for at, e in later if e["kind"] == "exit"), abort)
        where = self.lookup.where_of(ending)
        return [
            self.drawing.add(lane, timeout.at, abort, "timeout", "timeout", **self._about(timeout)),
            self.drawing.add(lane, abort, gone, kind_words(ending), "abort", where=where),
        ]

    def _silent_stall(self, wait: Doc) -> Slice:
        """That of a rank which is known to wait and has written no timeout: it takes the incident's whole time."""
        op = (self.incident.get("collective") or {}).get("op")
        return self.drawing.add(
            self.lookup.place({"rank": wait["waiter"]}),
            self.begun,
            self.detected,
            _operation(op, wait.get("seq")),
            "stall",
            basis="From the incident's onset to its detection: the files do not tell this rank's own times.",
            why=clean(wait.get("why") or ""),
        )

    def _waits(self, waiting: Mapping[int, Slice], causes: Mapping[int, Slice]) -> None:
        """From each waiter's stall to a slice 'ranks … wait for it' of the one it waits for.

        That slice begins when the last of them waits, and lies in the other's own stall where there is one.
        """
        waiters: dict[int, list[int]] = {}
        for wait in self.incident.get("waits") or ():
            for waited in wait["waited"]:
                waiters.setdefault(waited, []).append(wait["waiter"])
        for waited, ranks in sorted(waiters.items()):
            holder = causes.get(waited) or waiting.get(waited)
            end = holder.end if holder else self.detected
            room = MOST_ARROWS - len(self.drawing.waits)
            shown = [r for r in ranks if r in waiting and waiting[r].start <= end][:room]
            self.drawing.undrawn += len(ranks) - len(shown)
            if shown:
                held = self._held(waited, holder, end, [(r, waiting[r]) for r in shown])
                self.drawing.waits += [(waiting[r], held) for r in shown]

    def _held(self, waited: int, holder: Slice | None, end: int, waiters: Sequence[tuple[int, Slice]]) -> Slice:
        lane = holder.lane if holder else self.lookup.place({"rank": waited})
        start = max([stall.start for _, stall in waiters] + ([holder.start] if holder else []))
        verb = "waits" if len(waiters) == 1 else "wait"
        return self.drawing.add(lane, start, end, f"{ranks_words([r for r, _ in waiters])} {verb} for it", "waited for")


def _culprits(verdict: Doc, lookup: Lookup) -> list[Lane]:
    """One lane for each rank that is named; without ranks for each GPU, without GPUs for each host."""
    if ranks := numbers_of(verdict["culprit_ranks"]):
        return [lookup.place({"rank": r}) for r in ranks]
    if gpus := [g for g in verdict["culprit_gpus"] if g.get("pci")]:
        return [lookup.place({"host": g.get("host"), "gpu_pci": g["pci"]}) for g in gpus]
    return [lookup.place({"host": h}) for h in verdict["culprit_hosts"]]


def _operation(op: object, seq: object) -> str:
    name = clean(str(op or "operation").lower(), 60)
    return name if seq is None else f"{name} no. {seq}"
