"""Which cases to label first: planted geometry, and the formula worked out another way."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from memalign_graph.evidence import design
from memalign_graph.evidence.design import nearest_known, number_doubts, pick, share_doubts

NOTHING = np.zeros((0, 2), dtype=np.float32)


def at(*degrees: float) -> Any:
    """Vectors on a circle."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def in_space(count: int, dimension: int, seed: int = 0) -> Any:
    """Vectors anywhere."""
    rows = np.random.default_rng(seed).normal(size=(count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def on_cone(vectors: Any, width: float) -> Any:
    """The same of an embedder for which everything is alike: all lie around one direction."""
    rows = np.hstack([vectors * width, np.ones((len(vectors), 1))])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def rows(backlog: Any, n: int, doubts: Any = None, known: Any = None) -> list[int]:
    doubts = np.ones(len(backlog)) if doubts is None else doubts
    known = np.zeros((0, backlog.shape[1]), dtype=np.float32) if known is None else known
    return [one.row for one in pick(backlog, doubts, known, n)]


def covariance(doubts: Any, backlog: Any, known: Any, labelled: list[int]) -> Any:
    """The backlog's covariance after labels, as a Gaussian process is conditioned on them."""
    scale = np.sqrt((0.1 + doubts) / (0.1 + doubts).mean())
    everything = np.vstack([backlog * scale[:, None], known]).astype(float)
    mean = np.vstack([backlog, known]).astype(float).mean(axis=0)
    noise = 0.15 * (1 - mean @ mean)
    prior = everything @ everything.T
    seen = [*labelled, *range(len(backlog), len(everything))]
    here = range(len(backlog))
    told = prior[np.ix_(seen, seen)] + noise * np.eye(len(seen))
    across = prior[np.ix_(here, seen)]
    return prior[np.ix_(here, here)] - across @ np.linalg.solve(told, across.T)


@pytest.mark.parametrize("known", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_each_pick_leaves_the_least_variance(seed: int, known: int) -> None:
    backlog, labelled = in_space(14, 5, seed), in_space(known, 5, seed + 100)
    doubts = np.random.default_rng(seed).uniform(size=14)

    def left(labels: list[int]) -> float:
        return float(np.trace(covariance(doubts, backlog, labelled, labels)))

    picks = pick(backlog, doubts, labelled, 14)
    assert sorted(one.row for one in picks) == list(range(14))
    before = left([])
    for place, one in enumerate(picks):
        labels = [earlier.row for earlier in picks[:place]]
        others = [row for row in range(14) if row not in labels]
        best = min(left([*labels, row]) for row in others)
        after = left([*labels, one.row])
        assert after == pytest.approx(best, abs=1e-6)
        assert one.gain == pytest.approx((left(labels) - after) / before, abs=1e-6)


def test_one_of_each_cluster_comes_first_and_the_largest_cluster_before_all() -> None:
    backlog = at(0, 90, 91, 180, 181, 182, 183, 184)
    picked = rows(backlog, 3)
    assert picked[0] in range(3, 8)
    # The opposite direction is told by a label at 180 degrees, the other one is not.
    assert picked[1] in (1, 2)


def test_three_separate_clusters_are_all_visited() -> None:
    centres = np.eye(3)[[0] * 6 + [1] * 4 + [2] * 2]
    backlog = centres + 0.05 * in_space(12, 3)
    backlog = (backlog / np.linalg.norm(backlog, axis=1, keepdims=True)).astype(np.float32)
    first, second, third = rows(backlog, 3)
    assert first in range(6)
    assert second in range(6, 10)
    assert third in range(10, 12)


@pytest.mark.parametrize("width", [0.3, 0.05])
def test_clusters_are_visited_also_where_everything_is_alike(width: float) -> None:
    centres = np.eye(3)[[0] * 6 + [1] * 4 + [2] * 2]
    backlog = on_cone(centres + 0.05 * in_space(12, 3), width)
    assert (backlog @ backlog.T).min() > 0.9
    clusters = [0 if row < 6 else 1 if row < 10 else 2 for row in rows(backlog, 4)]
    assert set(clusters) == {0, 1, 2}


def test_what_stands_alone_waits_for_what_stands_for_many() -> None:
    backlog = np.vstack([at(0, 2, 4, 6, 8), at(90)])
    assert rows(backlog, 2) == [2, 5]


def test_what_is_like_the_known_cases_comes_last() -> None:
    backlog = at(0, 1, 2, 3, 90)
    assert rows(backlog, 1)[0] in range(4)
    assert rows(backlog, 1, known=at(0.5, 1.5, 2.5)) == [4]


def test_uncertain_cases_come_first() -> None:
    backlog = in_space(30, 30)
    doubts = np.full(30, 0.1)
    doubts[[7, 19]] = 1
    assert set(rows(backlog, 2, doubts)) == {7, 19}


def test_of_uncertain_cases_those_go_first_that_many_uncertain_ones_are_like() -> None:
    backlog = np.vstack([at(0, 1, 2), at(90, 91)])
    assert rows(backlog, 1, np.array([0.2, 0.2, 0.2, 0.9, 0.9]))[0] in (3, 4)
    assert rows(backlog, 1, np.array([0.9, 0.9, 0.9, 0.9, 0.9]))[0] in (0, 1, 2)


@pytest.mark.parametrize("level", [0, 0.01, 0.5, 1])
def test_cases_that_are_all_as_uncertain_are_spread_out(level: float) -> None:
    backlog = in_space(20, 6)
    assert rows(backlog, 8, np.full(20, level)) == rows(backlog, 8)


def test_twin_is_no_news() -> None:
    backlog = at(0, 0, 90, 90, 45)
    picked = pick(backlog, np.ones(5), NOTHING, 5)
    assert {one.row for one in picked[:3]} == {0, 2, 4}
    assert [one.spread for one in picked[3:]] == pytest.approx([0, 0], abs=1e-6)


def test_of_equal_cases_the_first_goes_first() -> None:
    # As many dimensions as cases, one for each: nothing tells them apart.
    assert rows(np.eye(7, dtype=np.float32), 7) == list(range(7))
    same = np.repeat(in_space(1, 40), 9, axis=0)
    assert rows(same, 9) == list(range(9))


def test_order_of_the_backlog_does_not_matter() -> None:
    backlog, doubts = in_space(60, 12), np.random.default_rng(1).uniform(size=60)
    known = in_space(10, 12, seed=2)
    expected = rows(backlog, 20, doubts, known)
    assert rows(backlog, 20, doubts, known) == expected
    order = np.random.default_rng(3).permutation(60)
    shuffled = rows(backlog[order], 20, doubts[order], known)
    assert order[shuffled].tolist() == expected


def test_gains_add_up_to_a_share() -> None:
    backlog = in_space(50, 10)
    gains = [one.gain for one in pick(backlog, np.ones(50), backlog[:0], 50)]
    assert len(gains) == 50
    assert 0.5 < sum(gains) <= 1
    assert gains[0] > 4 * gains[25] > 0


def test_spread_is_the_distance_to_those_picked_before() -> None:
    backlog = in_space(12, 4)
    picks = pick(backlog, np.ones(12), backlog[:0], 5)
    assert picks[0].spread == 1
    for place, one in enumerate(picks[1:], start=1):
        earlier = backlog[[other.row for other in picks[:place]]]
        expected = 1 - float((earlier @ backlog[one.row]).max())
        assert one.spread == pytest.approx(min(max(expected, 0), 1), abs=1e-5)


@pytest.mark.parametrize(("count", "n"), [(0, 3), (1, 3), (2, 1), (3, 10)])
def test_no_more_are_picked_than_there_are(count: int, n: int) -> None:
    assert len(rows(in_space(count, 3), n)) == min(count, n)


def test_large_backlog_makes_no_table_of_pairs() -> None:
    backlog, known = in_space(4_000, 8), in_space(3_000, 8, seed=1)
    tracemalloc.start()
    try:
        pick(backlog, np.ones(4_000), known, 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All pairs take 64 MB in single precision.
    assert peak < 16_000_000


@pytest.mark.parametrize("block", [1, 7, 1_000_000])
def test_nearest_known_cases_are_found_block_by_block(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(design, "_BLOCK", block)
    backlog, known = in_space(13, 4), in_space(9, 4, seed=1)
    similarities, near = nearest_known(backlog, known, 3)
    all_pairs = backlog.astype(float) @ known.astype(float).T
    assert near.tolist() == np.argsort(-all_pairs, axis=1)[:, :3].tolist()
    expected = -np.sort(-all_pairs, axis=1)[:, :3]
    assert similarities == pytest.approx(expected, abs=1e-5)
    assert nearest_known(backlog, known[:2], 3)[0].shape == (13, 2)


def test_equally_near_cases_come_in_their_order() -> None:
    _, near = nearest_known(at(0), at(10, 0, 0, 0, 0, -10), 3)
    assert near.tolist() == [[1, 2, 3]]


YES, NO, BOTH = [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]


def entropy(yes: float) -> float:
    return float(-sum(one * np.log2(one) for one in (yes, 1 - yes)))


@pytest.mark.parametrize(
    ("similarities", "said", "expected"),
    [
        ([1.0], [YES], entropy(1.5 / 2)),
        ([0.5, 0.5], [YES, NO], 1),
        ([1.0, 0.5], [YES, NO], entropy(1.5 / 2.5)),
        ([1.0, 1.0, 1.0], [YES, YES, YES], entropy(3.5 / 4)),
        ([1.0, 1.0], [BOTH, BOTH], 1),
        ([0.0, -0.5], [YES, YES], 1),
    ],
)
def test_doubt_on_a_finite_scale_is_the_entropy_of_the_vote(
    similarities: list[float], said: list[list[float]], expected: float
) -> None:
    assert share_doubts(np.array([similarities]), np.array([said])) == pytest.approx([expected])


def test_doubt_of_three_values_all_alike_is_one() -> None:
    thirds = np.full((1, 2, 3), 1 / 3)
    assert share_doubts(np.array([[0.9, 0.1]]), thirds) == pytest.approx([1])


@pytest.mark.parametrize(
    ("similarities", "said", "expected"),
    [
        ([1.0], [0.3], np.sqrt(1 / 2)),
        ([1.0, 1.0, 1.0], [0.3, 0.3, 0.3], np.sqrt(1 / 4)),
        ([1.0, 1.0], [0.0, 1.0], 1),
        ([1.0, 1.0], [0.4, 0.6], np.sqrt((2 * 0.01 + 1 / 12) / 3 * 12)),
        ([-0.2], [0.3], 1),
    ],
)
def test_doubt_on_a_scale_of_numbers_is_the_deviation(
    similarities: list[float], said: list[float], expected: float
) -> None:
    numbers = np.array([said])
    found = number_doubts(np.array([similarities]), numbers, numbers**2)
    assert found == pytest.approx([expected])


def test_experts_who_differ_on_one_case_are_doubt_too() -> None:
    similarities, means = np.array([[1.0]]), np.array([[0.5]])
    agreed = number_doubts(similarities, means, np.array([[0.25]]))
    differing = number_doubts(similarities, means, np.array([[0.5]]))
    assert differing > agreed
