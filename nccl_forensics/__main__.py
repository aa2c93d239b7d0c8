"""The command `nccl-forensics`, also as `python -m nccl_forensics`: its process, as against the commands in `cli`."""

from __future__ import annotations

import atexit
import gc

from nccl_forensics.cli import main

YOUNG_OBJECTS = 100_000
"""New objects before the collector of circles walks over them; Python's own 700 cost a small pile 6 % of its time."""


def run() -> None:
    """Run the command line. What is read lives until the end and has few circles: they are looked for rarely."""
    gc.set_threshold(YOUNG_OBJECTS, 50, 50)
    atexit.register(gc.freeze)
    main()


if __name__ == "__main__":
    run()
