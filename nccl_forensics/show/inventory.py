"""Plain-text answers for the terminal: `inspect` (did the customer send enough?) and `xid`.

`survey` makes the answer as data, which `inspect --json` writes beside the contract's fields; `text` prints it: first
what is there and what is missing for ranks and hosts, then how to get it, then every file.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from nccl_forensics.intake.sniff import KERNEL_FORMATS
from nccl_forensics.text import moments, phrases
from nccl_forensics.text.visible import visible

if TYPE_CHECKING:
    from nccl_forensics.analysis import Analysis
    from nccl_forensics.model import Event, InputRow, Role


WIDTH = 100
DUMP = "flight-recorder"
TELLING = 3
"""Kinds named for each file."""
ALIKE = 6
"""More files than this of one format in one folder are shown as one row. Our judgement."""
LONGEST_LIST = 30
"""Rows of hosts, and of files, that are printed; the rest is counted (all are in the JSON)."""
MOST_PROBLEMS = 12
GPU_FAULTS = frozenset(
    {"gpu_off_bus", "gpu_memory", "gpu_firmware", "nvlink", "gpu_other", "pcie_link", "psu_rail_loss"}
)
"""Causes after which nvidia-bug-report.log shows more than the kernel's log does."""
SCRIPT = "`nccl-forensics collect-script > collect.sh`, then `sudo sh collect.sh -l JOB_LOG` on that node"
ROLES: tuple[Role, ...] = ("cause", "symptom", "consequence", "context")


def survey(analysis: Analysis) -> dict[str, Any]:
    """`files`, `coverage`, `missing`: JSON-ready. Times are RFC 3339 UTC, or null where the year is not known."""
    by_file: dict[str, list[Event]] = defaultdict(list)
    for event in analysis.events:
        by_file[event.evidence.source].append(event)
    rows = [r for r in analysis.rows if r.status in ("read", "partial")]
    coverage = _coverage(analysis, rows, by_file)
    return {
        "files": [_file(row, by_file.get(row.path, ()), analysis) for row in analysis.rows],
        "coverage": coverage,
        "missing": _missing(analysis, coverage),
    }


def _file(row: InputRow, events: Sequence[Event], analysis: Analysis) -> dict[str, Any]:
    counts = Counter(e.role for e in events)
    ranks = sorted({e.rank for e in events if e.rank is not None} | ({row.rank} if row.rank is not None else set()))
    clocks = sorted({e.clock for e in events if e.clock is not None})
    return {
        "path": row.path,
        "ranks": ranks[:4096],
        "span": [_to_the_second(row.first_ns), _to_the_second(row.last_ns)] if row.first_ns is not None else None,
        "clock": _clock(events, {c.clock: c for c in analysis.clocks}, clocks),
        "roles": {role: number for role in ROLES if (number := counts[role])},
        "telling": _telling(events),
    }


