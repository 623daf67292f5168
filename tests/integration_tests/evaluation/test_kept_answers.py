"""Answers that are kept: nothing is paid for twice, nothing stale is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from langgraph.store.memory import InMemoryStore
from pydantic import SecretStr

from memalign_graph import Criterion
from memalign_graph.errors import MemAlignError
from memalign_graph.evaluation import Evaluation
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    judged,
    judgings,
    nothing_to_learn,
    plain,
    shown,
    word,
    words,
)
from tests.loopback import (
    ChatRequest,
    LoopbackServer,
    Reply,
    answer,
    error,
    raw,
    refusal,
    truncated,
)
from tests.loopback.replies import as_reply

WORDS = words(9)


@pytest.mark.parametrize("kind", ["file", "text", "store"])
async def test_repeated_run_costs_nothing(
    call: Caller, server: LoopbackServer, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "kept.db"
    cache: Any = {"file": file, "text": str(file), "store": InMemoryStore()}[kind]
    server.responder = Model(judge=lambda chat: judged(chat) % 2 > 0)
    without = await call.cross_validate(CRITERION, WORDS)
    assert asked(server) > (18, 0)
    first = await call.cross_validate(CRITERION, WORDS, cache=cache)
    assert asked(server) > (18, 0)
    again = await call.cross_validate(CRITERION, WORDS, cache=cache)
    assert asked(server) == (0, 0)
    assert plain(first) == plain(again) == plain(without)
    for found in (again.learning, *again.judging.values()):
        assert found.chat_calls == found.kept_calls > 0
    for found in (first.learning, *first.judging.values()):
        assert found.kept_calls == 0
    assert again.judging["base"].input_tokens == first.judging["base"].input_tokens > 0
    took = first.judging["base"].model_seconds
    assert took > 0
    assert again.judging["base"].model_seconds == pytest.approx(took)


async def test_blocking_and_awaited_calls_share_answers(
    once: Caller, server: LoopbackServer, tmp_path: Path
) -> None:
    await once.cross_validate(CRITERION, WORDS, cache=tmp_path / "kept.db")
    asked(server)
    await Caller(server, awaits=True).cross_validate(CRITERION, WORDS, cache=tmp_path / "kept.db")
    assert asked(server) == (0, 0)


async def test_every_text_is_embedded_once(call: Caller, server: LoopbackServer) -> None:
    await call.cross_validate(CRITERION, WORDS)
    texts = [text for request in server.embeddings for text in request.texts]
    assert len(texts) == len(set(texts)) == 9


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        ({"model": "gpt-4.1"}, True),
        ({"temperature": 0.3}, True),
        ({"seed": 4}, True),
        ({"top_p": 0.5}, True),
        # How often and how long the client tries changes no answer: an error says to raise them.
        ({"max_retries": 1}, False),
        ({"timeout": 30}, False),
    ],
)
async def test_other_settings_of_the_model_are_asked_anew(
    once: Caller, server: LoopbackServer, changed: dict[str, Any], *, new: bool
) -> None:
    store = InMemoryStore()
    await once.cross_validate(CRITERION, WORDS, cache=store)
    asked(server)
    found = await once.cross_validate(
        CRITERION, WORDS, cache=store, model=server.chat_model(**changed)
    )
    assert is_new(found) == (new, new, new)
    assert (len(server.chats) > 0) == new
    assert server.embeddings == []


def is_new(found: Evaluation) -> tuple[bool, bool, bool]:
    """What was asked anew, of the base judge, the aligned one and the distiller."""
    given = [found.judging["base"], found.judging["aligned"], found.learning]
    news = [one.chat_calls - one.kept_calls for one in given]
    assert all(new in (0, one.chat_calls) for new, one in zip(news, given, strict=True))
    return news[0] > 0, news[1] > 0, news[2] > 0


async def test_model_that_was_changed_after_use_is_asked_anew(
    once: Caller, server: LoopbackServer
) -> None:
    store = InMemoryStore()
    model = server.chat_model(temperature=0)
    model.invoke("Hello?")
    await once.cross_validate(CRITERION, WORDS, cache=store, model=model)
    asked(server)
    warmer = model.model_copy(update={"temperature": 0.9})
    found = await once.cross_validate(CRITERION, WORDS, cache=store, model=warmer)
    assert is_new(found) == (True, True, True)
    model.temperature = 0.5
    found = await once.cross_validate(CRITERION, WORDS, cache=store, model=model)
    assert is_new(found) == (True, True, True)


class Plain(ChatOpenAI):
    """A model that LangChain can't tell from another of its class."""

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {}

    def _get_invocation_params(self, stop: list[str] | None = None, **_: Any) -> dict[str, Any]:
        return {"stop": stop}


