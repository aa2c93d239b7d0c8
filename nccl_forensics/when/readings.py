"""How the clock behind each stamp is read, before clocks are compared with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING

from nccl_forensics.model import ClockRow, Event, InputRow, Stamp
from nccl_forensics.names import short
from nccl_forensics.text.moments import SECOND
from nccl_forensics.when.aligned import Arrival
from nccl_forensics.when.belief import ZoneOf
from nccl_forensics.when.boots import KernelClock, boot_offsets, boots_of
from nccl_forensics.when.drift import Drift, drifts_of
from nccl_forensics.when.host_zones import zones_of_hosts
from nccl_forensics.when.job_zones import zones_of_jobs
from nccl_forensics.when.process_zones import Tie, zones_of_processes
from nccl_forensics.when.years import in_sections, walls_of_file, years_of
from nccl_forensics.when.zones import Zones, is_of_host, zone_of

if TYPE_CHECKING:
    from nccl_forensics.when.meetings import Entered


UNZONED = ("boot-time", "none")
"""Bases of clocks whose offset is no zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one stamp means."""

    clock: str
    """ClockRow.clock."""
    basis: str
    """ClockRow.basis."""
    note: str | None = None
    time_ns: int | None = None
    """UTC as far as the zone is known; None: nothing tells where the clock lies."""
    uncertainty_ns: int | None = None
    """Half-width of the error bar of `time_ns`."""
    offset_ns: int | None = None
    """What was added to the clock's reading."""
    offset_bar_ns: int = 0
    """Half-width of the error bar of the first offset that was found."""
    assumed: bool = False
    """The zone is only assumed."""
    declared: bool = False
    """The zone is only the user's word."""

    def row(self, event: Event) -> ClockRow:
        """The clock's row, by its first event."""
        known = self.offset_ns is not None and not self.assumed
        return ClockRow(
            clock=self.clock,
            host=event.host,
            offset_s=None if self.offset_ns is None else self.offset_ns / SECOND,
            uncertainty_s=self.offset_bar_ns / SECOND if known else None,
            basis=self.basis,
            note=self.note,
        )


@dataclass(frozen=True, slots=True)
class Readings:
    """What the files and the user tell of all clocks: years, zones, boots."""

    rows: Mapping[str, InputRow]
    """By path."""
    declared: tzinfo | None
    """The user's word on zones."""
    boots: Mapping[int, int]
    """id(event) → boot in its file, 0 = the last."""
    years: Mapping[str, int | None]
    """File → year of its newest line that was written without one."""
    walls: Mapping[int, int]
    """id(event) → its wall time, ns, as written, in the right year, and without what `dmesg -T` is known to be off."""
    zones: Zones
    drifts: Mapping[int, Drift]
    """id(event) → how far `dmesg -T` is off there."""
    uptimes: Mapping[tuple[str, int], KernelClock]
    """(File, boot) → where its kernel clock lies."""
    ties: Sequence[Tie]
    """Lines of hosts and jobs whose zones are not known, but how far they are apart."""

    @classmethod
    def of(
        cls,
        events: Sequence[Event],
        rows: Mapping[str, InputRow],
        zone: tzinfo | None,
        year: int | None,
        arrivals: Sequence[Arrival],
        entered: Entered | None,
    ) -> Readings:
        """`zone` and `year` are the user's word; `arrivals` and `entered` are from dumps."""
        boots = boots_of(events)
        years = years_of(events, rows, year, arrivals)
        walls = walls_of_file(events, years, rows)
        zones = zones_of_hosts(events, walls, rows, boots)
        drifts = drifts_of(events, walls, zones, boots, rows)
        walls |= {key: walls[key] - drift.late_ns for key, drift in drifts.items()}
        of_jobs = zones_of_jobs(events, walls, rows, zones, arrivals, entered)
        zones = Zones({**zones.of_files, **of_jobs}, zones.of_hosts)
        by_processes, ties = zones_of_processes(events, walls, rows, zones, drifts)
        if by_processes:
            zones = Zones(zones.of_files, {**by_processes, **zones.of_hosts})
            of_jobs = zones_of_jobs(events, walls, rows, zones, arrivals, entered)
            zones = Zones({**of_jobs, **zones.of_files}, zones.of_hosts)
        uptimes = boot_offsets(events, walls, zones, zone, boots, rows, drifts)
        return cls(rows, zone, boots, years, walls, zones, drifts, uptimes, ties)

    def read(self, event: Event) -> Reading | None:
        """By its wall time, else by its uptime; None without a stamp."""
        stamp = event.stamp
        if stamp is None:
            return None
        if stamp.wall_ns is not None:
            return self._by_wall(event, stamp)
        return self._by_uptime(event, stamp.boot_ns) if stamp.boot_ns is not None else None

    def zone(self, event: Event, reading: Reading) -> ZoneOf:
        """What is known of the zone of the clock that this event's reading was taken from."""
        return ZoneOf(
            host=short(event.host) if event.host else None,
            of_host=is_of_host(event, self.rows),
            east_ns=-reading.offset_ns if reading.basis not in UNZONED and reading.offset_ns is not None else 0,
            proved=not (reading.assumed or reading.declared),
            declared=reading.declared,
            by_uptime=reading.basis in UNZONED,
        )

    def _by_wall(self, event: Event, stamp: Stamp) -> Reading:
        wall_ns = self.walls[id(event)]
        east_ns, basis, note = zone_of(stamp, wall_ns, event, self.zones, self.declared, self.rows)
        if not stamp.has_year and self.years.get(event.evidence.source) is None:
            note = f"{note}; the year is not in any file" if note else "the year is not in any file"
        drift = self.drifts.get(id(event))
        bar_ns = max(stamp.resolution_ns, 1_000_000) + (drift.bar_ns if drift is not None else 0)
        return Reading(
            clock=self._name(event, basis),
            basis=basis,
            note=note,
            time_ns=wall_ns - east_ns,
            uncertainty_ns=bar_ns,
            offset_ns=-east_ns,
            offset_bar_ns=bar_ns,
            assumed=basis == "assumed",
            declared=basis == "declared",
        )

    def _by_uptime(self, event: Event, boot_ns: int) -> Reading:
        boot = self.boots[id(event)]
        clock = f"{event.host or event.evidence.source}: kernel clock, boot {boot}"
        kernel = self.uptimes.get((event.evidence.source, boot))
        if kernel is None:
            note = "seconds since boot only; no line of this boot carries a wall-clock time"
            return Reading(clock=clock, basis="none", note=note)
        uptime = kernel.at(boot_ns)
        return Reading(
            clock=clock,
            basis="boot-time",
            time_ns=boot_ns + uptime.offset_ns,
            uncertainty_ns=uptime.bar_ns,
            offset_ns=uptime.offset_ns,
            offset_bar_ns=uptime.bar_ns,
            assumed=uptime.assumed,
            declared=uptime.basis == "declared",
        )

    def _name(self, event: Event, basis: str) -> str:
        owner = event.host or event.evidence.source
        whose = "wall clock" if is_of_host(event, self.rows) else "clock of the job's log"
        return f"{owner}: {whose}" + (", zone written" if basis == "reference" else "")

    def boot(self, event: Event) -> int | None:
        """Which boot of its host, counted back from the last one in its file; None where no boot shows."""
        if event.stamp is None or in_sections(event.evidence.source, self.rows):
            return None  # a bug report holds the same boots several times over, newest first
        boot = self.boots[id(event)]
        return boot if event.stamp.boot_ns is not None or boot < 0 else None
