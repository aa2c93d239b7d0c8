"""Addresses of hosts, joined to the hosts that say that they have them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from short_form import events, rows

from nccl_forensics.pipeline import analyze
from nccl_forensics.who.attribute import attribute
from nccl_forensics.who.host_names import HostNames
from nccl_forensics.who.table import identify

SAID = [
    {"kind": "nccl-ports", "host": "n1.example.org", "addresses": ["10.1.2.3", "172.17.0.1"]},
    {"kind": "nccl-ports", "host": "n2", "addresses": ["10.1.2.4", "172.17.0.1", "fe80::7"]},
    {"kind": "driver-version", "host": "n1"},
]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("10.1.2.3<4711>", "n1.example.org<4711>"),
        ("10.1.2.3", "n1.example.org"),
        ("[fe80::7]<4711>", "n2<4711>"),
        ("172.17.0.1<4711>", "172.17.0.1<4711>"),  # a bridge that every host has
        ("10.1.2.30<4711>", "10.1.2.30<4711>"),
        ("n2<4711>", "n2<4711>"),
        ("at 10.1.2.3", "at 10.1.2.3"),
    ],
)
def test_an_address_is_that_of_the_only_host_that_says_so(text: str, named: str) -> None:
    assert HostNames.in_events(events({"events": SAID})).named(text) == named


def test_what_no_line_tells_can_be_told_by_elimination() -> None:
    names = HostNames.in_events(events({"events": SAID}))
    assert names.named("10.9.9.9<4711>", "n3") == "n3<4711>"
    assert names.named("10.1.2.4<4711>", "n3") == "n2<4711>"
    assert names.named("n9<4711>", "n3") == "n9<4711>"


WORLD = {"kind": "world-size", "world_size": 16}
LAST = {"kind": "exit", "rank": 15, "local_rank": 7, "host": "n2", "code": -6}
STORE = {"kind": "store-broken", "store_host": "n1"}
LOST = {"kind": "nccl-ib-error", "host": "n2", "pid": 4, "peer": "10.1.2.3"}


@pytest.mark.parametrize(
    ("said", "peer"),
    [
        ([WORLD, LAST, STORE, LOST], "n1"),
        ([LAST, STORE, LOST], "10.1.2.3"),  # how many ranks there are is not told
        ([{**WORLD, "world_size": 24}, LAST, STORE, LOST], "10.1.2.3"),  # three nodes, of which two are named
        ([WORLD, {**LAST, "local_rank": 3, "rank": 11}, STORE, LOST], "10.1.2.3"),  # nodes of four or of eight
        ([WORLD, LAST, {**STORE, "store_host": "10.1.9.9"}, LOST], "10.1.2.3"),
    ],
)
def test_of_two_nodes_the_address_is_the_other_ones(said: list[dict[str, object]], peer: str) -> None:
    case = {"events": said}
    found = events(case)
    attributed, _ = attribute(found, rows(case, found), identify(rows(case, found), found))
    assert attributed[-1].details["peer"] == peer


REPORT = """____________________________________________

Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem.

nvidia-bug-report.sh Version: 34006340

Date: Wed Mar 18 07:29:43 AM UTC 2026
uname: Linux gpu001 5.15.0-113-generic #123-Ubuntu SMP Mon Jun 10 08:16:17 UTC 2024 x86_64 x86_64 x86_64 GNU/Linux
"""
NAMELESS = "[  101.000000] NVRM: Xid (PCI:0000:61:00): 31, pid=7, name=python3, MMU Fault\n"
OF_ANOTHER = "Mar 18 07:00:00 gpu002 kernel: NVRM: Xid (PCI:0000:62:00): 31, pid=7, name=python3, MMU Fault\n"


@pytest.mark.parametrize(("beside", "host"), [({}, "gpu001"), ({"kern.log": OF_ANOTHER}, None)])
def test_a_bug_report_names_its_bundle_only_if_that_is_of_one_host(
    beside: dict[str, str], host: str | None, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name, text in {"nvidia-bug-report.log": REPORT, "dmesg.txt": NAMELESS, **beside}.items():
        (bundle / name).write_text(text, encoding="utf-8")
    archive = shutil.make_archive(str(tmp_path / "sent"), "gztar", tmp_path, "bundle")
    (row,) = (r for r in analyze([archive]).rows if r.path.endswith("dmesg.txt"))
    assert row.host == host


@pytest.mark.parametrize(
    ("other", "host"),
    [
        ("kernel: usb 1-1: new high-speed USB device number 5 using xhci_hcd", None),
        ("kernel: NVRM: Xid (PCI:0000:61:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", None),
        ("kernel: NVRM: Xid (PCI:0000:c1:00): 13, pid=1234, name=python3, Graphics Exception: ESR 0x404600", "n9"),
    ],
)
def test_a_second_kernel_log_is_of_a_machine_only_if_it_is_like_its_own(
    other: str, host: str | None, tmp_path: Path
) -> None:
    """A `dmesg` beside the log of a machine of which no job speaks."""
    (tmp_path / "n9.log").write_text(f"2026-03-02T11:22:33.000000+00:00 n9 {other}\n" * 3)
    (tmp_path / "dmesg.txt").write_text(
        "[80344.400000] usb 1-4: new high-speed USB device number 3 using xhci_hcd\n"
        "[81233.101300] NVRM: Xid (PCI:0000:c1:00): 79, pid=77, name=python3, GPU has fallen off the bus.\n"
    )
    (row,) = (r for r in analyze([str(tmp_path)]).rows if r.path.endswith("dmesg.txt"))
    assert row.host == host
