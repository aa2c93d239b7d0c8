"""One incident in every way that a launcher, a collector and a release of PyTorch write it: the answer is the same.

Eight ranks on two nodes; rank 5 raises, is killed, or never comes, and the others wait in all_reduce number 42. The
words are those of formats/job-log-formats.md §2 and §3; a form is a function from the story to files.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from nccl_forensics.intake.walk import collect
from nccl_forensics.lines.plugins import parsers
from nccl_forensics.lines.read import read_source
from nccl_forensics.lines.scan import Scanner
from nccl_forensics.model import Incident
from nccl_forensics.pipeline import conclude

Version = tuple[int, int]
VERSIONS: tuple[Version, ...] = (
    *((1, 13), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)),
    *((2, 5), (2, 6), (2, 7), (2, 8), (2, 10), (2, 12)),
)
LATE, SEQ, RANKS, PER_NODE = 5, 42, 8, 4
HOSTS = ("node-a", "node-b")
STOPPED = datetime(2026, 3, 10, 8, 10, 0, tzinfo=timezone.utc)
SITE = "/opt/venv/lib/python3.11/site-packages/torch/distributed"


@dataclass(frozen=True, slots=True)
class Said:
    """One message, of one or more lines, on the way to a log."""

    at: datetime
    host: int
    rank: int | None
    """None: the launcher's agent on that host."""
    text: str
    pid: int = 0


def pid_of(rank: int) -> int:
    return 2000 + rank


# --- what PyTorch says -----------------------------------------------------------------------------------------------


def header(version: Version, rank: int, at: datetime, line: int) -> str:
    """Prefix of a line of ProcessGroupNCCL.cpp."""
    if version < (2, 2):
        return f"[E ProcessGroupNCCL.cpp:{line}] "
    if version < (2, 4):
        return f"[rank{rank}]:[E ProcessGroupNCCL.cpp:{line}] "
    return f"[rank{rank}]:[E{at.month * 100 + at.day} {at:%H:%M:%S.%f}{rank:03d} ProcessGroupNCCL.cpp:{line}] "


def group(version: Version, rank: int) -> str:
    if version < (2, 3):
        return ""
    if version < (2, 4):
        return f"[PG 0 Rank {rank}] "
    if version < (2, 5):
        return f"[PG 0 (default_pg) Rank {rank}] "
    return f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] "


def timeout_ms(version: Version) -> int:
    return 1_800_000 if version < (2, 2) else 600_000


def caught(version: Version, rank: int) -> str:
    sizes = "NumelIn=1048576, NumelOut=1048576, " if version >= (2, 1) else ""
    limit = timeout_ms(version)
    return (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={SEQ}, OpType=ALLREDUCE, {sizes}"
        f"Timeout(ms)={limit}) ran for {limit + 40 + rank} milliseconds before timing out."
    )


def report(version: Version, rank: int, at: datetime) -> Iterator[str]:
    """What a rank whose collective has timed out writes, up to its end."""
    tail = f"last enqueued NCCL work: {SEQ}, last completed NCCL work: {SEQ - 1}"
    prefix = group(version, rank)
    yield header(version, rank, at, 563) + caught(version, rank)
    if version >= (2, 6):
        yield (
            f"{header(version, rank, at, 2257)}{prefix} failure detected by watchdog at work sequence id: {SEQ} "
            f"PG status: last enqueued work: {SEQ}, last completed work: {SEQ - 1}"
        )
        yield (
            f"{header(version, rank, at, 684)}Stack trace of the failed collective not found, potentially because "
            "FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
        )
    elif version >= (2, 4):
        says = "Exception (either an error or timeout) detected by watchdog at work"
        yield f"{header(version, rank, at, 1664)}{prefix}{says}: {SEQ}, {tail}."
    elif version >= (2, 3):
        yield f"{header(version, rank, at, 1537)}{prefix}Timeout at NCCL work: {SEQ}, {tail}."
    me = f"[Rank {rank}] " if version >= (2, 3) else ""
    yield (
        f"{header(version, rank, at, 577)}{me}Some NCCL operations have failed or timed out. Due to the asynchronous "
        "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."
    )
    yield f"{header(version, rank, at, 583)}{me}To avoid data inconsistency, we are taking the entire process down."
    who = "Process group" if version >= (2, 3) else "NCCL"
    inside = prefix if version >= (2, 3) else f"[Rank {rank}] "
    last = f"{inside}{who} watchdog thread terminated with exception: {caught(version, rank)}"
    yield header(version, rank, at, 1414) + last
    thrown = "std::runtime_error" if version <= (2, 0) else "c10::DistBackendError"
    yield f"terminate called after throwing an instance of '{thrown}'\n  what():  {last}"


