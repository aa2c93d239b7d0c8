"""Who never came, from what the ranks wrote to their logs: where there are no Flight Recorder dumps, and beside them.

Only a rank that has entered a collective can report it, so reporters are witnesses and the members that did not report
are the suspects. A rank that only "observed" another rank's dump signal is alive and has nothing
overdue itself. A silent rank is a suspect only if it is known to exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from nccl_forensics import catalog
from nccl_forensics.catalog import kinds_marked
from nccl_forensics.model import Event, Evidence, GroupState, Reconstruction, Suspect, Wait, number, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, say, say_many
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


@dataclass(slots=True)
class _Stuck:
    """The reports of one (group, sequence number)."""

    name: str | None
    desc: str | None
    seq: int | None
    reports: dict[int, Event] = field(default_factory=dict)
    enqueued: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)


def reporter(event: Event) -> int | None:
    """The rank that wrote this line: its global rank, else (old releases write no other) its rank in the group."""
    return event.rank if event.rank is not None else number(event, "group_rank")


SPOKE = kinds_marked("complains")
"""Kinds in which a rank complains: victims until shown otherwise."""


def reporting_ranks(events: Iterable[Event]) -> tuple[int, ...]:
    """Ranks that complained, sorted."""
    found = set()
    for event in events:
        if event.kind in SPOKE:
            rank = reporter(event)
            for key in ("at_rank", "waiting_rank", "reached_rank"):
                if rank is None:
                    rank = number(event, key)
            if rank is None and event.kind == "pgw-mismatch":
                rank = number(event, "rank_a")
            if rank is None and event.kind == "monitored-barrier":
                rank = 0  # only rank 0 writes that line
            if rank is not None:
                found.add(rank)
    return tuple(sorted(found))


def waiting_ranks(events: Iterable[Event]) -> tuple[int, ...]:
    """Ranks that timed out in a collective before anything of their own went wrong, sorted: these are cleared by it."""
    waited: set[int] = set()
    failed: set[int] = set()
    for event in events:
        rank = reporter(event)
        if rank is None:
            continue
        if event.kind in ("watchdog-timeout", "pg-blocking", "gloo-wait", "store-wait") and rank not in failed:
            waited.add(rank)
        elif event.role == "cause":
            failed.add(rank)
    return tuple(sorted(waited))


def _reports(events: Sequence[Event]) -> list[Event]:
    """The lines by which ranks say that they wait in a collective: the plainest form that is there, rank by rank.

    A status line stands beside a timeout; alone (a log that was filtered) it says the same. Gloo's words name neither
    group nor number, and count only where NCCL's watchdog is silent.
    """
    found = [e for e in events if e.kind in ("watchdog-timeout", "pg-blocking")]
    spoke = {reporter(e) for e in found}
    for event in events:
        if event.kind == "pg-status" and reporter(event) not in spoke:
            seq, completed = number(event, "seq"), number(event, "completed")
            if seq is not None and (completed is None or completed < seq):
                found.append(event)
    return found or [e for e in events if e.kind == "gloo-wait"]


def _stuck(events: Sequence[Event]) -> list[_Stuck]:
    names: dict[tuple[str, int | None, int | None], tuple[str | None, str | None]] = {}
    for event in events:
        if event.kind == "pg-status":
            key = (event.evidence.source, reporter(event), number(event, "seq"))
            names[key] = (text(event, "pg_name"), text(event, "pg_desc"))
    found: dict[tuple[str | None, str | None, int | None], _Stuck] = {}
    timeouts = _reports(events)
    for event in sorted(timeouts, key=lambda e: bool(e.details.get("repeated"))):
        rank, seq = reporter(event), number(event, "seq")
        if rank is None:
            continue
        name, desc = names.get((event.evidence.source, rank, seq), (text(event, "pg_name"), text(event, "pg_desc")))
        if name is None and seq is not None:
            shared = {v for k, v in names.items() if k[2] == seq and v[0] is not None}
            if len(shared) == 1:
                name, desc = next(iter(shared))
        stuck = found.setdefault((name, desc, seq), _Stuck(name, desc, seq))
        stuck.reports.setdefault(rank, event)
    for event in events:
        if event.kind != "pg-status":
            continue
        rank = reporter(event)
        for stuck in found.values():
            if (
                stuck.seq == number(event, "seq")
                and rank in stuck.reports
                and stuck.name in (None, text(event, "pg_name"))
            ):
                if (enqueued := number(event, "enqueued")) is not None:
                    stuck.enqueued[rank] = enqueued
                if (completed := number(event, "completed")) is not None:
                    stuck.completed[rank] = completed
    return list(found.values())


def _started_ns(event: Event) -> int | None:
    """When the reporter entered the collective: the line's time less the time it waited."""
    waited = number(event, "waited_ms")
    return event.time_ns - waited * MILLISECOND if event.time_ns is not None and waited is not None else None


