"""Many megabytes of logs of machines and jobs that are well: does anything alarm, and how fast is that said?

    python benchmarks/healthy.py [MEGABYTES] [SEEDS]

Default: 220 MB or more, made from 4 seeds by tests/healthy.py in a temporary folder, each pile analyzed as a whole.
Prints what was read, every incident (there should be none), every event of role cause (none) and the kinds of symptoms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import healthy  # noqa: E402

from nccl_forensics.pipeline import analyze  # noqa: E402


def main(megabytes: float, seeds: int) -> int:
    """Exit status: 0 if nothing alarmed."""
    size = files = incidents = 0
    spent_s = 0.0
    alarming: Counter[tuple[str, str]] = Counter()
    for seed in range(1, seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            size += healthy.write(Path(folder), seed, round(megabytes * 1e6 / seeds))
            start = time.process_time()
            found = analyze([folder])
            spent_s += time.process_time() - start
            files += len(found.rows)
            for incident in found.incidents:
                incidents += 1
                print(f"seed {seed}: {incident.verdict.status}: {incident.verdict.summary}")
            alarming.update((e.role, e.kind) for e in found.events if e.role in ("cause", "symptom"))
    print(f"{size / 1e6:.0f} MB in {files} files: {spent_s:.1f} s CPU ({size / 1e6 / spent_s:.0f} MB/s)")
    print(
        f"{incidents} incidents, {sum(n for (role, _), n in alarming.items() if role == 'cause')} events of role cause"
    )
    for (role, kind), number in sorted(alarming.items()):
        print(f"  {role:8} {kind:24} {number:,}")
    return int(incidents > 0 or any(role == "cause" for role, _ in alarming))


if __name__ == "__main__":
    sys.exit(main(float((sys.argv[1:] or ["220"])[0]), int((sys.argv[2:] or ["4"])[0])))
