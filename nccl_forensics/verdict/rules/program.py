"""The program and its processes: exceptions, out of memory, signals, data loading, long rank-local work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from nccl_forensics.catalog import kinds_marked, weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import same_host
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.verdict import pulse
from nccl_forensics.verdict.case import Case, listed, ranks_of
from nccl_forensics.verdict.rules import rule
from nccl_forensics.waits.watchdogs import waiting_ranks

SPECIFIC = {
    "cuda-oom": "cuda_oom",
    "cuda-error": None,
    "pg-watchdog-cuda": None,
    "storage-error": "storage_write_failed",
    "dataloader-killed": "dataloader_failure",
    "shm-bus-error": "shm_full",
    "nccl-shm": "shm_full",
    "nccl-warn-cuda": None,
}
"""Kinds that name a resource; None: the event's own `cause` tells."""
ADDRESS = re.compile(r"[\d.]{7,15}|[0-9a-f:]*:[0-9a-f:]*", re.ASCII)
RAISED = kinds_marked("raised")
"""Kinds after which a process ends with exit code 1."""


def rank_of(case: Case, event: Event) -> int | None:
    """The rank that a line without one is about, if exactly one can be meant.

    By the process id, where its host is known only by an address (Ray); else by the one rank that the launcher saw end
    with exit code 1, as a process does that raised.
    """
    if event.rank is not None:
        return event.rank
    known = case.known.ranks
    if event.pid is not None and event.host and ADDRESS.fullmatch(event.host):
        holders = [r for r, p in known.items() if p.pid == event.pid]
        if len(holders) == 1 and not any(p.host == event.host for p in known.values()):
            return holders[0]
    if event.kind not in RAISED:
        return None
    ends = [e for e in case.of("exit") if e.rank is not None and number(e, "code") == 1]
    told = {e.rank for e in case.of("python-exception")}
    likely = {
        e.rank
        for e in ends
        if e.rank not in told and same_host(e.host, event.host) and event.local_rank in (None, e.local_rank)
    }
    return likely.pop() if len(likely) == 1 else None


def _where(event: Event, *ranks: int) -> str:
    if whose := ranks_of(event) or ranks:
        return phrases.ranks(whose)
    if event.host:
        return say("a process on {host}", host=event.host)
    return say("a process")


def _subject(case: Case, event: Event) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if told := listed(event):
        # in a list of failures whoever wrote it only counts up who failed
        return told, (event.host,) if event.host and event.kind != "storage-error" else ()
    rank = rank_of(case, event)
    host = event.host
    if rank is not None and event.rank is None and (place := case.known.ranks.get(rank)) is not None and place.host:
        host = place.host
    return (rank,) if rank is not None else (), (host,) if host else ()


def _memory(case: Case, event: Event, rank: int | None) -> tuple[str | None, str, tuple[Event, ...]]:
    """(kind of shortage, words, lines that show it) of a GPU that ran out of memory."""
    detail = text(event, "detail")
    if detail in ("peer process", "fragmentation"):
        return detail, "", ()
    if rise := pulse.memory_rise(case, "gpu_used_bytes", rank):
        return "leak", say("; its memory had only risen, {how}", how=pulse.risen(*rise, "gpu_used_bytes")), rise
    if long := pulse.long_batch(case, rank):
        line, usual = long
        tokens = number(line, "sequence") or 0
        return (
            "growth",
            say(
                "; its last batch was {tokens} tokens long, usual are {usual}",
                tokens=f"{tokens:,}",
                usual=f"{usual:,.0f}",
            ),
            (line,),
        )
    return detail, "", ()


