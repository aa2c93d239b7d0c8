"""Where one process group stands: which operation is stuck, who has entered it, who has not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nccl_forensics.recorder.dumps import Call, Dump
from nccl_forensics.recorder.groups import Key
from nccl_forensics.waits.member import Member

ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter", "coalesced", "unknown"})
"""Operations that one member can complete before all have entered: a root that only sends, a leaf that only gives."""
LOOKED_BACK = 1000
"""How many numbers before a member's last completed one are looked through for one that needs all. A judgement."""


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where one group stands: the oldest operation that somebody has entered and nobody has completed."""

    key: Key
    name: str
    members: Mapping[int, Member]
    """Those with a dump."""
    ranks: tuple[int, ...]
    """All of them, as far as known."""
    agreed: int = 0
    """Newest sequence number that a member completed and that needs all of them."""
    seq: int | None = None
    """The stuck operation; None: nobody waits."""
    arrived: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    """Members with a dump that cannot tell."""
    no_data: tuple[int, ...] = ()
    perhaps: tuple[int, ...] = ()
    """Ranks without a dump that may be members: no dump lists who belongs to this group."""
    stale: tuple[int, ...] = ()
    """Members whose dump was written before others completed what it does not hold: they went on after it."""
    lagging: tuple[int, ...] = ()
    """Members that have not noticed the end of an operation that peers completed."""

    @property
    def description(self) -> str:
        return self.key[1]

    @property
    def family(self) -> str:
        """What sister groups have in common: the description, or the name where none was given."""
        return self.description or self.name

    @property
    def waited(self) -> tuple[int, ...]:
        """Those that whoever has arrived may be waiting for."""
        return tuple(sorted({*self.missing, *self.no_data, *self.unknown, *self.perhaps}))

    @property
    def blocked(self) -> tuple[int, ...]:
        """Those that stand in the stuck operation, whoever holds it up."""
        return tuple(x for x in self.arrived if self.seq is not None and not self.members[x].is_over(self.seq))

    @property
    def label(self) -> str:
        """As people call it: the group of all by its description, others by name and, if one was given, description."""
        if self.description == "default_pg":
            return self.description
        return f"{self.name} ({self.description})" if self.description not in ("", "undefined") else self.name

    @property
    def stuck_seq(self) -> int:
        """`seq` of a group in which somebody waits."""
        assert self.seq is not None, f"nobody waits in group {self.label}"
        return self.seq

    @property
    def first_called_ns(self) -> int:
        """When a member first called the stuck operation, on its own clock; 0: no dump tells."""
        if self.seq is None:
            return 0
        return min((t for x in self.arrived if (t := self.members[x].created_ns(self.seq))), default=0)

    def op(self, seq: int) -> Call | None:
        votes: Counter[Call] = Counter()
        for rank in self.arrived or self.members:
            votes.update(self.members[rank].calls(seq)[:1])
        return votes.most_common(1)[0][0] if votes else None

    def peer_of(self, call: Call) -> int | None:
        """The rank at the other end of a member's send or receive, where its name says it."""
        return self.ranks[call.peer] if call.peer is not None and call.peer < len(self.ranks) else None


def is_default(key: Key) -> bool:
    return key[1] == "default_pg" or (not key[1] and key[2] == "0")


def members_known(key: Key) -> bool:
    """Who belongs to the group is told: some dump lists its members, or it is the group of all."""
    return bool(key[0]) or is_default(key)


