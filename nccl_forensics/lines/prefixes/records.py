"""Messages inside records: JSON lines, the journal's JSON, export and verbose forms.

Shapes: systemd logs-show.c.
"""

from __future__ import annotations

import json
import re
from typing import Any

from nccl_forensics.lines import stamps
from nccl_forensics.lines.prefixes.peeled import RECORD, Peeled, give
from nccl_forensics.lines.window import RawLine
from nccl_forensics.model import Stamp

_MESSAGE_KEYS = ("MESSAGE", "log", "msg", "message", "event", "textPayload", "line", "text")
_TIME_KEYS = ("time", "timestamp", "@timestamp", "ts", "asctime", "date", "created")
_SURE_KEYS = frozenset(("MESSAGE", "log", "msg", "message", "textPayload"))
"""Keys that only loggers use; samples of training data have a `text` or `line` too, but neither time nor level."""
_LOG_KEYS = frozenset(
    (*_TIME_KEYS, "level", "levelname", "severity", "stream", "logger", "rank", "__REALTIME_TIMESTAMP")
)
_JSON_MESSAGE = re.compile(r'"(?:log|MESSAGE|msg|message)" ?: ?"((?:[^"\\]|\\.){1,16000})')
_JSON_TIME = re.compile(r'"(?:time|timestamp|@timestamp|ts)" ?: ?"([^"]{10,40})"')


def _number(value: object) -> int | None:
    """A whole number written as digits or as a number; None for all else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 1 << 63 else None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        return int(value)
    return None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 255 else None


def _message(value: object) -> str | None:
    """A journal's MESSAGE: text, bytes as numbers, or several values of either kind."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    if (text := _bytes(value)) is not None:
        return text
    return "\n".join(text for x in value[:64] if (text := x if isinstance(x, str) else _bytes(x)) is not None) or None


def _bytes(value: object) -> str | None:
    """Text that the journal writes as a list of byte values, because it is not UTF-8."""
    if not isinstance(value, list) or not all(isinstance(x, int) and 0 <= x < 256 for x in value):
        return None
    return bytes(value).decode("utf-8", "backslashreplace")


def _journal(fields: dict[str, Any], peeled: Peeled) -> None:
    """Time and identity of one journal record.

    `__REALTIME_TIMESTAMP` and `__MONOTONIC_TIMESTAMP` are the journal's receipt, `_SOURCE_MONOTONIC_TIMESTAMP` is
    printk's time (µs all): the wall time of the message is the receipt minus the delay between the monotonic ones.
    """
    received = _number(fields.get("__REALTIME_TIMESTAMP"))
    if received is not None:
        printk_us = _number(fields.get("_SOURCE_MONOTONIC_TIMESTAMP"))
        monotonic_us = _number(fields.get("__MONOTONIC_TIMESTAMP"))
        happened = _number(fields.get("_SOURCE_REALTIME_TIMESTAMP")) or received
        if printk_us is not None and monotonic_us is not None and 0 <= monotonic_us - printk_us < 600_000_000:
            happened = received - (monotonic_us - printk_us)
        boot_ns = None if printk_us is None else printk_us * 1000
        boot_id = _word(fields.get("_BOOT_ID"))
        give(peeled, Stamp(wall_ns=happened * 1000, zone_s=0, boot_ns=boot_ns, resolution_ns=1000, boot_id=boot_id))
    peeled.host = _word(fields.get("_HOSTNAME")) or peeled.host
    peeled.program = _word(fields.get("SYSLOG_IDENTIFIER")) or _word(fields.get("_COMM")) or peeled.program
    peeled.pid = _number(fields.get("_PID")) or _number(fields.get("SYSLOG_PID")) or peeled.pid
    peeled.boot_id = _word(fields.get("_BOOT_ID")) or peeled.boot_id
    peeled.pod = _word(fields.get("CONTAINER_NAME")) or peeled.pod
    peeled.final = peeled.program == "kernel"


def _json_fields(fields: dict[str, Any], raw: str, peeled: Peeled) -> str | None:
    """One JSON object as a log line: docker, fluent-bit, the journal, or a program's own JSON logger."""
    text = _json_text(fields)
    if "__REALTIME_TIMESTAMP" in fields:
        _journal(fields, peeled)
        if text is None:
            peeled.final = True
            return raw
        return text
    if text is None:
        return None
    for key in _TIME_KEYS:
        if (stamp := stamps.epoch(fields.get(key))) is not None:
            give(peeled, stamp)
            break
    _writer(fields, peeled)
    return text.rstrip("\r\n")


def _json_text(fields: dict[str, Any]) -> str | None:
    """The message in a JSON object; None if it has none, or looks like no log."""
    for key in _MESSAGE_KEYS:
        if key in fields and (text := _message(fields[key])) is not None and (key in _SURE_KEYS or _is_log(fields)):
            return text
    return None


def _writer(fields: dict[str, Any], peeled: Peeled) -> None:
    """Who wrote it, by a logger's own fields and those that Kubernetes' collectors add."""
    rank, local, pid = (_number(fields.get(key)) for key in ("rank", "local_rank", "pid"))
    peeled.rank = rank if rank is not None else peeled.rank
    peeled.local_rank = local if local is not None else peeled.local_rank
    peeled.pid = pid if pid is not None else peeled.pid
    peeled.host = _word(fields.get("host")) or _word(fields.get("hostname")) or peeled.host
    pods = fields.get("kubernetes")
    if isinstance(pods, dict):
        peeled.pod = _word(pods.get("pod_name")) or peeled.pod
        peeled.host = _word(pods.get("host")) or peeled.host


def _is_log(fields: dict[str, Any]) -> bool:
    return not _LOG_KEYS.isdisjoint(fields)


