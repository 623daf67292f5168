"""Consensus, Krippendorff's alpha and disagreements of several experts."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Criterion, Episode, Feedback, Numeric, Pairwise
from memalign_graph.agreement import (
    Level,
    consensus_value,
    expert_agreement,
    krippendorff_alpha,
    values_agree,
)
from memalign_graph.alignment.replay import replay_cases_from
from memalign_graph.evaluation.dataset import knn_prediction, labelled_cases
from memalign_graph.integrations import few_shot_examples
from memalign_graph.prompts.judge import judge_prompt
from memalign_graph.scales import Scale, Value
from memalign_graph.types import RecalledExample

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GRADES = Categorical(choices=("poor", "fair", "good"), ordered=True)
KINDS = Categorical(choices=("poor", "fair", "good"))
SHARE = Numeric(minimum=0, maximum=10)

# Rows are units, columns are observers. Krippendorff (2011), section D.
KRIPPENDORFF = "11.1 2232 3333 3333 2222 1234 4444 1121 2222 .555 ..11 .3.."
# Hayes & Krippendorff (2007), table 1: the tone of 40 newspaper articles.
HAYES = """
112.2 1101. 2333. .00.0 000.0 000.0 102.1 1.20. 222.2 2111. .100. 0000. 1222. 33223
111.1 111.1 212.2 1233. 1101. 000.0 0011. 00.00 2333. 0000. 12.22 0111. 00010 1212.
1122. 112.2 110.0 2121. 22.22 3222. 222.2 223.2 222.2 22.12 2222. 111.1
"""


def units(table: str) -> list[list[Value]]:
    return [[int(digit) for digit in row if digit != "."] for row in table.split()]


def expert_feedback(value: Any, author: str | None, *, case: str = "q", minute: int = 0) -> Episode:
    fields = {"inputs": case, "outputs": "a", "value": value, "author": author}
    fields |= {"rationale": "Because." if value is None else None}
    given_at = NOON + timedelta(minutes=minute)
    return Episode.from_feedback(Feedback.model_validate({**fields, "given_at": given_at}))


@pytest.mark.parametrize(
    ("ratings", "nominal", "ordinal", "interval"),
    [
        (units(KRIPPENDORFF), 0.743421052631579, 0.8153875037548814, 0.8491071428571428),
        (units(HAYES), 0.47650956741865835, 0.7598291891514336, 0.757378277153558),
        (
            [[0.1, 0.1], [0.5, 0.7, 0.5], [0.1 + 0.2, 0.3, -4], [1e3, 1e3], [2.5, 2.5]],
            0.5564516129032258,
            0.9008569739952719,
            0.9999898015365044,
        ),
    ],
)
def test_alpha_is_that_of_the_krippendorff_package(
    ratings: list[list[Value]], nominal: float, ordinal: float, interval: float
) -> None:
    # The numbers are those of krippendorff 0.9.0 on PyPI.
    levels: list[Level] = ["nominal", "ordinal", "interval"]
    alphas = [krippendorff_alpha(ratings, level) for level in levels]
    assert alphas == pytest.approx([nominal, ordinal, interval], abs=1e-12)


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
def test_alpha_is_undefined_without_a_pair_that_could_differ(level: Level) -> None:
    for units in ([], [[1], [2]], [[3, 3], [3, 3, 3]], [[0.1] * 3]):
        assert krippendorff_alpha(units, level) is None
    assert krippendorff_alpha([[0.1] * 3, [0.7] * 3, [9]], level) == 1
    if level != "nominal":
        with pytest.raises(ValueError, match="'good'"):
            krippendorff_alpha([["good", "poor"]], level)
    else:
        # True is not 1, nor is "1".
        assert krippendorff_alpha([[True, 1], [1, True]], level) == -0.5
        assert krippendorff_alpha([["1", 1], [1, "1"]], level) == -0.5


A, B, TRUE, FALSE = "A", "B", True, False
SHARES, WHOLE = Numeric(minimum=0, maximum=1), Numeric(minimum=1, maximum=5, integer=True)
COUNTS: list[tuple[Scale, list[Any], Any]] = [
    (Boolean(), [FALSE, FALSE, TRUE], False),
    (Boolean(), [None, None], None),
    (Boolean(), [1, 1.0, "1"], None),  # on an earlier scale
    (Boolean(), [1, 1, FALSE], False),
    (SHARE, [None, None, 0.0], 0.0),
    (SHARE, ["3", 99, 99], 3.0),  # on an earlier scale
    (SHARES, [0.2, 0.3, 0.9], 0.3),
    (SHARES, [0.2, 0.4], pytest.approx(0.3)),
    (WHOLE, [1, 2, 5], 2),
    (WHOLE, [2, 3], 2),
    (GRADES, ["good", "good", "poor", "poor", "fair"], "fair"),
    (GRADES, ["good", "poor"], "poor"),
]


@pytest.mark.parametrize(("scale", "values", "counts"), COUNTS)
def test_majority_or_median_counts(scale: Scale, values: list[Any], counts: Any) -> None:
    for order in (values, values[::-1], sorted(values, key=str)):
        feedback = [
            expert_feedback(value, f"expert {index}", minute=index)
            for index, value in enumerate(order)
        ]
        value = consensus_value(feedback, scale)
        assert value == consensus_value(feedback[::-1], scale) == counts
        assert counts is None or type(value) is type(scale.validate_value(value))
        for disagreement in expert_agreement(feedback, scale).disagreements:
            assert disagreement.majority == counts


@pytest.mark.parametrize(
    ("scale", "value", "other", "agree"),
    [
        (SHARES, 0.3, 0.2, True),
        (SHARES, 0.31, 0.2, False),
        (SHARE, 9, 8, True),
        (WHOLE, 4, 5, False),
        (GRADES, "fair", "good", False),
    ],
)
def test_numbers_agree_by_a_tenth(scale: Scale, value: Value, other: Value, *, agree: bool) -> None:
    assert values_agree(scale, value, other) is values_agree(scale, other, value) is agree


def test_newest_feedback_breaks_a_tie_and_then_the_id() -> None:
    votes = [(A, 1), (B, 2), (B, 3), (A, 4)]
    episodes = [expert_feedback(value, f"{minute}", minute=minute) for value, minute in votes]
    assert consensus_value(episodes, Pairwise()) == "A"
    assert consensus_value(episodes[::-1], Pairwise()) == "A"
    episodes = [expert_feedback(TRUE, "ann"), expert_feedback(FALSE, "bob")]
    last = max(episodes, key=lambda episode: episode.id)
    assert consensus_value(episodes, Boolean()) is last.value
    assert consensus_value(episodes[::-1], Boolean()) is last.value


GIVEN = {"example", "value", "author", "given_at"}


def test_guard_evaluation_and_prompts_use_the_median() -> None:
    criterion = Criterion(name="share", instructions="How much?", scale=SHARE)
    episodes = [expert_feedback(value, f"expert {value}", minute=value) for value in (2, 3, 9)]
    feedback = [Feedback(**episode.model_dump(include=GIVEN)) for episode in episodes]
    assert [case.expected for case in replay_cases_from(episodes, SHARE)] == [3]
    assert replay_cases_from(episodes, KINDS) == []  # values of an earlier scale
    assert [case.expected for case in labelled_cases(feedback, criterion)] == [3]
    [shot] = few_shot_examples(episodes, criterion)
    assert shot["score"] == 3
    recalled = RecalledExample(example=feedback[0].example, episodes=episodes, similarity=1.0)
    assert knn_prediction([recalled], SHARE) == 3
    options: Any = {"guidelines": [], "recalled": [recalled], "max_input_tokens": 10_000}
    prompt = judge_prompt(criterion, feedback[0].example, **options)
    [answer] = [message.text for message in prompt.messages if message.type == "ai"]
    assert json.loads(answer)["value"] == 3


def test_agreement_names_the_examples_whose_experts_differ() -> None:
    rated: list[tuple[Any, str | None, str, int]] = [
        (True, "ann", "later", 5),
        (False, None, "later", 6),
        (True, "ann", "first", 0),
        (False, "cy", "first", 2),
        (False, "bob", "first", 1),
        (True, "ann", "agreed", 0),
        (True, "bob", "agreed", 0),
        (True, "ann", "alone", 0),
        (None, "bob", "alone", 0),
    ]
    episodes = [
        expert_feedback(value, author, case=case, minute=minute)
        for value, author, case, minute in rated
    ]
    agreement = expert_agreement(episodes, Boolean())
    assert (agreement.level, agreement.examples) == ("nominal", 3)
    assert agreement.alpha == krippendorff_alpha([[1, 0], [1, 0, 0], [1, 1]], "nominal")
    given = [disagreement.given for disagreement in agreement.disagreements]
    labels = [[(item.author, item.value) for item in items] for items in given]
    disputed = [("ann", True), ("bob", False), ("cy", False)]
    assert labels == [disputed, [("ann", True), (None, False)]]
    assert [disagreement.majority for disagreement in agreement.disagreements] == [False, False]
    later = agreement.disagreements[1]
    assert later.example_id == episodes[0].example_id
    assert {item.episode_id for item in later.given} == {episodes[0].id, episodes[1].id}


@pytest.mark.parametrize(
    ("scale", "level", "values", "as_numbers"),
    [
        (Boolean(), "nominal", [[True, False], [True, True]], [[1, 0], [1, 1]]),
        (KINDS, "nominal", [["poor", "good"], ["fair", "fair"]], [[0, 2], [1, 1]]),
        (GRADES, "ordinal", [["poor", "GOOD"], ["fair", "fair"]], [[0, 2], [1, 1]]),
        (SHARE, "interval", [[1, 2.5], [7, 7.0]], [[1, 2.5], [7, 7]]),
    ],
)
def test_scale_determines_the_measurement_level(
    scale: Scale, level: Level, values: list[list[Value]], as_numbers: list[list[Value]]
) -> None:
    episodes = [
        expert_feedback(value, author, case=f"{case}")
        for case, unit in enumerate(values)
        for author, value in zip("ab", unit, strict=True)
    ]
    agreement = expert_agreement(episodes, scale)
    assert agreement.level == level
    assert agreement.alpha == krippendorff_alpha(as_numbers, level)
    [disagreement] = agreement.disagreements
    assert disagreement.example_id == episodes[0].example_id


@pytest.mark.parametrize("experts", ["", "ab"])
def test_agreement_is_undefined_without_values_that_could_differ(experts: str) -> None:
    agreement = expert_agreement([expert_feedback(TRUE, name) for name in experts], Boolean())
    assert (agreement.alpha, agreement.disagreements) == (None, [])
    assert agreement.examples == len(experts) / 2
