"""Whether an expert is asked, through a whole memory: past decisions, new cases, the draw."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from memalign_graph import InvalidInputError, Judgment, Uncertain
from memalign_graph.evidence.asking import choose_review, current_trust, is_drawn
from memalign_graph.evidence.confidence import Said
from memalign_graph.evidence.process import decide_case
from memalign_graph.evidence.trust import LEVEL, is_blind
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


def named(number: int) -> str:
    """A judgment's id, as judgments make them."""
    return UUID(int=number, version=4).hex


def test_draw_is_the_same_for_the_same_judgment_and_fair_over_many() -> None:
    ids = [named(one) for one in range(20_000)]
    drawn = [one for one in ids if is_drawn(one, 0.05)]
    assert drawn == [one for one in ids if is_drawn(one, 0.05)]
    assert 0.045 < len(drawn) / len(ids) < 0.055
    assert set(drawn) < {one for one in ids if is_drawn(one, 0.2)}
    assert not any(is_drawn(one, 0) for one in ids)
    assert all(is_drawn(one, 1) for one in ids)


def test_blind_is_what_was_asked_about_by_chance_alone() -> None:
    assert is_blind(["sample"])
    assert not is_blind(["unsure", "sample"])
    assert not is_blind([])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"target_agreement": 1}, "target_agreement"),
        ({"target_agreement": 1.0}, "target_agreement"),
        ({"target_agreement": 0}, "target_agreement"),
        ({"target_agreement": 90}, "target_agreement"),
        ({"target_agreement": "0.9"}, "target_agreement"),
        ({"target_agreement": True}, "target_agreement"),
        ({"target_agreement": None}, "target_agreement"),
        ({"target_agreement": float("nan")}, "target_agreement"),
        ({"per_day": 0}, "per_day"),
        ({"per_day": -3}, "per_day"),
        ({"per_day": 2.5}, "per_day"),
        ({"per_day": "10"}, "per_day"),
        ({"per_day": True}, "per_day"),
        ({"max_review_share": 0.5}, "max_review_share"),
        ({"sample_share": -0.1}, "sample_share"),
        ({"sample_share": 5}, "sample_share"),
        ({"sample_share": None}, "sample_share"),
        ({"sample_share": False}, "sample_share"),
    ],
)
def test_wrong_settings_are_one_sentence(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{field}: ") as caught:
        Uncertain(**options)
    assert "\n" not in str(caught.value)


def test_settings_at_their_edges_are_taken() -> None:
    Uncertain(target_agreement=0.999, per_day=1, sample_share=0)
    Uncertain(target_agreement=0.001, per_day=None, sample_share=1)
