"""Who is who: rank ↔ host ↔ local rank ↔ pid ↔ GPU, put together from every statement in the pile.

Statements are trusted in this order: the user's `--hosts` file, torchrun's failure block and rendezvous result, NCCL's
own init lines, prefixes of the lines themselves, file and folder names. A later statement fills gaps and never
overrides; where two of the same weight disagree, both are reported and neither is used.

Three name spaces are kept apart: `[rankN]:` is global, `[Rank r]` lies inside a process group, `[defaultN]:` is local
to a node.
"""

from __future__ import annotations

import bisect
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from nccl_forensics import roster
from nccl_forensics.model import Event, Gpu, InputError, InputRow, Problem
from nccl_forensics.roster import MOST_RANKS as MOST_RANKS
from nccl_forensics.sniff import OF_ONE_HOST

RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[ _-]?(\d{1,6})(?![\d])(?!-\d)", re.I)
"""`rank3.log`, `comm_lib_trace_rank_3`; not `rank0-3.log`, which is a range."""
RANK_FOLDER = re.compile(r"(?:global|worker)?[_-]?rank[ _-]?\d{1,6}", re.I)
ATTEMPT_IN_NAME = re.compile(r"(?:^|/)attempt_(\d+)/(\d+)/(?:stdout|stderr|error)")
"""torchrun's --log-dir: RUN/attempt_N/LOCAL_RANK/stderr.log."""
SOSREPORT = re.compile(r"sosreport-([A-Za-z0-9][\w.-]{0,252}?)-(?:\d{6,10}-)?\d{4}-\d\d-\d\d-[a-z]{6,8}(?![\w-])")
"""sosreport-HOST[-CASE]-DATE-RANDOM, the archive's and its folder's name (sos, LinuxPolicy.get_archive_name)."""
HOST_IN_NAME = re.compile(
    r"(?:^|[._/!-])((?:ip-?\d|(?:node|host|worker|gpu|compute|dgx|hgx|server|srv|pod|cn)(?:[-_][a-z0-9]|[a-z]?\d))"
    r"[a-z0-9]*(?:-[a-z0-9]+)*)(?=$|[./!_])",
    re.I,
)
"""A file or folder called after a machine: `node-d.log`, `torchrun-node-0.log`, `logs/node-1/…`, not `pods.txt`."""
OF_MACHINE = re.compile(
    r"(?:node|host|compute|dgx|hgx|server|srv|cn)[-_]?\d{1,5}$|(?<!worker)(?<!worker[-_])0\d{1,4}$", re.I
)
"""A number that only machines have, or one with a zero before it as theirs; workers, pods and GPUs count ranks, too."""
CONTENTS = """
    console serial kern kernel dmesg journal journalctl syslog messages boot previous prev current last pstore ipmi sel
    bmc sensors smi nvidia nvsmi log logs out output err stdout stderr xid info report full all tail cut list status
    events describe exporter metrics temp util usage memory burn topo topology test train
"""
CONTENT_WORDS = frozenset(CONTENTS.split())
"""Words in a file's name that say what is in it: `gpu-4-console.log` is of gpu-4, `gpu-burn.log` of nobody."""


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of one rank."""

    host: str | None = None
    local_rank: int | None = None
    pid: int | None = None
    gpu: Gpu | None = None


@dataclass(frozen=True, slots=True)
class Identities:
    ranks: Mapping[int, Place] = field(default_factory=dict)
    gpus: Mapping[str | None, tuple[Gpu, ...]] = field(default_factory=dict)
    """Every GPU that some file mentions, by host, by PCI address."""
    world_size: int | None = None
    """As a log states it; None if none does."""
    at_least: int = 0
    """How many ranks there were at least, as launchers show (roster.py); 0: they show none."""
    devices_chosen: bool = False
    """Some line sets CUDA_VISIBLE_DEVICES or a device order, so that indices are no local ranks."""
    visible: Mapping[str | None, tuple[str, ...]] = field(default_factory=dict)
    """Host → the cards that its processes see, as UUIDs or indices of nvidia-smi, where files tell in which order."""
    disputed: frozenset[int] = frozenset()
    """Ranks of which files say different hosts or cards: two jobs in one pile, or two runs."""
    machines: frozenset[str] = frozenset()
    """Short names of hosts that wrote files of their own; other names of ranks' hosts can be containers'."""
    stated: bool = False
    """The user said who ran where (`--hosts`)."""
    behind: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """('switch' or 'block', its name) → the short names of the hosts that share it."""
    problems: tuple[Problem, ...] = ()
    _ranks_by: dict[tuple[str, object], dict[str | None, list[int]]] = field(
        init=False, repr=False, compare=False, default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """("pid", process id) or ("pci", address) → short name of a host → the ranks that have it there."""
    _ranks_on: dict[str | None, list[int]] = field(
        init=False, repr=False, compare=False, default_factory=lambda: defaultdict(list)
    )
    """Short name of a host → the ranks on it."""
    _gpus_on: dict[str | None, list[Gpu]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for rank, place in self.ranks.items():
            host = short(place.host) if place.host is not None else None
            self._ranks_on[host].append(rank)
            if place.pid is not None:
                self._ranks_by["pid", place.pid][host].append(rank)
            if place.gpu is not None and place.gpu.pci is not None:
                self._ranks_by["pci", place.gpu.pci][host].append(rank)
        self._gpus_on.update(_by_host(self.gpus))

    def size(self, seen: Iterable[int] = ()) -> int | None:
        """How many ranks, if these are seen beside those in the table; None where that can't be told."""
        return self.world_size or max(likely_world({*seen, *self.ranks}) or 0, self.at_least) or None

    def existed(self, rank: int) -> bool:
        """Is it shown that there was such a rank, whether or not it wrote anything?"""
        return rank in self.ranks or rank < (self.world_size or self.at_least)

    def rank_of_gpu(self, host: str | None, pci: str | None) -> int | None:
        """The rank that ran on this GPU, if exactly one can have."""
        found = self._having("pci", pci, host)
        return found[0] if len(found) == 1 else None

    def _having(self, what: str, value: object, host: str | None) -> list[int]:
        """The ranks with this address or process id that can be on this host."""
        if (what, value) not in self._ranks_by:
            return []
        by_host = self._ranks_by[what, value]
        if host is None:
            return [rank for ranks in by_host.values() for rank in ranks]
        return [*by_host.get(short(host), ()), *by_host.get(None, ())]

    def likely_rank_of_gpu(self, host: str | None, pci: str | None) -> int | None:
        """The rank that uses this card if rank n of a node uses the n-th card that it sees. Only a hint.

        On a host that has no ranks by its own name, the only rank in a container that has a card at this address.
        """
        gpu = self.gpu(host, pci) if pci else None
        if gpu is None or host is None:
            return None
        alone = self.machines == {short(host)} and self._ranks_on.keys() <= {None}
        if not alone and not self.ranks_on(host):
            return self._in_container(host, gpu)
        seen = next((cards for name, cards in self.visible.items() if same_host(name, host)), None)
        if seen is None and not self.devices_chosen and gpu.index is not None:
            place: int | None = gpu.index
        else:
            places = [n for n, card in enumerate(seen or ()) if _is_card(card, gpu)]
            place = places[0] if len(places) == 1 else None
        here = self.ranks if alone else self.ranks_on(host)
        found = [
            r for r in here if place is not None and self.ranks[r].gpu is None and self.ranks[r].local_rank == place
        ]
        return found[0] if len(found) == 1 else None

    def perhaps_on_gpu(self, host: str | None, pci: str | None) -> tuple[int, ...]:
        """The ranks of which one ran on this card, if any did; () where it is known who did, or nothing tells.

        Whoever is known to be on another host or card can't have. Names of containers say nothing of the host.
        """
        if host is None or pci is None:
            return ()
        everyone = {*self.ranks, *range(min(self.world_size or self.at_least, MOST_RANKS))}
        named = bool(self.ranks_on(host))
        found = set()
        for rank in everyone:
            place = self.ranks.get(rank, Place())
            here = place.host is None or same_host(place.host, host)
            boxed = place.host is not None and not named and short(place.host) not in self.machines
            card = place.gpu.pci if place.gpu is not None else None
            if card == pci and place.host is not None and here:
                return ()  # who ran on it is known
            if (here or (boxed and short(host) in self.machines)) and card in (None, pci):
                found.add(rank)
        placed = all(rank in self.ranks and self.ranks[rank].host for rank in found)
        return tuple(sorted(found)) if len(found) > 1 and (placed or len(found) < len(everyone)) else ()

    def _in_container(self, host: str, gpu: Gpu) -> int | None:
        if short(host) not in self.machines:
            return None
        found = self._having("pci", gpu.pci, None)
        if len(found) != 1 or any(p.gpu is None or p.gpu.pci is None for p in self.ranks.values()):
            return None  # a rank whose card is not known can be the one
        name = self.ranks[found[0]].host
        return found[0] if name is not None and short(name) not in self.machines else None

    def rank_of_pid(self, host: str | None, pid: int | None) -> int | None:
        """The rank with this process id, if exactly one can have it. Container and host pids differ: only a hint."""
        found = self._having("pid", pid, host)
        return found[0] if len(found) == 1 else None

    def unused(self, host: str | None, pci: str | None) -> bool:
        """Is this none of the cards of the ranks on this host, which are all known? Of those in the table, that is."""
        mine = self.ranks_on(host)
        if pci is None or not mine:
            return False
        cards = {g.pci if (g := self.ranks[r].gpu) is not None else None for r in mine}
        return None not in cards and pci not in cards

    def ranks_on(self, host: str | None) -> tuple[int, ...]:
        return tuple(sorted(self._ranks_on.get(short(host), ()))) if host else ()

    def gpu(self, host: str | None, pci: str) -> Gpu:
        """All that is known of the GPU at this address."""
        for gpu in _cards_on(self._gpus_on, host):
            if gpu.pci == pci:
                return gpu if gpu.host or not host else replace(gpu, host=host)
        return Gpu(host=host, pci=pci)


