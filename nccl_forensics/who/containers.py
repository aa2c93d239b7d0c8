"""Which node a container ran on. Containers write names of their own (a docker id, a pod's name) into a job's log.

A container is joined to a node, so that both are one host from there on, where exactly one node fits: by what the
cluster says of the pod, by the container's id in the node's own files, by the UUIDs of the cards that it sees, or by a
process and card that the node's driver names. Process ids count where a container shares those of its node, and only
together with the card's address: they are common, as are addresses, which are the same on all nodes of a kind.
Where two nodes fit, that is said, and nothing is joined.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, InputRow, Problem, text
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.who.files import hosts_of_files
from nccl_forensics.who.paths import steps_of
from nccl_forensics.who.table import STATES_MEMBER

LONG_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{12})[0-9a-f]{52}(?![0-9a-f])")
"""A container's id in a control group's path; docker names the container after its first 12 digits."""
UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
SEES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
"""Variables that name the cards that a process (a container) sees; the second is the container toolkit's."""
FIGURES = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Which hosts write files of their own, and of which only lines speak: those can be containers."""

    files: Mapping[str, str | None]
    """File → the host that it was written on."""
    nodes: Mapping[str, str]
    """A host's own file → the host."""
    machines: frozenset[str]
    """Short names of `nodes`."""
    spoken: Mapping[str, str]
    """Short name of every other host of which a line speaks → its name."""

    @classmethod
    def of(cls, rows: Sequence[InputRow], events: Sequence[Event]) -> _Hosts:
        files = hosts_of_files(rows, events)
        nodes = {r.path: name for r in rows if r.format in OF_ONE_HOST and (name := files.get(r.path))}
        machines = frozenset(short(name) for name in nodes.values())
        spoken = {short(e.host): e.host for e in events if e.host and short(e.host) not in machines}
        return cls(files, nodes, machines, spoken)


class _Fit(NamedTuple):
    """A node on which a container can have run."""

    container: str
    node: str
    why: str


_Fits = Mapping[str, Mapping[str, str]]
"""Container (its short name) → node → why it fits."""


def joined(rows: Sequence[InputRow], events: Sequence[Event]) -> tuple[list[Event], list[Problem]]:
    """The events with nodes in place of their containers, and what was joined, why, or could not be told.

    The container's name stays in the event's details (`container`).
    """
    hosts = _Hosts.of(rows, events)
    shown = _gathered(chain(_by_ids(events, hosts), _by_cards(events, hosts), _by_processes(events, hosts)))
    fits = {**shown, **_gathered(_by_tables(events, hosts))}  # what the cluster says outweighs the rest
    problems = [_told(hosts.spoken[name], fits[name]) for name in sorted(fits) if name in hosts.spoken]
    alone = _alone_on_node(fits, hosts)
    of_pod = {r.path: pod for r in rows if hosts.files[r.path] is None and (pod := _pod_of(r.path, alone))}
    out = []
    for event in events:
        inside = event.host or of_pod.get(event.evidence.source)
        node = alone.get(short(inside)) if inside else None
        out.append(event if node is None else replace(event, host=node, details={**event.details, "container": inside}))
    return out, problems


