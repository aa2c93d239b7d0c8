"""A pile of hostile files, made on the spot: `write(folder)` puts them there, `python -m hostile FOLDER` by hand.

Every file is small, and what it asks for is large, endless, outside, or nonsense. No input of these may give a
traceback, a hang, or a file anywhere.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

LINE = b"[rank%d]:[E1129 14:46:08.%06d ProcessGroupNCCL.cpp:629] [Rank %d] step %d\n"
TEXT = b"".join(LINE % (i % 8, i, i % 8, i * 7919 % 10007) for i in range(2000))
"""Some 150 kB that compress about 8 : 1."""


def zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def members(data: bytes, count: int) -> bytes:
    """`data` in so many gzip members."""
    step = -(-len(data) // count)
    return b"".join(gzip.compress(data[i : i + step], 6, mtime=0) for i in range(0, len(data), step))


def tar_header(
    name: bytes,
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    link: bytes = b"",
    magic: bytes = b"ustar\x0000",
    tail: bytes = b"",
) -> bytes:
    """One block with a right checksum, whatever stands in it."""
    length = b"%011o\0" % size if isinstance(size, int) else size.ljust(12, b"\0")
    block = name.ljust(100, b"\0")[:100] + b"0000644\0" + b"0000000\0" * 2 + length + b"14656460000\0" + b" " * 8
    block += kind + link.ljust(100, b"\0")[:100] + magic.ljust(8, b"\0")
    block = (block + tail).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def tar_member(name: bytes, data: bytes, kind: bytes = b"0") -> bytes:
    return tar_header(name, len(data), kind) + data + b"\0" * (-len(data) % 512)


def tar(*parts: bytes) -> bytes:
    return b"".join(parts) + b"\0" * 1024


def pax(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    data = b""
    for key, value in records:
        length = len(key) + len(value) + 3
        length += len(str(length))
        length += len(str(length)) - len(str(length - len(str(length)) + len(str(length))))
        while len(b"%d %s=%s\n" % (length, key, value)) != length:
            length = len(b"%d %s=%s\n" % (length, key, value))
        data += b"%d %s=%s\n" % (length, key, value)
    return tar_member(b"pax", data, b"x")


def plain_tar(files: Iterable[tuple[str, bytes]], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_795_000_000
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Forward(io.RawIOBase):
    """A sink that cannot seek, so that zipfile writes sizes behind the data."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def plain_zip(files: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED, forward: bool = False) -> bytes:
    out: Any = Forward() if forward else io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return bytes(out.data) if isinstance(out, Forward) else out.getvalue()


def _patched(data: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    """`data` with bytes replaced at `offset` behind every `mark`."""
    out, at = bytearray(data), -1
    while (at := data.find(mark, at + 1)) >= 0:
        out[at + offset : at + offset + len(value)] = value
    return bytes(out)


def _flag(data: bytes, bit: int) -> bytes:
    value = struct.pack("<H", bit)
    return _patched(_patched(data, b"PK\x03\x04", 6, value), b"PK\x01\x02", 8, value)


def _method(data: bytes, method: int) -> bytes:
    value = struct.pack("<H", method)
    return _patched(_patched(data, b"PK\x03\x04", 8, value), b"PK\x01\x02", 10, value)


def _overlapping_zip(count: int = 300) -> bytes:
    """Every entry of the table points to the same few bytes, which unpack to a thousand times as many."""
    one = plain_zip([("x.log", bytes(1 << 17))])
    at = one.index(b"PK\x01\x02")
    entry = one[at : one.index(b"PK\x05\x06")]
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, count * len(entry), at, 0)
    return one[:at] + entry * count + end


def _nested(depth: int) -> bytes:
    data = TEXT
    for _ in range(depth):
        data = gzip.compress(data, 1, mtime=0)
    return data


def _deep_zip(depth: int) -> bytes:
    data = plain_zip([("deepest.log", TEXT)])
    for i in range(depth):
        data = plain_zip([(f"level{i}.zip", data)])
    return data


def _noise(n: int) -> bytes:
    return random.Random(4).randbytes(n)


