"""`--hosts`: who ran where, by the user's word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from nccl_forensics.errors import InputError
from nccl_forensics.model import Gpu
from nccl_forensics.names import normal_pci
from nccl_forensics.who.identities import Place


def read_hosts_file(path: Path) -> dict[int, Place]:
    """Lines of `rank host [local-rank|-] [gpu-index|pci|-]`, separated by blanks or commas; # comments.

    Raises InputError with the line that can't be understood.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as err:
        raise InputError(
            f"{path} can't be read as text ({err}). It should hold lines like: 3 node07 3 0000:c1:00.0"
        ) from err
    places: dict[int, Place] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = [w for w in re.split(r"[\s,;]+", line.split("#", 1)[0].strip()) if w]
        if not words or _is_header(words):
            continue
        where = f"{path}:{number}"
        if not _is_understood(words):
            raise InputError(f"{where}: {line.strip()!r} is not `rank host [local-rank] [gpu-index or PCI address]`.")
        local_rank = _column(words, 2)
        gpu = _gpu(words[1], _column(words, 3), where)
        places[int(words[0])] = Place(words[1], int(local_rank) if local_rank else None, None, gpu)
    return places


def _is_header(words: Sequence[str]) -> bool:
    return words[0].lower() == "rank" and not any(w.isdigit() for w in words[1:2])


def _is_understood(words: Sequence[str]) -> bool:
    local_rank = _column(words, 2)
    return len(words) > 1 and words[0].isdigit() and (local_rank is None or local_rank.isdigit())


def _column(words: Sequence[str], number: int) -> str | None:
    return words[number] if len(words) > number and words[number] != "-" else None


def _gpu(host: str, written: str | None, where: str) -> Gpu | None:
    """The card of a line: by its index if that is a number, else by its address."""
    if written is None:
        return None
    if written.isdigit():
        return Gpu(host=host, index=int(written))
    pci = normal_pci(written)
    if pci is None:
        raise InputError(f"{where}: {written!r} is neither a GPU index nor a PCI address such as 0000:c1:00.0.")
    return Gpu(host=host, pci=pci)
