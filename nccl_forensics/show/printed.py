"""Plain-text answers for the terminal: `inspect` (did the customer send enough?) and `xid`.

First what is there and what is missing for ranks and hosts, then how to get it, then every file.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_forensics.intake.sniff import KERNEL_FORMATS
from nccl_forensics.show.coverage import Coverage, HostCoverage
from nccl_forensics.show.inventory import BASIS, TELLING, is_core, of_the_job, some_names
from nccl_forensics.show.paths import common_folder
from nccl_forensics.text import phrases
from nccl_forensics.text.visible import visible

WIDTH = 100
ALIKE = 6
"""More files than this of one format in one folder are shown as one row. Our judgement."""
LONGEST_LIST = 30
"""Rows of hosts, and of files, that are printed; the rest is counted (all are in the JSON)."""
MOST_PROBLEMS = 12
MOST_ALARMS = 8
SHORT_TOP = 12
"""Characters of a common folder that may stand before every path."""
SCRIPT = "`nccl-forensics collect-script > collect.sh`, then `sudo sh collect.sh -l JOB_LOG` on that node"
BESIDE = " " * 33
"""Below what a row says behind a file's format and size."""
Doc = Mapping[str, Any]


def text(doc: Doc) -> str:
    """What is there, what is missing and how to get it, then file by file. `doc` has `survey`'s fields too."""
    lines = [
        _headline(doc),
        "",
        *_covered(doc["coverage"]),
        *_wanted(doc["missing"]),
        "",
        "Files (times in UTC, of the lines that matter):",
        *_files(doc),
        *_clocks(doc["clocks"]),
        *_alarms(doc.get("alarms", ())),
        *_problems(doc["problems"]),
    ]
    return "\n".join(visible(line.rstrip()) for line in lines)  # names of files are a stranger's


def _wrap(words: str, first: str, rest: str, *, shift: int = 0) -> list[str]:
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first[shift:],
        subsequent_indent=rest,
        break_long_words=True,
        break_on_hyphens=False,
    )


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _headline(doc: Doc) -> str:
    """One line: how much there is, and whether it is enough."""
    states = Counter(r["status"] for r in doc["inputs"])
    size = phrases.size(sum(r["bytes"] for r in doc["inputs"]))
    other = ", ".join(f"{states[s]:,} {s}" for s in ("partial", "skipped", "failed") if states[s])
    files = f"{phrases.count(len(doc['inputs']), 'file')}, {size}" + (f" ({other})" if other else "")
    if not states["read"] and not states["partial"]:
        return f"{files}: nothing in it could be read."
    gaps = sum(map(is_core, doc["missing"]))
    answer = f"not all that a verdict needs, {phrases.count(gaps, 'gap')}" if gaps else "enough for a verdict"
    return f"{files}: {answer}."


def _wanted(missing: Sequence[Doc]) -> Iterator[str]:
    if missing:
        yield from ("", "To get (most useful first):")
        for number, want in enumerate(missing, 1):
            yield from _wrap(f"{number}. {want['what']}: {want['why']}", "   ", "      ", shift=2)
            yield from _wrap(want["command"], "      ", "        ")
        yield from _wrap(f"All of it that a node has, in one file: {SCRIPT}", "  ", "  ")


def _clocks(clocks: Sequence[Doc]) -> Iterator[str]:
    """Those that did not write their zone."""
    unread = [c for c in clocks if c["basis"] in ("assumed", "boot-time", "shared-event", "collectives")]
    if unread:
        yield from ("", "Clocks:")
    for clock in unread[:LONGEST_LIST]:
        bar = f" ± {clock['uncertainty_s']:.3g} s" if clock["uncertainty_s"] is not None else ""
        note = f" ({clock['note']})" if clock["note"] and clock["basis"] != "assumed" else ""
        yield from _wrap(f"{clock['clock']}: {BASIS.get(clock['basis'], clock['basis'])}{bar}{note}", "  ", "    ")
    if len(unread) > LONGEST_LIST:
        yield f"  and {len(unread) - LONGEST_LIST:,} more"


