"""Defects of another implementation, tested on this one."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import SearchOp
from langgraph.store.sqlite import SqliteStore

from memalign_graph import Categorical, Criterion, JudgeMemory
from memalign_graph.prompts.fences import estimate_tokens
from tests.conftest import CASE, CRITERION, Bench, judgings, thread
from tests.integration_tests.alignment_model import DISTIL, Model, guideline_per_comment
from tests.integration_tests.alignment_support import (
    align,
    alignment,
    asked,
    embedded,
    record,
    records,
    said,
    sources,
)

ROOT = Path(__file__).parents[2]


def case(number: int) -> dict[str, Any]:
    return {name: record(number)[name] for name in ("inputs", "outputs")}


@pytest.mark.parametrize("bench", ["sqlite-sync"], indirect=True)
async def test_eight_concurrent_first_judgments_after_a_restart_all_see_episodes(
    bench: Bench, tmp_path: Path
) -> None:
    bench.server.responder = Model()
    await align(bench, records(20, topics=2))
    bench.server.embeddings.clear()
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as reopened:
        bench.store = reopened
        graph = bench.judge_graph()
        with ThreadPoolExecutor(8) as pool:
            judge = pool.map(lambda n: graph.invoke(case(100 + n), thread(f"j{n}")), range(8))
            judgments = list(judge)
    assert [len(item["judgment"]["episode_ids"]) for item in judgments] == [5] * 8
    assert len(embedded(bench)) == 8


async def test_judge_works_after_all_feedback_was_removed(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = bench.judge_graph()
    await align(bench, records(6, topics=2))
    forgotten = bench.memory().forget(where=lambda _: True)
    assert len(forgotten.episode_ids) == 6
    assert (await bench.episodes(), await bench.guidelines()) == ([], [])
    judgment = (await bench.invoke(graph, CASE, "j"))["judgment"]
    assert judgment["episode_ids"] == judgment["guideline_ids"] == []
    report = await align(bench, records(6, topics=2), on="u")
    assert report["feedback"]["new"] == 6
    assert len(report["guidelines"]["added"]) == 2


@pytest.mark.parametrize("bench", ["sqlite-sync"], indirect=True)
async def test_agreeing_labels_on_one_case_do_not_multiply_on_reload(
    bench: Bench, tmp_path: Path
) -> None:
    bench.server.responder = Model()
    names = ("ann", "bob", "carl", "dora")
    feedback = [record(1, author=name, value=False, rationale=None) for name in names]
    await align(bench, feedback)
    for round_number in range(3):
        with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as reopened:
            memory = JudgeMemory(reopened, CRITERION, embeddings=bench.server.embedder())
            assert len(memory.episodes()) == 4
            [recalled] = memory.recall(case(2))
            assert len(recalled.episodes) == 4
        await align(bench, feedback, on=f"r{round_number}")
    assert len(await bench.episodes()) == 4
    feedback = await bench.invoke(bench.judge_graph(), case(2), "j")
    assert len(feedback["judgment"]["episode_ids"]) == 4
    [chat] = judgings(bench.server)
    [answer] = [message["content"] for message in chat.messages if message["role"] == "assistant"]
    assert json.loads(answer)["value"] is False


async def test_labels_keep_their_case(bench: Bench) -> None:
    kind = Criterion(
        name="kind", instructions="Which?", scale=Categorical(choices=("Very Good", "BAD"))
    )
    bench.server.responder = Model(judge=lambda _: "BAD")
    await align(bench, [record(1, value="Very Good")], alignment(bench, kind))
    [episode] = await bench.episodes(criterion=kind)
    assert episode.value == "Very Good"
    judgment = (await bench.invoke(bench.judge_graph(kind), case(2), "j"))["judgment"]
    assert judgment["value"] == "BAD"
    [chat] = judgings(bench.server)
    assert chat.schema is not None
    assert chat.schema["properties"]["value"]["enum"] == ["Very Good", "BAD"]
    assert "Very Good" in chat.text.partition("<case>")[0]


async def test_very_long_query_and_episode_are_truncated(bench: Bench) -> None:
    bench.server.responder = Model()
    giant = "word " * 168_000
    window = 128_000
    model = bench.server.chat_model(profile={"max_input_tokens": window})
    graph = alignment(bench, model=model)
    await align(bench, [record(1, outputs=giant, rationale=giant), record(2)], graph)
    judge = bench.judge_graph(model=model)
    await bench.invoke(judge, case(3), "j")
    small = judgings(bench.server)[-1]
    assert estimate_tokens(small.text) < 5_000
    assert "bytes left out" in small.text
    judgment = (await bench.invoke(judge, {"inputs": giant, "outputs": "Short."}, "k"))["judgment"]
    assert estimate_tokens(judgings(bench.server)[-1].text) <= window
    assert any("too long" in warning for warning in judgment["warnings"])
    assert max(map(len, embedded(bench))) < 60_000
    assert estimate_tokens(asked(bench, DISTIL)[0].text) < 5_000


async def test_two_answers_to_one_question_retrieve_different_episodes(bench: Bench) -> None:
    bench.server.responder = Model()
    question = "What is the capital of France, and why is that so?"
    right = "Paris, because the kings of the Franks chose it and nobody moved it since."
    wrong = "Lyon lies where two rivers meet and has the best kitchens of the land."
    feedback = [
        record(1, inputs=question, outputs=right, value=True),
        record(2, inputs=question, outputs=wrong, value=False),
    ]
    await align(bench, feedback)
    for answer, value in ((right[:-7], True), (wrong[:-7], False)):
        [recalled] = bench.memory().recall({"inputs": question, "outputs": answer}, k=1)
        assert [episode.value for episode in recalled.episodes] == [value]


async def test_no_thread_is_leaked(bench: Bench) -> None:
    bench.server.responder = Model()
    await align(bench, records(4))
    await bench.invoke(bench.judge_graph(), case(9), "j")

    def own() -> set[threading.Thread]:
        """The running threads except those of the server and the event loop's pool."""
        others = ("loopback", "asyncio")
        return {
            os_thread
            for os_thread in threading.enumerate()
            if not os_thread.name.startswith(others)
        }

    before = own()
    for number in range(4):
        await align(bench, [record(50 + number)], on=f"a{number}")
        await bench.invoke(bench.judge_graph(), case(90 + number), f"j{number}")
        bench.memory().recall(case(number))
    assert own() <= before


