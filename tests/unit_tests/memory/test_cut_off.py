"""Changes cut off at any put: there whole or not at all; made again, as if nothing had happened."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.memory import access
from tests.unit_tests.memory.stores import CutOffError, Failing
from tests.unit_tests.memory.support import CRITERION, QUERY, hashed, learn, op, said

COUNT = 5
MOST = 60
"""More puts than any of these changes makes."""

EMPTY = "0" * 32


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "BATCH_ITEMS", 2)


def opened() -> JudgeMemory:
    return JudgeMemory(Failing(), CRITERION, embeddings=hashed)


def words(name: str, rationale: str = "Too cold.") -> list[Any]:
    return [said(f"{name} {number}", rationale) for number in range(COUNT)]


def filled(name: str) -> JudgeMemory:
    """Some cases, a rule from each, one from all, and one by hand."""
    memory = opened()
    episodes = memory.remember(words(name))
    rules = [op("add", one, text=f"Of {one.example.inputs}.") for one in episodes]
    learn(memory, *rules, op("add", *episodes, text=f"Of all {name}s."))
    memory.add_guideline(f"By hand, of {name}s.")
    return memory


def by_hand(memory: JudgeMemory) -> str:
    return next(rule.id for rule in memory.guidelines() if rule.origin == "expert")


def anew(memory: JudgeMemory) -> tuple[Any, ...]:
    episodes = memory.episodes()
    rules = [op("add", one, text=f"Anew of {one.example.inputs}.") for one in episodes]
    return (*rules, op("add", *episodes, text="Anew of all."))


CHANGES: dict[str, tuple[str, Callable[[JudgeMemory, str], tuple[Any, ...]]]] = {
    "say something new": ("remember", lambda *_: (words("new"),)),
    "say another word": ("remember", lambda *_: (words("case", "Another word."),)),
    "revise": ("revise", lambda memory, _: (memory.episodes()[0].id, {"rationale": "Another."})),
    "forget": ("forget", lambda memory, _: ([one.id for one in memory.episodes()[1:]],)),
    "write by hand": ("add_guideline", lambda *_: ("New.",)),
    "reword by hand": ("edit_guideline", lambda memory, _: (by_hand(memory), "Reworded.")),
    "roll back": ("rollback", lambda *_: (EMPTY,)),
    "remove by hand": ("remove_guideline", lambda memory, _: (by_hand(memory),)),
    "learn": ("learn", lambda memory, _: anew(memory)),
    "import": ("import_jsonl", lambda _, exported: (exported,)),
}


async def change(
    memory: JudgeMemory, name: str, arguments: tuple[Any, ...], *, awaits: bool
) -> None:
    if name == "learn":
        learn(memory, *arguments)
    elif awaits:
        await getattr(memory, f"a{name}")(*arguments)
    else:
        getattr(memory, name)(*arguments)


def picture(memory: JudgeMemory) -> Any:
    """What a memory holds, but for dates, to whoever opens it now."""
    store = InMemoryStore()
    assert isinstance(memory.access.store, InMemoryStore)
    store._data = memory.access.store._data
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    names: dict[str, Any] = {one.id: one.example.inputs for one in memory.episodes()}
    return (
        sorted((names[one.id], one.rationale, one.status) for one in memory.episodes()),
        sorted(
            (one.text, one.status, sorted(names[key] for key in one.episode_ids))
            for one in memory.guidelines()
        ),
        sorted(str(one.example.inputs) for one in memory.recall(QUERY, k=50)),
    )


@pytest.mark.parametrize(
    ("name", "awaits"), [*((name, False) for name in CHANGES), ("say something new", True)]
)
async def test_at_each_put(name: str, *, awaits: bool) -> None:
    exported = filled("import").export_jsonl()
    after: Any = None
    for puts in (None, *range(MOST)):
        memory = filled("case")
        before = picture(memory)
        method, arguments = CHANGES[name][0], CHANGES[name][1](memory, exported)
        store = memory.access.store
        assert isinstance(store, Failing)
        store.puts_left = puts
        try:
            await change(memory, method, arguments, awaits=awaits)
        except CutOffError:
            left = picture(memory)
            assert left in (before, after)
            assert memory.at(memory.version()).missing == []
            if left == after and method == "remove_guideline":
                continue  # there is nothing to remove any more
            await change(memory, method, arguments, awaits=awaits)
        else:
            if puts is not None:
                assert puts > 1
                return
            after = picture(memory)
            assert after != before
        assert picture(memory) == after
        assert memory.at(memory.version()).episodes == memory.episodes()
    pytest.fail("It never ended.")
