"""How often machines fail against their size, and who fails again and again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_document import validator

from nccl_forensics.analysis import Analysis
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.show.report import html
from nccl_forensics.verdict import rates

CARDS = ("0c", "0d", "10", "11", "41", "42", "46", "47")
BEGAN = datetime(2026, 3, 1, 4, 0, 0, tzinfo=timezone.utc)
GONE = "NVRM: Xid (PCI:0000:{card}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAULT = (
    "NVRM: Xid (PCI:0000:{card}:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
)
CORRECTED = "pcieport 0000:{card}:00.0: AER: Corrected error received: 0000:{card}:00.0"


def log(
    folder: Path, host: str, days: float, said: list[tuple[float, str, str]], cards: tuple[str, ...] = CARDS
) -> None:
    """A host's kernel log: a boot at its start and its end, and lines (day, card, what) between."""
    rows = [
        (0.0, f"NVRM: GPU at PCI:0000:{c}:00: GPU-{n:08x}-1111-2222-3333-444444444444") for n, c in enumerate(cards)
    ]
    rows += [(day, what.format(card=card)) for day, card, what in said]
    rows += [(day, "Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP") for day in (0.0, days)]
    text = (f"{BEGAN + timedelta(days=d):%Y-%m-%dT%H:%M:%S}+00:00 {host} kernel: {m}\n" for d, m in sorted(rows))
    folder.mkdir(exist_ok=True)
    (folder / f"{host}.log").write_text("".join(text), encoding="utf-8")


def analyzed(folder: Path) -> Analysis:
    return analyze([str(folder)])


def found(folder: Path) -> rates.Rates:
    made = analyzed(folder).rates
    assert made is not None
    return made


def test_a_card_that_fails_again_and_again_is_named(tmp_path: Path) -> None:
    log(tmp_path, "rig-a", 40, [(d, "41", GONE) for d in (6, 14, 23, 37)] + [(30, "0d", GONE)])
    log(tmp_path, "rig-b", 40, [(12, "0c", GONE)])
    analysis = analyzed(tmp_path)
    made = analysis.rates
    assert made is not None
    assert (made.hosts, made.gpus, len(made.failures)) == (2, 16, 6)
    assert made.gpu_hours == pytest.approx(40 * 24 * 16)
    assert [(o.host, o.gpu_pci, o.failures) for o in made.offenders] == [("rig-a", "0000:41:00.0", 4)]
    blamed = [i for i in analysis.incidents if any(g.pci == "0000:41:00.0" for g in i.verdict.gpus)]
    assert blamed
    rows = [next(r for r in i.contributing if r["kind"] == "repeat-offender") for i in blamed]
    last = next(f for f in reversed(made.failures) if f.gpu_pci == "0000:41:00.0")
    assert {(r["source"], r["line"]) for r in rows} == {(last.event.evidence.source, last.event.evidence.line)}
    doc = document.build(analysis)
    validator().validate(json.loads(json.dumps(doc)))
    assert made.offenders[0].says in html(doc)
    assert "Wie oft" in html(doc, "de")


def test_a_storm_of_lines_is_one_failure_of_the_card_that_came_first(tmp_path: Path) -> None:
    minute = 1 / 24 / 60
    log(tmp_path, "rig-a", 10, [(3 + n * minute, card, GONE) for n, card in enumerate(("41", "42", "41", "46"))])
    assert [(f.gpu_pci, f.event.evidence.line) for f in found(tmp_path).failures] == [("0000:41:00.0", 10)]


def test_near_misses_name_nobody(tmp_path: Path) -> None:
    log(tmp_path / "two", "rig-a", 40, [(6, "41", GONE), (14, "41", GONE)])
    assert found(tmp_path / "two").offenders == ()  # two of two on one card of eight is one chance in eight
    log(tmp_path / "harmless", "rig-a", 40, [(d, "41", CORRECTED) for d in range(1, 40)])
    assert found(tmp_path / "harmless").failures == ()
    log(tmp_path / "bug", "rig-a", 40, [(d, "41", FAULT) for d in (6, 14, 23, 37)])
    assert found(tmp_path / "bug").failures == ()  # a program's fault follows the program
    log(tmp_path / "one", "rig-a", 40, [(d, "41", GONE) for d in (6, 14, 23, 37)], cards=("41",))
    assert found(tmp_path / "one").offenders == ()  # a lone card has all failures


def test_a_few_days_or_an_unknown_number_of_cards_give_no_rate(tmp_path: Path) -> None:
    log(tmp_path / "short", "rig-a", 6, [(3, "41", GONE)])
    assert analyzed(tmp_path / "short").rates is None
    log(tmp_path / "unknown", "rig-a", 40, [], cards=())
    analysis = analyzed(tmp_path / "unknown")
    assert analysis.rates is None
    assert "rates" not in document.build(analysis)


@pytest.mark.parametrize(
    ("failures", "hours", "words"),
    [
        (3, 8064, "times as often"),
        (1, 50_000, "can be chance"),
        (0, 8064, "can be chance"),
        (1, 1_000_000, "less often"),
    ],
)
def test_the_comparison_claims_no_more_than_its_interval(failures: int, hours: float, words: str) -> None:
    low, high = rates.interval(failures, 0.95)
    row: Any = object()
    made = rates.Rates(
        since_ns=0,
        until_ns=42 * 24 * rates.HOUR_NS,
        hosts=1,
        gpus=8,
        gpu_hours=hours,
        failures=(row,) * failures,
        expected=hours / rates.HOURS_PER_FAILURE,
        low=low,
        high=high,
        offenders=(),
    )
    assert words in made.says


def test_chance_as_the_tables_have_it() -> None:
    # Garwood's limits for counts of 0, 3 and 10, as in any table of exact Poisson intervals
    for count, low, high in ((0, 0, 3.689), (3, 0.6187, 8.767), (10, 4.795, 18.39)):
        assert rates.interval(count, 0.95) == pytest.approx((low, high), rel=1e-3)
    assert rates.at_least(3, 3, 1 / 8) == pytest.approx(1 / 512)
    assert rates.adjusted([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.randoms())
def test_adjusted_chances_keep_their_order_and_owner(chances: list[float], draw: Any) -> None:
    made = rates.adjusted(chances)
    assert all(q >= p * (1 - 1e-9) for p, q in zip(chances, made, strict=True))
    order = list(range(len(chances)))
    draw.shuffle(order)
    again = rates.adjusted([chances[n] for n in order])
    assert again == pytest.approx([made[n] for n in order])
