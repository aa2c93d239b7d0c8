"""The scanner: the same lines from every engine, and from a model that splits the whole text at once."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nccl_forensics.lines import flood as floods
from nccl_forensics.lines import matchers, scan, window
from nccl_forensics.lines import read as reading
from nccl_forensics.lines.line import Line
from nccl_forensics.lines.matchers import Matcher, hyperscan_matcher, re_matcher
from nccl_forensics.lines.plugins import parsers
from nccl_forensics.lines.read import Parsed
from nccl_forensics.lines.scan import Often, Scanner
from nccl_forensics.lines.window import LONGEST, NEIGHBOURS, REGION
from nccl_forensics.text.visible import CONTEXT, SHOWN, visible

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
    monkeypatch.setattr(window, "LONGEST", 24)
    monkeypatch.setattr(window.Window.__init__, "__defaults__", (32 + 64 + 32,))
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
        patch.setattr(window.Window.__init__, "__defaults__", (128,))
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
    assert len(shown.text) <= SHOWN + 40
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


# --- lines of progress, which can be all lines of a file --------------------------------------------------------------

OFTEN = (b"step ", b"loss", b"it/s")
ALL = (*LITERALS, *OFTEN)


def plain_model(text: bytes, first: int, last: int) -> list[Row]:
    """All lines with another literal and the first ones of progress, in order; behind them its last ones."""
    whole = model(text, ALL)
    pulses = [x for x in whole if x[2] <= set(OFTEN)]
    early, late = pulses[:first], pulses[first:]
    return [x for x in whole if not x[2] <= set(OFTEN) or x in early] + late[max(0, len(late) - last) :]


def pulse_rows(engine: Engine, text: bytes, first: int, last: int) -> list[Row]:
    scanner = Scanner(ALL, engine)
    often = Often(frozenset(OFTEN), first, last)
    return [(x.number, x.raw, x.hits) for x in scanner.lines("f", io.BytesIO(text), often)]


def numbered(*parts: tuple[bytes, int]) -> bytes:
    """`times` lines of each kind, no two alike: %d is their number."""
    lines = [line for line, times in parts for _ in range(times)]
    return b"".join(line % n for n, line in enumerate(lines))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of 512 bytes, pieces of 64, four regions that wait."""
    monkeypatch.setattr(scan, "NEIGHBOURS", 64)
    monkeypatch.setattr(scan, "PIECE", 64)
    monkeypatch.setattr(scan, "BACKLOG", 4)
    monkeypatch.setattr(window.Window.__init__, "__defaults__", (64 + 512 + 64,))


PULSE, QUIET, HIT, BOTH = b"step %d\n", b"word %d\n", b"NVRM: Xid (%d\n", b"Xid (%d at 3 it/s\n"
LOGS = {
    "nothing but progress": ((PULSE, 900),),
    "progress, then silence": ((PULSE, 900), (QUIET, 900)),
    "progress, then other things": ((PULSE, 500), (HIT, 700)),
    "silence, then progress": ((QUIET, 400), (PULSE, 900)),
    "dense, sparse, dense": ((PULSE, 400), (QUIET, 300), (PULSE, 3), (QUIET, 300), (PULSE, 400)),
    "a last one, far behind": ((PULSE, 400), (QUIET, 900), (PULSE, 1), (QUIET, 900)),
    "redrawn": ((b"\r%d it/s", 900), (b"\nloss %d\n", 3)),
    "lines with both": ((PULSE, 300), (BOTH, 5), (PULSE, 300), (BOTH, 200), (PULSE, 5)),
    "crlf": ((b"loss %d\r\n", 700), (b"Xid (%d\r\n", 9), (b"loss %d\r\n", 7)),
}


