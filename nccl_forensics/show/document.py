"""The analysis as the contract's document (catalog/incident.schema.json): what --json writes and the page embeds."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from nccl_forensics import __version__
from nccl_forensics.analysis import Analysis
from nccl_forensics.catalog import kinds_marked
from nccl_forensics.model import (
    Cleared,
    ClockRow,
    Event,
    Evidence,
    Finding,
    Gpu,
    GroupState,
    Hypothesis,
    Incident,
    InputRow,
    Rank,
    Verdict,
)
from nccl_forensics.text.messages import say
from nccl_forensics.text.moments import moment, rfc3339
from nccl_forensics.text.phrases import runs
from nccl_forensics.verdict.oddities import Oddity
from nccl_forensics.verdict.rates import MOST_FAILURES, Rates
from nccl_forensics.who.identities import hosts_of

SCHEMA = "nccl-forensics/analysis/1"
MOST_EVENTS = 5_000
"""Rows of the timeline in the document; causes, symptoms and cited lines go first. The rest is counted in problems."""
MOST_ALARMS = 24
"""Lines that look like errors and that nothing here understands; the most telling come first."""
MOST_SILENT = 4_096
"""Rows of ranks of which nothing at all is known; the others of that kind are told by their numbers alone."""


def build(analysis: Analysis, *, command: str | None = None, timezone: str | None = None) -> dict[str, Any]:
    """The document: plain dicts and lists, ready for json.dumps; the same input gives the same document."""
    events, dropped = _chosen(analysis)
    cited = {(e.source, e.line) for i in analysis.incidents for f in i.verdict.evidence for e in _places(f)}
    listed, left_out = _listed(analysis.ranks)
    primary = analysis.primary if analysis.primary not in (None, 1) else None
    unzoned = _unzoned(analysis)
    return {
        "schema": SCHEMA,
        "tool": {
            "name": "nccl-forensics",
            "version": __version__,
            **_known(command=command or None, timezone=timezone or None),
        },
        "inputs": [_input(r) for r in analysis.rows],
        "hosts": [
            {"name": name, "gpus": [_gpu(g) for g in gpus]} for name, gpus in hosts_of(analysis.known, analysis.events)
        ],
        "ranks": [_rank(r) for r in listed],
        **_known(ranks_left_out=left_out),
        "clocks": [_clock(c) for c in analysis.clocks],
        "events": [event(e, (e.evidence.source, e.evidence.line) in cited, unzoned) for e in events],
        "incidents": [_incident(i, analysis.primary) for i in analysis.incidents],
        **_known(primary=primary, rates=_rates(analysis.rates) if analysis.rates else None),
        **_known(alarms=_alarms(analysis.oddities) or None),
        "problems": [
            *({"says": p.says, "source": p.source} for p in analysis.problems),
            *_left_off(dropped, left_out),
        ],
    }


def _known(**fields: object) -> dict[str, Any]:
    """The contract's optional keys are left out where there is nothing to tell, never null."""
    return {key: value for key, value in fields.items() if value is not None}


def _alarms(found: Sequence[Oddity]) -> list[dict[str, Any]]:
    return [
        {
            "text": odd.first.evidence.text,
            "source": odd.first.evidence.source,
            "line": odd.first.evidence.line,
            "time": rfc3339(odd.first.time_ns),
            "count": odd.count,
            "files": odd.files,
            "ranks": list(odd.ranks),
            "hosts": list(odd.hosts),
            "why": list(odd.why),
            "telling": odd.telling,
        }
        for odd in found[:MOST_ALARMS]
    ]