async def test_models_of_a_users_own_class_are_told_apart(
    once: Caller, server: LoopbackServer
) -> None:
    server.responder = Model(judge=lambda chat: chat.model == "right")
    shared = server.chat_model()
    given = {name: getattr(shared, name) for name in ("http_client", "http_async_client")}
    models = {
        name: Plain(model=name, base_url=server.base_url, api_key=SecretStr("x"), **given)
        for name in ("wrong", "right")
    }
    found = await once("ablate", CRITERION, words(6), folds=2, models=models)
    assert {case.value_of("wrong: none") for case in found.cases} == {False}
    assert {case.value_of("right: none") for case in found.cases} == {True}


async def test_other_instructions_are_asked_anew(once: Caller, server: LoopbackServer) -> None:
    store = InMemoryStore()
    await once.cross_validate(CRITERION, WORDS, cache=store)
    asked(server)
    other = CRITERION.model_copy(update={"instructions": "Is it polite?"})
    found = await once.cross_validate(other, WORDS, cache=store)
    assert is_new(found) == (True, True, True)
    assert server.embeddings == []


async def test_other_k_is_asked_anew_where_it_shows(once: Caller, server: LoopbackServer) -> None:
    store = InMemoryStore()
    await once.cross_validate(CRITERION, WORDS, cache=store, k=2)
    asked(server)
    found = await once.cross_validate(CRITERION, WORDS, cache=store, k=3)
    assert is_new(found) == (False, True, False)
    assert len(server.chats) == 9


async def test_other_words_are_asked_anew_where_they_show(
    once: Caller, server: LoopbackServer
) -> None:
    """One expert's word of one case: the base judge knows of none, nor do judges of its fold."""
    store = InMemoryStore()
    first = await once.cross_validate(CRITERION, WORDS, cache=store)
    asked(server)
    edited = [*WORDS[:4], {**WORDS[4], "rationale": "On #t4 because4so, newly said."}, *WORDS[5:]]
    await once.cross_validate(CRITERION, edited, cache=store)
    folds = {int(str(case.example.inputs)[5]): case.fold for case in first.cases}
    for chat in judgings(server):
        assert "newly said" in chat.text
        assert folds[judged(chat)] != folds[4]
    others = [one for one in range(9) if folds[one] != folds[4]]
    assert sorted(judged(chat) for chat in judgings(server)) == others
    assert server.embeddings == []


async def test_other_seed_asks_what_other_folds_show(once: Caller, server: LoopbackServer) -> None:
    store = InMemoryStore()
    await once.cross_validate(CRITERION, WORDS, cache=store)
    asked(server)
    found = await once.cross_validate(CRITERION, WORDS, cache=store, seed=1)
    assert found.judging["base"].kept_calls == found.judging["base"].chat_calls == 9
    assert server.embeddings == []


def failing(reply: Reply) -> Callable[[ChatRequest], Any]:
    """A judge that gives one reply to case 4."""
    return lambda chat: reply if judged(chat) == 4 else True


async def test_answers_that_are_no_use_are_not_kept(call: Caller, server: LoopbackServer) -> None:
    """The next run asks again, and may fare better."""
    store = InMemoryStore()
    broken: list[Any] = ["I would say yes.", refusal(), truncated('{"rationale": "Se'), "{}"]
    for reply in [*broken, {"rationale": "x", "value": "perhaps"}, '{"rationale": "Seen."}']:
        server.responder = Model(judge=failing(as_reply(reply)), distil=nothing_to_learn)
        found = await call.cross_validate(CRITERION, WORDS, cache=store)
        assert found.of("base").failed == 1, reply
        asked(server)
        server.responder = Model(distil=nothing_to_learn)
        mended = await call.cross_validate(CRITERION, WORDS, cache=store)
        assert mended.of("base").failed == mended.of("aligned").failed == 0, reply
        assert {judged(chat) for chat in judgings(server)} <= {4}
        store = InMemoryStore()
        asked(server)


