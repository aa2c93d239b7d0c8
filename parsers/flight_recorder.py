"""PyTorch's Flight Recorder: the ring of newest collectives of one process, as pickle or JSON.

Written by torch/csrc/distributed/c10d (FlightRecorder.hpp, NCCLUtils.cpp before 2.8) of torch 2.2 and newer, and by
NVIDIA's resiliency extension (`_dump_<rank>.json`). Times: `time_created_ns` and the discovery times are epoch
nanoseconds (UTC) of the rank's host; torch 2.2 has microseconds.
Shapes: torch 2.2 writes a bare list of entries; 2.3 ("1.4") `pg_config` = {int: [ranks]} and one `seq_id`; 2.4 ("2.1")
and newer {name: {name, desc, ranks}} with the ranks as a string; 2.5 ("2.4") adds `pg_status`. The rank is not in it.
"""

from __future__ import annotations

import gc
import json
import pickle
import re
import threading
from collections.abc import Iterator
from typing import Any

from nccl_forensics.lines.plugins import Stream, file_parser
from nccl_forensics.model import Problem
from nccl_forensics.recorder import unpickle

ENTRY_KEYS = (b"profiling_name", b"collective_seq_id", b"pg_id", b"record_id", b"time_created")
HEAD_KEYS = (b"pg_config", b"pg_status", b"nccl_comm_state", b"comm_lib_version", b"nccl_version", b'"entries"')
FIRST_OPCODES = (b"}", b"]", b"c", b"\x95", b"(", b")", b"\x8a", b"X")
NAME = re.compile(
    r"(?:nccl_trace|comm_lib_trace|fr_trace|hccl_trace|xccl_trace|_dump_?\d|flight_?record)", re.IGNORECASE
)
DIGITS = re.compile(r"(\d{1,7})(?:\.(?:json|pickle|pkl|bin|trace|txt|gz|zst|xz|bz2))*\Z", re.IGNORECASE)


def claims(head: bytes, name: str) -> bool:
    """Any pickle of protocol 2 to 5 (a foreign one gets a reason), and JSON that begins as a dump does."""
    if not head:
        return bool(NAME.search(name)) and bool(DIGITS.search(name))
    return _is_pickle(head) or _is_json(head)


def _is_pickle(head: bytes) -> bool:
    return head[:1] == b"\x80" and len(head) > 2 and 2 <= head[1] <= 5 and head[2:3] in FIRST_OPCODES


def _is_json(head: bytes) -> bool:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"{":
        outermost = b'"entries"' in head or b'"nccl_comm_state"' in head
        return b'"pg_config"' in head or (outermost and any(key in head for key in ENTRY_KEYS + HEAD_KEYS[:5]))
    return start == b"[" and b'"profiling_name"' in head and b'"pg_id"' in head


def rank_of_name(name: str) -> int | None:
    """Trailing digits of a file name: `nccl_trace_rank_node02_5`, `_dump_12`, `comm_lib_trace_rank_3.json`."""
    found = DIGITS.search(name)
    return int(found[1]) if found else None


@file_parser(title="PyTorch Flight Recorder dump", claims=claims)
def flight_recorder(file: Stream) -> Iterator[Any]:
    """A `dumps.Dump`, and a Problem for all that was amiss with the file. Never raises for what is in it."""
    data = file.stream.read(unpickle.LARGEST + 1)
    if not data:
        yield Problem(says="an empty Flight Recorder dump: the rank was stopped while it wrote", source=file.path)
        return
    if len(data) > unpickle.LARGEST:
        yield Problem(
            says=f"a pickle or JSON dump of more than {unpickle.LARGEST >> 20} MiB was not read", source=file.path
        )
        return
    yield from _decoded(data, file)


_one_at_a_time = threading.Lock()
"""Decoding keeps the interpreter to itself: threads that shared it would only disturb each other."""


def _decoded(data: bytes, file: Stream) -> list[Any]:
    with _one_at_a_time:
        was_on = gc.isenabled()
        gc.disable()  # a dump is 100,000 small objects without cycles: the collector would walk over them again
        try:
            pickled = data[:1] == b"\x80"
            if pickled and (found := _regular(data, file)) is not None:
                return found
            content, reason = _unpickled(data) if pickled else _from_json(data)
            return list(_dump(content, reason, pickled, file))
        finally:
            if was_on:
                gc.enable()


