"""How likely each zone is for clocks whose lines write none, and so by how much two of them may be read apart.

A time that was read in the wrong zone is off by whole quarters of an hour, never by a minute. So a clock without a zone
still says a lot: that a line came days before another, or that two of them fall together to the second in the one zone
that is likely. What is known is used in this order: proof (a written zone, UTC beside a stamp, dumps), the user's word,
the zone of the host, the zones that the other logs of the pile prove, and last how common zones are.

Zones are ns east of UTC. Probabilities are our judgement; each has its reason beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nccl_forensics.text.moments import SECOND

LEAST = 1e-5
"""Chances below this are left out."""
HOUR = 3600 * SECOND
Chances = Mapping[int, float]
"""Zone, or difference of two zones → its probability."""

SURE = 0.97
"""From which on something counts as shown that falls together in one zone, which is evidence of its own."""
CERTAIN = 0.995
"""From which on an order is claimed: it must hold in the zones that few are in as well."""
OWN_ZONE, OWN_UTC = 0.93, 0.05
"""A host's own log is in the zone of its site, seldom in UTC beside others that are not."""
JOB_ZONE, JOB_UTC = 0.6, 0.3
"""A job writes in its host's zone, or in UTC where its container has none."""
AS_PROVED = 0.9
"""A job's log is in the zone that other logs of jobs in the pile are proved to have: the image is the same."""
PROVED_UTC = 0.75
"""Where the proved zone is UTC, it can also be that of the tool that collected the log (journalctl --utc)."""
AS_DECLARED = 0.98
"""The user knows the zone of what he sends, but one word is given for all of its files."""
ALIKE = 0.95
"""Two logs of one sort (of hosts, of jobs) have the same zone, whichever that is."""
SITE_OF_OTHERS = 0.85
"""A host is in the zone that its neighbours are proved to be in."""
UTC_AT_ALL = 0.4
"""Machines of clusters and clouds are often set to UTC wherever they stand."""
FRACTIONS = (-9.5, -3.5, 3.5, 4.5, 5.5, 5.75, 6.5, 9.5, 10.5)
"""Hours; zones in use that are no whole ones (IANA tzdata 2025)."""
OF_FRACTIONS = 0.04
"""Of machines that are not in UTC, most of them in India."""


def common() -> Chances:
    """How common zones are where nothing tells."""
    whole = [h * HOUR for h in range(-11, 14) if h]
    parts = [round(h * HOUR) for h in FRACTIONS]
    left = 1 - UTC_AT_ALL
    found = {0: UTC_AT_ALL}
    found |= {east: left * (1 - OF_FRACTIONS) / len(whole) for east in whole}
    found |= {east: left * OF_FRACTIONS / len(parts) for east in parts}
    return found


COMMON = common()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneOf:
    """What is known of the zone of one clock."""

    host: str | None
    """Short name of the host it belongs to."""
    of_host: bool
    """The host itself writes on it, not a job."""
    east_ns: int
    """That was taken off its readings."""
    proved: bool
    declared: bool = False
    """The user gave it."""
    by_uptime: bool = False
    """It counts from a boot, and is proved where that lies: which zone its host is in, it does not tell."""


OF_DUMPS = ZoneOf(host=None, of_host=False, east_ns=0, proved=True)
"""Flight Recorder writes UTC, on a clock that no line was written on."""


def mixed(parts: Iterable[tuple[float, Chances]]) -> dict[int, float]:
    """Several distributions as one, each with its weight."""
    found: dict[int, float] = {}
    for weight, chances in parts:
        for value, chance in chances.items():
            found[value] = found.get(value, 0.0) + weight * chance
    return found


