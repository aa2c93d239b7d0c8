"""Logs of machines and jobs that are well (healthy.py) accuse nobody, and what sounds like them still does."""

from __future__ import annotations

import io
from collections import Counter
from functools import cache
from pathlib import Path

import healthy
import pytest

from nccl_forensics.intake.walk import collect
from nccl_forensics.lines import read
from nccl_forensics.lines.plugins import parsers
from nccl_forensics.lines.read import Parsed, read_source
from nccl_forensics.lines.scan import Scanner
from nccl_forensics.pipeline import conclude

SEEDS = (1, 2, 3)
SIZE = 700_000
"""Bytes of each pile: 2 MB in all, 69 files each."""
MAY_SHOW = {
    "aer-corrected": "a corrected link error is the first sign of a bad riser, if it is one of many",
    "pcie-bus-error": "the same event's second line",
    "aer-bit-corrected": "the same event's third line",
    "edac-ce": "a corrected memory error is the first sign of a bad module",
}
"""Kinds that may be symptoms in a healthy log, and why; no other may."""


@cache
def pile(seed: int, folder: Path) -> tuple[Parsed, ...]:
    healthy.write(folder, seed, SIZE)
    return tuple(read.read([str(folder)]))


@pytest.fixture(scope="module", params=SEEDS)
def parsed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Parsed, ...]:
    return pile(request.param, tmp_path_factory.mktemp(f"healthy-{request.param}"))


def test_the_corpus_is_what_it_says(parsed: tuple[Parsed, ...]) -> None:
    assert len(parsed) >= 60
    assert sum(p.row.bytes for p in parsed) > 0.9 * SIZE
    assert {p.row.status for p in parsed} == {"read"}
    assert sum(len(p.events) for p in parsed) > 1000, "what cannot be found cannot alarm either"


def test_no_cause_and_only_known_symptoms(parsed: tuple[Parsed, ...]) -> None:
    alarming = Counter((e.role, e.kind) for p in parsed for e in p.events if e.role in ("cause", "symptom"))
    assert [x for x in alarming if x[0] == "cause"] == []
    assert {kind for _, kind in alarming} <= set(MAY_SHOW)


def test_no_incident_of_all_and_of_each(parsed: tuple[Parsed, ...]) -> None:
    assert [i.verdict.summary for i in conclude(parsed).incidents] == []
    for one in parsed:
        assert [(one.row.path, i.verdict.summary) for i in conclude([one]).incidents] == []


# --- near misses: the same words, said by the program itself ----------------------------------------------------------

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
FULL = "OSError: [Errno 28] No space left on device: '/data/ckpt/step_100.pt'"
ALARMS = [
    (f"[rank3]: {OOM}", "cuda-oom"),
    (f'{{"level": "error", "msg": "{OOM}", "rank": 3}}', "cuda-oom"),
    (f'{{"text": "{OOM}", "level": "error"}}', "cuda-oom"),
    (f'ERROR: training step raised "{OOM}"', "cuda-oom"),
    (f'{{"step": 3, "exception": "{ECC}"}}', "cuda-error"),
    (f"RayTaskError(RuntimeError('{ECC}'))", "cuda-error"),
    (f'job failed with "{ECC}"', "cuda-error"),
    (FULL, "storage-error"),
    ("tee: /data/train.log: No space left on device", "storage-error"),
    ("command terminated with exit code 137", "exit"),
    ("[  120.500000] TCP: request_sock_TCP: Possible SYN flooding on port 29500. Dropping request.", "syn-flood"),
    (
        "[  120.500000] python[18122]: segfault at 8 ip 00007f8b sp 00007ffd error 4 in libtorch.so[7f8b+5a]",
        "segfault",
    ),
]
QUIET = [
    f'{{"prompt": "{OOM}", "score": 0.8}}',
    f'{{"text": "{OOM}", "meta": {{"source": "forum"}}}}',
    f'Epoch 0:  5%|#  | 5/100 [00:05<01:35,  1.00it/s]{{"question": "why {ECC}?"}}',
    f"Q: what does '{ECC}' mean?",
    f'sample 12 is "{FULL}" (36 tokens)',
    "The server said: No space left on device. He deleted the old files.",
    'prompt is "it dies with exit code 137" here',
    "[  120.500000] gnome-shell[2211]: segfault at 8 ip 00007f3a sp 00007ffd error 4 in libmutter-10.so.0[7f3a+16f]",
    "[  120.500000] traps: chrome[2211] trap invalid opcode ip:55d0 sp:7ffc error:0 in chrome[55d0+a1]",
]


@cache
def scanner() -> Scanner:
    return Scanner(parsers().by_literal)


def alarms(text: str) -> list[str]:
    """Kinds of the causes and symptoms in a file with this text."""
    found = [read_source(s, parsers(), scanner()) for s in collect(["-"], stdin=io.BytesIO(text.encode()))]
    return [e.kind for one in found for e in one.events if e.role in ("cause", "symptom")]


@pytest.mark.parametrize(("text", "kind"), ALARMS)
def test_an_error_of_its_own_is_told(text: str, kind: str) -> None:
    assert kind in alarms(text + "\n")


@pytest.mark.parametrize("text", QUIET)
def test_a_quoted_error_is_not(text: str) -> None:
    assert alarms(text + "\n") == []


CRASH = 'Traceback (most recent call last):\n  File "/srv/app/train.py", line 12, in step\n    x[9]\nKeyError: 9\n'


@pytest.mark.parametrize(
    ("before", "role"),
    [
        ("", "cause"),
        ("node-a:1:2 [0] net.cc:1 NCCL WARN something\n", "cause"),
        ("WARNING metrics could not be pushed, will retry\n", "context"),
        ("--- Logging error ---\n", "context"),
    ],
)
def test_an_exception_that_was_caught_accuses_nobody(before: str, role: str) -> None:
    assert ("python-exception" in alarms(before + CRASH)) == (role == "cause")


STORE = (
    "[rank1]:[W302 11:00:0{}.300000000 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "
    '"should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n'
)


def test_a_store_that_leaves_last_is_no_loss_but_one_that_is_missed_is(tmp_path: Path) -> None:
    file = tmp_path / "rank1.log"
    for seconds, told in ((1, set()), (3, {"store-broken"})):
        file.write_text("".join(STORE.format(n) for n in range(seconds)), encoding="utf-8")
        (found,) = read.read([str(file)])
        assert {e.kind for e in found.events} - {"store-flag-unread"} == told
