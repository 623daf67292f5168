"""Many rate limits and truncated answers: results are right, and nothing is lost."""

import threading
from typing import Any

import pytest

from memalign_graph import ChatModelError, create_alignment_graph
from tests.conftest import CRITERION, EVERY_WAY, Bench, thread
from tests.integration_tests.alignment_model import Model
from tests.loopback import ChatRequest, ReplyLike, disconnect, error

pytestmark = EVERY_WAY("memory-sync", "sqlite-async")

CASES = [{"inputs": f"Question {number}?", "outputs": "Look it up."} for number in range(24)]
FAULTS = (error(429, "Slow down.", retry_after=0), disconnect(midway=True), disconnect())


class Stormy:
    """Fails each request several times in different ways before it answers."""

    def __init__(self, times: int) -> None:
        self._times, self._lock = times, threading.Lock()
        self._asked: dict[str, int] = {}
        self._model = Model()

    def __call__(self, chat: ChatRequest) -> ReplyLike:
        with self._lock:
            number = self._asked[chat.text] = self._asked.get(chat.text, -1) + 1
        if number < self._times:
            return FAULTS[(number + len(self._asked)) % len(FAULTS)]
        return self._model(chat)


async def test_batch_under_many_faults_is_judged_by_retries_or_reported_case_by_case(
    bench: Bench,
) -> None:
    async def judged(retries: int) -> list[Any]:
        graph = bench.judge_graph(model=bench.server.chat_model(max_retries=retries))
        options: Any = {"return_exceptions": True}
        config = [thread(f"{retries} {number}") for number in range(len(CASES))]
        if bench.awaits:
            return await graph.abatch(CASES, config, **options)
        return graph.batch(CASES, config, **options)

    bench.server.responder = Stormy(2)
    failed = await judged(0)
    assert {type(item) for item in failed} == {ChatModelError}
    messages = {str(item) for item in failed}
    assert all(text.startswith("The chat model gpt-4.1-mini failed: ") for text in messages)
    assert any("rate limit" in text for text in messages)
    right = await judged(2)  # one of the two faults has occurred
    assert [item["judgment"]["value"] for item in right] == [True] * len(CASES)
    assert len({item["judgment"]["example_id"] for item in right}) == len(CASES)


async def test_feedback_learned_under_many_faults_is_learned_once(bench: Bench) -> None:
    feedback = [
        {**case, "value": False, "rationale": f"On #{number % 4} always name it, said {number}."}
        for number, case in enumerate(CASES)
    ]

    async def align(retries: int) -> Any:
        models = bench.models(model=bench.server.chat_model(max_retries=retries))
        graph = bench.compile(create_alignment_graph(CRITERION, batch_size=6, **models))
        return await bench.invoke(graph, {"feedback": feedback}, on=f"{retries}")

    bench.server.responder = Stormy(2)
    with pytest.raises(ChatModelError, match="failed"):
        await align(0)
    episodes = await bench.episodes()
    assert {episode.status for episode in episodes} == {"pending"}
    assert len(episodes) == len(CASES)
    report = (await align(2))["report"]
    episodes, guidelines = await bench.episodes(), await bench.guidelines()
    assert {episode.status for episode in episodes} == {"distilled"}
    assert len(episodes) == len(CASES)
    sources = [key for guideline in guidelines for key in guideline.episode_ids]
    assert sorted(sources) == sorted(episode.id for episode in episodes)
    assert report["feedback"]["unchanged"] == len(CASES)
