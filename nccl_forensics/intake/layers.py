"""One stream and all that is in it: itself, or, layer by layer, the members of the archives that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nccl_forensics.intake.compressed import Bzip2, Gzip, Xz, zstd
from nccl_forensics.intake.foreign import Recode, cannot, encoding_of, last
from nccl_forensics.intake.limits import Meter, option
from nccl_forensics.intake.places import EMPTY, Layer, Place
from nccl_forensics.intake.readers import HEAD, Disk, Reader, Source
from nccl_forensics.intake.tar_archive import tar, tar_header
from nccl_forensics.intake.zip_archive import zip


def contents(reader: Reader, place: Place, meter: Meter) -> Iterator[Source]:
    """What is in a stream: itself, or the members of the archive that it is."""
    meter.totals.members += 1
    if meter.totals.members > meter.limits.members:
        return  # the loop that drew this one says so
    head = reader.peek(HEAD)
    if not head:
        yield _empty(reader, place)
        return
    layer = _layer(head)
    if layer is not None:
        if place.depth >= meter.limits.depth:
            deep = f"more than {meter.limits.depth} layers of archives ({option('depth')}): unpack it, give the folder"
            yield place.refused(deep)
            return
        meter.totals.members -= 1
        place.depth += 1
        yield from layer(reader, place, meter)
        return
    if reason := cannot(head, last(place.path)):
        yield place.refused(reason)
        return
    encoding, mark = encoding_of(head)
    if mark:
        reader.read(mark)
    if encoding:
        reader = Recode(reader, encoding)
    if not reader.peek(1):
        yield _empty(reader, place)
        return
    source = Source(place.path, last(place.path), size=place.size, mtime_ns=place.mtime_ns, reader=reader)
    reader.meter = meter
    meter.leave()
    try:
        yield source
    finally:
        reader.meter = None
        meter.enter()
        if not isinstance(reader, Disk):
            reader.close()


def _empty(reader: Reader, place: Place) -> Source:
    """The row of a stream that gives nothing."""
    return place.refused(reader.trouble or EMPTY, "failed" if reader.trouble else "skipped")


def _layer(head: bytes) -> Layer | None:
    """What opens a compressed stream or an archive that starts like this."""
    if head.startswith(b"\x1f\x8b\x08"):
        return _unpacked(Gzip)
    if _is_bzip2(head):
        return _unpacked(Bzip2)
    if _is_xz_or_lzma(head):
        return _unpacked(Xz)
    if _is_zstd(head):
        return _unpacked(zstd)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")) and not cannot(head, ""):
        return zip
    if tar_header(head[:512]) is not None:
        return tar
    return None


def _is_bzip2(head: bytes) -> bool:
    """Its magic, a level, and a block or the end of an empty stream."""
    return head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")


def _is_xz_or_lzma(head: bytes) -> bool:
    """xz; or the older format, which has no magic: its usual properties, and a size that is not told."""
    return head.startswith(b"\xfd7zXZ\0") or (head.startswith(b"\x5d\0\0") and head[5:13] == b"\xff" * 8)


def _is_zstd(head: bytes) -> bool:
    """A frame, or one to be skipped (RFC 8878 §3.1)."""
    return head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5)


def _unpacked(make: Callable[[Reader, Meter], Reader | None]) -> Layer:
    def layer(reader: Reader, place: Place, meter: Meter) -> Iterator[Source]:
        inner = make(reader, meter)
        if inner is None:
            yield place.refused("zstd: install the reader (pip install zstandard), or unpack it (zstd -d FILE)")
            return
        yield from contents(inner, place, meter)

    return layer
