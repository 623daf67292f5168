"""`judge_cases` that fails or is overtaken: what is paid for is found again, nothing is undone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memalign_graph import ChatModelError, JudgeMemory
from tests.conftest import CRITERION, Bench
from tests.integration_tests.evidence.judging_support import (
    Judge,
    by_number,
    case,
    learn,
    learning,
    measurings,
    number_of,
    verdicts,
    word,
    words,
)
from tests.loopback import ChatRequest, error
from tests.unit_tests.memory.support import hashed


class Failing:
    """A model that fails on one case, or on measuring one, for as long as it is told to."""

    def __init__(self, number: int) -> None:
        self.judge = Judge(belief=lambda one: 0.5 + one / 100)
        self.number: int | None = number

    def __call__(self, chat: ChatRequest) -> Any:
        if chat.schema_name == "judgment" and number_of(chat) == self.number:
            return error(400, "No such day.")
        return self.judge(chat)


async def test_what_was_answered_is_found_again(bench: Bench) -> None:
    bench.server.responder = model = Failing(5)
    graph = learning(bench, confidence=True).with_config(max_concurrency=1)
    with pytest.raises(ChatModelError, match="No such day"):
        await bench.invoke(graph, {"feedback": words(6)}, "cut off")
    judged = {number_of(chat) for chat in verdicts(bench)} - {5}
    assert judged
    assert all(one.judgment is None for one in await bench.episodes())
    model.number = None
    bench.server.chats.clear()
    report = (await bench.invoke(graph, {"feedback": words(6)}, "again"))["report"]
    assert report["judged_cases"] == 6
    assert {number_of(chat) for chat in verdicts(bench)} == set(range(6)) - judged
    assert {number_of(chat) for chat in measurings(bench)} == set(range(6)) - judged
    for number, one in by_number(await bench.episodes()).items():
        assert one.judgment is not None
        assert one.judgment.rationale == ""
        assert one.judgment.probabilities is not None
        assert one.judgment.probabilities["true"] == pytest.approx(0.5 + number / 100)
        assert one.judgment.model


async def test_a_run_that_is_gone_on_with_judges_the_rest(bench: Bench) -> None:
    bench.server.responder = model = Failing(3)
    graph = learning(bench).with_config(max_concurrency=1)
    with pytest.raises(ChatModelError):
        await bench.invoke(graph, {"feedback": words(4)})
    judged = {number_of(chat) for chat in verdicts(bench)} - {3}
    model.number = None
    bench.server.chats.clear()
    report = (await bench.invoke(graph, None))["report"]
    assert report["judged_cases"] == 4
    assert {number_of(chat) for chat in verdicts(bench)} == set(range(4)) - judged


async def test_no_answers_are_left_in_the_store(bench: Bench) -> None:
    bench.server.responder = Judge()
    await learn(bench, words(3), confidence=True)
    access = bench.memory().access
    if bench.awaits:
        assert await bench.store.asearch(access.layout.of("drafts"), limit=100) == []
    else:
        assert bench.store.search(access.layout.of("drafts"), limit=100) == []


async def test_what_no_store_can_keep_is_asked_for_again(bench: Bench) -> None:
    seen: list[int] = []

    def writes(chat: ChatRequest) -> Any:
        seen.append(number_of(chat))
        text = "Cut\0here." if seen.count(seen[-1]) == 1 else "Seen whole."
        return {"rationale": text, "value": True}

    bench.server.responder = writes
    report = await learn(bench, words(2))
    assert (report["judged_cases"], report["warnings"]) == (2, [])
    assert len(verdicts(bench)) == 4
    said = [one.judgment.rationale for one in await bench.episodes() if one.judgment]
    assert said == [""] * 2


async def test_a_case_that_is_long_and_odd_is_judged(bench: Bench) -> None:
    bench.server.responder = Judge()
    odd = {**word(1), "inputs": {"text": "Case 1: " + "long " * 5_000, "n": [1, None]}}
    report = await learn(bench, [odd, word(2)])
    assert report["judged_cases"] == 2
    [warning] = report["warnings"]
    assert warning.startswith("1 case(s) were judged so: Inputs and outputs are longer")


async def test_what_is_forgotten_meanwhile_stays_forgotten(bench: Bench, tmp_path: Path) -> None:
    await bench.remember(*words(3))
    gone = by_number(await bench.episodes())[1]
    done: list[str] = []

    def forgets(number: int) -> bool:
        if not done:
            done.append(gone.id)
            meanwhile(bench, tmp_path, lambda memory: memory.forget(gone.id))
        return number % 2 == 0

    bench.server.responder = Judge(value=forgets)
    graph = learning(bench).with_config(max_concurrency=1)
    await bench.invoke(graph, {"feedback": []})
    found = by_number(await bench.episodes())
    assert set(found) == {0, 2}
    assert all(one.judgment is not None for one in found.values())


async def test_what_is_said_anew_meanwhile_is_kept(bench: Bench, tmp_path: Path) -> None:
    await bench.remember(*words(2))
    old = by_number(await bench.episodes())[1]
    done: list[str] = []

    def revises(_: int) -> bool:
        if not done:
            done.append(old.id)
            words_now = {"rationale": "Say sorry."}
            meanwhile(bench, tmp_path, lambda memory: memory.revise(old.id, words_now))
        return True

    bench.server.responder = Judge(value=revises)
    await bench.invoke(learning(bench).with_config(max_concurrency=1), {"feedback": []})
    found = by_number(await bench.episodes())[1]
    assert (found.rationale, found.status) == ("Say sorry.", "pending")
    assert found.judgment is not None


async def test_a_case_that_is_reviewed_meanwhile_keeps_its_judgment(bench: Bench) -> None:
    await bench.remember(word(0))
    reviews = bench.review_graph(review="always")
    bench.server.responder = Judge(value=lambda _: False)
    await bench.invoke(reviews, case(0), "review")
    bench.server.responder = Judge(value=lambda _: True)
    await learn(bench, [])
    await bench.resume(reviews, {"value": False, "author": "bob"}, "review")
    said = {one.author: one.judgment.value for one in await bench.episodes() if one.judgment}
    assert said == {"ann": True, "bob": False}


def meanwhile(bench: Bench, folder: Path, do: Callable[[JudgeMemory], object]) -> None:
    """Do something to the memory while the model is asked, as another process would."""
    if isinstance(bench.store, InMemoryStore):
        other = InMemoryStore()
        other._data = bench.store._data
        do(JudgeMemory(other, CRITERION, embeddings=hashed))
        return
    with SqliteStore.from_conn_string(str(folder / "store.db")) as store:
        do(JudgeMemory(store, CRITERION, embeddings=hashed))
