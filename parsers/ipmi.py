"""`ipmitool sensor` and `sdr`: what the board's own controller measures. (Its event log, `sel`, is in kernel.toml.)

Written by ipmitool. Time: none, the moment of the call. Only sensors beyond a critical limit, and power supplies that
say what they miss, are told. States: cr = critical, nr = non-recoverable, nc = non-critical, ok, ns = no reading.
Examples (sensor; sdr; sdr elist):

GPU3 Temp        | 97.000     | degrees C  | cr    | na        | na        | na        | 92.000    | 95.000    | 98.000
GPU3 Temp        | 97 degrees C      | cr
PS2 Status       | 71h | ok  | 10.2 | Presence detected, Failure detected
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

SENSOR = re.compile(
    r"^(?P<name>[^|\n]{1,40}?)\s*\| (?P<reading>-?\d{1,9}(?:\.\d{1,4})?)\s*"
    r"(?:\| (?P<unit>degrees C|RPM|Volts|Watts|percent|Amps)\s*|(?P<unit_2>degrees C|RPM|Volts|Watts|percent|Amps)\s*)"
    r"\| (?P<state>cr|nr|lcr|ucr|lnr|unr)\s*(?:$|\|)"
)
SUPPLY = re.compile(
    r"^(?P<name>(?:PS|PSU|Power)[^|\n]{0,40}?)\s*\| [0-9A-Fa-f]{2}h \| (?P<state>ok|cr|nr|nc|ns)\s*\| \d{1,3}\.\d{1,3} "
    r"\| (?P<says>[^\n]{0,200}?(?:Failure detected|AC lost|Input Lost|Redundancy Lost|Predictive failure)"
    r"[^\n]{0,100})$",
    re.IGNORECASE,
)


@parser(
    title="BMC sensors (ipmitool)",
    literals=[
        *(f" | {state}" for state in ("cr", "nr", "lcr", "ucr", "lnr", "unr")),
        *("Failure detected", "AC lost", "Input Lost", "Redundancy Lost", "Predictive failure"),
    ],
)
def bmc_sensors(line: Line) -> Iterator[Event]:
    text = line.text
    if found := SENSOR.match(text):
        unit = found["unit"] or found["unit_2"]
        name = found["name"].strip()
        cause = {"degrees C": "gpu_thermal" if "gpu" in name.lower() else None, "RPM": "gpu_thermal"}.get(unit)
        if unit == "Volts" and "bat" not in name.lower():
            cause = "psu_rail_loss"
        details: dict[str, Detail] = {"sensor": name, "reading": float(found["reading"]), "unit": unit}
        if index := re.search(r"GPU[ _]?(\d{1,2})\b", name, re.IGNORECASE):
            details["board_slot"] = int(index[1])
        yield line.event(
            "bmc-sensor",
            role="symptom" if cause else "context",
            severity="warning",
            cause=cause,
            details={**details, "state": found["state"]},
            pid=None,
        )
    elif found := SUPPLY.match(text):
        yield line.event(
            "bmc-sensor",
            role="symptom",
            severity="error",
            cause="psu_rail_loss",
            details={"sensor": found["name"].strip(), "says": found["says"].strip(), "state": found["state"]},
            pid=None,
        )
