"""Purging: nothing of what was planted is left in any item, and no way back brings it."""

from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Episode, JudgeMemory
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory import learning
from memalign_graph.memory.index.retrieval_text import retrieval_text
from memalign_graph.memory.index.vectors import vector_key
from memalign_graph.memory.learning import GuidelineOperation
from tests.unit_tests.memory.purging import MARK, WORDS, everything_in, fill, left_in, planted
from tests.unit_tests.memory.support import (
    CRITERION,
    QUERY,
    Bench,
    Opener,
    WatchedStore,
    hashed,
    learn,
    op,
    said,
)

ANN = "zqxann"

WAYS: dict[str, dict[str, Any]] = {
    "feedback id": {"feedback_ids": "zqxid"},
    "author": {"author": "zqxann"},
    "filter": {"where": lambda one: MARK in f"{one.author}"},
}


def learn_from(memory: JudgeMemory, *operations: GuidelineOperation) -> None:
    """A lesson that read its sources and nothing else."""
    read = {key for operation in operations for key in operation.episode_ids}
    words = {one.id: one.word for one in memory.episodes() if one.id in read}
    run(learning.learn(BLOCKING, memory.access, operations, words))


def check_clean(memory: JudgeMemory) -> None:
    """Nothing planted is left, nor comes back from any version, by export or by recall."""
    store = memory.access.store
    assert left_in(everything_in(store)) == []
    for commit in memory.history():
        then = memory.at(commit.version)
        assert MARK not in repr((then.episodes, then.guidelines)).casefold()
        memory.rollback(commit.version)
        assert MARK not in memory.export_jsonl().casefold()
        assert MARK not in repr(memory.recall(QUERY, k=50)).casefold()
        assert left_in(everything_in(store)) == []


def test_the_traces_are_there_before(any_opener: Opener) -> None:
    memory, _ = fill(any_opener())
    found = left_in(everything_in(memory.access.store))
    for kind in ("words", "facts", "drafts"):
        assert any(f"/{kind}:" in one for one in found)
    for word in WORDS:
        assert any(word in one for one in found)


@pytest.mark.parametrize(
    ("way", "before"),
    [
        *((way, "at once") for way in ("id", *WAYS)),
        *(("author", before) for before in ("forgotten", "revised", "rolled back")),
        ("feedback id", "forgotten"),
    ],
)
def test_nothing_is_left_in_any_item_and_no_rollback_brings_it_back(
    any_opener: Opener, reopen: Any, way: str, before: str
) -> None:
    memory, one = fill(any_opener())
    if before == "forgotten":
        memory.forget(one.id)
    elif before == "revised":
        memory.revise(one.id, {"rationale": "Nothing in it is planted."})
    elif before == "rolled back":
        memory.forget(one.id)
        memory.rollback(memory.history()[1].version)
    selection = WAYS.get(way, {"episode_ids": one.id})
    forgotten = memory.forget(**selection, purge=True, by="zqxann")
    assert forgotten.episode_ids == ([] if before == "forgotten" else [one.id])
    assert forgotten.unknown_ids == []
    assert MARK not in repr((forgotten.guidelines_removed, forgotten.guidelines_reduced))
    assert forgotten.purged is not None
    assert forgotten.purged.commits > 0
    assert forgotten.purged.vectors == 1
    assert {each.example.inputs for each in memory.episodes()} == {"kept", "other"}
    assert "Untouched." in {rule.text for rule in memory.guidelines()}
    check_clean(memory)
    reopen()
    check_clean(memory)


def test_what_was_read_in_another_prompt_of_the_lesson_stands(near: Bench) -> None:
    memory = near.memory(embeddings=hashed)
    one, two, three, four = memory.remember(
        [said("one", "zqxwhy"), said("two"), said("three"), said("four")]
    )
    operations = [
        op("add", one, text="It is zqxwhy."),
        op("add", two, text="It may be zqxwhy."),
        op("add", three, text="Something else."),
        op("add", four, text="SOMETHING else"),
    ]
    read = {each.id: each.word for each in (one, two, three, four)}
    prompts = [[one.id, two.id, four.id], [three.id]]
    run(learning.learn(BLOCKING, memory.access, operations, read, prompts=prompts))
    forgotten = memory.forget(one.id, purge=True)
    # In words that stood without it the other prompt's guideline keeps what calls for it.
    [rule] = memory.guidelines()
    assert (rule.text, rule.status) == ("Something else.", "standing")
    assert forgotten.purged is not None
    assert two.id in forgotten.purged.pending
    assert left_in(everything_in(memory.access.store)) == []


