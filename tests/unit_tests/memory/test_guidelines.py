"""Handwritten and learned guidelines as feedback is learned and forgotten."""

from functools import partial
from typing import Any

import pytest

from memalign_graph import Episode, InvalidInputError, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import learning
from tests.unit_tests.memory.purging import everything_in
from tests.unit_tests.memory.support import comment, hashes, learn, learn_from, op


def sources(memory: JudgeMemory) -> dict[str, list[str]]:
    return {guideline.text: guideline.episode_ids for guideline in memory.guidelines()}


def test_adding_an_existing_guideline_changes_nothing(memory: JudgeMemory) -> None:
    first = memory.add_guideline("Be warm.", author="ann")
    other = memory.add_guideline("Be kind.")
    before = everything_in(memory.access.store)
    assert memory.add_guideline(" Be  warm. ", author="bob") == first
    assert memory.edit_guideline(first.id, "Be warm. ", author="bob") == first
    with pytest.raises(InvalidInputError, match="already has this text"):
        memory.edit_guideline(other.id, "Be warm.")
    assert everything_in(memory.access.store) == before


@pytest.mark.parametrize("way", ["add", "edit"])
def test_distilled_text_that_an_expert_writes_by_hand_is_the_experts(
    memory: JudgeMemory, way: str
) -> None:
    question = "Is it warm?"
    learn_from(memory, op("add", memory.remember(comment()), text="Be warm.", question=question))
    [distilled] = memory.guidelines()
    if way == "add":
        written = memory.add_guideline("Be warm.", author="ann")
    else:
        written = memory.edit_guideline(distilled.id, "Be warm.", author="ann")
    assert (written.id, written.origin, written.author) == (distilled.id, "expert", "ann")
    assert (written.question, written.episode_ids) == (question, distilled.episode_ids)
    assert memory.guidelines() == [written]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" \n", "not empty"),
        (None, "not empty"),
        (["Be warm."], "not empty"),
        ("x" * 2_001, "at most 2,000 characters"),
        ("a\x00b", "NUL"),
        ("\ud83d", "surrogate"),
    ],
)
def test_guideline_is_a_sentence(memory: JudgeMemory, text: Any, problem: str) -> None:
    guideline = memory.add_guideline("Be warm.")
    attempts: list[Any] = [memory.add_guideline, partial(memory.edit_guideline, guideline.id)]
    for attempt in attempts:
        with pytest.raises(InvalidInputError, match=f"^text.*{problem}"):
            attempt(text)
    unknowns: list[Any] = [partial(memory.edit_guideline, text="x"), memory.remove_guideline]
    for unknown in unknowns:
        with pytest.raises(InvalidInputError, match="'tone' has no guideline 'nope'"):
            unknown("nope")
    assert memory.guidelines() == [guideline]


@pytest.mark.parametrize("take_back", ["forget", "another word"])
def test_lesson_from_forgotten_feedback_is_void(memory: JudgeMemory, take_back: str) -> None:
    episode, two, three = memory.remember([comment("one"), comment("two"), comment("three")])
    hashes_read = hashes([episode, two, three])
    if take_back == "forget":
        memory.forget(episode.id)
    else:
        memory.remember(comment("one", "Another word."))
    taught = [
        op("add", episode, text="Of one."),
        op("add", episode, two, text="Of both."),
        op("add", three, text="Of three."),
    ]
    learned = run_sync(learning.commit_lesson(SYNC, memory.access, taught, hashes_read))
    assert sources(memory) == {"Of three.": [three.id]}
    assert learned["episode_ids"] == [three.id]
    assert [done["text"] for done in learned["guidelines"]] == ["Of three."]
    statuses = {item.id: item.status for item in memory.episodes() if item.id != episode.id}
    assert statuses == {two.id: "pending", three.id: "distilled"}


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (("revise", "Be kind."), ("revise", "Be brief."), {"Be kind.", "Be brief."}),
        (("retire", "Be kind."), ("retire", "Be brief."), {"Be kind.", "Be brief."}),
        (("retire", None), ("revise", "Be brief."), {"Be brief."}),
    ],
)
def test_second_operation_on_a_guideline_loses_no_text(
    memory: JudgeMemory, first: Any, second: Any, left: set[str]
) -> None:
    learn(memory, op("add", memory.remember(comment("one")), text="Be warm."))
    [rule] = memory.guidelines()
    new = memory.remember(comment("two"))
    twice = [
        op(action, new, text=text, guideline_id=rule.id, before=rule.text)
        for action, text in (first, second)
    ]
    learned = learn_from(memory, *twice)
    assert sources(memory).keys() == left
    assert left <= {done["text"] for done in learned["guidelines"]}
    version = memory.version()
    learn_from(memory, *twice)
    assert memory.version() == version


def test_replacement_of_a_missing_or_edited_guideline_is_learned(memory: JudgeMemory) -> None:
    one = memory.remember(comment("one"))
    learn(memory, op("add", one, text="Be warm."), op("add", one, text="Be brief."))
    new = memory.remember(comment("two"))
    warm, brief = memory.guidelines()
    memory.remove_guideline(warm.id)
    memory.edit_guideline(brief.id, "Be short.")
    replaced = [
        op("retire", new, text="Be kind.", guideline_id=warm.id),
        op("retire", new, text="Be long.", guideline_id=brief.id),
    ]
    learn_from(memory, *replaced)
    assert sources(memory).keys() == {"Be kind.", "Be short.", "Be long."}


