"""What was made fast gives what the slow way gave, and what is hostile stays small. No test here measures a time."""

from __future__ import annotations

import json
import random
from datetime import datetime, timezone
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from short_form import BASE_NS, SECOND, analyzed, cases, label, load

from nccl_forensics import analysis, catalog
from nccl_forensics.lines.stamps import DAY, with_year
from nccl_forensics.model import Event, Finding
from nccl_forensics.names import same_host
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.show.page import ranks
from nccl_forensics.show.report import html
from nccl_forensics.verdict import advice, drafts
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules import findings
from nccl_forensics.verdict.rules.gpu_trends import MINUTE, _most_within
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.when.years import NEAR_DAYS, FullDates

TIMEOUT = (
    "[rank{rank}]:[E422 01:14:17.000000001 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600021"
    " milliseconds before timing out.\n"
)
WIDE = (
    "node1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId 1000"
    " commId 0xabc - Init COMPLETE\n"
)


def read(folder: Path, text: str) -> analysis.Analysis:
    (folder / "train.log").write_text(text, encoding="utf-8")
    return analyze([folder])


def as_case(path: Path) -> Case:
    found = analyzed(load(path))
    assumed = frozenset(c.clock for c in found.clocks if c.basis == "assumed")
    return Case(found.events, found.known, found.collectives, Aligned(found.events, found.clocks, assumed), found.rows)


@pytest.mark.parametrize("seed", range(20))
def test_errors_within_a_minute_are_counted_as_by_hand(seed: int) -> None:
    dice = random.Random(seed)
    times = sorted(dice.randrange(5 * MINUTE) for _ in range(dice.randrange(1, 40)))
    assert _most_within(times, MINUTE) == max(sum(s <= t <= s + MINUTE for t in times) for s in times)


def test_both_ends_of_the_minute_count() -> None:
    assert _most_within([0, MINUTE], MINUTE) == 2
    assert _most_within([0, MINUTE + 1], MINUTE) == 1


@pytest.mark.parametrize("path", cases("rules")[::9], ids=label)
def test_the_index_by_kind_keeps_the_order(path: Path) -> None:
    case = as_case(path)
    kinds = sorted({e.kind for e in case.events})
    for wanted in [*((k,) for k in kinds), tuple(kinds), tuple(kinds[::2]), ("no-such-kind",)]:
        assert case.of(*wanted) == tuple(e for e in case.events if e.kind in wanted)
        for host in {e.host for e in case.events}:
            assert case.on(host, *wanted) == tuple(e for e in case.events if e.kind in wanted and e.host == host)


@pytest.mark.parametrize("path", cases("rules")[::5], ids=label)
def test_findings_join_as_if_each_draft_were_asked(path: Path) -> None:
    found = list(findings(as_case(path)))
    slow: list[drafts.Draft] = []
    for finding in sorted(found, key=lambda f: -f.weight):
        several = finding.cause in advice.LOCATES and finding.inference and finding.weight > 0
        for draft in slow:
            if draft.cause == finding.cause and (several or draft.touches(finding)):
                break
        else:
            draft = drafts.Draft(finding.cause)
            slow.append(draft)
        draft.add(finding)
    assert drafts.collected(found) == slow


@pytest.mark.parametrize("seed", range(10))
def test_findings_of_many_ranks_join_as_if_each_draft_were_asked(seed: int, a_case: Case) -> None:
    dice = random.Random(seed)
    event: Event = a_case.events[0]
    found = [
        Finding(
            cause=dice.choice(["python_exception", "rank_busy"]),
            says=str(n),
            weight=dice.random(),
            ranks=tuple(dice.sample(range(6), dice.randrange(3))),
            hosts=tuple(dice.sample(["a", "b", "a.example"], dice.randrange(2))),
            events=(event,),
        )
        for n in range(40)
    ]
    slow: list[drafts.Draft] = []
    for finding in sorted(found, key=lambda f: -f.weight):
        for draft in slow:
            if draft.cause == finding.cause and draft.touches(finding):
                break
        else:
            draft = drafts.Draft(finding.cause)
            slow.append(draft)
        draft.add(finding)
    assert drafts.collected(found) == slow


@pytest.fixture(scope="module")
def a_case() -> Case:
    return next(case for path in cases("rules") if (case := as_case(path)).events)


@pytest.mark.parametrize("seed", range(20))
def test_the_year_is_that_of_the_nearest_kin(seed: int) -> None:
    dice = random.Random(seed)
    dated = [
        (
            dice.choice(["a", "a.example", "b", None]),
            dice.choice(["x", "y", "z"]),
            BASE_NS + dice.randrange(-900, 900) * DAY,
        )
        for _ in range(dice.randrange(12))
    ]
    days = {
        (with_year(BASE_NS, 1972) // DAY * DAY + dice.randrange(-30, 30) * DAY, back and dice.randrange(2))
        for back in range(4)
    }
    newest = max(day for day, back in days if back == 0)
    for source, host in (("x", "a"), ("y", None), ("new", "b.example")):
        ranked = sorted(dated, key=lambda d: (d[1] != source, not (d[0] and host and same_host(d[0], host))))
        year = None
        for _, _, full in ranked:
            base = datetime.fromtimestamp(full // SECOND, timezone.utc).year
            near = [
                y + k
                for day, k in days
                for y in (base - 1, base, base + 1)
                if abs(with_year(day, y) - full) <= NEAR_DAYS * DAY
            ]
            if near:  # after which the file ends sooner
                year = min(near, key=lambda y: (abs(with_year(newest, y) - full), -y))
                break
        assert FullDates(dated).year(source, host, days) == year


def test_one_misread_rank_makes_no_million_of_them(tmp_path: Path) -> None:
    found = read(tmp_path, TIMEOUT.format(rank=999_999))
    assert [r.rank for r in found.ranks] == [999_999]
    assert not any(g.members for i in found.incidents for g in i.groups)
    assert found.incidents[0].verdict.status == "undetermined"


def test_an_absurd_number_of_ranks_is_not_believed(tmp_path: Path) -> None:
    found = read(tmp_path, WIDE.format(ranks=999_999_999) + TIMEOUT.format(rank=3))
    assert found.known.world_size is None
    assert len(found.ranks) <= 4


def test_ranks_that_nothing_is_known_of_share_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MOST_SILENT", 10)
    monkeypatch.setattr(ranks, "MAX_CELLS", 64)
    doc = document.build(read(tmp_path, WIDE.format(ranks=300) + TIMEOUT.format(rank=150)))
    schema = json.loads((Path(catalog.__file__).parent / "incident.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(doc)
    listed = [r["rank"] for r in doc["ranks"]]
    left_out = doc["ranks_left_out"]
    gone = [r for first, last in left_out["ranges"] for r in range(first, last + 1)]
    assert 150 in listed
    assert len(listed) < 20
    assert len(gone) == left_out["count"]
    assert sorted(listed + gone) == list(range(300))
    assert any(f"{left_out['count']} more ranks" in p["says"] for p in doc["problems"])
    page = html(doc)
    assert "300 known ranks left data" in page
    assert "300 ranks: " in page


def test_a_job_of_usual_size_has_a_row_for_each_rank(tmp_path: Path) -> None:
    doc = document.build(read(tmp_path, WIDE.format(ranks=300) + TIMEOUT.format(rank=150)))
    assert "ranks_left_out" not in doc
    assert [r["rank"] for r in doc["ranks"]] == list(range(300))
