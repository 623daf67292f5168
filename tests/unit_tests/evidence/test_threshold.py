"""From which confidence on nobody is asked: the bound, the tests in sequence, what they keep."""

import random
from statistics import fmean

import pytest

from benchmarks.reliability import SWAPS, swapped
from memalign_graph.evidence import threshold
from memalign_graph.evidence.threshold import (
    find_threshold,
    find_threshold_by_verdict,
    more_decisions,
)

TARGET = 0.9


def pairs(*groups: tuple[float, int, int]) -> list[tuple[float, bool]]:
    """Decisions in groups: their confidence, how many agree, and how many do not."""
    return [
        (confidence, agreed)
        for confidence, right, wrong in groups
        for agreed in [True] * right + [False] * wrong
    ]


@pytest.mark.parametrize(("target", "needed"), [(0.5, 6), (0.9, 40), (0.99, 415)])
def test_fewest_cases_that_show_a_target(target: float, needed: int) -> None:
    assert find_threshold([], target).needed == needed
    few = find_threshold(pairs((0.99, needed - 1, 0)), target)
    assert (few.threshold, few.has_enough, few.coverage) == (None, False, 0)
    assert (few.decisions, few.cases, few.agreement, few.bound) == (needed - 1, 0, None, None)
    enough = find_threshold(pairs((0.99, needed, 0)), target)
    assert (enough.threshold, enough.has_enough, enough.coverage) == (0.99, True, 1)
    assert (enough.cases, enough.agreement) == (needed, 1)
    assert enough.bound is not None
    assert target < enough.bound < 1


def test_threshold_is_the_lowest_that_the_sequence_reaches() -> None:
    trust = find_threshold(pairs((0.99, 80, 0), (0.9, 80, 1), (0.8, 80, 4), (0.4, 10, 70)), TARGET)
    assert (trust.threshold, trust.cases) == (0.8, 245)
    assert trust.agreement == pytest.approx(240 / 245)
    assert trust.coverage == pytest.approx(245 / 325)
    assert trust.bound is not None
    assert TARGET < trust.bound < 240 / 245
    # A test ends at its first failure, even if a later set would pass.
    decisions = pairs((0.99, 200, 0), (0.9, 0, 40), (0.8, 150, 150))
    assert find_threshold(decisions, TARGET).threshold == 0.99
    # Where it begins does not depend on the labels: with half, though fewer would pass.
    assert find_threshold(pairs((0.99, 60, 0), (0.5, 20, 40)), TARGET).threshold == 0.99
    assert find_threshold(pairs((0.99, 60, 0), (0.5, 200, 240)), TARGET).threshold is None


def test_no_threshold_with_enough_feedback_is_told_from_too_little() -> None:
    trust = find_threshold(pairs((0.99, 30, 20)), TARGET)
    assert (trust.threshold, trust.has_enough, trust.coverage) == (None, True, 0)
    assert (trust.cases, trust.agreement) == (50, 0.6)
    assert trust.bound is not None
    assert trust.bound < 0.6
    # Equal confidences are taken together: which come first in memory must not matter.
    right_first = pairs((0.9, 60, 9))
    for decisions in (right_first, right_first[::-1]):
        trust = find_threshold(decisions, TARGET)
        assert (trust.threshold, trust.cases) == (None, 69)


def test_a_gate_that_passes_bad_answers_is_not_excused_by_good_ones() -> None:
    good, bad = pairs((0.99, 400, 4)), pairs((0.98, 3, 5))
    trust = find_threshold_by_verdict({"true": good, "false": bad}, TARGET)
    each = {"true": good, "false": bad}
    assert trust.verdicts == {name: find_threshold(some, TARGET) for name, some in each.items()}
    assert trust.verdicts["false"].threshold is None
    assert (trust.threshold, trust.decisions, trust.cases) == (0.99, 412, 404)
    assert (trust.coverage, trust.bound) == (404 / 412, trust.verdicts["true"].bound)
    none = find_threshold_by_verdict({"false": bad}, TARGET)
    assert (none.threshold, none.coverage, none.has_enough) == (None, 0, False)
    assert find_threshold_by_verdict({}, TARGET) == find_threshold([], TARGET)


