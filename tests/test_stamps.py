"""Written times and what they mean; dates that do not exist; localised `date` output."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_forensics.lines import stamps
from nccl_forensics.model import Stamp

HOUR = 3600


def ns(wall: str) -> int:
    whole, _, fraction = wall.partition(".")
    return (datetime.fromisoformat(whole) - datetime(1970, 1, 1)) // timedelta(seconds=1) * 10**9 + int(
        fraction.ljust(9, "0") or 0
    )


STARTS = [
    # text, rest behind the stamp, wall, zone, has_year, resolution
    ("2026-03-04T10:19:54,567013+00:00 x", " x", "2026-03-04T10:19:54.567013", 0, True, 1000),
    ("2026-03-04T10:19:54.567+0100 x", " x", "2026-03-04T10:19:54.567", HOUR, True, 10**6),
    ("2026-03-04T10:19:54Z", "", "2026-03-04T10:19:54", 0, True, 10**9),
    ("2026-03-04 10:19:54-03 x", " x", "2026-03-04T10:19:54", -3 * HOUR, True, 10**9),
    ("2025-09-13 09:48:06.807900522 +0000 /proc", " /proc", "2025-09-13T09:48:06.807900522", 0, True, 1),
    ("2026-03-04 10:19:54 UTC x", " x", "2026-03-04T10:19:54", 0, True, 10**9),
    ("2026-03-04 10:19:54 - root", " - root", "2026-03-04T10:19:54", None, True, 10**9),
    ("2026-03-04 10:19:54 -12 degrees", " -12 degrees", "2026-03-04T10:19:54", None, True, 10**9),
    (
        "2026-03-04 10:19:54,42026-03-04 10:19:54,51 x",
        "-03-04 10:19:54,51 x",
        "2026-03-04T10:19:54.42026",
        None,
        True,
        10**4,
    ),
    ("2026/03/04 10:19:54 x", " x", "2026-03-04T10:19:54", None, True, 10**9),
    ("2016-12-31T23:59:60Z x", " x", "2017-01-01T00:00:00", 0, True, 10**9),
    ("[2026-04-22 21:34:20] x", " x", "2026-04-22T21:34:20", None, True, 10**9),
    ("Wed 2026-03-04 10:19:54.567013 UTC x", " x", "2026-03-04T10:19:54.567013", 0, True, 1000),
    ("Wed 2026-03-04 10:19:54 CST x", " x", "2026-03-04T10:19:54", None, True, 10**9),
    ("Wed 2026-03-04 10:19:54 CEST x", " x", "2026-03-04T10:19:54", 2 * HOUR, True, 10**9),
    ("Mon 2026-03-02 05:12:43 +0530 x", " x", "2026-03-02T05:12:43", 5 * HOUR + 1800, True, 10**9),
    ("Wed Mar  4 10:19:54 2026 x", " x", "2026-03-04T10:19:54", None, True, 10**9),
    ("[Wed Mar  4 10:19:54 2026] x", " x", "2026-03-04T10:19:54", None, True, 10**9),
    ("Mar  4 10:19:54 host", " host", "1972-03-04T10:19:54", None, False, 10**9),
    ("Mar 04 10:19:54.567013 host", " host", "1972-03-04T10:19:54.567013", None, False, 1000),
    ("Feb 29 10:19:54 host", " host", "1972-02-29T10:19:54", None, False, 10**9),
    ("févr. 04 10:19:54 host", " host", "1972-02-04T10:19:54", None, False, 10**9),
    (" 3月 02 14:12:43 host", " host", "1972-03-02T14:12:43", None, False, 10**9),
    ("Jul 23 2024 07:53:55] x", "] x", "2024-07-23T07:53:55", None, True, 10**9),
    ("E321 10:21:33.000421007 a.cpp", " a.cpp", "1972-03-21T10:21:33.000421007", None, False, 1),
    ("W1129 11:56:59.150000 12 a.py", " 12 a.py", "1972-11-29T11:56:59.150", None, False, 1000),
    ("1772619594.567013 host", " host", "2026-03-04T10:19:54.567013", 0, True, 1000),
    ("08/22 14:35:16 d2", " d2", "1972-08-22T14:35:16", None, False, 10**9),
    ("05/28/2024 10:11:12 - INFO", " - INFO", "2024-05-28T10:11:12", None, True, 10**9),
    ("28/05/2024 10:11:12 x", " x", "2024-05-28T10:11:12", None, True, 10**9),
    ("09/17/2026 | 11:31:42 PM UTC | x", " | x", "2026-09-17T23:31:42", 0, True, 10**9),
    ("09/17/2026 12:31:42 AM x", " x", "2026-09-17T00:31:42", None, True, 10**9),
    ("09/17/2026 10:31:42 CPU0 x", " CPU0 x", "2026-09-17T10:31:42", None, True, 10**9),
    ("01-29 08:52:43 x", " x", "1972-01-29T08:52:43", None, False, 10**9),
]


@pytest.mark.parametrize(("text", "rest", "wall", "zone_s", "has_year", "resolution_ns"), STARTS)
def test_start(text: str, rest: str, wall: str, zone_s: int | None, has_year: bool, resolution_ns: int) -> None:
    found = stamps.parse(text)
    assert found is not None
    want = Stamp(wall_ns=ns(wall), zone_s=zone_s, has_year=has_year, resolution_ns=resolution_ns)
    assert (found[0], text[found[1] :]) == (want, rest)
    in_bytes = stamps.parse(text.encode())
    assert in_bytes is not None
    assert (in_bytes[0], text.encode()[in_bytes[1] :]) == (want, rest.encode())


def test_seconds_since_boot() -> None:
    assert stamps.parse("[191234.567013] x") == (Stamp(boot_ns=191_234_567_013_000), 15)
    assert stamps.parse("[    0.000000 <    0.000009>] x") == (Stamp(boot_ns=0), 29)


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "Feb 30 10:19:54 host", "Foo  4 10:19:54 host", "2026-13-04T10:19:54Z", "2026-03-04T24:19:54Z",
        "2026-03-04T10:60:54Z", "2026-03-04T10:19:61Z", "0000-03-04T10:19:54Z", "E000 10:21:33.000421007", "10:19:54 x",
        "[12.5] x", "177261959.4 x", "[2026-04-22 21:34:20 x", "09/17/2026 13:31:42 PM", "99/99 10:10:10",
        "２０２６-03-04T10:19:54Z", "not a time",
    ],
)  # fmt: skip
def test_no_time(text: str) -> None:
    assert stamps.parse(text) is None
    assert stamps.parse(text.encode()) is None


DATES = [
    ("Di 19. Mai 09:58:01 CEST 2026", "2026-05-19T09:58:01", 2 * HOUR),
    ("2019年 11月 16日 星期六 13:31:02 CST", "2019-11-16T13:31:02", None),
    ("2026年 03月 04日 星期三 18:41:00 CST", "2026-03-04T18:41:00", None),
    ("2026年  3月  4日 水曜日 19:41:00 JST", "2026-03-04T19:41:00", 9 * HOUR),
    ("2026. 03. 04. (수) 19:41:00 KST", "2026-03-04T19:41:00", 9 * HOUR),
    ("za  3 dec 2022 23:09:47 CET", "2022-12-03T23:09:47", HOUR),
    ("jeu. 25 août 2022 10:11:12 CEST", "2022-08-25T10:11:12", 2 * HOUR),
    ("mar 04 mar 2026 10:41:00 CET", "2026-03-04T10:41:00", HOUR),
    ("mer 4 mar 2026, 10:41:00, CET", "2026-03-04T10:41:00", HOUR),
    ("śro, 4 mar 2026, 10:41:00 CET", "2026-03-04T10:41:00", HOUR),
    ("Ср 04 мар 2026 10:41:00 MSK", "2026-03-04T10:41:00", 3 * HOUR),
    ("Sat Sep 13 09:50:48 AM UTC 2025", "2025-09-13T09:50:48", 0),
    ("Sat Sep 13 12:50:48 AM UTC 2025", "2025-09-13T00:50:48", 0),
    ("Wed 04 Mar 2026 01:41:00 PM -03", "2026-03-04T13:41:00", -3 * HOUR),
    ("Wed Mar  4 10:41:00 UTC 2026", "2026-03-04T10:41:00", 0),
    ("Wed Mar  4 10:41:00 PST 2026", "2026-03-04T10:41:00", None),
    ("2026-03-04T10:41:00+01:00", "2026-03-04T10:41:00", HOUR),
    ("*** ls: -r--r--r-- 1 root root 4096 2025-09-13 09:48:06.807900522 +0000 /x", "2025-09-13T09:48:06.807900522", 0),
]


@pytest.mark.parametrize(("text", "wall", "zone_s"), DATES)
def test_date_line(text: str, wall: str, zone_s: int | None) -> None:
    for written in (text, text.encode()):
        stamp = stamps.parse_date_line(written)
        assert stamp is not None
        assert (stamp.wall_ns, stamp.zone_s, stamp.has_year) == (ns(wall), zone_s, True)


@pytest.mark.parametrize(
    "text", ["", "Di 19. Mai 2026", "10:41:00", "Mar 4 10:41:00", "32 mar 2026 10:41:00", "2026 10:41:00"]
)
def test_no_date_line(text: str) -> None:
    assert stamps.parse_date_line(text) is None


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (1772619594, "2026-03-04T10:19:54"), (1772619594.5, "2026-03-04T10:19:54.5"),
        ("1772619594567", "2026-03-04T10:19:54.567"), (1772619594567013, "2026-03-04T10:19:54.567013"),
        ("1772619594567013421", "2026-03-04T10:19:54.567013421"), ("2026-03-04T10:19:54Z", "2026-03-04T10:19:54"),
    ],
)  # fmt: skip
def test_epoch(value: object, want: str) -> None:
    stamp = stamps.epoch(value)
    assert stamp is not None
    assert (stamp.wall_ns, stamp.zone_s) == (ns(want), 0)


@pytest.mark.parametrize("value", [None, True, -1, 0, 12, float("nan"), float("inf"), 10**30, "", "12", [], "9" * 40])
def test_no_epoch(value: object) -> None:
    assert stamps.epoch(value) is None


def test_every_month_has_its_names() -> None:
    assert set(stamps.MONTHS.values()) == set(range(1, 13))
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    ):
        assert stamps.month(name) == stamps.month(name.upper() + ".") == stamps.MONTHS[f"{number}月"] == number


@given(st.datetimes(datetime(1980, 1, 1), datetime(2099, 12, 31)), st.integers(-12 * 4, 14 * 4))
def test_iso_as_python_reads_it(moment: datetime, quarters: int) -> None:
    sign = "-" if quarters < 0 else "+"
    text = moment.isoformat(timespec="microseconds") + f"{sign}{abs(quarters) // 4:02}:{abs(quarters) % 4 * 15:02}"
    found = stamps.parse(text)
    assert found is not None
    assert found[0].wall_ns == (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000
    assert found[0].zone_s == quarters * 900
    assert found[1] == len(text)


@given(st.one_of(st.text(max_size=60), st.from_regex(r"[A-Z\[]?[ 0-9:/.,T+-]{0,40}")))
def test_anything_parses(text: str) -> None:
    for found in (stamps.parse(text), stamps.parse(text.encode("utf-8", "surrogatepass"))):
        assert found is None or found[1] > 0
    stamps.parse_date_line(text)
