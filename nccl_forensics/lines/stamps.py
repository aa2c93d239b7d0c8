"""Every way in which a log writes a time, read into a Stamp on the log's own clock.

`parse` takes the stamp at the start of a text, `parse_date_line` the output of `date` in the user's language or the
time in an `ls --full-time` line. The readers for single shapes are there for prefixes/, which knows what to expect
where.

A time without a year lies in 1972 (a leap year, so that 29 February exists) and has `has_year=False`. Zones are taken
where they are written as an offset or as an abbreviation that means one offset only.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, datetime, timezone
from functools import lru_cache
from typing import Final

from nccl_forensics.model import Stamp

NO_YEAR: Final = 1972
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
DAY: Final = 86_400 * SECOND
_EPOCH: Final = date(1970, 1, 1).toordinal()
_UNIT: Final = tuple(10 ** (9 - digits) for digits in range(10))
"""Nanoseconds of the last of so many decimals."""
_NAMES: Final = """
    jan january januar januari janvier janv enero ene janeiro gennaio gen styczeń stycznia sty leden ledna
        led január января янв січ tammi tammikuu ian ianuarie oca ocak jaan saus яну ιαν јан
    feb february februar februari février févr febrero fevereiro fev febbraio luty lutego lut únor února úno
        február febr февраля фев лют helmi helmikuu februarie şub şubat veebr vas φεβ феб
    mar march märz mär maart mrt mars marzo março marca marzec bře března márc március марта maalis
        maaliskuu martie mart märts kov μαρ мар бер
    apr april avril abril abr aprile kwi kwiecień kwietnia dub dubna ápr április апреля huhti huhtikuu
        aprilie nis nisan bal απρ апр кві
    may mai mei maj mayo maio mag maggio maja kvě května máj május мая май touko toukokuu mayıs geg μαΐ мај
        тра
    jun june juni juin junio junho giu giugno cze czerwca čen června jún június июня июн kesä kesäkuu iun
        iunie haz haziran juuni jūn birž ιουν јун юни чер
    jul july juli juil juillet julio julho lug luglio lip lipca čec července júl július июля июл heinä
        heinäkuu iul iulie tem temmuz juuli jūl liep ιουλ јул юли
    aug august augustus août agosto ago sie sierpnia srp srpna augusti augusztus августа авг elo elokuu ağu
        ağustos agu avg rugp αυγ сер
    sep sept september septembre septiembre set setembro settembre wrz września zář září szept szeptember
        сентября сен syys syyskuu septembrie eyl eylül rugs σεπ сеп вер
    oct okt october oktober octobre octubre out outubro ott ottobre paź października říj října október
        октября loka lokakuu octombrie eki ekim spal οκτ окт жов
    nov november novembre noviembre novembro lis listopada listopadu ноября ноя marras marraskuu noiembrie
        kas kasım lapkr νοε ное лис нов
    dec dez december dezember décembre déc diciembre dic dezembro dicembre des desember gru grudnia pro
        prosince декабря дек joulu joulukuu decembrie ara aralık dets gruod δεκ дец гру
"""
"""Short and full month names as glibc's locales print them (LC_TIME, abmon and mon, 2.36); a month begins where a line
is less indented. Croatian is left out: its "lip" and "lis" are other months than the Polish ones."""


def _months() -> dict[str, int]:
    found: dict[str, int] = {}
    number = 0
    for line in _NAMES.splitlines():
        number += line.startswith("    ") and not line.startswith("        ")
        found.update(dict.fromkeys(line.split(), number))
    for number in range(1, 13):
        found.update(dict.fromkeys((f"{number}月", f"{number:02}月", f"{number}월", f"{number:02}월"), number))
    return found


MONTHS: Final = _months()
"""Month name, lower case and without a full stop → 1 … 12."""
_HOURS: Final = """
    UTC 0 GMT 0 Z 0 WET 0 WEST 1 BST 1 CET 1 CEST 2 MEZ 1 MESZ 2 EET 2 EEST 3 MSK 3 SAST 2 PKT 5 NPT 5.75 WIB 7 HKT 8
    SGT 8 AWST 8 JST 9 KST 9 ACST 9.5 ACDT 10.5 AEST 10 AEDT 11 NZST 12 NZDT 13 EST -5 EDT -4 MST -7 MDT -6 PDT -7
    AKST -9 AKDT -8 HST -10
