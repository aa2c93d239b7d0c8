"""Everything else that a kernel, systemd, a BMC or a report tool writes about a failing host: kernel.toml.

The catalogue holds the literals, the regexes, what each line means and where its form comes from. A literal that was
found in a line picks the few regexes that are tried on it; the first entry that matches, in the catalogue's order, is
the line's event. Time: the log's own. Example (one line):
[74889.542031] pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:00:02.0
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from nccl_forensics.catalog import KernelEntry, kernel_entries, kernel_noise, kinds_marked
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._kernel import LONGEST_MESSAGE, build_date, is_early, is_quoted, note_boot, pci_address
from ._kernel_neighbours import join

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

ELSEWHERE = kinds_marked("read-elsewhere")
"""Entries whose lines another parser of this folder reads, or lines/prefixes unfolds."""
ANCHORS = {"audit-stamp": "audit", "rtc-stamp": "rtc"}
"""Lines that tell the time twice: on the host's wall clock and, before the message, on the log's own."""
ANCHOR_EVERY_NS = 60_000_000_000
"""A chatty audit log would give an anchor a line: one a minute is plenty; our judgement."""
WORDS = frozenset(
    {"addr", "addr2", "addr3", "addr4", "addr5", "base", "client", "code", "cs", "csts", "device", "driver"}
    | {
        "emask",
        "err",
        "flags",
        "gfp",
        "ip",
        "lba",
        "len",
        "mask",
        "mcg",
        "pcis",
        "reason",
        "sc",
        "sct",
        "serial",
        "serial2",
    }
    | {"serial3", "server", "slot", "sp", "ss", "status", "task", "unit", "vendor", "version"}
)
"""Groups that stay text although they may hold digits only: hexadecimal or names. `err` of a fault is hexadecimal."""

INTEGER = re.compile(r"-?\d{1,18}")
GSP_WAIT = re.compile(r"Timeout after (\d{1,4})s of waiting for RPC")


@cache
def _by_needle() -> dict[bytes, tuple[int, ...]]:
    """Needle → places in `kernel_entries()`."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for place, entry in enumerate(kernel_entries()):
        for needle in entry.needles:
            found[needle].append(place)
    return {needle: tuple(places) for needle, places in found.items()}


def winner(text: str, hits: Iterable[bytes], tagged: str | None = None) -> tuple[KernelEntry, re.Match[str]] | None:
    """The catalogue's entry for a message that holds the needles `hits`, and how it matched; None for noise.

    `tagged`: the message with its program's tag (`systemd[1]: …`), for entries that need one.
    """
    table, entries = _by_needle(), kernel_entries()
    for place in sorted({place for hit in hits for place in table.get(hit, ())}):
        entry = entries[place]
        found = entry.regex.search(text) or (entry.regex.search(tagged) if tagged else None)
        if found is None:
            continue
        if entry.id not in ANCHORS and any(regex.search(text) for _, regex in kernel_noise()):
            return None
        return entry, found
    return None


def _tagged(line: Line, text: str) -> str | None:
    """The message as it stood behind its syslog tag, if the tag was taken off with the prefix."""
    program, pid = line.peeled.program, line.peeled.pid
    if program is None or program == "kernel" or text.startswith(program):
        return None
    return f"{program}: {text}" if pid is None else f"{program}[{pid}]: {text}"


def _details(found: re.Match[str]) -> dict[str, Detail]:
    details: dict[str, Detail] = {}
    for name, value in found.groupdict().items():
        if value is None:
            continue
        value = value.strip()
        if name in ("pci", "source", "from") and (pci := pci_address(value)):
            details[name] = pci
        elif name not in WORDS and INTEGER.fullmatch(value):
            details[name] = int(value)
        else:
            details[name] = value[:300]
    return details


def _anchor(line: Line, what: str, epoch_ns: int, details: dict[str, Detail]) -> Iterator[Event]:
    """A clock-anchor, unless this file gave one less than a minute ago."""
    last: int | None = line.window.state.get(f"kernel.anchor.{what}")
    if last is not None and 0 <= epoch_ns - last < ANCHOR_EVERY_NS:
        return
    line.window.state[f"kernel.anchor.{what}"] = epoch_ns
    details = {"epoch_ns": epoch_ns, "what": what, **details}
    yield line.event("clock-anchor", role="context", details=details, pid=None)