def _to_the_second(ns: int | None) -> str | None:
    return None if ns is None else moments.timestamp(ns // 1000, moments.TO_THE_SECOND)


def _telling(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The kinds that say most: causes before symptoms, severe before mild, rare before common."""
    weight = {"critical": 0, "error": 1, "warning": 2, "info": 3}
    best: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    for event in events:
        number = event.details.get("xid", event.details.get("sxid"))
        name = f"{event.kind} {number}" if number is not None else event.kind
        counts[name] += event.repeats
        rank = (ROLES.index(event.role), weight[event.severity])
        best[name] = min(best.get(name, rank), rank)
    order = sorted(best, key=lambda name: (best[name], counts[name] if best[name][0] < 3 else -counts[name], name))
    return [{"kind": name, "count": counts[name], "role": ROLES[best[name][0]]} for name in order[:TELLING]]


BASIS = {
    "reference": "zone written",
    "declared": "zone given with --timezone",
    "shared-event": "zone told by another line or log",
    "collectives": "zone told by the collectives",
    "assumed": "zone not written, read as UTC",
    "boot-time": "uptime, placed by a line that has the time",
}


def _clock(events: Sequence[Event], clocks: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """In words, how this file's times were read."""
    if not events:
        return None
    found = [BASIS.get(clocks[n].basis, clocks[n].basis) for n in names if n in clocks]
    timed = [e for e in events if e.time_ns is not None]
    if not timed:
        uptime = any(e.stamp is not None and e.stamp.boot_ns is not None for e in events)
        return "uptime only, no wall clock" if uptime else "no times"
    if not any(moments.is_dated(e.time_ns) for e in timed):
        found.append("no year (give --year)")
    return "; ".join(dict.fromkeys(found)) or None


def _coverage(analysis: Analysis, rows: Sequence[InputRow], by_file: Mapping[str, Sequence[Event]]) -> dict[str, Any]:
    """Who is covered by what: kernel logs for each host, log and dump for each rank."""
    from nccl_forensics.names import short
    from nccl_forensics.who.files import OF_OTHERS

    known, events = analysis.known, analysis.events
    formats = {r.path: r.format for r in rows}
    dumps = {r.rank for r in rows if r.format == DUMP and r.rank is not None} | {
        c.rank for c in analysis.collectives.counters if c.source is not None and formats.get(c.source) == DUMP
    }
    hosts_files = {p for p, f in formats.items() if f in KERNEL_FORMATS}
    logs = {
        e.rank
        for e in events
        if e.rank is not None
        and e.kind not in OF_OTHERS
        and formats.get(e.evidence.source) != DUMP
        and e.evidence.source not in hosts_files
    } | {r.rank for r in rows if r.rank is not None and r.format not in (DUMP, "error-json")}
    seen = {r.rank for r in analysis.ranks} | set(known.ranks) | logs | dumps
    seen |= {m for g in analysis.collectives.groups for m in g.members}
    expected = set(range(known.world_size or known.at_least)) | seen
    placed = {r: p.host for r, p in known.ranks.items() if p.host}
    kernel: dict[str | None, list[str]] = defaultdict(list)
    reports, smi = set(), set()
    for row in rows:
        host = row.host or next((e.host for e in by_file.get(row.path, ()) if e.host), None)
        if row.format in KERNEL_FORMATS:
            kernel[host].append(row.path)
        if row.format == "nvidia-bug-report":
            reports.add(host)
        if row.format == "nvidia-smi":
            smi.add(host)
    names = _names(
        [*placed.values(), *(h for h in (*kernel, *reports, *smi) if h), *(e.host for e in events if e.host)]
    )
    on: dict[str, list[int]] = defaultdict(list)
    for rank, at in placed.items():
        on[short(at)].append(rank)
    files: dict[str, list[str]] = defaultdict(list)
    for where, found in kernel.items():
        if where:
            files[short(where)] += found
    reported, shown = {short(h) for h in reports if h}, {short(h) for h in smi if h}
    table = []
    for name in names:
        mine, paths = sorted(on[short(name)]), files[short(name)]
        table.append(
            {
                "host": name,
                "ranks": mine,
                "kernel_log": bool(paths),
                "kernel_files": paths[:50],
                "bug_report": short(name) in reported,
                "nvidia_smi": short(name) in shown,
                "logs": sorted(set(mine) & logs),
                "dumps": sorted(set(mine) & dumps),
            }
        )
    return {
        "world_size": known.world_size,
        "job_logs": sum(r.format == "job-log" and r.events > 0 for r in rows),
        "ranks": {
            "expected": sorted(expected),
            "with_log": sorted(logs & expected),
            "with_dump": sorted(dumps & expected),
            "with_gpu": sorted(r for r, p in known.ranks.items() if p.gpu is not None and (p.gpu.pci or p.gpu.uuid)),
            "with_host": sorted(placed),
        },
        "hosts": table,
        "kernel_logs_of_unknown_host": kernel.get(None, [])[:50],
    }


def _names(found: Iterable[str]) -> list[str]:
    """Each machine once, by its longest name, in the order in which people count."""
    kept: dict[str, str] = {}
    from nccl_forensics.names import short

    for name in found:
        key = short(name)
        if len(name) > len(kept.get(key, "")):
            kept[key] = name
    return sorted(kept.values(), key=lambda n: [int(x) if x.isdecimal() else x for x in re.split(r"(\d{1,9})", n)])


def _missing(analysis: Analysis, coverage: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a good verdict still needs, most useful first: what, why, and the command that gets it."""
    found: list[dict[str, str]] = []

    def ask(what: str, why: str, command: str) -> None:
        found.append({"what": what, "why": why, "command": command})

    ranks, hosts = coverage["ranks"], coverage["hosts"]
    expected = ranks["expected"]
    job = bool(expected) or coverage["job_logs"] > 0
    running = [h for h in hosts if h["ranks"]] or hosts
    no_kernel = [h["host"] for h in running if not h["kernel_log"]]
    unknown = coverage["kernel_logs_of_unknown_host"]
    command = f"sudo journalctl -k{_since(analysis)} -o short-iso-precise > kernel-$(hostname).log"
    if no_kernel and not (unknown and len(no_kernel) <= len(unknown)):
        why = "the driver's and the kernel's own words: Xid, PCIe, out of memory, disks, links"
        ask(f"kernel log of {_list(no_kernel)}", why, command)
    elif not hosts and not unknown:
        why = "no kernel log of any host is here: Xid, PCIe, out of memory, disks and links stand there"
        ask("kernel logs of all hosts", why, command)
    if unknown and (job or len(hosts) > 1):
        ask(
            f"the host of {_list(p.rsplit('/', 1)[-1] for p in unknown)}",
            "nothing in it says whose kernel log it is",
            "put each host's files into a folder of its name, e.g. node-a/dmesg.txt",
        )
    no_log = sorted(set(expected) - set(ranks["with_log"]))
    if not job:
        why = "there is no trace of a training job: its output and its dumps tell who waited for whom"
        what = "the job's log of all ranks, and its Flight Recorder dumps"
        ask(what, why, "torchrun --log-dir logs --redirects 3 --tee 3 ... (or srun --output)")
    elif not expected:
        why = "the job's log does not say which rank wrote what"
        ask("log of each rank", why, "torchrun --log-dir logs --redirects 3 --tee 3 ... (or srun --label)")
    elif no_log:
        why = "a rank without a log can be neither blamed nor cleared by its own words"
        ask(
            f"log of {phrases.ranks(no_log)}",
            why,
            "torchrun --log-dir logs --redirects 3 --tee 3 ... (or srun --output)",
        )
    no_dump = sorted(set(expected) - set(ranks["with_dump"]))
    if job and ranks["with_dump"] and no_dump:
        why = "it shows whether that rank came to the collective at all"
        ask(f"Flight Recorder dump of {phrases.ranks(no_dump)}", why, _find_dumps(no_dump))
    elif job and not ranks["with_dump"]:
        from nccl_forensics.verdict import advice
        from nccl_forensics.verdict.case import Case

        case = Case(analysis.events, analysis.known, analysis.collectives, _aligned(analysis), analysis.rows)
        setting = advice.recorder_setting(case).replace("`", "")
        ask("Flight Recorder dumps of all ranks", "they show who never came; for the next run set", setting)
    unplaced = sorted(set(expected) - set(ranks["with_host"]))
    if job and unplaced and (len(hosts) != 1 or len(unplaced) == len(expected)):
        why = "no file says where they ran, so host logs cannot be laid to them"
        ask(
            f"host of {phrases.ranks(unplaced)}",
            why,
            "NCCL_DEBUG=INFO in the job's log, or --hosts FILE (rank host GPU)",
        )
    elif job and len(ranks["with_gpu"]) < len(expected) and not any(h["nvidia_smi"] for h in hosts):
        ask("which GPU each rank ran on", "to lay a lost card to a rank", "nvidia-smi -L > nvidia-smi-$(hostname).txt")
    from nccl_forensics.names import short

    hurt = _names({e.host for e in analysis.events if e.role == "cause" and e.cause in GPU_FAULTS and e.host})
    reported = {short(x["host"]) for x in hosts if x["bug_report"]}
    without = [h for h in hurt if short(h) not in reported]
    if without:
        why = "its GPU failed: state of all cards, slots and links; before a reboot if it can be had"
        ask(f"NVIDIA bug report of {_list(without)}", why, "sudo nvidia-bug-report.sh")
    assumed = sorted({c.host for c in analysis.clocks if c.basis == "assumed" and c.host})
    if assumed and len(analysis.clocks) > 1:
        why = "its log writes none, and times of several logs are to be compared"
        ask(f"time zone of {_list(assumed)}", why, "date +%:z on that host, then --timezone (e.g. +02:00)")
    return found


def _aligned(analysis: Analysis) -> Any:
    from nccl_forensics.when.aligned import Aligned

    return Aligned(analysis.events, analysis.clocks, frozenset())


def _since(analysis: Analysis) -> str:
    """`--since` two hours before the first incident, if that has a date; the host's own clock may differ by a zone."""
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


def _list(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return phrases.listing(found, most=6 if len(found) <= 6 else 5)


def text(doc: Mapping[str, Any]) -> str:
    """What is there, what is missing and how to get it, then file by file. `doc` has `survey`'s fields too."""
    lines = [_headline(doc), ""]
    lines += _table(doc["coverage"])
    if doc["missing"]:
        lines += ["", "To get (most useful first):"]
        for number, one in enumerate(doc["missing"], 1):
            lines += _wrap(f"{number}. {one['what']}: {one['why']}", "   ", "      ", shift=2)
            lines += _wrap(one["command"], "      ", "        ")
        lines += _wrap(f"All of it that a node has, in one file: {SCRIPT}", "  ", "  ")
    lines += ["", "Files (times in UTC, of the lines that matter):"]
    lines += _files(doc)
    unread = [c for c in doc["clocks"] if c["basis"] in ("assumed", "boot-time", "shared-event", "collectives")]
    if unread:
        lines += ["", "Clocks:"]
        for clock in unread[:LONGEST_LIST]:
            bar = f" ± {clock['uncertainty_s']:g} s" if clock["uncertainty_s"] is not None else ""
            note = f" ({clock['note']})" if clock["note"] and clock["basis"] != "assumed" else ""
            lines += _wrap(f"{clock['clock']}: {BASIS.get(clock['basis'], clock['basis'])}{bar}{note}", "  ", "    ")
        if len(unread) > LONGEST_LIST:
            lines.append(f"  and {len(unread) - LONGEST_LIST:,} more")
    for problem in doc["problems"][:MOST_PROBLEMS]:
        where = f"{problem['source']}: " if problem["source"] else ""
        lines += _wrap(f"{where}{problem['says']}", "! ", "  ")
    if (more := len(doc["problems"]) - MOST_PROBLEMS) > 0:
        lines.append(f"! and {more:,} more problems (--json lists all)")
    return "\n".join(visible(line.rstrip()) for line in lines)  # names of files are a stranger's


def _wrap(words_: str, first: str, rest: str, *, shift: int = 0) -> list[str]:
    return textwrap.wrap(
        words_,
        WIDTH,
        initial_indent=first[shift:],
        subsequent_indent=rest,
        break_long_words=True,
        break_on_hyphens=False,
    )


def _headline(doc: Mapping[str, Any]) -> str:
    """One line: how much there is, and whether it is enough."""
    states = Counter(r["status"] for r in doc["inputs"])
    size = phrases.size(sum(r["bytes"] for r in doc["inputs"]))
    other = ", ".join(f"{states[s]:,} {s}" for s in ("partial", "skipped", "failed") if states[s])
    files = f"{phrases.count(len(doc['inputs']), 'file')}, {size}" + (f" ({other})" if other else "")
    if not any(states[s] for s in ("read", "partial")):
        return f"{files}: nothing in it could be read."
    core = [m for m in doc["missing"] if m["what"].startswith(("kernel log", "log of", "Flight Recorder", "the job's"))]
    answer = "enough for a verdict" if not core else f"not all that a verdict needs, {phrases.count(len(core), 'gap')}"
    return f"{files}: {answer}."


def _table(coverage: Mapping[str, Any]) -> list[str]:
    ranks, hosts = coverage["ranks"], coverage["hosts"]
    expected = ranks["expected"]
    lines: list[str] = []

    def share(label: str, have: int, of: int, what: str, lacking: str) -> None:
        state = "none" if not have else f"{have:,} of {of:,} {what}"
        lines.append(_cut(f"{label:14}{state:22}{('missing: ' + lacking) if lacking else 'complete'}"))

    running = [h for h in hosts if h["ranks"]] or hosts
    if running:
        lacking = [h["host"] for h in running if not h["kernel_log"]]
        share("Kernel logs", len(running) - len(lacking), len(running), "hosts", _list(lacking))
    elif not coverage["kernel_logs_of_unknown_host"]:
        lines.append(f"{'Kernel logs':14}{'none':22}no host is known")
    for label, key in (("Rank logs", "with_log"), ("Dumps", "with_dump")) if expected else ():
        lacking = sorted(set(expected) - set(ranks[key]))
        share(label, len(ranks[key]), len(expected), "ranks", _numbers(lacking) if ranks[key] else "all")
    if not expected:
        logs = coverage["job_logs"]
        state = phrases.count(logs, "job log") if logs else "none"
        lines.append(f"{'Rank logs':14}{state:22}{'not told which ranks' if logs else 'no trace of a training job'}")
    if unknown := coverage["kernel_logs_of_unknown_host"]:
        lines.append(_cut(f"Unknown host  {phrases.count(len(unknown), 'kernel log'):22}{_list(unknown)}"))
    if len(hosts) > 1 or any(h["ranks"] for h in hosts):
        wide = min(32, max(4, *(len(h["host"]) for h in hosts)))
        lines += ["", f"{'Host':{wide}}  Kernel log  Bug report  nvidia-smi  {'Ranks':14}{'Logs':>9}{'Dumps':>9}"]
        for host in hosts[:LONGEST_LIST]:
            mine = len(host["ranks"])
            lines.append(
                _cut(
                    f"{host['host'][:wide]:{wide}}  {_yes(host['kernel_log']):10}  {_yes(host['bug_report']):10}  "
                    f"{_yes(host['nvidia_smi']):10}  {(_numbers(host['ranks']) if mine else '-')[:13]:14}"
                    f"{_of(host['logs'], mine):>9}{_of(host['dumps'], mine):>9}"
                )
            )
        if len(hosts) > LONGEST_LIST:
            lines.append(f"and {len(hosts) - LONGEST_LIST:,} more hosts (--json lists all)")
    return lines


def _yes(have: bool) -> str:
    return "yes" if have else "NO"


def _of(have: Sequence[int], mine: int) -> str:
    return f"{len(have)} of {mine}" if mine else "-"


def _numbers(ranks: Sequence[int]) -> str:
    return phrases.ranks(ranks).removeprefix("ranks ").removeprefix("rank ") if ranks else ""


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _files(doc: Mapping[str, Any]) -> list[str]:
    """Two or three lines a file; many of one kind in one folder are one row."""
    extra = {f["path"]: f for f in doc["files"]}
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in doc["inputs"]:
        plain = row["status"] == "read" and not extra[row["path"]]["roles"].get("cause")
        place = re.sub(r"\d+", "0", row["path"].rpartition("/")[0])
        groups[(row["format"], place, "read") if plain else ("", row["path"], row["status"])].append(row)
    top = _top([r["path"] for r in doc["inputs"]])
    lines: list[str] = [_cut(f"  all below {top}")] if top else []
    shown = 0
    for group in sorted(groups.values(), key=lambda g: _weight(g, extra)):
        many = len(group) > ALIKE
        for row in group[:1] if many else group:
            shown += 1
            if shown <= LONGEST_LIST * 2:
                lines += _together(group, extra, top) if many else _one(row, extra[row["path"]], top)
    if shown > LONGEST_LIST * 2:
        lines.append(f"  and {shown - LONGEST_LIST * 2:,} more (--json lists all)")
    return lines


def _weight(group: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]) -> tuple[int, str]:
    """Files with causes first, then with symptoms, then the rest, then what could not be read."""
    roles = [extra[r["path"]]["roles"] for r in group]
    if any("cause" in r for r in roles):
        return 0, group[0]["path"]
    if any("symptom" in r for r in roles):
        return 1, group[0]["path"]
    return (2 if group[0]["status"] in ("read", "partial") else 3), group[0]["path"]


def _one(row: Mapping[str, Any], more: Mapping[str, Any], top: str) -> list[str]:
    whose = row["host"] or ("" if more["roles"].keys() <= {"context"} else "host not told")
    if row["rank"] is not None:
        whose += f"{' ' if whose else ''}rank {row['rank']}"
    elif len(more["ranks"]) > 1 and row["format"] not in KERNEL_FORMATS:
        whose += f"{' ' if whose else ''}{phrases.ranks(more['ranks'])}"
    state = "" if row["status"] == "read" else f"{row['status'].upper()}: "
    lines = [
        _cut(
            f"  {row['format'][:18]:18}  {phrases.size(row['bytes']):>9}  {state}{_tail(_below(row['path'], top), 55)}"
        )
    ]
    facts = [whose, _span(more["span"]), more["clock"] or ""]
    if any(facts):
        lines += _wrap(" | ".join(x for x in facts if x), " " * 33, " " * 35)
    told = [f"{k['kind']} ×{k['count']:,}" for k in more["telling"]]
    if told:
        roles = ", ".join(phrases.count(n, role) for role, n in more["roles"].items() if role != "context")
        lines += _wrap(f"{roles or 'nothing alarming'}: {', '.join(told)}", " " * 33, " " * 35)
    if row["reason"]:
        lines += _wrap(row["reason"], " " * 33, " " * 35)
    return lines


def _together(group: Sequence[Mapping[str, Any]], extra: Mapping[str, Any], top: str) -> list[str]:
    first, last = group[0], group[-1]
    ranks = {r for row in group for r in ([row["rank"]] if row["rank"] is not None else extra[row["path"]]["ranks"])}
    spans = sorted(s for row in group if extra[row["path"]]["span"] for s in extra[row["path"]]["span"])
    size = phrases.size(sum(r["bytes"] for r in group))
    told: Counter[str] = Counter()
    for row in group:
        told.update({k["kind"]: k["count"] for k in extra[row["path"]]["telling"]})
    facts = [phrases.ranks(ranks) if ranks else "", _span([spans[0], spans[-1]] if spans else None)]
    facts.append(", ".join(f"{kind} ×{number:,}" for kind, number in told.most_common(TELLING)))
    lines = [
        _cut(f"  {first['format'][:18]:18}  {size:>9}  {len(group):,} files: {_tail(_below(first['path'], top), 45)} …")
    ]
    lines.append(_cut(f"{'':33}… {_tail(_below(last['path'], top), 60)}"))
    return lines + (_wrap(" | ".join(x for x in facts if x), " " * 33, " " * 35) if any(facts) else [])


def _span(span: Sequence[str | None] | None) -> str:
    if not span or span[0] is None or span[1] is None:
        return ""
    first, last = span[0], span[1]
    if first == last:
        return first
    return f"{first} – {last[11:] if len(last) == 19 and last[:11] == first[:11] else last}"


def _top(paths: Sequence[str]) -> str:
    """The folder in which all files are, if it is worth leaving out; '' otherwise."""
    if len(paths) < 2:
        return ""
    first, last = min(paths), max(paths)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    top = first[: first.rfind("/", 0, same) + 1]
    return top if len(top) > 12 else ""


def _below(path: str, top: str) -> str:
    return path[len(top) :] if top and path.startswith(top) else path


def _tail(path: str, most: int = 66) -> str:
    """The end of a path, which tells files apart."""
    return path if len(path) <= most else "…" + path[-most + 1 :]


def xid(entry: Mapping[str, Any]) -> str:
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