"""
ZONES: Final = {name: round(float(hours) * 3600) for name, hours in re.findall(r"(\w+) (\S+)", _HOURS)}
"""Seconds east of UTC for abbreviations that mean one offset in the tz database of today. Not here, because they mean
several: CST and CDT (Chicago, Shanghai, Havana), IST (India, Israel, Ireland), PST (Los Angeles, Manila)."""


def month(name: str) -> int | None:
    """1 … 12 for a month's name in one of the languages of MONTHS, with or without a full stop."""
    return MONTHS.get(name) or MONTHS.get(name.lower().rstrip("."))


@lru_cache(maxsize=256)
def zone(text: str) -> int | None:
    """Seconds east of UTC for 'Z', '+0100', '+01:00', '-03', 'CEST'; None if it means nothing or several things."""
    if text[:1] in "+-" and len(text) >= 3:
        digits = text[1:].replace(":", "")
        if not digits.isdecimal() or len(digits) not in (2, 4):
            return None
        seconds = int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60
        return (-seconds if text[0] == "-" else seconds) if seconds <= 15 * 3600 else None
    return ZONES.get(text)


@lru_cache(maxsize=4096)
def day_ns(year: int, month_: int, day: int) -> int | None:
    """Midnight of a day in ns since 1970; None if there is no such day."""
    try:
        return (date(year, month_, day).toordinal() - _EPOCH) * DAY
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def _minute_ns(year: str, month_: str, day: str, hour: str, minute: str) -> int | None:
    midnight = day_ns(int(year), int(month_), int(day))
    if midnight is None or int(hour) > 23 or int(minute) > 59:
        return None
    return midnight + (int(hour) * 60 + int(minute)) * MINUTE


def wall(
    year: str | None,
    month_: str | int,
    day: str,
    hour: str,
    minute: str,
    second: str,
    fraction: str | None = None,
    *,
    zone_s: int | None = None,
    drifts: bool = False,
    boot_ns: int | None = None,
) -> Stamp | None:
    """A Stamp from the digits of a date and a time of day; None if there is no such moment. 60 is a leap second."""
    start = _minute_ns(year or "1972", str(month_), day, hour, minute)
    if start is None or int(second) > 60:
        return None
    ns = start + int(second) * SECOND
    unit = SECOND
    if fraction:
        unit = _UNIT[len(fraction)]
        ns += int(fraction) * unit
    return Stamp(
        wall_ns=ns, has_year=year is not None, zone_s=zone_s, boot_ns=boot_ns, resolution_ns=unit, drifts=drifts
    )


_TIME = r"(\d\d):(\d\d):(\d\d)"
_FRACTION = r"(?:[.,](\d{1,9})\d*)?"
MONTH_NAME: Final = r"[^\W\d_]{2,12}\.?|\d{1,2}[月월]"
ISO: Final = re.compile(
    rf"(\d{{4}})[-/](\d\d)[-/](\d\d)[T ]{_TIME}{_FRACTION}"
    r"(?:(Z|[+-]\d\d(?::?\d\d)?|(?: (?:UTC|GMT|Z|[+-]\d\d:?\d\d)))(?![\w:.-]))?",
    re.ASCII,
)
WEEKDAY_ISO: Final = re.compile(
    rf"[^\W\d_]{{2,4}} (\d{{4}})-(\d\d)-(\d\d) {_TIME}{_FRACTION}(?: ([A-Z]{{1,5}}|[+-]\d\d(?:\d\d)?)(?![\w:]))?"
)
CTIME: Final = re.compile(rf"\S{{1,12}} {{1,3}}({MONTH_NAME}) {{1,2}}(\d{{1,2}}) {_TIME} (\d{{4}})(?!\d)")
SYSLOG: Final = re.compile(rf" ?({MONTH_NAME}) {{1,2}}(\d{{1,2}}) (?:(\d{{4}}) )?{_TIME}(?:\.(\d{{1,9}})\d*)?(?![\d:])")
UNIX: Final = re.compile(r"(\d{9,10})\.(\d{3,9})(?![\d.])", re.ASCII)
BOOT: Final = re.compile(r"\[ *(\d{1,10})\.(\d{6})(?: <[ \d.]{1,20}>)?\]", re.ASCII)
GLOG: Final = re.compile(rf"([EWIFCD])(\d{{3,4}}) {_TIME}\.(\d{{6,9}})(?!\d)", re.ASCII)
SLASHED: Final = re.compile(
    rf"(\d\d)/(\d\d)(?:/(\d{{4}}|\d\d))?(?: \||,)? {_TIME}(?:[.,](\d{{1,9}}))?"
    r"(?: ([AP]M))?(?: ([A-Z]{3,5})(?![\w]))?",
    re.ASCII,
)
DASHED: Final = re.compile(rf"(\d\d)-(\d\d) {_TIME}(?:[.,](\d{{1,9}}))?(?!\d)", re.ASCII)
Found = tuple[Stamp, int]
_CLASSIC: dict[str, Stamp] = {}
"""'Mar  4 10:19:54' → its Stamp: hits come in bursts within a second."""


