"""PyTorch's ProcessGroupNCCL: what the watchdog of each process says when a collective does not end.

Written by torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, 1.9 to today; texts differ by release, line numbers by
vendor. Time: none up to 2.3; from 2.4 on the c10 prefix, local time in nanoseconds without year or zone. Examples:

[rank3]:[E1125 10:21:33.000421007 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout:
WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds ...
[rank3]:[E1125 10:21:33.000621007 ProcessGroupNCCL.cpp:2257] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected
by watchdog at work sequence id: 42 PG status: last enqueued work: 42, last completed work: 41

`[rankN]:` is the global rank. `[Rank N]` and `[PG ... Rank N]` are ranks inside the group: `group_rank` in details.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._lines import (
    PEER,
    cuda_cause,
    failure_block,
    followers,
    leaders,
    loose,
    near,
    number,
    rank_before,
    rank_list,
    whole,
)

GROUP = (
    r"\[PG (?:ID (?P<pg_id>\d{1,9}) PG GUID (?P<guid>[^ (\]]{0,80})(?:\((?P<desc>[^)\]]{0,120})\))?"
    r"|(?P<name>[^ (\]]{1,80})(?: \((?P<desc_24>[^)\]]{0,120})\))?) ?Rank (?P<group_rank>\d{1,7})\]"
)
"""2.3: [PG 0 Rank 1]; 2.4: [PG 0 (default_pg) Rank 1]; from 2.5: [PG ID 0 PG GUID 0(default_pg) Rank 1]."""
PLAIN_GROUP = re.compile(GROUP)
PLAIN_RANK = re.compile(r"\[Rank (?P<group_rank>\d{1,7})\]")

WORK = (
    r"WorkNCCL\( (?:SeqNum= (?P<seq>\d{1,20}) , )?OpType= (?P<op>\w{1,40})(?: , TensorShape= \[[^\]]{0,200}\])?"
    r"(?: , NumelIn= (?P<numel_in>\d{1,20}) , NumelOut= (?P<numel_out>\d{1,20}))? , Timeout\(ms\) ="
    r" (?P<timeout_ms>\d{1,18}) \)"
)
"""SeqNum from 1.12 on, Numel from 2.1 on."""

TIMEOUT_LITERALS = ("Watchdog caught", "WorkNCCL(", "before timing out")
TIMEOUT = loose(
    r"(?:\[ Rank (?P<group_rank>\d{1,7}) \] )?(?:Watchdog caught|Caught) collective operation timeout : "
    + WORK
    + r" ran for (?P<waited_ms>\d{1,18}) milli"
)
TIMEOUT_CUT = re.compile(
    r"\[Rank (?P<group_rank>\d{1,7})\] Watchdog caught collective operation timeout:?\s*"
    r"(?:WorkNCCL\((?:SeqNum=(?P<seq>\d{1,20}), )?(?:OpType=(?P<op>[A-Z_0-9]{1,40}),)?)?"
)
COPY = re.compile(r"(?:terminated\s*with\s*exception:|what\(\):|Last error:|wait\(\).{0,40})\s*$")

COPY_REACH = 60
"""Lines between the header's message and its copy behind `what():` (two stacks of about ten frames); our judgement."""

BLOCKING = loose(WORK + r" timed out in (?:blocking wait|call to wait\(\))")
ASYNC = re.compile(
    r"(?:Collective " + WORK.replace(" ", r"\s?") + r" raised the following async exception: "
    r"|found async exception when checking for NCCL errors: )(?P<error>[^\n]{0,500})"
)
WATCHDOG_DIED = re.compile(
    r"(?:NCCL|Process group) watchdog thread terminated with exception: (?P<error>(?P<what>CUDA error"
    r"|NCCL error): [^\n]{1,500})"
)

