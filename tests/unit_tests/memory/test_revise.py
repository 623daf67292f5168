"""Revising: what an expert says instead, and what only the old word supported."""

from datetime import UTC, datetime
from typing import Any

import pytest

from memalign_graph import Episode, Feedback, InvalidInputError
from tests.unit_tests.memory.support import Bench, op, said


async def one_of(bench: Bench) -> Episode:
    [one, _] = await bench.remember(
        said("one", "Too cold.", value=True, author="ann", id="7"), said("two")
    )
    await bench.learn(op("add", one, text="The old rule."))
    return one


GIVEN: list[tuple[Any, tuple[Any, Any]]] = [
    ({"value": False}, (False, "Too cold.")),
    ({"value": "no"}, (False, "Too cold.")),
    ({"rationale": "Too long."}, (True, "Too long.")),
    ({"value": False, "rationale": "Too long."}, (False, "Too long.")),
    ({"value": None, "rationale": "Too long."}, (None, "Too long.")),
    ({"value": False, "rationale": None}, (False, None)),
    (Feedback(inputs="one", outputs="a", rationale="Too long."), (True, "Too long.")),  # type: ignore[call-arg]
    (Feedback(inputs="one", outputs="a", value=False, author="ann"), (False, "Too cold.")),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("given", "expected"), GIVEN)
async def test_what_is_named_is_changed_and_the_rest_stays(
    near: Bench, given: Any, expected: tuple[Any, Any]
) -> None:
    one = await one_of(near)
    after = await near.do("revise", one.id, given)
    assert (after.value, after.rationale) == expected
    assert (after.id, after.author, after.feedback_id) == (one.id, "ann", "7")
    assert (after.created_at, after.status) == (one.created_at, "pending")
    assert after.updated_at > one.updated_at
    assert (await near.do("episodes"))[0] == after
    assert await near.guidelines() == {}


async def test_in_every_store(bench: Bench) -> None:
    one = await one_of(bench)
    bench.embedded()
    after = await bench.do("revise", one.id, {"rationale": "Too long."})
    assert await bench.do("episodes") == [after, (await bench.do("episodes"))[1]]
    assert await bench.guidelines() == {}
    [commit, *_] = await bench.do("history")
    assert (commit.reason, commit.author) == ("revise", "ann")
    [found] = await bench.do("recall", one.example, k=1)
    assert [each.rationale for each in found.episodes] == ["Too long."]
    assert bench.embedded() == []


async def test_the_same_word_changes_nothing(bench: Bench) -> None:
    one = await one_of(bench)
    [stored, _] = await bench.do("episodes")
    version = await bench.do("version")
    for given in ({}, {"value": "yes"}, {"rationale": "Too cold. "}):
        assert await bench.do("revise", one.id, given) == stored
    assert await bench.do("version") == version
    assert await bench.guidelines() == {"The old rule.": {one.id}}


async def test_a_rule_with_another_source_is_pending(near: Bench) -> None:
    one, two = await near.remember(said("one"), said("two"))
    await near.learn(op("add", one, two, text="Of both."))
    await near.do("revise", one.id, {"rationale": "Another word."})
    [rule] = await near.do("guidelines")
    assert (rule.text, rule.status, rule.episode_ids) == ("Of both.", "pending", [two.id])


async def test_a_later_repetition_of_the_old_word_does_not_undo_it(near: Bench) -> None:
    given = said("one", "Too cold.", author="ann", given_at=datetime(2024, 1, 1, tzinfo=UTC))
    [one] = await near.remember(given)
    after = await near.do("revise", one.id, {"rationale": "Too long."})
    [again] = await near.remember(given)
    assert again == after


async def test_another_experts_word_is_refused(near: Bench) -> None:
    one = await one_of(near)
    before = await near.items()
    for given in (
        {"author": "bob", "rationale": "x"},
        {"author": None, "rationale": "x"},
        {"inputs": "other", "outputs": "a", "rationale": "x"},
        said("other", "x", author="ann"),
        said("one", "x", author="bob"),
    ):
        with pytest.raises(InvalidInputError, match=r"^feedback: it is another expert's, or on "):
            await near.do("revise", one.id, given)
    assert await near.items() == before


@pytest.mark.parametrize("episode_id", ["nope", "", None, 5, ["x"]])
async def test_an_unknown_episode_is_one_clear_sentence(near: Bench, episode_id: Any) -> None:
    await one_of(near)
    problem = r"^episode_id: (give an episode's id|.* names no episode of 'tone')"
    with pytest.raises(InvalidInputError, match=problem) as caught:
        await near.do("revise", episode_id, {"value": False})
    assert "\n" not in str(caught.value)


WRONG: list[tuple[Any, str]] = [
    ({"value": "perhaps"}, "value: 'perhaps' is not on the scale"),
    ({"value": None, "rationale": None}, "feedback needs a value or a rationale"),
    ({"value": None, "rationale": "  "}, "feedback needs a value or a rationale"),
    ({"verdict": True}, "verdict: is not a field that is known here"),
    ({"rationale": "a\x00b"}, "rationale holds a NUL"),
    ({"rationale": 3}, "rationale"),
    (None, "feedback"),
    ("Too long.", "feedback"),
    (3, "feedback"),
]


@pytest.mark.parametrize(("given", "problem"), WRONG)
async def test_what_can_not_be_said_changes_nothing(near: Bench, given: Any, problem: str) -> None:
    one = await one_of(near)
    before = await near.items()
    with pytest.raises(InvalidInputError, match=problem) as caught:
        await near.do("revise", one.id, given)
    assert "\n" not in str(caught.value)
    assert await near.items() == before


async def test_the_thread_a_revision_was_given_in_is_kept(near: Bench) -> None:
    [one] = await near.remember(said("one", thread_id="first"))
    given = said("one", "Too long.", thread_id="second")
    after = await near.do("revise", one.id, given)
    assert after.thread_ids == ["first", "second"]


async def test_what_a_revision_replaced_can_be_had_back(bench: Bench) -> None:
    one = await one_of(bench)
    version, contents = await bench.do("version"), await bench.contents()
    await bench.do("revise", one.id, {"rationale": "Too long."})
    await bench.do("rollback", version)
    assert await bench.contents() == contents
    assert await bench.guidelines() == {"The old rule.": {one.id}}
