"""The weighing: how findings add up, what they do to each other, and what the incident says around the verdict."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from short_form import SECOND, analyzed

from nccl_forensics import catalog
from nccl_forensics.model import Event, Evidence, Finding, Gpu, Hypothesis, Incident, Reconstruction
from nccl_forensics.verdict.case import Case
from nccl_forensics.verdict.drafts import prior
from nccl_forensics.verdict.incidents import diagnose
from nccl_forensics.verdict.weigh import SUREST, weigh
from nccl_forensics.when.aligned import Aligned
from nccl_forensics.who.identities import Identities, Place

PLACES = {
    r: Place(f"node-{r // 4}", r % 4, 4000 + r, Gpu(host=f"node-{r // 4}", pci=f"0000:{r % 4}1:00.0")) for r in range(8)
}
KNOWN = Identities(ranks=PLACES, world_size=8)
CASE = Case(events=(), known=KNOWN, collectives=Reconstruction(), aligned=Aligned((), (), frozenset()))
PLAIN = "rank_busy"
"""A cause without a prior and without relatives."""


def finding(
    cause: str = PLAIN, weight: float = 2.0, ranks: tuple[int, ...] = (), says: str = "seen", **k: Any
) -> Finding:
    place = Evidence(source="job.log", line=1, text="line")
    return Finding(cause=cause, says=says, weight=weight, ranks=ranks, evidence=(place,), **k)


def weighed(*found: Finding) -> dict[str, Hypothesis]:
    made = weigh(found, CASE)
    assert len({h.cause for h in made}) == len(made), "these tests use each cause once"
    return {h.cause: h for h in made}


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# --- adding up --------------------------------------------------------------------------------------------------------


def test_one_finding_gives_its_own_odds_against_something_else() -> None:
    assert prior(PLAIN) == 0.0
    for weight in (-3.0, 0.0, 1.0, 2.5):
        assert weighed(finding(weight=weight))[PLAIN].confidence == pytest.approx(sigmoid(weight))


def test_the_odds_of_a_job_have_the_slope_that_its_simulated_likes_show() -> None:
    line = Evidence(source="job.log", line=1, text="rank 1 ran out of memory")
    job = replace(CASE, events=(Event(kind="cuda-oom", role="cause", evidence=line),))
    assert job.job
    slope = catalog.weight("confidence_slope")
    for weight in (-3.0, 0.0, 1.0, 2.5):
        (made,) = weigh([finding(weight=weight)], job)
        assert made.confidence == pytest.approx(sigmoid(slope * weight))


def test_each_further_finding_counts_half_of_the_one_before() -> None:
    found = weighed(finding(weight=1.0), finding(weight=2.0), finding(weight=0.4))
    assert found[PLAIN].log_odds == pytest.approx(2.0 + 0.5 + 0.1)


def test_what_refutes_counts_in_full_and_what_says_little_does_not_count_beside_more() -> None:
    assert weighed(finding(weight=2.0), finding(weight=-3.0, refutes=True))[PLAIN].log_odds == pytest.approx(-1.0)
    assert weighed(finding(weight=2.0), finding(weight=-3.0))[PLAIN].log_odds == pytest.approx(2.0)
    assert weighed(finding(weight=-3.0), finding(weight=-1.0))[PLAIN].log_odds == pytest.approx(-1.0)


def test_nothing_is_surer_than_a_log_can_make_it() -> None:
    sure = weighed(*[finding(weight=9.0, says=str(n)) for n in range(9)])[PLAIN]
    assert sure.confidence == SUREST < 1


def test_two_equal_rivals_share() -> None:
    found = weighed(finding("rank_busy", 3.0, (1,)), finding("deadlock", 3.0))
    assert found["rank_busy"].confidence == pytest.approx(found["deadlock"].confidence)
    assert found["rank_busy"].confidence < 0.5


def test_priors_only_break_ties() -> None:
    values = [prior(cause) for cause in catalog.load("causes")]
    assert max(values) < 0.8
    assert min(values) >= 0.0


def test_a_finding_needs_evidence() -> None:
    with pytest.raises(ValueError, match="without evidence"):
        Finding(cause=PLAIN, says="trust me", weight=3.0)


# --- relating ---------------------------------------------------------------------------------------------------------


def test_the_same_cause_on_two_ranks_is_two_stories() -> None:
    found = weigh([finding("cuda_oom", 3.0, (1,)), finding("cuda_oom", 3.0, (5,))], CASE)
    assert sorted(h.ranks for h in found) == [(1,), (5,)]
    assert all(h.confidence < 0.5 for h in found)


def test_the_special_story_swallows_the_general_one_on_the_same_rank() -> None:
    found = weighed(finding("python_exception", 2.6, (1,)), finding("cuda_oom", 3.2, (1,), "out of memory"))
    assert set(found) == {"cuda_oom"}
    assert {f.cause for f in found["cuda_oom"].findings} == {"cuda_oom", "python_exception"}, "its evidence is kept"


def test_but_not_on_another_rank() -> None:
    assert set(weighed(finding("python_exception", 2.6, (1,)), finding("cuda_oom", 3.2, (5,)))) == {
        "python_exception",
        "cuda_oom",
    }


def test_the_late_rank_supports_a_cause_that_struck_it_and_speaks_against_others() -> None:
    late = finding("rank_not_arrived", 2.4, (5,), "rank 5 never came")
    on_it = weighed(late, finding("cuda_oom", 2.0, (5,)))["cuda_oom"]
    elsewhere = weighed(late, finding("cuda_oom", 2.0, (1,)))
    alone = weighed(finding("cuda_oom", 2.0, (5,)))["cuda_oom"]
    assert on_it.log_odds > alone.log_odds > elsewhere["cuda_oom"].log_odds
    assert "rank 5 never came" in [f.says for f in on_it.findings]
    assert elsewhere["rank_not_arrived"].confidence > elsewhere["cuda_oom"].confidence


def test_a_cause_that_strikes_everybody_is_not_refuted_by_one_late_rank() -> None:
    late = finding("rank_not_arrived", 2.4, (5,))
    with_late = weighed(late, finding("preempted", 2.6))["preempted"]
    assert with_late.log_odds == pytest.approx(weighed(finding("preempted", 2.6))["preempted"].log_odds)


def test_a_failure_of_the_late_ranks_host_names_the_rank() -> None:
    late = finding("rank_not_arrived", 2.4, (5,))
    found = weighed(late, finding("cpu_stall", 2.0, hosts=("node-1",)))["cpu_stall"]
    assert found.ranks == (5,)
    other = weighed(late, finding("cpu_stall", 2.0, hosts=("node-0",)))["cpu_stall"]
    assert other.ranks == ()
    assert other.log_odds < found.log_odds


def test_a_named_rank_brings_its_host_and_card() -> None:
    found = weighed(finding("gpu_other", 3.0, (5,)))["gpu_other"]
    assert found.hosts == ("node-1",)
    assert [g.pci for g in found.gpus] == ["0000:11:00.0"]


# --- properties -------------------------------------------------------------------------------------------------------

CAUSES = ("rank_not_arrived", "cuda_oom", "python_exception", "gpu_off_bus", "nic_link_down", "store_lost", "node_lost")
FINDINGS = st.lists(
    st.builds(
        lambda cause, weight, rank, n: finding(cause, weight / 8, () if rank is None else (rank,), f"says {n}"),
        st.sampled_from(CAUSES),
        st.integers(-32, 28),
        st.none() | st.integers(0, 7),
        st.integers(0, 99),
    ),
    max_size=8,
    unique_by=lambda f: (f.cause, f.weight, f.says),
)


@settings(max_examples=200, deadline=None)
@given(FINDINGS)
def test_confidences_are_shares_of_one(found: list[Finding]) -> None:
    made = weigh(found, CASE)
    assert all(0.0 <= h.confidence <= SUREST for h in made)
    assert sum(h.confidence for h in made) < 1.0
    assert [h.confidence for h in made] == sorted((h.confidence for h in made), reverse=True)
    assert all(h.findings for h in made)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(FINDINGS.filter(lambda found: len({f.weight for f in found}) == len(found)), st.randoms(use_true_random=False))
def test_the_order_of_findings_does_not_matter(found: list[Finding], dice: random.Random) -> None:
    shuffled = list(found)
    dice.shuffle(shuffled)
    one, other = weigh(found, CASE), weigh(shuffled, CASE)
    assert [(h.cause, h.ranks, h.hosts) for h in one] == [(h.cause, h.ranks, h.hosts) for h in other]
    assert [h.confidence for h in one] == pytest.approx([h.confidence for h in other])


@settings(max_examples=200, deadline=None)
@given(FINDINGS, st.integers(1, 24))
def test_more_evidence_for_one_cause_never_makes_it_less_likely(found: list[Finding], weight: int) -> None:
    sole = [f for f in found if f.cause != "deadlock"]
    base = [*sole, finding("deadlock", 1.0)]
    more = [*base, finding("deadlock", weight / 8, says="more")]
    before = next(h for h in weigh(base, CASE) if h.cause == "deadlock")
    after = next(h for h in weigh(more, CASE) if h.cause == "deadlock")
    assert after.confidence >= before.confidence - 1e-12


# --- around the verdict -----------------------------------------------------------------------------------------------

WAIT = {"kind": "watchdog-timeout", "at": 1800, "seq": 42, "waited_ms": 600_000, "pg_desc": "default_pg"}
STUCK: dict[str, Any] = {
    "per_host": 4,
    "world_size": 8,
    "events": [
        {"kind": "xid", "xid": 79, "at": 1195, "gpu": "0000:c1:00.0", "host": "node-1", "file": "kern-1.log"},
        {"kind": "nccl-init", "at": 1, "rank": 5, "comm_rank": 5, "nranks": 8, "pid": 4005, "gpu": "0000:c1:00.0"},
        {**WAIT, "ranks": [0, 1, 2, 3, 4, 6]},
        {"kind": "exit", "rank": 5, "at": 1805, "code": -9, "signal": "SIGKILL", "pid": 4005},
        {"kind": "exit", "rank": 0, "at": 1806, "code": -6, "signal": "SIGABRT", "first": True},
        {"kind": "progress", "rank": 0, "at": 1150, "what": "training step", "step": 41},
    ],
}


def only(case: dict[str, Any]) -> Incident:
    (incident,) = analyzed(case).incidents
    return incident


def test_onset_detection_and_cost() -> None:
    incident = only(STUCK)
    base = 1_795_600_800 * SECOND
    assert incident.onset_ns == base + 1195 * SECOND
    assert incident.detected_ns == base + 1800 * SECOND
    assert incident.ended_ns == base + 1806 * SECOND
    assert incident.cost is not None
    assert incident.cost["detection_s"] == 605
    assert incident.cost["gpu_hours"] == pytest.approx(8 * 605 / 3600, abs=0.01)
    assert incident.collective is not None
    assert (incident.collective.op, incident.collective.seq) == ("all_reduce", 42)


def test_every_rank_has_a_state_with_a_reason() -> None:
    ranks = {r.rank: r for r in only(STUCK).ranks}
    assert list(ranks) == list(range(8))
    assert ranks[5].state == "culprit"
    assert ranks[5].exit == "SIGKILL"
    assert {r.state for n, r in ranks.items() if n in (0, 1, 2, 3, 4, 6)} == {"waiting"}
    assert ranks[7].state == "no-data"
    assert all(r.note for r in ranks.values())
    assert ranks[0].exit == "SIGABRT"
    assert 5 in ranks[0].waiting_on


def test_torchruns_root_cause_and_the_loudest_are_cleared_with_reasons() -> None:
    cleared = only(STUCK).verdict.cleared
    assert any("root cause" in c.who and c.rank == 0 for c in cleared)
    assert all(c.why for c in cleared)
    assert 5 not in {c.rank for c in cleared}


def test_alternatives_say_why_not() -> None:
    extra = {"kind": "cuda-oom", "rank": 2, "at": 1190, "requested_bytes": 1 << 30}
    verdict = only({**STUCK, "events": [*STUCK["events"], extra]}).verdict
    others = {h.cause: why for h, why in verdict.alternatives}
    assert verdict.cause == "gpu_off_bus"
    assert others["cuda_oom"]


def test_what_is_missing_is_asked_for_with_a_command() -> None:
    verdict = only({"world_size": 4, "events": [{**WAIT, "ranks": [0, 1, 2, 3]}]}).verdict
    asked = " ".join(verdict.missing_evidence)
    assert verdict.status == "undetermined"
    assert "Flight Recorder" in asked
    assert "journalctl" in asked
    assert verdict.actions[0].do.startswith("Collect: ")


def test_without_a_job_an_hour_separates_incidents() -> None:
    def lost(*times: int) -> int:
        rows = [
            {"kind": "xid", "xid": 79, "at": t, "gpu": f"0000:{n}1:00.0", "host": "n1", "file": "kern.log"}
            for n, t in enumerate(times)
        ]
        return len(analyzed({"events": rows}).incidents)

    assert lost(0) == 1
    assert lost(0, 3000) == 1
    assert lost(0, 4000) == 2
    assert lost(0, 4000, 8000, 80_000) == 4


def test_incidents_are_numbered_in_time_order() -> None:
    rows = [
        {"kind": "xid", "xid": 79, "at": t, "gpu": f"0000:{h[1]}1:00.0", "host": h, "file": f"kern-{h}.log"}
        for t, h in ((90_000, "n1"), (0, "n2"), (45_000, "n3"))
    ]
    found = analyzed({"events": rows}).incidents
    assert [i.id for i in found] == [1, 2, 3]
    assert [i.verdict.hosts for i in found] == [("n2",), ("n3",), ("n1",)]


def test_one_address_on_three_hosts_is_three_cards() -> None:
    rows = [
        {"kind": "xid", "xid": 79, "at": t, "gpu": "0000:41:00.0", "host": h, "file": f"kern-{h}.log"}
        for t, h in ((90_000, "n1"), (0, "n2"), (45_000, "n3"))
    ]
    found = analyzed({"events": rows}).incidents
    assert [i.verdict.hosts for i in found] == [("n2",), ("n3",), ("n1",)]


def test_nothing_in_nothing_out() -> None:
    empty = Aligned((), (), frozenset())
    assert diagnose(empty, Identities(), Reconstruction(), ()) == ()
    assert diagnose(empty, Identities(), Reconstruction(healthy=True), ()) == ()


def test_confidence_is_never_higher_with_the_decisive_line_taken_away() -> None:
    """The lost card is what makes it sure; without it the same wait is no more than a late rank."""
    rows = [e for e in STUCK["events"] if e["kind"] != "exit"]
    whole = only({**STUCK, "events": rows}).verdict
    less = only({**STUCK, "events": rows[1:]}).verdict
    assert whole.cause == "gpu_off_bus"
    assert whole.confidence > less.confidence
    assert less.cause != "gpu_off_bus"


def test_contributing_findings_are_not_the_verdicts_own() -> None:
    storms = [
        {"kind": "xid", "xid": 92, "at": 1195 - h * 3600, "gpu": "0000:21:00.0", "host": "node-0", "file": "kern-0.log"}
        for h in (72, 32, 12, 4, 1, 0)
    ]
    incident = only({**STUCK, "events": [*STUCK["events"], *storms]})
    assert incident.verdict.cause == "gpu_off_bus"
    assert [c["cause"] for c in incident.contributing] == ["gpu_ecc_leak"]


def test_a_finding_can_be_replaced_but_not_changed() -> None:
    one = finding()
    with pytest.raises(AttributeError):
        one.weight = 9.0  # type: ignore[misc]
    assert replace(one, weight=9.0).weight == 9.0
