"""The scanner: the same lines from every engine, and from a model that splits the whole text at once."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nccl_forensics import scan
from nccl_forensics.plugins import parsers
from nccl_forensics.scan import (
    LONGEST,
    NEIGHBOURS,
    REGION,
    Line,
    Matcher,
    Scanner,
    hyperscan_matcher,
    re_matcher,
    visible,
)

LITERALS = (b"Xid (", b"NVRM: Xid", b"NVRM: ", b"abcd", b"bcde", b"aaaa", b"aaaaaa", b"[rank")
"""One inside another, one that overlaps itself, two that overlap each other."""
Engine = Callable[[Sequence[bytes]], Matcher]


def _hyperscan(literals: Sequence[bytes]) -> Matcher:
    made = hyperscan_matcher(literals)
    if made is None:
        pytest.skip("no hyperscan here")
    return made


ENGINES = {"hyperscan": _hyperscan, "re": re_matcher}
engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
Row = tuple[int, bytes, frozenset[bytes]]


def model(text: bytes, literals: Sequence[bytes] = LITERALS) -> list[Row]:
    """(line number, line, literals in it): lines end at \\n or \\r, numbers count \\n."""
    found, number = [], 1
    for piece in re.split(rb"([\r\n])", text):
        if piece == b"\n":
            number += 1
        elif hits := frozenset(x for x in literals if x in piece):
            found.append((number, piece, hits))
    return found


class Trickle(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__()
        self.data, self.step, self.at = memoryview(data), step, 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        got = self.data[self.at : self.at + min(self.step, len(into))]
        into[: len(got)] = got
        self.at += len(got)
        return len(got)


class OnlyRead:
    """A stream with nothing but read()."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self.inner.read(size)


def rows(engine: Engine, text: bytes, literals: Sequence[bytes] = LITERALS) -> list[Row]:
    return [(x.number, x.raw, x.hits) for x in Scanner(literals, engine).lines("f", io.BytesIO(text))]


PIECES = st.sampled_from(
    [*LITERALS, b"\n", b"\r", b"\r\n", b"\n\n", b"a", b"x", b" ", b"\0", b"\xff\xfe", b"NVRM: Xi", b"aaa"]
)
TEXTS = st.lists(PIECES, max_size=60).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
@example(b"")
@example(b"\r\n")
@example(b"aaaaaaaaaa")
@example(b"abcde\rabcd")
@example(b"NVRM: Xid (\nNVRM: Xid (")
def test_engines_agree_with_each_other_and_with_the_model(text: bytes) -> None:
    wanted = model(text)
    assert rows(re_matcher, text) == wanted
    if hyperscan_matcher([b"abcd"]) is not None:
        assert rows(_hyperscan, text) == wanted


@settings(max_examples=40, deadline=None)
@given(TEXTS, st.integers(1, 40))
def test_a_slow_pipe_gives_the_same_lines(text: bytes, step: int) -> None:
    scanner = Scanner(LITERALS)
    found = [(x.number, x.raw, x.hits) for x in scanner.lines("f", Trickle(text, step))]  # type: ignore[arg-type]
    assert found == model(text)


def test_a_stream_without_readinto() -> None:
    text = b"NVRM: Xid (1)\n" * 3
    found = list(Scanner(LITERALS).lines("f", OnlyRead(text)))  # type: ignore[arg-type]
    assert [x.number for x in found] == [1, 2, 3]


# --- borders: a small region makes many of them ----------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Regions of 64 bytes with 32 bytes of neighbours, lines looked at for 24 bytes."""
    monkeypatch.setattr(scan, "NEIGHBOURS", 32)
    monkeypatch.setattr(scan, "REGION", 64)
    monkeypatch.setattr(scan, "LONGEST", 24)
    monkeypatch.setattr(scan.Window.__init__, "__defaults__", (32 + 64 + 32,))
    return 24


@engines
def test_lines_shorter_than_a_region_are_whole_wherever_the_border_falls(engine: Engine, small: int) -> None:
    for shift in range(130):
        for end in (b"\n", b"\r", b"\r\n"):
            text = b"." * shift + end + end.join([b"one abcd 1", b"nothing", b"two Xid ( 2", b"", b"three bcde"]) + end
            assert rows(engine, text) == model(text), (shift, end)


@engines
def test_a_literal_across_a_border_is_found_once(engine: Engine, small: int) -> None:
    for shift in range(200):
        text = b"\n" + b"." * shift + b"NVRM: Xid" + b"." * 200 + b"\nabcd\n"
        found = [hit for _, _, hits in rows(engine, text) for hit in hits]
        assert sorted(found) == [b"NVRM: ", b"NVRM: Xid", b"abcd"], shift


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([b"abcd", b"bcde", b"Xid (", b"...", b"\n", b"\n", b"\r\n"]), max_size=90).map(b"".join)
)
def test_random_text_over_many_borders(text: bytes) -> None:
    text = re.sub(rb"[^\r\n]{20}", lambda m: m[0] + b"\n", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "NEIGHBOURS", 32)
        patch.setattr(scan, "REGION", 64)
        patch.setattr(scan.Window.__init__, "__defaults__", (128,))
        assert rows(re_matcher, text) == model(text)


