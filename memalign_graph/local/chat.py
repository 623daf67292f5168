"""The embedded chat model, spoken to like any OpenAI-compatible server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import openai
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI

from memalign_graph.local.server import MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS, start_server
from memalign_graph.local.weights import MODEL
from memalign_graph.models import declare_small


class _LocalChatOpenAI(ChatOpenAI):
    """A `ChatOpenAI` that starts the embedded server when it is called, and follows its address."""

    @classmethod
    def is_lc_serializable(cls) -> bool:
        # The address means nothing to another process.
        return False

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        self._connect()
        return super()._generate(*args, **kwargs)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        await asyncio.to_thread(self._connect)
        return await super()._agenerate(*args, **kwargs)

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        self._connect()
        yield from super()._stream(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        await asyncio.to_thread(self._connect)
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk

    def _connect(self) -> None:
        endpoint = start_server()
        for client in (self.root_client, self.root_async_client):
            client.base_url, client.api_key = endpoint


def local_chat_model(**kwargs: Any) -> ChatOpenAI:
    """Make the embedded chat model: Qwen2.5-Coder 1.5B Instruct on the CPU, no key needed.

    Nothing happens until the first call, which fetches the weights if they are nowhere (1.1 GB,
    once) and starts the server (3 to 8 s). All models made here share one server, which takes one
    request at a time; others wait in line. Prompts that begin alike are read once.

    It can `with_structured_output(schema, method="json_schema")` and `logprobs=True`; it cannot
    call tools. It is a small model: a weak judge until it has learned. Keyword arguments are those
    of `ChatOpenAI`.
    """
    defaults: dict[str, Any] = {
        "model": MODEL,
        "base_url": "http://127.0.0.1:9/v1",  # until the server has an address
        "api_key": "not-started",
        "temperature": 0,
        "seed": 0,
        "max_tokens": 512,  # about half a minute on two cores
        "timeout": 1800.0,  # waiting in line for the one slot included
        "max_retries": 1,
        "use_responses_api": False,
        # Connections kept open would be those of an event loop that may be gone at the next call.
        "default_headers": {"Connection": "close"},
        # A proxy meant for the internet must not get what goes to this very machine.
        "http_client": openai.DefaultHttpxClient(trust_env=False),
        "http_async_client": openai.DefaultAsyncHttpxClient(trust_env=False),
        # Else ChatOpenAI logs advice about that proxy.
        "http_socket_options": (),
        "profile": {
            "name": MODEL,
            "max_input_tokens": MAX_INPUT_TOKENS,
            "max_output_tokens": MAX_OUTPUT_TOKENS,
            "structured_output": True,
            "tool_calling": False,
        },
    }
    return cast("ChatOpenAI", declare_small(_LocalChatOpenAI(**{**defaults, **kwargs})))
