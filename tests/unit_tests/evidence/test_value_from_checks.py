"""What the answers to checks say of a value: thresholds, weights, votes, and simulated worlds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Guideline, JudgeMemory, Numeric, Pairwise
from memalign_graph.evidence.confidence import choose_value, log_odds
from memalign_graph.evidence.value_from_checks import (
    AnchoredCheck,
    add_checks,
    anchor_checks,
    are_decisive,
    check_vote,
    explain_checks,
    worst_check_shift,
)
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import record_check_answers
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Check
from tests.unit_tests.evidence.check_worlds import World, asked_memory, probability, simulate

NUMBERS = Numeric(minimum=0, maximum=1)
CHOICES = Categorical(choices=("poor", "fair", "good"), ordered=True)
COLORS = Categorical(choices=("red", "blue"))
QUESTION, ASKED = "Does it say sorry?", "0:model"


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
            update={
                "question": QUESTION,
                "episode_ids": [] if by_hand else [episodes[number].id],
            }
        )
        for number in range(len(answers))
    }
    return anchored_in(memory, guidelines, own)


def anchored_in(
    memory: JudgeMemory, guidelines: Mapping[str, Guideline], own: Sequence[float]
) -> list[AnchoredCheck]:
    checks = [
        Check(guideline_id=key, asked=f"{key}:model", held=None, probability=share)
        for key, share in zip(guidelines, own, strict=True)
    ]
    return anchor_checks(memory.access.view, memory.access.criterion.scale, checks, guidelines, ())


def anchored(
    answer: float,
    source: tuple[Value, float] | None,
    others: Mapping[float, Value] | None = None,
    scale: Scale | None = None,
) -> AnchoredCheck:
    """A check of a new case, by a guideline of one case; other cases were asked it, too."""
    cases = [*([source] if source else []), *((v, p) for p, v in (others or {}).items())]
    values, answers = [value for value, _ in cases], [share for _, share in cases]
    [check] = checks_of(values, [answers], [answer], scale, by_hand=source is None)
    return check


def checked(source_odds: float, met_odds: Sequence[float], own: float) -> list[AnchoredCheck]:
    """The check of a guideline from one rejected case; experts accepted others."""
    answers = [probability(odds) for odds in (source_odds, *met_odds)]
    return checks_of([False, *[True] * len(met_odds)], [answers], [own])


def vote_of(memory: JudgeMemory, own: dict[str, float]) -> Any:
    return check_vote(memory.access.view, Boolean(), own, [True, False], ())


def accepted(count: int) -> dict[float, Value]:
    """Answers on accepted cases: their log-odds are 1, and so a missing anchor's would be 0."""
    return {probability(1 + number / 1e6): True for number in range(count)}


