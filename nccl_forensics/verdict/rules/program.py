"""The program and its processes: exceptions, out of memory, signals, data loading, long rank-local work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from nccl_forensics.catalog import kinds_marked, weight
from nccl_forensics.model import Event, Finding, number, text
from nccl_forensics.names import same_host
from nccl_forensics.text import phrases
from nccl_forensics.text.messages import say, say_many
from nccl_forensics.verdict import pulse
from nccl_forensics.verdict.case import Case, listed, ranks_of
from nccl_forensics.verdict.rules import if_known, rule
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
OR_ELSE = " or a hardware error"
"""CUDA leaves open itself what it met (CUDA_ERROR_CONTAINED and its kin)."""
ADDRESS = re.compile(r"[\d.]{7,15}|[0-9a-f:]*:[0-9a-f:]*", re.ASCII)
ENDS = tuple(sorted(kinds_marked("ends")))
"""Lines of launchers that tell how a process ended."""
RAISED = kinds_marked("raised")
"""Kinds after which a process ends with exit code 1."""


def rank_of(case: Case, event: Event) -> int | None:
    """The rank that a line without one is about, if exactly one can be meant.

    By the process id, where its host is known only by an address (Ray); else by the one rank that the launcher saw end
    with exit code 1, as a process does that raised.
    """
    if event.rank is not None:
        return event.rank
    holder = _only_holder_of_pid(case, event)
    if holder is not None:
        return holder
    return _only_one_that_raised(case, event) if event.kind in RAISED else None


def _only_holder_of_pid(case: Case, event: Event) -> int | None:
    """The only rank with this process id, where the line's host is an address that no rank's place is written as."""
    places = case.known.ranks
    if event.pid is None or not event.host or not ADDRESS.fullmatch(event.host):
        return None
    holders = [rank for rank, place in places.items() if place.pid == event.pid]
    known_by_address = any(place.host == event.host for place in places.values())
    return holders[0] if len(holders) == 1 and not known_by_address else None


def _is_mixed(event: Event) -> bool:
    """Is another process's traceback woven into it? Then none of its frames is told (parsers/python_traceback.py)."""
    return event.rank is None and event.details.get("frames") == () and event.details.get("innermost") is None


