"""How hosts and cards are written, and when two ways of writing mean one."""

from __future__ import annotations

import re
from functools import lru_cache

MOST_RANKS = 65_536
"""A higher rank is a misread number rather than a job."""


def same_host(a: str | None, b: str | None) -> bool:
    """Could these two names mean one machine? Unknown matches anything; FQDN and short name match."""
    if a is None or b is None:
        return True
    return a.lower() == b.lower() or short(a) == short(b)


@lru_cache(maxsize=65_536)
def short(host: str) -> str:
    """The name up to its first dot, lower case; IP addresses stay whole."""
    return host.lower() if re.fullmatch(r"[\d.]+|[0-9a-f:]*:[0-9a-f:]*", host) else host.lower().split(".", 1)[0]


def normal_pci(text: str | None) -> str | None:
    """'C1:00.0', '00000000:C1:00.0', 'PCI:0000:c1:00' → '0000:c1:00.0'; None if it is no PCI address."""
    if text is None:
        return None
    found = re.fullmatch(
        r"(?:PCI:|GPU)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.strip(), re.I
    )
    if not found:
        return None
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2]}:{found[3]}.{found[4] or '0'}".lower()
