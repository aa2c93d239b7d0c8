"""Whose each file is: the host that wrote it and the rank that it is about, by its lines first, then by its name."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.intake.sniff import KERNEL_FORMATS, OF_ONE_HOST
from nccl_forensics.lines.stamps import DAY
from nccl_forensics.model import Event, InputRow
from nccl_forensics.names import short
from nccl_forensics.who.numbered_files import Numbered, numbered
from nccl_forensics.who.paths import (
    machine_folders,
    named_alike,
    names_in_path,
    rank_of_one_file,
    steps_of,
    without_count,
    words_of,
)


@dataclass(frozen=True, slots=True)
class OfFile:
    """Whose a file is, as far as its lines and its name tell."""

    host: str | None = None
    """Where it was written."""
    rank: int | None = None
    """The global rank that it is about."""
    attempt: int | None = None
    """Which start of the job by its launcher, from 0."""
    local_rank: int | None = None


UNTOLD = OfFile()
"""A file of which nothing is known."""
OfFiles = Mapping[str, OfFile]
"""By path."""


def of_sources(rows: Sequence[InputRow], events: Sequence[Event]) -> dict[str, OfFile]:
    """Of each file what its content tells first, then its name."""
    said = _Said.by(rows, events)
    names = _Names.of(rows, events, said)
    found: dict[str, OfFile] = {}
    for row in rows:
        named = names_in_path(row.path)
        host, rank = _host(row, said, names), _rank(row.path, said, names)
        found[row.path] = OfFile(host, rank, named.attempt, named.local_rank)
    return found


def hosts_of_files(rows: Sequence[InputRow], events: Sequence[Event]) -> dict[str, str | None]:
    """File → the host that it was written on, as its lines or its name tell."""
    return {path: file.host for path, file in of_sources(rows, events).items()}


@dataclass(frozen=True, slots=True)
class _Said:
    """What the lines of the pile tell of its files."""

    declared: Mapping[str, str]
    """File → the name that its machine gives itself."""
    hosts: Mapping[str, Counter[str]]
    """File → the hosts of its lines."""
    known: Mapping[str, str]
    """Short name of every host of which lines speak → its first spelling."""
    writers: Mapping[str, set[int]]
    """File → ranks that write in it."""
    of_several: frozenset[str]
    """Files that no rank wrote alone, whatever ranks they name."""
    of_jobs: frozenset[str]
    """Short names of the hosts of which a job's own lines speak."""
    days: Mapping[str, tuple[int, int]]
    """File → the first and the last day on its own clock, days since 1970, of lines that write their year."""
    days_of: Mapping[str, tuple[int, int]]
    """Short name of a host → the same of its lines."""
    cards: Mapping[str, frozenset[str]]
    """File → the PCI addresses of GPUs in it."""
    cards_of: Mapping[str, frozenset[str]]
    """Short name of a host → the same of its lines."""
    logged: frozenset[str]
    """Short names of the hosts whose kernel's log is here under their own name."""

    @classmethod
    def by(cls, rows: Sequence[InputRow], events: Sequence[Event]) -> _Said:
        of_one_host = {row.path for row in rows if row.format in OF_ONE_HOST}
        of_kernel = {row.path for row in rows if row.format in KERNEL_LOGS}
        elsewhere = _told_by_some(events)
        declared: dict[str, str] = {}
        hosts: dict[str, Counter[str]] = defaultdict(Counter)
        known: dict[str, str] = {}
        writers: dict[str, set[int]] = defaultdict(set)
        for event in events:
            source = event.evidence.source
            if event.kind == "host-name" and isinstance(name := event.details.get("name"), str):
                declared.setdefault(source, name)
                known.setdefault(short(name), name)
            elif event.host:
                if event.kind != "rank-identity" or source not in elsewhere:
                    hosts[source][event.host] += 1
                known.setdefault(short(event.host), event.host)
            if event.rank is not None and event.kind not in OF_OTHERS and not event.relayed:
                writers[source].add(event.rank)
        on_hosts = [(short(event.host), event) for event in events if event.host]
        return cls(
            declared,
            hosts,
            known,
            writers,
            frozenset(_of_several(events)),
            frozenset(host for host, event in on_hosts if event.evidence.source not in of_one_host),
            _days((event.evidence.source, event) for event in events),
            _days(on_hosts),
            _cards((event.evidence.source, event) for event in events),
            _cards(on_hosts),
            frozenset(host for host, event in on_hosts if event.evidence.source in of_kernel),
        )

    def stated(self) -> dict[str, set[str]]:
        """File → the hosts that its own lines state."""
        found = {path: set(hosts) for path, hosts in self.hosts.items()}
        for path, name in self.declared.items():
            found.setdefault(path, set()).add(name)
        return found


