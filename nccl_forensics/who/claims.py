"""What statements claim of each rank, by whose word, and what that comes to where they disagree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from nccl_forensics.model import Gpu, Problem
from nccl_forensics.names import same_host, short
from nccl_forensics.who.identities import Place, cards_on_host


class Speaker(IntEnum):
    """Whose word a claim is. The word of one that knows better is not outvoted by any number of others."""

    CONVENTION = 0
    """Nobody's: what launchers do by rule, where all that is known agrees."""
    MENTION = 1
    """A prefix, or a file's name."""
    DRIVER = 2
    """NVIDIA's driver, of the process for which a card worked as it failed."""
    PROCESS = 3
    """The process itself, as it begins."""
    COMMUNICATOR = 4
    """NCCL, as it sets up the communicator of the whole job."""
    LAUNCHER = 5
    """It started the process and saw it end."""
    USER = 6
    """`--hosts`."""


class Claim(NamedTuple):
    """What one statement says of a rank; None: nothing."""

    rank: int
    """Global."""
    by: Speaker
    host: str | None = None
    local_rank: int | None = None
    pid: int | None = None
    pci: str | None = None
    """Address of its GPU."""
    gpu_index: int | None = None
    """Of its GPU on the host, as nvidia-smi counts."""


Field = str
"""What is claimed, as problems name it."""
FIELDS: tuple[Field, ...] = ("host", "local_rank", "pid", "pci", "index")
"""In the order in which they stand in a `Claim`, behind rank and speaker."""
Value = str | int
Values = Mapping[Value, Counter[Speaker]]
"""What is claimed → how often, by whose word; what was claimed first stands first."""
Votes = Mapping[int, Mapping[Field, Values]]
"""Rank → of what something is claimed → that."""


def counted(claims: Iterable[Claim]) -> Votes:
    votes: dict[int, dict[Field, dict[Value, Counter[Speaker]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(Counter))
    )
    for claim in claims:
        for field, value in zip(FIELDS, claim[2:], strict=True):
            if value is not None:
                votes[claim.rank][field][value][claim.by] += 1
    return votes


def _weight(said: Counter[Speaker]) -> tuple[int, ...]:
    """Compares first by the claims of who knows best, then by those of the next."""
    return tuple(said[speaker] for speaker in reversed(Speaker))


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The pile puts a rank elsewhere than the user does; neither is used."""

    rank: int
    fields: frozenset[Field]
    problem: Problem


def contradictions(votes: Votes, listed: Mapping[int, Place], machines: Collection[str]) -> Iterator[Contradiction]:
    """Where the files say another host or card than `--hosts` (`listed`) does.

    A name that neither the list nor a host's own file (`machines`, short names) knows is a container's, and the user
    says whose.
    """
    known = {short(p.host) for p in listed.values() if p.host} | set(machines)
    for rank in listed:
        claimed = votes.get(rank, {})
        host, others = _user_and_others(claimed.get("host", {}))
        elsewhere = {name: n for name, n in others.items() if short(name) in known and not same_host(name, host)}
        if elsewhere:
            yield _contradiction(rank, {"host", "pci"}, f"{host}", elsewhere)
            continue
        card, others = _user_and_others(claimed.get("pci", {}))
        if others:
            yield _contradiction(rank, {"pci"}, f"the card {card}", others)


def _user_and_others(values: Values) -> tuple[str | None, dict[str, Counter[Speaker]]]:
    """The user's word, and what else is claimed by whom; nothing where the user says nothing."""
    word = next((v for v, said in values.items() if said[Speaker.USER]), None)
    if word is None:
        return None, {}
    others = {str(v): said for v, said in values.items() if v != word}
    return str(word), {v: said for v, said in others.items() if set(said) != {Speaker.CONVENTION}}


def _contradiction(
    rank: int, fields: Collection[Field], word: str, others: Mapping[str, Counter[Speaker]]
) -> Contradiction:
    heaviest = max(others, key=lambda name: _weight(others[name]))
    says = f"Rank {rank}: --hosts says {word}, the files say {heaviest}; neither is used."
    return Contradiction(rank, frozenset(fields), Problem(says=says))


@dataclass(frozen=True, slots=True)
class Decided:
    """What the claims come to."""

    ranks: Mapping[int, Place]
    disputed: frozenset[int]
    """Ranks whose host or card is left open, because as much speaks for one as for another."""
    problems: tuple[Problem, ...]


def decided(votes: Votes, against_user: Iterable[Contradiction], cards: Mapping[str | None, list[Gpu]]) -> Decided:
    """For each rank what most weight speaks for; where two values weigh the same, neither.

    `cards`: short name of a host → its GPUs.
    """
    open_ = {(c.rank, field) for c in against_user for field in c.fields}
    ranks: dict[int, Place] = {}
    disputed: set[int] = set()
    problems: list[Problem] = []
    for rank, fields in sorted(votes.items()):
        chosen: dict[Field, Value] = {}
        for field, values in fields.items():
            if (rank, field) in open_:
                continue
            best, other = _heaviest(values)
            if other is None or (field == "host" and same_host(str(best), str(other))):
                chosen[field] = best
                continue
            if field in ("host", "pci"):
                disputed.add(rank)
            says = f"Rank {rank}: the files disagree on its {field} ({best} or {other}); neither is used."
            problems.append(Problem(says=says))
        ranks[rank] = _place(chosen, cards)
    return Decided(ranks, frozenset(disputed), tuple(problems))


def _heaviest(values: Values) -> tuple[Value, Value | None]:
    """The value with most weight, and another with as much, if there is one."""
    (best, said), *rest = sorted(values.items(), key=lambda value: _weight(value[1]), reverse=True)
    return best, rest[0][0] if rest and _weight(rest[0][1]) == _weight(said) else None


def _place(chosen: Mapping[Field, Value], cards: Mapping[str | None, list[Gpu]]) -> Place:
    host, local_rank, pid = chosen.get("host"), chosen.get("local_rank"), chosen.get("pid")
    name = str(host) if host else None
    return Place(
        host=name,
        local_rank=local_rank if isinstance(local_rank, int) else None,
        pid=pid if isinstance(pid, int) else None,
        gpu=_card(name, chosen.get("pci"), chosen.get("index"), cards),
    )


def _card(
    host: str | None, pci: Value | None, index: Value | None, cards: Mapping[str | None, list[Gpu]]
) -> Gpu | None:
    """The card at this address, else the one with this index, with all that files tell of it."""
    if pci is not None:
        here = [card for card in cards_on_host(cards, host) if card.pci == pci]
        return here[-1] if here else Gpu(host=host, pci=str(pci))
    if index is not None:
        here = [card for card in cards_on_host(cards, host) if card.index == index]
        return here[-1] if here else None
    return None