def _gathered(fits: Iterable[_Fit]) -> _Fits:
    """Of several reasons for one node the first counts."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for fit in fits:
        found[short(fit.container)].setdefault(fit.node, fit.why)
    return found


def _told(container: str, fits: Mapping[str, str]) -> Problem:
    which, why = phrases.listing(sorted(fits)), next(iter(fits.values()))
    says = (
        say("{container} is a container on {node}: {why}", container=container, node=which, why=why)
        if len(fits) == 1
        else say("{container} ran on one of {nodes}: {why}", container=container, nodes=which, why=why)
    )
    return Problem(says=says)


def _alone_on_node(fits: _Fits, hosts: _Hosts) -> dict[str, str]:
    """Container → its node. Of several on one node each keeps its name, by which the cluster speaks of it."""
    nodes = {container: next(iter(fits[container])) for container in sorted(fits) if len(fits[container]) == 1}
    shared = Counter(short(node) for container, node in nodes.items() if container in hosts.spoken)
    return {container: node for container, node in nodes.items() if shared[short(node)] < 2}


def _pod_of(path: str, pods: Iterable[str]) -> str | None:
    """The pod after which a file is named: `train-worker-3.log`, `train-worker-3_pytorch.log`."""
    name = steps_of(path)[-1].lower()
    found = [pod for pod in pods if name == pod or name.startswith((f"{pod}.", f"{pod}_"))]
    return found[0] if len(found) == 1 else None


def _by_tables(events: Iterable[Event], hosts: _Hosts) -> Iterator[_Fit]:
    """`kubectl` says on which node a pod is; `docker ps` was run on the node that its file is of."""
    for event in events:
        if event.kind == "container-place":
            name, node = text(event, "container"), text(event, "node") or hosts.files.get(event.evidence.source)
            if name and node and short(name) != short(node):
                yield _Fit(name, node, say("{source} says so", source=event.evidence.source.rsplit("/", 1)[-1]))


def _by_ids(events: Iterable[Event], hosts: _Hosts) -> Iterator[_Fit]:
    """The kernel writes a container's id where it kills one of its processes."""
    for event in events:
        if (node := hosts.nodes.get(event.evidence.source)) is None:
            continue
        for found in LONG_ID.finditer(event.evidence.text):
            if found[1] in hosts.spoken:
                yield _Fit(found[1], node, say("a line of that node names its id"))


def _by_cards(events: Sequence[Event], hosts: _Hosts) -> Iterator[_Fit]:
    """No two cards have one UUID."""
    owners: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == "gpu-info":
            uuid, node = text(event, "uuid"), hosts.nodes.get(event.evidence.source)
            if uuid and node:
                owners[uuid.lower()].add(node)
    for event in events:
        if event.kind != "setting" or text(event, "name") not in SEES:
            continue
        host = event.host or hosts.files.get(event.evidence.source)
        if host and short(host) in hosts.spoken:
            for card in UUID.findall(text(event, "value") or ""):
                for node in owners.get(card.lower(), ()):
                    yield _Fit(host, node, say("it sees a card with a UUID of that node"))


_Process = tuple[int, str]
"""Its number and its card's address."""


def _by_processes(events: Sequence[Event], hosts: _Hosts) -> Iterator[_Fit]:
    """The driver names a process and its card, one container has both, and the job names nothing after the node."""
    drivers = _named_by_drivers(events, hosts)
    for (pid, pci), containers in _in_containers(events, hosts).items():
        for container in containers if len(containers) == 1 else ():
            for node in drivers.get((pid, pci), ()):
                why = say("the driver there names its process {pid} on card {pci}", pid=pid, pci=pci)
                yield _Fit(container, node, why)


def _in_containers(events: Iterable[Event], hosts: _Hosts) -> dict[_Process, set[str]]:
    """Process → the hosts (short names) that tell of it and that are not called as nodes are."""
    fashions = {FIGURES.sub("#", name) for name in hosts.machines}
    found: dict[_Process, set[str]] = defaultdict(set)
    for event in events:
        if event.kind in STATES_MEMBER and event.host and event.pid is not None and event.gpu_pci:
            name = short(event.host)
            if name in hosts.spoken and FIGURES.sub("#", name) not in fashions:
                found[event.pid, event.gpu_pci].add(name)
    return found


def _named_by_drivers(events: Sequence[Event], hosts: _Hosts) -> dict[_Process, set[str]]:
    """Process → the nodes whose driver names it in an Xid, but for those after which the job itself names processes."""
    elsewhere = (e for e in events if e.evidence.source not in hosts.nodes)
    busy = {short(e.host) for e in elsewhere if e.host and e.pid is not None}
    found: dict[_Process, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == "xid" and event.pid is not None and event.gpu_pci:
            node = hosts.nodes.get(event.evidence.source)
            if node and short(node) not in busy:
                found[event.pid, event.gpu_pci].add(node)
    return found
