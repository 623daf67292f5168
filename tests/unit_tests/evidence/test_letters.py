"""Log-probabilities of letters, as servers write them: nothing is raised or made up."""

import math
from typing import Any

import pytest

from memalign_graph.evidence.confidence import letter_probabilities

ALTERNATIVES = [{"token": token, "logprob": math.log(p)} for token, p in (("A", 0.75), ("B", 0.25))]
GOOD = {"token": "A", "logprob": math.log(0.75), "top_logprobs": ALTERNATIVES}
PROBABILITIES: Any = {"true": pytest.approx(0.75), "false": pytest.approx(0.25)}
A = {"token": "A", "logprob": -0.3}


def probabilities_of(**fields: Any) -> Any:
    """What is read of the verdict's token, changed so."""
    return letter_probabilities({"content": [{**GOOD, **fields}]}, ["true", "false"])


def test_a_letter_may_have_blanks_around_it_and_what_is_none_does_not_count() -> None:
    assert probabilities_of() == PROBABILITIES
    rest = [{"token": ")", "logprob": 0.0, "top_logprobs": []}]
    content = [{"token": "\n", "logprob": 0.0}, GOOD, *rest]
    assert letter_probabilities({"content": content}, ["true", "false"]) == PROBABILITIES
    odds = {"A": 0.3, " A": 0.3, "B": 0.1, "\nB": 0.1, "Yes": 0.15, "a": 0.05}
    top = [{"token": text, "logprob": math.log(odd)} for text, odd in odds.items()]
    assert probabilities_of(logprob=math.log(0.3), top_logprobs=top) == PROBABILITIES
    # The alternatives are those before a server's grammar: what was written may be no letter.
    assert probabilities_of(token="Yes", logprob=-1.0, top_logprobs=top) == PROBABILITIES
    for own in (math.nan, None, "x"):
        assert probabilities_of(logprob=own) == PROBABILITIES
        assert probabilities_of(logprob=own, top_logprobs=ALTERNATIVES[1:]) is None


@pytest.mark.parametrize(
    "logprobs",
    [
        *(None, "none", [], {}, {"content": None}, {"content": "A"}),
        {"content": [None, 3, "A", ["A", -0.1]]},
        {"content": [{"token": None, "logprob": -0.1, "top_logprobs": ALTERNATIVES}]},
        {"tokens": ['{"value": ', "A"], "top_logprobs": [{}, {"A": -0.1, "B": -2.0}]},
        {"content": [{"token_id": 17, "logprob": -0.1, "top_logprobs": [{"token_id": 4}]}]},
        *(
            {"content": [{**GOOD, "top_logprobs": top}]}
            for top in (
                *(None, [], {"A": -0.3, "B": -1.4}, "A", [None, 3], [["A", -0.3], ["B", -1.4]]),
                *([A], [A, {"token": "B"}], [A, {"logprob": -1.4}]),
                *([A, {"token": "B", "logprob": log}] for log in (None, "-1.4", math.nan)),
            )
        ),
    ],
)
def test_what_tells_nothing_is_no_confidence(logprobs: Any) -> None:
    assert letter_probabilities(logprobs, ["true", "false"]) is None


def test_odds_beyond_what_there_are_stay_probabilities() -> None:
    for low, high, shares in ((-math.inf, 0.0, (0, 1)), (0.0, 10**400, (0.5, 0.5))):
        top = [{"token": "A", "logprob": low}, {"token": "B", "logprob": high}]
        expected = dict(zip(("true", "false"), shares, strict=True))
        assert probabilities_of(logprob=low, top_logprobs=top) == expected
    none = [{"token": letter, "logprob": -math.inf} for letter in "AB"]
    assert probabilities_of(logprob=-math.inf, top_logprobs=none) is None


def test_a_letter_that_is_missing_counts_as_nothing_where_the_others_leave_it_little() -> None:
    sure = [{"token": "B", "logprob": math.log(0.98)}, {"token": "**", "logprob": math.log(0.01)}]
    for token, share, expected in (("B", 0.98, {"true": 0, "false": 1}), ("B", 0.8, None)):
        top = [{**sure[0], "logprob": math.log(share)}, sure[1]]
        assert probabilities_of(token=token, logprob=math.log(share), top_logprobs=top) == expected
