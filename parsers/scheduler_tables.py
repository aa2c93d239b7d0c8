"""What Slurm remembers: sacct, scontrol show job, scontrol show node, sinfo -R.

Written by Slurm's commands. Time: local, no zone, whole seconds (2026-11-25T10:21:33). States are those of the manual
page of sacct, "JOB STATE CODES"; a `+` shows that a column was too narrow. Examples (sacct; job; node; sinfo -R):

JobID           JobName      State ExitCode                 End        NodeList
4711              train  NODE_FAIL      0:0 2026-11-25T10:21:33     node-[01-04]
JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
Reason=Not responding [slurm@2026-11-25T10:21:33]
Not responding       slurm     2026-11-25T10:21:33 node-03
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.lines.stamps import iso
from nccl_forensics.model import Detail, Event, Role, Severity, Stamp

from ._blocks import may_read, rows

MOST_ROWS = 400
STATES: Mapping[str, tuple[str, str]] = {
    "TIMEOUT": ("preempted", "time limit"),
    "DEADLINE": ("preempted", "time limit"),
    "PREEMPTED": ("preempted", "preempted"),
    "CANCELLED": ("preempted", "cancelled"),
    "REVOKED": ("preempted", "cancelled"),
    "NODE_FAIL": ("node_lost", "node failed"),
    "BOOT_FAIL": ("node_lost", "node failed"),
    "OUT_OF_MEMORY": ("host_oom_kill", "out of memory"),
}
"""State of a job → (cause, detail)."""
FINE = frozenset({"COMPLETED", "RUNNING", "PENDING", "FAILED", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING"})
"""FAILED only says that the job's own exit status was not 0."""
NOTHING_YET = frozenset({"COMPLETED", "PENDING", "RUNNING"})
"""States in which a job's step (4711.0) is of no interest."""
STATE = re.compile(r"^(?P<state>[A-Z_]{4,14})(?P<cut>\+?)(?: by (?P<uid>\d{1,10}))?$")
NAMES = frozenset({"jobid", "jobidraw", "jobname", "state", "exitcode", "nodelist", "start", "end", "reason"})
JOB_FIELD = re.compile(
    r"(?P<key>JobId|JobName|JobState|Reason|EndTime|NodeList|BatchHost|ExitCode)=(?P<value>\S{1,400})"
)
NODE_FIELD = re.compile(r"\bState=(?P<state>[A-Z_]{2,20}(?:[*~#!%$@^+-][A-Z_+*~#!%$@^-]{0,60})?)(?=\s|$)")
NODE_REASON = re.compile(
    r"^\s*Reason=(?P<reason>[^\[\n]{1,200}?)(?: \[(?P<who>[^@\]\s]{1,40})@(?P<when>[\dT:-]{19})\])?\s*$"
)
SINFO_HEADER = re.compile(r"^REASON\s+USER\s+TIMESTAMP\s+NODELIST")
SINFO = re.compile(r"\s(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) (?P<nodes>\S{1,400})\s*$")
DOWN = re.compile(r"DOWN|\*|NOT_RESPONDING|\bFAIL")
"""A `*` behind the state: the node does not answer (manual page of sinfo, "NODE STATE CODES")."""
SILENT = re.compile(r"(?i)not responding|node unexpectedly rebooted|node down|duplicate jobid|low socket")
PLAIN_NODE = re.compile(r"[\w.-]{1,255}")


@dataclass(frozen=True, slots=True)
class _State:
    name: str
    uid: int | None = None
    """Who cancelled the job."""
    by_someone: bool = False
    """It was cancelled by somebody. A bare CANCELLED is a step that ended with its job."""


def _full(written: str) -> _State | None:
    """The state in a cell; the cut-off ones are filled up."""
    found = STATE.match(written.strip())
    if found is None:
        return None
    name = found["state"]
    if name not in STATES and name not in FINE:
        whole = [x for x in (*STATES, *FINE) if x.startswith(name)]
        if not found["cut"] or len(whole) != 1:
            return None
        name = whole[0]
    return _State(name, int(found["uid"]) if found["uid"] else None, bool(found["uid"] or found["cut"]))


def _time(written: str | None) -> Stamp | None:
    found = iso(written) if written else None
    return found[0] if found else None


def _node(nodes: str | None) -> str | None:
    """The one node of a list; None if there are several, or none."""
    return nodes if nodes and PLAIN_NODE.fullmatch(nodes) and nodes not in ("None", "(null)", "None assigned") else None


