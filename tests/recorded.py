"""Where whole incidents with their right answers lie: in tests/cases/recorded, and some beside the checkout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nccl_forensics.errors import InputError
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.when.zones import parse_zone

RECORDED = Path(__file__).resolve().parent / "cases" / "recorded"
LABELLED_DUMPS = Path(__file__).resolve().parents[2] / "shared" / "cases" / "fr-nvrx"
"""Another project's labelled dumps, which may not be copied. Read where they are there."""
FIELD = Path(__file__).resolve().parents[2] / "shared" / "field"
"""Cases from the field, which lie beside the checkout. Read where they are there."""
ASIDE = frozenset({"expected.json", "run.json", "README.md", "check.py", "LICENSE-NOTE.txt"})
"""What was not sent by the customer."""
FROM_DUMPS_ALONE = frozenset({"rank_not_arrived", "process_missing", "rank_busy"})
"""What dumps can say of a rank whose log, which is not given, has the reason."""


def answers(*families: str) -> list[Path]:
    """Every expected.json of these families (all, if none is named), by family and name."""
    found = [p for p in RECORDED.glob("*/*/expected.json") if not families or p.parent.parent.name in families]
    if not families or LABELLED_DUMPS.name in families:
        found += LABELLED_DUMPS.glob("*/expected.json")
    return sorted(found, key=lambda p: (p.parent.parent.name, p.parent.name))


@dataclass(frozen=True)
class Run:
    case: Path
    files: tuple[str, ...]
    whole: bool

    @property
    def name(self) -> str:
        return f"{self.case.parent.name}/{self.case.name}" + ("" if self.whole else f" {' '.join(self.files)}")

    @property
    def paths(self) -> list[str]:
        return [str(self.case / f) for f in self.files]

    @property
    def expect(self) -> dict[str, Any]:
        expect: dict[str, Any] = json.loads((self.case / "expected.json").read_text(encoding="utf-8"))["expect"]
        return expect

    @property
    def causes(self) -> set[str] | None:
        """Acceptable causes; None: not checked."""
        causes = set(self.expect["causes"]) if self.expect.get("causes") else None
        only_dumps = self.case.parent.name == "fr" and not self.whole and "logs" not in self.files
        if causes is not None and only_dumps and causes & {"python_exception", "process_signal"}:
            causes |= FROM_DUMPS_ALONE
        return causes


def all_runs(paths: Sequence[Path] | None = None) -> list[Run]:
    """Every run of the cases whose expected.json is given, of all of `answers` if none is."""
    found = []
    for path in answers() if paths is None else paths:
        case = path.parent
        for files in json.loads(path.read_text(encoding="utf-8"))["expect"].get("runs") or [None]:
            everything = tuple(sorted(p.name for p in case.iterdir() if p.name not in ASIDE))
            found.append(Run(case, tuple(files) if files else everything, files is None))
    return found


@cache
def doc_of(run: Run) -> dict[str, Any]:
    """The document of a run, with the options that its expected.json names, as the command makes it."""
    args = run.expect.get("args", [])
    options = dict(zip(args[::2], args[1::2], strict=True))
    try:
        zone = parse_zone(options["--timezone"]) if "--timezone" in options else None
    except InputError:
        zone = None  # the command says so and goes on without it
    year = int(options["--year"]) if "--year" in options else None
    made: dict[str, Any] = json.loads(json.dumps(document.build(analyze(run.paths, zone=zone, year=year))))
    return made
