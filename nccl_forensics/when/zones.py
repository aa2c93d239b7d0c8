"""Which zone a clock is in that writes none."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nccl_forensics.errors import InputError
from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.model import Event, InputRow, Stamp
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND, is_dated
from nccl_forensics.when.aligned import Arrival
from nccl_forensics.when.years import with_year

if TYPE_CHECKING:
    from nccl_forensics.when.meetings import Entered


QUARTER = 900 * SECOND
"""All zones in use lie on whole quarters of an hour."""


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


COINCIDENCE_S = 60
"""A lost GPU stops its peers within the next collective; only used to choose between two zones. Our judgement."""
SKEW_S = 120
"""How far two hosts' clocks are likely to differ at most where nothing in the pile compares them: what is claimed must
hold for `UNCOMPARED_S`, what is only weighed, and a zone, which is a matter of quarters of an hour, for this. Our
judgement; NTP keeps far less."""


def is_of_host(event: Event, rows: Mapping[str, InputRow]) -> bool:
    row = rows.get(event.evidence.source)
    return row is not None and row.format in HOST_FORMATS


def zones_of_jobs(
    events: Sequence[Event],
    walls: Mapping[int, int],
    rows: Mapping[str, InputRow],
    zones: Mapping[str, tuple[int, str]],
    arrivals: Sequence[Arrival],
    entered: Entered | None,
) -> dict[str, tuple[int, str]]:
    """Zones of job logs that write none: from the dumps' UTC, else from a lost GPU of a host whose zone is known."""
    found: dict[str, tuple[int, str]] = {}
    lost: list[tuple[str, int]] = []
    for event in events:
        if event.kind == "xid" and event.details.get("xid") == 79 and event.host and id(event) in walls:
            known = zones.get(event.evidence.source) or zones.get(f"host:{short(event.host)}")
            if known is not None or (event.stamp is not None and event.stamp.zone_s is not None):
                lost.append((short(event.host), id(event)))
    waits: dict[str, int] = {}
    for event in events:
        if isinstance(waited := event.details.get("waited_ms"), int):
            waits[event.evidence.source] = max(waits.get(event.evidence.source, 0), waited * 1_000_000)
    owners: dict[str, str] = {}
    for event in events:
        source, stamp, waited = event.evidence.source, event.stamp, event.details.get("waited_ms")
        if stamp is None or stamp.wall_ns is None or stamp.zone_s is not None or is_of_host(event, rows):
            continue
        if event.host is not None:
            owners[source] = short(event.host)
        if source in found or not (isinstance(waited, int) or event.kind == "exit"):
            continue
        # a process ends up to minutes after its watchdog gave up
        slack = COINCIDENCE_S if isinstance(waited, int) else COINCIDENCE_S * 5
        began = walls[id(event)] - (waited * 1_000_000 if isinstance(waited, int) else waits.get(source, 0))
        its_seq, numel = event.details.get("seq"), event.details.get("numel_in")
        if (
            entered
            and event.rank is not None
            and isinstance(its_seq, int)
            and isinstance(waited, int)
            and is_dated(began)
        ):
            # The dump of this very rank, and so the same clock.
            told = entered.at(event.rank, its_seq, numel if isinstance(numel, int) else None)
            easts = {round((began - at) / QUARTER) * QUARTER for at in told}
            close = {e for e in easts if any(abs(began - at - e) <= SKEW_S * SECOND for at in told)}
            if len(close) == 1 and abs(east := next(iter(close))) <= 14 * 3600 * SECOND:
                found[source] = (east, FROM_DUMPS)
                continue
        for arrival in arrivals:
            if arrival.seq == event.details.get("seq") and is_dated(began):
                east = round((began - arrival.last_ns) / QUARTER) * QUARTER
                if abs(began - arrival.last_ns - east) <= SKEW_S * SECOND and abs(east) <= 14 * 3600 * SECOND:
                    found[source] = (east, FROM_DUMPS)
                    break
        for host, number in lost:
            if source in found or event.host is None or host != short(event.host):
                continue
            its = zones.get(f"host:{host}")
            for east in sorted({0, its[0] if its else 0}):
                struck = walls[number] - (its[0] if its else 0)
                if -2 * SECOND <= began - east - struck <= slack * SECOND:
                    found[source] = (
                        east,
                        "read so, its ranks began to wait just after the GPU was lost; otherwise hours apart",
                    )
    found.update(_by_teardown(events, walls, zones, owners, found))
    by_owner: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for source, known in found.items():
        if source in owners:
            by_owner[owners[source]].add(known)
    for source, owner in owners.items():
        if source not in found and len({east for east, _ in by_owner[owner]}) == 1:
            found[source] = (next(iter(by_owner[owner]))[0], "as the other job logs of this host")
    return found


FROM_DUMPS = "its collectives stand in Flight Recorder dumps, which write UTC"
TEARDOWN = frozenset({43, 45})
"""Xids that the driver writes when a process ends that still held the GPU."""
TEARDOWN_S = 120
"""Between a process's end in the kernel's log and in its launcher's: polling and flushing. Our judgement."""


