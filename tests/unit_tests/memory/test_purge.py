"""Purging removes planted text from all items and from every way to restore it."""

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import Episode, JudgeMemory, create_review_graph
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import learning
from memalign_graph.memory.facts import PURGE, Fact, new_id
from memalign_graph.memory.index import retrieval_text, vector_key
from memalign_graph.memory.judgments import find_judgment
from memalign_graph.memory.view import MemoryView
from memalign_graph.types import Evidence, Neighbour
from tests.builders import keep_reviewed, make_judgment
from tests.conftest import operations
from tests.loopback import ChatRequest
from tests.unit_tests.memory.driver import memories
from tests.unit_tests.memory.purging import (
    MARK,
    WORDS,
    everything_in,
    fill,
    left_in,
    planted,
    purge,
    quoted,
)
from tests.unit_tests.memory.stores import (
    WatchedStore,
    commits,
    in_memory,
    interleave,
    opening,
)
from tests.unit_tests.memory.support import (
    CRITERION,
    QUERY,
    Bench,
    comment,
    hashed,
    hashes,
    learn,
    learn_from,
    op,
)

WAYS: dict[str, dict[str, Any]] = {
    "feedback id": {"feedback_ids": "zqxid"},
    "author": {"author": "zqxann"},
    "filter": {"where": lambda episode: MARK in f"{episode.author}"},
}


def check_clean(memory: JudgeMemory) -> None:
    """Check that no planted text is in any item, version, export or recall."""
    store = memory.access.store
    assert left_in(everything_in(store)) == []
    assert left_in(everything_in(store), planted().example.id) == []
    for commit in memory.history():
        then = memory.at(commit.version)
        assert MARK not in repr((then.episodes, then.guidelines)).casefold()
        memory.rollback(commit.version)
        assert MARK not in memory.export_jsonl().casefold()
        assert MARK not in repr(memory.recall(QUERY, k=50)).casefold()
        assert left_in(everything_in(store)) == []


@pytest.mark.parametrize(
    ("way", "before"),
    [("id", "at once"), ("filter", "at once"), ("author", "forgotten"), ("author", "revised"),
     ("author", "rolled back"), ("feedback id", "forgotten")],
)  # fmt: skip
def test_no_item_or_rollback_has_purged_text(reopen: Any, way: str, before: str) -> None:
    store = WatchedStore()
    memory, one = fill(store)
    traces = left_in(everything_in(store))
    for fragment in (*WORDS, "/words:", "/facts:", "/drafts:"):
        assert any(fragment in trace for trace in traces)
    other = JudgeMemory(store, CRITERION, namespace="elsewhere", embeddings=hashed)
    run_sync(
        other.access.put(SYNC, other.access.layout.of("drafts"), {"waiting": {"id": "waiting"}})
    )
    if before == "forgotten":
        memory.forget(one.id)
    elif before == "revised":
        memory.revise(one.id, {"rationale": "Nothing in it is planted."})
    elif before == "rolled back":
        memory.forget(one.id)
        memory.rollback(memory.history()[1].version)
    versions = [commit.version for commit in memory.history()]
    selection = WAYS.get(way, {"episode_ids": one.id})
    forgotten = memory.forget(**selection, purge=True, by="zqxann")
    assert forgotten.episode_ids == ([] if before == "forgotten" else [one.id])
    assert forgotten.unknown_ids == []
    assert MARK not in repr((forgotten.guidelines_removed, forgotten.guidelines_reduced))
    assert forgotten.purged is not None
    assert forgotten.purged.commits > 0
    assert [commit.version for commit in memory.history()][1:] == versions
    assert forgotten.purged.vectors == 1
    assert {episode.example.inputs for episode in memory.episodes()} == {"kept", "other"}
    questions = {guideline.text: guideline.question for guideline in memory.guidelines()}
    assert questions["Untouched."] is None
    assert [*memory.access.view.answers()["asked"].values()] == [0.1]
    assert MARK not in repr(vars(memory.access.view)).casefold()
    check_clean(memory)
    reopen()
    check_clean(memory)
    [waiting] = [item for item in everything_in(store) if item.key == "waiting"]
    assert waiting.namespace[0] == "elsewhere"


