"""Versions: who changed what when and why, what each version held, and the way back to it."""

from collections.abc import Sequence
from typing import Any

import pytest

from memalign_graph import InvalidInputError, JudgeMemory, create_judge_graph
from tests.unit_tests.memory.purging import everything_in
from tests.unit_tests.memory.support import (
    CRITERION,
    Bench,
    hashed,
    op,
    said,
)


def test_an_unknown_version_is_one_clear_sentence(memory: JudgeMemory) -> None:
    memory.remember(said())
    before = everything_in(memory.access.store)
    other = JudgeMemory(memory.access.store, CRITERION, namespace="other", embeddings=hashed)
    other.remember(said("two"))
    for version in ("nope", "", "0" * 31, None, 3, ["0"], other.version()):
        for name in ("at", "diff", "rollback"):
            with pytest.raises(InvalidInputError) as caught:
                getattr(memory, name)(version)
            assert str(caught.value) == (
                f"version: the memory of 'tone' never had the version {version!r}: "
                "`history()` lists those it had."
            )
    with pytest.raises(InvalidInputError, match="author"):
        memory.rollback("0" * 32, author=["ann"])  # type: ignore[arg-type]
    assert [
        item for item in everything_in(memory.access.store) if "other" not in item.namespace
    ] == (before)


async def judge(bench: Bench) -> dict[str, Any]:
    builder = create_judge_graph(
        CRITERION, model=bench.server.chat_model(), embeddings=bench.embeddings
    )
    graph = builder.compile(store=bench.store)
    given = {"inputs": "q", "outputs": "a"}
    result = await graph.ainvoke(given) if bench.awaits else graph.invoke(given)
    return dict(result["judgment"])


async def test_a_judgment_leads_back_to_the_memory_it_was_made_with(bench: Bench) -> None:
    before = await judge(bench)
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Of one."))
    guidelines = await bench.do("guidelines")
    judgment = await judge(bench)
    await bench.do("forget", [one.id, two.id])
    await bench.do("add_guideline", "Something else.")

    then = await bench.do("at", judgment["memory_version"])
    assert then.guidelines == guidelines
    assert [one.id for one in then.guidelines] == judgment["guideline_ids"]
    assert {one.id for one in then.episodes} == set(judgment["episode_ids"]) == {one.id, two.id}
    assert {one.status for one in then.episodes} == {"distilled"}
    assert (await bench.do("at", before["memory_version"])).episodes == []
    await bench.do("rollback", judgment["memory_version"])
    again = await judge(bench)
    for name in ("memory_version", "guideline_ids", "episode_ids"):
        assert again[name] == judgment[name]


def test_a_judgment_made_while_another_commits_leads_back_to_what_it_used(near: Bench) -> None:
    asked: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        if texts[0].startswith("asked"):
            asked.extend(texts)
            memory.add_guideline("Second.")
            memory.version()
        return hashed(texts)

    memory = near.memory(embeddings=embed)
    memory.remember(said("one"))
    memory.add_guideline("First.")
    builder = create_judge_graph(CRITERION, model=near.server.chat_model(), embeddings=embed)
    given = {"inputs": "asked", "outputs": "a"}
    judgment = builder.compile(store=near.store).invoke(given)["judgment"]
    then = memory.at(judgment["memory_version"])
    assert [one.text for one in then.guidelines] == ["First.", "Second."]
    assert [one.id for one in then.guidelines] == judgment["guideline_ids"]
    assert len(asked) == 1
