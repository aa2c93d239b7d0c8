"""The order of the stages: a stage imports only from those above it, and no module goes in a circle."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nccl_forensics"
STAGES = (
    *("errors", "steps", "text", "fields", "model", "catalog", "names"),
    *("intake", "lines", "recorder", "parsers"),
    *("who", "when", "starts", "waits", "verdict", "analysis"),
    *("show", "pipeline", "outputs", "tickets", "cli", "__main__"),
)
"""As the evidence flows (docs/house.md); what stands first is known to all that follow."""
APART = {"samples", "templates", "__init__"}
"""Data, and the bridge to the folders beside the package."""


def modules() -> dict[str, Path]:
    found = {}
    for folder, prefix in ((PACKAGE, ""), (ROOT / "parsers", "parsers.")):
        for path in sorted(folder.rglob("*.py")):
            name = prefix + ".".join(path.relative_to(folder).with_suffix("").parts)
            found[name.removesuffix(".__init__") if name != "__init__" else name] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """The modules of ours that this one names, at its head and inside functions, for mypy alone or not."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nccl_forensics":
            base = (node.module or "").partition(".")[2]
            for one in node.names:
                full = f"{base}.{one.name}" if base else one.name
                yield full if full in MODULES else base or "__init__"


def stage(name: str) -> str:
    return name.split(".")[0]


def test_every_module_is_of_a_stage() -> None:
    assert {stage(name) for name in MODULES} - APART == set(STAGES)


@pytest.mark.parametrize("name", [n for n in MODULES if stage(n) not in APART])
def test_a_stage_imports_only_from_those_above_it(name: str) -> None:
    own = STAGES.index(stage(name))
    backwards = {x for x in imported(name) if stage(x) not in APART and STAGES.index(stage(x)) > own}
    assert not backwards


def test_no_module_goes_in_a_circle() -> None:
    needs = {name: set(imported(name)) & set(MODULES) - {name} for name in MODULES}
    while leaves := {name for name, wanted in needs.items() if not wanted}:
        needs = {name: wanted - leaves for name, wanted in needs.items() if name not in leaves}
    assert not needs


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_module_is_longer_than_a_reader_can_hold(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 900


def test_setup_cfg_lists_every_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = set(setup["options"]["packages"].split())
    inside = {".".join(p.parent.relative_to(ROOT).parts) for p in PACKAGE.rglob("__init__.py")}
    assert listed == inside | {f"nccl_forensics.{x}" for x in ("parsers", "templates", "samples")}


def test_the_minimum_versions_that_ci_tries_are_those_of_setup_cfg() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    needed = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    least = {name: version for text in needed for name, version in re.findall(r"(?m)^([\w-]+) >= ([\d.]+)", text)}
    tried = dict(re.findall(r"(?m)^([\w-]+) == ([\d.]+)", (ROOT / "tests" / "minimum-versions.txt").read_text("utf-8")))
    assert {"click", "regex", "numpy", "pandas", "jinja2", "hyperscan", "isal"} <= set(tried)
    for name, version in tried.items():
        given, wanted = (tuple(map(int, x.split("."))) for x in (version, least[name]))
        assert given[: len(wanted)] == wanted, name
        assert not any(given[len(wanted) :]), name
