"""An alignment killed at any step and continued has the same result."""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory, create_alignment_graph
from memalign_graph.settings import DEFAULT_REPLAY_CASES
from tests.conftest import CRITERION
from tests.integration_tests.alignment_model import COMPARE, DISTIL, JUDGE, Model, judged_case
from tests.integration_tests.alignment_support import progress_of, record
from tests.integration_tests.alignment_worker import BATCH_SIZE, ON, Job, texts, work
from tests.loopback import LoopbackServer, hang
from tests.unit_tests.memory.stores import connect
from tests.unit_tests.memory.worker import FORKS

RECORDS = [
    record(n, rationale=f"On #{n % 10} {'never' if n == 90 else 'always'} name it, said {n}.")
    for n in range(100)
]
BATCHES = 4

Start = Callable[..., Any]


@pytest.fixture
def start(server: LoopbackServer, tmp_path: Path) -> Iterator[Start]:
    server.responder = Model()
    workers = []

    def start_worker(**options: Any) -> Any:
        arguments = {"folder": tmp_path, "environment": dict(server.environment), **options}
        job = Job(criterion=CRITERION, feedback=RECORDS, **arguments)
        worker = FORKS.Process(target=work, args=(job,))
        worker.start()
        workers.append(worker)
        return worker

    yield start_worker
    for worker in workers:
        worker.kill()
        worker.join()


def go_on(
    server: LoopbackServer,
    folder: Path,
    *,
    again: bool = False,
    checkpoints: bool = True,
    guard: Any = None,
) -> list[Any]:
    """Continue from the checkpoint or repeat the call; returns the events."""
    store, saver = SqliteStore(connect(folder / "store.db")), None
    store.setup()
    if checkpoints:
        saver = SqliteSaver(connect(folder / "threads.db"))
    models: Any = {"model": server.chat_model(), "embeddings": server.embedder()}
    builder = create_alignment_graph(CRITERION, batch_size=BATCH_SIZE, guard=guard, **models)
    graph: Any = builder.compile(store=store, checkpointer=saver)
    config = ON if saver else {}
    waits = saver is not None and not again and graph.get_state(config).next
    graph_input = None if waits else {"feedback": RECORDS}
    events = list(graph.stream(graph_input, config, stream_mode="custom"))
    store.conn.close()
    if saver:
        saver.conn.close()
    return events


def outcome(folder: Path) -> Any:
    """The memory's content without ids and times."""
    connection = connect(folder / "store.db")
    memory = JudgeMemory(SqliteStore(connection), CRITERION)
    episodes = memory.episodes()
    inputs = {episode.id: episode.example.inputs for episode in episodes}
    guidelines = (
        [
            (guideline.text, guideline.status, [inputs[key] for key in guideline.episode_ids])
            for guideline in memory.guidelines()
        ],
        sorted((episode.example.inputs, episode.status) for episode in episodes),
        [
            row[0]
            for row in connection.execute("SELECT key FROM store WHERE prefix LIKE '%drafts%'")
        ],
    )
    connection.close()
    return guidelines


def count(folder: Path, kind: str) -> int:
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


WAYS: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"awaits": True},
    "no-checkpoints": {"checkpoints": False},
}


@pytest.fixture(scope="module")
def undisturbed(running_server: LoopbackServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result and number of steps of an undisturbed alignment."""
    steps = {}
    outcomes = []
    for way, options in WAYS.items():
        folder = tmp_path_factory.mktemp("undisturbed")
        running_server.reset()
        running_server.responder = Model()
        job = Job(folder, dict(running_server.environment), CRITERION, RECORDS, **options)
        worker = FORKS.Process(target=work, args=(job,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        steps[way] = int((folder / "steps").read_text())
        outcomes.append(outcome(folder))
        assert set(texts(running_server).values()) == {1}
    assert outcomes == [outcomes[0]] * len(outcomes)
    guidelines, episodes, drafts = outcomes[0]
    assert [status for _, status, _ in guidelines].count("standing") == 10
    assert len(episodes) == 100
    assert drafts == []
    return outcomes[0], steps


@pytest.mark.parametrize(
    ("way", "part"),
    [
        ("sync", slice(0, None, 2)),
        ("sync", slice(1, None, 2)),
        ("async", slice(2, None, 5)),
        ("no-checkpoints", slice(0, None, 3)),
    ],
)
def test_alignment_killed_at_any_step_is_continued(
    server: LoopbackServer, start: Start, undisturbed: Any, tmp_path: Path, way: str, part: slice
) -> None:
    """It is continued from the checkpoint or by repeating the call, alternately."""
    wanted, steps = undisturbed
    checkpoints = way != "no-checkpoints"
    for number, step in enumerate(range(1, steps[way] + 1)[part]):
        folder = tmp_path / str(step)
        folder.mkdir()
        server.reset()
        server.responder = Model()
        worker = start(folder=folder, kill_at=step, **WAYS[way])
        worker.join()
        assert worker.exitcode == -signal.SIGKILL, f"step {step}"
        stored = count(folder, "vectors")
        events = go_on(server, folder, again=number % 2 == 1, checkpoints=checkpoints)
        assert outcome(folder) == wanted, f"step {step}"
        # Vectors that were not stored when the process died are lost.
        assert set(texts(server).values()) <= ({1} if stored else {1, 2}), f"step {step}"
        distilled = progress_of(events, "distill")
        assert not distilled or distilled[-1] == (BATCHES, BATCHES), f"step {step}"
        # Each written answer is a step; answers in flight at the kill are requested again.
        chats = [chat.schema_name for chat in server.chats]
        assert chats.count(DISTIL) <= 2 * BATCHES
        assert chats.count(COMPARE) <= 2
        if not checkpoints and step > BATCHES + 3:
            assert chats.count(DISTIL) == BATCHES


def test_alignment_killed_during_replay_is_continued(
    server: LoopbackServer, start: Start, undisturbed: Any, tmp_path: Path
) -> None:
    """Judgments made before the kill are not repeated."""
    wanted, _ = undisturbed
    right = Model(judge=lambda chat: bool(judged_case(chat) % 2))

    def slow(chat: Any) -> Any:
        again = chat.schema_name == JUDGE and "Guidelines from the experts" in chat.text
        return hang(600) if again and judged_case(chat) % 2 else right(chat)

    server.responder = slow
    worker = start(guard="replay")
    give_up = time.monotonic() + 300
    while count(tmp_path, "drafts") < BATCHES + 1 + DEFAULT_REPLAY_CASES + 3:
        assert time.monotonic() < give_up
        assert worker.is_alive()
        time.sleep(0.02)
    worker.kill()
    worker.join()
    drafts = count(tmp_path, "drafts")
    server.reset()
    server.responder = right
    go_on(server, tmp_path, guard="replay")
    assert outcome(tmp_path) == wanted
    assert {chat.schema_name for chat in server.chats} == {JUDGE}
    assert len(server.chats) == BATCHES + 1 + 2 * DEFAULT_REPLAY_CASES - drafts