def _world(events: Sequence[Event], known: Identities) -> tuple[int | None, bool]:
    """(number of ranks, does a log state it?). Without a statement: one more than the highest rank that is seen.

    None where the ranks that are seen are too few to tell (Identities.size).
    """
    if known.world_size:
        return known.world_size, True
    seen = {e.rank for e in events} | {reporter(e) for e in _reports(events)}
    return known.size(r for r in seen if r is not None), False


def _state(
    stuck: _Stuck, members: tuple[int, ...], stated: bool, missing: tuple[int, ...], no_data: tuple[int, ...]
) -> GroupState:
    first = next(iter(stuck.reports.values()))
    op = Counter(text(e, "op") for e in stuck.reports.values()).most_common(1)[0][0]
    starts = [s for e in stuck.reports.values() if (s := _started_ns(e)) is not None]
    return GroupState(
        name=stuck.name,
        description=stuck.desc,
        backend="gloo" if first.kind == "gloo-wait" else "nccl",
        members=members,
        members_at_least=bool(members) and not stated,
        op=OPS.get(op or "", op.lower() if op else None),
        seq=stuck.seq,
        numel_in=number(first, "numel_in"),
        numel_out=number(first, "numel_out"),
        timeout_ms=number(first, "timeout_ms"),
        arrived=tuple(sorted(stuck.reports)),
        missing=missing,
        no_data=no_data,
        first_arrival_ns=min(starts, default=None),
        last_arrival_ns=max(starts, default=None),
    )


