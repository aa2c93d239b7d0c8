"""One incident in every container of the kernel's log, each in several wrappings, through the whole way to UTC."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recorded import RECORDED

from nccl_forensics.intake.walk import collect
from nccl_forensics.lines.plugins import parsers
from nccl_forensics.lines.read import read_source
from nccl_forensics.lines.scan import Scanner
from nccl_forensics.model import Event
from nccl_forensics.pipeline import conclude
from nccl_forensics.when import zones

FORMATS = RECORDED / "kernel" / "formats"
NO_HOST = ("dmesg", "kmsg", "journal-cat", "logread", "kubectl", "var-log-dmesg")
"""Containers in which no line and no name says which host it is."""


@cache
def wanted() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FORMATS / "expected.json").read_text(encoding="utf-8"))
    return found


def names() -> list[str]:
    return [n for n in wanted()["files"] if not n.startswith(("system.journal", "sosreport"))]


@cache
def plain(name: str) -> bytes:
    data = (FORMATS / name).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    elif data.startswith(b"\xfd7zXZ"):
        data = lzma.decompress(data)
    return data.decode("utf-16").encode() if data.startswith(b"\xff\xfe") else data


def _stem(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".xz")


def _crlf(name: str) -> tuple[str, bytes]:
    return _stem(name), plain(name).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _utf16(name: str) -> tuple[str, bytes]:
    try:
        return _stem(name), b"\xff\xfe" + plain(name).decode().encode("utf-16-le")
    except UnicodeDecodeError:
        pytest.skip("holds bytes that are no text")


def _tar(name: str) -> tuple[str, bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo("bundle/logs/" + name)
        data = (FORMATS / name).read_bytes()
        member.size, member.mtime = len(data), 1_772_700_000
        tar.addfile(member, io.BytesIO(data))
    return "bundle.tar.gz", out.getvalue()


WRAPS: dict[str, Callable[[str], tuple[str, bytes]]] = {
    "as-is": lambda name: (name, (FORMATS / name).read_bytes()),
    "crlf": _crlf,
    "utf16": _utf16,
    "gz": lambda name: (_stem(name) + ".gz", gzip.compress(plain(name), 1)),
    "xz": lambda name: (_stem(name) + ".xz", lzma.compress(plain(name), preset=0)),
    "tar": _tar,
}


@cache
def scanner() -> Scanner:
    return Scanner(parsers().by_literal)


def events_of(path: Path, zone: str | None = None, year: int | None = None) -> list[Event]:
    """The timeline of one file, in UTC."""
    parsed = [read_source(source, parsers(), scanner()) for source in collect([str(path)])]
    known = zones.parse_zone(zone) if zone else None
    return list(conclude(parsed, zone=known, year=year).events)


def told(name: str) -> tuple[str | None, int | None]:
    """What --timezone and --year must add to this file."""
    file = wanted()["files"][name]
    zone = (file["tz"] or "").split(" ")[0]
    if zone == "CST":
        zone = "+08:00"  # means several zones
    return zone or None, None if file["year_in_text"].startswith(("yes", "date in")) else wanted()["year"]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("name", names())
def test_every_container_tells_card_host_and_time(name: str, wrap: str, tmp_path: Path) -> None:
    as_name, data = WRAPS[wrap](name)
    path = tmp_path / as_name
    path.write_bytes(data)
    found = [e for e in events_of(path, *told(name)) if e.kind == "xid"]
    xids = [e for e in wanted()["events"] if "xid" in e]
    key = sorted((e.details["xid"], e.gpu_pci, e.pid) for e in found)
    assert key == sorted((e["xid"], e["pci"], e.get("pid")) for e in xids)
    file = wanted()["files"][name]
    host = None if name.startswith(NO_HOST) else "192.0.2.19" if name.startswith("talos") else wanted()["host"]
    for event in found:
        true = next(x for x in xids if (x["xid"], x["pci"]) == (event.details["xid"], event.gpu_pci))
        true_ns = round(datetime.fromisoformat(true["time"].replace("Z", "+00:00")).timestamp() * 1e6) * 1000
        assert event.host == host
        if file["absolute_time"].startswith("not from the file alone"):
            assert event.time_ns is None or event.stamp is None or event.stamp.wall_ns is not None
            continue
        assert event.stamp is not None
        assert event.time_ns is not None
        assert 0 <= true_ns - event.time_ns < event.stamp.resolution_ns


def test_a_sosreport_tells_it_too() -> None:
    (path,) = FORMATS.glob("sosreport-*.tar.xz")
    found = [e for e in events_of(path) if e.kind == "xid" and e.details["xid"] == 79]
    assert found
    assert {(e.gpu_pci, e.host) for e in found} == {("0000:c1:00.0", "trn-node-07")}
    times = [e.time_ns for e in found if e.time_ns is not None]
    assert times
    assert all(abs(t - 1_772_619_594_567_013_000) < 3_000_000_000 for t in times)


def test_a_binary_journal_says_how_to_convert_it() -> None:
    parsed = [read_source(s, parsers(), scanner()) for s in collect([str(FORMATS / "system.journal.xz")])]
    assert all("journalctl" in (p.row.reason or "") for p in parsed)


LINE = "Mar 03 10:00:00 n-1 kernel: NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("head", "time"),
    [
        ("-- Logs begin at Mon 2026-03-02 05:12:43 UTC, end at Wed 2026-03-04 10:36:50 UTC. --", "2026-03-03T10:00:00"),
        (
            "-- Journal begins at Mon 2026-03-02 05:12:43 CET, ends at Wed 2026-03-04 10:36:50 CET. --",
            "2026-03-03T09:00:00",
        ),
        ("-- Logs begin at Mon 2025-03-02 05:12:43 CST, end at Tue 2025-03-04 10:36:50 CST. --", "2025-03-03T10:00:00"),
        ("-- Logs begin at yesterday, end at some time. --", None),
        ("He said: -- Logs begin at Mon 2026-03-02 05:12:43 UTC, end at Wed 2026-03-04 10:36:50 UTC. --", None),
    ],
)
def test_a_journals_head_line_tells_year_and_zone(head: str, time: str | None, tmp_path: Path) -> None:
    path = tmp_path / "journal.txt"
    path.write_text(f"{head}\n{LINE}", encoding="utf-8")
    (xid,) = (e for e in events_of(path) if e.kind == "xid")
    assert xid.time_ns is not None
    moment = datetime.fromtimestamp(xid.time_ns / 1e9, timezone.utc)
    assert moment.strftime("%Y-%m-%dT%H:%M:%S") == (time or "1972-03-03T10:00:00")


def kernel_line(
    day: str, uptime_s: int, text: str = "NVRM: Xid (PCI:0000:c1:00): 31, pid=1, name=x, Ch 00000008"
) -> str:
    return f"{day} 10:00:00 n-1 kernel: [{uptime_s:5}.000000] {text}\n"


def rotated(folder: Path, **files: str) -> list[tuple[str, int | None, str]]:
    """(day, boot, file) of the Xids of kern.log and its rotated files, `_1` and `_2` by age."""
    for name, content in files.items():
        _, _, age = name.partition("_")
        data = content.encode()
        path = folder / ("kern.log" + (f".{age}" if age else "") + (".gz" if age == "2" else ""))
        path.write_bytes(gzip.compress(data) if age == "2" else data)
    found = [e for e in events_of(folder, year=2026) if e.kind == "xid"]
    return [
        (
            f"{datetime.fromtimestamp((e.time_ns or 0) / 1e9, timezone.utc):%Y-%m-%d}",
            e.boot,
            Path(e.evidence.source).name,
        )
        for e in found
    ]


BOOT = "Linux version 6.8.0-52-generic (buildd@builder) (gcc) #53-Ubuntu SMP"


def test_rotated_files_count_years_and_boots_as_one_log(tmp_path: Path) -> None:
    found = rotated(
        tmp_path,
        kern=kernel_line("Jan  9", 700) + kernel_line("Jan 12", 0, BOOT) + kernel_line("Jan 13", 900),
        kern_1=kernel_line("Dec 30", 500) + kernel_line("Jan  2", 600),
        kern_2=kernel_line("Nov 10", 800) + kernel_line("Dec 20", 0, BOOT) + kernel_line("Dec 24", 400),
    )
    assert found == [
        ("2025-11-10", -2, "kern.log.2.gz"),
        ("2025-12-24", -1, "kern.log.2.gz"),
        ("2025-12-30", -1, "kern.log.1"),
        ("2026-01-02", -1, "kern.log.1"),
        ("2026-01-09", -1, "kern.log"),
        ("2026-01-13", 0, "kern.log"),
    ]


def test_copies_of_one_log_are_no_rotation(tmp_path: Path) -> None:
    one = kernel_line("Mar  3", 500) + kernel_line("Mar  4", 600)
    found = rotated(tmp_path, kern=one, kern_1=one)
    assert {(day, boot) for day, boot, _ in found} == {("2026-03-03", 0), ("2026-03-04", 0)}


def test_a_line_long_before_the_journals_end_has_its_year(tmp_path: Path) -> None:
    path = tmp_path / "journal.txt"
    head = "-- Logs begin at Mon 2025-06-02 05:12:43 UTC, end at Wed 2026-03-04 10:36:50 UTC. --"
    path.write_text(f"{head}\n{LINE.replace('Mar 03', 'Oct 03')}", encoding="utf-8")
    (xid,) = (e for e in events_of(path) if e.kind == "xid")
    assert datetime.fromtimestamp((xid.time_ns or 0) / 1e9, timezone.utc).year == 2025
