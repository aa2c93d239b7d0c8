"""error.json, which torch.distributed.elastic's @record leaves for each child that raised.

Written by torch/distributed/elastic/multiprocessing/errors/error_handler.py. Time: unix seconds, the best clock that a
job's logs have. The path holds attempt and local rank: .../attempt_0/3/error.json. Example:

{"message": {"message": "RuntimeError: ...", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1795963542"}}}

Up to PyTorch 1.10 the child wrote the same to its log, over several lines (`error_handler: {`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import Stream, file_parser, parser
from nccl_forensics.model import Detail, Event, Evidence, Problem, Stamp
from nccl_forensics.text.visible import visible

from ._exceptions import classify
from ._lines import followers, is_quoted
from .python_traceback import FRAME, FRAMES, LIBRARY, MESSAGE, frame_of

LARGEST = 4 << 20
"""Bytes that are read; real ones have a few thousand."""
PLACE = re.compile(r"attempt_(?P<attempt>\d{1,6})/(?P<local>\d{1,5})/[^/]{0,200}$")
STAMP = re.compile(r'"timestamp": ?"?(\d{9,11})\b')
TEXT = re.compile(r'"message": ?"((?:[^"\\]|\\.){1,4000})')


def claims(head: bytes, name: str) -> bool:
    start = head.lstrip()[:400]
    return start.startswith(b"{") and b'"message"' in start and (name.endswith("error.json") or b'"extraInfo"' in head)


class _Contents(NamedTuple):
    """What the file holds."""

    message: str = ""
    stack: str = ""
    seconds: int | None = None
    """Since 1970."""
    whole: bool = True


def _read(text: str) -> _Contents:
    """Also of a file that was cut."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return _of_a_part(text)
    body = data.get("message") if isinstance(data, dict) else None
    if isinstance(body, str):
        return _Contents(body)
    if not isinstance(body, dict):
        return _Contents(whole=False)
    extra = body.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack, seconds = extra.get("py_callstack"), str(extra.get("timestamp") or "")
    return _Contents(
        str(body.get("message") or ""),
        stack if isinstance(stack, str) else "",
        int(seconds) if re.fullmatch(r"\d{9,11}", seconds) else None,
    )


def _of_a_part(text: str) -> _Contents:
    found, stamp = TEXT.search(text), STAMP.search(text)
    return _Contents(
        found[1] if found else "",
        text.replace("\\n", "\n").replace('\\"', '"'),
        int(stamp[1]) if stamp else None,
        whole=False,
    )


def _kind_and_text(message: str) -> tuple[str, str]:
    """Class and text of 'RuntimeError: ...'; where no class stands before it, it is an Exception."""
    kind, colon, text = message.partition(": ")
    return (kind, text) if colon and re.fullmatch(r"[\w.]{1,200}", kind) else ("Exception", message)


def _frames(stack: str) -> dict[str, Detail]:
    """`innermost`, in no library if there is such a frame, and the newest `frames`."""
    found = list(FRAME.finditer(stack[-200_000:]))
    frames = [frame_of(x) for x in found]
    own = [frame for frame, x in zip(frames, found, strict=True) if not LIBRARY.search(x["file"])]
    innermost = own[-1] if own else frames[-1] if frames else None
    return {"innermost": innermost, "frames": tuple(frames[-FRAMES:])}


@file_parser(title="torchrun error.json", claims=claims)
def error_json(stream: Stream) -> Iterator[Event | Problem]:
    error = _read(stream.stream.read(LARGEST).decode("utf-8", "replace"))
    if not error.whole:
        yield Problem(says="error.json is cut or no JSON; what is left of it was used", source=stream.path)
    if not error.message:
        return
    kind, text = _kind_and_text(error.message)
    role, cause, communication = classify(kind, text)
    place = PLACE.search(stream.path.replace("\\", "/"))
    yield Event(
        kind="python-exception",
        role=role,
        severity="error" if role in ("cause", "symptom") else "warning",
        cause=cause,
        evidence=Evidence(source=stream.path, line=1, text=visible(error.message)),
        stamp=Stamp(wall_ns=error.seconds * 10**9, zone_s=0) if error.seconds is not None else None,
        local_rank=int(place["local"]) if place else None,
        attempt=int(place["attempt"]) if place else None,
        details={
            "type": kind,
            "message": text.strip()[:MESSAGE],
            **_frames(error.stack),
            "communication": communication,
        },
    )


IN_LOG = "error_handler: {"
MOST_LINES = 40
"""Lines of one such record: it has seven. Our judgement."""


@parser(title="torchelastic: a child's error in its log", literals=[IN_LOG])
def error_in_log(line: Line) -> Iterator[Event]:
    """The rank is the line's; the moment is that in the record."""
    at = line.text.find(IN_LOG)
    if at < 0 or is_quoted(line.text, at):
        return
    parts = [line.text[at + len(IN_LOG) - 1 :]]
    for other in followers(line, MOST_LINES):
        parts.append(other.text)
        if other.text.rstrip() == "}":
            break
    error = _read("\n".join(parts))
    if not error.message:
        return
    kind, text = _kind_and_text(error.message)
    role, cause, communication = classify(kind, text)
    yield line.event(
        "python-exception",
        role=role,
        severity="error" if role in ("cause", "symptom") else "warning",
        cause=cause,
        stamp=Stamp(wall_ns=error.seconds * 10**9, zone_s=0) if error.seconds is not None else line.stamp,
        details={
            "type": kind,
            "message": text.strip()[:MESSAGE],
            **_frames(error.stack),
            "communication": communication,
        },
    )
