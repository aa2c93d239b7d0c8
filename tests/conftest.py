"""What several tests share: where things are, and the shared cases, each analyzed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def samples() -> Path:
    return ROOT / "samples"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, for commands that write into it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """A folder in which nothing can be made, whoever runs the tests: a file stands where the folder should be."""
    if os.name == "nt":
        pytest.skip("POSIX paths")
    file = tmp_path / "a-file"
    file.write_text("not a folder", encoding="utf-8")
    return file / "below"
