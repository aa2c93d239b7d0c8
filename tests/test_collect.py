"""collect: what is in a pile, what came out of it, and what is said about the rest. Everything is made in tmp_path."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import re
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import RECORDED

sys.path.insert(0, str(Path(__file__).parent))

from hostile import PILE, TEXT, members, plain_tar, plain_zip, tar, tar_header, tar_member, write, zstd

from nccl_forensics.errors import InputError
from nccl_forensics.intake import walk
from nccl_forensics.intake.limits import Limits, option
from nccl_forensics.intake.readers import Source
from nccl_forensics.intake.walk import collect, files, sources

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")


def drain(source: Source, piece: int = 1 << 16) -> bytes:
    """All of a source, by readinto."""
    assert source.stream is not None
    buffer, whole = bytearray(piece), bytearray()
    while n := source.stream.readinto(buffer):  # type: ignore[attr-defined]
        whole += buffer[:n]
    return bytes(whole)


Row = tuple[str, str, "bytes | None", "str | None"]


def rows(*paths: str | Path, root: Path | None = None, **more: object) -> list[Row]:
    """(path below `root`, status, bytes or None, reason) of everything in the pile."""
    found: list[Row] = []
    for source in collect(list(paths), **more):  # type: ignore[arg-type]
        data = None if source.stream is None else drain(source)
        path = source.path.removeprefix(f"{root}{os.sep}") if root else source.path
        found.append((path, source.status, data, source.reason))
    return found


def one(data: bytes, folder: Path, name: str = "x", **more: object) -> Row:
    (folder / name).write_bytes(data)
    found = rows(folder / name, root=folder, **more)
    assert len(found) == 1, found
    return found[0]


# --- formats --------------------------------------------------------------------------------------------------------

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gz": lambda data: gzip.compress(data, mtime=0),
    "gz-members": lambda data: members(data, 7),
    "bz2": bz2.compress,
    "bz2-streams": lambda data: bz2.compress(data[:999]) + bz2.compress(data[999:]),
    "xz": lzma.compress,
    "xz-streams": lambda data: lzma.compress(data[:999]) + bytes(8) + lzma.compress(data[999:]),
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    "zst": zstd,
    "zst-frames": lambda data: zstd(data[:999]) + b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstd(data[999:]),
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("size", [1, 999, 4096, 65_536, len(TEXT)])
def test_one_file(packer: str, size: int, tmp_path: Path) -> None:
    assert one(PACKERS[packer](TEXT[:size]), tmp_path) == ("x", "read", TEXT[:size], None)


@pytest.mark.parametrize("packer", PACKERS)
def test_tar_of_each(packer: str, tmp_path: Path) -> None:
    packed = PACKERS[packer](plain_tar([("a.log", TEXT), ("d/b.log", PACKERS[packer](TEXT[:500]))]))
    (tmp_path / "all.tar").write_bytes(packed)
    assert rows(tmp_path / "all.tar", root=tmp_path) == [
        ("all.tar!a.log", "read", TEXT, None),
        ("all.tar!d/b.log", "read", TEXT[:500], None),
    ]


ZIP_METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@pytest.mark.parametrize("method", ZIP_METHODS)
@pytest.mark.parametrize("inside", ["on disk", "in memory", "forwards"])
def test_zip(method: int, inside: str, tmp_path: Path) -> None:
    data = plain_zip([("a.log", TEXT), ("folder/", b""), ("d/b.log", TEXT[:500])], method)
    name = "x.zip" if inside == "on disk" else "x.tar!x.zip"
    (tmp_path / name.split("!")[0]).write_bytes(data if inside == "on disk" else plain_tar([("x.zip", data)]))
    limits = Limits(memory_bytes=0) if inside == "forwards" else Limits()
    assert rows(tmp_path / name.split("!")[0], root=tmp_path, limits=limits) == [
        (f"{name}!a.log", "read", TEXT, None),
        (f"{name}!d/b.log", "read", TEXT[:500], None),
    ]


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_zip_with_sizes_behind_the_data(memory: int, tmp_path: Path) -> None:
    data = plain_zip([("a.log", TEXT), ("b.log", TEXT[:500])], forward=True)
    (tmp_path / "x.gz").write_bytes(gzip.compress(data))
    found = rows(tmp_path / "x.gz", root=tmp_path, limits=Limits(memory_bytes=memory))
    assert found == [("x.gz!a.log", "read", TEXT, None), ("x.gz!b.log", "read", TEXT[:500], None)]


def test_zip_with_something_before_it(tmp_path: Path) -> None:
    data = plain_zip([("a.log", TEXT)])
    (tmp_path / "x").write_bytes(data[:30] + data)  # begins like a zip, offsets are 30 too small
    assert rows(tmp_path / "x", root=tmp_path) == [("x!a.log", "read", TEXT, None)]


@pytest.mark.parametrize("compressed", ["", "gz", "xz", "bz2", "zst"])
def test_bug_report_in_zip_in_tar(compressed: str, tmp_path: Path) -> None:
    """As customers pack: nvidia-bug-report.log.gz has hundreds of members."""
    inner = plain_zip([("node7/nvidia-bug-report.log.gz", members(TEXT, 300)), ("node7/train.log", TEXT)])
    (tmp_path / "case.tar").write_bytes(PACKERS[compressed or "plain"](plain_tar([("logs.zip", inner)])))
    assert rows(tmp_path / "case.tar", root=tmp_path) == [
        ("case.tar!logs.zip!node7/nvidia-bug-report.log.gz", "read", TEXT, None),
        ("case.tar!logs.zip!node7/train.log", "read", TEXT, None),
    ]


TAR = pytest.mark.skipif(which("tar") is None, reason="needs the tar command")


@TAR
@POSIX
@pytest.mark.parametrize(
    "options", [["--format=v7"], ["--format=ustar"], ["--format=gnu"], ["--format=posix"], ["-S"], ["-S", "-Hposix"]]
)
def test_tars_that_tar_makes(options: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    long = "long" * 20
    (folder / long).mkdir(parents=True)
    (folder / long / "a.log").write_bytes(TEXT)
    if options != ["--format=v7"]:
        (folder / long / ("n" * 90 + ".log")).write_bytes(TEXT[:700])
    with (folder / "holes.log").open("wb") as out:
        for i in range(20):
            out.seek(i << 17)
            out.write(TEXT[:4096])
    subprocess.run(["tar", *options, "-cf", tmp_path / "x.tar", "-C", folder, "."], check=True)
    found = {path: data for path, status, data, _ in rows(tmp_path / "x.tar", root=tmp_path) if status == "read"}
    assert found.pop(f"x.tar!{long}/a.log") == TEXT
    assert (found.pop("x.tar!holes.log") or b"").replace(b"\0", b"") == TEXT[:4096] * 20
    assert list(found.values()) == ([TEXT[:700]] if options != ["--format=v7"] else [])


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_names_and_times(format_: int, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=format_) as archive:
        info = tarfile.TarInfo("./d/" + "p" * 90 + "/rank 0 ü.log")
        info.mtime = 1_795_000_000.25 if format_ == tarfile.PAX_FORMAT else 1_795_000_000
        info.size = len(TEXT)
        archive.addfile(info, io.BytesIO(TEXT))
    (source,) = collect([tmp_path / "x.tar"])
    assert source.path == f"{tmp_path}/x.tar!d/{'p' * 90}/rank 0 ü.log"
    assert source.name == "rank 0 ü.log"
    assert source.size == len(TEXT)
    assert source.mtime_ns == 1_795_000_000_250_000_000 - (format_ != tarfile.PAX_FORMAT) * 250_000_000


def test_without_the_fast_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("isal", "isal.isal_zlib", "zstandard", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    assert one(members(TEXT, 50), tmp_path) == ("x", "read", TEXT, None)
    (tmp_path / "x").write_bytes(plain_zip([("a", TEXT)]))
    assert rows(tmp_path / "x", root=tmp_path) == [("x!a", "read", TEXT, None)]
    if sys.version_info < (3, 14):
        monkeypatch.undo()
        packed = zstd(TEXT)
        for name in ("zstandard", "compression.zstd"):
            monkeypatch.setitem(sys.modules, name, None)
        path, status, data, reason = one(packed, tmp_path)
        assert (path, status, data) == ("x", "skipped", None)
        assert "pip install zstandard" in str(reason)


ENCODINGS = {
    "utf-16 by PowerShell": TEXT.decode().encode("utf-16"),
    "utf-16 big end first": b"\xfe\xff" + TEXT.decode().encode("utf-16-be"),
    "utf-16, the tail of a file": TEXT.decode().encode("utf-16-le"),
    "utf-16 big, the tail of a file": TEXT.decode().encode("utf-16-be"),
    "utf-32": TEXT.decode().encode("utf-32"),
    "utf-8 with a mark": b"\xef\xbb\xbf" + TEXT,
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("packer", ["plain", "gz"])
def test_encodings(encoding: str, packer: str, tmp_path: Path) -> None:
    data = ENCODINGS[encoding]
    (tmp_path / "x").write_bytes(PACKERS[packer](data))
    for source in collect([tmp_path / "x"]):
        assert drain(source, 4099) == TEXT
        assert (source.status, source.reason, source.bytes_read) == ("read", None, len(data))


@pytest.mark.parametrize(
    "data",
    [
        TEXT + bytes(5000) + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        b"\0".join(bytes([x]) for x in range(1, 256)) * 20,
        random.Random(1).randbytes(9000),
        b"ustar" * 1000,
        b"BZh9 is no bzip2" * 9,
        b"PK is no zip\n" * 9,
    ],
)
def test_near_misses_come_as_they_are(data: bytes, tmp_path: Path) -> None:
    assert one(data, tmp_path) == ("x", "read", data, None)


# --- the stream -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packer", ["plain", "gz", "zst", "xz"])
def test_head_stays_in_the_stream(packer: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(PACKERS[packer](TEXT))
    for source in collect([tmp_path / "x"]):
        assert source.head() == TEXT[:4096]
        assert source.head(10) == TEXT[:10]
        assert source.head(20_000) == TEXT[:20_000]
        assert source.bytes_read == 0
        assert source.stream is not None
        assert source.stream.read(15) == TEXT[:15]
        assert source.head(30) == TEXT[15:45]
        assert source.stream.readline() == TEXT[15 : TEXT.index(b"\n") + 1]
        assert source.stream.read() == TEXT[TEXT.index(b"\n") + 1 :]
        assert source.stream.read() == b""
        assert source.bytes_read == len(TEXT)


@pytest.mark.parametrize("packer", ["plain", "gz", "bz2", "xz", "zst"])
def test_every_way_of_reading_gives_the_same(packer: str, tmp_path: Path) -> None:
    text = TEXT[: 1 << 14]
    (tmp_path / "x").write_bytes(PACKERS[packer](text))
    ways: list[Callable[[Source], bytes]] = [
        lambda s: b"".join(s.stream or ()),
        lambda s: io.BufferedReader(s.stream).read(),  # type: ignore[type-var]
        lambda s: b"".join(io.BufferedReader(s.stream, 999)),  # type: ignore[type-var]
        lambda s: b"".join(iter(lambda: s.stream.readline(7), b"")),  # type: ignore[union-attr]
        lambda s: drain(s, 1),
        lambda s: drain(s, 1 << 20),
    ]
    for way in ways:
        assert [way(source) for source in collect([tmp_path / "x"])] == [text]


def test_sources_may_be_left_unread(tmp_path: Path) -> None:
    parts = [(f"{i}.log", TEXT[i:]) for i in range(4)]
    for number, data in enumerate([plain_tar(parts), plain_zip(parts), gzip.compress(plain_zip(parts, forward=True))]):
        (tmp_path / f"{number}").write_bytes(data)
    for memory in (0, 1 << 20):
        limits = Limits(memory_bytes=memory)
        everything = [x[0] for x in rows(tmp_path, limits=limits)]
        assert [x.path for x in collect([tmp_path], limits=limits)] == everything
        half = []
        for i, source in enumerate(collect([tmp_path], limits=limits)):
            half.append(source.path)
            if source.stream is not None and i % 2:
                source.stream.read(1000 * i)
        assert half == everything
        assert len(everything) == 12


def test_a_source_ends_with_the_next(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(plain_tar([("a", TEXT), ("b", TEXT)]))
    pile = collect([tmp_path / "x"])
    first, second = next(pile), next(pile)
    assert first.stream is not None
    with pytest.raises(ValueError, match="closed"):
        first.stream.read(5000)
    assert drain(second) == TEXT


# --- the pile -------------------------------------------------------------------------------------------------------


@POSIX
def test_folder_in_order_with_links_and_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in/b/rank1.log", "in/a rank.log", "in/c.log", "outside.log"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(name.encode())
    Path("in/link.log").symlink_to("../outside.log")
    Path("in/folder").symlink_to("..")
    Path("in/loop").symlink_to("loop")
    os.mkfifo("in/pipe")
    Path(os.fsdecode(b"in/caf\xe9\n.log")).write_bytes(b"latin")
    found = rows("in")
    assert [(path, status, data) for path, status, data, _ in found] == [
        ("in/a rank.log", "read", b"in/a rank.log"),
        ("in/b/rank1.log", "read", b"in/b/rank1.log"),
        ("in/c.log", "read", b"in/c.log"),
        ("in/caf\\xe9\\x0a.log", "read", b"latin"),
        ("in/folder", "skipped", None),
        ("in/link.log", "skipped", None),
        ("in/loop", "skipped", None),
        ("in/pipe", "skipped", None),
    ]
    assert str(found[5][3]).startswith("link to ../outside.log: not followed")
    # a link that the user names is followed
    assert rows("in/link.log") == [("in/link.log", "read", b"outside.log", None)]
    assert [x[0] for x in rows("in/folder/in/b")] == ["in/folder/in/b/rank1.log"]


def test_paths_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.log").write_bytes(b"x")
    for given_, shown in (("d", "d/x.log"), ("./d/", "./d/x.log"), (Path("d"), "d/x.log"), ("d/x.log", "d/x.log")):
        assert [x.path for x in collect([given_])] == [shown.replace("/", os.sep) if given_ == "d" else shown]


def test_what_does_not_exist_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(InputError, match=r"no such \*\.log does not exist.*pattern"):
        collect([tmp_path / "a", "no such *.log"])
    with pytest.raises(InputError, match="does not exist"):
        files([str(tmp_path / "a" / "b")]) if sys.platform == "win32" else files([tmp_path / "b"])


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000])
def test_paths_that_no_file_can_have(path: str) -> None:
    try:
        ((shown, status, data, reason),) = rows(path)
    except InputError:
        return
    assert (status, data) == ("failed", None)
    assert shown.isprintable()
    assert reason


def test_the_same_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    found = rows(tmp_path, tmp_path / "a.log", root=tmp_path)
    assert [x[:2] for x in found] == [("a.log", "read"), ("a.log", "skipped")]
    assert "the same file" in str(found[1][3])


@POSIX
def test_hard_links_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    os.link(tmp_path / "a.log", tmp_path / "b.log")
    assert [x[:3] for x in rows(tmp_path, root=tmp_path)] == [("a.log", "read", TEXT), ("b.log", "skipped", None)]


def test_stdin(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    found = rows("-", tmp_path / "a.log", "-", root=tmp_path, stdin=io.BytesIO(gzip.compress(TEXT)))
    assert [x[:3] for x in found] == [("-", "read", TEXT), ("a.log", "read", TEXT), ("-", "skipped", None)]
    assert rows("-", stdin=io.BytesIO(plain_zip([("a", TEXT)]))) == [("-!a", "read", TEXT, None)]
    assert rows("-", stdin=io.BytesIO())[0][:3] == ("-", "skipped", None)

    class OnlyRead:
        """As some wrappers of standard input are."""

        def __init__(self) -> None:
            self.data = io.BytesIO(TEXT)

        def read(self, n: int) -> bytes:
            return self.data.read(min(n, 11))

    assert rows("-", stdin=OnlyRead()) == [("-", "read", TEXT, None)]


@POSIX
def test_named_pipes(tmp_path: Path) -> None:
    """A pipe that the user names is read (as `<(zcat x)` makes them); one without a writer does not hang."""
    os.mkfifo(tmp_path / "pipe")
    assert rows(tmp_path / "pipe", root=tmp_path)[0][:3] == ("pipe", "skipped", None)
    read, wrote = os.pipe()

    def slowly() -> None:
        for i in range(0, 9000, 3000):
            os.write(wrote, TEXT[i : i + 3000])
            time.sleep(0.02)
        os.close(wrote)

    writer = threading.Thread(target=slowly)
    writer.start()
    if Path(f"/dev/fd/{read}").exists():
        assert rows(f"/dev/fd/{read}")[0][1:3] == ("read", TEXT[:9000])
    writer.join()
    os.close(read)


@POSIX
@pytest.mark.skipif(os.name != "nt" and os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    (tmp_path / "a.log").chmod(0)
    path, status, data, reason = rows(tmp_path, root=tmp_path)[0]
    assert (path, status, data) == ("a.log", "failed", None)
    assert "sudo" in str(reason)


def test_gone_between_finding_and_opening(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    (file,) = files([tmp_path])
    (tmp_path / "a.log").unlink()
    (source,) = sources(file)
    assert (source.stream, source.status) == (None, "failed")
    if sys.platform != "win32":  # a link that slips in
        (tmp_path / "a.log").symlink_to("/etc/passwd")
        (source,) = sources(file)
        assert (source.stream, source.status) == (None, "failed")


def test_a_file_that_grows(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(TEXT)
    with log.open("ab", buffering=0) as writer:
        for source in collect([log]):
            writer.write(b"more\n" * 1000)
            assert drain(source) == TEXT
            assert source.status == "partial"
            assert "grew" in str(source.reason)


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(TEXT)
    for source in collect([log]):
        os.truncate(log, 5000)
        assert drain(source) == TEXT[:5000]
        assert source.status == "partial"
        assert "shrank" in str(source.reason)


@POSIX
def test_holes_take_no_time(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    with log.open("wb") as out:
        try:
            out.write(TEXT[:4096])
            out.seek(1 << 40)
            out.write(TEXT[4096:])
        except OSError:
            pytest.skip("no room for a large sparse file here")
    if not hasattr(os, "SEEK_DATA") or log.stat().st_blocks * 512 > 1 << 30:
        pytest.skip("no sparse files here")
    began = time.perf_counter()
    ((_, status, data, _),) = rows(log)
    assert status == "read"
    assert (data or b"").replace(b"\0", b"") == TEXT
    assert time.perf_counter() - began < 5


def test_progress(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(random.Random(1).randbytes(9 << 20))
    (tmp_path / "b.gz").write_bytes(gzip.compress(TEXT))
    told: list[tuple[str, int]] = []
    rows(tmp_path, progress=lambda path, n: told.append((Path(path).name, n)))
    assert told == sorted(told)
    assert [told[i] for i in (-2, -1)] == [("a", 9 << 20), ("b.gz", (tmp_path / "b.gz").stat().st_size)]
    assert len(told) > 3


def test_files_can_be_shared_out(tmp_path: Path) -> None:
    """What one thread a file gives is what collect gives."""
    import pickle
    from concurrent.futures import ThreadPoolExecutor

    write(tmp_path, [x for x in PILE if x.endswith((".tar", ".zip")) or "cut" in x])
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(
            lambda file: [(s.path, s.stream and drain(s), s.status, s.reason) for s in sources(file)],
            pickle.loads(pickle.dumps(list(files([tmp_path])))),
        )
        shared = [x for part in parts for x in part]
    alone = [(s.path, s.stream and drain(s), s.status, s.reason) for s in collect([tmp_path])]
    assert shared == alone


# --- what is refused, and damage --------------------------------------------------------------------------------------

SAID: dict[str, list[tuple[str, str, int | None, str]]] = {
    # file: (member, status, bytes or None, what the reason says)
    "empty.log": [("", "skipped", None, r"^empty \(0 bytes\): was the job's log still buffered")],
    "only-bom.log": [("", "skipped", None, "^empty")],
    "cut.log.gz": [("", "partial", 115_231, "breaks off; 115 kB of text come before the cut")],
    "cut-header.log.gz": [("", "failed", None, "breaks off")],
    "cut-magic.log.gz": [("", "failed", None, "breaks off")],
    "wrong-checksum.log.gz": [("", "partial", len(TEXT), "checksum is wrong")],
    "garbage-behind.log.gz": [("", "read", len(TEXT), "follows the end .* was left out")],
    "zeros-behind.log.gz": [("", "read", len(TEXT), "^None$")],
    "many-members.log.gz": [("", "read", len(TEXT), "^None$")],
    "empty-members.log.gz": [("", "read", len(TEXT), "^None$")],
    "endless-name.log.gz": [("", "failed", None, "breaks off")],
    "twenty-layers.gz": [("", "skipped", None, r"more than 8 layers .*--max-depth.*unpack")],
    "only-called.gz": [("", "read", len(TEXT), "^None$")],
    "cut.log.bz2": [("", "failed", None, "bzip2 stream breaks off")],
    "flipped.log.bz2": [("", "failed", None, "bzip2 stream is damaged .*bzip2recover")],
    "empty-streams.log.bz2": [("", "read", len(TEXT), "^None$")],
    "wants-memory.log.xz": [("", "failed", None, "more than 105 MB of memory.*xz -dc")],
    "garbage-behind.log.zst": [("", "read", len(TEXT), "follows the end .* was left out")],
    "skippable.zst": [("", "failed", None, "breaks off")],
    "outside.tar": [
        ("!/etc/passwd", "read", len(TEXT), "^None$"),
        ("!../../../../tmp/outside.log", "read", len(TEXT), "^None$"),
        ("!C:\\windows\\x.log", "read", len(TEXT), "^None$"),
        ("!(no name)", "read", len(TEXT), "^None$"),
        ("!a\\x0ab\\x1b[31m.log", "read", len(TEXT), "^None$"),
        ("!\\u202egol.exe", "read", len(TEXT), "^None$"),
        ("!\\xff\\xfe caf\\xe9.log", "read", len(TEXT), "^None$"),
    ],
    "links.tar": [
        ("!up", "skipped", None, r"^link to ../../../../etc/shadow: not followed.*tar -h"),
        ("!self", "skipped", None, "^link to self"),
        ("!hard", "skipped", None, "^another name of /etc/shadow"),
        ("!hard-with-size", "skipped", None, "^another name of /etc/shadow"),
        ("!disk", "skipped", None, "^a device"),
        ("!null", "skipped", None, "^a device"),
        ("!fifo", "skipped", None, "^a named pipe"),
        ("!after.log", "read", len(TEXT), "^None$"),
    ],
    "twice.tar": [("!a.log", "read", len(TEXT), "^None$"), ("!a.log (2)", "read", 1000, "^None$")],
    "no-end.tar": [("!a.log", "read", len(TEXT), "^None$"), ("", "partial", None, "no end mark.*1 member before it")],
    "cut.tar": [
        ("!a.log", "read", len(TEXT), "^None$"),
        ("!b.log", "partial", 7691, "breaks off here: 7,691 bytes of 152 kB"),
        ("", "partial", None, "breaks off.*2 members"),
    ],
    "damaged-header.tar": [
        ("!a.log", "read", len(TEXT), "^None$"),
        ("", "partial", None, "damaged after 1 member: 2,560 bytes were left out"),
        ("!b.log", "read", len(TEXT), "^None$"),
    ],
    "negative-size.tar": [
        ("!a.log", "read", len(TEXT), "^None$"),
        ("", "partial", None, "damaged after 1 member"),
        ("!c.log", "read", len(TEXT), "^None$"),
    ],
    "huge-member.tar": [("!a.log", "partial", 152_803, "of 18 PB"), ("", "partial", None, "breaks off")],
    "pax-nonsense.tar": [("!a.log", "read", len(TEXT), "^None$")],
    "nothing.tar.gz": [("", "skipped", None, "archive without a file")],
    "no-files.zip": [("", "skipped", None, "archive without a file")],
    "cut.zip": [
        ("!a.log", "read", len(TEXT), "^None$"),
        ("!b.log", "partial", 46_624, "breaks off"),
        ("", "partial", None, "no table at its end.*2 members found"),
    ],
    "no-table.zip": [
        ("!a.log", "read", len(TEXT), "^None$"),
        ("!b.log", "read", len(TEXT), "^None$"),
        ("", "partial", None, "no table at its end"),
    ],
    "stored-later.zip": [
        ("!a.log", "skipped", None, "length stands nowhere"),
        ("", "partial", None, "what follows was not read"),
    ],
    "encrypted.zip": [("!a.log", "skipped", None, "encrypted: unpack the zip with its password")],
    "deflate64.zip": [("!a.log", "skipped", None, "deflate64.*7z x")],
    "unknown-method.zip": [("!a.log", "skipped", None, "method 77")],
    "wrong-crc.zip": [("!a.log", "partial", len(TEXT), "checksum or size is wrong")],
    "wrong-offset.zip": [("!a.log", "failed", None, "not where the zip's table says")],
    "offset-beyond.zip": [("!a.log", "failed", None, "not where the zip's table says")],
    "lzma-wants-memory.zip": [("!a.log", "failed", None, "too much memory")],
    "damaged-table.zip": [
        ("!a.log", "read", len(TEXT), "^None$"),
        ("", "partial", None, "table is damaged after 1 mem"),
    ],
    "document.docx": [("", "skipped", None, "Office document")],
    "model.pt": [("", "skipped", None, "PyTorch checkpoint")],
    "logs.7z": [("", "skipped", None, r"7z x logs\.7z")],
    "logs.rar": [("", "skipped", None, "unrar x")],
    "system.journal": [
        ("", "skipped", None, "journalctl --file system.journal -o short-iso-precise > system.journal.log")
    ],
    "system.journal.gz": [("", "skipped", None, "unpack it first.*journalctl --file system.journal -o")],
    "screen.png": [("", "skipped", None, "an image")],
    "core.4711": [("", "skipped", None, "core dump.*gdb")],
    "python3": [("", "skipped", None, "compiled program")],
    "mail.pdf": [("", "skipped", None, "pdftotext")],
}


@pytest.mark.parametrize("name", SAID)
def test_hostile_file(name: str, tmp_path: Path) -> None:
    write(tmp_path, [name])
    found = rows(tmp_path / name, root=tmp_path)
    assert [(x[0].removeprefix(name), x[1], None if x[2] is None else len(x[2])) for x in found] == [
        x[:3] for x in SAID[name]
    ]
    for (_, _, _, reason), (_, _, _, said) in zip(found, SAID[name], strict=True):
        assert re.search(said, str(reason)), (said, reason)


@pytest.mark.slow
def test_the_whole_hostile_pile(tmp_path: Path) -> None:
    """No exception, no hang, no new file; what is not wholly read has a reason; every path is fit to be printed."""
    write(tmp_path / "pile")
    before = sorted(os.walk(tmp_path))
    began = time.perf_counter()
    count = 0
    for source in collect([tmp_path / "pile"], limits=Limits(members=10_000)):
        count += 1
        if source.stream is not None:
            drain(source, 1 << 20)
        assert source.status == "read" or source.reason, source.path
        assert source.path.isprintable()
        source.path.encode()
        (source.reason or "").encode()
        assert (source.reason or "").isprintable()
    assert count > len(PILE)
    assert time.perf_counter() - began < 60
    assert sorted(os.walk(tmp_path)) == before


def test_gzip_members_behind_damage_are_used(tmp_path: Path) -> None:
    lines = [TEXT[i : i + 5000] for i in range(0, 50_000, 5000)]
    packed = [gzip.compress(x, mtime=0) for x in lines]
    packed[3] = packed[3][:40] + b"\xff" * 40 + packed[3][80:]
    path, status, data, reason = one(b"".join(packed), tmp_path)
    assert (path, status) == ("x", "partial")
    assert (data or b"").startswith(b"".join(lines[:3]))
    assert (data or b"").endswith(b"\n" + b"".join(lines[4:])) or (data or b"").endswith(b"".join(lines[4:]))
    assert "damaged" in str(reason) or "checksum" in str(reason)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_limit_ratio(tmp_path: Path) -> None:
    limits = Limits(ratio=100, ratio_from_bytes=1 << 20)
    for packer in ("gz", "bz2", "xz", "zst"):
        path, status, data, reason = one(PACKERS[packer](bytes(16 << 20)), tmp_path, limits=limits)
        assert (path, status) == ("x", "partial")
        assert 1 << 20 <= len(data or b"") < 4 << 20
        assert option("ratio") in str(reason)
        assert "bomb" in str(reason)


@pytest.mark.parametrize(
    "data", [PILE["overlapping.zip"](), gzip.compress(plain_tar([(f"{i}", bytes(1 << 18)) for i in range(80)]))]
)
def test_limit_ratio_counts_all_members(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    found = rows(tmp_path / "x", limits=Limits(ratio=100, ratio_from_bytes=2 << 20))
    assert 2 << 20 <= sum(len(x[2] or b"") for x in found) < 12 << 20
    assert option("ratio") in str(found[-1][3])


def test_limit_ratio_counts_all_layers(tmp_path: Path) -> None:
    data = gzip.compress(gzip.compress(bytes(64 << 20), mtime=0), mtime=0)
    _, status, got, reason = one(data, tmp_path, limits=Limits(ratio=1000, ratio_from_bytes=1 << 20))
    assert status == "partial"
    assert len(got or b"") < 8 << 20
    assert option("ratio") in str(reason)


def test_limit_total(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "e.log").write_bytes(TEXT)
    found = rows(tmp_path, root=tmp_path, limits=Limits(total_bytes=2 * len(TEXT)))
    assert [(x[0], x[1]) for x in found if x[1] == "read"] == [("a.gz", "read"), ("b.gz", "read"), ("e.log", "read")]
    assert all(option("total_bytes") in str(x[3]) for x in found if x[1] != "read")


@pytest.mark.parametrize("make", [plain_tar, plain_zip])
def test_limit_members(make: Callable[[list[tuple[str, bytes]]], bytes], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(make([(f"{i}.log", b"x") for i in range(30)]))
    found = rows(tmp_path, root=tmp_path, limits=Limits(members=10))
    assert [x[1] for x in found] == ["read"] * 10 + ["partial"]
    assert option("members") in str(found[-1][3])


def test_limit_members_of_a_folder(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i:02}.log").write_bytes(b"x")
    found = rows(tmp_path, root=tmp_path, limits=Limits(members=10))
    assert [x[1] for x in found] == ["read"] * 10 + ["partial"]
    assert option("members") in str(found[-1][3])
    assert [x[1] for x in rows(tmp_path, limits=Limits(members=30))] == ["read"] * 30


def test_limit_depth(tmp_path: Path) -> None:
    data = TEXT
    for depth in range(1, 5):
        data = gzip.compress(data)
        for most in range(5):
            status = one(data, tmp_path, limits=Limits(depth=most))[1]
            assert status == ("read" if depth <= most else "skipped")


def test_limit_seconds(tmp_path: Path) -> None:
    path, status, _, reason = one(gzip.compress(TEXT), tmp_path, limits=Limits(seconds=0))
    assert (path, status) == ("x", "failed")
    assert option("seconds") in str(reason)
    (tmp_path / "x").write_bytes(TEXT)  # a plain file has nothing to unpack
    assert rows(tmp_path / "x", limits=Limits(seconds=0))[0][1] == "read"


@pytest.mark.parametrize("name", ["bomb.log.gz", "bomb.log.xz", "bomb.log.zst", "no-line-end.log", "pax-long.tar"])
def test_memory_is_flat(name: str, tmp_path: Path) -> None:
    write(tmp_path, [name])
    buffer = bytearray(1 << 20)
    list(collect([tmp_path / name]))  # imports are done
    tracemalloc.start()
    total = 0
    for source in collect([tmp_path / name]):
        assert source.stream is not None
        while n := source.stream.readinto(buffer):  # type: ignore[attr-defined]
            total += n
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total
    assert peak < 8 << 20


# --- properties -----------------------------------------------------------------------------------------------------

FILES = [("a.log", TEXT[:9000]), ("d/b.log", TEXT[9000:30_000]), ("c.bin", random.Random(2).randbytes(3000))]
WHOLE: dict[str, bytes] = {
    "gz": gzip.compress(TEXT[:30_000], mtime=0),
    "gz-members": members(TEXT[:30_000], 40),
    "bz2": bz2.compress(TEXT[:30_000]),
    "xz": lzma.compress(TEXT[:30_000]),
    "zst": zstd(TEXT[:30_000]),
    "tar": plain_tar(FILES),
    "tar.gz": plain_tar(FILES, "w:gz"),
    "tar.xz": plain_tar(FILES, "w:xz"),
    "zip": plain_zip(FILES),
    "zip-stored": plain_zip(FILES, zipfile.ZIP_STORED),
    "zip-forward": plain_zip(FILES, forward=True),
    "zip.gz": gzip.compress(plain_zip(FILES, forward=True), mtime=0),
}


def told(data: bytes, limits: Limits) -> Iterator[tuple[str, str, bytes | None, str | None]]:
    yield from rows("-", stdin=io.BytesIO(data), limits=limits)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("kind", WHOLE)
def test_cut_anywhere(kind: str, data: st.DataObject) -> None:
    """What comes out of a cut file is a prefix of what is in it, and the cut is told."""
    packed = WHOLE[kind]
    cut = data.draw(st.integers(10, len(packed)))  # less cannot be told from text
    limits = Limits(memory_bytes=data.draw(st.sampled_from([0, 1 << 20])))
    whole = {path: text or b"" for path, _, text, _ in told(packed, limits)}
    found = list(told(packed[:cut], limits))
    for path, status, text, reason in found:
        if text is not None and path in whole:
            assert whole[path].startswith(text)
            assert status != "read" or text == whole[path] or kind == "gz-members"
        assert status == "read" or reason
    lost = any((text or b"") != whole.get(path) for path, _, text, _ in found) or len(found) < len(whole)
    if lost and kind != "gz-members":  # a member's end is the end of a file
        assert any(x[1] != "read" for x in found) or (kind == "tar" and cut < 512)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("kind", WHOLE)
def test_flipped_anywhere(kind: str, data: st.DataObject) -> None:
    """Damage gives no exception and no hang."""
    packed = bytearray(WHOLE[kind])
    for at in data.draw(st.lists(st.integers(0, len(packed) - 1), min_size=1, max_size=4)):
        packed[at] = data.draw(st.integers(0, 255))
    found = list(told(bytes(packed), Limits(memory_bytes=data.draw(st.sampled_from([0, 1 << 20])))))
    assert found
    assert all(status == "read" or reason for _, status, _, reason in found)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.binary(max_size=600), max_size=6), seed=st.integers(0, 99))
def test_bytes_that_begin_like_something(parts: list[bytes], seed: int) -> None:
    magic = random.Random(seed).choice(
        [
            b"\x1f\x8b\x08\0",
            b"BZh91AY&SY",
            b"\xfd7zXZ\0",
            b"\x28\xb5\x2f\xfd",
            b"PK\x03\x04",
            b"PK\x05\x06",
            b"\xff\xfe",
        ]
    )
    for _, status, _, reason in told(magic + b"".join(parts), Limits()):
        assert status == "read" or reason


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=40), st.integers(0, 5000), st.sampled_from(b"0123456789LKxgSVMDNA\0")), max_size=6
    )
)
def test_tars_of_anything(entries: list[tuple[bytes, int, int]]) -> None:
    data = tar(
        *(tar_header(name, size, bytes([kind])) + bytes(size // 2) for name, size, kind in entries),
        tar_member(b"z", b"z"),
    )
    for path, status, _, reason in told(data, Limits()):
        assert path.isprintable()
        assert status == "read" or reason


def test_real_cases() -> None:
    found = {source.path: source for source in collect([RECORDED])}
    assert len(found) > 400
    assert not [x for x in found.values() if x.status in ("partial", "failed")]
    (journal,) = (x for x in found.values() if x.name == "system.journal.xz")
    assert "a binary systemd journal" in str(journal.reason)
    assert sum("sosreport" in x and x.endswith("/var/log/kern.log") for x in found) == 1


def test_no_format_is_imported_before_it_is_met() -> None:
    code = (
        "import sys, nccl_forensics.intake.walk; print({'isal', 'zstandard', 'tarfile', 'zipfile'} & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(walk.__file__).parents[2]
    )
    assert out.stdout.strip() == "set()"
