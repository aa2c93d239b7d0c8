"""The examples of CONTRIBUTING.md, done as it says in a copy of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```(?P<form>\w+) (?P<path>[\w./-]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block that says which file it is, or is added to."""
pytestmark = pytest.mark.slow


def apply(copy: Path, form: str, path: str, body: str) -> None:
    """A new file is written, an old one goes on with the block; in a diff, lines with - give way to those with +."""
    place = copy / path
    if form == "diff":
        old = "".join(line[1:] for line in body.splitlines(keepends=True) if line[0] in " -")
        new = "".join(line[1:] for line in body.splitlines(keepends=True) if line[0] in " +")
        text = place.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} has not, or not once:\n{old}"
        place.write_text(text.replace(old, new), encoding="utf-8")
    elif place.exists():
        place.write_text(place.read_text(encoding="utf-8").rstrip("\n") + "\n\n" + body, encoding="utf-8")
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(body, encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout with all that the page adds."""
    folder = tmp_path_factory.mktemp("copy") / "checkout"
    aside = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("nccl_forensics", "parsers", "templates", "samples", "tests", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=aside)
    for name in ("setup.cfg", "pyproject.toml", "babel.cfg", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, folder / name)
    examples = list(EXAMPLE.finditer(TEXT))
    assert len(examples) > 12
    for one in examples:
        apply(folder, one["form"], one["path"], one["body"])
    run(folder, "tests/field_names.py")
    return folder


def run(copy: Path, *args: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *args], cwd=copy, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def passed(output: str) -> int:
    found = re.search(r"(\d+) passed", output)
    return int(found[1]) if found else 0


def try_tests(copy: Path, *args: str) -> int:
    """How many of these tests pass in the copy; none may fail."""
    return passed(run(copy, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", *args))


def test_the_parser_reads_its_case_and_not_the_near_miss(copy: Path) -> None:
    assert try_tests(copy, "tests/test_joblog_parsers.py", "-k", "leaves_group") >= 3


def test_the_kind_has_a_title_and_its_detail_a_name_that_mypy_knows(copy: Path) -> None:
    assert '"after_ms"' in (copy / "nccl_forensics" / "fields.py").read_text(encoding="utf-8")
    good, bad = copy / "good.py", copy / "bad.py"
    head = "from nccl_forensics.model import Event, number\n\n\n"
    line = head + "def read(event: Event) -> int | None:\n    return number(event, {!r})\n"
    good.write_text(line.format("after_ms"))
    bad.write_text(line.format("after_sm"))
    run(copy, "-m", "mypy", "--strict", "--follow-imports=silent", "good.py")
    with pytest.raises(AssertionError, match=r"Literal\['after_sm'\]"):
        run(copy, "-m", "mypy", "--strict", "--follow-imports=silent", "bad.py")


def test_the_signature_is_read_weighed_and_its_new_cause_known(copy: Path) -> None:
    assert try_tests(copy, "tests/test_catalog.py", "-k", "hpsa-lockup or cause or needles") >= 4
    assert try_tests(copy, "tests/test_meaning.py", "-k", "hpsa-lockup or mark or misspelt") >= 5
    assert try_tests(copy, "tests/test_rules.py", "-k", "every_cause or near_causes or action") >= 4


def test_the_rule_fires_and_keeps_quiet(copy: Path) -> None:
    assert (
        try_tests(copy, "tests/test_rules.py", "-k", "left_its_group or near_miss or test_every_cause_that_is_named")
        >= 5
    )


PILE = {
    "node-0.log": "2026-11-25T10:20:05.000000+00:00 node-0 kernel: {line}\n",
    "job.log": "".join(
        f"[rank{rank}]:[E1125 10:30:00.{rank:06d}000 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective"
        " operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran"
        " for 600021 milliseconds before timing out.\n"
        for rank in range(7)
    ),
}


def analyzed(copy: Path, line: str, name: str, *args: str) -> tuple[str, dict[str, object]]:
    """The page and the JSON of a pile with this kernel line beside a job that waits."""
    pile = copy / f"pile-{name}"
    pile.mkdir()
    for file, text in PILE.items():
        (pile / file).write_text(text.replace("{line}", line), encoding="utf-8")
    run(copy, "-m", "nccl_forensics", "analyze", pile.name, "-o", f"{name}.html", "--json", f"{name}.json", *args)
    doc: dict[str, object] = json.loads((copy / f"{name}.json").read_text(encoding="utf-8"))
    return (copy / f"{name}.html").read_text(encoding="utf-8"), doc


def test_the_page_writes_about_the_signature_and_its_cause(copy: Path) -> None:
    page, doc = analyzed(copy, "hpsa 0000:03:00.0: Controller lockup detected: 0x00130000 after 30", "raid")
    assert "RAID controller stopped" in page
    verdict = json.dumps(doc["incidents"])
    assert '"raid_lockup"' in verdict
    assert "node-0" in verdict


SHAPES = [
    *(("pcie", "pcie_link", "device"), ("nvidia", "gpu_firmware", "gpu"), ("nvidia", "gpu_off_bus", "gpu")),
    *(("storage", "storage_stall", "disk"), ("kernel", "cpu_stall", "host"), ("ras", "node_lost", "dimm")),
    *(("network", "nic_link_down", "nic"), ("memory", "host_oom_kill", "pid"), ("thermal-power", "gpu_thermal", "gpu")),
]


@pytest.mark.parametrize(("family", "cause", "indicts"), SHAPES, ids=["-".join(shape) for shape in SHAPES])
def test_a_signature_of_any_family_and_cause_is_weighed_and_names_its_gpu(
    copy: Path, family: str, cause: str, indicts: str
) -> None:
    number = SHAPES.index((family, cause, indicts))
    word = f"invented{number} gave up"
    entry = {
        "id": f"invented-{number}",
        "family": family,
        "log": "kernel",
        "needles": [word],
        "regex": f"(?P<pci>[0-9a-f:.]{{12}}): {word}",
        "example": [f"0000:c1:00.0: {word}"],
        "meaning": "It gave up.",
        "role": "cause",
        "indicts": indicts,
        "subject": "pci",
        "severity": "error",
        "cause": cause,
        "advice": "Look.",
        "seen": "formed",
    }
    rows = "".join(f"{name} = {json.dumps(value)}\n" for name, value in entry.items())
    apply(copy, "toml", "nccl_forensics/catalog/kernel.toml", f"[[entry]]\n{rows}")
    page, doc = analyzed(copy, f"0000:c1:00.0: {word}", f"invented-{number}")
    told = json.dumps(doc["incidents"])
    assert f'"{cause}"' in told
    assert word in told
    assert f"invented {number}" in page
    if indicts == "gpu":
        assert '"pci": "0000:c1:00.0"' in told


def test_the_field_and_the_column_that_shows_it(copy: Path) -> None:
    page, doc = analyzed(copy, "hello", "column")
    inputs = doc["inputs"]
    assert isinstance(inputs, list)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", row["changed"]) for row in inputs)
    assert '<th scope="col">Last changed</th>' in page
    assert page.count(inputs[0]["changed"][:10]) >= 2


def test_every_word_is_said_in_three_languages(copy: Path) -> None:
    assert try_tests(copy, "tests/test_language.py", "-k", "every_message or one_word or run_time") >= 4
    for lang, words in (("da", "Sidst ændret"), ("de", "Zuletzt geändert")):
        page, _ = analyzed(copy, "hello", f"words-{lang}", "--lang", lang)
        assert words in page
