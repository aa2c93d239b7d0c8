"""Words and facts that the sentences about a verdict share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nccl_forensics import catalog
from nccl_forensics.catalog import causes_marked
from nccl_forensics.model import GroupState, Verdict, text
from nccl_forensics.names import same_host
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import joined, say, say_many
from nccl_forensics.verdict.case import Case

KERNEL_LOGS = frozenset({"kernel", "journal", "journal-json", "journal-export", "syslog", "nvidia-bug-report"})
GPU_CAUSES = causes_marked("on-a-card")
LOCATES = causes_marked("only-locates")
"""Causes that only say who, not why."""


def title(cause: str) -> str:
    """The catalogue's title of a cause."""
    return str(catalog.load("causes")[cause]["title"])


MOST_HOSTS_NAMED = 4


def who(verdict: Verdict) -> str:
    """'rank 6, GPU 0000:c1:00.0 in ws-04', 'host node-48', ''."""
    parts = []
    if verdict.ranks:
        parts.append(phrases.ranks(verdict.ranks))
    if verdict.gpus and len(verdict.gpus) <= 8 and verdict.cause in GPU_CAUSES:
        addresses = [g.pci for g in verdict.gpus if g.pci]
        if addresses:
            parts.append(cards(addresses))
    text_ = joined(parts, ", ")
    if not verdict.hosts:
        return text_
    few = len(verdict.hosts) <= MOST_HOSTS_NAMED
    hosts = phrases.listing(verdict.hosts) if few else phrases.count(len(verdict.hosts), "host")
    if text_:
        return say("{text} on {hosts}", text=text_, hosts=hosts)
    return say("host {hosts}", hosts=hosts) if few else hosts


def cards(addresses: Sequence[str]) -> str:
    return say_many("GPU {names}", "GPUs {names}", len(addresses), names=phrases.listing(addresses))


def collective(group: GroupState | None) -> str | None:
    """'all_reduce number 842 of group tp (64 ranks)'."""
    if group is None or group.op is None:
        return None
    said = group.op + (say(" number {seq}", seq=group.seq) if group.seq is not None else "")
    name = group.description or group.name
    if name and name not in ("0", "default_pg", "undefined"):
        said += say(" of group {name}", name=name)
    return said


def undumped(ranks: Iterable[int], case: Case) -> tuple[int, ...]:
    """Those of the ranks that left no dump."""
    dumped = {c.rank for c in case.collectives.counters}
    return tuple(r for r in ranks if r not in dumped)


def perhaps_on_gpus(verdict: Verdict, case: Case) -> tuple[int, ...]:
    """The ranks of which some ran on the named cards, where no rank is named and files narrow it down."""
    if verdict.ranks or verdict.cause not in GPU_CAUSES or not case.job:
        return ()
    found = [case.known.perhaps_on_gpu(g.host, g.pci) for g in verdict.gpus]
    return tuple(sorted({r for ranks in found for r in ranks})) if all(found) else ()


def torch_version(case: Case) -> tuple[int, int] | None:
    """(major, minor) of PyTorch as a log states it."""
    for event in case.of("torch-version"):
        found = (text(event, "version") or "").split(".")
        if len(found) >= 2 and found[0].isdigit() and found[1].isdigit():
            return int(found[0]), int(found[1])
    return None


def recorder_setting(case: Case) -> str:
    """How to switch the Flight Recorder on: TORCH_FR_* since 2.8, TORCH_NCCL_* before (fr-format.md, switches)."""
    version = torch_version(case)
    old = (
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/shared/fr/nccl_trace_rank_"
    )
    new = (
        "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/fr/comm_lib_trace_rank_"
    )
    if version is None:
        return say("PyTorch 2.8 and newer: `{new}`; older: `{old}`", new=new, old=old)
    return f"`{new if version >= (2, 8) else old}`"


def kernel_logs(verdict: Verdict, case: Case) -> bool:
    """Is the kernel's log of every named host in the pile?"""
    there = [r.host for r in case.rows if r.format in KERNEL_LOGS and r.host]
    return bool(verdict.hosts) and all(any(same_host(h, host) for h in there) for host in verdict.hosts)
