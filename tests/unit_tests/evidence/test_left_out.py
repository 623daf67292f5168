"""Leaving one out without fitting anew comes out as fitting anew does."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from memalign_graph.evidence.logistic import fit_logistic, probability
from memalign_graph.evidence.weighing_numbers import _ridge

Floats = NDArray[np.float64]


def data(count: int, seed: int, *, width: int = 3) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, width)) * [1.0, 2.0, 0.5][:width]
    logits = features @ np.array([1.5, -0.7, 0.0][:width]) + 0.3
    return features, (rng.random(count) < probability(logits)).astype(float)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("count", [12, 30, 300])
def test_the_fit_is_the_penalised_maximum_likelihood(count: int, *, intercept: bool) -> None:
    features, targets = data(count, 1)
    model = fit_logistic(features, targets, np.arange(count), intercept=intercept)
    expected = LogisticRegression(fit_intercept=intercept, tol=1e-10, max_iter=10_000)
    expected.fit(features, targets)
    assert model.coefficients[:-1] == pytest.approx(expected.coef_[0], abs=1e-5)
    assert model.coefficients[-1] == pytest.approx(expected.intercept_[0], abs=1e-5)
    new = np.random.default_rng(2).normal(size=(7, 3))
    chances = expected.predict_proba(new)[:, 1]
    assert probability(model.logits(new)) == pytest.approx(chances, abs=1e-5)


def test_shares_count_as_so_many_of_each() -> None:
    features, _ = data(40, 3)
    shares = np.random.default_rng(4).random(40)
    model = fit_logistic(features, shares, np.arange(40))
    both = LogisticRegression(tol=1e-10, max_iter=10_000)
    labels = np.concatenate((np.ones(40), np.zeros(40)))
    both.fit(np.concatenate((features, features)), labels, np.concatenate((shares, 1 - shares)))
    assert model.coefficients[:-1] == pytest.approx(both.coef_[0], abs=1e-5)


@pytest.mark.parametrize(("count", "most", "usual"), [(30, 3e-2, 3e-3), (300, 2e-3, 1e-4)])
def test_left_out_is_fitting_anew_without(count: int, most: float, usual: float) -> None:
    off = []
    for seed in range(5):
        features, targets = data(count, seed)
        model = fit_logistic(features, targets, np.arange(count))
        for at in range(count):
            rest = np.arange(count) != at
            anew = fit_logistic(features[rest], targets[rest], np.arange(count - 1))
            expected = probability(anew.logits(features[[at]]))[0]
            off.append(abs(probability(model.left_out)[at] - expected))
    assert max(off) < most
    assert np.median(off) < usual


def test_rows_of_a_group_are_left_out_together_wherever_they_stand() -> None:
    features, targets = data(90, 5)
    groups = np.random.default_rng(6).permutation(np.repeat(np.arange(30), 3))
    model = fit_logistic(features, targets, groups, intercept=False)
    for group in range(30):
        rest = groups != group
        anew = fit_logistic(features[rest], targets[rest], np.arange(87), intercept=False)
        expected = probability(anew.logits(features[~rest]))
        assert probability(model.left_out[~rest]) == pytest.approx(expected, abs=1e-2)


def test_what_is_asked_may_differ_from_what_was_fitted() -> None:
    features, targets = data(60, 7)
    asked = features + 0.1
    model = fit_logistic(features, targets, np.arange(60), asked=asked)
    same = fit_logistic(features, targets, np.arange(60))
    assert model.coefficients.tolist() == same.coefficients.tolist()
    rest = np.arange(60) != 9
    anew = fit_logistic(features[rest], targets[rest], np.arange(59))
    expected = probability(anew.logits(asked[[9]]))
    assert probability(model.left_out[[9]]) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("scale", [1.0, 7.0, 1e3])
def test_separable_and_far_off_features_have_an_end(scale: float) -> None:
    targets = np.repeat([0.0, 1.0], 20)
    features = scale * (2 * targets - 1)[:, None] + np.zeros((40, 2))
    model = fit_logistic(features, targets, np.arange(40))
    assert np.isfinite(model.coefficients).all()
    assert np.isfinite(model.left_out).all()
    assert ((model.left_out > 0) == (targets > 0)).all()


@pytest.mark.parametrize("penalty", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("count", [12, 60])
def test_ridge_left_out_is_exact(count: int, penalty: float) -> None:
    rng = np.random.default_rng(8)
    features = rng.normal(size=(count, 2))
    target = features @ np.array([0.6, 0.3]) + 0.1 * rng.normal(size=count)
    asked = features + 0.05 * rng.normal(size=(count, 2))
    coefficients, foretold = _ridge(features, target, penalty, asked)
    assert (coefficients > 0).all()
    for at in range(count):
        rest = np.arange(count) != at
        anew = Ridge(alpha=penalty, fit_intercept=False).fit(features[rest], target[rest])
        assert foretold[at] == pytest.approx(anew.predict(asked[[at]])[0], abs=1e-9)


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_ridge_leaves_out_what_would_count_against_itself(signs: tuple[int, int]) -> None:
    rng = np.random.default_rng(9)
    features = rng.normal(size=(50, 2))
    target = features @ (0.5 * np.array(signs))
    coefficients, foretold = _ridge(features, target, 1.0, features)
    assert [one > 0 for one in coefficients] == [one > 0 for one in signs]
    assert (coefficients >= 0).all()
    if signs == (-1, -1):
        assert (foretold == 0).all()
