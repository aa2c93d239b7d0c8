"""What the names of files and folders tell by themselves: a rank, an attempt, a machine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from typing import NamedTuple

from nccl_forensics.names import short
from nccl_forensics.who.numbered_files import NUMBER, Numbered

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
LONGEST_LETTER = 2
"""`node-d`, `node-ab`: letters that count machines; `gpu-errors`, `worker-crash` say what is in a file."""
CONTENTS = """
    console serial kern kernel dmesg journal journalctl syslog messages boot previous prev current last pstore ipmi sel
    bmc sensors smi nvidia nvsmi log logs out output err stdout stderr xid info report full all tail cut list status
    events describe exporter metrics temp util usage memory burn topo topology test train
"""
CONTENT_WORDS = frozenset(CONTENTS.split())
"""Words in a file's name that say what is in it: `gpu-4-console.log` is of gpu-4, `gpu-burn.log` of nobody."""

MACHINE = re.compile(r"[a-z]{2}[a-z0-9]*(?:-[a-z0-9]+)*-?\d+[a-z]?", re.I)
NOT_MACHINES = re.compile(
    r"(?:rank|attempt|step|epoch|checkpoint|ckpt|job|slurm|run|trial|seed|log|logs|part|tmp|version|v|out|case|dump|fr"
    r"|torch|cuda|nccl|node_rank|local_rank|worker_rank|sample|bundle|ticket|incident"
    r"|exp|experiment|test|try|retry|round|iter|fold|shard|task|phase|stage|batch|set|data|day|week|dir|folder|file|copy"
    r"|backup|archive|upload|prod|dev|staging)[-_]?\d+",
    re.I,
)
"""Folder names with a number at the end that are no machine's."""


class InPath(NamedTuple):
    """What a path tells; None: nothing."""

    rank: int | None
    """Global."""
    attempt: int | None
    local_rank: int | None
    host: str | None


def names_in_path(path: str) -> InPath:
    """Rank, attempt, local rank and host as far as a path tells; the last mention counts."""
    ranks = RANK_IN_NAME.findall(path)
    started = ATTEMPT_IN_NAME.search(path)
    return InPath(
        rank=int(ranks[-1]) if ranks else None,
        attempt=int(started[1]) if started else None,
        local_rank=int(started[2]) if started else None,
        host=_host_in_path(path),
    )


def _host_in_path(path: str) -> str | None:
    if sos := SOSREPORT.search(path):
        return sos[1]
    host = None
    for found in HOST_IN_NAME.finditer(path):
        words = re.split(r"([-_])", found[1])
        while len(words) > 1 and _says_what(words[-1]):
            words = words[:-2]
        if len(words) > 1 or any(c.isdigit() for c in words[0]):
            host = "".join(words)
    return host


def _says_what(word: str) -> bool:
    """Does a word behind a machine's name say what is in the file? Machines are counted with digits or letters."""
    return word.lower() in CONTENT_WORDS or (word.isalpha() and len(word) > LONGEST_LETTER)


def rank_of_one_file(path: str) -> int | None:
    """Of a file that came alone: by its name, or by folders that are named after ranks and nothing else."""
    *folders, name = steps_of(path)
    kept = [one for one in folders if RANK_FOLDER.fullmatch(one)]
    return names_in_path("/".join((*kept, name))).rank


def steps_of(path: str) -> list[str]:
    """Folders and archives from the outside in, and last the file's own name."""
    return re.split(r"[/!]", path)


def words_of(path: str) -> list[str]:
    """A file's name in lower case, cut at what is no letter or digit; the separators stand between the words."""
    return re.split(r"([^a-z0-9]+)", steps_of(path)[-1].lower())


def without_count(path: str, numbered: Numbered | None) -> str:
    """The path with `#` for the number of a rank, so that `worker-5.out` is no machine's, while `node-5.log` is."""
    for at in numbered.places if numbered is not None else ():
        if (found := NUMBER.match(path, at)) and not OF_MACHINE.search(path[: found.end()]):
            path = path[:at] + "#" * len(found[0]) + path[found.end() :]
    return path


