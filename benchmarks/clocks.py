"""How good are the clocks' error bars? `python benchmarks/clocks.py [--seeds FIRST LAST] [-v]`.

Jobs on several hosts are simulated with clocks that are off by up to 90 s either way, drift by up to 50 ppm, stand in
zones of their own, and in every fourth bundle one of them is set by 2 to 40 s in the middle of the job. Each is
analyzed as a customer's would be. Counted: true offsets between hosts, at the moment for which they are stated, that
lie within the stated bar, and the width of the bars; the times of lines (all that the verdict cites and all by which
the job noticed) that lie within theirs; and claims about the order of two of these lines (`Aligned.before`) against
what really came first.

`--strip zones` (or `years`) takes zones (or years) off the lines of hosts' own logs first (the simulated jobs' logs
write lines in two zones, of which only one is written). What then matters: that no order is claimed
that is wrong, how often it is decided whether a kernel's line that the verdict cites came before the job noticed, and
that nothing is identified where that is left open. `--good`: clocks that agree, so that only zones matter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from simulator import Decoys, Degrade, Scenario, draw, simulate  # noqa: E402

from nccl_forensics.analysis import Analysis  # noqa: E402
from nccl_forensics.catalog import kinds_marked  # noqa: E402
from nccl_forensics.intake.sniff import HOST_FORMATS  # noqa: E402
from nccl_forensics.lines.read import Parsed, read  # noqa: E402
from nccl_forensics.model import Event  # noqa: E402
from nccl_forensics.names import short  # noqa: E402
from nccl_forensics.pipeline import conclude  # noqa: E402
from nccl_forensics.verdict.case import Case  # noqa: E402
from nccl_forensics.when.aligned import Aligned  # noqa: E402

SLACK_NS = 1_000_000
"""The simulator writes lines of one moment microseconds apart."""
MOST_LINES = 60
DRIFT_PPM = 50
HOUR_NS = 3600 * 10**9


@dataclass(slots=True)
class Score:
    inside: int = 0
    offsets: int = 0
    bars_s: tuple[float, ...] = ()
    """Of hosts that have dumps."""
    lines_inside: int = 0
    lines: int = 0
    """Those of hosts that are tied to others, with one true time."""
    claims: int = 0
    wrong: tuple[str, ...] = ()
    decided: int = 0
    open_: int = 0
    """Lines of kernels that the verdict cites whose order against the job's notice is told, or left open."""
    sure_without: int = 0
    """Verdicts of 0.8 or more whose cause rests on such lines alone, and on none whose order is told."""


def scenario(seed: int) -> Scenario:
    """A job on several hosts whose clocks are bad."""
    rng = Random(f"clocks/{seed}")
    drawn = draw(seed)
    return replace(
        drawn,
        nodes=rng.choice((2, 2, 3, 4)),
        per_node=rng.choice((2, 4)),
        tensor=1,
        pipeline=1,
        expert=1,
        cause=rng.choice(("rank_not_arrived", "gpu_off_bus", "rank_busy", "python_exception", "host_oom_kill")),
        culprit=None,
        torch=rng.choice(("2.4", "2.5", "2.6", "2.7", "2.8", "2.10")),
        ring=rng.choice((0, 200, 200, 2000)),
        decoys=Decoys(),
        degrade=Degrade(
            clock_spread_s=90.0, drift_ppm=DRIFT_PPM, wrong_zones=rng.random() < 0.5, step_in_job=rng.random() < 0.25
        ),
    )


def _true_ns(event: Event, by_text: Mapping[str, list[tuple[str, int]]]) -> list[int]:
    """When this line can have been written; several where its text comes several times."""
    said = event.evidence.text
    return [
        ns
        for text, rows in by_text.items()
        if text and (text in said or (len(said) > 20 and said in text))
        for host, ns in rows
        if event.host is None or short(host) == short(event.host)
    ]


