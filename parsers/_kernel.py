"""What the parsers of kernel-side lines share: addresses, quotations, the first minute of a boot."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nccl_forensics.model import Detail, Stamp

if TYPE_CHECKING:
    from nccl_forensics.lines.line import Line

LONGEST_MESSAGE = 2048
"""Characters of a message that regexes look at. printk records end at 1,024 bytes (LOG_LINE_MAX), audit lines later."""
BOOT_NS = 60_000_000_000
"""Most of what is printed in the first minute of a boot explains no job's failure; our judgement, measured on ten bug
reports (docs of the kernel formats, section 6)."""

_PCI = re.compile(
    r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?\.?",
    re.IGNORECASE,
)
_DOCUMENTS = frozenset(
    {".md", ".markdown", ".rst", ".html", ".htm", ".eml", ".mbox", ".adoc", ".org", ".tex", ".ipynb"}
)
_BUILT = re.compile(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [A-Z]{2,5} (?:19|20)\d\d\b")
_LINE_END = re.compile(r"\r\n|\n|\r")
_WORDS = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,} [A-Za-z]{2,}")
_JSON_VALUE = re.compile(r'[:,\[]\s*\\?"$')
_PRIORITY = re.compile(r"<\d{1,3}>$")
"""syslog's, which ends with the same sign as a quotation in a mail."""
_ASKING = re.compile(r"(?:example|e\.g\.|note|grep|echo|logger|see|like|says)[:,]?$", re.IGNORECASE)


def pci_address(written: str | None) -> str | None:
    """'dddd:bb:dd.f' in lower case from any spelling of the driver, lspci or nvidia-smi; None if it is no address.

    A missing domain is 0000 and a missing function 0: the driver leaves both out. Domains above ffff keep eight digits.
    """
    if written is None:
        return None
    return _pci_address(written.strip())


@lru_cache(maxsize=4096)
def _pci_address(written: str) -> str | None:
    found = _PCI.fullmatch(written)
    if found is None:
        return None
    domain = int(found["domain"] or "0", 16)
    return (
        f"{domain:0{4 if domain <= 0xFFFF else 8}x}:{found['bus']}:{found['device']}.{found['function'] or 0}".lower()
    )


def address_of_gpu_id(gpu_id: str) -> str:
    """The address in nvidia-drm's GPU ID: domain << 16 | bus << 8 | device << 3, in hexadecimal."""
    number = int(gpu_id, 16)
    return f"{number >> 16:04x}:{number >> 8 & 0xFF:02x}:{(number & 0xFF) >> 3:02x}.0"


@lru_cache(maxsize=16)
def _is_document(path: str) -> bool:
    return PurePosixPath(path.rsplit("!", 1)[-1]).suffix.lower() in _DOCUMENTS


def is_quoted(line: Line, text: str, start: int, *, at_start: bool = True) -> bool:
    """Whether the message at `start` of `text` is quoted in a mail, a runbook or a command rather than logged.

    What stands before a logged message is a prefix: stamps, a host, a tag with a colon. Prose has words or a quotation
    mark there. `at_start`: nothing of the message itself stands before `start`. Our judgement; a bare kernel line in
    the middle of a text file cannot be told from a log.
    """
    if _is_document(line.path):
        return True
    before = text[:start].rstrip()
    if not before:
        return False
    first = before.lstrip()[0]
    if first in '{"[' and _JSON_VALUE.search(before):
        return False
    return _opens_a_quotation(before, first, at_start) or _is_prose(before, at_start)


def _opens_a_quotation(before: str, first: str, at_start: bool) -> bool:
    """A quotation mark right before the message, or the sign of a mail, of Markdown or of a comment before that."""
    last = before[-1]
    if last in "\"'`“‘«" or first in "|`#*>" or (at_start and last in "(*#\\"):
        return True
    return last == ">" and not _PRIORITY.search(before)


def _is_prose(before: str, at_start: bool) -> bool:
    word = before.split()[-1]
    return (at_start and word.isalpha()) or _ASKING.search(word) is not None or _WORDS.search(before) is not None


def build_date(text: str) -> dict[str, Detail]:
    """`build_date` as a kernel or driver banner writes it ('Mon Dec 30 17:44:08 UTC 2024'): no log line is older."""
    found = _BUILT.search(text)
    return {"build_date": found[0]} if found else {}


def note_boot(line: Line) -> None:
    """Remember that the boot of this file's next lines began at this line."""
    line.window.state["kernel.boot"] = line.stamp


def is_early(line: Line) -> bool:
    """Whether the line was printed in the first minute of a boot. False where nothing tells.

    Without printk's own clock the distance from the boot's first line in the same file decides.
    """
    if line.stamp is None:
        return False
    if line.stamp.boot_ns is not None:
        return line.stamp.boot_ns < BOOT_NS
    boot: Stamp | None = line.window.state.get("kernel.boot")
    if boot is None or boot.wall_ns is None or line.stamp.wall_ns is None:
        return False
    return 0 <= line.stamp.wall_ns - boot.wall_ns < BOOT_NS


def lines_of_block(line: Line, most: int) -> list[str]:
    """The texts of up to `most` lines behind `line`, as written, as far as a kilobyte for each reaches."""
    window = line.window
    text = bytes(window.buffer[line.end : min(line.end + most * 1024, window.end)]).decode("utf-8", "backslashreplace")
    return _LINE_END.split(text)[1 : most + 1]
