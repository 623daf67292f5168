"""Replies of the server: answers and faults."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

LETTER_ALONE = "This time answer with one letter alone"
"""What a request for the value alone says."""

_LETTER = re.compile(r"^([A-Z])\) (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion, complete or not."""

    content: str | None
    refusal: str | None = None
    finish_reason: str = "stop"
    logprobs: list[dict[str, Any]] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_s: float = 0.0
    tool_calls: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """A raw HTTP response, such as an error or invalid JSON."""

    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hang:
    """No response until the time has passed or the server stops; then the connection closes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A closed connection, immediately or in the middle of an answer."""

    midway: bool = False


Fault = Raw | Hang | Disconnect
"""What goes wrong below the answer, for chat and embeddings alike."""

Reply = Answer | Fault
"""Everything that a chat request can meet."""

ReplyLike = Reply | dict[str, Any] | str
"""A reply, or short for one: a dict is JSON content, a string is prose."""


def answer(content: dict[str, Any] | str, **fields: Any) -> Answer:
    """A complete answer; missing token counts are computed."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return Answer(text, **fields)


def as_reply(reply: ReplyLike) -> Reply:
    return answer(reply) if isinstance(reply, dict | str) else reply


def truncated(text: str) -> Answer:
    """An answer cut off by the token limit."""
    return Answer(text, finish_reason="length")


def refusal(text: str = "I can't help with that.") -> Answer:
    """The model declines."""
    return Answer(None, refusal=text)


def content_filter() -> Answer:
    """The provider's filter withheld the answer."""
    return Answer(None, finish_reason="content_filter")


def with_logprobs(
    content: ReplyLike, tokens: Sequence[str | tuple[str, Mapping[str, float]]]
) -> Answer:
    """An answer with token log-probabilities, sent where the request asks for them.

    A token is a string (certain), or a pair of the token and the probabilities of
    it and its alternatives: `("true", {"true": 0.7, "false": 0.3})`.
    """
    reply = as_reply(content)
    assert isinstance(reply, Answer)
    pairs = [(token, {token: 1.0}) if isinstance(token, str) else token for token in tokens]
    return replace(reply, logprobs=[_token_logprobs(token, odds) for token, odds in pairs])


def with_letters(prompt: str, odds: Mapping[str, float]) -> Answer:
    """The letter of the likeliest value, with the probability of each letter."""
    letters = {name: letter for letter, name in _LETTER.findall(prompt.rpartition(LETTER_ALONE)[2])}
    by_letter = {letters[name]: odd for name, odd in odds.items()}
    likeliest = max(by_letter, key=lambda letter: by_letter[letter])
    return with_logprobs(likeliest, [(likeliest, by_letter)])


def error(
    status: int,
    message: str = "The loopback server was told to fail.",
    *,
    retry_after: float | None = None,
    code: str | None = None,
) -> Raw:
    """An error in OpenAI's form.

    `retry_after` in seconds tells the client when to try again; 0 is sent as one
    millisecond, because the openai client takes 0 for "not said" and waits 0.5 s.
    """
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"message": message, "type": kind, "param": None, "code": code}
    wait_ms = {} if retry_after is None else {"retry-after-ms": str(max(1, retry_after * 1000))}
    return Raw(status, json.dumps({"error": body}), headers=wait_ms)


def context_length_exceeded(limit: int = 8192) -> Raw:
    """The prompt does not fit the model's context window."""
    return error(
        400,
        f"This model's maximum context length is {limit} tokens. However, your messages "
        "resulted in more tokens. Please reduce the length of the messages.",
        code="context_length_exceeded",
    )


def raw(body: str, *, status: int = 200, **fields: Any) -> Raw:
    """Any HTTP response, well formed or not."""
    return Raw(status, body, **fields)


hang, disconnect = Hang, Disconnect


def _token_logprobs(token: str, odds: Mapping[str, float]) -> dict[str, Any]:
    entry = _logprob(token, odds.get(token, 0.0))
    ranked = sorted(odds.items(), key=lambda pair: -pair[1])
    entry["top_logprobs"] = [_logprob(other, probability) for other, probability in ranked]
    return entry


def _logprob(token: str, probability: float) -> dict[str, Any]:
    # OpenAI sends -9999 for a token of probability zero.
    value = math.log(probability) if probability > 0 else -9999.0
    return {"token": token, "logprob": value, "bytes": list(token.encode())}
