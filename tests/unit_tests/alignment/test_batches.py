"""Feedback packed into batches that fit one prompt each."""

import random
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import ChatModelError, JudgeMemory, ModelAnswerError
from memalign_graph.alignment.distill import MAX_ATTEMPTS, can_be_tried, failed, pack_batches
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.learning import commit_lesson
from memalign_graph.prompts.distill import distill_prompt
from memalign_graph.prompts.distilled import ModelError
from memalign_graph.prompts.fences import estimate_tokens
from memalign_graph.types import Episode
from tests.loopback import LoopbackServer
from tests.unit_tests.alignment.alignment_cases import CRITERION, by_hand, episode, standing


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


def some_feedback(chance: random.Random) -> list[Episode]:
    episodes = {}
    for number in range(chance.randrange(1, 80)):
        one = episode(
            chance.choice([number, 3]),
            chance.choice(["word ", "Größe ", "7 "]) * chance.choice([1, 10, 100, 500, 3000]),
            rationale="why " * chance.choice([1, 10, 200, 1000]),
            author=chance.choice(["ann", "bob", None]),
            value=chance.choice([True, None]),
        )
        episodes[one.id] = one
    return list(episodes.values())


def test_every_batch_is_one_prompt_that_fits_the_window() -> None:
    for seed in range(24):
        chance = random.Random(seed)  # noqa: S311 - nothing secret
        window = chance.choice([2048, 4096, 8192, 16_000])
        guidelines = [
            (by_hand if chance.random() < 0.3 else standing)(
                f"Rule {number} {'x ' * chance.choice([5, 50])}", position=number
            )
            for number in range(chance.choice([0, 3, 60]))
        ]
        episodes = {item.id: item for item in some_feedback(chance)}
        batches = pack_batches(
            list(episodes.values()), CRITERION, guidelines, max_input_tokens=window
        )
        assert sorted(key for batch in batches for key in batch) == sorted(episodes)
        for batch in batches:
            prompt = distill_prompt(
                CRITERION,
                guidelines=guidelines,
                episodes=[episodes[key] for key in batch],
                max_input_tokens=window,
            )
            assert sum(estimate_tokens(message.text) for message in prompt.messages) <= window
            assert len(prompt.episodes) == len(batch)
            shown = prompt.episodes.values()
            cut = {episode.id for episode in shown if len(episode.rationale or "") > 3000}
            assert cut <= set(prompt.truncated_ids)


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
        assert can_be_tried(access, chat, source)
        result = failed(access, chat, source, error)
        assert "could not be distilled and stays pending" in result.warnings[0]
        assert len(result.failed_attempts) == is_attempt
        for _ in range(2):  # as a node that broke off does
            run_sync(commit_lesson(SYNC, access, [], {}, failed=result.failed_attempts))
    assert can_be_tried(access, chat, source) is not is_attempt
