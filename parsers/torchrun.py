"""torchrun: which child ended how, who was told to stop, and which ranks a node runs.

Written by torch/distributed/elastic (agent and error handler), 1.9 to today. Time: agent lines carry the agent's local
time from 2.1 on; the failure block has its own `time`, local, whole seconds. Examples:

W0817 17:40:39.327000 90102 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 90111 closing signal
SIGTERM
E0817 17:40:47.426000 90102 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 0
(pid: 90110) of binary: /opt/venv/bin/python
Root Cause (first observed failure):
[0]:
  time      : 2024-08-17_17:40:39
  host      : node-d
  rank      : 12 (local_rank: 0)
  exitcode  : -6 (pid: 90110)

The block lists the children of one node, in the order in which its agent noticed. Its 'root cause' is often a survivor.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event, Role, Severity

from ._lines import followers, leaders, near, number, rank_list, wall

FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,6})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,9})\) of"
    r" (?:binary|fn)"
)
ENTRY = re.compile(
    r"^\s*exitcode\s*: (?P<code>-?\d{1,6}) \(pid: (?P<pid>\d{1,9})\)(?:\s+(?P<signal>SIG[A-Z0-9]{1,10}))?"
)
FIELD = re.compile(r"^\s*(?P<name>time|host|rank|error_file|traceback|msg)\s*: ?(?P<value>.{0,500})")
RANK = re.compile(r"^(?P<rank>\d{1,7}) \(local_rank: (?P<local>\d{1,5})\)")
ATTEMPT = re.compile(r"/attempt_(\d{1,6})/\d{1,5}/error\.json")
"""torchrun's own layout of its log folder: RUN/attempt_N/LOCAL_RANK/error.json."""
INDEX = re.compile(r"^\s*\[\d{1,6}\]:\s*$")
SIGNALLED = re.compile(r"Signal \d{1,3} \((?P<signal>SIG[A-Z0-9]{1,10})\) received by PID")
CLOSING = re.compile(r"Sending process (?P<pid>\d{1,9}) closing signal (?P<signal>SIG\w{1,10})")
FORCED = re.compile(
    r"Unable to shutdown process (?P<pid>\d{1,9}) via [\w.]{1,20}, forcefully exiting via"
    r" (?:Signals\.)?(?P<signal>\w{1,10})"
)
DEATH = re.compile(
    r"Received (?P<name>SIG\w{1,10}|\d{1,3}|Signals\.SIG\w{1,10}) death signal, shutting down workers"
    r"|got signal: (?P<number>\d{1,3})"
)
RESTART = re.compile(
    r"Worker group (?:FAILED|UNHEALTHY)\. (?P<left>\d{1,6})/(?P<of>\d{1,6}) attempts left; will restart worker group"
)
RESULT = re.compile(
    r"^\s*(?P<name>restart_count|group_rank|group_world_size|global_ranks|global_world_sizes"
    r"|master_addr|master_port)=(?P<value>.{0,20000})"
)
SPAWNED = re.compile(
    r"process (?P<local>\d{1,5}) terminated with (?:signal (?P<signal>SIG[A-Z0-9]{1,10})|exit code (?P<code>\d{1,3}))"
)

CRASHES = {"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"}
"""Signals that a process does not send itself as a reaction to somebody else's failure."""


def signal_name(code: int | None) -> str | None:
    """-9 and 137 → 'SIGKILL'; None where the code is no signal's."""
    value = -code if code is not None and code < 0 else (code or 0) - 128
    try:
        return signal.Signals(value).name if value > 0 else None
    except ValueError:
        return None


def exit_role(name: str | None) -> tuple[Role, Severity, str | None]:
    """(role, severity, cause) of an end by this signal; an own abort or a plain exit says nothing by itself."""
    if name in CRASHES:
        return "cause", "error", "process_signal"
    if name in ("SIGTERM", "SIGINT", "SIGHUP"):
        return "consequence", "warning", None
    return "symptom", "error", None


def exit_event(
    line: Line,
    code: int | None,
    name: str | None = None,
    *,
    first: bool = False,
    error_file: str | None = None,
    told: Mapping[str, Detail] | None = None,
    **who: Any,
) -> Event:
    """How a process ended, in the same words whoever tells it: `code` as the launcher gives it.

    `name`: the signal's, where the line says it; else that of the code. `told`: further details.
    """
    name = name or signal_name(code)
    role, severity, cause = exit_role(name)
    details: dict[str, Detail] = {"code": code, "signal": name, "first": first, "error_file": error_file}
    details |= told or {}
    return line.event("exit", role=role, severity=severity, cause=cause, details=details, **who)


@parser(title="torchrun: a child's end, from the agent", literals=["failed (exitcode: "])
def torchrun_failed(line: Line) -> Iterator[Event]:
    if found := FAILED.search(near(line)):
        local, pid, agent = int(found["local"]), int(found["pid"]), {"agent": line.peeled.pid}
        yield exit_event(line, int(found["code"]), told=agent, local_rank=local, rank=None, pid=pid)


