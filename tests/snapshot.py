"""What `analyze` says of every case that is kept here or beside it, one fact a line: tests/snapshots/FAMILY.txt.

    python tests/snapshot.py [FAMILY …]

writes them anew; read `git diff tests/snapshots` before you commit it.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import short_form
from recorded import ASIDE, FIELD, LABELLED_DUMPS, Run, all_runs, doc_of
from simulator import draw, simulate
from test_collectives import FAULTS, RINGS, Job, Op, crossed, made_job, ring
from test_jobs import JOBS
from test_piles import PILES, STARTS, write
from test_placing import CASES as PLACING
from test_placing import laid

from nccl_forensics.model import GroupState, RankCounters, Reconstruction
from nccl_forensics.pipeline import analyze
from nccl_forensics.recorder.dumps import Dump
from nccl_forensics.show import document
from nccl_forensics.waits import dumped

FOLDER = Path(__file__).resolve().parent / "snapshots"
HEADER = "=== "
MOST = 8
"""Rows of one table (groups, waits, hosts) that are written out."""

SEEDS = (
    7006,
    7016,
    7018,
    7024,
    7057,
    7064,
    7078,
    7133,
    7191,
    7197,
    7200,
    7212,
    7217,
    7236,
    7264,
    7281,
    7285,
    7290,
    7295,
    7308,
    7317,
    7329,
    7336,
    7346,
    7351,
    7400,
    7402,
    7415,
    7430,
    7448,
)
"""Incidents of the simulator, chosen so that together they come by most ways of the code."""
MODELLED: list[tuple[str, str, int, str, bool, int, set[int]]] = [
    ("hang", "pipeline4x2", 2, "gloo", True, 9, set()),
    ("wrong_op", "pipeline4", 2, "nccl", True, 2000, {2, 3}),
    ("skip", "pipeline4x2", 1, "nccl", True, 9, {2}),
    ("extra", "mesh2x4", 2, "nccl", True, 9, {1, 2}),
    ("missing_send", "pipeline4", 2, "nccl", True, 9, set()),
    ("hang", "experts2x4", 0, "gloo", True, 9, {1, 2}),
    ("hang", "ddp3", 0, "nccl", False, 9, {0, 2}),
    ("wrong_peer", "pipeline4x2", 2, "nccl", True, 9, set()),
    ("missing_recv", "pipeline4x2", 0, "nccl", True, 2000, {3, 4}),
    ("wrong_dtype", "ddp3", 0, "nccl", False, 2000, {0}),
    ("hang", "ddp3", 0, "gloo", False, 2000, {0, 2}),
    ("skip", "mesh2x4", 0, "nccl", False, 2000, {2, 3}),
    ("extra", "pipeline4", 2, "nccl", False, 9, set()),
    ("wrong_op", "experts2x4", 2, "nccl", False, 9, {2, 3}),
    ("hang", "mesh2x4", 1, "nccl", False, 2000, {6, 7}),
    ("missing_send", "pipeline4", 2, "gloo", True, 9, set()),
    ("missing_send", "pipeline4x2", 1, "nccl", False, 9, {1}),
    ("hang", "ddp4", 2, "gloo", False, 9, {0, 3}),
    ("skip", "pipeline4", 2, "gloo", False, 2000, set()),
    ("skip", "ddp4", 0, "gloo", False, 9, {0, 3}),
    ("die", "ddp3", 2, "nccl", True, 9, {1, 2}),
    ("hang", "pipeline4x2", 2, "gloo", True, 2000, set()),
    ("skip", "pipeline4x2", 2, "gloo", True, 2000, set()),
    ("hang", "experts2x4", 0, "nccl", False, 2000, {0, 1}),
]
"""Jobs of the model, chosen likewise: fault, layout, seed, backend, whether starts are timed, calls that a dump keeps,
ranks without a dump."""

MIXED = (
    *(49, 91, 102, 263, 323, 422, 443, 488, 492, 631, 909, 1108, 1210, 1251, 1425, 1633),
    *(1903, 2541, 2648, 3470, 3648, 3919, 4090, 4409, 4415, 5779, 7485, 8137, 9298, 9387, 9861, 9920),
    *(10181, 10682, 10986, 11754, 12045, 13880, 15793, 15796, 16105, 16289, 16513, 17667, 19272, 23751),
)
"""Seeds of `_mixed`, chosen likewise."""
AGED = (
    *(100044, 100134, 100184, 100294, 100316, 100392, 100587, 100668, 101790, 102084, 102141, 102417, 102659, 103401),
    *(104581, 105169, 105280, 106063, 106319, 106495, 106498, 106539, 108236, 108403, 109465, 110227, 110273),
)
"""Seeds of jobs whose dumps tell less, chosen likewise."""
LESS = ("m", "n", "s", "ms", "ns", "p", "mp", "nsp", "v", "nsv", "sp")
"""What those do not tell, letter by letter; see `_aged`."""

Doc = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    family: str
    name: str
    told: Callable[[], list[str]]


# --- what is said of one document -------------------------------------------------------------------------------------


def _numbers(found: Iterable[int]) -> str:
    """Whole numbers as people write them: 0-3, 7."""
    spans: list[list[int]] = []
    for one in sorted(set(found)):
        if spans and spans[-1][1] == one - 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _names(found: Iterable[str | None], most: int = 4) -> str:
    names = sorted({x for x in found if x is not None})
    return ", ".join(names) if len(names) <= most else f"{names[0]} … {names[-1]} ({len(names)})"


def _time(text: str | None) -> str:
    return "–" if text is None else text.replace("T", " ").rstrip("Z")[:23]


def _span(first: str, last: str) -> str:
    return _time(first) if first == last else f"{_time(first)} to {_time(last)[11:]}"


def _line(*parts: str | None, by: str = "; ") -> str:
    return by.join(" ".join(p.split()) for p in parts if p)


def _cut(text: str | None, most: int = 70) -> str:
    """As much of a sentence as tells it from others."""
    plain = " ".join((text or "").split())
    return plain if len(plain) <= most else plain[: most - 1].rstrip() + "…"


def _if(word: str, value: object) -> str:
    return f"{word} {value}" if value not in (None, "", [], {}) else ""


def _card(gpu: Mapping[str, Any]) -> str:
    name = " ".join(str(gpu[k]) for k in ("pci", "uuid", "serial", "model") if gpu[k] is not None)
    return f"{gpu['index']}={name}" if gpu["index"] is not None else name


def _bar(seconds: float | None) -> str:
    return "" if seconds is None else f" ±{seconds:.3g}"


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['source']}:{row['line']}" if row["line"] is not None else str(row["source"])


def _group(group: Mapping[str, Any]) -> str:
    stood = [_if(k, _numbers(group.get(k, ()))) for k in ("arrived", "started", "completed", "missing", "no_data")]
    sizes = [_if(k, group.get(k)) for k in ("numel_in", "numel_out", "timeout_ms")]
    least = " at least" if group.get("members_at_least") else ""
    name = group.get("name", group.get("process_group"))
    return _line(
        f"{name} {group.get('description') or ''} {group.get('backend') or ''}: {group['op']} {group['seq']}",
        _if(f"members{least}", _numbers(group["members"])),
        *stood,
        *sizes,
        group.get("note"),
    )


def _who(verdict: Mapping[str, Any]) -> Iterator[str]:
    yield _if("ranks", _numbers(verdict["culprit_ranks"]))
    yield _if("hosts", _names(verdict["culprit_hosts"], 8))
    yield _if("gpus", ", ".join(_line(g["host"], _card(g), by=" ") for g in verdict["culprit_gpus"]))


def _evidence(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Each finding with the lines that it stands on; its sentence where the summary has not said it."""
    found: list[str] = []
    for row in verdict["evidence"]:
        if row["weight"] is None:
            found[-1] += f" {_place(row)}"
        else:
            inferred = " inferred" if row["inference"] else ""
            says = "" if row["says"].rstrip(".") in verdict["summary"] else f" “{_cut(row['says'], 160)}”"
            around = f" [{len(row['before'])}+{len(row['after'])}]" if row["before"] or row["after"] else ""
            found.append(f"evidence {row['weight']:+.1f}{inferred}{says} in {_place(row)}{around}")
    yield from found


