"""`python -m simulator FOLDER [COUNT [FIRST_SEED]]` in tests/: writes drawn incidents as cases that can be scored.

Each is FOLDER/sim/NAME with its files and expected.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .bundle import simulate
from .draw import draw


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    count, first = (int(x) for x in (*arguments[1:], *("20", "0")[len(arguments) - 1 :]))
    for seed in range(first, first + count):
        scenario = draw(seed)
        bundle = simulate(scenario, seed)
        bundle.write(folder / "sim" / f"{seed:04d}-{scenario.cause}-torch{scenario.torch}", expected=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