STATUS_LITERALS = ("last enqueued NCCL work", "last enqueued work", "last completed work", "last completed NCCL work")
STATUS = loose(
    GROUP
    + r" (?:Timeout at NCCL work: |Exception \(either an error or timeout\) detected by watchdog at work: "
    + r"|failure detected by watchdog at work sequence id: )(?P<seq>\d{1,20}) ,? (?:PG status: )?"
    + r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,20}) , (?:last started (?:NCCL )?work:"
    r" (?P<started>-?\d{1,20}) , )?" + r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,20})"
)
DUMP = re.compile(
    r"Received a (?:global )?(?:dump signal|timeout signal|timeout) (?:signal )?(?:due to a collective timeout )?from +"
    r"(?P<who>this local rank|another rank|rank)(?: (?P<src_rank>\d{1,7}))?"
)
COUNTERS = re.compile(
    r"Last enqueued NCCL work: (?P<enqueued>-?\d{1,20}), last completed NCCL work: (?P<completed>-?\d{1,20})"
)

UNIQUE_ID = re.compile(
    r"\[(?P<waiting>\d{1,7})\]:? is setting up NCCL communicators? and ret(?:ri"
    r"|re)i?e?ving ncclUniqueIds? from (?:\[0\]|roots)"
    r"(?:.{0,300}?got error: (?P<error>.{0,200}))?"
)
STUCK = re.compile(r"watchdog got stuck for (?P<stuck_s>\d{1,9}) seconds without making progress")
ABORTED = re.compile(r"NCCL communicator was aborted on rank (?P<rank>\d{1,7})")
REMOTE = re.compile(r"remote error detected from rank: (?P<src>\d{1,7})")

LAGGING = re.compile(
    r"ranks? \[(?P<ranks>[\d, -]{1,20000})\] are the lagging ranks that caused this timeout[^\n]{0,100}"
)
BEHIND = re.compile(
    r"\[(?P<ranks>[\d, -]{1,20000})\] (?:(?P<joined>joined) but didn't finish collective #(?P<in>\d{1,20})"
    r"|finished collective #(?P<after>\d{1,20}), but didn't join collective #\d{1,20})"
)
TIMED_OUT_AT = re.compile(r" - \[(?P<group_rank>\d{1,7})\] Timeout at collective: \w{1,40}, #(?P<seq>\d{1,20})")
"""The first line of a desync report: whose it is."""
FINGERPRINT = (
    r"Rank (?P<rank_{0}>\d{{1,7}}) is running collective: CollectiveFingerPrint\( (?:SequenceNumber="
    r" (?P<seq_{0}>\d{{1,20}}) ,? )?"
    r"OpType= (?P<op_{0}>[A-Z_0-9]{{1,40}})(?: , TensorShape= \[ (?P<shape_{0}>[\d, \-\[\]]{{0,400}}?) \]"
    r"(?: , TensorDtypes= (?P<dtype_{0}>\w{{1,40}}))?)?"
)
MISMATCH = loose(
    "Detected mismatch between collectives on ranks. "
    + FINGERPRINT.format("a")
    + r".{0,700}?but "
    + FINGERPRINT.format("b")
)
FRAME = re.compile(r"^\s*#\d{1,3} (?P<function>.{1,120}?) from (?P<file>\S{1,400}):(?P<line>\d{1,7})")


def _group(text: str) -> dict[str, Detail]:
    """What the nearest group prefix in `text` says: the group's id, name, description and this process's rank in it."""
    if found := PLAIN_GROUP.search(text):
        return _named(found)
    if found := PLAIN_RANK.search(text):
        return {"group_rank": int(found["group_rank"])}
    return {"group_rank": None}


def _named(found: re.Match[str]) -> dict[str, Detail]:
    guid = found["guid"] if found["guid"] is not None else found["name"]
    return {
        "pg_id": number(found["pg_id"]),
        "pg_name": guid or None,
        "pg_desc": found["desc"] or found["desc_24"],
        "group_rank": int(found["group_rank"]),
    }


def _told_before(line: Line, part: str) -> int | None:
    """Global rank of the lines shortly before that hold the same text, for a copy that has no header of its own."""
    ranks = {x.rank for x in line.before(COPY_REACH) if part in x.text} - {None}
    return ranks.pop() if len(ranks) == 1 and part else None


def _work(found: re.Match[str]) -> dict[str, Detail]:
    return {
        "seq": number(found["seq"]),
        "op": found["op"],
        "numel_in": number(found["numel_in"]),
        "numel_out": number(found["numel_out"]),
        "timeout_ms": number(found["timeout_ms"]),
    }


TAG = re.compile(r"\[default(\d{1,5})\]: ?\[E[^\]\n]{0,200}\] ?$")


