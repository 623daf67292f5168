"""The model server both sides speak to, as a process of its own: `python -m benchmarks.server`.

It speaks OpenAI's protocol, takes a fixed time for an answer, and counts what it is asked.
"""

import argparse
import asyncio
import base64
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any
from uuid import uuid4

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks import hashing
from benchmarks.answers import Answers
from benchmarks.http_service import Response, serve
from tests.loopback.requests import ChatRequest, EmbeddingRequest
from tests.loopback.wire import count_tokens, fault_in_chat, fault_in_embeddings

_KEPT_PROMPTS = 64
"""How many prompts since the last reset can be read back."""

_KEPT_VECTORS = 20_000


@dataclass
class Latency:
    """How long the model takes, in seconds."""

    chat: float = 0.4
    """For any answer."""

    token: float = 0.005
    """For each token of the answer, besides."""

    embedding: float = 0.08
    """For a request of embeddings, however many texts it has."""


@dataclass
class Counters:
    """What the server was asked since the last reset."""

    chat_calls: int = 0
    """Chat requests."""

    prompt_tokens: int = 0
    """Tokens of all their messages: a quarter of the characters."""

    completion_tokens: int = 0
    """Tokens of all answers, counted alike."""

    embedding_calls: int = 0
    """Requests of embeddings."""

    texts_embedded: int = 0
    """Texts in them."""

    held_s: float = 0.0
    """How long requests were held, all of them together: the latency, as it really was."""

    most_at_once: int = 0
    """The most requests in hand at one time."""

    refused: int = 0
    """Requests that were answered with an error."""

    by_schema: dict[str, int] = field(default_factory=dict)
    """Chat requests by the name of the schema they asked for."""

    prompts: list[str] = field(default_factory=list)
    """The first prompts, as one text each."""


class ModelServer:
    """Answers requests, and knows nothing of sockets."""

    def __init__(self) -> None:
        self.latency = Latency()
        """How long it takes."""
        self.counters = Counters()
        """What it was asked."""
        self._answers = Answers()
        self._in_hand = 0

    def respond(self, method: str, path: str, body: bytes) -> Response:
        """Answer a request.

        Args:
            method: GET or POST.
            path: Its path.
            body: Its body.

        Returns:
            The response.
        """
        match method, path.partition("?")[0]:
            case "POST", "/v1/chat/completions":
                return self._chat(ChatRequest(orjson.loads(body), {}))
            case "POST", "/v1/embeddings":
                return self._embed(EmbeddingRequest(orjson.loads(body), {}))
            case "GET", "/bench/counters":
                return Response(orjson.dumps(asdict(self.counters)))
            case "POST", "/bench/reset":
                self.counters = Counters()
                return Response(b"{}")
            case "POST", "/bench/latency":
                self.latency = Latency(**orjson.loads(body))
                return Response(b"{}")
            case _:
                return self._refuse(404, f"Unknown path: {path}")

    def _chat(self, request: ChatRequest) -> Response:
        fault = fault_in_chat(request)
        if fault:
            return self._refuse(400, fault)
        text = request.text
        content = self._answers.content(request.schema, text)
        answer = orjson.dumps(content).decode()
        usage = _usage(count_tokens(text), count_tokens(answer))
        message = {"role": "assistant", "content": answer, "refusal": None}
        reply = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.model,
            "choices": [
                {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            ],
            "usage": usage,
        }
        counters = self.counters
        counters.chat_calls += 1
        counters.prompt_tokens += usage["prompt_tokens"]
        counters.completion_tokens += usage["completion_tokens"]
        name = request.schema_name or "none"
        counters.by_schema[name] = counters.by_schema.get(name, 0) + 1
        if len(counters.prompts) < _KEPT_PROMPTS:
            counters.prompts.append(text)
        latency = self.latency.chat + usage["completion_tokens"] * self.latency.token
        return self._held(reply, latency)

    def _embed(self, request: EmbeddingRequest) -> Response:
        fault = fault_in_embeddings(request)
        if fault:
            return self._refuse(400, fault)
        size = int(request.body.get("dimensions") or hashing.DIMENSION)
        as_text = request.body.get("encoding_format") == "base64"
        vectors = [_vector(text, size) for text in request.texts]
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(one, as_text=as_text)}
            for index, one in enumerate(vectors)
        ]
        usage = _usage(sum(map(count_tokens, request.texts)), 0)
        reply = {"object": "list", "data": data, "model": request.model, "usage": usage}
        self.counters.embedding_calls += 1
        self.counters.texts_embedded += len(vectors)
        return self._held(reply, self.latency.embedding)

    def _held(self, reply: dict[str, Any], delay_s: float) -> Response:
        counters = self.counters
        self._in_hand += 1
        counters.most_at_once = max(counters.most_at_once, self._in_hand)

        def sent(held_s: float) -> None:
            self._in_hand -= 1
            counters.held_s += held_s

        body = orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, delay_s=delay_s, sent=sent)

    def _refuse(self, status: int, message: str) -> Response:
        self.counters.refused += 1
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return Response(orjson.dumps({"error": error}), status=status)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


@lru_cache(maxsize=_KEPT_VECTORS)
def _vector(text: str, dimension: int) -> NDArray[np.float32]:
    return hashing.embed(text, dimension)


def _encoded(vector: NDArray[np.float32], *, as_text: bool) -> Any:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_text else vector


def main() -> None:
    """Serve until told to stop; the base URL is the only line written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    options = parser.parse_args()

    def started(port: int) -> None:
        sys.stdout.write(f"http://127.0.0.1:{port}/v1\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        asyncio.run(serve(ModelServer().respond, options.port, started))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