@dataclass(frozen=True, slots=True)
class _Names:
    """What the names of all files together tell of each."""

    kept_in: int
    """So many characters stand before every path: where the user keeps the pile. They name nobody's machine or rank."""
    numbers: Mapping[str, Numbered]
    """File → the rank that a number in its name counts."""
    folders: Mapping[str, str]
    """File → the folder above it that is named after a machine."""
    of_machines: frozenset[str | None]
    """Those of `folders` that are machines for sure: their own files lie there, or lines speak of them."""
    alike: Mapping[str, str]
    """File → the machine after which it is named, as another file is after another one."""
    alone: bool
    """There is no other file."""

    @classmethod
    def of(cls, rows: Sequence[InputRow], events: Sequence[Event], said: _Said) -> _Names:
        stated = said.stated()
        folders = machine_folders((row.path for row in rows), stated)
        of_hosts = [row.path for row in rows if row.format in OF_ONE_HOST]
        with_files = {folders.get(path) for path in of_hosts}
        spoken_of = {folder for folder in folders.values() if short(folder) in said.known}
        return cls(
            kept_in=os.path.commonprefix([row.path for row in rows]).rfind("/") + 1,  # noqa: RUF071 (cut at a folder)
            numbers=numbered((row.path for row in rows if row.format not in OF_ONE_HOST), events),
            folders=folders,
            of_machines=frozenset(with_files | spoken_of),
            alike=named_alike(path for path in of_hosts if path not in stated),
            alone=len(rows) == 1,
        )

    def telling(self, path: str) -> int:
        """Where the part of a path begins that tells something: an archive's name does, where all are members of it."""
        return path.index("!") if "!" in path[: self.kept_in] else self.kept_in

    def uncounted(self, path: str) -> str:
        return without_count(path, self.numbers.get(path))


def _rank(path: str, said: _Said, names: _Names) -> int | None:
    """The rank that a file is about; None where several write in it: its name is about something else, such as who
    failed."""
    rank = _rank_in_name(path, names)
    if rank is None and path in names.numbers:
        rank = names.numbers[path].rank
    others = said.writers.get(path, set()) - {rank}
    return None if len(others) > 1 or path in said.of_several else rank


def _rank_in_name(path: str, names: _Names) -> int | None:
    return rank_of_one_file(path) if names.alone else names_in_path(path[names.telling(path) :]).rank


def _host(row: InputRow, said: _Said, names: _Names) -> str | None:
    """What a line declares; else the only host of its lines; else, where no line has one, what names tell."""
    declared, hosts = said.declared.get(row.path), said.hosts.get(row.path)
    if declared is not None:
        return declared
    if hosts:
        return _only_host(hosts)
    return (
        _declared_beside(row.path, said)
        or _spelled(_host_by_name(row, said, names), said)
        or _by_cards(row, said)
        or _only_machine(row, said)
    )


def _only_host(hosts: Mapping[str, int]) -> str | None:
    """The longest spelling of the one host that lines name."""
    return max(hosts, key=len) if len({short(h) for h in hosts}) == 1 else None


def _declared_beside(path: str, said: _Said) -> str | None:
    """The host that a neighbour in the same archive or bundle folder declares (a sosreport's `hostname`), if no line of
    the files there speaks of another."""
    if "!" not in path:
        return None
    root = path.rsplit("!", 1)[0] + "!"
    bundle = root + path[len(root) :].split("/", 1)[0]
    names = {name for other, name in said.declared.items() if other.startswith(bundle)}
    spoken_of = {short(host) for other, hosts in said.hosts.items() if other.startswith(bundle) for host in hosts}
    return names.pop() if len(names) == 1 and spoken_of <= {short(name) for name in names} else None


def _host_by_name(row: InputRow, said: _Said, names: _Names) -> str | None:
    """By the file's own name; by the folder's if that has it in full (gpu7 of prod3-gpu7), or the file's tells none."""
    named = _spoken_of(row, said.known) or _host_in_path(row.path, said, names)
    folder = _folder(row.path, names)
    if folder is not None and (named is None or named in folder):
        return folder
    return named or names.alike.get(row.path)


MOST_WORDS = 24
KERNEL_LOGS = KERNEL_FORMATS - {"nvidia-bug-report"}


def _spoken_of(row: InputRow, known: Mapping[str, str]) -> str | None:
    """The machine of which lines of the pile speak and whose name is part of this file's: `ob1-console.log`."""
    words = words_of(row.path)[:MOST_WORDS]
    spans = ("".join(words[a:b]) for a in range(0, len(words), 2) for b in range(a + 1, len(words) + 1, 2))
    found = [name for name in spans if name in known and _tells_a_machine(name, row)]
    longest = {name for name in found if not any(name != other and name in other for other in found)}
    return known[longest.pop()] if len(longest) == 1 else None


