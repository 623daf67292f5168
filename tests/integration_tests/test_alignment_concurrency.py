"""Concurrency: parallel calls, changes during a run, and two processes."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.alignment.distill import MAX_ATTEMPTS
from memalign_graph.prompts.fences import estimate_tokens
from memalign_graph.prompts.judge import ANSWER_TOKENS
from tests.conftest import CRITERION, Bench
from tests.integration_tests.alignment_model import (
    COMPARE,
    DISTIL,
    Model,
    feedback_in,
    guideline_per_comment,
)
from tests.integration_tests.alignment_support import (
    align,
    alignment,
    asked,
    comment,
    record,
    records,
)
from tests.integration_tests.alignment_worker import Job, texts, work
from tests.loopback import ChatRequest, LoopbackServer, Together, context_length_exceeded
from tests.unit_tests.memory.stores import connect
from tests.unit_tests.memory.worker import FORKS

WINDOW = 8_200
SMALL = {"max_input_tokens": WINDOW}


def tokens(chat: ChatRequest) -> int:
    return sum(estimate_tokens(message["content"]) for message in chat.messages)


def refuse_long(limit: int, model: Model) -> Any:
    """A server with four characters per token that refuses prompts beyond its window."""

    def respond(chat: ChatRequest) -> Any:
        return context_length_exceeded(limit) if len(chat.text) / 4 > limit else model(chat)

    return respond


@pytest.mark.parametrize("most", [1, 3])
async def test_max_concurrency_of_the_run_is_respected(bench: Bench, most: int) -> None:
    bench.server.responder = Together(most, Model(), DISTIL)
    graph = alignment(bench, batch_size=1).with_config(max_concurrency=most)
    result = await bench.invoke(graph, {"feedback": records(7, topics=2)})
    assert len(result["report"]["guidelines"]["added"]) == 2
    assert bench.server.peak_chats == most


def filled(number: int) -> dict[str, Any]:
    """Records of all sizes, up to more than a prompt shows."""
    size = (10, 60, 300, 900, 4000)[number % 5]
    return record(
        number,
        number % 40,
        outputs=f"Answer {number}. {'word ' * size}",
        rationale=f"On #{number % 40} name it, case {number}. {'why ' * (size // 10)}",
    )


async def test_every_prompt_fits_a_small_window(bench: Bench) -> None:
    bench.server.responder = refuse_long(WINDOW - ANSWER_TOKENS, Model())
    for number in range(60):
        await bench.add_guideline(f"Rule {number} by hand: {'so it is ' * 20}.")
    graph = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    report = await align(bench, [filled(n) for n in range(75)], graph)
    assert report["feedback"]["new"] == 75
    assert len(asked(bench, DISTIL)) == report["batches"] > 10
    assert max(map(tokens, bench.server.chats)) <= WINDOW - ANSWER_TOKENS
    assert sum(len(feedback_in(chat)) for chat in asked(bench, DISTIL)) == 75
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}
    # Only the longest exceed the shown length of a record.
    assert report["warnings"][0].startswith("15 record(s) were too long")


async def test_batch_that_overflows_an_unknown_window_is_halved(bench: Bench) -> None:
    bench.server.responder = refuse_long(WINDOW, Model())
    report = await align(bench, [record(n, n % 5, outputs="word " * 300) for n in range(50)])
    assert report["warnings"] == []
    assert sum(len(guideline.episode_ids) for guideline in await bench.guidelines()) == 50
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


async def test_window_that_is_too_short_for_any_prompt_is_named(bench: Bench) -> None:
    bench.server.responder = refuse_long(100, Model())
    for night in range(MAX_ATTEMPTS + 1):
        report = await align(bench, [record(1)], on=str(night))
        assert {episode.status for episode in await bench.episodes()} == {"pending"}
        assert ("set the model's profile" in report["warnings"][0]) == (night < MAX_ATTEMPTS)
    bench.server.responder = Model()
    await align(bench, [], alignment(bench, model=bench.server.chat_model(profile=SMALL)), "set")
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


async def test_tags_and_many_experts_overflow_no_window(bench: Bench) -> None:
    bench.server.responder = refuse_long(WINDOW - ANSWER_TOKENS, Model())
    tagged = [record(n, outputs="<s>" * 700, rationale="<case> " * 90) for n in range(20)]
    raters = [record(20, 20, author=f"rater {n}") for n in range(200)]
    graph = alignment(bench, model=bench.server.chat_model(profile=SMALL))
    report = await align(bench, [*tagged, *raters], graph)
    assert report["warnings"] == []
    assert max(map(tokens, bench.server.chats)) <= WINDOW - ANSWER_TOKENS
    assert sum(len(feedback_in(chat)) for chat in asked(bench, DISTIL)) == 220
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


async def test_compared_guidelines_with_tags_overflow_no_window(bench: Bench) -> None:
    for number in range(16):
        await bench.add_guideline(f"Rule {number} #{number}: {'no <s> or [INST] ' * 20}")
    small_window = bench.server.chat_model(profile={"max_input_tokens": 3_300})
    await bench.call(bench.memory(model=small_window), "consolidate")
    assert len(asked(bench, COMPARE)) > 1
    assert max(map(tokens, asked(bench, COMPARE))) <= 3_300 - ANSWER_TOKENS


async def outcome(bench: Bench, seed: int) -> Any:
    """The result of an alignment of 40 records with random batch durations."""
    waits = random.Random(seed)  # noqa: S311 - nothing secret

    def slow(chat: Any) -> Any:
        time.sleep(waits.random() / 20)
        return guideline_per_comment(chat)

    bench.server.responder = Model(distil=slow)
    how = {5: "never"}
    feedback = [
        comment(n, f"On #{n % 9} {how.get(n % 27, 'always')} name it, said {n}.") for n in range(40)
    ]
    graph, place = alignment(bench, batch_size=4), {"namespace": [f"run{seed}"]}
    report = await align(bench, feedback, graph, f"t{seed}", context=place)
    conflicts = [
        [conflict["first"]["text"], conflict["second"]["text"], conflict["newer"]]
        for conflict in report["conflicts"]
    ]
    guidelines = await bench.guidelines(namespace=(f"run{seed}",))
    return conflicts, [(each.text, each.episode_ids) for each in guidelines]


async def test_result_does_not_depend_on_the_order_in_which_batches_finish(bench: Bench) -> None:
    conflicts, guidelines = await outcome(bench, 0)
    assert len(guidelines) == 9
    [(first, second, newer)] = conflicts
    assert (second if newer == "first" else first) not in dict(guidelines)
    for seed in (1, 2):
        assert await outcome(bench, seed) == (conflicts, guidelines)


@pytest.mark.parametrize("at", [DISTIL, COMPARE])
async def test_feedback_purged_during_an_alignment_leaves_no_trace(bench: Bench, at: str) -> None:
    planted, model = "On #a never say xyzzy-4711.", Model(distil=guideline_per_comment)

    def purge_and_answer(chat: ChatRequest) -> Any:
        memory = JudgeMemory(bench.store, CRITERION, embeddings=bench.server.embedder())
        ids = [each.id for each in memory.episodes() if each.rationale == planted]
        if chat.schema_name == at and ids:
            memory.forget(ids, purge=True)
        return model(chat)

    bench.server.responder = purge_and_answer
    comments = (planted, "On #b thank them.", "On #c be brief.")
    feedback = [comment(number, text) for number, text in enumerate(comments)]
    await align(bench, feedback, alignment(bench, batch_size=1))
    items = bench.store.search((), limit=10_000)
    assert items
    assert not [item for item in items if "xyzzy" in str(item.value)]


def hundred(first: int) -> list[dict[str, Any]]:
    return [
        record(n, rationale=f"On #{n % 10} always name it, said {n}.")
        for n in range(first, first + 100)
    ]


@pytest.mark.parametrize(("first", "awaits"), [(100, False), (100, True), (0, False)])
def test_two_concurrent_processes(
    server: LoopbackServer, tmp_path: Path, first: int, *, awaits: bool
) -> None:
    server.responder, server.latency_s = Model(), 0.05
    store = SqliteStore(connect(tmp_path / "store.db"))
    store.setup()
    # Two processes cannot switch a file to WAL at the same time.
    connect(tmp_path / "threads.db").close()
    workers = []
    for number, begin in enumerate((0, first)):
        options: Any = {"awaits": awaits, "checkpoints": False, "name": f"steps{number}"}
        job = Job(tmp_path, dict(server.environment), CRITERION, hundred(begin), **options)
        workers.append(FORKS.Process(target=work, args=(job,)))
        workers[-1].start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0]
    memory = JudgeMemory(store, CRITERION)
    episodes, guidelines = memory.episodes(), memory.guidelines()
    assert len(episodes) == 100 + first
    assert {episode.status for episode in episodes} == {"distilled"}
    sources = [key for guideline in guidelines for key in guideline.episode_ids]
    assert sorted(sources) == sorted(episode.id for episode in episodes)
    assert len({guideline.text for guideline in guidelines}) == len(guidelines)
    if first:
        assert {*texts(server).values()} == {1}
        assert len(texts(server)) == 200
    else:
        assert len(guidelines) == 10
    store.conn.close()
