"""How the ranks of a job lie: by host, rail, switch, pipeline stage and process group; which of these a set of them is.

A rail is the same GPU of every host: in most clusters these share adapters' ports and a switch. Ranks that fall out
together and are all of one such set point at what they share; a set that could as well be one by chance is not named.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nccl_forensics.model import GroupState
from nccl_forensics.names import short
from nccl_forensics.text.messages import joined, say
from nccl_forensics.who.identities import Identities

CHANCE = 0.02
"""So likely may a random set of as many ranks be one of the sets, at most. Our judgement."""
BOTH = 2
"""Switches that the same hosts share with all that they have: a pair, for when one fails."""
PIPELINE = re.compile(r"pipeline|(?:^|_)pp(?:$|_|\d)", re.IGNORECASE)
"""Descriptions of the groups of a pipeline, as Megatron, DeepSpeed and DeviceMesh give them."""
UNNAMED = frozenset({None, "", "default_pg", "undefined"})


def shape(ranks: Collection[int], known: Identities, groups: Sequence[GroupState]) -> str:
    """What these are all the ranks of, in words ('all of rail 3 …'); '' if of nothing, or perhaps by chance.

    `groups`: process groups whose members are known, whether they hang or not.
    """
    world = known.world_size or 0
    wanted = frozenset(ranks)
    if not 1 < len(wanted) < world:
        return ""
    names: dict[frozenset[int], list[str]] = defaultdict(list)
    for name, members in _sets(known, groups, world):
        names[members].append(name)
    alike = sum(len(x) == len(wanted) for x in names)
    if wanted not in names or alike / math.comb(world, len(wanted)) > CHANCE:
        return ""
    return joined(names[wanted][:2], say(", which is "))


def rail_of(struck: Mapping[str, Collection[str]], ports: Mapping[str, Collection[str]]) -> str | None:
    """The adapter on which alone several hosts had failures, by its name; None if there is none, or perhaps by chance.

    `struck`: host → adapters that failed; `ports`: host → adapters that it uses.
    """
    devices = {device for several in struck.values() for device in several}
    if len(devices) != 1 or len(struck) < 2 or not struck.keys() <= ports.keys():
        return None
    chance = math.prod(1 / len(ports[host]) for host in [*struck][1:])
    return next(iter(devices)) if chance <= CHANCE else None


def shared_by(hosts: Collection[str], known: Identities) -> str:
    """The switch of these hosts, in words: of all of its hosts, or of so many that chance is out of the question.

    '' if there is none, or more than two, each of one adapter of the hosts. `hosts`: short names.
    """
    wanted = frozenset(hosts)
    if len(wanted) < 2:
        return ""
    machines = known.machines | {short(p.host) for p in known.ranks.values() if p.host}
    behind = {named: both for named, members in known.behind.items() if (both := members & machines) < machines}
    around = _narrowest({named: members for named, members in behind.items() if wanted <= members})
    if not around or len(around) > BOTH:
        return ""
    whole = len(behind[around[0]]) == len(wanted)
    if not whole and _can_be_chance(behind.values(), len(wanted), len(machines)):
        return ""
    return joined((_named(*named) for named in sorted(around)), ", ")


_Switch = tuple[str, str]
"""('switch' or 'block', its name)."""


def _narrowest(switches: Mapping[_Switch, Collection[str]]) -> list[_Switch]:
    """Those with the fewest hosts."""
    least = min(map(len, switches.values()), default=0)
    return [named for named, members in switches.items() if len(members) == least]


def _can_be_chance(switches: Iterable[frozenset[str]], struck: int, machines: int) -> bool:
    """Is it likely enough that so many hosts of all lie behind one switch?"""
    alike = sum(math.comb(len(members), struck) for members in {*switches})
    return alike > CHANCE * math.comb(machines, struck)


def _switches(known: Identities, hosts: frozenset[str]) -> Iterator[tuple[_Switch, frozenset[str]]]:
    """The switches of which some of these hosts' falling tells, with those: hosts fall as a whole, so they are counted.

    Of more than two with the same hosts each serves one adapter of them, and none is told.
    """
    behind = {named: members & hosts for named, members in known.behind.items()}
    alike = Counter(behind.values())
    for named, members in behind.items():
        if 1 < len(members) < len(hosts) and alike[members] <= BOTH:
            same_size = sum(len(x) == len(members) for x in alike)
            if same_size / math.comb(len(hosts), len(members)) <= CHANCE:
                yield named, members


def _named(what: str, name: str) -> str:
    return say("block {name}", name=name) if what == "block" else say("switch {name}", name=name)


def _sets(known: Identities, groups: Sequence[GroupState], world: int) -> Iterator[tuple[str, frozenset[int]]]:
    """Every set of ranks that shares something, and what in words."""
    hosts = _hosts(known, world)
    if len(hosts) > 1:
        yield from _sets_of_hosts(known, hosts)
    for number, members in _stages(groups, world).items():
        yield say("all of pipeline stage {number}", number=number), frozenset(members)
    for group in groups:
        if group.description not in UNNAMED and group.members and not group.members_at_least:
            name = f"{group.name} ({group.description})"
            yield say("all of group {name}", name=name), frozenset(group.members)


def _sets_of_hosts(known: Identities, hosts: Mapping[str, list[int]]) -> Iterator[tuple[str, frozenset[int]]]:
    for host, members in hosts.items():
        yield say("all ranks of host {host}", host=host), frozenset(members)
    for index, members in _rails(known, hosts).items():
        if len(members) == len(hosts):
            rail = say("all of rail {index}: GPU {index} of each of {n} hosts", index=index, n=len(hosts))
            yield rail, frozenset(members)
    for named, machines in _switches(known, frozenset(hosts)):
        ranks = [r for host in machines for r in hosts[host]]
        yield say("all ranks behind {switch}", switch=_named(*named)), frozenset(ranks)


def _hosts(known: Identities, world: int) -> Mapping[str, list[int]]:
    """Host → its ranks; {} if some rank's host is not known."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in range(world):
        place = known.ranks.get(rank)
        if place is None or place.host is None:
            return {}
        found[short(place.host)].append(rank)
    return found