def _tells_a_machine(name: str, row: InputRow) -> bool:
    """Is it more than a word that happens to be a host's name? Letters with a number, or any in a host's own file."""
    return any(map(str.isalpha, name)) and (any(map(str.isdigit, name)) or row.format in OF_ONE_HOST)


def _host_in_path(path: str, said: _Said, names: _Names) -> str | None:
    """What looks like a machine's name in a path; where the pile is kept counts only if lines speak of that machine."""
    if (host := names_in_path(names.uncounted(path)[names.telling(path) :]).host) is not None:
        return host
    above = names_in_path(path).host
    return above if above is not None and short(above) in said.known else None


def _folder(path: str, names: _Names) -> str | None:
    """The folder above that is named after a machine, unless its number counts ranks and nothing else speaks for it."""
    folder = names.folders.get(path)
    counts_ranks = folder not in steps_of(names.uncounted(path))
    return None if counts_ranks and folder not in names.of_machines else folder


def _spelled(name: str | None, said: _Said) -> str | None:
    """As lines spell it, where they speak of that machine."""
    return said.known.get(short(name), name) if name else None


def _by_cards(row: InputRow, said: _Said) -> str | None:
    """Of a host's own file, the one host of which lines speak that has all of its cards."""
    cards = said.cards.get(row.path, frozenset())
    if len(cards) < FEWEST_CARDS or row.format not in OF_ONE_HOST:
        return None
    having = [host for host, theirs in said.cards_of.items() if cards <= theirs]
    return said.known[having[0]] if len(having) == 1 else None


FEWEST_CARDS = 2
"""Addresses that a host's file must have in common with it: one is often the same on many hosts."""


def _only_machine(row: InputRow, said: _Said) -> str | None:
    """Of a host's own file, where the pile, or the job in it, speaks of one machine only, and of the same days.

    A second kernel log of a machine of which no job speaks must have a card or a day in common with the first.
    """
    if row.format not in OF_ONE_HOST:
        return None
    machines = said.known if len(said.known) == 1 else said.of_jobs & said.known.keys()
    if len(machines) != 1:
        return None
    (host,) = machines
    second = row.format in KERNEL_LOGS and host in said.logged and host not in said.of_jobs
    tied = not second or _is_like(row.path, host, said)
    return said.known[host] if tied and _can_be_of(row.path, host, said) else None


def _is_like(path: str, host: str, said: _Said) -> bool:
    """Have the lines of the file and of the host a card or a day in common?"""
    here, there = said.days.get(path), said.days_of.get(host)
    same_days = here is not None and there is not None and here[0] <= there[1] and there[0] <= here[1]
    return same_days or not said.cards.get(path, frozenset()).isdisjoint(said.cards_of.get(host, frozenset()))


def _can_be_of(path: str, host: str, said: _Said) -> bool:
    """Do the lines of the file and of the host tell of the same days, and have they a card in common?"""
    here, there = said.days.get(path), said.days_of.get(host)
    if here is not None and there is not None and not (here[0] - 1 <= there[1] and there[0] - 1 <= here[1]):
        return False
    cards, theirs = said.cards.get(path), said.cards_of.get(host)
    return not cards or not theirs or not cards.isdisjoint(theirs)


def _days(lines: Iterable[tuple[str, Event]]) -> dict[str, tuple[int, int]]:
    """Of each file or host the first and the last day that its lines write with the year."""
    found: dict[str, tuple[int, int]] = {}
    for of, event in lines:
        stamp = event.stamp
        if stamp is not None and stamp.wall_ns is not None and stamp.has_year:
            day = stamp.wall_ns // DAY
            first, last = found.get(of, (day, day))
            found[of] = min(first, day), max(last, day)
    return found


def _cards(lines: Iterable[tuple[str, Event]]) -> dict[str, frozenset[str]]:
    """Of each file or host the PCI addresses of GPUs in its lines."""
    found: dict[str, set[str]] = defaultdict(set)
    for of, event in lines:
        if event.gpu_pci is not None:
            found[of].add(event.gpu_pci)
    return {of: frozenset(cards) for of, cards in found.items()}


OF_OTHERS = kinds_marked("told-by-another")
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


def _told_by_some(events: Sequence[Event]) -> set[str]:
    """Files in which some ranks name their own host and others write, too, who may be anywhere."""
    named: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for event in events:
        if event.kind == "rank-identity" and event.host and not event.relayed:
            named[event.evidence.source] |= _seats(event)
    return {
        event.evidence.source
        for event in events
        if event.evidence.source in named and not event.relayed and _seats(event) - named[event.evidence.source]
    }


def _seats(event: Event) -> set[tuple[str, int]]:
    """Who writes a line, by its global and by its local rank."""
    numbers = (("rank", event.rank), ("local", event.local_rank))
    return {(what, number) for what, number in numbers if number is not None}
