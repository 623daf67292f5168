"""Log-probabilities of servers that write them otherwise: nothing is raised or made up."""

import math
from typing import Any

import pytest

from memalign_graph import Boolean
from memalign_graph.evidence.logprobs import read_tokens, value_probabilities
from tests.unit_tests.evidence.tokens import entry, logprobs

GOOD = logprobs(['{"value": ', ("true", {"true": 0.75, "false": 0.25}), "}"])
ALTERNATIVES = [entry("true", 0.75), entry("false", 0.25)]


def told(content: Any) -> Any:
    return value_probabilities(read_tokens(content), Boolean())


def with_verdict(**fields: Any) -> Any:
    head, verdict, tail = GOOD["content"]
    return {"content": [head, {**verdict, **fields}, tail]}


def test_the_good_one() -> None:
    assert told(GOOD) == {"true": pytest.approx(0.75), "false": pytest.approx(0.25)}


@pytest.mark.parametrize(
    "given",
    [
        None,
        "none",
        17,
        [],
        {},
        {"content": None},
        {"content": "true"},
        {"content": {"tokens": ["true"], "token_logprobs": [-0.1]}},
        {"content": [None, 3, "true", ["true", -0.1]]},
        {"content": [{"token": None, "logprob": -0.1, "top_logprobs": ALTERNATIVES}]},
        {"tokens": ['{"value": ', "true"], "top_logprobs": [{}, {"true": -0.1, "false": -2.0}]},
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
        {"true": -0.3, "false": -1.4},
        "true",
        [None, 3],
        [["true", -0.3], ["false", -1.4]],
        [{"token": "true", "logprob": -0.3}],
        [{"token": "true", "logprob": -0.3}, {"token": "false", "logprob": None}],
        [{"token": "true", "logprob": -0.3}, {"token": "false", "logprob": "-1.4"}],
        [{"token": "true", "logprob": -0.3}, {"token": "false", "logprob": math.nan}],
        [{"token": "true", "logprob": -0.3}, {"token": "false"}],
        [{"token": "true", "logprob": -0.3}, {"logprob": -1.4}],
        [{"token": "true", "logprob": -0.3}, {"token": 7, "logprob": -1.4}],
    ],
)
def test_alternatives_without_the_other_value(top: Any) -> None:
    assert told(with_verdict(top_logprobs=top)) is None


@pytest.mark.parametrize("log", [math.nan, None, "x"])
def test_the_tokens_own_log_probability_may_be_missing(log: Any) -> None:
    found = told(with_verdict(logprob=log))
    assert found == {"true": pytest.approx(0.75), "false": pytest.approx(0.25)}
    assert told(with_verdict(logprob=log, top_logprobs=[entry("false", 0.25)])) is None


@pytest.mark.parametrize("log", [-math.inf, -1e308, -(10**400), -9999])
def test_no_chance_at_all_is_a_probability_of_nought(log: Any) -> None:
    top = [{"token": "true", "logprob": 0.0}, {"token": "false", "logprob": log}]
    assert told(with_verdict(top_logprobs=top)) == {"true": 1.0, "false": 0.0}


@pytest.mark.parametrize("log", [math.inf, 1e308, 10**400, 800])
def test_more_than_certain_is_certain(log: Any) -> None:
    top = [{"token": "true", "logprob": log}, {"token": "false", "logprob": 0.0}]
    assert told(with_verdict(top_logprobs=top)) == {"true": 0.5, "false": 0.5}


def test_no_mass_at_all_is_no_confidence() -> None:
    top = [{"token": one, "logprob": -math.inf} for one in ("true", "false")]
    assert told(with_verdict(logprob=-math.inf, top_logprobs=top)) is None


@pytest.mark.parametrize("raw", [None, [], "true", [300], [-1], [1.5], [True]])
def test_bytes_that_are_none_leave_the_text(raw: Any) -> None:
    top = [{**one, "bytes": raw} for one in ALTERNATIVES]
    found = told(with_verdict(bytes=raw, top_logprobs=top))
    assert found == {"true": pytest.approx(0.75), "false": pytest.approx(0.25)}


def test_text_that_is_no_text_is_no_confidence() -> None:
    assert told(with_verdict(token="\ud800", bytes=None)) is None
