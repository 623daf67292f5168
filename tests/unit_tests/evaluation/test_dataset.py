"""Feedback grouped into cases and split into folds without leakage."""

import random
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sklearn.model_selection import StratifiedGroupKFold

from memalign_graph import Boolean, Categorical, Criterion, Example, Feedback, Numeric
from memalign_graph.evaluation.dataset import (
    Fold,
    baselines,
    group_of,
    make_folds,
    parse_feedback_list,
    stratified_folds,
)
from memalign_graph.types import Episode, RecalledExample
from tests.conftest import CRITERION

START = datetime(2026, 1, 1, tzinfo=UTC)
STARS = Numeric(minimum=1, maximum=5, integer=True)
RANK = Categorical(choices=("poor", "fair", "good"), ordered=True)


def feedback_row(number: int, *, second: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "inputs": f"Question {number // 2}?",
        "outputs": f"Answer {number}.",
        "value": bool(number % 3),
        "author": "ann",
        "given_at": START + timedelta(minutes=number, seconds=second),
        **fields,
    }


def read(records: Any, criterion: Criterion = CRITERION) -> list[Feedback]:
    return parse_feedback_list(records, criterion)


def folds_of(records: Any, group_by: Any = "example", seed: int = 0, folds: int = 3) -> list[Fold]:
    return make_folds(read(records), CRITERION, folds, group_by, seed)


@pytest.mark.parametrize("group_by", ["example", "inputs"])
def test_no_item_is_in_both_training_and_test(group_by: Any) -> None:
    feedback = [feedback_row(number) for number in range(14)]
    feedback += [feedback_row(number, author="bob", value=True) for number in range(0, 14, 3)]
    feedback += [
        feedback_row(number, author="cy", value=None, rationale="Hm.") for number in range(4)
    ]
    feedback.append(feedback_row(40, value=None, rationale="Say why."))
    # Of an item that has values.
    feedback.append(feedback_row(1, outputs="Another.", value=None, rationale="Hm."))
    for seed in range(5):
        made = folds_of(feedback, group_by, seed)
        judged = Counter(case.example.id for fold in made for case in fold.test)
        assert (len(judged), set(judged.values())) == (14, {1})
        for fold in made:
            items = {case.group for case in fold.test}
            assert items
            assert not items & {group_of(item.example, group_by) for item in fold.train}
            # All feedback outside the test items is used for training.
            left = [
                item for item in read(feedback) if group_of(item.example, group_by) not in items
            ]
            assert len(fold.train) == len(left)
    assert folds_of(feedback, group_by, 1) == folds_of(feedback, group_by, 1)
    assert folds_of(feedback, group_by, 1) != folds_of(feedback, group_by, 2)


def test_folds_are_stratified_by_label() -> None:
    feedback = [feedback_row(number, value=number % 4 == 0) for number in range(40)]
    shares = [
        sum(bool(case.expected) for case in fold.test) for fold in folds_of(feedback, folds=5)
    ]
    assert shares == [2] * 5
    # Numbers are stratified by range; labels that cannot be stratified are still split.
    share = Criterion(name="s", instructions="?", scale=Numeric(minimum=0, maximum=1))
    numbers = read([feedback_row(n, value=n / 40) for n in range(40)], share)
    middles = [
        sum(float(case.expected) for case in fold.test) / len(fold.test)
        for fold in make_folds(numbers, share, 4, "example", 0)
    ]
    assert all(0.35 < middle < 0.65 for middle in middles)
    for few in ([True, False, True], [True, True, True]):
        made = folds_of([feedback_row(n, value=value) for n, value in enumerate(few)])
        assert [len(fold.test) for fold in made] == [1, 1, 1]


def uneven(folds: list[list[int]], labels: list[str]) -> float:
    """Return the largest difference between a label's share in a fold and in all cases."""
    shares = {label: labels.count(label) / len(labels) for label in labels}
    return max(
        abs(sum(labels[index] == label for index in fold) / len(fold) - share)
        for fold in folds
        for label, share in shares.items()
    )