def _alarms(alarms: Sequence[Doc]) -> Iterator[str]:
    """The most telling lines that look like errors and that nothing here understands."""
    if alarms:
        yield from ("", "Lines that look like errors and that nothing here understands, the oddest first:")
    for alarm in alarms[:MOST_ALARMS]:
        where = f"{alarm['source']}:{alarm['line']}" if alarm["line"] is not None else alarm["source"]
        often = f" ({alarm['count']:,} lines)" if alarm["count"] > 1 else ""
        why = "".join(f"; {reason}" for reason in alarm["why"])
        yield from _wrap(f"{where}{often}{why}", "  ", "    ")
        yield _cut(f"    {alarm['text']}")
    if len(alarms) > MOST_ALARMS:
        yield f"  and {len(alarms) - MOST_ALARMS:,} more wordings in the JSON"


def _problems(problems: Sequence[Doc]) -> Iterator[str]:
    for problem in problems[:MOST_PROBLEMS]:
        where = f"{problem['source']}: " if problem["source"] else ""
        yield from _wrap(f"{where}{problem['says']}", "! ", "  ")
    if (more := len(problems) - MOST_PROBLEMS) > 0:
        yield f"! and {more:,} more problems (--json lists all)"


def _covered(coverage: Coverage) -> Iterator[str]:
    """Who is covered by what: in all, then host by host."""
    yield from _kernel_logs(coverage)
    yield from _ranks(coverage)
    if unknown := coverage["kernel_logs_of_unknown_host"]:
        yield _cut(f"Unknown host  {phrases.count(len(unknown), 'kernel log'):22}{some_names(unknown)}")
    if len(coverage["hosts"]) > 1 or any(h["ranks"] for h in coverage["hosts"]):
        yield ""
        yield from _hosts(coverage["hosts"])


def _line(label: str, state: str, gap: str) -> str:
    return _cut(f"{label:14}{state:22}{gap}")


def _share(label: str, have: int, of: int, what: str, lacking: str) -> str:
    """'Dumps         7 of 8 ranks          missing: 6'"""
    state = f"{have:,} of {of:,} {what}" if have else "none"
    return _line(label, state, f"missing: {lacking}" if lacking else "complete")


def _kernel_logs(coverage: Coverage) -> Iterator[str]:
    hosts = of_the_job(coverage["hosts"])
    lacking = [h["host"] for h in hosts if not h["kernel_log"]]
    if hosts:
        yield _share("Kernel logs", len(hosts) - len(lacking), len(hosts), "hosts", some_names(lacking))
    elif not coverage["kernel_logs_of_unknown_host"]:
        yield _line("Kernel logs", "none", "no host is known")


def _ranks(coverage: Coverage) -> Iterator[str]:
    ranks, logs = coverage["ranks"], coverage["job_logs"]
    expected = ranks["expected"]
    if expected:
        for label, have in (("Rank logs", ranks["with_log"]), ("Dumps", ranks["with_dump"])):
            lacking = _numbers(sorted(set(expected) - set(have))) if have else "all"
            yield _share(label, len(have), len(expected), "ranks", lacking)
    elif logs:
        yield _line("Rank logs", phrases.count(logs, "job log"), "not told which ranks")
    else:
        yield _line("Rank logs", "none", "no trace of a training job")


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    layout: str
    """As `format` takes it."""
    cell: Callable[[HostCoverage], str]


HOST_COLUMNS = (
    _Column("Kernel log", "12", lambda h: _yes(h["kernel_log"])),
    _Column("Bug report", "12", lambda h: _yes(h["bug_report"])),
    _Column("nvidia-smi", "12", lambda h: _yes(h["nvidia_smi"])),
    _Column("Ranks", "14", lambda h: _numbers(h["ranks"])[:13] or "-"),
    _Column("Logs", ">9", lambda h: _of(h["logs"], len(h["ranks"]))),
    _Column("Dumps", ">9", lambda h: _of(h["dumps"], len(h["ranks"]))),
)
"""Behind the host's name."""


