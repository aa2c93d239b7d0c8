"""The members of a tar, read forwards.

Formats: POSIX.1-2017 pax and the GNU tar manual's "Basic Tar Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from nccl_forensics.intake.compressed import RESTARTS
from nccl_forensics.intake.foreign import fit_to_show
from nccl_forensics.intake.limits import Meter, amount
from nccl_forensics.intake.places import Place, members, stopped
from nccl_forensics.intake.readers import Part, Reader, Source

PAX_BYTES = 1 << 20
"""Most bytes of an extended header that are looked at. Our judgement: names end at 4 kB."""


EXTENDED = b"xXgLK"
"""Kinds of headers that speak of the next member, or (g) of all that follow: pax, and GNU's long names and links."""
WITHOUT_DATA = b"123456"
"""Kinds of members behind which no data stands, whatever size they say."""
NO_MEMBERS = b"VD"
"""GNU's volume label and its list of a folder's names."""


@dataclass(frozen=True, slots=True)
class _TarHeader:
    name: bytes
    size: int
    mtime_s: int
    kind: bytes
    link: bytes
    more: bool
    """Old GNU sparse: a block with more of the map follows."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A member, after all that was said of it."""

    kind: bytes
    name: bytes
    link: bytes
    size: int
    mtime_ns: int | None
    mapped: bool
    """Sparse as pax 1.0 has it: a map stands before the data."""

    @property
    def is_listed(self) -> bool:
        """Does it get a row? Folders don't."""
        folder = self.kind == b"5" or (self.kind in b"0\0" and self.name.endswith(b"/"))
        return not folder and self.kind not in NO_MEMBERS

    @property
    def refused(self) -> str | None:
        """Why it is not read, where it is no file."""
        if self.kind == b"1":
            return f"another name of {fit_to_show(self.link)}, which is read under that name"
        if self.kind == b"2":
            target = fit_to_show(self.link)
            return f"link to {target}: not followed. If that is missing here, pack it with tar -h"
        return _KINDS.get(self.kind)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What extended headers have said of the next member, and of all that follow."""

    own: Mapping[bytes, bytes] = field(default_factory=dict)
    """The next member's pax records."""
    every: Mapping[bytes, bytes] = field(default_factory=dict)
    """The global pax records."""
    long_name: bytes | None = None
    long_link: bytes | None = None

    def size(self, header: _TarHeader) -> int:
        """Bytes that stand behind this header."""
        if header.kind in WITHOUT_DATA:
            return 0
        return _number_or(self.own.get(b"size") or self.every.get(b"size"), header.size)

    def learned(self, kind: bytes, data: bytes) -> _Ahead:
        """With what one more extended header says."""
        if kind == b"g":
            return replace(self, every=_pax(data))
        if kind in b"xX":
            return replace(self, own=_pax(data))
        text = data.split(b"\0", 1)[0]
        return replace(self, long_name=text) if kind == b"L" else replace(self, long_link=text)

    def behind(self) -> _Ahead:
        """What still holds when the next member has gone by."""
        return _Ahead(every=self.every)

    def member(self, header: _TarHeader) -> _Member:
        own = self.own
        name = own.get(b"GNU.sparse.name") or own.get(b"path") or self.long_name or self.every.get(b"path")
        return _Member(
            kind=header.kind,
            name=name or header.name,
            link=own.get(b"linkpath") or self.long_link or header.link,
            size=self.size(header),
            mtime_ns=time_ns(own.get(b"mtime"), header.mtime_s),
            mapped=own.get(b"GNU.sparse.major") == b"1",
        )


def _number(field_: bytes) -> int | None:
    """A tar number: octal digits, or base 256 where the first bit is set (GNU tar manual, "Basic Tar Format")."""
    if field_[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field_[1:], "big") if field_[0] == 0x80 else None
    digits = field_.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else None


_SEVEN_BITS = bytes(range(128))


def _sums_up(block: bytes, said: int) -> bool:
    """Is this the checksum of a header, whose own field counts as blanks? Some old tars summed signed bytes."""
    rest = block[:148] + b" " * 8 + block[156:]
    total = sum(rest)
    return said == total or said == total - 256 * len(rest.translate(None, _SEVEN_BITS))


