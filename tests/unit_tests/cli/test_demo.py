"""The numbers that the demo prints."""

from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from memalign_graph.demo import bootstrap_interval, conclusion, render_result
from memalign_graph.scales import Boolean, Numeric
from memalign_graph.types import Guideline, Worth


def rows(*values: tuple[float, float, float]) -> list[dict[str, object]]:
    names = ("expert", "before", "after")
    return [{"outputs": "x", **dict(zip(names, row, strict=True))} for row in values]


def test_difference_has_an_interval_and_may_be_chance() -> None:
    scale = Numeric(minimum=0, maximum=10)
    nearer = conclusion(scale, rows(*[(0, 10, 5)] * 8))
    assert "1.00 away" in nearer
    assert "0.50 after: nearer by 0.50 (90 % interval of the gain 0.50 to 0.50)." in nearer
    assert "chance" in conclusion(scale, rows(*[(0, 10, 0), (0, 0, 10)] * 4))
    # The standard error of this mean is 1 / sqrt(16), and 1.64 of them are the 90 %.
    assert bootstrap_interval([1.0, -1.0] * 8) == pytest.approx((-0.41, 0.41), abs=0.1)
    assert "right on 1 of 2" in conclusion(Boolean(), rows((True, False, True), (True, True, True)))


def test_guideline_is_shown_with_its_cases_and_auc() -> None:
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "episode_ids": ["e"],
        "position": 1,
        "created_at": now,
        "updated_at": now,
    }
    good = Guideline(id="1", text="Say \x1b.", worth=Worth(auc=0.83, cases=8), **fields)
    bad = Guideline(id="2", text="No.", worth=Worth(auc=0.4, cases=9), status="unproven", **fields)
    result = {"cases": rows((1, 0, 1)), "guidelines": [good, bad], "episodes": {"e": "case-1"}}
    parts = render_result(Boolean(), {**result, "conclusion": "."})
    console = Console(width=200)
    with console.capture() as captured:
        console.print(*parts)
    text = captured.get()
    assert "- Say \\x1b.\n  from case-1; tells the better of two answers 83 % of the time" in text
    assert "83 % of the time, on 8 cases\n" in text
    assert "40 % of the time, on 9 cases; not used" in text
