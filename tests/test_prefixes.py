"""Prefixes as data: cases/prefixes/NAME.log beside NAME.json, one row for each line that is not blank, with what its
prefixes say. A row leaves out what is unknown. `python tests/test_prefixes.py` writes the rows; read them before you
commit them."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import RECORDED

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.prefixes.layers import SHAPES, layers
from nccl_forensics.lines.prefixes.peel import peel
from nccl_forensics.lines.prefixes.peeled import Peeled
from nccl_forensics.lines.scan import Scanner
from nccl_forensics.lines.stamps import in_zone_of
from nccl_forensics.lines.window import Window
from nccl_forensics.model import Stamp

CASES = sorted((Path(__file__).parent / "cases" / "prefixes").glob("*.log"))
FORMATS = RECORDED / "kernel" / "formats"
IDENTITY = ("rank", "local_rank", "task", "host", "pid", "program", "pod", "boot_id")


def lines(data: bytes, hits: frozenset[bytes] = frozenset()) -> Iterator[Line]:
    """Every line of `data` (less than a window) that is not blank, as the scanner would cut it."""
    window = Window("a.log")
    window.buffer[: len(data)] = data
    window.end = len(data)
    at, number = 0, 1
    while at < len(data):
        _, end = window.bounds(at) if data[at : at + 1] not in (b"\n", b"\r") else (at, at)
        if data[at:end].strip():
            yield Line(window, number, at, end, frozenset(hit for hit in hits if hit in data[at:end]))
        number += data[end : end + 1] == b"\n"
        at = end + 1


def clock(stamp: Stamp) -> dict[str, object]:
    said: dict[str, object] = {}
    if stamp.wall_ns is not None:
        second, ns = divmod(stamp.wall_ns, 10**9)
        wall = datetime(1970, 1, 1) + timedelta(seconds=second)
        digits = len(str(10**9 // max(1, stamp.resolution_ns))) - 1 if stamp.resolution_ns <= 10**9 else 9
        said["wall"] = wall.isoformat() + (f".{ns:09}"[: digits + 1] if digits else "")
        if stamp.resolution_ns > 10**9:
            said["within_s"] = round(stamp.resolution_ns / 1e9, 6)
        if stamp.zone_s is not None:
            said["zone_s"] = stamp.zone_s
        if not stamp.has_year:
            said["year"] = None
        if stamp.drifts:
            said["drifts"] = True
    if stamp.boot_ns is not None:
        said["boot_s"] = stamp.boot_ns / 1e9
    return said


def row(line: Line) -> dict[str, object]:
    peeled = peel(line)
    said: dict[str, object] = {"line": line.number, "text": peeled.text}
    if peeled.stamp is not None:
        said["stamp"] = clock(peeled.stamp)
    if peeled.outer is not None:
        said["outer"] = clock(peeled.outer)
    said.update({name: value for name in IDENTITY if (value := getattr(peeled, name)) is not None})
    if peeled.repeats != 1:
        said["repeats"] = peeled.repeats
    if peeled.cut:
        said["cut"] = True
    return said


def rows(case: Path) -> list[dict[str, object]]:
    hits = case.with_suffix(".hits")
    wanted = frozenset(hits.read_bytes().splitlines()) if hits.exists() else frozenset()
    return [row(line) for line in lines(case.read_bytes(), wanted)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_case(case: Path) -> None:
    wanted = [json.loads(line) for line in case.with_suffix(".json").read_text(encoding="utf-8").splitlines()]
    assert rows(case) == wanted


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_known_shape_changes_nothing(case: Path) -> None:
    """What a file's earlier lines taught makes the next ones faster, not different."""
    for line in lines(case.read_bytes()):
        for shape in SHAPES:
            slow, quick = Peeled(""), Peeled("")
            text = line.raw.decode("utf-8", "backslashreplace")
            rest = shape(text, quick)
            if rest is not None:
                assert (layers(text, slow, line), slow) == (rest, quick)


NOON_NS = 1_772_625_600 * 10**9
"""2026-03-04 12:00:00."""


