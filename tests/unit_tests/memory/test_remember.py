"""Remembering: what becomes an episode, what changes one, and what changes nothing."""

from typing import Any

import pytest

from memalign_graph import Categorical, Criterion, Episode, InvalidInputError, Judgment
from tests.unit_tests.memory.support import CRITERION, EVERY_STORE, QUERY, Bench, op, said

pytestmark = EVERY_STORE

VERDICT = Judgment(
    criterion="tone", example_id="x", value=True, rationale="Fine.", memory_version="0"
)


async def test_feedback_becomes_a_pending_episode(bench: Bench) -> None:
    [episode] = await bench.remember(said(value=False, author="ann", thread_id="t", id="7"))
    assert await bench.do("episodes") == [episode]
    assert (episode.value, episode.rationale, episode.author) == (False, "Too cold.", "ann")
    assert (episode.status, episode.thread_ids, episode.feedback_id) == ("pending", ["t"], "7")


async def test_feedback_may_be_given_as_its_fields(bench: Bench) -> None:
    fields = {"inputs": {"q": [1]}, "outputs": "a", "reference_outputs": "b", "value": "no"}
    episode = await bench.do("remember", fields)
    assert isinstance(episode, Episode)
    assert (episode.value, episode.example.reference_outputs) == (False, "b")


async def test_the_same_word_again_changes_nothing(bench: Bench) -> None:
    [first] = await bench.remember(said(author="ann", value=True))
    before = await bench.do("version"), len(await bench.items()), len(await bench.items("facts"))
    bench.embedded()
    [again] = await bench.remember(said(" q".strip(), author=" ann", value="yes"))
    after = await bench.do("version"), len(await bench.items()), len(await bench.items("facts"))
    assert again == first
    assert after == before
    assert bench.embedded() == []


async def test_an_edit_replaces_the_episode(bench: Bench) -> None:
    [first] = await bench.remember(said(author="ann"))
    await bench.learn()
    [edited] = await bench.remember(said(rationale="Too long.", author="ann"))
    assert (edited.id, edited.created_at) == (first.id, first.created_at)
    assert (edited.rationale, edited.status) == ("Too long.", "pending")
    assert await bench.do("episodes") == [edited]


async def test_an_edit_embeds_nothing(bench: Bench) -> None:
    await bench.remember(said())
    bench.embedded()
    await bench.remember(said(rationale="Too long."))
    assert bench.embedded() == []


async def test_an_edit_takes_what_only_the_old_word_supported(bench: Bench) -> None:
    one, two, _ = await bench.remember(said("one"), said("two"), said("three"))
    await bench.learn(op("add", one, text="Only one."), op("add", one, two, text="Both."))
    await bench.remember(said("one", "Another word."), said("two"))
    assert await bench.statuses() == {"one": "pending", "two": "distilled", "three": "distilled"}
    [rule] = await bench.do("guidelines")
    assert (rule.text, rule.status, rule.episode_ids) == ("Both.", "pending", [two.id])


async def test_an_edit_of_the_value_alone_is_an_edit(bench: Bench) -> None:
    [one] = await bench.remember(said(value=True))
    await bench.learn(op("add", one, text="Be warm."))
    await bench.remember(said(value=False))
    assert await bench.guidelines() == {}


async def test_two_experts_on_one_case_are_two_episodes(bench: Bench) -> None:
    await bench.remember(said(author="ann"), said(author="bob"), said(author="ann", inputs="r"))
    episodes = await bench.do("episodes")
    assert len(episodes) == 3
    assert len({one.example_id for one in episodes}) == 2
    assert len(await bench.items("vectors")) == 2


async def test_anonymous_experts_are_told_apart_by_the_feedbacks_id(bench: Bench) -> None:
    await bench.remember(said(id="1"), said(id="2"), said(), said(rationale="Last word."))
    assert {one.feedback_id for one in await bench.do("episodes")} == {"1", "2", None}


