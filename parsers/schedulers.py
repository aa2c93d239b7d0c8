"""Slurm, Kubernetes, Ray, DeepSpeed and MPI launchers: what they say when a task ends or is made to end.

Time: Slurm writes local time, whole seconds, in CANCELLED lines only; DeepSpeed's launcher local time in brackets.
Examples:

slurmstepd: error: *** JOB 14915246 ON node-01 CANCELLED AT 2026-08-02T22:00:00 DUE TO TIME LIMIT ***
srun: error: node-a: task 0: Aborted (core dumped)
slurmstepd: error: Detected 1 oom-kill event(s) in StepId=123.0 cgroup.
[launch.py:256:main] process 217005 spawned with command: ['/usr/bin/python3', '-u', 'train.py', '--local_rank=5']
mpirun noticed that process rank 3 with PID 1234 on node node-b exited on signal 9 (Killed).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event, Role, Severity

from ._lines import followers, is_quoted, near, number, rank_list, wall
from .launch_scripts import WORDED
from .torchrun import exit_event, exit_role, signal_name

OOM = re.compile(
    r"Detected (?P<n>\d{1,6}) oom[-_ ]?kill event"
    r"|(?<![\w.-])(?P<node>[\w.-]{1,255}): tasks? (?P<tasks>\d[\d,-]{0,400}): Out Of Memory"
)
CANCELLED = re.compile(
    r"(?:STEP|JOB) (?P<job>[\w.+]{1,40}) ON (?P<node>\S{1,255}) CANCELLED AT (?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
    r"(?: DUE (?:TO |to )(?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE|[\w ]{1,60}))?"
)
NODE_FAILED = re.compile(r"error: Node failure on (?P<node>[\w.-]{1,255})")
RAY_MEMORY = re.compile(
    r"Workers \(tasks / actors\) killed due to memory pressure \(OOM\)|killed due to the node running low on memory"
)
TASK = re.compile(
    r"(?:srun: )?error: (?P<node>[\w.-]{1,255}): tasks? (?P<tasks>\d[\d,-]{0,400}): (?P<what>Killed|Aborted"
    r"|Segmentation fault"
    r"|Exited with exit code (?P<code>\d{1,3})|Bus error|Terminated|Floating point exception|Illegal instruction)"
)
EVICTED = re.compile(
    r"(?:[Rr]eason|[Ss]tatus|STATUS|Warning)\W{1,20}Evicted\b|The node was low on resource: (?P<what>[\w-]{1,40})"
)
OOM_KILLED = re.compile(r"\bOOMKilled\b")
CODE_137 = re.compile(r"(?i)exit(?:ed with)? code:? 137\b")
PREEMPTED = re.compile(
    r"(?i)(?<!\bif the )\b(?:instance|node|vm|job|pod|allocation) (?:was|is being|has been|will be|got) preempted"
    r"|reason\W{1,5}preempted|\bspot (?:instance )?(?:interruption|termination|reclaim)"
)
RAY_NODE = re.compile(
    r"The node with node id: ?\S{8,80} and address: (?P<address>[\w.:-]{3,100}) and node name: \S{1,255}"
    r" has been marked dead"
    r"|Task failed because the node it was running on is dead or unavailable\. Node IP: (?P<ip>[\w.:-]{3,100}),"
)
RAY_ON_NODE = re.compile(r"Memory on the node \(IP: (?P<ip>[\w.:-]{3,100}), ID: ")
RAY_DIED = re.compile(
    r"(?:\b|\.)(?:ActorDiedError|ActorUnavailableError"
    r"|WorkerCrashedError)\b|A worker died or was killed while executing"
)
RAY_WHO = re.compile(r"Worker PID: (?P<pid>\d{1,9})|\bpid=(?P<pid_2>\d{1,9})")
RAY_IP = re.compile(r"(?:Worker IP address: |\bip=)(?P<ip>[\w.:]{3,60})")
RAY_MORE = re.compile(r"\[repeated (?P<n>\d{1,9})x across cluster\]")
DEEPSPEED = re.compile(r"\[launch\.py:\d{1,5}:sigkill_handler\].{0,20000}?exits with return code = (?P<code>-?\d{1,6})")
DS_KILL = re.compile(r"\[launch\.py:\d{1,5}:sigkill_handler\].{0,40}?Killing subprocess (?P<pid>\d{1,9})")
DS_SPAWNED = re.compile(
    r"\[launch\.py:\d{1,5}:main\] process (?P<pid>\d{1,9}) spawned with command: "
    r".{0,2000}?--local[_-]rank[= ',]{1,4}(?P<local>\d{1,5})\b"
)
PDSH = re.compile(r"pdsh@\S{1,255}: (?P<host>[\w.-]{1,255}): ssh exited with exit code (?P<code>\d{1,3})")
MPI = re.compile(
    r"noticed that process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d{1,9}) on node (?P<host>\S{1,255}) exited"
    r" on signal (?P<signal>\d{1,3})"
)
MPI_FIRST = re.compile(r"[Pp]rocess name: \[(?:\[\d{1,10},\d{1,10}\],|\S{1,255}@\d{1,10},)(?P<rank>\d{1,7})\]")
MPI_CODE = re.compile(r"\s*Exit code: {1,8}(?P<code>\d{1,3})\b")
HYDRA = re.compile(r"=\s{1,8}PID (?P<pid>\d{1,9}) RUNNING AT (?P<host>[\w.-]{1,255})")
HYDRA_CODE = re.compile(r"=\s{1,8}(?:EXIT CODE: (?P<code>\d{1,3})|KILLED BY SIGNAL: (?P<signal>\d{1,3}))\b")
LIGHTNING = re.compile(r"Child process with PID (?P<pid>\d{1,9}) terminated with code (?P<code>-?\d{1,6})\.")
LIGHTNING_TERM = re.compile(r"\[rank: (?P<rank>\d{1,7})\] Received SIGTERM: 15")

SRUN_SIGNALS = {
    "Killed": "SIGKILL",
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Terminated": "SIGTERM",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}


@parser(title="Slurm: out of memory", literals=["oom-kill event", "oom_kill event", "Out Of Memory"])
def slurm_oom(line: Line) -> Iterator[Event]:
    """The task number is the global rank only with one process for each task."""
    if found := OOM.search(near(line)):
        tasks = rank_list(found["tasks"] or "", MOST_TASKS)
        details: dict[str, Detail] = {"kills": number(found["n"])}
        yield line.event(
            "slurm-oom",
            role="cause",
            severity="critical",
            cause="host_oom_kill",
            host=found["node"] or line.host,
            task=_lone(tasks) if tasks else line.peeled.task,
            details=details | {"tasks": tasks} if len(tasks) > 1 else details,
        )


MOST_TASKS = 4096
"""Tasks that one line is read as naming."""


def _lone(tasks: tuple[int, ...]) -> int | None:
    return tasks[0] if len(tasks) == 1 else None


CANCELLED_FOR: dict[str, tuple[str, Role, Severity, str | None]] = {
    "TIME LIMIT": ("slurm-time-limit", "cause", "error", "preempted"),
    "PREEMPTION": ("preempted", "cause", "error", "preempted"),
    "NODE FAILURE": ("slurm-cancel", "cause", "critical", "node_lost"),
}
"""Why Slurm cancelled a job → kind, role, severity and cause; for any other reason somebody asked for it."""


@parser(title="Slurm: cancelled", literals=[" CANCELLED AT "])
def slurm_cancelled(line: Line) -> Iterator[Event]:
    """The node is the first of the step, not a failed one."""
    found = CANCELLED.search(near(line))
    if not found:
        return
    why = found["why"] or ""
    stamp = wall(found["when"], "%Y-%m-%dT%H:%M:%S") or line.stamp
    kind, role, severity, cause = CANCELLED_FOR.get(why, ("slurm-cancel", "context", "info", None))
    details = {"job": found["job"], "node": found["node"], "why": why or None}
    yield line.event(kind, role=role, severity=severity, cause=cause, stamp=stamp, details=details)


@parser(title="srun: a node failed", literals=["Node failure on "])
def srun_node(line: Line) -> Iterator[Event]:
    if found := NODE_FAILED.search(near(line)):
        yield line.event(
            "slurm-node",
            role="symptom",
            severity="critical",
            cause="node_lost",
            host=found["node"],
            details={"state": "failed", "reason": "Node failure"},
        )


@parser(title="Ray: a node was low on memory", literals=["killed due to"])
def ray_memory(line: Line) -> Iterator[Event]:
    """Ray's own monitor ends a worker before the kernel would; the node's address stands there or in the next line."""
    if RAY_MEMORY.search(near(line)):
        told = (RAY_ON_NODE.search(near(x)) for x in (line, *line.after(3)))
        node = next((found["ip"] for found in told if found), None)
        yield line.event(
            "ray-oom",
            role="cause",
            severity="critical",
            cause="host_oom_kill",
            host=node or line.host,
            details={"address": node},
        )


@parser(
    title="Ray: a node died",
    literals=[" has been marked dead because the ", "running on is dead or unavailable. Node IP:"],
)
def ray_node(line: Line) -> Iterator[Event]:
    """Ray's control service heard no more of the node (gcs_node_manager.cc, RAY_NODE_REMOVED); why, it can't know."""
    if found := RAY_NODE.search(near(line)):
        address = found["address"] or found["ip"]
        yield line.event(
            "ray-node-died",
            role="symptom",
            severity="critical",
            cause="node_lost",
            host=address,
            pid=None,
            rank=None,
            details={"address": address, "says": "marked dead" if found["address"] else "dead or unavailable"},
        )


@parser(title="srun: a task ended", literals=[": task ", ": tasks "])
def srun_exit(line: Line) -> Iterator[Event]:
    if found := TASK.search(near(line)):
        tasks = rank_list(found["tasks"], MOST_TASKS)
        name = SRUN_SIGNALS.get(found["what"]) or signal_name(number(found["code"]))
        cause = exit_role(name)[2]
        yield line.event(
            "srun-exit",
            role="consequence" if name == "SIGTERM" else "symptom",
            severity="error",
            cause=cause,
            host=found["node"],
            task=_lone(tasks),
            details={
                "tasks": tasks,
                "node": found["node"],
                "what": found["what"],
                "code": number(found["code"]),
                "signal": name,
            },
        )


@parser(
    title="Kubernetes: killed or evicted",
    literals=["OOMKilled", "Evicted", "The node was low on resource", "code: 137", "code 137"],
)
def kubernetes(line: Line) -> Iterator[Event]:
    text = near(line)
    if OOM_KILLED.search(text):
        yield line.event(
            "k8s-oom", role="cause", severity="critical", cause="host_oom_kill", details={"pod": line.peeled.pod}
        )
    elif found := EVICTED.search(text):
        yield line.event(
            "k8s-evicted",
            role="cause",
            severity="critical",
            cause="preempted",
            details={"pod": line.peeled.pod, "resource": found["what"]},
        )
    elif (
        (code := CODE_137.search(text))
        and not TASK.search(text)
        and not WORDED.search(text)
        and not is_quoted(text, code.start())
    ):
        yield line.event(
            "exit",
            role="symptom",
            severity="error",
            cause="process_signal",
            details={"code": 137, "signal": "SIGKILL", "first": False, "error_file": None},
        )


@parser(
    title="The machine was taken away",
    literals=["reempted", "REEMPTED", "pot instance", "nterruption", "ermination notice"],
)
def preempted(line: Line) -> Iterator[Event]:
    if PREEMPTED.search(near(line)[:1500]):
        yield line.event("preempted", role="cause", severity="critical", cause="preempted", details={})


@parser(
    title="Ray: a worker died",
    literals=["ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "A worker died or was killed while"],
)
def ray_died(line: Line) -> Iterator[Event]:
    """Ray's list of possible reasons behind it is fixed text; only the worker's identity counts."""
    text = near(line)
    if RAY_DIED.search(text):
        block = text + " ".join(near(x)[:500] for x in line.after(8))
        who, ip = RAY_WHO.search(block), RAY_IP.search(block)
        yield line.event(
            "ray-died",
            role="consequence",
            severity="warning",
            details={"worker_pid": number(who[1] or who[2]) if who else None, "worker_ip": ip["ip"] if ip else None},
        )


@parser(title="Ray: similar lines were left out", literals=["x across cluster]"])
def ray_dedup(line: Line) -> Iterator[Event]:
    """Whoever does not report here may have been left out."""
    if found := RAY_MORE.search(near(line)):
        yield line.event("ray-dedup", role="context", details={"hidden": int(found["n"])})


@parser(
    title="DeepSpeed's launcher",
    literals=[":sigkill_handler]", ": ssh exited with exit code", " spawned with command: "],
)
def deepspeed(line: Line) -> Iterator[Event]:
    """`--local_rank` in the quoted command is the last child's, not the failed one's."""
    text = near(line)
    if found := DS_KILL.search(text):
        yield line.event(
            "sigterm-sent",
            role="consequence",
            severity="warning",
            details={"target_pid": int(found["pid"]), "signal": None},
        )
    elif found := DEEPSPEED.search(text):
        code = int(found["code"])
        name = signal_name(code)
        yield line.event(
            "ds-exit",
            role="symptom",
            severity="error",
            cause=exit_role(name)[2],
            rank=None,
            local_rank=None,
            details={"code": code, "signal": name},
        )
    elif found := DS_SPAWNED.search(text):
        yield line.event(
            "spawned", role="context", rank=None, local_rank=int(found["local"]), pid=int(found["pid"]), details={}
        )
    elif found := PDSH.search(line.raw.decode("utf-8", "backslashreplace")):
        yield line.event(
            "ds-exit",
            role="symptom",
            severity="error",
            host=found["host"],
            details={"code": int(found["code"]), "signal": signal_name(int(found["code"]))},
        )


@parser(title="MPI: a process ended by a signal", literals=["noticed that process rank "])
def mpi_exit(line: Line) -> Iterator[Event]:
    """The rank is MPI's: the global one, as these jobs start one process for each rank."""
    if found := MPI.search(near(line)):
        rank, pid = int(found["rank"]), int(found["pid"])
        yield exit_event(line, -int(found["signal"]), first=True, rank=rank, pid=pid, host=found["host"])


