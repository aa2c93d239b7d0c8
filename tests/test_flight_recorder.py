"""Reading Flight Recorder dumps: every version, cut anywhere, mutated, hostile, foreign."""

from __future__ import annotations

import codecs
import io
import json
import os
import pickle
import random
import struct
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nccl_forensics.parsers import flight_recorder as parser
from recorded import LABELLED_DUMPS, RECORDED
from simulator import cpickle

from nccl_forensics.model import Problem
from nccl_forensics.recorder import columns, unpickle
from nccl_forensics.recorder.dumps import Dump, dump_of

GENUINE = sorted(
    x
    for x in [*RECORDED.glob("fr/*/fr/*"), *RECORDED.glob("fr/*/fr-json/*"), *LABELLED_DUMPS.glob("*/input/*")]
    if x.stat().st_size
)
SMALL = [x for x in GENUINE if x.stat().st_size < 40_000 or os.environ.get("EVERY_SIZE")]
"""Damage meets more of a small dump, and it is read faster. EVERY_SIZE=1: the larger ones, too."""


class File:
    def __init__(self, data: bytes, name: str) -> None:
        self.path = f"pile/{name}"
        self.name = name
        self.size = len(data)
        self.mtime_ns = None
        self.stream = io.BytesIO(data)


def read(data: bytes, name: str = "nccl_trace_rank_0") -> tuple[list[Dump], list[str]]:
    found = list(parser.flight_recorder.read(File(data, name)))
    return [x for x in found if isinstance(x, Dump)], [x.says for x in found if isinstance(x, Problem)]


def entry(seq: int, **more: Any) -> dict[str, Any]:
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 7}], "record_id": seq, "pg_id": 0,
        "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 10**18 + seq, "input_sizes": [[8]], "input_dtypes": ["Float"],
        "output_sizes": [[8]], "output_dtypes": ["Float"], "state": "scheduled", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def content(count: int = 5, version: str = "2.10") -> dict[str, Any]:
    return {
        "version": version,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": count, "last_started_collective": -1, "last_completed_collective": 0}
        },
        "entries": [entry(i + 1) for i in range(count)],
    }


@pytest.mark.parametrize("path", GENUINE, ids=lambda x: "-".join(x.parts[-3:]))
def test_genuine(path: Path) -> None:
    data = path.read_bytes()
    assert parser.claims(data[:4096], path.name)
    (dump,), problems = read(data, path.name)
    if path.parts[-3] == "truncated-dump" and path.stem.endswith("_0"):
        assert dump.partial
        assert len(problems) == 1
        return
    assert problems == []
    raw = json.loads(data) if data[:1] == b"{" else pickle.loads(data)
    entries = raw if isinstance(raw, list) else raw.get("entries", [])
    assert dump.count == len(entries)
    assert dump.rank == parser.rank_of_name(path.name)
    for at, one in enumerate(entries):
        call = dump.calls[dump.call[at]]
        assert one["profiling_name"].startswith(f"{call.backend}:{call.op}")
        assert dump.seq[at] == one.get("collective_seq_id", one.get("seq_id"))
        assert dump.created_ns[at] == one.get("time_created_ns", one.get("time_created_us", 0) * 1000)
        assert [list(x) for x in call.sizes_in] == one["input_sizes"]
        assert bool(dump.flags[at] & 4) == one["retired"]
        lines = [f"{f['name']} {f['filename']}:{f['line']}" for f in one.get("frames", [])]
        assert list(dump.stacks[dump.stack[at]] if dump.stack[at] >= 0 else ()) == lines


def same(one: Dump, other: Dump) -> bool:
    return all(
        a.dtype == b.dtype and a.tolist() == b.tolist() if isinstance(a, np.ndarray) else a == b
        for a, b in ((getattr(one, x.name), getattr(other, x.name)) for x in fields(Dump))
    )


def fast_and_slow(data: bytes) -> bool:
    """Whether the dump was read straight from the bytes; if so, it is held against what the decoder gives."""
    table = columns.read(data)
    if table is None:
        return False
    fast = dump_of(table, path="d", form="pickle", name_rank=1)
    slow = dump_of(unpickle.loads(data), path="d", form="pickle", name_rank=1)
    assert same(fast[0], slow[0])
    assert fast[1] == slow[1]
    return True


