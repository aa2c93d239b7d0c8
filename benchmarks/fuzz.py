"""Changes the recorded cases at random and analyses them: nothing may end in an exception, whatever a pile holds.

    python benchmarks/fuzz.py [--cases tests/cases/recorded] [--piles 500] [--seed 1]

Each draw copies one case and changes some of its files: bytes flipped, stretches taken out, doubled, moved or filled
with what another file of the case holds, line ends changed, the end cut off. Then the whole way is gone: reading,
verdict, JSON, page, events, trace. Prints every failure with its seed and traceback, and the seconds that the slowest
took; the exit status is 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MOST_BYTES = 4 << 20
"""Larger files are left as they are: the point is what is in them, not how much."""
ENDS = (b"\n", b"\r\n", b"\r", b"\0\n", b"")


def changed(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """`data` after one to four accidents."""
    text = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if not text:
            break
        at = draw.randrange(len(text))
        length = min(len(text) - at, draw.choice((1, 4, 40, 400, 4000)))
        match draw.randrange(8):
            case 0:
                for _ in range(draw.randint(1, 64)):
                    text[draw.randrange(len(text))] = draw.randrange(256)
            case 1:
                del text[at : at + length]
            case 2:
                text[at:at] = text[at : at + length] * draw.randint(1, 20)
            case 3:
                piece = text[at : at + length]
                del text[at : at + length]
                to = draw.randrange(len(text) + 1)
                text[to:to] = piece
            case 4:
                start = draw.randrange(len(other) + 1)
                text[at:at] = other[start : start + length]
            case 5:
                del text[at:]
            case 6:
                text = text.replace(b"\n", draw.choice(ENDS), draw.choice((-1, 1, 10)))
            case _:
                text[at : at + length] = bytes(draw.choice((0, 0x20, 0x39, 0xFF)) for _ in range(length))
    return bytes(text)


def make(draw: random.Random, case: Path, folder: Path) -> None:
    """A changed copy of `case` in `folder`."""
    shutil.copytree(case, folder, ignore=shutil.ignore_patterns("expected.json"), dirs_exist_ok=True)
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and 0 < p.stat().st_size <= MOST_BYTES)
    for path in draw.sample(paths, min(len(paths), draw.randint(1, 4))):
        path.write_bytes(changed(draw, path.read_bytes(), draw.choice(paths).read_bytes()))


def whole_way(folder: Path, out: Path) -> None:
    """As the command does it, with everything that can be written."""
    from click.testing import CliRunner

    from nccl_forensics.cli import main as command

    outputs = ["-o", out / "r.html", "--json", out / "r.json", "--events", out / "e.csv", "--perfetto", out / "t.json"]
    given = CliRunner().invoke(command, [str(x) for x in ("analyze", folder, "--quiet", *outputs)])
    if given.exception is not None and not isinstance(given.exception, SystemExit):
        raise given.exception
    if given.exit_code > 5:
        raise RuntimeError(f"exit status {given.exit_code}: {given.output[-500:]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=Path, default=ROOT / "tests" / "cases" / "recorded")
    options.add_argument("--piles", type=int, default=500)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    cases = sorted({p.parent for p in given.cases.rglob("expected.json")})
    if not cases:
        raise SystemExit(f"no cases in {given.cases}")
    failed, slowest = 0, (0.0, "")
    for seed in range(given.seed, given.seed + given.piles):
        draw = random.Random(seed)
        case = draw.choice(cases)
        with tempfile.TemporaryDirectory(prefix="nccl-forensics-fuzz-") as scratch:
            folder, out = Path(scratch) / case.name, Path(scratch) / "out"
            out.mkdir()
            make(draw, case, folder)
            began = time.process_time()
            try:
                whole_way(folder, out)
            except Exception:
                failed += 1
                print(f"--- seed {seed}, {case.relative_to(given.cases)}", flush=True)
                traceback.print_exc(file=sys.stdout)
            slowest = max(slowest, (time.process_time() - began, f"seed {seed}, {case.name}"))
    print(f"{given.piles} piles, {failed} failed; the slowest took {slowest[0]:.1f} s CPU ({slowest[1]})")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
