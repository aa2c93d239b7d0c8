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

from ._exceptions import NO_SPACE, Judged, classify
from ._lines import BLOCK_REACH, PART, failure_block, follows, is_data, is_quoted, leaders, told_of
from .storage import FAILED_ON, SHARED_MEMORY_CODE, errno_of

HEADER = "Traceback (most recent call last)"
LONGEST = 600
"""Physical lines behind a header that are looked through, other processes' among them; our judgement."""
SHORTEST, SHORT = 16, 80
WOVEN = 16
"""Tracebacks of unknown processes between this one's lines, beyond which it is given up; our judgement."""
FRAMES = 12
MESSAGE = 500
COLLECTIVE_CALL = re.compile(
    r"\b(?:dist|distributed|torch\.distributed|c10d|pg|process_group|group|comm|hvd|mpi_comm)\."
    r"(?:monitored_barrier|barrier|all_?reduce\w*|all_?gather\w*|reduce_?scatter\w*|all_?to_?all\w*|broadcast\w*|gather\w*"
    r"|scatter\w*|reduce|recv|send|irecv|isend)\("
)
"""A collective, or a message between ranks, in the words of PyTorch, Horovod and MPI."""
OF_ARGUMENTS = frozenset({"TypeError", "AttributeError", "KeyError", "IndexError", "NameError", "UnboundLocalError"})
INNERMOST = 3
"""Frames in which what was made is told; those outside only asked for it. Our judgement."""

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
SAYS_ERROR = re.compile(r"(?i)\b(?:error|critical|fatal|exception)\b")
SPAWNED = re.compile(r"-- Process (\d{1,5}) terminated with the following error")
GOES_ON = ("nccl", "Last error:", "CUDA kernel errors", "For debugging consider", "Compile with", "Search for")
CHAINED = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|<frozen |^<|/torch/distributed/|importlib")

LAUNCHER = re.compile(
    r"torch/distributed/(?:launch|run|elastic)|accelerate/commands|deepspeed/launcher|torch/distributed/launcher"
    r"|bin/torchrun"
)


def frame_of(found: re.Match[str]) -> str:
    """'function file:line' of a match of `FRAME`."""
    return f"{(found['function'] or '?').strip()} {found['file']}:{found['line']}"


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
    source: str = ""
    """The line of source code below the innermost frame."""
    mixed: bool = False
    """Another traceback of an unknown process is woven into it: the frames may be that one's."""

    def called(self, found: re.Match[str]) -> None:
        """One more frame, inside those before."""
        frame = frame_of(found)
        self.frames.append(frame)
        self.source = ""
        del self.frames[:-FRAMES]
        if not LIBRARY.search(found["file"]):
            self.user = frame
        self.launcher = self.launcher or LAUNCHER.search(found["file"]) is not None

    def ended(self, found: re.Match[str]) -> None:
        """Its last line: class and message."""
        self.kind, self.message = found["inner"] or found["type"], (found["message"] or "")[:MESSAGE]

    def goes_on(self, text: str) -> bool:
        """Lines of a message that NCCL or CUDA wrote over several lines; True while they belong to it."""
        if not text.startswith(GOES_ON):
            return False
        if text.startswith("nccl") and len(self.message) < MESSAGE:
            self.message = f"{self.message} {text.strip()}"[:MESSAGE]
        return True

    def judged(self) -> Judged:
        own = classify(self.kind or "", self.message, launcher=self.launcher)
        in_shm = own.cause == "storage_write_failed" and any(
            code in frame for frame in self.frames[-INNERMOST:] for code in SHARED_MEMORY_CODE
        )
        if own == Judged("cause", "python_exception") and self._waited_for_others():
            return Judged("symptom", None, True)
        no_space = (errno_of(self.message) or (0, ""))[0] == NO_SPACE
        return own._replace(cause="shm_full") if in_shm and no_space else own

    def _waited_for_others(self) -> bool:
        """Did the call of a collective itself raise? What is wrong with its arguments is the program's own."""
        if self.mixed or (self.kind or "").rsplit(".", 1)[-1] in OF_ARGUMENTS:
            return False
        return COLLECTIVE_CALL.search(self.source) is not None

    def details(self, *, innermost: str | None, communication: bool) -> dict[str, Detail]:
        return {
            "type": self.kind,
            "message": self.message.strip() if self.kind is not None else None,
            "innermost": None if self.mixed else innermost,
            "frames": () if self.mixed else tuple(self.frames),
            "communication": communication,
        }


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
            raised.called(found)
        elif not part.startswith(" ") and (ended := _final(part.split('"}', 1)[0].rstrip('"'), near=True)):
            raised.ended(ended)
    return raised.kind is not None


