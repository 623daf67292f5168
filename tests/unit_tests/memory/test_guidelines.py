"""Guidelines: written by hand, and learned with the episodes they came from."""

from typing import Any

import pytest

from memalign_graph import InvalidInputError
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory import learning
from memalign_graph.memory.learning import guideline_id
from tests.unit_tests.memory.support import EVERY_STORE, Bench, learn, op, said

pytestmark = EVERY_STORE


async def test_a_guideline_by_hand_is_the_experts(bench: Bench) -> None:
    rule = await bench.do("add_guideline", "  Say sorry\n first. ", author="ann")
    assert await bench.do("guidelines") == [rule]
    assert (rule.text, rule.origin, rule.author) == ("Say sorry first.", "expert", "ann")
    assert rule.episode_ids == []


async def test_guidelines_stand_in_the_order_of_their_making(bench: Bench) -> None:
    texts = [f"Rule {letter}." for letter in "cabed"]
    for text in texts:
        await bench.do("add_guideline", text)
    assert [rule.text for rule in await bench.do("guidelines")] == texts


async def test_adding_what_stands_changes_nothing(bench: Bench) -> None:
    first = await bench.do("add_guideline", "Be warm.")
    version = await bench.do("version")
    assert await bench.do("add_guideline", " Be  warm. ", author="bob") == first
    assert await bench.do("version") == version
    assert len(await bench.items("facts")) == 1


async def test_an_edited_guideline_keeps_its_id_place_and_sources(bench: Bench) -> None:
    [one] = await bench.remember(said())
    await bench.learn(op("add", one, text="First."))
    await bench.do("add_guideline", "Second.")
    before = (await bench.do("guidelines"))[0]
    after = await bench.do("edit_guideline", before.id, "First, reworded.", author="ann")
    assert [rule.text for rule in await bench.do("guidelines")] == ["First, reworded.", "Second."]
    assert (after.id, after.episode_ids) == (before.id, before.episode_ids)
    assert (after.origin, after.author) == ("expert", "ann")
    assert after.updated_at > before.updated_at


async def test_an_edit_to_the_same_words_changes_nothing(bench: Bench) -> None:
    rule = await bench.do("add_guideline", "Be warm.", author="ann")
    assert await bench.do("edit_guideline", rule.id, "Be warm. ", author="bob") == rule
    assert len(await bench.items("facts")) == 1


async def test_a_removed_guideline_leaves_its_episodes(bench: Bench) -> None:
    [one] = await bench.remember(said())
    await bench.learn(op("add", one, text="First."))
    [rule] = await bench.do("guidelines")
    assert await bench.do("remove_guideline", rule.id) == rule
    assert await bench.do("guidelines") == []
    assert await bench.statuses() == {"q": "distilled"}


@pytest.mark.parametrize(("name", "args"), [("edit_guideline", ("x",)), ("remove_guideline", ())])
async def test_an_unknown_guideline_is_an_error(bench: Bench, name: str, args: Any) -> None:
    with pytest.raises(InvalidInputError, match="'nope' names no guideline of 'tone'"):
        await bench.do(name, "nope", *args)
    assert await bench.items() == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not empty"),
        (" \n", "not empty"),
        (None, "not empty"),
        (["Be warm."], "not empty"),
        ("x" * 2_001, "at most 2,000 characters"),
        ("a\x00b", "NUL"),
        ("\ud83d", "surrogate"),
    ],
)
async def test_a_guideline_is_a_sentence(near: Bench, text: Any, problem: str) -> None:
    rule = await near.do("add_guideline", "Be warm.")
    for attempt in (("add_guideline", text), ("edit_guideline", rule.id, text)):
        with pytest.raises(InvalidInputError, match=f"^text.*{problem}"):
            await near.do(*attempt)
    assert await near.do("guidelines") == [rule]


async def test_guidelines_embed_nothing(bench: Bench) -> None:
    rule = await bench.do("add_guideline", "Be warm.")
    await bench.do("edit_guideline", rule.id, "Be kind.")
    await bench.do("remove_guideline", rule.id)
    assert bench.embedded() == []


