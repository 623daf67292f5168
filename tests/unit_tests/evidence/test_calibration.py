"""Confidence is brought to how often decisions like one were right."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memalign_graph import Boolean, Categorical
from memalign_graph.evidence import calibration
from memalign_graph.evidence.calibration import MIN_CALIBRATING, Rising, calibrate
from memalign_graph.evidence.deciding import Said, fit_bench
from memalign_graph.evidence.trust import trusted
from memalign_graph.scales import Scale
from tests.unit_tests.evidence.worlds import (
    SCALES,
    Item,
    bench_of,
    decided,
    normalised,
    right_in,
    table_of,
    world,
)

Floats = NDArray[np.float64]


def logit(shares: Any) -> Floats:
    odds: Floats = np.log(np.asarray(shares) / (1 - np.asarray(shares)))
    return odds


def expected_error(confidences: Any, right: Any, scores: Any, *, bins: int = 8) -> float:
    """Expected calibration error, over bins of equally many decisions.

    Ordered by score: by what is said of them left out, the wrong ones of a score come first.

    Source: M. P. Naeini et al., Obtaining well calibrated probabilities using Bayesian binning,
    2015.
    """
    order = np.argsort(np.ravel(scores), kind="stable")
    parts = np.array_split(order, bins)
    confidences, right = np.asarray(confidences), np.asarray(right)
    apart = [abs(confidences[one].mean() - right[one].mean()) * len(one) for one in parts]
    return float(sum(apart) / len(order))


Distortion = Callable[[Floats], Floats]
DISTORTIONS: dict[str, Distortion] = {
    "overconfident": lambda logits: 3 * logits + 1,
    "underconfident": lambda logits: 0.3 * logits,
    "shifted": lambda logits: logits + 2,
}


def decisions(count: int, seed: int, distort: Distortion) -> tuple[Floats, Floats, Floats]:
    """What a judge says of its confidence, as logits and shares, and whether it was right."""
    rng = np.random.default_rng(seed)
    true = rng.normal(1.0, 1.5, size=count)
    right = (rng.random(count) < 1 / (1 + np.exp(-true))).astype(float)
    told = distort(true)
    return told[:, None], 1 / (1 + np.exp(-told)), right


@pytest.mark.parametrize("kind", DISTORTIONS)
@pytest.mark.parametrize("count", [60, 400, 1500])
def test_what_a_judge_says_of_itself_is_set_right(kind: str, count: int) -> None:
    raw, out_of_fold, new = [], [], []
    for seed in range(6):
        scores, told, right = decisions(count, seed, DISTORTIONS[kind])
        fitted = calibrate(scores, right)
        assert fitted is not None
        assert fitted.cases == count
        raw.append(expected_error(told, right, scores))
        out_of_fold.append(expected_error(fitted.left_out, right, scores))
        fresh, _, outcome = decisions(400, seed + 100, DISTORTIONS[kind])
        new.append(expected_error(fitted.confidences(fresh), outcome, fresh))
    assert np.mean(out_of_fold) < np.mean(raw)
    assert np.mean(new) < np.mean(raw)
    assert np.mean(new) < (0.13 if count == 60 else 0.08)


def test_a_judge_that_tells_the_truth_is_hardly_changed() -> None:
    scores, told, right = decisions(800, 1, lambda logits: logits)
    fitted = calibrate(scores, right)
    assert fitted is not None
    assert np.abs(fitted.confidences(scores) - told).mean() < 0.03


@pytest.mark.parametrize("count", [0, 1, MIN_CALIBRATING - 1])
def test_too_few_are_left_raw(count: int) -> None:
    assert calibrate(np.zeros((count, 1)), np.ones(count)) is None


@pytest.mark.parametrize("count", [MIN_CALIBRATING, 200, 1000, 2000])
@pytest.mark.parametrize("always", [0.0, 1.0])
def test_all_right_or_all_wrong_is_nearly_sure_and_never_quite(count: int, always: float) -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(count, 1))
    fitted = calibrate(scores, np.full(count, always))
    assert fitted is not None
    sure = fitted.confidences(np.array([[-50.0], [-1.0], [0.0], [1.0], [50.0]])).tolist()
    sure += fitted.left_out.tolist()
    assert all(0 < one < 1 for one in sure)
    assert all(abs(one - always) < 2 / count + 1e-9 for one in sure[5:])
    assert all(abs(one - always) < 0.15 for one in sure)


def test_all_scores_alike_are_the_share_that_was_right() -> None:
    right = (np.arange(1200) % 4 > 0).astype(float)
    for count in (40, 1200):
        fitted = calibrate(np.full((count, 1), 3.0), right[:count])
        assert fitted is not None
        assert fitted.confidences(np.array([[3.0]])) == pytest.approx(0.75, abs=0.02)
        assert fitted.left_out == pytest.approx(0.75, abs=0.03)


def test_from_a_thousand_on_the_curve_may_rise_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    scores = rng.uniform(-3, 3, size=(1000, 1))
    share = np.where(scores[:, 0] > 1, 0.95, 0.4)
    right = (rng.random(1000) < share).astype(float)
    steps = calibrate(scores, right)
    assert steps is not None
    assert isinstance(steps.curve, Rising)
    heights = steps.confidences(np.linspace(-4, 4, 50)[:, None]).tolist()
    assert heights == sorted(heights)
    assert heights[-10] == pytest.approx(0.95, abs=0.05)
    assert heights[10] == pytest.approx(0.4, abs=0.08)
    smooth = calibrate(scores[:-1], right[:-1])
    assert smooth is not None
    assert not isinstance(smooth.curve, Rising)
    several = calibrate(np.repeat(scores, 3, axis=1), right)
    assert several is not None
    assert not isinstance(several.curve, Rising)
    monkeypatch.setattr(calibration, "_ISOTONIC_FROM", 100)
    fewer = calibrate(scores[:100], right[:100])
    assert fewer is not None
    assert isinstance(fewer.curve, Rising)


def test_isotonic_is_out_of_fold() -> None:
    """A decision of a score of its own: what came of it is not in what is said of it."""
    scores = np.append(np.linspace(-1, 1, 1199), 5.0)[:, None]
    right = np.append(np.ones(1199), 0.0)
    fitted = calibrate(scores, right)
    assert fitted is not None
    assert fitted.left_out[-1] > 0.99


@pytest.mark.parametrize("scale", [Boolean(), Categorical(choices=("warm", "cold", "odd"))])
def test_a_bench_calibrates_what_the_judge_says_of_itself(scale: Scale) -> None:
    rng = random.Random(4)  # noqa: S311 - nothing secret
    items = []
    for one in world(scale, 160, rng, right_in(0.7)):
        assert one.verdict is not None
        names = [scale.render(value) for value in _values(scale)]
        sure = 0.98 if rng.random() < 0.9 else 0.6
        told = dict.fromkeys(names, (1 - sure) / (len(names) - 1))
        told[scale.render(one.verdict)] = sure
        items.append(replace(one, probabilities=told))
    table = table_of(items[:120], scale)
    bench = fit_bench(table, scale, "verdict")
    made = [decided(table, bench, one, "verdict") for one in items[120:]]
    assert {one.calibrated_on for one in made} == {120}
    assert {one.confidence_source for one in made} == {"logprobs"}
    confidences = [one.confidence or 0 for one in made]
    assert 0.55 < np.mean(confidences) < 0.85
    known = [one for one in bench.confidences if one is not None]
    assert len(known) == 120
    told_raw = [max((one.probabilities or {}).values()) for one in bench.cases]
    assert expected_error(known, bench.agreed, told_raw) < 0.12
    # Of one score, whether it was right or not.
    assert len({round(one, 9) for one in known}) == 2
    few = fit_bench(table_of(items[: MIN_CALIBRATING - 1], scale), scale, "verdict")
    raw = few.decide(Said(items[0].verdict or 0, items[0].probabilities, "samples"), [], "verdict")
    assert raw.calibrated_on is None
    assert raw.confidence in (0.98, 0.6)
    assert raw.confidence_source == "samples"
    assert few.confidences == [None] * (MIN_CALIBRATING - 1)


def _values(scale: Scale) -> list[Any]:
    return [True, False] if isinstance(scale, Boolean) else list(getattr(scale, "choices", ()))


def test_numbers_are_sure_where_neighbours_and_judge_agree() -> None:
    scale = SCALES["share"]
    rng = random.Random(5)  # noqa: S311 - nothing secret
    items = []
    for _ in range(300):
        clear = rng.random() < 0.5
        centre = rng.choice([0.2, 0.5, 0.8])
        truth = min(max(rng.gauss(centre, 0.02 if clear else 0.25), 0.0), 1.0)
        vector = normalised([centre, 1.0 if clear else -1.0, rng.gauss(0, 0.03)])
        items.append(Item(vector, truth, min(max(rng.gauss(truth, 0.2), 0.0), 1.0)))
    table, bench = bench_of(items[:200], scale)
    sure, right = [], []
    for one in items[200:]:
        decision = decided(table, bench, one)
        assert decision.confidence_source == "evidence"
        assert decision.calibrated_on == 200
        assert decision.confidence is not None
        sure.append(decision.confidence)
        right.append(abs(float(decision.value) - float(one.truth)) <= 0.1)
    by_confidence = np.argsort(sure)
    half = len(sure) // 2
    assert np.mean(np.array(right)[by_confidence[half:]]) > 0.85
    assert np.mean(np.array(right)[by_confidence[:half]]) < 0.6
    few, small = bench_of(items[: MIN_CALIBRATING - 1], scale)
    assert decided(few, small, items[200]).confidence is None


def test_a_wrong_decision_does_not_rank_above_right_ones_as_sure() -> None:
    """As what is said of a case left out would have it: the wrong ones would come first."""
    rng = random.Random(6)  # noqa: S311 - nothing secret
    items = []
    for at, one in enumerate(world(Boolean(), 300, rng, right_in(1.0))):
        verdict = one.truth if at % 40 else not one.truth
        sure = rng.uniform(0.97, 0.98)
        told = {"true": sure if verdict else 1 - sure, "false": 1 - sure if verdict else sure}
        items.append(replace(one, verdict=verdict, probabilities=told))
    bench = fit_bench(table_of(items, Boolean()), Boolean(), "verdict")
    past = [(one or 0, agreed) for one, agreed in zip(bench.confidences, bench.agreed, strict=True)]
    sure_ones = sorted(past, reverse=True)[:30]
    assert sum(agreed for _, agreed in sure_ones) >= 28
    trust = trusted(past, 0.9)
    assert trust.threshold is not None
    assert trust.coverage > 0.9