def _by_host(gpus: Mapping[str | None, Iterable[Gpu]]) -> dict[str | None, list[Gpu]]:
    """Short name of a host → the cards that files mention there."""
    found: dict[str | None, list[Gpu]] = defaultdict(list)
    for host, cards in gpus.items():
        found[short(host) if host is not None else None] += cards
    return dict(found)


def _cards_on(by_host: Mapping[str | None, list[Gpu]], host: str | None) -> Iterator[Gpu]:
    """The cards that can be this host's, those of no stated host first."""
    if host is None:
        for cards in by_host.values():
            yield from cards
        return
    yield from by_host.get(None, ())
    yield from by_host.get(short(host), ())


def _is_card(card: str, gpu: Gpu) -> bool:
    """Does an item of CUDA_VISIBLE_DEVICES mean this card? CUDA takes a UUID's beginning for the whole."""
    if card.isdigit():
        return gpu.index == int(card)
    return len(card) > len("GPU-") and gpu.uuid is not None and gpu.uuid.lower().startswith(card.lower())


def same_host(a: str | None, b: str | None) -> bool:
    """Could these two names mean one machine? Unknown matches anything; FQDN and short name match."""
    if a is None or b is None:
        return True
    return a.lower() == b.lower() or short(a) == short(b)


@lru_cache(maxsize=65_536)
def short(host: str) -> str:
    """The name up to its first dot, lower case; IP addresses stay whole."""
    return host.lower() if re.fullmatch(r"[\d.]+|[0-9a-f:]*:[0-9a-f:]*", host) else host.lower().split(".", 1)[0]


