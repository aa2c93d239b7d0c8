"""Words for people: the summary sentence, what to do first, what to collect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nccl_forensics import catalog
from nccl_forensics.model import Action, GroupState, Hypothesis, Verdict, text
from nccl_forensics.names import same_host
from nccl_forensics.text import moments, phrases
from nccl_forensics.text.messages import Message, filled, joined, say, say_many, shaped
from nccl_forensics.verdict.case import Case

MOST_ACTIONS = 5
KERNEL_LOGS = frozenset({"kernel", "journal", "journal-json", "journal-export", "syslog", "nvidia-bug-report"})
MOST_MISSING = 6
COLLECT = say("`nccl-forensics collect-script > collect.sh`, then `sudo sh collect.sh` there")
LONG_LEAD = 160
"""Characters of a summary's first sentence that leave no room for more. Our judgement of what is read at a glance."""


def title(cause: str) -> str:
    """The catalogue's title of a cause."""
    return str(catalog.load("causes")[cause]["title"])


def who(verdict: Verdict) -> str:
    """'rank 6, GPU 0000:c1:00.0 in ws-04', 'host node-48', ''."""
    parts = []
    if verdict.ranks:
        parts.append(phrases.ranks(verdict.ranks))
    if verdict.gpus and len(verdict.gpus) <= 8 and verdict.cause in GPU_CAUSES:
        addresses = [g.pci for g in verdict.gpus if g.pci]
        if addresses:
            parts.append(_cards(addresses))
    text_ = joined(parts, ", ")
    if verdict.hosts:
        hosts = phrases.listing(verdict.hosts) if len(verdict.hosts) <= 4 else phrases.count(len(verdict.hosts), "host")
        text_ = say("{text} on {hosts}", text=text_, hosts=hosts) if text_ else say("host {hosts}", hosts=hosts)
    return text_


def _cards(addresses: Sequence[str]) -> str:
    return say_many("GPU {names}", "GPUs {names}", len(addresses), names=phrases.listing(addresses))


GPU_CAUSES = frozenset(
    {"gpu_off_bus", "psu_rail_loss", "pcie_link", "gpu_thermal", "gpu_memory", "gpu_ecc_leak", "nvlink", "gpu_firmware"}
    | {"gpu_stall", "gpu_other", "gpu_app_fault"}
)


def collective(group: GroupState | None) -> str | None:
    """'all_reduce number 842 of group tp (64 ranks)'."""
    if group is None or group.op is None:
        return None
    said = group.op + (say(" number {seq}", seq=group.seq) if group.seq is not None else "")
    name = group.description or group.name
    if name and name not in ("0", "default_pg", "undefined"):
        said += say(" of group {name}", name=name)
    return said


def _undumped(ranks: Iterable[int], case: Case) -> tuple[int, ...]:
    """Those of the ranks that left no dump."""
    dumped = {c.rank for c in case.collectives.counters}
    return tuple(r for r in ranks if r not in dumped)


def _named_later(text: str, ranks: Iterable[int]) -> bool:
    """Is one of the ranks named after the first sentence, and not in it?"""
    first, _, rest = text.partition(". ")
    earlier, later = (set(re.findall(r"\d+", part)) for part in (first, rest))
    return any(str(rank) in later - earlier for rank in ranks)


def _closed(text: str) -> str:
    """With one full stop at the end."""
    return shaped(text, lambda t: t.rstrip(".") + ".")


def perhaps_on_gpus(verdict: Verdict, case: Case) -> tuple[int, ...]:
    """The ranks of which some ran on the named cards, where no rank is named and files narrow it down."""
    if verdict.ranks or verdict.cause not in GPU_CAUSES or not case.job:
        return ()
    found = [case.known.perhaps_on_gpu(g.host, g.pci) for g in verdict.gpus]
    return tuple(sorted({r for ranks in found for r in ranks})) if all(found) else ()


