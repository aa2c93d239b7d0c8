"""What the dumps of a job show, taken together: the facts that the detectors judge, each worked out once."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import cached_property

from nccl_forensics.recorder.groups import Key
from nccl_forensics.waits.circles import Edges, edges_of
from nccl_forensics.waits.job import Job
from nccl_forensics.waits.mismatch import Mismatch, mismatches_of
from nccl_forensics.waits.order import Before, by_program, called_before, coming_groups
from nccl_forensics.waits.owed import Owed, owed_by
from nccl_forensics.waits.queues import Queues, queues_of
from nccl_forensics.waits.standing import Standing

OUTLIERS = 0.25
"""Ranks behind the others mean something while they are few; NCCL's own reports (RAS) draw the line at a quarter."""


@dataclass(frozen=True, eq=False)
class Picture:
    """Nothing here changes: a fact is worked out when it is first asked for, and stays."""

    job: Job

    # what stands open

    @cached_property
    def owed(self) -> tuple[Owed, ...]:
        """Sends and receives that were posted and never met."""
        return tuple(owed_by(self.job))

    @cached_property
    def nothing_is_open(self) -> bool:
        """By the dumps that are here, no collective is stuck and nothing is owed."""
        return not self.job.stuck and not self.owed

    @cached_property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Groups whose members entered the stuck place with different calls."""
        return tuple(mismatches_of(self.job))

    @cached_property
    def joint(self) -> tuple[Standing, ...]:
        """Groups in which every member has entered the stuck operation, the first in the programs first."""
        return self.by_program(x for x in self.job.stuck if not x.waited and len(x.arrived) > 1)

    @cached_property
    def queues(self) -> Queues:
        """What stands first in each rank's queue."""
        return queues_of(self.job, self.owed)

    # who waits for whom

    @cached_property
    def edges(self) -> Edges:
        """Waiter → those it waits for."""
        return edges_of(self.job, self.owed)

    @cached_property
    def waited(self) -> frozenset[int]:
        """Ranks that somebody waits for."""
        return frozenset(x for targets in self.edges.values() for x in targets)

    @cached_property
    def missing(self) -> frozenset[int]:
        """Ranks with a dump that have not entered a stuck collective of theirs."""
        return frozenset(x for group in self.job.stuck for x in group.missing)

    @cached_property
    def blocked(self) -> frozenset[int]:
        """Ranks that do not get on: they wait for somebody, or stand in what nobody has completed."""
        return frozenset({*self.edges, *(x for group in self.job.stuck for x in group.blocked)})

    @cached_property
    def unknown(self) -> frozenset[int]:
        """Members of stuck groups whose dump cannot tell whether they have entered."""
        return frozenset(x for group in self.job.stuck for x in group.unknown)

    @cached_property
    def behind(self) -> tuple[int, ...]:
        """Ranks that have not seen the end of what all their peers completed."""
        return tuple(sorted({x for group in self.job.groups.values() for x in group.lagging}))

    @cached_property
    def few_are_behind(self) -> bool:
        """Had operations still been completing, each rank would have seen another part of them."""
        ranks = len(self.job.dumps)
        return ranks > 2 and len(self.behind) <= max(1, OUTLIERS * ranks)

    # the ends of the chains of waits

    @cached_property
    def culprits(self) -> tuple[int, ...]:
        """Ranks with a dump that others wait for and that wait for nobody themselves; else those that are behind.

        A rank whose GPU hangs keeps its later operations pending, and looks as if it waited.
        """
        late = self.missing | {x.ower for x in self.owed}
        free = (self.waited & late & self.job.dumps.keys()) - self.blocked
        sinks = tuple(sorted(x for x in free if not self.job.histories[x].ends_blind))
        return sinks or tuple(x for x in self.behind if x in self.waited)

    @cached_property
    def dark(self) -> tuple[int, ...]:
        """Where somebody waits: the ranks for whom others wait, and of whom no dump tells what they do."""
        absent = self.waited - self.job.dumps.keys()
        return tuple(sorted(absent | self.unknown)) if self.waited else ()

    @cached_property
    def perhaps_blocked(self) -> tuple[int, ...]:
        """Ranks that others wait for and that may stand in a send or receive which their backend shows as over."""
        here = self.waited & self.job.dumps.keys()
        return tuple(sorted(x for x in here if self.job.histories[x].ends_blind))

    # in which order

    @cached_property
    def stuck(self) -> tuple[Standing, ...]:
        """The groups in which somebody waits, the first in the programs first."""
        return self.by_program(self.job.stuck)

    def by_program(self, groups: Iterable[Standing]) -> tuple[Standing, ...]:
        """Those groups with the one first whose stuck operation comes first in the members' programs."""
        return tuple(by_program(groups, self._called_before, self._coming))

    def missing_any(self, ranks: Iterable[int]) -> tuple[Standing, ...]:
        """Groups in which some of these ranks are missing, the first in the programs first."""
        wanted = set(ranks)
        return self.by_program(x for x in self.job.stuck if wanted & set(x.missing))

    @cached_property
    def _called_before(self) -> Before:
        return called_before(self.job)

    @cached_property
    def _coming(self) -> Set[Key]:
        return coming_groups(self.job, self.missing - self.edges.keys())