def test_removing_a_successor_restores_nothing(memory: JudgeMemory) -> None:
    episode, two = memory.remember([comment("one"), comment("two")])
    learn(memory, op("add", episode, text="Always."), op("add", two, text="Never."))
    always, never = [guideline.id for guideline in memory.guidelines()]
    learn(memory, op("retire", guideline_id=always, superseded_by=never))
    memory.remove_guideline(never)
    assert memory.guidelines() == []
    learn(memory, op("add", two, text="ALWAYS"))
    [guideline] = memory.guidelines()
    assert (guideline.id, guideline.episode_ids) == (always, [two.id])


@pytest.mark.parametrize("lessons", [1, 2])
def test_guideline_stays_with_one_of_its_two_sources(memory: JudgeMemory, lessons: int) -> None:
    episode, two = memory.remember([comment("one"), comment("two")])
    operations = [op("add", episode, text="A rule."), op("add", two, text="a rule")]
    for lesson in [operations] if lessons == 1 else [[operation] for operation in operations]:
        read = {value.id: value.word for value in (episode, two) if value.id in str(lesson)}
        prompts = [[episode.id], [two.id]]
        run_sync(learning.commit_lesson(SYNC, memory.access, lesson, read, prompts=prompts))
    version = memory.version()
    memory.forget(two.id)
    [guideline] = memory.guidelines()
    assert (guideline.text, guideline.status) == ("A rule.", "standing")
    assert guideline.episode_ids == [episode.id]
    memory.rollback(version)
    memory.forget(episode.id)
    [guideline] = memory.guidelines()
    assert (guideline.status, guideline.episode_ids) == ("pending", [two.id])


def test_guideline_edited_by_hand_goes_only_with_its_last_source(memory: JudgeMemory) -> None:
    one, two = memory.remember([comment("one"), comment("two")])
    learn(memory, op("add", one, two, text="Of both."))
    memory.edit_guideline(memory.guidelines()[0].id, "By hand.")
    memory.forget(one.id)
    [guideline] = memory.guidelines()
    assert (guideline.text, guideline.status) == ("By hand.", "standing")
    assert guideline.episode_ids == [two.id]
    memory.revise(two.id, {"rationale": "Another word."})
    assert memory.guidelines() == []


def five_episodes(memory: JudgeMemory) -> list[Episode]:
    """Feedback: ann on one and two, bob on one, two without an author on three."""
    feedback = [
        comment("one", author=" ann ", id="7"),
        comment("two", "Far too long.", author="ann", id="8"),
        comment("one", author="bob", value=False),
        comment("three", id="9"),
        comment("three", thread_id="t"),
    ]
    return memory.remember(feedback)


SELECTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({"feedback_ids": "7"}, [0]),
    ({"feedback_ids": ["9", "8"]}, [1, 3]),
    ({"author": "ann"}, [0, 1]),
    ({"author": "nobody"}, []),
    ({"episode_ids": ()}, []),
    ({"where": lambda episode: episode.rationale and "long" in episode.rationale}, [1]),
    ({"where": lambda episode: "t" in episode.thread_ids}, [4]),
    ({"author": "ann", "where": lambda episode: episode.example.inputs == "one"}, [0]),
    ({"author": "bob", "feedback_ids": ["7"]}, []),
    ({"author": "ann", "feedback_ids": ["7", "9"]}, [0]),
]


@pytest.mark.parametrize(("selection", "expected"), SELECTIONS)
def test_forget_matches_all_given_filters(
    memory: JudgeMemory, selection: dict[str, Any], expected: list[int]
) -> None:
    episodes = five_episodes(memory)
    forgotten = memory.forget(**selection)
    gone = {episodes[place].id for place in expected}
    assert set(forgotten.episode_ids) == gone
    assert memory.episodes() == [episode for episode in episodes if episode.id not in gone]
    assert memory.access.view.pending() == {episode.id for episode in episodes} - gone


@pytest.mark.parametrize("purge", [False, True])
def test_unknown_ids_are_listed_in_order(memory: JudgeMemory, *, purge: bool) -> None:
    one, two, *_ = five_episodes(memory)
    forgotten = memory.forget(iter(["b", one.id, "a", "b", one.id]), purge=purge)
    assert (forgotten.episode_ids, forgotten.unknown_ids) == ([one.id], ["b", "a"])
    forgotten = memory.forget({two.id}, feedback_ids=["nope"], author="bob", purge=purge)
    assert (forgotten.episode_ids, forgotten.unknown_ids) == ([], ["nope"])
    assert memory.forget(one.id, purge=purge).unknown_ids == [one.id]


async def ask_elsewhere(episode: Episode) -> bool:
    return episode.author == "nobody"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "episode_ids: choose the episodes to forget"),
    ({"episode_ids": 5}, "episode_ids"),
    ({"feedback_ids": [b"7"]}, "feedback_ids"),
    ({"author": ["ann"]}, "author"),
    ({"where": "ann"}, "where"),
    ({"where": ask_elsewhere}, "where: give a plain function, not an async one"),
    ({"author": "ann", "by": 3}, "by"),
    ({"author": "ann", "checkpointer": "threads.db"}, "checkpointer"),
]


@pytest.mark.parametrize("purge", [False, True])
def test_invalid_filters_are_refused_before_any_change(memory: JudgeMemory, *, purge: bool) -> None:
    five_episodes(memory)
    before = everything_in(memory.access.store)
    for selection, field in WRONG:
        with pytest.raises(InvalidInputError, match=rf"^{field}\b.*") as caught:
            memory.forget(purge=purge, **selection)
        assert "\n" not in str(caught.value)

    def fails(episode: Episode) -> bool:
        if episode.author == "bob":
            raise KeyError("bob")
        return True

    with pytest.raises(KeyError):
        memory.forget(where=fails, purge=purge)
    assert everything_in(memory.access.store) == before
