"""A job that was started several times: where its timeline is cut, and what is said of the starts together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from short_form import analyzed
from test_document import validator
from test_piles import STARTS, write

from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document, trace
from nccl_forensics.show.export import events as exported
from nccl_forensics.show.report import html
from nccl_forensics.show.ticket import ticket
from nccl_forensics.starts import runs

Short = dict[str, Any]


def restart(left: int, of: int, at: float) -> Short:
    return {"kind": "restart", "left": left, "of": of, "attempt": of - left, "at": at, "file": "launcher.log"}


def failing(rank: int, at: float, host: str = "node-0") -> list[Short]:
    return [
        {"kind": "rank-identity", "rank": rank, "host": host, "at": at, "world_size": 8},
        {"kind": "progress", "rank": rank, "host": host, "step": 7, "at": at + 10},
        {"kind": "cuda-oom", "rank": rank, "host": host, "at": at + 60},
        {"kind": "exit", "rank": rank, "host": host, "code": 1, "at": at + 61, "file": "launcher.log"},
    ]


def case(*events: Short | list[Short]) -> Short:
    return {"why": "starts", "events": [e for x in events for e in (x if isinstance(x, list) else [x])]}


def test_restarts_that_are_used_up_are_said() -> None:
    burnt = analyzed(case(failing(1, 0), restart(2, 2, 100), failing(1, 110), restart(1, 2, 200), failing(1, 210)))
    assert [i.attempt for i in burnt.incidents] == [0, 1, 2]
    assert str(burnt.incidents[-1].contributing[-1]["says"]).startswith("All 2 restarts were used up. The job failed 3")
    spared = analyzed(case(failing(1, 0), restart(2, 2, 100), failing(1, 110)))
    assert not any("used up" in str(row["says"]) for i in spared.incidents for row in i.contributing)


def test_a_restart_lasts_until_the_next_step_and_takes_the_work_of_its_attempt() -> None:
    first, second = analyzed(case(failing(1, 0), restart(2, 2, 100), failing(1, 110))).incidents
    assert first.cost is not None
    assert first.cost["restart_s"] == pytest.approx(20)
    assert second.cost is not None
    assert second.cost["restart_s"] is None
    assert second.cost["lost_work_s"] == pytest.approx(50, abs=2)


def test_a_launchers_word_counts_once_for_all_its_nodes() -> None:
    other = {**restart(2, 2, 103), "file": "other-launcher.log"}
    assert len(analyzed(case(failing(1, 0), restart(2, 2, 100), other, failing(1, 110))).incidents) == 2


def test_a_rank_may_be_on_another_host_after_a_start() -> None:
    found = analyzed(case(failing(1, 0, "node-0"), restart(2, 2, 100), failing(1, 110, "node-1")))
    assert [i.verdict.hosts for i in found.incidents] == [("node-0",), ("node-1",)]
    assert not any("disagree" in p.says for p in found.problems)


def test_the_oldest_of_many_failures_are_counted_only() -> None:
    many: list[Short] = []
    number = runs.MOST_SPANS + 3
    for n in range(number):
        many += failing(1, 1000 * n)
        many.append(restart(number - n, number, 1000 * n + 100))
    found = analyzed(case(*many))
    assert len(found.incidents) == runs.MOST_SPANS
    assert found.incidents[-1].attempt == number - 1
    assert any(p.says.startswith("3 earlier failures of the job were left out") for p in found.problems)


def test_last_words_of_an_attempt_are_no_failure_of_the_next() -> None:
    late = {"kind": "exit", "rank": 2, "code": -15, "at": 104, "file": "node-2.log"}
    on = [{"kind": "progress", "rank": 1, "step": n, "at": 200 + n} for n in range(9)]
    found = analyzed(case(failing(1, 0), restart(2, 2, 100), late, on))
    assert [i.attempt for i in found.incidents] == [0]
    assert [str(row["says"])[:15] for row in found.incidents[0].contributing] == ["Its last start,"]


@pytest.mark.parametrize("name", ["two-attempts-two-culprits", "one-fault-burned-all-restarts"])
def test_all_that_is_written_of_several_incidents(name: str, tmp_path: Path) -> None:
    write(STARTS[name], tmp_path)
    analysis = analyze([str(tmp_path)])
    doc = document.build(analysis)
    validator().validate(doc)
    number = len(doc["incidents"])
    assert doc["primary"] == number
    assert all(i["ranks"] for i in doc["incidents"])
    for lang in ("en", "da", "de"):
        text = ticket(doc, lang)
        assert text.count("\n") <= 12
        assert " None" not in text
        page = html(doc, lang)
        assert all(f'id="incident-{n}"' in page for n in range(1, number + 1))
    newest = doc["incidents"][-1]["verdict"]["summary"]
    assert newest[:60] in ticket(doc)
    assert trace.trace(doc)
    rows = [document.event(e) for e in analysis.events]
    assert len(str(exported(Path("x.csv"), rows)).splitlines()) == len(rows) + 1


def ends(local: int, pid: int, at: float, agent: int = 900, host: str = "node-0", file: str = "train.log") -> Short:
    """torchrun's word that its workers failed."""
    told = {"agent": agent, "local_rank": local, "pid": pid, "host": host, "code": 1}
    return {"kind": "exit", "rank": local, "at": at, "file": file, **told}