def observed(version: Version, at: datetime) -> Iterator[str]:
    """What the late rank, if it lives, says to the dump signal of another."""
    prefix = group(version, LATE)
    tail = "Last enqueued NCCL work: 41, last completed NCCL work: 41."
    if version >= (2, 5):
        yield (
            f"{header(version, LATE, at, 1470)}{prefix}Observed flight recorder dump signal from another rank via "
            "TCPStore."
        )
    elif version >= (2, 4):
        yield (
            f"{header(version, LATE, at, 1470)}{prefix}Received a global dump signal from rank 0, and will start to "
            f"dump the debug info. {tail}"
        )
    elif version >= (2, 3):
        yield (
            f"{header(version, LATE, at, 1470)}{prefix}Received a global timeout from another rank and will start to "
            f"dump the debug info. {tail}"
        )


def traceback(version: Version) -> str:
    lines = (
        "Traceback (most recent call last):",
        '  File "/srv/app/train.py", line 88, in <module>',
        "    main()",
        '  File "/srv/app/train.py", line 61, in main',
        "    batch = collate(rows)",
        '  File "/srv/app/data.py", line 17, in collate',
        "    raise ValueError(f'sample {i} has no label')",
        "ValueError: sample 17 has no label",
    )
    mark = f"[rank{LATE}]: " if version >= (2, 2) else ""
    return "\n".join(mark + x for x in lines)


# --- what the agent says ---------------------------------------------------------------------------------------------


def agent(version: Version, at: datetime, severity: str, text: str) -> str:
    name = "torch.distributed.elastic.multiprocessing.api"
    if version <= (2, 0):
        return f"{severity}:{name}:{text}"
    if version < (2, 4):
        return f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}] {name}: [{severity}] {text}"
    where = f"{name.replace('.', '/')}.py:897"
    return f"{severity[0]}{at:%m%d %H:%M:%S}.{at.microsecond // 1000:03d}000 900 {where}] {text}"


NAMES = {-9: "SIGKILL", -6: "SIGABRT", -15: "SIGTERM"}


def block(version: Version, host: int, first: int, others: list[int], codes: dict[int, int], at: datetime) -> str:
    """torchrun's failure block on one node."""

    def entry(index: int, rank: int) -> list[str]:
        code = codes[rank]
        name = NAMES.get(code, "")
        how = (
            f"Signal {-code} ({name}) received by PID {pid_of(rank)}" if name else "To enable traceback see: https://x"
        )
        return [
            f"[{index}]:",
            f"  time      : {at:%Y-%m-%d_%H:%M:%S}",
            f"  host      : {HOSTS[host]}",
            f"  rank      : {rank} (local_rank: {rank % PER_NODE})",
            f"  exitcode  : {code} (pid: {pid_of(rank)})" + (f" {name}" if name and version >= (2, 12) else ""),
            "  error_file: <N/A>",
            f"  traceback : {how}",
        ]

    rows = ["=" * 60, "train.py FAILED", "-" * 60, "Failures:"]
    rows += [x for i, r in enumerate(others, 1) for x in entry(i, r)] or ["  <NO_OTHER_FAILURES>"]
    rows += ["-" * 60, "Root Cause (first observed failure):", *entry(0, first), "=" * 60]
    return "\n".join(rows)


# --- the story -------------------------------------------------------------------------------------------------------


def reporters(incident: str, form: str) -> list[int]:
    """Killed: torchrun tells its neighbours on the node to stop, long before they could time out."""
    alone = incident == "killed" and form not in NO_TORCHRUN
    return [0, 1, 2, 3] if alone else [r for r in range(RANKS) if r != LATE]


