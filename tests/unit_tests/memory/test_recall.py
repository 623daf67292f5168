"""Recalling: which examples, in which order, and for which memory."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from langgraph.store.base import Op, Result
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Example, InvalidInputError, JudgeMemory
from memalign_graph.memory.index.retrieval_text import MAX_BYTES
from tests.unit_tests.memory.support import CRITERION, EVERY_STORE, QUERY, Bench, hashed, said

pytestmark = EVERY_STORE


async def test_the_most_similar_come_first(bench: Bench) -> None:
    await bench.remember(
        said("My parcel never arrived"), said("The cup arrived broken"), said("Reset my password")
    )
    found = await bench.do("recall", {"inputs": "The cup is broken", "outputs": "a"}, k=2)
    assert found[0].example.inputs == "The cup arrived broken"
    assert found[0].similarity > found[1].similarity
    assert len(found) == 2


async def test_a_stored_example_is_its_own_nearest(bench: Bench) -> None:
    await bench.remember(said("one"), said("two"))
    [found] = await bench.do("recall", {"inputs": "two", "outputs": "a"}, k=1)
    assert found.example.inputs == "two"
    assert found.similarity == pytest.approx(1.0, abs=1e-6)


async def test_two_answers_to_one_question_find_different_episodes(bench: Bench) -> None:
    question = "When does my order arrive?"
    kind, curt = "I am so sorry, it will come tomorrow", "Read the tracking page yourself"
    await bench.remember(said(question, outputs=kind), said(question, outputs=curt))
    for answer in (kind, curt):
        example = Example(inputs=question, outputs=f"{answer} please")
        [found] = await bench.do("recall", example, k=1)
        assert found.example.outputs == answer


async def test_recall_groups_by_example(bench: Bench) -> None:
    for author in ("ann", "bob"):
        await bench.remember(said(author=author), said("other", author=author))
    found = await bench.do("recall", {"inputs": "q", "outputs": "a"}, k=2)
    assert [[one.author for one in group.episodes] for group in found] == [["ann", "bob"]] * 2


async def test_examples_that_share_their_text_are_told_apart(bench: Bench) -> None:
    await bench.remember(
        said("q", reference_outputs="r"), said("q"), said({"question": "q"}), said("far away")
    )
    found = await bench.do("recall", {"inputs": "q", "outputs": "a"}, k=3)
    assert len({one.example.id for one in found}) == 3
    assert await bench.recall("q", k=1) != []
    assert len(await bench.recall("q", k=2)) == 2


@pytest.mark.parametrize(("k", "count"), [(0, 0), (1, 1), (3, 3), (10, 4)])
async def test_recall_gives_up_to_k_examples(bench: Bench, k: int, count: int) -> None:
    await bench.remember(*(said(f"case {number}") for number in range(4)))
    assert len(await bench.recall("case", k=k)) == count


async def test_recalling_none_embeds_nothing(bench: Bench) -> None:
    await bench.remember(said())
    bench.embedded()
    assert await bench.recall("other", k=0) == []
    assert bench.embedded() == []


async def test_recalling_fewer_than_none_is_an_error(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="k: -1 is not a whole number from 0 on"):
        await bench.do("recall", QUERY, k=-1)


async def test_recalling_from_an_empty_memory_embeds_nothing(bench: Bench) -> None:
    assert await bench.recall("q") == []
    assert bench.embedded() == []


async def test_recalling_for_no_example_is_an_error(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="outputs: is missing"):
        await bench.do("recall", {"inputs": "q"})


async def test_namespaces_and_criteria_are_kept_apart(bench: Bench) -> None:
    other = Criterion(name="truth", instructions="Is it true?")
    memories = {
        "here": bench.memory(),
        "there": bench.memory(namespace=("memalign", "team")),
        "truth": bench.memory(other),
        "below": bench.memory(other, namespace=("memalign", "tone")),
    }
    for name, memory in memories.items():
        await bench.remember(said(name), memory=memory)
        await bench.do("add_guideline", f"Of {name}.", memory=memory)
    for name, memory in memories.items():
        assert [one.example.inputs for one in await bench.do("episodes", memory=memory)] == [name]
        assert [one.text for one in await bench.do("guidelines", memory=memory)] == [f"Of {name}."]
        assert await bench.recall("q", memory=memory) == [name]


@pytest.mark.parametrize("name", ["words", "head", "vectors"])
async def test_a_criterion_named_like_a_kind_of_item_is_apart(bench: Bench, name: str) -> None:
    named = Criterion(name=name, instructions="Is it good?")
    below = bench.memory(named, namespace=("memalign", "tone"))
    await bench.remember(said("below"), memory=below)
    await bench.do("add_guideline", "Below.", memory=below)
    await bench.remember(said("above"))
    await bench.remember(said("below again"), memory=below)
    assert await bench.recall("q") == ["above"]
    assert set(await bench.recall("q", memory=below)) == {"below", "below again"}
    assert await bench.guidelines() == {}
    await bench.do("forget", [one.id for one in await bench.do("episodes")])
    assert len(await bench.do("episodes", memory=below)) == 2


async def test_a_reopened_memory_is_not_mixed_with_one_below_it(bench: Bench, reopen: Any) -> None:
    named = Criterion(name="words", instructions="Is it good?")
    below = bench.memory(named, namespace=("memalign", "tone"))
    await bench.remember(said("below"), memory=below)
    await bench.remember(said("above"))
    reopen()
    assert await bench.recall("q") == ["above"]
    reopen()
    assert await bench.recall("q", memory=below) == ["below"]


@pytest.mark.parametrize("name", ["a*b", "[x]", "100% sure?", "a_b", "Straße", 'it\'s "so"', "a/b"])
async def test_any_name_is_a_name(bench: Bench, reopen: Any, name: str) -> None:
    criterion = Criterion(name=name, instructions="Is it good?")
    await bench.remember(said(), memory=bench.memory(criterion))
    await bench.remember(said("other"), memory=bench.memory(CRITERION))
    reopen()
    assert await bench.recall("q", memory=bench.memory(criterion)) == ["q"]


@pytest.mark.parametrize(
    ("namespace", "problem"),
    [
        ((), "at least one label"),
        (("memalign", ""), "must not be empty"),
        ("team.a", "must not hold a dot"),
        (("memalign", 3), "the label 3 is no string"),
        (("langgraph", "x"), "keeps the first label 'langgraph' to itself"),
    ],
)
def test_a_namespace_no_store_takes_is_refused(near: Bench, namespace: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        near.memory(namespace=namespace)


def test_a_memory_needs_a_store(near: Bench) -> None:
    near.store = "store.db"  # type: ignore[assignment]
    with pytest.raises(InvalidInputError, match="give a LangGraph store"):
        near.memory()


async def test_a_long_example_is_found_by_its_beginning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    long = "the quick brown fox " * 2_000
    await bench.remember(said(long), said("short"))
    [text] = [one for one in bench.embedded() if one.startswith("the quick")]
    assert len(text.encode()) <= MAX_BYTES
    assert await bench.recall(f"{long} and more", k=1) == [long]
    assert "similar examples are looked for by their beginnings" in caplog.text


async def test_long_inputs_leave_room_to_outputs(near: Bench) -> None:
    await near.remember(said("ä" * 10_000, outputs="The answer."), said("q", outputs="ö" * 10_000))
    one, two = near.embedded()
    assert one.endswith("The answer.")
    assert two.startswith("q\n\nö")
    assert max(len(one.encode()), len(two.encode())) <= MAX_BYTES


@pytest.mark.parametrize(("filled", "most"), [(False, 3), (True, 8)])
async def test_many_first_recalls_at_once_read_the_store_a_few_times_each(
    *, filled: bool, most: int
) -> None:
    batches = []

    class Counting(InMemoryStore):
        async def abatch(self, ops: Iterable[Op]) -> list[Result]:
            batches.append(ops)
            await asyncio.sleep(0)
            return await super().abatch(ops)

    memory = JudgeMemory(Counting(), CRITERION, embeddings=hashed)
    if filled:
        await memory.aremember({"inputs": "q", "outputs": "a", "value": True})
        batches.clear()
    await asyncio.gather(*(memory.arecall({"inputs": str(n), "outputs": "a"}) for n in range(100)))
    assert len(batches) <= most * 100