@engines
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize(("first", "last"), [(0, 5), (3, 20), (20, 1), (7, 0), (5000, 5)])
def test_progress_is_given_at_both_ends(engine: Engine, log: str, first: int, last: int, short: None) -> None:
    text = numbered(*LOGS[log])
    assert pulse_rows(engine, text, first, last) == plain_model(text, first, last)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([PULSE, QUIET, HIT, BOTH, b"\r%d it/s"]), st.integers(1, 150)), max_size=12),
    st.integers(0, 9),
    st.integers(0, 30),
)
def test_progress_in_random_logs(parts: list[tuple[bytes, int]], first: int, last: int) -> None:
    text = numbered(*parts)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("NEIGHBOURS", 64), ("PIECE", 64), ("BACKLOG", 3)):
            patch.setattr(scan, name, value)
        patch.setattr(window.Window.__init__, "__defaults__", (64 + 512 + 64,))
        assert pulse_rows(re_matcher, text, first, last) == plain_model(text, first, last)


@engines
def test_progress_over_real_borders(engine: Engine) -> None:
    text = numbered((PULSE, 3000), (b"step %d" + b"." * 280 + b"\n", 12_000), (HIT, 2), (QUIET, 30_000), (PULSE, 3))
    assert pulse_rows(engine, text, 10, 800) == plain_model(text, 10, 800)


def test_early_progress_has_neighbours_and_late_progress_has_none(short: None) -> None:
    text = numbered((PULSE, 300))
    found = list(Scanner(ALL).lines("f", io.BytesIO(text), Often(frozenset(OFTEN), 3, 2)))
    assert [x.raw for x in found] == [b"step 0", b"step 1", b"step 2", b"step 298", b"step 299"]
    assert found[-1].before(2) == []
    assert found[-1].text == "step 299"


# --- many literals, many bytes, many threads --------------------------------------------------------------------------


def test_groups_of_literals_find_what_one_database_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    literals = sorted({b"lit%04d" % n for n in range(0, 900, 3)} | {b"word", b"ordi", b"lit0"})
    text = b"\n".join(b"x lit%04d word lit0%03d ordi wordi" % (n, n) for n in range(900))
    wanted = model(text, literals)
    for group, grouped_bytes in ((1000, 0), (40, 1 << 30), (40, 0), (7, 5000)):
        monkeypatch.setattr(matchers, "GROUP", group)
        monkeypatch.setattr(matchers, "GROUPED_BYTES", grouped_bytes)
        assert rows(_hyperscan, text, literals) == wanted, (group, grouped_bytes)


def test_line_numbers_stay_when_numpy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(b"x" * (n % 90) + b"\n" + (b"abcd\r\n" if n % 700 == 0 else b"") for n in range(20_000))
    wanted = rows(re_matcher, text)
    monkeypatch.setattr(scan, "COUNTED_BYTES", 0)
    assert rows(re_matcher, text) == wanted == model(text)


@engines
def test_threads_share_a_scanner(engine: Engine) -> None:
    texts = [numbered((QUIET, 2000 + n), (HIT, 40), (PULSE, 900), (BOTH, 9)) for n in range(6)]
    scanner = Scanner(ALL, engine)
    often = Often(frozenset(OFTEN), 5, 50)

    def read(text: bytes) -> list[Row]:
        return [(x.number, x.raw, x.hits) for x in scanner.lines("f", io.BytesIO(text), often)]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read, texts)) == [plain_model(x, 5, 50) for x in texts]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\n\r"])
@pytest.mark.parametrize("length", [0, 3, 200, 600, 20_000])
def test_evidence_shows_the_neighbours_that_a_line_has(end: bytes, length: int) -> None:
    """The quick way to the neighbours gives what `before` and `after` give."""
    for place in range(9):
        pieces = [b"%d" % n + b"." * length for n in range(9)]
        pieces[place] += b" abcd"
        (line,) = only(end.join(pieces))
        shown = line.evidence()
        assert shown.before == tuple(visible(x.raw.decode())[:300] for x in reversed(line.before(CONTEXT)))
        assert shown.after == tuple(visible(x.raw.decode())[:300] for x in line.after(CONTEXT))


# --- floods: what is read of many lines that are alike, and that nothing else is lost among them ---------------------

XID = "Nov 25 10:00:00 n1 kernel: [{n}.000000] NVRM: Xid (PCI:0000:c1:00): {code}, {says}\n"
FLOOD, WORDED, LAST = 50, 5, 10


@pytest.fixture
def few_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floods, "FLOOD", FLOOD)
    monkeypatch.setattr(floods, "FLOOD_WORDED", WORDED)
    monkeypatch.setattr(floods, "FLOOD_LAST", LAST)


