"""What paths of a pile have in common."""

from __future__ import annotations

from collections.abc import Sequence


def common_folder(paths: Sequence[str]) -> str:
    """The longest folder, with its slash, that all `paths` begin with; '' where there is none."""
    low, high = min(paths, default=""), max(paths, default="")
    same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[: low.rfind("/", 0, same) + 1]
