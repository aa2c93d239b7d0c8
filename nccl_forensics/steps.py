"""What each step of a run did and how long it took, for `--verbose`."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("nccl_forensics")
"""What each step did; `--verbose` shows it."""


class Told:
    """Tells the log (`--verbose`) what a step did and how long it took."""

    def __init__(self, step: str) -> None:
        self.step, self.began = step, time.perf_counter()

    def __call__(self, did: str, then: str = "") -> None:
        """The step `did` this; the one that begins now is `then`."""
        now = time.perf_counter()
        log.info("%-12s%7.2f s  %s", self.step, now - self.began, did)
        self.step, self.began = then, now
