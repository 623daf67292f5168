"""The embedded chat model, called like any OpenAI-compatible server."""

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
    """A `ChatOpenAI` that starts the embedded server at its first call."""

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False  # another process has another address

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
    """Create the embedded chat model: Qwen2.5-Coder 1.5B Instruct on the CPU, without a key.

    The first call downloads the weights if they are missing (1.1 GB, once) and starts the server (3
    to 8 s). All models of a process share one server, which handles one request at a time. A prefix
    that prompts share is processed once.

    The model supports `with_structured_output(schema, method="json_schema")` and `logprobs=True`,
    but no tools. It is small: a weak judge until it has learned.

    Args:
        **kwargs: The arguments of `ChatOpenAI`.

    Returns:
        The chat model.
    """
    defaults: dict[str, Any] = {
        "model": MODEL,
        "base_url": "http://127.0.0.1:9/v1",  # until the server has an address
        "api_key": "not-started",
        "temperature": 0,
        "seed": 0,
        "max_tokens": 512,  # about half a minute on two cores
        "timeout": 1800.0,  # includes waiting for the one slot
        "max_retries": 1,
        "use_responses_api": False,
        # A connection kept open belongs to an event loop that may be closed at the next call.
        "default_headers": {"Connection": "close"},
        # No proxy for requests to this machine.
        "http_client": openai.DefaultHttpxClient(trust_env=False),
        "http_async_client": openai.DefaultAsyncHttpxClient(trust_env=False),
        # Without this, ChatOpenAI logs a warning about proxies.
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
