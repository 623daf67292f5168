"""Models from strings and instances, their errors, and requests that concurrent calls share."""

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import set_config_context
from langchain_openai import AzureChatOpenAI, ChatOpenAI, OpenAIEmbeddings
from openai.resources.chat.completions import AsyncCompletions, Completions
from pydantic import Field

from memalign_graph import Criterion, EmbeddingError, InvalidInputError, Judge, local
from memalign_graph.asking import with_schema
from memalign_graph.io import ASYNC, SYNC, run_sync
from memalign_graph.local.chat import Endpoint
from memalign_graph.models import (
    Embedder,
    declare_small,
    embed_texts,
    embedder_id,
    is_small_model,
    max_input_tokens,
    model_key,
    model_name_of,
    resolve_chat_model,
    resolve_embeddings,
)
from tests.loopback import LoopbackServer, context_length_exceeded, error, refusal


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")


def numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


def test_models_from_strings_instances_and_functions(
    key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = resolve_chat_model("openai:gpt-4.1-mini:variant")
    assert isinstance(named, ChatOpenAI)
    assert (named.model_name, named.temperature) == ("gpt-4.1-mini:variant", 0)
    assert named.request_timeout == 120
    openai_embeddings = resolve_embeddings("openai:text-embedding-3-small")
    assert isinstance(openai_embeddings, OpenAIEmbeddings)
    assert openai_embeddings.check_embedding_ctx_length is False
    model, embeddings = FakeListChatModel(responses=["x"]), DeterministicFakeEmbedding(size=4)
    assert resolve_chat_model(model) is model
    assert resolve_embeddings(embeddings) is embeddings
    assert resolve_embeddings(numbers).embed_documents(["abc"]) == [[3.0, 1.0]]
    monkeypatch.setattr(local, "local_chat_model", lambda: model)
    assert resolve_chat_model("local") is resolve_chat_model("local:qwen") is model


@pytest.mark.parametrize("resolve", [resolve_chat_model, resolve_embeddings])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpt-4.1-mini", "'provider:name', such as 'openai:"),
        ("openai:", "'provider:name', such as 'openai:"),
        ("openai:gpt-4.1", "set OPENAI_API_KEY"),
        ("nobody:model-1", "can't be used"),
        ("anthropic:claude", "needs the package langchain: pip install 'memalign-graph[agents]'"),
    ],
)
def test_unknown_model_string_raises_one_sentence(
    resolve: Any, text: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if text.startswith("anthropic"):
        for module in ("langchain", "langchain.chat_models", "langchain.embeddings"):
            monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInputError, match=r"^(model|embeddings): ") as caught:
        resolve(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_embedder_is_named_and_built_on_first_use(
    key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "openai:text-embedding-3-small"
    assert embedder_id(OpenAIEmbeddings(model="text-embedding-3-small")) == text
    assert embedder_id(OpenAIEmbeddings(model="text-embedding-3-large")) != text
    short = embedder_id(OpenAIEmbeddings(model="text-embedding-3-small", dimensions=256))
    assert short == f"{text}:256"
    assert embedder_id("local") == embedder_id("local:any") != embedder_id(text)
    assert embedder_id(numbers).endswith("test_models.numbers")
    four, five = DeterministicFakeEmbedding(size=4), DeterministicFakeEmbedding(size=5)
    assert embedder_id(four) != embedder_id(five)
    assert embedder_id(Embedder(four).embeddings) == embedder_id(four)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert Embedder(text).id == text
    with pytest.raises(InvalidInputError):
        _ = Embedder(text).embeddings


VERDICT = {
    "title": "verdict",
    "type": "object",
    "properties": {"b": {"type": "string"}, "a": {"type": "boolean"}},
    "required": ["b", "a"],
    "additionalProperties": False,
}
TURNS = [SystemMessage("Judge."), HumanMessage("A"), AIMessage("{}"), HumanMessage("B")]


class Seen(BaseCallbackHandler):
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.chains = 0

    def on_chat_model_start(self, serialized: Any, messages: Any, **event: Any) -> None:
        self.calls.append((serialized, messages, event["invocation_params"], event["options"]))

    def on_chain_start(self, *_: Any, **__: Any) -> None:
        self.chains += 1


@pytest.fixture(params=["sync", "async"])
def ask_turns(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    if request.param == "sync":
        return lambda bound: bound.invoke(TURNS)
    return lambda bound: asyncio.run(bound.ainvoke(TURNS))


def test_callbacks_cache_and_request_of_the_model_are_used(
    server: LoopbackServer, ask_turns: Callable[[Any], Any]
) -> None:
    seen, cache = Seen(), InMemoryCache()
    model = server.chat_model(
        callbacks=[seen], cache=cache, extra_body={"top_k": 3}, default_headers={"x-own": "1"}
    )
    ask_turns(model.with_structured_output(VERDICT, method="json_schema"))
    bound = with_schema(model, VERDICT)
    assert ask_turns(bound).answer is not None
    assert len(server.chats) == 1, "it is found in the cache under another key"
    cache.clear()
    ask_turns(bound)
    theirs, ours = server.chats
    theirs.body.pop("stream")
    assert ours.body == theirs.body
    assert ours.headers["x-own"] == "1"
    assert seen.calls == [seen.calls[0]] * 3


@pytest.mark.parametrize("is_refused", [False, True])
def test_call_of_an_openai_model_is_one_run(
    server: LoopbackServer, ask_turns: Callable[[Any], Any], *, is_refused: bool
) -> None:
    seen = Seen()
    server.script(refusal("No.") if is_refused else {"rationale": "", "value": True})
    bound = with_schema(server.chat_model(), VERDICT)
    with set_config_context({"callbacks": [seen]}) as context:
        reply = context.run(ask_turns, bound)
    problem = "the model refused: No." if is_refused else None
    assert (reply.problem, reply.is_refusal) == (problem, is_refused)
    assert (len(seen.calls), seen.chains) == (1, 0)


def test_model_is_serialized_before_threads_call_it(
    server: LoopbackServer, ask_turns: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    serialized: list[Any] = []
    to_json = ChatOpenAI.to_json

    def counted(model: ChatOpenAI) -> Any:
        serialized.append(model)
        return to_json(model)

    monkeypatch.setattr(ChatOpenAI, "to_json", counted)
    bound = with_schema(server.chat_model(), VERDICT)
    serialized.clear()
    assert ask_turns(bound).answer is not None
    assert not serialized, "two threads that serialize it at the same time fail on Python 3.12"


def test_client_may_learn_its_base_url_at_call_time(
    server: LoopbackServer, ask_turns: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(server.base_url, "key")
    monkeypatch.setattr("memalign_graph.local.chat.start_server", lambda: endpoint)
    assert ask_turns(with_schema(local.local_chat_model(), VERDICT)).answer is not None


class OtherMethods(FakeListChatModel):
    """A model that takes no `method="json_schema"`, as those of some partner packages."""

    def with_structured_output(
        self, schema: Any, *, method: str = "json_mode", include_raw: bool = False, **options: Any
    ) -> Any:
        if method != "json_mode" or schema["title"] == "unusable":
            raise ValueError("Unrecognized method.")
        return super().with_structured_output(schema, include_raw=include_raw, **options)

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        call = {"name": "verdict", "args": {"b": "", "a": True}, "id": "1"}
        return RunnableLambda(lambda _: AIMessage("", tool_calls=[call]))


def test_model_without_json_schema_answers_by_its_own_method(
    ask_turns: Callable[[Any], Any],
) -> None:
    model: Any = OtherMethods(responses=[])
    assert ask_turns(with_schema(model, VERDICT)).answer == {"b": "", "a": True}
    with pytest.raises(InvalidInputError, match="model: OtherMethods can't answer in the shape"):
        with_schema(model, {**VERDICT, "title": "unusable"})


@pytest.mark.parametrize(
    ("wrap", "asked"),
    [
        ("fallbacks", ["first", "second"]),
        ("retry", ["first", "first"]),
        ("both", ["first", "first", "second"]),
    ],
)
def test_models_with_fallbacks_and_retries_judge(
    server: LoopbackServer, wrap: str, asked: list[str], ask_turns: Callable[[Any], Any]
) -> None:
    first: Any = server.chat_model(model="first", max_retries=0)
    model: Any = first.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    if wrap != "retry":
        model = (model if wrap == "both" else first).with_fallbacks(
            [server.chat_model(model="second", profile={"max_input_tokens": 9_000})]
        )
    server.script(*[error(500, retry_after=0)] * (len(asked) - 1))
    judge = Judge(criterion=Criterion(name="tone", instructions="Is it polite?"), model=model)
    bound = with_schema(resolve_chat_model(judge.model), VERDICT)
    assert ask_turns(bound).answer is not None
    assert [chat.body["model"] for chat in server.chats] == asked
    assert model_name_of(model) == "first"
    assert max_input_tokens(model) == (128_000 if wrap == "retry" else 9_000)
    assert model_key(model) not in {model_key(first), model_key(first.with_fallbacks([first]))}
    assert [is_small_model(model), is_small_model(declare_small(model))] == [False, True]


class Ollama(FakeListChatModel):
    """Some settings of ChatOllama."""

    responses: list[str] = Field(default_factory=list)
    num_ctx: int | None = 4_096


def test_models_from_strings_use_a_proxy(key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_PROXY", "http://proxy:1")
    made: list[Any] = [resolve_chat_model("openai:m"), resolve_embeddings("openai:e")]
    assert [model.openai_proxy for model in made] == ["http://proxy:1"] * 2


def test_window_of_ollamas_server_counts_where_the_profile_has_none_or_a_larger_one() -> None:
    assert max_input_tokens(Ollama()) == 4_096
    assert max_input_tokens(Ollama(profile={"max_input_tokens": 128_000})) == 4_096
    assert max_input_tokens(Ollama(num_ctx=None)) == 128_000
    assert max_input_tokens(Ollama(profile={"max_input_tokens": 3_000})) == 3_000


def test_model_of_azure_has_the_name_of_its_deployment() -> None:
    options: dict[str, Any] = {
        "api_key": "key",
        "azure_endpoint": "http://azure",
        "api_version": "1",
    }
    assert model_name_of(AzureChatOpenAI(azure_deployment="old", **options)) == "old"
    assert model_name_of(AzureChatOpenAI(azure_deployment="old", model="gpt", **options)) == "gpt"


def test_error_of_a_providers_client_without_a_key_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ProviderError(Exception):
        pass

    def fail(_: str) -> Any:
        raise ProviderError("The api_key must be set\nby setting the variable")

    package = SimpleNamespace(init_chat_model=fail, init_embeddings=fail)
    for kind in ("chat_models", "embeddings"):
        monkeypatch.setitem(sys.modules, f"langchain.{kind}", package)
    for resolve in (resolve_chat_model, resolve_embeddings):
        with pytest.raises(InvalidInputError, match="'groq:a' can't be used: The api_key must be"):
            resolve("groq:a")


def test_tools_that_instrument_the_client_see_the_messages(
    server: LoopbackServer, ask_turns: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Any]] = []
    for kind in (Completions, AsyncCompletions):

        def instrumented(
            self: Any, *, messages: Any, original: Any = kind.create, **body: Any
        ) -> Any:
            seen.append([message["role"] for message in messages] + [len(messages), messages[-1]])
            return original(self, messages=messages, **body)

        monkeypatch.setattr(kind, "create", instrumented)
    assert ask_turns(with_schema(server.chat_model(), VERDICT)).answer is not None
    [sent] = server.chats
    assert seen == [["system", "user", "assistant", "user", 4, sent.body["messages"][-1]]]


def test_failed_embedding_is_one_sentence_and_a_text_that_is_too_long_a_refusal(
    server: LoopbackServer,
) -> None:
    def failing(texts: Sequence[str]) -> list[list[float]]:
        raise OSError(f"{'long ' * 100}\nmore than {len(texts)}")

    with pytest.raises(EmbeddingError, match=r"failed: OSError: long") as caught:
        run_sync(embed_texts(SYNC, resolve_embeddings(failing), ["text"]))
    assert "more" not in str(caught.value)
    assert len(str(caught.value)) < 450
    assert not caught.value.is_refusal
    server.script_embeddings(context_length_exceeded())
    with pytest.raises(EmbeddingError, match="maximum context length") as caught:
        run_sync(embed_texts(SYNC, server.embedder(max_retries=0), ["text"]))
    assert caught.value.is_refusal
    assert "profile" not in str(caught.value)


async def test_concurrent_texts_share_requests(server: LoopbackServer) -> None:
    embeddings = Embedder(server.embedder(max_retries=0)).embeddings

    async def ask(texts: Sequence[str]) -> list[Any]:
        futures = [embed_texts(ASYNC, embeddings, [text]) for text in texts]
        return await asyncio.gather(*futures, return_exceptions=True)

    texts = [f"Case {number}." for number in range(40)]
    first = asyncio.ensure_future(embed_texts(ASYNC, embeddings, ["First."]))
    # Cancelling the first caller does not cancel the others.
    asyncio.get_running_loop().call_soon(first.cancel)
    answers = await ask(texts)
    assert first.cancelled()
    assert sorted(len(request.texts) for request in server.embeddings) == [9, 32]
    assert [vector for [vector] in answers] == embeddings.embed_documents(texts)
    # A refused batch is repeated text by text.
    server.script_embeddings(error(400), error(400))
    refused = await ask(texts[:9])
    [index] = [index for index, item in enumerate(refused) if isinstance(item, EmbeddingError)]
    assert refused[:index] + refused[index + 1 :] == answers[:index] + answers[index + 1 : 9]


@pytest.mark.parametrize("fails", [False, True])
def test_concurrent_texts_of_threads_share_requests(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    embedder = server.embedder(max_retries=0)
    texts = [f"Case {number}." for number in range(9)]
    expected = embedder.embed_documents(texts)
    is_full, is_over = threading.Event(), threading.Event()

    class Waiting(DeterministicFakeEmbedding):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            is_over.wait(10 if texts == ["First."] else 0)
            return embedder.embed_documents(texts)

    embeddings: Any = Embedder(Waiting(size=4)).embeddings
    clock = SimpleNamespace(sleep=lambda _: is_full.wait(10))
    monkeypatch.setattr("memalign_graph.models.time", clock)

    def ask(text: str) -> Any:
        return run_sync(embed_texts(SYNC, embeddings, [text]))

    with ThreadPoolExecutor(max_workers=10) as threads:
        first = threads.submit(ask, "First.")
        while not embeddings._unanswered or embeddings._open:
            is_full.wait(0.001)
        futures = [threads.submit(ask, text) for text in texts]
        while not embeddings._open or len(embeddings._open[SYNC].texts) < len(texts):
            is_full.wait(0.001)
        server.script_embeddings(*[error(400), error(400)] * fails)
        is_full.set()
        failed = [future for future in futures if isinstance(future.exception(), EmbeddingError)]
        assert len(failed) == fails
        is_over.set()
        assert len(first.result()) == 1
    for vector, future in zip(expected, futures, strict=True):
        assert future in failed or future.result() == [vector]
    sizes = [len(request.texts) for request in server.embeddings]
    assert sizes == [9, 9, *[1] * 9 * fails, 1]


async def test_texts_wait_for_a_request_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memalign_graph.models._BATCH_WAIT_S", 0.2)
    release, requests = asyncio.Event(), list[list[str]]()

    async def waiting(texts: Sequence[str]) -> list[list[float]]:
        requests.append(list(texts))
        if texts == ["First."]:
            await release.wait()
        return [[1.0]] * len(texts)

    waiting.name = "waiting"  # type: ignore[attr-defined] # it encloses values
    embeddings, asked = Embedder(waiting).embeddings, []
    for text in ("First.", "Second.", "Third."):
        asked.append(asyncio.ensure_future(embeddings.aembed_documents([text])))
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.gather(*asked[1:])
    release.set()
    await asked[0]
    assert requests == [["First."], ["Second.", "Third."]]


async def test_cancelled_shared_request_releases_all_waiters() -> None:
    async def cancelled(_: Any) -> list[list[float]]:
        raise asyncio.CancelledError

    embeddings = Embedder(cancelled).embeddings
    futures = [asyncio.ensure_future(embeddings.aembed_documents([text])) for text in "ab"]
    done, _ = await asyncio.wait(futures, timeout=10)
    assert [future.cancelled() for future in done] == [True, True]
    unbegun: Any = Embedder(numbers).embeddings
    caller = asyncio.ensure_future(unbegun.aembed_documents(["a"]))
    await asyncio.sleep(0)
    unbegun._open[ASYNC].task.cancel()
    await asyncio.wait([caller], timeout=10)
    assert isinstance(caller.exception(), CancelledError)
    assert await unbegun.aembed_documents(["a"]) == numbers(["a"])


async def test_one_caller_goes_on_before_the_next_has_its_answer() -> None:
    embeddings, steps = Embedder(DeterministicFakeEmbedding(size=2)).embeddings, list[str]()

    async def judge(text: str) -> None:
        await embeddings.aembed_documents([text])
        for _ in range(2):
            steps.append(text)
            await asyncio.sleep(0)

    await asyncio.gather(*map(judge, "abc"))
    assert steps == [*"aabbcc"]
