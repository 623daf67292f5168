"""Feedback packed into batches that fit one prompt each."""

import random
from typing import Any
from unittest.mock import Mock

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, JudgeMemory, ModelAnswerError
from memalign_graph.alignment.distill import MAX_ATTEMPTS, failure_of, pack_batches, sources_to_try
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import commit_lesson
from memalign_graph.models import model_key
from memalign_graph.prompts.distilled import ModelError
from tests.loopback import LoopbackServer
from tests.unit_tests.alignment.alignment_cases import CRITERION, episode


def packed(episodes: Any, **options: Any) -> Any:
    batches = pack_batches(episodes, CRITERION, [], max_input_tokens=100_000, **options)
    numbers = {episode.id: int(episode.example.inputs.split()[-1]) for episode in episodes}
    return [[numbers[key] for key in batch] for batch in batches]


def test_oldest_first_and_the_same_in_any_order() -> None:
    episodes = [episode(number) for number in range(7)]
    assert packed(episodes, max_batch_size=3) == [[0, 1, 2], [3, 4, 5], [6]]
    mixed = random.Random(1).sample(episodes, 7)  # noqa: S311 - nothing secret
    assert packed(mixed, max_batch_size=3) == packed(episodes, max_batch_size=3)
    assert [len(item) for item in packed([episode(n) for n in range(120)])] == [50, 50, 20]
    assert packed([]) == []


def test_experts_on_one_case_stay_together() -> None:
    case = [episode(1, author=name, given_at=episode(n).given_at) for n, name in enumerate("abcd")]
    others = [episode(n) for n in (2, 3)]
    assert packed([*others, *case], max_batch_size=3) == [[1, 1, 1, 1], [2, 3]]
    assert packed([*others, *case], max_batch_size=5) == [[1, 1, 1, 1, 2], [3]]
    assert packed([*others, episode(0), *case[1:]], max_batch_size=3) == [[0], [1, 1, 1], [2, 3]]


def refused() -> ChatModelError:
    error = ChatModelError("Refused.")
    error.is_refusal = True
    return error


@pytest.mark.parametrize(
    ("error", "is_attempt"),
    [(ChatModelError("Down."), False), (refused(), True), (ModelAnswerError("Prose."), True)],
)
def test_attempts_are_counted_once_and_outages_are_none(
    server: LoopbackServer, error: ModelError, *, is_attempt: bool
) -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=server.embedder())
    access, chat, source = memory.access, server.chat_model(), episode(1)
    for _ in range(MAX_ATTEMPTS):
        assert [*sources_to_try(access, chat, [source])] == [source]
        result = failure_of(access, chat, source, error)
        assert "could not be distilled and stays pending" in result.warnings[0]
        assert len(result.failed_attempts) == is_attempt
        for _ in range(2):  # as a node that broke off does
            run_sync(commit_lesson(SYNC, access, [], {}, failed=result.failed_attempts))
    assert [*sources_to_try(access, chat, [source])] == [source] * (not is_attempt)


def test_settings_of_the_model_are_hashed_once_for_all_feedback(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=server.embedder())
    access, chat, episodes = memory.access, server.chat_model(), [episode(n) for n in range(9)]
    attempts = failure_of(access, chat, episodes[0], refused()).failed_attempts
    run_sync(commit_lesson(SYNC, access, [], {}, failed=attempts))
    hashed = Mock(side_effect=model_key)
    monkeypatch.setattr("memalign_graph.alignment.distill.model_key", hashed)
    assert [*sources_to_try(access, chat, episodes)] == episodes
    assert hashed.call_count == 1
