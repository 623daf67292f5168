"""Remembering and revising: what becomes an episode, what changes one, and what changes nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from memalign_graph import Episode, Example, Feedback, InvalidInputError, JudgeMemory, Judgment
from tests.unit_tests.memory.purging import everything_in
from tests.unit_tests.memory.support import QUERY, Bench, learn, op, said

VERDICT = Judgment(
    criterion="tone", example_id="x", value=True, rationale="Fine.", memory_version="0"
)


def test_feedback_may_be_given_as_its_fields(memory: JudgeMemory) -> None:
    fields = {"inputs": {"q": [1]}, "outputs": "a", "reference_outputs": "b", "value": "no"}
    episode = memory.remember(MappingProxyType(fields))
    assert isinstance(episode, Episode)
    assert (episode.value, episode.example.reference_outputs) == (False, "b")


def test_experts_are_distinguished_by_name_or_feedback_id(memory: JudgeMemory) -> None:
    words = [said(id="1"), said(id="2"), said(), said(rationale="Last word."), said(author="ann")]
    answered = memory.remember(words)
    assert [one.rationale for one in answered[2:4]] == ["Last word."] * 2
    found = memory.episodes()
    assert [(one.feedback_id, one.author) for one in found].count((None, None)) == 1
    assert len(found) == 4
    assert len({one.example_id for one in found}) == 1


@pytest.mark.parametrize(
    "given",
    [
        "text",
        [{"inputs": "q"}],
        [said(), 3],
        {"rationale": "x"},
        [said("fine", value=True), said("off the scale", value="perhaps")],
        {"inputs": "q", "outputs": "a", "rationale": "x", "thread_id": "a\x00b"},
        *(
            {"inputs": "q", "outputs": "a", "judgment": {**VERDICT.to_json(), **fields}}
            for fields in ({"rationale": "a\x00b"}, {"confidence": float("nan")})
        ),
    ],
)
def test_invalid_feedback_stores_nothing(memory: JudgeMemory, given: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.remember(given)
    assert "\n" not in str(caught.value)
    assert memory.episodes() == []


def test_agreement_is_not_distilled(memory: JudgeMemory) -> None:
    agreed, refused = memory.remember(
        [said(f"{value}", None, value=value, judgment=VERDICT) for value in (True, False)]
    )
    assert (agreed.status, refused.status) == ("distilled", "pending")


def test_same_feedback_in_another_thread_adds_the_thread(memory: JudgeMemory) -> None:
    first = memory.remember(said(thread_id="t1"))
    learn(memory, op("add", first, text="Be warm."))
    again = memory.remember(said(thread_id="t2"))
    assert again.thread_ids == ["t1", "t2"]
    assert again.status == "distilled"
    [rule] = memory.guidelines()
    assert (rule.status, rule.episode_ids) == ("standing", [first.id])


@pytest.mark.parametrize("later", ["Too cold.", "Another word."])
def test_external_feedback_id_is_stored(memory: JudgeMemory, later: str) -> None:
    first = memory.remember(said(author="ann"))
    memory.remember(said(author="ann", id="7"))
    memory.remember(said(rationale=later, author="ann"))
    assert [one.feedback_id for one in memory.episodes()] == ["7"]
    assert memory.forget(feedback_ids="7").episode_ids == [first.id]


def test_examples_are_copied(memory: JudgeMemory) -> None:
    inputs: Any = {"q": "as it was"}
    memory.remember(said(inputs))
    version = memory.version()
    inputs["q"] = "changed"
    read: Any = memory.episodes()[0].example.inputs
    read["q"] = "changed"
    [episode] = memory.episodes()
    assert episode.example.inputs == {"q": "as it was"}
    assert episode.example.id == episode.example_id
    assert memory.version() == version


def test_example_of_maximum_depth_can_be_remembered_edited_and_forgotten(
    memory: JudgeMemory,
) -> None:
    deep: Any = "deep"
    for _ in range(90):
        deep = [deep]
    with pytest.raises(ValueError, match="inputs"):
        Example(inputs=[deep], outputs="a")
    one = memory.remember(said(deep))
    memory.remember(said(deep, "Another word."))
    memory.forget(one.id)


def one_of(memory: JudgeMemory) -> Episode:
    word = said("one", "Too cold.", value=True, author="ann", id="7", thread_id="first")
    one = memory.remember(word)
    learn(memory, op("add", one, text="The old rule."))
    return one


REVISED: list[tuple[Any, tuple[Any, Any]]] = [
    ({"value": "no"}, (False, "Too cold.")),
    ({"rationale": "Too long."}, (True, "Too long.")),
    ({"value": None, "rationale": "Too long."}, (None, "Too long.")),
    (Feedback(inputs="one", outputs="a", rationale="Too long."), (True, "Too long.")),  # type: ignore[call-arg]
    (Feedback(inputs="one", outputs="a", value=False, author="ann"), (False, "Too cold.")),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("given", "expected"), REVISED)
def test_revise_changes_only_the_given_fields(
    memory: JudgeMemory, given: Any, expected: tuple[Any, Any]
) -> None:
    one = one_of(memory)
    after = memory.revise(one.id, given)
    assert (after.value, after.rationale) == expected
    assert (after.id, after.author, after.feedback_id) == (one.id, "ann", "7")
    assert (after.created_at, after.status) == (one.created_at, "pending")
    assert after.updated_at > one.updated_at
    assert memory.episodes() == [after]
    assert memory.guidelines() == []


def test_equal_revision_changes_nothing_and_adds_its_thread(
    memory: JudgeMemory,
) -> None:
    one = one_of(memory)
    version = memory.version()
    for given in ({}, {"value": "yes"}, {"rationale": "Too cold. "}):
        assert memory.revise(one.id, given).word == one.word
    assert memory.version() == version
    after = memory.revise(one.id, {"rationale": "Too long.", "thread_id": "second"})
    assert after.thread_ids == ["first", "second"]


def test_repeating_the_old_feedback_does_not_undo_a_revision(memory: JudgeMemory) -> None:
    given = said("one", "Too cold.", author="ann", given_at=datetime(2024, 1, 1, tzinfo=UTC))
    one = memory.remember(given)
    after = memory.revise(one.id, {"rationale": "Too long."})
    assert memory.remember(given) == after


ANOTHERS = r"^feedback: it has another author or example "
UNKNOWN = r"^episode_id: (expected an episode's id|'tone' has no episode)"
REFUSED: list[tuple[Any, str]] = [
    ({"author": "bob", "rationale": "x"}, ANOTHERS),
    ({"author": None, "rationale": "x"}, ANOTHERS),
    ({"inputs": "other", "outputs": "a", "rationale": "x"}, ANOTHERS),
    (said("other", "x", author="ann"), ANOTHERS),
    (said("one", "x", author="bob"), ANOTHERS),
    ({"value": "perhaps"}, "value: 'perhaps' is not on the scale"),
    ({"value": None, "rationale": "  "}, "feedback needs a value or a rationale"),
    ({"verdict": True}, "verdict: is not a known field"),
    ({"rationale": "a\x00b"}, "rationale has a NUL"),
    (None, "feedback"),
    ("Too long.", "feedback"),
]


def test_invalid_revision_changes_nothing(memory: JudgeMemory) -> None:
    one = one_of(memory)
    before = everything_in(memory.access.store)
    attempts: list[tuple[Any, Any, str]] = [(one.id, *attempt) for attempt in REFUSED]
    attempts += [(key, {"value": False}, UNKNOWN) for key in ("nope", "", None, 5, ["x"])]
    for episode_id, given, problem in attempts:
        with pytest.raises(InvalidInputError, match=problem) as caught:
            memory.revise(episode_id, given)
        assert "\n" not in str(caught.value)
    assert everything_in(memory.access.store) == before


async def test_agreeing_experts_do_not_multiply_on_reload(
    bench: Bench, reopen: Callable[[], None]
) -> None:
    labels = [said("case", None, value=True, author=name) for name in ("ann", "bob", "eve", "joe")]
    for _ in range(3):
        await bench.remember(*labels)
        reopen()
        [found] = await bench.do("recall", QUERY, k=50)
        assert [one.author for one in found.episodes] == ["ann", "bob", "eve", "joe"]
        assert len(await bench.do("episodes")) == 4
    assert len(await bench.do("history")) == 1
