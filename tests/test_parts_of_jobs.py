"""Several jobs in one pile: whose a file is that tells no id, what files of one job tell, what starts cost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from short_form import BASE_NS, SECOND, events, rows
from test_words_of_verdict import NOBODY

from nccl_forensics.model import Gpu, Incident
from nccl_forensics.starts import jobs, outcome
from nccl_forensics.starts.near import Near
from nccl_forensics.starts.parts import Part, overlap, wider
from nccl_forensics.who.identities import Identities, Place


def part(*sources: str, **told: Any) -> Part:
    made = Part(sources=list(sources), hosts=set(told.get("hosts", ())), worlds=set(told.get("worlds", ())))
    made.times.update(told.get("times", {}))
    for job in told.get("slurm", ()):
        made.labels["slurm"].add(job)
    return made


def window(begin: float, end: float) -> tuple[int, int]:
    return int(begin * SECOND), int(end * SECOND)


TWO = Near(
    [
        [part("pile/a/train.log", hosts=["n1", "n2"], worlds=[8], times={True: window(0, 1000)})],
        [part("pile/b/train.log", hosts=["n2", "n3"], worlds=[16], times={True: window(5000, 6000)})],
    ]
)


@pytest.mark.parametrize(
    ("source", "hosts", "times", "job"),
    [
        ("pile/a/other.log", (), {}, 0),
        ("pile/b/deep/other.log", (), {}, 1),
        ("pile/other.log", (), {}, None),  # both are below
        ("elsewhere/other.log", (), {}, None),
        ("pile/other.log", ("n1",), {}, 0),
        ("pile/other.log", ("n3", "n9"), {}, 1),
        ("pile/other.log", ("n2",), {}, None),  # both ran there
        ("pile/other.log", ("n2",), {True: window(500, 600)}, 0),
        ("pile/other.log", (), {True: window(1599, 1700)}, 0),  # within ten minutes of its end
        ("pile/other.log", (), {True: window(1601, 1700)}, None),
        ("pile/other.log", (), {False: window(500, 600)}, None),  # of no known year
        ("pile/other.log", (), {True: window(500, 5500)}, None),  # of both
        ("pile/a/other.log", ("n3",), {True: window(5500, 5600)}, 0),  # its folder says most
    ],
)
def test_to_which_job_a_file_belongs(source: str, hosts: tuple[str, ...], times: Any, job: int | None) -> None:
    assert TWO.of([source], hosts, times) == job


@pytest.mark.parametrize(
    ("path", "groups", "job"),
    [
        ("pile/b/dump_0", [(0, 1)], 1),
        ("pile/dump_0", [(0, 1), tuple(range(8))], 0),
        ("pile/dump_0", [tuple(range(16)), ()], 1),
        ("pile/dump_0", [tuple(range(9))], None),
        ("pile/dump_0", [()], None),
        ("pile/dump_0", [], None),
    ],
)
def test_to_which_job_a_dump_belongs(path: str, groups: list[tuple[int, ...]], job: int | None) -> None:
    dump = SimpleNamespace(path=path, groups=[SimpleNamespace(members=members) for members in groups])
    assert TWO.of_dump(dump) == job  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "other", "name"),
    [
        (part("p/a/x.log", slurm=["4711"]), part("p/b/x.log"), "slurm-4711"),
        (part("p/a/x.log", slurm=["5", "4", "7", "6"]), part("p/b/x.log"), "slurm-4, slurm-5, slurm-6"),
        (part("p/a/x.log"), part("p/b/x.log"), "the job in a"),
        (part("p/a/x.log", "p/a/deep/y.log"), part("p/b/x.log"), "the job in a"),
        (part("b.tar!run/x.log"), part("b.tar!other/x.log"), "the job in b.tar!run"),
        (part("p/x.log", hosts=["n1"]), part("p/y.log", hosts=["n2"]), "the job on n1"),
        (part("p/x.log", hosts=["n1"]), part("p/y.log", hosts=["n1", "n2"]), None),
        (part("p/x.log"), part("p/y.log"), None),
        (part("p/x.log", hosts="abcd"), part("p/y.log"), "the job on a, b, c and d"),
        (part("p/x.log", hosts="abcde"), part("p/y.log"), "the job on a, b, c and 2 more"),
    ],
)
def test_how_people_call_a_job(own: Part, other: Part, name: str | None) -> None:
    assert Near([[own], [other]]).name(0) == name


# --- what files of one job tell ---------------------------------------------------------------------------------------


def taken(
    *short: dict[str, Any], of_file: str | None = None, worlds: tuple[int, ...] = (), year: int | None = None
) -> Part:
    made = Part()
    for event in events({"events": list(short)}):
        made.take(event, of_file, worlds, year)
    return made


def _times(made: Part) -> dict[bool, tuple[float, float]]:
    return {dated: tuple((t - BASE_NS) / SECOND for t in times) for dated, times in made.times.items()}  # type: ignore[misc]


WATCHDOG = {"kind": "watchdog-timeout", "rank": 3, "host": "n1.example.net", "at": 700, "seq": 1, "waited_ms": 600_000}


@pytest.mark.parametrize(
    ("line", "times"),
    [
        (WATCHDOG, (100, 700)),  # it lasted as long as it waited
        ({**WATCHDOG, "waited_ms": None}, (700, 700)),
        ({**WATCHDOG, "kind": "pg-blocking"}, (700, 700)),
        ({**WATCHDOG, "waited_ms": -5}, (700, 700)),
    ],
)
def test_since_when_a_line_lasted(line: dict[str, Any], times: tuple[float, float]) -> None:
    made = taken(line)
    assert _times(made) == {True: times}
    assert {(rank, host) for rank, host, _ in made.places} == {(3, "n1")}
    assert made.hosts == {"n1"}


def test_a_line_without_a_year_has_that_of_its_file_if_it_is_known() -> None:
    assert list(taken({**WATCHDOG, "at": "11-25 10:00:00"}).times) == [False]
    assert list(taken({**WATCHDOG, "at": "11-25 10:00:00"}, year=2026).times) == [True]
    assert taken({**WATCHDOG, "at": None}).times == {}


INIT = {"kind": "nccl-init", "host": "n1", "comm_rank": 5, "nranks": 8, "gpu": "0000:c1:00.0", "at": 1}


@pytest.mark.parametrize(
    ("line", "worlds", "seats"),
    [
        (INIT, (8,), {5}),
        (INIT, (16,), set()),  # a part of the job
        ({**INIT, "rank": 9}, (16,), {9}),
        ({**INIT, "kind": "nccl-info"}, (8,), set()),
        ({**INIT, "host": None, "rank": 9}, (8,), set()),
    ],
)
def test_who_sat_where(line: dict[str, Any], worlds: tuple[int, ...], seats: set[int]) -> None:
    made = taken(line, worlds=worlds)
    assert made.seats == seats
    assert dict(made.cards) == {(seat, "n1"): {"0000:c1:00.0"} for seat in seats}


def test_a_line_of_no_host_is_of_its_files_host() -> None:
    assert taken({**INIT, "host": None, "rank": 9}, of_file="n7").seats == {9}


def test_a_card_that_no_line_tells_is_none() -> None:
    assert dict(taken({**INIT, "rank": 5, "gpu": None}).cards) == {}


@pytest.mark.parametrize(("host", "pods"), [("zephyr-worker-3", {"zephyr"}), ("zephyr-3", set())])
def test_the_job_in_a_pods_name(host: str, pods: set[str]) -> None:
    assert taken({**INIT, "host": host}).labels["pods"] == pods


@pytest.mark.parametrize(
    ("mine", "its", "differ"),
    [
        (part("a", slurm=["1"]), part("b", slurm=["2"]), True),
        (part("a", slurm=["1"]), part("b", slurm=["1", "2"]), False),
        (part("a", slurm=["1"]), part("b"), False),
        (part("a", worlds=[8]), part("b", worlds=[16]), True),
        (part("a", worlds=[8]), part("b", worlds=[8]), False),
    ],
)
def test_ids_that_both_have_and_not_the_same(mine: Part, its: Part, differ: bool) -> None:
    assert mine.is_another_job(its) is differ


def test_windows() -> None:
    assert wider(None, 5) == (5, 5)
    assert wider((3, 4), 5) == (3, 5)
    assert wider((3, 4), 1) == (1, 4)
    assert overlap((0, 5), (3, 9)) == 2
    assert overlap((0, 5), (7, 9)) == -2


# --- files that are joined --------------------------------------------------------------------------------------------


def joined(*short: dict[str, Any], **more: Any) -> list[list[str]]:
    case = {"events": [{"at": n, **one} for n, one in enumerate(short)], **more}
    found = events(case)
    inside = rows(case, found)
    return sorted(sorted(p.sources) for p in jobs._parts(inside, found, jobs._lines_of_jobs(inside, found)))


def _comm(file: str, comm: str | None, nranks: int = 2, **more: Any) -> dict[str, Any]:
    return {"kind": "nccl-init", "file": file, "comm_id": comm, "nranks": nranks, "comm_rank": 0, "rank": 0, **more}


def _slurm(file: str, job: str, kind: str = "slurm-cancel") -> dict[str, Any]:
    return {"kind": kind, "file": file, "job": job}


STEP = {"kind": "progress", "what": "training step", "step": 1, "rank": 0}


@pytest.mark.parametrize(
    ("lines", "together"),
    [
        ([_comm("a.log", "0x1"), _comm("b.log", "0x1")], [["a.log", "b.log"]]),
        ([_comm("a.log", "0x1"), _comm("b.log", "0x2")], [["a.log"], ["b.log"]]),
        ([_comm("a.log", "0x1", 1), _comm("b.log", "0x1", 1)], [["a.log"], ["b.log"]]),  # alone in it
        ([_comm("a.log", None), _comm("b.log", None)], [["a.log"], ["b.log"]]),
        (
            [_comm("a.log", None, host="n1", pid=7), _comm("b.log", None, host="n1.x.net", pid=7)],
            [["a.log", "b.log"]],
        ),
        ([_comm("a.log", None, host="n1", pid=7), _comm("b.log", None, host="n2", pid=7)], [["a.log"], ["b.log"]]),
        (
            [{"kind": "rendezvous", "file": f"{x}.log", "master": "n1:29500", "rank": 0} for x in "ab"],
            [["a.log", "b.log"]],
        ),
        ([{**STEP, "file": "a.log"}, {**STEP, "file": "b.log"}], [["a.log"], ["b.log"]]),
        (
            [
                {**STEP, "file": "a.log"},
                _slurm("a.log", "4711.0"),
                {**STEP, "file": "b.log"},
                _slurm("b.log", "4711+1"),
            ],
            [["a.log", "b.log"]],
        ),
        (
            # one process number in two Slurm jobs is two processes; a communicator is one (heterogeneous jobs)
            [
                *(_slurm(f"{x}.log", x) for x in ("1", "2")),
                *(_comm(f"{x}.log", None, host="n1", pid=7) for x in ("1", "2")),
            ],
            [["1.log"], ["2.log"]],
        ),
        (
            [*(_slurm(f"{x}.log", x) for x in ("1", "2")), *(_comm(f"{x}.log", "0x1") for x in ("1", "2"))],
            [["1.log", "2.log"]],
        ),
    ],
)
def test_which_files_are_one_jobs(lines: list[dict[str, Any]], together: list[list[str]]) -> None:
    assert joined(*lines) == together


def test_a_hosts_own_file_is_no_jobs() -> None:
    lines = [{**STEP, "file": "a.log"}, {"kind": "xid", "file": "kern.log", "xid": 79}]
    assert joined(*lines) == [["a.log"]]


# --- what starts cost -------------------------------------------------------------------------------------------------


def incident(
    onset: float | None = None, detected: float | None = None, ended: float | None = None, **more: Any
) -> Incident:
    def ns(s: float | None) -> int | None:
        return None if s is None else BASE_NS + int(s * SECOND)

    return Incident(
        id=1,
        onset_ns=ns(onset),
        onset_uncertainty_ns=None,
        detected_ns=ns(detected),
        ended_ns=ns(ended),
        collective=None,
        groups=(),
        waits=(),
        verdict=replace(NOBODY, **more.pop("verdict", {})),
        **more,
    )


@pytest.mark.parametrize(
    ("old", "new", "seconds"),
    [(0, 5, 5.0), (5, 5, 0.0), (5, 0, None), (None, 5, None), (5, None, None)],
)
def test_seconds_between_two_moments(old: float | None, new: float | None, seconds: float | None) -> None:
    def ns(s: float | None) -> int | None:
        return None if s is None else BASE_NS + int(s * SECOND)

    assert outcome._between(ns(old), ns(new)) == seconds
    assert outcome._between(5, BASE_NS) is None  # one of no known year


CARD = Gpu(host="n1", pci="0000:c1:00.0")


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"cause": "gpu_off_bus", "gpus": (CARD,), "ranks": (3,)}, {"cause": "gpu_off_bus", "gpus": (CARD,)}, True),
        (
            {"cause": "gpu_off_bus", "gpus": (CARD,)},
            {"cause": "gpu_off_bus", "gpus": (replace(CARD, host="n2"),)},
            False,
        ),
        (
            {"cause": "gpu_off_bus", "gpus": (Gpu(host="n1"),), "ranks": (3,)},
            {"cause": "gpu_off_bus", "ranks": (3,)},
            True,
        ),
        ({"ranks": (3,), "hosts": ("n1",)}, {"ranks": (3,), "hosts": ("n2",)}, False),
        ({"ranks": (3,)}, {"ranks": (4,)}, False),
        ({"cause": "rank_busy"}, {"cause": "cuda_oom"}, False),
    ],
)
def test_is_the_same_blamed_again(one: dict[str, Any], other: dict[str, Any], alike: bool) -> None:
    assert (outcome._named(incident(verdict=one)) == outcome._named(incident(verdict=other))) is alike
    assert outcome._named(incident(verdict={"cause": "undetermined"})) is None


@pytest.mark.parametrize(
    ("blamed", "says"),
    [
        ([1], []),
        ([1, 1], ["each time for the same cause"]),
        ([1, 2], ["not each time for the same cause"]),
        ([None, None], ["the logs do not tell why"]),
        ([None, 1], ["not each time for the same cause"]),
    ],
)
def test_what_is_said_of_several_failures(blamed: list[object], says: list[str]) -> None:
    said = list(outcome._each_time(blamed))
    assert [text in one for text, one in zip(says, said, strict=True)] == [True] * len(says)


def test_ranks_that_stayed_keep_what_the_pile_tells_of_them() -> None:
    card = Gpu(host="n1", pci="0000:c1:00.0")
    whole = Identities(ranks={0: Place("n1", 0, 10, card), 1: Place("n2", 1, 11), 2: Place("n1", 2, 12)}, world_size=3)
    first = Identities(ranks={0: Place("n1", None, 20), 1: Place("n2")})
    second = Identities(ranks={0: Place("n1"), 1: Place("n3")}, world_size=2)
    made = outcome.places([first, second], whole)
    assert made[0].ranks[0] == Place("n1", 0, 20, card)  # its process is that of its own start
    assert made[0].ranks[1] == Place("n2")  # it was moved
    assert made[1].ranks[1] == Place("n3")
    assert made[0].ranks[2] == Place("n1", 2, None)  # only the whole pile tells of it
    assert [known.world_size for known in made] == [3, 2]
