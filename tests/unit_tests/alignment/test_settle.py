"""Conflicts settled, and how an expert is asked about them."""

from typing import Any

from memalign_graph.alignment.merging import Conflict, Side, settle
from memalign_graph.interrupts import conflict_form
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


def test_form_has_an_action_a_conflict() -> None:
    payload = conflict_form(CRITERION, TWO).payload
    assert [one["args"] for one in payload["action_requests"]] == [
        {"conflict": "C1", "keep": "second"},
        {"conflict": "C2", "keep": "first"},
    ]
    text = payload["action_requests"][0]["description"]
    assert text.startswith("## tone: two guidelines contradict each other")
    assert text.index("Rule a.") < text.index("Rule b.")
    assert "from 1 piece of feedback" in text
