"""Batches side by side, each small enough for the model's window."""

import time
from typing import Any

import pytest

from memalign_graph import ChatModelError
from memalign_graph.prompts.fences import estimate_tokens
from memalign_graph.prompts.judge import ANSWER_TOKENS
from tests.conftest import Bench
from tests.integration_tests.alignment_support import (
    COMPARE,
    DISTIL,
    Model,
    add,
    align,
    alignment,
    asked,
    each_its_words,
    embedded,
    feedback_in,
    record,
    records,
    rules_by_topic,
)
from tests.loopback import ChatRequest, Together, answer, context_length_exceeded

WINDOW = 8192
SMALL = {"max_input_tokens": WINDOW}


def tokens(chat: ChatRequest) -> int:
    """A request's size, by the package's own estimate."""
    return sum(estimate_tokens(message["content"]) for message in chat.messages)


def refuse_long(limit: int, model: Model) -> Any:
    """A server that counts four characters a token and refuses prompts beyond its window."""

    def respond(chat: ChatRequest) -> Any:
        return context_length_exceeded(limit) if len(chat.text) / 4 > limit else model(chat)

    return respond


@pytest.mark.parametrize("bench", ["memory-sync", "memory-async", "sqlite-async"], indirect=True)
async def test_batches_run_side_by_side(bench: Bench) -> None:
    bench.server.responder = Together(10, Model(), DISTIL)
    start = time.time()
    report = await align(bench, records(20, topics=5), alignment(bench, batch_size=2))
    assert report["batches"] == bench.server.peak_chats == 10
    # Not the sum of what each took.
    assert report["cost"]["seconds"] <= time.time() - start


async def test_thirty_two_at_a_time_unless_told(bench: Bench) -> None:
    bench.server.responder = Together(32, Model(), DISTIL)
    report = await align(bench, records(40, topics=4), alignment(bench, batch_size=1))
    assert report["batches"] == 40
    assert bench.server.peak_chats == 32


@pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
@pytest.mark.parametrize("most", [1, 3])
async def test_runs_max_concurrency_is_kept(bench: Bench, most: int) -> None:
    bench.server.responder = Together(most, Model(), DISTIL)
    graph: Any = alignment(bench, batch_size=1)
    given = {"feedback": records(7, topics=2)}
    config: Any = {"configurable": {"thread_id": "t"}, "max_concurrency": most}
    found = await graph.ainvoke(given, config) if bench.awaits else graph.invoke(given, config)
    assert len(found["report"]["guidelines"]["added"]) == 2
    assert bench.server.peak_chats == most


@pytest.mark.parametrize(("size", "batches"), [(1, 7), (3, 3), (50, 1)])
async def test_batch_size(bench: Bench, size: int, batches: int) -> None:
    bench.server.responder = Model()
    report = await align(bench, records(7), alignment(bench, batch_size=size))
    found = [len(feedback_in(chat)) for chat in asked(bench, DISTIL)]
    assert report["batches"] == len(found) == batches
    assert (sum(found), max(found)) == (7, min(size, 7))
    assert len(asked(bench, COMPARE)) == (1 if batches > 1 else 0)


async def test_fifty_a_batch_unless_told(bench: Bench) -> None:
    bench.server.responder = Model()
    await align(bench, records(120, topics=4))
    assert sorted(len(feedback_in(chat)) for chat in asked(bench, DISTIL)) == [20, 50, 50]
    assert len(embedded(bench)) == 120
    assert len(bench.server.embeddings) == 1


def filled(number: int) -> dict[str, Any]:
    """Records of all sizes, from a line to more than is ever shown."""
    size = (10, 60, 300, 900, 4000)[number % 5]
    return record(
        number,
        number % 40,
        outputs=f"Answer {number}. {'word ' * size}",
        rationale=f"On #{number % 40} name it, case {number}. {'why ' * (size // 10)}",
    )


async def test_no_prompt_outgrows_a_small_window(bench: Bench) -> None:
    bench.server.responder = refuse_long(WINDOW - ANSWER_TOKENS, Model())
    for number in range(60):
        await bench.add_guideline(f"Rule {number} by hand: {'so it is ' * 20}.")
    graph = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    report = await align(bench, [filled(n) for n in range(150)], graph)
    assert report["feedback"]["new"] == 150
    assert len(asked(bench, DISTIL)) == report["batches"] > 10
    assert max(map(tokens, bench.server.chats)) <= WINDOW - ANSWER_TOKENS
    assert sum(len(feedback_in(chat)) for chat in asked(bench, DISTIL)) == 150
    assert {one.status for one in await bench.episodes()} == {"distilled"}
    # Only the longest are longer than what is shown of a record.
    assert report["warnings"][0].startswith("30 record(s) were too long")


