"""Events with the rank and the host that their prefix, their file and their process tell together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.catalog import kinds_marked
from nccl_forensics.model import Event, InputRow, number, text
from nccl_forensics.names import short
from nccl_forensics.who.files import UNTOLD, OfFile, OfFiles, of_sources
from nccl_forensics.who.group_numbers import of_whole_job
from nccl_forensics.who.host_names import ADDRESS, HostNames
from nccl_forensics.who.identities import Identities
from nccl_forensics.who.launcher_tasks import tasks_are_ranks, tasks_of
from nccl_forensics.who.local_ranks import LocalRanks, local_ranks
from nccl_forensics.who.nodes import number_of_nodes

OTHER_HOSTS = ("peer", "store_host", "worker_ip")
"""Details that name another host, or its address."""
NOBODY = kinds_marked("of-no-rank")
"""Kinds that belong to a host or a file, not to a rank."""


def attribute(
    events: Sequence[Event], rows: Sequence[InputRow], known: Identities
) -> tuple[list[Event], list[InputRow]]:
    """Fill in rank and host where the table, a neighbour or the file's name tells them; unknown stays None."""
    files = of_sources(rows, events)
    pile = _Pile(
        known=known,
        hosts=HostNames.in_events(events),
        files=files,
        local_ranks=local_ranks(events, files, known),
        tasks_are_ranks=tasks_are_ranks(events, known.world_size),
        in_whole_job=of_whole_job(events, known.world_size),
        job_hosts=_job_hosts(known, events),
    )
    attributed = [pile.attributed(event) for event in events]
    return attributed, list(pile.of_rows(rows, attributed))


def _job_hosts(known: Identities, events: Iterable[Event]) -> dict[str, str]:
    hosts = {short(host): host for place in known.ranks.values() if (host := place.host) is not None}
    everyone = known.world_size is not None and len(known.ranks) >= known.world_size
    if everyone and all(place.host is not None for place in known.ranks.values()):
        return hosts
    stores = (text(event, "store_host") for event in events)
    hosts |= {short(host): host for host in stores if host and not ADDRESS.match(host)}
    return hosts if len(hosts) == number_of_nodes(known.ranks, known.world_size) else {}


@dataclass(frozen=True, slots=True)
class _Pile:
    """What all files together tell of a single line."""

    known: Identities
    hosts: HostNames
    files: OfFiles
    local_ranks: LocalRanks
    tasks_are_ranks: Collection[str]
    """Files in which a launcher's task number is the global rank."""
    in_whole_job: Mapping[int, int]
    """id(event) → the rank that its number in a group is."""
    job_hosts: Mapping[str, str]
    """Short name → name of each host of the job; empty where some are not known."""

    def attributed(self, event: Event) -> Event:
        event = self._with_names(event)
        file = self.files.get(event.evidence.source, UNTOLD)
        if event.relayed:
            file = OfFile(attempt=file.attempt)  # of whoever wrote the line, not of its rank
        host = self.hosts.spelled(event.host or file.host)
        local_rank = event.local_rank if event.local_rank is not None else file.local_rank
        rank = event.rank
        if rank is None and event.kind not in NOBODY:
            rank = self._likely_rank(event, host, file)
        if host is None and rank is not None and rank in self.known.ranks:
            host = self.known.ranks[rank].host
        if rank is None:
            event = self._with_tasks(event)
        if (rank, host, local_rank, file.attempt) == (event.rank, event.host, event.local_rank, event.attempt):
            return event
        attempt = event.attempt if event.attempt is not None else file.attempt
        return replace(event, rank=rank, host=host, local_rank=local_rank, attempt=attempt)

    def _with_names(self, event: Event) -> Event:
        """With the names of other hosts where the line has only their addresses."""
        named = {
            key: name
            for key in OTHER_HOSTS
            if isinstance(said := event.details.get(key), str)
            and (name := self.hosts.named(said, self._other_host(event.host))) != said
        }
        return replace(event, details={**event.details, **named}) if named else event

    def _other_host(self, host: str | None) -> str | None:
        """The only host of the job beside this one, where all are known."""
        if host is None or short(host) not in self.job_hosts or len(self.job_hosts) != 2:
            return None
        return next(name for key, name in self.job_hosts.items() if key != short(host))

    def _with_tasks(self, event: Event) -> Event:
        """A line about several tasks of a launcher that are ranks."""
        if event.evidence.source in self.tasks_are_ranks and len(tasks := tasks_of(event)) > 1:
            return replace(event, details={**event.details, "ranks": tasks})
        return event

    def _likely_rank(self, event: Event, host: str | None, file: OfFile) -> int | None:
        """The rank of a line that tells none, by the surest of all hints. `host`: where it was written."""
        for hint in self._hints(event, host, file):
            if hint is not None:
                return hint
        return None

    def _hints(self, event: Event, host: str | None, file: OfFile) -> Iterator[int | None]:
        """What the line says of its writer: local rank, launcher's task, process; then what its file is about; then
        the card of which it speaks, its number in the group of all, and its device."""
        if event.local_rank is not None:
            yield self.local_ranks.rank(event, host, event.local_rank)
        if event.evidence.source in self.tasks_are_ranks:
            yield event.task
        if event.pid is not None and host is not None:
            yield self.known.rank_of_process(event, host)
        if file.local_rank is not None and event.local_rank is None:
            yield self.local_ranks.rank(event, host, file.local_rank)
        yield file.rank
        if event.gpu_pci is not None:
            yield self.known.rank_of_gpu(host, event.gpu_pci)
        yield self.in_whole_job.get(id(event))
        yield self.known.rank_of_device(host, number(event, "device"))

    def of_rows(self, rows: Iterable[InputRow], attributed: Iterable[Event]) -> Iterator[InputRow]:
        """The files with their hosts, and the ranks of which they are."""
        writers: dict[str, set[int]] = defaultdict(set)
        for event in attributed:
            if event.rank is not None and not event.relayed:
                writers[event.evidence.source].add(event.rank)
        for row in rows:
            file = self.files[row.path]
            host = self.hosts.spelled(file.host) or row.host
            yield replace(row, host=host, rank=self._rank_of_file(row, file, writers))

    def _rank_of_file(self, row: InputRow, file: OfFile, writers: Mapping[str, Collection[int]]) -> int | None:
        """By its name, else the only one that writes in it, else by its local rank."""
        if file.rank is not None:
            return file.rank
        inside = writers.get(row.path, ())
        if len(inside) == 1:
            return next(iter(inside))
        return self.local_ranks.ranks.get((row.path, file.local_rank), row.rank)
