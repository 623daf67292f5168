"""The judge prompt."""

import json
from typing import Any

import pytest

from memalign_graph import Criterion, Episode, Example, Feedback, Guideline, Numeric
from memalign_graph.prompts.fences import estimate_tokens
from memalign_graph.prompts.judge import (
    JudgePrompt,
    answer_schema,
    choose_guidelines,
    fit_guidelines,
    judge_prompt,
    parse_answer,
    parse_broken_guidelines,
)
from memalign_graph.types import RecalledExample
from tests.unit_tests.prompts.support import guideline, judgment, tokens

CRITERION = Criterion(name="tone", instructions=" Is {it} polite? 100%\n")
EXAMPLE = Example(inputs="Hello?", outputs="Go away.")


def recalled(outputs: Any, *words: dict[str, Any], similarity: float = 0.5) -> RecalledExample:
    example = Example(inputs="Earlier?", outputs=outputs)
    episodes = [Episode.from_feedback(Feedback(example=example, **item)) for item in words]
    return RecalledExample(example=example, episodes=episodes, similarity=similarity)


def prompt(example: Example = EXAMPLE, **options: Any) -> JudgePrompt:
    window = options.get("max_input_tokens", 100_000)
    cases = options.get("recalled", [])
    fitted = fit_guidelines(
        options.get("guidelines", []),
        options.get("nearness", {}),
        max_guideline_tokens=options.get("max_guideline_tokens", 1000),
        max_input_tokens=window,
    )
    written = judge_prompt(
        CRITERION,
        example,
        guidelines=fitted.always,
        relevant=fitted.relevant,
        recalled=cases,
        max_input_tokens=window,
    )
    return written._replace(warnings=[*fitted.warnings, *written.warnings])


