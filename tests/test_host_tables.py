"""Lists of hosts and ranks beside a job, in the forms that people and launchers write."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from nccl_forensics.parsers import host_tables

from nccl_forensics.model import Event
from nccl_forensics.pipeline import analyze

FORMS = {
    "ranges": "# who ran where\ngpu001 0-1\n\ngpu002 2,3\n",
    "colons": "gpu001: 0-1\ngpu002: [2, 3]\n",
    "words": "gpu001 ranks 0-1\ngpu002 ranks 2-3\n",
    "a rank a line": "rank host\n0 gpu001\n1 gpu001 1 0000:3b:00.0\n2 gpu002\n3 gpu002\n",
    "commas": "0,gpu001\n1,gpu001\n2,gpu002\n3,gpu002\n",
    "a rankfile": "rank 0=gpu001 slot=0\nrank 1=gpu001 slot=1\nrank 2=gpu002 slot=0\nrank 3=gpu002 slot=1\n",
    "a hostfile": "gpu001 slots=2\ngpu002 slots=2 max_slots=4\n",
}
NOTHING = {
    "numbers of nodes": "gpu001 0\ngpu002 1\n",
    "counts": "gpu001 8\ngpu002 8\n",
    "a hole": "gpu001 0-1\ngpu002 3-4\n",
    "twice": "gpu001 0-1\ngpu002 1-2\n",
    "another line": "gpu001 0-1\ngpu002 2-3\nmaster is gpu001\n",
    "addresses": "127.0.0.1 localhost\n10.0.0.1 gpu001\n",
    "too many": "gpu001 0-999999\n",
    "nothing": "",
}


def read(text: str, name: str = "hosts.txt") -> list[Event]:
    data = text.encode()
    if not host_tables.claims(data[:4096], name):
        return []
    stream = SimpleNamespace(path=name, name=name, size=len(data), mtime_ns=None, stream=io.BytesIO(data))
    return list(host_tables.host_table.read(stream))


@pytest.mark.parametrize("form", FORMS)
def test_who_ran_where(form: str) -> None:
    found = read(FORMS[form])
    assert [(e.rank, e.host) for e in found] == [(0, "gpu001"), (1, "gpu001"), (2, "gpu002"), (3, "gpu002")]
    lines = FORMS[form].splitlines()
    assert all(e.host is not None and e.host in lines[(e.evidence.line or 0) - 1] for e in found)


@pytest.mark.parametrize("form", NOTHING)
def test_near_misses(form: str) -> None:
    assert read(NOTHING[form]) == []


def test_other_files_are_none() -> None:
    assert read(FORMS["ranges"], "results.txt") == []
    assert read(FORMS["ranges"], "ghosts.txt") == []


def test_a_list_in_the_pile_places_ranks_that_wrote_nothing(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("gpu001 0-1\ngpu002 2-3\n")
    known = analyze([str(tmp_path)]).known
    assert {rank: place.host for rank, place in known.ranks.items()} == {
        0: "gpu001",
        1: "gpu001",
        2: "gpu002",
        3: "gpu002",
    }
