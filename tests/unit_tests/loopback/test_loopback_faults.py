"""What can go wrong, as the real clients meet it."""

import time

import openai
import pytest

from tests.loopback import (
    LoopbackServer,
    Reply,
    ReplyLike,
    context_length_exceeded,
    disconnect,
    error,
    hang,
    raw,
)
from tests.unit_tests.loopback.schemas import VERDICT, YES_OR_NO, Ask


async def test_two_rate_limits_then_an_answer(server: LoopbackServer, ask: Ask) -> None:
    limited = error(429, "Slow down.", retry_after=0)
    server.script(limited, limited, VERDICT)
    given = await ask(server.chat_model())
    assert given["parsed"] == VERDICT
    assert len(server.chats) == 3


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
        server.script(hang(600))
        with pytest.raises(openai.APITimeoutError):
            await ask(server.chat_model(timeout=0.1, max_retries=0))
        began = time.monotonic()
    assert time.monotonic() - began < 300


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
