"""Defects found in another memory of this kind, each of which this one must not have."""

import threading
from collections.abc import Callable
from pathlib import Path

from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.stores import Opener
from tests.unit_tests.memory.support import CRITERION, QUERY, Bench, hashed, learn, op, said
from tests.unit_tests.memory.worker import look, start


async def test_agreeing_experts_do_not_multiply_on_reload(
    bench: Bench, reopen: Callable[[], None]
) -> None:
    labels = [said("case", None, value=True, author=name) for name in ("ann", "bob", "eve", "joe")]
    for _ in range(3):
        await bench.remember(*labels)
        reopen()
        [found] = await bench.do("recall", QUERY, k=50)
        assert [one.author for one in found.episodes] == ["ann", "bob", "eve", "joe"]
        assert len(await bench.do("episodes")) == 4
    assert len(await bench.do("history")) == 1


def test_no_thread_is_left_behind_by_a_memory(any_opener: Opener) -> None:
    def use() -> None:
        memory = JudgeMemory(any_opener(), CRITERION, embeddings=hashed)
        memory.remember(said("one"))
        memory.recall(QUERY)
        memory.forget(where=lambda _: True)

    use()
    before = set(threading.enumerate())
    for _ in range(10):
        use()
    assert set(threading.enumerate()) <= before


def test_the_same_lessons_in_another_order_are_the_same_guidelines() -> None:
    def learned(order: list[int]) -> set[tuple[str, str, frozenset[str]]]:
        memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
        for number in order:
            episode = memory.remember(said(f"case {number}"))
            learn(memory, op("add", episode, text=f"Rule {number % 3}."))
        return {(one.id, one.text, frozenset(one.episode_ids)) for one in memory.guidelines()}

    assert learned([0, 1, 2, 3, 4]) == learned([4, 2, 0, 3, 1])


def test_every_process_reads_the_same_order_and_embeds_the_query_alone(
    server: LoopbackServer, opener: Opener, tmp_path: Path
) -> None:
    memory = JudgeMemory(opener(), CRITERION, embeddings=server.embedder())
    episodes = memory.remember([said(f"case {number}") for number in range(20)])
    learn(memory, *(op("add", one, text=f"Rule of {one.example.inputs}.") for one in episodes))
    server.embeddings.clear()
    _, pipe = start(look, tmp_path / "store.db", dict(server.environment))
    rules = [rule.id for rule in memory.guidelines()]
    assert pipe.recv() == (memory.version(), rules, [one.id for one in episodes], 20)
    assert [request.texts for request in server.embeddings] == [["a new question\n\na"]]