def _chains(text: str) -> bool:
    """Whether the line links two exceptions."""
    return "above exception" in text and any(x in text for x in CHAINED)


def _raw(line: Line) -> str:
    return line.raw.decode("utf-8", "backslashreplace")


def _owner(line: Line) -> Line:
    """The line whose tag is the traceback's: the next one, where the header is glued to somebody else's line."""
    raw, tag = _raw(line), line.peeled
    tagged = any(x is not None for x in (tag.rank, tag.local_rank, tag.host, tag.task, tag.pid, tag.pod))
    if not tagged and not raw.startswith(HEADER):
        following = line.after(1)
        if following and FRAME.search(following[0].text):
            return following[0]
    glued = GLUED.search(raw)
    return (glued and _owner_of_glued(line, glued)) or line


def _owner_of_glued(line: Line, glued: re.Match[str]) -> Line | None:
    """The first frame of the process whose tag stands in the middle of the line."""
    for other in line.after(SHORTEST):
        rank, local_rank = other.peeled.rank, other.peeled.local_rank
        own = rank is None or glued["rank"] is None or rank == int(glued["rank"])
        if own and local_rank == int(glued["local"]) and FRAME.search(other.text):
            return other
    return None


def _behind(line: Line) -> Iterator[Line]:
    """The next lines; most tracebacks end within the first few."""
    done = 0
    for most in (SHORTEST, SHORT, LONGEST):
        lines = line.after(most)
        yield from lines[done:]
        if len(lines) < most:
            return
        done = most


@dataclass(slots=True)
class _Chain:
    """The exceptions from one header on, while the lines behind it go by."""

    exceptions: list[Raised]
    """First raised first; each without `kind` if its end was not found."""
    rich: bool
    """Drawn by rich, in a box."""
    indent: str
    skip: int
    """Ends of other tracebacks, whose headers stand right before this one's, that come before its own."""
    near: bool = False
    """The line before was a frame."""
    waiting: bool = False
    """The header of the next exception must come, for one of `CHAINED` stood here."""
    strangers: int = 0
    """Headers of unknown processes since."""

    @property
    def newest(self) -> Raised:
        return self.exceptions[-1]

    def take(self, line: Line, text: str) -> bool:
        """Reads one more line of the same process; False if nothing of the chain comes behind it."""
        newest = self.newest
        if HEADER in text:
            return self._header(line)
        if _chains(text):
            self.waiting = newest.kind is not None
        elif newest.kind is not None:
            drawn = not text.strip(" |+-─╯╰│")
            return drawn or self.waiting or newest.goes_on(text)
        elif self.rich:
            self._in_a_box(text)
        elif found := FRAME.search(text):
            newest.called(found)
            self.near = True
        else:
            return self._beside_frames(line, text)
        return True

    def _header(self, line: Line) -> bool:
        """That of the next exception, or of somebody else's."""
        if self.waiting:
            self.exceptions.append(Raised(line))
            self.waiting = self.near = False
            return True
        if self.newest.kind is not None:
            return False
        self.newest.mixed = True
        self.strangers += 1
        return len(self.exceptions) == 1 and self.strangers <= WOVEN

    def _in_a_box(self, text: str) -> None:
        if found := RICH_FRAME.match(text):
            self.newest.called(found)
        elif text.lstrip().startswith("╰"):
            self.near = True
        elif text[:1] not in "│|" and (ended := _final(text, near=self.near)):
            self.newest.ended(ended)

    def _beside_frames(self, line: Line, text: str) -> bool:
        """A line of source code, the exception's class and message, or somebody's words in between."""
        body = text.removeprefix(self.indent)
        if not body or body.startswith((" ", "│", "└", "\t")):
            if self.near and not self.newest.source:
                self.newest.source = body.strip()
            return True
        ended = _final(body.lstrip("| "), near=self.near)
        if ended and self.skip:
            self.skip -= 1
            return True
        if ended and line.unfinished and ended["message"] is None:
            return False  # the class may have a longer name
        if ended:
            self.newest.ended(ended)
        self.near = False
        return True