def names_in_path(path: str) -> tuple[int | None, int | None, int | None, str | None]:
    """(global rank, attempt, local rank, host) as far as a path tells; the last mention counts."""
    rank = local = attempt = host = None
    for found in RANK_IN_NAME.finditer(path):
        rank = int(found[1])
    if started := ATTEMPT_IN_NAME.search(path):
        attempt, local = int(started[1]), int(started[2])
    if sos := SOSREPORT.search(path):
        return rank, attempt, local, sos[1]
    for found in HOST_IN_NAME.finditer(path):
        words = re.split(r"([-_])", found[1])
        while len(words) > 1 and words[-1].lower() in CONTENT_WORDS:
            words = words[:-2]
        if len(words) > 1 or any(c.isdigit() for c in words[0]):
            host = "".join(words)
    return rank, attempt, local, host


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


def normal_pci(text: str | None) -> str | None:
    """'C1:00.0', '00000000:C1:00.0', 'PCI:0000:c1:00' → '0000:c1:00.0'; None if it is no PCI address."""
    if text is None:
        return None
    found = re.fullmatch(
        r"(?:PCI:|GPU)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.strip(), re.I
    )
    if not found:
        return None
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2]}:{found[3]}.{found[4] or '0'}".lower()


def _sources(
    rows: Sequence[InputRow], events: Sequence[Event]
) -> dict[str, tuple[str | None, int | None, int | None, int | None]]:
    """For each file: (host, global rank, attempt, local rank), from its content first, then from its name."""
    said: dict[str, Counter[str]] = defaultdict(Counter)
    declared: dict[str, str] = {}
    known: dict[str, str] = {}
    told = _told_by_some(events)
    for event in events:
        if event.kind == "host-name" and isinstance(name := event.details.get("name"), str):
            declared.setdefault(event.evidence.source, name)
            known.setdefault(short(name), name)
        elif event.host:
            if event.evidence.source not in told or event.kind != "rank-identity":
                said[event.evidence.source][event.host] += 1
            known.setdefault(short(event.host), event.host)
    found: dict[str, tuple[str | None, int | None, int | None, int | None]] = {}
    stated = {path: set(hosts) for path, hosts in said.items()}
    for path, name in declared.items():
        stated.setdefault(path, set()).add(name)
    machines = set(known)
    folders = _folders(rows, stated)
    of_machines = {folders.get(row.path) for row in rows if row.format in OF_ONE_HOST}
    of_machines |= {folder for folder in folders.values() if short(folder) in machines}
    alike = _alike([row for row in rows if row.format in OF_ONE_HOST and row.path not in stated])
    # What stands before this in every path is where the user keeps the pile, and names nobody's machine or rank.
    own = os.path.commonprefix([row.path for row in rows]).rfind("/") + 1  # noqa: RUF071 (cut at a folder)
    numbered = roster.numbered((r.path for r in rows if r.format not in OF_ONE_HOST), events)
    writers: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.rank is not None and event.kind not in OF_OTHERS and not event.relayed:
            writers[event.evidence.source].add(event.rank)
    shared = _of_several(events)
    for row in rows:
        _, attempt, local, above = names_in_path(row.path)
        begin = own if "!" not in row.path[:own] else row.path.index("!")
        rank, _, _, _ = names_in_path(row.path[begin:])
        uncounted = _without_count(row.path, numbered.get(row.path))
        *_, named = names_in_path(uncounted[begin:])
        if named is None and above is not None and short(above) in machines:
            named = above
        if len(rows) == 1:
            rank = _rank_of_one_file(row.path)
        if rank is None and row.path in numbered:
            rank = numbered[row.path].rank
        if len(writers[row.path] - {rank}) > 1 or row.path in shared:
            rank = None  # several ranks write in it: its name is about something else, such as who failed
        hosts = said.get(row.path, Counter())
        host = declared.get(row.path)
        if host is None and len({short(h) for h in hosts}) == 1:
            host = max(hosts, key=len)
        if host is None and not hosts:
            folder = folders.get(row.path)
            if folder not in re.split(r"[/!]", uncounted) and folder not in of_machines:
                folder = None
            named = _spoken_of(row, known) or named
            named = folder if folder and (named is None or named in folder) else named  # gpu7 of prod3-gpu7
            named = named or alike.get(row.path)
            host = _folder_host(row.path, declared) or (known.get(short(named), named) if named else None)
            if host is None and len(machines) == 1 and row.format in OF_ONE_HOST:
                host = known[next(iter(machines))]  # the pile speaks of one machine only
        found[row.path] = (host, rank, attempt, local)
    return found


