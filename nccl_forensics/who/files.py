"""What the names of files and folders tell: the host that wrote a file, the rank that a file is about."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from nccl_forensics.intake.sniff import OF_ONE_HOST
from nccl_forensics.model import Event, InputRow
from nccl_forensics.names import short
from nccl_forensics.who.roster import NUMBER, Numbered, numbered

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


def of_sources(
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
    numbers = numbered((r.path for r in rows if r.format not in OF_ONE_HOST), events)
    writers: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.rank is not None and event.kind not in OF_OTHERS and not event.relayed:
            writers[event.evidence.source].add(event.rank)
    shared = _of_several(events)
    for row in rows:
        _, attempt, local, above = names_in_path(row.path)
        begin = own if "!" not in row.path[:own] else row.path.index("!")
        rank, _, _, _ = names_in_path(row.path[begin:])
        uncounted = _without_count(row.path, numbers.get(row.path))
        *_, named = names_in_path(uncounted[begin:])
        if named is None and above is not None and short(above) in machines:
            named = above
        if len(rows) == 1:
            rank = _rank_of_one_file(row.path)
        if rank is None and row.path in numbers:
            rank = numbers[row.path].rank
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


def _without_count(path: str, numbered: Numbered | None) -> str:
    """The path with `#` for the number of a rank, so that `worker-5.out` is no machine's, while `node-5.log` is."""
    for at in numbered.places if numbered is not None else ():
        if (found := NUMBER.match(path, at)) and not OF_MACHINE.search(path[: found.end()]):
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
    return {path: host for path, (host, _, _, _) in of_sources(rows, events).items()}


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
