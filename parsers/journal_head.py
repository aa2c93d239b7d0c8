"""The head line of `journalctl` up to systemd 251: first and last moment of the journal, with year, weekday and zone.

Written by systemd's journalctl.c; times in the caller's zone, whole seconds. The entries below it are in that zone and
have no year of their own in the short format. Examples:

-- Logs begin at Mon 2026-03-02 05:12:43 UTC, end at Wed 2026-03-04 10:36:55 UTC. --
-- Journal begins at Mon 2026-03-02 05:12:43 UTC, ends at Wed 2026-03-04 10:36:55 UTC. --
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines import stamps
from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

HEAD = re.compile(r"^-- (?:Logs begin|Journal begins) at (?P<first>[^,]{10,60}), ends? at (?P<last>[^,]{10,60}?)\.? --")


@parser(title="journalctl: head line", literals=["-- Logs begin at ", "-- Journal begins at "])
def journal_head(line: Line) -> Iterator[Event]:
    """Two anchors of the clock; the zone only where its abbreviation means one offset, and the same at both ends."""
    found = HEAD.match(line.text)
    ends = [stamps.weekday_iso(found[name]) for name in ("first", "last")] if found else []
    zones = {end[0].zone_s for end in ends if end is not None}
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None and ends[0][0].wall_ns is not None:
        since_ns = ends[0][0].wall_ns - (ends[0][0].zone_s or 0) * stamps.SECOND
    else:
        since_ns = None
    for number, end in enumerate(ends):
        if end is None or end[0].wall_ns is None:
            continue
        stamp = end[0]
        assert stamp.wall_ns is not None
        details: dict[str, Detail] = {"what": "journal-head", "resolution_ns": stamp.resolution_ns}
        details["epoch_ns"] = stamp.wall_ns - (stamp.zone_s or 0) * stamps.SECOND
        if number == 1 and since_ns is not None:
            details["since_ns"] = since_ns
        if len(zones) == 1 and stamp.zone_s is not None:
            details["zone_s"] = stamp.zone_s
        yield line.event("clock-anchor", role="context", stamp=None, details=details)