@rule
def names_its_reason(case: Case) -> Iterator[Finding]:
    """Errors that say themselves what failed: GPU memory, disk, quota, ECC, illegal access, shared memory."""
    seen: set[tuple[object, ...]] = set()
    telling = [e for e in case.of(*SPECIFIC) if e.role in ("cause", "symptom")]
    for event in sorted(telling, key=lambda e: e.role != "cause"):
        cause = SPECIFIC[event.kind] or event.cause
        if event.kind == "storage-error" and event.cause:
            cause = event.cause
        if cause is None:
            continue
        key = (cause, event.rank, event.host, event.pid if event.rank is None else None)
        if key in seen:
            continue
        seen.add(key)
        shift, why = case.timing(event)
        ranks, hosts = _subject(case, event)
        detail, short_of = text(event, "detail"), ""
        shown: tuple[Event, ...] = ()
        if event.kind == "cuda-oom":
            detail, short_of, shown = _memory(case, event, ranks[0] if ranks else None)
        what = {
            "cuda-oom": say("ran out of GPU memory{short_of}", short_of=short_of),
            "nccl-warn-cuda": say("could not allocate GPU memory inside NCCL ({error})", error=text(event, "error")),
            "storage-error": say(
                "could not write ({detail}{path})",
                detail=text(event, "detail") or say("write failed"),
                path=": " + p if (p := text(event, "path")) else "",
            ),
            "dataloader-killed": say(
                "lost a data-loader worker to {signal}", signal=text(event, "signal") or say("a signal")
            ),
            "shm-bus-error": say("lost a data-loader worker because /dev/shm was full"),
            "nccl-shm": say("could not extend its shared-memory segment in /dev/shm"),
        }.get(event.kind, say("met a CUDA error: {error}", error=text(event, "error") or event.evidence.text[:120]))
        yield Finding(
            cause=cause,
            says=say("{where} {what}", where=_where(event, *ranks).capitalize(), what=what) + phrases.aside(why),
            weight=weight("exception_specific" if event.role == "cause" else "exception_own") + max(shift, -4.0)
            if event.role == "cause"
            else weight("exception_symptom") + shift,
            ranks=ranks,
            hosts=hosts,
            gpus=(case.known.gpu(event.host, event.gpu_pci),) if event.gpu_pci else (),
            events=(event, *shown),
            detail=detail,
            onset_ns=event.time_ns,
        )


@rule
def exceptions(case: Case) -> Iterator[Finding]:
    """A traceback that is not about communication, on a rank that did not merely wait."""
    seen: set[object] = set()
    for event in case.of("python-exception"):
        if event.role != "cause" or event.details.get("communication"):
            continue
        whose = event.rank if event.rank is not None else event.host
        keys: tuple[object, ...] = (whose,)
        if whose is None:  # nobody's: one for each file, and a copy of the file tells nothing new
            keys = (event.evidence.source, (text(event, "type"), text(event, "message"), text(event, "innermost")))
        if not seen.isdisjoint(keys):
            continue
        seen.update(keys)
        cause = event.cause or "python_exception"
        shift, why = case.timing(event)
        ranks, hosts = _subject(case, event)
        message = text(event, "message") or ""
        yield Finding(
            cause=cause,
            says=say(
                "{where} raised {type}: {message}",
                where=_where(event, *ranks).capitalize(),
                type=text(event, "type") or say("an exception"),
                message=message[:160],
            )
            + phrases.aside(why),
            weight=weight("exception_own") + (0.4 if cause != "python_exception" else 0.0) + shift,
            ranks=ranks,
            hosts=hosts,
            events=(event,),
            detail=text(event, "detail"),
            onset_ns=event.time_ns,
        )


CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
"""What the processor raises for what the process itself did."""
SIGNALS = frozenset({"SIGKILL", *CRASHES})
"""What a process does not send itself; SIGABRT is NCCL's own abort and SIGTERM the launcher's, both consequences."""


@rule
def killed(case: Case) -> Iterator[Finding]:
    """A process ended by a signal from outside while the launcher told the others to stop."""
    exits = [e for e in case.of("exit", "srun-exit", "ds-exit") if text(e, "signal") in SIGNALS]
    told = case.of("sigterm-sent")
    best: dict[tuple[object, object], Event] = {}
    for event in exits:
        if text(event, "signal") == "SIGKILL" and any(_told(e, event) for e in told):
            continue  # the launcher's own SIGKILL after its SIGTERM was ignored
        whose = ranks_of(event)
        if len(whose) > 1 and any(e.evidence != event.evidence for e in case.of("srun-exit") if _failed(e)):
            continue  # srun clears up behind a task that failed
        key = (whose or event.pid, None if whose else event.host)
        if not whose and any(e.rank is not None and e.pid == event.pid for e in exits):
            continue
        best.setdefault(key, event)
    waited = set(waiting_ranks(case.events))
    for event in best.values():
        signal = text(event, "signal")
        ranks, hosts = _subject(case, event)
        penalty = weight("reported_itself") if ranks and waited.issuperset(ranks) else 0.0
        noticed = case.of("watchdog-timeout")
        if noticed and _after(case, event, noticed[0]):
            penalty += weight("too_late")  # the launcher kills what does not end by itself
        spoke = any(e.rank == event.rank and e.kind == "python-exception" and e.role == "cause" for e in case.events)
        crash = _crash(case, event) if signal in CRASHES else None
        yield Finding(
            cause="process_signal",
            says=_where(event).capitalize()
            + (say(" (pid {pid})", pid=event.pid) if event.pid is not None else "")
            + say(" ended by {signal}", signal=signal)
            + (
                say("; its stack ends in {place}", place=text(crash, "place") or text(crash, "call"))
                if crash is not None
                else ""
                if spoke
                else say_many(" without a message of its own", " without a message of their own", len(ranks) or 1)
            ),
            weight=weight("killed_from_outside") + penalty + (weight("spoke_before_signal") if spoke else 0.0),
            ranks=ranks,
            hosts=hosts,
            events=(event, crash) if crash is not None else (event,),
            detail="crash" if signal in CRASHES else signal,
            onset_ns=event.time_ns,
        )
        rising = pulse.memory_rise(case, "host_rss_bytes", event.rank)
        if signal == "SIGKILL" and rising:
            yield Finding(
                cause="host_oom_kill",
                says=say(
                    "{where} was killed with SIGKILL while host memory was rising: the kernel's OOM killer is "
                    "likely, and not proven here",
                    where=_where(event).capitalize(),
                ),
                weight=weight("killed_from_outside") + weight("kernel_silent"),
                ranks=ranks,
                hosts=hosts,
                events=(event, rising[1]),
                inference=True,
                onset_ns=event.time_ns,
            )


