"""How much checks count, by the cases that meet and fail them: examples, and simulated worlds."""

from collections.abc import Sequence

import pytest

from memalign_graph import Categorical, Numeric
from memalign_graph.evidence.check_value import (
    AnchoredCheck,
    add_checks,
    anchor_checks,
    weigh_check,
    worst_check_shift,
)
from memalign_graph.scales import Boolean, Scale, Value
from memalign_graph.types import Check
from tests.unit_tests.evidence.check_worlds import World, asked_memory, probability, simulate

NUMBERS = Numeric(minimum=0, maximum=1)
CHOICES = Categorical(choices=("poor", "fair", "good"), ordered=True)


def checks_of(
    values: Sequence[Value],
    answers: Sequence[Sequence[float]],
    own: Sequence[float],
    scale: Scale | None = None,
    *,
    by_hand: bool = False,
) -> list[AnchoredCheck]:
    """Several checks of a new case: the n-th guideline comes from the n-th case in memory.

    `answers` has a row for each check and a column for each case, and `own` the new case's answers.
    """
    memory = asked_memory(values, answers, scale)
    episodes = sorted(memory.episodes(), key=lambda each: int(str(each.example.inputs)[5:]))
    guidelines = {
        str(number): memory.add_guideline(f"Rule {number}.").model_copy(
            update={"question": "?", "episode_ids": [] if by_hand else [episodes[number].id]}
        )
        for number in range(len(answers))
    }
    checks = [
        Check(guideline_id=str(number), asked=f"{number}:model", held=None, probability=share)
        for number, share in enumerate(own)
    ]
    return anchor_checks(memory.access.view, memory.access.criterion.scale, checks, guidelines, ())


def checked(source_odds: float, met_odds: Sequence[float], own: float) -> list[AnchoredCheck]:
    """The check of a guideline from one rejected case; experts accepted others."""
    answers = [probability(odds) for odds in (source_odds, *met_odds)]
    return checks_of([False, *[True] * len(met_odds)], [answers], [own])


@pytest.mark.parametrize("count", [4, 12, 40])
def test_a_check_that_accepted_cases_fail_is_not_used(count: int) -> None:
    assert checked(1.35, [1.1 + number / 1000 for number in range(count)], 0.1) == []


def test_each_accepted_case_that_fails_a_check_halves_its_weight() -> None:
    [check] = checked(1.35, [1.1, 1.2], 0.1)
    assert check.check.held is False
    assert (check.odds, check.weight) == (-3, 0.25)


@pytest.mark.parametrize("count", [0, 1, 12, 40])
def test_a_check_that_accepted_cases_meet_has_its_full_weight(count: int) -> None:
    [check] = checked(-0.5, [1.5 + number / 1000 for number in range(count)], 0.1)
    assert (check.odds, check.weight) == (-3, 1)


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_with_up_to_three_cases_checks_outweigh_a_judge_that_is_fairly_sure(accepted: int) -> None:
    for own, sure in ((0.05, "true"), (0.95, "false")):
        anchored = checked(-0.5, [1.5] * accepted, own)
        shares = dict.fromkeys(("true", "false"), 0.1) | {sure: 0.9}
        assert add_checks(shares, anchored, [True, False], Boolean())[sure] < 0.5


def test_that_a_case_meets_a_check_counts_as_far_as_rejected_cases_fail_it() -> None:
    accepted = [3.0] * 40
    assert weigh_check(accepted, [-3.0] * 40).met == pytest.approx(1, abs=0.01)
    assert weigh_check(accepted, [-3.0] * 20 + [3.0] * 20).met < 0.25
    assert weigh_check(accepted, []).met < 0.01
    assert weigh_check([], []) == weigh_check([3.0], []) == (1, 1)


def test_a_check_keeps_its_weight_where_rejected_cases_have_other_faults() -> None:
    values, answers = [False] * 20 + [True] * 20, [[0.05, *[0.95] * 39]]
    [check] = checks_of(values, answers, [0.05])
    assert (check.odds, check.weight) == (-3, 1)
    # But a case that meets it is not good for that.
    [check] = checks_of(values, answers, [0.95])
    assert check.check.held
    assert check.weight < 0.01


def test_a_guideline_by_hand_that_accepted_and_rejected_cases_fail_alike_is_not_used() -> None:
    values = [True, True, False, False] * 10
    assert checks_of(values, [[0.05, 0.95] * 20], [0.05], by_hand=True) == []
    [telling] = checks_of(values, [[0.95, 0.95, 0.05, 0.05] * 10], [0.05], by_hand=True)
    assert telling.weight == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("scale", "low", "others"), [(NUMBERS, 0.2, [0.7, 0.8]), (CHOICES, "poor", ["fair", "fair"])]
)
def test_a_useless_check_is_not_used(scale: Scale, low: Value, others: list[Value]) -> None:
    values = [low, *others * 10]
    assert checks_of(values, [[0.3] * 21], [0.3], scale) == []
    [telling] = checks_of(values, [[0.3, *[0.9] * 20]], [0.3], scale)
    assert telling.weight == 1


def test_of_many_checks_a_few_that_fail_by_chance_do_not_reject_a_case() -> None:
    """Each of ten checks fails one accepted case in ten, and all rejected ones."""
    count, accepted = 10, 40
    values = [number >= count for number in range(count + accepted)]
    answers = [
        [0.1 if case < count or case % count == number else 0.9 for case in range(len(values))]
        for number in range(count)
    ]
    by_chance = checks_of(values, answers, [0.3, *[0.9] * 9])
    assert all(item.check.held for item in by_chance)
    assert [item.check.held for item in checks_of(values, answers[:1], [0.3])] == [False]
    assert not any(item.check.held for item in checks_of(values, answers, [0.05] * count))


def test_checks_that_accepted_cases_meet_are_not_shifted() -> None:
    assert worst_check_shift([0.5, 2.0, -1.0]) == 0
    assert worst_check_shift([-1.0, -2.0]) == pytest.approx(3 / 4)
    assert worst_check_shift([]) == 0


@pytest.mark.parametrize(
    ("world", "cases", "balanced", "caught"),
    [
        (World(0.3, [0.5]), 8, -0.02, -0.02),
        (World(0.3, [0.5] * 3), 20, -0.02, -0.02),
        (World(0.05, [0.75]), 20, 0.01, 0.04),
        (World(0.1, [0.95]), 20, 0.1, 0.15),
        (World(0.3, [0.85, 0.5, 0.5]), 20, 0.04, 0.08),
        (World(0.1, [0.95] * 10, breaks_one=True), 8, -0.02, -0.02),
        (World(0.3, [0.85] * 10), 20, 0.02, 0.2),
        (World(0.1, [0.85], shift=2), 8, 0.02, 0.02),
    ],
    ids=[
        "useless",
        "three useless",
        "weak, bad answers rare",
        "good, bad answers rare",
        "one good, two useless",
        "ten, each bad case breaks one",
        "ten that fail accepted cases by chance",
        "yes too often",
    ],
)
def test_only_useful_checks_count(world: World, cases: int, balanced: float, caught: float) -> None:
    """At least so much more than the judge alone, in balanced accuracy and bad answers caught."""
    gain = simulate(world, cases, memories=20)
    assert gain.balanced >= balanced
    assert gain.caught >= caught