def reconstruct(events: Sequence[Event], known: Identities) -> Reconstruction:
    """Groups, suspects and waits as far as the lines tell. `events` are attributed and aligned."""
    groups: list[GroupState] = []
    suspects: list[Suspect] = []
    waits: list[Wait] = []
    cleared: dict[int, str] = {}
    stuck = _stuck(events)
    world, stated = _world(events, known)
    reporters = {r for s in stuck for r in s.reports}
    observed = {e.rank: e for e in events if e.kind in ("pg-observed", "pg-dump-remote") and e.rank is not None}
    alive = {
        e.rank for e in events if e.rank is not None and e.kind != "inspector-comm" and not e.relayed
    }  # whose log is here
    late = _spoke_late(events)
    cannot: set[int] = set()

    def rank_of(s: _Stuck) -> tuple[int, bool, int]:
        # Sub-groups before the group of all: whoever misses in a step's own group holds up the barrier behind it too.
        starts = [x for e in s.reports.values() if (x := _started_ns(e)) is not None]
        begun = min(starts, default=0) // STEP_NS
        return (begun, s.desc == "default_pg" or s.name in DEFAULT, -len(s.reports))

    for s in sorted(stuck, key=rank_of):
        mixed = _mixed(s)
        everyone = not (mixed and s.name is None and s.desc is None) and (s.desc == "default_pg" or s.name in DEFAULT)
        members = tuple(range(world)) if everyone and world else ()
        absent = tuple(r for r in members if r not in s.reports)
        missing = tuple(r for r in absent if r in alive and r not in reporters)
        silent = tuple(r for r in absent if r not in alive)
        groups.append(_state(s, members, stated, missing, silent))
        seen = tuple(e.evidence for e in list(s.reports.values())[:3])
        what = _what(groups[-1])
        if members and absent:
            for rank in s.reports:
                waits.append(
                    Wait(
                        waiter=rank,
                        waited=absent,
                        why=say("waits in {what}", what=what),
                        group=s.name or s.desc,
                        seq=s.seq,
                    )
                )
        if not mixed:
            suspects += _content(s, seen)
        if _lone(s, events, reporters, world):
            rank = next(iter(s.reports))
            suspects.append(
                Suspect(
                    ranks=(rank,),
                    cause="collective_skipped",
                    weight=catalog.weight("lone_waiter"),
                    says=say(
                        "Only rank {rank} waits in {what}, and the other ranks had ended their work: rank {rank} "
                        "made one call that nobody else makes.",
                        rank=rank,
                        what=what,
                    ),
                    group=groups[-1],
                    evidence=seen,
                    details={"extra": True},
                )
            )
            continue
        few = max(1, OUTLIERS * len(members))
        if groups[-1].backend == "gloo" and len(absent) > few:
            cannot |= set(members)  # it says neither where it waits nor whether in a send or a collective
        elif missing and len(missing) + len(silent) > few and silent:
            cannot |= set(missing) | set(silent)  # half a job that says nothing is a partition, not a list of culprits
        elif missing or (silent and len(silent) <= few):
            blame = missing or silent
            told = [observed[r].evidence for r in blame if r in observed]
            weight = catalog.weight("late_and_told" if told else "late_and_logged" if missing else "late_and_silent")
            started = all(known.existed(r) for r in blame)
            if not stated and not missing and not started:
                weight += catalog.weight("world_guessed")
            if missing and silent and not told:
                weight += catalog.weight("others_silent")
            if not missing and len(blame) > 1:
                weight += catalog.weight("log_not_collected")
            sign = (
                say("alive: the dump signal was answered, and nothing of its own was overdue")
                if told
                else _log_goes_on(blame, late) + say(", without such a report")
                if missing
                else say("no line of it was found, though it was started")
                if started and not stated and len(blame) == 1
                else say_many("no line of it was found", "no line of them was found", len(blame))
            )
            suspects.append(
                Suspect(
                    ranks=blame,
                    cause="rank_not_arrived",
                    weight=weight
                    if len(blame) <= max(1, OUTLIERS * len(members))
                    else weight + catalog.weight("too_many_late"),
                    says=say(
                        "{reports} waited in {what}; {blame} never entered it ({sign}).",
                        reports=phrases.ranks(s.reports).capitalize(),
                        what=what,
                        blame=phrases.ranks(blame),
                        sign=sign,
                    ),
                    group=groups[-1],
                    evidence=(*told[:2], *seen[:2]),
                    details={"silent": not missing},
                )
            )
            cannot |= set(silent) - set(blame)
        elif silent:
            cannot |= set(silent)
        elif not members:
            waiting = sorted(set(observed) - reporters)
            sub = [r for r in waiting if _could_belong(r, s)]
            if len(sub) == 1 and len(reporters) >= 3:
                rank = sub[0]
                suspects.append(
                    Suspect(
                        ranks=(rank,),
                        cause="rank_not_arrived",
                        weight=catalog.weight("only_one_told"),
                        says=say(
                            "{reporters} timed out; rank {rank} alone answered their dump signal without a timeout of "
                            "its own: alive, and late.",
                            reporters=phrases.ranks(reporters).capitalize(),
                            rank=rank,
                        ),
                        group=groups[-1],
                        evidence=(observed[rank].evidence, *seen[:2]),
                    )
                )
            else:
                cannot |= set(waiting)
    for group in groups:
        if group.backend == "gloo" and not suspects:
            cannot |= set(group.arrived)
        else:
            cleared |= dict.fromkeys(group.arrived, WITNESS)
    named = {r for s in suspects for r in s.ranks}
    return Reconstruction(
        groups=tuple(groups),
        suspects=tuple(suspects),
        waits=tuple(waits),
        cannot_exclude=tuple(sorted(cannot - named)),
        cleared=tuple((r, w) for r, w in sorted(cleared.items()) if r not in named),
        ranks_seen=tuple(sorted(r for r in alive if r is not None)),
    )