def _epoch_ns(written: str) -> int:
    """Nanoseconds since 1970 from decimal seconds, without a float in between."""
    seconds, _, fraction = written.partition(".")
    return int(seconds) * 1_000_000_000 + int((fraction + "000000000")[:9])


def _gsp_history(line: Line, found: re.Match[str]) -> Iterator[Event]:
    """One row of the table that follows Xid 119: microseconds since 1970, UTC.

    The request that hung (entry 0, no end) began as long before this line was printed as the driver waited for it.
    """
    started_ns, ended_ns = int(found["ts_start"], 16) * 1_000, int(found["ts_end"], 16) * 1_000
    if int(found["entry"]) == 0 and ended_ns == 0:
        for before in line.before(8):
            if waited := GSP_WAIT.search(before.raw.decode("utf-8", "replace")):
                yield from _anchor(
                    line, "gsp-history", started_ns + int(waited[1]) * 1_000_000_000, {"resolution_ns": 10**9}
                )
                return
    details: dict[str, Detail] = {
        "entry": int(found["entry"]),
        "fn": int(found["fn"]),
        "name": found["name"],
        "started_ns": started_ns,
    }
    if ended_ns:
        details["ended_ns"] = ended_ns
    yield line.event("gsp-rpc-history", role="context", details=details, pid=None)


def _driver_load(line: Line, text: str, found: re.Match[str]) -> Event:
    line.window.state["driver.version"] = found["version"]
    return line.event(
        "driver-version",
        role="context",
        details={
            "version": found["version"],
            "flavour": "open" if found["flavour"] else "closed",
            "load": True,
            **build_date(text),
        },
        pid=None,
    )


WAITED_ON: Mapping[Detail, str | None] = {"gpu": None, "memory": "cpu_stall"}
"""What else than its entry says a hung task's stack may show; what the GPU driver waits for, its own lines tell."""


def _signature(line: Line, text: str, entry: KernelEntry, found: re.Match[str], host: str | None) -> Event:
    """What the catalogue's entry says of the line, together with its neighbours."""
    message = join(line, entry, _details(found))
    details, role, severity = message.details, message.role, message.severity
    if entry.harmless is not None and entry.harmless.search(text):
        role, severity = "context", "info"
    if role != "context" and not entry.at_boot and entry.log in ("kernel", "journal", "syslog") and is_early(line):
        role, details = "context", {**details, "early": True}
    return line.event(
        entry.id,
        role=role,
        severity=severity,
        cause=WAITED_ON.get(details.get("waits_on"), entry.cause),
        details=details,
        pid=_pid(entry, details),
        gpu_pci=message.gpu,
        host=host,
        repeats=line.peeled.repeats,
    )


def _pid(entry: KernelEntry, details: Mapping[str, Detail]) -> int | None:
    """The process that the line accuses; that of its prefix is the writer's."""
    if entry.indicts != "pid" and entry.subject != "pid":
        return None
    pid = details.get("pid") or details.get("pid2")
    return pid if isinstance(pid, int) and pid else None


def _events(line: Line, text: str, entry: KernelEntry, found: re.Match[str], host: str | None) -> Iterable[Event]:
    if entry.id == "boot-start":
        note_boot(line)
    if entry.id in ANCHORS:
        return _anchor(line, ANCHORS[entry.id], _epoch_ns(found["epoch"]), {})
    if entry.id == "gsp-rpc-history":
        return _gsp_history(line, found)
    if entry.id == "nvrm-driver-load":
        return (_driver_load(line, text, found),)
    return (_signature(line, text, entry, found, host),)


NEEDLES = tuple(needle for entry in kernel_entries() if entry.id not in ELSEWHERE for needle in entry.needles)


@parser(title="Kernel, systemd, BMC and report lines (kernel.toml)", literals=NEEDLES)
def kernel_log(line: Line) -> Iterator[Event]:
    text = line.text[:LONGEST_MESSAGE]
    if "Xid (" in text:  # xid.py's
        return
    won, host = winner(text, line.hits, _tagged(line, text)), line.host
    if won is None:
        # Without a stamp 'mce: …' or 'nfs: …' looks as if a host named mce or nfs had written the line.
        written = line.raw[:LONGEST_MESSAGE].decode("utf-8", "replace")
        won, host = winner(written, line.hits), None
    if won is None:
        return
    entry, found = won
    if entry.id not in ELSEWHERE and not is_quoted(line, found.string, found.start(), at_start=False):
        yield from _events(line, found.string, entry, found, host)
