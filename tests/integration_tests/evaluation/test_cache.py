"""The evaluation cache: no repeated calls, no stale answers, and stopped runs."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_openai import ChatOpenAI
from langgraph.store.memory import InMemoryStore
from pydantic import SecretStr

from memalign_graph import Judge
from tests.conftest import CRITERION, judgings
from tests.integration_tests.alignment_model import judged_case
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    calls,
    memory_of,
    nothing_to_learn,
    plain,
    record,
    records,
)
from tests.loopback import LoopbackServer, refusal, truncated
from tests.loopback.replies import as_reply

RECORDS = records(9)


@pytest.mark.parametrize("kind", ["file", "store", "fallback"])
async def test_repeated_run_calls_no_model(
    call: Caller, server: LoopbackServer, tmp_path: Path, kind: str
) -> None:
    options: dict[str, Any] = {"cache": InMemoryStore() if kind == "store" else tmp_path / "a/b.db"}
    if kind == "fallback":
        models = server.chat_model(), server.chat_model(model="other")
        options["model"] = models[0].with_fallbacks([models[1]])
    server.responder = Model(judge=lambda chat: judged_case(chat) % 2 > 0)
    without = await call.evaluate(CRITERION, RECORDS, **{**options, "cache": None})
    assert asked(server) > (18, 0)
    first = await call.evaluate(CRITERION, RECORDS, **options)
    assert asked(server) > (18, 0)
    again = await call.evaluate(CRITERION, RECORDS, **options)
    awaited = await call.evaluate(CRITERION, RECORDS, awaits=True, **options)
    assert asked(server) == (0, 0)
    assert plain(first) == plain(again) == plain(awaited) == plain(without)
    assert calls(again) == 0
    assert sum(row.cached_calls for row in again.usage) == calls(first) > 18
    tokens = [sum(row.input_tokens for row in report.usage) for report in (first, again)]
    assert tokens[0] > 0 == tokens[1], "answers from the cache are not paid for"
    assert sum(row.cached_input_tokens for row in again.usage) == tokens[0]


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        ({"model": "gpt-4.1"}, True),
        ({"temperature": 0.3}, True),
        ({"seed": 4}, True),
        # Retries and timeouts do not change answers, and errors advise to raise them.
        ({"max_retries": 1}, False),
        ({"timeout": 30}, False),
    ],
)
async def test_changed_model_settings_bypass_the_cache(
    call: Caller, server: LoopbackServer, changed: dict[str, Any], *, new: bool
) -> None:
    store = InMemoryStore()
    first = await call.evaluate(CRITERION, RECORDS, cache=store)
    asked(server)
    again = await call.evaluate(CRITERION, RECORDS, cache=store, model=server.chat_model(**changed))
    assert calls(again) == (calls(first) if new else 0)
    assert server.embeddings == []


async def test_settings_changed_after_use_bypass_the_cache(
    call: Caller, server: LoopbackServer
) -> None:
    """LangChain remembers the identifying parameters of a model that was called."""
    store, model = InMemoryStore(), server.chat_model()
    first = await call.evaluate(CRITERION, RECORDS, cache=store, model=model)
    model.invoke("Hello?")
    model.temperature = 0.5
    assert calls(await call.evaluate(CRITERION, RECORDS, cache=store, model=model)) == calls(first)


class Plain(ChatOpenAI):
    """A model class without identifying parameters."""

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {}

    def _get_invocation_params(self, stop: list[str] | None = None, **_: Any) -> dict[str, Any]:
        return {"stop": stop}


async def test_each_model_class_has_its_cache_keys(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=lambda chat: chat.model == "right")
    shared = server.chat_model()
    clients = {name: getattr(shared, name) for name in ("http_client", "http_async_client")}
    judges = {
        name: Judge(
            criterion=CRITERION,
            model=Plain(model=name, base_url=server.base_url, api_key=SecretStr("x"), **clients),
            embeddings=server.embedder(),
        )
        for name in ("wrong", "right")
    }
    report = await call.evaluate(CRITERION, records(6), judges=judges)
    assert {case.value_of("wrong") for case in report.cases} == {False}
    assert {case.value_of("right") for case in report.cases} == {True}


async def test_gateway_that_chooses_the_model_by_a_header(
    call: Caller, server: LoopbackServer
) -> None:
    header, cache = "x-gateway-config", InMemoryStore()
    server.responder = Model(judge=lambda chat: chat.headers[header] == "new-config")
    models, options = {}, dict[str, Any](criterion=CRITERION, embeddings=server.embedder())
    for name in ("old", "new"):
        models[name] = server.chat_model(default_headers={header: f"{name}-config"})
    judges = {name: Judge(model=models[name], decide="verdict", **options) for name in models}
    report = await call.evaluate(CRITERION, records(6), judges=judges, cache=cache)
    assert {(case.value_of("old"), case.value_of("new")) for case in report.cases} == {
        (False, True)
    }
    memory = memory_of(server, records(6))
    migration = await call("migrate", memory, models["new"], model=models["old"])
    assert {(case.before, case.after) for case in migration.changed} == {(False, True)}
    assert "-config" not in str([(item.key, item.value) for item in cache.search((), limit=1_000)])


async def test_only_changed_prompts_are_sent_again(call: Caller, server: LoopbackServer) -> None:
    store = InMemoryStore()
    first = await call.evaluate(CRITERION, RECORDS, cache=store, decide="verdict", k=2)
    asked(server)
    wider = await call.evaluate(CRITERION, RECORDS, cache=store, decide="verdict", k=3)
    assert (calls(wider, judge="base"), calls(wider), len(server.chats)) == (0, 9, 9)
    revised = {**RECORDS[4], "rationale": "On #t4 because4so, newly said."}
    edited = [*RECORDS[:4], revised, *RECORDS[5:]]
    asked(server)
    await call.evaluate(CRITERION, edited, cache=store, decide="verdict", k=2)
    folds = {int(str(case.example.inputs)[5]): case.fold for case in first.cases}
    others = [number for number in range(9) if folds[number] != folds[4]]
    assert sorted(judged_case(chat) for chat in judgings(server)) == others
    other = CRITERION.model_copy(update={"instructions": "Is it polite?"})
    asked(server)
    repeated = await call.evaluate(other, RECORDS, cache=store, decide="verdict", k=2)
    assert calls(repeated) == calls(first)
    referenced = [record(n, reference_outputs="Late.") for n in range(9)]
    assert calls(await call.evaluate(CRITERION, referenced, cache=store), judge="base") == 9
    reseeded = await call.evaluate(CRITERION, RECORDS, cache=store, decide="verdict", k=2, seed=1)
    assert calls(reseeded, judge="base") == 0


async def test_unusable_answers_are_not_cached(call: Caller, server: LoopbackServer) -> None:
    """The next run requests them again."""
    cut = truncated('{"rationale": "Se')
    broken: list[Any] = ["I would say yes.", refusal(), cut, '{"rationale": "Seen."}']
    for reply in [*broken, '{"rationale": "x", "value": "perhaps"}', "[" * 9_999]:
        store = InMemoryStore()
        failing = partial(
            lambda reply, chat: reply if judged_case(chat) == 4 else True, as_reply(reply)
        )
        server.responder = Model(judge=failing, distil=nothing_to_learn)
        report = await call.evaluate(CRITERION, RECORDS, cache=store)
        assert report.of("base").failed == 1, reply
        asked(server)
        server.responder = Model(distil=nothing_to_learn)
        mended = await call.evaluate(CRITERION, RECORDS, cache=store)
        assert mended.of("base").failed == mended.of("aligned").failed == 0, reply
        assert {judged_case(chat) for chat in judgings(server)} <= {4}


async def test_models_caches_and_store_are_unchanged(call: Caller, server: LoopbackServer) -> None:
    mine, everyones, was = InMemoryCache(), InMemoryCache(), get_llm_cache()
    model = server.chat_model(cache=mine)
    before = model.model_dump()
    store = InMemoryStore(index={"embed": refuse, "dims": 2})
    store.put(("memalign", "support_tone", "episodes"), "mine", {"id": "mine"}, index=False)
    set_llm_cache(everyones)
    try:
        await call.evaluate(CRITERION, RECORDS, model=model, cache=store)
    finally:
        set_llm_cache(was)
    assert mine._cache == everyones._cache == {}
    assert model.model_dump() == before
    assert {space[0] for space in store.list_namespaces()} == {"memalign", "memalign_evaluation"}
    assert [item.key for item in store.search(("memalign",), limit=9)] == ["mine"]


def refuse(_: Any) -> list[list[float]]:
    raise AssertionError("what is cached is not embedded")


async def test_stopped_run_is_continued(
    call: Caller, server: LoopbackServer, tmp_path: Path
) -> None:
    """Only unanswered requests are sent, and the report is the same."""
    server.responder = Model(judge=lambda chat: judged_case(chat) % 2 > 0)
    options: dict[str, Any] = {"cache": tmp_path / "kept.db", "max_concurrency": 2}

    def stop(done: int, _: int) -> None:
        if done == 8:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        await call.evaluate(CRITERION, RECORDS, progress=stop, **options)
    answered = {chat.text for chat in server.chats}
    asked(server)
    report = await call.evaluate(CRITERION, RECORDS, **options)
    assert len(answered) > 6
    assert not answered & {chat.text for chat in server.chats}
    whole = await call.evaluate(CRITERION, RECORDS)
    assert plain(report) == plain(whole)
