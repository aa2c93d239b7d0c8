"""What the parsers of nvidia-smi's output share: its columns, its values, and its ways to say that there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_forensics.model import Detail

NOT_THERE = frozenset({"", "n/a", "[n/a]", "[not supported]", "not supported", "none", "0x0", "unknown", "[unknown]"})
LOST = re.compile(r"GPU is lost|Unknown Error|requires reset|ERR!", re.IGNORECASE)
UUID = r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

CSV_NAMES: Mapping[str, str] = {
    "index": "index",
    "name": "model",
    "gpu_name": "model",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "pci.bus_id": "pci",
    "gpu_bus_id": "pci",
    "serial": "serial",
    "gpu_serial": "serial",
    "temperature.gpu": "temperature_c",
    "temperature.memory": "memory_temperature_c",
    "power.draw": "power_draw_w",
    "power.limit": "power_limit_w",
    "pcie.link.gen.current": "pcie_gen",
    "pcie.link.gen.max": "pcie_gen_max",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
    "ecc.errors.corrected.volatile.total": "ecc_volatile_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_volatile_uncorrected",
    "ecc.errors.corrected.aggregate.total": "ecc_aggregate_corrected",
    "ecc.errors.uncorrected.aggregate.total": "ecc_aggregate_uncorrected",
    "retired_pages.pending": "retired_pending",
    "retired_pages.double_bit.count": "retired_double_bit",
    "remapped_rows.correctable": "remapped_corrected",
    "remapped_rows.uncorrectable": "remapped_uncorrected",
    "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failed",
    "clocks_throttle_reasons.hw_slowdown": "hw_slowdown",
    "clocks_event_reasons.hw_slowdown": "hw_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown": "hw_power_brake",
    "clocks_event_reasons.hw_power_brake_slowdown": "hw_power_brake",
    "clocks_throttle_reasons.hw_thermal_slowdown": "hw_thermal",
    "clocks_event_reasons.hw_thermal_slowdown": "hw_thermal",
}
"""Column of `--query-gpu` (its manual: nvidia-smi --help-query-gpu) → our name."""
WORDS = frozenset({"model", "uuid", "pci", "serial"})


def column_names(header: str) -> list[str]:
    """The columns of `--format=csv`, without their units: 'power.draw [W]' → 'power.draw'."""
    return [re.sub(r"\s*\[[^\]]*\]$", "", x.strip()).lower() for x in header.split(",")]


def field_value(written: str) -> Detail:
    """A field of nvidia-smi: number with its unit taken off, yes/no, or text; None where it says that it has none."""
    text = written.strip().strip("[]") if written.strip().lower() in NOT_THERE else written.strip()
    lowered = text.lower()
    if lowered in NOT_THERE or lowered.startswith("requested functionality") or LOST.search(text):
        return None
    if lowered in ("yes", "active"):
        return True
    if lowered in ("no", "not active"):
        return False
    if found := re.fullmatch(r"(-?\d{1,15})(\.\d{1,6})?\s?(?:C|W|x|MHz|MiB|%)?", text):
        return float(found[1] + found[2]) if found[2] else int(found[1])
    return text[:100]


def identity(name: str, written: str) -> str | None:
    """A serial, UUID or model as text; None for the ways to say that there is none ('0' on consumer cards)."""
    text = written.strip().strip('"')
    if text.lower() in NOT_THERE or LOST.search(text) or "?" in text or text.strip("0") == "":
        return None
    if name == "uuid" and not re.fullmatch(UUID, text, re.IGNORECASE):
        return None
    return text.lower().replace("gpu-", "GPU-") if name == "uuid" else text[:100]
