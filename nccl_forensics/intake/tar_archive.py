"""The members of a tar, read forwards.

Formats: POSIX.1-2017 pax and the GNU tar manual's "Basic Tar Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nccl_forensics.intake.compressed import RESTARTS
from nccl_forensics.intake.foreign import fit_to_show
from nccl_forensics.intake.limits import Meter, amount
from nccl_forensics.intake.places import Place, at_the_bound, members
from nccl_forensics.intake.readers import Part, Reader, Source

PAX_BYTES = 1 << 20
"""Most bytes of an extended header that are looked at. Our judgement: names end at 4 kB."""


@dataclass(slots=True)
class _TarHeader:
    name: bytes
    size: int
    mtime_s: int
    kind: bytes
    link: bytes
    more: bool
    """Old GNU sparse: a block with more of the map follows."""


def _number(field_: bytes) -> int | None:
    """A tar number: octal digits, or base 256 where the first bit is set (GNU tar manual, "Basic Tar Format")."""
    if field_[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field_[1:], "big") if field_[0] == 0x80 else None
    digits = field_.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else None


def tar_header(block: bytes) -> _TarHeader | None:
    """A header with a right checksum, of any tar since 1979; None for anything else."""
    if len(block) < 512:
        return None
    said = _number(block[148:156])
    if not said:
        return None
    rest = block[:148] + b" " * 8 + block[156:]
    if said not in (sum(rest), sum(rest) - 256 * sum(x > 127 for x in rest)):  # some old tars summed signed bytes
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
    pax_all: dict[bytes, bytes] = {}
    pax: dict[bytes, bytes] = {}
    long_name: bytes | None = None
    long_link: bytes | None = None
    found = 0
    zeros = damaged = 0
    while True:
        if full := at_the_bound(archive, meter):
            yield full
            return
        if over := meter.over():
            yield archive.refused(over, "partial")
            return
        block = reader.read(512)
        if len(block) < 512:
            if reader.trouble or block or not zeros:
                why = reader.trouble or "the tar has no end mark: it breaks off. Copy it again"
                yield archive.refused(f"{why} ({members(found)} before it)", "partial" if found else "failed")
            break
        if not block.strip(b"\0"):
            zeros += 1
            continue
        header = tar_header(block)
        if header is None:
            if zeros:
                break  # padding behind the end mark
            damaged += 1
            skipped = _to_header(reader, meter) if damaged <= RESTARTS else None
            rest = "the rest was not read" if skipped is None else f"{amount(skipped + 512)} were left out"
            yield archive.refused(
                f"a tar header is damaged after {members(found)}: {rest}. Copy the archive again in binary mode",
                "partial" if found or skipped is not None else "failed",
            )
            if skipped is None:
                break
            continue
        zeros = 0
        size = _number_or(pax.get(b"size") or pax_all.get(b"size"), header.size)
        if header.kind in b"123456":  # these have no data, whatever they say
            size = 0
        body = Part(reader, size)
        if header.kind in b"xXgLK":
            data = body.read(min(size, PAX_BYTES))
            if header.kind == b"g":
                pax_all = _pax(data)
            elif header.kind in b"xX":
                pax = _pax(data)
            elif header.kind == b"L":
                long_name = data.split(b"\0", 1)[0]
            else:
                long_link = data.split(b"\0", 1)[0]
            body.drain()
            reader.skip(-size % 512)
            continue
        name = pax.get(b"GNU.sparse.name") or pax.get(b"path") or long_name or pax_all.get(b"path") or header.name
        link = pax.get(b"linkpath") or long_link or header.link
        mtime_ns = time_ns(pax.get(b"mtime"), header.mtime_s)
        more = header.more
        while more:
            block = reader.read(512)
            more = len(block) == 512 and block[504] == 1
        kind = header.kind
        if kind == b"5" or (kind in b"0\0" and name.endswith(b"/")) or kind in b"VD":
            pass
        elif kind in b"12":
            found += 1
            meter.totals.members += 1
            target = fit_to_show(link)
            says = (
                f"another name of {target}, which is read under that name"
                if kind == b"1"
                else f"link to {target}: not followed. If that is missing here, pack it with tar -h"
            )
            yield archive.member(name, size, mtime_ns).refused(says)
        elif kind in b"346M":
            found += 1
            meter.totals.members += 1
            yield archive.member(name, size, mtime_ns).refused(_KINDS[kind])
        else:
            found += 1
            if pax.get(b"GNU.sparse.major") == b"1":
                _sparse_map(body)
            yield from archive.member(name, size, mtime_ns).contents(body, meter)
        pax, long_name, long_link = {}, None, None
        if body.drain():
            reader.skip(-size % 512)
    if not found and not damaged and zeros:
        yield archive.refused("an archive without a file in it")


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


def _sparse_map(body: Part) -> None:
    """Pass over the map before a sparse file's data (GNU tar manual, "PAX Format, Version 1.0"). Holes stay out."""
    block = body.read(512)
    count = _number_or(block.split(b"\n", 1)[0], 0)
    lines = block.count(b"\n")
    while lines < 2 * count + 1:
        block = body.read(512)
        if not block:
            return
        lines += block.count(b"\n")
