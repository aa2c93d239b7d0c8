"""kubectl: describe pod, describe node, get nodes, get pods -o wide, get events; and docker ps.

Words like OOMKilled alone are in schedulers.py. Written by kubectl and docker. Time: RFC 1123 with a zone in `describe`
(Wed, 25 Nov 2026 10:21:33 +0000); events only have ages.
Examples:

    Last State:     Terminated
      Reason:       OOMKilled
      Finished:     Wed, 25 Nov 2026 10:21:33 +0000
  Ready   Unknown   Wed, 25 Nov 2026 10:20:41 +0000   Wed, 25 Nov 2026 10:21:33 +0000   NodeStatusUnknown   Kubelet …
gpu-node-3   NotReady   <none>   41d   v1.29.4
NAME             READY   STATUS    RESTARTS   AGE   IP           NODE         NOMINATED NODE   READINESS GATES
CONTAINER ID   IMAGE             COMMAND   CREATED      STATUS      PORTS     NAMES
12m   Warning   NodeNotReady   pod/train-worker-3   Node is not ready
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.lines.stamps import month, wall, zone
from nccl_forensics.model import Detail, Event, Role, Severity, Stamp

from ._blocks import may_read, rows

TERMINATED = re.compile(r"^\s{2,}(?P<which>State|Last State):\s+Terminated\s*$")
FIELD = re.compile(
    r"^\s{4,}(?P<name>Reason|Exit Code|Started|Finished|Message|Signal):\s+(?P<value>\S[^\n]{0,300}?)\s*$"
)
POD = re.compile(r"^Name:\s+(?P<name>[a-z0-9.-]{1,253})\s*$")
NODE = re.compile(r"^Node:\s+(?P<name>[\w.-]{1,253})(?:/[\w.:]{3,60})?\s*$")
RFC1123 = r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"
MOMENT = re.compile(r"[A-Z][a-z]{2}, (\d{2}) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) ([+-]\d{4})")
CONDITION = re.compile(
    rf"^\s+Ready\s+(?P<status>Unknown|False)\s+{RFC1123}\s+(?P<when>{RFC1123})\s+(?P<reason>\w{{3,60}})\s+(?P<says>[^\n]{{0,200}}?)\s*$"
)
GET_NODE = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9.-]{0,252})\s+NotReady(?:,\w{1,40}){0,3}\s+\S{1,200}\s+\d{1,6}[smhdy]\w{0,8}\s+v\d"
)
EVENT = re.compile(
    r"^(?:\S{1,60}\s+)?(?P<age>(?:\d{1,6}[smhd]){1,3})\s+(?:Warning|Normal)\s+NodeNotReady\s+(?P<kind>pod|node)/(?P<name>[\w.-]{1,253})"
)
TAKEN = re.compile(
    r"^(?:\S{1,60}\s+)?(?:(?:\d{1,6}[smhd]){1,3}|<unknown>)\s+(?:Warning|Normal)\s+Preempted\s+pod/(?P<name>[\w.-]{1,253})\s+"
    r"(?P<says>Preempted by [^\n]{1,300}?)\s*$"
)
IN_DESCRIBE = re.compile(r"^\s+(?:Warning|Normal)\s+NodeNotReady\s+(?:\d{1,6}[smhd]){1,3}\s")
BY_SIGNAL = frozenset({135, 137, 139})
"""Exit codes of a process that SIGBUS, SIGKILL or SIGSEGV ended."""
BACK = 160
"""Lines of a pod's description before its containers' states."""

MOST_ROWS = 2000
PODS = re.compile(r"^(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS\s+AGE\s+IP\s+NODE\s+NOMINATED NODE\b")
PS = re.compile(r"^CONTAINER ID\s+IMAGE\s+COMMAND\b")
CONTAINER = re.compile(r"^(?P<id>[0-9a-f]{12})\s{2,}\S")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


def _moment(written: str | None) -> Stamp | None:
    found = MOMENT.match(written) if written else None
    number = month(found[2]) if found else None
    if found is None or number is None:
        return None
    return wall(found[3], number, found[1], found[4], found[5], found[6], zone_s=zone(found[7]))


def described_node(line: Line) -> str | None:
    """The node whose `kubectl describe node` the line stands in."""
    for before in line.before(BACK if may_read(line, "node descriptions", 800) else 0):
        if found := POD.match(before.text):
            return found["name"]
    return None


def condition_moment(text: str) -> Stamp | None:
    """When a condition of `kubectl describe` changed: the second of its two moments."""
    moments = list(MOMENT.finditer(text))
    return _moment(moments[1][0]) if len(moments) > 1 else None


def _whose(line: Line) -> tuple[str | None, str | None]:
    """(pod, node) of the description that the line stands in."""
    pod = node = None
    for before in line.before(BACK if may_read(line, "pods", 800) else 0):
        if node is None and (found := NODE.match(before.text)):
            node = found["name"]
        elif found := POD.match(before.text):
            pod = found["name"]
            break
    return pod, node


def _fields_below(line: Line) -> dict[str, str]:
    """What stands indented below a container's state."""
    fields: dict[str, str] = {}
    for row in line.after(8):
        field = FIELD.match(row.text)
        if field is None:
            break
        fields.setdefault(field["name"], field["value"])
    return fields