async def test_in_every_store(bench: Bench) -> None:
    [kept] = await bench.remember(said("kept", author="bob"))
    [one] = await bench.remember(planted("zqxold"))
    await bench.learn(op("add", one, text="zqxold"), op("add", one, kept, text="zqxold, kept"))
    await bench.remember(planted())
    version = await bench.do("version")
    forgotten = await bench.do("forget", author="zqxann", purge=True, by="eve")
    await bench.remember(said("later"))
    assert forgotten.episode_ids == [one.id]
    assert await bench.holding(MARK) == []
    _, newest, *_ = await bench.do("history")
    assert (newest.reason, newest.author) == ("purge", "eve")
    assert (newest.episodes.removed, newest.guidelines.removed) == (1, 1)
    restored = await bench.do("rollback", version)
    assert set(restored.missing) >= {one.id}
    assert restored.episodes == await bench.do("episodes")
    assert [(each.id, each.status) for each in restored.episodes] == [(kept.id, "pending")]
    assert await bench.holding(MARK) == []
    assert await bench.recall("kept", k=9) == ["kept"]
    assert MARK not in await bench.do("export_jsonl")


async def test_the_other_source_is_read_again_and_nothing_else(bench: Bench) -> None:
    [kept] = await bench.remember(said("kept", "Words of it.", author="bob"))
    [one] = await bench.remember(planted())
    await bench.learn(op("add", one, kept, text="Rule of zqxwhy and others."))
    bench.server.script({"operations": [{"text": "Rule of others.", "action": "add"}]})
    memory = bench.memory(model=bench.server.chat_model())
    forgotten = await bench.do("forget", one.id, purge=True, memory=memory)
    [chat] = bench.server.chats
    assert MARK not in f"{chat.body}".casefold()
    assert [rule.text for rule in forgotten.guidelines_removed] == [""]
    assert forgotten.purged.pending == [kept.id]
    assert await bench.guidelines() == {"Rule of others.": {kept.id}}
    assert await bench.holding(MARK) == []


async def test_no_embedders_vector_of_the_text_is_left(bench: Bench) -> None:
    await bench.remember(said("kept"))
    [one] = await bench.remember(planted())
    others = [bench.server.embedder(model=name, dimensions=16) for name in ("small", "tiny")]
    for other in others:
        await bench.recall("new", memory=bench.memory(embeddings=other))
    assert len(await bench.items("vectors")) == 6
    forgotten = await bench.do("forget", one.id, purge=True)
    assert forgotten.purged.vectors == 3
    left = await bench.items("vectors")
    assert len(left) == 3
    text, _ = retrieval_text(one.example)
    for item in left:
        assert item.key != vector_key(item.value["embedder"], text)


def test_no_index_of_this_process_keeps_it(any_opener: Opener) -> None:
    here, there = (JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in "12")
    here.remember([said("kept"), planted()])
    one = here.episodes()[1]
    key = vector_key(here.access.embedder.id, retrieval_text(one.example)[0])
    for memory in (here, there):
        memory.recall(QUERY)
        assert memory.access.view.index.get(key) is not None
    here.forget(one.id, purge=True)
    assert here.access.view.index.get(key) is None
    [found] = there.recall(one.example)
    assert found.example.inputs == "kept"
    assert there.access.view.index.get(key) is None
    for memory in (here, there):
        assert MARK not in repr(vars(memory.access.view)).casefold()


def test_a_purge_made_again_finds_nothing_and_harms_nothing(near: Bench) -> None:
    memory, one = fill(near.store)
    memory.forget(one.id, purge=True)
    version, size = memory.version(), len(everything_in(near.store))
    again = memory.forget(one.id, purge=True)
    assert (again.episode_ids, again.unknown_ids) == ([], [one.id])
    assert (memory.version(), len(everything_in(near.store))) == (version, size)


def test_what_is_purged_can_be_said_again(near: Bench) -> None:
    memory, one = fill(near.store)
    memory.forget(one.id, purge=True)
    again = memory.remember(said("kept", "A new word.", author="zqxann"))
    assert again.author == "zqxann"
    assert memory.recall(again.example, k=1)[0].episodes[-1] == again


def test_a_lesson_that_read_it_goes_whole_and_what_was_read_along_is_pending(near: Bench) -> None:
    memory = near.memory(embeddings=hashed)
    one, other = memory.remember([said("one", "It is zqxwhy."), said("other", "Else.")])
    learn(memory, op("add", other, text="Wait for zqxwhy."), op("add", other, text="Else."))
    forgotten = memory.forget(one.id, purge=True)
    assert forgotten.purged is not None
    assert forgotten.purged.pending == [other.id]
    assert len(forgotten.guidelines_removed) == 2
    assert memory.guidelines() == []
    assert [each.status for each in memory.episodes()] == ["pending"]
    assert left_in(everything_in(near.store)) == []


def test_a_rewording_of_what_such_a_lesson_said_goes_too(near: Bench) -> None:
    memory = near.memory(embeddings=hashed)
    one, two, three = memory.remember([said("one", "zqxwhy"), said("two"), said("three")])
    learn(memory, op("add", one, two, text="It is zqxwhy."))
    [rule] = memory.guidelines()
    memory.forget(one.id)
    learn_from(memory, op("revise", three, guideline_id=rule.id, text="It is zqxwhy, briefly."))
    memory.forget(one.id, purge=True)
    assert memory.guidelines() == []
    assert {each.status for each in memory.episodes()} == {"pending"}
    assert left_in(everything_in(near.store)) == []


