"""Who is who: statements of several files, and the table that they give: tests/cases/identify/CASE.json.

`want`: `ranks` (rank → host, pid, local_rank, pci that the table must have), `known` (all ranks in the table), `gpus`
(host → cards), `hosts_with_gpus`, `world_size`, `problems` (how each begins); after attribution, by the events'
order: `attributed` (rank or null), `listed` (the ranks that lines about several list), `hosts_of_events`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from short_form import cases, events, load, rows, with_faults

from nccl_forensics.errors import InputError
from nccl_forensics.model import Gpu
from nccl_forensics.names import normal_pci, same_host
from nccl_forensics.who import attribute
from nccl_forensics.who.hosts_file import read_hosts_file
from nccl_forensics.who.identities import Identities, Place
from nccl_forensics.who.paths import names_in_path
from nccl_forensics.who.table import identify

CASES = cases("identify")


@pytest.mark.parametrize("path", with_faults(CASES))
def test_case(path: Path) -> None:
    case = load(path)
    want, found = case["want"], events(case)
    its = rows(case, found)
    hosts = {int(r): Place(h) for r, h in case["hosts"].items()} if "hosts" in case else None
    known = identify(its, found, hosts)
    for rank, fields in want.get("ranks", {}).items():
        place = known.ranks[int(rank)]
        have = {"host": place.host, "pid": place.pid, "local_rank": place.local_rank}
        have["pci"] = place.gpu.pci if place.gpu else None
        assert {k: have[k] for k in fields} == fields, rank
    if "known" in want:
        assert list(known.ranks) == want["known"]
    for host, cards in want.get("gpus", {}).items():
        assert [{k: getattr(g, k) for k in card} for g, card in zip(known.gpus[host], cards, strict=True)] == cards
    if "hosts_with_gpus" in want:
        assert list(known.gpus) == want["hosts_with_gpus"]
    if "world_size" in want:
        assert known.world_size == want["world_size"]
    if "problems" in want:
        assert len(known.problems) == len(want["problems"])
        for problem, said in zip(known.problems, want["problems"], strict=True):
            assert problem.says.startswith(said)
    attributed, named = attribute.attribute(found, its, known)
    assert [e.evidence for e in attributed] == [e.evidence for e in found]
    assert [r.path for r in named] == [r.path for r in its]
    if "attributed" in want:
        assert [e.rank for e in attributed] == want["attributed"]
    if "listed" in want:
        assert [list(e.details.get("ranks", ())) for e in attributed] == want["listed"]
    if "hosts_of_events" in want:
        assert [e.host for e in attributed] == want["hosts_of_events"]


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_attribution_never_overrides_what_a_line_says(path: Path) -> None:
    case = load(path)
    found = events(case)
    its = rows(case, found)
    attributed, _ = attribute.attribute(found, its, identify(its, found))
    for before, after in zip(found, attributed, strict=True):
        assert before.rank is None or after.rank == before.rank
        assert before.host is None or same_host(before.host, after.host)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("c1:00.0", "0000:c1:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("PCI:0000:c1:00", "0000:c1:00.0"),
        ("0001:c1:00.1", "0001:c1:00.1"),
        ("10000:c1:00.0", "10000:c1:00.0"),
        (" C1:00 ", "0000:c1:00.0"),
        (None, None),
        ("", None),
        ("c1", None),
        ("c1:00.9", None),
        ("0000:c1:00.0 ", "0000:c1:00.0"),
        ("0000:c1:00.0; rm -rf /", None),
        ("GPU-12345678", None),
    ],
)
def test_pci_addresses_in_one_form(text: str | None, normal: str | None) -> None:
    assert normal_pci(text) == normal


@pytest.mark.parametrize(
    ("path", "rank", "attempt", "local", "host"),
    [
        ("logs/rank3.log", 3, None, None, None),
        ("fr/comm_lib_trace_rank_12", 12, None, None, None),
        ("rank0-3.log", None, None, None, None),
        ("frank3.log", None, None, None, None),
        ("run/attempt_2/5/stderr.log", None, 2, 5, None),
        ("bundle.tar.gz!logs/node-17/train.log", None, None, None, "node-17"),
        ("worker-2/rank_9.err", 9, None, None, "worker-2"),
        ("gpu-info.txt", None, None, None, None),
        ("host.log", None, None, None, None),
        ("gpu-r7-04-console.log", None, None, None, "gpu-r7-04"),
        ("node-d-dmesg.txt", None, None, None, "node-d"),
        ("gpu7.log", None, None, None, "gpu7"),
        ("gpu-burn.log", None, None, None, None),
        ("gpu-errors.log", None, None, None, None),
        ("worker-crash/train.log", None, None, None, None),
        ("gpu-4-nccl-errors.log", None, None, None, "gpu-4"),
        ("ipmi-sel.txt", None, None, None, None),
        ("ip-link.txt", None, None, None, None),
        ("ip-10-0-1-23.log", None, None, None, "ip-10-0-1-23"),
        ("kubectl-get-pods-o-wide.txt", None, None, None, None),
        ("hosts.txt", None, None, None, None),
        ("rank1/rank2.log", 2, None, None, None),
    ],
)
def test_names_in_a_path(path: str, rank: int | None, attempt: int | None, local: int | None, host: str | None) -> None:
    assert names_in_path(path) == (rank, attempt, local, host)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("node01", "node01.cluster.local", True),
        ("NODE01", "node01", True),
        ("node01", "node1", False),
        ("node01.a", "node01.b", True),
        (None, "node01", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("fe80::1", "fe80::2", False),
    ],
)
def test_one_machine_or_two(a: str | None, b: str | None, same: bool) -> None:
    assert same_host(a, b) is same
    assert same_host(b, a) is same


def test_a_hosts_file_in_every_form(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(
        b"\xef\xbb\xbfrank host local gpu\r\n# a comment\r\n0 node-a 0 0\r\n"
        b"1,node-a,1,0000:C1:00.0\r\n\r\n2\tnode-b\t-\t-   # no card\r\n3;node-b\r\n"
    )
    assert read_hosts_file(file) == {
        0: Place("node-a", 0, None, Gpu(host="node-a", index=0)),
        1: Place("node-a", 1, None, Gpu(host="node-a", pci="0000:c1:00.0")),
        2: Place("node-b"),
        3: Place("node-b"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"zero node-a\n", "hosts:1"),
        (b"0 node-a\n1\n", "hosts:2"),
        (b"-1 node-a\n", "hosts:1"),
        (b"0 node-a first\n", "hosts:1"),
        (b"0 node-a 0 best\n", "neither a GPU index nor a PCI address"),
        (b"\xff\xfe\x00", "can't be read as text"),
    ],
)
def test_a_hosts_file_that_is_none_names_the_line(tmp_path: Path, text: bytes, says: str) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(text)
    with pytest.raises(InputError, match=says):
        read_hosts_file(file)


def test_unknown_stays_unknown() -> None:
    nobody = Identities()
    assert nobody.rank_of_gpu("n1", "0000:c1:00.0") is None
    assert nobody.rank_of_pid("n1", 1) is None
    assert nobody.ranks_on("n1") == ()
    assert nobody.ranks_on(None) == ()
    assert nobody.gpu("n1", "0000:c1:00.0") == Gpu(host="n1", pci="0000:c1:00.0")