def _behind(line: Line, form: re.Pattern[str]) -> re.Match[str] | None:
    """Where one of the next few lines of the same block has this form."""
    return next((found for other in followers(line, 4, 8) if (found := form.search(other.text))), None)


@parser(title="Open MPI: the first process that failed", literals=["rocess name: ["])
def mpi_first(line: Line) -> Iterator[Event]:
    """The first process with an exit code of its own."""
    found = MPI_FIRST.search(near(line))
    if found and (ended := _behind(line, MPI_CODE)):
        yield exit_event(line, int(ended["code"]), first=True, rank=int(found["rank"]))


@parser(title="MPICH: a bad termination", literals=[" RUNNING AT "])
def hydra_exit(line: Line) -> Iterator[Event]:
    """Hydra gives the wait status of a process that a signal ended, or the signal."""
    found = HYDRA.search(near(line))
    if found and (ended := _behind(line, HYDRA_CODE)):
        code = int(ended["code"] or ended["signal"])
        code = -code if ended["signal"] or 0 < code < 32 else code
        yield exit_event(line, code, first=True, pid=int(found["pid"]), host=found["host"])


@parser(title="Lightning: a child ended", literals=["Child process with PID", "] Received SIGTERM: 15"])
def lightning_exit(line: Line) -> Iterator[Event]:
    if found := LIGHTNING.search(near(line)):
        yield exit_event(line, int(found["code"]), rank=None, local_rank=None, pid=int(found["pid"]))
    elif found := LIGHTNING_TERM.search(line.raw.decode("utf-8", "backslashreplace")):
        yield line.event(
            "agent-death",
            role="consequence",
            severity="warning",
            rank=int(found["rank"]),
            details={"signal": "SIGTERM"},
        )
