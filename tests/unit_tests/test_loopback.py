"""The loopback server, as the real OpenAI clients of LangChain meet it."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict, cast

import openai
import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph

from tests.loopback import (
    LoopbackServer,
    Reply,
    ReplyLike,
    Rule,
    answer,
    content_filter,
    context_length_exceeded,
    disconnect,
    error,
    hang,
    raw,
    refusal,
    truncated,
    with_logprobs,
)

VERDICT = {"rationale": "Cold in tone.", "value": False}


def judgment_schema(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": "judgment",
        "type": "object",
        "properties": {"rationale": {"type": "string"}, "value": value},
        "required": ["rationale", "value"],
        "additionalProperties": False,
    }


YES_OR_NO = judgment_schema({"type": "boolean"})

DISTILLED = {
    "title": "distilled",
    "type": "object",
    "properties": {
        "operations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": ["add", "revise", "retire"]},
                    "guideline": {"type": "string"},
                    "text": {"type": "string"},
                    "feedback": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["action", "guideline", "text", "feedback"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["operations"],
    "additionalProperties": False,
}

Ask = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as running:
        yield running
    assert running.errors == []


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Ask for structured output in the project's way, synchronously or not."""

    async def ask_model(
        model: BaseChatModel, prompt: str = "Judge.", schema: dict[str, Any] = YES_OR_NO
    ) -> dict[str, Any]:
        judge = model.with_structured_output(schema, method="json_schema", include_raw=True)
        given = judge.invoke(prompt) if request.param == "sync" else await judge.ainvoke(prompt)
        return cast("dict[str, Any]", given)

    return ask_model


# Answers


async def test_structured_answer(server: LoopbackServer, ask: Ask) -> None:
    server.script(VERDICT)
    given = await ask(server.chat_model(), "Judge the reply, please.")
    assert given["parsed"] == VERDICT
    assert given["parsing_error"] is None
    usage = given["raw"].usage_metadata
    assert (usage["input_tokens"], usage["output_tokens"]) == (6, 12)
    (request,) = server.chats
    assert request.model == "gpt-4.1-mini"
    assert request.messages == [{"role": "user", "content": "Judge the reply, please."}]
    assert request.text == "Judge the reply, please."
    assert request.schema_name == "judgment"
    assert request.schema == {key: YES_OR_NO[key] for key in YES_OR_NO if key != "title"}
    assert request.headers["authorization"] == "Bearer test"
    assert request.arrived_at <= time.monotonic()


async def test_prose_is_a_parsing_error(server: LoopbackServer, ask: Ask) -> None:
    server.script("I think so.")
    given = await ask(server.chat_model())
    assert given["parsed"] is None
    assert isinstance(given["parsing_error"], OutputParserException)
    assert given["raw"].content == "I think so."


async def test_langchain_mends_half_an_object_silently(server: LoopbackServer, ask: Ask) -> None:
    server.script('{"rationale": "Cold", "val')
    given = await ask(server.chat_model())
    assert given["parsed"] == {"rationale": "Cold"}
    assert given["parsing_error"] is None


async def test_truncation_raises(server: LoopbackServer, ask: Ask) -> None:
    server.script(truncated('{"rationale": "Co'))
    with pytest.raises(openai.LengthFinishReasonError, match="length limit was reached"):
        await ask(server.chat_model())


async def test_content_filter_raises(server: LoopbackServer, ask: Ask) -> None:
    server.script(content_filter())
    with pytest.raises(openai.ContentFilterFinishReasonError, match="content filter"):
        await ask(server.chat_model())


async def test_refusal_is_a_parsing_error_with_the_words_beside(
    server: LoopbackServer, ask: Ask
) -> None:
    server.script(refusal("I'd rather not."))
    given = await ask(server.chat_model())
    assert given["parsed"] is None
    assert isinstance(given["parsing_error"], OutputParserException)
    assert given["raw"].content == ""
    assert given["raw"].additional_kwargs["refusal"] == "I'd rather not."