def _hosts(hosts: Sequence[HostCoverage]) -> Iterator[str]:
    wide = min(32, max(4, *(len(h["host"]) for h in hosts)))
    columns = (_Column("Host", f"{wide + 2}", lambda h: h["host"][:wide]), *HOST_COLUMNS)
    yield "".join(format(c.heading, c.layout) for c in columns)
    for host in hosts[:LONGEST_LIST]:
        yield _cut("".join(format(c.cell(host), c.layout) for c in columns))
    if len(hosts) > LONGEST_LIST:
        yield f"and {len(hosts) - LONGEST_LIST:,} more hosts (--json lists all)"


def _yes(have: bool) -> str:
    return "yes" if have else "NO"


def _of(have: Sequence[int], mine: int) -> str:
    return f"{len(have)} of {mine}" if mine else "-"


def _numbers(ranks: Sequence[int]) -> str:
    return phrases.ranks(ranks).removeprefix("ranks ").removeprefix("rank ") if ranks else ""


@dataclass(frozen=True, slots=True)
class _File:
    """A file as the document lists it, and what `survey` tells of it beside that."""

    row: Doc
    more: Doc

    @property
    def path(self) -> str:
        return str(self.row["path"])

    @property
    def ranks(self) -> list[int]:
        """Whose it is by its name, else whose lines are in it."""
        return [self.row["rank"]] if self.row["rank"] is not None else self.more["ranks"]

    @property
    def is_plain(self) -> bool:
        """It was read, and holds no cause."""
        return self.row["status"] == "read" and not self.more["roles"].get("cause")


def _files(doc: Doc) -> Iterator[str]:
    """Two or three lines a file; many of one kind in one folder are one row."""
    more = {f["path"]: f for f in doc["files"]}
    files = [_File(row, more[row["path"]]) for row in doc["inputs"]]
    top = _top([f.path for f in files])
    if top:
        yield _cut(f"  all below {top}")
    rows = list(_rows(files, top))
    for row in rows[: LONGEST_LIST * 2]:
        yield from row
    if len(rows) > LONGEST_LIST * 2:
        yield f"  and {len(rows) - LONGEST_LIST * 2:,} more (--json lists all)"


def _rows(files: Sequence[_File], top: str) -> Iterator[list[str]]:
    """The lines of each file or pile of alike ones, what tells most first."""
    alike: dict[tuple[str, str, str], list[_File]] = defaultdict(list)
    for file in files:
        folder = re.sub(r"\d+", "0", file.path.rpartition("/")[0])
        key = (file.row["format"], folder, "read") if file.is_plain else ("", file.path, file.row["status"])
        alike[key].append(file)
    for group in sorted(alike.values(), key=_weight):
        if len(group) > ALIKE:
            yield list(_together(group, top))
        else:
            yield from (list(_one(file, top)) for file in group)


def _weight(group: Sequence[_File]) -> tuple[int, str]:
    """Files with causes first, then with symptoms, then the rest, then what could not be read."""
    first = group[0]
    if any("cause" in f.more["roles"] for f in group):
        return 0, first.path
    if any("symptom" in f.more["roles"] for f in group):
        return 1, first.path
    return (2 if first.row["status"] in ("read", "partial") else 3), first.path


def _one(file: _File, top: str) -> Iterator[str]:
    row, more = file.row, file.more
    state = "" if row["status"] == "read" else f"{row['status'].upper()}: "
    size, path = phrases.size(row["bytes"]), _tail(_below(file.path, top), 55)
    yield _cut(f"  {row['format'][:18]:18}  {size:>9}  {state}{path}")
    yield from _facts(_whose(file), _span(more["span"]), more["clock"] or "")
    if more["telling"]:
        told = ", ".join(f"{k['kind']} ×{k['count']:,}" for k in more["telling"])
        roles = ", ".join(phrases.count(n, role) for role, n in more["roles"].items() if role != "context")
        yield from _wrap(f"{roles or 'nothing alarming'}: {told}", BESIDE, BESIDE + "  ")
    if row["reason"]:
        yield from _wrap(row["reason"], BESIDE, BESIDE + "  ")


