"""What dumps and lines tell together: dumps tell more, so their findings stand first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nccl_forensics import catalog
from nccl_forensics.model import GroupState, Reconstruction, Suspect


def merge(dumps: Reconstruction, lines: Reconstruction) -> Reconstruction:
    """Dumps tell more than lines: their findings stand first; what only the lines tell is added."""
    if not dumps.groups and not dumps.counters and not dumps.suspects:
        return lines
    suspects = _suspects(dumps, lines)
    groups = tuple(_with_reports(group, lines.groups) for group in dumps.groups)
    named = _named(suspects)
    open_to = {*dumps.cannot_exclude, *_named(dumps.suspects)} - named - _came_after_all(dumps.groups, groups)
    told_by_dumps = named | {rank for rank, _ in dumps.cleared}
    return Reconstruction(
        groups=groups or lines.groups,
        suspects=suspects or lines.suspects,
        waits=dumps.waits or lines.waits,
        cannot_exclude=tuple(sorted(open_to)),
        cleared=dumps.cleared + tuple((rank, why) for rank, why in lines.cleared if rank not in told_by_dumps),
        counters=dumps.counters,
        ranks_seen=tuple(sorted({*dumps.ranks_seen, *lines.ranks_seen})),
        members=dumps.members,
        healthy=dumps.healthy and not lines.groups,
        problems=dumps.problems + lines.problems,
    )


def _named(suspects: Sequence[Suspect]) -> set[int]:
    return {rank for suspect in suspects for rank in suspect.ranks}


def _suspects(dumps: Reconstruction, lines: Reconstruction) -> tuple[Suspect, ...]:
    """The dumps' own. One that only left no dump did enter if its report is here: what that says counts instead."""
    spoke = {r for group in lines.groups for r in group.arrived}
    late = {s.ranks for s in lines.suspects if s.cause == "rank_not_arrived"}
    kept = []
    for suspect in dumps.suspects:
        undumped = bool(suspect.details.get("undumped"))
        if undumped and suspect.ranks and spoke >= set(suspect.ranks):
            continue
        if undumped and suspect.ranks not in late:
            suspect = replace(suspect, weight=suspect.weight + catalog.weight("dump_lost_perhaps"))
        kept.append(suspect)
    return tuple(kept)


def _with_reports(group: GroupState, reports: Sequence[GroupState]) -> GroupState:
    """The same group with those who reported this very collective counted as arrived, dump or no dump."""
    report = next((x for x in reports if _is_same_collective(group, x)), None)
    if report is None:
        return group
    arrived = {*group.arrived, *(r for r in report.arrived if not group.members or r in group.members)}
    return replace(
        group,
        arrived=tuple(sorted(arrived)),
        missing=tuple(r for r in group.missing if r not in arrived),
        no_data=tuple(r for r in group.no_data if r not in arrived),
    )


def _is_same_collective(group: GroupState, report: GroupState) -> bool:
    """Old lines name no group: then number and operation must do. Gloo's tell neither."""
    names = {n for n in (report.name, report.description) if n}
    same_group = not names or group.name in names or group.description in names
    return report.backend != "gloo" and report.seq == group.seq and report.op == group.op and same_group


def _came_after_all(before: Sequence[GroupState], after: Sequence[GroupState]) -> set[int]:
    """Ranks that reported the very collective that the dumps are stuck in: another report may be of a wrong call."""
    return {r for old, new in zip(before, after, strict=True) for r in set(new.arrived) - set(old.arrived)}
