"""Boots of hosts: what the journal's ids and uptimes prove, and what they refute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from nccl_forensics.analysis import Analysis
from nccl_forensics.model import Event
from nccl_forensics.pipeline import analyze

BEGIN_US = int(datetime(2026, 11, 25, 10, tzinfo=timezone.utc).timestamp()) * 1_000_000
ONE, OTHER = "4f2b8c1d0e6a4b7f9a3c5d2e1f0b6a7c", "b0a7c0ffee004b7f9a3c5d2e1f0b6a7c"
BANNER = "Linux version 5.15.0-113-generic (buildd@lcy02) (gcc 11.4.0) #123-Ubuntu SMP"
XID = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000010"
Record = tuple[int, str, str, int | None]
"""(Seconds after 10:00, id of the boot, message, uptime in s)."""


def journal(records: Sequence[Record]) -> str:
    """As `journalctl -o json` prints it."""
    return "".join(
        json.dumps(
            {
                "__REALTIME_TIMESTAMP": str(BEGIN_US + at * 1_000_000),
                "_BOOT_ID": boot_id,
                "_HOSTNAME": "n1",
                "SYSLOG_IDENTIFIER": "kernel",
                "MESSAGE": message,
                **(
                    {}
                    if up is None
                    else {"_SOURCE_MONOTONIC_TIMESTAMP": str(up * 10**6), "__MONOTONIC_TIMESTAMP": str(up * 10**6)}
                ),
            }
        )
        + "\n"
        for at, boot_id, message, up in records
    )


def found(folder: Path, **files: str) -> Analysis:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text, encoding="utf-8")
    return analyze([str(folder)])


def boots(made: Analysis) -> list[Event]:
    return [e for e in made.events if e.kind == "boot-start"]


def seen(made: Analysis) -> list[tuple[str, int | None]]:
    return [(e.kind, e.boot) for e in made.events if e.kind in ("xid", "boot-start")]


def test_one_id_over_all_records_is_one_boot_whatever_else_looks_like_one(tmp_path: Path) -> None:
    records = [(0, ONE, XID, 5000), (600, ONE, BANNER, None), (1200, ONE, XID, 6200)]
    made = found(tmp_path, journal=journal(records))
    assert {boot for _, boot in seen(made) if boot is not None} == {0}
    assert [e.details.get("refuted") for e in boots(made)] == [True]
    assert not [i for i in made.incidents if i.verdict.cause == "node_lost"]


def test_two_ids_prove_a_boot_that_no_line_tells(tmp_path: Path) -> None:
    made = found(tmp_path, journal=journal([(0, ONE, XID, 5000), (900, OTHER, XID, 8000)]))
    assert seen(made) == [("xid", -1), ("boot-start", 0), ("xid", 0)]
    assert boots(made)[0].details["by_id"] is True


def test_an_id_whose_boot_is_told_adds_none(tmp_path: Path) -> None:
    records = [(0, ONE, XID, 5000), (900, OTHER, BANNER, 0), (1900, OTHER, XID, 1000)]
    made = found(tmp_path, journal=journal(records))
    assert [e.details for e in boots(made) if "by_id" in e.details or "refuted" in e.details] == []
    assert seen(made) == [("xid", -1), ("boot-start", 0), ("xid", 0)]


@pytest.mark.parametrize(("minute", "refuted"), [(10, True), (41, None)])
def test_the_journal_refutes_a_boot_in_another_log_of_its_host_while_it_was_up(
    tmp_path: Path, minute: int, refuted: bool | None
) -> None:
    """At 10:41 the journal had ended."""
    banner = f"2026-11-25T10:{minute:02}:00+00:00 n1 kernel: [    0.000000] {BANNER}\n"
    made = found(
        tmp_path,
        journal=journal([(0, ONE, XID, 5000), (2400, ONE, XID, 7400)]),
        kern="2026-11-25T09:59:00+00:00 n1 kernel: [ 4940.000000] usb 1-1: new high-speed USB device\n" + banner,
    )
    assert [e.details.get("refuted") for e in boots(made)] == [refuted]


def test_an_uptime_that_runs_on_refutes_a_boot_before_it(tmp_path: Path) -> None:
    lines = [
        f"2026-11-25T10:00:00+00:00 n1 kernel: [ 5000.000000] {XID}",
        f"2026-11-25T10:30:00+00:00 n1 kernel: [ 6800.000000] {BANNER}",
        f"2026-11-25T11:00:00+00:00 n1 kernel: [ 8600.000000] {XID}",
    ]
    made = found(tmp_path, kern="\n".join(lines) + "\n")
    assert seen(made) == [("xid", 0), ("boot-start", 0), ("xid", 0)]
    assert boots(made)[0].details["refuted"] is True


def test_an_uptime_that_begins_anew_is_a_boot(tmp_path: Path) -> None:
    lines = [
        f"2026-11-25T10:00:00+00:00 n1 kernel: [ 5000.000000] {XID}",
        f"2026-11-25T10:30:00+00:00 n1 kernel: [    0.000000] {BANNER}",
        f"2026-11-25T11:00:00+00:00 n1 kernel: [ 1800.000000] {XID}",
    ]
    made = found(tmp_path, kern="\n".join(lines) + "\n")
    assert seen(made) == [("xid", -1), ("boot-start", 0), ("xid", 0)]
    assert "refuted" not in boots(made)[0].details
