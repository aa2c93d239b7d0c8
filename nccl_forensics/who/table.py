"""Who is who: rank ↔ host ↔ local rank ↔ pid ↔ GPU, put together from every statement in the pile.

Statements are trusted in this order: the user's `--hosts` file, torchrun's failure block and rendezvous result, NCCL's
own init lines, prefixes of the lines themselves, file and folder names. A later statement fills gaps and never
overrides; where two of the same weight disagree, both are reported and neither is used.

Three name spaces are kept apart: `[rankN]:` is global, `[Rank r]` lies inside a process group, `[defaultN]:` is local
to a node.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from nccl_forensics.errors import InputError
from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, Gpu, InputRow, Problem
from nccl_forensics.names import MOST_RANKS, normal_pci, same_host, short
from nccl_forensics.who.attribute import canonical_hosts, local_ranks
from nccl_forensics.who.files import of_sources
from nccl_forensics.who.identities import Identities, Place, cards_on_host, ranks_by_host
from nccl_forensics.who.roster import at_least, likely_world, world


def read_hosts_file(path: Path) -> dict[int, Place]:
    """`--hosts`: lines of `rank host [local-rank|-] [gpu-index|pci|-]`, separated by blanks or commas; # comments.

    Raises InputError with the line that can't be understood.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as err:
        raise InputError(
            f"{path} can't be read as text ({err}). It should hold lines like: 3 node07 3 0000:c1:00.0"
        ) from err
    places: dict[int, Place] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = [w for w in re.split(r"[\s,;]+", line.split("#", 1)[0].strip()) if w]
        if not words or (words[0].lower() == "rank" and not any(w.isdigit() for w in words[1:2])):
            continue  # empty, or a header
        gpu = words[3] if len(words) > 3 and words[3] != "-" else None
        local = words[2] if len(words) > 2 and words[2] != "-" else None
        if len(words) < 2 or not words[0].isdigit() or (local is not None and not local.isdigit()):
            raise InputError(
                f"{path}:{number}: {line.strip()!r} is not `rank host [local-rank] [gpu-index or PCI address]`."
            )
        pci = normal_pci(gpu) if gpu and not gpu.isdigit() else None
        if gpu and not gpu.isdigit() and pci is None:
            raise InputError(f"{path}:{number}: {gpu!r} is neither a GPU index nor a PCI address such as 0000:c1:00.0.")
        known = Gpu(host=words[1], index=int(gpu) if gpu and gpu.isdigit() else None, pci=pci) if gpu else None
        places[int(words[0])] = Place(words[1], int(local) if local else None, None, known)
    return places


