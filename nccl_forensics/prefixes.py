"""Takes off, layer by layer, what collectors, launchers and loggers put before a message; each layer gives its time
and identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nccl_forensics.model import Stamp

if TYPE_CHECKING:
    from nccl_forensics.scan import Line


@dataclass(slots=True)
class Peeled:
    """A line without its prefixes, and what they said."""

    text: str
    """The message; ANSI colours are gone."""
    stamp: Stamp | None = None
    """The innermost time before the message: the clock of the program that wrote it."""
    outer: Stamp | None = None
    """The collector's own time (CRI, docker, syslog relay), where there is one besides."""
    rank: int | None = None
    """Global rank: only from `[rankN]:` of PyTorch >= 2.2, Ray/vLLM's rank= and the like."""
    local_rank: int | None = None
    """From torchrun's `[defaultN]:`."""
    task: int | None = None
    """From `srun --label` or mpirun's tags: a global rank only with one process per task."""
    host: str | None = None
    pid: int | None = None
    program: str | None = None
    """Syslog identifier ('kernel', 'systemd') or the like."""
    pod: str | None = None


def peel(line: Line) -> Peeled:
    return Peeled(line.raw.decode("utf-8", "backslashreplace"))