def _left_off(events: int, ranks: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """What the document does not list, as problems of it."""
    if events:
        yield {
            "says": say(
                "{dropped} events of role context or consequence are not listed; `--events FILE` writes all of them",
                dropped=f"{events:,}",
            ),
            "source": None,
        }
    if ranks:
        yield {
            "says": say(
                "{left_out} more ranks of which nothing is in the pile have no row of their own",
                left_out=f"{ranks['count']:,}",
            ),
            "source": None,
        }


def _input(r: InputRow) -> dict[str, Any]:
    return {
        "path": r.path,
        "format": r.format,
        "status": r.status,
        "reason": r.reason,
        "bytes": r.bytes,
        "events": r.events,
        "host": r.host,
        "rank": r.rank,
        "first_time": rfc3339(r.first_ns),
        "last_time": rfc3339(r.last_ns),
        **_known(sha256=r.sha256 or None),
    }


def _clock(c: ClockRow) -> dict[str, Any]:
    return {
        "clock": c.clock,
        "host": c.host,
        "offset_s": c.offset_s,
        "uncertainty_s": c.uncertainty_s,
        "basis": c.basis,
        "note": c.note,
        "compared": c.compared,
    }


def _rates(r: Rates) -> dict[str, Any]:
    return {
        "since": rfc3339(r.since_ns),
        "until": rfc3339(r.until_ns),
        "hosts": r.hosts,
        "gpus": r.gpus,
        "gpu_hours": round(r.gpu_hours, 1),
        "failures": len(r.failures),
        "expected": round(r.expected, 3),
        "low": round(r.low, 3),
        "high": round(r.high, 3),
        "says": r.says,
        "offenders": [
            {"host": o.host, "gpu_pci": o.gpu_pci, "failures": o.failures, "q": round(o.q, 4), "says": o.says}
            for o in r.offenders
        ],
        "listed": [
            {
                "time": rfc3339(f.event.time_ns),
                "host": f.host,
                "gpu_pci": f.gpu_pci,
                "cause": f.event.cause,
                "source": f.event.evidence.source,
                "line": f.event.evidence.line,
                "text": f.event.evidence.text,
            }
            for f in r.failures[-MOST_FAILURES:]
        ],
    }


def _listed(ranks: Sequence[Rank]) -> tuple[Sequence[Rank], dict[str, Any] | None]:
    """(ranks with a row of their own; how many silent ones have none, and which: first and last of each run)."""
    silent = [r.rank for r in ranks if r.state == "no-data" and r.host is None and r.gpu is None and r.pid is None]
    left = silent[MOST_SILENT:]
    if not left:
        return ranks, None
    gone = set(left)
    ranges = [list(run) for run in runs(left)]
    return [r for r in ranks if r.rank not in gone], {"count": len(left), "state": "no-data", "ranges": ranges}


def _chosen(analysis: Analysis) -> tuple[Sequence[Event], int]:
    events = analysis.events
    if len(events) <= MOST_EVENTS:
        return events, 0
    order = {"cause": 0, "symptom": 1, "consequence": 2, "context": 3}
    ranked = sorted(range(len(events)), key=lambda n: (events[n].kind != "xid", order[events[n].role], n))
    keep = sorted(ranked[:MOST_EVENTS])
    return [events[n] for n in keep], len(events) - MOST_EVENTS


def _unzoned(analysis: Analysis) -> frozenset[str]:
    """Clocks whose zone nothing tells: their times are as written."""
    return frozenset(c.clock for c in analysis.clocks if c.basis == "assumed")


DRAWN = kinds_marked("drawn")


def event(e: Event, key: bool = False, unzoned: Container[str] = ()) -> dict[str, Any]:
    """One row of the timeline; `key`: it is cited; `unzoned`: clocks whose zone nothing tells."""
    time = rfc3339(e.time_ns)
    alarming = e.role in ("cause", "symptom") and e.severity in ("critical", "error")
    return {
        "time": time,
        "time_uncertainty_s": _seconds(e.uncertainty_ns) if time else None,
        "time_basis": e.time_basis if time else "none",
        "host": e.host,
        "rank": e.rank,
        "gpu_pci": e.gpu_pci,
        "kind": e.kind,
        "role": e.role,
        "severity": e.severity,
        "source": e.evidence.source,
        "line": e.evidence.line,
        "text": e.evidence.text,
        "fields": {k: list(v) if isinstance(v, tuple) else v for k, v in e.details.items() if v is not None},
        **_known(
            cause=e.cause or None,
            repeats=e.repeats if e.repeats > 1 else None,
            boot=e.boot,
            key=True if key or alarming or e.kind in DRAWN else None,
            zone_not_written=True if time and e.clock in unzoned else None,
        ),
    }


def _seconds(ns: int | None) -> float | None:
    return round(ns / 1e9, 6) if ns is not None else None


def _gpu(g: Gpu) -> dict[str, Any]:
    return {
        "host": g.host,
        "index": g.index,
        "pci": g.pci,
        "uuid": g.uuid,
        "serial": g.serial,
        "model": g.model,
        **_known(details={k: list(v) if isinstance(v, tuple) else v for k, v in g.details.items()} or None),
    }


def _rank(r: Rank) -> dict[str, Any]:
    return {
        "rank": r.rank,
        "host": r.host,
        "local_rank": r.local_rank,
        "pid": r.pid,
        "gpu": _gpu(r.gpu) if r.gpu else None,
        "state": r.state,
        "waiting_on": list(r.waiting_on),
        "last_enqueued": r.last_enqueued,
        "last_started": r.last_started,
        "last_completed": r.last_completed,
        "exit": r.exit,
        **_known(note=r.note or None),
    }


def _group(g: GroupState) -> dict[str, Any]:
    return {
        "name": g.name,
        "description": g.description,
        "backend": g.backend,
        "op": g.op,
        "seq": g.seq,
        "members": list(g.members),
        **_least(g),
        "arrived": list(g.arrived),
        "started": list(g.started),
        "completed": list(g.completed),
        "missing": list(g.missing),
        "no_data": list(g.no_data),
        "timeout_ms": g.timeout_ms,
        "note": g.note,
    }


def _least(g: GroupState) -> dict[str, bool]:
    return {"members_at_least": True} if g.members_at_least else {}


def _collective(g: GroupState | None) -> dict[str, Any] | None:
    if g is None:
        return None
    return {
        "process_group": g.name,
        "description": g.description,
        "op": g.op,
        "seq": g.seq,
        "numel_in": g.numel_in,
        "numel_out": g.numel_out,
        "timeout_ms": g.timeout_ms,
        "members": list(g.members),
        **_least(g),
        "arrived": list(g.arrived),
        "missing": list(g.missing),
    }


def _places(f: Finding) -> list[Evidence]:
    return [e.evidence for e in f.events] + list(f.evidence)


def _evidence(f: Finding) -> list[dict[str, Any]]:
    timed = [(e.evidence, e.time_ns) for e in f.events] + [(e, None) for e in f.evidence]
    rows = []
    for n, (place, at) in enumerate(timed[:MOST_PLACES]):
        name = place.source.rsplit("/", 1)[-1]
        rows.append(
            {
                "says": f.says if n == 0 else say("Beside it, in {name}: {text}", name=name, text=place.text[:120]),
                "time": rfc3339(at),
                "source": place.source,
                "line": place.line,
                "text": place.text,
                "weight": round(f.weight, 2) if n == 0 else None,
                "inference": f.inference and n == 0,
                "before": list(place.before),
                "after": list(place.after),
            }
        )
    return rows


MOST_PLACES = 3
"""Lines shown for one finding; all of them are on the timeline."""


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "status": v.status,
        "cause": v.cause,
        "culprit_ranks": list(v.ranks),
        "culprit_hosts": list(v.hosts),
        "culprit_gpus": [_gpu(g) for g in v.gpus],
        "reporting_ranks": list(v.reporting_ranks),
        "confidence": v.confidence,
        "summary": v.summary,
        "evidence": [row for f in v.evidence for row in _evidence(f)],
        "alternatives": [_alternative(h, why) for h, why in v.alternatives],
        "missing_evidence": list(v.missing_evidence),
        "actions": [{"do": a.do, "because": a.because, "command": a.command} for a in v.actions],
        "cleared": [_cleared(c) for c in v.cleared],
        "cannot_exclude": list(v.cannot_exclude),
    }


