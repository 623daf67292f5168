"""An alignment killed at any step and continued has the same result."""

import signal
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

from memalign_graph import JudgeMemory, create_alignment_graph
from tests.conftest import CRITERION
from tests.integration_tests.alignment_model import COMPARE, DISTIL, Model
from tests.integration_tests.alignment_support import progress_of, record
from tests.integration_tests.alignment_worker import BATCH_SIZE, ON, Job, texts, work
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.stores import connect
from tests.unit_tests.memory.worker import FORKS

RECORDS = [
    record(n, rationale=f"On #{n % 10} {'never' if n == 90 else 'always'} name it, said {n}.")
    for n in range(100)
]
BATCHES = 4
WAYS: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"awaits": True},
    "no-checkpoints": {"checkpoints": False},
}


def run(server: LoopbackServer, folder: Path, **options: Any) -> int | None:
    """Align in a process of its own; returns how it ended."""
    server.reset()
    server.responder = Model()
    job = Job(folder, dict(server.environment), CRITERION, RECORDS, **options)
    worker = FORKS.Process(target=work, args=(job,))
    worker.start()
    try:
        worker.join()
    finally:
        worker.kill()
    return worker.exitcode


def go_on(server: LoopbackServer, folder: Path, *, again: bool, checkpoints: bool) -> list[Any]:
    """Continue from the checkpoint or repeat the call; returns the events."""
    store = SqliteStore(connect(folder / "store.db"))
    saver = SqliteSaver(connect(folder / "threads.db")) if checkpoints else None
    store.setup()
    models: Any = {"model": server.chat_model(), "embeddings": server.embedder()}
    builder = create_alignment_graph(CRITERION, batch_size=BATCH_SIZE, **models)
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
    guidelines = [
        (guideline.text, guideline.status, [inputs[key] for key in guideline.episode_ids])
        for guideline in memory.guidelines()
    ]
    query = "SELECT key FROM store WHERE prefix LIKE '%drafts%'"
    drafts = [row[0] for row in connection.execute(query)]
    connection.close()
    statuses = sorted((episode.example.inputs, episode.status) for episode in episodes)
    return guidelines, statuses, drafts


@pytest.fixture(scope="module")
def undisturbed(running_server: LoopbackServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result and number of steps of an undisturbed alignment."""
    steps, outcomes = {}, []
    for way, options in WAYS.items():
        folder = tmp_path_factory.mktemp("undisturbed")
        assert run(running_server, folder, **options) == 0
        steps[way] = int((folder / "steps").read_text())
        outcomes.append(outcome(folder))
        assert set(texts(running_server).values()) == {1}
    assert outcomes == [outcomes[0]] * len(outcomes)
    guidelines, episodes, drafts = outcomes[0]
    assert [status for _, status, _ in guidelines].count("standing") == 10
    assert (len(episodes), drafts) == (100, [])
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
    server: LoopbackServer, undisturbed: Any, tmp_path: Path, way: str, part: slice
) -> None:
    """It is continued from the checkpoint or by repeating the call, alternately."""
    wanted, steps = undisturbed
    checkpoints = way != "no-checkpoints"
    for number, step in enumerate(range(1, steps[way] + 1)[part]):
        folder = tmp_path / str(step)
        folder.mkdir()
        assert run(server, folder, kill_at=step, **WAYS[way]) == -signal.SIGKILL, f"step {step}"
        events = go_on(server, folder, again=number % 2 == 1, checkpoints=checkpoints)
        assert outcome(folder) == wanted, f"step {step}"
        # Vectors that were not stored when the process died are lost.
        assert set(texts(server).values()) <= {1, 2}, f"step {step}"
        distilled = progress_of(events, "distill")
        assert not distilled or distilled[-1] == (BATCHES, BATCHES), f"step {step}"
        # Each written answer is a step; answers in flight at the kill are requested again.
        chats = [chat.schema_name for chat in server.chats]
        assert chats.count(DISTIL) <= 2 * BATCHES
        assert chats.count(COMPARE) <= 2
        if not checkpoints and step > BATCHES + 3:
            assert chats.count(DISTIL) == BATCHES
            assert set(texts(server).values()) == {1}