def raises(rank: int, at: float, file: str = "train.log", host: str = "node-0") -> list[Short]:
    return [
        {"kind": "progress", "rank": rank, "host": host, "step": 5, "at": at, "file": file},
        {"kind": "cuda-oom", "rank": rank, "host": host, "at": at + 5, "file": file},
    ]


def test_an_agent_whose_workers_fail_twice_has_started_them_twice() -> None:
    found = analyzed(case(raises(1, 0), ends(1, 101, 7), raises(2, 20), ends(2, 202, 27)))
    assert [i.verdict.ranks for i in found.incidents] == [(1,), (2,)]
    assert [i.attempt for i in found.incidents] == [0, 1]


def test_an_agents_word_that_is_repeated_is_no_new_start() -> None:
    again = {**ends(1, 101, 7), "code": -6}
    assert len(analyzed(case(raises(1, 0), ends(1, 101, 7), again)).incidents) == 1


def test_agents_of_two_nodes_tell_of_one_start() -> None:
    other = {**ends(0, 300, 8, agent=901, host="node-1"), "rank": 4}
    assert len(analyzed(case(raises(1, 0), ends(1, 101, 7), other)).incidents) == 1


def test_the_block_at_the_end_is_of_the_start_that_ended() -> None:
    block = {k: v for k, v in ends(0, 102, 7).items() if k != "agent"}
    found = analyzed(case(raises(1, 0), ends(1, 101, 7), block, raises(0, 60), ends(0, 203, 67, agent=950)))
    assert [i.verdict.ranks for i in found.incidents] == [(1,), (0,)]
    assert [i.attempt for i in found.incidents] == [0, 0]  # another agent is another run


def test_two_agents_with_other_seats_on_one_host_are_one_start() -> None:
    found = analyzed(case(raises(1, 0), ends(1, 101, 7), ends(3, 203, 9, agent=950, file="second.log")))
    assert len(found.incidents) == 1


def test_runs_of_two_agents_in_two_files_are_judged_apart() -> None:
    second = [{**e, "file": "second.log"} for e in raises(1, 60)]
    found = analyzed(case(raises(1, 0), ends(1, 101, 7), second, ends(1, 201, 67, agent=950, file="second.log")))
    assert [i.verdict.ranks for i in found.incidents] == [(1,), (1,)]


def test_agents_of_no_known_host_are_not_held_against_each_other() -> None:
    """In containers all agents have one number, and one file can hold the words of all of them."""
    some = [{**e, "host": None} for e in (*raises(1, 0), ends(1, 101, 7), *raises(2, 20), ends(2, 202, 27))]
    assert len(analyzed(case(some)).incidents) == 1