LIKELY, UNLIKELY, MIDDLE = log_odds(0.75), log_odds(0.1) * 0.8, log_odds(0.92) / 2
THRESHOLDS: dict[str, tuple[float, float, tuple[Value, float] | None, dict[float, Value]]] = {
    "of an even anchor": (0.18, 0.22, (False, 0.5), {}),
    "of a likely anchor": (LIKELY + 0.05, LIKELY + 0.09, (False, 0.75), {}),
    "of an unlikely anchor": (UNLIKELY + 0.18, UNLIKELY + 0.22, (False, 0.1), {}),
    "without an anchor": (-0.04, 0.04, None, {}),
    "between the anchor and accepted cases": (
        MIDDLE * 0.8,
        MIDDLE * 1.1,
        (False, 0.5),
        {0.9 + number / 1000: True for number in range(40)},
    ),
    "of one accepted case": (0.24, 0.28, None, accepted(1)),
    "of many accepted cases": (0.18 + 12 / 44, 0.22 + 12 / 44, None, accepted(40)),
    "of praise, below its own case": (log_odds(0.6), log_odds(0.85), (True, 0.9), {}),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_threshold_of_a_check(name: str) -> None:
    """Log-odds of an answer that fails the check, and of one that meets it."""
    failed, met, source, others = THRESHOLDS[name]
    assert anchored(probability(failed), source, others).check.held is False
    assert anchored(probability(met), source, others).check.held is True


@pytest.mark.parametrize("number", range(6))
def test_where_two_experts_differ_on_a_case_the_newest_value_counts(number: int) -> None:
    """Whichever of their episodes has the smaller id; in the threshold and in the vote."""
    memory = asked_memory([], [[]])
    case = {"inputs": f"Case {number}", "outputs": "Yes."}
    [episode, _] = memory.remember(
        [
            {**case, "value": True, "author": "ann", "given_at": "2025-01-01T00:00:00Z"},
            {**case, "value": False, "author": "bob", "given_at": "2025-01-02T00:00:00Z"},
        ]
    )
    run_sync(record_check_answers(SYNC, memory.access, {ASKED: {episode.example_id: 0.8}}))
    assert anchored_in(memory, {"0": memory.add_guideline("Sorry.")}, [0.9])[0].met_values == []
    shares, _ = vote_of(memory, {ASKED: 0.8})
    assert shares["false"] > 0.8


def test_a_failed_check_outweighs_a_judge_that_is_fairly_sure() -> None:
    failed, met = (anchored(share, (False, 0.2)) for share in (0.2, 0.8))
    judged, values = {"true": 0.7, "false": 0.3}, [True, False]
    assert add_checks(judged, [failed], values, Boolean())["true"] < 0.5
    assert add_checks(judged, [met], values, Boolean())["true"] > 0.9
    # The check that is met least decides.
    assert add_checks(judged, [met, failed, met], values, Boolean())["true"] < 0.5
    # With few cases also a judge that is quite sure.
    for count in (0, 1, 2):
        for own, sure in ((0.05, "true"), (0.95, "false")):
            shares = dict.fromkeys(("true", "false"), 0.1) | {sure: 0.9}
            made = add_checks(shares, checked(-0.5, [1.5] * count, own), values, Boolean())
            assert made[sure] < 0.5


def test_half_of_the_judges_log_odds_are_added_to_those_of_the_check() -> None:
    check = anchored(0.5, None)
    assert check.odds == 0
    # The odds of the judge are 9, their square root is 3.
    shares = add_checks({"true": 0.9, "false": 0.1}, [check], [True, False], Boolean())
    assert shares["true"] == pytest.approx(3 / 4)
    # A weight of 0 leaves the judge's own value, also on numbers.
    check = replace(anchored(0.2, (0.0, 0.2), scale=NUMBERS), weight=0.0)
    judged: dict[str, float] = {"0.0": 0.2, "0.5": 0.6, "1.0": 0.2}
    shares = add_checks(judged, [check], [0.0, 0.5, 1.0], NUMBERS)
    assert shares["0.0"] == pytest.approx(shares["1.0"])


@pytest.mark.parametrize(
    ("scale", "values", "check", "likeliest"),
    [
        (NUMBERS, [0.0, 0.5, 1.0], (0.1, (0.5, 0.2), {}), "0.5"),
        (CHOICES, list(CHOICES.choices), (0.1, ("poor", 0.2), {}), "poor"),
        (NUMBERS, [0.0, 0.5, 1.0], (0.9, (0.0, 0.2), {0.85: 1.0}), "1.0"),
    ],
    ids=["failed: the source's value", "the same of a choice", "met: that of accepted cases"],
)
def test_a_check_leads_to_the_value_of_cases_that_answer_like_it(
    scale: Scale, values: list[Value], check: tuple[Any, Any, Any], likeliest: str
) -> None:
    even = {scale.render(value): 1 / 3 for value in values}
    shares = add_checks(even, [anchored(*check, scale)], values, scale)
    assert max(shares, key=lambda name: shares[name]) == likeliest


@pytest.mark.parametrize(("scale", "values"), [(COLORS, ["red", "blue"]), (Pairwise(), ["A", "B"])])
def test_on_a_scale_without_an_order_checks_say_nothing_of_the_value(
    scale: Scale, values: list[Value]
) -> None:
    judged = dict(zip(map(str, values), (0.3, 0.7), strict=True))
    check = anchored(0.1, (values[0], 0.2), scale=scale)
    assert add_checks(judged, [check], values, scale) == judged


def test_the_rationale_names_failed_checks_alone() -> None:
    failed, met = anchored(0.21, (False, 0.2)), anchored(0.8, (False, 0.2))
    assert explain_checks([met]) == "The only check is met."
    assert explain_checks([met, met]) == "All 2 checks are met."
    assert explain_checks([met, failed]) == (
        f'1 of 2 checks failed: "{QUESTION}" (yes with probability 0.21; 0.20 on the case that it '
        "was learned from)."
    )


def test_cases_with_similar_checks_vote_and_count_more_the_more_they_are() -> None:
    few, many = (asked_memory([False, True] * n, [[0.1, 0.9] * n]) for n in (3, 20))
    (shares, weight), (_, larger) = (vote_of(memory, {ASKED: 0.12}) for memory in (few, many))
    assert shares["false"] > 0.8
    assert (weight, larger) == (pytest.approx(6 / 14), pytest.approx(40 / 48))
    # A question that no case in memory was asked leaves the others their vote.
    shares, _ = vote_of(few, {ASKED: 0.1, "new": 0.7})
    assert shares["false"] > 0.8
    assert vote_of(few, {"new": 0.7}) is None


@pytest.mark.parametrize(
    ("values", "answers"),
    [
        # Experts who comment on bad cases alone do not say that all cases are bad.
        ([False] * 20, [0.5] * 20),
        ([True] * 20, [0.5] * 20),
        ([*[False] * 20, True], [0.5] * 21),
        ([False, True] * 10, [0.1, 0.1, 0.9, 0.9] * 5),
        ([False, True] * 10, [n / 21 for n in range(1, 21)]),
        # Alike checks have mostly the frequent value: the vote would always say that.
        ([True] * 18 + [False] * 2, [0.5] * 20),
    ],
    ids=[
        "false alone",
        "true alone",
        "one other",
        "checks tell nothing",
        "own values alone",
        "a rare value",
    ],
)
def test_a_vote_that_tells_nothing_has_no_weight(values: list[Value], answers: list[float]) -> None:
    assert vote_of(asked_memory(values, [answers]), {ASKED: answers[0]})[1] == 0


@pytest.mark.parametrize(("weight", "is_decisive"), [(0.3, True), (0.29, False)])
def test_a_value_needs_a_check_or_a_vote_of_some_weight(
    weight: float, *, is_decisive: bool
) -> None:
    check = replace(anchored(0.1, (False, 0.5)), weight=weight)
    assert are_decisive([check], None) is is_decisive
    assert are_decisive([replace(check, weight=0.0)], ({}, weight)) is is_decisive
    assert not are_decisive([], None)


@pytest.mark.parametrize("count", [0, 1, 4, 12, 40])
def test_a_check_counts_unless_accepted_cases_fail_it(count: int) -> None:
    [check] = checked(-0.5, [1.5 + number / 1000 for number in range(count)], 0.1)
    assert (check.odds, check.weight) == (-3, 1)
    if count >= 4:
        assert checked(1.35, [1.1 + number / 1000 for number in range(count)], 0.1) == []
    # Each accepted case that fails it halves its weight.
    [check] = checked(1.35, [1.1, 1.15, 1.2], 0.1)
    assert (check.check.held, check.odds, check.weight) == (False, -3, 0.125)


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


def test_numbers_have_the_median_as_their_value() -> None:
    shares = {"0.0": 0.4, "0.5": 0.25, "1.0": 0.35}
    assert choose_value(shares, [0.0, 0.5, 1.0], NUMBERS) == 0.5
    assert choose_value({"red": 0.4, "blue": 0.6}, ["red", "blue"], COLORS) == "blue"