def identify(
    rows: Sequence[InputRow],
    events: Sequence[Event],
    hosts: Mapping[int, Place] | None = None,
    also: Iterable[int] = (),
) -> Identities:
    """The table of ranks and GPUs from all that the files say.

    `events` as parsed, `hosts` from `--hosts`, `also`: ranks that dumps speak of.
    """
    problems: list[Problem] = []
    canonical = canonical_hosts(events)
    gpus = _gpus(events, canonical)
    sources = of_sources(rows, events)
    claims: dict[int, dict[str, Counter[object]]] = defaultdict(lambda: defaultdict(Counter))

    def claim(rank: int, weight: int, **what: object) -> None:
        for key, value in what.items():
            if value is not None:
                claims[rank][key][value] += weight

    machines = frozenset(short(r.host) for r in _of_hosts(rows, sources) if r.host)
    for rank, place in (hosts or {}).items():
        claim(rank, HOSTS_FILE, host=place.host, local_rank=place.local_rank, pci=place.gpu.pci if place.gpu else None)
        if place.gpu and place.gpu.index is not None:
            claim(rank, HOSTS_FILE, index=place.gpu.index)
    worlds: Counter[int] = Counter()
    init = [e for e in events if e.kind in STATES_MEMBER]
    sizes = [size for e in init if isinstance(size := e.details.get("nranks"), int) and size <= MOST_RANKS]
    widest = max(sizes, default=None)
    for event in events:
        said = event.details.get("comm_rank")
        in_comm = said if isinstance(said, int) and not isinstance(said, bool) else None
        d, host = event.details, canonical.get(short(event.host), event.host) if event.host else None
        if event.kind in STATES_MEMBER and d.get("nranks") == widest and in_comm is not None:
            # Only the widest communicator's ranks are the job's own; in a smaller one they count from 0 again.
            claim(in_comm, 100, host=host, pid=event.pid, pci=event.gpu_pci)
        elif event.kind == "inspector-comm":
            continue
        elif event.rank is None and in_comm is not None and event.pid is not None:
            # a WARN line names its rank in some communicator: better than nothing, weaker than any other statement
            claim(in_comm, 1, host=host, pid=event.pid)
        elif event.kind == "exit" and event.rank is not None:
            claim(event.rank, 1000, host=host, local_rank=event.local_rank, pid=event.pid)
        elif event.rank is not None:
            where = host or (None if event.relayed else sources.get(event.evidence.source, (None,) * 4)[0])
            claim(
                event.rank, 1, host=canonical.get(short(where), where) if where else None, local_rank=event.local_rank
            )
            if event.kind in ("rank-identity", "spawned"):
                claim(event.rank, 50, host=host, pid=event.pid, pci=event.gpu_pci)
        for key in ("world_size", "expected_world"):
            if isinstance(size := d.get(key), int) and 0 < size <= MOST_RANKS:
                worlds[size] += 1
    if widest:
        worlds[widest] += 10
    if started := world(events):
        worlds[started] += 10
    for row in rows:
        where, named, _, local = sources[row.path]
        if named is not None and where is not None:
            claim(named, 1, host=canonical.get(short(where), where), local_rank=local)

    problems += _contradicted(hosts or {}, claims, machines)
    ranks: dict[int, Place] = {}
    cards_by_host = ranks_by_host(gpus)
    disputed: set[int] = set()
    for rank, fields in sorted(claims.items()):
        chosen: dict[str, object] = {}
        for key, votes in fields.items():
            ((best, weight), *rest) = votes.most_common()
            if rest and rest[0][1] == weight:
                if key == "host" and same_host(str(best), str(rest[0][0])):
                    chosen[key] = best
                    continue
                if key in ("host", "pci"):
                    disputed.add(rank)
                problems.append(
                    Problem(
                        says=f"Rank {rank}: the files disagree on its {key} ({best} or {rest[0][0]}); neither is used."
                    )
                )
                continue
            chosen[key] = best
        ranks[rank] = _place(chosen, cards_by_host)
    _last_one(ranks, events, canonical, widest)
    size = worlds.most_common(1)[0][0] if worlds else _listed_world(hosts or ())
    _of_files(ranks, events, sources, size)
    spoken = {h for h in (*(r.host for r in rows), *(e.host for e in events)) if h}

    def cards(host: str | None) -> int:
        """How many GPUs it has, as far as files tell."""
        return max((len(g) for name, g in gpus.items() if same_host(name, host)), default=0)

    _same_node(ranks, _everyone(ranks, events, also, widest), spoken, cards)
    return Identities(
        ranks=ranks,
        gpus=gpus,
        world_size=size,
        at_least=at_least(events),
        stated=bool(hosts),
        devices_chosen=_devices_chosen(events),
        visible=_visible(events, sources, canonical),
        disputed=frozenset(disputed),
        machines=machines,
        behind=_behind(events),
        problems=tuple(problems),
    )


