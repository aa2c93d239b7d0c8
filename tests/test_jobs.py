"""Several jobs in one pile: each is judged by itself, with its own ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_document import validator
from test_piles import CASES, write

from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document, ticket
from nccl_forensics.show.redact import redactor
from nccl_forensics.show.report import html

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

JOBS: dict[str, dict[str, Any]] = tomllib.loads((CASES / "jobs.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", JOBS)
def test_each_job_is_judged_by_itself(name: str, tmp_path: Path) -> None:
    pile = JOBS[name]
    write(pile, tmp_path)
    doc = document.build(analyze([str(tmp_path)]))
    validator().validate(doc)
    found = [
        {
            **({"job": i["job"]} if "job" in i else {}),
            "causes": [i["verdict"]["cause"]],
            "ranks": i["verdict"]["culprit_ranks"],
            "hosts": i["verdict"]["culprit_hosts"],
        }
        for i in doc["incidents"]
    ]
    told = [p["says"] for p in doc["problems"]]
    assert found == pile["incidents"], told
    for says in pile.get("says", ()):
        assert any(text.startswith(says) for text in told), told
    assert {i["path"] for i in doc["inputs"]} == {str(tmp_path / file) for file in pile["files"]}
    lines = {(e["source"], e["line"], e["kind"]) for e in doc["events"]}
    assert len(lines) == len(doc["events"])
    for lang in ("en", "da", "de"):
        assert ticket.ticket(doc, lang).count("\n") <= 12
        page = html(doc, lang)
        assert all(f'id="incident-{i["id"]}"' in page for i in doc["incidents"][1:])


def test_ranks_of_a_job_do_not_mix_with_those_of_another(tmp_path: Path) -> None:
    write(JOBS["two-slurm-jobs-in-one-folder"], tmp_path)
    for incident, host in zip(analyze([str(tmp_path)]).incidents, ("gn01", "gn02"), strict=True):
        assert [r.rank for r in incident.ranks] == [0, 1, 2, 3]
        assert {r.host for r in incident.ranks} == {host}


@pytest.mark.parametrize("name", ["two-slurm-jobs-in-one-folder", "two-jobs-share-a-node"])
def test_names_of_jobs_are_redacted(name: str, tmp_path: Path) -> None:
    pile = tmp_path / "pile"
    write(JOBS[name], pile)
    doc = document.build(analyze([str(pile)]))
    hider = redactor.Redactor()
    hider.learn(doc)
    covered = hider.cover(doc)
    names = {i["job"] for i in doc["incidents"]}
    assert not any(name.rpartition(" ")[2] in json.dumps(covered) for name in names), covered["incidents"]