def numbers_agree(data: bytes) -> None:
    """The same of a damaged dump, whose memo may give a number twice: then texts depend on the way they are read.

    A number that is fetched before it is given stops the decoder; what it had until then agrees.
    """
    table = columns.read(data)
    if table is None:
        return
    try:
        content = unpickle.loads(data)
    except unpickle.Refused as error:
        content = unpickle.salvage(data, error.at)
    try:
        fast = dump_of(table, path="d", form="pickle", name_rank=1)[0]
        slow = dump_of(content, path="d", form="pickle", name_rank=1)[0]
    except (KeyError, TypeError, ValueError):  # then the parser takes the other way
        return
    for column in ("seq", "p2p_seq", "op_id", "record_id", "created_ns", "completed_ns", "timeout_ms", "flags"):
        assert getattr(fast, column)[: slow.count].tolist() == getattr(slow, column).tolist()


@pytest.mark.slow
def test_straight_from_the_bytes() -> None:
    read = [x for x in GENUINE if fast_and_slow(x.read_bytes())]
    left = {x.parts[-3] for x in GENUINE if x not in read and x.suffix != ".json"}
    assert len(read) > 80
    # Of torch 2.2 and 2.3, cut, or with two entries or fewer.
    assert left <= {"nccl-sleep-list-torch22", "nccl-sleep-v14-torch23", "truncated-dump", "lock_gil_2nd"}


@pytest.mark.parametrize("change", ["names", "timing", "no stacks", "large numbers", "many groups", "odd values"])
def test_straight_from_the_bytes_in_other_forms(change: str) -> None:
    """What hardly stands in the recorded dumps: more than 256 names, durations, inline strings, huge numbers."""
    entries = []
    for n in range(300):
        one = entry(n + 1)
        one["frames"] = [cpickle.Frame(name=f"f{n % 7}", filename="train.py", line=n % 9)]
        if change == "names":
            one["profiling_name"] = f"nccl:send 0->{n % 90}"
        elif change == "timing":
            durations = {"duration_ms": n / 7} if n < 290 else {}
            rest = {k: one.pop(k) for k in [*one][[*one].index("input_sizes") :]}
            one |= durations | rest
        elif change == "no stacks":
            del one["frames"]
        elif change == "large numbers":
            one |= {"op_id": 1 << (n % 62), "record_id": n * 70_000, "input_sizes": [[1 << 33, n], [n * n]]}
        elif change == "many groups":
            one |= {"pg_id": n % 110, "process_group": (str(n % 110), f"group {n % 110} {n % 110 // 2}")}
        elif n % 50 == 3:
            one |= {"op_id": None, "retired": None, "timeout_ms": "5", "input_dtypes": [], "input_sizes": []}
        entries.append(one)
    data = cpickle.dumps({**content(1), "entries": entries})
    assert fast_and_slow(data)
    assert read(data)[0][0].count == 300