START_KINDS = kinds_marked("at-start")
"""Lines of a process's start, which tell nothing of how it ended."""


def _spoke_late(events: Sequence[Event]) -> set[int]:
    """Ranks of which a line stands behind, or is later than, the first report of a wait."""
    first = next((e for e in events if e.kind == "watchdog-timeout"), None)
    if first is None:
        return set()
    begun = _started_ns(first)
    return {
        e.rank
        for e in events
        if e.rank is not None
        and e.kind not in START_KINDS
        and (
            e.time_ns > begun
            if e.time_ns is not None and begun is not None
            else e.evidence.source == first.evidence.source and (e.evidence.line or 0) > (first.evidence.line or 0)
        )
    }


def _log_goes_on(ranks: Sequence[int], late: set[int]) -> str:
    one = len(ranks) == 1
    if set(ranks) <= late:
        return say("its log goes on") if one else say("their logs go on")
    return say("its log is here") if one else say("their logs are here")


def _could_belong(rank: int, s: _Stuck) -> bool:
    """Could this rank be in the group? Only said to be impossible where global and group ranks run in step."""
    pairs = [(r, g) for r, e in s.reports.items() if (g := number(e, "group_rank")) is not None]
    bases = {r - g for r, g in pairs}
    if len(bases) != 1 or len(pairs) < 2:
        return True
    base = bases.pop()
    return rank >= base and rank - base not in {g for _, g in pairs}


def _lone(s: _Stuck, events: Sequence[Event], reporters: set[int], world: int | None) -> bool:
    """One reporter, and every other rank that is known of finished its work in order."""
    if len(reporters) != 1 or len(s.reports) != 1:
        return False
    (rank,) = s.reports
    finished = {
        e.rank for e in events if e.kind == "progress" and e.details.get("what") == "finished" and e.rank != rank
    }
    others = set(range(world or 0)) - {rank}
    return bool(finished - {None}) and others <= finished


def _mixed(s: _Stuck) -> bool:
    """Old lines name no group: are these the reports of several, whose counters stand at the same number by chance?

    So it is if two ranks report the same place in "their" group, also where one status line per rank named it.
    """
    places = [g for e in s.reports.values() if e.rank is not None and (g := number(e, "group_rank")) is not None]
    return len(set(places)) < len(places)


def _content(s: _Stuck, seen: tuple[Evidence, ...]) -> list[Suspect]:
    """All came, but not with the same call: the minority by operation or size."""
    for key, word in (("op", say("operation")), ("numel_in", say("size")), ("numel_out", say("size"))):
        values = {r: e.details.get(key) for r, e in s.reports.items()}
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        (best, n), *rest = counts.most_common()
        odd = tuple(sorted(r for r, v in values.items() if v != best))
        tie = n == rest[0][1] or len(values) < 3
        evidence = tuple(s.reports[r].evidence for r in odd[:2]) + seen[:1]
        listed = joined((phrases.ranks(r for r in values if values[r] == v) + f": {v}" for v in counts), "; ")
        says = say(
            "All reporters wait at the same place, but not in the same {word} ({listed}).", word=word, listed=listed
        )
        shifted = None if tie else _shifted(s, odd)
        if shifted is not None:
            fewer = say("left one call out") if shifted < 0 else say("made one call more")
            return [
                Suspect(
                    ranks=odd,
                    cause="collective_skipped",
                    weight=catalog.weight("reports_shifted"),
                    says=say(
                        "{says} {odd} {fewer}: the number of calls made differs by one.",
                        says=says,
                        odd=phrases.ranks(odd).capitalize(),
                        fewer=fewer,
                    ),
                    group=None,
                    evidence=evidence,
                )
            ]
        wrong = Suspect(
            ranks=() if tie else odd,
            cause="collective_mismatch",
            weight=catalog.weight("reports_tied" if tie else "reports_differ"),
            says=says,
            group=None,
            evidence=evidence,
            details={"tie": tie},
        )
        if s.enqueued and not tie:  # the counters are there and equal: one call is wrong, none is missing
            return [wrong]
        # Without counters, or between two, a call that was left out looks the same.
        other = replace(wrong, cause="collective_skipped", weight=catalog.weight("reports_perhaps_shifted"))
        return [wrong, other]
    return []