def _beside(one: Mapping[str, Any]) -> str:
    what = " ".join(str(v) for k, v in sorted(one.items()) if k not in ("says", "source", "line") and v is not None)
    place = f"{one['source']}:{one.get('line')}" if one.get("source") else ""
    return _line(f"contributing {what} {place}", _cut(str(one.get("says", "")), 120), by=": ")


def _incident(incident: Mapping[str, Any]) -> Iterator[str]:
    verdict = incident["verdict"]
    named = [_if("job", incident.get("job")), _if("attempt", incident.get("attempt"))]
    yield _line(f"{verdict['status']} {verdict['cause']} {verdict['confidence']:.2f}", *_who(verdict), *named)
    yield from (f"  {line}" for line in _why(incident, verdict))


def _why(incident: Mapping[str, Any], verdict: Mapping[str, Any]) -> Iterator[str]:
    yield _line(verdict["summary"])
    yield _line(
        f"onset {_time(incident['onset'])}{_bar(incident['onset_uncertainty_s'])}",
        _if("written", incident.get("onset_written")),
        f"noticed {_time(incident['detected'])}",
        f"ended {_time(incident['ended'])}",
        "zone not written" if incident.get("zone_not_written") else "",
    )
    groups = incident["groups"][:MOST]
    stuck = incident["collective"]
    if stuck and groups and (groups[0]["name"], groups[0]["seq"]) == (stuck["process_group"], stuck["seq"]):
        stuck, groups = {**stuck, **groups[0]}, groups[1:]
    if stuck:
        yield "in " + _group(stuck)
    yield from _evidence(verdict)
    for other in verdict["alternatives"]:
        yield _line(f"or {other['cause']} {other['confidence']:.2f}", *_who(other), _cut(other["why_not"], 70))
    for one in verdict["cleared"]:
        where = f" ({_place(one)})" if one["source"] else ""
        yield _line(f"innocent {one['who']}{where}", _cut(one["why"], 30), by=": ")
    for word, found in (("reporting", verdict["reporting_ranks"]), ("cannot exclude", verdict["cannot_exclude"])):
        if found:
            yield f"{word} {_numbers(found)}"
    yield from (_beside(one) for one in incident["contributing"])
    if incident["cost"]:
        yield "cost " + ", ".join(f"{k} {v}" for k, v in sorted(incident["cost"].items()) if v is not None)
    yield _line("collect", " | ".join(_cut(what, 28) for what in verdict["missing_evidence"]), by=": ")
    steps = (_cut(x["do"], 32) + (f" `{_cut(x['command'], 50)}`" if x["command"] else "") for x in verdict["actions"])
    yield _line("do", " | ".join(steps), by=": ")
    yield from ("group " + _group(g) for g in groups)
    waits: dict[tuple[object, ...], list[int]] = {}
    for wait in incident["waits"]:
        waits.setdefault((_numbers(wait["waited"]), wait["why"], wait["group"], wait["seq"]), []).append(wait["waiter"])
    for (waited, why, group, seq), waiters in list(waits.items())[:MOST]:
        yield _line(f"{_numbers(waiters)} wait for {waited or 'nobody'} in {group} {seq}", _cut(str(why)), by=": ")
    yield from _ranks(incident["ranks"])


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Ranks of which the same is said share a line."""
    same: dict[str, list[Mapping[str, Any]]] = {}
    for one in ranks:
        last = [one[k] for k in ("last_enqueued", "last_started", "last_completed")]
        said = _line(
            f"{one['state']} on {one['host']}",
            _if("waits for", _numbers(one["waiting_on"])),
            _if(
                "last", "/".join("–" if x is None else str(x) for x in last) if any(x is not None for x in last) else ""
            ),
            _if("exit", one["exit"]),
            _cut(one.get("note")),
        )
        same.setdefault(said, []).append(one)
    for said, found in same.items():
        locals_ = _numbers(r["local_rank"] for r in found if r["local_rank"] is not None)
        cards = [_card(r["gpu"]) for r in found if r["gpu"]]
        pids = [str(r["pid"]) for r in found if r["pid"] is not None]
        yield _line(
            f"ranks {_numbers(r['rank'] for r in found)} {said}",
            _if("local", locals_),
            _if("pid", _names(pids)),
            _if("gpu", _names(cards, 2)),
        )


def _events(events: Sequence[Mapping[str, Any]], one_host: bool) -> Iterator[str]:
    everywhere = all(e.get("zone_not_written") for e in events if e["time"] is not None)
    kinds: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for event in events:
        kinds.setdefault((event["kind"], event["role"], event.get("cause") or ""), []).append(event)
    for (kind, role, cause), found in sorted(kinds.items()):
        times = [e["time"] for e in found if e["time"] is not None]
        bars = [e["time_uncertainty_s"] for e in found if e["time_uncertainty_s"] is not None]
        span = f"{_span(min(times), max(times))}{_bar(max(bars))}" if times else "no time"
        listed = {r for e in found if isinstance(e["fields"].get("ranks"), list) for r in e["fields"]["ranks"]}
        yield _line(
            f"{len(found)} {kind} {role} {cause}",
            _if("ranks", _numbers(e["rank"] for e in found if e["rank"] is not None)),
            _if("listed", _numbers(listed)),
            "" if one_host and all(e["host"] for e in found) else _if("hosts", _names(e["host"] for e in found)),
            _if("cards", _names((e["gpu_pci"] for e in found), 2)),
            span,
            _names({e["time_basis"] for e in found} - {"none", "stamp"}),
            _if("boots", _numbers(e["boot"] for e in found if e.get("boot") is not None)),
            _if("repeats", sum(e.get("repeats", 0) for e in found) or None),
            _if("key", sum(e.get("key", False) for e in found) or None),
            "zone not written" if not everywhere and any(e.get("zone_not_written") for e in found) else "",
        )


def _shared(rows: Sequence[Mapping[str, Any]], name: str, *said: str) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """(names, one of the rows, how many) of rows that agree in these fields."""
    same: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        same.setdefault(json.dumps([row[k] for k in said]), []).append(row)
    for found in same.values():
        yield _names((r[name] for r in found), 3), found[0], len(found)


def _incidents(doc: Doc) -> list[str]:
    """What is said of the incidents alone, one fact a line."""
    return [line.rstrip() for incident in doc["incidents"] for line in _incident(incident)]


def told(doc: Doc) -> list[str]:
    """The facts of a document, one a line."""
    said: list[str] = []
    for names, row, _ in _shared(doc["inputs"], "path", "format", "status", "reason", "host", "rank"):
        about = [_if("host", row["host"]), _if("rank", row["rank"]), row["reason"]]
        said.append(_line(f"file {names}: {row['format']} {row['status']}", *about))
    for names, clock, _ in _shared(doc["clocks"], "clock", "offset_s", "uncertainty_s", "basis", "note", "compared"):
        offset = "" if clock["offset_s"] is None else f" {clock['offset_s']:+.6g}"
        tied = "" if clock["compared"] else "alone"
        at = f"clock {names}: {clock['basis']}{offset}{_bar(clock['uncertainty_s'])}"
        said.append(_line(at, tied, _cut(clock["note"], 25)))
    if bare := [h["name"] for h in doc["hosts"] if not h["gpus"]]:
        said.append(_line("hosts", *bare, by=" "))
    for host in [h for h in doc["hosts"] if h["gpus"]][:MOST]:
        said.append(_line(f"host {host['name']}", *(_card(g) for g in host["gpus"])))
    said += _ranks(doc["ranks"])
    said += _events(doc["events"], len(doc["hosts"]) == 1)
    said += _incidents(doc)
    if rates := doc.get("rates"):
        said.append(_line(f"rates {rates['failures']} failures", rates["says"], by=": "))
        said += (_line("offender", one["says"], by=": ") for one in rates["offenders"])
    said += (_line("problem", p["source"], _cut(p["says"], 120), by=": ") for p in doc["problems"])
    return [line.rstrip() for line in said]


def _stood(group: GroupState) -> str:
    return _line(_group({x.name: getattr(group, x.name) for x in fields(group)}), _if("at", "".join(group.frames[:1])))


def _together(rows: Iterable[tuple[str, int]]) -> Iterable[tuple[str, list[int]]]:
    """What is said of ranks, each with all of whom it is said."""
    found: dict[str, list[int]] = {}
    for said, rank in rows:
        found.setdefault(said, []).append(rank)
    return found.items()


def _counted(count: RankCounters) -> str:
    last = (count.last_enqueued, count.last_started, count.last_completed)
    return f"stood at {'/'.join('–' if x is None else str(x) for x in last)} {' '.join(count.frames[:1])}"


def _reconstructed(made: Reconstruction) -> Iterator[str]:
    """The facts of what dumps alone say."""
    if made.healthy:
        yield "healthy"
    for one in made.suspects:
        yield _line(f"suspect {one.cause} {one.weight:.2f}", _if("ranks", _numbers(one.ranks)), one.says)
        yield from (f"  {_cut(e.text, 120)}" for e in one.evidence[:3])
        if one.details:
            yield "  " + ", ".join(f"{k} {v}" for k, v in sorted(one.details.items()))
        if one.group is not None and one.group not in made.groups[:MOST]:
            yield "  in " + _stood(one.group)
    if made.cannot_exclude:
        yield f"cannot exclude {_numbers(made.cannot_exclude)}"
    cleared = _together((_cut(why), rank) for rank, why in made.cleared)
    yield from (f"innocent {_numbers(ranks)}: {why}" for why, ranks in cleared)
    yield from ("group " + _stood(group) for group in made.groups[:MOST])
    waits = ((f"wait for {_numbers(w.waited)} in {w.group} {w.seq}: {_cut(w.why)}", w.waiter) for w in made.waits)
    counted = ((_counted(c), c.rank) for c in made.counters)
    yield from (f"{_numbers(ranks)} {said}" for said, ranks in _together([*waits, *counted]))
    if made.members:
        yield "members " + _line(*(f"{_numbers(g.members)} in {g.name}" for g in made.members))
    yield from (_line("problem", p.says, by=": ") for p in made.problems)


# --- the cases --------------------------------------------------------------------------------------------------------


def _plain(made: Doc, folder: Path | str) -> Doc:
    """As JSON gives it, with paths that begin in the case's folder."""
    text = json.dumps(made, ensure_ascii=False)
    for name in {str(folder), str(Path(folder).resolve())}:
        text = text.replace(f"{name}/", "").replace(name, ".")
    plain: Doc = json.loads(text)
    return plain


