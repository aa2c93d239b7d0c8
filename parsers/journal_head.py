"""The head line of `journalctl` up to systemd 251: first and last moment of the journal, with year, weekday and zone.

Written by systemd's journalctl.c; times in the caller's zone, whole seconds. The entries below it are in that zone and
have no year of their own in the short format. Examples:

-- Logs begin at Mon 2026-03-02 05:12:43 UTC, end at Wed 2026-03-04 10:36:55 UTC. --
-- Journal begins at Mon 2026-03-02 05:12:43 UTC, ends at Wed 2026-03-04 10:36:55 UTC. --
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nccl_forensics.lines import stamps
from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event, Stamp

HEAD = re.compile(r"^-- (?:Logs begin|Journal begins) at (?P<first>[^,]{10,60}), ends? at (?P<last>[^,]{10,60}?)\.? --")


def _end(written: str) -> tuple[Stamp, int] | None:
    """The moment, and in nanoseconds since 1970: UTC where the zone is known, else on the clock as written."""
    found = stamps.weekday_iso(written)
    if found is None or found[0].wall_ns is None:
        return None
    return found[0], found[0].wall_ns - (found[0].zone_s or 0) * stamps.SECOND


def _anchor(line: Line, stamp: Stamp, epoch_ns: int, more: Mapping[str, Detail], *, one_zone: bool) -> Event:
    details: dict[str, Detail] = {"what": "journal-head", "resolution_ns": stamp.resolution_ns, "epoch_ns": epoch_ns}
    details.update(more)
    if one_zone and stamp.zone_s is not None:
        details["zone_s"] = stamp.zone_s
    return line.event("clock-anchor", role="context", stamp=None, details=details)


@parser(title="journalctl: head line", literals=["-- Logs begin at ", "-- Journal begins at "])
def journal_head(line: Line) -> Iterator[Event]:
    """Two anchors of the clock; the zone only where its abbreviation means one offset, and the same at both ends."""
    head = HEAD.match(line.text)
    if head is None:
        return
    first, last = _end(head["first"]), _end(head["last"])
    one_zone = first is None or last is None or first[0].zone_s == last[0].zone_s
    if first is not None:
        yield _anchor(line, *first, {}, one_zone=one_zone)
    if last is not None:
        since: dict[str, Detail] = {"since_ns": first[1]} if first is not None else {}
        yield _anchor(line, *last, since, one_zone=one_zone)
