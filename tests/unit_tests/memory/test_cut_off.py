"""Changes of many parts, cut off at any write: made again, they end as if nothing had happened."""

from collections.abc import Callable
from typing import Any

import pytest

from memalign_graph import JudgeMemory
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory import access, history, learning, operations, portable
from tests.unit_tests.memory.support import CRITERION, QUERY, hashed, learn, op, said
from tests.unit_tests.memory.test_purge_cut_off import CutOffError, Failing

COUNT = 7
MOST = 40
"""More writes than any of these changes makes."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (changes, forgetting, history, lessons, portable):
        monkeypatch.setattr(module, "COMMIT_ITEMS", 2, raising=False)
    monkeypatch.setattr(access, "BATCH_ITEMS", 2)


def start() -> JudgeMemory:
    """Seven cases, a rule from each, and one from all."""
    memory = JudgeMemory(Failing(), CRITERION, embeddings=hashed)
    episodes = memory.remember([said(f"case {number}") for number in range(COUNT)])
    learn(
        memory,
        *(op("add", one, text=f"Of {one.example.inputs}.") for one in episodes),
        op("add", *episodes, text="Of all."),
    )
    return memory


def exported() -> str:
    """Another memory of as many cases, with rules of their own."""
    memory = JudgeMemory(Failing(), CRITERION, embeddings=hashed)
    episodes = memory.remember([said(f"import {number}") for number in range(COUNT)])
    learn(memory, *(op("add", one, text=f"Of {one.example.inputs}.") for one in episodes))
    return memory.export_jsonl()


def relearn(memory: JudgeMemory) -> None:
    """Learn from cases that are pending, as an alignment does."""
    new = [said(f"new {number}") for number in range(COUNT)]
    episodes = memory.remember(new)
    words = {one.id: one.word for one in episodes}
    rules = [op("add", one, text=f"Of {one.example.inputs}.") for one in episodes]
    run(
        learning.learn(
            BLOCKING, memory.access, [*rules, op("add", *episodes, text="Of all new.")], words
        )
    )


CHANGES: dict[str, Callable[[JudgeMemory, dict[str, str]], Any]] = {
    "remember": lambda memory, _: memory.remember(
        [said(f"case {number}", "Another word.") for number in range(COUNT)]
    ),
    "forget": lambda memory, _: memory.forget(where=lambda one: one.example.inputs != "case 3"),
    "learn": lambda memory, _: relearn(memory),
    "roll back": lambda memory, known: memory.rollback(known["empty"]),
    "roll back again": lambda memory, known: memory.rollback(known["full"]),
    "import": lambda memory, known: memory.import_jsonl(known["export"]),
}


def picture(memory: JudgeMemory) -> Any:
    """What a memory holds, but for dates."""
    names: dict[str, Any] = {one.id: one.example.inputs for one in memory.episodes()}
    rules = memory.guidelines()
    return (
        sorted((names[one.id], one.rationale, one.status) for one in memory.episodes()),
        sorted(
            (one.text, one.status, sorted(names[key] for key in one.episode_ids)) for one in rules
        ),
        sorted(str(one.example.inputs) for one in memory.recall(QUERY, k=50)),
    )


def prepared(name: str, export: str) -> tuple[JudgeMemory, dict[str, str]]:
    memory = start()
    known = {"empty": "0" * 32, "full": memory.version(), "export": export}
    if name == "roll back again":
        memory.forget(where=lambda _: True)
        memory.remember([said(f"later {number}") for number in range(COUNT)])
    return memory, known


@pytest.mark.parametrize("name", CHANGES)
def test_at_each_write(name: str) -> None:
    export = exported()
    undisturbed, known = prepared(name, export)
    CHANGES[name](undisturbed, known)
    for number in range(MOST):
        memory, known = prepared(name, export)
        store = memory.access.store
        assert isinstance(store, Failing)
        store.writes_left = number
        try:
            CHANGES[name](memory, known)
        except CutOffError:
            then = memory.at(memory.version())
            assert then.missing == []
            CHANGES[name](memory, known)
        else:
            assert number > 2
            return
        assert picture(memory) == picture(undisturbed)
        assert memory.at(memory.version()).episodes == memory.episodes()
    pytest.fail("It never ended.")