def read(*lines: str) -> Parsed:
    (parsed,) = reading.read(["-"], stdin=io.BytesIO("".join(lines).encode()))
    return parsed


def xids(parsed: Parsed) -> list[tuple[int | None, object]]:
    return [(e.evidence.line, e.details["xid"]) for e in parsed.events if e.kind == "xid"]


def flood(times: int, code: int = 13, says: str = "pid=1, Graphics Exception: ESR 0x{n:x}") -> list[str]:
    return [XID.format(n=n + 1000, code=code, says=says.format(n=n)) for n in range(times)]


@pytest.mark.usefixtures("few_of_a_kind")
def test_both_ends_of_a_flood_are_read_and_the_rest_is_counted() -> None:
    parsed = read(*flood(500))
    assert [n for n, _ in xids(parsed)] == [*range(1, FLOOD + WORDED + 1), *range(491, 501)]
    (problem,) = parsed.problems
    assert problem.says.startswith(f"{500 - FLOOD - WORDED - LAST} more lines with ")
    assert "Xid (" in problem.says


@pytest.mark.usefixtures("few_of_a_kind")
@pytest.mark.parametrize("times", [FLOOD, FLOOD + WORDED, FLOOD + WORDED + LAST])
def test_what_is_not_quite_a_flood_is_read_whole(times: int) -> None:
    parsed = read(*flood(times))
    assert [n for n, _ in xids(parsed)] == [*range(1, times + 1)]
    assert parsed.problems == ()


@pytest.mark.usefixtures("few_of_a_kind")
def test_another_message_in_the_middle_of_a_flood_is_read() -> None:
    other = XID.format(n=1250, code=48, says="pid='<unknown>', name=<unknown>, An uncorrectable double bit error")
    parsed = read(*flood(250), other, *flood(250))
    assert (251, 48) in xids(parsed)


@pytest.mark.usefixtures("few_of_a_kind")
def test_a_line_with_another_literal_in_the_middle_of_a_flood_is_read() -> None:
    other = XID.format(n=1250, code=79, says="GPU has fallen off the bus.")
    parsed = read(*flood(250), other, *flood(250))
    assert (251, 79) in xids(parsed)


@pytest.mark.usefixtures("few_of_a_kind")
def test_lines_that_never_tell_anything_are_read_at_both_ends_only() -> None:
    noise = [f"the words {chr(97 + n % 26) * (n // 26 + 1)} and Xid ( in prose\n" for n in range(400)]
    told = XID.format(n=1, code=31, says="pid=1, MMU Fault")
    parsed = read(*noise, told)
    assert xids(parsed) == [(401, 31)]
    assert any("more lines with 'Xid ('" in p.says for p in parsed.problems)


@pytest.mark.usefixtures("few_of_a_kind")
def test_a_hostile_flood_of_long_lines_waits_in_little_memory() -> None:
    lines = [f"{'z' * 9000} Xid ( {n}\n" for n in range(FLOOD + 400)]
    parsed = read(*lines)
    assert xids(parsed) == []
    (problem,) = parsed.problems
    assert problem.says.startswith("400 more lines with 'Xid ('")


# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_give_the_same_in_the_same_order(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(12):
        text = "".join(flood(5 * n + 1, code=13 + n)).encode()
        name = tmp_path / f"{n:02}.log"
        name.write_bytes(text)
        name.with_suffix(".log.gz").write_bytes(gzip.compress(text))
    (tmp_path / "empty.log").write_bytes(b"")
    monkeypatch.setattr(reading, "SHARED_BYTES", 0)
    told: list[str] = []
    alone = reading.read([str(tmp_path)])
    shared = reading.read([str(tmp_path)], workers=workers, progress=lambda path, _: told.append(path))
    assert shared == alone
    assert sorted(told) == sorted(p.row.path for p in alone)
    assert len(alone) == 25


def test_a_fault_in_one_worker_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        (tmp_path / f"{n}.log").write_text("".join(flood(3)))
    monkeypatch.setattr(reading, "SHARED_BYTES", 0)

    def broken(*_: object) -> Parsed:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(reading, "read_source", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        reading.read([str(tmp_path)], workers=2)
