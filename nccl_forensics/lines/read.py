"""Every file of a pile, read into events, values and problems."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from nccl_forensics.intake import sniff
from nccl_forensics.intake.limits import Limits, Totals
from nccl_forensics.intake.readers import File, Source
from nccl_forensics.intake.sources import is_text, quotes_logs, source_of
from nccl_forensics.intake.walk import collect, files, sources
from nccl_forensics.lines.alarms import WORDS, Alarms, is_logged
from nccl_forensics.lines.flood import Flood, Kept
from nccl_forensics.lines.line import Line, alone
from nccl_forensics.lines.plugins import Parser, Parsers, Stream, parsers
from nccl_forensics.lines.scan import NOT_LOOKED_FOR, Often, Scanner
from nccl_forensics.lines.window import UNREAD
from nccl_forensics.model import LOG_BEGINS, Event, InputRow, Problem
from nccl_forensics.steps import Told
from nccl_forensics.text.phrases import count

PULSE_FIRST, PULSE_LAST = 200, 800
"""Lines of progress (which can be every line of a log) that are read from the start and the end of a file."""
HEAD_BYTES = 4096
"""What the format and the first time are told from."""
PULSE = frozenset({"progress"})
"""Parsers whose lines are only a pulse."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one file gave."""

    row: InputRow
    events: tuple[Event, ...] = ()
    values: tuple[Any, ...] = ()
    """What file parsers yield besides events: Flight Recorder dumps, and how long collectives took."""
    problems: tuple[Problem, ...] = ()
    begin: Event | None = None
    """The first line with a time of a kernel's log, whatever it says: nothing before it is in that file."""
    quoted: bool = False
    """It is prose that quotes logs: no evidence beside real ones."""
    alarms: tuple[Event, ...] = ()
    """Lines that look like errors and that no parser knows: no events, one for each wording."""


def read_source(source: Source, known: Parsers, scanner: Scanner) -> Parsed:
    """Everything that the parsers find in one file. Never raises for what is in the file."""
    row = InputRow(path=source.path, mtime_ns=source.mtime_ns)
    if source.stream is None:
        return Parsed(
            replace(row, status=source.status, reason=source.reason, format=sniff.by_name(source.name) or "unknown")
        )
    head = source.head(HEAD_BYTES)
    if sniff.is_own(head):
        return Parsed(replace(row, status="skipped", format="report", reason="written by this tool: no evidence"))
    what = source_of(head, source.name)
    if what is not None and not any(one.claims(head, source.name) for one in known.files):
        return Parsed(replace(row, status="skipped", format="source", reason=f"{what}: no evidence of what happened"))
    for one in known.files:
        if one.claims(head, source.name):
            return _structured(source, row, one.name, one.read(cast("Stream", source)))
    events, problems, alarms = _scanned(source, source.stream, known, scanner)
    known_format = sniff.sniff(head, source.name)
    if known_format is None and not events:
        alarms = tuple(alarm for alarm in alarms if is_logged(alarm))
    format_ = known_format or ("job-log" if events or alarms else "unknown")
    status, reason = source.status, source.reason
    if format_ == "unknown" and status == "read":
        status, reason = "skipped", NOT_RECOGNISED if is_text(head) else "neither text nor a format that is known"
    return Parsed(
        replace(row, status=status, reason=reason, format=format_, bytes=source.bytes_read, events=len(events)),
        events,
        (),
        tuple(problems),
        _begin(source.path, head) if format_ in RUNNING_LOGS else None,
        quotes_logs(head, source.name),
        alarms,
    )


RUNNING_LOGS = sniff.KERNEL_FORMATS - {"nvidia-bug-report"}
"""Files that go on from one line to the next; a report holds excerpts, newest first."""


def _begin(path: str, head: bytes) -> Event | None:
    state: dict[str, Any] = {}
    whole = head.splitlines()[: -1 if len(head) == HEAD_BYTES else None]
    for number, raw in enumerate(whole, 1):
        line = alone(path, state, number, raw, frozenset())
        if line.stamp is not None:
            return line.event(LOG_BEGINS, role="context")
    return None


def _scanned(
    source: Source, stream: BinaryIO, known: Parsers, scanner: Scanner
) -> tuple[tuple[Event, ...], list[Problem], tuple[Event, ...]]:
    """The events of one file's lines, in the order of the lines, what was counted only, and the alarms."""
    kept, flood, alarms = Kept(), Flood(known), Alarms()
    newest, late = 0, False  # the last lines of progress come behind all others
    often = Often(_pulse_literals(known.lines), PULSE_FIRST, PULSE_LAST)
    state: Mapping[str, Any] = {}
    for line in scanner.lines(source.path, stream, often):
        state = line.window.state
        late = late or line.number < newest
        newest = line.number
        readers = flood.readers(line) if line.hits else ()
        if readers is not None and _give(line, readers, kept):
            flood.told(line)
        elif readers is not None:
            alarms.see(line)
    for line, readers in flood.last():
        late = True
        _give(line, readers, kept)
    events = kept.events()
    if late:
        events = tuple(sorted(events, key=lambda e: e.evidence.line or 0))
    unread: Mapping[str, int] = state.get(UNREAD, {})
    problems = [*flood.problems(source.path), *_left_out(kept.dropped(), unread, source.path)]
    if (number := state.get(NOT_LOOKED_FOR)) is not None:
        says = f"lines that look like errors were not looked for behind line {number:,}: those of progress look so, too"
        problems.append(Problem(says=says, source=source.path))
    return events, problems, tuple(alarms.found())