def story(incident: str, version: Version, shown: list[int]) -> list[Said]:
    """Everything that processes and torchrun's agents say, in order of time; `shown`: ranks whose watchdog speaks."""
    said: list[Said] = []

    def say(at: datetime, rank: int, text: str) -> None:
        said.append(Said(at, rank // PER_NODE, rank, text, pid_of(rank)))

    def tell(at: datetime, host: int, severity: str, text: str) -> None:
        said.append(Said(at, host, None, agent(version, at, severity, text), 900))

    def ends(host: int, ranks: list[int], codes: dict[int, int], at: datetime) -> None:
        first = ranks[0]
        failed = f"failed (exitcode: {codes[first]}) local_rank: {first % PER_NODE} (pid: {pid_of(first)})"
        tell(at, host, "ERROR", f"{failed} of binary: /opt/venv/bin/python")
        said.append(Said(at, host, None, block(version, host, first, ranks[1:], codes, at), 900))

    begun = STOPPED - timedelta(minutes=5)
    for rank in range(RANKS):
        node, local = HOSTS[rank // PER_NODE], rank % PER_NODE
        say(
            begun + timedelta(milliseconds=rank),
            rank,
            f"{node}:{pid_of(rank)}:{pid_of(rank) + 300} [{local}] NCCL INFO comm 0x55d0c0ffee0{rank} rank {rank} "
            f"nranks {RANKS} cudaDev {local} busId {0x10 + 0x10 * local:x}000 commId 0x8d2 - Init COMPLETE",
        )
    for step in range(36, 42):
        at = STOPPED - timedelta(seconds=2 * (42 - step))
        for rank in range(RANKS):
            say(at + timedelta(milliseconds=rank), rank, f"step: {step} loss: {2.5 - step / 100:.4f} grad_norm: 1.02")
    if incident == "raises":
        say(STOPPED, LATE, traceback(version))
    if incident == "killed":
        others = [r for r in range(PER_NODE, RANKS) if r != LATE]
        for rank in others:
            tell(STOPPED, 1, "WARNING", f"Sending process {pid_of(rank)} closing signal SIGTERM")
        ends(1, [LATE], {LATE: -9}, STOPPED + timedelta(seconds=1))
    detected = STOPPED + timedelta(milliseconds=timeout_ms(version) + 300)
    for rank in shown:
        at = detected + timedelta(milliseconds=rank)
        for i, text in enumerate(report(version, rank, at)):
            say(at + timedelta(milliseconds=10 * i), rank, text)
    if incident == "never":
        at = detected + timedelta(milliseconds=90)
        for text in observed(version, at):
            say(at, LATE, text)
    over = detected + timedelta(seconds=60)
    for host in (0, 1):
        ended = [r for r in shown if r // PER_NODE == host]
        if ended:
            codes = dict.fromkeys(ended, -6)
            if incident == "raises" and host == 1:
                ended, codes = [*ended, LATE], {**codes, LATE: 1}
            elif host == 1:
                tell(over, host, "WARNING", f"Sending process {pid_of(LATE)} closing signal SIGTERM")
            ends(host, ended, codes, over + timedelta(seconds=2))
    return sorted(said, key=lambda x: x.at)


# --- how it is written down ------------------------------------------------------------------------------------------

Files = dict[str, str]
Form = Callable[[list[Said], str], Files]


def z(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}"


def tee(said: Said) -> str:
    return "" if said.rank is None else f"[default{said.rank % PER_NODE}]:"


def prefixed(said: Said, prefix: str) -> str:
    return "".join(f"{prefix}{x}\n" for x in said.text.split("\n"))


def per_node(prefix: Callable[[Said], str]) -> Form:
    """One file for each node, each line behind a prefix."""

    def write(story: list[Said], incident: str) -> Files:
        return {f"{HOSTS[h]}/train.log": "".join(prefixed(x, prefix(x)) for x in story if x.host == h) for h in (0, 1)}

    return write


def one_file(prefix: Callable[[Said], str], *, agents: bool = True) -> Form:
    def write(story: list[Said], incident: str) -> Files:
        return {"train.log": "".join(prefixed(x, prefix(x)) for x in story if agents or x.rank is not None)}

    return write


def folders(story: list[Said], incident: str) -> Files:
    """torchrun --redirects: a file for each rank, the agents' own words beside them."""
    files: Files = {}
    for x in story:
        name = HOSTS[x.host] + "/"
        name += "agent.log" if x.rank is None else f"run/attempt_0/{x.rank % PER_NODE}/stderr.log"
        files[name] = files.get(name, "") + prefixed(x, "")
    return files


def rank_files(story: list[Said], incident: str) -> Files:
    files: Files = {}
    for x in story:
        name = f"logs/agent-{HOSTS[x.host]}.log" if x.rank is None else f"logs/rank_{x.rank}.log"
        files[name] = files.get(name, "") + prefixed(x, "")
    return files


def srun(story: list[Said], incident: str) -> Files:
    """One task for each rank; Slurm itself tells how tasks end."""
    text = one_file(lambda x: f"{x.rank}: ", agents=False)(story, incident)["train.log"]
    if incident == "killed":
        told = "srun: error: node-b: task 5: Killed\n"
        before, cut, after = text.partition(next(x for x in text.splitlines(True) if "Watchdog caught" in x))
        text = before + told + cut + after
    return {"slurm-77.out": text}


def mpirun(story: list[Said], incident: str) -> Files:
    """Of a killed process there is no such story: mpirun ends all others at once."""
    return {"mpi.out": one_file(lambda x: f"[1,{x.rank}]<stderr>:", agents=False)(story, incident)["train.log"]}


def docker(story: list[Said], incident: str) -> Files:
    files: Files = {}
    for x in story:
        name = f"{HOSTS[x.host]}/container-json.log"
        rows = (
            json.dumps({"log": f"{tee(x)}{row}\n", "stream": "stderr", "time": f"{z(x.at)}000Z"}) + "\n"
            for row in x.text.split("\n")
        )
        files[name] = files.get(name, "") + "".join(rows)
    return files


def ray(story: list[Said], incident: str) -> Files:
    """Ray's workers; no torchrun, its own words for a death."""
    text = ""
    dead = False
    for x in story:
        if x.rank is not None:
            text += prefixed(x, f"(RayTrainWorker pid={x.pid}, ip=10.0.0.{x.host + 1}) ")
        elif incident == "killed" and not dead:
            dead = True
            text += (
                "(raylet, ip=10.0.0.2) A worker died or was killed while executing a task by an unexpected system "
                "error. Worker ID: 5be3 Node ID: 77aa Worker IP address: 10.0.0.2 Worker port: 10012 "
                f"Worker PID: {pid_of(LATE)} Worker exit type: SYSTEM_ERROR Worker exit detail: connection error code "
                "2. End of file.\n"
            )
    return {"driver.log": text}


def console(story: list[Said], incident: str) -> Files:
    """No --tee: every process writes to one terminal, and a progress bar of rank 0 redraws itself in between."""
    files: Files = {}
    for host in (0, 1):
        text, n = "", 0
        for x in story:
            if x.host != host:
                continue
            if x.rank is not None and "step:" in x.text:
                if x.rank == 0:
                    n += 1
                    text += (
                        f"\rEpoch 0:  {n}%|▏         | {35 + n}/4000 [00:{10 + 2 * n:02d}<2:10:00,  2.00s/it, loss=2.1]"
                    )
                continue
            text += prefixed(x, "")
        files[f"{HOSTS[host]}/console.log"] = text
    return files


def glued(story: list[Said], incident: str) -> Files:
    """--tee, and whatever comes after a bar of local rank 0 stands in the same line."""
    files: Files = {}
    for host in (0, 1):
        text, n = "", 0
        for x in story:
            if x.host != host:
                continue
            text += prefixed(x, tee(x))
            if x.rank is not None and x.rank % PER_NODE == 0 and "step:" not in x.text:
                n += 1
                bar = f"Epoch 0:  {n}%|▏         | {35 + n}/4000 [00:{10 + 2 * n:02d}<2:10:00,  2.00s/it, loss=2.1]"
                text += f"[default0]:{bar}"
        files[f"{HOSTS[host]}/train.log"] = text
    return files


def coloured(story: list[Said], incident: str) -> Files:
    """A terminal recording: a colour before the prefix and one behind it."""
    return per_node(lambda x: f"\x1b[36m{tee(x)}\x1b[0m\x1b[1;31m")(story, incident)


def wrapped(story: list[Said], incident: str) -> Files:
    """A pager cuts lines at 137 characters."""
    files = per_node(tee)(story, incident)
    return {
        name: "".join(
            "".join(line[i : i + 137] + "\n" for i in range(0, len(line), 137)) or "\n" for line in text.split("\n")
        )
        for name, text in files.items()
    }


FORMS: dict[str, Form] = {
    "folders": folders,
    "rank-files": rank_files,
    "tee": per_node(tee),
    "zulu": per_node(lambda x: f"{z(x.at)[:-3]}Z {tee(x)}"),
    "cri": per_node(lambda x: f"{z(x.at)}789Z stderr F {tee(x)}"),
    "docker": docker,
    "pdsh": one_file(lambda x: f"{HOSTS[x.host]}: {tee(x)}"),
    "kubectl": one_file(lambda x: f"[pod/train-worker-{x.host}/pytorch] {tee(x)}"),
    "srun": srun,
    "mpirun": mpirun,
    "ray": ray,
    "console": console,
    "glued": glued,
    "coloured": coloured,
    "wrapped": wrapped,
}
CAUSE = {"raises": "python_exception", "killed": "process_signal", "never": "rank_not_arrived"}


NO_TORCHRUN = frozenset({"srun", "mpirun", "ray"})
EVERY, SOME = VERSIONS, ((1, 13), (2, 2), (2, 4), (2, 6), (2, 12))
CASES = [(f, i, v) for f in FORMS for i in CAUSE for v in (EVERY if f in ("tee", "srun") else SOME)]
CASES = [c for c in CASES if c[:2] != ("mpirun", "killed")]
KNOWN: dict[tuple[str, str], tuple[tuple[Version, ...], str]] = {}
"""Faults that are known and not mended: (form, incident) → (versions, why)."""


@cache
def scanner() -> Scanner:
    return Scanner(parsers().by_literal)


def judged(form: str, incident: str, version: Version) -> Incident | None:
    """As `pipeline.analyze` does it, with one scanner for all."""
    files = FORMS[form](story(incident, version, reporters(incident, form)), incident)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
        parsed = [read_source(source, parsers(), scanner()) for source in collect([folder])]
    found = conclude(parsed, year=2026)
    return found.incidents[0] if found.incidents else None


def differences(form: str, incident: str, version: Version) -> list[str]:
    found = judged(form, incident, version)
    if found is None:
        return ["no incident"]
    verdict, stuck = found.verdict, found.collective
    have = {
        "cause": verdict.cause,
        "ranks": list(verdict.ranks),
        "reporters": list(verdict.reporting_ranks),
        "seq": stuck.seq if stuck else None,
        "op": stuck.op if stuck else None,
    }
    want = {
        "cause": CAUSE[incident],
        "ranks": [LATE],
        "reporters": reporters(incident, form),
        "seq": SEQ,
        "op": "all_reduce",
    }
    return [f"{k} {have[k]}, not {want[k]}" for k in want if have[k] != want[k]]


def _parameters() -> Iterator[ParameterSet]:
    by_form: dict[tuple[str, str, bool], list[Version]] = {}
    for form, incident, version in CASES:
        bad = version in KNOWN.get((form, incident), ((), ""))[0]
        by_form.setdefault((form, incident, bad), []).append(version)
    for (form, incident, bad), versions in by_form.items():
        marks = [pytest.mark.xfail(reason=KNOWN[form, incident][1], strict=True)] if bad else []
        yield pytest.param(form, incident, versions, id=f"{form}-{incident}" + "-known" * bad, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "incident", "versions"), list(_parameters()))
def test_every_form_of_one_incident_gives_one_answer(form: str, incident: str, versions: list[Version]) -> None:
    wrong = {".".join(map(str, v)): d for v in versions if (d := differences(form, incident, v))}
    assert wrong == {}