def _tag_before(text: str, at: int) -> dict[str, Any]:
    """torchrun's tag of this very message, where it is glued to what another process wrote: its local rank."""
    tag = TAG.search(text[max(0, at - 260) : at])
    return {"local_rank": int(tag[1])} if tag else {}


@parser(title="PyTorch NCCL watchdog: a collective timed out", literals=TIMEOUT_LITERALS)
def pg_timeout(line: Line) -> Iterator[Event]:
    seen = False
    for found, text, first in whole(line, TIMEOUT, TIMEOUT_LITERALS):
        seen = True
        rank = rank_before(first, text, found.start())
        repeated = COPY.search(text, max(0, found.start() - 60), found.start()) is not None
        yield line.event(
            "watchdog-timeout",
            role="symptom",
            severity="error",
            stamp=first.stamp,
            rank=_told_before(line, found[0]) if repeated and rank is None else rank,
            **_tag_before(text, found.start()),
            details={
                **_work(found),
                "waited_ms": int(found["waited_ms"]),
                "group_rank": number(found["group_rank"]),
                "repeated": repeated,
            },
        )
    if seen or "Watchdog caught" not in line.text or any(True for _ in _elsewhere(line)):
        return
    for found in TIMEOUT_CUT.finditer(near(line)):  # the file ends, or somebody else's line stands, inside the message
        yield line.event(
            "watchdog-timeout",
            role="symptom",
            severity="error",
            rank=rank_before(line, line.text, found.start()),
            details={
                "seq": number(found["seq"]),
                "op": found["op"],
                "numel_in": None,
                "numel_out": None,
                "timeout_ms": None,
                "waited_ms": None,
                "group_rank": int(found["group_rank"]),
                "repeated": COPY.search(near(line), max(0, found.start() - 60), found.start()) is not None,
            },
        )


def _elsewhere(line: Line) -> Iterator[re.Match[str]]:
    """The whole message, where its first piece with a literal is a line before this one."""
    before = line.before(1)
    if before and any(x in before[0].text for x in TIMEOUT_LITERALS):
        here = len(before[0].text)
        text = before[0].text + line.text + "".join(x.text for x in line.after(3))
        yield from (x for x in TIMEOUT.finditer(text) if x.start() < here < x.end())


@parser(title="PyTorch NCCL watchdog: where this rank stands in the group", literals=STATUS_LITERALS)
def pg_status(line: Line) -> Iterator[Event]:
    if "signal" in line.text and DUMP.search(near(line)):
        return  # the same counters in the monitor's words: pg_dump
    for found, text, first in whole(line, STATUS, STATUS_LITERALS):
        yield line.event(
            "pg-status",
            role="symptom",
            severity="error",
            stamp=first.stamp,
            rank=rank_before(first, text, found.start()),
            details={
                **_named(found),
                "seq": int(found["seq"]),
                "enqueued": int(found["enqueued"]),
                "started": number(found["started"]) if found["started"] and found["started"][0] != "-" else None,
                "completed": int(found["completed"]),
            },
        )


@parser(
    title="PyTorch NCCL monitor: the dump signal",
    literals=["Received a dump", "Received a timeout", "Received a global", "Observed flight recorder dump"],
)
def pg_dump(line: Line) -> Iterator[Event]:
    """The counters here are the default group's, whichever group hangs."""
    text = near(line)
    if "Observed flight recorder dump signal" in text:
        at = text.find("Observed flight")
        yield line.event("pg-observed", role="context", rank=rank_before(line, text, at), details=_group(text))
    elif found := DUMP.search(text):
        counters = COUNTERS.search(text)
        local = found["who"] == "this local rank"
        details: dict[str, Detail] = {
            **_group(text),
            "enqueued": int(counters["enqueued"]) if counters else None,
            "completed": int(counters["completed"]) if counters else None,
        }
        if not local:
            details["src_rank"] = number(found["src_rank"])
        yield line.event(
            "pg-dump-local" if local else "pg-dump-remote",
            role="symptom" if local else "context",
            severity="warning" if local else "info",
            rank=rank_before(line, text, found.start()),
            details=details,
        )