def _lzma_wants_memory() -> bytes:
    """An xz stream whose header asks for a dictionary of 1.5 GiB."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    data = bytearray(lzma.compress(TEXT, filters=filters))
    import zlib

    header = data[12 : 12 + (data[12] + 1) * 4]
    header[4] = 37  # xz file format, 5.3.1: 3 GiB
    header[-4:] = struct.pack("<I", zlib.crc32(header[:-4]))
    data[12 : 12 + len(header)] = header
    return bytes(data)


_SPARSE = b"\0" * (482 - 265) + b"\1"  # GNU's "more of the map follows"

PILE: dict[str, Callable[[], bytes]] = {
    # text that isn't quite
    "empty.log": lambda: b"",
    "nul.log": lambda: bytes(1 << 20),
    "nul-padded.log": lambda: TEXT + bytes(4096) + TEXT,
    "noise.log": lambda: _noise(1 << 18),
    "no-line-end.log": lambda: b"x" * (3 << 20),
    "carriage-returns.log": lambda: TEXT.replace(b"\n", b"\r"),
    "crlf.log": lambda: TEXT.replace(b"\n", b"\r\n"),
    "not-utf8.log": lambda: TEXT.replace(b"step", b"\xff\xfe\x80\xc3("),
    "bom.log": lambda: b"\xef\xbb\xbf" + TEXT,
    "only-bom.log": lambda: b"\xef\xbb\xbf",
    "utf16.log": lambda: TEXT.decode().encode("utf-16"),
    "utf16-be.log": lambda: b"\xfe\xff" + TEXT.decode().encode("utf-16-be"),
    "utf16-no-mark.log": lambda: TEXT.decode().encode("utf-16-le"),
    "utf16-odd.log": lambda: TEXT.decode().encode("utf-16")[:-1],
    "utf16-surrogates.log": lambda: b"\xff\xfe" + b"\x00\xd8" * 1000 + b"\x00\xdc" * 999,
    "utf32.log": lambda: TEXT.decode().encode("utf-32"),
    "utf32-nonsense.log": lambda: b"\xff\xfe\0\0" + b"\xff" * 4000,
    "escapes.log": lambda: "\x1b]0;owned\x07\x1b[2J\u202egpj.exe <script>alert(1)</script> {{7*7}}\n".encode() * 100,
    "deep.json": lambda: b"[" * 1_000_000,
    "wide.json": lambda: b'{"a":' * 100_000 + b"1",
    # compressed
    "cut.log.gz": lambda: gzip.compress(TEXT, mtime=0)[:-3000],
    "cut-header.log.gz": lambda: gzip.compress(TEXT, mtime=0)[:7],
    "cut-magic.log.gz": lambda: b"\x1f\x8b\x08",
    "flipped.log.gz": lambda: _patched(members(TEXT, 20), members(TEXT, 20)[6000:6010], 0, b"\xff" * 10),
    "wrong-checksum.log.gz": lambda: gzip.compress(TEXT, mtime=0)[:-8] + bytes(8),
    "garbage-behind.log.gz": lambda: gzip.compress(TEXT, mtime=0) + b"not gzip at all\n" * 50,
    "zeros-behind.log.gz": lambda: gzip.compress(TEXT, mtime=0) + bytes(100_000),
    "many-members.log.gz": lambda: members(TEXT, 400),
    "empty-members.log.gz": lambda: gzip.compress(b"", mtime=0) * 20_000 + gzip.compress(TEXT, mtime=0),
    "false-members.log.gz": lambda: gzip.compress(TEXT, mtime=0)[:200] + b"\x1f\x8b\x08\0" * 20_000,
    "endless-name.log.gz": lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * (1 << 20),
    "bomb.log.gz": lambda: gzip.compress(bytes(32 << 20), 1, mtime=0),
    "twenty-layers.gz": lambda: _nested(20),
    "only-called.gz": lambda: TEXT,
    "cut.log.bz2": lambda: bz2.compress(TEXT)[:-2000],
    "flipped.log.bz2": lambda: _patched(bz2.compress(TEXT), b"BZh9", 2000, b"\xff" * 10),
    "empty-streams.log.bz2": lambda: bz2.compress(b"") * 5_000 + bz2.compress(TEXT),
    "cut.log.xz": lambda: lzma.compress(TEXT)[:-2000],
    "wants-memory.log.xz": _lzma_wants_memory,
    "bomb.log.xz": lambda: lzma.compress(bytes(16 << 20), preset=0),
    "cut.log.zst": lambda: zstd(TEXT)[:-2000],
    "garbage-behind.log.zst": lambda: zstd(TEXT) + b"not zstd at all\n" * 50,
    "bomb.log.zst": lambda: b"\x28\xb5\x2f\xfd\x00\x58" + b"\x02\x00\x10\x00" * 499 + b"\x03\x00\x10\x00",
    "skippable.zst": lambda: b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + b"x" * 1000,
    # tar
    "outside.tar": lambda: tar(
        tar_member(b"/etc/passwd", TEXT),
        tar_member(b"../../../../tmp/outside.log", TEXT),
        tar_member(b"C:\\windows\\x.log", TEXT),
        tar_member(b"", TEXT),
        tar_member(b"a\nb\x1b[31m.log", TEXT),
        tar_member("\u202egol.exe".encode(), TEXT),
        tar_member(b"\xff\xfe caf\xe9.log", TEXT),
    ),
    "links.tar": lambda: tar(
        tar_header(b"up", 0, b"2", link=b"../../../../etc/shadow"),
        tar_header(b"self", 0, b"2", link=b"self"),
        tar_header(b"hard", 0, b"1", link=b"/etc/shadow"),
        tar_header(b"hard-with-size", 4096, b"1", link=b"/etc/shadow"),
        tar_header(b"disk", 0, b"4"),
        tar_header(b"null", 0, b"3"),
        tar_header(b"fifo", 0, b"6"),
        tar_member(b"after.log", TEXT),
    ),
    "twice.tar": lambda: tar(tar_member(b"a.log", TEXT), tar_member(b"a.log", TEXT[:1000])),
    "no-end.tar": lambda: tar_member(b"a.log", TEXT),
    "cut.tar": lambda: tar(tar_member(b"a.log", TEXT), tar_member(b"b.log", TEXT))[: len(TEXT) + 9000],
    "damaged-header.tar": lambda: tar(
        tar_member(b"a.log", TEXT), _noise(512), TEXT[:512] * 4, tar_member(b"b.log", TEXT)
    ),
    "huge-member.tar": lambda: tar(tar_header(b"a.log", b"\x80" + b"\0" * 4 + b"\x3f" + b"\xff" * 6), TEXT),
    "negative-size.tar": lambda: tar(
        tar_member(b"a.log", TEXT), tar_header(b"b.log", b"\xff" * 12), tar_member(b"c.log", TEXT)
    ),
    "pax-lies.tar": lambda: tar(
        pax([(b"size", b"9" * 18), (b"path", b"p.log"), (b"mtime", b"9" * 12)]), tar_member(b"a.log", TEXT)
    ),
    "pax-long.tar": lambda: tar(pax([(b"path", b"x/" * (1 << 19))]), tar_member(b"a.log", TEXT)),
    "pax-nonsense.tar": lambda: tar(
        tar_member(b"pax", b"999999999 a=b\n0 x\n-1 =\n" + _noise(300), b"x"), tar_member(b"a.log", TEXT)
    ),
    "pax-only.tar": lambda: tar(pax([(b"path", b"a")]) * 2000),
    "longname.tar": lambda: tar(tar_member(b"././@LongLink", b"n" * 300_000, b"L"), tar_member(b"a.log", TEXT)),
    "sparse-endless.tar": lambda: tar(
        tar_header(b"a.log", 0, b"S", magic=b"ustar  \0", tail=_SPARSE),
        (b"\0" * 504 + b"\1" + b"\0" * 7) * 1000,
    ),
    "sparse-map.tar": lambda: tar(
        pax([(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", b"s.log")]),
        tar_member(b"a.log", b"999999999999999\n" + TEXT),
    ),
    "many-empty.tar": lambda: tar(*(tar_header(b"%d" % i) for i in range(1000))),
    "nothing.tar.gz": lambda: gzip.compress(tar_header(b"folder/", 0, b"5") + bytes(10240), mtime=0),
    "cut.tar.gz": lambda: gzip.compress(plain_tar([(f"rank{i}.log", TEXT[i:]) for i in range(5)]), mtime=0)[:-20000],
    # zip
    "outside.zip": lambda: plain_zip(
        [("/etc/passwd", TEXT), ("../../outside.log", TEXT), ("..\\..\\outside.log", TEXT), ("a\x1b[31m\n.log", TEXT)]
    ),
    "encrypted.zip": lambda: _flag(plain_zip([("a.log", TEXT)]), 1),
    "deflate64.zip": lambda: _method(plain_zip([("a.log", TEXT)]), 9),
    "unknown-method.zip": lambda: _method(plain_zip([("a.log", TEXT)]), 77),
    "cut.zip": lambda: plain_zip([("a.log", TEXT), ("b.log", TEXT)])[:-9000],
    "no-table.zip": lambda: plain_zip([("a.log", TEXT), ("b.log", TEXT)], forward=True).split(b"PK\x01\x02")[0],
    "stored-later.zip": lambda: gzip.compress(plain_zip([("a.log", TEXT)], zipfile.ZIP_STORED, True)[:-60], mtime=0),
    "wrong-crc.zip": lambda: _patched(plain_zip([("a.log", TEXT)]), b"PK\x01\x02", 16, b"\1\2\3\4"),
    "wrong-offset.zip": lambda: _patched(plain_zip([("a.log", TEXT)]), b"PK\x01\x02", 42, b"\x10\0\0\0"),
    "offset-beyond.zip": lambda: _patched(plain_zip([("a.log", TEXT)]), b"PK\x01\x02", 42, b"\xf0\xff\xff\x7f"),
    "size-beyond.zip": lambda: _patched(plain_zip([("a.log", TEXT)]), b"PK\x01\x02", 20, b"\xf0\xff\xff\x7f" * 2),
    "damaged-table.zip": lambda: _patched(
        plain_zip([("a.log", TEXT), ("b.log", TEXT)]), b"\0\0b.logPK\x05\x06", -44, b"XXXX"
    ),
    "overlapping.zip": _overlapping_zip,
    "twelve-zips.zip": lambda: _deep_zip(12),
    "no-files.zip": lambda: plain_zip([]),
    "flipped.zip": lambda: _patched(plain_zip([("a.log", TEXT), ("b.log", TEXT)]), b"PK\x03\x04", 3000, b"\xff" * 20),
    "lzma-wants-memory.zip": lambda: _patched(
        plain_zip([("a.log", TEXT)], zipfile.ZIP_LZMA), b"\x05\0\x5d", 3, b"\xff\xff\xff\xff"
    ),
    "document.docx": lambda: plain_zip([("[Content_Types].xml", b"<x/>"), ("word/document.xml", TEXT)]),
    "model.pt": lambda: plain_zip([("archive/data.pkl", TEXT), ("archive/data/0", _noise(999))], zipfile.ZIP_STORED),
    # what must be converted first
    "logs.7z": lambda: b"7z\xbc\xaf\x27\x1c" + _noise(200),
    "logs.rar": lambda: b"Rar!\x1a\x07\x01\x00" + _noise(200),
    "system.journal": lambda: b"LPKSHHRH" + _noise(500),
    "system.journal.gz": lambda: gzip.compress(b"LPKSHHRH" + _noise(500), mtime=0),
    "screen.png": lambda: b"\x89PNG\r\n\x1a\n" + _noise(500),
    "core.4711": lambda: b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00\x3e\x00" + _noise(500),
    "python3": lambda: b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + _noise(500),
    "mail.pdf": lambda: b"%PDF-1.7\n" + _noise(500),
    # Flight Recorder dumps that are none
    "comm_lib_trace_rank_0": lambda: b"cposix\nsystem\n(S'touch OWNED'\ntR.",
    "comm_lib_trace_rank_1": lambda: b"\x80\x02Nr\xff\xff\xff\x07.",  # LONG_BINPUT: a memo of 2^27 places
    "comm_lib_trace_rank_2": lambda: b"\x80\x02" + b"}" * 1_000_000 + b".",
    "comm_lib_trace_rank_3": lambda: b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f" + b"}.",
    "comm_lib_trace_rank_4": lambda: b"\x80\x02" + b"]" + b"]a" * 1 + b"(" * 1_000_000 + b".",
    "comm_lib_trace_rank_5": lambda: b"\x80\x02}q\0X\x07\0\0\0entriesq\1h\0s.",  # holds itself
}
"""Name → content."""


def write(folder: Path, only: Iterable[str] | None = None) -> Path:
    """Put the pile (or some of it) into `folder`, with links, a pipe, and names that are no text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PILE if only is None else only:
        (folder / name).write_bytes(PILE[name]())
    if only is None and sys.platform != "win32":
        for name, target in (("to-etc", "/etc"), ("up", ".."), ("loop", "loop"), ("to-log", "crlf.log")):
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(target)
        if not (folder / "pipe").exists():
            os.mkfifo(folder / "pipe")
        for raw in (b"caf\xe9 \xff.log", b"new\nline.log", b"--help", b"a space & $(touch OWNED) 'quote\".log"):
            Path(os.fsdecode(os.fsencode(folder) + b"/" + raw)).write_bytes(TEXT)
        deep = folder
        for _ in range(60):
            deep = deep / "deep"
        deep.mkdir(parents=True, exist_ok=True)
        (deep / "deep.log").write_bytes(TEXT)
    return folder