def _of_run(run: Run, told: Callable[[Doc], list[str]]) -> list[str]:
    return told(_plain(doc_of(run), run.case))


def _of_sample(folder: Path) -> list[str]:
    found = sorted(str(p) for p in folder.iterdir() if p.name not in ASIDE)
    return told(_plain(document.build(analyze(found)), folder))


def _of_short(path: Path) -> list[str]:
    return told(_plain(document.build(short_form.analyzed(short_form.load(path))), path.parent))


def _of_pile(pile: dict[str, Any]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        write(pile, Path(folder) / "pile")
        return told(_plain(document.build(analyze([f"{folder}/pile"])), f"{folder}/pile"))


def _of_placing(path: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        return told(_plain(document.build(laid(short_form.load(path), Path(folder))), f"{folder}/pile"))


def _of_simulated(seed: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        simulate(draw(seed), seed).write(Path(folder) / "pile")
        return told(_plain(document.build(analyze([f"{folder}/pile"])), f"{folder}/pile"))


def _of_modelled(job: Job, rounds: int, gone: frozenset[int]) -> list[str]:
    dumps = [x for x in job.run(rounds) if x.rank not in gone]
    made = dumped.reconstruct(dumps, expected_world=len(job.programs))
    return [line.rstrip() for line in _reconstructed(made)]


def _modelled() -> Iterator[Case]:
    """Jobs of the model in test_collectives, each with one fault; and again without the dumps of some."""
    for kind in FAULTS:
        for layout in ("ddp4", "mesh2x4", "pipeline4", "pipeline4x2", "experts2x4"):
            for seed in range(2):
                guilty = made_job(kind, layout, seed)[1]
                for word, gone in (("", set()), (" without it", guilty)):
                    if guilty:
                        name = f"{kind} in {layout}, {seed}{word}"
                        yield Case("modelled", name, partial(_of_fault, kind, layout, seed, frozenset(gone)))
    for kind, layout, seed, backend, timing, ring_, lost in MODELLED:
        made = replace(made_job(kind, layout, seed)[0], backend=backend, timing=timing, ring=ring_)
        timed, without = ", timed" * timing, _numbers(lost) or "none"
        name = f"{kind} in {layout}, {seed}: {backend}{timed}, {ring_} calls, without {without}"
        yield Case("modelled", name, partial(_of_modelled, made, 400, frozenset(lost)))
    for seed in MIXED:
        yield Case("modelled", f"mixed, {seed}", partial(_of_mixed, seed))
    for seed in AGED:
        yield Case("modelled", f"aged, {seed} ({LESS[seed % len(LESS)]})", partial(_of_aged, seed))
    circles = {**{name: ring(orders) for name, orders in RINGS.items()}, "send and collective": crossed("sa", "ar")}
    for name, job in circles.items():
        for timing in (False, True):
            made = replace(job, timing=timing, dead=set())
            yield Case(
                "modelled", f"circle of {name}{', timed' * timing}", partial(_of_modelled, made, 200, frozenset())
            )
            yield Case(
                "modelled",
                f"circle of {name}{', timed' * timing}, without rank 1",
                partial(_of_modelled, made, 200, frozenset({1})),
            )


def _mixed(seed: int) -> tuple[Job, set[int]]:
    """A small job whose ranks' last steps differ in any way, and the ranks of which there is no dump."""
    rng = random.Random(seed)
    world = rng.choice([2, 3, 4, 4, 5])
    names = "abcd"[: rng.choice([1, 2, 2, 3, 4])]
    groups = {"0": ("default_pg", list(range(world)))}
    for name in names:
        size = rng.randint(2, world)
        groups[name] = (f"group {name if rng.random() < 0.6 else 'tp'}", sorted(rng.sample(range(world), size)))
    body = [
        Op(rng.choice(["all_reduce", "all_reduce", "_all_gather_base", "barrier"]), g, rng.choice([64, 1]), line=ord(g))
        for g in ["0", *names]
        for _ in range(rng.choice([1, 1, 2]))
    ]
    rng.shuffle(body)
    pair = rng.random() < 0.4 and world > 2
    programs: list[list[Any]] = []
    for rank in range(world):
        mine = [op for op in body if rank in groups[op.group][1]]
        if pair and rank in (0, 1):
            mine.insert(len(mine) // 2, Op("send" if rank == 0 else "recv", "0", 8, peer=1 - rank, line=7))
        last = _spoilt(mine, rng)
        programs.append([*mine, "sync"] * rng.choice([2, 6, 6]) + last)
    job = Job(groups, programs, timing=rng.random() < 0.5, stacks=rng.random() < 0.7)
    job.backend, job.ring = rng.choice(["nccl", "nccl", "nccl", "gloo"]), rng.choice([2000, 2000, 7])
    return job, {rng.randrange(world)} if rng.random() < 0.25 else set()


def _spoilt(step: Sequence[Op], rng: random.Random) -> list[Any]:
    """A step in another order, with a call left out, another one, one more, or a rank that stops; or as it was."""
    last: list[Any] = list(step)
    how = rng.random()
    if how < 0.35:
        rng.shuffle(last)
    elif how < 0.45 and last:
        del last[rng.randrange(len(last))]
    elif how < 0.55 and last:
        last.insert(rng.randrange(len(last)), rng.choice(["hang", "gpu", "die"]))
    elif how < 0.65 and last:
        at = rng.randrange(len(last))
        last[at] = replace(last[at], size=last[at].size + 1, line=99)
    elif how < 0.72 and last:
        last.insert(rng.randrange(len(last)), last[rng.randrange(len(last))])
    return last


def _aged(dump: Dump, less: str) -> Dump:
    """The dump without what older recorders do not write: m members, n names, s counters; or p cut off, v of 2.3."""
    groups = list(dump.groups)
    if "m" in less or "n" in less:
        groups = [replace(g, members=None) for g in groups]
    if "n" in less:
        groups = [replace(g, name=str(g.local_id), description="") for g in groups]
    if "s" in less:
        groups = [replace(g, enqueued=None, started=None, completed=None) for g in groups]
        dump = replace(dump, has_status=False, idle=None)
    if "p" in less and dump.rank == 0:
        dump = replace(dump, partial=True)
    return replace(dump, groups=tuple(groups), version="1.4" if "v" in less else dump.version)


def _of_aged(seed: int) -> list[str]:
    if seed % 3:
        job, gone = _mixed(seed)
    else:
        rng = random.Random(seed)
        kind = rng.choice(list(FAULTS))
        layout = rng.choice(["ddp4", "mesh2x4", "pipeline4", "pipeline4x2", "experts2x4"])
        job, guilty = made_job(kind, layout, rng.randrange(3))
        gone = guilty if rng.random() < 0.4 else set()
    dumps = [_aged(x, LESS[seed % len(LESS)]) for x in job.run(150 if seed % 3 else 400) if x.rank not in gone]
    made = dumped.reconstruct(dumps, expected_world=len(job.programs) if seed % 2 else None)
    return [line.rstrip() for line in _reconstructed(made)]


def _of_mixed(seed: int) -> list[str]:
    job, gone = _mixed(seed)
    return _of_modelled(job, 150, frozenset(gone))


def _of_fault(kind: str, layout: str, seed: int, gone: frozenset[int]) -> list[str]:
    return _of_modelled(made_job(kind, layout, seed)[0], 400, gone)


def _gathered() -> Iterator[Case]:
    for run in all_runs():
        yield Case(run.case.parent.name, run.name, partial(_of_run, run, told if run.whole else _incidents))
    for run in all_runs(sorted(FIELD.glob("*/*/expected.json"))):
        yield Case(f"field-{run.case.parent.name}", run.name, partial(_of_run, run, _incidents))
    for path in sorted((Path(__file__).resolve().parents[1] / "samples").glob("*/expected.json")):
        yield Case("samples", path.parent.name, partial(_of_sample, path.parent))
    for folder in ("rules", "watchdogs", "identify", "clocks"):
        for path in short_form.cases(folder):
            name = path.relative_to(short_form.CASES / folder).with_suffix("").as_posix()
            yield Case(folder, name, partial(_of_short, path))
    for path in PLACING:
        yield Case("placing", path.stem, partial(_of_placing, path))
    for family, piles in (("piles", PILES), ("starts", STARTS), ("jobs", JOBS)):
        for name, pile in piles.items():
            yield Case(family, name, partial(_of_pile, pile))
    yield from _modelled()
    for seed in SEEDS:
        yield Case("simulated", f"{seed} {draw(seed).cause}", partial(_of_simulated, seed))


CASES = list(_gathered())


def is_beside(family: str) -> bool:
    """Are the cases of this family kept beside the checkout?"""
    return family.startswith("field-") or family == LABELLED_DUMPS.name


@cache
def kept(family: str) -> dict[str, list[str]]:
    """Case → its lines, as the file of its family has them."""
    path = FOLDER / f"{family}.txt"
    cases: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line.startswith(HEADER):
            cases[line.removeprefix(HEADER)] = []
        elif line:
            cases[next(reversed(cases))].append(line)
    return cases


def main(families: Sequence[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for family in sorted({c.family for c in CASES if not families or c.family in families}):
        text = ""
        for case in (c for c in CASES if c.family == family):
            text += "\n".join([HEADER + case.name, *case.told(), "", ""])
        (FOLDER / f"{family}.txt").write_text(text, encoding="utf-8")
        print(f"{family}: {len(text):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