def iso(text: str, at: int = 0) -> Found | None:
    """'2026-03-04T10:19:54,567013+01:00' and its kin: T or blank, point or comma, with or without an offset."""
    m = ISO.match(text, at)
    if m is None:
        return None
    year, month_, day, hour, minute, second, fraction, offset = m.groups()
    stamp = wall(
        year, month_, day, hour, minute, second, fraction, zone_s=zone(offset.lstrip()) if offset is not None else None
    )
    return None if stamp is None else (stamp, m.end())


def weekday_iso(text: str, at: int = 0) -> Found | None:
    """'Wed 2026-03-04 10:19:54.567013 UTC' (journalctl short-full, with-unit, verbose)."""
    m = WEEKDAY_ISO.match(text, at)
    if m is None:
        return None
    year, month_, day, hour, minute, second, fraction, name = m.groups()
    stamp = wall(year, month_, day, hour, minute, second, fraction, zone_s=zone(name) if name else None)
    return None if stamp is None else (stamp, m.end())


def ctime(text: str, at: int = 0, *, drifts: bool = False) -> Found | None:
    """'Wed Mar  4 10:19:54 2026', in any language of MONTHS."""
    m = CTIME.match(text, at)
    if m is None or (number := month(m[1])) is None:
        return None
    stamp = wall(m[6], number, m[2], m[3], m[4], m[5], drifts=drifts)
    return None if stamp is None else (stamp, m.end())


def syslog(text: str, at: int = 0) -> Found | None:
    """'Mar  4 10:19:54' (RFC 3164), 'März 04 10:19:54.567013' (journalctl), 'Jul 23 2024 07:53:55' (fabric manager)."""
    classic = text[at : at + 15]
    if (known := _CLASSIC.get(classic)) is not None and text.startswith(" ", at + 15):
        return known, at + 15
    m = SYSLOG.match(text, at)
    if m is None or (number := month(m[1])) is None:
        return None
    stamp = wall(m[3], number, m[2], m[4], m[5], m[6], m[7])
    if stamp is None:
        return None
    if m[0] == classic:
        if len(_CLASSIC) > 4096:
            _CLASSIC.clear()
        _CLASSIC[classic] = stamp
    return stamp, m.end()


def unix(text: str, at: int = 0) -> Found | None:
    """'1772619594.567013': seconds since 1970, UTC."""
    m = UNIX.match(text, at)
    if m is None:
        return None
    unit = _UNIT[len(m[2])]
    return Stamp(wall_ns=int(m[1]) * SECOND + int(m[2]) * unit, zone_s=0, resolution_ns=unit), m.end()


def boot(text: str, at: int = 0) -> Found | None:
    """'[191234.567013]': printk's seconds since boot."""
    m = BOOT.match(text, at)
    return None if m is None else (Stamp(boot_ns=int(m[1]) * SECOND + int(m[2]) * 1000), m.end())


def glog(text: str, at: int = 0) -> Found | None:
    """'E321 10:21:33.000421007': month * 100 + day, local time, no year (c10 from torch 2.4, glog, absl, klog)."""
    m = GLOG.match(text, at)
    if m is None:
        return None
    stamp = wall(None, m[2][:-2], m[2][-2:], m[3], m[4], m[5], m[6])
    return None if stamp is None else (stamp, m.end())


def slashed(text: str, at: int = 0) -> Found | None:
    """'08/22 14:35:16', '05/28/2024 10:11:12', '03/04/26 10:19:54', '09/17/2026 | 11:31:42 PM UTC': month first, unless
    that cannot be (a judgement: the loggers that write this do so in the C or US locale)."""
    m = SLASHED.match(text, at)
    if m is None:
        return None
    month_, day, year, hour, minute, second, fraction, half, name = m.groups()
    if int(month_) > 12:
        month_, day = day, month_
    if year is not None and len(year) == 2:
        year = "20" + year
    if half is not None:
        if not 1 <= int(hour) <= 12:
            return None
        hour = f"{int(hour) % 12 + (12 if half == 'PM' else 0):02}"
    known = zone(name) if name else None
    stamp = wall(year, month_, day, hour, minute, second, fraction, zone_s=known)
    if stamp is None:
        return None
    return stamp, m.start(9) - 1 if name and name not in ZONES else m.end()


