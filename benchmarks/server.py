"""The model server of both sides, in its own process: `python -m benchmarks.server`.

It has OpenAI's API. By default it answers after a fixed time and counts requests. With `--upstream`
it passes chat requests on to a real model's server and embeds with the embedded model. It shares
its cores with the clients that are measured, so it does as little as it can.
"""

import argparse
import asyncio
import base64
import itertools
import re
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.plan import DIMENSIONS, guideline_text
from tests.loopback.judge_double import instance
from tests.loopback.recording import recorded_line
from tests.loopback.replies import Answer
from tests.loopback.requests import ChatRequest, EmbeddingRequest
from tests.loopback.wire import completion, count_tokens

_GUIDELINES_PER_CALL = 5  # of a distilling call
_GUIDELINES_PER_RECORD = 2  # at most; a single record does not teach five
_RATIONALE = (
    "The reply names what was asked for and the step that follows, but leaves out the date by "
    "which the customer can expect it."
)
_COUNTED = ("held_s", "chat_calls", "prompt_tokens", "embedding_calls", "texts_embedded")
_KEPT_PROMPTS = 64  # prompts that can be read since the last reset
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TIMEOUT_S = 1_800


_LATENCY = {
    "chat": 0.4,  # seconds for any answer
    "token": 0.005,  # more for each of its tokens; a token is four characters
    "embedding": 0.08,  # for a request of embeddings, with any number of texts
}


class ModelServer:
    """Answers each request in the shape of its schema; guidelines always differ."""

    def __init__(self, upstream: str | None, key: str, record: Path | None) -> None:
        self.latency, self.prompts = _LATENCY, list[str]()
        self.counters: Any = Counter()
        self._numbers = itertools.count()
        self._upstream, self._key, self._record = upstream, key, record
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._embeddings: Any = None
        if upstream:
            from memalign_graph.local import LocalEmbeddings

            self.latency, self._embeddings = dict.fromkeys(_LATENCY, 0.0), LocalEmbeddings()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                arrived, counters = clock(), self.counters
                status, answer, delay_s = await self.respond(head.split(b" ", 2)[1].decode(), body)
                # The delay includes the time it took to make the answer.
                await asyncio.sleep(max(0.0, arrived + delay_s - clock()))
                counters["held_s"] += clock() - arrived if delay_s else 0.0  # as it really was
                writer.write(
                    b"HTTP/1.1 %d Answered\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%b" % (status, len(answer), answer)
                )
        writer.close()

    async def respond(self, path: str, body: bytes) -> tuple[int, bytes, float]:
        """Return the status, the JSON, and the delay after the request's arrival."""
        match path.partition("?")[0]:
            case "/v1/chat/completions":
                if self._upstream:
                    return await asyncio.to_thread(self._pass_on, body)
                return self._chat(body)
            case "/v1/embeddings":
                return self._embed(body)
            case "/bench/counters":
                found = {**dict.fromkeys(_COUNTED, 0), **self.counters, "prompts": self.prompts}
                return 200, orjson.dumps(found), 0.0
            case "/bench/reset":
                self.counters, self.prompts = Counter(), []
            case "/bench/latency":
                self.latency = _LATENCY | orjson.loads(body)
            case _:
                return 404, b'{"error": {"message": "There is no such path."}}', 0.0
        return 200, b"{}", 0.0

    def _pass_on(self, body: bytes) -> tuple[int, bytes, float]:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(f"{self._upstream}/chat/completions", body, headers)  # noqa: S310 - the caller's address
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                answer: bytes = response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read(), 0.0
        if self._record:
            with self._record.open("a", encoding="utf-8") as file:
                file.write(recorded_line(orjson.loads(body), orjson.loads(answer)))
        return 200, answer, 0.0

    def _chat(self, body: bytes) -> tuple[int, bytes, float]:
        request = ChatRequest(orjson.loads(body), {})
        text = request.text
        content = orjson.dumps(self._content(request.schema, text)).decode()
        reply = completion(request, Answer(content))
        self.counters.update(chat_calls=1, prompt_tokens=reply["usage"]["prompt_tokens"])
        self.prompts += [text] if len(self.prompts) < _KEPT_PROMPTS else []
        written = reply["usage"]["completion_tokens"]
        return 200, orjson.dumps(reply), self.latency["chat"] + written * self.latency["token"]

    def _content(self, schema: dict[str, Any] | None, prompt: str) -> Any:
        """Return a JSON value that fits the schema."""
        content: Any = instance(schema) if schema else {"rationale": "", "value": True}
        properties = schema.get("properties", {}) if schema else {}
        if "rationale" in content:
            content["rationale"] = _RATIONALE
        if "operations" in properties:  # of our distiller
            items = properties["operations"]["items"]["properties"]
            handles = items.get("feedback", {}).get("items", {}).get("enum", [])
            add = {"action": "add", "guideline": "none", "question": ""}
            added = [{**add, "text": text, "feedback": ids} for text, ids in self._taught(handles)]
            content["operations"] = [{name: item[name] for name in items} for item in added]
        if "guidelines" in properties:  # of the peer's
            handles = list(map(int, re.findall(r'^\s*"id": (\d+),', prompt, re.MULTILINE)))
            content["guidelines"] = [
                {"guideline_text": text, "source_trace_ids": ids}
                for text, ids in self._taught(handles)
            ]
        return content

    def _taught(self, handles: list[Any]) -> Iterator[tuple[str, list[Any]]]:
        """Yield guidelines, each with two sources at most, spread over all handles."""
        count = min(_GUIDELINES_PER_CALL, _GUIDELINES_PER_RECORD * max(1, len(handles)))
        step = max(1, len(handles) // (2 * _GUIDELINES_PER_CALL))
        for first in range(0, 2 * count, 2):
            sources = [handles[n * step % len(handles)] for n in (first, first + 1) if handles]
            yield guideline_text(next(self._numbers)), list(dict.fromkeys(sources))

    def _embed(self, body: bytes) -> tuple[int, bytes, float]:
        request = EmbeddingRequest(orjson.loads(body), {})
        size = int(request.body.get("dimensions") or DIMENSIONS)
        vectors = [_embedded(text, size) for text in request.texts if not self._embeddings]
        if self._embeddings:
            vectors = list(np.array(self._embeddings.embed_documents(request.texts), np.float32))
        encoded: list[Any] = [vector.tolist() for vector in vectors]
        if request.body.get("encoding_format") == "base64":
            encoded = [base64.b64encode(it.astype("<f4").tobytes()).decode() for it in vectors]
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(encoded)
        ]
        tokens = sum(map(count_tokens, request.texts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        reply = {"object": "list", "data": data, "model": request.model, "usage": usage}
        self.counters.update(embedding_calls=1, texts_embedded=len(vectors))
        return 200, orjson.dumps(reply), self.latency["embedding"]


@lru_cache(maxsize=200_000)
def _embedded(text: str, dimension: int) -> NDArray[np.float32]:
    """Draw a text's vector, the same one in every process."""
    seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    vector = np.random.default_rng(seed).standard_normal(dimension, dtype=np.float32)
    return vector / np.float32(np.linalg.norm(vector))


async def main() -> None:
    """Serve until the process ends; the base URL is the only line of output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--upstream", help="an OpenAI-compatible server that answers chat")
    parser.add_argument("--key", default="none", help="its key")
    parser.add_argument("--record", type=Path, help="a file for its answers, one a line")
    options = parser.parse_args()
    model = ModelServer(options.upstream, options.key, options.record)
    server = await asyncio.start_server(
        model.handle, "127.0.0.1", options.port, backlog=256, limit=2**26
    )
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
