"""What several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Translations that were edited since the last install are compiled, as setup.py does it."""
    for source in (ROOT / "nccl_forensics" / "text" / "locale").glob("*/LC_MESSAGES/messages.po"):
        compiled = source.with_suffix(".mo")
        if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
            with source.open("rb") as text, compiled.open("wb") as file:
                write_mo(file, read_po(text, locale=source.parent.parent.name))


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