def _cleared(c: Cleared) -> dict[str, Any]:
    place = c.evidence
    return {
        "who": c.who,
        "why": c.why,
        "rank": c.rank,
        **_known(ranks=list(c.ranks) if len(c.ranks) > 1 else None),
        "gpu_pci": c.gpu_pci,
        "source": place.source if place else None,
        "line": place.line if place else None,
        "text": place.text if place else None,
    }


def _alternative(h: Hypothesis, why: str) -> dict[str, Any]:
    return {
        "cause": h.cause,
        "culprit_ranks": list(h.ranks),
        "culprit_hosts": list(h.hosts),
        "culprit_gpus": [_gpu(g) for g in h.gpus],
        "confidence": round(h.confidence, 3),
        "why_not": why,
    }


def _without_year(i: Incident) -> str | None:
    """The onset, or when the job noticed, in words, where nothing tells the year: no field can hold such a time."""
    at_ns = i.onset_ns if i.onset_ns is not None else i.detected_ns
    return moment(at_ns) if at_ns is not None and rfc3339(at_ns) is None else None


def _incident(i: Incident, primary: int | None) -> dict[str, Any]:
    """Its own ranks, where those of the document are another one's, or those of one start of several."""
    ranks, left_out = _listed(i.ranks) if i.id != primary or i.id > 1 else ((), None)
    contributing: list[Mapping[str, object]] = list(i.contributing)
    return {
        "id": i.id,
        "onset": rfc3339(i.onset_ns),
        "onset_uncertainty_s": _seconds(i.onset_uncertainty_ns) if rfc3339(i.onset_ns) else None,
        "detected": rfc3339(i.detected_ns),
        **_known(zone_not_written=None if i.zone_known else True, onset_written=i.onset_written or _without_year(i)),
        "ended": rfc3339(i.ended_ns),
        "collective": _collective(i.collective),
        "verdict": _verdict(i.verdict),
        "contributing": contributing,
        "cost": dict(i.cost) if i.cost is not None else None,
        **_known(job=i.job, attempt=i.attempt),
        "groups": [_group(g) for g in i.groups[:64]],
        "waits": [
            {"waiter": w.waiter, "waited": list(w.waited)[:64], "why": w.why, "group": w.group, "seq": w.seq}
            for w in i.waits[:2000]
        ],
        "ranks": [_rank(r) for r in ranks],
        **_known(ranks_left_out=left_out),
    }