def _behind(events: Iterable[Event]) -> dict[tuple[str, str], frozenset[str]]:
    """What several tables say of a switch counts together: each lists the ports that were up."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in events:
        if event.kind == "switch" and isinstance(hosts := event.details.get("node"), tuple):
            named = str(event.details.get("what")), str(event.details.get("switch"))
            found[named] |= {short(str(host)) for host in hosts}
    return {named: frozenset(hosts) for named, hosts in found.items()}


def _of_hosts(
    rows: Sequence[InputRow], sources: Mapping[str, tuple[str | None, int | None, int | None, int | None]]
) -> Iterator[InputRow]:
    """The files that a host wrote about itself, with its name."""
    for row in rows:
        if row.format in OF_ONE_HOST:
            yield replace(row, host=sources[row.path][0])


STATES_MEMBER = frozenset({"nccl-init", "inspector-comm"})
"""Kinds that state a process's rank in a communicator of a stated size."""


HOSTS_FILE = 10_000
"""What the user's word weighs."""


def _contradicted(
    hosts: Mapping[int, Place], claims: Mapping[int, dict[str, Counter[object]]], machines: Collection[str]
) -> Iterator[Problem]:
    """Where the pile puts a rank on another machine than `--hosts` does; then neither is used.

    A name that neither the list nor a host's own file knows is a container's, and the user says whose.
    """
    listed = {short(p.host) for p in hosts.values() if p.host} | set(machines)
    for rank in hosts:
        for key in ("host", "pci"):
            votes = claims[rank].get(key, Counter())
            word = next((v for v, weight in votes.items() if weight >= HOSTS_FILE), None)
            others = {str(v): n for v, n in votes.items() if v != word}
            if key == "host":
                others = {v: n for v, n in others.items() if short(v) in listed and not same_host(v, str(word))}
            if word is None or not others:
                continue
            other = max(others, key=others.__getitem__)
            what = "" if key == "host" else "the card "
            yield Problem(says=f"Rank {rank}: --hosts says {what}{word}, the files say {other}; neither is used.")
            del claims[rank][key]
            claims[rank].pop("pci", None)


def _choices(events: Iterable[Event], name: str) -> Iterator[tuple[Event, str]]:
    for event in events:
        value = event.details.get("value")
        if event.kind == "setting" and event.details.get("name") == name and isinstance(value, str):
            yield event, value


def _devices_chosen(events: Sequence[Event]) -> bool:
    """Does some line hide or turn round devices? 0,1,2 … does neither."""
    lists = [value.split(",") for _, value in _choices(events, "CUDA_VISIBLE_DEVICES")]
    return any(cards != [str(n) for n in range(len(cards))] for cards in lists) or any(
        True for _ in _choices(events, "CUDA_DEVICE_ORDER")
    )


def _visible(
    events: Sequence[Event],
    sources: Mapping[str, tuple[str | None, int | None, int | None, int | None]],
    canonical: Mapping[str, str],
) -> dict[str | None, tuple[str, ...]]:
    """Host → its CUDA_VISIBLE_DEVICES, where its lines state one list and what it means is sure.

    Numbers are nvidia-smi's only in the order of the bus (CUDA_DEVICE_ORDER=PCI_BUS_ID); the default is the fastest
    first. One host's name can stand for a file that names none.
    """
    in_bus_order = {value.upper() for _, value in _choices(events, "CUDA_DEVICE_ORDER")} == {"PCI_BUS_ID"}
    alone = next(iter(canonical.values())) if len(canonical) == 1 else None
    found: dict[str | None, set[tuple[str, ...]]] = defaultdict(set)
    for event, value in _choices(events, "CUDA_VISIBLE_DEVICES"):
        host = event.host or sources.get(event.evidence.source, (None,))[0] or alone
        found[host].add(tuple(value.split(",")))
    every = None not in found or len(found) == 1
    return {
        host: cards
        for host, lists in found.items()
        if every and len(lists) == 1
        for cards in lists
        if in_bus_order or not any(card.isdigit() for card in cards)
    }


def _listed_world(ranks: Collection[int]) -> int | None:
    """How many ranks a list has that leaves none out; None for a list of some."""
    return len(ranks) if ranks and set(ranks) == set(range(len(ranks))) else None