def _weight_of_end(reason: str, exit_code: int | None) -> tuple[Role, Severity, str | None]:
    """(role, severity, cause) of a container's end."""
    if reason == "OOMKilled":
        return "cause", "critical", "host_oom_kill"
    if exit_code in BY_SIGNAL:
        return "symptom", "error", "process_signal"
    return "context", "info", None


@parser(title="kubectl describe pod: an ended container", literals=[" Terminated"])
def pod_ended(line: Line) -> Iterator[Event]:
    if TERMINATED.match(line.text) is None:
        return
    fields = _fields_below(line)
    reason, code = fields.get("Reason"), fields.get("Exit Code", "")
    if reason is None:
        return
    exit_code = int(code) if re.fullmatch(r"\d{1,3}", code, re.ASCII) else None
    pod, node = _whose(line)
    role, severity, cause = _weight_of_end(reason, exit_code)
    details: dict[str, Detail] = {"pod": pod, "node": node, "reason": reason, "exit_code": exit_code}
    yield line.event(
        "k8s-pod-ended",
        role=role,
        severity=severity,
        cause=cause,
        host=node or line.host,
        stamp=_moment(fields.get("Finished")),
        details={k: v for k, v in details.items() if v is not None},
        pid=None,
    )


@parser(title="kubectl: a pod that the scheduler took away", literals=["Preempted by "])
def pod_preempted(line: Line) -> Iterator[Event]:
    if found := TAKEN.match(line.text):
        yield line.event(
            "preempted",
            role="cause",
            severity="critical",
            cause="preempted",
            host=found["name"],
            details={"pod": found["name"], "says": found["says"]},
            pid=None,
        )


class _NotReady(NamedTuple):
    """What a line says of a node that is not ready."""

    node: str | None
    pod: str | None = None
    stamp: Stamp | None = None
    says: str | None = None


def _condition(line: Line, found: re.Match[str]) -> _NotReady:
    """A row of `describe node`; the node's name stands at the top."""
    name = next((m["name"] for before in line.before(BACK) if (m := POD.match(before.text))), None)
    return _NotReady(name, stamp=_moment(found["when"]), says=found["says"])


def _get_nodes(line: Line, found: re.Match[str]) -> _NotReady:
    return _NotReady(found["name"])


def _get_events(line: Line, found: re.Match[str]) -> _NotReady:
    """An event is told of a node, or of a pod whose node it is."""
    return _NotReady(found["name"]) if found["kind"] == "node" else _NotReady(None, found["name"])


def _describe_pod(line: Line, found: re.Match[str]) -> _NotReady:
    pod, node = _whose(line)
    return _NotReady(node, pod)


NOT_READY = (
    (CONDITION, _condition),
    (GET_NODE, _get_nodes),
    (EVENT, _get_events),
    (IN_DESCRIBE, _describe_pod),
)


@parser(title="kubectl: a node that is not ready", literals=["NotReady", "NodeStatusUnknown", "KubeletNotReady"])
def node_not_ready(line: Line) -> Iterator[Event]:
    text = line.text
    matches = ((read, form.match(text)) for form, read in NOT_READY)
    known = next((read(line, found) for read, found in matches if found), None)
    if known is None:
        return
    details: dict[str, Detail] = {"node": known.node, "pod": known.pod, "says": known.says}
    yield line.event(
        "k8s-node-not-ready",
        role="symptom",
        severity="error",
        cause="node_lost",
        host=known.node or line.host,
        stamp=known.stamp,
        details={k: v for k, v in details.items() if v is not None},
        pid=None,
    )


@parser(title="kubectl, docker: where containers run", literals=["NOMINATED NODE", "CONTAINER ID ", "Node:     "])
def container_place(line: Line) -> Iterator[Event]:
    """Pod → node; container id, on the node that the file is of."""
    if node := NODE.match(line.text):
        pod = next((m["name"] for before in line.before(8) if (m := POD.match(before.text))), None)
        if pod:
            yield _place(line, pod, node["name"])
    elif PODS.match(line.text) and may_read(line, "pod tables"):
        yield from _pods(line)
    elif PS.match(line.text) and may_read(line, "container tables"):
        yield from _containers(line)


def _pods(line: Line) -> Iterator[Event]:
    """The rows of `kubectl get pods -o wide`."""
    columns = line.text.replace("NOMINATED NODE", "NOMINATED").split()
    name, at = columns.index("NAME"), columns.index("NODE")
    for row in rows(line, "pods", MOST_ROWS):
        # "3 (2d ago)" stands in the column of restarts
        cells = re.sub(r"(\d) \([\w ]{1,20}\)", r"\1", row.text[:2000]).split()
        if len(cells) < at + 1:
            return
        if NAME.fullmatch(cells[name]) and NAME.fullmatch(cells[at]):
            yield _place(row, cells[name], cells[at])


def _containers(line: Line) -> Iterator[Event]:
    """The rows of `docker ps`."""
    for row in rows(line, "containers", MOST_ROWS):
        found = CONTAINER.match(row.text)
        if found is None:
            return
        yield _place(row, found["id"], None)


def _place(line: Line, container: str, node: str | None) -> Event:
    details: dict[str, Detail] = {"container": container, **({"node": node} if node else {})}
    return line.event("container-place", role="context", host=None, stamp=None, details=details, pid=None)