def summary(verdict: Verdict, top: Hypothesis | None, case: Case) -> str:
    """One or two plain sentences: who, what, when, and what the others saw."""
    stuck = collective(case.collectives.groups[0]) if case.collectives.groups else None
    waiting = ""
    reporters = verdict.reporting_ranks
    users = perhaps_on_gpus(verdict, case)
    if reporters and len(verdict.ranks) < 2 and verdict.status != "undetermined":
        victims = [r for r in reporters if r not in verdict.ranks and (not users or r not in verdict.cannot_exclude)]
        if victims:
            them = phrases.ranks(victims)
            waiting = (
                say(" {who} only reported it while waiting in {stuck}.", who=them.capitalize(), stuck=stuck)
                if stuck
                else say(" {who} only reported it.", who=them.capitalize())
            )
    if verdict.status == "undetermined" or top is None:
        what = say(" The job stopped in {stuck}.", stuck=stuck) if stuck else ""
        who_waits = (
            say(" {who} reported it; reporting is not guilt.", who=phrases.ranks(reporters).capitalize())
            if reporters
            else ""
        )
        open_ = verdict.cannot_exclude
        dark = _undumped(open_, case)
        nothing = say_many(": nothing of it is in the files", ": nothing of them is in the files", len(open_))
        silent = set(dark) - {e.rank for e in case.events} - {r.rank for r in case.rows}
        why = nothing if silent == set(open_) else ""
        rest = say(" {who} cannot be excluded{why}.", who=phrases.ranks(open_).capitalize(), why=why) if open_ else ""
        seen = next((f.says for h in (top,) if h for f in h.findings if f.inference and not f.ranks), "")
        if seen:
            what = " " + _closed(seen)
        return say(
            "These files do not say what caused it.{what}{who_waits}{rest} Collect what is listed below.",
            what=what,
            who_waits=who_waits,
            rest=rest,
        )
    when = moments.moment(_onset(top)) if _onset(top) is not None else None
    own = [f for f in top.findings if f.cause == top.cause and f.weight > 0]
    lead = (
        max(own, key=lambda f: f.weight).says
        if own
        else say("{title} ({who})", title=Message(title(verdict.cause), {}), who=who(verdict))
    )
    placed = [f for f in top.findings if f.cause != top.cause and f.cause in LOCATES and f.weight > 0]
    second = max(placed, key=lambda f: f.weight).says if placed and len(lead) <= LONG_LEAD else ""
    if stuck and not waiting and not verdict.ranks:
        waiting = say(" The job stopped in {stuck}.", stuck=stuck)
    if len(lead) > LONG_LEAD and not _named_later(lead, verdict.ranks):
        lead = shaped(lead, lambda text: text.partition(". ")[0])  # the rest stands in the evidence
    said = [_closed(lead)]
    if second:
        said.append(_closed(second))
    if users:
        said.append(
            say_many(
                "Which rank ran on it is not in these files: one of {ranks}, if any did.",
                "Which ranks ran on them is not in these files: some of {ranks}, if any did.",
                len(verdict.gpus),
                ranks=phrases.ranks(users),
            )
        )
    if placed or top.cause in LOCATES:
        waiting = ""
    text_ = joined(map(phrases.sentence, said), " ")
    begin = when + ": " if when else ""
    return begin + text_ + waiting + ("" if verdict.status == "identified" else say(" This is likely, not proved."))


LOCATES = frozenset({"rank_not_arrived", "process_missing", "rank_slow"})
"""Causes that only say who, not why."""


def _onset(top: Hypothesis) -> int | None:
    return min((f.onset_ns for f in top.findings if f.onset_ns is not None and f.cause == top.cause), default=None)


def actions(verdict: Verdict, top: Hypothesis | None, case: Case) -> tuple[Action, ...]:
    """What to do, first thing first, from catalog/actions.toml; never empty."""
    if top is None or verdict.status == "undetermined":
        return tuple(
            Action(do=say("Collect: {what}", what=m), because=say("It would tell the likeliest explanations apart."))
            for m in missing(verdict, top, case)[:3]
        ) or (
            Action(
                do=say("Keep all files of this run and run it again with the settings below."),
                because=say("The evidence is gone."),
            ),
        )
    logged = _kernel_logs(verdict, case)
    needs = (None, "gpu" if verdict.gpus else "no gpu", "kernel log" if logged else "no kernel log")
    entries = [a for a in catalog.load("actions")["action"] if a["cause"] == verdict.cause and a.get("needs") in needs]
    exact = [a for a in entries if a.get("detail") and a["detail"] == top.detail]
    chosen = exact if any(a.get("instead") for a in exact) else exact + [a for a in entries if not a.get("detail")]
    gpu = next((g for g in verdict.gpus if g.pci), None)
    names = {
        "host": phrases.listing(verdict.hosts) or say("the host"),
        "gpu": gpu.pci if gpu and gpu.pci else "ADDRESS",
        "at_gpu": phrases.aside(_cards([g.pci for g in verdict.gpus if g.pci])) if gpu else "",
        "index": str(gpu.index) if gpu and gpu.index is not None else "INDEX",
        "rank": phrases.ranks(verdict.ranks).removeprefix("rank ").removeprefix("ranks ") if verdict.ranks else "N",
        "who": phrases.ranks(verdict.ranks) if verdict.ranks else say("the missing rank"),
    }
    return tuple(
        Action(
            do=Message(a["do"], names),
            because=Message(a["because"], names),
            command=filled(a["command"], names) if a.get("command") else None,
        )
        for a in chosen[:MOST_ACTIONS]
    )


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


