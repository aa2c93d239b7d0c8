"""Which card and which rank a line is about, where it does not say both: a row for each way to tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from short_form import events
from test_words_of_verdict import case

from nccl_forensics.catalog import weight
from nccl_forensics.model import Event, Gpu, GroupState, Reconstruction, Suspect
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.rules.evidence_subjects import Subjects, card_key, card_name, only_beside, told_apart
from nccl_forensics.verdict.rules.gpu_subjects import GpuHost
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who import claims
from nccl_forensics.who.identities import Identities, Place

C1 = Gpu(host="n1", index=1, pci="0000:c1:00.0", uuid="GPU-aa", serial="0123")
C8 = Gpu(host="n1", index=2, pci="0000:c8:00.0")
FAR = Gpu(host="n2", index=1, pci="0000:01:00.0")
INIT = {"kind": "nccl-init", "host": "n1", "gpu": "0000:c1:00.0", "nvml_dev": 5}


def subjects(*lines: dict[str, Any], known: Identities | None = None, **collectives: Any) -> Subjects:
    found = tuple(events({"events": list(lines)}))
    known = known or Identities(ranks={}, gpus={"n1": (C1, C8), "n2": (FAR,)})
    its = Case(
        events=found,
        known=known,
        collectives=Reconstruction(**collectives),
        aligned=Aligned(found, (), frozenset()),
    )
    return Subjects.of(its)


def line(**more: Any) -> Event:
    (event,) = events({"events": [{"kind": "dcgm-fail", **more}]})
    return event


@pytest.mark.parametrize(
    ("about", "card"),
    [
        ({"host": "n1", "gpu": "0000:c1:00.0"}, C1),
        ({"host": "n1", "gpu": "0000:d1:00.0"}, Gpu(host="n1", pci="0000:d1:00.0")),
        ({"host": "n9", "uuid": "GPU-aa"}, C1),
        ({"host": "n9", "serial": "0123"}, C1),
        ({"host": "n9", "uuid": "GPU-zz"}, Gpu(host="n9", uuid="GPU-zz")),
        ({"host": "n9", "serial": "999"}, Gpu(host="n9", serial="999")),
        ({"host": "n1"}, None),
        ({"host": "n1", "index": 2}, C8),
        ({"host": "n1.example.net", "index": 2}, C8),
        ({"host": "n2", "index": 2}, Gpu(host="n2", index=2)),
        ({"host": "n1", "index": 2, "uuid": "GPU-zz"}, Gpu(host="n1", index=2, uuid="GPU-zz")),  # another card
        ({"index": 1}, Gpu(index=1)),  # of which host?
        ({"host": "n1", "index": 5}, Gpu(host="n1", index=5, pci="0000:c1:00.0", uuid="GPU-aa", serial="0123")),
        ({"host": "n2", "index": 5}, Gpu(host="n2", index=5)),  # NCCL said so of another host
    ],
)
def test_the_card_of_a_line(about: dict[str, Any], card: Gpu | None) -> None:
    assert subjects(INIT, {**INIT, "host": "n2", "gpu": None}).gpu(line(**about)) == card


def test_an_index_with_two_addresses_is_none() -> None:
    told = subjects(INIT, {**INIT, "gpu": "0000:c8:00.0"}, {"kind": "exit", "host": "n2"})
    assert told.gpu(line(host="n1", index=5)) == Gpu(host="n1", index=5)


def test_two_cards_with_one_index_are_none() -> None:
    twice = Identities(ranks={}, gpus={"n1": (C1, Gpu(host="n1", index=1, pci="0000:d1:00.0"))})
    assert subjects(known=twice).gpu(line(host="n1", index=1)) == Gpu(host="n1", index=1)


@pytest.mark.parametrize(
    ("lines", "ranks", "host"),
    [
        ([{"kind": "exit", "host": "n1"}], {}, "n1"),
        ([{"kind": "exit", "host": "n1"}, {"kind": "exit", "host": "n1.example.net"}], {}, "n1.example.net"),
        ([{"kind": "exit", "host": "n1"}, {"kind": "exit", "host": "n2"}], {}, None),
        ([{"kind": "exit", "host": "n1"}], {0: Place("n2")}, None),
        ([{"kind": "exit"}], {0: Place("n2"), 1: Place()}, "n2"),
        ([{"kind": "exit"}], {}, None),
    ],
)
def test_the_host_of_a_line_that_names_none(lines: list[dict[str, Any]], ranks: Any, host: str | None) -> None:
    assert subjects(*lines, known=Identities(ranks=ranks)).host(line()) == host
    assert subjects(*lines, known=Identities(ranks=ranks)).host(line(host="n7")) == "n7"


SEATS = {4: Place("n1", 0, None, C1), 5: Place("n1", 1), 6: Place("n1", 2), 7: Place("n2", 1)}
LATE = {"groups": (GroupState(name="0", missing=(5,)),)}


@pytest.mark.parametrize(
    ("card", "known", "late", "rank"),
    [
        (C1, {}, LATE, 4),  # a file states it, late or not
        (Gpu(host="n1", index=1), {}, LATE, 5),
        (Gpu(host="n1", index=2), {}, LATE, None),  # rank 6 is not late
        (Gpu(host="n1", index=0), {}, {"groups": (GroupState(name="0", missing=(4,)),)}, None),  # it has another card
        (Gpu(host="n1", index=3), {}, LATE, None),
        (Gpu(index=1), {}, LATE, None),
        (Gpu(host="n1"), {}, LATE, None),
        (Gpu(host="n1", index=1), {"devices_chosen": True}, LATE, None),
        (Gpu(host="n1", index=1), {}, {"groups": (GroupState(name="0", no_data=(5,)),)}, 5),
        (Gpu(host="n1", index=1), {}, {"cannot_exclude": (5,)}, 5),
        (Gpu(host="n1", index=1), {}, {"suspects": (Suspect(ranks=(5,), cause="x", weight=1.0, says=""),)}, 5),
        (Gpu(host="n1", index=1), {"ranks": {**SEATS, 8: Place("n1", 1)}}, LATE, None),  # two have that local rank
    ],
)
def test_the_rank_on_a_card(card: Gpu, known: dict[str, Any], late: dict[str, Any], rank: int | None) -> None:
    told = Identities(**{"ranks": SEATS, "gpus": {"n1": (C1, C8)}, **known})
    assert subjects(known=told, **late).rank(card) == rank


@pytest.mark.parametrize(
    ("card", "name"),
    [
        (C1, "GPU 1 (0000:c1:00.0) in n1"),
        (Gpu(host="n1", pci="0000:c1:00.0"), "GPU 0000:c1:00.0 in n1"),
        (Gpu(index=3), "GPU 3"),
        (Gpu(uuid="GPU-aa", serial="7"), "GPU GPU-aa"),
        (Gpu(serial="7"), "GPU 7"),
    ],
)
def test_what_a_card_is_called(card: Gpu, name: str) -> None:
    assert card_name(card) == name


def test_cards_are_told_apart_by_their_addresses() -> None:
    bare = Gpu(host="n1", index=4)
    assert told_apart([C1, bare]) == (C1,)
    assert told_apart([bare]) == (bare,)
    assert told_apart([bare, bare]) == ()
    assert card_key(C1) != card_key(C8)
    assert card_key(Gpu(host="n1.example.net", pci=C1.pci)) == card_key(C1)


def test_a_state_beside_a_job_accuses_nobody() -> None:
    job = case({"kind": "watchdog-timeout", "rank": 0, "at": 5, "seq": 1, "waited_ms": 1000})
    assert only_beside(job)
    assert not only_beside(job, sure=True)
    assert not only_beside(case())


# --- which of a card's faults counts ----------------------------------------------------------------------------------

FAR_AWAY = weight("long_before")


@pytest.mark.parametrize(
    ("timings", "order"),
    [
        ([0.0, 0.0], [0, 1]),
        ([FAR_AWAY, 0.0, FAR_AWAY, -0.5], [1, 3, 0, 2]),  # a card can fail more than once
        ([FAR_AWAY, FAR_AWAY - 1], [0, 1]),  # all are far
        ([0.0, FAR_AWAY, 0.0], [0, 1, 2]),
    ],
)
def test_the_faults_near_the_failure_come_first(timings: list[float], order: list[int]) -> None:
    lines = events({"events": [{"kind": "xid", "xid": 31, "at": n} for n in range(len(timings))]})
    timing = {id(e): (t, None) for e, t in zip(lines, timings, strict=True)}
    host = GpuHost(SimpleNamespace(timing=lambda e: timing[id(e)]), "n1")  # type: ignore[arg-type]
    assert [lines.index(e) for e in host._nearest_first(lines)] == order


def test_cards_of_one_board_share_a_serial() -> None:
    cards = [Gpu(host="n1", pci=f"p{n}", serial=s) for n, s in enumerate(["7", "7", "8", "000", "000", None])]
    host = GpuHost(case().__class__(**_fields(case(), Identities(ranks={}, gpus={"n1": tuple(cards)}))), "n1")
    assert host.boards([c.pci or "" for c in cards]) == [["p0", "p1"], ["p2"], ["p3"], ["p4"], ["p5"]]


def _fields(one: Case, known: Identities) -> dict[str, Any]:
    return {"events": one.events, "known": known, "collectives": one.collectives, "aligned": one.aligned}


@pytest.mark.parametrize(
    ("pci", "index", "card"),
    [
        ("0000:c1:00.0", None, C1),
        ("0000:d1:00.0", None, Gpu(host="n1", pci="0000:d1:00.0")),
        ("0000:c1:00.0", 2, C1),  # an address says more than an index
        (None, 2, C8),
        (None, 7, None),
        (None, None, None),
    ],
)
def test_the_card_that_a_rank_states(pci: str | None, index: int | None, card: Gpu | None) -> None:
    assert claims._card("n1", pci, index, {"n1": [C1, C8]}) == card
