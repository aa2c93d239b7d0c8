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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, InputRow, Problem, text
from nccl_forensics.names import short
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say
from nccl_forensics.who.files import hosts_of_files
from nccl_forensics.who.table import STATES_MEMBER

LONG_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{12})[0-9a-f]{52}(?![0-9a-f])")
"""A container's id in a control group's path; docker names the container after its first 12 digits."""
UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
SEES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
"""Variables that name the cards that a process (a container) sees; the second is the container toolkit's."""
FIGURES = re.compile(r"\d+")


@dataclass(slots=True)
class _Nodes:
    """Container (its short name) → node → why it fits."""

    found: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, container: str, node: str, why: str) -> None:
        self.found[short(container)].setdefault(node, why)


def joined(rows: Sequence[InputRow], events: Sequence[Event]) -> tuple[list[Event], list[Problem]]:
    """The events with nodes in place of their containers, and what was joined, why, or could not be told.

    The container's name stays in the event's details (`container`).
    """
    files = hosts_of_files(rows, events)
    own = {r.path: name for r in rows if r.format in OF_ONE_HOST and (name := files.get(r.path))}
    machines = {short(name): name for name in own.values()}
    spoken = {short(e.host): e.host for e in events if e.host and short(e.host) not in machines}
    said, others = _Nodes(), _Nodes()
    _by_tables(events, files, said)
    _by_ids(events, own, spoken, others)
    _by_cards(events, files, own, spoken, others)
    _by_processes(events, own, machines, spoken, others)
    nodes: dict[str, str] = {}
    problems = []
    for container in sorted({*said.found, *others.found}):
        fits = said.found.get(container) or others.found[container]
        name = spoken.get(container, container)
        if len(fits) == 1:
            nodes[container] = next(iter(fits))
        if container in spoken:
            which, why = phrases.listing(sorted(fits)), next(iter(fits.values()))
            says = (
                say("{container} is a container on {node}: {why}", container=name, node=which, why=why)
                if len(fits) == 1
                else say("{container} ran on one of {nodes}: {why}", container=name, nodes=which, why=why)
            )
            problems.append(Problem(says=says))
    # Of several containers on one node each keeps its name, by which the cluster speaks of it.
    shared = Counter(short(node) for container, node in nodes.items() if container in spoken)
    alone = {container: node for container, node in nodes.items() if shared[short(node)] < 2}
    of_pod = {r.path: alone[pod] for r in rows if files[r.path] is None and (pod := _pod_of(r.path, alone))}
    out = []
    for event in events:
        node = alone.get(short(event.host)) if event.host else of_pod.get(event.evidence.source)
        if node is not None:
            inside = {"container": event.host} if event.host else {}
            event = replace(event, host=node, details={**event.details, **inside})
        out.append(event)
    return out, problems


def _pod_of(path: str, pods: Iterable[str]) -> str | None:
    """The pod after which a file is named: `train-worker-3.log`, `train-worker-3_pytorch.log`."""
    name = re.split(r"[/!]", path)[-1].lower()
    found = [pod for pod in pods if name == pod or name.startswith((f"{pod}.", f"{pod}_"))]
    return found[0] if len(found) == 1 else None


def _by_tables(events: Iterable[Event], files: Mapping[str, str | None], nodes: _Nodes) -> None:
    """`kubectl` says on which node a pod is; `docker ps` was run on the node that its file is of."""
    for event in events:
        if event.kind == "container-place":
            name, node = text(event, "container"), text(event, "node") or files.get(event.evidence.source)
            if name and node and short(name) != short(node):
                nodes.add(name, node, say("{source} says so", source=event.evidence.source.rsplit("/", 1)[-1]))


def _by_ids(events: Iterable[Event], own: Mapping[str, str], spoken: Mapping[str, str], nodes: _Nodes) -> None:
    """The kernel writes a container's id where it kills one of its processes."""
    for event in events:
        if (node := own.get(event.evidence.source)) is None:
            continue
        for found in LONG_ID.finditer(event.evidence.text):
            if found[1] in spoken:
                nodes.add(found[1], node, say("a line of that node names its id"))


def _by_cards(
    events: Iterable[Event],
    files: Mapping[str, str | None],
    own: Mapping[str, str],
    spoken: Mapping[str, str],
    nodes: _Nodes,
) -> None:
    """No two cards have one UUID."""
    owners: dict[str, set[str]] = defaultdict(set)
    for event in events:
        uuid, node = text(event, "uuid"), own.get(event.evidence.source)
        if event.kind == "gpu-info" and uuid and node:
            owners[uuid.lower()].add(node)
    for event in events:
        host = event.host or files.get(event.evidence.source)
        if event.kind == "setting" and text(event, "name") in SEES and host and short(host) in spoken:
            for card in UUID.findall(text(event, "value") or ""):
                for node in owners.get(card.lower(), ()):
                    nodes.add(host, node, say("it sees a card with a UUID of that node"))


def _by_processes(
    events: Sequence[Event],
    own: Mapping[str, str],
    machines: Mapping[str, str],
    spoken: Mapping[str, str],
    nodes: _Nodes,
) -> None:
    """The driver names a process and its card, one container has both, and the job names nothing after the node."""
    busy = {short(e.host) for e in events if e.host and e.pid is not None and e.evidence.source not in own}
    fashions = {FIGURES.sub("#", name) for name in machines}
    seats: dict[tuple[int, str], set[str]] = defaultdict(set)
    for event in events:
        name = short(event.host) if event.host else ""
        if event.kind not in STATES_MEMBER or name not in spoken or FIGURES.sub("#", name) in fashions:
            continue
        if event.pid is not None and event.gpu_pci:
            seats[event.pid, event.gpu_pci].add(name)
    drivers: dict[tuple[int, str], set[str]] = defaultdict(set)
    for event in events:
        node = own.get(event.evidence.source)
        if event.kind == "xid" and node and short(node) not in busy and event.pid is not None and event.gpu_pci:
            drivers[event.pid, event.gpu_pci].add(node)
    for (pid, pci), found in seats.items():
        for container in found if len(found) == 1 else ():
            for node in drivers.get((pid, pci), ()):
                why = say("the driver there names its process {pid} on card {pci}", pid=pid, pci=pci)
                nodes.add(container, node, why)