@rule
def worker_died(case: Case) -> Iterator[Finding]:
    """Ray saw one worker die that had not complained of anything: every abort looks so to Ray, hence only of those."""
    complained = set(waiting_ranks(case.events)) | {
        e.rank for e in case.events if e.rank is not None and e.role in ("cause", "symptom") and e.kind != "exit"
    }
    for said in case.of("ray-died"):
        event = replace(said, pid=number(said, "worker_pid"), host=text(said, "worker_ip") or said.host)
        rank = rank_of(case, event)
        if rank is None or rank in complained:
            continue
        complained.add(rank)
        ranks, hosts = _subject(case, event)
        yield Finding(
            cause="process_signal",
            says=say(
                "Ray saw the process of rank {rank} (pid {pid}) die, without a message of its own",
                rank=rank,
                pid=event.pid,
            ),
            weight=weight("killed_from_outside"),
            ranks=ranks,
            hosts=hosts,
            events=(said,),
            onset_ns=said.time_ns,
        )


LONG_WORK = {
    "saving checkpoint": say("saving a checkpoint"),
    "checkpoint": say("saving a checkpoint"),
    "tokenizing": say("preparing its dataset"),
    "preprocessing": say("preparing its dataset"),
    "validation": say("validating"),
    "evaluation": say("evaluating"),
    "loading": say("loading"),
    "compiling": say("compiling"),
    "downloading": say("downloading"),
}


@rule
def busy_elsewhere(case: Case) -> Iterator[Finding]:
    """The late rank's last sign of life is the start of long work of its own."""
    late: dict[int, tuple[Event, ...]] = {}
    for suspect in case.collectives.suspects:
        if suspect.cause in ("rank_not_arrived", "process_missing") and len(suspect.ranks) == 1:
            late[suspect.ranks[0]] = ()
    for event in case.of("monitored-barrier"):
        if len(named := listed(event)) == 1:
            late.setdefault(named[0], (event,))
    waiting = case.of("pg-uniqueid", "store-wait")
    if waiting and not any(e.kind == "watchdog-timeout" for e in case.events):
        late.setdefault(0, waiting[:1])  # set-up waits for rank 0 (job-log-signatures.md, pg-uniqueid)
    waited = set(waiting_ranks(case.events))
    for rank, extra in late.items():
        if rank in waited:
            continue
        lines = [
            e
            for e in case.of("progress", "checkpoint")
            # an application line without a rank is rank 0's by convention
            if (e.rank == rank or (e.rank is None and rank == 0)) and e.details.get("what") in {*LONG_WORK, "start"}
        ]
        last = lines[-1] if lines else None
        if last is None:
            continue
        done = [
            e
            for e in case.of("checkpoint", "progress")
            if e.details.get("what") in ("done", "finished", "training step")
            and (e.rank == rank or (e.rank is None and rank == 0))
            and _later(e, last)
        ]
        first_report = next(iter(case.of("watchdog-timeout")), None)
        in_time = [e for e in done if first_report is None or not _later(e, first_report)]
        if in_time:
            continue
        overran = next((e for e in done if e.details.get("what") == "done"), None)
        what = LONG_WORK.get(str(last.details.get("what")), say("saving a checkpoint"))
        storage = what == "saving a checkpoint"
        yield Finding(
            cause="rank_busy",
            says=say("Rank {rank} was {what} and finished only after the others had given up", rank=rank, what=what)
            if overran
            else say(
                "The last sign of life of rank {rank} is that it was {what}; nothing of it follows",
                rank=rank,
                what=what,
            ),
            weight=weight("busy_line") + weight("busy_and_waited_for" if extra or overran else "busy_and_late"),
            ranks=(rank,),
            events=(last, *((overran,) if overran else ()), *extra),
            inference=True,
            detail="checkpoint" if storage else what,
            onset_ns=last.time_ns,
        )