async def test_usage_and_latency_as_told(server: LoopbackServer, ask: Ask) -> None:
    server.token_latency_s = 0.001
    server.script(answer(VERDICT, prompt_tokens=900, completion_tokens=50, latency_s=0.05))
    began = time.monotonic()
    given = await ask(server.chat_model())
    assert time.monotonic() - began >= 0.1
    assert given["raw"].usage_metadata["total_tokens"] == 950


async def test_logprobs(server: LoopbackServer, ask: Ask) -> None:
    reply = with_logprobs(
        {"value": True}, ['{"value": ', ("true", {"true": 0.75, "false": 0.2, "no": 0.05}), "}"]
    )
    server.script(reply, reply)
    given = await ask(server.chat_model(logprobs=True, top_logprobs=2))
    tokens = given["raw"].response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == '{"value": true}'
    assert tokens[1]["logprob"] == pytest.approx(-0.2877, abs=1e-4)
    assert [other["token"] for other in tokens[1]["top_logprobs"]] == ["true", "false"]
    plain = await ask(server.chat_model())
    assert plain["raw"].response_metadata["logprobs"] is None


# Faults


async def test_two_rate_limits_then_an_answer(server: LoopbackServer, ask: Ask) -> None:
    limited = error(429, "Slow down.", retry_after=0)
    server.script(limited, limited, VERDICT)
    began = time.monotonic()
    given = await ask(server.chat_model())
    assert given["parsed"] == VERDICT
    assert len(server.chats) == 3
    assert time.monotonic() - began < 0.9, "the client waited, though told to try again at once"


@pytest.mark.parametrize(
    ("fault", "expected", "attempts"),
    [
        (error(401, "Bad key."), openai.AuthenticationError, 1),
        (error(400, "Bad request."), openai.BadRequestError, 1),
        (error(429, "Slow down.", retry_after=0), openai.RateLimitError, 3),
        (error(500, "Broken.", retry_after=0), openai.InternalServerError, 3),
    ],
)
async def test_http_errors(
    server: LoopbackServer, ask: Ask, fault: Reply, expected: type[Exception], attempts: int
) -> None:
    server.script(*[fault] * attempts)
    with pytest.raises(expected):
        await ask(server.chat_model())
    assert len(server.chats) == attempts


async def test_too_long_a_prompt_is_told_by_its_code(server: LoopbackServer, ask: Ask) -> None:
    server.script(context_length_exceeded(4096))
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096") as caught:
        await ask(server.chat_model())
    assert caught.value.code == "context_length_exceeded"


async def test_silence_times_out_and_does_not_hold_up_the_server(ask: Ask) -> None:
    with LoopbackServer() as server:
        server.script(hang(60))
        with pytest.raises(openai.APITimeoutError):
            await ask(server.chat_model(timeout=0.1, max_retries=0))
        began = time.monotonic()
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("midway", [False, True])
async def test_disconnect(server: LoopbackServer, ask: Ask, *, midway: bool) -> None:
    server.script(disconnect(midway=midway), VERDICT)
    with pytest.raises(openai.APIConnectionError):
        await ask(server.chat_model(max_retries=0))
    assert (await ask(server.chat_model(max_retries=0)))["parsed"] == VERDICT


def test_a_page_in_place_of_json(server: LoopbackServer) -> None:
    server.script(raw("<html>Gateway</html>", content_type="text/html"))
    with pytest.raises(ValueError, match="Unexpected response type"):
        server.chat_model().invoke("Judge.")


def test_a_failing_responder_is_told_and_kept() -> None:
    def fail(_: object) -> ReplyLike:
        raise LookupError("no such case")

    with LoopbackServer() as server:
        server.responder = fail
        with pytest.raises(openai.InternalServerError, match="no such case"):
            server.chat_model().invoke("Judge.")
        assert len(server.chats) == 1
        assert isinstance(server.errors[0], LookupError)


