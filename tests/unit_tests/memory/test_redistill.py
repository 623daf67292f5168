"""A guideline that loses a source is worded again from the sources that are left, and no other."""

import json
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from memalign_graph import (
    ChatModelError,
    JudgeMemory,
    ModelAnswerError,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory import learning
from tests.loopback import ChatRequest, error
from tests.unit_tests.memory.support import CRITERION, Bench, asks, dump, interleaved, op, said

PLANTED = "zqplanted"


def worded(text: str) -> dict[str, Any]:
    """A distiller's answer."""
    return {"operations": [{"text": text, "action": "add"}]}


def with_model(bench: Bench, **options: Any) -> JudgeMemory:
    return bench.memory(model=bench.server.chat_model(**options))


async def two_sources(bench: Bench) -> list[Any]:
    """A guideline from two pieces of feedback, the first of which is full of planted words."""
    episodes = await bench.remember(
        said(
            f"{PLANTED} in", f"{PLANTED} why", outputs=f"{PLANTED} out",
            author=f"{PLANTED} ann", id=f"{PLANTED} id",
        ),
        said("two", "It must say sorry for the delay."),
    )  # fmt: skip
    await bench.learn(op("add", *episodes, text=f"Say sorry to {PLANTED}."))
    bench.server.chats.clear()
    return episodes


def asked(bench: Bench) -> list[str]:
    """All that was sent to the model, a text a request."""
    return [json.dumps(chat.body) for chat in bench.server.chats]


TAKING_BACK = ("forget", "revise", "purge")


async def take_back(bench: Bench, how: str, episode: Any, memory: JudgeMemory) -> Any:
    if how == "revise":
        changed = {"rationale": "Something else."}
        return await bench.do("revise", episode.id, changed, memory=memory)
    return await bench.do("forget", episode.id, purge=how == "purge", memory=memory)


@pytest.mark.parametrize("how", TAKING_BACK)
async def test_it_is_worded_again_from_the_other_source_alone(bench: Bench, how: str) -> None:
    one, two = await two_sources(bench)
    [before] = await bench.do("guidelines")
    bench.server.script(worded("Say sorry for a delay."))
    done = await take_back(bench, how, one, with_model(bench))
    [request] = asked(bench)
    assert PLANTED not in request.casefold()
    assert "It must say sorry for the delay." in request
    [after] = await bench.do("guidelines")
    assert (after.text, after.status) == ("Say sorry for a delay.", "standing")
    assert after.episode_ids == [two.id]
    if how == "purge":
        assert [gone.id for gone in done.guidelines_removed] == [before.id]
    else:
        assert (after.id, after.position) == (before.id, before.position)
    if how == "forget":
        assert done.guidelines_reduced == [after]
        assert done.guidelines_removed == []
    assert await bench.items("drafts") == []
    statuses = {each.id: each.status for each in await bench.do("episodes")}
    assert statuses[two.id] == "distilled"


async def test_the_words_of_another_expert_on_the_same_case_are_not_sent(bench: Bench) -> None:
    ann, bob = await bench.remember(
        said("case", f"{PLANTED} why", author="ann"), said("case", "Bob's reason.", author="bob")
    )
    await bench.learn(op("add", ann, bob, text="Of both."))
    bench.server.script(worded("Of Bob's reason alone."))
    await bench.do("forget", author="ann", memory=with_model(bench))
    [request] = asked(bench)
    assert PLANTED not in request
    assert "Bob's reason." in request


async def test_nothing_left_to_say_takes_the_guideline_away(bench: Bench) -> None:
    one, two = await two_sources(bench)
    bench.server.script({"operations": []})
    forgotten = await bench.do("forget", one.id, memory=with_model(bench))
    assert await bench.do("guidelines") == []
    assert forgotten.guidelines_reduced == []
    assert [gone.episode_ids for gone in forgotten.guidelines_removed] == [[two.id]]
    assert [each.id for each in await bench.do("episodes")] == [two.id]


FAILURES: list[tuple[list[Any], type[Exception]]] = [
    ([error(500)], ChatModelError),
    ([error(401)], ChatModelError),
    (["prose", "prose"], ModelAnswerError),
    ([{"operations": "none"}] * 2, ModelAnswerError),
]


@pytest.mark.parametrize("how", ["forget", "revise"])
@pytest.mark.parametrize(("replies", "failure"), FAILURES)
async def test_a_model_that_fails_leaves_it_forgotten_and_the_guideline_pending(
    near: Bench, how: str, replies: list[Any], failure: type[Exception]
) -> None:
    one, two = await two_sources(near)
    memory = with_model(near, max_retries=0)
    near.server.script(*replies)
    with pytest.raises(failure):
        await take_back(near, how, one, memory)
    assert one.word not in {each.word for each in memory.episodes()}
    [rule] = memory.guidelines()
    assert (rule.status, rule.episode_ids) == ("pending", [two.id])

    near.server.script(worded("Say sorry for a delay."))
    done = memory.consolidate()
    assert [entry["text"] for entry in done["guidelines"]] == ["Say sorry for a delay."]
    [rule] = memory.guidelines()
    assert (rule.text, rule.episode_ids) == ("Say sorry for a delay.", [two.id])


async def test_a_model_that_fails_after_a_purge_leaves_what_was_read_along_pending(
    bench: Bench,
) -> None:
    one, _ = await two_sources(bench)
    bench.server.script(error(401))
    with pytest.raises(ChatModelError):
        await bench.do("forget", one.id, purge=True, memory=with_model(bench))
    assert await bench.holding(PLANTED) == []
    assert await bench.statuses() == {"two": "pending"}
    assert await bench.guidelines() == {}


async def test_an_answer_that_was_paid_for_is_not_asked_for_again(bench: Bench) -> None:
    one, two, three = await bench.remember(said("one"), said("two"), said("three"))
    await bench.learn(op("add", one, two, text="A."), op("add", one, three, text="B."))
    memory = with_model(bench, max_retries=0)
    replies: dict[bool, Any] = {False: worded("The first of them."), True: error(500)}

    def reply(chat: ChatRequest) -> Any:
        if chat.schema_name == "guideline_relations":
            return {"duplicates": [], "contradictions": []}
        return replies["three" in chat.text]

    bench.server.responder = reply
    with pytest.raises(ChatModelError):
        await bench.do("forget", one.id, memory=memory)
    assert len(await bench.items("drafts")) == 1
    replies[True] = worded("The second of them.")
    await bench.do("consolidate", memory=memory)
    names = [chat.schema_name for chat in bench.server.chats]
    assert names == ["guideline_operations"] * 3 + ["guideline_relations"]
    assert await bench.guidelines() == {
        "The first of them.": {two.id}, "The second of them.": {three.id},
    }  # fmt: skip
    assert await bench.items("drafts") == []


async def test_without_a_model_no_one_is_asked(bench: Bench) -> None:
    one, two = await two_sources(bench)
    forgotten = await bench.do("forget", one.id)
    assert [rule.status for rule in forgotten.guidelines_reduced] == ["pending"]
    assert asked(bench) == []
    bench.server.script(worded("Later."))
    await bench.do("consolidate", memory=with_model(bench))
    assert await bench.guidelines() == {"Later.": {two.id}}


async def test_what_costs_nothing_asks_no_one(bench: Bench) -> None:
    one, two = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Of one."), op("add", two, text="Of two."))
    [_, rule] = await bench.do("guidelines")
    await bench.do("edit_guideline", rule.id, "By hand.")
    memory = with_model(bench)
    await bench.do("forget", one.id, memory=memory)
    await bench.do("forget", "no such", memory=memory)
    assert asked(bench) == []


@pytest.mark.parametrize("purge", [False, True])
async def test_a_model_that_is_not_needed_is_not_resolved(
    near: Bench, monkeypatch: pytest.MonkeyPatch, *, purge: bool
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory = near.memory(model="openai:gpt-4.1-mini")
    one, two = memory.remember([said("one"), said("two")])
    memory.revise(two.id, {"rationale": "Another word."})
    assert memory.forget(one.id, purge=purge).episode_ids == [one.id]


async def test_a_judge_is_still_given_a_pending_guideline(near: Bench) -> None:
    one, _ = await two_sources(near)
    near.memory().forget(one.id)
    [rule] = near.memory().guidelines()
    builder = create_judge_graph(
        CRITERION, model=near.server.chat_model(), embeddings=near.embeddings
    )
    judgment = builder.compile(store=near.store).invoke({"inputs": "q", "outputs": "a"})["judgment"]
    assert judgment["guideline_ids"] == [rule.id]


async def test_in_words_that_stand_already_it_becomes_that_guideline(bench: Bench) -> None:
    one, two, three = await bench.remember(said("one"), said("two"), said("three"))
    await bench.learn(op("add", one, two, text="Of both."), op("add", three, text="Say sorry."))
    bench.server.script(worded("say sorry"))
    await bench.do("forget", one.id, memory=with_model(bench))
    assert await bench.guidelines() == {"Say sorry.": {two.id, three.id}}
    assert len(await bench.do("guidelines")) == 1


def test_a_source_forgotten_while_the_model_writes_voids_what_it_wrote(near: Bench) -> None:
    one, two, three = near.memory().remember([said("one"), said("two"), said("three")])
    words = {each.id: each.word for each in (one, two, three)}
    rules = [op("add", one, two, three, text="Of three.")]
    run(learning.learn(BLOCKING, near.memory().access, rules, words))
    memory = with_model(near)
    near.server.script({"operations": [{"text": "Of 2.", "action": "add", "feedback": ["F1"]}]})
    interleaved(
        lambda io: memory._forget(io, one.id),
        asks,
        lambda: near.memory().forget(two.id),
    )
    [rule] = memory.guidelines()
    assert (rule.text, rule.status, rule.episode_ids) == ("Of three.", "pending", [three.id])


@pytest.mark.parametrize("purge", [False, True])
def test_a_guideline_that_loses_its_words_while_a_model_revises_it_does_not_get_them_back(
    near: Bench, *, purge: bool
) -> None:
    memory = near.memory()
    one, two = memory.remember([said("one", PLANTED), said("two")])
    words = {one.id: one.word, two.id: two.word}
    run(
        learning.learn(BLOCKING, memory.access, [op("add", one, two, text=f"Of {PLANTED}.")], words)
    )
    models = {"model": near.server.chat_model(), "embeddings": near.embeddings}
    graph = create_review_graph(CRITERION, **models).compile(
        store=near.store, checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"inputs": "three", "outputs": "a"}, config)

    def forgets_meanwhile(request: ChatRequest) -> dict[str, Any]:
        if "G1" not in json.dumps(request.schema):
            return worded("Of the second alone.")
        memory.forget(one.id, purge=purge)
        change = {"text": f"Of {PLANTED}, briefly.", "action": "revise", "guideline": "G1"}
        return {"operations": [change]}

    near.server.responder = forgets_meanwhile
    learned = graph.invoke(Command(resume="It must be brief."), config)["learned"]
    assert [rule.text for rule in memory.guidelines()] == (
        [] if purge else ["Of the second alone."]
    )
    assert PLANTED not in dump(learned)
    statuses = {each.example.inputs: each.status for each in memory.episodes()}
    assert statuses == {"two": "pending" if purge else "distilled", "three": "pending"}


def test_sources_that_were_not_read_are_still_its_sources(near: Bench) -> None:
    memory = with_model(near)
    episodes = memory.remember([said(f"case {number}") for number in range(60)])
    words = {one.id: one.word for one in episodes}
    run(learning.learn(BLOCKING, memory.access, [op("add", *episodes, text="Of all.")], words))
    change = {"text": "Of the rest.", "action": "add", "feedback": ["F1"]}
    near.server.script({"operations": [change]})
    memory.forget(episodes[0].id)
    [rule] = memory.guidelines()
    assert (rule.text, set(rule.episode_ids)) == (
        "Of the rest.", {one.id for one in episodes[1:]},
    )  # fmt: skip