@dataclass(frozen=True)
class Beliefs:
    """The zones of all clocks of a pile. `of`: by the name of the clock (ClockRow.clock)."""

    of: Mapping[str, ZoneOf] = field(default_factory=dict)
    tied: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(Clock, clock) → by how much the difference of their readings is wrong, where the pile shows it although it
    proves neither zone."""

    @cached_property
    def _partners(self) -> Mapping[str, tuple[str, int]]:
        """Clock → one that it is tied to, and by how much (own reading) - (the other's) is wrong."""
        found: dict[str, tuple[str, int]] = {}
        for (a, b), apart in self.tied.items():
            found.setdefault(a, (b, apart))
            found.setdefault(b, (a, -apart))
        return found

    @cached_property
    def _of_hosts(self) -> Mapping[str, int]:
        """Host → the zone that its own logs are proved to be in."""
        return {z.host: z.east_ns for z in self._proved if z.of_host and z.host is not None}

    @cached_property
    def _proved(self) -> Sequence[ZoneOf]:
        """The clocks that are proved to be in a zone."""
        return [z for z in self.of.values() if z.proved and not z.by_uptime]

    @cached_property
    def _of_jobs(self) -> Chances:
        """The zones that logs of jobs are proved to be in; empty where none is."""
        return _shares(z.east_ns for z in self._proved if not z.of_host)

    @cached_property
    def _neighbours(self) -> Chances:
        """The zones that logs of hosts are proved to be in; empty where none is."""
        return _shares(z.east_ns for z in self._proved if z.of_host)

    @cached_property
    def _known(self) -> dict[tuple[object, ...], Chances]:
        return {}

    def apart(self, one: str | None, other: str | None) -> Chances:
        """By how much the difference of two readings may be wrong: (zone of `one`) - (zone of `other`), as against
        the zones that were taken off. 0 alone where both are proved, or are one clock."""
        a, b = self.of.get(one or "", OF_DUMPS), self.of.get(other or "", OF_DUMPS)
        if one == other or (a.proved and b.proved):
            return SHOWN
        if (tied := self._by_tie(one, other)) is not None:
            return tied
        site = self._site(a, b)
        key = (a.of_host, a.proved, a.declared, a.east_ns, b.of_host, b.proved, b.declared, b.east_ns, *site.items())
        found = self._known.get(key)
        if found is None:
            every = self._between(a, b, site)
            found = self._known[key] = {apart: chance for apart, chance in every.items() if chance >= LEAST}
        return found

    def _by_tie(self, one: str | None, other: str | None) -> Chances | None:
        """Through a clock of another sort that one of them is tied to: from there it is a matter of like and like."""
        for clock, far, way in ((one, other, 1), (other, one, -1)):
            partner, apart = self._partners.get(clock or "", (None, 0))
            if partner is None:
                continue
            if partner == far:
                return {way * apart: 1.0}
            if self.of[partner].of_host == self.of.get(far or "", OF_DUMPS).of_host:
                rest = self.apart(partner, far) if way == 1 else self.apart(far, partner)
                return {way * apart + by: chance for by, chance in rest.items()}
        return None

    def _between(self, a: ZoneOf, b: ZoneOf, site: Chances) -> Chances:
        read = a.east_ns - b.east_ns
        parts: list[tuple[float, Chances]] = []
        for east, chance in site.items():
            ones, others = self._given(a, east), self._given(b, east)
            apart: dict[int, float] = {}
            for x, p in ones.items():
                for y, q in others.items():
                    apart[x - y - read] = apart.get(x - y - read, 0.0) + p * q
            parts.append((chance, apart))
        found = mixed(parts)
        if not (a.proved or b.proved) and a.of_host == b.of_host and a.declared == b.declared:
            found = mixed([(ALIKE, {-read: 1.0}), (1 - ALIKE, found)])
        return found

    def _site(self, a: ZoneOf, b: ZoneOf) -> Chances:
        """The zone of the machines that wrote the two."""
        own = {east for z in (a, b) if z.host is not None and (east := self._of_hosts.get(z.host)) is not None}
        if len(own) == 1:
            return _as_shown({own.pop(): 1.0}, 1.0)
        return self._site_by_jobs(_as_shown(self._neighbours, SITE_OF_OTHERS))

    def _site_by_jobs(self, site: Chances) -> Chances:
        """The same, where logs of jobs are proved to be in zones: what writes in none but UTC tells where it stands."""
        if not self._of_jobs:
            return site
        fits = {
            east: chance * sum(share * self._unlike(east).get(job, 0.0) for job, share in self._of_jobs.items())
            for east, chance in site.items()
        }
        whole = sum(fits.values())
        return {east: fit / whole for east, fit in fits.items()} if whole else site

    def is_proved(self, clock: str | None) -> bool:
        """Does a line, or what the pile shows, tell its zone?"""
        zone = self.of.get(clock or "")
        return zone is None or zone.proved

    def is_known(self, clock: str | None) -> bool:
        """Is its zone proved, or the user's word?"""
        return self.is_proved(clock) or self.is_declared(clock)

    def is_declared(self, clock: str | None) -> bool:
        """Is its zone the user's word?"""
        zone = self.of.get(clock or "")
        return zone is not None and zone.declared

    def _given(self, zone: ZoneOf, site_ns: int) -> Chances:
        """The zones that a clock may be in, if its site is in this one."""
        if zone.proved:
            return {zone.east_ns: 1.0}
        if zone.of_host:
            own: Chances = mixed([(OWN_ZONE, {site_ns: 1.0}), (OWN_UTC, UTC), (1 - OWN_ZONE - OWN_UTC, COMMON)])
        else:
            own = _as_shown(self._of_jobs, AS_PROVED, self._unlike(site_ns))
        return mixed([(AS_DECLARED, {zone.east_ns: 1.0}), (1 - AS_DECLARED, own)]) if zone.declared else own

    @staticmethod
    def _unlike(site_ns: int) -> dict[int, float]:
        """A job's zone by that of its site alone."""
        return mixed([(JOB_ZONE, {site_ns: 1.0}), (JOB_UTC, UTC), (1 - JOB_ZONE - JOB_UTC, COMMON)])


UTC: Chances = {0: 1.0}
SHOWN: Chances = {0: 1.0}
"""Two zones that are proved."""


def _as_shown(proved: Chances, chance: float, otherwise: Chances = COMMON) -> Chances:
    """The zones that others are proved to be in, with this chance, less for UTC; else any."""
    shown = {east: share * chance * (1.0 if east else PROVED_UTC) for east, share in proved.items()}
    return mixed([(1.0, shown), (1 - sum(shown.values()), otherwise)])


def _shares(easts: Iterable[int]) -> Chances:
    every: Sequence[int] = tuple(easts)
    found: dict[int, float] = {}
    for east in every:
        found[east] = found.get(east, 0.0) + 1 / len(every)
    return found
