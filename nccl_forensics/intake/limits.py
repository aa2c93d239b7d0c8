"""How far one run goes with files from strangers, and the meter that holds it to that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int], None]
"""(path of a file on disk, bytes of it read so far): called every few megabytes and at its end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one run goes with files from strangers. The numbers are judgements; the reasons stand beside them."""

    members: int = 200_000
    """Rows in all. A must-gather of a large cluster has some 50,000 files."""
    total_bytes: int = 256 << 30
    """Bytes unpacked in all: a few minutes of gzip. Files that lie unpacked on disk don't count."""
    ratio: int = 250
    """Bytes unpacked from one file on disk, all layers together, over its size. Logs reach 10–50, gzip at most 1032."""
    ratio_from_bytes: int = 1 << 30
    """The ratio counts only beyond this: a small file of one repeated line or of NULs is no attack, and cheap."""
    depth: int = 8
    """Layers: x.tar.gz is two. A bug report inside a zip inside a tar.gz is four."""
    memory_bytes: int = 16 << 20
    """Up to this size a zip inside an archive is held in memory and read by its table; a larger one, forwards."""
    seconds: int = 3600
    """Unpacking one file on disk, without the time of whoever reads. 20 GB of text take 80 s in xz, the slowest."""


DEFAULT_LIMITS = Limits()


def option(name: str) -> str:
    """How the command line calls a field of `Limits`."""
    return "--max-" + name.replace("_", "-")


@dataclass(slots=True)
class Totals:
    """What all files together have cost."""

    members: int = 0
    unpacked_bytes: int = 0


class Meter:
    """What one file on disk has cost, and whether a limit is reached."""

    def __init__(
        self, path: str, size: int | None, limits: Limits, totals: Totals, progress: Progress | None = None
    ) -> None:
        self.path, self.size, self.limits, self.totals, self.progress = path, size, limits, totals, progress
        self.disk_bytes = 0
        self.unpacked_bytes = 0
        self._told = 0
        self._used_s = 0.0
        self._since: float | None = None
        self._over: str | None = None

    def enter(self) -> bool:
        """Start the clock. False if it runs already."""
        if self._since is not None:
            return False
        self._since = time.perf_counter()
        return True

    def leave(self) -> None:
        if self._since is not None:
            self._used_s += time.perf_counter() - self._since
            self._since = None
        if self.progress and self.disk_bytes - self._told >= 1 << 22:
            self.tell()

    def tell(self) -> None:
        if self.progress:
            self._told = self.disk_bytes
            self.progress(self.path, self.disk_bytes)

    def unpacked(self, n: int) -> None:
        self.unpacked_bytes += n
        self.totals.unpacked_bytes += n

    def over(self) -> str | None:
        """The limit that is reached, in words; it stays reached."""
        if self._over:
            return self._over
        limits = self.limits
        used_s = self._used_s + (time.perf_counter() - self._since if self._since is not None else 0.0)
        disk = max(self.size or self.disk_bytes, 1)
        if self.totals.unpacked_bytes > limits.total_bytes:
            self._over = f"stopped: more than {amount(limits.total_bytes)} unpacked in all ({option('total_bytes')})"
        elif self.unpacked_bytes > limits.ratio_from_bytes and self.unpacked_bytes > limits.ratio * disk:
            self._over = (
                f"stopped: unpacks to more than {limits.ratio} times its {amount(disk)}, as a decompression bomb does "
                f"({option('ratio')}). If it is genuine, unpack it and give the folder"
            )
        elif used_s > limits.seconds:
            self._over = f"stopped: unpacking took longer than {limits.seconds} s ({option('seconds')})"
        return self._over


def amount(n: int) -> str:
    if n < 10_000:
        return f"{n:,} bytes"
    size, units = n / 1000, ["kB", "MB", "GB", "TB", "PB", "EB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}"