def dashed(text: str, at: int = 0) -> Found | None:
    """'01-29 08:52:43': month and day (vLLM)."""
    m = DASHED.match(text, at)
    if m is None:
        return None
    stamp = wall(None, *m.groups())
    return None if stamp is None else (stamp, m.end())


def epoch(value: object) -> Stamp | None:
    """A number (or digits) since 1970 in s, ms, µs or ns, told apart by its size (UTC); or a written time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if _EPOCH_DIGITS.fullmatch(value):
            return _since_1970(value)
        found = parse(value)
        return found[0] if found else None
    if isinstance(value, int | float) and 1e8 <= value < 1e20:
        return _since_1970(str(value) if isinstance(value, int) else f"{value:.6f}")
    return None


_EPOCH_DIGITS: Final = re.compile(r"\d{9,19}(?:\.\d{1,9})?", re.ASCII)


def _since_1970(number: str) -> Stamp:
    """Digits, with or without decimals, since 1970."""
    whole, _, fraction = number.partition(".")
    digits = len(whole)
    unit = SECOND if digits <= 11 else 1_000_000 if digits <= 14 else 1000 if digits <= 17 else 1
    ns = int(whole) * unit
    if fraction and unit == SECOND:
        unit = _UNIT[len(fraction)]
        ns += int(fraction) * unit
    elif fraction:
        ns += int(fraction) * unit // 10 ** len(fraction)
    return Stamp(wall_ns=ns, zone_s=0, resolution_ns=unit)


_ANY: Final = (iso, weekday_iso, ctime, syslog, glog, unix, slashed, dashed)


def parse(text: str | bytes) -> Found | None:
    """The stamp that `text` starts with, and how many characters (bytes for bytes) it takes; None if there is none.

    A pair of brackets around it is taken too: '[2026-04-22 21:34:20]', '[Wed Mar  4 10:19:54 2026]', '[  12.345678]'.
    """
    if isinstance(text, bytes):
        written = text[:200].decode("utf-8", "surrogateescape")
        found = parse(written)
        return None if found is None else (found[0], len(written[: found[1]].encode("utf-8", "surrogateescape")))
    if text.startswith("["):
        if (found := boot(text)) is not None:
            return found
        for read in _ANY:
            if (found := read(text, 1)) is not None and text.startswith("]", found[1]):
                return found[0], found[1] + 1
        return None
    for read in _ANY:
        if (found := read(text)) is not None:
            return found
    return None


_CLOCK = re.compile(r"(?<!\d)(\d{1,2})[:.h时](\d\d)[:.m分](\d\d)(?:[.,](\d{1,9}))?")
_YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?=年|년|\D|$)")
_MONTH_NUMBER = re.compile(r"(?<!\d)(\d{1,2}) ?[月월]")
_DAY_NUMBER = re.compile(r"(?<!\d)(\d{1,2}) ?[日일]|(?<![\d:.])(\d{1,2})(?![\d:])")
_WORD = re.compile(r"[^\W\d_]{2,12}")
_AFTERNOON = re.compile(r"\b[Pp]\.?[Mm]\b|下午|午後|오후")
_MORNING = re.compile(r"\b[Aa]\.?[Mm]\b|上午|午前|오전")
_KOREAN = re.compile(r"(\d{4})\. ?(\d{1,2})\. ?(\d{1,2})\.")
_OFFSET = re.compile(r"(?:^|\s)([A-Z]{2,5}|[+-]\d\d(?::?\d\d)?)(?=\s|$)")


def parse_date_line(text: str | bytes) -> Stamp | None:
    """What `date` printed in the user's language, or the full time in an `ls --full-time` line.

    'Di 19. Mai 09:58:01 CEST 2026', '2019年 11月 16日 星期六 13:31:02 CST', 'Sat Sep 13 09:50:48 AM UTC 2025'. None if
    no year, month, day or time of day can be made out.
    """
    if isinstance(text, bytes):
        text = text[:400].decode("utf-8", "replace")
    text = text[:400]
    if written := ISO.search(text):
        found = iso(text, written.start())
        return found[0] if found else None
    clock, year = _CLOCK.search(text), _YEAR.search(text)
    if clock is None or year is None:
        return None
    rest = f"{text[: clock.start()]} | {text[clock.end() :]}"
    month_, day = _month_and_day(rest)
    if month_ is None or day is None:
        return None
    hour = _hour_of_day(int(clock[1]), text)
    return wall(year[1], month_, day, f"{hour:02}", clock[2], clock[3], clock[4], zone_s=_offset_s(rest))


def _hour_of_day(hour: int, text: str) -> int:
    """0 … 23, where `text` may say in some language that it is morning or afternoon."""
    if _AFTERNOON.search(text) and 1 <= hour <= 12:
        return hour % 12 + 12
    if _MORNING.search(text) and hour == 12:
        return 0
    return hour


def _month_and_day(text: str) -> tuple[int | None, str | None]:
    """Month and day in what `date` printed, without the time of day; None for what cannot be made out."""
    if dotted := _KOREAN.search(text):
        return int(dotted[2]), dotted[3]
    numbered = _MONTH_NUMBER.search(text)
    days = [m[1] or m[2] for m in _DAY_NUMBER.finditer(text) if not numbered or m.start() != numbered.start()]
    day = days[0] if days else None
    if numbered:
        return int(numbered[1]), day
    # A weekday may be spelt like a month ('mar' is Tuesday in Spanish): the last name that is a month is the month.
    names = [n for word in _WORD.findall(text) if (n := month(word))]
    return names[-1] if names else None, day


def _offset_s(text: str) -> int | None:
    """Seconds east of UTC by the last word of `text` that may name a zone."""
    named = [x for x in _OFFSET.findall(text) if x not in ("AM", "PM")]
    return zone(named[-1]) if named else None


COLLECTED_NS: Final = 60 * SECOND
"""How long after the program a collector may have stamped a line whose two stamps tell a zone. Our judgement."""
QUARTER: Final = 900 * SECOND
"""All zones in use lie on whole quarters of an hour."""
IN_USE_S: Final = tuple(
    sorted(
        [hour * 3600 for hour in range(-12, 15)]
        + [round(h * 3600) for h in (-9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75)]
    )
)
"""Seconds east of UTC of the zones in which any place is today, summer times among them (IANA tzdata 2025)."""


def east_of(local_ns: int, utc_ns: int, within_ns: int) -> int | None:
    """How far east of UTC (ns) a clock is that read `local_ns` then, give or take `within_ns`; None: no zone fits."""
    east = round((local_ns - utc_ns) / QUARTER) * QUARTER
    return east if abs(local_ns - utc_ns - east) <= within_ns else None


def is_in_use(east_ns: int) -> bool:
    """Is any place in such a zone?"""
    return east_ns % SECOND == 0 and east_ns // SECOND in IN_USE_S


def in_zone_of(inner: Stamp, outer: Stamp | None) -> Stamp:
    """The program's stamp with the zone and the year that the collector's own, on the same line, proves."""
    unproved = inner.zone_s is None and inner.wall_ns is not None and not inner.drifts
    if not unproved or inner.wall_ns is None or outer is None or outer.wall_ns is None or outer.zone_s is None:
        return inner
    if not outer.has_year:
        return inner
    utc_ns = outer.wall_ns - outer.zone_s * SECOND
    wall_ns = inner.wall_ns if inner.has_year else in_year_near(inner.wall_ns, utc_ns)
    east_ns = east_of(wall_ns, utc_ns, COLLECTED_NS)
    if east_ns is None or not is_in_use(east_ns):
        return inner
    return replace(inner, wall_ns=wall_ns, has_year=True, zone_s=east_ns // SECOND)


def with_year(wall_ns: int, year: int) -> int:
    """The same month, day and time of day in another year; 29 February becomes 1 March where there is none."""
    seconds, rest = divmod(wall_ns, SECOND)
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    try:
        moved = moment.replace(year=year)
    except ValueError:
        moved = moment.replace(year=year, month=3, day=1)
    return int(moved.timestamp()) * SECOND + rest


def in_year_near(wall_ns: int, near_ns: int) -> int:
    """A time that was written without its year, in the year that brings it nearest to a moment."""
    year = datetime.fromtimestamp(near_ns // SECOND, timezone.utc).year
    return min((with_year(wall_ns, year + by) for by in (-1, 0, 1)), key=lambda ns: abs(ns - near_ns))
