"""What the answers to checks say of a value: thresholds, failed checks, votes of similar cases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Guideline, JudgeMemory, Numeric, Pairwise
from memalign_graph.evidence.check_value import (
    AnchoredCheck,
    add_checks,
    anchor_checks,
    are_decisive,
    check_vote,
    combine_probabilities,
    explain_checks,
)
from memalign_graph.evidence.verdicts import log_odds
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import commit_lesson, record_check_answers
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Check
from tests.unit_tests.evidence.check_worlds import asked_memory, probability

NUMBERS = Numeric(minimum=0, maximum=1)
CHOICES = Categorical(choices=("poor", "fair", "good"), ordered=True)
COLORS = Categorical(choices=("red", "blue"))
QUESTION, ASKED = "Does it say sorry?", "0:model"


def anchor_of(memory: JudgeMemory, guideline: Guideline, answer: float) -> AnchoredCheck:
    """What the check of a guideline says of a new case."""
    check = Check(guideline_id=guideline.id, asked=ASKED, held=None, probability=answer)
    view, scale = memory.access.view, memory.access.criterion.scale
    [anchored] = anchor_checks(view, scale, [check], {guideline.id: guideline}, ())
    return anchored


def anchored(
    answer: float,
    source: tuple[Value, float] | None,
    others: Mapping[float, Value] | None = None,
    scale: Scale | None = None,
) -> AnchoredCheck:
    """A check of a new case, by a guideline of one case; other cases were asked it, too."""
    cases = [*([source] if source else []), *((v, p) for p, v in (others or {}).items())]
    memory = asked_memory([value for value, _ in cases], [[share for _, share in cases]], scale)
    if source:
        first = next(each for each in memory.episodes() if each.example.inputs == "Case 0")
        lesson: Any = {"action": "add", "text": "Say sorry.", "question": QUESTION}
        operation = GuidelineOperation(**lesson, episode_ids=[first.id])
        run_sync(commit_lesson(SYNC, memory.access, [operation], {first.id: first.word}))
    else:
        memory.add_guideline("Say sorry.")
    [guideline] = memory.guidelines()
    return anchor_of(memory, Guideline(**{**dict(guideline), "question": QUESTION}), answer)


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


def test_a_check_of_little_weight_hardly_leads_to_its_sources_value() -> None:
    """A weight of 0 would leave the judge's own value, also on numbers."""
    check = anchored(0.2, (0.0, 0.2), scale=NUMBERS)
    judged: dict[str, float] = {"0.0": 0.2, "0.5": 0.6, "1.0": 0.2}
    shares = add_checks(judged, [replace(check, weight=0.0)], [0.0, 0.5, 1.0], NUMBERS)
    assert shares["0.0"] == pytest.approx(shares["1.0"])


@pytest.mark.parametrize("values", [[False] * 20, [True] * 20, [*[False] * 20, True]])
def test_a_memory_of_one_value_has_no_vote(values: list[Value]) -> None:
    """Experts who comment on bad cases alone do not say that all cases are bad."""
    assert vote_of(asked_memory(values, [[0.5] * len(values)]), {ASKED: 0.5})[1] == 0


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
    assert anchor_of(memory, memory.add_guideline("Say sorry."), 0.9).met_values == []
    shares, _ = vote_of(memory, {ASKED: 0.8})
    assert shares["false"] > 0.8


def test_a_failed_check_outweighs_a_judge_that_is_fairly_sure() -> None:
    failed, met = (anchored(share, (False, 0.2)) for share in (0.2, 0.8))
    judged, values = {"true": 0.7, "false": 0.3}, [True, False]
    assert add_checks(judged, [failed], values, Boolean())["true"] < 0.5
    assert add_checks(judged, [met], values, Boolean())["true"] > 0.9
    # The check that is met least decides.
    assert add_checks(judged, [met, failed, met], values, Boolean())["true"] < 0.5


def test_half_of_the_judges_log_odds_are_added_to_those_of_the_check() -> None:
    check = anchored(0.5, None)
    assert check.odds == 0
    # The odds of the judge are 9, their square root is 3.
    shares = add_checks({"true": 0.9, "false": 0.1}, [check], [True, False], Boolean())
    assert shares["true"] == pytest.approx(3 / 4)


def test_a_failed_check_leads_to_the_value_of_the_case_it_comes_from() -> None:
    even = dict.fromkeys(["0.0", "0.5", "1.0"], 1 / 3)
    values: list[Value] = [0.0, 0.5, 1.0]
    failed = anchored(0.1, (0.5, 0.2), scale=NUMBERS)
    shares = add_checks(even, [failed], values, NUMBERS)
    assert max(shares, key=lambda name: shares[name]) == "0.5"
    failed = anchored(0.1, ("poor", 0.2), scale=CHOICES)
    even = dict.fromkeys(CHOICES.choices, 1 / 3)
    shares = add_checks(even, [failed], [*CHOICES.choices], CHOICES)
    assert max(shares, key=lambda name: shares[name]) == "poor"


def test_on_a_scale_without_an_order_checks_say_nothing_of_the_value() -> None:
    check = anchored(0.1, ("red", 0.2), scale=COLORS)
    judged = {"red": 0.3, "blue": 0.7}
    assert add_checks(judged, [check], ["red", "blue"], COLORS) == judged
    check, judged = anchored(0.1, ("A", 0.2), scale=Pairwise()), {"A": 0.3, "B": 0.7}
    assert add_checks(judged, [check], ["A", "B"], Pairwise()) == judged


def test_a_met_check_leads_to_the_values_of_accepted_cases() -> None:
    even = dict.fromkeys(["0.0", "0.5", "1.0"], 1 / 3)
    met = anchored(0.9, (0.0, 0.2), {0.85: 1.0}, NUMBERS)
    shares = add_checks(even, [met], [0.0, 0.5, 1.0], NUMBERS)
    assert shares["1.0"] > 0.8


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


def test_checks_that_tell_nothing_of_the_values_have_no_weight() -> None:
    memory = asked_memory([False, True] * 10, [[0.1, 0.1, 0.9, 0.9] * 5])
    assert vote_of(memory, {ASKED: 0.1})[1] == 0


def test_a_rare_value_counts_as_much_as_a_frequent_one_in_the_weight_of_a_vote() -> None:
    """Alike checks have mostly the frequent value: the vote would always say that."""
    memory = asked_memory([True] * 18 + [False] * 2, [[0.5] * 20])
    assert vote_of(memory, {ASKED: 0.5})[1] == 0


def test_a_question_that_no_case_in_memory_was_asked_leaves_the_others_their_vote() -> None:
    memory = asked_memory([False, True], [[0.1, 0.9]])
    shares, _ = vote_of(memory, {ASKED: 0.1, "new": 0.7})
    assert shares["false"] > 0.8
    assert vote_of(memory, {"new": 0.7}) is None


def test_a_vote_is_pooled_by_its_weight() -> None:
    even, votes = {"true": 0.5, "false": 0.5}, {"true": 0.8, "false": 0.2}
    assert combine_probabilities(even, votes, 0) == even
    # The odds of the vote are 4, their square root is 2.
    assert combine_probabilities(even, votes, 0.5)["true"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("weight", "is_decisive"), [(0.3, True), (0.29, False)])
def test_a_value_needs_a_check_or_a_vote_of_some_weight(
    weight: float, *, is_decisive: bool
) -> None:
    check = replace(anchored(0.1, (False, 0.5)), weight=weight)
    assert are_decisive([check], None) is is_decisive
    assert are_decisive([replace(check, weight=0.0)], ({}, weight)) is is_decisive
    assert not are_decisive([], None)