def _left_out(dropped: Mapping[str, int], unread: Mapping[str, int], path: str) -> Iterator[Problem]:
    """What the bounds on events, and those of single parsers, have left out: how many of which kind."""
    for kind, number in sorted(dropped.items()):
        yield Problem(says=f"{number:,} more lines of kind {kind} were counted and not kept", source=path)
    for what, number in unread.items():
        says = f"{number:,} more lines, tables or blocks of kind {what} were not read: those before them fill the bound"
        yield Problem(says=says, source=path)


def _give(line: Line, readers: Iterable[Parser], kept: Kept) -> bool:
    """Whether any of the readers took something from the line."""
    took = False
    for one in readers:
        for event in one.read(line):
            kept.add(event)
            took = True
    return took


@cache
def _pulse_literals(lines: tuple[Parser, ...]) -> frozenset[bytes]:
    """Literals that only parsers of a pulse ask for."""
    others = {x for p in lines if p.name not in PULSE for x in p.literals}
    return frozenset(x for p in lines if p.name in PULSE for x in p.literals if x not in others)


def _structured(source: Source, row: InputRow, format_: str, found: Iterable[Any]) -> Parsed:
    events: list[Event] = []
    values: list[Any] = []
    problems: list[Problem] = []
    for item in found:
        if isinstance(item, Event):
            events.append(item)
        elif isinstance(item, Problem):
            problems.append(item)
        else:
            values.append(item)
    status, reason = source.status, source.reason
    if status == "read" and problems:
        status = "partial" if values or events else "failed"
        reason = problems[0].says
    return Parsed(
        replace(
            row,
            status=status,
            reason=reason,
            format=format_.replace("_", "-"),
            bytes=source.bytes_read,
            events=len(events),
        ),
        tuple(events),
        tuple(values),
        tuple(problems),
    )


NOT_RECOGNISED = "nothing in it was recognised; it is listed so that you know it was looked at"
"""Why a text is skipped in which no parser found a line."""
SHARED_BYTES = 8 << 20
"""Piles smaller than this are read by one worker: they take a few hundredths of a second."""


def read(
    paths: Sequence[str],
    *,
    stdin: BinaryIO | None = None,
    limits: Limits | None = None,
    progress: Callable[[str, int], None] | None = None,
    workers: int = 1,
) -> list[Parsed]:
    """Every file of the pile, members of archives included, in the order of `paths` and then of names.

    `workers` threads share the files on disk; `progress` is always called from the calling thread. Raises InputError
    for a path that isn't there.
    """
    known = parsers()
    limits = limits or Limits()
    told = Told("read")
    found = _read(paths, known, stdin, limits, progress, workers)
    size = sum(p.row.bytes for p in found)
    told(f"{count(len(found), 'file')}, {size / 1e6:,.1f} MB, {count(sum(len(p.events) for p in found), 'event')}")
    return found


def _read(
    paths: Sequence[str],
    known: Parsers,
    stdin: BinaryIO | None,
    limits: Limits,
    progress: Callable[[str, int], None] | None,
    workers: int,
) -> list[Parsed]:
    if workers > 1:
        pile = list(files(paths, limits=limits))
        size = sum(f.size or 0 for f in pile)
        if 1 < len(pile) <= limits.members and size >= SHARED_BYTES:
            return _shared(
                pile,
                known,
                Scanner(known.by_literal, expected_bytes=size, vague=WORDS),
                stdin,
                limits,
                progress,
                workers,
            )
    scanner = Scanner(known.by_literal, expected_bytes=_size(paths), vague=WORDS)
    found = []
    for source in collect(paths, stdin=stdin, limits=limits):
        found.append(read_source(source, known, scanner))
        if progress is not None:
            progress(source.path, found[-1].row.bytes)
    return found


PACKED = (".gz", ".tgz", ".zst", ".xz", ".bz2", ".zip")
PACKED_RATIO = 8
"""Bytes of log in a packed byte: 9 to 15 were measured. It only chooses how the literals are compiled."""


def _size(paths: Sequence[str]) -> int:
    """Bytes of text in those that are files, guessed from their names and their size on disk."""
    size = 0
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            status = Path(path).stat()
            if stat.S_ISREG(status.st_mode):
                size += status.st_size * (PACKED_RATIO if path.endswith(PACKED) else 1)
    return size


def _shared(
    pile: Sequence[File],
    known: Parsers,
    scanner: Scanner,
    stdin: BinaryIO | None,
    limits: Limits,
    progress: Callable[[str, int], None] | None,
    workers: int,
) -> list[Parsed]:
    """The files read by threads, the largest first; what they gave, in the order of `pile`."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    totals = Totals()  # its sums are rough when threads share it, which no limit minds

    def one(file: File) -> list[Parsed]:
        drawn = sources(file, stdin=stdin, limits=limits, totals=totals)
        return [read_source(source, known, scanner) for source in drawn]

    with ThreadPoolExecutor(workers) as pool:
        largest = sorted(range(len(pile)), key=lambda i: -(pile[i].size or 0))
        jobs = {pool.submit(one, pile[i]): i for i in largest}
        try:
            for job in as_completed(jobs):
                if progress is not None:
                    for parsed in job.result():
                        progress(parsed.row.path, parsed.row.bytes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [parsed for job in sorted(jobs, key=jobs.__getitem__) for parsed in job.result()]