async def test_of_several_words_of_one_author_the_last_counts(bench: Bench) -> None:
    given = [said(rationale="First."), said("other"), said(rationale="Last.")]
    answered = await bench.remember(*given)
    assert [one.rationale for one in answered] == ["Last.", "Too cold.", "Last."]
    assert len(await bench.do("episodes")) == 2


async def test_many_are_one_fact_and_one_embedding_call(bench: Bench) -> None:
    await bench.remember(*(said(f"case {number}") for number in range(20)))
    assert len(await bench.items("facts")) == 1
    assert [len(request.texts) for request in bench.server.embeddings] == [20]


async def test_a_value_is_kept_as_the_scale_writes_it(bench: Bench) -> None:
    scale = Categorical(choices=("Poor", "Good"))
    memory = bench.memory(Criterion(name="grade", instructions="How good?", scale=scale))
    [episode] = await bench.remember(said(value=" good"), memory=memory)
    assert episode.value == "Good"


async def test_a_value_off_the_scale_stores_nothing(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="value: 'perhaps' is not on the scale"):
        await bench.remember(said("fine", value=True), said("bad", value="perhaps"))
    assert await bench.items() == []
    assert bench.embedded() == []


@pytest.mark.parametrize("given", ["text", [{"inputs": "q"}], [said(), 3], {"rationale": "x"}])
async def test_what_is_no_feedback_stores_nothing(near: Bench, given: Any) -> None:
    with pytest.raises(InvalidInputError):
        await near.do("remember", given)
    assert await near.items() == []


async def test_agreeing_needs_no_distilling(bench: Bench) -> None:
    [agreed, refused] = await bench.remember(
        said("one", None, value=True, judgment=VERDICT),
        said("two", None, value=False, judgment=VERDICT),
    )
    assert (agreed.status, refused.status) == ("distilled", "pending")


async def test_the_same_word_in_another_thread_adds_the_thread(bench: Bench) -> None:
    [first] = await bench.remember(said(thread_id="t1"))
    await bench.learn(op("add", first, text="Be warm."))
    [again] = await bench.remember(said(thread_id="t2"))
    assert again.thread_ids == ["t1", "t2"]
    assert again.status == "distilled"
    assert await bench.guidelines() == {"Be warm.": {first.id}}


@pytest.mark.parametrize("later", ["Too cold.", "Another word."])
async def test_the_id_feedback_has_elsewhere_is_noted_and_kept(bench: Bench, later: str) -> None:
    [first] = await bench.remember(said(author="ann"))
    await bench.remember(said(author="ann", id="7"))
    await bench.remember(said(rationale=later, author="ann"))
    assert [one.feedback_id for one in await bench.do("episodes")] == ["7"]
    forgotten = await bench.do("forget", feedback_ids="7")
    assert forgotten.episode_ids == [first.id]


async def test_remembering_nothing_writes_nothing(bench: Bench) -> None:
    assert await bench.remember() == []
    assert await bench.items() == []


async def test_what_a_caller_does_to_its_feedback_later_does_not_matter(near: Bench) -> None:
    inputs = {"q": "as it was"}
    await near.remember(said(inputs))
    version = await near.do("version")
    inputs["q"] = "changed"
    [episode] = await near.do("episodes")
    assert episode.example.inputs == {"q": "as it was"}
    assert episode.example.id == episode.example_id
    assert await near.do("version") == version


async def test_an_example_survives_every_store(bench: Bench) -> None:
    inputs = {"text": "ß 🙂 \u2028", "list": [1, 2.5, True, None, {}], "": 2**62, "float": 3.0}
    [episode] = await bench.remember(said(inputs))
    [stored] = await bench.do("episodes")
    assert stored == episode
    assert stored.example.id == episode.example_id
    [recalled] = await bench.do("recall", QUERY)
    assert recalled.example == episode.example


async def test_opening_a_memory_touches_neither_store_nor_embeddings(near: Bench) -> None:
    near.memory(CRITERION, embeddings="openai:needs-a-key")
    assert await near.items() == []