def _without_count(path: str, numbered: roster.Numbered | None) -> str:
    """The path with `#` for the number of a rank, so that `worker-5.out` is no machine's, while `node-5.log` is."""
    for at in numbered.places if numbered is not None else ():
        if (found := roster.NUMBER.match(path, at)) and not OF_MACHINE.search(path[: found.end()]):
            path = path[:at] + "#" * len(found[0]) + path[found.end() :]
    return path


def _words(path: str) -> list[str]:
    """A file's name in lower case, cut at what is no letter or digit; the separators stand between the words."""
    return re.split(r"([^a-z0-9]+)", re.split(r"[/!]", path)[-1].lower())


MOST_WORDS = 24


def _spoken_of(row: InputRow, known: Mapping[str, str]) -> str | None:
    """The machine of which lines of the pile speak and whose name is part of this file's: `ob1-console.log`."""
    words = _words(row.path)[:MOST_WORDS]
    found = [
        name
        for begin in range(0, len(words), 2)
        for end in range(begin + 1, len(words) + 1, 2)
        if (name := "".join(words[begin:end])) in known
        and (any(map(str.isalpha, name)) and (any(map(str.isdigit, name)) or row.format in OF_ONE_HOST))
    ]
    longest = {name for name in found if not any(name != other and name in other for other in found)}
    return known[longest.pop()] if len(longest) == 1 else None