def _shifted(s: _Stuck, odd: Sequence[int]) -> int | None:
    """By how many calls these ranks are off the others' count, if it is one and all are counted; else None."""
    rest = [n for r, n in s.enqueued.items() if r not in odd]
    mine = [s.enqueued.get(r) for r in odd]
    if len(rest) < 2 or len(set(rest)) > 1 or not mine or len(set(mine)) > 1 or mine[0] is None:
        return None
    by = mine[0] - rest[0]
    return by if abs(by) == 1 else None


def _what(group: GroupState) -> str:
    seq = say(" number {seq}", seq=group.seq) if group.seq is not None else ""
    name = group.description or group.name
    return (
        (group.op or say("a collective"))
        + seq
        + (say(" of group {name}", name=name) if name and name not in DEFAULT else "")
    )


WITNESS = say("entered the collective and waited in it: a reporter is a witness")


def _with_reports(group: GroupState, reports: Sequence[GroupState]) -> GroupState:
    """The same group with those who reported this very collective counted as arrived, dump or no dump."""
    for other in reports:
        names = {n for n in (other.name, other.description) if n}
        same = not names or group.name in names or group.description in names
        if other.backend != "gloo" and other.seq == group.seq and other.op == group.op and same:
            arrived = set(group.arrived) | {r for r in other.arrived if not group.members or r in group.members}
            return replace(
                group,
                arrived=tuple(sorted(arrived)),
                missing=tuple(r for r in group.missing if r not in arrived),
                no_data=tuple(r for r in group.no_data if r not in arrived),
            )
    return group


def merge(dumps: Reconstruction, text: Reconstruction) -> Reconstruction:
    """Dumps tell more than lines: their findings stand first; what only the lines tell is added."""
    if not dumps.groups and not dumps.counters and not dumps.suspects:
        return text
    spoke = {r for g in text.groups for r in g.arrived}
    # Whose dump is missing but whose report is here did enter: what its report says of the call counts instead.
    suspects = tuple(s for s in dumps.suspects if not (s.ranks and set(s.ranks) <= spoke and s.details.get("undumped")))
    late = {s.ranks for s in text.suspects if s.cause == "rank_not_arrived"}
    suspects = tuple(
        replace(s, weight=s.weight + catalog.weight("dump_lost_perhaps"))
        if s.details.get("undumped") and s.ranks not in late
        else s
        for s in suspects
    )
    groups = tuple(_with_reports(g, text.groups) for g in dumps.groups)
    # Who reported the very collective that the dumps are stuck in waited there; another report may be of a wrong call.
    stood = {r for old, new in zip(dumps.groups, groups, strict=True) for r in set(new.arrived) - set(old.arrived)}
    named = {r for s in suspects for r in s.ranks}
    open_ = {*dumps.cannot_exclude, *(r for s in dumps.suspects for r in s.ranks)} - named - stood
    return Reconstruction(
        groups=groups or text.groups,
        suspects=suspects + tuple(s for s in text.suspects if not suspects),
        waits=dumps.waits or text.waits,
        cannot_exclude=tuple(sorted(open_)),
        cleared=dumps.cleared + tuple(c for c in text.cleared if c[0] not in named | {r for r, _ in dumps.cleared}),
        counters=dumps.counters,
        ranks_seen=tuple(sorted(set(dumps.ranks_seen) | set(text.ranks_seen))),
        members=dumps.members,
        healthy=dumps.healthy and not text.groups,
        problems=dumps.problems + text.problems,
    )
