"""Log-probabilities of letters, as servers write them: nothing is raised or made up."""

import math
from typing import Any

import pytest

from memalign_graph import Categorical, Numeric, Pairwise
from memalign_graph.evidence.confidence import (
    MAX_VALUES,
    letter_probabilities,
    permitted_values,
)
from memalign_graph.scales import Boolean, Scale

ALTERNATIVES = [
    {"token": "A", "logprob": math.log(0.75)},
    {"token": "B", "logprob": math.log(0.25)},
]
GOOD = {"token": "A", "logprob": math.log(0.75), "top_logprobs": ALTERNATIVES}
TOLD = {"true": pytest.approx(0.75), "false": pytest.approx(0.25)}


def told(content: Any) -> Any:
    return letter_probabilities(content, ["true", "false"])


def with_verdict(**fields: Any) -> Any:
    return {"content": [{**GOOD, **fields}]}


def test_the_good_one() -> None:
    assert told({"content": [GOOD]}) == TOLD
    rest = [{"token": ")", "logprob": 0.0, "top_logprobs": []}]
    assert told({"content": [{"token": "\n", "logprob": 0.0}, GOOD, *rest]}) == TOLD


def test_a_letter_may_have_blanks_around_it_and_what_is_none_does_not_count() -> None:
    odds = {"A": 0.3, " A": 0.3, "B": 0.1, "\nB": 0.1, "Yes": 0.15, "a": 0.05}
    top = [{"token": text, "logprob": math.log(odd)} for text, odd in odds.items()]
    assert told(with_verdict(logprob=math.log(0.3), top_logprobs=top)) == TOLD
    # The alternatives are those before a server's grammar: what was written may be no letter.
    assert told(with_verdict(token="Yes", logprob=-1.0, top_logprobs=top)) == TOLD


@pytest.mark.parametrize(
    ("scale", "count"),
    [
        (Boolean(), 2),
        (Pairwise(), 3),
        (Categorical(choices=tuple(f"c{n}" for n in range(MAX_VALUES))), MAX_VALUES),
        (Categorical(choices=tuple(f"c{n}" for n in range(MAX_VALUES + 1))), 0),
        (Numeric(minimum=1, maximum=MAX_VALUES, integer=True), MAX_VALUES),
        (Numeric(minimum=0, maximum=MAX_VALUES, integer=True), 0),
        (Numeric(minimum=0, maximum=1), 0),
    ],
)
def test_only_scales_of_few_values_are_finite(scale: Scale, count: int) -> None:
    assert len(permitted_values(scale)) == count


@pytest.mark.parametrize(
    "given",
    [
        None,
        "none",
        17,
        [],
        {},
        {"content": None},
        {"content": "A"},
        {"content": {"tokens": ["A"], "token_logprobs": [-0.1]}},
        {"content": [None, 3, "A", ["A", -0.1]]},
        {"content": [{"token": None, "logprob": -0.1, "top_logprobs": ALTERNATIVES}]},
        {"tokens": ['{"value": ', "A"], "top_logprobs": [{}, {"A": -0.1, "B": -2.0}]},
        {"content": [{"token_id": 17, "logprob": -0.1, "top_logprobs": [{"token_id": 4}]}]},
        {"content": [{"token": "token_id:17", "logprob": -0.1, "top_logprobs": []}]},
    ],
)
def test_no_log_probabilities(given: Any) -> None:
    assert told(given) is None


@pytest.mark.parametrize(
    "top",
    [
        None,
        [],
        {},
        {"A": -0.3, "B": -1.4},
        "A",
        [None, 3],
        [["A", -0.3], ["B", -1.4]],
        [{"token": "A", "logprob": -0.3}],
        [{"token": "A", "logprob": -0.3}, {"token": "B", "logprob": None}],
        [{"token": "A", "logprob": -0.3}, {"token": "B", "logprob": "-1.4"}],
        [{"token": "A", "logprob": -0.3}, {"token": "B", "logprob": math.nan}],
        [{"token": "A", "logprob": -0.3}, {"token": "B"}],
        [{"token": "A", "logprob": -0.3}, {"logprob": -1.4}],
        [{"token": "A", "logprob": -0.3}, {"token": 7, "logprob": -1.4}],
    ],
)
def test_alternatives_without_the_other_value(top: Any) -> None:
    assert told(with_verdict(top_logprobs=top)) is None


@pytest.mark.parametrize("log", [math.nan, None, "x"])
def test_the_tokens_own_log_probability_may_be_missing(log: Any) -> None:
    assert told(with_verdict(logprob=log)) == TOLD
    assert told(with_verdict(logprob=log, top_logprobs=ALTERNATIVES[1:])) is None


@pytest.mark.parametrize("log", [-math.inf, -1e308, -(10**400), -9999])
def test_no_chance_at_all_is_a_probability_of_nought(log: Any) -> None:
    top = [{"token": "A", "logprob": 0.0}, {"token": "B", "logprob": log}]
    assert told(with_verdict(top_logprobs=top)) == {"true": 1.0, "false": 0.0}


@pytest.mark.parametrize("log", [math.inf, 1e308, 10**400, 800])
def test_more_than_certain_is_certain(log: Any) -> None:
    top = [{"token": "A", "logprob": log}, {"token": "B", "logprob": 0.0}]
    assert told(with_verdict(top_logprobs=top)) == {"true": 0.5, "false": 0.5}


def test_no_mass_at_all_is_no_confidence() -> None:
    top = [{"token": one, "logprob": -math.inf} for one in "AB"]
    assert told(with_verdict(logprob=-math.inf, top_logprobs=top)) is None