def _alike(rows: Sequence[InputRow]) -> dict[str, str]:
    """File → the machine in its name, where another file is named in the same way after another one.

    `la0-kern.log` and `la1-kern.log`: neither is proof by itself.
    """
    shapes: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        words = _words(row.path)
        if len(words) > 1:
            words = words[:-2]  # what is behind the last dot says the format
        while words and words[0] in CONTENT_WORDS:
            words = words[2:]
        while words and words[-1] in CONTENT_WORDS:
            words = words[:-2]
        name = "".join(words)
        if MACHINE.fullmatch(name) and not NOT_MACHINES.fullmatch(name):
            shapes[_shape(row.path)][row.path] = name
    return {path: name for found in shapes.values() if len(set(found.values())) > 1 for path, name in found.items()}


def hosts_of_files(rows: Sequence[InputRow], events: Sequence[Event]) -> dict[str, str | None]:
    """File → the host that it was written on, as its lines or its name tell."""
    return {path: host for path, (host, _, _, _) in _sources(rows, events).items()}


OF_OTHERS = frozenset({"exit", "rendezvous", "restart", "srun-exit", "ds-exit", "sigterm-sent", "pg-remote-rank"})
"""Kinds by which a launcher, or another rank, speaks of a rank."""


def _of_several(events: Iterable[Event]) -> set[str]:
    """Files in which members of one group with different numbers report the same operation: no rank wrote it alone.

    PyTorch up to 2.1 puts no global rank before its lines; in one group a process has one number.
    """
    heard: dict[tuple[object, ...], set[object]] = defaultdict(set)
    for event in events:
        if event.kind == "watchdog-timeout" and event.rank is None:
            said = event.details
            operation = tuple(said.get(key) for key in ("pg_name", "pg_id", "seq", "op", "numel_in", "numel_out"))
            place = (event.evidence.source, *operation)
            heard[place].add(said.get("group_rank"))
    return {str(key[0]) for key, numbers in heard.items() if len(numbers - {None}) > 1}


def _rank_of_one_file(path: str) -> int | None:
    """Of a file that came alone: by its name, or by folders that are named after ranks and nothing else."""
    *folders, name = re.split(r"[/!]", path)
    kept = [one for one in folders if RANK_FOLDER.fullmatch(one)]
    return names_in_path("/".join((*kept, name)))[0]


def _told_by_some(events: Sequence[Event]) -> set[str]:
    """Files in which some ranks name their own host and others write, too, who may be anywhere."""
    named: dict[str, set[tuple[str, int]]] = defaultdict(set)
    wrote: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for event in events:
        if event.relayed:
            continue
        seats = {(k, n) for k, n in (("rank", event.rank), ("local", event.local_rank)) if n is not None}
        wrote[event.evidence.source] |= seats
        if event.kind == "rank-identity" and event.host:
            named[event.evidence.source] |= seats
    return {source for source, seats in named.items() if wrote[source] - seats}


MACHINE = re.compile(r"[a-z]{2}[a-z0-9]*(?:-[a-z0-9]+)*-?\d+[a-z]?", re.I)
NOT_MACHINES = re.compile(
    r"(?:rank|attempt|step|epoch|checkpoint|ckpt|job|slurm|run|trial|seed|log|logs|part|tmp|version|v|out|case|dump|fr"
    r"|torch|cuda|nccl|node_rank|local_rank|worker_rank|sample|bundle|ticket|incident"
    r"|exp|experiment|test|try|retry|round|iter|fold|shard|task|phase|stage|batch|set|data|day|week|dir|folder|file|copy"
    r"|backup|archive|upload|prod|dev|staging)[-_]?\d+",
    re.I,
)
"""Folder names with a number at the end that are no machine's."""


