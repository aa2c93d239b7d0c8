"""How good are the clocks' error bars? `python benchmarks/clocks.py [--seeds FIRST LAST] [-v]`.

Jobs on several hosts are simulated with clocks that are off by up to 90 s either way, drift by up to 50 ppm, stand in
zones of their own, and in every fourth bundle one of them is set by 2 to 40 s in the middle of the job. Each is
analyzed as a customer's would be. Counted: true offsets between hosts that lie within the stated bar, the width of
the bars, and claims about the order of two lines (`Aligned.before`, for all lines that the verdict cites and all by
which the job noticed) against what really came first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from simulator import Decoys, Degrade, Scenario, draw, simulate  # noqa: E402

from nccl_forensics import pipeline  # noqa: E402
from nccl_forensics.clocks import Aligned  # noqa: E402
from nccl_forensics.identify import short  # noqa: E402
from nccl_forensics.model import Event  # noqa: E402
from nccl_forensics.rules import DETECTED  # noqa: E402

SLACK_NS = 1_000_000
"""The simulator writes lines of one moment microseconds apart."""
MOST_LINES = 60


@dataclass(slots=True)
class Score:
    inside: int = 0
    offsets: int = 0
    bars_s: tuple[float, ...] = ()
    """Of hosts that have dumps."""
    claims: int = 0
    wrong: tuple[str, ...] = ()


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
            clock_spread_s=90.0, drift_ppm=50.0, wrong_zones=rng.random() < 0.5, step_in_job=rng.random() < 0.25
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


def run(seed: int) -> Score:
    """Simulate, analyze and judge one bundle."""
    made = simulate(scenario(seed), seed)
    truth = made.truth
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder))
        analysis = pipeline.analyze([folder])
    aligned = analysis.aligned
    assert aligned is not None
    score = Score()
    from_dumps = any(name.startswith("fr/") for name in made.files)
    offsets = {short(h): s for h, s in truth.clock_offsets_s.items()}
    reference = aligned.offsets.reference if aligned.offsets is not None else None
    bars = []
    for host in sorted(aligned.compared - {reference}):
        found = aligned.offsets.newest(host) if aligned.offsets is not None else None
        if found is None or host not in offsets or reference not in offsets:
            continue
        true_ns = (offsets[host] - offsets[reference]) * 1e9
        bar_ns = found[0].bar_ns
        score.offsets += 1
        score.inside += abs(true_ns - found[0].shift_ns) <= bar_ns + 2_000_000  # drift since the last meeting
        bars.append(bar_ns / 1e9)
    if from_dumps:
        score.bars_s = tuple(bars)
    by_text: dict[str, list[tuple[str, int]]] = {}
    for host, ns, text in truth.moments:
        by_text.setdefault(text.split("\n", 1)[0].lstrip("\r"), []).append((host, ns))
    cited = [e for i in analysis.incidents for f in i.verdict.evidence for e in f.events]
    noticed = [e for e in aligned.events if e.kind in DETECTED or e.role == "cause"]
    lines = list({(e.evidence.source, e.evidence.line): e for e in [*cited, *noticed]}.values())[:MOST_LINES]
    timed = [(e, t) for e in lines if e.time_ns is not None and (t := _true_ns(e, by_text))]
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", nargs=2, type=int, default=(5000, 5500), metavar=("FIRST", "LAST"))
    options.add_argument("-v", action="store_true", help="name the bundles with a wrong claim or offset")
    given = options.parse_args()
    inside = offsets = claims = 0
    bars: list[float] = []
    wrong = 0
    for seed in range(*given.seeds):
        score = run(seed)
        inside, offsets, claims = inside + score.inside, offsets + score.offsets, claims + score.claims
        bars += score.bars_s
        wrong += len(score.wrong)
        if given.v and (score.wrong or score.inside < score.offsets):
            print(seed, f"{score.offsets - score.inside} offsets outside;", "; ".join(score.wrong[:3]), file=sys.stderr)
    print(f"{given.seeds[1] - given.seeds[0]} bundles, seeds {given.seeds[0]} to {given.seeds[1] - 1}")
    print(f"offsets within their bar: {inside} of {offsets} ({inside / max(offsets, 1):.1%})")
    print(f"median bar where dumps exist: {median(bars) if bars else float('nan'):.3f} s (of {len(bars)})")
    print(f"claims of order across clocks: {claims}, wrong: {wrong}")


if __name__ == "__main__":
    main()
