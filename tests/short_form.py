"""Events in a short form, for cases that are data: tests/cases/{rules,watchdogs,clocks,identify}.

    {"kind": "watchdog-timeout", "ranks": [0, 1, 2], "at": 1800, "seq": 42, "op": "ALLREDUCE", "waited_ms": 600000}

`at`     seconds after BASE, written with year and zone (UTC); or as a log writes it: '2026-11-25 10:00:00.25+01:00',
         without zone, or without year ('11-25 10:00:00'); null: no time at all.
`up`     seconds of uptime (printk). `res_s`: resolution of the written time. `drifts`: as in `dmesg -T`.
`ranks`  the same line from each of these ranks. `file`, `line`: default job.log, the next line of that file.
`named`  the detail `ranks`: those that the line names.
`gpu`    PCI address. `role`, `cause`, `severity`: as the parsers and catalogues give them, unless stated.
All other keys are the event's details.

A case may also have `rows` (file → InputRow fields), `per_host` (rank r runs on node-{r // per_host}), `world_size`,
`suspects` and `cannot_exclude` (what dumps said), `zone`, `year` (options of the command), `hosts` (rank → host).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nccl_forensics import analysis, catalog, pipeline
from nccl_forensics.intake import sniff
from nccl_forensics.lines import read
from nccl_forensics.model import Event, Evidence, GroupState, InputRow, Reconstruction, Stamp, Suspect
from nccl_forensics.pipeline import conclude
from nccl_forensics.when.zones import parse_zone
from nccl_forensics.who.identities import Place

CASES = Path(__file__).parent / "cases"
SECOND = 1_000_000_000
BASE = datetime(2026, 11, 25, 10, 0, 0, tzinfo=timezone.utc)
BASE_NS = int(BASE.timestamp()) * SECOND
WRITTEN = re.compile(
    r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?",
)
CAUSES = {
    "cuda-oom": "cuda_oom",
    "storage-error": "storage_write_failed",
    "dataloader-killed": "dataloader_failure",
    "shm-bus-error": "shm_full",
    "nccl-shm": "shm_full",
    "nccl-ib-event": "nic_link_down",
    "python-exception": "python_exception",
    "slurm-oom": "host_oom_kill",
    "k8s-oom": "host_oom_kill",
    "k8s-evicted": "preempted",
    "preempted": "preempted",
    "slurm-time-limit": "preempted",
    "agent-death": "preempted",
    "pg-watchdog-cuda": "gpu_app_fault",
    "cuda-error": "gpu_app_fault",
    "nccl-warn-cuda": "cuda_oom",
    "store-bind": "nccl_setup",
}
"""Kinds of job logs whose lines speak for a cause, as parsers/ give them."""
SYMPTOMS = frozenset(
    {"watchdog-timeout", "pg-async", "pg-blocking", "pg-uniqueid", "pg-heartbeat", "monitored-barrier", "gloo-wait"}
    | {"store-wait", "store-barrier", "store-clients", "store-connect", "nccl-ib-error", "nccl-bootstrap", "exit"}
    | {"pgw-mismatch", "pg-desync", "pg-dump-local", "srun-exit", "rdzv-heartbeat", "nan"}
)
CONSEQUENCES = frozenset({"pg-abort", "gloo-closed", "nccl-closed", "store-broken", "sigterm-sent", "dataloader-exit"})
RESERVED = frozenset(
    {"kind", "at", "up", "res_s", "drifts", "ranks", "rank", "local_rank", "task", "host", "pid", "gpu", "file", "line"}
    | {"role", "cause", "severity", "text", "attempt", "repeats"}
)


def load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert case["why"], f"{path}: a case says why it is there"
    return case


def cases(folder: str) -> list[Path]:
    found = sorted((CASES / folder).rglob("*.json"))
    assert found, f"no cases in {folder}"
    return found


def label(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def with_faults(found: list[Path]) -> list[Any]:
    """Parameters for pytest: a case with `fault` shows an error that is known and not mended yet."""
    made = []
    for path in found:
        fault = load(path).get("fault")
        marks = [pytest.mark.xfail(reason=fault, strict=True)] if fault else []
        made.append(pytest.param(path, id=label(path), marks=marks))
    return made


def stamp(short: Mapping[str, Any]) -> Stamp | None:
    boot_ns = round(short["up"] * SECOND) if short.get("up") is not None else None
    at = short.get("at")
    if at is None:
        return Stamp(boot_ns=boot_ns) if boot_ns is not None else None
    if not isinstance(at, str):
        return Stamp(
            wall_ns=BASE_NS + round(at * SECOND),
            zone_s=0,
            boot_ns=boot_ns,
            resolution_ns=round(short.get("res_s", 1e-6) * SECOND),
            drifts=short.get("drifts", False),
        )
    found = WRITTEN.fullmatch(at)
    assert found, at
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    moment = datetime(int(year or 1972), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
    zone_s = None
    if zone is not None:
        away = parse_zone(zone).utcoffset(None)
        assert away is not None
        zone_s = int(away.total_seconds())
    rest = round(float(fraction or 0) * SECOND)
    default = 10.0 ** -(len(fraction) - 1) if fraction else 1.0
    return Stamp(
        wall_ns=int(moment.timestamp()) * SECOND + rest,
        has_year=year is not None,
        zone_s=zone_s,
        boot_ns=boot_ns,
        resolution_ns=round(short.get("res_s", default) * SECOND),
        drifts=short.get("drifts", False),
    )


def _catalogued(short: Mapping[str, Any]) -> tuple[str, str | None]:
    """(role, cause) of a line, as its parser would give them."""
    kind = short["kind"]
    if kind == "xid":
        entry = catalog.xids()[short["xid"]]
        return entry.role, entry.cause
    if kind == "sxid":
        switch = catalog.sxids()[short["sxid"]]
        return switch.role, "nvlink" if switch.role == "cause" else None
    for one in catalog.kernel_entries():
        if one.id == kind:
            return one.role, one.cause
    if kind == "python-exception" and short.get("communication"):
        return "symptom", None
    if kind in CAUSES:
        return "cause", CAUSES[kind]
    role = "symptom" if kind in SYMPTOMS else "consequence" if kind in CONSEQUENCES else "context"
    return role, None


def _one(short: Mapping[str, Any], file: str, line: int, rank: int | None, case: Mapping[str, Any]) -> Event:
    role, cause = _catalogued(short)
    host, local = short.get("host"), short.get("local_rank")
    if rank is not None and case.get("per_host") and "host" not in short:
        host = f"node-{rank // case['per_host']}"
    details = {k: tuple(v) if isinstance(v, list) else v for k, v in short.items() if k not in RESERVED}
    if "named" in details:
        details["ranks"] = details.pop("named")
    kind = short["kind"]
    if kind == "watchdog-timeout":
        details = {"op": "ALLREDUCE", "timeout_ms": details.get("waited_ms"), "group_rank": rank, **details}
    return Event(
        kind=kind,
        role=short.get("role", role),
        cause=short.get("cause", cause),
        severity=short.get("severity", "info" if role == "context" else "error"),
        evidence=Evidence(source=file, line=line, text=short.get("text", f"{kind} {json.dumps(details)}")),
        stamp=stamp(short),
        rank=rank,
        local_rank=local,
        task=short.get("task"),
        host=host,
        pid=short.get("pid"),
        gpu_pci=short.get("gpu"),
        details=details,
        attempt=short.get("attempt"),
        repeats=short.get("repeats", 1),
    )


def _events(case: Mapping[str, Any]) -> Iterator[Event]:
    line: Counter[str] = Counter()
    for short in case["events"]:
        for rank in short.get("ranks", [short.get("rank")]):
            file = short.get("file", "job.log")
            line[file] = short.get("line", line[file] + 1)
            yield _one(short, file, line[file], rank, case)


def events(case: Mapping[str, Any]) -> list[Event]:
    """The case's events, file by file, each file in the order of its lines."""
    found = list(_events(case))
    if case.get("world_size"):
        place = Evidence(source="job.log", line=1, text=f"world_size={case['world_size']}")
        found.insert(
            0, Event(kind="setting", role="context", evidence=place, details={"world_size": case["world_size"]})
        )
    order = {file: n for n, file in enumerate(dict.fromkeys(e.evidence.source for e in found))}
    return sorted(found, key=lambda e: order[e.evidence.source])


