"""Python tracebacks, put together again from the lines of one process among everybody else's.

Written by CPython (traceback.py), by PyTorch's excepthook ([rankN]: before each line, since 2.2), by rich and loguru.
Time: none; the logger's line right before one gives it, where there is such a line. Examples:

[rank0]: Traceback (most recent call last):
[rank0]:   File "/srv/app/train.py", line 402, in <module>
[rank0]:     recipe.run_train_validation_loop()
[rank0]: FileExistsError: [Errno 17] File exists: '/lustre/run/epoch_0_step_69999'

An exception of the communication itself says that the rank was waiting; it is never a cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event, Role, Severity

from ._lines import BLOCK_REACH, PART, cuda_cause, failure_block, follows, is_data, is_quoted, leaders, told_of
from .storage import FAILED_ON, errno_of, in_shared_memory

HEADER = "Traceback (most recent call last)"
LONGEST = 600
"""Physical lines behind a header that are looked through, other processes' among them; our judgement."""
SHORTEST, SHORT = 16, 80
WOVEN = 16
"""Tracebacks of unknown processes between this one's lines, beyond which it is given up; our judgement."""
FRAMES = 12
MESSAGE = 500

FRAME = re.compile(r'File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,7})(?:, in (?P<function>[^\n]{1,200}))?')
RICH_FRAME = re.compile(
    r"^[│|]\s{0,4}(?P<file>[^\s│][^│\n]{0,400}?\.py|<\w{1,40}>):(?P<line>\d{1,7}) in (?P<function>[^\s│]{1,200})"
)
FINAL = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?:\((?P<inner>\w{1,80})\))?(?::"
    r" (?P<message>.{0,4000})|:?\s*$)"
)
EXCEPTION = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Fail(?:ed|ure)?|Fault|Group|Iteration|Abort(?:ed)?|Died"
    r"|Killed|NotFound|Expired|OutOfMemory)$"
)
GLUED = re.compile(
    r"[^\s\]]\]?\s{0,3}(?:\d{1,6}: )?\[[A-Za-z_]{1,40}(?P<local>\d{1,5})\]:\s?(?:\[rank(?P<rank>\d{1,7})\]: ?)?"
    + re.escape(HEADER)
)
"""Behind somebody's progress bar: torchrun's own tag of the process that raised, in the middle of a line."""
BLOCK = "traceback : " + HEADER
"""In torchrun's failure block; what follows is indented by two."""
GROUP = re.compile(r"Exception Group Traceback|\| +Traceback \(most")
MARGIN = re.compile(r"^\s{0,80}(?:\| ?|\+-[-+ \d.]{0,80})")
"""What Python draws before the lines of an exception group."""
HANDLED = re.compile(r"Exception ignored in|--- Logging error ---|(?<!NCCL )\bWARN(?:ING)?\b|(?i:\bretry)")
"""What Python, its logging module and programs write before the traceback of an exception that stops nobody."""
CHAINED = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|<frozen |^<|/torch/distributed/|importlib")

COMMUNICATION = re.compile(
    r"NCCL (?:error|communicator was aborted|watchdog)|ncclInternal|ncclRemote|ncclSystem|ncclUnhandled"
    r"|Watchdog caught collective|gloo/transport|monitoredBarrier|is setting up NCCL communicator"
    r"|store based barrier|wait timeout after|Socket Timeout|TCPStore|waiting for clients\. |The client socket has"
    r"|Connection closed by (?:remote )?peer|Connection reset by peer|Detected mismatch between collectives"
    r"|timed out in (?:blocking wait|call to wait)|Rendezvous\w{1,20}Error|RendezvousTimeout"
)
COMMUNICATION_TYPES = re.compile(
    r"(?:^|\.)(?:Dist\w{0,20}Error|ChildFailedError|Rendezvous\w{1,30}|SignalException|ActorDiedError"
    r"|ActorUnavailableError"
    r"|RayActorError|WorkerCrashedError|RayTaskError|ProcessRaisedException|ProcessExitedException"
    r"|ConnectionResetError|BrokenPipeError|ConnectionRefusedError)$"
)
RUST_OS = re.compile(r"\bOs \{ code: \d{1,3}, kind: ")
"""How safetensors and other libraries in Rust write an errno."""
AFTERMATH = re.compile(
    r"ChildFailedError|SignalException|Actor\w{0,20}Error|WorkerCrashedError|RayTaskError|Process(?:Raised"
    r"|Exited)Exception|BrokenPipeError"
    r"|ConnectionResetError|ConnectionRefusedError|communicator was aborted|Connection (?:closed|reset) by"
    r"|ncclRemoteError|remote process exited"
    r"|Broken pipe|CalledProcessError"
)
LAUNCHER = re.compile(
    r"torch/distributed/(?:launch|run|elastic)|accelerate/commands|deepspeed/launcher|torch/distributed/launcher"
    r"|bin/torchrun"
)


