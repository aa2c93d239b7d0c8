"""JAX's coordination service: processes that stopped answering, barriers that name who did not come, what follows.

Written by XLA's tsl/distributed_runtime/coordination (coordination_service.cc, ..._agent.cc) and xla/pjrt/distributed/
client.h; the rendezvous of the threads of one process by xla/service/rendezvous.cc. Time: glog's local wall clock, or
TensorFlow's. A task is a process (jax.process_index()), which may drive several GPUs. Examples:

Task /job:jax_worker/replica:0/task:37 heartbeat timeout. This indicates that the remote task has failed, …
UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
/job:jax_worker/replica:0/task:3
The tasks have crashed. Check the task logs for an earlier error, or scheduler events …
DEADLINE_EXCEEDED: Barrier timed out. Id: 0_async_write_complete.0.1. …
# of tasks that reached the barrier: 14/16.
The first task at the barrier: /job:jax_worker/replica:0/task:13. Some timed out task names:
/job:jax_worker/replica:0/task:6
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._lines import follows, is_quoted, near, number

TASK = re.compile(r"/job:\w{1,40}/replica:\d{1,6}/task:(?P<task>\d{1,7})")
LONE = re.compile(r"^\s*/job:\w{1,40}/replica:\d{1,6}/task:(?P<task>\d{1,7})\s*$")
HEARTBEAT = re.compile(r"Task /job:\w{1,40}/replica:\d{1,6}/task:(?P<task>\d{1,7}) heartbeat timeout")
UNHEALTHY = "The following tasks are unhealthy (stopped sending heartbeats):"
BARRIER = re.compile(r"Barrier timed out\. (?:Id: |Barrier_id: )(?P<id>[^\s]{1,200}?)\.(?: |$)")
NAMES = "imed out task names:"
REACHED = re.compile(r"# of tasks that reached the barrier: (?P<joined>\d{1,7})/(?P<world>\d{1,7})")
SHOWN_AT_MOST = 20
"""kPendingTaskLogLimit of coordination_service.cc: who is behind the 19th is not told."""
MOST = 4096
STUCK = re.compile(
    r"This thread has been waiting for `(?P<name>[^`]{1,400})` for (?P<s>\d{1,7}) seconds and may be stuck\.?"
    r"(?: Expected (?P<world>\d{1,6}) threads to join the rendezvous, "
    r"but (?:only (?P<joined>\d{1,6}) of them|not all))?"
)


def _named_below(line: Line, most: int = MOST) -> tuple[int, ...]:
    """The tasks in the lines below, one a line."""
    found: list[int] = []
    for other in line.after(most):
        if not follows(line, other):
            continue
        one = LONE.match(other.text)
        if one is None:
            break
        found.append(int(one["task"]))
    return tuple(sorted(set(found)))


@parser(title="JAX: a process stopped answering", literals=[" heartbeat timeout", UNHEALTHY])
def jax_lost(line: Line) -> Iterator[Event]:
    """The service says that they crashed; a host too busy to answer looks the same."""
    text = near(line)
    if found := HEARTBEAT.search(text):
        lost: tuple[int, ...] = (int(found["task"]),)
    elif UNHEALTHY in text and not is_quoted(text, text.find(UNHEALTHY)):
        lost = _named_below(line)
    else:
        return
    if lost:
        yield line.event("jax-lost", role="symptom", severity="error", details={"lost": lost})


@parser(title="JAX: a barrier timed out", literals=[NAMES])
def jax_barrier(line: Line) -> Iterator[Event]:
    """Who did not come. A list that is cut, or of all but one, accuses nobody: `complete` tells."""
    if NAMES not in line.text:
        return
    above = [line, *(x for x in line.before(3) if follows(x, line))]
    told = next((found for x in above if (found := BARRIER.search(x.text))), None)
    count = next((found for x in above if (found := REACHED.search(x.text))), None)
    missing = _named_below(line)
    if told is None or not missing:
        return
    world, joined = (number(count["world"]), number(count["joined"])) if count else (None, None)
    whole = (
        len(missing) + joined == world if world is not None and joined is not None else len(missing) < SHOWN_AT_MOST - 1
    )
    yield line.event(
        "jax-barrier",
        role="symptom",
        severity="error",
        details={"barrier": told["id"], "missing": missing, "joined": joined, "world_size": world, "complete": whole},
    )


@parser(
    title="JAX: ended with the others",
    literals=["because the JAX distributed service detected fatal errors", "Polled an error from coordination service"],
)
def jax_ended(line: Line) -> Iterator[Event]:
    """The processes share their fate: whoever writes this ends because of another, or of the leader."""
    if not is_quoted(line.text, 0):
        yield line.event("jax-ended", role="consequence", severity="warning", details={})


GAVE_UP = re.compile(
    r"Termination timeout for `(?P<name>[^`]{1,400})` of (?P<s>\d{1,7}) seconds exceeded\. Exiting to ensure"
    r"(?: a consistent program state\. Expected (?P<world>\d{1,6}) threads)?"
)


def _wait(found: re.Match[str]) -> dict[str, Detail]:
    """For what, how long, and of how many threads, where that is told."""
    return {"what": found["name"], "waited_s": int(found["s"]), "expected": number(found["world"])}


@parser(title="XLA: a process ended after a wait", literals=["Termination timeout for `"])
def xla_gave_up(line: Line) -> Iterator[Event]:
    """The process ends itself, with exit code 42 or by SIGABRT."""
    if found := GAVE_UP.search(near(line)):
        yield line.event(
            "xla-gave-up",
            role="symptom",
            severity="error",
            details=_wait(found),
        )


@parser(title="XLA: threads wait at a rendezvous", literals=["This thread has been waiting for `"])
def xla_stuck(line: Line) -> Iterator[Event]:
    """Threads of one process, a device each: who is missing is not told, and it may be waiting for other processes."""
    if found := STUCK.search(near(line)):
        yield line.event(
            "xla-stuck",
            role="symptom",
            severity="warning",
            details={**_wait(found), "joined": number(found["joined"])},
        )
