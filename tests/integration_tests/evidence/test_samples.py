"""How sure a judge is, by agreement of several answers."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Numeric, Pairwise
from memalign_graph.evaluation.cache import AnswerCache, Ledger
from memalign_graph.evidence import confidence
from memalign_graph.models import model_key
from tests.conftest import CASE, Bench
from tests.integration_tests.evidence.confidence_support import (
    TellingJudge,
    alone,
    telling,
    verdicts,
)
from tests.loopback import ChatRequest, ReplyLike, Together, error

STARS = Criterion(
    name="stars", instructions="How many?", scale=Numeric(minimum=1, maximum=5, integer=True)
)
SHARE = Criterion(name="share", instructions="How much?", scale=Numeric(minimum=0, maximum=10))
PAIR = Criterion(name="pair", instructions="Which is better?", scale=Pairwise())
REJECTED = error(400, "No logprobs here.")


def saying(*values: Any) -> TellingJudge:
    """A judge without log-probabilities, whose verdicts come in turn."""
    turn = iter(values)

    def verdict(_: ChatRequest) -> Any:
        return next(turn)

    return TellingJudge(lambda _: REJECTED, verdict)


async def judged(
    bench: Bench, *args: Any, case: Any = CASE, at_once: int = 8, **options: Any
) -> dict[str, Any]:
    graph = bench.judge_graph(*args, **{"confidence": True, "samples": 5, **options})
    config: Any = {"max_concurrency": at_once, "configurable": {"thread_id": "t"}}
    found = await graph.ainvoke(case, config) if bench.awaits else graph.invoke(case, config)
    judgment: dict[str, Any] = found["judgment"]
    return judgment


async def test_the_share_of_answers_that_agree(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server.responder = saying(True, True, False, True, False, True)
    with caplog.at_level(logging.WARNING, logger=confidence.logger.name):
        judgment = await judged(bench)
    assert judgment["value"] is True
    assert judgment["confidence"] == pytest.approx(3 / 5)
    assert judgment["confidence_source"] == "samples"
    assert judgment["probabilities"] == {"true": 0.6, "false": 0.4}
    [warning] = judgment["warnings"]
    assert "No logprobs here" in warning
    assert "give samples" not in warning
    assert warning in caplog.text
    first, *samples = verdicts(bench.server.chats)
    assert len(samples) == 5
    assert {str(one.messages) for one in samples} == {str(first.messages)}
    assert {str(one.schema) for one in samples} == {str(first.schema)}
    assert not any("logprobs" in one.body for one in samples)


async def test_none_are_drawn_where_log_probabilities_tell(bench: Bench) -> None:
    bench.server.responder = telling({True: 0.9, False: 0.1})
    judgment = await judged(bench)
    assert judgment["confidence_source"] == "logprobs"
    assert judgment["warnings"] == []
    assert len(bench.server.chats) == 2


@pytest.mark.parametrize(
    ("criterion", "values", "share"),
    [
        (SHARE, [7.0, 6.0, 8.0, 7.3, 5.9, 8.2], 3 / 5),
        (STARS, [4, 4, 3, 5, 4, 4], 3 / 5),
        (STARS, [4, 3, 3, 3, 3, 3], 0.0),
    ],
    ids=["within a tenth", "the same", "none"],
)
async def test_numbers(bench: Bench, criterion: Criterion, values: Any, share: float) -> None:
    bench.server.responder = saying(*values)
    judgment = await judged(bench, criterion)
    assert judgment["confidence"] == pytest.approx(share)
    if criterion is SHARE:
        assert judgment["probabilities"] == {"7.0": pytest.approx(share)}
        assert not alone(bench.server.chats)
    else:
        assert list(judgment["probabilities"]) == ["1", "2", "3", "4", "5"]


async def test_some_that_fail_are_said_and_not_counted(bench: Bench) -> None:
    turn: Iterator[ReplyLike] = iter(
        [
            {"rationale": "Yes.", "value": True},
            REJECTED,
            {"rationale": "Yes.", "value": True},
            error(400, "Broken."),
            {"rationale": "No.", "value": False},
            {"rationale": "Yes.", "value": True},
            {"rationale": "Yes.", "value": True},
        ]
    )
    bench.server.responder = lambda _: next(turn)
    judgment = await judged(bench)
    assert judgment["confidence"] == pytest.approx(3 / 4)
    [warning] = judgment["warnings"]
    assert "No logprobs here" in warning
    assert "Only 4 of 5 samples were answers" in warning
    assert "Broken" in warning


async def test_an_answer_that_is_none_is_asked_for_again_and_then_not_counted(
    bench: Bench,
) -> None:
    bench.server.responder = saying(True, "perhaps", "perhaps", True, True)
    judgment = await judged(bench, samples=3, at_once=1)
    assert judgment["confidence"] == 1.0
    assert "Only 2 of 3 samples" in judgment["warnings"][0]


async def test_all_fail_and_the_verdict_stays(bench: Bench) -> None:
    turn = iter([True, *["perhaps"] * 10])
    bench.server.responder = TellingJudge(lambda _: REJECTED, lambda _: next(turn))
    judgment = await judged(bench)
    assert judgment["value"] is True
    assert judgment["confidence"] is None
    assert judgment["probabilities"] is None
    [warning] = judgment["warnings"]
    assert "No logprobs here" in warning
    assert "No confidence by samples: none was an answer" in warning


@pytest.mark.parametrize(("own", "drawn"), [(0, 0.7), (0.0, 0.7), (0.3, 0.3), (None, None)])
async def test_the_temperature_they_are_drawn_with(
    bench: Bench, own: float | None, drawn: float | None
) -> None:
    bench.server.responder = saying(*[True] * 6)
    model = bench.server.chat_model(temperature=own)
    await judged(bench, model=model)
    first, *samples = verdicts(bench.server.chats)
    assert first.body.get("temperature") == own
    assert {one.body.get("temperature") for one in samples} == {drawn}
    assert model.temperature == own


async def test_no_more_are_under_way_than_the_run_allows(bench: Bench) -> None:
    judge = saying(*[True] * 9)
    samples = Together(2, judge)

    def respond(chat: ChatRequest) -> ReplyLike:
        return (samples if chat.body.get("temperature") else judge)(chat)

    bench.server.responder = respond
    model = bench.server.chat_model(temperature=0)
    judgment = await judged(bench, model=model, samples=8, at_once=2)
    assert judgment["confidence"] == 1.0
    assert bench.server.peak_chats == 2


async def test_in_both_orders(bench: Bench) -> None:
    two = {"inputs": "Where is it?", "outputs": ["Here.", "There."]}

    def verdict(chat: ChatRequest) -> str:
        return "A" if chat.text.rindex("Here.") < chat.text.rindex("There.") else "B"

    bench.server.responder = TellingJudge(lambda _: REJECTED, verdict)
    judgment = await judged(bench, PAIR, case=two, swap=True, samples=2)
    assert judgment["value"] == "A"
    assert judgment["probabilities"] == {"A": 1.0, "B": 0.0, "tie": 0.0}
    assert judgment["confidence_source"] == "samples"


@pytest.fixture
def everywhere() -> Iterator[InMemoryCache]:
    """A cache of all chat models of the process."""
    before = get_llm_cache()
    cache = InMemoryCache()
    set_llm_cache(cache)
    yield cache
    set_llm_cache(before)


@pytest.mark.parametrize("temperature", [0, 0.5])
async def test_a_cache_keeps_samples_apart(
    bench: Bench, everywhere: InMemoryCache, temperature: float
) -> None:
    bench.server.responder = saying(True, True, False, True, False, False)
    model = bench.server.chat_model(temperature=temperature)
    first = await judged(bench, model=model)
    assert first["confidence"] == pytest.approx(2 / 5)
    assert len(verdicts(bench.server.chats)) == 6
    bench.server.chats.clear()
    again = await judged(bench, model=model)
    assert again["probabilities"] == first["probabilities"]
    assert not verdicts(bench.server.chats)


async def test_a_model_that_is_not_to_be_cached(bench: Bench, everywhere: InMemoryCache) -> None:
    bench.server.responder = saying(True, True, False, True, False, False)
    judgment = await judged(bench, model=bench.server.chat_model(cache=False))
    assert judgment["confidence"] == pytest.approx(2 / 5)
    assert not everywhere._cache


def cached(bench: Bench, store: Any, ledger: Ledger) -> Any:
    model = bench.server.chat_model()
    cache = AnswerCache(store, ledger, model_key(model), "judge", "test")
    return model.model_copy(update={"cache": cache})


async def test_kept_answers_keep_log_probabilities(bench: Bench) -> None:
    kept, ledger = InMemoryStore(), Ledger()
    store = kept if isinstance(bench.store, InMemoryStore) else bench.store
    bench.server.responder = telling({True: 0.9, False: 0.1})
    model = cached(bench, store, ledger)
    first = await judged(bench, model=model, samples=0)
    assert first["confidence"] == pytest.approx(0.9)
    bench.server.chats.clear()
    again = await judged(bench, model=model, samples=0)
    assert again["probabilities"] == first["probabilities"]
    assert again["warnings"] == []
    assert bench.server.chats == []
    rows = {row.purpose: row for row in ledger.rows()}
    assert {purpose: row.chat_calls for purpose, row in rows.items()} == {
        "judge": 1,
        "confidence": 1,
    }
    assert {row.cached_calls for row in rows.values()} == {1}


async def test_kept_answers_keep_samples_apart(bench: Bench) -> None:
    kept, ledger = InMemoryStore(), Ledger()
    bench.server.responder = saying(True, True, False, True, False, False)
    model = cached(bench, kept, ledger)
    first = await judged(bench, model=model)
    assert first["confidence"] == pytest.approx(2 / 5)
    bench.server.chats.clear()
    again = await judged(bench, model=model)
    assert again["confidence"] == first["confidence"]
    assert verdicts(bench.server.chats) == []
