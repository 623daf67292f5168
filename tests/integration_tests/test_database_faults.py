"""Database faults: a clear error or the right answer, and no loss."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest

from memalign_graph import JudgeMemory, StoreError, create_judge_graph
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.judgments import find_judgment
from tests import postgres
from tests.conftest import CASE
from tests.loopback import LoopbackServer
from tests.proxy import Proxy, proxied
from tests.unit_tests.memory.driver import check_same, content_of
from tests.unit_tests.memory.support import CRITERION, comment, hashed, learn, op

pytestmark = pytest.mark.postgres

Open = Callable[..., JudgeMemory]


@pytest.fixture
def proxy(postgres_uri: str) -> Iterator[Proxy]:
    with proxied(postgres_uri) as running:
        yield running


@pytest.fixture
def worker(postgres_uri: str) -> Iterator[Open]:
    """Open a memory as another worker; without a URL, over a reliable connection."""
    from langgraph.store.postgres import PostgresStore

    with ExitStack() as stack:
        lent = stack.enter_context(PostgresStore.from_conn_string(postgres_uri))

        def opened(uri: str = "", name: str = "memalign", pool: Any = None) -> JudgeMemory:
            store = PostgresStore(lent.conn)
            if uri:
                opening = PostgresStore.from_conn_string(uri, pool_config=pool)
                store = stack.enter_context(opening)
            return JudgeMemory(store, CRITERION, namespace=name, embeddings=hashed)

        yield opened


def pool_of(size: int) -> dict[str, Any]:
    from psycopg_pool import ConnectionPool

    check = ConnectionPool.check_connection
    return {"min_size": size, "max_size": size, "timeout": 0.5, "check": check}


@contextmanager
def failing(fix: str) -> Iterator[None]:
    """Expect an error with one sentence that names the fix, and its cause."""
    with pytest.raises(StoreError) as failed:
        yield
    sentence = rf"The (Async)?PostgresStore failed: .*{fix}.*; .*nothing is stored twice\."
    assert re.fullmatch(sentence, str(failed.value))
    assert failed.value.__cause__ is not None


def connection_of(memory: JudgeMemory) -> Any:
    return memory.access.store.conn  # type: ignore[attr-defined]


def wait_until_ended(near: JudgeMemory, far: JudgeMemory, backend: int) -> None:
    """Wait until the server finished the statements of a disconnected worker."""
    running = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
    while connection_of(far).closed and connection_of(near).execute(running, [backend]).fetchone():
        time.sleep(0.01)


CHANGES: dict[str, Callable[[JudgeMemory], Any]] = {
    "remember": lambda memory: memory.remember([comment("two"), comment("three", "ß" * 9_000)]),
    "revise": lambda memory: memory.revise(memory.episodes()[0].id, {"rationale": "Another."}),
    "learn": lambda memory: learn(memory, op("add", *memory.episodes(), text="Of all.")),
    "write": lambda memory: memory.add_guideline("By hand, too."),
    "forget": lambda memory: memory.forget(where=lambda _: True),
}


_MOST_CUTS = 300


@pytest.mark.parametrize("name", CHANGES)
def test_a_cut_connection_leaves_no_half_change(proxy: Proxy, worker: Open, name: str) -> None:
    change, after, remaining = CHANGES[name], None, []
    cuts: list[int | None] = [None]
    for number, cut in enumerate(cuts):
        assert number < _MOST_CUTS
        space = f"memory {number}"
        near, far = worker(name=space), worker(proxy.uri, name=space)
        near.remember([comment("one")])
        near.add_guideline("By hand.")
        before = content_of(far)
        backend = connection_of(far).info.backend_pid  # a closed connection does not know it
        proxy.carried.clear()
        proxy.cut_at = cut
        if cut is None:
            change(far)
            cuts += range(len(proxy.carried))
            after = content_of(near)
            continue
        try:
            change(far)
        except StoreError as error:
            assert "is the database up" in str(error)  # noqa: PT017 - not every cut raises
            wait_until_ended(near, far, backend)
            remaining.append(content_of(worker(name=space)))
            later = cut + 1
        else:
            assert content_of(near) == after
            later = len(proxy.carried) - 1
        proxy.cut_at = None
        cold, again = worker(name=space), worker(name=space)
        change(again)
        assert content_of(again) == after
        check_same([again, near, cold], worker(name=space))
        # Messages can be split differently: continue until the last one is cut.
        if number == len(cuts) - 1 and after not in remaining:
            cuts.append(later)
    assert remaining.count(before) + remaining.count(after) == len(remaining)
    assert before in remaining
    assert after in remaining  # it was written, but the worker got no confirmation


def test_judging_needs_few_round_trips(proxy: Proxy, worker: Open, server: LoopbackServer) -> None:
    near, far = worker(), worker(proxy.uri)
    judging = create_judge_graph(CRITERION, model=server.chat_model(), embeddings=hashed)
    graph = judging.compile(store=far.access.store)
    near.add_guideline("By hand.")
    far.remember([comment("two")])
    graph.invoke(CASE)
    proxy.latency_s = 0.2
    for turns in (2, 4):  # two for a read: of the head, and of what is new
        proxy.carried.clear()
        judgment = graph.invoke(CASE)["judgment"]
        assert judgment["memory_version"] == near.version()
        assert proxy.carried.count("answered") == turns
        near.add_guideline("By hand, too.")
    check_same([far, near], worker())


def test_pool_reconnects(postgres_uri: str, worker: Open, server: LoopbackServer) -> None:
    pooled, single = worker(postgres_uri, pool=pool_of(2)), worker(postgres_uri)
    judging = create_judge_graph(CRITERION, model=server.chat_model(), embeddings=hashed)
    graph = judging.compile(store=pooled.access.store)
    pooled.remember([comment("one")])
    single.version()
    with postgres.stopped(postgres_uri):
        with failing("raise the pool's max_size"):
            graph.invoke(CASE)
        with failing("open the store again"):
            single.remember([comment("two")])
        assert server.chats == []
    give_up = time.monotonic() + 120
    while True:
        try:
            assert graph.invoke(CASE)["judgment"]["memory_version"] == pooled.version()
            break
        except StoreError:  # a pool that could not connect waits before it tries again
            assert time.monotonic() < give_up
    with failing("open the store again"):
        single.remember([comment("two")])
    pooled.remember([comment("two")])
    check_same([pooled], worker(postgres_uri))


async def test_exhausted_pool_is_named(postgres_uri: str, server: LoopbackServer) -> None:
    from langgraph.store.postgres import AsyncPostgresStore

    pool: Any = {"min_size": 1, "max_size": 1}
    async with AsyncPostgresStore.from_conn_string(postgres_uri, pool_config=pool) as store:
        judging = create_judge_graph(CRITERION, model=server.chat_model(), embeddings=hashed)
        graph = judging.compile(store=store)
        cases: Any = [{**CASE, "inputs": f"{number}"} for number in range(20)]
        lent: Any = store.conn
        patience, lent.timeout = lent.timeout, 0.1
        async with lent.connection(patience):
            with failing("raise the pool's max_size"):
                await graph.ainvoke(CASE)
        lent.timeout = patience
        judged = await graph.abatch(cases)
        assert len({item["judgment"]["id"] for item in judged}) == len(server.chats) == 20


def test_read_only_replica(postgres_uri: str, worker: Open, server: LoopbackServer) -> None:
    near = worker()
    near.remember([comment("one")])
    replica = worker(f"{postgres_uri}&options=-cdefault_transaction_read_only%3Don")
    judging = create_judge_graph(CRITERION, model=server.chat_model(), embeddings=hashed)
    graph = judging.compile(store=replica.access.store)
    for act in (lambda: graph.invoke(CASE), lambda: replica.remember([comment("two")])):
        with failing("give it the primary"):
            act()
    assert server.chats == []
    check_same([near], worker())


def test_writers_in_another_order_do_not_deadlock(worker: Open, postgres_uri: str) -> None:
    """Postgres locks row by row, so opposite orders could deadlock."""
    with ThreadPoolExecutor(2) as pool:
        for number in range(5):
            feedback = [comment(f"case {number} {part}", "ß" * 500) for part in range(200)]
            one, other = worker(postgres_uri), worker(postgres_uri)
            orders = ((one, feedback), (other, feedback[::-1]))
            writing = [pool.submit(memory.remember, some) for memory, some in orders]
            for done in writing:
                done.result()
            assert one.version() == other.version()


def test_reading_a_kept_judgment_does_not_extend_its_time_to_live(
    worker: Open, server: LoopbackServer
) -> None:
    memory = worker()
    options: Any = {"embeddings": hashed, "keep_judgments": timedelta(seconds=90)}
    judging = create_judge_graph(CRITERION, model=server.chat_model(), **options)
    judging.compile(store=memory.access.store).invoke({"inputs": "one", "outputs": "a"})
    timed = "SELECT expires_at FROM store WHERE expires_at IS NOT NULL OR ttl_minutes IS NOT NULL"
    connection = connection_of(memory)
    [before] = connection.execute(timed).fetchall()
    [judgment] = memory.judgments(waiting=True)
    run_sync(find_judgment(SYNC, memory.access, judgment.judgment.id))
    memory.remember([comment("two")])
    assert connection.execute(timed).fetchall() == [before]
    assert abs(before["expires_at"] - judgment.kept_until) < timedelta(minutes=1)
