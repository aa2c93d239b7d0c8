"""dcgm-exporter's metrics, as Prometheus scrapes them or `curl HOST:9400/metrics` shows them.

Written by NVIDIA's dcgm-exporter (names of fields: dcgm_fields.h). Time: none, or milliseconds since 1970 (UTC) behind
the value. A scrape is a state, not a history: DCGM_FI_DEV_XID_ERRORS keeps the number of the last Xid, whenever that
was, and 0 or no line where there was none. Counters are told when they are first not 0 and whenever they have doubled,
with the value `before`; heat when it has lasted for five minutes by the scrapes' own times. Example (one line):

DCGM_FI_DEV_XID_ERRORS{gpu="3",UUID="GPU-93ce2001-2652-a4c2-f7a6-41dfcd7d1af9",pci_bus_id="00000000:C1:00.0",
device="nvidia3",modelName="NVIDIA H100 80GB HBM3",Hostname="node-a"} 79
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.catalog import xids
from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.lines.stamps import SECOND, epoch
from nccl_forensics.model import Detail, Event, Stamp

from ._kernel import pci_address
from .thermal import HOT_C, HOT_S, SLOW_S

METRICS = {
    "XID_ERRORS": "xid",
    "GPU_TEMP": "temperature_c",
    "ECC_SBE_VOL_TOTAL": "ecc_volatile_corrected",
    "ECC_DBE_VOL_TOTAL": "ecc_volatile_uncorrected",
    "ECC_SBE_AGG_TOTAL": "ecc_aggregate_corrected",
    "ECC_DBE_AGG_TOTAL": "ecc_aggregate_uncorrected",
    "CORRECTABLE_REMAPPED_ROWS": "remapped_corrected",
    "UNCORRECTABLE_REMAPPED_ROWS": "remapped_uncorrected",
    "ROW_REMAP_FAILURE": "remap_failed",
    "THERMAL_VIOLATION": "thermal_violation",
    "PCIE_REPLAY_COUNTER": "pcie_replays",
}
"""DCGM_FI_DEV_… → our name."""
UNIT = re.compile(r"^# HELP DCGM_FI_DEV_THERMAL_VIOLATION .{1,200}\(in (?P<unit>us|ns)\)")
"""The time that a card was slowed down, in microseconds or, in newer versions, nanoseconds; the HELP line tells."""
GAUGES = frozenset({"xid", "remap_failed"})
"""Metrics of which each new value counts."""
RISE = 2
"""A counter is told again when it has doubled: a trend shows, a day of scrapes does not fill the report. Judgement."""
MOST_SERIES = 4096
SAMPLE = re.compile(
    r"^DCGM_FI_DEV_(?P<name>[A-Z_]{4,40})\{(?P<labels>[^}]{0,1800})\} (?P<value>[0-9.eE+]{1,24})"
    r"(?: (?P<at>\d{13}))?\s*$"
)
LABEL = re.compile(r'(?P<key>[A-Za-z_]{1,40})="(?P<value>[^"]{0,200})"')
POD = re.compile(r"dcgm-exporter|exporter-[a-z0-9]{4,10}$")
"""Host names that are the exporter's own pod."""


def _host(labels: dict[str, str]) -> str | None:
    """The machine: the label that the exporter or Prometheus gives it, unless it is the exporter's pod."""
    for key in ("Hostname", "node", "kubernetes_node", "exported_node"):
        name = labels.get(key, "")
        if name and re.fullmatch(r"[\w.-]{1,255}", name) and not POD.search(name):
            return name
    return None


@parser(
    title="dcgm-exporter",
    literals=[*(f"DCGM_FI_DEV_{name}{{" for name in METRICS), "# HELP DCGM_FI_DEV_THERMAL_VIOLATION"],
)
def dcgm_exporter(line: Line) -> Iterator[Event]:
    if stated := UNIT.match(line.text):
        line.window.state["dcgm_exporter.per_s"] = 10**6 if stated["unit"] == "us" else 10**9
        return
    found = SAMPLE.match(line.text)
    metric = METRICS.get(found["name"]) if found else None
    value = _whole(found["value"]) if found else None
    if found is None or metric is None or value is None:
        return
    stamp = (epoch(found["at"]) if found["at"] else None) or line.stamp
    if metric == "temperature_c":
        yield from _temperature(line, found["labels"], value, stamp)
    elif metric == "thermal_violation":
        yield from _slowed(line, found["labels"], value, stamp)
    else:
        yield from _counted(line, found, metric, value, stamp)


def _whole(written: str) -> int | None:
    try:
        return int(float(written))
    except (ValueError, OverflowError):
        return None