def _by_teardown(
    events: Sequence[Event],
    walls: Mapping[int, int],
    zones: Mapping[str, tuple[int, str]],
    owners: Mapping[str, str],
    found: Mapping[str, tuple[int, str]],
) -> dict[str, tuple[int, str]]:
    """Zones of job logs from processes whose end the kernel logged too: UTC or the host's zone, if one fits."""
    ends: dict[str, list[int]] = defaultdict(list)
    for event in events:
        known = zones.get(event.evidence.source) or zones.get(f"host:{short(event.host)}" if event.host else "")
        of_kernel = event.kind == "xid" and event.details.get("xid") in TEARDOWN
        if of_kernel and event.host and known is not None and id(event) in walls:
            ends[short(event.host)].append(walls[id(event)] - known[0])
    fits: dict[str, set[int]] = defaultdict(set)
    for event in events:
        owner = owners.get(event.evidence.source)
        if owner is None or event.evidence.source in found or id(event) not in walls:
            continue
        if event.kind not in ("exit", "pg-abort", "sigterm-sent"):
            continue
        for east in {0, zones.get(f"host:{owner}", (0, ""))[0]}:
            if any(abs(walls[id(event)] - east - end) <= TEARDOWN_S * SECOND for end in ends.get(owner, ())):
                fits[event.evidence.source].add(east)
    return {
        source: (next(iter(easts)), "read so, its processes end when the kernel's log says that they ended")
        for source, easts in fits.items()
        if len(easts) == 1
    }


def zones_of_hosts(
    events: Sequence[Event], walls: Mapping[int, int], rows: Mapping[str, InputRow]
) -> dict[str, tuple[int, str]]:
    """File or host (as 'host:NAME') → (ns east of UTC, how that is known), from what the files show."""
    found: dict[str, tuple[int, str]] = {}
    for event in events:
        stamp, epoch = event.stamp, event.details.get("epoch_ns")
        of_host = [f"host:{short(event.host)}"] if event.host and is_of_host(event, rows) else []
        keys = [event.evidence.source, *of_host]
        if isinstance(east := event.details.get("zone_s"), int):
            for key in keys:
                found.setdefault(key, (east * SECOND, f"{event.evidence.source} states its zone"))
        if isinstance(epoch, int) and stamp is not None and stamp.wall_ns is not None and stamp.zone_s is None:
            wall = walls[id(event)]
            if not is_dated(wall):
                wall = with_year(wall, datetime.fromtimestamp(epoch / SECOND, timezone.utc).year)
            east = round((wall - epoch) / QUARTER) * QUARTER
            # a boot line's stamp is the time of ingestion, up to minutes late (kernel-log-formats.md §0.5)
            if abs(wall - epoch - east) < 300 * SECOND and abs(east) <= 14 * 3600 * SECOND:
                for key in keys:
                    found.setdefault(
                        key, (east, f"line {event.evidence.line} of {event.evidence.source} prints UTC beside it")
                    )
    # The same Xid on the same card, in a log with a zone and in one without.
    zoned: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for event in events:
        if event.kind == "xid" and event.stamp and event.stamp.wall_ns is not None and event.stamp.zone_s is not None:
            zoned[event.details.get("xid"), event.gpu_pci, event.host].append(
                walls[id(event)] - event.stamp.zone_s * SECOND
            )
    for event in events:
        if event.kind != "xid" or not event.stamp or event.stamp.wall_ns is None or event.stamp.zone_s is not None:
            continue
        for utc in zoned.get((event.details.get("xid"), event.gpu_pci, event.host), ()):
            wall = walls[id(event)]
            if not is_dated(wall):
                wall = with_year(wall, datetime.fromtimestamp(utc / SECOND, timezone.utc).year)
            east = round((wall - utc) / QUARTER) * QUARTER
            if abs(wall - utc - east) <= 20 * SECOND and abs(east) <= 14 * 3600 * SECOND:
                found.setdefault(event.evidence.source, (east, "the same Xid stands in a log that writes its zone"))
    return found


def zone_of(
    stamp: Stamp,
    wall: int,
    event: Event,
    zones: Mapping[str, tuple[int, str]],
    declared: tzinfo | None,
    rows: Mapping[str, InputRow],
) -> tuple[int, str, str | None]:
    """(ns east of UTC, basis, note)."""
    if stamp.zone_s is not None:
        return stamp.zone_s * SECOND, "reference", "the zone is written in the line"
    if declared is not None:
        moment = datetime.fromtimestamp(wall // SECOND, timezone.utc).replace(tzinfo=None)
        east = declared.utcoffset(moment) or timedelta(0)
        return int(east.total_seconds()) * SECOND, "declared", "zone given with --timezone"
    host_key = f"host:{short(event.host)}" if event.host and is_of_host(event, rows) else ""
    if found := zones.get(event.evidence.source) or zones.get(host_key):
        return found[0], "shared-event", found[1]
    return 0, "assumed", "no zone is written; read as UTC (give --timezone to change that)"