def _folders(rows: Sequence[InputRow], said: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """File → the folder above it that is named after a machine, below what all paths have in common.

    Looking like a name is not enough: a line of the pile states that host, or a folder beside it has the same shape
    (node-01, node-02). `said`: hosts that files state themselves; where a folder holds another machine's file, neither
    it nor those of its shape are named after machines.
    """
    parts = {r.path: re.split(r"[/!]", r.path)[:-1] for r in rows}
    common = 0
    if len(parts) < 2:
        return {}  # one file: its folders are whoever mailed it's
    if parts:
        while len({p[common] if len(p) > common else None for p in parts.values()}) == 1 and any(
            len(p) > common for p in parts.values()
        ):
            common += 1
    names: dict[str, set[str]] = defaultdict(set)  # folder → hosts that files below it state
    for path, folders in parts.items():
        for depth in range(common, len(folders)):
            names["/".join(folders[: depth + 1])] |= {short(h) for h in said.get(path, ())}
    alike: dict[tuple[str, str], set[str]] = defaultdict(set)  # (parent, shape) → names
    doubted: set[tuple[str, str]] = set()
    for folder, others in names.items():
        parent, _, name = folder.rpartition("/")
        alike[parent, _shape(name)].add(name)
        if not others <= {short(name)}:
            doubted.add((parent, _shape(name)))
    stated = {short(h) for hosts in said.values() for h in hosts}
    found: dict[str, str] = {}
    for path, folders in parts.items():
        for depth in range(common, len(folders)):
            name, others = folders[depth], names["/".join(folders[: depth + 1])]
            if not MACHINE.fullmatch(name) or NOT_MACHINES.fullmatch(name) or not others <= {short(name)}:
                continue
            kin = "/".join(folders[:depth]), _shape(name)
            if short(name) in stated or (len(alike[kin]) > 1 and kin not in doubted):
                found[path] = name
    return found


def _shape(name: str) -> str:
    """'node-01' → 'node-#'."""
    return re.sub(r"\d+", "#", name.lower())


def _folder_host(path: str, declared: Mapping[str, str]) -> str | None:
    """The host that a neighbour in the same archive or bundle folder declares (a sosreport's `hostname`)."""
    if "!" not in path:
        return None
    root = path.rsplit("!", 1)[0] + "!"
    top = path[len(root) :].split("/", 1)[0]
    names = {name for other, name in declared.items() if other.startswith(root + top)}
    return names.pop() if len(names) == 1 else None


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
    canonical = _canonical(events)
    gpus = _gpus(events, canonical)
    sources = _sources(rows, events)
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
    if started := roster.world(events):
        worlds[started] += 10
    for row in rows:
        where, named, _, local = sources[row.path]
        if named is not None and where is not None:
            claim(named, 1, host=canonical.get(short(where), where), local_rank=local)

    problems += _contradicted(hosts or {}, claims, machines)
    ranks: dict[int, Place] = {}
    cards_by_host = _by_host(gpus)
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
    world = worlds.most_common(1)[0][0] if worlds else _listed_world(hosts or ())
    _of_files(ranks, events, sources, world)
    spoken = {h for h in (*(r.host for r in rows), *(e.host for e in events)) if h}

    def cards(host: str | None) -> int:
        """How many GPUs it has, as far as files tell."""
        return max((len(g) for name, g in gpus.items() if same_host(name, host)), default=0)

    _same_node(ranks, _everyone(ranks, events, also, widest), spoken, cards)
    return Identities(
        ranks=ranks,
        gpus=gpus,
        world_size=world,
        at_least=roster.at_least(events),
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


def likely_world(seen: Iterable[int]) -> int | None:
    """How many ranks a job has that shows these: one more than the highest, for most of a job usually shows.

    None if that is far more than the ranks that are seen: then it is a guess, or a misread number. Our judgement.
    """
    ranks = set(seen)
    world = max(ranks, default=-1) + 1
    return world if 0 < world <= min(4 * len(ranks) + 64, MOST_RANKS) else None


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
    by_local = _local_ranks(events, sources, Identities(ranks=ranks)).ranks
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
    for one in _cards_on(gpus, str(host) if host is not None else None):
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


def _canonical(events: Iterable[Event]) -> dict[str, str]:
    """Short name → the longest spelling that any file uses."""
    best: dict[str, str] = {}
    for event in events:
        for name in (event.host, event.details.get("name") if event.kind == "host-name" else None):
            if isinstance(name, str) and name and len(name) > len(best.get(short(name), "")):
                best[short(name)] = name
    return best


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


def attribute(
    events: Sequence[Event], rows: Sequence[InputRow], known: Identities
) -> tuple[list[Event], list[InputRow]]:
    """Fill in rank and host where the table, a neighbour or the file's name tells them; unknown stays None."""
    canonical = _canonical(events)
    sources = _sources(rows, events)
    by_local = _local_ranks(events, sources, known)
    tasks_are_ranks = _tasks_are_ranks(events, known.world_size)
    out: list[Event] = []
    for event in events:
        where, named, attempt, local_in_name = sources.get(event.evidence.source, (None, None, None, None))
        if event.relayed:
            where = named = local_in_name = None
        host = event.host or where
        host = canonical.get(short(host), host) if host else None
        local = event.local_rank if event.local_rank is not None else local_in_name
        rank = event.rank
        if rank is None and event.kind not in NOBODY:
            if local is not None:
                rank = by_local.rank(event, host, local)
            if rank is None and event.task is not None and event.evidence.source in tasks_are_ranks:
                rank = event.task
            if rank is None:
                rank = named
            if rank is None and event.gpu_pci is not None:
                rank = known.rank_of_gpu(host, event.gpu_pci)
            if rank is None and event.pid is not None and host is not None:
                rank = known.rank_of_pid(host, event.pid)
        if host is None and rank is not None and rank in known.ranks:
            host = known.ranks[rank].host
        if rank is None and event.evidence.source in tasks_are_ranks and len(tasks := _tasks(event)) > 1:
            event = replace(event, details={**event.details, "ranks": tasks})
        if (rank, host, local, attempt) != (event.rank, event.host, event.local_rank, event.attempt):
            event = replace(
                event,
                rank=rank,
                host=host,
                local_rank=local,
                attempt=event.attempt if event.attempt is not None else attempt,
            )
        out.append(event)
    ranks_in: dict[str, set[int]] = defaultdict(set)
    for event in out:
        if event.rank is not None and not event.relayed:
            ranks_in[event.evidence.source].add(event.rank)
    named_rows = []
    for row in rows:
        where, rank, _, local = sources[row.path]
        inside = ranks_in.get(row.path, set())
        if rank is None:
            rank = next(iter(inside)) if len(inside) == 1 else by_local.ranks.get((row.path, local), row.rank)
        named_rows.append(replace(row, host=canonical.get(short(where), where) if where else row.host, rank=rank))
    return out, named_rows


NOBODY = frozenset({"host-name", "gpu-info", "driver-version", "clock-anchor", "boot-start", "setting"})
"""Kinds that belong to a host or a file, not to a rank."""


def _tasks(event: Event) -> tuple[int, ...]:
    """The tasks of a launcher that a line is about."""
    if event.task is not None:
        return (event.task,)
    tasks = event.details.get("tasks")
    return tuple(n for n in tasks if isinstance(n, int)) if isinstance(tasks, tuple) else ()


def _tasks_are_ranks(events: Sequence[Event], world: int | None) -> set[str]:
    """Files in which a launcher's task number is the global rank: wherever both stand in one line, they agree.

    Releases up to 2.1 write no global rank; there the rank in the widest communicator, or in the group of a timeout,
    has to agree for two tasks or more. Where no line has both, a task number in the upper half of the world proves it:
    tasks that start two ranks each or more are half as many as ranks at most. So do two tasks that srun saw end on one
    node: a launcher that starts a node's ranks is one task there.
    """
    agree: dict[str, set[bool]] = defaultdict(set)
    also: dict[str, set[tuple[int, int]]] = defaultdict(set)
    widest = max((int(n) for e in events if isinstance(n := e.details.get("nranks"), int)), default=None)
    for event in events:
        if event.task is None:
            continue
        inside = event.details.get("group_rank" if event.kind == "watchdog-timeout" else "comm_rank")
        if event.rank is not None:
            agree[event.evidence.source].add(event.task == event.rank)
        elif isinstance(inside, int) and (
            event.kind == "watchdog-timeout" or (event.kind == "nccl-init" and event.details.get("nranks") == widest)
        ):
            also[event.evidence.source].add((event.task, inside))
    for source, pairs in also.items():
        if len({task for task, _ in pairs}) > 1:
            agree[source] |= {task == rank for task, rank in pairs}
    for event in events:
        if world and any(world <= 2 * task < 2 * world for task in _tasks(event)):
            agree[event.evidence.source].add(True)
    on_node: dict[tuple[str, str], set[int]] = defaultdict(set)
    for event in events:
        if event.kind in ("srun-exit", "slurm-oom") and event.host:
            on_node[event.evidence.source, event.host] |= set(_tasks(event))
    for (source, _), found in on_node.items():
        if len(found) > 1:
            agree[source].add(True)
    return {source for source, said in agree.items() if said == {True}}


@dataclass(frozen=True, slots=True)
class _Locals:
    """Which global rank a local rank is: on a host, of a launcher's task, in a file of one host."""

    ranks: Mapping[tuple[object, ...], int]
    mixed: frozenset[str]
    """Files in which several hosts write."""
    rendezvous: Mapping[str, Sequence[tuple[int, tuple[object, ...]]]]
    """File → (line, global ranks by local rank) in the order of its lines, where an agent met others several times."""

    def rank(self, event: Event, host: str | None, local: int) -> int | None:
        source = event.evidence.source
        if met := self._met(event):
            said = met[local] if local < len(met) else None
            return said if isinstance(said, int) else None
        keys: list[tuple[object, ...]] = []
        if event.task is not None:
            keys.append((source, event.task, local))
        if event.host is not None:
            keys.append((host, local))
        if source not in self.mixed:
            keys += [(source, local), (host, local)]
        return next((self.ranks[key] for key in keys if key in self.ranks), None)

    def _met(self, event: Event) -> tuple[object, ...]:
        """What the last rendezvous before this line said: at each, a node may be given other ranks."""
        met = self.rendezvous.get(event.evidence.source, ())
        before = bisect.bisect_right(met, event.evidence.line or 0, key=lambda m: m[0])
        return met[before - 1][1] if before else ()


def _local_ranks(
    events: Sequence[Event],
    sources: Mapping[str, tuple[str | None, int | None, int | None, int | None]],
    known: Identities,
) -> _Locals:
    found: dict[tuple[object, ...], int] = {}
    met: dict[str, list[tuple[int, tuple[object, ...]]]] = defaultdict(list)
    speakers: dict[str, set[object]] = defaultdict(set)
    for event in events:
        if event.local_rank is not None and event.task is not None:
            speakers[event.evidence.source].add(event.task)
        elif event.local_rank is not None and event.kind == "exit" and event.host:
            speakers[event.evidence.source].add(short(event.host))
    for event in events:
        source = event.evidence.source
        if event.kind == "rendezvous" and isinstance(globals_ := event.details.get("global_ranks"), tuple):
            met[source].append((event.evidence.line or 0, globals_))
            for local, rank in enumerate(globals_):
                if isinstance(rank, int):
                    found.setdefault((source, local), rank)
                    if host := sources.get(source, (None,))[0]:
                        found.setdefault((host, local), rank)
        elif event.rank is not None and event.local_rank is not None:
            found.setdefault((source, event.local_rank), event.rank)
            if event.task is not None:
                found.setdefault((source, event.task, event.local_rank), event.rank)
            if event.host:
                found.setdefault((event.host, event.local_rank), event.rank)
    for rank, place in known.ranks.items():
        if place.host is not None and place.local_rank is not None:
            found.setdefault((place.host, place.local_rank), rank)
    hosts = {short(p.host) for p in known.ranks.values() if p.host} | {short(s[0]) for s in sources.values() if s[0]}
    told = {g for e in events if isinstance(g := e.details.get("global_ranks"), tuple) and g}
    if len(hosts) <= 1 and len(told) == 1:  # one agent's rendezvous: it speaks for all files of that machine
        (globals_,) = told
        for source in sources:
            for local, rank in enumerate(globals_):
                if isinstance(rank, int):
                    found.setdefault((source, local), rank)
    locals_ = {e.local_rank for e in events if e.local_rank is not None} | {
        s[3] for s in sources.values() if s[3] is not None
    }
    globals_seen = {e.rank for e in events if e.rank is not None and e.kind != "watchdog-timeout"} | set(known.ranks)
    fits = max(globals_seen, default=0) <= max(locals_, default=0) and not globals_seen - set(
        range(max(locals_, default=0) + 1)
    )
    if len(hosts) <= 1 and not told and fits:  # one machine: its local ranks are the job's ranks
        for event in events:
            if event.local_rank is not None:
                found.setdefault((event.evidence.source, event.local_rank), event.local_rank)
        for path, (_, _, _, in_name) in sources.items():
            if in_name is not None:
                found.setdefault((path, in_name), in_name)
    mixed = frozenset(source for source, who in speakers.items() if len(who) > 1)
    often = {source: rows for source, rows in met.items() if source not in mixed and len({m[1] for m in rows}) > 1}
    return _Locals(found, mixed, often)


def hosts_of(known: Identities, events: Iterable[Event]) -> Iterator[tuple[str, tuple[Gpu, ...]]]:
    """(host, its GPUs), by name; hosts that only events mention have none."""
    names = (
        {h for h in known.gpus if h}
        | {e.host for e in events if e.host}
        | {p.host for p in known.ranks.values() if p.host}
    )
    for name in sorted(names):
        yield name, known.gpus.get(name, ())
