"""The kernel regression: its leave-one-out estimates, and the smoothing that they choose."""

import numpy as np
import pytest

from memalign_graph.evidence.regression import MAX_NEIGHBORS, KernelRegression
from tests.unit_tests.evidence.worlds import normalised


@pytest.mark.parametrize(
    ("noise", "ridges", "temperatures"),
    [
        (0.0, (0.01, 0.01), (0.0, 0.08)),
        (0.3, (0.1, 1.0), (0.0, 0.4)),
        (10.0, (10.0, 10.0), (0.2, 0.4)),
    ],
)
def test_noisier_labels_are_smoothed_more(
    noise: float, ridges: tuple[float, float], temperatures: tuple[float, float]
) -> None:
    def fitted(width: int) -> KernelRegression:
        rng = np.random.default_rng(3)
        vectors = normalised(rng.normal(size=(120, width))).astype(float)
        slope = rng.normal(size=(width, 1)) if width > 3 else np.array([[3.0], [0.0], [0.0]])
        return KernelRegression(vectors, vectors @ slope + noise * rng.normal(size=(120, 1)), 1)

    assert ridges[0] <= fitted(8).ridge <= ridges[1]
    assert temperatures[0] <= fitted(3).temperature <= temperatures[1]


@pytest.mark.parametrize("twins", [0, 5])
@pytest.mark.parametrize("count", [12, 120])
def test_leave_one_out_equals_refitting_without_the_case(count: int, twins: int) -> None:
    rng = np.random.default_rng(3)
    vectors = normalised(rng.normal(size=(count, 40))).astype(float)
    vectors[1 : twins + 1] = normalised(vectors[0] + 0.01 * rng.normal(size=(twins, 40)))
    targets = (vectors[:, :2] + 0.1 * rng.normal(size=(count, 2))).round(3)
    regression = KernelRegression(vectors, targets, 2)
    centred = vectors - vectors.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    kernel = centred @ centred.T
    for at in range(0, count, 11):
        rest = np.arange(count) > twins if at <= twins else np.arange(count) != at
        mean = targets[rest].mean(axis=0)
        ridge = regression.ridge * np.eye(rest.sum())
        weights = np.linalg.solve(kernel[np.ix_(rest, rest)] + ridge, kernel[rest, at])
        smooth = mean + weights @ (targets[rest] - mean)
        similarities = vectors[rest] @ vectors[at]
        near = np.exp((similarities - 1) / regression.temperature)
        near[similarities < np.sort(similarities)[-min(MAX_NEIGHBORS, rest.sum())]] = 0
        expected = (smooth + near @ targets[rest] / near.sum()) / 2
        assert regression.left_out[at] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(
    ("others", "alike", "groups"),
    [
        pytest.param(20, 180, [*range(20), *[0] * 180], id="most cases are rewordings"),
        pytest.param(4, 96, [*range(100)], id="a few outliers beside cases that share much text"),
    ],
)
def test_groups_if_most_cases_are_alike(others: int, alike: int, groups: list[int]) -> None:
    rng = np.random.default_rng(4)
    apart = normalised(rng.normal(size=(others, 64))).astype(float)
    changes = 0.17 * normalised(rng.normal(size=(alike, 64)))
    vectors = np.vstack((apart, normalised(apart[0] + changes)))
    regression = KernelRegression(vectors, np.zeros((len(vectors), 1)), 1)
    assert regression.groups.tolist() == groups


def test_near_duplicates_count_once_in_the_choice_of_ridge_and_temperature() -> None:
    rng = np.random.default_rng(2)
    vectors = normalised(rng.normal(size=(40, 16))).astype(float)
    targets = rng.normal(size=(40, 1))
    once = KernelRegression(vectors, targets, 1)
    thrice = KernelRegression(vectors.repeat(3, axis=0), targets.repeat(3, axis=0), 1)
    assert (thrice.ridge, thrice.temperature) == (once.ridge, once.temperature)
    assert once.ridge > 0.01