def _moments(reading: Callable[[int], int], read_ns: int, late_ns: int) -> set[int]:
    """When a clock read this, or up to `late_ns` later, true UTC: twice, if it was set back in between."""
    found = set()
    for start in (read_ns - HOUR_NS, read_ns + HOUR_NS):
        at = start
        for _ in range(4):
            at -= reading(at) - read_ns
        found |= {at, at + late_ns}
    return found


def stripped(parsed: Parsed, what: str) -> Parsed:
    """What a host's own log gave, without the zones or the years of its stamps."""
    if parsed.row.format not in HOST_FORMATS:
        return parsed
    return replace(parsed, events=tuple(_stripped(event, what) for event in parsed.events))


def _stripped(event: Event, what: str) -> Event:
    stamp = event.stamp
    if stamp is None or stamp.wall_ns is None:
        return event
    if what == "zones":
        details = {k: v for k, v in event.details.items() if k not in ("zone_s", "epoch_ns")}
        return replace(event, stamp=replace(stamp, zone_s=None), details=details)
    since = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=stamp.wall_ns // 10**9)
    moved = int(since.replace(year=1972).timestamp()) * 10**9 + stamp.wall_ns % 10**9
    return replace(event, stamp=replace(stamp, wall_ns=moved, has_year=False))


def _shown(analysis: Analysis, score: Score) -> None:
    """Whether the verdict's own order is told, and what it claims where it is not."""
    of_hosts = {r.path for r in analysis.rows if r.format in HOST_FORMATS}
    for incident in analysis.incidents:
        case = Case(
            events=analysis.events,
            known=analysis.known,
            collectives=analysis.collectives,
            aligned=analysis.aligned or Aligned((), (), frozenset()),
            rows=analysis.rows,
        )
        own = [f for f in incident.verdict.evidence if f.cause == incident.verdict.cause and f.weight > 0]
        cited = [f.events[0] for f in own if f.events and f.events[0].evidence.source in of_hosts]
        told = [case.order_is_shown(event) for event in cited]
        score.decided += sum(told)
        score.open_ += len(told) - sum(told)
        score.sure_without += (
            bool(told) and len(cited) == len(own) and not any(told) and incident.verdict.confidence >= 0.8
        )


def run(seed: int, strip: str | None = None, *, good: bool = False) -> Score:
    """Simulate, analyze and judge one bundle."""
    drawn = scenario(seed)
    if good:
        drawn = replace(drawn, degrade=replace(drawn.degrade, clock_spread_s=0.0, step_in_job=False))
    made = simulate(drawn, seed)
    truth = made.truth
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder))
        parsed = read([folder])
        analysis = conclude([stripped(p, strip) for p in parsed] if strip else parsed)
    aligned = analysis.aligned
    assert aligned is not None
    score = Score()
    _shown(analysis, score)
    from_dumps = any(name.startswith("fr/") for name in made.files)
    readings = {short(h): reading for h, reading in truth.reading_ns.items()}
    reference = aligned.offsets.reference if aligned.offsets is not None else None
    bars = []
    then = 1 << 62
    for host in sorted(aligned.compared - {reference}):
        found = aligned.offsets.newest(host) if aligned.offsets is not None else None
        if found is None or host not in readings or reference not in readings:
            continue
        offset, at_ns = found
        moments = _moments(readings[reference], at_ns, offset.bar_ns)
        then = min(then, *moments)
        true_ns = [readings[host](t) - readings[reference](t) for t in moments]
        score.offsets += 1
        score.inside += any(abs(t - offset.shift_ns) <= offset.bar_ns + SLACK_NS for t in true_ns)
        bars.append(offset.bar_ns / 1e9)
    if from_dumps:
        score.bars_s = tuple(bars)
    by_text: dict[str, list[tuple[str, int]]] = {}
    for host, ns, text in truth.moments:
        by_text.setdefault(text.split("\n", 1)[0].lstrip("\r"), []).append((host, ns))
    cited = [e for i in analysis.incidents for f in i.verdict.evidence for e in f.events]
    noticed = [e for e in aligned.events if e.kind in kinds_marked("notices") or e.role == "cause"]
    lines = list({(e.evidence.source, e.evidence.line): e for e in [*cited, *noticed]}.values())[:MOST_LINES]
    timed = [(e, t) for e in lines if e.time_ns is not None and (t := _true_ns(e, by_text))]
    ahead_ns = readings[reference](then) - then if reference in readings else 0  # whatever is done to it later
    for event, when in timed:
        if len(when) == 1 and reference in readings and aligned.whose(event) in aligned.compared:
            assert event.time_ns is not None
            score.lines += 1
            off_ns = abs(when[0] + ahead_ns - event.time_ns)
            drifted = abs(when[0] - then) * DRIFT_PPM / 1e6
            score.lines_inside += off_ns <= (event.uncertainty_ns or 0) + drifted + SLACK_NS
    score.wrong = tuple(_wrong_claims(aligned, timed, score))
    return score


