"""How often the verdict is right, and whether it knows: `python benchmarks/accuracy.py --seeds FIRST LAST [--write]`.

Simulated incidents (tests/simulator: all of its causes, degraded evidence, decoys, healthy and hopeless bundles) are
analyzed one by one and judged by what is known to be true; so are the shared cases, where they are. `--write` puts the
tables into docs/accuracy.md. The simulator is written from the formats, not from the parsers; seeds below 1,000 were
looked at while the rules were written, so the figures to believe are those of seeds that nobody has looked at.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIRST_RUNS = HERE / "first_runs.md"
"""What new cases gave when they were first run, round by round; kept by hand."""
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from judging import SURE, judged  # noqa: E402
from simulator import CAUSES, draw, simulate  # noqa: E402

from nccl_forensics.catalog import weight  # noqa: E402
from nccl_forensics.pipeline import analyze  # noqa: E402
from nccl_forensics.show import document  # noqa: E402
from nccl_forensics.verdict.weigh import SUREST  # noqa: E402

BUCKETS = (0.4, 0.6, 0.8, 0.9, 0.95, 1.01)
UNKNOWN = 20
"""Our judgement."""


@dataclass(frozen=True, slots=True)
class Outcome:
    cause: str
    """The true one."""
    knowable: bool
    """The bundle tells the cause, the ranks, or both; so does one in which nothing failed."""
    right: bool
    """All that is checked holds: cause, ranks, host, GPUs, sequence number, reporters."""
    named_right: bool
    """Cause and ranks are right, whatever else."""
    true: bool
    """What is named is so, whether or not more could have been named."""
    abstained: bool
    sure_and_wrong: bool
    """A wrong cause, or a rank that is not guilty, at 0.8 or more."""
    beyond: bool
    """At 0.8 or more it names what the bundle does not prove, and it happens to be true."""
    blamed: bool
    """A rank that is known to be innocent is named at 0.8 or more."""
    confidence: float | None
    posterior: float | None
    """Before `confidence_slope`, the cap and rounding."""
    seconds: float
    amiss: str


def run(seed: int, cause: str | None = None) -> Outcome:
    """Simulate, analyze and judge one incident; `cause`: this one, whichever the seed would draw."""
    scenario = draw(seed, cause)
    bundle = simulate(scenario, seed)
    expect: dict[str, Any] = dict(bundle.truth.expect())
    with tempfile.TemporaryDirectory() as folder:
        bundle.write(Path(folder))
        began = time.process_time()
        analysis = analyze([folder])
        doc = document.build(analysis)
        seconds = time.process_time() - began
    causes = set(expect["causes"]) if expect.get("causes") else None
    amiss, wrong = judged(doc, expect, causes)
    core = {k: v for k, v in expect.items() if k in ("incident", "open", "causes", "ranks", "truth")}
    strict = {k: v for k, v in expect.items() if k != "truth"}
    verdicts = [i["verdict"] for i in doc["incidents"]]
    top = max(verdicts, key=lambda v: v["confidence"], default=None)
    first = max((i.verdict for i in analysis.incidents), key=lambda v: v.confidence, default=None)
    truth = bundle.truth
    causes_ok, free = {*truth.acceptable, truth.cause}, truth.ranks_free
    true = top is not None and top["cause"] in causes_ok and (free or set(top["culprit_ranks"]) <= set(truth.ranks))
    innocent = set(truth.must_not_blame)
    return Outcome(
        cause=scenario.cause,
        knowable=not expect.get("open"),
        right=not amiss,
        named_right=not judged(doc, core, causes)[0],
        true=true and not judged(doc, core, causes)[0],
        abstained=top is None or top["status"] == "undetermined",
        sure_and_wrong=bool(wrong),
        beyond=not wrong and bool(judged(doc, strict, causes)[1]),
        blamed=top is not None and top["confidence"] >= SURE and bool(innocent & set(top["culprit_ranks"])),
        confidence=top["confidence"] if top is not None else None,
        posterior=first.posterior if first is not None else None,
        seconds=seconds,
        amiss="; ".join(amiss),
    )


def tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Markdown lines."""
    yield from _bars(outcomes)
    yield ""
    by_cause: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_cause[outcome.cause].append(outcome)
    yield (
        "| true cause | incidents | truth can be known | of these cause and ranks right | and all the rest | said it "
        "can't tell | sure and wrong | sure beyond the evidence | victim blamed |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, inside in [*sorted(by_cause.items()), ("**all**", list(outcomes))]:
        known = [o for o in inside if o.knowable]
        counts = [len(inside), len(known), sum(o.named_right for o in known), sum(o.right for o in known)] + [
            sum(bool(getattr(o, key)) for o in inside) for key in ("abstained", "sure_and_wrong", "beyond", "blamed")
        ]
        yield f"| {name} | " + " | ".join(map(str, counts)) + " |"
    yield ""
    yield "| confidence | verdicts | cause and ranks right | mean confidence |"
    yield "| --- | --- | --- | --- |"
    for low, high, inside in _buckets(outcomes):
        share, mean = _share_and_mean(inside)
        yield f"| {low:g}–{min(high, 1):g} | {len(inside)} | {share:.2f} | {mean:.2f} |"
    named = [o for o in outcomes if o.confidence is not None and not o.abstained]
    brier = sum(((o.confidence or 0) - o.true) ** 2 for o in named) / max(len(named), 1)
    mean_s = sum(o.seconds for o in outcomes) / max(len(outcomes), 1)
    yield ""
    yield f"Brier score of the verdicts that name something: {brier:.3f}. CPU {mean_s:.2f} s an incident."


def _share_and_mean(inside: Sequence[Outcome]) -> tuple[float, float]:
    """(share that is true, mean confidence)."""
    return sum(o.true for o in inside) / len(inside), sum(o.confidence or 0 for o in inside) / len(inside)


def _buckets(outcomes: Sequence[Outcome]) -> Iterator[tuple[float, float, list[Outcome]]]:
    """(from, to, verdicts that name something with such a confidence)."""
    for low, high in pairwise(BUCKETS):
        inside = [o for o in outcomes if o.confidence is not None and not o.abstained and low <= o.confidence < high]
        if inside:
            yield low, high, inside


def _bars(outcomes: Sequence[Outcome]) -> Iterator[str]:
    known = [o for o in outcomes if o.knowable and o.cause != "healthy"]
    hopeless = [o for o in outcomes if o.cause == "hopeless"]
    healthy = [o for o in outcomes if o.cause == "healthy"]
    named = sum(len(inside) for _, _, inside in _buckets(outcomes))
    gap = 0.0
    for _, _, inside in _buckets(outcomes):
        share, mean = _share_and_mean(inside)
        gap += abs(share - mean) * len(inside) / named

    def share_of(some: Sequence[Outcome], right: int) -> str:
        return f"{right / len(some):.1%} ({right} of {len(some)})" if some else "none drawn"

    yield "| what | aim | measured |"
    yield "| --- | --- | --- |"
    rows = (
        ("cause and ranks right where the bundle tells", "≥ 95 %", share_of(known, sum(o.named_right for o in known))),
        ("sure (≥ 0.8) and wrong", "≤ 0.5 %", share_of(outcomes, sum(o.sure_and_wrong for o in outcomes))),
        ("innocent rank blamed", "≤ 0.5 %", share_of(outcomes, sum(o.blamed for o in outcomes))),
        ("hopeless bundle answered undetermined", "≥ 98 %", share_of(hopeless, sum(o.abstained for o in hopeless))),
        ("healthy job without an incident", "100 %", share_of(healthy, sum(o.right for o in healthy))),
        ("expected calibration error", "≤ 0.05", f"{gap:.3f}"),
        ("sure of more than the bundle proves, and true", "–", share_of(outcomes, sum(o.beyond for o in outcomes))),
    )
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def slope(outcomes: Sequence[Outcome]) -> float:
    """The weight `confidence_slope` under which these verdicts are likeliest (logistic regression without intercept).

    The simulator is kinder than the world, where sure verdicts fail for reasons that it does not know: one in
    `UNKNOWN` of its true verdicts is counted as wrong. The fit is on posteriors before the present slope.
    """
    named = [o for o in outcomes if o.confidence is not None and not o.abstained]
    points = [(math.log(p / (1 - p)), o.true) for o in named if (p := o.posterior) is not None and 0 < p < 1]

    def loss(factor: float) -> float:
        total = 0.0
        for odds, true in points:
            said = min(1 / (1 + math.exp(-factor * odds)), SUREST)
            share = 1 - 1 / UNKNOWN if true else 0.0
            total -= share * math.log(said) + (1 - share) * math.log(1 - said)
        return total

    return min((step / 20 for step in range(10, 81)), key=loss)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", nargs=2, type=int, default=(3000, 3300), metavar=("FIRST", "LAST"))
    options.add_argument("--cause", choices=sorted(CAUSES), help="of this cause only")
    options.add_argument("--write", action="store_true", help="put the tables into docs/accuracy.md")
    options.add_argument("--fit", action="store_true", help="print the slope for catalog/weights.toml that fits best")
    options.add_argument("--json", type=Path, help="one line for each incident")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    options.add_argument("-v", action="store_true", help="list what is amiss")
    given = options.parse_args()
    outcomes = []
    seeds = range(*given.seeds)
    with ProcessPoolExecutor(given.jobs) as pool:
        for seed, outcome in zip(seeds, pool.map(partial(run, cause=given.cause), seeds, chunksize=4), strict=True):
            outcomes.append(outcome)
            if given.v and not outcome.right:
                print(seed, outcome.cause, outcome.confidence, outcome.amiss, file=sys.stderr)
    text = "\n".join(tables(outcomes))
    print(text)
    if given.fit:
        print(f"\nconfidence_slope = {slope(outcomes):.2f}, now {weight('confidence_slope'):.2f}")
    if given.json:
        given.json.write_text("".join(json.dumps({k: getattr(o, k) for k in o.__slots__}) + "\n" for o in outcomes))
    if given.write:
        page = HERE.parent / "docs" / "accuracy.md"
        command = f"python benchmarks/accuracy.py --seeds {given.seeds[0]} {given.seeds[1]} --write"
        page.write_text(
            PAGE.format(command=command, tables=text, first_runs=FIRST_RUNS.read_text(encoding="utf-8")),
            encoding="utf-8",
        )


PAGE = """# How often the verdict is right

Made by `{command}`. Each incident is simulated (tests/simulator: every cause it knows, cut and lost files,
clocks that are off, decoys, healthy and hopeless bundles), analyzed, and judged by what is known to be true.

*Truth can be known*: the files of the bundle, as they were written after all losses and cuts, still tell the cause, the
ranks, or both; tests/simulator/evidence.py looks for that in the bytes, in the words of the formats, and asks none of
our parsers. *All the rest* asks for host, GPUs, sequence number and reporters, too. *Sure and wrong* is a wrong cause,
or a rank that is not guilty, at 0.8 or more, also where the rank is right and the cause is not. *Sure beyond the
evidence*: by that rule the bundle does not prove what was named at 0.8 or more, and it is true all the same; until
November 2026 these counted as sure and wrong. *Victim blamed*: a rank that is known to be innocent is named at 0.8 or
more.

{tables}

{first_runs}"""

if __name__ == "__main__":
    main()
