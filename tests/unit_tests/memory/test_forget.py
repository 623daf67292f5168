"""Forgetting: the episode goes, and with it what rests on it alone."""

from typing import Any

import pytest

from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.learning import learn
from tests.unit_tests.memory.support import EVERY_STORE, Bench, hashed, op, said

pytestmark = EVERY_STORE


async def test_what_is_forgotten_is_never_recalled(bench: Bench, reopen: Any) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    assert set(await bench.recall("one")) == {"one", "two"}
    forgotten = await bench.do("forget", [one.id])
    assert forgotten.episode_ids == [one.id]
    assert await bench.recall("one") == ["two"]
    assert await bench.do("episodes") == [two]
    reopen()
    assert await bench.recall("one") == ["two"]


async def test_what_is_forgotten_leaves_its_place_to_the_next(bench: Bench) -> None:
    [one, _] = await bench.remember(said("one"), said("two"))
    assert await bench.recall("one", k=1) == ["one"]
    await bench.do("forget", one.id)
    assert await bench.recall("one", k=1) == ["two"]


async def test_forgetting_embeds_nothing(bench: Bench, reopen: Any) -> None:
    [one, _] = await bench.remember(said("one"), said("two"))
    bench.embedded()
    reopen()
    await bench.do("forget", one.id)
    assert bench.embedded() == []


async def test_unknown_ids_are_told_and_harm_nothing(bench: Bench) -> None:
    [one] = await bench.remember(said("one"))
    version = await bench.do("version")
    none = await bench.do("forget", ["no such", "no such"])
    assert (none.episode_ids, none.unknown_ids) == ([], ["no such"])
    assert await bench.do("version") == version
    assert len(await bench.items("facts")) == 1
    both = await bench.do("forget", ["no such", one.id, one.id])
    assert (both.episode_ids, both.unknown_ids) == ([one.id], ["no such"])


async def test_forgetting_twice_is_forgetting_once(bench: Bench) -> None:
    [one] = await bench.remember(said("one"))
    await bench.do("forget", one.id)
    again = await bench.do("forget", one.id)
    assert again.unknown_ids == [one.id]
    assert len(await bench.items("facts")) == 2


async def test_a_guideline_that_rests_on_it_alone_goes(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Of one."), op("add", two, text="Of two."))
    forgotten = await bench.do("forget", one.id)
    assert [rule.text for rule in forgotten.guidelines_removed] == ["Of one."]
    assert forgotten.guidelines_reduced == []
    assert await bench.guidelines() == {"Of two.": {two.id}}
    assert await bench.statuses() == {"two": "distilled"}


async def test_a_guideline_with_other_sources_is_pending_and_keeps_those(bench: Bench) -> None:
    [one, two, three, _] = await bench.remember(*map(said, ("one", "two", "three", "four")))
    await bench.learn(op("add", one, two, three, text="Of three."))
    [before] = await bench.do("guidelines")
    forgotten = await bench.do("forget", one.id)
    assert forgotten.guidelines_removed == []
    [after] = await bench.do("guidelines")
    assert forgotten.guidelines_reduced == [after]
    assert (after.id, after.position) == (before.id, before.position)
    assert (after.text, after.status) == (before.text, "pending")
    assert after.episode_ids == [two.id, three.id]
    assert set((await bench.statuses()).values()) == {"distilled"}


@pytest.mark.parametrize("lessons", [1, 2])
def test_a_source_that_came_to_the_same_words_goes_without_a_trace(
    near: Bench, lessons: int
) -> None:
    memory = near.memory(embeddings=hashed)
    one, two = memory.remember([said("one"), said("two")])
    operations = [op("add", one, text="A rule."), op("add", two, text="a rule")]
    for lesson in [operations] if lessons == 1 else [[each] for each in operations]:
        read = {each.id: each.word for each in (one, two) if each.status == "pending"}
        read = {key: word for key, word in read.items() if key in str(lesson)}
        prompts = [[one.id], [two.id]]
        run(learn(BLOCKING, memory.access, lesson, read, prompts=prompts))
    version = memory.version()
    assert [len(rule.episode_ids) for rule in memory.guidelines()] == [2]
    memory.forget(two.id)
    [left] = memory.guidelines()
    assert (left.text, left.status, left.episode_ids) == ("A rule.", "standing", [one.id])
    memory.rollback(version)
    memory.forget(one.id)
    [left] = memory.guidelines()
    assert (left.status, left.episode_ids) == ("pending", [two.id])


async def test_a_guideline_that_an_expert_reworded_keeps_its_words(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, two, text="Of both."))
    [rule] = await bench.do("guidelines")
    await bench.do("edit_guideline", rule.id, "The expert's words.")
    await bench.do("forget", one.id)
    assert await bench.guidelines() == {"The expert's words.": {two.id}}


async def test_a_guideline_goes_with_the_last_of_its_sources(bench: Bench) -> None:
    [one, two, three] = await bench.remember(*map(said, ("one", "two", "three")))
    await bench.learn(op("add", one, two, text="Of two."), op("add", one, two, three, text="3"))
    forgotten = await bench.do("forget", [one.id, two.id])
    assert [rule.text for rule in forgotten.guidelines_removed] == ["Of two."]
    [left] = await bench.do("guidelines")
    assert (left.status, left.episode_ids) == ("pending", [three.id])
    await bench.do("forget", three.id)
    assert await bench.do("guidelines") == []


async def test_a_guideline_an_expert_wrote_stays(bench: Bench) -> None:
    [one] = await bench.remember(said("one"))
    await bench.do("add_guideline", "By hand.")
    await bench.do("forget", one.id)
    assert await bench.guidelines() == {"By hand.": set()}


async def test_all_of_it_is_one_commit(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="1"), op("add", one, two, text="12"))
    before = len(await bench.items("facts"))
    await bench.do("forget", one.id, by="ann")
    assert len(await bench.items("facts")) == before + 1
    last = (await bench.do("history"))[0]
    assert (last.reason, last.author) == ("forget", "ann")
    assert (last.episodes.removed, last.guidelines.removed) == (1, 1)


async def test_one_experts_word_can_go_and_anothers_stay(bench: Bench) -> None:
    [ann, bob] = await bench.remember(said(author="ann"), said(author="bob"))
    await bench.do("forget", ann.id)
    [found] = await bench.do("recall", bob.example)
    assert found.episodes == [bob]


async def test_what_was_forgotten_can_be_said_again_without_embedding(bench: Bench) -> None:
    [one] = await bench.remember(said("one"))
    await bench.do("forget", one.id)
    bench.embedded()
    [again] = await bench.remember(said("one"))
    assert again.id == one.id
    assert again.created_at > one.created_at
    assert await bench.recall("one") == ["one"]
    assert bench.embedded() == []


async def test_a_memory_forgotten_whole_has_an_empty_ones_version(bench: Bench) -> None:
    empty = await bench.do("version")
    episodes = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", episodes[0], text="1"))
    assert await bench.do("version") != empty
    await bench.do("forget", [one.id for one in episodes])
    assert await bench.do("version") == empty
    assert await bench.recall("one") == []
