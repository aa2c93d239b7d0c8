"""Side by side with PyTorch's own analyser: `python benchmarks/frtrace.py [RANKS ...] [--torch PYTHON]`.

Runs `torch.distributed.flight_recorder.fr_trace` (the command torchfrtrace) and this tool's reading and diagnosis, all
but the report, over the recorded cases that have pickles, then over made dumps of so many ranks (see
flight_recorder.py). A rank counts as named by torchfrtrace where it says "Culprit rank" or "missing ranks" of any
collective. Right: exactly the culprits are named, and nobody where nothing is amiss. `--torch` is a Python that has
torch; without one this says so and ends.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import flight_recorder  # noqa: E402

RECORDED = HERE.parent / "tests" / "cases" / "recorded"
MINUTES = 8
"""After how long a run is given up."""
# Both take folders as arguments and print for each a JSON list: the ranks named, or why there are none.
THEIRS = """
import io, json, logging, re, sys
from torch.distributed.flight_recorder import fr_trace
said = io.StringIO()
for name in [None, *logging.root.manager.loggerDict]:
    for handler in logging.getLogger(name).handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(said)
for folder in sys.argv[1:]:
    said.seek(0), said.truncate()
    try:
        fr_trace.main([folder])
        text = said.getvalue()
        ranks = re.findall(r"Culprit rank (\\d+)", text)
        ranks += [r for x in re.findall(r"missing ranks: [{](.*?)[}]", text) for r in x.split(",")]
        found = sorted({int(r) for r in ranks})
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"[:80]
    print("@", json.dumps(found))
"""
OURS = """
import json, sys
from nccl_forensics import pipeline
for folder in sys.argv[1:]:
    found = pipeline.conclude(pipeline.read([folder]))
    print("@", json.dumps(sorted({r for i in found.incidents for r in i.verdict.ranks})))
"""
MEASURE = """
import atexit, resource, time
began = time.monotonic()
def used():
    one = resource.getrusage(resource.RUSAGE_SELF)
    print("#", one.ru_utime + one.ru_stime, time.monotonic() - began, one.ru_maxrss / 1024)
atexit.register(used)
"""


def run(python: str, program: str, folders: list[Path]) -> tuple[list[Any], list[float]]:
    """What is said of each folder, and CPU seconds, wall seconds and peak MB; both empty if it takes too long."""
    try:
        done = subprocess.run(
            [python, "-c", MEASURE + program, *map(str, folders)],
            capture_output=True,
            text=True,
            cwd=HERE.parent,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        return [], []
    lines = done.stdout.splitlines()
    return (
        [json.loads(x[1:]) for x in lines if x.startswith("@")],
        [float(n) for x in lines if x.startswith("#") for n in x[1:].split()],
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("ranks", type=int, nargs="*", default=[64, 256])
    options.add_argument("--torch", default=sys.executable, metavar="PYTHON")
    given = options.parse_args()
    tools = {"torchfrtrace": (given.torch, THEIRS), "nccl-forensics": (sys.executable, OURS)}
    if subprocess.run([given.torch, "-c", "import torch.distributed.flight_recorder"], capture_output=True).returncode:
        print(
            f"{given.torch} has no torch with torch.distributed.flight_recorder (2.9 or newer): nothing to compare with"
        )
        return 0
    homes = [x.parent for x in sorted(RECORDED.glob("fr/*/expected.json")) if (x.parent / "fr").is_dir()]
    truth = [json.loads((x / "expected.json").read_text("utf-8"))["expect"].get("ranks") or [] for x in homes]
    for tool, (python, program) in tools.items() if homes else ():
        said, used = run(python, program, [x / "fr" for x in homes])
        if len(said) != len(homes):
            print(f"{tool}: did not end")
            continue
        right = sum(x == y for x, y in zip(said, truth, strict=True))
        wrong = sum(type(x) is list and bool(set(x) - set(y)) for x, y in zip(said, truth, strict=True))
        failed = sum(type(x) is str for x in said)
        print(
            f"{tool}: {right} of {len(homes)} right, {wrong} name a wrong rank, {failed} end in an error; "
            f"{used[0]:.1f} CPU s"
        )
    print(f"{'ranks':>6}  {'tool':<15}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}  named")
    for world in given.ranks:
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(world):
                made = flight_recorder.dump(rank, world, 2000, world // 2 + 3)
                Path(folder, f"comm_lib_trace_rank_{rank}").write_bytes(flight_recorder.written(made))
            for tool, (python, program) in tools.items():
                said, used = run(python, program, [Path(folder)])
                numbers = "{:8.1f}{:8.1f}{:9.0f}".format(*used) if used else f"  not done in {MINUTES} minutes"
                print(f"{world:6}  {tool:<15}{numbers}  {said} (it is {world // 2 + 3})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