async def test_changes_do_not_embed_again(bench: Bench) -> None:
    bench.server.responder = Model()
    await align(bench, records(30, topics=3))
    bench.server.embeddings.clear()
    await align(bench, [record(99)], on="u")
    assert len(embedded(bench)) == 1
    bench.server.embeddings.clear()
    first = (await bench.episodes())[0]
    bench.memory().forget(first.id)
    await align(bench, records(30, topics=3, first=1), on="v")
    assert len(embedded(bench)) == 1  # record 30, which is new; what is left is not
    bench.server.embeddings.clear()
    await bench.invoke(bench.judge_graph(), case(500), "j")
    assert len(embedded(bench)) == 1


READ = """
import json, sys
from langgraph.store.sqlite import SqliteStore
from memalign_graph import JudgeMemory
from tests.conftest import CRITERION

with SqliteStore.from_conn_string(sys.argv[1]) as store:
    memory = JudgeMemory(store, CRITERION, embeddings="openai:text-embedding-3-small")
    print(json.dumps([guideline.text for guideline in memory.guidelines()]))
"""


@pytest.mark.parametrize("bench", ["sqlite-sync"], indirect=True)
async def test_guidelines_have_one_order_in_all_processes(bench: Bench, tmp_path: Path) -> None:
    bench.server.responder = Model()
    await align(bench, records(40, topics=20), alignment(bench, batch_size=5))
    wanted = [record(number)["rationale"] for number in range(20)]
    assert [guideline.text for guideline in await bench.guidelines()] == wanted
    command = [sys.executable, "-c", READ, str(tmp_path / "store.db")]
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    read = subprocess.check_output(command, env=env, cwd=ROOT, timeout=300)  # noqa: ASYNC221
    assert json.loads(read) == wanted


async def do(bench: Bench, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the memory, or its async twin."""
    memory = bench.memory()
    if bench.awaits:
        return await getattr(memory, f"a{name}")(*args, **kwargs)
    return getattr(memory, name)(*args, **kwargs)


async def test_edited_feedback_retires_the_old_guideline(bench: Bench) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    await align(bench, [said(1, "On #a always say sorry.")])
    edited = said(1, "On #b always thank them.", given_at=record(9)["given_at"])
    await align(bench, [edited])
    assert list(sources(await bench.guidelines())) == ["On #b always thank them."]
    await bench.invoke(bench.judge_graph(), case(5), "j")
    assert "say sorry" not in judgings(bench.server)[-1].text


async def test_feedback_can_be_forgotten_without_its_thread(bench: Bench) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    feedback = [
        said(1, "On #a say sorry.", id="trace-1"),
        said(2, "On #b thank them.", author="bob"),
        said(3, "On #c be brief."),
    ]
    await align(bench, feedback)
    unknown = await do(bench, "forget", "no such episode")
    assert (unknown.episode_ids, unknown.unknown_ids) == ([], ["no such episode"])
    assert len(await bench.guidelines()) == 3
    await do(bench, "forget", feedback_ids="trace-1")
    assert "On #a say sorry." not in sources(await bench.guidelines())
    await do(bench, "forget", author="bob")
    assert sources(await bench.guidelines()) == {"On #c be brief.": 1}
    await do(bench, "forget", where=lambda one: "brief" in (one.rationale or ""))
    assert await bench.guidelines() == []


async def test_no_cache_keeps_deleted_text(bench: Bench) -> None:
    planted = "xyzzy-4711"
    bench.server.responder = Model(distil=guideline_per_comment)
    judge = bench.judge_graph()
    graph = alignment(bench)
    feedback = [
        record(1, outputs=f"A reply with {planted}.", rationale=f"On #a never say {planted}."),
        said(2, "On #b thank them."),
    ]
    await align(bench, feedback, graph)
    await bench.invoke(judge, case(3), "j")
    assert planted in judgings(bench.server)[-1].text
    [episode] = [
        episode for episode in await bench.episodes() if planted in str(episode.example.outputs)
    ]
    await do(bench, "forget", episode.id, purge=True, checkpointer=bench.saver)
    await bench.invoke(judge, case(3), "k")
    last = judgings(bench.server)[-1].text
    assert planted not in last
    assert "thank them" in last
    [items] = (
        await bench.store.abatch([SearchOp((), limit=10_000)])
        if bench.awaits
        else bench.store.batch([SearchOp((), limit=10_000)])
    )
    assert isinstance(items, list)
    assert items
    assert planted not in json.dumps([item.value for item in items])  # type: ignore[union-attr]
    assert planted not in str(await bench.state(graph))