def _kernel_logs(verdict: Verdict, case: Case) -> bool:
    """Is the kernel's log of every named host in the pile?"""
    there = [r.host for r in case.rows if r.format in KERNEL_LOGS and r.host]
    return bool(verdict.hosts) and all(any(same_host(h, host) for h in there) for host in verdict.hosts)


def _crashed(top: Hypothesis | None) -> bool:
    """Did the process itself cause the signal that ended it?"""
    return top is not None and top.detail == "crash"


def missing(verdict: Verdict, top: Hypothesis | None, case: Case) -> tuple[str, ...]:
    """What would settle it: what is not in the pile, each with how to collect it."""
    found: list[str] = []
    kinds = {e.kind for e in case.events}
    dumps = bool(case.collectives.counters)
    kernel = any(e.kind in ("xid", "boot-start", "driver-version") for e in case.events) or any(
        r.format in ("kernel", "journal", "nvidia-bug-report") for r in case.rows
    )
    named = verdict.ranks or verdict.cannot_exclude
    if (
        case.job
        and not dumps
        and verdict.cause not in ("cuda_oom", "storage_write_failed", "preempted", "host_oom_kill", "shm_full")
    ):
        found.append(
            say(
                "Flight Recorder dumps of all ranks (they show who never came). Switch them on for the next "
                "run: {setting}",
                setting=recorder_setting(case),
            )
        )
    if dumps and (dark := _undumped(verdict.cannot_exclude, case)):
        found.append(
            say_many(
                "the Flight Recorder dump of {who}, to blame or to clear it",
                "the Flight Recorder dumps of {who}, to blame or to clear them",
                len(dark),
                who=phrases.ranks(dark),
            )
        )
    if case.job and not kernel:
        host = phrases.listing(verdict.hosts) if verdict.hosts else say("every host of the job")
        found.append(
            say(
                "the kernel log of {host}: {collect}, or `sudo journalctl -k -b -o short-iso-precise > "
                "kernel-$(hostname).log`",
                host=host,
                collect=COLLECT,
            )
        )
    if verdict.gpus and not verdict.ranks and case.job:
        found.append(
            say(
                "which rank ran on that GPU: `nvidia-smi -L` of that host with the job's CUDA_VISIBLE_DEVICES, "
                "NCCL's INFO lines (`NCCL_DEBUG=INFO`), or `--hosts FILE`"
            )
        )
    if (
        case.job
        and verdict.ranks
        and verdict.cause in ("rank_not_arrived", "process_missing", "rank_slow", "rank_busy")
    ):
        found.append(
            say(
                "a stack and the complete log of {ranks}: `py-spy dump --native --pid PID` during the hang",
                ranks=phrases.ranks(verdict.ranks),
            )
        )
    if not case.job and verdict.status != "undetermined":
        found.append(say("the log of the training job (all ranks), to say which rank this stopped and when"))
    killed = verdict.cause == "host_oom_kill" or (verdict.cause == "process_signal" and not _crashed(top))
    told = any(k.startswith(("oom-", "memory-failure")) or k in ("slurm-oom", "k8s-oom") for k in kinds)
    if killed and not told and not _kernel_logs(verdict, case):
        found.append(
            say("proof of the OOM killer, if it was that: `sudo dmesg -T | grep -i 'killed process'` on that host")
        )
    if verdict.cause == "node_lost":
        found.append(
            say(
                "the BMC's event log and the end of the previous boot: `ipmitool sel elist`, `journalctl -b -1 -n "
                "500`, /sys/fs/pstore"
            )
        )
    if verdict.cause in ("psu_rail_loss",) and not any(r.format == "nvidia-bug-report" for r in case.rows):
        found.append(say("which cards hang on which supply and switch: `lspci -tv`, and a photo of the cabling"))
    assumed = [c for c in case.aligned.clocks if c.basis == "assumed"]
    if assumed and case.job and len({c.clock for c in case.aligned.clocks}) > 1:
        found.append(
            say(
                "the time zone of the logs that do not write one (`timedatectl` on each host), or give --timezone: "
                "only then can events of different files be ordered"
            )
        )
    if any("year" in (c.note or "") for c in case.aligned.clocks):
        found.append(say("the year: give --year, or a file that writes it"))
    if named and not case.known.ranks and case.job:
        found.append(say("who ran where: `--hosts FILE` with a line for each rank (rank host local-rank GPU)"))
    return tuple(dict.fromkeys(found))[:MOST_MISSING]
