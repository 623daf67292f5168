"""The kernel regression chooses its smoothing by leave-one-out."""

import numpy as np
import pytest

from memalign_graph.evidence.regression import KernelRegression


@pytest.mark.parametrize(
    ("noise", "ridges"), [(0.0, (0.01,)), (0.3, (0.1, 0.3, 1.0)), (10.0, (10.0,))]
)
def test_the_ridge_grows_with_the_noise_of_the_labels(
    noise: float, ridges: tuple[float, ...]
) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(120, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    targets = vectors @ rng.normal(size=(8, 1)) + noise * rng.normal(size=(120, 1))
    assert KernelRegression(vectors, targets, 1).ridge in ridges


@pytest.mark.parametrize(("noise", "limits"), [(0.0, (0.0, 0.08)), (10.0, (0.2, 0.4))])
def test_a_vote_takes_in_more_cases_where_labels_are_noisy(
    noise: float, limits: tuple[float, float]
) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(120, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    targets = vectors @ np.array([[3.0], [0.0], [0.0]]) + noise * rng.normal(size=(120, 1))
    low, high = limits
    assert low <= KernelRegression(vectors, targets, 1).temperature <= high
