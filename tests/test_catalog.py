"""The catalogues are data: every entry is tried on its own examples, through the scanner and the parser."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from nccl_forensics.parsers import kernel, xid

from nccl_forensics.catalog import KernelEntry, kernel_entries, kernel_noise, load, sxids, xids
from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import SHORTEST_LITERAL
from nccl_forensics.lines.scan import Scanner

ENTRIES = kernel_entries()
SCANNER = Scanner({needle for entry in ENTRIES for needle in entry.needles})
EXAMPLES = [(entry, example) for entry in ENTRIES for example in entry.examples]
XIDS = Path(__file__).parent / "cases" / "xids.toml"
SLOW_S = 0.05
"""CPU seconds that one regex may take on the longest message that it is given; the slowest takes a third of it here."""


def only_line(text: str) -> Line:
    found = list(SCANNER.lines("kern.log", io.BytesIO(text.encode() + b"\n")))
    assert len(found) == 1, "the scanner did not find the line"
    return found[0]


def test_ids_are_unique_and_causes_exist() -> None:
    ids = [entry.id for entry in ENTRIES]
    assert len(set(ids)) == len(ids) >= 172
    causes = load("causes")
    assert {entry.cause for entry in ENTRIES if entry.cause} <= set(causes)
    assert {entry.cause for entry in xids().values() if entry.cause} <= set(causes)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_needles_are_long_enough_and_subjects_are_groups(entry: KernelEntry) -> None:
    assert entry.needles
    assert all(len(needle) >= SHORTEST_LITERAL for needle in entry.needles)
    assert not entry.subject or entry.subject in entry.regex.groupindex
    assert entry.examples


@pytest.mark.parametrize(("entry", "example"), EXAMPLES, ids=lambda x: x.id if isinstance(x, KernelEntry) else "")
def test_an_example_is_won_by_its_own_entry(entry: KernelEntry, example: str) -> None:
    line = only_line(example)
    won = kernel.winner(example, line.hits)
    assert won is not None
    assert won[0].id == entry.id


GENERAL = {
    ("nvrm-fallen-probe", "nvrm-gpu-addr"),
    ("oom-killed", "oom-killed-old"),
    ("audit-abend", "audit-stamp"),
}
"""An example of the first is found by the second, too, which is more general and comes behind it."""


def test_an_example_is_no_other_entry_s() -> None:
    """Of the same kind of log, and among those whose needles it holds: entries overlap where it is meant, only."""
    both = set()
    for entry, example in EXAMPLES:
        for other in ENTRIES:
            if other.id == entry.id or other.log != entry.log:
                continue
            if any(needle in example.encode() for needle in other.needles) and other.regex.search(example):
                both.add((entry.id, other.id))
    assert both == GENERAL


@pytest.mark.parametrize("case", tomllib.loads(XIDS.read_text("utf-8"))["xid"], ids=lambda case: case["why"])
def test_an_xid_says_more_than_its_number(case: dict[str, Any]) -> None:
    scanner = Scanner(xid.nvidia_xid.literals)
    (line,) = scanner.lines("kern.log", io.BytesIO(case["line"].encode() + b"\n"))
    (event,) = xid.nvidia_xid.read(line)
    assert (event.role != "cause") if case["role"] == "!cause" else (event.role == case["role"])
    assert {key: event.details.get(key) for key in case["details"]} == case["details"]
    assert not set(case.get("absent", ())) & set(event.details)


@pytest.mark.parametrize(("entry", "example"), EXAMPLES, ids=lambda x: x.id if isinstance(x, KernelEntry) else "")
def test_an_example_becomes_one_event(entry: KernelEntry, example: str) -> None:
    """With its prefix taken off, as the parser sees it."""
    if entry.id in kernel.ELSEWHERE:
        return
    events = list(kernel.kernel_log.read(only_line(example)))
    kinds = {"nvrm-driver-load": "driver-version", "audit-stamp": "clock-anchor", "rtc-stamp": "clock-anchor"}
    assert [event.kind for event in events] == [kinds.get(entry.id, entry.id)]
    if entry.role == "context":
        assert events[0].role == "context"


def test_the_first_minute_of_a_boot_accuses_only_the_driver_and_the_boot_before() -> None:
    tried = 0
    for entry, example in EXAMPLES:
        message = re.sub(r"^(?:<\d+>)?\[[\d. ]+\] ", "", example)
        sometimes_harmless = entry.harmless is not None or entry.id == "mce"
        if entry.log != "kernel" or entry.role == "context" or message == example or sometimes_harmless:
            continue
        for event in kernel.kernel_log.read(only_line(f"[   12.500000] {message}")):
            assert (event.role == "context") != entry.at_boot, entry.id
            tried += 1
    assert tried > 100


def test_noise_is_silent() -> None:
    for one in load("kernel")["noise"]:
        for line in SCANNER.lines("kern.log", io.BytesIO(one["example"].encode())):
            assert [x.kind for x in kernel.kernel_log.read(line) if x.kind != "clock-anchor"] == [], one["id"]


def hostile() -> list[str]:
    seeds = ["a", " ", "1", "a ", "a:", "[1] ", "(", "a[", "NVRM: ", "0000:00:00.0: ", "nvme0: ", "mlx5_0 ", "pid=1 "]
    seeds += [
        "rsyslogd: ",
        "GPU at ",
        "BTRFS (device a) ",
        "INFO: task ",
        "CPU: 1 PID: 1 Comm: ",
        "Xid (PCI:0000:00:00): 1, ",
    ]
    cut = [example[: len(example) * 2 // 3] for _, example in EXAMPLES[::7]]
    return [(seed * 3000)[: kernel.LONGEST_MESSAGE] for seed in (*seeds, *cut) if seed]


def test_no_regex_backtracks_for_long() -> None:
    texts = hostile()
    patterns = [(entry.id, entry.regex) for entry in ENTRIES] + list(kernel_noise())
    slow = []
    for name, pattern in patterns:
        for text in texts:
            began = time.thread_time()
            pattern.search(text)
            if time.thread_time() - began > SLOW_S:
                slow.append((name, text[:30]))
    assert slow == []


def test_xids_that_follow_others_are_no_causes() -> None:
    assert {number: xids()[number].role for number in (43, 45, 63, 92, 154)} == {
        43: "consequence",
        45: "consequence",
        63: "context",
        92: "context",
        154: "context",
    }
    assert xids()[79].role == "cause"
    assert xids()[79].cause == "gpu_off_bus"


def test_the_class_of_a_switch_error_gives_its_role() -> None:
    assert sxids()[20034].role == "cause"
    assert sxids()[20034].severity == "critical"
    assert sxids()[12028].role == "symptom"
    assert sxids()[11012].severity_class == "nonfatal"
