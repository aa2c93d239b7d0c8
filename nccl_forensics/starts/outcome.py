"""What the starts of a job come to: their tables of ranks, what failed each time, and what a new start cost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from nccl_forensics.model import Event, Incident, Problem, text
from nccl_forensics.names import same_host
from nccl_forensics.starts.runs import MOST_SPANS, Span
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.text.moments import SECOND, is_dated, moment
from nccl_forensics.who.identities import Identities, Place


def places(own: Sequence[Identities], whole: Identities) -> list[Identities]:
    """The table of each span, with what only the whole pile tells of ranks that stayed where they were.

    Launchers may give a rank to another node at each start; process numbers are new at each.
    """
    hosts: dict[int, list[str]] = defaultdict(list)
    for known in own:
        for rank, place in known.ranks.items():
            if place.host:
                hosts[rank].append(place.host)
    stayed = {rank for rank in whole.ranks if all(same_host(a, b) for a, b in pairwise(hosts[rank]))}
    made = []
    for known in own:
        ranks = dict(known.ranks)
        for rank in sorted(stayed):
            mine, other = ranks.get(rank, Place()), whole.ranks[rank]
            if same_host(mine.host or other.host, other.host):
                ranks[rank] = _filled(mine, other)
        size = known.world_size or whole.world_size
        made.append(replace(known, ranks=ranks, world_size=size, gpus=whole.gpus))
    return made


def _filled(mine: Place, other: Place) -> Place:
    """A rank's place with what another statement knows, but for its process."""
    local_rank = mine.local_rank if mine.local_rank is not None else other.local_rank
    return Place(mine.host or other.host, local_rank, mine.pid, mine.gpu or other.gpu)


def left_out(spans: Sequence[Span]) -> list[Problem]:
    """A word on the starts that make no incident, but for one behind an incident, which `together` tells of."""
    said = []
    if old := sum(s.failed and not s.kept for s in spans):
        says = say_many(
            "{n} earlier failure of the job was left out: the analysis is about the newest {most}. `--until` takes you "
            "back to it.",
            "{n} earlier failures of the job were left out: the analysis is about the newest {most}. `--until` takes "
            "you back to them.",
            old,
            n=old,
            most=MOST_SPANS,
        )
        said.append(Problem(says=says))
    ran_on = spans[-1] if any(s.failed for s in spans) else None
    healthy = [(s, s.began) for s in spans if not s.failed and s.began is not None and s is not ran_on]
    for span, began in healthy[-MOST_SPANS:]:
        says = say("A start of the job{when} shows no failure: it is no incident.", when=_at(span))
        said.append(Problem(says=says, source=began.evidence.source))
    return said


def _at(span: Span) -> str:
    """', at 2026-04-22 01:14:17 UTC,', or nothing."""
    return say(", at {time},", time=moment(span.began_ns)) if span.began_ns is not None else ""


def cost(incident: Incident, span: Span, after: Span | None) -> Incident:
    """The incident with what a new start costs: the time until the job made a step again, and the work since the last.

    `after`: the span behind it. An attempt that saved no checkpoint of its own lost all that it did, and waits for what
    broke before it began from its own beginning.
    """
    known: dict[str, float | None] = dict.fromkeys(("lost_work_s", "detection_s", "restart_s", "gpu_hours"))
    known |= incident.cost or {}
    onset, detected = incident.onset_ns, incident.detected_ns
    if after is not None and after.attempt != 0 and after.began is not None:
        known["restart_s"] = _between(_ended(incident, after.began), after.stepped_ns)
    if known["lost_work_s"] is None and span.attempt:
        known["lost_work_s"] = _between(span.stepped_ns, onset if onset is not None else detected)
    waited, own = known["detection_s"], _between(span.began_ns, detected)
    if waited and own is not None and own < waited:
        hours = known["gpu_hours"]
        known |= {"detection_s": own, "gpu_hours": None if hours is None else round(hours * own / waited, 2)}
    return replace(incident, cost=known) if any(v is not None for v in known.values()) else incident


def _ended(incident: Incident, began: Event) -> int | None:
    """When the launcher gave up, as the line tells that shows the next start, else as the incident does."""
    if began.kind == "restart":
        return began.time_ns
    return incident.ended_ns if incident.ended_ns is not None else incident.detected_ns


def _between(old: int | None, new: int | None) -> float | None:
    """Seconds, where both are known and in order."""
    if old is None or new is None or new < old or is_dated(old) != is_dated(new):
        return None
    return (new - old) / SECOND


def together(incidents: Sequence[Incident], spans: Sequence[Span], end: Span) -> list[Incident]:
    """The incidents, the last one with a word on the others and on what came after it.

    Was it one cause each time, is no start left, did the job run on? `incidents` and `spans` belong together, one by
    one; `end` is the last span, failed or not.
    """
    made = list(incidents)
    if not made:
        return made
    last, blamed = spans[-1], [_named(i) for i in _of_last_run(incidents, spans)]
    says = [*_restarts_left(last), *_each_time(blamed)]
    if not end.failed:
        says.append(say("Its last start{when} shows no failure.", when=_at(end)))
    if says:
        alike = len(set(blamed)) == 1 and blamed[0] is not None
        shown = last.began if end.failed else end.began
        row = {
            "cause": made[-1].verdict.cause if alike else "undetermined",
            "kind": "restarts",
            "says": joined(says, " "),
            "source": shown.evidence.source if shown is not None else None,
            "line": shown.evidence.line if shown is not None else None,
        }
        made[-1] = replace(made[-1], contributing=(*made[-1].contributing, row))
    return made


def _of_last_run(incidents: Sequence[Incident], spans: Sequence[Span]) -> Sequence[Incident]:
    """Those since the launcher itself was started last."""
    first = len(spans) - 1
    while first and spans[first].attempt != 0:
        first -= 1
    return incidents[first:]


def _restarts_left(last: Span) -> Iterator[str]:
    if last.restarts is not None and last.restarts[0] == 0:
        of = last.restarts[1]
        yield say_many("The one restart was used up.", "All {n} restarts were used up.", of, n=of)


def _each_time(blamed: Sequence[object | None]) -> Iterator[str]:
    """What is blamed at each failure of a run; None: nothing."""
    times = len(blamed)
    if times < 2:
        return
    if len(set(blamed)) > 1:
        yield say("The job failed {n} times, and not each time for the same cause.", n=times)
    elif blamed[0] is None:
        yield say("The job failed {n} times; the logs do not tell why.", n=times)
    else:
        yield say(
            "The job failed {n} times, each time for the same cause: what broke it stays until it is mended.", n=times
        )


def _named(incident: Incident) -> object | None:
    """What a verdict blames: the cause, and the cards, else the ranks and hosts; None if it names nothing."""
    verdict = incident.verdict
    if verdict.cause == "undetermined":
        return None
    cards = tuple(sorted(f"{g.host} {g.pci}" for g in verdict.gpus if g.pci))
    words = _exception(incident) if verdict.cause == "python_exception" else ""
    return verdict.cause, cards or (verdict.ranks, () if words else verdict.hosts), words


def _exception(incident: Incident) -> str:
    """What the first exception among the evidence says, without figures, which differ from one time to the next."""
    evidence = (e for f in incident.verdict.evidence for e in f.events if e.kind == "python-exception")
    raised = next(evidence, None)
    return re.sub(r"[\d.]+", "", f"{text(raised, 'type')} {text(raised, 'message')}") if raised is not None else ""