@pytest.fixture
def without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the bounds, which a simulation does not read and which take most of its time."""
    monkeypatch.setattr(threshold, "_shown_agreement", lambda *_: 0.0)


def made(rng: random.Random, count: int, right: float, *, ranks: bool) -> list[tuple[float, bool]]:
    """Decisions that agree so often: all alike, or the more often the surer they are."""
    decisions = []
    for _ in range(count):
        confidence = rng.random()
        chance = right + 0.24 * (confidence - 0.5) if ranks else right
        decisions.append((confidence, rng.random() < chance))
    return decisions


@pytest.mark.usefixtures("without_bounds")
@pytest.mark.parametrize("right", [0.88, 0.899])
def test_a_judge_below_the_target_is_seldom_trusted_at_any_time(right: float) -> None:
    rng, ever, memories = random.Random(3), 0, 80  # noqa: S311 - nothing secret
    for _ in range(memories):
        past = made(rng, 300, right, ranks=False)
        thresholds = (find_threshold(past[:n], TARGET).threshold for n in range(30, 301, 10))
        ever += any(lowest is not None for lowest in thresholds)
    # At most 5 % in truth; more of so few memories come up with a chance of a hundredth.
    assert ever <= 0.05 * memories + 2.4 * (0.05 * 0.95 * memories) ** 0.5


@pytest.mark.usefixtures("without_bounds")
def test_a_threshold_seldom_reaches_below_the_target_at_any_time() -> None:
    """The agreement from a confidence on is 0.88 + 0.12 times it: below the target from 1/6 on."""
    rng, too_low, memories = random.Random(4), 0, 80  # noqa: S311 - nothing secret
    for _ in range(memories):
        past = made(rng, 400, 0.88, ranks=True)
        thresholds = (find_threshold(past[:n], TARGET).threshold for n in range(40, 401, 9))
        too_low += any(lowest is not None and lowest < 1 / 6 for lowest in thresholds)
    assert too_low <= 0.05 * memories + 2.4 * (0.05 * 0.95 * memories) ** 0.5


@pytest.mark.usefixtures("without_bounds")
def test_a_good_judge_is_trusted_soon() -> None:
    rng, soon = random.Random(5), 0  # noqa: S311 - nothing secret
    for _ in range(60):
        past = made(rng, 200, 0.97, ranks=False)
        soon += find_threshold(past, TARGET).threshold is not None
    assert soon >= 40


@pytest.mark.usefixtures("without_bounds")
@pytest.mark.parametrize("is_sampled", [True, False])
@pytest.mark.parametrize("kind", list(SWAPS)[:3])
def test_agreement_stays_at_the_target_with_a_worse_model(kind: str, *, is_sampled: bool) -> None:
    options = SWAPS[kind]
    thresholds = [swapped(seed, is_sampled=is_sampled, **options) for seed in range(60)]
    held = [agreement is None or agreement >= 0.9 for agreement, _ in thresholds]
    assert fmean(held) >= 0.95
    if is_sampled and not options:
        assert fmean([share for _, share in thresholds]) > 0.05


def test_more_decisions_are_counted_by_the_agreement_so_far() -> None:
    def more(*groups: tuple[float, int, int], level: float = threshold.LEVEL) -> int | None:
        return more_decisions(find_threshold(pairs(*groups), TARGET, level))

    assert (more((0.9, 30, 0)), more((0.9, 40, 0)), more((0.9, 30, 30))) == (10, 0, None)
    assert more((0.9, 73, 8)) is None  # 0.9012: hardly above the target
    close = more((0.9, 85, 5))
    assert close is not None
    times = (90 + close) // 90 + 1
    assert find_threshold(pairs((0.9, 85 * times, 5 * times)), TARGET).threshold is not None
    strict = more((0.9, 85, 5), level=threshold.LEFT_OUT_LEVEL)
    assert strict is not None
    assert strict > close