@dataclass(slots=True)
class Raised:
    """One exception of a chain, as far as it could be read."""

    header: Line
    kind: str | None = None
    message: str = ""
    frames: list[str] = field(default_factory=list)
    user: str | None = None
    """The innermost frame that is in no library."""
    launcher: bool = False
    mixed: bool = False
    """Another traceback of an unknown process is woven into it: the frames may be that one's."""


def _add_frame(raised: Raised, found: re.Match[str]) -> None:
    frame = f"{(found['function'] or '?').strip()} {found['file']}:{found['line']}"
    raised.frames.append(frame)
    del raised.frames[:-FRAMES]
    if not LIBRARY.search(found["file"]):
        raised.user = frame
    raised.launcher = raised.launcher or LAUNCHER.search(found["file"]) is not None


def _final(text: str, *, near: bool) -> re.Match[str] | None:
    """The `Type: message` line that ends a traceback. `near`: directly behind a frame, so any class will do."""
    found = FINAL.match(text)
    if not found:
        return None
    last = found["type"].rsplit(".", 1)[-1]
    if last.endswith("Warning") and not near:
        return None  # the warnings module prints such lines by itself, also between those of a traceback
    if EXCEPTION.search(last):
        return found
    if "." in found["type"] and last[:1].isupper():
        return found
    return found if near and last[:1].isupper() and found["message"] is not None else None


def _escaped(raised: Raised, text: str) -> bool:
    """A traceback inside a JSON string, its line ends written as \\n."""
    lines = text.split("\\n")
    if len(lines) < 2:
        return False
    for part in lines[1:400]:
        part = part.replace('\\"', '"')
        if found := FRAME.search(part):
            _add_frame(raised, found)
        elif not part.startswith(" ") and (ended := _final(part.split('"}', 1)[0].rstrip('"'), near=True)):
            raised.kind, raised.message = ended["inner"] or ended["type"], (ended["message"] or "")[:MESSAGE]
    return raised.kind is not None


def _raw(line: Line) -> str:
    return line.raw.decode("utf-8", "backslashreplace")


def _owner(line: Line) -> Line:
    """The line whose tag is the traceback's: the next one, where the header is glued to somebody else's line."""
    tag = line.peeled
    if all(x is None for x in (tag.rank, tag.local_rank, tag.host, tag.task, tag.pid, tag.pod)):
        following = line.after(1)
        if following and not _raw(line).startswith(HEADER) and FRAME.search(following[0].text):
            return following[0]
    if glued := GLUED.search(_raw(line)):
        for other in line.after(SHORTEST):
            own = other.peeled.rank is None or glued["rank"] is None or other.peeled.rank == int(glued["rank"])
            if own and other.peeled.local_rank == int(glued["local"]) and FRAME.search(other.text):
                return other
    return line


def _behind(line: Line) -> Iterator[Line]:
    """The next lines; most tracebacks end within the first few."""
    done = 0
    for most in (SHORTEST, SHORT, LONGEST):
        lines = line.after(most)
        yield from lines[done:]
        if len(lines) < most:
            return
        done = most