@engines
def test_real_borders(engine: Engine) -> None:
    """A hit in every 1,000th line of 3 MB, numbers included, and one line across the first border."""
    line = b"x" * 88 + b"\n"
    every = b"NVRM: Xid (PCI:0000:c1:00): 79\n"
    text = b"".join(every if n % 1000 == 0 else line for n in range(35_000))
    border = NEIGHBOURS + REGION
    text = text[: border - 10] + b"\n" + b"abcd" * 4 + b"\n" + text[border:]
    assert rows(engine, text) == model(text)


@engines
def test_a_very_long_line_is_cut_on_both_sides_and_counted_once(engine: Engine) -> None:
    text = b"y" * 50_000 + b" NVRM: Xid ( " + b"z" * 50_000 + b"\nabcd\n"
    long, short = rows(engine, text)
    assert long[0] == 1
    assert b"NVRM: Xid ( " in long[1]
    assert LONGEST <= len(long[1]) <= 2 * LONGEST
    assert short == (2, b"abcd", frozenset({b"abcd"}))


@engines
def test_megabytes_without_a_line_end(engine: Engine) -> None:
    text = (b"w" * 400_000 + b"abcd") * 8
    found = rows(engine, text)
    assert [n for n, _, _ in found] == [1] * 8
    assert all(len(raw) <= 2 * LONGEST for _, raw, _ in found)


def test_the_buffer_does_not_grow_with_the_file() -> None:
    sizes = set()
    for line in Scanner(LITERALS).lines("f", io.BytesIO((b"q" * 99 + b"\nabcd\n") * 40_000)):
        sizes.add(len(line.window.buffer))
    assert sizes == {NEIGHBOURS + REGION + NEIGHBOURS}


# --- a line and its neighbours ----------------------------------------------------------------------------------------


def only(text: bytes) -> Iterator[Line]:
    return Scanner(LITERALS).lines("f", io.BytesIO(text))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_neighbours(end: bytes) -> None:
    text = end.join([b"one", b"two", b"", b"four abcd", b"five", b"", b"seven"])
    (line,) = only(text)
    numbers = [1] * 7 if end == b"\r" else [1, 2, 3, 4, 5, 6, 7]
    assert line.number == numbers[3]
    assert [x.raw for x in line.before(9)] == [b"", b"two", b"one"]
    assert [x.number for x in line.before(9)] == numbers[2::-1]
    assert [x.raw for x in line.after(9)] == [b"five", b"", b"seven"]
    assert [x.number for x in line.after(9)] == numbers[4:]
    assert [x.raw for x in line.before(1)] == [b""]
    assert [x.raw for x in line.after(1)] == [b"five"]


def test_neighbours_at_the_ends_of_a_file() -> None:
    (line,) = only(b"abcd")
    assert line.before(3) == []
    assert line.after(3) == []
    (line,) = only(b"abcd\n")
    assert line.after(3) == []


def test_neighbours_on_the_other_side_of_a_border() -> None:
    filler = b"." * 99 + b"\n"
    text = filler * ((NEIGHBOURS + REGION) // 100) + b"the one before\nabcd\nthe one after\n" + filler * 2000
    (line,) = only(text)
    assert line.before(1)[0].raw.endswith(b"the one before")
    assert line.after(1)[0].raw == b"the one after"


def test_a_detached_line_stays_good_and_has_no_neighbours() -> None:
    kept = []
    text = b"".join(b"before %d\nabcd %d\nafter\n" % (n, n) + b"." * 70_000 + b"\n" for n in range(40))
    for line in only(text):
        kept.append(line.detached())
    assert [x.raw for x in kept] == [b"abcd %d" % n for n in range(40)]
    assert [x.number for x in kept] == [2 + 4 * n for n in range(40)]
    assert all(x.text == f"abcd {n}" for n, x in enumerate(kept))
    assert all(x.hits == {b"abcd"} for x in kept)
    assert kept[3].before(3) == []
    assert kept[3].after(3) == []
    assert kept[0].evidence().before == ()


def test_evidence_is_visible_and_cut() -> None:
    text = b"before\x1b[31m\n" + b"abcd \x1b]0;x\x07 \xff " + "\u202egpj.exe ".encode() + b"k" * 3000 + b"\nafter\x00\n"
    (line,) = only(text)
    shown = line.evidence()
    assert shown.line == 2
    assert len(shown.text) <= scan.SHOWN + 40
    assert shown.before == ("before\\x1b[31m",)
    assert shown.after == ("after\\x00",)
    for bad in "\x1b\x07\u202e\x00":
        assert bad not in shown.text + "".join(shown.before + shown.after)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttab", "plain\ttab"),
        ("\x00\x7f\x9f", "\\x00\\x7f\\x9f"),
        ("\u200b\u202e\ufeff", "\\u200b\\u202e\\ufeff"),
        ("é ü 中", "é ü 中"),
        ("a" * 2001, "a" * 1999 + "…"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@engines
def test_the_literals_of_all_parsers(engine: Engine) -> None:
    """Seven at a time glued behind each other: the engines see the same ones."""
    literals = sorted(parsers().by_literal)
    text = b"\n".join(b"".join(literals[n : n + 7]) for n in range(0, len(literals), 3))
    assert rows(engine, text, literals) == model(text, literals)
