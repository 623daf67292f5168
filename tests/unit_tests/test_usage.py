"""What operations cost, counted as they run."""

from collections.abc import Sequence
from typing import Any

import pytest

from memalign_graph import ChatModelError, EmbeddingError
from memalign_graph.io import IO
from memalign_graph.models import Metered, Usage, embed_texts, resolve_embeddings
from tests.loopback import LoopbackServer, answer, error
from tests.unit_tests.support import Drive, Operation, Together, say


def numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


async def embed(io: IO, *texts: str, function: Any = numbers) -> Any:
    return await embed_texts(io, resolve_embeddings(function), texts)


class Watched:
    """An operation whose usage is measured."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self.usage = Usage()

    async def __call__(self, io: IO) -> Any:
        metered = Metered(io)
        try:
            return await self._operation(metered)
        finally:
            self.usage = metered.usage


def test_usage_adds_up() -> None:
    one, other = Usage(chat_calls=1, input_tokens=2), Usage(chat_calls=3, texts_embedded=4)
    assert one + other == Usage(chat_calls=4, input_tokens=2, texts_embedded=4)
    assert sum([one, other], Usage()) == one + other


def test_calls_and_tokens_are_counted_as_the_server_tells(
    drive: Drive, server: LoopbackServer
) -> None:
    server.script(
        answer({"value": True}, prompt_tokens=11, completion_tokens=3),
        answer("Well.", prompt_tokens=20, completion_tokens=5),
    )

    async def each(io: IO) -> list[Any]:
        replies = [await say(io, server), await say(io, server)]
        return [*replies, await embed(io, "a", "b"), await embed(io, "c")]

    watched = Watched(each)
    replies = drive(watched)
    assert replies[0].answer == {"value": True}
    assert replies[3] == [[1.0]]
    assert watched.usage == Usage(
        chat_calls=2, input_tokens=31, output_tokens=8, embedding_calls=2, texts_embedded=3
    )


def test_failed_calls_are_not_counted_and_come_out_unchanged(
    drive: Drive, server: LoopbackServer
) -> None:
    server.script(error(500, retry_after=0))

    async def each(io: IO) -> None:
        await embed(io, "a")
        await say(io, server)
        await embed(io, "b")

    watched = Watched(each)
    with pytest.raises(ChatModelError):
        drive(watched)
    assert watched.usage == Usage(embedding_calls=1, texts_embedded=1)


def test_failure_that_the_operation_handles_is_handled(drive: Drive) -> None:
    def broken(texts: Sequence[str]) -> list[list[float]]:
        raise OSError("no network")

    async def careful(io: IO) -> Any:
        try:
            await embed(io, "a", function=broken)
        except EmbeddingError:
            return await embed(io, "b", "c")

    watched = Watched(careful)
    assert drive(watched) == [[1.0], [1.0]]
    assert watched.usage == Usage(embedding_calls=1, texts_embedded=2)


def test_what_runs_side_by_side_is_counted_whole(drive: Drive) -> None:
    together = Together(8)

    async def each(io: IO, number: int) -> Any:
        await together.wait(io)
        await embed(io, *["x"] * number)
        return await io.gather([embed(io, "y"), embed(io, "z")], 4)

    watched = Watched(lambda io: io.gather([each(io, number) for number in range(1, 9)], 8))
    results = drive(watched)
    assert len(results) == 8
    assert watched.usage == Usage(embedding_calls=24, texts_embedded=36 + 16)


def test_what_ran_beside_a_failure_is_counted(drive: Drive) -> None:
    embedded = Together(2)

    async def whole(io: IO) -> Any:
        await embed(io, "a")
        await embedded.wait(io)

    async def broken(io: IO) -> Any:
        await embedded.wait(io)
        raise LookupError("gone")

    watched = Watched(lambda io: io.gather([whole(io), broken(io)], 4))
    with pytest.raises(LookupError):
        drive(watched)
    assert watched.usage.texts_embedded == 1


def test_meters_inside_each_other_count_both(drive: Drive) -> None:
    inner = Watched(lambda io: io.gather([embed(io, "b"), embed(io, "c")], 4))

    async def both(io: IO) -> Any:
        await embed(io, "a")
        return await inner(io)

    outer = Watched(both)
    drive(outer)
    assert (inner.usage.texts_embedded, outer.usage.texts_embedded) == (2, 3)


def test_operation_that_asks_for_nothing_costs_nothing(drive: Drive) -> None:
    async def nothing(_: IO) -> int:
        return 7

    watched = Watched(nothing)
    assert drive(watched) == 7
    assert watched.usage == Usage()