def _only_one_that_raised(case: Case, event: Event) -> int | None:
    """The only rank there that ended with exit code 1 and of which no exception tells why.

    Not where tracebacks of several processes are mixed: then more raised than the launcher has listed.
    """
    if any(e.evidence.source == event.evidence.source and _is_mixed(e) for e in case.of("python-exception")):
        return None
    told = {e.rank for e in case.of("python-exception")}
    likely = {
        rank
        for e in case.of(*ENDS)
        if number(e, "code") == 1
        and (event.host is None or same_host(e.host, event.host))
        and event.local_rank in (None, e.local_rank)
        for rank in ranks_of(e)
        if rank not in told
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
    return if_known(rank), if_known(host)


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
    telling = [e for e in case.of(*SPECIFIC) if e.role in ("cause", "symptom") and not _is_a_trap(case, e)]
    for event in sorted(telling, key=lambda e: e.role != "cause"):
        cause = _resource(event)
        key = (cause, event.rank, event.host, event.pid if event.rank is None else None)
        if cause is not None and key not in seen:
            seen.add(key)
            yield _shortage(case, event, cause)


def _is_a_trap(case: Case, event: Event) -> bool:
    """Did DeepEP's barrier end its own kernel, having waited in vain? CUDA calls that a launch failure."""
    failed = "unspecified launch failure" in (text(event, "error") or event.evidence.text)
    return failed and any(_later(event, e) for e in case.of("deepep-barrier") if not case.went_on(e))


def _resource(event: Event) -> str | None:
    """The cause that a line names by its kind or, where that says less, by its words."""
    if event.kind == "storage-error" and event.cause:
        return event.cause
    return SPECIFIC[event.kind] or event.cause


def _shortage(case: Case, event: Event, cause: str) -> Finding:
    shift, why = case.timing(event)
    ranks, hosts = _subject(case, event)
    detail, short_of = text(event, "detail"), ""
    shown: tuple[Event, ...] = ()
    if event.kind == "cuda-oom":
        detail, short_of, shown = _memory(case, event, ranks[0] if ranks else None)
    what = _what_failed(event, short_of)
    return Finding(
        cause=cause,
        says=say("{where} {what}", where=_where(event, *ranks).capitalize(), what=what) + phrases.aside(why),
        weight=weight("exception_specific") + max(shift, -4.0)
        if event.role == "cause"
        else weight("exception_symptom") + shift,
        identifies=OR_ELSE not in f"{text(event, 'error')} {event.evidence.text}",
        ranks=ranks,
        hosts=hosts,
        gpus=(case.known.gpu(event.host, event.gpu_pci),) if event.gpu_pci else (),
        events=(event, *shown),
        detail=detail,
        onset_ns=event.time_ns,
    )


def _what_failed(event: Event, short_of: str) -> str:
    """'ran out of GPU memory'; `short_of`: how its memory went, if that is known."""
    if event.kind == "cuda-oom":
        return say("ran out of GPU memory{short_of}", short_of=short_of)
    if event.kind == "nccl-warn-cuda":
        return say("could not allocate GPU memory inside NCCL ({error})", error=text(event, "error"))
    if event.kind == "storage-error":
        path = text(event, "path")
        return say(
            "could not write ({detail}{path})",
            detail=text(event, "detail") or say("write failed"),
            path=": " + path if path else "",
        )
    if event.kind == "dataloader-killed":
        return say("lost a data-loader worker to {signal}", signal=text(event, "signal") or say("a signal"))
    if event.kind == "shm-bus-error":
        return say("lost a data-loader worker because /dev/shm was full")
    if event.kind == "nccl-shm":
        return say("could not extend its shared-memory segment in /dev/shm")
    return say("met a CUDA error: {error}", error=text(event, "error") or event.evidence.text[:120])


@rule
def exceptions(case: Case) -> Iterator[Finding]:
    """A traceback that is not about communication, on a rank that did not merely wait."""
    seen: set[object] = set()
    for event in case.of("python-exception"):
        if event.role != "cause" or event.details.get("communication"):
            continue
        keys = _raised_by(event)
        if seen.isdisjoint(keys):
            seen.update(keys)
            yield _raised(case, event)


def _raised_by(event: Event) -> tuple[object, ...]:
    """Whoever has one of these in common has been told of: the rank or the host.

    Nobody's: one for each file, and a copy of the file tells nothing new.
    """
    whose = event.rank if event.rank is not None else event.host
    if whose is not None:
        return (whose,)
    return event.evidence.source, (text(event, "type"), text(event, "message"), text(event, "innermost"))


def _raised(case: Case, event: Event) -> Finding:
    cause = event.cause or "python_exception"
    shift, why = case.timing(event)
    ranks, hosts = _subject(case, event)
    message = text(event, "message") or ""
    return Finding(
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
    waited = set(waiting_ranks(case.events))
    for event in _ended_by_signals(case):
        signal = text(event, "signal")
        ranks, hosts = _subject(case, event)
        spoke = any(e.rank == event.rank and e.role == "cause" for e in case.of("python-exception"))
        crash = _crash(case, event) if signal in CRASHES else None
        yield Finding(
            cause="process_signal",
            says=_where(event).capitalize()
            + (say(" (pid {pid})", pid=event.pid) if event.pid is not None else "")
            + say(" ended by {signal}", signal=signal)
            + _last_words(crash, spoke, len(ranks) or 1),
            weight=weight("killed_from_outside")
            + _doubt_of_a_kill(case, event, waits=bool(ranks) and waited.issuperset(ranks))
            + (weight("spoke_before_signal") if spoke else 0.0),
            ranks=ranks,
            hosts=hosts,
            events=(event, *if_known(crash)),
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


def _ended_by_signals(case: Case) -> Iterable[Event]:
    """The first line on each process that a signal ended which neither the launcher nor srun sent to clear up."""
    exits = [e for e in case.of("exit", "srun-exit", "ds-exit") if text(e, "signal") in SIGNALS]
    pids_of_ranks = {e.pid for e in exits if e.rank is not None}
    found: dict[tuple[object, object], Event] = {}
    for event in exits:
        if _is_the_launchers(case, event) or _is_srun_clearing_up(case, event):
            continue
        whose = ranks_of(event)
        if whose:
            found.setdefault((whose, None), event)
        elif event.pid not in pids_of_ranks:
            found.setdefault((event.pid, event.host), event)
    return found.values()


def _is_the_launchers(case: Case, event: Event) -> bool:
    """Is it the launcher's own SIGKILL after its SIGTERM was ignored?"""
    return text(event, "signal") == "SIGKILL" and any(_told(sent, event) for sent in case.of("sigterm-sent"))


def _is_srun_clearing_up(case: Case, event: Event) -> bool:
    """Does srun end several tasks behind one that failed?"""
    several = len(ranks_of(event)) > 1
    return several and any(e.evidence != event.evidence for e in case.of("srun-exit") if _failed(e))


def _doubt_of_a_kill(case: Case, event: Event, *, waits: bool) -> float:
    """Log-odds against a kill of ranks that reported a wait, or so late that the launcher ends what does not end."""
    value = weight("reported_itself") if waits else 0.0
    noticed = case.of("watchdog-timeout")
    late = bool(noticed) and _after(case, event, noticed[0])
    return value + (weight("too_late") if late else 0.0)


def _last_words(crash: Event | None, spoke: bool, processes: int) -> str:
    """What the processes left of their end: a stack, an exception that another finding tells, or nothing."""
    if crash is not None:
        return say("; its stack ends in {place}", place=text(crash, "place") or text(crash, "call"))
    if spoke:
        return ""
    return say_many(" without a message of its own", " without a message of their own", processes)


@rule
def worker_died(case: Case) -> Iterator[Finding]:
    """Ray saw one worker die that had not complained of anything: every abort looks so to Ray, hence only of those."""
    complained = set(waiting_ranks(case.events)) | {
        e.rank for e in case.events if e.rank is not None and e.role in ("cause", "symptom") and e.kind != "exit"
    }
    yield from _died_somewhere(case)
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


def _died_somewhere(case: Case) -> Iterator[Finding]:
    """The one process that Ray saw die where no line tells of ranks, nor of any other failure: its node, at least.

    Several may be the echo of one of them, or of the driver that ended.
    """
    died = [e for e in case.of("ray-died") if number(e, "worker_pid") is not None and text(e, "worker_ip")]
    processes = {(text(e, "worker_ip"), number(e, "worker_pid")) for e in died}
    other = any(e.role in ("cause", "symptom") for e in case.events) or case.collectives.suspects
    if len(processes) != 1 or case.known.ranks or other:
        return
    ((address, pid),) = processes
    yield Finding(
        cause="process_missing",
        says=say(
            "Ray saw the process {pid} on {address} die; which rank that was is not told", pid=pid, address=address
        ),
        weight=weight("ray_saw_it_die"),
        hosts=if_known(address),
        events=(died[0],),
        onset_ns=died[0].time_ns,
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
    waited = set(waiting_ranks(case.events))
    for rank, named_by in _awaited(case).items():
        begun = _begun_long_work(case, rank) if rank not in waited else None
        if begun is None or _did_not_hold_the_job(case, begun):
            continue
        reports = case.of("watchdog-timeout")
        ended = [e for e in _signs_of_an_end(case, rank) if _later(e, begun)]
        if any(not reports or not _later(e, reports[0]) for e in ended):
            continue  # it was done in time
        overran = next((e for e in ended if text(e, "what") == "done"), None)
        yield _busy(rank, begun, overran, named_by)


def _awaited(case: Case) -> dict[int, tuple[Event, ...]]:
    """A rank that others wait for → the line by which PyTorch names it, where the collectives do not."""
    late: dict[int, tuple[Event, ...]] = {}
    for suspect in case.collectives.suspects:
        if suspect.cause in ("rank_not_arrived", "process_missing") and len(suspect.ranks) == 1:
            late[suspect.ranks[0]] = ()
    for event in case.of("monitored-barrier"):
        if len(named := listed(event)) == 1:
            late.setdefault(named[0], (event,))
    waiting = case.of("pg-uniqueid", "store-wait")
    if waiting and not case.of("watchdog-timeout"):
        late.setdefault(0, waiting[:1])  # set-up waits for rank 0 (job-log-signatures.md, pg-uniqueid)
    return late


def _application_lines(case: Case, rank: int) -> Iterator[Event]:
    """What this rank says of its work. An application line without a rank is rank 0's by convention."""
    for event in case.of("progress", "checkpoint"):
        if event.rank == rank or (event.rank is None and rank == 0):
            yield event


def _begun_long_work(case: Case, rank: int) -> Event | None:
    """The last line in which it begins long work of its own."""
    begins = {*LONG_WORK, "start"}
    begun = [e for e in _application_lines(case, rank) if text(e, "what") in begins]
    return begun[-1] if begun else None


def _did_not_hold_the_job(case: Case, begun: Event) -> bool:
    """Did the job, which goes in step, go two steps beyond the one at which this began? One can have been under way."""
    step = number(begun, "step")
    beyond = (e for e in case.of("progress") if step is not None and (number(e, "step") or 0) >= step + 2)
    return case.went_on(begun) or any(_later(e, begun) and text(e, "what") == "training step" for e in beyond)


def _signs_of_an_end(case: Case, rank: int) -> list[Event]:
    """The lines that show that it is done with whatever it did before."""
    return [e for e in _application_lines(case, rank) if text(e, "what") in ("done", "finished", "training step")]


def _busy(rank: int, begun: Event, overran: Event | None, named_by: tuple[Event, ...]) -> Finding:
    """`overran`: the line that says that it was done too late; `named_by`: the one that names the rank, if one does."""
    what = LONG_WORK.get(text(begun, "what") or "", say("saving a checkpoint"))
    return Finding(
        cause="rank_busy",
        says=say("Rank {rank} was {what} and finished only after the others had given up", rank=rank, what=what)
        if overran
        else say(
            "The last sign of life of rank {rank} is that it was {what}; nothing of it follows",
            rank=rank,
            what=what,
        ),
        weight=weight("busy_line") + weight("busy_and_waited_for" if named_by or overran else "busy_and_late"),
        ranks=(rank,),
        events=(begun, *if_known(overran), *named_by),
        inference=True,
        detail="checkpoint" if what == "saving a checkpoint" else what,
        onset_ns=begun.time_ns,
    )


@rule
def ran_out_of_data(case: Case) -> Iterator[Finding]:
    """Some ranks say that they had no more data, and the others went on to wait."""
    seen = case.detected
    if seen is None:
        return
    without = [e for e in case.of("progress") if text(e, "what") == "out of data" and e.rank is not None]
    ended = [e for e in without if not _after(case, e, seen)]
    ranks = {e.rank for e in ended if e.rank is not None}
    everyone = {*case.known.ranks, *range(case.known.world_size or 0)}
    if not ranks or 2 * len(ranks) > len(everyone):
        return
    yield Finding(
        cause="uneven_inputs",
        says=say("{ranks} ran out of data, while the others went on", ranks=phrases.ranks(ranks).capitalize()),
        weight=weight("out_of_data"),
        ranks=tuple(sorted(ranks)),
        events=tuple(ended[:2]),
        onset_ns=ended[0].time_ns,
    )


@rule
def python_crashed(case: Case) -> Iterator[Finding]:
    """Python wrote that it crashed, where no launcher tells of the signal."""
    if any(text(e, "signal") in CRASHES for e in case.of("exit", "srun-exit", "ds-exit")):
        return
    for event in case.of("python-fatal"):
        if event.role != "cause" or case.went_on(event):
            continue
        shift, why = case.timing(event)
        ranks, hosts = _subject(case, event)
        yield Finding(
            cause="process_signal",
            says=say("{where} crashed: {why}", where=_where(event).capitalize(), why=text(event, "why"))
            + phrases.aside(why),
            weight=weight("killed_from_outside") + shift,
            ranks=ranks,
            hosts=hosts,
            events=(event, *if_known(_crash(case, event))),
            detail="crash",
            onset_ns=event.time_ns,
        )
        return


@rule
def program_not_there(case: Case) -> Iterator[Finding]:
    """Python could not open the program: the command line is wrong, or a file system is not there."""
    for event in [e for e in case.of("no-program") if not case.went_on(e)][:1]:
        yield Finding(
            cause="python_exception",
            says=say(
                "Python could not open the program {path}: {why}", path=text(event, "path"), why=text(event, "says")
            ),
            weight=weight("exception_own"),
            hosts=if_known(event.host),
            events=(event,),
            detail="no program",
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
            hosts=if_known(host),
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