def rows(case: Mapping[str, Any], found: list[Event]) -> list[InputRow]:
    """One row for each file that an event or the case's `rows` names."""
    files = dict.fromkeys([e.evidence.source for e in found] + list(case.get("rows", {})))
    formats = {f: sniff.by_name(f) or ("kernel" if f.startswith("kern") else "job-log") for f in files}
    return [InputRow(**{"path": f, "format": formats[f], **case.get("rows", {}).get(f, {})}) for f in files]


def group(short: Mapping[str, Any]) -> GroupState:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in {"name": "0", **short}.items()}
    return GroupState(**fields)


def recorded(case: Mapping[str, Any]) -> Reconstruction:
    """What the case says that dumps had told."""
    suspects = []
    for one in case.get("suspects", ()):
        place = Evidence(source=one.get("file", "fr/dump_rank_0"), line=None, text="entry")
        suspects.append(
            Suspect(
                ranks=tuple(one["ranks"]),
                cause=one["cause"],
                weight=one["weight"],
                says=one.get("says", f"ranks {one['ranks']} are not there"),
                group=group(one["group"]) if "group" in one else None,
                evidence=(place,),
                details={k: tuple(v) if isinstance(v, list) else v for k, v in one.get("details", {}).items()},
            )
        )
    return Reconstruction(
        groups=tuple(s.group for s in suspects if s.group is not None),
        suspects=tuple(suspects),
        cannot_exclude=tuple(case.get("cannot_exclude", ())),
        healthy=case.get("healthy", False),
    )


def analyzed(case: Mapping[str, Any]) -> analysis.Analysis:
    """The case through identify, align, reconstruct and diagnose, as the command does it."""
    found = events(case)
    parsed = [read.Parsed(row, tuple(e for e in found if e.evidence.source == row.path)) for row in rows(case, found)]
    places = {int(r): Place(h) for r, h in case["hosts"].items()} if "hosts" in case else None
    with mock.patch.object(pipeline, "from_dumps", return_value=recorded(case)):
        return conclude(
            parsed,
            zone=parse_zone(case["zone"]) if case.get("zone") else None,
            year=case.get("year"),
            places=places,
        )