@parser(
    title="PyTorch NCCL watchdog: the process aborts",
    literals=["taking the entire process down", "Terminating the process after attempting to dump debug info"],
)
def pg_abort(line: Line) -> Iterator[Event]:
    text = near(line)
    at = max(text.find("taking the entire"), text.find("Terminating the process after"))
    yield line.event(
        "pg-abort",
        role="consequence",
        severity="warning",
        rank=rank_before(line, text, at),
        details=_group(text),
    )


def _last_error(line: Line) -> tuple[str | None, str | None]:
    """(text, peer's host) of the `Last error:` block behind an NCCL error."""
    told = False
    for other in followers(line, 4, 8):
        text = other.text.strip()
        if told:
            peer = PEER.search(text)
            return text[:300] or None, peer["host"].strip("[]") if peer else None
        told = text.endswith("Last error:")
    return None, None


@parser(
    title="PyTorch NCCL watchdog: NCCL reported an error",
    literals=["raised the following async exception", "found async exception when checking"],
)
def pg_async(line: Line) -> Iterator[Event]:
    text = near(line)
    if found := ASYNC.search(text):
        last, peer = _last_error(line)
        yield line.event(
            "pg-async",
            role="symptom",
            severity="error",
            rank=rank_before(line, text, found.start()),
            details={
                **_group(text),
                "seq": number(found["seq"]),
                "op": found["op"],
                "error": found["error"].strip(),
                "last_error": last,
                "peer": peer,
                "repeated": False,
            },
        )


@parser(title="PyTorch NCCL watchdog: it met an error", literals=["watchdog thread terminated with exception"])
def pg_watchdog_died(line: Line) -> Iterator[Event]:
    text = near(line)
    if not (found := WATCHDOG_DIED.search(text)):
        return
    rank = rank_before(line, text, found.start())
    repeated = "what():" in text[: found.start()]
    if repeated and rank is None:
        rank = _told_before(line, text.rpartition("what():")[2].strip())
    if found["what"] == "CUDA error":
        error = found["error"].removeprefix("CUDA error: ").strip()
        yield line.event(
            "pg-watchdog-cuda",
            role="cause",
            severity="critical",
            cause=cuda_cause(error),
            rank=rank,
            details={**_group(text), "error": error, "repeated": repeated},
        )
    else:
        last, peer = _last_error(line)
        yield line.event(
            "pg-async",
            role="consequence",
            severity="warning",
            rank=rank,
            details={
                **_group(text),
                "seq": None,
                "op": None,
                "error": found["error"].strip(),
                "last_error": last,
                "peer": peer,
                "repeated": True,
            },
        )


@parser(
    title="PyTorch NCCL monitor: the watchdog itself is stuck",
    literals=[
        "watchdog got stuck for",
        "Heartbeat monitor timed out",
        "monitoring thread detects no heartbeat",
        "NCCL monitor thread timeout",  # 2.2
    ],
)
def pg_heartbeat(line: Line) -> Iterator[Event]:
    """`stuck`: the line itself says so; others stand beside one that does."""
    text = near(line)
    stuck = STUCK.search(text)
    yield line.event(
        "pg-heartbeat",
        role="symptom",
        severity="error",
        rank=rank_before(line, text, stuck.start() if stuck else len(text)),
        details={
            **_group(text),
            "stuck_s": int(stuck["stuck_s"]) if stuck else None,
            "stuck": stuck is not None or "NCCL monitor thread timeout" in text,
        },
    )


@parser(title="PyTorch: Python's lock is held", literals=["Could not acquire GIL within"])
def pg_gil(line: Line) -> Iterator[Event]:
    yield line.event("pg-gil", role="symptom", severity="error", details=_group(near(line)))


@parser(title="PyTorch: waits for the unique id of rank 0", literals=["is setting up NCCL communicator"])
def pg_uniqueid(line: Line) -> Iterator[Event]:
    if found := UNIQUE_ID.search(near(line)):
        yield line.event(
            "pg-uniqueid",
            role="symptom",
            severity="error",
            details={"waiting_rank": int(found["waiting"]), "error": found["error"]},
            **failure_block(line),
        )


@parser(
    title="PyTorch: the GPU of a rank was guessed",
    literals=["as device used by this process is currently unknown", "Guessing device ID based on global rank"],
)
def pg_unknown_dev(line: Line) -> Iterator[Event]:
    yield line.event("pg-unknown-dev", role="context", details=_group(near(line)))


