"""How often the verdict is right, and whether it knows: `python benchmarks/accuracy.py [--seeds FIRST LAST] [--write]`.

Simulated incidents (tests/simulator: all of its causes, degraded evidence, decoys, healthy and hopeless bundles) are
analyzed one by one and judged by what is known to be true; so are the shared cases, where they are. `--write` puts the
tables into docs/accuracy.md. The simulator is written from the formats, not from the parsers; seeds below 1,000 were
looked at while the rules were written, so the figures to believe are those of seeds that nobody has looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from judging import SURE, judged  # noqa: E402
from simulator import draw, simulate  # noqa: E402

from nccl_forensics import document, pipeline  # noqa: E402

BUCKETS = (0.4, 0.6, 0.8, 0.9, 0.95, 1.01)


@dataclass(frozen=True, slots=True)
class Outcome:
    cause: str
    """The true one."""
    right: bool
    """All that is checked holds: cause, ranks, host, GPUs, sequence number, reporters."""
    named_right: bool
    """Cause and ranks are right, whatever else."""
    abstained: bool
    sure_and_wrong: bool
    blamed: bool
    """A rank that is known to be innocent is named at 0.8 or more."""
    confidence: float | None
    seconds: float
    amiss: str


def run(seed: int) -> Outcome:
    """Simulate, analyze and judge one incident."""
    scenario = draw(seed)
    bundle = simulate(scenario, seed)
    expect: dict[str, Any] = dict(bundle.truth.expect())
    with tempfile.TemporaryDirectory() as folder:
        bundle.write(Path(folder))
        began = time.process_time()
        doc = document.build(pipeline.analyze([folder]))
        seconds = time.process_time() - began
    causes = set(expect["causes"]) if expect.get("causes") else None
    amiss, wrong = judged(doc, expect, causes)
    core = {k: v for k, v in expect.items() if k in ("incident", "open", "causes", "ranks")}
    verdicts = [i["verdict"] for i in doc["incidents"]]
    top = max(verdicts, key=lambda v: v["confidence"], default=None)
    innocent = set(bundle.truth.must_not_blame)
    return Outcome(
        cause=scenario.cause,
        right=not amiss,
        named_right=not judged(doc, core, causes)[0],
        abstained=top is None or top["status"] == "undetermined",
        sure_and_wrong=bool(wrong),
        blamed=top is not None and top["confidence"] >= SURE and bool(innocent & set(top["culprit_ranks"])),
        confidence=top["confidence"] if top is not None else None,
        seconds=seconds,
        amiss="; ".join(amiss),
    )


def tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Markdown lines."""
    by_cause: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_cause[outcome.cause].append(outcome)
    heads = "incidents | all right | cause and ranks right | said it can't tell | sure and wrong | victim blamed"
    yield f"| true cause | {heads} |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, inside in [*sorted(by_cause.items()), ("**all**", list(outcomes))]:
        counts = [len(inside)] + [
            sum(bool(getattr(o, key)) for o in inside)
            for key in ("right", "named_right", "abstained", "sure_and_wrong", "blamed")
        ]
        yield f"| {name} | " + " | ".join(map(str, counts)) + " |"
    yield ""
    yield "| confidence | verdicts | cause and ranks right | mean confidence |"
    yield "| --- | --- | --- | --- |"
    judged_ = [o for o in outcomes if o.confidence is not None and not o.abstained]
    gap = 0.0
    for low, high in pairwise(BUCKETS):
        inside = [o for o in judged_ if low <= (o.confidence or 0) < high]
        if inside:
            share = sum(o.named_right for o in inside) / len(inside)
            mean = sum(o.confidence or 0 for o in inside) / len(inside)
            gap += abs(share - mean) * len(inside) / len(judged_)
            yield f"| {low:g}–{min(high, 1):g} | {len(inside)} | {share:.2f} | {mean:.2f} |"
    brier = sum(((o.confidence or 0) - o.named_right) ** 2 for o in judged_) / max(len(judged_), 1)
    mean_s = sum(o.seconds for o in outcomes) / max(len(outcomes), 1)
    yield ""
    yield f"Of the verdicts that name something: expected calibration error {gap:.3f}, Brier score {brier:.3f}. "
    yield f"CPU {mean_s:.2f} s an incident."


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", nargs=2, type=int, default=(3000, 3300), metavar=("FIRST", "LAST"))
    options.add_argument("--write", action="store_true", help="put the tables into docs/accuracy.md")
    options.add_argument("--json", type=Path, help="one line for each incident")
    options.add_argument("-v", action="store_true", help="list what is amiss")
    given = options.parse_args()
    outcomes = []
    for seed in range(*given.seeds):
        outcomes.append(run(seed))
        if given.v and not outcomes[-1].right:
            print(seed, outcomes[-1].cause, outcomes[-1].confidence, outcomes[-1].amiss, file=sys.stderr)
    text = "\n".join(tables(outcomes))
    print(text)
    if given.json:
        given.json.write_text("".join(json.dumps({k: getattr(o, k) for k in o.__slots__}) + "\n" for o in outcomes))
    if given.write:
        page = HERE.parent / "docs" / "accuracy.md"
        command = f"python benchmarks/accuracy.py --seeds {given.seeds[0]} {given.seeds[1]} --write"
        page.write_text(PAGE.format(command=command, tables=text), encoding="utf-8")


PAGE = """# How often the verdict is right

Made by `{command}`. Each incident is simulated (tests/simulator: every cause it knows, cut and lost files,
clocks that are off, decoys, healthy and hopeless bundles), analyzed, and judged by what is known to be true. *All
right* asks for cause, ranks, host, GPUs, sequence number and reporters together; *sure and wrong* is a wrong cause or
rank at 0.8 or more; a victim is blamed if a rank that is known to be innocent is named at 0.8 or more. Where the
simulator removed the evidence that would tell, naming anything at 0.8 or more counts as wrong, even if it happens to be
true.

{tables}
"""

if __name__ == "__main__":
    main()
