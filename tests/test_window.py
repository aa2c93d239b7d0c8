"""--since and --until: what is left out is counted, and nothing else changes."""

from __future__ import annotations

import json
from datetime import timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from test_cli import ROOT, ended, run

from nccl_forensics.errors import InputError
from nccl_forensics.when import window

RISER = ROOT / "samples" / "riser-xid79"
NOON_NS = 1_773_144_000 * 10**9
"""2026-03-10 12:00:00 UTC."""


@pytest.mark.parametrize(
    ("text", "zone", "seconds"),
    [
        ("2026-03-10T12:00:30Z", None, 30),
        ("2026-03-10 12:00", None, 0),
        ("2026-03-10 13:00:01.5", ZoneInfo("Europe/Copenhagen"), 1.5),
        ("2026-03-10T13:00:01,5+01:00", ZoneInfo("Asia/Tokyo"), 1.5),
        ("2026-03-10 04:00-0800", None, 0),
        ("2026-03-10", None, -43_200),
        ("12:05", None, 300),
        ("9:05", None, -10_500),
        ("21:05", ZoneInfo("Asia/Tokyo"), 300),
    ],
)
def test_what_is_a_time(text: str, zone: ZoneInfo | None, seconds: float) -> None:
    given = window.window(text, None, zone)
    assert given is not None
    assert given.since is not None
    assert given.since.ns(NOON_NS) == NOON_NS + int(seconds * 10**9)


def test_a_date_alone_takes_in_its_day() -> None:
    given = window.window(None, "2026-03-10", timezone.utc)
    assert given is not None
    assert given.until is not None
    assert given.until.ns(None) == NOON_NS + 43_200 * 10**9 - 1


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01", "2026-03-10T", "12", "12:00 Mars", "+02:00"])
def test_what_is_none(here: Path, text: str) -> None:
    with pytest.raises(InputError, match="is no time"):
        window.window(text, None, None)
    assert "is no time" in ended(run("analyze", RISER, "--until", text), 2).output
    assert list(here.iterdir()) == [], "said before anything is read or written"


def analyzed(here: Path, *args: str) -> dict[str, object]:
    ended(run("analyze", RISER, "--json", "out.json", "--quiet", *args), 0)
    made: dict[str, object] = json.loads((here / "out.json").read_text(encoding="utf-8"))
    return made


def test_the_rest_is_counted_and_not_weighed(here: Path) -> None:
    whole, cut = analyzed(here), analyzed(here, "--since", "2026-03-10T21:26:00Z")
    events, kept = whole["events"], cut["events"]
    assert isinstance(events, list)
    assert isinstance(kept, list)
    said = cut["problems"][0]["says"]  # type: ignore[index]
    assert f"{len(events) - len(kept)} events and 0 dumps before 2026-03-10 21:26:00 UTC" in said
    assert 0 < len(kept) < len(events)
    early = [e for e in kept if e["time"] and e["time"] < "2026-03-10T21:25:50"]
    assert early == []
    for doc in (whole, cut):
        for row in doc["inputs"]:  # type: ignore[attr-defined]
            row.pop("sha256", None)  # only of files that the verdict cites
    assert cut["inputs"] == whole["inputs"], "what the files hold is told all the same"
    assert {r["rank"]: r["gpu"] for r in cut["ranks"]} == {r["rank"]: r["gpu"] for r in whole["ranks"]}  # type: ignore[attr-defined]
    assert analyzed(here, "--since", "21:26")["events"] == kept, "on the day of the last line that counts"


def test_nothing_changes_for_a_window_that_holds_all(here: Path) -> None:
    whole = analyzed(here)
    wide = analyzed(here, "--since", "2020-01-01", "--until", "2030-01-01")
    assert wide["incidents"] == whole["incidents"]
    assert wide["events"] == whole["events"]


def test_dumps_of_a_later_run_do_not_speak(here: Path) -> None:
    cut = analyzed(here, "--until", "2026-03-10T21:10:00Z")
    assert cut["incidents"] == []
    assert "8 dumps after 2026-03-10 21:10:00 UTC" in cut["problems"][0]["says"]  # type: ignore[index]


def test_a_stretch_over_midnight(here: Path) -> None:
    """The evening before, not the end of a day that has just begun."""
    says = analyzed(here, "--since", "23:00", "--until", "21:26")["problems"][0]["says"]  # type: ignore[index]
    assert "before 2026-03-09 23:00:00 UTC" in says
    assert "after 2026-03-10 21:26:00 UTC" in says


def test_verbose_tells_each_step(here: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "nccl_forensics", "analyze", str(RISER), "--verbose", "-o", "r.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    steps = [line.split()[0] for line in done.stderr.splitlines() if " s  " in line]
    assert steps == ["read", "identify", "dumps", "align", "reconstruct", "diagnose"]
    assert done.stdout.startswith("Result:")
