"""The members of a zip: by its table where all of it can be reached, else forwards from header to header.

Format: PKWARE's APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import lzma
import stat
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from nccl_forensics.intake.compressed import LZMA_MEMORY, Bzip2, Checked, Deflate, Xz, buffered, zstd
from nccl_forensics.intake.limits import Meter
from nccl_forensics.intake.places import Place, members, stopped
from nccl_forensics.intake.readers import Disk, Memory, Part, Reader, Slice, Source, Through
from nccl_forensics.intake.tar_archive import time_ns

BEHIND_MEMBERS = (b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x08")
"""What stands behind the last member of a whole zip: its table, or the ends of an empty one."""
DAMAGED = "the zip breaks off or is damaged here. Copy it again"
NOTHING_IN_IT = "an archive without a file in it"
NO_LENGTH = "its length stands nowhere before it: unpack the zip and give the folder"


@dataclass(slots=True)
class _ZipEntry:
    """A member as the table, or the header before its data, describes it (APPNOTE 4.3.7, 4.3.12)."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    mode: int | None
    """Unix file mode, where the archive tells."""
    offset: int
    mtime_ns: int | None

    @property
    def is_folder(self) -> bool:
        return self.name.endswith((b"/", b"\\")) and not self.size

    @property
    def sizes_behind(self) -> bool:
        """Its size and checksum stand behind its data (flag 3), and so its end is where the data itself ends."""
        return bool(self.flags & 8) and not self.packed


def _zip_extra(extra: bytes, entry: _ZipEntry, offset_too: bool) -> None:
    """Take 64-bit sizes (id 1, APPNOTE 4.5.3) and the UTC time (id 0x5455, Info-ZIP extrafld.txt) from the field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        data = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind == 1:
            values = iter([x[0] for x in struct.iter_unpack("<Q", data[: len(data) & ~7])])
            if entry.size == 0xFFFFFFFF:
                entry.size = next(values, entry.size)
            if entry.packed == 0xFFFFFFFF:
                entry.packed = next(values, entry.packed)
            if offset_too and entry.offset == 0xFFFFFFFF:
                entry.offset = next(values, entry.offset)
        elif kind == 0x5455 and len(data) >= 5 and data[0] & 1:
            entry.mtime_ns = time_ns(None, int.from_bytes(data[1:5], "little"))


def _zip_name(name: bytes, flags: int) -> bytes:
    """UTF-8 where it is, else code page 437, as APPNOTE's appendix D has it; Windows' own slashes turned."""
    if not flags & 0x800:
        try:
            name.decode()
        except UnicodeDecodeError:
            name = name.decode("cp437").encode()
    return name if b"/" in name else name.replace(b"\\", b"/")


def zip(reader: Reader, archive: Place, meter: Meter) -> Iterator[Source]:
    """The members of a zip: by its table where all of it can be reached, else forwards from header to header."""
    table: Disk | Memory
    if isinstance(reader, Disk) and reader.size is not None:
        table = reader
    else:
        data = reader.read(meter.limits.memory_bytes + 1)
        if len(data) > meter.limits.memory_bytes:
            reader.unread(data)
            yield from _zip_forwards(reader, archive, meter, "")
            return
        table = Memory(data)
        table.trouble = reader.trouble
    where = _zip_table(table)
    if where is not None:
        yield from _zip_by_table(table, *where, archive, meter)
        return
    table.restart()
    cut = table.trouble or "the zip has no table at its end: it breaks off, or is one part of several. Copy it again"
    yield from _zip_forwards(table, archive, meter, cut)


def _bytes_at(table: Disk | Memory, offset: int, n: int) -> bytes:
    """Up to `n` bytes; fewer at the end."""
    if offset < 0:
        return b""
    piece = bytearray(n)
    got = 0
    while got < n and (more := table.read_at(offset + got, memoryview(piece)[got:])):
        got += more
    return bytes(piece[:got])


def _zip_table(table: Disk | Memory) -> tuple[int, int, int] | None:
    """Start of the table, its end, and what must be added to the offsets in it; None if there is none."""
    size = table.size or 0
    tail_at = max(0, size - 65_557)
    tail = _bytes_at(table, tail_at, min(size, 65_557))
    at = len(tail)
    while (at := tail.rfind(b"PK\x05\x06", 0, at)) >= 0:
        if at + 22 <= len(tail):
            length, start = struct.unpack_from("<II", tail, at + 12)
            end = tail_at + at
            locator = _bytes_at(table, end - 20, 20)
            if locator.startswith(b"PK\x06\x07"):
                record_at = int.from_bytes(locator[8:16], "little")
                for place in (record_at, end - 20 - 56):
                    record = _bytes_at(table, place, 56)
                    if record.startswith(b"PK\x06\x06"):
                        length, start = struct.unpack_from("<QQ", record, 40)
                        end = place
                        break
            shift = end - length - start
            first = _bytes_at(table, start + shift, 4)
            if shift >= 0 and (first == b"PK\x01\x02" or not length):
                return start + shift, end, shift
    return None


def _zip_by_table(
    table: Disk | Memory, start: int, end: int, shift: int, archive: Place, meter: Meter
) -> Iterator[Source]:
    at, found = start, 0
    while at + 46 <= end:
        if stop := stopped(archive, meter):
            yield stop
            return
        row = _zip_row(table, at)
        if row is None:
            yield archive.refused(f"the zip's table is damaged after {members(found)}. Copy it again", "partial")
            return
        entry, length = row
        at += length
        if entry.is_folder:
            continue
        found += 1
        place = archive.member(_zip_name(entry.name, entry.flags), entry.size, entry.mtime_ns)
        if reason := _zip_refused(entry):
            yield place.left_out(reason, meter)
            continue
        data_at = _zip_data_at(table, entry.offset + shift)
        if data_at is None:
            yield place.refused("its data is not where the zip's table says. Copy the archive again", "failed")
            continue
        body = _zip_method(Slice(table, data_at, entry.packed), entry, meter)
        yield from _zip_member(body, entry, place, meter)
    if not found:
        yield archive.refused(NOTHING_IN_IT)


def _zip_row(table: Disk | Memory, at: int) -> tuple[_ZipEntry, int] | None:
    """The member in the table's row at `at` and how long the row is (APPNOTE 4.3.12); None if there is no row."""
    head = _bytes_at(table, at, 46)
    if not head.startswith(b"PK\x01\x02") or len(head) < 46:
        return None
    flags, method = struct.unpack_from("<HH", head, 8)
    crc, packed, size, name_n, extra_n, comment_n = struct.unpack_from("<IIIHHH", head, 16)
    attributes, offset = struct.unpack_from("<II", head, 38)
    more = _bytes_at(table, at + 46, name_n + extra_n)
    unix = head[5] == 3 and attributes >> 16
    entry = _ZipEntry(more[:name_n], flags, method, crc, packed, size, unix or None, offset, None)
    _zip_extra(more[name_n:], entry, True)
    return entry, 46 + name_n + extra_n + comment_n


