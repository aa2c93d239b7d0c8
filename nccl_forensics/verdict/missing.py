"""What would settle a verdict: what is not in the pile, each with how to collect it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nccl_forensics.model import Hypothesis, InputRow, Verdict
from nccl_forensics.names import same_host
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.verdict.advice import KERNEL_LOGS, kernel_logs, recorder_setting, undumped
from nccl_forensics.verdict.case import Case

MOST_MISSING = 6
COLLECT = say("`nccl-forensics collect-script > collect.sh`, then `sudo sh collect.sh` there")
NEEDS_NO_DUMPS = frozenset({"cuda_oom", "storage_write_failed", "preempted", "host_oom_kill", "shm_full"})
"""Causes that dumps would say nothing of."""
SHOWN_BY_A_STACK = frozenset({"rank_not_arrived", "process_missing", "rank_slow", "rank_busy"})
"""Causes that leave open what the rank did."""


def missing(verdict: Verdict, top: Hypothesis | None, case: Case) -> tuple[str, ...]:
    """What to collect, in the order of what it would tell. `top`: the likeliest hypothesis."""
    known = _Known(verdict, top, case)
    found = [lacking for gap in GAPS if (lacking := gap(known)) is not None]
    return tuple(dict.fromkeys(found))[:MOST_MISSING]


@dataclass(frozen=True, slots=True)
class _Known:
    """What a gap is looked for in."""

    verdict: Verdict
    top: Hypothesis | None
    case: Case

    @property
    def has_dumps(self) -> bool:
        return bool(self.case.collectives.counters)

    def has_file(self, *formats: str) -> bool:
        return any(row.format in formats for row in self.case.rows)

    def has_event(self, *kinds: str) -> bool:
        return bool(self.case.of(*kinds))


def _dumps_of_all(known: _Known) -> str | None:
    if not known.case.job or known.has_dumps or known.verdict.cause in NEEDS_NO_DUMPS:
        return None
    return say(
        "Flight Recorder dumps of all ranks (they show who never came). Switch them on for the next run: {setting}",
        setting=recorder_setting(known.case),
    )


def _dumps_of_the_open(known: _Known) -> str | None:
    """Of those that cannot be excluded."""
    dark = undumped(known.verdict.cannot_exclude, known.case)
    if not known.has_dumps or not dark:
        return None
    return say_many(
        "the Flight Recorder dump of {who}, to blame or to clear it",
        "the Flight Recorder dumps of {who}, to blame or to clear them",
        len(dark),
        who=phrases.ranks(dark),
    )


def _kernel_log(known: _Known) -> str | None:
    if not known.case.job:
        return None
    usable = [row for row in known.case.rows if _tells_of_the_failure(row, known.case)]
    hosts = known.verdict.hosts
    lacking = [host for host in hosts if not any(same_host(row.host, host) for row in usable)]
    if (hosts and not lacking) or (not hosts and usable):
        return None
    return say(
        "the kernel log of {host}: {collect}, or `sudo journalctl -k -b -o short-iso-precise > kernel-$(hostname).log`",
        host=phrases.listing(lacking) if lacking else say("every host of the job"),
        collect=COLLECT,
    )


def _tells_of_the_failure(row: InputRow, case: Case) -> bool:
    """Is it a kernel's log that could be read, of a host that can be of the job, and that had begun by then?"""
    if row.format not in KERNEL_LOGS or row.status not in ("read", "partial"):
        return False
    return (row.host is None or not case.hosts_are_known or case.is_of_the_job(row.host)) and not _began_later(
        row, case
    )


def _began_later(row: InputRow, case: Case) -> bool:
    """Does it begin after the failure, for all that its clock can be off?"""
    seen, begin = case.detected, case.aligned.begins.get(row.path)
    return seen is not None and begin is not None and case.aligned.before(seen, begin) is True


def _rank_of_the_card(known: _Known) -> str | None:
    if not known.verdict.gpus or known.verdict.ranks or not known.case.job:
        return None
    return say(
        "which rank ran on that GPU: `nvidia-smi -L` of that host with the job's CUDA_VISIBLE_DEVICES, "
        "NCCL's INFO lines (`NCCL_DEBUG=INFO`), or `--hosts FILE`"
    )


def _stack(known: _Known) -> str | None:
    ranks = known.verdict.ranks
    if not known.case.job or not ranks or known.verdict.cause not in SHOWN_BY_A_STACK:
        return None
    return say(
        "a stack and the complete log of {ranks}: `py-spy dump --native --pid PID` during the hang",
        ranks=phrases.ranks(ranks),
    )


def _job_log(known: _Known) -> str | None:
    if known.case.job or known.verdict.status == "undetermined":
        return None
    return say("the log of the training job (all ranks), to say which rank this stopped and when")


def _proof_of_the_oom_killer(known: _Known) -> str | None:
    if not _perhaps_killed_for_memory(known) or _tells_of_memory(known.case):
        return None
    if kernel_logs(known.verdict, known.case):
        return None
    return say("proof of the OOM killer, if it was that: `sudo dmesg -T | grep -i 'killed process'` on that host")


def _perhaps_killed_for_memory(known: _Known) -> bool:
    """A signal that the process itself caused (a crash) was no kill."""
    crashed = known.top is not None and known.top.detail == "crash"
    cause = known.verdict.cause
    return cause == "host_oom_kill" or (cause == "process_signal" and not crashed)


def _tells_of_memory(case: Case) -> bool:
    return any(e.kind.startswith(("oom-", "memory-failure")) or e.kind in ("slurm-oom", "k8s-oom") for e in case.events)


def _management_log(known: _Known) -> str | None:
    if known.verdict.cause != "node_lost":
        return None
    return say(
        "the BMC's event log and the end of the previous boot: `ipmitool sel elist`, `journalctl -b -1 -n "
        "500`, /sys/fs/pstore"
    )


def _cabling(known: _Known) -> str | None:
    if known.verdict.cause != "psu_rail_loss" or known.has_file("nvidia-bug-report"):
        return None
    return say("which cards hang on which supply and switch: `lspci -tv`, and a photo of the cabling")


def _time_zone(known: _Known) -> str | None:
    clocks = known.case.aligned.clocks
    assumed = any(c.basis == "assumed" for c in clocks)
    if not known.case.job or not assumed or len({c.clock for c in clocks}) < 2:
        return None
    return say(
        "the time zone of the logs that do not write one (`timedatectl` on each host), or give --timezone: "
        "then what came when in different files can be told"
    )


def _year(known: _Known) -> str | None:
    if not any("year" in (c.note or "") for c in known.case.aligned.clocks):
        return None
    return say("the year: give --year, or a file that writes it")


def _who_ran_where(known: _Known) -> str | None:
    concerned = known.verdict.ranks or known.verdict.cannot_exclude
    if not known.case.job or not concerned or known.case.known.ranks:
        return None
    return say("who ran where: `--hosts FILE` with a line for each rank (rank host local-rank GPU)")


GAPS: tuple[Callable[[_Known], str | None], ...] = (
    _dumps_of_all,
    _dumps_of_the_open,
    _kernel_log,
    _rank_of_the_card,
    _stack,
    _job_log,
    _proof_of_the_oom_killer,
    _management_log,
    _cabling,
    _time_zone,
    _year,
    _who_ran_where,
)
"""What may be lacking; asked in this order."""