class _Entry(NamedTuple):
    """One child in torchrun's failure block."""

    fields: Mapping[str, str]
    first: bool
    """It stands under 'Root Cause'."""


def _entry(line: Line) -> _Entry:
    """The entry in which the line of the exit code stands: its fields are above it, and a few below."""
    fields: dict[str, str] = {}
    first = seen_index = False
    for other in leaders(line, 8, 16):
        text = other.text
        if field := FIELD.match(text):
            if not seen_index:
                fields.setdefault(field["name"], field["value"].strip())
        elif INDEX.match(text):
            seen_index = True
        else:
            first = seen_index and text.lstrip().startswith("Root Cause")
            break
    for other in followers(line, 2, 4):
        if field := FIELD.match(other.text):
            fields.setdefault(field["name"], field["value"].strip())
    return _Entry(fields, first)


@parser(title="torchrun: the failure block", literals=["exitcode  :", "exitcode: "])
def torchrun_block(line: Line) -> Iterator[Event]:
    """One event for each child that is listed; `first` for the one under 'Root Cause'."""
    found = ENTRY.match(near(line))
    if not found:
        return
    fields, first = _entry(line)
    signalled = SIGNALLED.search(fields.get("traceback", ""))
    who = RANK.match(fields.get("rank", ""))
    error_file = fields.get("error_file")
    started = ATTEMPT.search(error_file or "")
    yield exit_event(
        line,
        int(found["code"]),
        found["signal"] or (signalled["signal"] if signalled else None),
        first=first,
        error_file=None if error_file in (None, "", "<N/A>", "<NONE>") else error_file,
        stamp=wall(fields.get("time", ""), "%Y-%m-%d_%H:%M:%S") or line.stamp,
        rank=int(who["rank"]) if who else line.rank,
        local_rank=int(who["local"]) if who else line.peeled.local_rank,
        host=fields.get("host") or line.host,
        pid=int(found["pid"]),
        attempt=int(started[1]) if started else None,
    )


@parser(title="torchrun: children are told to stop", literals=[" closing signal SIG", "forcefully exiting via "])
def torchrun_closing(line: Line) -> Iterator[Event]:
    if found := CLOSING.search(near(line)) or FORCED.search(near(line)):
        yield line.event(
            "sigterm-sent",
            role="consequence",
            severity="warning",
            details={"target_pid": int(found["pid"]), "signal": found["signal"]},
        )


@parser(title="torchrun: the agent was told to stop", literals=["death signal, shutting down", "got signal: "])
def torchrun_death(line: Line) -> Iterator[Event]:
    if found := DEATH.search(near(line)):
        told = (found["name"] or found["number"]).removeprefix("Signals.")
        name = signal_name(-int(told)) if told.isdigit() else told
        yield line.event(
            "agent-death", role="cause", severity="error", cause="preempted", details={"signal": name or told}
        )


@parser(title="torchrun: the workers start again", literals=["attempts left; will restart"])
def torchrun_restart(line: Line) -> Iterator[Event]:
    """`attempt` is the one that has just ended: '3/3 attempts left' is printed when the first, number 0, fails."""
    if found := RESTART.search(near(line)):
        left, of = int(found["left"]), int(found["of"])
        yield line.event("restart", role="context", attempt=max(of - left, 0), details={"left": left, "of": of})


@parser(title="torchrun: which ranks this node runs", literals=["Rendezvous complete for workers"])
def torchrun_rendezvous(line: Line) -> Iterator[Event]:
    told: dict[str, str] = {}
    for other in followers(line, 16, 32):
        if found := RESULT.match(other.text):
            told[found["name"]] = found["value"].strip()
        elif told and "=" not in other.text:
            break
    world = rank_list(told.get("global_world_sizes", ""), 1)
    host, port, attempt = told.get("master_addr"), told.get("master_port"), _counted(told.get("restart_count", ""))
    details: dict[str, Detail] = {
        "global_ranks": rank_list(told.get("global_ranks", "")),
        "group_rank": _counted(told.get("group_rank", "")),
        "restart_count": attempt,
        "world_size": world[0] if world else None,
        "master": None if host is None or port is None else f"{host}:{port}",
    }
    yield line.event("rendezvous", role="context", attempt=attempt, details=details)


def _counted(written: str) -> int | None:
    return number(written) if written.isdigit() else None


@parser(
    title="torch.multiprocessing: a child's end", literals=["terminated with signal SIG", "terminated with exit code"]
)
def spawn_exit(line: Line) -> Iterator[Event]:
    if found := SPAWNED.search(near(line)):
        local, name = int(found["local"]), found["signal"]
        code = int(found["code"]) if found["code"] else _code_of(name)
        yield exit_event(line, code, name, rank=None, local_rank=local, pid=None)


def _code_of(name: str) -> int | None:
    """'SIGKILL' → -9, as a launcher gives it; None for a signal that this machine does not know."""
    return -int(getattr(signal, name)) if hasattr(signal, name) else None