def _zip_data_at(table: Disk | Memory, header_at: int) -> int | None:
    """Where a member's data starts, behind its own header (APPNOTE 4.3.7); None if there is no header."""
    local = _bytes_at(table, header_at, 30)
    if not local.startswith(b"PK\x03\x04") or len(local) < 30:
        return None
    name_n, extra_n = struct.unpack_from("<HH", local, 26)
    return header_at + 30 + int(name_n) + int(extra_n)


def _zip_refused(entry: _ZipEntry) -> str | None:
    if entry.mode is not None and stat.S_ISLNK(entry.mode):
        return "a link: not followed. If what it points to is missing here, pack it without zip -y"
    if entry.mode is not None and stat.S_IFMT(entry.mode) not in (0, stat.S_IFREG):
        return "a device, pipe or folder: not a file"
    if entry.flags & 1 or entry.method == 99:
        return "encrypted: unpack the zip with its password and give the folder"
    if entry.method == 9:
        return "packed with deflate64 (Windows does so above 2 GB): unpack the zip (7z x) and give the folder"
    if entry.method not in (0, 8, 12, 14, 93, 95):
        return f"packed in a way that is not supported (method {entry.method}): unpack the zip (7z x), give the folder"
    return None


def _zip_lzma(packed: Reader, meter: Meter) -> Reader:
    """LZMA in a zip: version, length of the properties, properties, raw stream (APPNOTE 5.8)."""
    head = packed.read(9)
    if len(head) < 9 or head[2:4] != b"\x05\0" or head[4] >= 225 or int.from_bytes(head[5:9], "little") > LZMA_MEMORY:
        nothing = Memory(b"")
        nothing.trouble = (
            packed.trouble or "its LZMA header is damaged, or wants too much memory: unpack the zip (7z x)"
        )
        return nothing
    lc, rest = head[4] % 9, head[4] // 9
    filters = [
        {
            "id": lzma.FILTER_LZMA1,
            "dict_size": max(int.from_bytes(head[5:9], "little"), 4096),
            "lc": lc,
            "lp": rest % 5,
            "pb": rest // 5,
        }
    ]
    one = Xz(packed, meter)
    one.name, one.magics = "lzma", (b"\0none",)
    one._start = buffered(lambda: lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters))
    return one