def test_purging_the_last_expert_of_a_case_removes_the_case(memory: JudgeMemory) -> None:
    ann, bob = memory.remember(
        [
            comment("shared case", "zqxwhy of hers", author="zqxann", id="zqxid"),
            comment("shared case", "His own words.", author="bob"),
        ]
    )
    learn_from(memory, op("add", bob, text="Of his own words."))
    learn(memory, op("add", ann, text="Of zqxwhy."), op("add", ann, bob, text="Both, zqxwhy."))
    run_sync(learning.record_check_answers(SYNC, memory.access, {"asked": {bob.example_id: 0.9}}))
    assert purge(memory, author="zqxann").vectors == 0
    assert memory.access.view.answers() == {"asked": {bob.example_id: 0.9}}
    [recalled] = memory.recall(QUERY)
    assert (recalled.example, recalled.episodes) == (bob.example, memory.episodes())
    assert [guideline.text for guideline in memory.guidelines()] == ["Of his own words."]
    check_clean(memory)
    assert purge(memory, bob.id).vectors == 1
    assert left_in(everything_in(memory.access.store), "shared case") == []


def test_judgment_of_another_case_no_longer_names_the_purged_episode(memory: JudgeMemory) -> None:
    purged, retained = memory.remember([comment("one", author="ann"), comment("two", author="bob")])
    near = [
        Neighbour(
            example_id=value.example_id,
            episode_ids=[value.id],
            value=True,
            similarity=0.9,
            weight=0.5,
        )
        for value in (purged, retained)
    ]
    judgment = make_judgment(
        rationale="As in the first case.",
        episode_ids=[purged.id, retained.id],
        warnings=["Of the first case."],
        evidence=Evidence(decided_by="verdict", reason="Few.", verdict=True, neighbours=near),
    )
    memory.remember(comment("three", author="cy", judgment=judgment))
    memory.forget(purged.id, purge=True)
    [episode] = [episode.judgment for episode in memory.episodes() if episode.author == "cy"]
    assert episode is not None
    assert episode.evidence is not None
    assert (episode.episode_ids, episode.evidence.neighbours) == ([retained.id], near[1:])
    assert (episode.rationale, episode.warnings) == ("", [])
    assert left_in(everything_in(memory.access.store), purged.example_id) == []


@pytest.mark.parametrize("is_lesson", [True, False])
def test_judgment_before_a_purge_teaches_nothing_of_it_afterwards(
    memory: JudgeMemory, *, is_lesson: bool
) -> None:
    """As of an expert who was asked before, on a thread that the purge did not reach."""
    episode = memory.remember(comment("one", "It is zqxwhy."))
    learn(memory, op("add", episode, text="Always zqxwhy."))
    [guideline] = memory.guidelines()
    quoted: Any = {"guideline_ids": [guideline.id]} if is_lesson else {"episode_ids": [episode.id]}
    judgment = make_judgment(rationale="As one said, zqxwhy counts.", **quoted)
    memory.forget(episode.id, purge=True)
    answer = memory.remember(comment("three", author="cy", judgment=judgment))
    memory.revise(answer.id, {"value": False})
    [stored] = memory.episodes()
    assert stored.judgment is not None
    assert (stored.judgment.rationale, stored.judgment.episode_ids) == ("", [])
    assert left_in(everything_in(memory.access.store)) == []


@pytest.mark.parametrize("way", ["another worker", "other embeddings"])
def test_quote_is_in_no_view_and_does_not_return(tmp_path: Path, way: str) -> None:
    with opening(tmp_path / "memory.db") as opener:
        here, there = memories(opener, 2)
        store = here.access.store
        if way == "other embeddings":
            there = JudgeMemory(store, CRITERION, embeddings=lambda texts: [[1.0] for _ in texts])
        answer = quoted(here)
        here.remember(answer)
        versions = [there.version()]
        assert MARK in there.export_jsonl()
        here.forget(author="zqxann", purge=True)
        [reopened] = memories(opener, 1)
        for memory in (here, there, reopened):
            assert MARK not in memory.export_jsonl()
            assert memory.episodes() == here.episodes()
            versions.append(memory.version())
            assert MARK not in repr(memory.at(versions[0]))
        assert len({*versions[1:]}) == 1
        again = there.remember(comment("two", author="bob", thread_id="another"))
        assert again.thread_ids == ["another"]
        assert left_in(everything_in(store)) == []
        there.rollback(versions[0])
        assert MARK not in there.export_jsonl()
        for memory in (here, there):
            assert memory.episodes() == memories(opener, 1)[0].episodes()


def test_what_is_given_again_after_a_purge_may_be_quoted_again() -> None:
    opener = in_memory()
    [memory] = memories(opener, 1)
    memory.remember(quoted(memory))
    memory.forget(author="zqxann", purge=True)
    later = memory.remember(quoted(memory).model_copy(update={"author": "cy"}))
    [reopened] = memories(opener, 1)
    assert reopened.episodes() == memory.episodes()
    assert [reopened.episodes()[-1].judgment] == [later.judgment]
    rationales = {each.judgment.rationale for each in memory.episodes() if each.judgment}
    assert rationales == {"", "As one said, zqxwhy counts."}