def _counted(line: Line, found: re.Match[str], metric: str, value: int, stamp: Stamp | None) -> Iterator[Event]:
    """A gauge's new value, or a counter's that has doubled; not 0, and not the one before."""
    series = f"{found['name']}{found['labels']}"
    seen: dict[str, int] = line.window.state.setdefault("dcgm_exporter", {})
    before = seen.get(series)
    if before is not None and metric not in GAUGES and before * RISE > value:
        return
    if before is not None or len(seen) < MOST_SERIES:
        seen[series] = value
    if value in (0, before):
        return
    details: dict[str, Detail] = {"metric": metric, "value": value}
    if before is not None:
        details["before"] = before
    if metric == "xid":
        yield _xid(line, found["labels"], details, value, stamp)
    else:
        failed = metric == "remap_failed"
        cause = "gpu_memory" if failed else None
        yield _event(line, found["labels"], "gpu-metric", details, stamp, symptom=failed, cause=cause)


def _xid(line: Line, labels: str, details: dict[str, Detail], number: int, stamp: Stamp | None) -> Event:
    """The last Xid: evidence as far as the catalogue says so of its number."""
    entry = xids().get(number)
    if entry is None:
        return _event(line, labels, "exporter-xid", details, stamp)
    told = {**details, "short": entry.short}
    symptom = entry.role in ("cause", "symptom")
    return _event(line, labels, "exporter-xid", told, stamp, symptom=symptom, cause=entry.cause if symptom else None)


def _temperature(line: Line, labels: str, celsius: int, stamp: Stamp | None) -> Iterator[Event]:
    """A spell of heat, when it has lasted long enough and whenever it has doubled; its stamp is its beginning."""
    spells: dict[str, tuple[Stamp, int, int]] = line.window.state.setdefault("dcgm_exporter.hot", {})
    spell = spells.get(labels)
    if not HOT_C < celsius < 200 or stamp is None or stamp.wall_ns is None:
        spells.pop(labels, None)
        if HOT_C < celsius < 200:
            yield _event(line, labels, "gpu-metric", {"metric": "temperature_c", "value": celsius}, stamp)
        return
    if spell is None:
        if len(spells) < MOST_SERIES:
            spells[labels] = (stamp, celsius, HOT_S)
            yield _event(line, labels, "gpu-metric", {"metric": "temperature_c", "value": celsius}, stamp)
        return
    began, peak, tell_s = spell
    lasted_s = (stamp.wall_ns - (began.wall_ns or 0)) // SECOND
    peak = max(peak, celsius)
    spells[labels] = (began, peak, tell_s)
    if lasted_s > tell_s:
        spells[labels] = (began, peak, lasted_s * RISE)
        details: dict[str, Detail] = {"lasted_s": lasted_s, "peak_c": peak, "limit_c": HOT_C}
        yield _event(line, labels, "gpu-hot", details, began, symptom=True, cause="gpu_thermal")


def _slowed(line: Line, labels: str, counted: int, stamp: Stamp | None) -> Iterator[Event]:
    """How long heat has slowed the card down since the file's first scrape, when that is a minute or more."""
    per_s = line.window.state.get("dcgm_exporter.per_s")
    seen: dict[str, tuple[int, int]] = line.window.state.setdefault("dcgm_exporter.slow", {})
    first, tell_s = seen.get(labels, (counted, SLOW_S))
    first = min(first, counted)  # the counter starts anew with the driver
    lasted_s = (counted - first) // per_s if per_s else 0
    if len(seen) < MOST_SERIES or labels in seen:
        seen[labels] = (first, lasted_s * RISE if lasted_s >= tell_s else tell_s)
    if lasted_s >= tell_s:
        details: dict[str, Detail] = {"lasted_s": lasted_s, "by": "thermal violation"}
        yield _event(line, labels, "gpu-throttled", details, stamp, symptom=True, cause="gpu_thermal")


def _event(
    line: Line,
    written: str,
    kind: str,
    details: dict[str, Detail],
    stamp: Stamp | None,
    *,
    symptom: bool = False,
    cause: str | None = None,
) -> Event:
    """An event of the card that the labels name."""
    labels = {m["key"]: m["value"] for m in LABEL.finditer(written)}
    known = dict(details)
    if re.fullmatch(r"\d{1,3}", labels.get("gpu", ""), re.ASCII):
        known["index"] = int(labels["gpu"])
    if labels.get("UUID", "").startswith("GPU-"):
        known["uuid"] = labels["UUID"]
    return line.event(
        kind,
        role="symptom" if symptom else "context",
        severity="warning" if symptom else "info",
        cause=cause,
        details=known,
        host=_host(labels) or line.host,
        gpu_pci=pci_address(labels.get("pci_bus_id")),
        stamp=stamp,
        pid=None,
    )
