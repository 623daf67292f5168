"""Conflicts settled, and an expert's reply to the question about them."""

from typing import Any

import pytest
from pydantic import ValidationError

from memalign_graph.alignment.conflicts import (
    conflicts_payload,
    decisions_schema,
    read_decisions,
)
from memalign_graph.alignment.merging import Conflict, Side, settle
from memalign_graph.identity import check_json
from tests.unit_tests.alignment.alignment_cases import CRITERION


def conflict(number: int, first: str, second: str, newer: Any = "second") -> Conflict:
    sides = [
        Side.model_validate({"guideline_id": one, "text": f"Rule {one}.", "episode_ids": ["e1"]})
        for one in (first, second)
    ]
    return Conflict(id=f"C{number}", first=sides[0], second=sides[1], newer=newer)


TWO = [conflict(1, "a", "b"), conflict(2, "c", "d", "first")]


def losers(conflicts: Any, decisions: Any = None) -> dict[str | None, str | None]:
    return {one.guideline_id: one.superseded_by for one in settle(conflicts, decisions)}


def test_newer_wins_unless_an_expert_decides() -> None:
    assert losers(TWO) == {"a": "b", "d": "c"}
    assert losers(TWO, {"C1": "first", "C2": "first"}) == {"b": "a", "d": "c"}
    assert losers(TWO, {"C1": "both", "C2": "second"}) == {"c": "d"}
    assert losers([]) == {}


def test_what_was_not_decided_is_settled_by_age_and_says_so() -> None:
    by_age, decided = settle(TWO, {"C2": "second"})
    assert (by_age.settled, decided.settled) == (False, True)
    assert by_age.reason != decided.reason
    assert decided.reason == "An expert chose the other one."
    assert {one.action for one in (by_age, decided)} == {"retire"}


def test_what_has_lost_decides_nothing() -> None:
    chain = [conflict(1, "a", "b"), conflict(2, "a", "c", "first"), conflict(3, "b", "d")]
    # a lost to b: it does not put c out; b lost to d after that.
    assert losers(chain) == {"a": "b", "b": "d"}
    assert losers([conflict(1, "a", "b"), conflict(2, "b", "a", "second")]) == {"a": "b"}


def test_same_loser_twice_goes_once() -> None:
    assert losers([conflict(1, "a", "b"), conflict(2, "a", "c")]) == {"a": "b"}


ALL: dict[str, tuple[Any, list[str]]] = {
    "object": ({"C1": "first", "C2": "both"}, ["first", "both"]),
    "letters-and-blanks": ({"C1": " FIRST ", "C2": "Both"}, ["first", "both"]),
    "newer": ("newer", ["second", "first"]),
    "word-for-all": ("second", ["second", "second"]),
    "newer-inside": ({"C1": "newer", "C2": "newer"}, ["second", "first"]),
    "approve": ([{"type": "approve"}] * 2, ["second", "first"]),
    "accept": ([{"type": "accept", "args": None}] * 2, ["second", "first"]),
    "reject": ([{"type": "reject", "message": "No."}] * 2, ["both", "both"]),
    "ignore": ([{"type": "ignore"}] * 2, ["both", "both"]),
    "wrapped": ({"decisions": [{"type": "approve"}, {"type": "reject"}]}, ["second", "both"]),
    "edit": (
        [
            {"type": "edit", "edited_action": {"name": "x", "args": {"keep": "first"}}},
            {"type": "edit", "args": {"action": "x", "args": {"keep": "newer"}}},
        ],
        ["first", "first"],
    ),
    "edit-args-alone": (
        [{"type": "edit", "args": {"keep": "first"}}, {"type": "approve"}],
        ["first", "first"],
    ),
}


@pytest.mark.parametrize("reply", list(ALL))
def test_reply_is_read(reply: str) -> None:
    given, choices = ALL[reply]
    assert list(read_decisions(given, TWO).values()) == choices
    assert decisions_schema(TWO).model_validate(given).root == read_decisions(given, TWO)


def test_one_decision_need_not_be_a_list() -> None:
    assert read_decisions({"type": "approve"}, TWO[:1]) == {"C1": "second"}
    assert read_decisions({"decisions": {"type": "reject"}}, TWO[:1]) == {"C1": "both"}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (None, "type NoneType"),
        (7, "type int"),
        (True, "type bool"),
        ("neither", "'neither'"),
        ("", "''"),
        ([], "there are 2 conflicts, but the reply has 0"),
        ([{"type": "approve"}], "has 1 decisions"),
        (["first", "second"], "the decision on C1"),
        ([{"type": "edit", "edited_action": None}, {"type": "approve"}], "the decision on C1"),
        ([{"type": "edit", "args": {"keep": "third"}}, {"type": "approve"}], "'third' for C1"),
        ({}, "leaves C1 open"),
        ({"C1": "first"}, "leaves C2 open"),
        ({"C1": "first", "C2": "first", "c3": "first"}, "names 'c3'"),
        ({"C1": 1, "C2": "first"}, "1 for C1"),
        ({"C1": ["first"], "C2": "first"}, "['first'] for C1"),
        ({"type": "approve"}, "there are 2 conflicts"),
    ],
)
def test_reply_that_can_not_be_used_says_why(reply: Any, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_decisions(reply, TWO)
    assert problem in str(caught.value)
    assert "{'C1': 'second'}" in str(caught.value)
    with pytest.raises(ValidationError) as invalid:
        decisions_schema(TWO).model_validate(reply)
    assert problem in str(invalid.value)


def test_payload_is_json_with_an_action_a_conflict() -> None:
    payload = conflicts_payload(CRITERION, TWO)
    check_json(payload, "payload")
    assert [one["args"] for one in payload["action_requests"]] == [
        {"conflict": "C1", "keep": "second"},
        {"conflict": "C2", "keep": "first"},
    ]
    text = payload["action_requests"][0]["description"]
    assert text.startswith("## tone: two guidelines contradict each other")
    assert text.index("Rule a.") < text.index("Rule b.")
    assert "from 1 piece of feedback" in text
    schema = decisions_schema(TWO).model_json_schema()
    assert {key: one["default"] for key, one in schema["properties"].items()} == {
        "C1": "second",
        "C2": "first",
    }


def test_two_questions_have_schemas_of_their_own() -> None:
    one, other = decisions_schema(TWO[:1]), decisions_schema(TWO)
    assert list(one.model_json_schema()["properties"]) == ["C1"]
    assert list(other.model_json_schema()["properties"]) == ["C1", "C2"]