def _chain(line: Line) -> list[Raised]:
    """The exceptions from this header on, first raised first; each without `kind` if its end was not found."""
    raw, rich = _raw(line), "─" in line.text
    skip = 0 if rich else _open_before(line)
    raised = Raised(line, mixed=skip > 0)
    if "\\n" in raw and _escaped(raised, raw.split(HEADER, 1)[1]):
        return [raised]
    chain = _Chain([raised], rich, "  " if BLOCK in raw else "", skip)
    group = GROUP.search(raw) is not None
    owner = _owner(line)
    for other in _behind(line):
        if not follows(owner, other):
            continue
        text = other.text.rstrip()
        if not chain.take(other, MARGIN.sub("", text) if group else text):
            break
    return chain.exceptions


def _open_before(line: Line) -> int:
    """Headers right before this one whose end has not come yet: tracebacks of unknown processes, woven together."""
    count = 0
    for other in leaders(line, 3, 3):
        if HEADER in other.text and "─" not in other.text:
            count += 1
        else:
            break
    return count


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
        return {**_announced(line, before[0]), **known, **_spawned(before[0])}
    return known


def _announced(line: Line, before: Line) -> dict[str, Any]:
    """What the logger's line before knows, if it is one of an error."""
    text = before.raw[:400].decode("utf-8", "replace")
    if HEADER in text or not SAYS_ERROR.search(text):
        return {}
    known = {"stamp": before.stamp, "rank": before.rank if line.rank is None else None}
    return {k: v for k, v in known.items() if v is not None}


def _spawned(before: Line) -> dict[str, Any]:
    """torch.multiprocessing says above a traceback whose it is."""
    found = SPAWNED.search(before.raw[:400].decode("utf-8", "replace"))
    return {"local_rank": int(found[1])} if found else {}


def _handled(line: Line) -> bool:
    """Was the exception caught or ignored, by the words of the line before?"""
    return any(HANDLED.search(x.raw[:400].decode("utf-8", "replace")) for x in line.before(1) if follows(x, line))


def _judged(raised: Raised, first: Raised) -> Judged:
    """What the exception speaks for; one that was raised while the first one was handled only follows it."""
    own = raised.judged()
    if raised is first or first.kind is None:
        return own
    its = first.judged()
    communication = own.communication or (its.communication and its.role != "cause")
    if own.role == "cause" and (its.communication or own.cause == "python_exception"):
        return Judged("consequence", its.cause, communication)
    return own._replace(communication=communication)


def _in_its_place(judged: Judged, raised: Raised) -> Judged:
    """A cause may be none where it was raised, or be another one."""
    if judged.role != "cause":
        return judged
    cause = judged.cause
    if cause == "python_exception" and "Original " + HEADER in _raw(raised.header):
        cause = "dataloader_failure"
    role: Role = "cause"
    if FAILED_ON.search(raised.message):
        role = "consequence"  # every rank raises it, whichever failed
    elif _handled(raised.header):
        role = "context" if cause == "python_exception" else "symptom"
    return judged._replace(role=role, cause=cause)


def event_of(raised: Raised, chain: Sequence[Raised], known: dict[str, Any]) -> Event | None:
    """The event of one exception; None if its class could not be read."""
    if raised.kind is None:
        return None
    role, cause, communication = _in_its_place(_judged(raised, chain[0]), raised)
    severity: Severity = "error" if role in ("cause", "symptom") else "warning"
    innermost = raised.user or (raised.frames[-1] if raised.frames else None)
    details = raised.details(innermost=innermost, communication=communication)
    return raised.header.event("python-exception", role=role, severity=severity, cause=cause, details=details, **known)


def _is_elsewhere(line: Line) -> bool:
    """Whether the traceback goes on with one above, with whose header it is told, or is a quotation."""
    before = [x.text.strip(" |") for x in leaders(line, 2, 6)]
    if any(map(_chains, before)):
        return True
    return is_data(line.text) or (r"\n" in _raw(line) and is_quoted(line.text, line.text.find(HEADER)))


@parser(title="Python traceback", literals=[HEADER])
def python_traceback(line: Line) -> Iterator[Event]:
    """The first and the last exception of a chain; those in between are skipped."""
    if _is_elsewhere(line):
        return
    chain = _chain(line)
    known = _speaker(line)
    first, last = chain[0], chain[-1]
    for raised in (first,) if first is last else (first, last):
        if event := event_of(raised, chain, known):
            yield event
        elif raised is first:
            details = first.details(innermost=first.user, communication=False)
            yield line.event("python-exception", role="context", details=details, **known)


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
