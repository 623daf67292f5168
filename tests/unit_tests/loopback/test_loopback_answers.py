"""What the server answers, as the real OpenAI clients of LangChain meet it."""

import time

import openai
import pytest
from langchain_core.exceptions import OutputParserException

from tests.loopback import (
    LoopbackServer,
    answer,
    content_filter,
    refusal,
    truncated,
    with_logprobs,
)
from tests.unit_tests.loopback.schemas import VERDICT, YES_OR_NO, Ask


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