def test_guideline_from_another_prompt_of_the_lesson_stays(memory: JudgeMemory) -> None:
    episode, two, three, four = memory.remember(
        [comment("one", "zqxwhy"), comment("two"), comment("three"), comment("four")]
    )
    operations = [
        op("add", episode, text="It is zqxwhy."),
        op("add", two, text="It may be zqxwhy."),
        op("add", three, text="Something else."),
        op("add", four, text="SOMETHING else"),
    ]
    read = hashes([episode, two, three, four])
    prompts = [[episode.id, two.id, four.id], [three.id]]
    run_sync(learning.commit_lesson(SYNC, memory.access, operations, read, prompts=prompts))
    purged = purge(memory, episode.id)
    # The other prompt's guideline keeps its sources in text that did not need the purged one.
    [guideline] = memory.guidelines()
    assert (guideline.text, guideline.status) == ("Something else.", "standing")
    assert two.id in purged.pending
    assert left_in(everything_in(memory.access.store)) == []


def test_rewording_of_a_purged_lesson_is_removed(memory: JudgeMemory) -> None:
    episode, two = memory.remember([comment("one", "zqxwhy"), comment("two")])
    learn(memory, op("add", episode, two, text="It is zqxwhy."))
    [guideline] = memory.guidelines()
    memory.forget(episode.id)
    three = memory.remember(comment("three"))
    text = "It is zqxwhy, briefly."
    learn_from(memory, op("revise", three, guideline_id=guideline.id, text=text))
    assert [guideline.text for guideline in memory.guidelines()] == [text]
    memory.forget(episode.id, purge=True)
    assert memory.guidelines() == []
    assert {episode.status for episode in memory.episodes()} == {"pending"}
    assert left_in(everything_in(memory.access.store)) == []


def test_purge_of_imported_feedback_keeps_that_of_others(memory: JudgeMemory) -> None:
    source = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    episode = source.remember(planted())
    bob, eve = source.remember([comment("bob", author="bob"), comment("eve", author="eve")])
    hers = op("add", episode, eve, text="zqxwhy and Eve's.")
    guidelines = [op("add", episode, text="It is zqxwhy."), hers]
    learn_from(source, op("add", bob, text="Bob's."), *guidelines)
    memory.import_jsonl(source.export_jsonl())
    memory.forget(episode.id, purge=True)
    assert [guideline.text for guideline in memory.guidelines()] == ["Bob's."]
    statuses = {episode.author: episode.status for episode in memory.episodes()}
    assert statuses == {"bob": "distilled", "eve": "pending"}
    check_clean(memory)


@pytest.mark.parametrize("names_it", [True, False])
def test_proposal_from_purged_feedback_is_discarded(near: Bench, *, names_it: bool) -> None:
    memory, why = near.memory(), "It is zqxwhy, she says, that matters here."
    planted = memory.remember(comment("one", why, author="zqxann"))
    builder = create_review_graph(
        CRITERION, model=near.server.chat_model(), embeddings=near.embeddings
    )
    graph = builder.compile(store=near.store, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"inputs": "three", "outputs": "a"}, config)

    def purges(request: ChatRequest) -> dict[str, Any]:
        before, _, after = request.text.partition("zqxwhy")
        assert after
        memory.forget(planted.id, purge=True)
        other = "F1" if "Feedback F2" in before else "F2"
        handles = ["F1", "F2"] if names_it else [other]
        text = "What zqxwhy said holds always."
        return operations({"action": "add", "text": text, "feedback": handles})

    near.server.responder = purges
    learned = graph.invoke(Command(resume="It must be brief."), config)["learned"]
    assert left_in(everything_in(near.store)) == []
    assert MARK not in repr(learned)
    [episode] = memory.episodes()
    assert (episode.example.inputs, episode.status) == ("three", "pending")


async def test_purge_removes_the_vectors(bench: Bench) -> None:
    await bench.remember(comment("kept"))
    [episode] = await bench.remember(planted())
    here, there = bench.memory(), bench.memory(embeddings=bench.server.embedder(dimensions=16))
    for memory in (here, there):
        await bench.recall("new", memory=memory)
    assert len(await bench.items("vectors")) == 4
    assert (await bench.do("forget", episode.id, purge=True)).purged.vectors == 2
    text, _ = retrieval_text(episode.example)
    items = await bench.items("vectors")
    assert len(items) == 2
    assert all(item.key != vector_key(item.value["embedder"], text) for item in items)
    for memory in (here, there):
        await bench.recall("new", memory=memory)
        assert MARK not in repr(vars(memory.access.view)).casefold()
        assert memory.access.view.index.get(vector_key(memory.access.embedder.id, text)) is None


