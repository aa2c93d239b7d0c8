"""dcgm-exporter's metrics, as Prometheus scrapes them or `curl HOST:9400/metrics` shows them.

Written by NVIDIA's dcgm-exporter (names of fields: dcgm_fields.h). Time: none, or milliseconds since 1970 (UTC) behind
the value. A scrape is a state, not a history: DCGM_FI_DEV_XID_ERRORS keeps the number of the last Xid, whenever that
was, and 0 or no line where there was none. Example (one line):

DCGM_FI_DEV_XID_ERRORS{gpu="3",UUID="GPU-93ce2001-2652-a4c2-f7a6-41dfcd7d1af9",pci_bus_id="00000000:C1:00.0",
device="nvidia3",modelName="NVIDIA H100 80GB HBM3",Hostname="node-a"} 79
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.catalog import xids
from nccl_forensics.model import Detail, Event
from nccl_forensics.plugins import parser
from nccl_forensics.scan import Line
from nccl_forensics.stamps import epoch

from ._kernel import pci_address

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
    "POWER_VIOLATION": "power_violation",
    "PCIE_REPLAY_COUNTER": "pcie_replays",
}
"""DCGM_FI_DEV_… → our name. The violations count time: microseconds, nanoseconds in newer versions."""
RISE = 2
"""A counter is told again when it has doubled: a trend shows, a day of scrapes does not fill the report. Judgement."""
MOST_SERIES = 4096
SAMPLE = re.compile(
    r"^DCGM_FI_DEV_(?P<name>[A-Z_]{4,40})\{(?P<labels>[^}]{0,1800})\} (?P<value>[0-9.eE+]{1,24})"
    r"(?: (?P<at>\d{13}))?\s*$"
)
LABEL = re.compile(r'(?P<key>[A-Za-z_]{1,40})="(?P<value>[^"]{0,200})"')
HOT_C = 85
POD = re.compile(r"dcgm-exporter|exporter-[a-z0-9]{4,10}$")
"""Host names that are the exporter's own pod."""


def _host(labels: dict[str, str]) -> str | None:
    """The machine: the label that the exporter or Prometheus gives it, unless it is the exporter's pod."""
    for key in ("Hostname", "node", "kubernetes_node", "exported_node"):
        name = labels.get(key, "")
        if name and re.fullmatch(r"[\w.-]{1,255}", name) and not POD.search(name):
            return name
    return None


@parser(title="dcgm-exporter", literals=[f"DCGM_FI_DEV_{name}{{" for name in METRICS])
def dcgm_exporter(line: Line) -> Iterator[Event]:
    found = SAMPLE.match(line.text)
    metric = METRICS.get(found["name"]) if found else None
    if found is None or metric is None:
        return
    try:
        value = int(float(found["value"]))
    except (ValueError, OverflowError):
        return
    seen: dict[str, int] = line.window.state.setdefault("dcgm_exporter", {})
    series = f"{found['name']}{found['labels']}"
    before = seen.get(series)
    if (before is not None and before * RISE > value) or (metric == "temperature_c" and not HOT_C < value < 200):
        return
    if before is not None or len(seen) < MOST_SERIES:
        seen[series] = value
    if value in (0, before) or (metric.endswith("_violation") and before is None):
        return
    labels = {m["key"]: m["value"] for m in LABEL.finditer(found["labels"])}
    index = labels.get("gpu", "")
    details: dict[str, Detail] = {"metric": metric, "value": value, "before": before}
    if re.fullmatch(r"\d{1,3}", index, re.ASCII):
        details["index"] = int(index)
    if labels.get("UUID", "").startswith("GPU-"):
        details["uuid"] = labels["UUID"]
    pci = pci_address(labels.get("pci_bus_id"))
    role, cause = "context", None
    if metric == "xid":
        entry = xids().get(value)
        details["short"] = entry.short if entry else None
        if entry is not None and entry.role in ("cause", "symptom"):
            role, cause = "symptom", entry.cause
    elif metric == "remap_failed":
        role, cause = "symptom", "gpu_memory"
    known: dict[str, Detail] = {k: v for k, v in details.items() if v is not None}
    stamp = (epoch(found["at"]) if found["at"] else None) or line.stamp
    yield line.event(
        "exporter-xid" if metric == "xid" else "gpu-metric",
        role="symptom" if role == "symptom" else "context",
        severity="warning" if role == "symptom" else "info",
        cause=cause,
        details=known,
        host=_host(labels) or line.host,
        gpu_pci=pci,
        stamp=stamp,
        pid=None,
    )