def _last_one(
    ranks: dict[int, Place], events: Sequence[Event], canonical: Mapping[str, str], nranks: int | None
) -> None:
    """If one rank of the job has no process and one process no rank, they belong together."""
    if nranks is None or len(ranks) + 1 != nranks or set(ranks) | {*range(nranks)} != {*range(nranks)}:
        return
    taken = {(short(p.host), p.pid) for p in ranks.values() if p.host and p.pid is not None}
    free = {
        (canonical.get(short(e.host), e.host), e.pid)
        for e in events
        if e.kind.startswith("nccl-") and e.host and e.pid is not None and (short(e.host), e.pid) not in taken
    }
    if len(free) == 1 and len(taken) == len(ranks):
        ((host, pid),) = free
        (rank,) = {*range(nranks)} - set(ranks)
        ranks[rank] = Place(host=host, pid=pid)


def _everyone(ranks: Mapping[int, Place], events: Iterable[Event], also: Iterable[int], nranks: int | None) -> set[int]:
    """All ranks that must exist: whoever is mentioned, and everybody below."""
    seen = {*ranks, *also, *(e.rank for e in events if e.rank is not None)}
    return seen | set(range(max(min(nranks or 0, MOST_RANKS), likely_world(seen) or 0)))


def _of_files(
    ranks: dict[int, Place],
    events: Sequence[Event],
    sources: Mapping[str, tuple[str | None, int | None, int | None, int | None]],
    world: int | None,
) -> None:
    """Ranks of which there is no more than a file or a folder: they existed."""
    by_local = local_ranks(events, sources, Identities(ranks=ranks)).ranks
    for path, (host, named, _, local) in sources.items():
        rank = named if named is not None else by_local.get((path, local))
        if rank is not None and rank < (world or MOST_RANKS):
            ranks.setdefault(rank, Place(host=host, local_rank=local))