@parser(
    title="PyTorch: a blocking wait timed out", literals=["timed out in blocking wait", "timed out in call to wait"]
)
def pg_blocking(line: Line) -> Iterator[Event]:
    text = near(line)
    found = BLOCKING.search(text)
    yield line.event(
        "pg-blocking",
        role="symptom",
        severity="error",
        rank=rank_before(line, text, found.start() if found else 0),
        details={**_group(text), **(_work(found) if found else {})},
    )


@parser(title="PyTorch: another rank's error was passed on", literals=["remote error detected from rank"])
def pg_remote_rank(line: Line) -> Iterator[Event]:
    if found := REMOTE.search(near(line)):
        yield line.event(
            "pg-remote-rank", role="context", details={**_group(near(line)), "src_group_rank": int(found["src"])}
        )


@parser(title="PyTorch: an aborted communicator was used", literals=["NCCL communicator was aborted on rank"])
def pg_comm_aborted(line: Line) -> Iterator[Event]:
    if found := ABORTED.search(near(line)):
        yield line.event(
            "pg-comm-aborted",
            role="consequence",
            severity="warning",
            details={"group_rank": int(found["rank"])},
            **failure_block(line),
        )


@parser(
    title="PyTorch: desync report",
    literals=["are the lagging ranks that caused", "joined but didn't finish collective", "but didn't join collective"],
)
def pg_desync(line: Line) -> Iterator[Event]:
    """One event for each line of the report that names ranks, all of them ranks in the group.

    `stood`: 'never' joined any collective, 'joined' number `seq` and did not finish it, 'finished' `seq` and did not
    join the next. `group_rank`, `at_seq`: who reports, and in which collective it waits.
    """
    text = near(line)
    found = [*LAGGING.finditer(text), *BEHIND.finditer(text)]
    if not found:
        return
    head: dict[str, Detail] = {}
    lines = [text, *(x.text for x in leaders(line, 5))]
    for n, one in enumerate(lines):
        if at := TIMED_OUT_AT.search(one):
            head = next((g for x in lines[n : n + 2] if "pg_name" in (g := _group(x))), {})
            head |= {"group_rank": int(at["group_rank"]), "at_seq": int(at["seq"])}
            break
    for one_set in found:
        where = one_set.groupdict()
        seq = where.get("in") or where.get("after")
        stood = "never" if seq is None else "joined" if where["joined"] else "finished"
        yield line.event(
            "pg-desync",
            role="symptom",
            severity="error",
            details={
                **head,
                "ranks": rank_list(one_set["ranks"]),
                "stood": stood,
                "seq": number(seq),
                "says": one_set[0][:300],
            },
        )


@parser(title="PyTorch DETAIL debug: ranks are in different collectives", literals=["Detected mismatch between coll"])
def pgw_mismatch(line: Line) -> Iterator[Event]:
    for found, text, first in whole(line, MISMATCH, ("Detected mismatch between coll",)):
        known = failure_block(line)
        yield line.event(
            "pgw-mismatch",
            role="cause",
            severity="error",
            cause="collective_mismatch",
            **({"rank": rank_before(first, text, found.start())} | known),
            details={
                key: number(found[key]) if key[:3] in ("ran", "seq") else found[key]
                for side in "ab"
                for key in (f"rank_{side}", f"op_{side}", f"seq_{side}", f"shape_{side}", f"dtype_{side}")
            },
        )


@parser(title="DDP: parameters without a gradient", literals=["Expected to have finished reduction in the prior"])
def ddp_params(line: Line) -> Iterator[Event]:
    yield line.event(
        "ddp-params", role="cause", severity="error", cause="python_exception", details={}, **failure_block(line)
    )


@parser(title="PyTorch: stack of the failed collective", literals=["Stack trace of the failed collective"])
def pg_stack(line: Line) -> Iterator[Event]:
    """Innermost first, as written; only from 2.6 on and with the Flight Recorder on."""
    frames: list[str] = []
    for other in followers(line, 60, 120):
        if not (found := FRAME.match(other.text)):
            break
        if len(frames) < 12:
            frames.append(f"{found['function']} {found['file']}:{found['line']}")
    if frames:
        yield line.event("pg-stack", role="context", details={**_group(near(line)), "frames": tuple(frames)})
