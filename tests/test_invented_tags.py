"""Prefixes that nobody has described are learnt: the verdict is that of the bare lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

import pytest
from invented_tags import Writer, draw, tagged
from simulator import Decoys, Degrade, simulate
from simulator import draw as draw_scenario

from nccl_forensics.analysis import Analysis
from nccl_forensics.lines.read import read
from nccl_forensics.model import Event
from nccl_forensics.pipeline import analyze

AT = datetime(2026, 3, 4, 10, 19, 54, 567000, tzinfo=timezone.utc)
BARE = """loading shards
model has 3.2 B parameters
step 10 loss 2.31
step 20 loss 2.28
Traceback (most recent call last):
  File "/srv/train/pretrain.py", line 355, in main
    trainer.fit()
  File "/srv/train/pretrain.py", line 212, in train_step
    loss = self.compute_loss(batch)
ValueError: Expected input batch_size (4096) to match target batch_size (4095).
"""
# (tag before each line, rank that it tells)
TAGS = [
    ("(Worker_TP3 pid=13740) ERROR 05-22 10:26:17 [multiproc_executor.py:870] ", 3),
    ("(Trainer(group_a-3) pid=9017, ip=10.0.0.7) ", None),
    ("  | 2024-08-23T22:22:51.122Z | ", None),
    ("worker 41 | 2025-11-20T09:12:33Z ", None),
    ("5: ", None),
    ("2021-11-20T09:12:33.112Z: [1,5]<stderr>:", None),
    ("[2026-03-04 10:19:54][rank7][INFO] ", 7),
    ("2026-03-04 10:19:54,123 - INFO - rank 7 - ", 7),
    ("rank=7 ", 7),
    ("rank=7: ", 7),
    ("[Rank 7] ", 7),
    ("10:19:54 [7] ", None),
    ("<trainer/7 at node-3> ", None),
    ("{job: llm-7b; host=gpu-12; rank: 7} >> ", 7),
    ("[gpu-12][pid 4107][10:19:54.123] ", None),
]


def exceptions(text: str, folder: Path) -> list[Event]:
    (folder / "job.log").write_text(text)
    (parsed,) = read([str(folder / "job.log")])
    return [event for event in parsed.events if event.kind == "python-exception"]


@pytest.mark.parametrize(("tag", "rank"), TAGS, ids=[tag for tag, _ in TAGS])
def test_a_tag_hides_no_traceback(tag: str, rank: int | None, tmp_path: Path) -> None:
    (bare,) = exceptions(BARE, tmp_path)
    (found,) = exceptions("".join(tag + line + "\n" for line in BARE.splitlines()), tmp_path)
    assert (found.role, found.details) == (bare.role, bare.details)
    assert found.rank == rank


@pytest.mark.parametrize(
    "line",
    [
        "Attempt 1 of 3 failed with ValueError: bad shape",
        "Retrying in 3 s because of ConnectionError: refused",
        "epoch 3 | step 12 | ValueError: none",
        "We saw ValueError: none in the log and restarted",
        '{"note": "ValueError: none"}',
    ],
)
def test_half_a_sentence_is_no_prefix(line: str, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for _ in range(20))
    assert [e.evidence.text for e in exceptions(text, tmp_path) if e.role == "cause"] == []


def test_one_line_alone_teaches_nothing(tmp_path: Path) -> None:
    tag = "<trainer/7> "
    assert exceptions(f"hello\nworld\n{tag}ValueError: x\nbye\n", tmp_path) == []


# --- tags drawn at random, around whole incidents ---------------------------------------------------------------------

CAUSES = (
    "rank_not_arrived",
    "rank_busy",
    "python_exception",
    "cuda_oom",
    "gpu_off_bus",
    "gpu_memory",
    "host_oom_kill",
    "storage_write_failed",
    "collective_mismatch",
    "dataloader_failure",
)
SEEDS = range(30)


@cache
def incident(cause: str) -> tuple[dict[str, bytes], dict[str, int]]:
    """(The files of a job of PyTorch 2.1, whose lines do not tell their rank; when each line was written, UTC ns)."""
    seed = 100 + CAUSES.index(cause)
    drawn = replace(
        draw_scenario(seed),
        cause=cause,
        nodes=2,
        per_node=4,
        tensor=1,
        pipeline=1,
        expert=1,
        torch="2.1",
        ring=0,
        culprit=None,
        cards=(),
        psu_cards=(),
        hosts=(),
        detail=None,
        clock_offsets_s=(),
        per_rank_files=True,
        collector="none",
        decoys=Decoys(),
        degrade=Degrade(),
    )
    made = simulate(drawn, seed)
    files = {n: data for n, data in made.files.items() if not n.endswith(("train.log", ".out"))}
    moments: dict[str, int] = {}
    for _, ns, text in made.truth.moments:
        moments.setdefault(text.split("\n", 1)[0].lstrip("\r"), ns)
    return files, moments


def clock(moments: dict[str, int]) -> Callable[[str], datetime]:
    last = min(moments.values())

    def when(line: str) -> datetime:
        nonlocal last
        last = max(last, moments.get(line, last))
        return datetime.fromtimestamp(last / 1e9, timezone.utc)

    return when


def said(found: Analysis) -> list[tuple[str, tuple[int, ...]]]:
    return [(i.verdict.cause, i.verdict.ranks) for i in found.incidents]


def analyzed(files: dict[str, bytes], folder: Path) -> list[tuple[str, tuple[int, ...]]]:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return said(analyze([str(folder)]))


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_the_verdict_is_that_of_the_bare_log(cause: str, tmp_path: Path) -> None:
    files, moments = incident(cause)
    bare = analyzed(files, tmp_path)
    logs = sorted(name for name in files if "/std" in name)
    for seed in SEEDS:
        for rank, name in enumerate(logs):
            writer = Writer(rank, name.split("/")[0], 4100 + rank)
            text = tagged(files[name].decode(), draw(seed), writer, clock(moments), seed)
            (tmp_path / name).write_bytes(text.encode())
        found = said(analyze([str(tmp_path)]))
        assert [cause for cause, _ in found] == [cause for cause, _ in bare], seed
        for (_, ranks), (_, own) in zip(found, bare, strict=True):
            assert ranks == own or not own, seed  # a tag may tell the rank besides
