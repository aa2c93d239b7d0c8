"""What is in a pile, and what is missing: the answer of `inspect`, as data.

`survey` makes what `inspect --json` writes beside the contract's fields; printed.py shows it to people.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from nccl_forensics.catalog import causes_marked
from nccl_forensics.model import number
from nccl_forensics.names import short
from nccl_forensics.show.coverage import Coverage, HostCoverage, coverage_of, longest_names
from nccl_forensics.text import moments, phrases

if TYPE_CHECKING:
    from nccl_forensics.analysis import Analysis
    from nccl_forensics.model import ClockRow, Event, InputRow, Role

TELLING = 3
"""Kinds named for each file."""
MOST_RANKS = 4096
"""Ranks listed for each file."""
GPU_FAULTS = causes_marked("in-a-bug-report")
"""Causes after which nvidia-bug-report.log shows more than the kernel's log does."""
ROLES: tuple[Role, ...] = ("cause", "symptom", "consequence", "context")


class Want(TypedDict):
    """Something that a good verdict still needs."""

    what: str
    why: str
    command: str
    """What gets it."""


def survey(analysis: Analysis) -> dict[str, Any]:
    """`files`, `coverage`, `missing`: JSON-ready. Times are UTC to the second, without the year where none is known."""
    by_file: dict[str, list[Event]] = defaultdict(list)
    for event in analysis.events:
        by_file[event.evidence.source].append(event)
    readable = [r for r in analysis.rows if r.status in ("read", "partial")]
    coverage = coverage_of(analysis, readable, by_file)
    clocks = {c.clock: c for c in analysis.clocks}
    return {
        "files": [_file(row, by_file.get(row.path, ()), clocks) for row in analysis.rows],
        "coverage": coverage,
        "missing": missing(analysis, coverage),
    }


def _file(row: InputRow, events: Sequence[Event], clocks: Mapping[str, ClockRow]) -> dict[str, Any]:
    counts = Counter(e.role for e in events)
    ranks = {rank for rank in (row.rank, *(e.rank for e in events)) if rank is not None}
    return {
        "path": row.path,
        "ranks": sorted(ranks)[:MOST_RANKS],
        "span": [_to_the_second(row.first_ns), _to_the_second(row.last_ns)] if row.first_ns is not None else None,
        "clock": _clock(events, clocks),
        "roles": {role: n for role in ROLES if (n := counts[role])},
        "telling": _telling(events),
    }


