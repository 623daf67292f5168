"""The threshold through a whole memory: past decisions, their calibration, and new cases."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from memalign_graph import Judgment, Uncertain
from memalign_graph.evidence.deciding import Said
from memalign_graph.evidence.past import decide_case
from memalign_graph.evidence.reviewing import choose_review, current_trust
from memalign_graph.evidence.trust import LEVEL
from memalign_graph.io import BLOCKING, run
from memalign_graph.types import ReviewChoice
from tests.unit_tests.evidence.review_support import filled, judged

TARGET = 0.9
MEMORIES = 20
NEW = np.arange(0.005, 1, 0.01)
"""New cases stand at these quantiles of the judge's confidence."""


def new_cases(rng: np.random.Generator, skill: float) -> list[float]:
    return [float(one) for one in np.quantile(rng.beta(skill, 1, 20_000), NEW)]


def unasked(rng: np.random.Generator, skill: float, size: int) -> list[float]:
    """How likely the judge is right on each new case that nobody is asked about."""
    held = rng.beta(skill, 1, size)
    right = rng.random(size) < held
    memory = filled(
        *(
            judged(at / 10, value=bool(value), verdict=True, sure=float(share))
            for at, (share, value) in enumerate(zip(held, right, strict=True))
        )
    )
    trust = run(current_trust(BLOCKING, memory.access, "verdict", TARGET))
    if trust.threshold is None:
        return []
    kept = []
    for share in new_cases(rng, skill):
        said = Said(True, {"true": share, "false": 1 - share}, "logprobs")
        decision = run(decide_case(BLOCKING, memory.access, said, "verdict", vector=None))
        assert decision.confidence is not None
        if decision.confidence >= trust.threshold:
            kept.append(share)
    return kept


def test_target_is_kept_and_a_better_judge_is_asked_about_less() -> None:
    rng = np.random.default_rng(11)
    coverage = []
    for skill in (4, 12, 40):
        found = [unasked(rng, skill, 150) for _ in range(MEMORIES)]
        missed = sum(bool(kept) and float(np.mean(kept)) < TARGET for kept in found)
        assert missed / MEMORIES <= 1 - LEVEL
        coverage.append(sum(map(len, found)) / MEMORIES / len(NEW))
    assert coverage == sorted(coverage)
    assert coverage[-1] - coverage[0] > 0.5


@pytest.mark.parametrize("reason", ["sample", "unsure"])
def test_choice_is_the_same_however_often_it_is_made(reason: str) -> None:
    memory = filled(*(judged(at, value=True, sure=0.9 + at / 1000) for at in range(60)))
    judgment = Judgment(
        criterion="tone",
        example_id="x",
        value=True,
        rationale="So it is.",
        memory_version="0" * 32,
        confidence=0.999 if reason == "sample" else 0.1,
    )
    options: dict[str, Any] = {
        "uncertain": Uncertain(sample_share=1 if reason == "sample" else 0),
        "decide": "verdict",
        "vector": None,
        "looked": False,
    }
    at = datetime(2025, 1, 31, tzinfo=UTC)
    choices: list[ReviewChoice] = [
        run(
            choose_review(
                BLOCKING, memory.access, judgment, at=at + timedelta(hours=hour), **options
            )
        )
        for hour in range(3)
    ]
    assert choices == [choices[0]] * 3
    assert choices[0].reasons == [reason]