async def test_windows_are_filled(bench: Bench) -> None:
    """Packing by the estimate leaves less than a third of a window unused."""
    bench.server.responder = Model()
    given = [record(n, n % 5, outputs=f"{n}: {'word ' * 120}") for n in range(80)]
    graph = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    await align(bench, given, graph)
    *full, _ = sorted(map(tokens, asked(bench, DISTIL)), reverse=True)
    # An answer takes 40 tokens for each of the 20 or so.
    assert min(full) > (WINDOW - ANSWER_TOKENS) * 2 // 3


@pytest.mark.parametrize("window", [2048, 4096])
async def test_oversize_record_is_cut_and_told(bench: Bench, window: int) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, model=bench.server.chat_model(profile={"max_input_tokens": window}))
    big = record(1, outputs="start " + "word " * 50_000 + " finish")
    report = await align(bench, [big, record(2)], graph)
    [episode] = [one for one in await bench.episodes() if one.value]
    [warning] = report["warnings"]
    assert episode.id in warning
    assert "1 record(s)" in warning
    [shown] = [chat for chat in bench.server.chats if "start word" in chat.text]
    assert "finish" in shown.text
    assert "bytes left out" in shown.text
    assert max(map(tokens, bench.server.chats)) <= window


@pytest.mark.parametrize("experts", [12, 60])
async def test_many_long_words_on_one_case_fit_a_window(bench: Bench, experts: int) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    given = [
        record(1, author=f"expert {n}", rationale=f"On #{n} name it. {'because ' * 400}")
        for n in range(experts)
    ]
    report = await align(bench, given, graph)
    assert max(map(tokens, bench.server.chats)) <= WINDOW
    assert {one.status for one in await bench.episodes()} == {"distilled"}
    assert report["warnings"][0].startswith(f"{experts} record(s) were too long")
    shown = [words for chat in asked(bench, DISTIL) for words in feedback_in(chat).values()]
    assert len(shown) == experts


async def test_comparison_of_many_rules_fits_a_window_and_looks_at_every_pair(
    bench: Bench,
) -> None:
    bench.server.responder = Model(distil=each_its_words)
    rule = f"On #{{}} always {'name the order and say what happens next ' * 5}, as said by {{}}."
    given = [record(n, rationale=rule.format(n % 100, n)) for n in range(200)]
    graph = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    report = await align(bench, given, graph)
    assert len(asked(bench, COMPARE)) > 3
    assert max(map(tokens, bench.server.chats)) <= WINDOW - ANSWER_TOKENS
    assert [len(one["episode_ids"]) for one in report["guidelines"]["added"]] == [2] * 100


async def test_being_asked_again_fits_the_window_too(bench: Bench) -> None:
    prose = "I would rather talk of something else entirely. " * 100
    bad = set()

    def distil(chat: ChatRequest) -> Any:
        first = chat.messages[1]["content"]
        if first in bad:
            return rules_by_topic(chat)
        bad.add(first)
        return answer(prose)

    bench.server.responder = Model(distil=distil)
    graph = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    await align(
        bench, [record(n, n % 5, outputs=f"{n}: {'word ' * 120}") for n in range(60)], graph
    )
    again = [chat for chat in bench.server.chats if len(chat.messages) > 2]
    assert len(again) >= 3
    assert max(map(tokens, again)) <= WINDOW


async def test_window_that_nobody_told_of_is_a_clear_error(bench: Bench) -> None:
    bench.server.responder = refuse_long(WINDOW, Model())
    given = [record(n, n % 5, outputs="word " * 300) for n in range(50)]
    with pytest.raises(ChatModelError, match="max_input_tokens") as caught:
        await align(bench, given)
    assert "profile" in str(caught.value)
    assert {one.status for one in await bench.episodes()} == {"pending"}
    assert await bench.guidelines() == []
    told = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    report = await align(bench, given, told, "u")
    assert report["feedback"]["unchanged"] == 50
    assert len(report["guidelines"]["added"]) == 5


async def test_an_answer_with_room_for_its_operations(bench: Bench) -> None:
    """Fifty records leave room for an operation each in the window."""
    given = [record(n, n % 50, outputs="word " * 60) for n in range(100)]
    operation = len(str(add("On #49 " + "x" * 100, "F49"))) / 4

    def distil(chat: ChatRequest) -> Any:
        assert tokens(chat) + 40 * len(feedback_in(chat)) <= WINDOW
        return rules_by_topic(chat)

    assert operation < 60
    bench.server.responder = Model(distil=distil)
    await align(bench, given, alignment(bench, model=bench.server.chat_model(profile=SMALL)))