def _rails(known: Identities, hosts: Mapping[str, list[int]]) -> Mapping[int, list[int]]:
    """GPU index → the ranks that have it; by local rank, or place on the host, where no line tells the GPU."""
    ranks = [r for members in hosts.values() for r in members]
    indices = next((numbers for numbers in _numbers_on_hosts(known, hosts) if len(numbers) == len(ranks)), {})
    found: dict[int, list[int]] = defaultdict(list)
    for rank in ranks if indices else ():
        found[indices[rank]].append(rank)
    return found


def _numbers_on_hosts(known: Identities, hosts: Mapping[str, list[int]]) -> Iterator[dict[int, int]]:
    """Rank → what can be the index of its GPU, the surest first: all that is known of that, whether or not of all."""
    places = {r: known.ranks[r] for members in hosts.values() for r in members}
    yield {r: p.gpu.index for r, p in places.items() if p.gpu is not None and p.gpu.index is not None}
    yield {r: p.local_rank for r, p in places.items() if p.local_rank is not None}
    in_a_row = all(members == [*range(members[0], members[0] + len(members))] for members in hosts.values())
    if in_a_row and not known.devices_chosen:
        yield {r: r - members[0] for members in hosts.values() for r in members}


def _stages(groups: Iterable[GroupState], world: int) -> Mapping[int, list[int]]:
    """Stage → its ranks, where the pipelines' groups are equally long and part the job among them."""
    pipelines = {g.members for g in groups if _is_pipeline(g)}
    ranks = [r for members in pipelines for r in members]
    if sorted(ranks) != [*range(world)] or len({len(members) for members in pipelines}) != 1:
        return {}
    found: dict[int, list[int]] = defaultdict(list)
    for members in sorted(pipelines):
        for stage, rank in enumerate(members):
            found[stage].append(rank)
    return found


def _is_pipeline(group: GroupState) -> bool:
    named = PIPELINE.search(group.description or "") is not None
    return named and len(group.members) > 1 and not group.members_at_least