def tar_header(block: bytes) -> _TarHeader | None:
    """A header with a right checksum, of any tar since 1979; None for anything else."""
    if len(block) < 512:
        return None
    said = _number(block[148:156])
    if not said or not _sums_up(block, said):
        return None
    size, mtime = _number(block[124:136]), _number(block[136:148])
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":  # not GNU's "ustar ": it has other things there
        prefix = block[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    if size is None or size >= 1 << 62:
        return None
    kind, link = block[156:157], block[157:257].split(b"\0", 1)[0]
    return _TarHeader(name, size, mtime or 0, kind, link, kind == b"S" and block[482] == 1)


def _pax(data: bytes) -> dict[bytes, bytes]:
    """The records "LENGTH KEY=VALUE\\n" of an extended header, as far as they can be read."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        length = re.compile(rb"(\d{1,9}) ").match(data, at)
        if not length or int(length[1]) <= len(length[0]) or at + int(length[1]) > len(data):
            break
        end = at + int(length[1])
        key, equals, value = data[length.end() : end - 1].partition(b"=")
        if equals:
            found[key] = value
        at = end
    return found


_KINDS = {
    b"3": "a device: not a file",
    b"4": "a device: not a file",
    b"6": "a named pipe: not a file",
    b"M": "a part of a multi-volume tar: put the volumes together (tar -xM) and give the folder",
}


def tar(reader: Reader, archive: Place, meter: Meter) -> Iterator[Source]:
    """The members of a tar, read forwards. Damaged headers are skipped to the next good one."""
    ahead = _Ahead()
    found = damaged = 0
    at_end = False  # zeros stand before: the end mark
    while True:
        if stop := stopped(archive, meter):
            yield stop
            return
        block = reader.read(512)
        if len(block) < 512:
            if why := reader.trouble or _cut(block, at_end):
                yield archive.refused(f"{why} ({members(found)} before it)", "partial" if found else "failed")
            break
        if not block.strip(b"\0"):
            at_end = True
            continue
        header = tar_header(block)
        if header is None:
            if at_end:
                break  # padding behind the end mark
            damaged += 1
            skipped = _to_header(reader, meter) if damaged <= RESTARTS else None
            yield _damage(archive, found, skipped)
            if skipped is None:
                break
            continue
        at_end = False
        size = ahead.size(header)
        body = Part(reader, size)
        if header.kind in EXTENDED:
            ahead = ahead.learned(header.kind, body.read(min(size, PAX_BYTES)))
            body.drain()
            reader.skip(-size % 512)
            continue
        member, ahead = ahead.member(header), ahead.behind()
        if header.more:
            _pass_old_map(reader)
        if member.is_listed:
            found += 1
            yield from _rows(member, body, archive, meter)
        if body.drain():
            reader.skip(-size % 512)
    if at_end and not found and not damaged:
        yield archive.refused("an archive without a file in it")


def _cut(block: bytes, at_end: bool) -> str | None:
    """What is wrong with a tar whose last block is this one, which is not whole."""
    ended_well = at_end and not block
    return None if ended_well else "the tar has no end mark: it breaks off. Copy it again"


def _damage(archive: Place, found: int, skipped: int | None) -> Source:
    """The row of a damaged header; `skipped`: bytes up to the next good one, None if there is none."""
    rest = "the rest was not read" if skipped is None else f"{amount(skipped + 512)} were left out"
    return archive.refused(
        f"a tar header is damaged after {members(found)}: {rest}. Copy the archive again in binary mode",
        "partial" if found or skipped is not None else "failed",
    )


def _rows(member: _Member, body: Part, archive: Place, meter: Meter) -> Iterator[Source]:
    """What is in one member, or why it isn't read."""
    place = archive.member(member.name, member.size, member.mtime_ns)
    if reason := member.refused:
        yield place.left_out(reason, meter)
        return
    if member.mapped:
        _pass_map(body)
    yield from place.contents(body, meter)


def _number_or(digits: bytes | None, otherwise: int) -> int:
    return int(digits) if digits and re.fullmatch(rb"\d{1,18}", digits) else otherwise


def time_ns(pax: bytes | None, header_s: int) -> int | None:
    """Modification time, ns UTC; None for one before 1980 or after 2200: then nobody set it."""
    whole, fraction = header_s, 0
    if pax and (parts := re.fullmatch(rb"(\d{1,12})(?:\.(\d{1,20}))?", pax)):
        whole, fraction = int(parts[1]), int((parts[2] or b"").ljust(9, b"0")[:9])
    return whole * 10**9 + fraction if 315_532_800 <= whole < 7_258_118_400 else None


def _to_header(reader: Reader, meter: Meter) -> int | None:
    """Go to the next good header; the bytes passed over, None if there is none."""
    passed = 0
    while not meter.over():
        block = reader.peek(512)
        if len(block) < 512:
            return None
        if block[257:262] == b"ustar" and tar_header(block[:512]) is not None:
            return passed
        reader.skip(512)
        passed += 512
    return None


def _pass_old_map(reader: Reader) -> None:
    """Pass over the blocks of an old GNU sparse map that did not fit into the header."""
    more = True
    while more:
        block = reader.read(512)
        more = len(block) == 512 and block[504] == 1


def _pass_map(body: Part) -> None:
    """Pass over the map before a sparse file's data (GNU tar manual, "PAX Format, Version 1.0"). Holes stay out."""
    block = body.read(512)
    count = _number_or(block.split(b"\n", 1)[0], 0)
    lines = block.count(b"\n")
    while lines < 2 * count + 1:
        block = body.read(512)
        if not block:
            return
        lines += block.count(b"\n")
