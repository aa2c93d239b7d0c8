"""Faults of hosts on which this job did not run, as far as the ranks' places tell: they count for less."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nccl_forensics.catalog import weight
from nccl_forensics.intake.sniff import HOST_FORMATS
from nccl_forensics.model import Finding
from nccl_forensics.names import short
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case

FIGURES = re.compile(r"[\d.]+")
MOST_LINES = 4
"""Lines of a finding that are asked for their time."""


def of_this_job(found: Sequence[Finding], case: Case) -> list[Finding]:
    """The findings; those about hosts alone are weighed down where the job ran on others."""
    ran = _Whereabouts(case)
    return [_weighed(finding, ran) if _speaks_for_a_host(finding) else finding for finding in found]


def _speaks_for_a_host(finding: Finding) -> bool:
    return bool(finding.hosts) and not finding.ranks and finding.weight > 0


def _weighed(finding: Finding, ran: _Whereabouts) -> Finding:
    if not ran.probably_elsewhere_than(finding.hosts):
        return _untied(finding, ran) if not ran.tied(finding) else finding
    if ran.surely_elsewhere_than(finding.hosts):
        why = say("every rank of this job ran elsewhere")
        value = min(finding.weight, 1.0) + weight("not_in_job")
    else:
        why = say("no rank of this job is known to have run there")
        value = finding.weight + weight("perhaps_not_in_job")
    return _apart(finding, value, say("{says} ({why})", says=finding.says, why=why))


def _untied(finding: Finding, ran: _Whereabouts) -> Finding:
    """Less where the job names its hosts and none is named alike: then this one is, for all we know, another's."""
    why = say("neither its host nor its time ties it to the job")
    says = say("{says} ({why})", says=finding.says, why=why)
    if not ran.case.hosts_are_known or ran.are_named_alike(finding.hosts):
        return replace(finding, weight=finding.weight + weight("nothing_ties"), says=says, tied=False)
    return _apart(finding, min(finding.weight, 1.0) + weight("not_in_job"), says)


def _apart(finding: Finding, value: float, says: str) -> Finding:
    return replace(finding, weight=value, weight_alone=finding.weight, says=says, tied=False)


@dataclass(frozen=True)
class _Whereabouts:
    """Where the job ran, as far as the placed ranks tell. Hosts are given by their short names."""

    case: Case

    def probably_elsewhere_than(self, hosts: Iterable[str]) -> bool:
        """Is no rank known to have run on these hosts, and is the one that matters placed elsewhere?"""
        names = {short(host) for host in hosts}
        if not self.hosts or names & self.hosts:
            return False
        if not self.counted or names & self.logged_on:
            return False
        return self.all_late_placed

    def surely_elsewhere_than(self, hosts: Iterable[str]) -> bool:
        """Given that it is probable: are all ranks placed, by names that mean hosts?"""
        return (self.names_mean_hosts or self.are_named_alike(hosts)) and self.all_placed

    def tied(self, finding: Finding) -> bool:
        """Does a host of it, or the time of a line, tie it to the job?"""
        if any(map(self.case.is_of_the_job, finding.hosts)) or not finding.events:
            return True
        return any(map(self.case.order_is_shown, finding.events[:MOST_LINES]))

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Those of the placed ranks."""
        return frozenset(short(place.host) for place in self.case.known.ranks.values() if place.host)

    @property
    def counted(self) -> bool:
        """Otherwise more ranks than are known may have run."""
        return self.case.known.world_size is not None or self.case.known.stated

    @cached_property
    def logged_on(self) -> frozenset[str]:
        """Where the job wrote a log."""
        return frozenset(short(r.host) for r in self.case.rows if r.format == "job-log" and r.host)

    @cached_property
    def members(self) -> frozenset[int]:
        """All ranks that there were."""
        return frozenset({*self.case.known.ranks, *range(self.case.known.world_size or 0)})

    @cached_property
    def all_placed(self) -> bool:
        return all(self._is_placed(rank) for rank in self.members)

    @cached_property
    def all_late_placed(self) -> bool:
        """Is there a host for each rank that never came, or for each of all where the collectives suspect nobody?"""
        late = {rank for suspect in self.case.collectives.suspects for rank in suspect.ranks}
        return all(self._is_placed(rank) for rank in late or self.members)

    def _is_placed(self, rank: int) -> bool:
        place = self.case.known.ranks.get(rank)
        return place is not None and bool(place.host)

    @cached_property
    def names_mean_hosts(self) -> bool:
        """Containers have names of their own: only where some host's own file agrees with a place they mean hosts."""
        if self.case.known.stated:
            return True
        wrote = {short(r.host) for r in self.case.rows if r.host and r.format in HOST_FORMATS}
        return bool(wrote & self.hosts)

    def are_named_alike(self, hosts: Iterable[str]) -> bool:
        """Are these hosts named in the places' fashion (n07 beside n01 and n02)? Then the names mean hosts, too."""
        fashions = [FIGURES.sub("#", short(host)) for host in hosts]
        return all("#" in fashion and fashion in self.fashions for fashion in fashions)

    @cached_property
    def fashions(self) -> frozenset[str]:
        return frozenset(FIGURES.sub("#", host) for host in self.hosts)
