"""Migration to another model: changed verdicts and continued calibration."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Judge, JudgeMemory, create_judge_graph, runtime
from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation import Migration, amigrate, migrate
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import contents
from tests.integration_tests.evidence.judging_support import Judge as Double
from tests.integration_tests.evidence.judging_support import (
    asks_for_value,
    case,
    earlier,
    number_of,
    truth,
    words,
)
from tests.loopback import LoopbackServer, error

CASES, WRONG = 48, range(0, 24, 4)  # the new model passes what the experts pass, but for some


def belief(judge: Callable[[int], bool]) -> Callable[[int], float]:
    return lambda number: 0.95 if judge(number) else 0.05


def new_says(number: int) -> bool:
    return truth(number) and number not in WRONG


@pytest.fixture
def memory(server: LoopbackServer) -> JudgeMemory:
    """A memory of cases with correct verdicts by the old model."""
    doubles = {
        "old": Double(value=truth, belief=belief(truth)),
        "new": Double(value=new_says, belief=belief(new_says)),
    }
    server.responder = lambda chat: doubles[chat.model](chat)
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=server.embedder())
    memory.remember(words(CASES))
    migrate(memory, apply=True, progress=False, **judge_of(server).options)
    server.chats.clear()
    return memory


def judge_of(server: LoopbackServer, name: str = "old", **options: Any) -> Judge:
    arguments = {"k": 3, "confidence": True, **options}
    model, embeddings = server.chat_model(model=name), server.embedder()
    return Judge(criterion=CRITERION, model=model, embeddings=embeddings, **arguments)


def migrated(memory: JudgeMemory, server: LoopbackServer, **options: Any) -> Migration:
    to = server.chat_model(model="new")
    return migrate(memory, to, progress=False, **judge_of(server).options, **options)


def deployed(memory: JudgeMemory, judge: Judge, number: int = 101) -> dict[str, Any]:
    graph = create_judge_graph(CRITERION, **judge.options).compile(store=memory.access.store)
    judgment: dict[str, Any] = graph.invoke(case(number))["judgment"]
    return judgment


def by_key(memory: JudgeMemory) -> list[Any]:
    return [episode.judgment and episode.judgment.judge_key for episode in memory.episodes()]


def test_no_model_sees_feedback_on_its_case(memory: JudgeMemory, server: LoopbackServer) -> None:
    was = contents(memory)
    migration = migrated(memory, server)
    assert contents(memory) == was
    assert (migration.cases, migration.before.value, migration.after.value) == (CASES, 1, 42 / 48)
    assert migration.difference.value == pytest.approx(-6 / 48)
    assert migration.difference.high is not None
    assert migration.difference.high < 0
    assert len(migration.changed) == len(WRONG)
    turned = {(item.expected, item.before, item.after) for item in migration.changed}
    assert turned == {(True, True, False)}
    usage = {row.judge: row for row in migration.usage if row.purpose == "judge"}
    assert (usage["old"].chat_calls, usage["new"].chat_calls) == (CASES, CASES)
    assert usage["new"].input_tokens > 0
    judging = [chat for chat in server.chats if not asks_for_value(chat)]
    assert len(judging) == 2 * CASES
    assert all(number_of(chat) not in earlier(chat) for chat in judging)
    # It takes 40 decisions with one verdict.
    assert migration.more_labels == {"false": 40 - 30, "true": 40 - 18}


def test_regressed_cases_are_listed_first(memory: JudgeMemory, server: LoopbackServer) -> None:
    memory.remember({**case(0), "value": False, "author": "bob", "given_at": "2026-03-01"})
    memory.remember({**case(0), "value": False, "author": "cy", "given_at": "2026-03-01"})
    migration = migrated(memory, server)
    assert [item.after == item.expected for item in migration.changed] == [False] * 5 + [True]


async def test_applied_verdicts_are_deployed(memory: JudgeMemory, server: LoopbackServer) -> None:
    new, before = judge_of(server, "new"), memory.version()
    old_ids = [episode.judgment and episode.judgment.id for episode in memory.episodes()]
    assert deployed(memory, new)["calibrated_on"] is None
    migration = await amigrate(
        memory,
        server.chat_model(model="new"),
        apply=True,
        progress=False,
        **judge_of(server).options,
    )
    judgment = deployed(memory, new)
    assert {*by_key(memory)} == {migration.judge_key} == {judgment["judge_key"]}
    assert judgment["calibrated_on"] == CASES
    assert judgment["evidence"]["cases"] == CASES
    assert memory.trust().decisions == CASES
    assert {episode.status for episode in memory.episodes()} == {"pending"}  # unchanged
    for old_id, episode in zip(old_ids, memory.episodes(), strict=True):
        assert episode.judgment is not None
        assert episode.judgment.rationale == ""
        assert old_id in episode.verdicts
    memory.rollback(before)
    assert migration.judge_key not in by_key(memory)


def test_changed_prompt_version_needs_a_migration(
    memory: JudgeMemory, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "PROMPT_VERSION", 2)
    judge = judge_of(server)
    assert deployed(memory, judge)["calibrated_on"] is None
    server.chats.clear()
    migration = migrate(memory, apply=True, progress=False, **judge.options)
    assert (migration.before.value, migration.after.value, migration.changed) == (1, 1, [])
    assert {row.judge for row in migration.usage if row.chat_calls} == {"new"}
    assert deployed(memory, judge)["calibrated_on"] == CASES


def test_refused_case_keeps_its_verdict(memory: JudgeMemory, server: LoopbackServer) -> None:
    refused = error(400, "This prompt is not allowed.", code="content_filter")
    double = Double(
        value=lambda number: refused if number == 7 else new_says(number), belief=belief(new_says)
    )
    server.responder = double
    options, keys = judge_of(server, k=0).options, by_key(memory)
    model = server.chat_model(model="new")
    migration = migrate(memory, model, apply=True, progress=False, **options)
    [why] = migration.failures.values()
    assert "This prompt is not allowed." in why
    changed = [was != now for was, now in zip(keys, by_key(memory), strict=True)]
    assert changed.count(False) == 1


def test_case_without_a_vector_is_migrated(memory: JudgeMemory, server: LoopbackServer) -> None:
    refused = case(1000)
    server.refused_text = refused["inputs"]
    memory.remember({**refused, "value": True})
    migration = migrated(memory, server)
    assert (migration.cases, migration.failures) == (CASES + 1, {})


def test_memory_without_values_is_refused(server: LoopbackServer) -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=server.embedder())
    with pytest.raises(InvalidInputError, match="memory: no case has an expert's value"):
        migrate(memory, progress=False, **judge_of(server).options)