def _loads(text: str | bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_record(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`{"log": …, "time": …}`, journalctl -o json, JSON loggers; a cut object gives what can be read of it."""
    fields = _loads(text.rstrip(" ,"))
    if fields is not None:
        return _json_fields(fields, text, peeled)
    if m := _JSON_MESSAGE.search(text):
        whole = _loads('{"x":"' + m[1] + '"}')
        if (time := _JSON_TIME.search(text)) and (stamp := stamps.epoch(time[1])):
            give(peeled, stamp)
        return str(whole["x"]).rstrip("\r\n") if whole else m[1]
    return None


_PRETTY = re.compile(r'\t{1,2}(?:"(\w{1,64})" : )?(".*|[\d\[].*)', re.DOTALL)


def json_pretty(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`\\t"MESSAGE" : "…",`, or a value of a list, inside a record of journalctl -o json-pretty."""
    m = _PRETTY.match(text)
    if m is None:
        return None
    buffer = line.window.buffer
    low, high = max(0, line.start - RECORD), min(line.window.end, line.end + RECORD)
    start = buffer.rfind(b"{", low, line.start)
    while start > low and buffer[start - 1] not in b"\n\r":
        start = buffer.rfind(b"{", low, start)
    end = buffer.find(b"\n}", line.end - 1, high)
    fields = _loads(bytes(buffer[start : end + 2])) if 0 <= start < end else None
    value = m[2].rstrip(" ,")
    own = _loads('{"x":' + value + "}")
    shown = _message(own["x"]) if own else None
    if fields is None:
        return shown
    _journal(fields, peeled)
    return shown if shown is not None else _message(fields.get(m[1] or "MESSAGE"))


_EXPORT_KEY = re.compile(r"([A-Z_][A-Z0-9_]{0,63})=")
_EXPORT_FIELDS = (
    "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP",
    "_HOSTNAME", "SYSLOG_IDENTIFIER", "_COMM", "_PID", "SYSLOG_PID", "_BOOT_ID", "CONTAINER_NAME",
)  # fmt: skip


def export_record(peeled: Peeled, line: RawLine) -> bool:
    """The other fields of this line's record in `journalctl -o export`: from its `__CURSOR=` to the next one's."""
    buffer = line.window.buffer
    low, high = max(0, line.start - RECORD), min(line.window.end, line.end + RECORD)
    start = max(buffer.rfind(b"__CURSOR=", low, line.start + 9), low)
    end = buffer.find(b"\n__CURSOR=", line.end, high)
    end = high if end < 0 else end
    fields: dict[str, Any] = {}
    for name in _EXPORT_FIELDS:
        key = b"\n" + name.encode() + b"="
        at = buffer.find(key, start, end)
        if at >= 0:
            stop = buffer.find(b"\n", at + 1, min(end, at + 400))
            if stop > 0:
                fields[name] = bytes(buffer[at + len(key) : stop]).decode("utf-8", "replace").rstrip("\r")
    if "__REALTIME_TIMESTAMP" not in fields:
        return False
    _journal(fields, peeled)
    return True


def export(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`MESSAGE=…` of journalctl -o export."""
    m = _EXPORT_KEY.match(text)
    if m is None or not export_record(peeled, line):
        return None
    line.window.state["records"] = "export"
    if m[1] == "MESSAGE":
        return text[m.end() :]
    peeled.final = True
    return text


_NOT_INDENTED = re.compile(rb"\n(?! {2})")


def verbose(text: str, peeled: Peeled, line: RawLine) -> str | None:
    """`    MESSAGE=…` of journalctl -o verbose, and the indented lines behind it."""
    buffer = line.window.buffer
    low = max(0, line.start - RECORD)
    at = buffer.rfind(b" [s=", low, line.start)
    if at < 0:
        return None
    start = max(buffer.rfind(b"\n", low, at), low - 1) + 1
    found = stamps.weekday_iso(bytes(buffer[start:at]).decode("utf-8", "replace"))
    if found is None:
        return None
    # Fields may follow too: to the next record's head, which is the next line that is not indented.
    following = _NOT_INDENTED.search(buffer, line.end, min(line.window.end, line.end + RECORD))
    record = bytes(buffer[at : following.start() if following else min(line.window.end, line.end + RECORD)])
    fields = {
        key.decode(): value.decode("utf-8", "replace").rstrip("\r")
        for key, value in re.findall(rb"\n {4}([A-Z_][A-Z0-9_]{0,63})=([^\n]{0,300})", record)
    }
    cursor = re.search(rb";m=([0-9a-f]{1,16});t=([0-9a-f]{1,16})", record[:400])
    if cursor:
        fields["__MONOTONIC_TIMESTAMP"] = str(int(cursor[1], 16))
        fields["__REALTIME_TIMESTAMP"] = str(int(cursor[2], 16))
        _journal(fields, peeled)
    else:
        give(peeled, found[0])
    line.window.state["records"] = "verbose"
    body = text.strip(" ")
    m = _EXPORT_KEY.match(body)
    return body[m.end() :] if m and m[1] == "MESSAGE" else body


def binary_field(raw: bytes) -> bytes | None:
    """A journal export's binary field: 8 bytes of little-endian length before the first line; None if it is none."""
    zeros = raw.rfind(b"\0", 0, 8)
    return raw[zeros + 1 :] if zeros >= 3 and raw[max(0, zeros - 3) : zeros + 1].count(0) >= 3 else None


def exported(line: RawLine) -> bool:
    return line.window.buffer.rfind(b"__REALTIME_TIMESTAMP=", max(0, line.start - RECORD), line.start) >= 0