def _to_the_second(ns: int | None) -> str | None:
    return None if ns is None else moments.timestamp(ns // 1000, moments.TO_THE_SECOND)


_SEVERITY = {"critical": 0, "error": 1, "warning": 2, "info": 3}


def _telling(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The kinds that say most: causes before symptoms, severe before mild, rare before common."""
    best: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    for event in events:
        name = _kind_and_number(event)
        counts[name] += event.repeats
        weight = (ROLES.index(event.role), _SEVERITY[event.severity])
        best[name] = min(best.get(name, weight), weight)

    def order(name: str) -> tuple[tuple[int, int], int, str]:
        context = ROLES[best[name][0]] == "context"
        return best[name], -counts[name] if context else counts[name], name

    return [{"kind": n, "count": counts[n], "role": ROLES[best[n][0]]} for n in sorted(best, key=order)[:TELLING]]


def _kind_and_number(event: Event) -> str:
    """'xid 79', 'oom-kill'."""
    code = next((n for key in ("xid", "sxid") if (n := number(event, key)) is not None), None)
    return event.kind if code is None else f"{event.kind} {code}"


BASIS = {
    "reference": "zone written",
    "declared": "zone given with --timezone",
    "shared-event": "zone told by another line or log",
    "collectives": "zone told by the collectives",
    "assumed": "zone not written, read as UTC",
    "boot-time": "uptime, placed by a line that has the time",
}


def _clock(events: Sequence[Event], clocks: Mapping[str, ClockRow]) -> str | None:
    """In words, how this file's times were read."""
    if not events:
        return None
    times = [e.time_ns for e in events if e.time_ns is not None]
    if not times:
        uptime = any(e.stamp is not None and e.stamp.boot_ns is not None for e in events)
        return "uptime only, no wall clock" if uptime else "no times"
    names = sorted({e.clock for e in events if e.clock is not None})
    found = [BASIS.get(clocks[n].basis, clocks[n].basis) for n in names if n in clocks]
    if not any(map(moments.is_dated, times)):
        found.append("no year (give --year)")
    return "; ".join(dict.fromkeys(found)) or None


LAUNCH = "torchrun --log-dir logs --redirects 3 --tee 3 ..."
CORE = ("kernel log", "log of", "Flight Recorder", "the job's")
"""How a `Want.what` begins without which there is hardly a verdict."""


def missing(analysis: Analysis, coverage: Coverage) -> list[Want]:
    """What a good verdict still needs, most useful first."""
    return [
        *_kernel_logs(analysis, coverage),
        *_logs(coverage),
        *_dumps(analysis, coverage),
        *_places(coverage),
        *_bug_reports(analysis, coverage),
        *_zones(analysis),
    ]


def is_core(want: Want) -> bool:
    return want["what"].startswith(CORE)


def _is_of_a_job(coverage: Coverage) -> bool:
    return bool(coverage["ranks"]["expected"]) or coverage["job_logs"] > 0


def _without(coverage: Coverage, have: Sequence[int]) -> list[int]:
    """Ranks that are expected and not among `have`."""
    return sorted(set(coverage["ranks"]["expected"]) - set(have))


def of_the_job(hosts: Sequence[HostCoverage]) -> Sequence[HostCoverage]:
    """Those that ranks ran on; all where that is not known of any."""
    return [h for h in hosts if h["ranks"]] or hosts


def _kernel_logs(analysis: Analysis, coverage: Coverage) -> Iterator[Want]:
    hosts, unknown = coverage["hosts"], coverage["kernel_logs_of_unknown_host"]
    lacking = [h["host"] for h in of_the_job(hosts) if not h["kernel_log"]]
    command = f"sudo journalctl -k{_since(analysis)} -o short-iso-precise > kernel-$(hostname).log"
    may_be_theirs = bool(unknown) and len(lacking) <= len(unknown)
    if lacking and not may_be_theirs:
        yield {
            "what": f"kernel log of {some_names(lacking)}",
            "why": "the driver's and the kernel's own words: Xid, PCIe, out of memory, disks, links",
            "command": command,
        }
    elif not hosts and not unknown:
        yield {
            "what": "kernel logs of all hosts",
            "why": "no kernel log of any host is here: Xid, PCIe, out of memory, disks and links stand there",
            "command": command,
        }
    if unknown and (_is_of_a_job(coverage) or len(hosts) > 1):
        yield {
            "what": f"the host of {some_names(p.rsplit('/', 1)[-1] for p in unknown)}",
            "why": "nothing in it says whose kernel log it is",
            "command": "put each host's files into a folder of its name, e.g. node-a/dmesg.txt",
        }


def _logs(coverage: Coverage) -> Iterator[Want]:
    lacking = _without(coverage, coverage["ranks"]["with_log"])
    if not _is_of_a_job(coverage):
        yield {
            "what": "the job's log of all ranks, and its Flight Recorder dumps",
            "why": "there is no trace of a training job: its output and its dumps tell who waited for whom",
            "command": f"{LAUNCH} (or srun --output)",
        }
    elif not coverage["ranks"]["expected"]:
        yield {
            "what": "log of each rank",
            "why": "the job's log does not say which rank wrote what",
            "command": f"{LAUNCH} (or srun --label)",
        }
    elif lacking:
        yield {
            "what": f"log of {phrases.ranks(lacking)}",
            "why": "a rank without a log can be neither blamed nor cleared by its own words",
            "command": f"{LAUNCH} (or srun --output)",
        }


def _dumps(analysis: Analysis, coverage: Coverage) -> Iterator[Want]:
    if not _is_of_a_job(coverage):
        return
    have = coverage["ranks"]["with_dump"]
    if not have:
        yield {
            "what": "Flight Recorder dumps of all ranks",
            "why": "they show who never came; for the next run set",
            "command": _recorder_setting(analysis),
        }
    elif lacking := _without(coverage, have):
        yield {
            "what": f"Flight Recorder dump of {phrases.ranks(lacking)}",
            "why": "it shows whether that rank came to the collective at all",
            "command": _find_dumps(lacking),
        }


def _places(coverage: Coverage) -> Iterator[Want]:
    """Where each rank ran, or at least on which card."""
    if not _is_of_a_job(coverage):
        return
    ranks, hosts = coverage["ranks"], coverage["hosts"]
    lacking = _without(coverage, ranks["with_host"])
    if lacking and (len(hosts) != 1 or len(lacking) == len(ranks["expected"])):
        yield {
            "what": f"host of {phrases.ranks(lacking)}",
            "why": "no file says where they ran, so host logs cannot be laid to them",
            "command": "NCCL_DEBUG=INFO in the job's log, or --hosts FILE (rank host GPU)",
        }
    elif len(ranks["with_gpu"]) < len(ranks["expected"]) and not any(h["nvidia_smi"] for h in hosts):
        yield {
            "what": "which GPU each rank ran on",
            "why": "to lay a lost card to a rank",
            "command": "nvidia-smi -L > nvidia-smi-$(hostname).txt",
        }


def _bug_reports(analysis: Analysis, coverage: Coverage) -> Iterator[Want]:
    hurt = longest_names({e.host for e in analysis.events if e.role == "cause" and e.cause in GPU_FAULTS and e.host})
    reported = {short(h["host"]) for h in coverage["hosts"] if h["bug_report"]}
    if lacking := [h for h in hurt if short(h) not in reported]:
        yield {
            "what": f"NVIDIA bug report of {some_names(lacking)}",
            "why": "its GPU failed: state of all cards, slots and links; before a reboot if it can be had",
            "command": "sudo nvidia-bug-report.sh",
        }


def _zones(analysis: Analysis) -> Iterator[Want]:
    assumed = sorted({c.host for c in analysis.clocks if c.basis == "assumed" and c.host})
    if assumed and len(analysis.clocks) > 1:
        yield {
            "what": f"time zone of {some_names(assumed)}",
            "why": "its log writes none, and times of several logs are to be compared",
            "command": "date +%:z on that host, then --timezone (e.g. +02:00)",
        }


def _recorder_setting(analysis: Analysis) -> str:
    """How to switch the Flight Recorder on, in the version of PyTorch that wrote the logs."""
    from nccl_forensics.verdict import advice
    from nccl_forensics.verdict.case import Case
    from nccl_forensics.when.aligned import Aligned

    aligned = Aligned(analysis.events, analysis.clocks, frozenset())
    case = Case(analysis.events, analysis.known, analysis.collectives, aligned, analysis.rows)
    return advice.recorder_setting(case).replace("`", "")


def _since(analysis: Analysis) -> str:
    """`--since` a day before the first incident, if that has a date: the host's own clock may differ by a zone."""
    times = [
        t for i in analysis.incidents for t in (i.onset_ns, i.detected_ns) if t is not None and moments.is_dated(t)
    ]
    if not times:
        return ' --since "YYYY-MM-DD"'
    day = moments.calendar(min(times) // 1000) - timedelta(days=1)
    return f' --since "{day:%Y-%m-%d}"'


def _find_dumps(ranks: Sequence[int]) -> str:
    numbers = ",".join(map(str, ranks[:8])) + (",…" if len(ranks) > 8 else "")
    which = f"{{{numbers}}}" if len(ranks) > 1 else numbers
    return f"ls -l /tmp/nccl_trace_rank_{which} ~/.cache/torch/comm_lib_trace_rank_{which} (or TORCH_FR_DUMP_TEMP_FILE)"


MOST_NAMES = 6
"""Names that are all told; of more, one less and how many are left."""


def some_names(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return phrases.listing(found, most=MOST_NAMES if len(found) <= MOST_NAMES else MOST_NAMES - 1)
