"""The board's own controller: temperatures, fans, voltages and supplies at the moment it was asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Finding, text
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import if_known, rule
from nccl_forensics.verdict.rules.evidence_subjects import Subjects, only_beside


@rule
def board_sensors(case: Case) -> Iterator[Finding]:
    """The board's controller shows a critical temperature, fan, voltage or supply at the moment it was asked."""
    who = case.once(Subjects.of)
    groups: dict[tuple[str, str | None], list[Event]] = defaultdict(list)
    for event in case.of("bmc-sensor"):
        if event.role == "symptom" and event.cause:
            groups[event.cause, who.host(event)].append(event)
    for (cause, host), lines in groups.items():
        names = phrases.listing([text(e, "sensor") or "a sensor" for e in lines][:4])
        yield Finding(
            cause=cause,
            says=say(
                "The BMC{of_host} shows {names} beyond its limits ({text})",
                of_host=say(" of {host}", host=host) if host else "",
                names=names,
                text=lines[0].evidence.text[:100].strip(),
            ),
            weight=weight("beside") if only_beside(case) else weight("board_limit"),
            hosts=() if only_beside(case) else if_known(host),
            events=tuple(lines[:3]),
        )
