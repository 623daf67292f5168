"""The comparison of guidelines: its prompt, its answer, and what changed."""

from typing import Any

import pytest

from memalign_graph.alignment.report import sum_usage
from memalign_graph.prompts.compare import read_relations, relations_prompt, relations_schema
from tests.unit_tests.alignment.alignment_cases import CRITERION


def test_rules_are_numbered() -> None:
    system, human = relations_prompt(CRITERION, ["Say sorry.", "Fine."])
    assert "Is it polite?" in system.text
    assert "1. Say sorry.\n2. Fine." in human.text
    schema = relations_schema(2)
    assert schema["required"] == list(schema["properties"]) == ["duplicates", "contradictions"]
    rule = schema["properties"]["duplicates"]["items"]["items"]
    assert (rule["minimum"], rule["maximum"]) == (1, 2)


def answer(duplicates: Any = (), contradictions: Any = ()) -> dict[str, Any]:
    return {"duplicates": list(duplicates), "contradictions": list(contradictions)}


@pytest.mark.parametrize(
    ("duplicates", "contradictions", "expected"),
    [
        ([[2, 1], [3, 4, 3]], [[5, 1]], ([[1, 0], [2, 3]], [(0, 4)])),
        ([[], [1], [2, 2]], [[], [1], [3, 3], [1, 2], [2, 1]], ([], [(0, 1)])),
        ([[1, 2], [1, 2, 3], [3, 4]], [[2, 1]], ([[2, 3]], [(0, 1)])),  # no duplicates of opposites
    ],
)
def test_numbers_become_places_and_what_says_nothing_is_left_out(
    duplicates: Any, contradictions: Any, expected: Any
) -> None:
    assert read_relations(answer(duplicates, contradictions), 5) == expected


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({}, 'no list of "duplicates"'),
        ({"duplicates": {}, "contradictions": []}, 'no list of "duplicates"'),
        (answer([[1, 4]]), "4 is no rule: they are numbered from 1 to 3"),
        (answer([[0, 1]]), "0 is no rule"),
        (answer([[True, 2]]), "no list of numbers"),
        (answer([1, 2]), "no list of numbers"),
        (answer([], [[1, 2, 3]]), "more than two numbers"),
    ],
)
def test_comparison_that_can_not_be_used_says_why(answer: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_relations(answer, 3)


def test_cost_adds_up_what_nodes_used_and_not_the_time_between_them() -> None:
    entries = [
        {"used": {"chat_calls": 1, "input_tokens": 5}, "start": 0, "stop": 1},
        {"used": {"chat_calls": 2, "texts_embedded": 3}, "start": 100, "stop": 101.5},
        {"used": {}, "start": 5, "stop": 4},  # a clock that was set back
    ]
    cost = sum_usage(entries)
    assert (cost.chat_calls, cost.input_tokens, cost.texts_embedded) == (3, 5, 3)
    assert cost.seconds == 2.5