@rule
def ran_out_of_data(case: Case) -> Iterator[Finding]:
    """Some ranks say that they had no more data, and the others went on to wait."""
    seen = case.detected
    ended = [e for e in case.of("progress") if e.details.get("what") == "out of data" and e.rank is not None]
    ended = [e for e in ended if seen is None or not _after(case, e, seen)]
    ranks = {e.rank for e in ended if e.rank is not None}
    everyone = set(case.known.ranks) | set(range(case.known.world_size or 0))
    if not ranks or 2 * len(ranks) > len(everyone) or seen is None:
        return
    yield Finding(
        cause="uneven_inputs",
        says=say("{ranks} ran out of data, while the others went on", ranks=phrases.ranks(ranks).capitalize()),
        weight=weight("out_of_data"),
        ranks=tuple(sorted(ranks)),
        events=tuple(ended[:2]),
        onset_ns=ended[0].time_ns,
    )


def _crash(case: Case, event: Event) -> Event | None:
    """The stack that Python wrote when this process crashed (faulthandler)."""
    for stack in case.of("process-stack"):
        mine = stack.rank == event.rank if event.rank is not None else stack.pid is not None and stack.pid == event.pid
        if mine and text(stack, "crash"):
            return stack
    return None


def _failed(event: Event) -> bool:
    """Did tasks end by themselves, and not by the signals with which srun stops them?"""
    return text(event, "signal") not in ("SIGTERM", "SIGKILL") and number(event, "code") != 0


def _told(sent: Event, ended: Event) -> bool:
    """Did the launcher on this host tell this process to stop? Containers give the same process ids on every host."""
    if ended.pid is None or number(sent, "target_pid") != ended.pid:
        return False
    if sent.evidence.source == ended.evidence.source and (sent.host is None or ended.host is None):
        return True
    return sent.host is not None and ended.host is not None and same_host(sent.host, ended.host)


def _after(case: Case, a: Event, b: Event) -> bool:
    """Is `a` later than `b`? By their times; by their lines only where one has no time."""
    if a.time_ns is not None and b.time_ns is not None:
        return case.aligned.before(b, a) is True
    return _later(a, b)


def _later(a: Event, b: Event) -> bool:
    if a.evidence.source == b.evidence.source:
        return (a.evidence.line or 0) > (b.evidence.line or 0)
    return a.time_ns is not None and b.time_ns is not None and a.time_ns > b.time_ns


@rule
def loader_on_a_host(case: Case) -> Iterator[Finding]:
    """A data-loader worker killed by SIGKILL: memory of that host until proven otherwise."""
    by_host: dict[str | None, list[Event]] = defaultdict(list)
    for event in case.of("dataloader-killed"):
        if (text(event, "signal") or "").lower() in ("killed", "sigkill"):
            by_host[event.host].append(event)
    for host, inside in by_host.items():
        yield Finding(
            cause="host_oom_kill",
            says=say("A data-loader worker was killed with SIGKILL")
            + (say(" on {host}", host=host) if host else "")
            + say(": host memory until proven otherwise"),
            weight=weight("loader_killed"),
            ranks=tuple(sorted({e.rank for e in inside if e.rank is not None})),
            hosts=(host,) if host else (),
            events=(inside[0],),
            inference=True,
        )


@rule
def numbers_broke(case: Case) -> Iterator[Finding]:
    """NaN stops the job when the program asserts on it."""
    for event in case.of("nan")[:1]:
        if event.role == "cause":
            ranks, hosts = _subject(case, event)
            yield Finding(
                cause="python_exception",
                says=say(
                    "{where} met NaN: {text}",
                    where=_where(event).capitalize(),
                    text=event.evidence.text[:120],
                ),
                weight=weight("numbers_broke"),
                ranks=ranks,
                hosts=hosts,
                events=(event,),
                detail="nan",
            )
