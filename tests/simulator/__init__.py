"""Simulates distributed training jobs that fail: writes the logs that a customer would mail, and knows the truth.

    bundle = simulate(Scenario(cause="gpu_off_bus", torch="2.6"), seed=7)
    bundle.write(folder)
    bundle.truth.ranks

Written from the descriptions of the formats, not from what our parsers read. Times inside are true UTC in ns; each host
turns them into what its own clock shows.
"""

from .bundle import Bundle, simulate
from .causes import CAUSES
from .draw import draw
from .scenario import UTC, ZONES, Decoys, Degrade, Scenario, Truth, Zone

__all__ = ["CAUSES", "UTC", "ZONES", "Bundle", "Decoys", "Degrade", "Scenario", "Truth", "Zone", "draw", "simulate"]
