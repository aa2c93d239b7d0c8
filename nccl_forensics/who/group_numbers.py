"""Which lines that write a rank's number in a group only are of the group of all ranks: there it is the global rank.

PyTorch up to 2.1 writes `[Rank 3]` without the group, whichever it is; later releases name the group, and before most
lines the global rank. A number in another group is never a global rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nccl_forensics.model import Event, number, text

OF_ALL = frozenset({"0", "default_pg"})
"""Names of the group of all ranks."""


def of_whole_job(events: Sequence[Event], widest: int | None) -> dict[int, int]:
    """id(event) → global rank. `widest`: how many ranks the widest communicator has."""
    numbered = [(event, inside) for event in events if (inside := _number(event)) is not None]
    narrower = max(_narrower(events, widest), default=0)
    beyond = {_collective(event) for event, inside in numbered if inside >= narrower}
    return {id(event): inside for event, inside in numbered if _is_named_so(event, _collective(event) in beyond)}


def _number(event: Event) -> int | None:
    return number(event, "group_rank") if event.rank is None else None


def _is_named_so(event: Event, nameless_too: bool) -> bool:
    """By its name the group is that of all; without a name, if `nameless_too`."""
    name, description = text(event, "pg_name"), text(event, "pg_desc")
    if name is None and description is None:
        return nameless_too
    return description == "default_pg" or (description is None and name in OF_ALL)


def _narrower(events: Iterable[Event], widest: int | None) -> set[int]:
    """Sizes of communicators that are not of all ranks."""
    sizes = {size for event in events if (size := number(event, "nranks")) is not None}
    return {size for size in sizes if widest is not None and size < widest}


def _collective(event: Event) -> tuple[object, ...]:
    """What tells the calls of one group from those of others, as far as its lines do."""
    return number(event, "seq"), text(event, "op"), number(event, "numel_in")