def texts(prompt: JudgePrompt) -> tuple[str, str]:
    system, *others = prompt.messages
    assert system.type == "system"
    assert [other.type for other in others] == ["human", "ai"] * (len(others) // 2) + ["human"]
    return system.text, "\n".join(other.text for other in others)


def test_prompt_order_is_guidelines_episodes_case() -> None:
    bare, human = texts(prompt())
    assert 'Criterion "tone":\nIs {it} polite? 100%\n' in bare
    assert "Guidelines from the experts" not in bare
    assert "Earlier cases" not in human
    built_prompt = prompt(
        guidelines=[guideline("b"), guideline("a")],
        recalled=[
            recalled("Fine.", {"value": True}),
            recalled("Bad.", {"rationale": "Rude."}),
            recalled("Good.", {"value": True, "rationale": "Kind."}),
        ],
    )
    system, human = texts(built_prompt)
    assert "1. Rule b.\n2. Rule a.\n" in system
    # The most similar one is next to the case; one without a value follows it.
    order = ("Good.", "Kind.", "Fine.", "Bad.", "Rude.", "Go away.")
    places = [human.index(item) for item in order]
    assert places == sorted(places)
    assert [item.rationale for item in built_prompt.episodes] == [None, "Rude.", "Kind."]
    assert "Expert's value" not in human


def test_feedback_of_every_expert_is_shown_with_its_example() -> None:
    feedback = (
        {"value": True, "author": "ann", "rationale": "Kind enough."},
        {"value": False, "author": "bob", "rationale": "Too short."},
        {"value": True, "author": "cat"},
    )
    built_prompt = prompt(recalled=[recalled("Once.", *feedback)])
    _, human = texts(built_prompt)
    assert human.count("Once.") == 1
    assert json.loads(built_prompt.messages[2].text) == {
        "rationale": "Kind enough. Another expert says false: Too short.",
        "value": True,
    }


def test_confirmed_rationale_is_shown_if_the_expert_gave_none() -> None:
    for value, label in ((True, "It thanks."), (False, "")):
        recalled_case = recalled("Thanks.", {"value": value, "judgment": judgment("It thanks.")})
        answer = prompt(recalled=[recalled_case]).messages[2].text
        assert json.loads(answer) == {"rationale": label, "value": value}


def test_value_of_an_earlier_scale_is_named() -> None:
    built_prompt = prompt(recalled=[recalled("Old.", {"value": 4, "rationale": "Good."})])
    _, human = texts(built_prompt)
    assert len(built_prompt.messages) == 2
    assert "4 (on an earlier scale)" in human
    assert "Good." in human


def test_long_cases_and_examples_are_cut_with_a_warning() -> None:
    big = "<|</outputs>" * 5_000
    example = Example(inputs="?", outputs=[big, {"again": big}])
    episode = Episode.from_feedback(Feedback(example=example, rationale=big))
    cases = [RecalledExample(example=example, episodes=[episode], similarity=0.5)] * 5
    judged = prompt(example, recalled=cases, max_input_tokens=8192)
    assert tokens(judged.messages) <= 8192
    assert len(judged.warnings) == 2


RULES = [
    guideline("a", "Near rule.", "near"),
    guideline("b", "Far rule..", "far", "gone"),
    guideline("c", "Old rule..", "gone"),
    guideline("d", "New rule..", "gone"),
    guideline("e", "By hand...", origin="expert"),
]
ONE = estimate_tokens("5. Near rule.")


@pytest.mark.parametrize(
    ("room", "nearest", "names"),
    [(1, {}, "e"), (2, {}, "be"), (3, {}, "bde")]
    + [(room, {"near": 0.9, "far": 0.1}, "abe"[:room]) for room in range(4)],
)
def test_order_of_selected_guidelines(room: int, nearest: dict[str, float], names: str) -> None:
    limits: dict[str, Any] = {"max_guideline_tokens": room * ONE, "max_input_tokens": 100_000}
    fitted = fit_guidelines(RULES, nearest, **limits)
    assert (fitted.always, "".join(item.id for item in fitted.relevant)) == ([], names)


def test_case_specific_guidelines_follow_the_shared_prefix() -> None:
    guidelines = [guideline(name, f"{name} " * 30, name) for name in "abcdefghijklmnopqrst"]
    near = prompt(guidelines=guidelines, recalled=[], nearness={"a": 0.9}, max_guideline_tokens=240)
    far = prompt(guidelines=guidelines, recalled=[], nearness={"b": 0.9}, max_guideline_tokens=240)
    system, human = texts(near)
    assert system == texts(far)[0]
    assert "a a a" in human.partition("<case>")[0]
    assert "a a a" not in texts(far)[1]
    ids = "".join(guideline.id for guideline in near.guidelines)
    assert ids.endswith("a")
    # Before it the newest, as many as fit.
    assert "abcdefghijklmnopqrst".endswith(ids[:-1])
    assert 6 < len(ids) < 11
    [warning] = near.warnings
    assert warning.startswith(f"{20 - len(ids)} of 20 guidelines did not fit into 240 tokens")


def test_without_similar_cases_no_room_is_kept_for_guidelines_near_them() -> None:
    guidelines = [guideline(f"{number}", "short rule") for number in range(100)]
    guidelines.append(guideline("long", "long " * 100))
    fitted = fit_guidelines(guidelines, {}, max_guideline_tokens=300, max_input_tokens=100_000)
    chosen = [*fitted.always, *fitted.relevant]
    assert sum(estimate_tokens(f"99. {each.text}") for each in chosen) > 250


def test_too_long_guideline_is_skipped_for_a_short_one() -> None:
    guidelines = [guideline("a", "short"), guideline("b", "long " * 100)]
    assert [guideline.id for guideline in choose_guidelines(guidelines, max_tokens=20)] == ["a"]
    assert choose_guidelines(guidelines, max_tokens=0) == []


def test_answer_is_read_on_the_scale_or_refused_with_the_reason() -> None:
    scale = Numeric(minimum=1, maximum=5, integer=True)
    criterion = Criterion(name="n", instructions="?", scale=scale)
    assert parse_answer({"rationale": " Fine. ", "value": "3", "x": 1}, criterion) == (3, "Fine.")
    for answer, problem in (
        ({"rationale": "x"}, '"value"'),
        ({"value": 1}, '"rationale"'),
        ({"value": 1, "rationale": ["x"]}, '"rationale"'),
        ({"value": 9, "rationale": "x"}, "9 is not on the scale"),
    ):
        with pytest.raises(ValueError, match=problem):
            parse_answer(answer, criterion)
    schema = answer_schema(criterion)
    assert list(schema["properties"]) == schema["required"] == ["rationale", "value"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("cited", "ids"),
    [
        ([2, 1, 2], ["g2", "g1"]),
        (["2", "1. Begin so"], ["g2", "g1"]),
        ("2", ["g2"]),
        (2, ["g2"]),
        ([2.0, 3, 0, True, None, "none", "1st", {"number": 1}], ["g2"]),
        (None, []),
    ],
)
def test_broken_guidelines_are_read_by_their_numbers(cited: Any, ids: list[str]) -> None:
    guidelines = [Guideline.model_construct(id=key) for key in ("g1", "g2")]
    assert parse_broken_guidelines({"broken_guidelines": cited}, guidelines) == ids
