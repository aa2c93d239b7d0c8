"""Stamps of several files on one clock: tests/cases/clocks/CASE.json (short_form.py).

`want`, by the events' order in the case: `times` (RFC 3339 or null), `time_bases`, `bar_at_least_s`, `bar_at_most_s`,
`boots`, `order`
([a, b, does a come before b? null: open]), `gap_s` ([a, b, seconds]), `sequence` (order on the timeline); and of
the clocks, by name: `bases`, `clock_offsets`. `arrivals`: when dumps say that a collective was entered, UTC.
"""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from short_form import BASE_NS, SECOND, cases, events, load, rows, stamp, with_faults

from nccl_forensics.errors import InputError
from nccl_forensics.lines.stamps import IN_USE_S, with_year
from nccl_forensics.model import Event, Evidence, InputRow, Stamp
from nccl_forensics.pipeline import analyze
from nccl_forensics.text.moments import rfc3339
from nccl_forensics.when import align
from nccl_forensics.when.aligned import Aligned, Arrival
from nccl_forensics.when.zones import parse_zone

CASES = cases("clocks")
params = pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)


def aligned(case: dict[str, Any]) -> tuple[Aligned, list[Event]]:
    """(what align made, its events in the case's order)."""
    given_ = events(case)
    arrivals = []
    for one in case.get("arrivals", ()):
        read = stamp({"at": one["last"]})
        assert read is not None
        assert read.wall_ns is not None
        arrivals.append(Arrival(one["seq"], read.wall_ns, read.wall_ns))
    zone = parse_zone(case["zone"]) if "zone" in case else None
    made = align.align(given_, rows(case, given_), zone=zone, year=case.get("year"), arrivals=arrivals)
    by_place = {(e.evidence.source, e.evidence.line): e for e in made.events}
    return made, [by_place[e.evidence.source, e.evidence.line] for e in given_]


@pytest.mark.parametrize("path", with_faults(CASES))
def test_case(path: Path) -> None:
    case = load(path)
    want = case["want"]
    made, found = aligned(case)
    if "times" in want:
        assert [rfc3339(e.time_ns) for e in found] == want["times"]
    for event, bar in zip(found, want.get("bar_at_least_s", ()), strict=False):
        assert event.uncertainty_ns is not None
        assert event.uncertainty_ns >= bar * SECOND
    for event, bar in zip(found, want.get("bar_at_most_s", ()), strict=False):
        assert event.uncertainty_ns is not None
        assert event.uncertainty_ns <= bar * SECOND
    if "time_bases" in want:
        assert [e.time_basis for e in found] == want["time_bases"]
    if "boots" in want:
        assert [e.boot for e in found] == want["boots"]
    for a, b, before in want.get("order", ()):
        assert made.before(found[a], found[b]) is before, (a, b)
    if "gap_s" in want:
        a, b, seconds = want["gap_s"]
        at, then = found[a].time_ns, found[b].time_ns
        assert at is not None
        assert then is not None
        assert then - at == seconds * SECOND
    if "sequence" in want:
        places = [(e.evidence.source, e.evidence.line) for e in found]
        assert [places.index((e.evidence.source, e.evidence.line)) for e in made.events] == want["sequence"]
    if "bases" in want:
        assert [c.basis for c in made.clocks if c.basis != "boot-time"] == want["bases"]
    if "clock_offsets" in want:
        assert [c.offset_s for c in made.clocks] == want["clock_offsets"]


@params
def test_every_event_stays_and_an_assumed_clock_says_so(path: Path) -> None:
    case = load(path)
    made, found = aligned(case)
    assert len(made.events) == len(found) == len(events(case))
    names = {c.clock for c in made.clocks}
    assert made.assumed <= names
    for event in made.events:
        assert (event.time_ns is None) == (event.time_basis == "none")
        assert (event.time_ns is None) == (event.uncertainty_ns is None)
        assert event.time_ns is None or event.clock in names
    for clock in made.clocks:
        if clock.basis == "assumed":
            assert clock.uncertainty_s is None
            assert clock.note
            assert "UTC" in clock.note


# --- properties -----------------------------------------------------------------------------------------------------