def _zip_method(packed: Reader, entry: _ZipEntry, meter: Meter) -> Reader | None:
    """The member's bytes, unpacked; None if nothing that reads zstd is installed."""
    if entry.method == 8:
        return Deflate(packed, meter)
    if entry.method == 12:
        return Bzip2(packed, meter)
    if entry.method == 14:
        return _zip_lzma(packed, meter)
    if entry.method == 93:
        return zstd(packed, meter)
    if entry.method == 95:
        return Xz(packed, meter)
    return packed


def _zip_member(body: Reader | None, entry: _ZipEntry, place: Place, meter: Meter) -> Iterator[Source]:
    if body is None:
        yield place.refused("packed with zstd: install the reader (pip install zstandard), or unpack the zip")
    else:
        # LZMA without an end mark ends where its size says; the others end by themselves.
        whole: Reader = Part(body, entry.size) if entry.method == 14 else body
        yield from place.contents(Checked(whole, entry.crc, entry.size), meter)


def _zip_forwards(reader: Reader, archive: Place, meter: Meter, cut: str) -> Iterator[Source]:
    """Members from header to header, for a zip whose table is out of reach or missing (then `cut` says so)."""
    found = 0
    while True:
        if stop := stopped(archive, meter):
            yield stop
            return
        mark = reader.peek(4)[:4]
        if mark == b"PK\x07\x08" and not found:
            reader.skip(4)  # a zip that was meant for several disks and fits on one
            continue
        entry = _zip_header(reader) if mark == b"PK\x03\x04" else None
        if entry is None:
            break
        if entry.is_folder and not entry.sizes_behind:
            reader.skip(entry.packed)
            continue
        found += 1
        size = None if entry.sizes_behind else entry.size
        place = archive.member(_zip_name(entry.name, entry.flags), size, entry.mtime_ns)
        reason = _zip_refused(entry)
        if not entry.sizes_behind:
            wrong = yield from _zip_by_size(reader, entry, reason, place, meter)
        elif not reason and entry.method == 8:  # only deflate tells its own end
            wrong = yield from _zip_to_its_end(reader, place, meter)
        else:
            yield place.left_out(reason or NO_LENGTH, meter)
            cut = "a member's end cannot be found, and what follows was not read. Unpack the zip and give the folder"
            break
        if wrong:
            cut = cut or wrong
            break
    if row := _zip_last_row(reader, archive, cut, found):
        yield row


def _zip_last_row(reader: Reader, archive: Place, cut: str, found: int) -> Source | None:
    """What is said of the archive itself, behind the last header that could be read."""
    if not cut and reader.peek(4)[:4] not in BEHIND_MEMBERS:
        cut = reader.trouble or DAMAGED
    if cut:
        return archive.refused(f"{cut} ({members(found)} found)", "partial" if found else "failed")
    return None if found else archive.refused(NOTHING_IN_IT)


def _zip_header(reader: Reader) -> _ZipEntry | None:
    """The member whose header is read (APPNOTE 4.3.7); None if the header is cut."""
    head = reader.read(30)
    if len(head) < 30:
        return None
    flags, method = struct.unpack_from("<HH", head, 6)
    crc, packed, size, name_n, extra_n = struct.unpack_from("<IIIHH", head, 14)
    name, extra = reader.read(name_n), reader.read(extra_n)
    if len(extra) < extra_n:
        return None
    entry = _ZipEntry(name, flags, method, crc, packed, size, None, 0, None)
    _zip_extra(extra, entry, False)
    return entry


def _zip_by_size(
    reader: Reader, entry: _ZipEntry, reason: str | None, place: Place, meter: Meter
) -> Generator[Source, None, str | None]:
    """A member whose size is known, read or left out for a `reason`. Returns why nothing can be read behind it."""
    part = Part(reader, entry.packed)
    if reason:
        yield place.left_out(reason, meter)
    else:
        yield from _zip_member(_zip_method(part, entry, meter), entry, place, meter)
    return None if part.drain() else reader.trouble or "the zip breaks off here. Copy it again"


def _zip_to_its_end(reader: Reader, place: Place, meter: Meter) -> Generator[Source, None, str | None]:
    """A member that ends where its deflate stream does. Returns why nothing can be read behind it."""
    body = Deflate(reader, meter)
    yield from place.contents(Through(body), meter)
    if body.drain() and _zip_descriptor(reader):
        return None
    return reader.trouble or body.trouble or DAMAGED


def _zip_descriptor(reader: Reader) -> bool:
    """Pass over the CRC and sizes behind a member (APPNOTE 4.3.9): 12 or 20 bytes, and a mark that may be missing."""
    some = reader.peek(28)[:28]
    for length in (16, 24) if some.startswith(b"PK\x07\x08") else (12, 20):
        if some[length : length + 4] in (b"PK\x03\x04", b"PK\x01\x02", b"PK\x06\x08"):
            reader.skip(length)
            return True
    return False
