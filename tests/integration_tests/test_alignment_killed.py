"""An alignment killed at each of its steps: what goes on from there ends as if nothing had been."""

import asyncio
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from memalign_graph import JudgeMemory
from memalign_graph.settings import DEFAULT_REPLAY_CASES
from tests.conftest import CRITERION
from tests.integration_tests.alignment_replay_support import judged_case
from tests.integration_tests.alignment_support import (
    COMPARE,
    DISTIL,
    JUDGE,
    Model,
    feedback_in,
    progress_of,
    record,
)
from tests.integration_tests.alignment_worker import FORKS, ON, Job, connect, texts, work
from tests.loopback import LoopbackServer, hang

RECORDS = [
    record(n, rationale=f"On #{n % 10} {'never' if n == 90 else 'always'} name it, said {n}.")
    for n in range(100)
]
BATCHES = 4

Start = Callable[..., Any]


@pytest.fixture
def start(server: LoopbackServer, tmp_path: Path) -> Iterator[Start]:
    """Start a worker on the test's files."""
    server.responder = Model()
    workers = []

    def start_worker(**options: Any) -> Any:
        given = {"folder": tmp_path, "environment": dict(server.environment), **options}
        job = Job(criterion=CRITERION, feedback=RECORDS, **given)
        worker = FORKS.Process(target=work, args=(job,))
        worker.start()
        workers.append(worker)
        return worker

    yield start_worker
    for worker in workers:
        worker.kill()
        worker.join()


def graph_builder(server: LoopbackServer, **options: Any) -> Any:
    from memalign_graph import create_alignment_graph
    from tests.integration_tests.alignment_worker import BATCH_SIZE

    return create_alignment_graph(
        CRITERION,
        model=server.chat_model(),
        embeddings=server.embedder(),
        batch_size=BATCH_SIZE,
        **options,
    )


def go_on(server: LoopbackServer, folder: Path, how: str, **options: Any) -> list[Any]:
    """Go on with blocking calls; returns the events."""
    store, saver = SqliteStore(connect(folder / "store.db")), None
    store.setup()
    if how != "again-without-checkpoints":
        saver = SqliteSaver(connect(folder / "threads.db"))
    graph = graph_builder(server, **options).compile(store=store, checkpointer=saver)
    config = ON if saver else {}
    given = None if how == "continue" and graph.get_state(config).next else {"feedback": RECORDS}
    events = list(graph.stream(given, config, stream_mode="custom"))
    store.conn.close()
    if saver:
        saver.conn.close()
    return events


async def ago_on(server: LoopbackServer, folder: Path, how: str) -> list[Any]:
    """Go on with awaited calls; returns the events."""
    async with (
        AsyncSqliteStore.from_conn_string(str(folder / "store.db")) as store,
        AsyncSqliteSaver.from_conn_string(str(folder / "threads.db")) as saver,
    ):
        await store.setup()
        graph = graph_builder(server).compile(store=store, checkpointer=saver)
        waiting = (await graph.aget_state(ON)).next
        given = None if how == "continue" and waiting else {"feedback": RECORDS}
        return [one async for one in graph.astream(given, ON, stream_mode="custom")]


def outcome(folder: Path) -> Any:
    """What the memory holds, with nothing in it that differs from run to run."""
    connection = connect(folder / "store.db")
    memory = JudgeMemory(SqliteStore(connection), CRITERION)
    episodes = memory.episodes()
    inputs = {one.id: one.example.inputs for one in episodes}
    found = (
        [
            (one.text, one.status, [inputs[key] for key in one.episode_ids])
            for one in memory.guidelines()
        ],
        sorted((one.example.inputs, one.status) for one in episodes),
        [
            row[0]
            for row in connection.execute("SELECT key FROM store WHERE prefix LIKE '%drafts%'")
        ],
    )
    connection.close()
    return found


