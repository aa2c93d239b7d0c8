"""The clocks: how far each is off the reference, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from nccl_forensics.show import pictures
from nccl_forensics.show.page.markup import prose
from nccl_forensics.show.page.tables import Cell, Column, Layout, Table, unbroken
from nccl_forensics.show.page.words import Doc, clean, duration_words, or_na, plus_minus
from nccl_forensics.text.language import N_, _

QUARTER_S = 900
"""Zones differ by whole quarters of an hour."""
DRIFT_S = 120
"""A clock farther off a quarter than this is wrong, not in another zone. Our judgement."""
OTHER_EPOCH_S = 10**8
"""A clock farther off than this counts from somewhere else, or has no year: three years. Our judgement."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a clock may be, as a drawing."""

    drawn: pictures.Reach
    spoken: str


def deviation_s(clock: Doc) -> float | None:
    """Seconds that a wall clock is off, its zone left aside; 0 for one that counts from a boot; None: not known."""
    offset = clock["offset_s"]
    if offset is None or clock["uncertainty_s"] is None:
        return None
    if clock["basis"] == "boot-time" or abs(offset) > OTHER_EPOCH_S:
        return 0.0
    rest = math.remainder(float(offset), QUARTER_S)
    return rest if abs(rest) <= DRIFT_S else float(offset)


def scale_s(clocks: Sequence[Doc]) -> float:
    """How many seconds to either side the drawings show, so that each clock has room; 0 for no drawing."""
    reaches = [abs(d) + float(c["uncertainty_s"]) for c in clocks if (d := deviation_s(c)) is not None]
    return max(reaches, default=0.0)


def _offset(clock: Doc) -> str:
    seconds = clock["offset_s"]
    if seconds is None:
        return "n/a"
    if abs(seconds) >= 1000:
        return f"{seconds:+,.3f} s"
    return f"{seconds:+.6g} s" if seconds else "0 s"


def clocks_table(clocks: Sequence[Doc], most: int) -> Table:
    scale = scale_s(clocks)

    def reach(clock: Doc) -> str | Cell:
        deviation = deviation_s(clock)
        if deviation is None:
            return _("not known")
        drawn = pictures.reach(deviation, float(clock["uncertainty_s"]), scale)
        return Cell(Reach(drawn, plus_minus(clock["uncertainty_s"])), drawing="reach")

    either_side = duration_words(scale)
    layout: Layout[Doc] = Layout(
        columns=(
            Column(N_("Clock"), lambda c: clean(c["clock"], 160), heads_row=True),
            Column(N_("Host"), lambda c: unbroken(or_na(c.get("host")))),
            Column(N_("Offset to the reference"), _offset, numeric=True),
            Column(N_("Error"), lambda c: plus_minus(c["uncertainty_s"]), css="nw"),
            Column(
                Markup("−{} <span>0</span> +{}").format(either_side, either_side),
                reach,
                css="reach",
                heading_css="reach",
                shown=lambda _: scale > 0,
                legend=N_(
                    "The drawing shows how far a clock may be off the reference once its zone is taken off (whole "
                    "quarters of an hour); of a clock that counts from a boot, its error alone."
                ),
            ),
            Column(N_("Found by"), lambda c: clean(c["basis"], 40)),
            Column(N_("Note"), lambda c: prose(clean(c["note"])) if c.get("note") else "–", css="wide"),
        )
    )
    return layout.cut(clocks, most)
