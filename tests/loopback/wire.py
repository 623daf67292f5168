"""OpenAI's wire format as pure functions."""

import base64
import math
import re
import sys
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from tests.loopback.embedding import embed
from tests.loopback.replies import Answer
from tests.loopback.requests import ChatRequest, EmbeddingRequest

_DIMENSION = 64
_MOST_CHUNKS = 4
_SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def count_tokens(text: str) -> int:
    """Tokens of a text: a quarter of its characters, rounded up."""
    return math.ceil(len(text) / 4)


def usage(request: ChatRequest, answer: Answer) -> dict[str, int]:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    if prompt is None:
        prompt = count_tokens(request.text)
    if completion is None:
        completion = count_tokens(answer.content or answer.refusal or "")
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def completion(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    message |= {"refusal": answer.refusal}
    message |= {"tool_calls": answer.tool_calls} if answer.tool_calls else {}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(request, answer),
        "finish_reason": answer.finish_reason,
    }
    body = {"choices": [choice], "usage": usage(request, answer)}
    return _head(request, "chat.completion") | body


def chunks(request: ChatRequest, answer: Answer) -> Iterator[dict[str, Any]]:
    """The same completion as the events of a stream."""
    head = _head(request, "chat.completion.chunk")

    def event(
        delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return head | {"choices": [choice]}

    yield event({"role": "assistant", "content": ""})
    if answer.refusal is not None:
        yield event({"refusal": answer.refusal})
    if answer.tool_calls:
        yield event({"tool_calls": answer.tool_calls})
    logprobs = _logprobs(request, answer)
    # Log-probabilities belong to tokens, not to chunks, so they are in one chunk.
    for piece in _pieces(answer.content or "", 1 if logprobs else _MOST_CHUNKS):
        yield event({"content": piece}, logprobs=logprobs)
    yield event({}, answer.finish_reason)
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield head | {"choices": [], "usage": usage(request, answer)}


def embeddings(request: EmbeddingRequest) -> dict[str, Any]:
    """The vectors of the request's texts, as numbers or base64 as it asks."""
    size = int(request.body.get("dimensions") or _DIMENSION)
    as_text = request.body.get("encoding_format") == "base64"
    data: list[dict[str, Any]] = []
    for index, text in enumerate(request.texts):
        vector = embed(text, size)
        if as_text and sys.byteorder == "big":
            vector.byteswap()
        value = base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": value})
    tokens = sum(count_tokens(text) for text in request.texts)
    return {
        "object": "list",
        "data": data,
        "model": request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def fault_in_chat(request: ChatRequest) -> str | None:
    """The reason why OpenAI would refuse this request, or None."""
    if not request.messages:
        return "Invalid 'messages': empty array."
    name = request.schema_name
    if name is not None and not _SCHEMA_NAME.fullmatch(name):
        return f"Invalid 'response_format.json_schema.name': {name!r} does not match the pattern."
    if request.strict and request.schema is not None:
        fault = _fault_in_strict(request.schema)
        if fault:
            return f"Invalid schema for response_format '{name}': {fault}"
    return None


def fault_in_embeddings(request: EmbeddingRequest) -> str | None:
    """The reason why this server or OpenAI would refuse this request, or None."""
    if not request.texts:
        return "'input' must be a string or a list of strings; token ids are not taken here."
    if any(not text for text in request.texts):
        return "'$.input' is invalid: an input may not be an empty string."
    return None


def _fault_in_strict(schema: Any) -> str | None:
    """OpenAI's rules for strict schemas: closed objects with all properties required."""
    if isinstance(schema, list):
        return next(filter(None, map(_fault_in_strict, schema)), None)
    if not isinstance(schema, dict):
        return None
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("properties", {})) != set(schema.get("required", [])):
            return "'required' is required to name every key in properties."
    return _fault_in_strict(list(schema.values()))


def _head(request: ChatRequest, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _logprobs(request: ChatRequest, answer: Answer) -> dict[str, Any] | None:
    if not request.body.get("logprobs") or answer.logprobs is None:
        return None
    most = int(request.body.get("top_logprobs") or 0)
    content = [token | {"top_logprobs": token["top_logprobs"][:most]} for token in answer.logprobs]
    return {"content": content, "refusal": None}


def _pieces(text: str, most: int) -> list[str]:
    size = max(1, math.ceil(len(text) / most))
    return [text[index : index + size] for index in range(0, len(text), size)]