def _dump(content: Any, reason: str | None, pickled: bool, file: Stream) -> Iterator[Any]:
    from nccl_forensics.recorder import dumps  # numpy: 0.1 s that other piles need not pay

    what = "pickle" if pickled else "JSON file"
    if not _is_dump(content):
        if reason is None or content is not None:
            yield Problem(says=f"a {what}, but not a Flight Recorder dump", source=file.path)
        else:
            yield Problem(says=f"nothing could be read of this {what}: {reason}", source=file.path)
        return
    try:
        dump, problems = dumps.dump_of(
            content,
            path=file.path,
            form="pickle" if pickled else "json",
            name_rank=rank_of_name(file.name),
            partial=reason is not None,
            mtime_ns=file.mtime_ns,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        yield Problem(says=f"this Flight Recorder dump makes no sense ({type(error).__name__})", source=file.path)
        return
    if reason is not None:
        says = f"the dump is damaged ({reason}); {dump.count} whole entries before that were read"
        yield Problem(says=says, source=file.path)
    yield from problems
    yield dump


def _regular(data: bytes, file: Stream) -> list[Any] | None:
    """What `_dump` gives, several times as fast, for what PyTorch's own pickler wrote; None: it is something else."""
    if unpickle.ENTRIES not in data:
        return None
    from nccl_forensics.recorder import columns, dumps

    table = columns.read(data)
    if table is None or type(table.head.get("pg_config")) is not dict:
        return None
    rank = rank_of_name(file.name)
    try:
        dump, problems = dumps.dump_of(table, path=file.path, form="pickle", name_rank=rank, mtime_ns=file.mtime_ns)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError, MemoryError):
        return None
    return [*problems, dump]


def _is_dump(content: Any) -> bool:
    if type(content) is dict:
        entries = content.get("entries")
        if type(entries) is list and any(type(x) is dict for x in entries[:1]):
            return _is_entry(entries[0])
        return type(content.get("pg_config")) is dict and ("version" in content or "pg_status" in content)
    return type(content) is list and bool(content) and type(content[0]) is dict and _is_entry(content[0])


def _is_entry(entry: dict[Any, Any]) -> bool:
    return "profiling_name" in entry or ("collective_seq_id" in entry and "pg_id" in entry)


def _unpickled(data: bytes) -> tuple[Any, str | None]:
    """(content, None), or what could be salvaged and the reason."""
    try:
        return unpickle.loads(data), None
    except unpickle.Refused as error:
        reason, end = str(error), error.at
        if reason == "cut":
            reason = f"cut after {len(data):,} bytes"
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError) as error:
        reason, end = f"no sense in it: {type(error).__name__}", len(data)
    except (MemoryError, RecursionError, OverflowError) as error:
        return None, f"it asks for more than a dump can need: {type(error).__name__}"
    return unpickle.salvage(data, end) if end else None, reason


def _from_json(data: bytes) -> tuple[Any, str | None]:
    text = data.decode("utf-8-sig", "replace")
    try:
        return json.loads(text), None
    except json.JSONDecodeError as error:
        reason = f"JSON cut or broken at character {error.pos:,}"
    except (ValueError, RecursionError, MemoryError) as error:
        return None, f"JSON that a dump never has: {type(error).__name__}"
    try:
        return _whole_values(text), reason
    except (ValueError, RecursionError, MemoryError):
        return None, reason


_SPACE = re.compile(r"[ \t\r\n]*")


def _whole_values(text: str) -> Any:
    """The members of an outermost JSON object, and the elements of its `entries`, that stand whole before a cut."""
    decode = json.JSONDecoder().raw_decode
    found: dict[str, Any] = {}

    def skip(at: int) -> int:
        hit = _SPACE.match(text, at)
        return hit.end() if hit else at

    def elements(at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = skip(at)
        while at < len(text) and text[at] != "]":
            try:
                value, at = decode(text, at)
            except json.JSONDecodeError:
                return values, len(text)
            values.append(value)
            at = skip(at)
            if text[at : at + 1] == ",":
                at = skip(at + 1)
        return values, at + 1

    at = skip(0)
    if text[at : at + 1] == "[":
        return elements(at + 1)[0]
    at = skip(at + 1)
    while text[at : at + 1] == '"':
        try:
            key, at = decode(text, at)
            at = skip(at)
            if text[at : at + 1] != ":":
                break
            at = skip(at + 1)
            if key == "entries" and text[at : at + 1] == "[":
                found[key], at = elements(at + 1)
            else:
                found[key], at = decode(text, at)
        except json.JSONDecodeError:
            break
        at = skip(at)
        if text[at : at + 1] != ",":
            break
        at = skip(at + 1)
    return found
