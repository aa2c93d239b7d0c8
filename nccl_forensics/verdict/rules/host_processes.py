"""Whose process a kernel's line is about: a rank's, its data loader's, or a stranger's. No rules; host.py asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nccl_forensics.model import Event, number, text
from nccl_forensics.names import same_host
from nccl_forensics.verdict.case import Case

JOB_PROGRAMS = ("python", "pt_", "torchrun", "ray", "train", "deepspeed", "srun", "slurmstepd", "mpirun", "nccl")
"""How the processes of a training job are called in the kernel's eyes (comm, 15 characters)."""
THREADS = """
    jbd2 kworker xfs flush nfsd nfsv4 rpciod kjournald md dm ext4 btrfs kswapd khugepaged kcompactd ptlrpcd ll_ ldlm
    ceph cifsd txg_ z_ spl_ mmfsd beegfs weka systemd init cuda- nvidia nv_
"""
FOR_ALL = tuple(THREADS.split())
"""Beginnings of the names of threads and services that all processes of a host, or of a card, depend on."""
SIGKILLED = (-9, 137)
"""Exit codes of a process that SIGKILL ended, as torchrun and shells give them."""


def pid_of(event: Event) -> int | None:
    """The process that a kernel's line is about."""
    return number(event, "pid") or event.pid


def is_strangers(case: Case, event: Event) -> bool:
    """Is it about somebody else's process? Its name is known and is no training job's, its pid no rank's."""
    comm = text(event, "comm") or text(event, "task")
    if comm is None or comm.lower().startswith(JOB_PROGRAMS) or comm.endswith(".py"):
        return False
    if event.kind == "hung-task" and comm.lower().startswith(FOR_ALL):
        return False
    return case.known.rank_of_process(event, event.host) is None


def without_strangers(case: Case, kills: Iterable[Event]) -> list[Event]:
    """The lines of the OOM killer, but for all of those about a process that some line shows to be a stranger's."""
    kills = list(kills)
    theirs = [e for e in kills if is_strangers(case, e)]
    victims, lines = {pid_of(e) for e in theirs}, {id(e) for e in theirs}
    return [e for e in kills if pid_of(e) not in victims and id(e) not in lines]


def ranks_named(case: Case, host: str | None, lines: Iterable[Event]) -> tuple[int, ...]:
    """The ranks that these lines of one host's kernel are about, by the line itself or by its process id."""
    ranks: set[int] = set()
    for event in lines:
        pid = pid_of(event)
        if event.rank is not None:
            ranks.add(event.rank)
        elif pid is not None:
            rank = case.known.rank_of_process(event, host)
            ranks |= {rank} if rank is not None else _whose_loader(case, host, pid)
    return tuple(sorted(ranks))


def _whose_loader(case: Case, host: str | None, pid: int) -> set[int]:
    """The ranks that say that this process was their data loader's worker."""
    return {
        e.rank
        for e in case.of("dataloader-killed")
        if e.rank is not None and number(e, "worker_pid") == pid and same_host(e.host, host)
    }


def pids_known(case: Case, host: str | None) -> bool:
    """Are the process ids of all ranks on this host known? Then another one is none of theirs, or a container's."""
    mine = case.known.ranks_on(host)
    return case.whole and bool(mine) and all(case.known.ranks[r].pid is not None for r in mine)


def seen_killed(case: Case, ranks: Collection[int]) -> bool:
    """Did a launcher see a process of one of these ranks end by SIGKILL?"""
    return any(e.rank in ranks and number(e, "code") in SIGKILLED for e in case.of("exit"))


def killed_no_rank(case: Case, kills: Iterable[Event], host: str | None) -> bool:
    """Are all ranks' process ids there known, and none was killed? Containers count their own, so only a hint."""
    exits = [e for e in case.of("exit") if number(e, "code") in SIGKILLED]
    if any(same_host(e.host, host) for e in exits):
        return False  # a rank there did end by SIGKILL: that it has another number in its container means nothing
    mine = [place.pid for place in case.known.ranks.values() if same_host(place.host, host)]
    victims = {pid for e in kills if (pid := pid_of(e)) is not None}
    if not mine or not victims or None in mine:
        return False
    loaders = {number(e, "worker_pid") for e in case.of("dataloader-killed")}
    return victims.isdisjoint({*mine, *loaders})
