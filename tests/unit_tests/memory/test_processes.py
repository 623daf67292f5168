"""Several processes on one SQLite file or Postgres database."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import Op, SearchOp
from langgraph.store.postgres import PostgresStore
from psycopg import connect

from memalign_graph import JudgeMemory, create_judge_graph
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.facts import clock
from memalign_graph.memory.judgments import find_judgment
from memalign_graph.memory.memory_state import build_state
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.driver import check_same
from tests.unit_tests.memory.stores import Opener
from tests.unit_tests.memory.support import CRITERION, QUERY, comment, hashed, learn, op
from tests.unit_tests.memory.worker import FORKS, act, die, learn_there, look, start, store_at

COUNT = 3
"""How many processes act at once."""

STEPS = int(os.environ.get("MEMALIGN_TEST_STEPS", "30"))
"""How often each process acts; a thousand times tells more."""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_random_processes(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    place: Path | str = tmp_path / "store.db"
    if kind == "postgres":
        place = request.getfixturevalue("postgres_uri")
    stores: list[Any] = [store_at(place), store_at(place)]
    for store in stores:
        request.addfinalizer(store.conn.close)
    memory, cold = (JudgeMemory(store, CRITERION, embeddings=hashed) for store in stores)
    memory.version()
    children = [start(act, place, f"actor {number}", STEPS) for number in range(COUNT)]
    pipes = [pipe for _, pipe in children]
    assert [pipe.recv() for pipe in pipes] == ["ready"] * COUNT
    for pipe in pipes:
        pipe.send("go")
    written = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send("look")
    seen = [pipe.recv() for pipe in pipes]

    guidelines, episodes = memory.guidelines(), memory.episodes()
    assert seen == [(memory.version(), guidelines, episodes)] * COUNT
    facts, rows = memory.access.view.facts()
    assert all(written)
    assert sorted(fact.id for fact in facts) == sorted(key for item in written for key in item)
    assert build_state(facts, rows).version == memory.version()
    check_same([memory], cold)


def test_killed_writer_adds_nothing(server: LoopbackServer, opener: Opener, tmp_path: Path) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    before = memory.version()
    child = FORKS.Process(target=die, args=(tmp_path / "store.db", dict(server.environment)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert [request.texts for request in server.embeddings] == [["one\n\na", "two\n\na"]]

    assert memory.episodes() == []
    assert memory.recall(QUERY) == []
    assert memory.version() == before
    server.embeddings.clear()
    memory.remember([comment("one"), comment("two")])
    assert len(memory.recall(comment("one").example)) == 2
    assert server.embeddings == []


def test_same_order_of_recall(server: LoopbackServer, opener: Opener, tmp_path: Path) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    episodes = memory.remember([comment(f"case {number}") for number in range(20)])
    rules = {f"Rule of {episode.example.inputs}.": episode for episode in episodes}
    learn(memory, *(op("add", episode, text=text) for text, episode in rules.items()))
    server.embeddings.clear()
    _, pipe = start(look, tmp_path / "store.db", dict(server.environment))
    guidelines = [guideline.id for guideline in memory.guidelines()]
    assert pipe.recv() == (memory.version(), guidelines, [episode.id for episode in episodes], 20)
    assert [request.texts for request in server.embeddings] == [["a new question\n\na"]]


Open = Callable[[], JudgeMemory]


class Counting(PostgresStore):
    """Records its operations."""

    def batch(self, ops: Any) -> Any:
        vars(self).setdefault("asked", []).append(list(ops))
        return super().batch(ops)

    def taken(self) -> list[list[Op]]:
        operations: list[list[Op]] = vars(self).pop("asked", [])
        return operations


@pytest.fixture
def another_worker(postgres_uri: str) -> Iterator[Open]:
    """Open the memory with another connection, as another worker."""
    with ExitStack() as stack:

        def opened() -> JudgeMemory:
            store = stack.enter_context(Counting.from_conn_string(postgres_uri))
            return JudgeMemory(store, CRITERION, embeddings=hashed)

        yield opened


@pytest.mark.postgres
def test_next_judgment_of_another_process_sees_the_lesson_with_one_small_read(
    another_worker: Open, postgres_uri: str, server: LoopbackServer
) -> None:
    memory = another_worker()
    memory.remember([comment("one")])
    store: Any = memory.access.store
    judging = create_judge_graph(CRITERION, model=server.chat_model(), embeddings=hashed)
    graph = judging.compile(store=store)

    def judged() -> tuple[list[str], list[str]]:
        """The input of a judgment and its store operations."""
        store.taken()
        judgment = graph.invoke({"inputs": "two", "outputs": "a"})["judgment"]
        guidelines = {guideline.id: guideline.text for guideline in memory.access.view.guidelines}
        operations = [f"{type(op).__name__} {part_of(op)}" for ops in store.taken() for op in ops]
        return [guidelines[key] for key in judgment["guideline_ids"]], operations

    judged()
    looks = ["GetOp head"]
    assert judged() == ([], looks)
    process, pipe = start(learn_there, postgres_uri)
    assert pipe.recv() == (1, [])
    states: list[str] = []
    for text in ("Say sorry.", "Give a date."):
        pipe.send(text)
        assert pipe.recv() == "learned"
        states.append(text)
        assert judged() == (states, [*looks, "SearchOp facts"])
        assert judged() == (states, looks)
    memory.remember([comment("two")])
    pipe.send(None)
    assert pipe.recv() == (2, states)
    process.join()


def part_of(op: Any) -> str:
    return str((op.namespace_prefix if isinstance(op, SearchOp) else op.namespace)[-1])


@pytest.mark.postgres
@pytest.mark.parametrize("known", [False, True], ids=["empty", "by a clock that was never set"])
def test_reader_sees_facts_dated_before_1970(
    another_worker: Open, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """Postgres compares times as text, and many collations ignore a minus sign."""
    writer, reader = another_worker(), another_worker()
    if known:
        with monkeypatch.context() as patched:
            patched.setattr(clock, "now_us", lambda: 90_000_000_000)  # in 1970
            writer.remember([comment("one")])
    assert len(reader.episodes()) == int(known)
    writer.remember([comment("two")])
    store: Any = reader.access.store
    store.taken()
    assert "two" in [episode.example.inputs for episode in reader.episodes()]
    [search] = [op for ops in store.taken() for op in ops if isinstance(op, SearchOp)]
    assert search.filter == {"kind": "fact"}


@pytest.mark.postgres
def test_writers_in_another_order_do_not_deadlock(another_worker: Open) -> None:
    """Postgres locks row by row, so opposite orders could deadlock."""
    with ThreadPoolExecutor(2) as pool:
        for number in range(5):
            feedback = [comment(f"case {number} {part}", "ß" * 500) for part in range(200)]
            one, other = another_worker(), another_worker()
            orders = ((one, feedback), (other, feedback[::-1]))
            writing = [pool.submit(memory.remember, some) for memory, some in orders]
            for done in writing:
                done.result()
            assert one.version() == other.version()


@pytest.mark.postgres
def test_reading_a_kept_judgment_does_not_extend_its_time_to_live(
    another_worker: Open, postgres_uri: str, server: LoopbackServer
) -> None:
    memory = another_worker()
    options: Any = {"embeddings": hashed, "keep_judgments": timedelta(seconds=90)}
    judging = create_judge_graph(CRITERION, model=server.chat_model(), **options)
    judging.compile(store=memory.access.store).invoke({"inputs": "one", "outputs": "a"})
    timed = "SELECT expires_at FROM store WHERE expires_at IS NOT NULL OR ttl_minutes IS NOT NULL"
    with connect(postgres_uri, autocommit=True) as connection:
        [before] = connection.execute(timed).fetchall()
        [judgment] = memory.judgments(waiting=True)
        run_sync(find_judgment(SYNC, memory.access, judgment.judgment.id))
        memory.remember([comment("two")])
        [after] = connection.execute(timed).fetchall()
    assert before == after
    assert abs(before[0] - judgment.kept_until) < timedelta(minutes=1)