@pytest.mark.parametrize("question", [None, "Does it name zqxasks?"])
@pytest.mark.parametrize("text", ["Rule of zqxwhy.", "rule of zqxwhy"])
def test_distilled_text_that_another_expert_took_over_is_purged(
    memory: JudgeMemory, text: str, question: str | None
) -> None:
    other, one = memory.remember([comment("two", author="bob"), planted()])
    learn(memory, op("add", one, other, text="Rule of zqxwhy.", question=question))
    memory.add_guideline(text, author="bob")
    assert purge(memory, author="zqxann").pending == [other.id]
    assert left_in(everything_in(memory.access.store)) == []
    assert memory.guidelines() == []


def test_purge_leaves_judgments_with_feedback_that_was_given_again_after_an_earlier_purge(
    memory: JudgeMemory,
) -> None:
    memory.remember(comment("two", author="bob"))
    memory.forget([memory.remember(comment("one")).id], purge=True)
    again = memory.remember(comment("one"))
    kept = keep_reviewed(memory.access, QUERY, episode_ids=[again.id])
    memory.forget([again.id])
    memory.forget(author="bob", purge=True)
    assert run_sync(find_judgment(SYNC, memory.access, kept.id)).judgment.id == kept.id


def test_check_question_of_a_purged_guideline_is_removed() -> None:
    here, there = memories(in_memory(InMemoryStore()), 2)
    episodes = here.remember([comment("one", author="ann"), comment("two", author="bob")])
    learn(here, op("add", *episodes, text="Old."))
    here.edit_guideline(here.guidelines()[0].id, "Word zqxwhy.", author="ann")
    here.version()
    interleave(
        lambda io: learning.record_questions(io, here.access, {"Word zqxwhy.": "Is it zqxwhy?"}),
        commits,
        lambda: there.forget(author="ann", purge=True),
    )
    assert left_in(everything_in(here.access.store)) == []
    assert MARK not in repr([here.guidelines(), there.guidelines(), here.history()])


def test_each_purge_is_applied_to_few_facts_of_an_opened_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, applied = 100, list[str]()
    facts = [Fact(id=new_id(index), at_us=index, reason="remember") for index in range(size)]
    purges = [
        Fact(id=new_id(size + index), at_us=size + index, reason=PURGE, forgotten=["x"])
        for index in range(size)
    ]

    def after_purge(fact: Fact, *_: Any) -> Fact:
        applied.append(fact.id)
        return fact

    monkeypatch.setattr(Fact, "after_purge", after_purge)
    MemoryView("hashed").add([*facts, *purges], {})
    assert len(applied) <= size


def test_filter_uses_the_current_feedback(memory: JudgeMemory) -> None:
    episode = memory.remember(comment("one", "Too cold. Call me at 555-1234.", author="ann"))
    memory.revise(episode.id, {"rationale": "Too cold."})

    def has_number(one: Episode) -> bool:
        return "555" in (one.rationale or "")

    assert memory.forget(where=has_number, purge=True).episode_ids == []
    assert [episode.rationale for episode in memory.episodes()] == ["Too cold."]
    memory.forget(episode.id, purge=True)
    assert "555-1234" not in str([item.dict() for item in everything_in(memory.access.store)])


def test_text_by_hand_stays_until_its_author_has_no_feedback(memory: JudgeMemory) -> None:
    one, two, other = memory.remember(
        [comment("one", author="ann"), comment("two", author="ann"), comment("three", author="bob")]
    )
    learn_from(memory, op("add", one, other, text="Of both."))
    memory.edit_guideline(memory.guidelines()[0].id, "By hand.", author="ann")
    memory.forget(one.id, purge=True)
    assert [guideline.text for guideline in memory.guidelines()] == ["By hand."]
    memory.forget(two.id, purge=True)
    assert memory.guidelines() == []


@pytest.mark.parametrize(
    "selection", [{"author": "ann"}, {"where": lambda episode: episode.author == "ann"}]
)
def test_purge_by_id_keeps_authors(memory: JudgeMemory, selection: dict[str, Any]) -> None:
    memory.remember([comment("one", author="ann"), comment("two", author="ann")])
    guideline = memory.add_guideline("Begin with regret.", author="ann")
    memory.forget([episode.id for episode in memory.episodes()], purge=True)
    again = JudgeMemory(memory.access.store, CRITERION, embeddings=hashed)
    for process in (memory, again):
        assert process.guidelines() == [guideline]
    is_named = "'ann' is still named" in str(purge(memory, **selection).warnings)
    assert is_named is ("author" in selection)
    memory.remember(comment("one", author="ann"))
    assert "still named" not in str(purge(memory, **selection).warnings)
    assert [guideline.author for guideline in memory.guidelines()] == [None]
    assert left_in(everything_in(memory.access.store), '"ann"') == []
