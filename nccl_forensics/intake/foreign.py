"""What a file is by its first bytes, where it is no log; text that is not UTF-8; names that are fit to be shown."""

from __future__ import annotations

import codecs
import os
import re

from nccl_forensics.intake.readers import STEP, Reader

LONGEST_NAME = 400
"""Characters of a member's name that are shown. Our judgement; PATH_MAX is 4096, a hostile pax header has no bound."""


class Recode(Reader):
    """UTF-16 or UTF-32 text as UTF-8. What is no character becomes U+FFFD."""

    def __init__(self, parent: Reader, encoding: str) -> None:
        super().__init__()
        self._parent = parent
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._out = memoryview(b"")
        self._piece = bytearray(STEP)

    @property
    def taken(self) -> int:
        return self._parent.taken

    def _fill(self, view: memoryview) -> int:
        while not len(self._out):
            n = self._parent.readinto(self._piece)
            self._out = memoryview(self._decoder.decode(self._piece[:n]).encode())
            if not n:
                self.trouble, self.remark = self._parent.trouble, self._parent.remark
                break
        n = min(len(self._out), len(view))
        view[:n] = self._out[:n]
        self._out = self._out[n:]
        return n


_CONVERT: tuple[tuple[int, bytes, str], ...] = (
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it (7z x FILE) and give the folder"),
    (0, b"Rar!\x1a\x07", "a rar archive: unpack it (unrar x FILE, or 7z x FILE) and give the folder"),
    (0, b"\x04\x22\x4d\x18", "lz4: unpack it (lz4 -d FILE) and give the result"),
    (0, b"\x1f\x9d", "an old compress file (.Z): unpack it (gzip -d FILE) and give the result"),
    (0, b"LZIP", "lzip: unpack it (lzip -d FILE) and give the result"),
    (0, b"\x89LZO\0\r\n", "lzop: unpack it (lzop -d FILE) and give the result"),
    (0, b"070701", "a cpio archive: unpack it (cpio -id < FILE) and give the folder"),
    (0, b"070702", "a cpio archive: unpack it (cpio -id < FILE) and give the folder"),
    (0, b"070707", "a cpio archive: unpack it (cpio -id < FILE) and give the folder"),
    (0, b"MSCF\0\0\0\0", "a Windows cabinet: unpack it (7z x FILE) and give the folder"),
    (0, b"!<arch>\n", "an ar archive or .deb: unpack it (ar x FILE) and give the folder"),
    (0, b"\xed\xab\xee\xdb", "an rpm package: no log"),
    (
        0,
        b"LPKSHHRH",
        "a binary systemd journal: convert it (unpack it first if it is compressed) with "
        "journalctl --file FILE -o short-iso-precise > FILE.log, and give that",
    ),
    (0, b"ElfFile\0", "a Windows event log: convert it (wevtutil qe FILE /lf /f:text > FILE.log) and give that"),
    (0, b"KDUMP   ", "a kernel crash dump: take its log out (makedumpfile --dump-dmesg FILE FILE.log) and give that"),
    (0, b"\x89PNG\r\n\x1a\n", "an image: copy the text itself out of the terminal or log viewer"),
    (0, b"\xff\xd8\xff", "an image: copy the text itself out of the terminal or log viewer"),
    (0, b"GIF8", "an image: copy the text itself out of the terminal or log viewer"),
    (0, b"II*\0", "an image: copy the text itself out of the terminal or log viewer"),
    (8, b"WEBPVP8", "an image: copy the text itself out of the terminal or log viewer"),
    (4, b"ftyp", "a video or image: copy the text itself out of the terminal or log viewer"),
    (0, b"%PDF-", "a PDF: convert it (pdftotext -layout FILE FILE.txt) and give that"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document or mail: save its text as a .txt file"),
    (0, b"SQLite format 3\0", "an SQLite database: export what it holds as text"),
    (0, b"PERFILE2", "a perf recording: convert it (perf script -i FILE > FILE.txt) if it matters"),
    (0, b"\xd4\xc3\xb2\xa1", "a packet capture: no log"),
    (0, b"\x0a\x0d\x0d\x0a", "a packet capture: no log"),
    (0, b"\x93NUMPY", "a NumPy array: no log"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file: no log"),
    (0, b"PAR1", "a Parquet file: convert it to CSV or JSON if it holds logs"),
    (0, b"\xca\xfe\xba\xbe", "a compiled program: no log"),
    (0, b"MZ\x90\0", "a Windows program: if it unpacks itself, run it and give what comes out"),
)
_AT_START = tuple(magic for offset, magic, _ in _CONVERT if not offset)


def cannot(head: bytes, name: str) -> str | None:
    """Why a file that starts like this is not analysed, and what to do about it."""
    first = head.startswith(_AT_START)
    for offset, magic, reason in _CONVERT:
        if (first or offset) and head.startswith(magic, offset):
            name = re.sub(r"\.(?:gz|bz2|xz|zst)$", "", name)
            return reason.replace("FILE", name if re.fullmatch(r"\w[\w.,+-]*", name) else "FILE")
    if head.startswith(b"\x7fELF"):
        if _is_core(head):
            return "a core dump: write its stacks down (gdb -batch -ex 'thread apply all bt' PROGRAM CORE > bt.txt)"
        return "a compiled program: no log"
    return _of_zip(head) if head.startswith(b"PK\x03\x04") else None


def _is_core(head: bytes) -> bool:
    """Of an ELF file: e_type is ET_CORE, in the byte order that EI_DATA tells (elf(5))."""
    return len(head) > 18 and int.from_bytes(head[16:18], "big" if head[5] == 2 else "little") == 4


def _of_zip(head: bytes) -> str | None:
    """What a zip is by its first member, where it is no archive of logs."""
    length = int.from_bytes(head[26:28], "little")
    member = head[30 : 30 + length]
    if member == b"[Content_Types].xml":
        return "an Office document: save its text as a .txt file and give that"
    if member.endswith(b"/data.pkl"):
        return "a PyTorch checkpoint: no log"
    return None


_PRINTABLE = bytes((*b"\t\r\n\x1b", *range(32, 127)))


def encoding_of(head: bytes) -> tuple[str | None, int]:
    """Encoding that is not UTF-8, or None, and the length of the byte order mark."""
    if head.startswith(codecs.BOM_UTF8):
        return None, 3
    if head.startswith(codecs.BOM_UTF32_LE):
        return "utf-32-le", 4
    if head.startswith(codecs.BOM_UTF32_BE):
        return "utf-32-be", 4
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le", 2
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be", 2
    # The tail of a UTF-16 file has no mark: nearly every second byte is NUL, the others are printable ASCII.
    some = head[: min(len(head), 512) & ~1]
    if len(some) >= 16:
        for first, encoding in ((0, "utf-16-le"), (1, "utf-16-be")):
            text, nulls = some[first::2], some[1 - first :: 2]
            if nulls.count(0) >= 0.9 * len(nulls) and len(text.translate(None, _PRINTABLE)) <= 0.1 * len(text):
                return encoding, 0
    return None, 0


def fit_to_show(name: str | bytes, most: int = LONGEST_NAME) -> str:
    """A name fit to be shown: valid Unicode, nothing that cannot be printed or turns the line round, not too long."""
    if isinstance(name, str):
        try:
            raw = name.encode("utf-8", "surrogateescape")  # as Python holds file names that are not UTF-8
        except UnicodeEncodeError:
            raw = name.encode("utf-8", "backslashreplace")
    else:
        raw = name
    text = raw[: 16 * most].decode("utf-8", "backslashreplace")
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-most // 2 :]}"
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else _escaped(ord(x)) for x in text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def last(path: str) -> str:
    return re.split(r"[/!\\]" if os.sep == "\\" else "[/!]", path.rstrip("/"))[-1] or path
