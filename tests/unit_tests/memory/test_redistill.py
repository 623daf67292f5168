"""A guideline that loses a source is worded again from the sources that are left, and no other."""

import json
from typing import Any

import pytest

from memalign_graph import ChatModelError, JudgeMemory, ModelAnswerError
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory import learning
from tests.loopback import ChatRequest, error
from tests.unit_tests.memory.support import EVERY_STORE, Bench, asks, interleaved, op, said

PLANTED = "zqplanted"


def worded(text: str) -> dict[str, Any]:
    """A distiller's answer."""
    return {"operations": [{"text": text, "action": "add"}]}


def with_model(bench: Bench, **options: Any) -> JudgeMemory:
    return bench.memory(model=bench.server.chat_model(**options))


async def two_sources(bench: Bench) -> list[Any]:
    """A guideline from two pieces of feedback on a case, the first full of planted words."""
    episodes = await bench.remember(
        said("one", f"{PLANTED} why", author=f"{PLANTED} ann", id=f"{PLANTED} id"),
        said("one", "It must say sorry for the delay.", author="bob"),
    )
    await bench.learn(op("add", *episodes, text=f"Say sorry to {PLANTED}."))
    bench.server.chats.clear()
    return episodes


async def take_back(bench: Bench, how: str, episode: Any, memory: JudgeMemory) -> Any:
    if how == "revise":
        changed = {"rationale": "Something else."}
        return await bench.do("revise", episode.id, changed, memory=memory)
    return await bench.do("forget", episode.id, purge=how == "purge", memory=memory)


@EVERY_STORE
@pytest.mark.parametrize("how", ["forget", "revise", "purge"])
async def test_it_is_worded_again_from_the_other_source_alone(bench: Bench, how: str) -> None:
    one, two = await two_sources(bench)
    [before] = await bench.do("guidelines")
    bench.server.script(worded("Say sorry for a delay."))
    done = await take_back(bench, how, one, with_model(bench))
    [request] = [json.dumps(chat.body) for chat in bench.server.chats]
    assert PLANTED not in request.casefold()
    assert "It must say sorry for the delay." in request
    [after] = await bench.do("guidelines")
    assert (after.text, after.status) == ("Say sorry for a delay.", "standing")
    assert after.episode_ids == [two.id]
    if how == "purge":
        assert [(gone.id, gone.text) for gone in done.guidelines_removed] == [(before.id, "")]
        assert await bench.holding(PLANTED) == []
    else:
        assert (after.id, after.position) == (before.id, before.position)
    if how == "forget":
        assert (done.guidelines_reduced, done.guidelines_removed) == ([after], [])
    assert await bench.items("drafts") == []
    statuses = {each.id: each.status for each in await bench.do("episodes")}
    assert statuses[two.id] == "distilled"


FAILURES: list[tuple[list[Any], type[Exception]]] = [
    ([error(401)], ChatModelError),
    (["prose", "prose"], ModelAnswerError),
]


@pytest.mark.parametrize("how", ["forget", "revise", "purge"])
@pytest.mark.parametrize(("replies", "failure"), FAILURES)
async def test_a_model_that_fails_leaves_it_taken_back_and_the_rest_pending(
    near: Bench, how: str, replies: list[Any], failure: type[Exception]
) -> None:
    one, two = await two_sources(near)
    memory = with_model(near, max_retries=0)
    near.server.script(*replies)
    with pytest.raises(failure):
        await take_back(near, how, one, memory)
    assert one.word not in {each.word for each in memory.episodes()}
    pending = [(rule.status, rule.episode_ids) for rule in memory.guidelines()]
    assert pending == ([] if how == "purge" else [("pending", [two.id])])


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


@pytest.mark.parametrize("purge", [False, True])
async def test_a_model_that_is_not_needed_is_not_resolved(
    near: Bench, monkeypatch: pytest.MonkeyPatch, *, purge: bool
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory = near.memory(model="openai:gpt-4.1-mini")
    one, two = memory.remember([said("one"), said("two")])
    memory.revise(two.id, {"rationale": "Another word."})
    assert memory.forget(one.id, purge=purge).episode_ids == [one.id]


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
