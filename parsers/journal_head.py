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
from nccl_forensics.model import Detail, Event, Stamp

HEAD = re.compile(r"^-- (?:Logs begin|Journal begins) at (?P<first>[^,]{10,60}), ends? at (?P<last>[^,]{10,60}?)\.? --")


def _epoch_ns(stamp: Stamp | None) -> int | None:
    """Nanoseconds since 1970; UTC where the zone is known, else on the clock as written."""
    if stamp is None or stamp.wall_ns is None:
        return None
    return stamp.wall_ns - (stamp.zone_s or 0) * stamps.SECOND


@parser(title="journalctl: head line", literals=["-- Logs begin at ", "-- Journal begins at "])
def journal_head(line: Line) -> Iterator[Event]:
    """Two anchors of the clock; the zone only where its abbreviation means one offset, and the same at both ends."""
    head = HEAD.match(line.text)
    if head is None:
        return
    read = [stamps.weekday_iso(head[name]) for name in ("first", "last")]
    ends = [found[0] if found else None for found in read]
    since_ns = _epoch_ns(ends[0])
    one_zone = len({end.zone_s for end in ends if end is not None}) == 1
    for number, end in enumerate(ends):
        epoch_ns = _epoch_ns(end)
        if end is None or epoch_ns is None:
            continue
        details: dict[str, Detail] = {"what": "journal-head", "resolution_ns": end.resolution_ns, "epoch_ns": epoch_ns}
        if number == 1 and since_ns is not None:
            details["since_ns"] = since_ns
        if one_zone and end.zone_s is not None:
            details["zone_s"] = end.zone_s
        yield line.event("clock-anchor", role="context", stamp=None, details=details)