def named_alike(paths: Iterable[str]) -> dict[str, str]:
    """File → the machine in its name, where another file is named in the same way after another one.

    `la0-kern.log` and `la1-kern.log`: neither is proof by itself.
    """
    shapes: dict[str, dict[str, str]] = defaultdict(dict)
    for path in paths:
        name = _without_contents(path)
        if _like_a_machine(name):
            shapes[_shape(path)][path] = name
    return {path: name for found in shapes.values() if len(set(found.values())) > 1 for path, name in found.items()}


def _without_contents(path: str) -> str:
    """A file's name without the words that say what is in it."""
    words = words_of(path)
    if len(words) > 1:
        words = words[:-2]  # what is behind the last dot says the format
    while words and words[0] in CONTENT_WORDS:
        words = words[2:]
    while words and words[-1] in CONTENT_WORDS:
        words = words[:-2]
    return "".join(words)


def _like_a_machine(name: str) -> bool:
    return MACHINE.fullmatch(name) is not None and NOT_MACHINES.fullmatch(name) is None


def _shape(name: str) -> str:
    """'node-01' → 'node-#'."""
    return re.sub(r"\d+", "#", name.lower())


def machine_folders(paths: Iterable[str], said: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """File → the folder above it that is named after a machine, below what all paths have in common.

    Looking like a name is not enough: a line of the pile states that host, or a folder beside it has the same shape
    (node-01, node-02). `said`: hosts that files state themselves; where a folder holds another machine's file, neither
    it nor those of its shape are named after machines.
    """
    above = _folders_above(tuple(dict.fromkeys(paths)))
    states: dict[str, set[str]] = defaultdict(set)  # folder → hosts that files below it state
    for path, folders in above.items():
        for folder in folders:
            states[folder] |= {short(host) for host in said.get(path, ())}
    machines = _named_after_machines(states, spoken={short(host) for hosts in said.values() for host in hosts})
    named = {path: [_name(folder) for folder in folders if folder in machines] for path, folders in above.items()}
    return {path: names[-1] for path, names in named.items() if names}


def _named_after_machines(states: Mapping[str, Collection[str]], spoken: Collection[str]) -> set[str]:
    """`states`: folder → hosts that files below it state; `spoken`: those that any file states."""
    foreign = {folder for folder, hosts in states.items() if not set(hosts) <= {short(_name(folder))}}
    counted = _shapes_of_several(states) - {_kin(folder) for folder in foreign}
    return {
        folder
        for folder in states.keys() - foreign
        if _like_a_machine(_name(folder)) and (short(_name(folder)) in spoken or _kin(folder) in counted)
    }


def _folders_above(paths: Collection[str]) -> dict[str, list[str]]:
    """File → the folders above it, from the outside in, below what all files have in common."""
    if len(paths) < 2:
        return {}  # one file: its folders are whoever mailed it's
    steps = {path: steps_of(path)[:-1] for path in paths}
    common = 0
    for beside in zip_longest(*steps.values()):
        if len(set(beside)) > 1:
            break
        common += 1
    return {path: ["/".join(of[: n + 1]) for n in range(common, len(of))] for path, of in steps.items()}


def _shapes_of_several(folders: Iterable[str]) -> set[tuple[str, str]]:
    """What folders beside each other share that differ in numbers alone."""
    names: dict[tuple[str, str], set[str]] = defaultdict(set)
    for folder in folders:
        names[_kin(folder)].add(_name(folder))
    return {kin for kin, inside in names.items() if len(inside) > 1}


def _name(folder: str) -> str:
    return folder.rpartition("/")[2]


def _kin(folder: str) -> tuple[str, str]:
    """What it shares with the folders beside it that are called alike: the folder above, and the shape of its name."""
    parent, _, name = folder.rpartition("/")
    return parent, _shape(name)