async def test_learning_names_its_sources_and_marks_them(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    learned = await bench.learn(op("add", one, two, text="Be warm."))
    [rule] = await bench.do("guidelines")
    assert (rule.text, rule.origin, rule.author) == ("Be warm.", "distilled", None)
    assert rule.episode_ids == [one.id, two.id]
    assert set((await bench.statuses()).values()) == {"distilled"}
    assert learned["episode_ids"] == sorted([one.id, two.id])
    assert learned["memory_version"] == await bench.do("version")
    assert [done["guideline_id"] for done in learned["guidelines"]] == [rule.id]


async def test_learning_the_same_again_changes_nothing(bench: Bench) -> None:
    [one] = await bench.remember(said())
    first = await bench.learn(op("add", one, text="Be warm."))
    size = len(await bench.items())
    again = await bench.learn(op("add", one, text="be  warm"))
    assert again["memory_version"] == first["memory_version"]
    assert len(await bench.items()) == size


async def test_a_lesson_in_words_that_stand_adds_its_source(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Be warm."))
    await bench.learn(op("add", two, text="BE WARM"))
    assert await bench.guidelines() == {"Be warm.": {one.id, two.id}}


@pytest.mark.parametrize("action", ["add", "revise", "retire"])
async def test_what_an_expert_wrote_is_left_alone(bench: Bench, action: str) -> None:
    rule = await bench.do("add_guideline", "Be warm.")
    [one] = await bench.remember(said())
    text = {"add": "BE WARM", "revise": "Be brief.", "retire": None}[action]
    target = None if action == "add" else rule.id
    await bench.learn(op(action, one, guideline_id=target, text=text))
    assert await bench.do("guidelines") == [rule]


async def test_a_revised_guideline_keeps_its_old_sources(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Be warm."))
    [rule] = await bench.do("guidelines")
    await bench.learn(op("revise", two, guideline_id=rule.id, text="Be warm and brief."))
    assert await bench.guidelines() == {"Be warm and brief.": {one.id, two.id}}


async def test_a_distilled_guidelines_id_is_the_hash_of_its_plain_words(bench: Bench) -> None:
    [one] = await bench.remember(said())
    await bench.learn(op("add", one, text="Say  SORRY first."))
    [rule] = await bench.do("guidelines")
    assert rule.id == guideline_id("say sorry first")


async def test_several_operations_build_on_each_other(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(
        op("add", one, text="A."), op("add", two, text="B."), op("add", two, text="a")
    )
    assert await bench.guidelines() == {"A.": {one.id, two.id}, "B.": {two.id}}
    assert [rule.text for rule in await bench.do("guidelines")] == ["A.", "B."]


@pytest.mark.parametrize("take_back", ["forget", "another word"])
def test_a_lesson_from_feedback_taken_back_is_void_and_its_other_sources_wait(
    near: Bench, take_back: str
) -> None:
    memory = near.memory()
    one, two, three = memory.remember([said("one"), said("two"), said("three")])
    words = {each.id: each.word for each in (one, two, three)}
    if take_back == "forget":
        memory.forget(one.id)
    else:
        memory.remember(said("one", "Another word."))
    taught = [
        op("add", one, text="Of one."),
        op("add", one, two, text="Of both."),
        op("add", three, text="Of three."),
    ]
    learned = run(learning.learn(BLOCKING, memory.access, taught, words))
    assert [(rule.text, rule.episode_ids) for rule in memory.guidelines()] == [
        ("Of three.", [three.id])
    ]
    assert learned["episode_ids"] == [three.id]
    assert [done["text"] for done in learned["guidelines"]] == ["Of three."]
    statuses = {each.id: each.status for each in memory.episodes() if each.id != one.id}
    assert statuses == {two.id: "pending", three.id: "distilled"}


def test_a_lesson_from_a_word_since_edited_is_void(near: Bench) -> None:
    memory = near.memory()
    one = memory.remember(said())
    memory.remember(said(rationale="Another word."))
    learned = run(
        learning.learn(BLOCKING, memory.access, [op("add", one, text="Old.")], {one.id: one.word})
    )
    assert (learned["episode_ids"], learned["guidelines"]) == ([], [])
    assert memory.guidelines() == []
    assert [episode.status for episode in memory.episodes()] == ["pending"]


def test_a_revision_of_a_guideline_that_is_gone_is_void(near: Bench) -> None:
    memory = near.memory()
    one = memory.remember(said())
    learned = learn(memory, op("revise", one, guideline_id="gone", text="New."))
    assert learned["guidelines"] == []
    assert memory.guidelines() == []


def test_a_lesson_without_operations_marks_its_episodes(near: Bench) -> None:
    memory = near.memory()
    memory.remember([said("one"), said("two")])
    learn(memory)
    assert {one.status for one in memory.episodes()} == {"distilled"}
