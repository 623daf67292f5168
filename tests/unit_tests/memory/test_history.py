"""Versions: who changed what when and why, what each version held, and the way back to it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memalign_graph import InvalidInputError, JudgeMemory, create_judge_graph
from memalign_graph.memory.history import Commit, Tally
from tests.unit_tests.memory.support import (
    CRITERION,
    EVERY_STORE,
    QUERY,
    Bench,
    Opener,
    hashed,
    op,
    said,
)

pytestmark = EVERY_STORE

EMPTY = "0" * 32


async def test_history_tells_who_when_why_and_how_much_newest_first(bench: Bench) -> None:
    before = datetime.now(UTC)
    [one, two] = await bench.remember(said("one", author="ann"), said("two", author="ann"))
    await bench.learn(op("add", one, text="Of one."), op("add", one, two, text="Of both."))
    await bench.do("revise", two.id, {"rationale": "Another word."})
    await bench.do("forget", one.id, by="eve")
    await bench.do("rollback", EMPTY, author="bob")
    found: list[Commit] = await bench.do("history")
    assert [(one.reason, one.author) for one in found] == [
        ("rollback", "bob"), ("forget", "eve"), ("revise", "ann"), ("learn", None),
        ("remember", "ann"),
    ]  # fmt: skip
    assert [one.episodes for one in found] == [
        Tally(removed=1), Tally(removed=1), Tally(changed=1), Tally(changed=2), Tally(added=2),
    ]  # fmt: skip
    assert [one.guidelines for one in found] == [
        Tally(), Tally(removed=2), Tally(changed=1), Tally(added=2), Tally(),
    ]  # fmt: skip
    times = [one.at for one in found]
    assert times == sorted(times, reverse=True)
    assert before - timedelta(seconds=1) < times[-1] < times[0] < before + timedelta(minutes=1)
    assert found[0].version == await bench.do("version") == EMPTY


async def test_a_memory_without_a_past_has_the_empty_version_alone(bench: Bench) -> None:
    assert await bench.do("history") == []
    assert await bench.do("version") == EMPTY
    found = await bench.do("at", EMPTY)
    assert (found.episodes, found.guidelines, found.missing) == ([], [], [])
    await bench.do("rollback", EMPTY)
    assert await bench.items() == []


async def test_rolling_back_restores_every_item_byte_for_byte(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one", "ß \u2028 🙂", value=True), said("two"))
    await bench.learn(op("add", one, two, text="Of both."), op("add", two, text="Of two."))
    rule = await bench.do("add_guideline", "By hand.", author="ann")
    version, contents = await bench.do("version"), await bench.contents()
    await bench.do("forget", one.id)
    await bench.do("revise", two.id, {"rationale": "Another word.", "value": False})
    await bench.do("edit_guideline", rule.id, "Reworded.")
    await bench.remember(said("three"))
    changed, changed_contents = await bench.do("version"), await bench.contents()
    bench.embedded()

    restored = await bench.do("rollback", version, author="ann")
    assert await bench.contents() == contents
    assert await bench.do("version") == restored.version == version
    assert restored.missing == []
    assert restored.episodes == await bench.do("episodes")
    assert set(await bench.recall("one", k=9)) == {"one", "two"}

    await bench.do("rollback", changed)  # a rollback of the rollback
    assert await bench.contents() == changed_contents
    assert await bench.do("version") == changed
    assert set(await bench.recall("two", k=9)) == {"two", "three"}
    assert bench.embedded() == []


async def test_a_retired_guideline_is_told_with_what_took_its_place_and_why(near: Bench) -> None:
    one, two = await near.remember(said("one"), said("two"))
    await near.learn(op("add", one, text="Old."), op("add", two, text="New."))
    old, new = await near.do("guidelines")
    change = op("retire", two, guideline_id=old.id, superseded_by=new.id, reason="Too strict.")
    await near.learn(change)
    [retired] = (await near.do("history"))[0].retired
    assert (retired.guideline_id, retired.superseded_by, retired.reason) == (
        old.id, new.id, "Too strict.",
    )  # fmt: skip
    await near.do("forget", two.id)
    assert await near.do("guidelines") == [old]


async def test_rolling_back_to_what_stands_changes_nothing(bench: Bench) -> None:
    await bench.remember(said())
    size = len(await bench.items())
    await bench.do("rollback", await bench.do("version"))
    assert len(await bench.items()) == size


async def test_a_rollback_leaves_the_past_as_it_was(bench: Bench) -> None:
    await bench.remember(said("one"))
    first = await bench.do("version")
    await bench.remember(said("two"))
    second = await bench.do("version")
    await bench.do("rollback", EMPTY)
    assert [len((await bench.do("at", v)).episodes) for v in (first, second)] == [1, 2]
    assert [one.version for one in await bench.do("history")] == [EMPTY, second, first]


async def test_a_diff_names_what_was_added_removed_and_changed(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    kept = await bench.do("add_guideline", "Kept.")
    gone = await bench.do("add_guideline", "Gone.")
    start = await bench.do("version")
    await bench.do("forget", one.id)
    after = await bench.do("revise", two.id, {"rationale": "Another word."})
    [three] = await bench.remember(said("three"))
    reworded = await bench.do("edit_guideline", kept.id, "Reworded.")
    await bench.do("remove_guideline", gone.id)
    added = await bench.do("add_guideline", "Added.")
    end = await bench.do("version")

    for found in (await bench.do("diff", start), await bench.do("diff", start, end)):
        assert (found.episodes.added, found.episodes.removed) == ([three], [one])
        [change] = found.episodes.changed
        assert (change.before, change.after) == (two, after)
        assert (found.guidelines.added, found.guidelines.removed) == ([added], [gone])
        [change] = found.guidelines.changed
        assert (change.before, change.after) == (kept, reworded)
    back = await bench.do("diff", end, start)
    assert (back.episodes.added, back.episodes.removed) == ([one], [three])
    same = await bench.do("diff", end)
    assert (same.episodes.added, same.episodes.removed, same.episodes.changed) == ([], [], [])


@pytest.mark.parametrize("version", ["nope", "", "0" * 31, None, 3, b"0", ["0"]])
@pytest.mark.parametrize("name", ["at", "diff", "rollback"])
async def test_an_unknown_version_is_one_clear_sentence(
    near: Bench, name: str, version: Any
) -> None:
    await near.remember(said())
    contents = await near.contents()
    with pytest.raises(InvalidInputError) as caught:
        await near.do(name, version)
    assert str(caught.value) == (
        f"version: the memory of 'tone' never had the version {version!r}: "
        "`history()` lists those it had."
    )
    assert await near.contents() == contents


async def test_another_memorys_version_is_unknown(near: Bench) -> None:
    await near.remember(said())
    other = near.memory(namespace="elsewhere")
    with pytest.raises(InvalidInputError, match="never had the version"):
        other.rollback(await near.do("version"))


@pytest.mark.parametrize("author", [3, ["ann"]])
async def test_an_author_that_is_no_text_is_refused_by_name(near: Bench, author: Any) -> None:
    await near.remember(said())
    with pytest.raises(InvalidInputError, match="author"):
        await near.do("rollback", EMPTY, author=author)
    assert len(await near.do("episodes")) == 1


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


def test_other_readers_see_a_rollback_at_their_next_look(any_opener: Opener) -> None:
    here, there = (JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in "12")
    here.remember([said("one"), said("two")])
    version = here.version()
    there.forget([one.id for one in there.episodes()])
    here.remember(said("three"))
    assert {one.example.inputs for one in there.recall(QUERY)} == {"three"}
    here.rollback(version)
    assert {one.example.inputs for one in there.recall(QUERY)} == {"one", "two"}
    assert there.version() == version
