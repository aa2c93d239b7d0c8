"""What one detector concludes, and how much a conclusion from dumps weighs."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_forensics.model import Suspect
from nccl_forensics.waits.standing import Standing

CLEAN, GAPS, WEAK = 3.5, 2.0, 1.0
"""Log-odds of a finding: all dumps are there and agree; some are missing or cut; a hint. Judgements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An answer to the question who holds the others up. With neither suspects nor `healthy`: nobody can tell."""

    suspects: tuple[Suspect, ...] = ()
    groups: tuple[Standing, ...] = ()
    """Those that it speaks of, in the order in which the report shows them, before all others."""
    cannot_exclude: frozenset[int] = frozenset()
    """Ranks that it leaves open, besides those of which nothing is known."""
    healthy: bool = False
    """Nobody waits for anybody longer than is normal."""

    def and_also(self, other: Judgement) -> Judgement:
        """This answer with what a further question found."""
        return Judgement(
            suspects=self.suspects + other.suspects,
            groups=self.groups + other.groups,
            cannot_exclude=self.cannot_exclude | other.cannot_exclude,
            healthy=self.healthy,
        )