def _wrong_claims(aligned: Aligned, timed: list[tuple[Event, list[int]]], score: Score) -> Iterator[str]:
    for (a, at), (b, then) in combinations(timed, 2):
        if a.clock == b.clock or (said := aligned.before(a, b)) is None:
            continue
        score.claims += 1
        right = min(at) < max(then) + SLACK_NS if said else min(then) < max(at) + SLACK_NS
        if not right:
            here, there = (f"{e.evidence.source}:{e.evidence.line}" for e in (a, b))
            yield f"{here} {'before' if said else 'after'} {there}"


def _added(scores: Sequence[Score]) -> Iterator[str]:
    """What they come to together, in words."""
    offsets, inside = sum(s.offsets for s in scores), sum(s.inside for s in scores)
    lines, lines_inside = sum(s.lines for s in scores), sum(s.lines_inside for s in scores)
    bars = [bar for s in scores for bar in s.bars_s]
    yield f"offsets within their bar: {inside} of {offsets} ({inside / max(offsets, 1):.1%})"
    yield f"median bar where dumps exist: {median(bars) if bars else float('nan'):.3f} s (of {len(bars)})"
    yield f"lines within their bar: {lines_inside} of {lines} ({lines_inside / max(lines, 1):.1%})"
    yield f"claims of order across clocks: {sum(s.claims for s in scores)}, wrong: {sum(len(s.wrong) for s in scores)}"
    decided, open_ = sum(s.decided for s in scores), sum(s.open_ for s in scores)
    share = decided / max(decided + open_, 1)
    yield f"kernels' lines cited whose order is decided: {decided} of {decided + open_} ({share:.1%})"
    yield f"verdicts of 0.8 or more on lines whose order is open: {sum(s.sure_without for s in scores)}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", nargs=2, type=int, default=(5000, 5500), metavar=("FIRST", "LAST"))
    options.add_argument("-v", action="store_true", help="name the bundles with a wrong claim or offset, and count on")
    options.add_argument("--strip", choices=("zones", "years"), help="take these off all lines first")
    options.add_argument("--good", action="store_true", help="clocks that agree, so that only zones matter")
    given = options.parse_args()
    scores = []
    for seed in range(*given.seeds):
        score = run(seed, given.strip, good=given.good)
        scores.append(score)
        if given.v and (score.wrong or score.inside < score.offsets or score.lines_inside < score.lines):
            outside = f"{score.offsets - score.inside} offsets, {score.lines - score.lines_inside} lines outside"
            print(seed, outside, *score.wrong[:3], sep="; ", file=sys.stderr)
        if given.v and len(scores) % 25 == 0:
            print(f"to {seed}", *_added(scores), sep="; ", file=sys.stderr, flush=True)
    print(f"{len(scores)} bundles, seeds {given.seeds[0]} to {given.seeds[1] - 1}", *_added(scores), sep="\n")


if __name__ == "__main__":
    main()
