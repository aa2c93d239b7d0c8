"""What the ranks' lines say of their waits: which collectives they report, and who of a group reports which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.model import Event, Evidence, GroupState, number, text
from nccl_forensics.text.messages import say
from nccl_forensics.who.identities import Identities

MILLISECOND = 1_000_000
STEP_NS = 30_000 * MILLISECOND
"""Waits that begin within half a minute belong to one stall. Our judgement."""
OUTLIERS = 0.25
"""NCCL's own reports call ranks outliers only up to a quarter of the group (RAS)."""
OPS = {
    "ALLREDUCE": "all_reduce",
    "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "COALESCED": "coalesced",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "REDUCE": "reduce",
    "SEND": "send",
    "RECV": "recv",
    "BARRIER": "barrier",
}
"""ProcessGroupNCCL's OpType as the log spells it → the profiling name."""
DEFAULT = {"0", "default_pg", "", None}
"""Names under which the default group, of all ranks, appears."""


def reporter(event: Event) -> int | None:
    """The global rank that wrote this line; a number in a group is one only where `who` has shown it."""
    return event.rank


def started_ns(event: Event) -> int | None:
    """When the reporter entered the collective: the line's time less the time it waited."""
    waited = number(event, "waited_ms")
    return event.time_ns - waited * MILLISECOND if event.time_ns is not None and waited is not None else None


@dataclass(frozen=True, slots=True)
class Stuck:
    """The reports of one collective: of one group and sequence number."""

    name: str | None
    """Of the group."""
    desc: str | None
    seq: int | None
    reports: Mapping[int, Event]
    """Reporter → its line, the first that is not a repetition."""
    enqueued: Mapping[int, int]
    """Reporter → how many calls it had made, where its status line tells."""

    @property
    def is_of_all(self) -> bool:
        """By its name, the group is that of all ranks."""
        return self.desc == "default_pg" or self.name in DEFAULT

    @property
    def is_mixed(self) -> bool:
        """Old lines name no group: are these the reports of several, whose counters stand at the same number by chance?

        So it is if two ranks report the same place in "their" group, also where one status line per rank named it.
        """
        reports = [e for e in self.reports.values() if e.rank is not None]
        places = [g for e in reports if (g := number(e, "group_rank")) is not None]
        return len(set(places)) < len(places)

    @property
    def entered_ns(self) -> list[int]:
        """When the reporters entered, of those whose lines tell."""
        return [t for e in self.reports.values() if (t := started_ns(e)) is not None]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(e.evidence for e in list(self.reports.values())[:3])

    @property
    def place(self) -> tuple[int, bool, int]:
        """Sub-groups before the group of all: whoever misses in a step's own group holds up the barrier behind it too.

        Earlier stalls come before, and groups with more reports.
        """
        return min(self.entered_ns, default=0) // STEP_NS, self.is_of_all, -len(self.reports)

    def could_have(self, rank: int) -> bool:
        """Could this rank be in the group? Only said to be impossible where global and group ranks run in step."""
        pairs = [(r, g) for r, e in self.reports.items() if (g := number(e, "group_rank")) is not None]
        bases = {r - g for r, g in pairs}
        if len(bases) != 1 or len(pairs) < 2:
            return True
        (base,) = bases
        return rank >= base and rank - base not in {g for _, g in pairs}


def waiting_lines(events: Sequence[Event]) -> list[Event]:
    """The lines by which ranks say that they wait in a collective: the plainest form that is there, rank by rank.

    A status line stands beside a timeout; alone (a log that was filtered) it says the same. Gloo's words name neither
    group nor number, and count only where NCCL's watchdog is silent.
    """
    found = [e for e in events if e.kind in ("watchdog-timeout", "pg-blocking")]
    spoke = {reporter(e) for e in found}
    found += [e for e in _statuses(events) if reporter(e) not in spoke and _is_open(e)]
    return found or [e for e in events if e.kind == "gloo-wait"]


def _statuses(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if e.kind == "pg-status"]


def _is_open(status: Event) -> bool:
    """The rank has not completed the collective that its status line names."""
    seq, completed = number(status, "seq"), number(status, "completed")
    return seq is not None and (completed is None or completed < seq)


Name = tuple[str | None, str | None]
"""A group's name and description."""