def _pair(gap_ns: int, resolution_ns: int, *, drifts: bool) -> list[Event]:
    made = []
    for n, at in enumerate((BASE_NS, BASE_NS + gap_ns)):
        written = Stamp(wall_ns=at, zone_s=0, resolution_ns=resolution_ns, drifts=drifts and n == 0)
        place = Evidence(source=f"{n}.log", line=1, text="x")
        kind = "link-up" if n else "progress"
        made.append(Event(kind=kind, role="context", evidence=place, stamp=written, host="n0"))
    return made


@settings(max_examples=200, deadline=None)
@given(
    gap_ns=st.integers(-40 * SECOND, 40 * SECOND),
    resolution_ns=st.sampled_from([1_000, 1_000_000, SECOND]),
    drifts=st.booleans(),
)
def test_no_order_is_claimed_inside_the_error_bars(gap_ns: int, resolution_ns: int, drifts: bool) -> None:
    pair = _pair(gap_ns, resolution_ns, drifts=drifts)
    made = align.align(pair, [InputRow(path="1.log", format="kernel")])  # two clocks of one machine
    a, b = sorted(made.events, key=lambda e: e.evidence.source)
    bars = (a.uncertainty_ns or 0) + (b.uncertainty_ns or 0)
    assert bars >= 2 * resolution_ns
    said = made.before(a, b)
    assert said is (None if abs(gap_ns) <= bars else gap_ns > 0)
    assert made.before(b, a) is (None if said is None else not said)


@settings(max_examples=100, deadline=None)
@given(
    zone_s=st.sampled_from(IN_USE_S),
    gaps=st.lists(st.integers(1, 3600), min_size=2, max_size=6),
)
def test_a_zone_found_beside_a_printed_utc_is_the_right_one(zone_s: int, gaps: list[int]) -> None:
    """A host on any zone in use, that printed UTC once, is read within its resolution."""
    utc = [BASE_NS + sum(gaps[:n]) * SECOND for n in range(len(gaps))]
    made = []
    for n, at in enumerate(utc):
        place = Evidence(source="kern.log", line=n + 1, text="x")
        written = Stamp(wall_ns=at + zone_s * SECOND)
        details: dict[str, Any] = {"epoch_ns": at} if n == 0 else {}
        kind = "clock-anchor" if n == 0 else "link-up"
        made.append(Event(kind=kind, role="context", evidence=place, stamp=written, host="n1", details=details))
    found = align.align(made, rows({}, made)).events
    assert [e.time_ns for e in found] == utc


@settings(max_examples=100, deadline=None)
@given(year=st.integers(1990, 2100), day=st.integers(0, 365), rest=st.integers(0, 86_400 * SECOND - 1))
def test_with_year_moves_nothing_but_the_year(year: int, day: int, rest: int) -> None:
    start = 63_072_000 * SECOND  # 1972-01-01
    moved = rfc3339(with_year(start + day * 86_400 * SECOND + rest, year))
    back = rfc3339(with_year(start + day * 86_400 * SECOND + rest, 2000))
    assert moved is not None
    assert back is not None
    assert moved[:4] == str(year)
    assert moved[4:] == back[4:] or (back[4:10] == "-02-29" and moved[4:10] == "-03-01" and moved[10:] == back[10:])


@settings(max_examples=100, deadline=None)
@given(
    day=st.integers(244, 365),  # of September to December: no 29 February within
    gaps=st.lists(st.integers(1, 14 * 86_400), min_size=2, max_size=4),
    files=st.lists(st.integers(0, 1), min_size=5, max_size=5),
)
def test_stamps_without_a_year_keep_their_order_and_gaps_over_new_year(
    day: int, gaps: list[int], files: list[int]
) -> None:
    """However the lines of one season lie in two files, January comes after December."""
    begin = 63_072_000 * SECOND + day * 86_400 * SECOND  # in 1972, as the reader of stamps has it
    made, true = [], []
    for n in range(len(gaps) + 1):
        true.append(begin + sum(gaps[:n]) * SECOND)
        written = Stamp(wall_ns=with_year(true[-1], 1972), has_year=False)
        place = Evidence(source=f"{files[n]}.log", line=n + 1, text="x")
        made.append(Event(kind="link-up", role="context", evidence=place, stamp=written, host="n1"))
    made.sort(key=lambda e: e.evidence.source)
    found = sorted(align.align(made, rows({}, made)).events, key=lambda e: e.evidence.line or 0)
    times = [e.time_ns or 0 for e in found]
    assert [t - times[0] for t in times] == [t - true[0] for t in true]
    assert all(rfc3339(t) is None for t in times)