def _job(line: Line, job: str, state: _State, fields: Mapping[str, str | None]) -> Event:
    cause, what = STATES.get(state.name, (None, state.name.lower()))
    role: Role = "cause" if cause and (state.name != "CANCELLED" or state.by_someone) else "context"
    severity: Severity = "error" if role == "cause" else "info"
    details: dict[str, Detail] = {"job": job.split(".")[0], "step": job.partition(".")[2] or None}
    details |= {
        "state": state.name,
        "uid": state.uid,
        "nodes": fields.get("nodes"),
        "exit_code": fields.get("exit_code"),
        "what": what,
    }
    return line.event(
        "slurm-state",
        role=role,
        severity=severity,
        cause=cause if role == "cause" else None,
        details={k: v for k, v in details.items() if v not in (None, "")},
        stamp=_time(fields.get("end")) if state.name != "RUNNING" else None,
        host=_node(fields.get("nodes")),
        pid=None,
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """sacct's columns: their names, and where they stand, unless `|` parts them."""

    names: Sequence[str]
    spans: Sequence[tuple[int, int]] | None = None

    @classmethod
    def of(cls, header: str, below: Iterator[Line]) -> _Columns | None:
        """Takes the ruler below the header, where the columns have no `|` between them; None if it is none."""
        if "|" in header:
            return cls([x.strip().lower() for x in header.split("|")])
        ruler = next(below, None)
        if ruler is None or not re.fullmatch(r"[- ]{6,2000}", ruler.text.rstrip()):
            return None
        spans = [(m.start(), m.end()) for m in re.finditer(r"-{2,200}", ruler.text)]
        return cls([header[a:b].strip().lower() for a, b in spans], spans)

    @property
    def sound(self) -> bool:
        """Whether each row tells a job and its state."""
        return "state" in self.names and not {"jobid", "jobidraw"}.isdisjoint(self.names)

    def cells(self, row: str) -> dict[str, str] | None:
        """Name → what stands in the row; None if the row is none of this table."""
        if self.spans is None:
            values = [x.strip() for x in row.split("|")]
        else:
            values = [row[a:b].strip() for a, b in self.spans]
        if len(values) < len(self.names) - 1 or not row.strip():
            return None
        return dict(zip(self.names, values, strict=False))


def _sacct_rows(line: Line) -> Iterator[tuple[Line, dict[str, str]]]:
    """The rows below sacct's header, each with its cells by the names of the columns."""
    below = rows(line, "sacct", MOST_ROWS)
    columns = _Columns.of(line.text.rstrip(), below)
    if columns is None or not columns.sound:
        return
    for row in below:
        cells = columns.cells(row.text)
        if cells is None:
            return
        line.window.state["sacct.until"] = row.number
        yield row, cells


@parser(title="sacct", literals=["JobID", "JobId|"])
def sacct(line: Line) -> Iterator[Event]:
    """The table below its header, in columns or with `|` between them."""
    if line.number <= line.window.state.get("sacct.until", 0) or not may_read(line, "sacct", 100):
        return
    for row, cells in _sacct_rows(line):
        job = cells.get("jobid") or cells.get("jobidraw") or ""
        state = _full(cells.get("state", ""))
        if state is None or not re.match(r"\d{1,12}", job):
            if not set(row.text.strip()) <= set("- "):  # no ruler
                return
        elif state.name not in NOTHING_YET or "." not in job:
            fields = {"end": cells.get("end"), "nodes": cells.get("nodelist"), "exit_code": cells.get("exitcode")}
            yield _job(row, job, state, fields)


@parser(title="scontrol show job", literals=["JobState="])
def scontrol_job(line: Line) -> Iterator[Event]:
    if not may_read(line, "scontrol job", 2000):
        return
    fields: dict[str, str] = {}
    for row in (*reversed(line.before(6)), line, *line.after(30)):
        if row.number > line.number and row.text.startswith("JobId="):
            break
        if row.number < line.number and row.text.startswith("JobId="):
            fields.clear()
        for found in JOB_FIELD.finditer(row.text[:1000]):
            fields.setdefault(found["key"], found["value"])
    state = _full(fields.get("JobState", ""))
    if state is None or "JobId" not in fields:
        return
    state = replace(state, by_someone=True)  # a job, not a step; scontrol does not write by whom
    known = {"end": fields.get("EndTime"), "nodes": fields.get("NodeList"), "exit_code": fields.get("ExitCode")}
    yield _job(line, fields["JobId"], state, known)


@parser(title="scontrol show node, sinfo -R", literals=["NodeName=", "REASON "])
def slurm_nodes(line: Line) -> Iterator[Event]:
    """Nodes that Slurm cannot reach or has taken out, and why."""
    if line.text.startswith("NodeName="):
        yield from _scontrol_node(line)
    elif SINFO_HEADER.match(line.text) and may_read(line, "sinfo"):
        yield from _sinfo(line)


def _scontrol_node(line: Line) -> Iterator[Event]:
    """A node that is down, does not answer or is drained."""
    name = line.text.removeprefix("NodeName=").split(" ", 1)[0]
    if not PLAIN_NODE.fullmatch(name) or not may_read(line, "scontrol node", 4000):
        return
    state, given, at = None, None, line
    for row in _of_node(line):
        if state is None and (found := NODE_FIELD.search(row.text[:1000])):
            state, at = found["state"], row
        if found := NODE_REASON.match(row.text[:600]):
            given, at = found, row
    if state is not None and (DOWN.search(state) or "DRAIN" in state):
        says, when = (given["reason"].strip(), given["when"]) if given else (None, None)
        yield _slurm_node(at, name, state, says, when)


def _of_node(line: Line) -> Iterator[Line]:
    """The lines of one node: up to a blank one or the next node."""
    yield line
    for row in line.after(40):
        if not row.text.strip() or row.text.startswith("NodeName="):
            return
        yield row


def _sinfo(line: Line) -> Iterator[Event]:
    for row in rows(line, "sinfo", MOST_ROWS):
        found = SINFO.search(row.text[:600])
        if found is None:
            return
        reason = row.text[: found.start()].rstrip().rpartition(" ")[0].strip()  # what is left is the user
        yield _slurm_node(row, found["nodes"], None, reason, found["when"])


def _slurm_node(line: Line, nodes: str, state: str | None, says: str | None, when: str | None) -> Event:
    silent = bool(says and SILENT.search(says)) or (says is None and state is not None and "DOWN" in state)
    details: dict[str, Detail] = {"nodes": nodes, "state": state, "reason": says}
    return line.event(
        "slurm-node",
        role="symptom" if silent else "context",
        severity="error" if silent else "warning",
        cause="node_lost" if silent else None,
        details={k: v for k, v in details.items() if v is not None},
        stamp=_time(when),
        host=_node(nodes),
        pid=None,
    )