def test_what_others_taught_or_wrote_stays_though_it_shares_a_rare_word(near: Bench) -> None:
    memory = near.memory(embeddings=hashed)
    other = memory.remember(said("other", "The portal must be named.", author="bob"))
    learn(memory, op("add", other, text="The reply must name the portal."))
    memory.add_guideline("Beside the portal, name zqxwhy.", author="bob")
    before = memory.guidelines()
    one = memory.remember(said("Where is the portal?", "It is zqxwhy.", author="ann"))
    memory.forget(one.id, purge=True)
    assert memory.guidelines() == before


def test_of_what_was_imported_nothing_of_others_goes(near: Bench) -> None:
    source = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    memory = near.memory(embeddings=hashed)
    one = source.remember(planted())
    bob, eve = source.remember([said("bob", author="bob"), said("eve", author="eve")])
    rules = [op("add", one, text="It is zqxwhy."), op("add", one, eve, text="zqxwhy and Eve's.")]
    learn_from(source, op("add", bob, text="Bob's."), *rules)
    memory.import_jsonl(source.export_jsonl())
    memory.forget(one.id, purge=True)
    assert [rule.text for rule in memory.guidelines()] == ["Bob's."]
    statuses = {each.author: each.status for each in memory.episodes()}
    assert statuses == {"bob": "distilled", "eve": "pending"}
    check_clean(memory)


class TestSharedCase:
    """Two experts on one case, one of whom wants to be erased."""

    def fill(self, near: Bench) -> tuple[JudgeMemory, Episode, Episode]:
        memory = near.memory(embeddings=hashed)
        ann, bob = memory.remember(
            [
                said("shared case", "zqxwhy of hers", author="zqxann", id="zqxid"),
                said("shared case", "His own words.", author="bob"),
            ]
        )
        learn_from(memory, op("add", bob, text="Of his own words."))
        learn(memory, op("add", ann, text="Of zqxwhy."), op("add", ann, bob, text="Both, zqxwhy."))
        return memory, ann, bob

    def test_the_case_and_the_others_word_stay(self, near: Bench) -> None:
        memory, _, bob = self.fill(near)
        forgotten = memory.forget(author="zqxann", purge=True)
        assert forgotten.purged is not None
        assert forgotten.purged.vectors == 0
        [found] = memory.recall(QUERY)
        assert found.example == bob.example
        assert [each.author for each in found.episodes] == ["bob"]
        assert [rule.text for rule in memory.guidelines()] == ["Of his own words."]
        check_clean(memory)

    def test_the_last_of_them_takes_the_case_along(self, near: Bench) -> None:
        memory, ann, bob = self.fill(near)
        memory.forget(ann.id, purge=True)
        forgotten = memory.forget(bob.id, purge=True)
        assert forgotten.purged is not None
        assert forgotten.purged.vectors == 1
        assert left_in(everything_in(near.store), "shared case") == []


def test_a_purge_of_many_at_once(any_opener: Opener) -> None:
    memory = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
    kept = memory.remember(said("kept"))
    memory.remember([planted(author=f"{MARK}ann", inputs=f"{MARK} {n}") for n in range(300)])
    rules = [op("add", one, text=f"{MARK} {one.id}") for one in memory.episodes()[1:100]]
    learn(memory, *rules)
    forgotten = memory.forget(where=lambda one: one.id != kept.id, purge=True)
    assert len(forgotten.episode_ids) == 300
    assert left_in(everything_in(memory.access.store)) == []
    assert [one.id for one in memory.episodes()] == [kept.id]


def test_no_batch_of_a_purge_outgrows_what_a_store_takes() -> None:
    store = WatchedStore()
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    memory.remember([said(f"case {number}", author=ANN) for number in range(1_000 + 300)])
    store.batches.clear()
    memory.forget(author=ANN, purge=True)
    assert memory.episodes() == []
    assert max(len(batch) for batch in store.writes) <= 1_000 + 10


def test_megabytes_are_purged_in_little_time(near: Bench) -> None:
    memory = near.memory(embeddings=hashed)
    memory.remember([said("kept"), planted(inputs=f"{MARK} word " * 200_000)])
    memory.forget(author="zqxann", purge=True)
    assert left_in(everything_in(near.store)) == []


def test_drafts_are_cleared_in_this_memory_alone(near: Bench) -> None:
    memory, one = fill(near.store)
    other = near.memory(namespace="elsewhere")
    drafts = {"waiting": {"id": "waiting", "answer": {"text": "of elsewhere"}}}
    run(other.access.put(BLOCKING, other.access.layout.drafts, drafts))
    memory.forget(one.id, purge=True)
    assert [item.namespace[0] for item in everything_in(near.store) if item.key == "waiting"] == [
        "elsewhere"
    ]