def test_what_openai_would_refuse_is_refused(server: LoopbackServer) -> None:
    # LangChain itself closes the schemas it converts, but not those in OpenAI's own form.
    opened = {"name": "open", "strict": True, "schema": {**YES_OR_NO, "additionalProperties": True}}
    with (
        pytest.warns(UserWarning, match="Invalid schema"),
        pytest.raises(openai.BadRequestError, match="additionalProperties"),
    ):
        server.chat_model().with_structured_output(opened, method="json_schema").invoke("Judge.")
    misnamed = {**YES_OR_NO, "title": "is it good?"}
    with pytest.raises(openai.BadRequestError, match="does not match the pattern"):
        server.chat_model().with_structured_output(misnamed, method="json_schema").invoke("Judge.")


# Streaming


@pytest.mark.parametrize("always", [False, True])
async def test_streamed_prose(server: LoopbackServer, *, always: bool) -> None:
    server.script("One, two, three.", "One, two, three.")
    # `streaming=False` said aloud would turn streaming off even for `stream`.
    asked = {"streaming": True} if always else {}
    model = server.chat_model(stream_usage=True, **asked)
    pieces = list(model.stream("Count."))
    assert "".join(str(piece.content) for piece in pieces) == "One, two, three."
    assert len([piece for piece in pieces if piece.content]) > 1
    message = await model.ainvoke("Count.")
    assert message.content == "One, two, three."
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] == 4
    assert [request.streaming for request in server.chats] == [True, always]


async def test_streamed_structure(server: LoopbackServer, ask: Ask) -> None:
    server.script(VERDICT, refusal("No."), truncated('{"ra'), with_logprobs("{}", ["{}"]))
    model = server.chat_model(streaming=True, logprobs=True)
    assert (await ask(model))["parsed"] == VERDICT
    assert (await ask(model))["raw"].additional_kwargs["refusal"] == "No."
    with pytest.raises(openai.LengthFinishReasonError):
        await ask(model)
    logprobs = (await ask(model))["raw"].response_metadata["logprobs"]
    assert [token["token"] for token in logprobs["content"]] == ["{}"]


class Asked(TypedDict):
    text: str


async def test_langgraph_streams_messages(server: LoopbackServer) -> None:
    def judge(state: Asked) -> Asked:
        model = server.chat_model()
        structured = model.with_structured_output(YES_OR_NO, method="json_schema")
        structured.invoke([HumanMessage(state["text"])])
        return state

    builder = StateGraph(Asked)
    builder.add_node("judge", judge)
    builder.add_edge(START, "judge")
    builder.add_edge("judge", END)
    graph = builder.compile()
    chunks: list[Any] = list(graph.stream({"text": "Judge."}, stream_mode="messages"))
    assert server.chats[0].streaming
    assert '"value": true' in "".join(str(chunk[0].content) for chunk in chunks)


# Embeddings


@pytest.mark.parametrize("encoding", ["base64", "float"])
async def test_embeddings(server: LoopbackServer, encoding: str) -> None:
    # The openai client asks for base64 by itself, and decodes it only then.
    asked = {} if encoding == "base64" else {"encoding_format": encoding}
    embedder = server.embedder(model_kwargs=asked)
    texts = [
        "The refund was late, and the reply is cold.",
        "The reply is cold, and the refund came late.",
        "Penguins breed on Antarctic sea ice.",
        "?!",
    ]
    first, second, third, fourth = vectors = embedder.embed_documents(texts)
    assert {len(vector) for vector in vectors} == {64}
    assert [dot(vector, vector) for vector in vectors] == pytest.approx([1, 1, 1, 1], abs=1e-6)
    assert dot(first, second) > 0.8
    assert abs(dot(first, third)) < 0.5
    assert await embedder.aembed_query(texts[0]) == first
    assert fourth != third
    assert server.embeddings[0].texts == texts
    assert server.embeddings[1].texts == [texts[0]]
    assert server.embeddings[0].body["encoding_format"] == encoding


