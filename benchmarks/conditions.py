"""How many conditions of the core can be turned round without a test that notices?

    python benchmarks/conditions.py [--count 25] [--seed 1] [--in verdict waits …] [--list]

Draws conditions (of `if`, `while`, conditional expressions and comprehensions) at random from the stages named, turns
each round in a copy of the checkout (`if x:` becomes `if not (x):`) and runs the tests there until the first fails: the
telling ones first, then all. What survives is printed with its place: it is dead, or untested.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ("who", "when", "starts", "waits", "verdict", "show/redact")
TELLING = (
    *(
        "test_snapshots",
        "test_rules",
        "test_watchdogs",
        "test_identify",
        "test_clocks",
        "test_placing",
        "test_jobs",
        "test_runs",
        "test_piles",
    ),
    *(
        "test_diagnose",
        "test_collectives",
        "test_skew",
        "test_window",
        "test_redact",
        "test_cases",
        "test_layout",
        "test_rates",
    ),
)
"""Test files that notice most, and soon."""


@dataclass(frozen=True)
class Condition:
    path: Path
    start: int
    end: int
    """Bytes of the file."""
    line: int
    text: str


def conditions(path: Path) -> Iterator[Condition]:
    """Every condition in a file, but for those that only mypy evaluates."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(ast.parse(source)):
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        for test in tests:
            if test.end_lineno is None or test.end_col_offset is None or ast.unparse(test) == "TYPE_CHECKING":
                continue
            start, end = starts[test.lineno - 1] + test.col_offset, starts[test.end_lineno - 1] + test.end_col_offset
            yield Condition(path.relative_to(ROOT), start, end, test.lineno, source[start:end].decode())


def pass_in(copy: Path, *tests: str) -> bool:
    """Do these tests pass in the copy?"""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        return subprocess.run(command, cwd=copy, capture_output=True, timeout=1800, env=environment).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def survives(condition: Condition, copy: Path) -> bool:
    """Do all tests pass with this condition turned round?"""
    place = copy / condition.path
    source = place.read_bytes()
    before, test, behind = source[: condition.start], source[condition.start : condition.end], source[condition.end :]
    place.write_bytes(before + b"(not (" + test + b"))" + behind)
    telling = [f"tests/{name}.py" for name in TELLING if (copy / "tests" / f"{name}.py").exists()]
    try:
        return pass_in(copy, *telling) and pass_in(copy, "tests")
    finally:
        place.write_bytes(source)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=25)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--in", dest="stages", nargs="+", default=CORE, help="folders of nccl_forensics")
    options.add_argument("--list", action="store_true", help="only say which are drawn")
    given = options.parse_args()
    files = [p for stage in given.stages for p in sorted((ROOT / "nccl_forensics" / stage).rglob("*.py"))]
    every = [c for path in files for c in conditions(path)]
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
    print(f"{len(every)} conditions in {', '.join(given.stages)}; {len(drawn)} drawn with seed {given.seed}")
    if given.list:
        for one in drawn:
            print(f"  {one.path}:{one.line}  {' '.join(one.text.split())[:110]}")
        return
    left = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", ".mypy_cache", ".ruff_cache"))
        if not pass_in(copy, "tests"):
            sys.exit("the tests fail as they are: nothing can be told by turning conditions round")
        for one in drawn:
            alive = survives(one, copy)
            left += alive
            print(
                f"{'SURVIVES' if alive else 'noticed '}  {one.path}:{one.line}  {' '.join(one.text.split())[:110]}",
                flush=True,
            )
    print(f"{left} of {len(drawn)} survive")


if __name__ == "__main__":
    main()
