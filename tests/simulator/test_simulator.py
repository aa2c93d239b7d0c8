"""The simulator keeps its own rules: same seed same bytes, causes before effects, dumps that agree with the story."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import pickletools
import re
from datetime import datetime, timezone
from typing import Any

import pytest

from . import CAUSES, UTC, Decoys, Degrade, Scenario, Zone, simulate
from .cluster import Clock
from .cpickle import Frame, dumps
from .draw import draw
from .reports import gzip_member

TIME_NS = 10**9
OPCODES = (
    "PROTO EMPTY_DICT EMPTY_LIST MARK SETITEMS APPENDS BINUNICODE BINPUT BINGET LONG_BINPUT LONG_BINGET BININT1 "
    "BININT2 BININT LONG1 NONE NEWTRUE NEWFALSE TUPLE2 BINFLOAT STOP"
)
"""Opcodes of genuine dumps (formats/fr-format.md)."""


def scenario(cause: str, **more: Any) -> Scenario:
    given = {"nodes": 2, "per_node": 4, "steps": 14, "fault_step": 10, "tensor": 2 if cause == "deadlock" else 1}
    return Scenario(cause=cause, **{**given, **more})


def loaded(files: dict[str, bytes]) -> dict[int, Any]:
    return {int(name.rsplit("_", 1)[1]): pickle.loads(data) for name, data in files.items() if name.startswith("fr/")}


@pytest.mark.parametrize("cause", sorted(CAUSES))
@pytest.mark.parametrize("seed", [1, 2])
def test_every_cause(cause: str, seed: int) -> None:
    bundle = simulate(scenario(cause), seed)
    truth = bundle.truth
    if seed == 1:
        assert bundle.files == simulate(scenario(cause), seed).files
    assert truth.healthy == (cause == "healthy")
    assert not set(truth.ranks) & set(truth.must_not_blame)
    json.dumps(truth.expect())
    if cause == "healthy":
        assert truth.onset_ns is None
        assert truth.reporting_ranks == ()
        return
    assert truth.onset_ns is not None
    assert truth.detected_ns is not None
    assert truth.onset_ns <= truth.detected_ns
    if cause in ("rank_not_arrived", "gpu_off_bus", "node_lost", "gpu_firmware", "storage_stall"):
        assert not set(truth.ranks) & set(truth.reporting_ranks), "who never came cannot complain"
    if cause in ("collective_skipped", "collective_mismatch", "nvlink"):
        assert set(truth.ranks) <= set(truth.reporting_ranks)


def test_other_seed_other_bytes() -> None:
    assert simulate(scenario("rank_busy"), 1).files != simulate(scenario("rank_busy"), 2).files


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_drawn_scenarios_are_consistent(seed: int) -> None:
    drawn = draw(seed)
    assert drawn == draw(seed)
    truth = simulate(drawn, seed).truth
    assert truth.healthy == (drawn.cause == "healthy")
    if truth.ranks and truth.group == "0" and truth.onset_ns is not None and truth.detected_ns is not None:
        assert truth.onset_ns <= truth.detected_ns


def test_unknown_cause() -> None:
    with pytest.raises(KeyError):
        simulate(scenario("gremlins"), 1)


@pytest.mark.parametrize("version", ["2.2", "2.3", "2.4", "2.5", "2.6", "2.8", "2.9", "2.10"])
def test_dumps_are_pickles_as_pytorch_writes_them(version: str) -> None:
    bundle = simulate(scenario("rank_not_arrived", torch=version, timing=version == "2.8", per_node=2), 4)
    found = loaded(bundle.files)
    assert len(found) >= 3
    for name, data in bundle.files.items():
        if name.startswith("fr/"):
            assert {op.name for op, _, _ in pickletools.genops(data)} <= set(OPCODES.split())
    keys = {tuple(value) if isinstance(value, dict) else list for value in found.values()}
    assert len(keys) == 1


def test_json_dumps_tell_the_same() -> None:
    pickled = loaded(simulate(scenario("collective_skipped", torch="2.9"), 4).files)
    spelled = simulate(scenario("collective_skipped", torch="2.9", json_dumps=True), 4).files
    for rank, value in pickled.items():
        other = json.loads(spelled[f"fr/comm_lib_trace_rank_{rank}.json"])
        assert [e["time_created_ns"] for e in other["entries"]] == [e["time_created_ns"] for e in value["entries"]]
        assert all("frames" not in e for e in other["entries"])
        for group, row in value["pg_status"].items():
            assert other["pg_status"][group] == {key: str(n) for key, n in row.items()}


def test_the_missing_rank_lags_in_the_dumps() -> None:
    bundle = simulate(scenario("rank_not_arrived", torch="2.6"), 5)
    enqueued = {r: v["pg_status"]["0"]["last_enqueued_collective"] for r, v in loaded(bundle.files).items()}
    (culprit,) = bundle.truth.ranks
    assert bundle.truth.seq is not None
    assert enqueued.pop(culprit) == bundle.truth.seq - 1
    assert min(enqueued.values()) >= bundle.truth.seq


def test_the_skipping_rank_is_one_ahead() -> None:
    bundle = simulate(scenario("collective_skipped", torch="2.9"), 5)
    (culprit,) = bundle.truth.ranks
    at = {
        rank: {e["collective_seq_id"]: e["input_sizes"] for e in value["entries"]}
        for rank, value in loaded(bundle.files).items()
    }
    seq = bundle.truth.seq
    assert seq is not None
    other = next(rank for rank in at if rank != culprit)
    assert at[culprit][seq] != at[other][seq]
    assert at[culprit][seq] == at[other][seq + 1]


def test_mesh_runs_to_the_end_when_healthy() -> None:
    mesh = scenario("healthy", nodes=2, per_node=8, tensor=2, pipeline=2, expert=4, application="megatron")
    log = b"".join(data for name, data in simulate(mesh, 1).files.items() if name.endswith("train.log"))
    assert b"training finished" in log
    assert log.count(b"] iteration ") == 14


def test_mesh_names_the_group_that_the_culprit_holds_up() -> None:
    mesh = scenario("rank_not_arrived", nodes=2, per_node=8, tensor=2, pipeline=2, torch="2.9")
    bundle = simulate(mesh, 3)
    dump = loaded(bundle.files)[bundle.truth.ranks[0]]
    assert bundle.truth.group in dump["pg_config"]


@pytest.mark.parametrize("form", ["dmesg-iso", "journal-iso", "syslog-iso"])
def test_hosts_write_their_own_clock(form: str) -> None:
    """The lost card's line, read with its zone, is off by the host's error and no more."""
    kolkata = Zone(name="Asia/Kolkata", abbreviation="IST", seconds=19800)
    bundle = simulate(
        scenario("gpu_off_bus", nodes=1, kernel_form=form, host_zone=kolkata, clock_offsets_s=(73.25,)), 6
    )
    name = {"dmesg-iso": "dmesg-iso.txt", "journal-iso": "journalctl-k.txt", "syslog-iso": "syslog"}[form]
    line = next(x for x in bundle.files[name].decode().splitlines() if "): 79," in x)
    stamp = line.split()[0].replace(",", ".")
    stamp = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", stamp)
    read = datetime.fromisoformat(stamp).astimezone(timezone.utc).timestamp()
    (offset_s,) = bundle.truth.clock_offsets_s.values()
    assert offset_s == pytest.approx(73.25, abs=1e-3)
    assert bundle.truth.onset_ns is not None
    # dmesg computes its stamps from printk's clock, which drifts by up to 12 ppm over days.
    assert read - bundle.truth.onset_ns / TIME_NS == pytest.approx(73.25, abs=12 if form == "dmesg-iso" else 1.01)


def test_clock_step_and_drift() -> None:
    clock = Clock(booted_ns=0, offset_ns=5, drift_ppm=10, steps=((1000 * TIME_NS, 7),))
    assert clock.wall(0) == 5
    assert clock.wall(999 * TIME_NS) == 999 * TIME_NS + 5 + 9_990_000
    assert clock.wall(1000 * TIME_NS) == 1000 * TIME_NS + 12 + 10_000_000
    assert clock.boot(1000 * TIME_NS) == 1000 * TIME_NS
    assert clock.zone is UTC


@pytest.mark.parametrize("version", ["2.4", "2.6", "2.7", "2.8", "2.9", "2.12"])
def test_stamp_minus_duration_is_the_arrival(version: str) -> None:
    """`ran for` counts from the enqueue: all who wait for one loss came within moments of each other."""
    log = simulate(scenario("rank_not_arrived", nodes=1, torch=version), 7).files["train.log"].decode()
    arrivals = []
    for found in re.finditer(r"\[E(\d+) (\d\d):(\d\d):(\d\d\.\d+) [^\n]*? timeout: [^\n]*? ran for (\d+) milli", log):
        if found[0].count("terminated"):
            continue
        arrivals.append(int(found[2]) * 3600 + int(found[3]) * 60 + float(found[4]) - int(found[5]) / 1000)
    assert len(arrivals) == 3
    assert max(arrivals) - min(arrivals) < 0.5


def test_lost_evidence_is_lost() -> None:
    def has(word: str, **lost: Any) -> bool:
        given = scenario("gpu_off_bus", degrade=Degrade(**lost), kernel_form="journal", bug_report=True, torch="2.9")
        return any(word in name for name in simulate(given, 8).files)

    assert has("journal")
    assert has("fr/")
    assert has("bug-report")
    assert not has("journal", lose_kernel_logs=True)
    assert not has("bug-report", lose_kernel_logs=True)
    assert not has("fr/", lose_dumps=99)
    assert not has("train.log", lose_job_logs=True)


def test_without_a_kernel_log_the_cause_cannot_be_known() -> None:
    bare = simulate(scenario("gpu_firmware", degrade=Degrade(lose_kernel_logs=True)), 9).truth
    assert not bare.cause_knowable
    assert bare.rank_knowable
    assert "rank_not_arrived" in bare.acceptable
    nothing = Degrade(lose_kernel_logs=True, lose_dumps=99, lose_job_logs=True)
    assert simulate(scenario("gpu_firmware", degrade=nothing), 9).truth.expect()["open"] is True


def test_decoys_leave_the_truth_alone() -> None:
    decoys = Decoys(corrected_aer=True, old_boot_xid=True, innocent_oom=True, link_flap=True, store_noise=True)
    bundle = simulate(scenario("healthy", kernel_form="kern.log", decoys=decoys), 10)
    text = b"".join(bundle.files.values())
    for word in (b"Xorg", b"jupyter-lab", b"Link down", b"BadDLLP", b"waitForInput"):
        assert word in text
    assert bundle.truth.expect() == {"incident": False}


def test_bug_report_is_a_chain_of_members_and_may_be_cut() -> None:
    whole = simulate(scenario("psu_rail_loss", nodes=1, bug_report=True), 11).files["nvidia-bug-report.log.gz"]
    text = gzip.decompress(whole).decode()
    assert whole.count(b"\x1f\x8b\x08\x00") > 30
    assert text.rstrip().endswith("End of NVIDIA bug report log file.")
    given = scenario("psu_rail_loss", nodes=1, bug_report=True, degrade=Degrade(cut_bug_report=True))
    cut = simulate(given, 11).files["nvidia-bug-report.log.gz"]
    with pytest.raises(EOFError), gzip.open(io.BytesIO(cut)) as stream:
        stream.read()


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 200_000])
def test_stored_gzip(size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    assert gzip.decompress(gzip_member(data)) == data


def test_pickle_of_every_kind() -> None:
    frame = Frame(name="f", filename="g", line=70_000)
    value = {"a": [1, 300, 70_000, -1, 2**40, True, False, None, 1.5], "b": ("x", "a"), "c": [frame, frame], "d": {}}
    value["e"] = [str(i) for i in range(400)] * 2
    assert pickle.loads(dumps(value)) == value