def _whose(file: _File) -> str:
    """'node-a rank 3', 'host not told'; nothing where it does not matter."""
    row, more = file.row, file.more
    host = row["host"] or ("" if more["roles"].keys() <= {"context"} else "host not told")
    several = len(more["ranks"]) > 1 and row["format"] not in KERNEL_FORMATS
    ranks = phrases.ranks(file.ranks) if row["rank"] is not None or several else ""
    return " ".join(x for x in (host, ranks) if x)


def _together(group: Sequence[_File], top: str) -> Iterator[str]:
    """Alike files: the first and the last, and what is in all of them."""
    first, last = group[0], group[-1]
    size = phrases.size(sum(f.row["bytes"] for f in group))
    what = f"{len(group):,} files: {_tail(_below(first.path, top), 45)} …"
    yield _cut(f"  {first.row['format'][:18]:18}  {size:>9}  {what}")
    yield _cut(f"{BESIDE}… {_tail(_below(last.path, top), 60)}")
    ranks = {rank for f in group for rank in f.ranks}
    times = sorted(at for f in group if f.more["span"] for at in f.more["span"])
    told: Counter[str] = Counter()
    for file in group:
        told.update({k["kind"]: k["count"] for k in file.more["telling"]})
    yield from _facts(
        phrases.ranks(ranks) if ranks else "",
        _span([times[0], times[-1]] if times else None),
        ", ".join(f"{kind} ×{number:,}" for kind, number in told.most_common(TELLING)),
    )


def _facts(*facts: str) -> list[str]:
    told = " | ".join(x for x in facts if x)
    return _wrap(told, BESIDE, BESIDE + "  ") if told else []


def _span(span: Sequence[str | None] | None) -> str:
    """'2026-03-04 10:19:54 – 10:31:00': the day is told once."""
    if not span or span[0] is None or span[1] is None:
        return ""
    first, last = span[0], span[1]
    if first == last:
        return first
    return f"{first} – {last[11:] if len(last) == 19 and last[:11] == first[:11] else last}"


def _top(paths: Sequence[str]) -> str:
    """The folder in which all files are, if it is worth leaving out; '' otherwise."""
    top = common_folder(paths) if len(paths) > 1 else ""
    return top if len(top) > SHORT_TOP else ""


def _below(path: str, top: str) -> str:
    return path.removeprefix(top)


def _tail(path: str, most: int) -> str:
    """The end of a path, which tells files apart."""
    return path if len(path) <= most else "…" + path[-most + 1 :]


def xid(entry: Doc) -> str:
    """One Xid of the catalogue, for people."""
    blocks = [
        ("", f"Xid {entry['number']}: {entry['short']} ({entry['mnemonic']})"),
        (
            "",
            f"{entry['role']}, {entry['severity']}, takes down: {entry['scope']}; the process on that GPU dies: "
            f"{ {'true': 'yes', 'false': 'no'}.get(entry['kills_job'], entry['kills_job']) }",
        ),
        ("Usual causes: ", "; ".join(entry["causes"])),
        ("First: ", entry["immediate"]),
        ("Then: ", entry["further"]),
        ("On workstations: ", entry.get("workstation", "")),
        ("Note: ", entry.get("note", "")),
        ("Follows: ", ", ".join(map(str, entry.get("follows", [])))),
        ("Leads to: ", ", ".join(map(str, entry.get("leads_to", [])))),
        ("NVIDIA's bucket: ", entry.get("nvidia_bucket", "")),
        ("Sources disagree: ", entry.get("sources_disagree", "")),
    ]
    return "\n".join(textwrap.fill(label + body, WIDTH, subsequent_indent="  ") for label, body in blocks if body)