def stuck_in(events: Sequence[Event], lines: Iterable[Event]) -> list[Stuck]:
    """The collectives that `lines` report, with what status lines add: a group's name, and counters."""
    statuses = _statuses(events)
    name_of = _Names.of(statuses)
    found: dict[tuple[Name, int | None], dict[int, Event]] = {}
    for event in sorted(lines, key=lambda e: bool(e.details.get("repeated"))):
        rank, seq = reporter(event), number(event, "seq")
        if rank is not None:
            found.setdefault((name_of.group(event, rank, seq), seq), {}).setdefault(rank, event)
    return [
        Stuck(name, desc, seq, reports, _enqueued(statuses, name, seq, reports.keys()))
        for ((name, desc), seq), reports in found.items()
    ]


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of groups that status lines tell; timeouts of old releases tell none."""

    by_report: Mapping[tuple[str, int | None, int | None], Name]
    """(file, reporter, sequence number) → the group."""
    by_seq: Mapping[int | None, set[Name]]
    """Sequence number → the groups that any status line names beside it."""

    @classmethod
    def of(cls, statuses: Iterable[Event]) -> _Names:
        by_report: dict[tuple[str, int | None, int | None], Name] = {}
        for event in statuses:
            at = event.evidence.source, reporter(event), number(event, "seq")
            by_report[at] = text(event, "pg_name"), text(event, "pg_desc")
        by_seq: dict[int | None, set[Name]] = defaultdict(set)
        for (_, _, seq), name in by_report.items():
            if name[0] is not None:
                by_seq[seq].add(name)
        return cls(by_report, by_seq)

    def group(self, event: Event, rank: int, seq: int | None) -> Name:
        own = text(event, "pg_name"), text(event, "pg_desc")
        name = self.by_report.get((event.evidence.source, rank, seq), own)
        others = self.by_seq.get(seq, set())
        if name[0] is None and seq is not None and len(others) == 1:
            return next(iter(others))
        return name


def _enqueued(statuses: Iterable[Event], name: str | None, seq: int | None, reporters: Iterable[int]) -> dict[int, int]:
    """Reporter → how many calls it had made by its last status line of this collective."""
    wanted, found = set(reporters), {}
    for status in statuses:
        rank, enqueued = reporter(status), number(status, "enqueued")
        of_this = number(status, "seq") == seq and name in (None, text(status, "pg_name"))
        if rank in wanted and enqueued is not None and of_this:
            found[rank] = enqueued
    return found


@dataclass(frozen=True, slots=True)
class Reports:
    """What all lines together say."""

    stuck: tuple[Stuck, ...]
    """The collectives that are reported, the one that explains most first."""
    reporters: frozenset[int]
    known: Identities
    world: int | None
    """How many ranks there are; None: nothing tells."""
    world_stated: bool
    """A log states it."""
    logged: frozenset[int]
    """Ranks whose log is here."""
    late: frozenset[int]
    """Ranks of which a line is later than the first report of a wait."""
    answered: Mapping[int, Event]
    """Rank → the line by which it answered the others' dump signal: alive, and nothing of its own is overdue."""
    finished: frozenset[int]
    """Ranks that say that they finished their work."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """Who came to a collective in which somebody waits, and who did not."""

    stuck: Stuck
    state: GroupState
    """Its row of the report. `missing`: members whose log is here without a report; `no_data`: those without a log."""

    @property
    def absent(self) -> tuple[int, ...]:
        """All members that do not report it: also those that report another collective."""
        return tuple(r for r in self.state.members if r not in self.stuck.reports)

    @property
    def few(self) -> float:
        """So many of its members, and no more, can be outliers."""
        return max(1, OUTLIERS * len(self.state.members))

    @property
    def what(self) -> str:
        """The collective, for a sentence: 'all_reduce number 42 of group tp'."""
        group = self.state
        seq = say(" number {seq}", seq=group.seq) if group.seq is not None else ""
        name = group.description or group.name
        of_group = say(" of group {name}", name=name) if name and name not in DEFAULT else ""
        return (group.op or say("a collective")) + seq + of_group


def attendance(reports: Reports, stuck: Stuck) -> Attendance:
    unnamed = stuck.is_mixed and stuck.name is None and stuck.desc is None
    members = tuple(range(reports.world or 0)) if stuck.is_of_all and not unnamed else ()
    silent = tuple(r for r in members if r not in reports.logged and r not in stuck.reports)
    missing = tuple(r for r in members if r in reports.logged and r not in reports.reporters)
    return Attendance(stuck, _state(stuck, members, reports.world_stated, missing, silent))


def _state(
    stuck: Stuck, members: tuple[int, ...], stated: bool, missing: tuple[int, ...], no_data: tuple[int, ...]
) -> GroupState:
    first = next(iter(stuck.reports.values()))
    op = Counter(text(e, "op") for e in stuck.reports.values()).most_common(1)[0][0]
    return GroupState(
        name=stuck.name,
        description=stuck.desc,
        backend="gloo" if first.kind == "gloo-wait" else "nccl",
        members=members,
        members_at_least=bool(members) and not stated,
        op=OPS.get(op, op.lower()) if op else None,
        seq=stuck.seq,
        numel_in=number(first, "numel_in"),
        numel_out=number(first, "numel_out"),
        timeout_ms=number(first, "timeout_ms"),
        arrived=tuple(sorted(stuck.reports)),
        missing=missing,
        no_data=no_data,
        first_arrival_ns=min(stuck.entered_ns, default=None),
        last_arrival_ns=max(stuck.entered_ns, default=None),
    )
