"""What operations cost, counted as they run."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from memalign_graph import ChatModelError, EmbeddingError
from memalign_graph.effects import Call, Chat, Embed, Gather, Operation, arun, run
from memalign_graph.models import resolve_embeddings, with_schema
from memalign_graph.usage import Meter, Usage
from tests.loopback import LoopbackServer, answer, error

SCHEMA = {
    "title": "verdict",
    "type": "object",
    "properties": {"value": {"type": "boolean"}},
    "required": ["value"],
    "additionalProperties": False,
}

Drive = Callable[[Operation[Any]], Any]


@pytest.fixture(params=[run, lambda operation: asyncio.run(arun(operation))], ids=["run", "arun"])
def drive(request: pytest.FixtureRequest) -> Drive:
    driver: Drive = request.param
    return driver


def numbers(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text))] for text in texts]


def embed(*texts: str, function: Any = numbers) -> Operation[Any]:
    return (yield Embed(resolve_embeddings(function), texts))


def say(server: LoopbackServer) -> Operation[Any]:
    model = with_schema(server.chat_model(max_retries=0), SCHEMA)
    return (yield Chat(model, [HumanMessage("Well?")]))


def each(*operations: Operation[Any]) -> Operation[list[Any]]:
    found = []
    for one in operations:
        result = yield from one
        found += [result]
    return found


def gather(*operations: Operation[Any], limit: int = 4) -> Operation[Any]:
    return (yield Gather(operations, limit))


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
    meter = Meter()
    replies = drive(meter.watch(each(say(server), say(server), embed("a", "b"), embed("c"))))
    assert replies[0].answer == {"value": True}
    assert replies[3] == [[1.0]]
    assert meter.usage == Usage(
        chat_calls=2, input_tokens=31, output_tokens=8, embedding_calls=2, texts_embedded=3
    )


def test_failed_calls_are_not_counted_and_come_out_unchanged(
    drive: Drive, server: LoopbackServer
) -> None:
    server.script(error(500, retry_after=0))
    meter = Meter()
    with pytest.raises(ChatModelError):
        drive(meter.watch(each(embed("a"), say(server), embed("b"))))
    assert meter.usage == Usage(embedding_calls=1, texts_embedded=1)


def test_failure_that_the_operation_handles_is_handled(drive: Drive) -> None:
    def broken(texts: Sequence[str]) -> list[list[float]]:
        raise OSError("no network")

    def careful() -> Operation[Any]:
        try:
            yield from embed("a", function=broken)
        except EmbeddingError:
            return (yield from embed("b", "c"))

    meter = Meter()
    assert drive(meter.watch(careful())) == [[1.0], [1.0]]
    assert meter.usage == Usage(embedding_calls=1, texts_embedded=2)


def test_what_runs_side_by_side_is_counted_whole(drive: Drive) -> None:
    def slow(number: int) -> Operation[Any]:
        yield Call(lambda: time.sleep(0.01), lambda: asyncio.sleep(0.01))
        yield from embed(*["x"] * number)
        return (yield from gather(embed("y"), embed("z")))

    meter = Meter()
    results = drive(meter.watch(gather(*map(slow, range(1, 9)), limit=8)))
    assert len(results) == 8
    assert meter.usage == Usage(embedding_calls=24, texts_embedded=36 + 16)


def test_what_ran_beside_a_failure_is_counted(drive: Drive) -> None:
    def broken() -> Operation[Any]:
        yield Call(lambda: time.sleep(0.05), lambda: asyncio.sleep(0.05))
        raise LookupError("gone")

    meter = Meter()
    with pytest.raises(LookupError):
        drive(meter.watch(gather(embed("a"), broken())))
    assert meter.usage.texts_embedded == 1


def test_meters_inside_each_other_count_both(drive: Drive) -> None:
    inner, outer = Meter(), Meter()

    def both() -> Operation[Any]:
        yield from embed("a")
        return (yield from inner.watch(gather(embed("b"), embed("c"))))

    drive(outer.watch(both()))
    assert (inner.usage.texts_embedded, outer.usage.texts_embedded) == (2, 3)


def test_operation_that_asks_for_nothing_costs_nothing(drive: Drive) -> None:
    def nothing() -> Operation[int]:
        yield from ()
        return 7

    meter = Meter()
    assert drive(meter.watch(nothing())) == 7
    assert meter.usage == Usage()
