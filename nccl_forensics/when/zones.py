"""Zones of clocks: as users write them, and what is known of the clock behind a stamp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nccl_forensics.errors import InputError
from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.model import Event, InputRow, Stamp
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND

SKEW_S = 120
"""How far two hosts' clocks are likely to differ at most where nothing in the pile compares them: what is claimed must
hold for `UNCOMPARED_S`, what is only weighed, and a zone, which is a matter of quarters of an hour, for this. Our
judgement; NTP keeps far less."""
TEARDOWN = frozenset({43, 45})
"""Xids that the driver writes when a process ends that still held the GPU."""


def parse_zone(text: str) -> tzinfo:
    """'Europe/Copenhagen', 'UTC', '+02:00', '-0800' → tzinfo. Raises InputError for anything else."""
    if found := re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2}):?(\d{2})?", text.strip()):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        if minutes <= 15 * 60:
            return timezone(timedelta(minutes=-minutes if found[1] == "-" else minutes))
    if text.strip().upper() in ("UTC", "GMT", "Z"):
        return timezone.utc
    try:
        return ZoneInfo(text.strip())
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise InputError(
            f"--timezone {text!r} is not known here. Use an offset such as +02:00, or a name such as Europe/Copenhagen."
        ) from err


class KnownZone(NamedTuple):
    """The zone of a clock whose lines write none."""

    east_ns: int
    """Of UTC."""
    why: str
    """How that is known."""


@dataclass(frozen=True, slots=True)
class Zones:
    """What is known of the zones of clocks."""

    of_files: Mapping[str, KnownZone]
    of_hosts: Mapping[str, KnownZone]
    """By short name; of what hosts write on their own clocks."""

    def of(self, event: Event) -> KnownZone | None:
        """By its file, else by its host."""
        return self.of_files.get(event.evidence.source) or self.of_host(event.host)

    def of_host(self, host: str | None) -> KnownZone | None:
        return self.of_hosts.get(short(host)) if host else None


def is_of_host(event: Event, rows: Mapping[str, InputRow]) -> bool:
    """Is it written by the host itself, on the host's own clock? `rows`: by path."""
    row = rows.get(event.evidence.source)
    return row is not None and row.format in HOST_FORMATS


def zone_of(
    stamp: Stamp,
    wall: int,
    event: Event,
    zones: Zones,
    declared: tzinfo | None,
    rows: Mapping[str, InputRow],
) -> tuple[int, str, str | None]:
    """(ns east of UTC, basis, note)."""
    if stamp.zone_s is not None:
        return stamp.zone_s * SECOND, "reference", "the zone is written in the line"
    if found := zones.of(event) if is_of_host(event, rows) else zones.of_files.get(event.evidence.source):
        return found.east_ns, "shared-event", found.why
    if declared is not None:
        moment = datetime.fromtimestamp(wall // SECOND, timezone.utc).replace(tzinfo=None)
        east = declared.utcoffset(moment) or timedelta(0)
        return int(east.total_seconds()) * SECOND, "declared", "zone given with --timezone"
    return 0, "assumed", "no zone is written; read as UTC (give --timezone to change that)"
