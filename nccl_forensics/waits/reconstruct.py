"""What the process groups were doing when a job stopped, from all who tell: dumps, watchdogs, NCCL Inspector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nccl_forensics.model import Event, Reconstruction
from nccl_forensics.recorder.timed import Timed
from nccl_forensics.waits import inspector, watchdogs
from nccl_forensics.waits.merge import merge
from nccl_forensics.who.identities import Identities


def from_dumps(dumps: Sequence[Any], known: Identities) -> Reconstruction:
    """What Flight Recorder dumps alone tell; nothing where there are none."""
    if not dumps:
        return Reconstruction()
    from nccl_forensics.waits import dumped  # numpy: only when there are dumps

    return dumped.reconstruct(dumps, expected_world=known.size())


def from_all(
    recorded: Reconstruction, events: Sequence[Event], timed: Iterable[Timed], known: Identities
) -> Reconstruction:
    """`recorded`, what dumps told, with what the logs' watchdogs say and who came last in Inspector's files."""
    told = merge(recorded, watchdogs.reconstruct(events, known))
    return inspector.with_lateness(told, timed, known)