EVERY = bool(os.environ.get("EVERY_CUT"))
"""Every dump is cut, not only some: EVERY_CUT=1 MUTATIONS=10000 pytest tests/test_flight_recorder.py."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", GENUINE[:: 1 if EVERY else max(1, len(GENUINE) // 24)], ids=lambda x: "-".join(x.parts[-3:])
)
def test_cut_everywhere(path: Path) -> None:
    """A whole prefix of the entries comes back, it does not shrink as the file grows, and something is said."""
    data = path.read_bytes()
    whole = read(data, path.name)[0][0]
    before = 0
    for step in range(1, 200):
        dumps, problems = read(data[: len(data) * step // 200], path.name)
        if whole.partial:
            continue
        assert problems
        if not dumps:
            assert before == 0
            continue
        (dump,) = dumps
        assert dump.partial
        assert dump.count >= before
        for column in ("seq", "p2p_seq", "op_id", "record_id", "created_ns", "flags"):
            assert getattr(dump, column).tolist() == getattr(whole, column)[: dump.count].tolist()
        before = dump.count


def damaged(data: bytearray, rng: random.Random, other: bytes) -> None:
    """One byte changed, some left out, some put in, some doubled, or a piece of another dump put over them."""
    at, kind = rng.randrange(len(data)), rng.randrange(5)
    if kind == 0:
        data[at] = rng.randrange(256)
    elif kind == 1:
        del data[at : at + rng.randrange(1, 40)]
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 3:
        data[at:at] = data[at : at + rng.randrange(1, 80)]
    else:
        size, start = rng.randrange(1, 4000), rng.randrange(len(other))
        data[at : at + size] = other[start : start + size]


MUTATIONS = int(os.environ.get("MUTATIONS", "300"))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_mutations(part: int) -> None:
    """Nothing raises, nothing is imported, and both ways of reading agree, whatever stands in the file."""
    rng = random.Random(part)
    read(GENUINE[0].read_bytes(), GENUINE[0].name)
    for coding in ("utf-8-sig", "utf-16", "utf-32"):  # which json looks up for a byte order mark
        codecs.lookup(coding)
    before = set(sys.modules)
    for _ in range(MUTATIONS // 20):
        path = rng.choice(SMALL)
        data, other = bytearray(path.read_bytes()), rng.choice(SMALL).read_bytes()
        for _ in range(rng.choice([1, 1, 3, 20])):
            if data:
                damaged(data, rng, other)
        read(bytes(data), path.name)
        numbers_agree(bytes(data))
    assert set(sys.modules) == before


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/a-dump-was-executed",)


MARKER = Path("/tmp/a-dump-was-executed")
BOMBS = {
    "memo": b"\x80\x02Nr\xff\xff\xff\x07.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "bytes8": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "bytearray8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "long string": b"\x80\x02X\xff\xff\xff\xffa.",
    "containers": b"\x80\x02](" + b"}" * 10_000_000 + b"e.",
    "deep": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "tree": b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b".",
    "class": b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
    "stack class": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
    "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "empty": b"\x80\x02.",
    "underflow": b"\x80\x02eeee.",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_pickles(name: str) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dumps, problems = read(BOMBS[name])
    assert dumps == []
    assert len(problems) == 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 700


def test_nothing_is_executed() -> None:
    raw = content()
    raw["entries"][2]["frames"] = _Runs()
    for protocol in (2, 3, 4, 5):
        dumps, problems = read(pickle.dumps(raw, protocol))
        assert problems
        assert not MARKER.exists()
        assert [x.count for x in dumps] in ([], [2])
    assert read(pickle.dumps(_Runs(), 2))[0] == []
    assert not MARKER.exists()


def test_shared_lists_are_not_walked_without_end() -> None:
    """2^60 leaves in a few hundred bytes: a list that stands twice in a list that stands twice …"""
    tree: Any = [1]
    for _ in range(60):
        tree = [tree, tree]
    raw = content()
    raw["entries"][1]["input_sizes"] = tree
    raw["entries"][3]["process_group"] = tree
    (dump,), _ = read(pickle.dumps(raw, 2))
    assert dump.count == 5


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_written_again_by_python(protocol: int) -> None:
    (dump,), problems = read(pickle.dumps(content(), protocol))
    assert problems == []
    assert dump.seq.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("collective_seq_id", "7"), ("collective_seq_id", None), ("collective_seq_id", 1 << 80),
        ("collective_seq_id", [1]),
        ("profiling_name", 5), ("profiling_name", "x" * 100_000), ("profiling_name", None), ("input_sizes", None),
        ("input_sizes", [1]), ("input_sizes", [["a"]]), ("input_sizes", {}), ("frames", 5), ("frames", [None, 3]),
        ("frames", [{"name": 1, "filename": None}]), ("process_group", None), ("process_group", ["a"]), ("state", 3),
        ("state", ["x"]), ("retired", "yes"), ("time_created_ns", -5), ("time_created_ns", float("nan")),
        ("is_p2p", None),
        ("pg_id", {}), ("input_dtypes", [[1]]), ("time_discovered_completed_ns", "soon"),
    ],
)  # fmt: skip
def test_wrong_types(key: str, value: Any) -> None:
    raw = content()
    raw["entries"][2][key] = value
    (dump,), _ = read(pickle.dumps(raw, 2))
    assert dump.count == 5
    del raw["entries"][2][key]
    (dump,), _ = read(pickle.dumps(raw, 2))
    assert dump.count == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [("pg_config", None), ("pg_config", []), ("pg_config", {"0": 5}), ("pg_config", {"0": {"ranks": {}}}),
     ("pg_status", [1]),
     ("pg_status", {"x": 1}), ("pg_status", {"0": {"last_enqueued_collective": "many"}}), ("version", 2.1),
     ("version", None),
     ("entries", None), ("entries", [5, "x", entry(1)]), ("entries", [entry(1), None, 7])],
)  # fmt: skip
def test_wrong_heads(key: str, value: Any) -> None:
    dumps, problems = read(pickle.dumps({**content(), key: value}, 2))
    assert dumps or problems


def test_names() -> None:
    name = parser.rank_of_name
    assert name("nccl_trace_rank_container-node02_5") == 5
    assert name("_dump_12") == 12
    assert name("comm_lib_trace_rank_3.json") == 3
    assert name("nccl_trace_rank_17.pickle.gz") == 17
    assert name("nccl_trace_rank_") is None
    assert name("dump.json") is None


def test_whose_dump() -> None:
    raw = content()
    raw["pg_config"]["1"] = {"name": "1", "desc": "tp", "ranks": "[1, 5]"}
    (dump,), problems = read(pickle.dumps(raw, 2), "nccl_trace_rank_4")
    assert (dump.rank, dump.rank_from) == (1, "content")
    assert "rank 4" in problems[0]
    (dump,), problems = read(pickle.dumps(content(), 2), "nccl_trace_rank_9")
    assert dump.rank is None
    assert problems
    (dump,), problems = read(pickle.dumps(content(), 2), "some.pickle")
    assert dump.rank is None
    assert problems


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"name": "x", "entries": [1, 2]}', "a.json"), (b'{"traceEvents": []}', "trace.json"), (b"[1, 2]", "b.json"),
        (b"hello nccl_trace", "log"), (b"PK\x03\x04", "model.pt"), (b"\x80\x81\x82", "noise"), (b"", "empty.txt"),
    ],
)  # fmt: skip
def test_not_claimed(data: bytes, name: str) -> None:
    assert not parser.claims(data, name)


def test_a_foreign_pickle_is_named_as_one() -> None:
    data = pickle.dumps({"epoch": 3, "model": [1.0, 2.0]}, 2)
    assert parser.claims(data[:4096], "checkpoint.pkl")
    dumps, problems = read(data)
    assert dumps == []
    assert problems == ["a pickle, but not a Flight Recorder dump"]


def test_empty() -> None:
    dumps, problems = read(b"")
    assert dumps == []
    assert len(problems) == 1


def test_salvage_is_what_the_decoder_gives() -> None:
    data = pickle.dumps(content(), 2)
    assert unpickle.check(data) == len(data)
    assert unpickle.salvage(data, len(data)) == unpickle.loads(data) == content()


def test_checks_without_a_memory_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system cannot bound a process's memory, the same pickles are refused before they are decoded."""
    from contextlib import contextmanager

    @contextmanager
    def none(extra: int) -> Any:
        yield False

    monkeypatch.setattr(unpickle, "_bounded", none)
    for name in ("memo", "frame", "bytes8", "bytearray8", "long string", "containers", "class", "stack class"):
        with pytest.raises(unpickle.Refused):
            unpickle.loads(BOMBS[name])
    assert unpickle.loads(pickle.dumps(content(), 4)) == content()


@pytest.mark.parametrize("field", ["profiling_name", "state", "input_sizes", "output_dtypes", "op_id", "process_group"])
def test_a_small_tower_of_tuples_costs_nothing(field: str) -> None:
    """Forty instructions that stand for 2^40 values: what hashes or flattens them never ends."""
    tower: Any = ("x",)
    for _ in range(40):
        tower = (tower, tower)
    entry = {
        "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0,
        "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18, "input_sizes": [[4]],
        "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    listed = {"input_sizes": [tower], "output_dtypes": [tower]}
    entries = [{**entry, field: listed.get(field, tower)}, entry]
    dump, _ = dump_of({"version": "2.10", "entries": entries}, path="d", form="pickle", name_rank=3)
    assert (dump.rank, dump.count) == (3, 2)
    assert dump.calls[dump.call[1]].op == "all_reduce"