@pytest.mark.parametrize(
    ("inner_s", "has_year", "outer_zone_s", "zone_s"),
    [
        (0, True, 0, 0),
        (3600, True, 0, 3600),
        (-5 * 3600 - 2, True, 0, -5 * 3600),
        (5 * 3600 + 1800, True, 3600, 6 * 3600 + 1800),
        (3600, False, 0, 3600),
        (3600 + 300, True, 0, None),  # kept back for minutes, or another clock
        (30 * 3600, True, 0, None),
    ],
)
def test_the_collectors_stamp_tells_the_zone_of_the_programs(
    inner_s: int, has_year: bool, outer_zone_s: int, zone_s: int | None
) -> None:
    wall_ns = NOON_NS + inner_s * 10**9
    if not has_year:
        since = datetime(1970, 1, 1) + timedelta(seconds=wall_ns // 10**9)
        wall_ns = int((since.replace(year=1972) - datetime(1970, 1, 1)).total_seconds()) * 10**9
    inner = Stamp(wall_ns=wall_ns, has_year=has_year)
    found = in_zone_of(inner, Stamp(wall_ns=NOON_NS, zone_s=outer_zone_s))
    assert found.zone_s == zone_s
    assert found == inner or (found.wall_ns == NOON_NS + inner_s * 10**9 and found.has_year)
    assert in_zone_of(inner, Stamp(wall_ns=NOON_NS)) == inner
    assert in_zone_of(inner, None) == inner


# --- one incident in every container of the kernel's log ------------------------------------------------------------

NO_STAMP = {"dmesg-delta.txt", "dmesg-notime.txt", "journal-cat.txt"}
NO_HOST = ("dmesg", "kmsg", "serial", "journal-cat", "logread", "kubectl", "var-log-dmesg")
PHRASES = {
    "aer-corrected": "AER: Corrected error received",
    "pcie-bus-error": "PCIe Bus Error: severity=Corrected",
    "aer-bit-corrected": "[12] Timeout",
    "nvrm-fallen": "NVRM: GPU 0000:c1:00.0: GPU has fallen",
    "nvrm-crash-dump": "GPU crash dump",
    "hung-task": "blocked for more",
}


def _containers() -> list[str]:
    files = json.loads((FORMATS / "expected.json").read_text(encoding="utf-8"))["files"]
    return [name for name in files if not name.startswith(("sosreport", "system.journal"))]


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    elif data.startswith(b"\xfd7zXZ"):
        data = lzma.decompress(data)
    return data.decode("utf-16").encode() if data.startswith(b"\xff\xfe") else data


def _offset_s(zone: str | None, at: datetime) -> int:
    if zone is None or zone in ("UTC", "Z", "+00:00", "+0000"):
        return 0
    if zone == "+01:00":
        return 3600
    if zone.startswith("CST"):
        return 8 * 3600
    offset = at.astimezone(ZoneInfo(zone.split(" ")[0])).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


@pytest.mark.parametrize("name", _containers())
def test_container(name: str) -> None:
    """Each event's line gives its message, the host and its true time, as far as the file can tell."""
    wanted = json.loads((FORMATS / "expected.json").read_text(encoding="utf-8"))
    told = wanted["files"][name]
    peeled = [peel(line) for line in lines(_plain(FORMATS / name))]
    for event in wanted["events"]:
        phrase = PHRASES.get(event.get("id")) or f"NVRM: Xid (PCI:{event['pci'][:-2]}): {event['xid']},"
        one = next(x for x in peeled if phrase in x.text)
        assert one.text.startswith(("NVRM:", "pcieport ", "INFO: task"))
        assert one.pid is None
        host = None if name.startswith(NO_HOST) else "192.0.2.19" if name.startswith("talos") else wanted["host"]
        assert one.host == host
        if name in NO_STAMP:
            assert one.stamp is None
            continue
        assert one.stamp is not None
        if one.stamp.boot_ns is not None:
            assert one.stamp.boot_ns == round(event["uptime"] * 1e6) * 1000
        if one.stamp.wall_ns is None:
            assert told["absolute_time"].startswith("not from the file alone")
            continue
        true = datetime.fromisoformat(event["time"].replace("Z", "+00:00"))
        local = true.replace(tzinfo=None) + timedelta(seconds=_offset_s(told["tz"], true))
        if told["year_in_text"] != "yes":
            assert not one.stamp.has_year
            local = local.replace(year=1972)
        true_ns = (local - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000
        assert one.stamp.wall_ns <= true_ns < one.stamp.wall_ns + one.stamp.resolution_ns
        if told["tz"] and told["tz"][0] in "+Z":
            assert one.stamp.zone_s == _offset_s(told["tz"], true)


def test_job_logs_keep_who_speaks() -> None:
    """Whatever stands before PyTorch's own header, the header's rank is the line's, and the header is gone."""
    seen = 0
    for path in sorted((RECORDED / "joblogs").glob("*/*")):
        if path.suffix == ".json":
            continue
        for line in Scanner([b"ProcessGroupNCCL.cpp:"]).lines(path.name, BytesIO(path.read_bytes())):
            before, header, _ = line.raw.partition(b"]:[E")
            if not header or b"[rank" not in before:
                continue
            seen += 1
            assert line.peeled.rank == int(before.rpartition(b"[rank")[2])
            assert line.text.startswith(("[Rank ", "[PG ", "Stack trace of the failed collective"))
            if b"[E ProcessGroup" not in line.raw:
                assert line.stamp is not None
                assert line.stamp.resolution_ns == 1
                assert line.stamp.has_year == (line.peeled.outer is not None)  # the collector tells the year
    assert seen > 250


# --- hostile input --------------------------------------------------------------------------------------------------

PIECES = [
    b"Mar  4 10:19:54 n-1 kernel: ", b"[191234.567013] ", b"[  +0.000009] ", b"[Mar 4 10:19] ", b"<3>", b"<3>1 ",
    b"{", b"}", b'{"log":"', b'","time":"2026-03-04T10:19:54Z"}', b"[rank3]:",
    b"[E1125 10:21:33.000421007 A.cpp:62] ", b"[default1]:", b"2026-03-04T10:19:54,567013+00:00 ",
    b"2026-99-99 99:99:99 ", b"[1,12]<stdout>:", b"[pod/a/b] ", b"g002: ", b" 3: ", b"(A pid=1, ip=10.0.0.1) ",
    b"\x1b[31m", b"\0\0\0\0", b"\xef\xbb\xbf", b"\xff\xfe", b"MESSAGE=", b"    MESSAGE=", b'\t"MESSAGE" : "x",',
    b"__CURSOR=", b"__REALTIME_TIMESTAMP=1", b" 50%|#| 1/2 [00:01<00:01, 1.0it/s]", b"\n", b"\r", b"\r\n",
    b"Traceback (most recent call last):", b"n-1:1:2 [0] NCCL WARN x", b"[", b"]", b"(", b" ", b"\t", b"9" * 30,
    b"E0 ", b"<", "３月 04 10:19:54 ".encode(), "٣".encode(), b"[E321 ",
    b"Wed 2026-03-04 10:19:54 UTC [s=1;m=1;t=1;x=1]", b"-" * 50,
]  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=12)), max_size=14))
@settings(max_examples=400, deadline=None)
def test_anything_peels(pieces: list[bytes]) -> None:
    for line in lines(b"".join(pieces)):
        peeled = peel(line)
        assert isinstance(peeled, Peeled)
        for stamp in (peeled.stamp, peeled.outer):
            assert stamp is None or stamp.wall_ns is not None or stamp.boot_ns is not None
        assert all(value is None or value >= 0 for value in (peeled.rank, peeled.local_rank, peeled.task, peeled.pid))


def test_a_long_line_is_soon_done() -> None:
    """Regexes that backtrack would take minutes on these."""
    for filler in (
        b"[",
        b"(",
        b"a: ",
        b"- ",
        b"1,",
        b"%|",
        b"[rank",
        b" [s=",
        b'{"log":"\\\\',
        b"x:1:1 [0] ",
        b"5/5 [00:01<1",
    ):
        start = datetime.now(timezone.utc)
        for line in lines(b"2026-03-04 10:19:54 " + filler * (16000 // len(filler)) + b"\n" + filler * 4000):
            peel(line)
        assert datetime.now(timezone.utc) - start < timedelta(seconds=2)


if __name__ == "__main__":
    for one in sys.argv[1:] or CASES:
        path = Path(one)
        said = [json.dumps(x, ensure_ascii=False) for x in rows(path)]
        path.with_suffix(".json").write_text("\n".join(said) + "\n", encoding="utf-8")
