"""What is not a log is no evidence: programs, notebooks, patches, pages, and what prose quotes beside real logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_forensics.cli import main
from nccl_forensics.intake.sources import is_text
from nccl_forensics.pipeline import analyze

RAISED = """Traceback (most recent call last):
  File "/srv/train/pretrain.py", line 212, in train_step
    loss = self.compute_loss(batch)
ValueError: Expected input batch_size (4096) to match target batch_size (4095).
"""
HEALTHY = "".join(f"step {n} loss 2.{99 - n}\n" for n in range(40)) + "Training finished\n"
SOURCES = {
    "test_errors.py": f'import pytest\n\nEXAMPLE = """\n{RAISED}"""\n\n\ndef test(): assert parse(EXAMPLE)\n',
    "trainer.py": "# Copyright\n\nfrom torch import nn\n\nraise RuntimeError('CUDA out of memory. Tried')\n",
    "errors.pyi": f'"""What we have seen.\n\n{RAISED}"""\nSEEN = 3\n',
    "launch.sh": "#!/bin/bash\nset -e\necho 'RuntimeError: CUDA error: an illegal memory access was encountered'\n",
    "kernel.cu": "/* grid */\n#include <cuda.h>\n// CUDA error: an illegal memory access was encountered\n",
    "run.ipynb": '{\n "cells": [\n  {"outputs": ["RuntimeError: CUDA out of memory. Tried"]}\n ],\n "nbformat": 4\n}\n',
    "fix.patch": "diff --git a/t.py b/t.py\n+raise RuntimeError('CUDA out of memory. Tried')\n",
}
PROSE = {
    "KNOWN.md": f"# Known problems\n\nSome runs ended so:\n\n```\n{RAISED}```\n",
    "notes.txt": f"# Known problems\n\nSome runs ended so:\n\n```\n{RAISED}```\n",
    "page.html": f"<!DOCTYPE html>\n<html><pre>\n{RAISED}</pre></html>\n",
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_program_is_no_evidence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(SOURCES[name])
    (tmp_path / "train.log").write_text(HEALTHY)
    found = analyze([str(tmp_path)])
    assert found.incidents == ()
    (row,) = (row for row in found.rows if row.path.endswith(name))
    assert (row.status, row.format) == ("skipped", "source")
    assert row.reason is not None
    assert "no evidence" in row.reason


@pytest.mark.parametrize("name", SOURCES)
def test_a_program_hides_no_end(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(SOURCES[name])
    (tmp_path / "train.log").write_text(HEALTHY.replace("Training finished\n", RAISED))
    (incident,) = analyze([str(tmp_path)]).incidents
    assert incident.verdict.cause == "python_exception"


@pytest.mark.parametrize("name", PROSE)
def test_what_prose_quotes_is_no_evidence_beside_a_log(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PROSE[name])
    (tmp_path / "train.log").write_text(HEALTHY)
    assert analyze([str(tmp_path)]).incidents == ()


@pytest.mark.parametrize("name", PROSE)
def test_what_prose_quotes_is_all_there_is(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PROSE[name])
    (incident,) = analyze([str(tmp_path)]).incidents
    assert incident.verdict.cause == "python_exception"


@pytest.mark.parametrize(
    "head",
    [
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728\n",
        "importing modules took 3 s\n",
        "from now on the job waits\n",
        "class weights: [1, 2]\n",
        "[2026-03-04 10:19:54] import torch took 3 s\n",
        "@rank3 says hello\n",
        "{'loss': 2.31, 'cells': 3}\n",
        "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n",
        "diff --git a/train.py b/train.py\n+lr = 3\n",
        '"""\n',
        "import torch\n",
    ],
)
def test_a_log_that_begins_oddly_is_one(head: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(head + RAISED)
    (incident,) = analyze([str(tmp_path)]).incidents
    assert incident.verdict.cause == "python_exception"


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"hello\n", True),
        ("kernel: \u6b7b\u4e86\n".encode(), True),
        ("Gr\u00fc\u00dfe\n".encode("latin-1"), True),
        (b"50%\r60%\r\x1b[32mdone\x1b[0m\n", True),
        (b"", False),
        (bytes(range(256)), False),
        (b"a\0b\0", False),
    ],
)
def test_what_is_text(head: bytes, text: bool) -> None:
    assert is_text(head) is text


def test_a_text_that_nobody_knows_has_an_answer(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the machine is slow on Mondays\n")
    done = CliRunner().invoke(main, ["analyze", str(tmp_path / "notes.txt"), "-o", str(tmp_path / "o.html")])
    assert done.exit_code == 0
    assert "Nothing in these files could be read as a log" in done.output
