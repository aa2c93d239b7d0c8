"""Where a stream was found, and how an archive gives its members back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nccl_forensics.intake.foreign import fit_to_show, last
from nccl_forensics.intake.limits import Meter, option
from nccl_forensics.intake.readers import Reader, Source
from nccl_forensics.model import Status

EMPTY = "empty (0 bytes): was the job's log still buffered when it was copied, or the disk full?"
Layer = Callable[[Reader, "Place", Meter], Iterator[Source]]
"""What is in a stream that was found at a place."""


@dataclass(slots=True)
class Place:
    """Where a stream was found."""

    path: str
    look: Layer
    """Finds what is in a stream, whatever layers of archives it has."""
    depth: int = 0
    size: int | None = None
    mtime_ns: int | None = None
    seen: dict[int, int] = field(default_factory=dict)
    """Of an archive: hash of a member's name → how often it was there."""

    def refused(self, reason: str, status: Status = "skipped") -> Source:
        return Source(self.path, last(self.path), size=self.size, mtime_ns=self.mtime_ns, status=status, reason=reason)

    def left_out(self, reason: str, meter: Meter, status: Status = "skipped") -> Source:
        """The row of a member that is not opened: it counts as one that is."""
        meter.totals.members += 1
        return self.refused(reason, status)

    def member(self, name: bytes, size: int | None, mtime_ns: int | None) -> Place:
        """A member of this archive. A name that was there before gets a number, so that paths stay unlike."""
        shown = fit_to_show(name).removeprefix("./") or "(no name)"
        times = self.seen[hash(name)] = self.seen.get(hash(name), 0) + 1
        if times > 1:
            shown += f" ({times})"
        return Place(f"{self.path}!{shown}", self.look, self.depth, size, mtime_ns)

    def contents(self, reader: Reader, meter: Meter) -> Iterator[Source]:
        """What is in a stream that was found here."""
        return self.look(reader, self, meter)


def members(n: int) -> str:
    return "1 member" if n == 1 else f"{n:,} members"


def stopped(archive: Place, meter: Meter) -> Source | None:
    """The row that ends an archive, if a limit does: too many files, or what unpacking has cost."""
    if full := at_the_bound(archive, meter):
        return full
    over = meter.over()
    return archive.refused(over, "partial") if over else None


def at_the_bound(place: Place, meter: Meter) -> Source | None:
    """The row that ends the reading, if there are too many files."""
    if meter.totals.members >= meter.limits.members:
        return place.refused(
            f"stopped: more than {meter.limits.members:,} files in all ({option('members')}); the rest was not read",
            "partial",
        )
    return None