def stand(key: Key, name: str, members: Mapping[int, Member], ranks: tuple[int, ...]) -> Standing:
    """The standing of a group of `ranks`, by those of them that have a dump."""
    no_data = tuple(x for x in ranks if x not in members)
    agreed = _agreed(members, len(ranks))
    waiting = [seq for x in members.values() if (seq := _waits_in(x, agreed)) is not None]
    if not waiting and (undone := _never_over(members, ranks)) is not None:
        waiting = [undone]
    if not waiting:
        return Standing(key, name, members, ranks, agreed, no_data=no_data)
    seq = min(waiting)
    where: dict[str, list[int]] = defaultdict(list)
    for rank, member in sorted(members.items()):
        where[_whereabouts(member, seq, agreed)].append(rank)
    # Who seems older may be in another group of the same local number, where nothing else tells who is in this one.
    stale = where["older"] if members_known(key) else []
    lagging = [rank for rank, x in sorted(members.items()) if rank not in stale and _lags(x, agreed)]
    return Standing(
        key,
        name,
        members,
        ranks,
        agreed,
        seq,
        arrived=tuple(where["arrived"]),
        missing=tuple(where["missing"]),
        unknown=tuple(where["unknown"]),
        no_data=no_data,
        stale=tuple(stale),
        lagging=tuple(lagging),
    )


def _never_over(members: Mapping[int, Member], ranks: tuple[int, ...]) -> int | None:
    """The number at which all members stand last, with operations of different kinds: gloo retires failed work too."""
    if set(members) != set(ranks) or any(x.strict or x.dump.partial for x in members.values()):
        return None
    last = {x.seqs[-1] if len(x.all_seqs) else None for x in members.values()}
    seq = last.pop() if len(last) == 1 else None
    if seq is None or any(_is_certainly_over(x, seq) for x in members.values()):
        return None
    kinds = {x.calls(seq)[-1].kind for x in members.values() if x.calls(seq)}
    return seq if len(kinds) > 1 else None


def _agreed(members: Mapping[int, Member], size: int) -> int:
    """Newest number that a member of a group of so many ranks completed and that needs all of them."""
    agreed = 0
    for member in members.values():
        newest = member.completed or 0
        for seq in range(newest, max(agreed, newest - LOOKED_BACK - 1), -1):
            if _is_certainly_over(member, seq) and not (size > 1 and _is_one_sided(member, members, seq)):
                agreed = seq
                break
    return agreed


def _is_certainly_over(member: Member, seq: int) -> bool:
    """gloo retires failed work too: of it only an operation that its rank went on from is certainly over."""
    row = member.row(seq)
    is_last = row is not None and row >= member.dump.count - 1
    return (member.strict or not is_last) and member.is_over(seq, True)


def _is_one_sided(member: Member, members: Mapping[int, Member], seq: int) -> bool:
    """By this member's entry, or by that of the first that still has one."""
    calls = member.calls(seq) or next((x.calls(seq) for x in members.values() if x.rows(seq)), ())
    return bool(calls) and calls[-1].kind in ONE_SIDED


def _waits_in(member: Member, agreed: int) -> int | None:
    """The oldest operation behind `agreed` that the member has entered and not completed."""
    later = next((x for x in member.pending if x > agreed), None)
    if later is not None or member.completed is None or member.enqueued is None:
        return later
    over = max(member.completed, agreed)
    only_counted = member.dump.partial or not len(member.all_seqs)
    return over + 1 if only_counted and member.enqueued > over else None


def _whereabouts(member: Member, seq: int, agreed: int) -> Literal["arrived", "missing", "unknown", "older"]:
    """Has the member entered `seq`? 'older': its dump was written before `agreed`, which it does not hold."""
    if member.enqueued is None:
        return "missing" if not member.dump.partial and _would_show(member.dump) else "unknown"
    if member.enqueued >= seq:
        return "arrived"
    if member.dump.partial and not member.dump.has_status:
        return "unknown"
    return "older" if member.enqueued < agreed else "missing"


def _would_show(dump: Dump) -> bool:
    """An operation that is not over would be among its entries: it has some, or its counters say none is open."""
    return dump.count > 0 or dump.idle is True


def _lags(member: Member, agreed: int) -> bool:
    """It has not noticed the end of an operation that is over, though its backend tells ends."""
    if not member.strict or member.dump.partial:
        return False
    counted = member.completed is not None and member.completed < agreed <= (member.enqueued or 0)
    return counted or any(x <= agreed for x in member.pending)