def test_folds_are_as_balanced_as_those_of_scikit_learn() -> None:
    chance, spreads = random.Random(1), []  # noqa: S311 - nothing secret
    for trial in range(60):
        number, folds = chance.choice([20, 60, 200]), chance.choice([2, 3, 5])
        labels = [chance.choice("aab" if trial % 2 else "abcd") for _ in range(number)]
        per_group = chance.choice([1, 2, 4])
        groups = [f"g{index % max(number // per_group, folds)}" for index in range(number)]
        ours = stratified_folds(groups, labels, folds, trial)
        assert sorted(index for fold in ours for index in fold) == list(range(number))
        assert all(ours)
        assert sum(len({groups[index] for index in fold}) for fold in ours) == len(set(groups))
        splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=trial)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a label may have fewer cases than there are folds
            theirs = [list(test) for _, test in splitter.split(labels, labels, groups)]
        if all(theirs):
            spreads.append((uneven(ours, labels), uneven(theirs, labels)))
    ours_mean, theirs_mean = (sum(column) / len(spreads) for column in zip(*spreads, strict=True))
    assert ours_mean <= theirs_mean
    assert len(spreads) > 50


def test_newest_feedback_of_an_expert_counts() -> None:
    twice = [feedback_row(0, value=True, second=1), feedback_row(0, value=False, second=9)]
    for turn in (1, -1):
        [one] = read(twice[::turn])
        assert one.value is False
    explained = feedback_row(0, value=True, rationale="Kind.", second=1)
    for repeated in ({"value": True}, {"value": None, "rationale": "Kind."}):
        [one] = read([explained, feedback_row(0, second=2, **repeated)])
        assert (one.value, one.rationale) == (True, "Kind.")
    at_once = [feedback_row(0, value=True), feedback_row(0, value=False)]
    assert [read(at_once[::turn])[0].value for turn in (1, -1)] == [False, True]


def recalled(*values: Any) -> list[RecalledExample]:
    episodes = [
        Episode.from_feedback(Feedback.model_validate(feedback_row(n, value=value, rationale="x")))
        for n, value in enumerate(values)
    ]
    return [
        RecalledExample(example=episode.example, episodes=[episode], similarity=0.5)
        for episode in episodes
    ]


@pytest.mark.parametrize(
    ("scale", "train", "near", "predicted"),
    [
        (Boolean(), [True, True, False], [False, None], {"majority": True, "kNN": False}),
        (Boolean(), [True, False, False], [None], {"majority": False, "kNN": False}),
        (STARS, [1, 1, 2, 4, 5], [4, 5, 5], {"majority": 1, "median": 2, "kNN": 5}),
        (RANK, ["good"], ["poor"], {"majority": "good", "median": "good", "kNN": "poor"}),
        (Boolean(), [True], None, {"majority": True}),
        (Boolean(), [], [True], {}),
    ],
)
def test_baselines(scale: Any, train: Any, near: Any, predicted: Any) -> None:
    recalled_cases = None if near is None else recalled(*near)
    assert baselines(train, recalled_cases, scale) == predicted


def test_similar_case_counts_once_however_many_experts_valued_it() -> None:
    crowded, *others = recalled(True, False, False)
    crowded = crowded.model_copy(update={"episodes": crowded.episodes * 3})
    assert baselines([True], [crowded, *others], Boolean())["kNN"] is False


@pytest.mark.parametrize(
    "twin",
    [
        {"outputs": "Sorry!\r\nIt  comes today. "},
        {"reference_outputs": "An apology."},
        {"inputs": "\nWhere is it?"},
        {"inputs": {"question": "Where is it?"}},  # memory embeds the same text
        {"outputs": {"text": "Sorry!", "more": ["It comes  today."]}},
    ],
)
def test_cases_with_equal_content_are_one_item(twin: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"inputs": "Where is it?", "outputs": "Sorry!\nIt comes today."}
    group = group_of(Example(**fields), "example")
    assert group_of(Example(**{**fields, **twin}), "example") == group
    assert group_of(Example(**{**fields, "outputs": "Sorry!"}), "example") != group
    # So are inputs that differ in spaces alone.
    nested = [Example(inputs={"q": [text]}, outputs="x") for text in ("Where?", " Where?\n")]
    assert len({group_of(example, "inputs") for example in nested}) == 1