# --- zones ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hours"),
    [("+02:00", 2), ("-0800", -8), ("+5", 5), ("UTC", 0), ("utc+05:30", 5.5), ("UTC+05:30", 5.5), ("Z", 0)],
)
def test_offsets(text: str, hours: float) -> None:
    if text == "utc+05:30":
        with pytest.raises(InputError):
            parse_zone(text)
        return
    assert parse_zone(text).utcoffset(None) == timedelta(hours=hours)


def test_a_name_is_looked_up() -> None:
    assert str(parse_zone(" Europe/Copenhagen ")) == "Europe/Copenhagen"


@pytest.mark.parametrize("text", ["Europe/Nowhere", "", "+99:00", "../../etc/passwd", "/etc/localtime", "UTC+", "+2:0"])
def test_a_zone_that_is_none_is_refused_with_advice(text: str) -> None:
    with pytest.raises(InputError, match=r"Use an offset such as \+02:00"):
        parse_zone(text)


@pytest.mark.parametrize(
    ("stamps", "seconds"),
    [
        (["2026-10-25 02:58:00", "2026-10-25 02:59:50", "2026-10-25 02:00:20", "2026-10-25 02:05:00"], [110, 30, 280]),
        (["2026-10-24 02:58:00", "2026-10-24 02:59:50", "2026-10-24 02:00:20"], [110, -3570]),  # a Saturday
        (["2026-10-25 12:58:00", "2026-10-25 12:59:50", "2026-10-25 12:00:20"], [110, -3570]),  # at noon
        (["2026-10-25 02:58:00", "2026-10-25 02:59:50", "2026-10-25 02:20:20"], [110, -2370]),  # no whole hour
        (["2026-10-25 02:59:50+02:00", "2026-10-25 02:00:20+01:00"], [30]),  # its zone is written
    ],
)
def test_an_hour_that_is_told_twice_is_two_hours(stamps: list[str], seconds: list[int], tmp_path: Path) -> None:
    lines = [f"{stamp} [rank0] INFO step {n} loss 2.1\n" for n, stamp in enumerate(stamps)]
    (tmp_path / "train.log").write_text("".join(lines))
    steps = sorted(
        (e for e in analyze([str(tmp_path)]).events if e.kind == "progress"), key=lambda e: e.evidence.line or 0
    )
    times = [e.time_ns for e in steps if e.time_ns is not None]
    assert [(new - old) // SECOND for old, new in pairwise(times)] == seconds


def journal(*lines: tuple[float, str, str]) -> str:
    """`journalctl -o json`: (seconds, the boot's id, message)."""
    rows = (
        {
            "__REALTIME_TIMESTAMP": str(BASE_NS // 1000 + int(at * 1_000_000)),
            "_BOOT_ID": boot * 32,
            "_HOSTNAME": "n1",
            "SYSLOG_IDENTIFIER": "kernel",
            "MESSAGE": message,
        }
        for at, boot, message in lines
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


STARTED = "Linux version 5.15.0-113-generic (buildd@b) #123-Ubuntu SMP"
LOST = "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("lines", "boots"),
    [
        ([(0, "a", STARTED), (600, "a", LOST), (900, "a", STARTED), (960, "a", LOST)], [0, 0, 0, 0]),  # told again
        ([(0, "a", STARTED), (600, "a", LOST), (900, "b", STARTED), (960, "b", LOST)], [-1, -1, 0, 0]),
        ([(0, "a", STARTED), (600, "a", LOST), (960, "b", LOST)], [-1, -1, 0]),  # without its first line
    ],
)
def test_the_journals_ids_tell_boots_apart(
    lines: list[tuple[float, str, str]], boots: list[int], tmp_path: Path
) -> None:
    (tmp_path / "n1.json").write_text(journal(*lines))
    found = sorted(analyze([str(tmp_path)]).events, key=lambda e: e.evidence.line or 0)
    lines_of_boots = [e for e in found if e.kind in ("boot-start", "xid") and "by_id" not in e.details]
    assert [e.boot or 0 for e in lines_of_boots] == boots
