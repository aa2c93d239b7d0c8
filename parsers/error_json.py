"""error.json, which torch.distributed.elastic's @record leaves for each child that raised.

Written by torch/distributed/elastic/multiprocessing/errors/error_handler.py. Time: unix seconds, the best clock that a
job's logs have. The path holds attempt and local rank: .../attempt_0/3/error.json. Example:

{"message": {"message": "RuntimeError: ...", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1795963542"}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from nccl_forensics.lines.plugins import Stream, file_parser
from nccl_forensics.model import Detail, Event, Evidence, Problem, Stamp
from nccl_forensics.text.visible import visible

from .python_traceback import FRAME, FRAMES, LIBRARY, MESSAGE, classify

LARGEST = 4 << 20
"""Bytes that are read; real ones have a few thousand."""
PLACE = re.compile(r"attempt_(?P<attempt>\d{1,6})/(?P<local>\d{1,5})/[^/]{0,200}$")
STAMP = re.compile(r'"timestamp": ?"?(\d{9,11})\b')
TEXT = re.compile(r'"message": ?"((?:[^"\\]|\\.){1,4000})')


def claims(head: bytes, name: str) -> bool:
    start = head.lstrip()[:400]
    return start.startswith(b"{") and b'"message"' in start and (name.endswith("error.json") or b'"extraInfo"' in head)


def _read(text: str) -> tuple[str, str, int | None, bool]:
    """(message, call stack, unix seconds, whole?) also of a file that was cut."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        found, stamp = TEXT.search(text), STAMP.search(text)
        return (
            (found[1] if found else ""),
            text.replace("\\n", "\n").replace('\\"', '"'),
            int(stamp[1]) if stamp else None,
            False,
        )
    body = data.get("message") if isinstance(data, dict) else None
    if isinstance(body, str):
        return body, "", None, True
    if not isinstance(body, dict):
        return "", "", None, False
    extra = body.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack, seconds = extra.get("py_callstack"), str(extra.get("timestamp") or "")
    return (
        str(body.get("message") or ""),
        stack if isinstance(stack, str) else "",
        int(seconds) if re.fullmatch(r"\d{9,11}", seconds) else None,
        True,
    )


@file_parser(title="torchrun error.json", claims=claims)
def error_json(stream: Stream) -> Iterator[Event | Problem]:
    raw = stream.stream.read(LARGEST)
    message, stack, seconds, whole = _read(raw.decode("utf-8", "replace"))
    if not whole:
        yield Problem(says="error.json is cut or no JSON; what is left of it was used", source=stream.path)
    if not message:
        return
    frames = [
        (f"{(found['function'] or '?').strip()} {found['file']}:{found['line']}", found["file"])
        for found in FRAME.finditer(stack[-200_000:])
    ]
    kind, colon, text = message.partition(": ")
    if not colon or not re.fullmatch(r"[\w.]{1,200}", kind):
        kind, text = "Exception", message
    role, cause, communication = classify(kind, text)
    user = [frame for frame, file in frames if not LIBRARY.search(file)]
    place = PLACE.search(stream.path.replace("\\", "/"))
    details: dict[str, Detail] = {
        "type": kind,
        "message": text.strip()[:MESSAGE],
        "innermost": user[-1] if user else frames[-1][0] if frames else None,
        "frames": tuple(frame for frame, _ in frames[-FRAMES:]),
        "communication": communication,
    }
    yield Event(
        kind="python-exception",
        role=role,
        severity="error" if role in ("cause", "symptom") else "warning",
        cause=cause,
        evidence=Evidence(source=stream.path, line=1, text=visible(message)),
        stamp=Stamp(wall_ns=seconds * 10**9, zone_s=0) if seconds is not None else None,
        local_rank=int(place["local"]) if place else None,
        attempt=int(place["attempt"]) if place else None,
        details=details,
    )