def _chain(line: Line) -> list[Raised]:
    """The exceptions from this header on, first raised first; each without `kind` if its end was not found."""
    rich = "─" in line.text
    raw = _raw(line)
    skip = 0 if rich else _open_before(line)
    raised = Raised(line, mixed=skip > 0)
    chain = [raised]
    if "\\n" in raw and _escaped(raised, raw.split(HEADER, 1)[1]):
        return chain
    indent = "  " if BLOCK in raw else ""
    group = GROUP.search(raw) is not None
    near = waiting = False
    owner = _owner(line)
    strangers = 0
    for other in _behind(line):
        if not follows(owner, other):
            continue
        text = other.text.rstrip()
        if group:
            text = MARGIN.sub("", text)
        if HEADER in text:
            if waiting:
                raised = Raised(other)
                chain.append(raised)
                waiting = near = False
                continue
            if raised.kind is not None:
                break
            raised.mixed = True
            strangers += 1
            if len(chain) > 1 or strangers > WOVEN:
                break
            continue
        if any(x in text for x in CHAINED):
            waiting = raised.kind is not None
            continue
        if raised.kind is not None:
            if text.strip(" |+-─╯╰│") and not waiting:
                if _message_goes_on(raised, text):
                    continue
                break
            continue
        if rich:
            if found := RICH_FRAME.match(text):
                _add_frame(raised, found)
            elif text.lstrip().startswith("╰"):
                near = True
            elif text[:1] not in "│|" and (ended := _final(text, near=near)):
                raised.kind, raised.message = ended["inner"] or ended["type"], (ended["message"] or "")[:MESSAGE]
            continue
        if found := FRAME.search(text):
            _add_frame(raised, found)
            near = True
            continue
        body = text.removeprefix(indent)
        if body.startswith((" ", "│", "└", "\t")) or not body:
            continue
        if ended := _final(body.lstrip("| "), near=near):
            if skip:
                skip -= 1
                continue
            if other.unfinished and ended["message"] is None:
                break  # the class may have a longer name
            raised.kind, raised.message = ended["inner"] or ended["type"], (ended["message"] or "")[:MESSAGE]
        near = False
    return chain


def _message_goes_on(raised: Raised, text: str) -> bool:
    """Lines of a message that NCCL or CUDA wrote over several lines; True while they belong to it."""
    if text.startswith(
        ("nccl", "Last error:", "CUDA kernel errors", "For debugging consider", "Compile with", "Search for")
    ):
        if text.startswith("nccl") and len(raised.message) < MESSAGE:
            raised.message = f"{raised.message} {text.strip()}"[:MESSAGE]
        return True
    return False


def _open_before(line: Line) -> int:
    """Headers right before this one whose end has not come yet: tracebacks of unknown processes, woven together."""
    count = 0
    for other in leaders(line, 3, 3):
        if HEADER in other.text and "─" not in other.text:
            count += 1
        else:
            break
    return count


def classify(kind: str, message: str, *, launcher: bool = False) -> tuple[Role, str | None, bool]:
    """(role, cause, does it come from the communication) of an exception by its class and text."""
    name = kind.rsplit(".", 1)[-1]
    text = f"{kind}: {message}"
    if "Detected mismatch between collectives" in message:
        return "symptom", "collective_mismatch", True
    if name in ("KeyboardInterrupt", "SystemExit", "SIGTERMException"):  # the last is Lightning's
        return "consequence", None if name == "SystemExit" else "preempted", False
    if COMMUNICATION_TYPES.search(kind) or COMMUNICATION.search(message) or (launcher and name == "CalledProcessError"):
        return ("consequence" if AFTERMATH.search(text) else "symptom"), None, True
    if "more than 1EB" in message:
        return "consequence", None, False
    if name == "OutOfMemoryError" or "CUDA out of memory" in message:
        return "cause", "cuda_oom", False
    if message.startswith("DataLoader timed out"):
        return "cause", "dataloader_failure", False
    if "DataLoader worker" in message:
        if "exited unexpectedly" in message:
            return "consequence", "dataloader_failure", False
        return "cause", "shm_full" if "Bus error" in message else "dataloader_failure", False
    if (
        "CUDA" in message
        or "cuda" in message
        or name == "AcceleratorError"
        or "GPU is lost" in message
        or "NVMLError" in kind
    ):
        if "GpuIsLost" in kind:
            return "cause", "gpu_off_bus", False
        if cause := cuda_cause(message):
            return "cause", cause, False
    system = (
        name in ("OSError", "IOError", "PermissionError", "FileExistsError")
        or "[Errno " in message
        or RUST_OS.search(message)
    )
    if system and (found := errno_of(message)):
        shm = found[0] == 28 and in_shared_memory(message, None)
        return "cause", "shm_full" if shm else "storage_write_failed", False
    if "inline_container.cc" in message or "PytorchStreamWriter" in message or name == "CheckpointException":
        return "cause", "storage_write_failed", False
    if "in DataLoader worker process" in message:
        return "cause", "dataloader_failure", False
    return "cause", "python_exception", False


