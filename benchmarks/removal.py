"""Who is named when dumps are missing: `python benchmarks/removal.py [--seeds N] [--cases FOLDER] [-v]`.

Every recorded Flight Recorder case, in each way that it is given (pickles, JSON, with the job's logs), loses 1, 2, 4
and half of its dumps at random and is analyzed again. Told for each number: how many of the ranks that were named are
culprits, in how many draws the culprit was named, and in how many it is neither named nor among those that the verdict
cannot exclude (there should be none). A healthy case has no culprit: whoever is named there is named wrongly.

Dumps of torch 2.2 and of gloo do not list the members of the group of all: where there are no logs either, the number
of ranks is given as by `--hosts`, for nobody can find a rank missing of which nothing tells that it exists.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from nccl_forensics.lines import read  # noqa: E402
from nccl_forensics.pipeline import conclude  # noqa: E402
from nccl_forensics.who.identities import Place  # noqa: E402

RECORDED = HERE.parent / "tests" / "cases" / "recorded"
DUMPS = ("fr", "fr-json", "input")
"""Folders of a case that hold dumps, not logs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way in which a case is given, read once."""

    name: str
    culprits: frozenset[int]
    dumps: tuple[read.Parsed, ...]
    others: tuple[read.Parsed, ...]
    """Its logs."""
    places: dict[int, Place] | None
    """Which ranks there are, where no file tells."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What was said of a case without some of its dumps."""

    case: str
    removed: int
    """How many dumps."""
    which: tuple[str, ...]
    """Their files."""
    culprits: frozenset[int]
    named: frozenset[int]
    open: frozenset[int]
    """Those that the verdict cannot exclude."""
    unjudged: frozenset[int]
    """Ranks that lost their dump, and are neither named nor open nor cleared."""

    @property
    def wrong(self) -> frozenset[int]:
        return self.named - self.culprits

    @property
    def lost(self) -> frozenset[int]:
        return self.culprits - self.named - self.open


def cases(folder: Path = RECORDED) -> Iterator[Case]:
    """Those below `folder` with a culprit that is known, or known to be healthy."""
    for path in sorted(folder.glob("fr*/*/expected.json")):
        expect = json.loads(path.read_text(encoding="utf-8"))["expect"]
        if expect.get("incident") is not False and not expect.get("ranks"):
            continue
        home = path.parent
        given = expect.get("runs") or [[x] for x in DUMPS if (home / x).is_dir()]
        for parts in given:
            dumps = read.read([str(home / x) for x in parts if x in DUMPS])
            others = read.read([str(home / x) for x in parts if x not in DUMPS])
            culprits = frozenset(expect.get("ranks") or ())
            places = None if others or _tell_the_world(dumps) else {r: Place() for r in range(_world(dumps, culprits))}
            yield Case(f"{home.name} {'+'.join(parts)}", culprits, tuple(dumps), tuple(others), places)


def _tell_the_world(dumps: Sequence[read.Parsed]) -> bool:
    """Does each dump list the members of the group of all?"""
    return all(any(g.description == "default_pg" and g.members for g in v.groups) for p in dumps for v in p.values)


def _world(dumps: Sequence[read.Parsed], culprits: Iterable[int]) -> int:
    return 1 + max({*culprits, *(r for p in dumps for v in p.values for r in (v.rank, *v.others) if r is not None)})


def draws(case: Case, seeds: Iterable[int], counts: Sequence[int] = (1, 2, 4)) -> Iterator[Draw]:
    """For each number of `counts` and half of the dumps, and each seed, one; the same dumps are analyzed once."""
    total = len(case.dumps)
    known: dict[tuple[int, ...], Draw] = {}
    for count in sorted({*counts, total // 2} - {0}):
        for seed in seeds if count < total else ():
            gone = tuple(sorted(random.Random(f"{case.name} {count} {seed}").sample(range(total), count)))
            if gone not in known:
                known[gone] = _drawn(case, gone)
            yield known[gone]


def _drawn(case: Case, gone: Sequence[int]) -> Draw:
    kept = [x for i, x in enumerate(case.dumps) if i not in gone]
    found = conclude([*kept, *case.others], places=case.places)
    verdicts = [i.verdict for i in found.incidents]
    named = {r for v in verdicts for r in v.ranks}
    open_ = {r for v in verdicts for r in v.cannot_exclude}
    cleared = {r for v in verdicts for r, _ in found.collectives.cleared} | {
        c.rank for v in verdicts for c in v.cleared
    }
    lost = {v.rank for i in gone for v in case.dumps[i].values if v.rank is not None}
    return Draw(
        case=case.name,
        removed=len(gone),
        which=tuple(Path(case.dumps[i].row.path).name for i in gone),
        culprits=case.culprits,
        named=frozenset(named),
        open=frozenset(open_),
        unjudged=frozenset(lost - named - open_ - cleared) if case.culprits else frozenset(),
    )


def table(found: Sequence[Draw]) -> Iterator[str]:
    """Markdown lines: one for each number of dumps removed, and the sum."""
    by_count: dict[Any, list[Draw]] = defaultdict(list)
    for draw in found:
        by_count[draw.removed].append(draw)
    yield "| dumps removed | draws | names | of them right | culprits named | named or open | not judged |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for label, inside in [*sorted(by_count.items()), ("**all**", list(found))]:
        names = sum(len(x.named) for x in inside)
        right = names - sum(len(x.wrong) for x in inside)
        faulty = [x for x in inside if x.culprits]
        hit = sum(x.culprits <= x.named for x in faulty)
        kept = sum(not x.lost for x in faulty)
        ratio = f"{right / names:.3f}" if names else "–"
        share = f"{hit / len(faulty):.2f} | {kept / len(faulty):.3f}" if faulty else "– | –"
        yield f"| {label} | {len(inside)} | {names} | {ratio} | {share} | {sum(bool(x.unjudged) for x in inside)} |"


def main() -> int:
    """Exit status: 0 if the bars are met."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=30, help="draws for each number")
    options.add_argument("--cases", type=Path, default=RECORDED)
    options.add_argument("-v", action="store_true", help="list what is amiss")
    given = options.parse_args()
    found = [draw for case in cases(given.cases) for draw in draws(case, range(given.seeds))]
    if not found:
        print(f"no cases below {given.cases}")
        return 0
    if given.v:
        for draw in dict.fromkeys(x for x in found if x.wrong or x.lost or x.unjudged):
            print(
                f"{draw.case} without {' '.join(draw.which)}: wrong {sorted(draw.wrong)}, lost {sorted(draw.lost)}, "
                f"not judged {sorted(draw.unjudged)}; named {sorted(draw.named)}, open {sorted(draw.open)}"
            )
    print("\n".join(table(found)))
    names = sum(len(x.named) for x in found)
    return int(any(x.lost for x in found) or sum(len(x.wrong) for x in found) > 0.02 * names)


if __name__ == "__main__":
    sys.exit(main())
