"""What operations cost, counted as they run."""

from collections.abc import Sequence
from typing import Any

import pytest

from memalign_graph import ChatModelError, EmbeddingError
from memalign_graph.io import IO
from memalign_graph.models import embed_texts, resolve_embeddings
from memalign_graph.tracing import MeteredIO, Usage
from tests.conftest import EVERY_WAY
from tests.loopback import LoopbackServer, answer, error
from tests.unit_tests.support import Drive, say

pytestmark = EVERY_WAY


def numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


def broken(texts: Sequence[str]) -> list[list[float]]:
    raise OSError("no network")


async def embed(io: IO, *texts: str, function: Any = numbers) -> Any:
    return await embed_texts(io, resolve_embeddings(function), texts)


def test_calls_and_tokens_are_counted_but_those_that_failed(
    drive: Drive, server: LoopbackServer
) -> None:
    server.script(
        answer({"value": True}, prompt_tokens=11, completion_tokens=3),
        answer("Well.", prompt_tokens=20, completion_tokens=5),
        error(500, retry_after=0),
    )
    meters: list[MeteredIO] = []

    async def each(io: IO) -> None:
        meters.append(metered := MeteredIO(io))
        await say(metered, server)
        meters.append(inner := MeteredIO(metered))
        await say(inner, server)
        assert await embed(inner, "a", "b") == [[1.0], [1.0]]
        with pytest.raises(EmbeddingError):
            await embed(metered, "c", function=broken)
        await say(metered, server)

    with pytest.raises(ChatModelError):
        drive(each)
    outer, inner = (meter.usage for meter in meters)
    embedded = Usage(embedding_calls=1, texts_embedded=2)
    assert inner == Usage(chat_calls=1, input_tokens=20, output_tokens=5) + embedded
    assert outer == inner + Usage(chat_calls=1, input_tokens=11, output_tokens=3)
