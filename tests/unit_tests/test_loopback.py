"""The loopback server behaves like OpenAI for LangChain's real clients."""

import asyncio
import gc
import socket
import threading
import warnings
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.loopback import (
    ChatRequest,
    LoopbackServer,
    Reply,
    answer,
    disconnect,
    error,
    recorded_line,
    refusal,
    replay,
    truncated,
    with_logprobs,
)
from tests.loopback.wire import completion

VERDICT = {"rationale": "Cold in tone.", "value": False}


def schema_of(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": "judgment",
        "type": "object",
        "properties": {"rationale": {"type": "string"}, "value": value},
        "required": ["rationale", "value"],
        "additionalProperties": False,
    }


def ask(model: Any, schema: Any = None, **options: Any) -> dict[str, Any]:
    schema = schema or schema_of({"type": "boolean"})
    judge = model.with_structured_output(schema, method="json_schema", include_raw=True, **options)
    return cast("dict[str, Any]", judge.invoke("Judge."))


@pytest.mark.parametrize(
    ("fault", "expected", "attempts"),
    [
        (error(401, "Bad key."), openai.AuthenticationError, 1),
        (error(429, "Slow down.", retry_after=0), openai.RateLimitError, 3),
        (disconnect(midway=True), openai.APIConnectionError, 3),
    ],
)
def test_client_retries_faults(
    server: LoopbackServer, fault: Reply, expected: type[Exception], attempts: int
) -> None:
    server.script(*[fault] * attempts)
    with pytest.raises(expected):
        ask(server.chat_model())
    assert len(server.chats) == attempts
    assert ask(server.chat_model())["parsed"]["value"] is True


@pytest.mark.parametrize(
    ("scale", "value"),
    [
        ({"type": "string", "enum": ["poor", "fair"]}, "poor"),
        ({"anyOf": [{"type": "null"}, {"type": "integer", "maximum": 7}]}, 7),
        ({"$ref": "#/$defs/Scale"}, "tie"),
    ],
)
def test_unscripted_judgment_fits_the_schema(
    server: LoopbackServer, scale: dict[str, Any], value: object
) -> None:
    schema = schema_of(scale) | {"$defs": {"Scale": {"const": "tie"}}}
    assert ask(server.chat_model(), schema)["parsed"]["value"] == value


def test_streamed_and_plain_answers_are_equal(server: LoopbackServer) -> None:
    server.script(VERDICT, refusal("No."), truncated('{"ra'), "One, two, three.")
    model = server.chat_model(streaming=True, stream_usage=True)
    assert ask(model)["parsed"] == VERDICT
    assert ask(model)["raw"].additional_kwargs["refusal"] == "No."
    with pytest.raises(openai.LengthFinishReasonError):
        ask(model)
    pieces = list(model.stream("Count."))
    assert "".join(str(piece.content) for piece in pieces) == "One, two, three."
    assert len([piece for piece in pieces if piece.content]) > 1
    assert all(chat.streaming for chat in server.chats)


def test_requests_that_openai_would_refuse_are_refused(server: LoopbackServer) -> None:
    # LangChain itself closes the schemas it converts, but not those in OpenAI's own form.
    opened = {**schema_of({"type": "boolean"}), "additionalProperties": True}
    own_form = {"name": "open", "strict": True, "schema": opened}
    with (
        pytest.warns(UserWarning, match="Invalid schema"),
        pytest.raises(openai.BadRequestError, match="additionalProperties"),
    ):
        ask(server.chat_model(), own_form)
    with pytest.raises(openai.BadRequestError, match="does not match the pattern"):
        ask(server.chat_model(), {**schema_of({"type": "boolean"}), "title": "is it good?"})
    with pytest.raises(openai.BadRequestError, match="may not be an empty string"):
        server.embedder().embed_query("")


def test_failing_responder_is_reported() -> None:
    def fail(_: object) -> Any:
        raise LookupError("no such case")

    with LoopbackServer() as server:
        server.responder = fail
        with pytest.raises(openai.InternalServerError, match="no such case"):
            server.chat_model().invoke("Judge.")
        assert len(server.chats) == 1
        assert isinstance(server.errors[0], LookupError)


def test_server_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    with LoopbackServer(keep_alive=False) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        of_others = ChatOpenAI(model="gpt-4.1-mini")
        for model in (of_others, server.chat_model()):
            model.invoke("Hello.")
            for _ in range(2):  # two event loops, each closed after its call
                asyncio.run(model.ainvoke("Hello."))
        OpenAIEmbeddings(check_embedding_ctx_length=False).embed_query("Hello.")
        asyncio.run(server.embedder().aembed_query("Hello."))
        assert (len(server.chats), len(server.embeddings)) == (6, 2)
        port = server.port
    server.stop()
    assert set(threading.enumerate()) <= before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    del model, of_others, server
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_recording_answers_its_prompts_and_collects_others(tmp_path: Path) -> None:
    recording, missing = tmp_path / "recording.jsonl", list[str]()
    reply = with_logprobs("yes", [("yes", {"yes": 0.75, "no": 0.25})])
    prompt = [{"role": "user", "content": "Yes or no?"}]
    body = {"messages": prompt, "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
    sent = completion(ChatRequest(body, {}), reply)
    recording.write_text(recorded_line(body, sent), encoding="utf-8")
    respond = replay(recording, missing)
    again = ChatRequest({**body, "model": "another"}, {})
    replayed = cast("Any", respond(again))
    assert completion(again, replayed)["usage"] == sent["usage"]
    assert replayed.content == "yes"
    [token] = replayed.logprobs
    assert [entry["logprob"] for entry in token["top_logprobs"]] == [-0.2877, -1.3863]
    assert not missing
    assert respond(ChatRequest({**body, "max_tokens": 2}, {})) != answer("yes")
    assert missing == ["Yes or no?"]
