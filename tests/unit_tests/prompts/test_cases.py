"""Cases and what experts said on them, as prompts show them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memalign_graph import Criterion, Episode, Example, Feedback
from memalign_graph.prompts.distill import by_case, distill_prompt, operations_schema
from memalign_graph.prompts.fences import estimate_tokens, render_example, render_words

CRITERION = Criterion(name="tone", instructions="Is it polite?")
START = datetime(2026, 1, 1, tzinfo=UTC)
WIDE = 100_000


def word(case: str, minute: int, **fields: Any) -> Episode:
    given_at = START + timedelta(minutes=minute)
    given = {"inputs": "Hello?", "outputs": case, "given_at": given_at, **fields}
    return Episode.from_feedback(Feedback.model_validate(given))


ANN = word("Go away.", 3, author="ann", value=False, rationale="Rude.")
BOB = word("Go away.", 1, author="bob", value=True)
CARL = word("Go away.", 2, author="carl", rationale="Curt.")
LATER = word("Come in.", 5, rationale="Warm.")
FIRST = word("Well...", 0, rationale="Slow.")


def prompt(*episodes: Episode, window: int = WIDE, **options: Any) -> Any:
    return distill_prompt(
        CRITERION, guidelines=[], episodes=episodes, max_input_tokens=window, **options
    )


def test_experts_on_one_example_come_together_oldest_first() -> None:
    assert by_case([ANN, LATER, BOB, CARL]) == [[BOB, CARL, ANN], [LATER]]
    assert by_case([]) == []


def test_feedback_is_shown_in_order_of_time() -> None:
    given = prompt(LATER, ANN, FIRST)
    assert list(given.episodes.values()) == [FIRST, ANN, LATER]
    human = given.messages[1].text
    places = [human.index(one) for one in ("Slow.", "Rude.", "Warm.")]
    assert places == sorted(places)
    assert "in order of time" in given.messages[0].text
    assert "in order of time" not in prompt(ANN).messages[0].text


def test_several_experts_stand_once_under_their_example() -> None:
    given = prompt(ANN, LATER, BOB, CARL)
    assert list(given.episodes.values()) == [BOB, CARL, ANN, LATER]
    human = given.messages[1].text
    assert human.count("Go away.") == 1
    assert "Feedback F1, F2, F3: 3 experts on one case" in human
    assert "Feedback F4\n" in human
    lines = [line for line in human.splitlines() if line.startswith(("F1.", "F2.", "F3."))]
    assert [line.partition(":")[0] for line in lines][:1] == ["F1. The expert's value"]
    # Of one true and one false the newer counts.
    assert human.count("The value that counts here: false") == 1


def test_one_expert_needs_no_handle_and_no_majority() -> None:
    lines, is_cut = render_words([ANN], CRITERION, max_tokens=100)
    assert lines[0] == "The expert's value: false"
    assert not any("counts here" in line for line in lines)
    assert is_cut is False


def test_words_that_are_too_long_are_cut_and_told() -> None:
    giant = word("Hm.", 4, rationale="begin " + "why " * 10_000 + "end")
    lines, is_cut = render_words([giant], CRITERION, max_tokens=50)
    assert is_cut
    assert "begin" in lines[0]
    assert "end\n</rationale>" in lines[0]
    assert estimate_tokens("\n".join(lines)) < 90


def test_example_that_fits_is_left_whole() -> None:
    example = Example(inputs={"a": [1]}, outputs="x" * 90, reference_outputs="y")
    for limit in (WIDE, 1000):
        text, is_cut = render_example("case", example, max_tokens=limit)
        assert not is_cut
        assert text.startswith("<case>\n<inputs>\n{")
        assert text.endswith("</reference_outputs>\n</case>")
    bare, _ = render_example(None, example, max_tokens=WIDE)
    assert bare.startswith("<inputs>")


def test_what_was_cut_is_named() -> None:
    giant = word("word " * 50_000, 7, rationale="Long.")
    wordy = word("Hm.", 8, rationale="why " * 50_000)
    assert prompt(ANN, LATER).cut == []
    assert prompt(ANN, giant, LATER, wordy).cut == [giant.id, wordy.id]
    both = [word("word " * 50_000, 7, author=name, rationale="Long.") for name in "ab"]
    assert sorted(prompt(*both).cut) == sorted(one.id for one in both)


@pytest.mark.parametrize(("most", "found"), [(None, 6), (1, 1)])
def test_answer_has_two_operations_for_each_feedback_unless_told(
    most: int | None, found: int
) -> None:
    given = prompt(ANN, LATER, FIRST, most_operations=most)
    assert given.most_operations == found
    assert operations_schema(given)["properties"]["operations"]["maxItems"] == found


def test_first_case_is_always_shown_and_the_others_as_far_as_they_fit() -> None:
    giants = [word(f"{number} {'word ' * 900}", number, rationale="So.") for number in range(8)]
    urgent = giants[5]
    given = prompt(urgent, *giants, window=4096)
    assert urgent in given.episodes.values()
    assert 1 <= len(given.episodes) < 8
    shown = list(given.episodes.values())
    assert shown == sorted(shown, key=lambda one: one.given_at)