def test_embeddings_are_the_same_in_both_encodings_and_in_size_as_asked(
    server: LoopbackServer,
) -> None:
    numbers = server.embedder(dimensions=16, model_kwargs={"encoding_format": "float"})
    packed = server.embedder(dimensions=16)
    assert numbers.embed_query("A cold reply.") == packed.embed_query("A cold reply.")
    assert len(packed.embed_query("A cold reply.")) == 16


def test_embedding_faults(server: LoopbackServer) -> None:
    server.script_embeddings(error(503, "Busy.", retry_after=0), None, error(401, "Bad key."))
    embedder = server.embedder()
    assert embedder.embed_query("A cold reply.")
    with pytest.raises(openai.BadRequestError, match="may not be an empty string"):
        embedder.embed_query("")
    with pytest.raises(openai.BadRequestError, match="token ids"):
        embedder.client.create(input=[[1, 2, 3]], model="m")
    assert len(server.embeddings) == 4
    assert server.embeddings[3].texts == []


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


# The default responder


@pytest.mark.parametrize(
    ("scale", "value"),
    [
        ({"type": "boolean"}, True),
        ({"type": "string", "enum": ["poor", "fair"]}, "poor"),
        ({"enum": [3, 2]}, 3),
        ({"type": "integer", "minimum": 1, "maximum": 5}, 5),
        ({"type": "number", "minimum": 0}, 0),
        ({"anyOf": [{"type": "null"}, {"type": "integer", "maximum": 7}]}, 7),
        ({"$ref": "#/$defs/Scale"}, "tie"),
    ],
)
def test_default_judgments(server: LoopbackServer, scale: dict[str, Any], value: object) -> None:
    schema = judgment_schema(scale) | {"$defs": {"Scale": {"const": "tie"}}}
    schema["properties"]["doubts"] = {"type": "array", "items": {"type": "string"}}
    model = server.chat_model().with_structured_output(schema, method="json_schema")
    given = cast("dict[str, Any]", model.invoke("Judge."))
    assert given["value"] == value
    assert given["rationale"]
    assert given["doubts"] == []


async def test_the_first_rule_that_fits_decides(server: LoopbackServer, ask: Ask) -> None:
    server.rules += [
        Rule(lambda request: "silent" in request.text, reply=refusal("No.")),
        Rule(lambda request: "cold" in request.text, value=False, rationale="Cold."),
        Rule(lambda request: "cold" in request.text, value=True),
    ]
    model = server.chat_model()
    given = await ask(model, "A cold reply.")
    assert given["parsed"] == {"rationale": "Cold.", "value": False}
    assert (await ask(model, "A warm reply."))["parsed"]["value"] is True
    assert (await ask(model, "silent"))["raw"].additional_kwargs["refusal"] == "No."
    distilled = await ask(model, "A cold reply.", DISTILLED)
    assert distilled["parsed"]["operations"][0]["action"] == "add"


async def test_default_distilling(server: LoopbackServer, ask: Ask) -> None:
    prompt = "<rationale>Too long.</rationale> <rationale> Name the\nnext step. </rationale>"
    model = server.chat_model()
    expected = {
        "action": "add",
        "guideline": "",
        "text": "When judging, heed the expert: Name the\nnext step.",
        "feedback": ["F1"],
    }
    assert (await ask(model, prompt, DISTILLED))["parsed"] == {"operations": [expected]}
    unsaid = await ask(model, "F1: false", DISTILLED)
    assert unsaid["parsed"]["operations"][0]["text"].endswith("the expert: the label given")


def test_prose_without_a_schema_and_a_responder_of_ones_own(server: LoopbackServer) -> None:
    assert "nothing to add" in str(server.chat_model().invoke("Hello.").content)
    server.responder = lambda request: f"You said: {request.messages[-1]['content']}"
    assert server.chat_model().invoke("Hello.").content == "You said: Hello."