async def test_models_that_tell_no_usage(call: Caller, server: LoopbackServer) -> None:
    """A second time, with answers that were kept."""
    follow = Model(judge=lambda chat: judged(chat) % 2 > 0)

    def no_usage(chat: ChatRequest) -> Any:
        reply: Any = follow(chat)
        message = {"role": "assistant", "content": reply.content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
        return raw(json.dumps({**head, "choices": [choice]}))

    server.responder = no_usage
    store = InMemoryStore()
    first = await call.cross_validate(CRITERION, WORDS, cache=store)
    asked(server)
    again = await call.cross_validate(CRITERION, WORDS, cache=store)
    assert asked(server) == (0, 0)
    assert plain(first) == plain(again)
    assert again.judging["base"].input_tokens == 0


async def test_the_user_s_model_and_cache_stay_as_they_are(
    call: Caller, server: LoopbackServer
) -> None:
    mine = InMemoryCache()
    model = server.chat_model(cache=mine)
    before = model.model_dump()
    everyones = InMemoryCache()
    was = get_llm_cache()
    set_llm_cache(everyones)
    try:
        await call.cross_validate(CRITERION, WORDS, model=model)
        first = asked(server)
        # Another run keeps nothing of this one: neither cache was used.
        await call.cross_validate(CRITERION, WORDS, model=model)
        assert asked(server) == first
    finally:
        set_llm_cache(was)
    assert mine._cache == {}
    assert everyones._cache == {}
    assert model.cache is mine
    assert model.model_dump() == before


async def test_store_with_an_index_embeds_no_answers(call: Caller, server: LoopbackServer) -> None:
    embedded: list[str] = []

    def embed(texts: Any) -> list[list[float]]:
        embedded.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    store = InMemoryStore(index={"embed": embed, "dims": 2})
    await call.cross_validate(CRITERION, WORDS, cache=store)
    assert embedded == []


async def test_answers_lie_beside_what_else_a_store_holds(
    call: Caller, server: LoopbackServer
) -> None:
    store = InMemoryStore()
    store.put(("memalign", "support_tone", "episodes"), "mine", {"id": "mine"})
    await call.cross_validate(CRITERION, WORDS, cache=store)
    assert {space[0] for space in store.list_namespaces()} == {"memalign", "memalign_evaluation"}
    assert [one.key for one in store.search(("memalign",), limit=9)] == ["mine"]


async def test_dead_endpoint_loses_nothing(
    call: Caller, server: LoopbackServer, tmp_path: Path
) -> None:
    """The judge fails for one case; what was answered before is there the next time."""
    follow = Model()

    def dies(chat: ChatRequest) -> Any:
        if chat.schema_name == "judgment" and judged(chat) == 7:
            return error(500, "Down.")
        return follow(chat)

    server.responder = dies
    options: dict[str, Any] = {"cache": tmp_path / "kept.db", "max_concurrency": 1}
    with pytest.raises(MemAlignError, match=r"gpt-4.1-mini"):
        await call.cross_validate(CRITERION, WORDS, **options)
    answered = len({chat.text for chat in server.chats}) - 1
    server.reset()
    server.responder = follow
    await call.cross_validate(CRITERION, WORDS, **options)
    missing = len(server.chats)
    server.reset()
    server.responder = follow
    await call.cross_validate(CRITERION, WORDS)
    assert answered + missing == len(server.chats)


async def test_distilling_that_fails_goes_on_where_it_was(
    call: Caller, server: LoopbackServer, tmp_path: Path
) -> None:
    def prose(_: ChatRequest) -> Any:
        return answer("I can't say.")

    server.responder = Model(distil=prose)
    with pytest.raises(MemAlignError, match="distil"):
        await call.cross_validate(CRITERION, WORDS, cache=tmp_path / "kept.db")
    assert judgings(server) == []
    asked(server)
    server.responder = Model()
    found = await call.cross_validate(CRITERION, WORDS, cache=tmp_path / "kept.db")
    assert asked(server)[1] == 0
    assert found.of("aligned").cases == 9


async def test_file_in_a_folder_that_is_not_there(once: Caller, tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "kept.db"
    await once.cross_validate(CRITERION, WORDS, cache=file)
    assert file.exists()


class Count(ChatOpenAI):
    """Keeps count in a field of its own."""

    calls: int = 0

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.calls += 1
        content = '{"rationale": "Seen.", "value": true}'
        if "operations" in str(messages[0].content):
            content = '{"operations": []}'
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content))])


async def test_answers_of_a_model_that_counts_its_calls_are_found_again(once: Caller) -> None:
    """Each run begins with the model as its owner made it."""
    store = InMemoryStore()
    model = Count(model="m", api_key=SecretStr("x"))
    first = await once.cross_validate(CRITERION, WORDS, cache=store, model=model)
    assert first.judging["base"].kept_calls == 0
    again = await once.cross_validate(CRITERION, WORDS, cache=store, model=model)
    assert again.judging["base"].kept_calls == 9
    assert again.judging["base"].input_tokens == 0


async def test_same_prompt_of_two_ways_is_asked_once(call: Caller, server: LoopbackServer) -> None:
    """Nothing was learned as a guideline, so `semantic only` asks what `none` asks."""
    server.responder = Model(distil=nothing_to_learn)
    server.latency_s = 0.05
    await call("ablate", CRITERION, words(4), folds=2)
    prompts = [chat.text for chat in judgings(server)]
    assert len(prompts) == len(set(prompts))


async def test_cases_are_told_apart_by_all_they_hold(call: Caller, server: LoopbackServer) -> None:
    """Reference outputs, too."""
    store = InMemoryStore()
    given = [word(n, reference_outputs="On time.") for n in range(6)]
    await call.cross_validate(CRITERION, given, cache=store)
    asked(server)
    other = [word(n, reference_outputs="Late.") for n in range(6)]
    found = await call.cross_validate(CRITERION, other, cache=store)
    assert found.judging["base"].kept_calls == 0


async def test_other_criterion_of_one_name(call: Caller, server: LoopbackServer) -> None:
    store = InMemoryStore()
    await call.cross_validate(Criterion(name="a", instructions="One?"), WORDS, cache=store)
    asked(server)
    await call.cross_validate(Criterion(name="a", instructions="Two?"), WORDS, cache=store)
    assert not any("One?" in chat.text for chat in server.chats)
    assert shown(server.chats[0])
