"""Compiled templates are kept by the rules of Python's own bytecode, and believed only if they are what they seem."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_forensics.show import templating


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


def render() -> str:
    return templating.environment(False, {"mdcode": str, "md": str}).get_template("ticket.md.j2").render(rows=[])


def files(folder: Path) -> list[Path]:
    return list(folder.rglob("ticket*"))


def test_a_template_is_compiled_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jinja2

    first = render()
    assert len(files(kept)) == 1

    def never(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(jinja2.Environment, "compile", never)
    assert render() == first


@pytest.mark.parametrize("junk", [b"", b"junk", None])
def test_junk_in_its_place_is_compiled_over(kept: Path, junk: bytes | None) -> None:
    first = render()
    (place,) = files(kept)
    good = place.read_bytes()
    place.write_bytes(good[:-40] if junk is None else junk)
    assert render() == first
    assert place.read_bytes() == good


def test_code_made_of_another_source_is_not_believed(kept: Path) -> None:
    first = render()
    (place,) = files(kept)
    good = place.read_bytes()
    changed = good.replace(good[4:36], bytes(32))
    place.write_bytes(changed)
    assert render() == first
    assert place.read_bytes() == good


def test_nothing_is_written_where_python_may_not(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    render()
    assert files(kept) == []


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(sys, "pycache_prefix", str(blocked))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert render() == render()