def _speaker(line: Line) -> dict[str, Any]:
    """Rank and stamp that the traceback has not itself: torchrun's block, a (RANK r) mark, the logger's line before."""
    raw = _raw(line)
    known = failure_block(line, inside=BLOCK in raw)
    if found := PART.search(raw):
        known |= told_of(int(found["rank"]), line)
    owner = _owner(line)
    if owner is not line:
        tag = owner.peeled
        known = {"rank": tag.rank, "local_rank": tag.local_rank, "host": tag.host, "pid": tag.pid} | known
    before = line.before(1)
    if before and line.stamp is None and follows(before[0], line):
        text = before[0].raw[:400].decode("utf-8", "replace")
        if HEADER not in text and re.search(r"(?i)\b(?:error|critical|fatal|exception)\b", text):
            if before[0].stamp is not None:
                known["stamp"] = before[0].stamp
            if line.rank is None and before[0].rank is not None:
                known.setdefault("rank", before[0].rank)
        if found := re.search(r"-- Process (\d{1,5}) terminated with the following error", text):
            known["local_rank"] = int(found[1])
    return known


def _handled(line: Line) -> bool:
    """Was the exception caught or ignored, by the words of the line before?"""
    return any(HANDLED.search(x.raw[:400].decode("utf-8", "replace")) for x in line.before(1) if follows(x, line))


def event_of(raised: Raised, chain: Sequence[Raised], known: dict[str, Any]) -> Event | None:
    """The event of one exception; None if its class could not be read."""
    if raised.kind is None:
        return None
    role, cause, communication = classify(raised.kind, raised.message, launcher=raised.launcher)
    if raised is not chain[0] and chain[0].kind is not None:
        first_role, first_cause, first_communication = classify(
            chain[0].kind, chain[0].message, launcher=chain[0].launcher
        )
        if role == "cause" and (first_communication or cause == "python_exception"):
            role = "consequence"  # it was raised while the first one was handled
            cause = first_cause
        communication = communication or (first_communication and first_role != "cause")
    if role == "cause" and "Original " + HEADER in _raw(raised.header) and cause == "python_exception":
        cause = "dataloader_failure"
    if role == "cause" and FAILED_ON.search(raised.message):
        role = "consequence"  # every rank raises it, whichever failed
    if role == "cause" and _handled(raised.header):
        role = "context" if cause == "python_exception" else "symptom"
    severity: Severity = "error" if role in ("cause", "symptom") else "warning"
    details: dict[str, Detail] = {
        "type": raised.kind,
        "message": raised.message.strip(),
        "innermost": None if raised.mixed else raised.user or (raised.frames[-1] if raised.frames else None),
        "frames": () if raised.mixed else tuple(raised.frames),
        "communication": communication,
    }
    return raised.header.event("python-exception", role=role, severity=severity, cause=cause, details=details, **known)


@parser(title="Python traceback", literals=[HEADER])
def python_traceback(line: Line) -> Iterator[Event]:
    """The first and the last exception of a chain; those in between are skipped."""
    before = [x.text.strip(" |") for x in leaders(line, 2, 6)]
    if any(chained in text for text in before for chained in CHAINED):
        return  # told with the first of its chain
    if is_data(line.text) or (r"\n" in _raw(line) and is_quoted(line.text, line.text.find(HEADER))):
        return
    chain = _chain(line)
    known = _speaker(line)
    for raised in (chain[0], *chain[-1:]) if len(chain) > 1 else chain:
        event = event_of(raised, chain, known)
        if event is not None:
            yield event
        elif raised is chain[0]:
            yield line.event(
                "python-exception",
                role="context",
                details={
                    "type": None,
                    "message": None,
                    "innermost": None if raised.mixed else raised.user,
                    "frames": () if raised.mixed else tuple(raised.frames),
                    "communication": False,
                },
                **known,
            )


EXTRA = re.compile(
    r"^(?P<type>(?:torch\.(?:\w{1,40}\.){0,4})(?:DistBackendError|DistNetworkError|DistStoreError))"
    r": (?P<message>.{1,4000})"
)


@parser(
    title="PyTorch's exceptions without a traceback",
    literals=["DistBackendError: ", "DistNetworkError: ", "DistStoreError: "],
)
def bare_exception(line: Line) -> Iterator[Event]:
    """Logs that keep only the last line; where the traceback is there, this line is left to it."""
    found = EXTRA.match(line.text)
    if not found:
        return
    if any(x.text.startswith("  ") or HEADER in x.text for x in leaders(line, 1, BLOCK_REACH)):
        return
    role, cause, communication = classify(found["type"], found["message"])
    yield line.event(
        "python-exception",
        role=role,
        severity="error",
        cause=cause,
        details={
            "type": found["type"],
            "message": found["message"][:MESSAGE].strip(),
            "innermost": None,
            "frames": (),
            "communication": communication,
        },
    )