def count(folder: Path, kind: str) -> int:
    """How many items of a kind are stored."""
    if not (folder / "store.db").exists():
        return 0
    connection = connect(folder / "store.db")
    try:
        query = "SELECT COUNT(*) FROM store WHERE prefix LIKE ?"
        return int(connection.execute(query, [f"%{kind}%"]).fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # there is no table yet
    finally:
        connection.close()


@pytest.fixture(scope="module")
def undisturbed(running_server: LoopbackServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an alignment comes to that nobody kills, and in how many steps by which way."""
    steps = {}
    found = []
    for way in WAYS:
        folder = tmp_path_factory.mktemp("undisturbed")
        running_server.reset()
        running_server.responder = Model()
        awaits, checkpoints = way == "async", way != "no-checkpoints"
        job = Job(
            folder,
            dict(running_server.environment),
            CRITERION,
            RECORDS,
            awaits=awaits,
            checkpoints=checkpoints,
        )
        worker = FORKS.Process(target=work, args=(job,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        steps[way] = int((folder / "steps").read_text())
        found.append(outcome(folder))
        assert set(texts(running_server).values()) == {1}
    assert found == [found[0]] * len(found)
    guidelines, episodes, drafts = found[0]
    assert [status for _, status, _ in guidelines].count("standing") == 10
    assert len(episodes) == 100
    assert drafts == []
    return found[0], steps


WAYS = ("sync", "async", "no-checkpoints")


@pytest.mark.parametrize("part", range(2))
async def test_killed_at_any_step(
    server: LoopbackServer, start: Start, undisturbed: Any, tmp_path: Path, part: int
) -> None:
    """With blocking calls: every step, gone on with in turn from the checkpoint and by the call."""
    wanted, steps = undisturbed
    for step in range(1 + part, steps["sync"] + 1, 2):
        how = "again" if (step + part) // 2 % 2 else "continue"
        folder = tmp_path / str(step)
        await kill_and_go_on(server, start, folder, wanted, how=how, kill_at=step)


async def test_killed_at_some_steps_with_awaited_calls(
    server: LoopbackServer, start: Start, undisturbed: Any, tmp_path: Path
) -> None:
    wanted, steps = undisturbed
    for step in range(3, steps["async"] + 1, 5):
        how = "again" if step % 2 else "continue"
        folder = tmp_path / str(step)
        await kill_and_go_on(server, start, folder, wanted, how=how, kill_at=step, awaits=True)


async def test_killed_at_any_step_without_a_checkpointer(
    server: LoopbackServer, start: Start, undisturbed: Any, tmp_path: Path
) -> None:
    """The same call again finds the answers that were paid for."""
    wanted, steps = undisturbed
    how = "again-without-checkpoints"
    for step in range(1, steps["no-checkpoints"] + 1, 2):
        folder = tmp_path / str(step)
        await kill_and_go_on(
            server, start, folder, wanted, how=how, kill_at=step, checkpoints=False
        )
        # Each written answer is a step; those on the way when it died are asked for once more.
        chats = [chat.schema_name for chat in server.chats]
        assert chats.count(DISTIL) <= 2 * BATCHES
        assert chats.count(COMPARE) <= 2
        if step > BATCHES + 3:
            assert chats.count(DISTIL) == BATCHES


async def test_killed_while_models_answer(
    server: LoopbackServer, start: Start, undisturbed: Any, tmp_path: Path
) -> None:
    """Half of the batches are answered, the others not yet; these alone are asked for again."""
    wanted, _ = undisturbed
    late = ("said 0.", "said 60.")

    def slow(chat: Any) -> Any:
        return hang(600) if any(one in chat.text for one in late) else Model()(chat)

    for checkpoints in (True, False):
        folder = tmp_path / str(checkpoints)
        folder.mkdir()
        server.reset()
        server.responder = slow
        worker = start(folder=folder, checkpoints=checkpoints)
        give_up = time.monotonic() + 300
        while count(folder, "drafts") < BATCHES - len(late):
            assert time.monotonic() < give_up
            assert worker.is_alive()
            await asyncio.sleep(0.02)
        worker.kill()
        worker.join()
        server.reset()
        server.responder = Model()
        go_on(server, folder, "continue" if checkpoints else "again-without-checkpoints")
        assert outcome(folder) == wanted
        found = [feedback_in(chat) for chat in server.chats if chat.schema_name == DISTIL]
        assert len(found) == len(late)
        assert server.embeddings == []


async def test_killed_while_seen_cases_are_judged_again(
    server: LoopbackServer, start: Start, undisturbed: Any, tmp_path: Path
) -> None:
    """The first judgments are made, of the second those of half the cases: they are not again."""
    wanted, _ = undisturbed
    right = Model(judge=lambda chat: bool(judged_case(chat) % 2))

    def slow(chat: Any) -> Any:
        again = chat.schema_name == JUDGE and "Guidelines from the experts" in chat.text
        return hang(600) if again and judged_case(chat) % 2 else right(chat)

    server.responder = slow
    worker = start(guard="replay")
    give_up = time.monotonic() + 300
    before = BATCHES + 1 + DEFAULT_REPLAY_CASES
    while count(tmp_path, "drafts") <= before + 2:
        assert time.monotonic() < give_up
        assert worker.is_alive()
        await asyncio.sleep(0.02)
    worker.kill()
    worker.join()
    drafts = count(tmp_path, "drafts")
    server.reset()
    server.responder = right
    go_on(server, tmp_path, "continue", guard="replay")
    assert outcome(tmp_path) == wanted
    assert {chat.schema_name for chat in server.chats} == {JUDGE}
    assert len(server.chats) == BATCHES + 1 + 2 * DEFAULT_REPLAY_CASES - drafts


async def kill_and_go_on(
    server: LoopbackServer, start: Start, folder: Path, wanted: Any, *, how: str, **options: Any
) -> None:
    step = options["kill_at"]
    folder.mkdir()  # noqa: ASYNC240 - nothing else is to run
    server.reset()
    server.responder = Model()
    worker = start(folder=folder, **options)
    worker.join()
    assert worker.exitcode == -signal.SIGKILL, f"step {step}"
    stored = count(folder, "vectors")
    if options.get("awaits"):
        events = await ago_on(server, folder, how)
    else:
        events = go_on(server, folder, how)
    assert outcome(folder) == wanted, f"step {step}"
    # What was embedded and not yet stored when the process died can't be had back.
    assert set(texts(server).values()) <= ({1} if stored else {1, 2}), f"step {step}"
    distilled = progress_of(events, "distill")
    assert not distilled or distilled[-1] == (BATCHES, BATCHES), f"step {step}"