# The server itself


def test_models_are_listed(server: LoopbackServer) -> None:
    model = server.chat_model()
    assert [one.id for one in model.root_client.models.list()] == ["loopback"]


def test_reset(server: LoopbackServer) -> None:
    server.script("Left over.")
    server.latency_s = 5
    server.rules.append(Rule(lambda _: True, reply="By rule."))
    server.responder = lambda _: "By responder."
    server.embedder().embed_query("text")
    server.reset()
    assert "nothing to add" in str(server.chat_model().invoke("Hello.").content)
    assert (len(server.chats), len(server.embeddings)) == (1, 0)


def test_many_threads_at_once(server: LoopbackServer) -> None:
    server.latency_s = 0.3
    server.responder = lambda request: request.text
    model = server.chat_model()
    prompts = [f"prompt {number}" for number in range(64)]
    with ThreadPoolExecutor(64) as pool:
        answers = [message.content for message in pool.map(model.invoke, prompts)]
    assert answers == prompts
    assert sorted(request.text for request in server.chats) == sorted(prompts)
    assert server.peak_chats > 8


async def test_many_tasks_at_once(server: LoopbackServer) -> None:
    server.responder = lambda request: request.text
    model = server.chat_model()
    prompts = [f"prompt {number}" for number in range(64)]
    answers = await asyncio.gather(*map(model.ainvoke, prompts))
    assert [message.content for message in answers] == prompts


def test_connections_are_kept_alive(server: LoopbackServer) -> None:
    model = server.chat_model()
    threads: set[str | int | None] = set()

    def who(_: object) -> ReplyLike:
        threads.add(threading.get_ident())
        return "Here."

    server.responder = who
    for _ in range(5):
        model.invoke("Hello.")
    assert len(threads) == 1


async def test_a_server_that_went_away_and_came_back(ask: Ask) -> None:
    with LoopbackServer() as first:
        model = first.chat_model(max_retries=0)
        await ask(model)
    with pytest.raises(openai.APIConnectionError):
        await ask(model)
    with LoopbackServer(port=first.port) as second:
        await ask(model)
        assert len(second.chats) == 1
        first.stop()


def test_nothing_is_left_behind() -> None:
    before = threading.active_count()
    with LoopbackServer() as server:
        model, embedder = server.chat_model(), server.embedder()
        for _ in range(2):  # two event loops, each closed after its call
            asyncio.run(model.ainvoke("Hello."))
            asyncio.run(embedder.aembed_query("Hello."))
        model.invoke("Hello.")
        port = server.port
    server.stop()
    assert threading.active_count() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    del model, embedder, server
    assert_no_unclosed_sockets()


def test_clients_of_others_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackServer(keep_alive=False) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        model = ChatOpenAI(model="gpt-4.1-mini")
        model.invoke("Hello.")
        asyncio.run(model.ainvoke("Hello."))
        list(model.stream("Hello."))
        OpenAIEmbeddings(check_embedding_ctx_length=False).embed_query("Hello.")
        assert (len(server.chats), len(server.embeddings)) == (3, 1)
    del model
    assert_no_unclosed_sockets()


def test_a_proxy_in_the_environment_is_not_asked(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "OPENAI_PROXY", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    server.chat_model().invoke("Hello.")
    asyncio.run(server.embedder().aembed_query("Hello."))
    assert (len(server.chats), len(server.embeddings)) == (1, 1)


def test_as_a_process() -> None:
    command = [sys.executable, "-m", "tests.loopback", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base_url = process.stdout.readline().strip()
            with LoopbackServer() as here:
                model = here.chat_model(base_url=base_url)
                assert "nothing to add" in str(model.invoke("Hello.").content)
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 0
        finally:
            process.kill()


def assert_no_unclosed_sockets() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    assert [str(one.message) for one in caught] == []