def _same_node(
    ranks: dict[int, Place], everyone: set[int], machines: Collection[str], cards: Callable[[str | None], int]
) -> None:
    """Give a rank whose host no file states the host of its block, where launchers number nodes in blocks.

    Holds only if every rank that is known fits: rank = node × L + local rank, one host a block, one block a host.
    """
    placed = {r: p for r, p in ranks.items() if p.host is not None}
    locals_ = {r: p.local_rank for r, p in placed.items() if p.local_rank is not None}
    hosts = {short(p.host) for p in placed.values() if p.host}
    if not placed:
        return
    if len(hosts) == 1 and all(r == local for r, local in locals_.items()):
        host = next(iter(placed.values())).host
        # Local ranks count through from 0: one node, as far as they are known; behind that, as far as it has GPUs.
        seats = 0 if any(not same_host(host, other) for other in machines) else cards(host)
        for rank in everyone - set(placed):
            if locals_ and rank < max(*locals_.values(), seats, 0):
                ranks[rank] = replace(ranks.get(rank, Place()), host=host, local_rank=rank)
        return
    starts = {r - local for r, local in locals_.items()}
    steps = sorted(starts)
    length = min((b - a for a, b in pairwise(steps)), default=0)
    if length < 1 or any(start % length for start in starts) or any(loc >= length for loc in locals_.values()):
        _between(ranks, placed, everyone)
        return
    blocks: dict[int, set[str]] = defaultdict(set)
    for rank, place in placed.items():
        blocks[rank // length].add(short(place.host or ""))
    owners = [next(iter(h)) for h in blocks.values() if len(h) == 1]
    if len(owners) != len(blocks) or len(set(owners)) != len(owners):
        return
    names = {short(p.host): p.host for p in placed.values() if p.host}
    for rank in everyone - set(placed):
        if rank // length in blocks:
            host = names[next(iter(blocks[rank // length]))]
            ranks[rank] = replace(ranks.get(rank, Place()), host=host, local_rank=rank % length)


def _between(ranks: dict[int, Place], placed: Mapping[int, Place], everyone: set[int]) -> None:
    """Give a rank between two ranks of one host that host, where no two hosts' ranks overlap."""
    spans: dict[str, tuple[int, int]] = {}
    names: dict[str, str] = {}
    for rank, place in placed.items():
        host = short(place.host or "")
        low, high = spans.get(host, (rank, rank))
        spans[host] = (min(low, rank), max(high, rank))
        names[host] = place.host or ""
    ordered = sorted(spans.values())
    if any(a[1] >= b[0] for a, b in pairwise(ordered)):
        return
    for rank in everyone - set(placed):
        for host, (low, high) in spans.items():
            if low < rank < high:
                ranks[rank] = replace(ranks.get(rank, Place()), host=names[host])


def _place(chosen: Mapping[str, object], gpus: Mapping[str | None, list[Gpu]]) -> Place:
    host = chosen.get("host")
    pci, index = chosen.get("pci"), chosen.get("index")
    gpu: Gpu | None = None
    for one in cards_on_host(gpus, str(host) if host is not None else None):
        if (pci is not None and one.pci == pci) or (pci is None and index is not None and one.index == index):
            gpu = one
    if gpu is None and pci is not None:
        gpu = Gpu(host=str(host) if host else None, pci=str(pci))
    local, pid = chosen.get("local_rank"), chosen.get("pid")
    return Place(
        str(host) if host else None,
        local if isinstance(local, int) else None,
        pid if isinstance(pid, int) else None,
        gpu,
    )


def _gpus(events: Sequence[Event], canonical: Mapping[str, str]) -> dict[str | None, tuple[Gpu, ...]]:
    merged: dict[tuple[str | None, str], dict[str, object]] = {}
    index_only: list[tuple[str | None, dict[str, object]]] = []
    for event in events:
        if event.gpu_pci is None and event.kind != "gpu-info":
            continue
        host = canonical.get(short(event.host), event.host) if event.host else None
        if event.kind == "gpu-info" and host is None and len(every := set(canonical.values())) == 1:
            host = next(iter(every))
        if event.kind == "gpu-info":
            fields: dict[str, object] = {k: v for k, v in event.details.items() if v is not None}
            if event.gpu_pci is None:
                index_only.append((host, fields))
            else:
                into = merged.setdefault((host, event.gpu_pci), {})
                for key, value in fields.items():
                    into.setdefault(key, value)
        elif event.kind in ("xid", "nccl-init") and event.gpu_pci:
            merged.setdefault((host, event.gpu_pci), {})
    for host, fields in index_only:  # `nvidia-smi -L` gives index and UUID, no address
        for (where, _), known in merged.items():
            if same_host(where, host) and known.get("uuid") and known.get("uuid") == fields.get("uuid"):
                known.setdefault("index", fields.get("index"))
                known.setdefault("model", fields.get("model"))
    found: dict[str | None, list[Gpu]] = defaultdict(list)
    lone = {h for h, _ in merged if h is not None}
    for (host, pci), known in sorted(merged.items(), key=lambda x: (x[0][0] or "", x[0][1])):
        if host is None and len(lone) == 1 and (next(iter(lone)), pci) in merged:
            continue  # the same card, seen in a file that names no host
        index = known.get("index")
        found[host].append(
            Gpu(
                host=host,
                pci=pci,
                index=index if isinstance(index, int) else None,
                uuid=_text(known.get("uuid")),
                serial=_text(known.get("serial")),
                model=_text(known.get("model")),
                details={
                    k: v  # type: ignore[misc]
                    for k, v in known.items()
                    if k not in ("index", "uuid", "serial", "model", "pci")
                },
            )
        )
    return {host: tuple(gpus) for host, gpus in found.items()}


def _text(value: object) -> str | None:
    return str(value) if value is not None and value != "" else None
