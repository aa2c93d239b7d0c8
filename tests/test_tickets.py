"""`analyze --each`: each entry of a folder is a ticket of its own, and none costs another its answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
from test_cli import RISER, ROOT, ended, run

from nccl_forensics import pipeline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tickets"
    shutil.copytree(RISER, made / "acme")
    shutil.copytree(ROOT / "samples" / "skipped-collective", made / "initech")
    (made / "photo.jpg").write_bytes(bytes(range(256)) * 4)
    (made / "elsewhere").symlink_to("/etc/passwd")
    return made


def test_each_ticket_has_its_line_and_its_page(folder: Path, here: Path) -> None:
    result = ended(run("analyze", "--each", folder, "-o", here / "out", "--json", here / "out"), 0)
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert list(lines) == ["acme", "elsewhere", "initech", "photo.jpg"]
    assert lines["acme"].startswith("Rank 6 on oxide-ws2")
    assert lines["initech"].startswith("Rank 5 on lab-south")
    assert lines["photo.jpg"].startswith("not analyzed: none of these files could be read")
    assert lines["elsewhere"] == "not analyzed: it is a link. Give what it points to."
    assert {p.name for p in (here / "out").iterdir()} == {
        *("acme.report.html", "acme.json", "initech.report.html", "initech.json")
    }
    alone = here / "alone.json"
    ended(run("analyze", RISER, "--json", alone, "-o", here / "alone.html"), 0)
    both = [
        json.loads(p.read_text(encoding="utf-8"))["incidents"][0]["verdict"] for p in (here / "out/acme.json", alone)
    ]
    for told in ("cause", "culprit_ranks", "culprit_gpus", "confidence", "reporting_ranks", "innocent"):
        assert both[0].get(told) == both[1].get(told)


def test_pages_of_an_earlier_run_are_no_tickets(folder: Path, here: Path) -> None:
    ended(run("analyze", "--each", folder, "-o", folder), 0)
    names = [
        line.split(":")[0] for line in ended(run("analyze", "--each", folder, "-o", folder), 0).stdout.splitlines()
    ]
    assert names == ["acme", "elsewhere", "initech", "photo.jpg"]


def test_entries_of_one_name_do_not_overwrite_each_other(folder: Path, here: Path) -> None:
    shutil.make_archive(str(folder / "acme"), "zip", RISER)
    ended(run("analyze", "--each", folder, "-o", here / "out"), 0)
    assert {"acme.report.html", "acme-2.report.html"} <= {p.name for p in (here / "out").iterdir()}


def test_a_fault_of_ours_in_one_ticket_leaves_the_others_theirs(folder: Path, here: Path) -> None:
    real = pipeline.analyze

    def breaks(paths: tuple[str, ...], **given: object) -> object:
        if "acme" in paths[0]:
            raise KeyError("x")
        return real(paths, **given)  # type: ignore[arg-type]

    with mock.patch.object(pipeline, "analyze", breaks):
        result = ended(run("analyze", "--each", folder, "-o", here), 1)
    assert "acme: not analyzed: a fault of ours (KeyError)" in result.stdout
    assert "initech: Rank 5" in result.stdout


def test_names_of_tickets_are_redacted(folder: Path, here: Path) -> None:
    result = ended(run("analyze", "--each", folder, "--redact", "-o", here / "out"), 0)
    assert "acme" not in result.output.replace(str(folder), "")
    assert {p.name for p in (here / "out").iterdir()} == {"ticket-1.report.html", "ticket-3.report.html"}
    assert not any(b"oxide-ws2" in p.read_bytes() for p in (here / "out").iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--events", "x.csv"], "--events goes with one ticket"),
        (["-o", "file"], "it is a file"),
        (["--redaction-map", "m"], "goes with --redact"),
    ],
)
def test_what_does_not_go_with_each_is_said(folder: Path, here: Path, options: list[str], says: str) -> None:
    (here / "file").write_text("")
    assert says in ended(run("analyze", "--each", folder, *options), 2).output


def test_a_folder_without_anything_to_read(here: Path) -> None:
    (here / "empty").mkdir()
    assert "nothing lies in it" in ended(run("analyze", "--each", here / "empty"), 2).output
    (here / "empty" / "x.jpg").write_bytes(bytes(range(256)) * 4)
    ended(run("analyze", "--each", here / "empty"), 3)
    assert "does not exist" in ended(run("analyze", "--each", here / "none"), 2).output
    assert "not stdin" in ended(run("analyze", "--each", "-"), 2).output


def test_the_surest_verdict_is_the_status(folder: Path, here: Path) -> None:
    ended(run("analyze", "--each", folder, "--exit-code", "-o", here), 10)
