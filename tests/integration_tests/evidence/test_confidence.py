"""How sure a judge is, by log-probabilities: what is asked, and what comes of it."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult

from memalign_graph import Categorical, Criterion, Numeric, Pairwise
from memalign_graph.evidence import confidence
from tests.conftest import CASE, Bench
from tests.integration_tests.evidence.confidence_support import (
    TellingJudge,
    alone,
    is_alone,
    telling,
    verdicts,
)
from tests.loopback import (
    ChatRequest,
    ReplyLike,
    content_filter,
    error,
    refusal,
    truncated,
    with_logprobs,
)

SURE = {True: 0.75, False: 0.25}
LABELS = Criterion(
    name="label",
    instructions="What is it?",
    scale=Categorical(choices=("full_compliance", "full_refusal", "partial_refusal")),
)
STARS = Criterion(
    name="stars", instructions="How many?", scale=Numeric(minimum=1, maximum=5, integer=True)
)
SHARE = Criterion(name="share", instructions="How much?", scale=Numeric(minimum=0, maximum=10))
PAIR = Criterion(name="pair", instructions="Which is better?", scale=Pairwise())
TWO = {"inputs": "Where is it?", "outputs": ["Here.", "There."]}


async def judged(bench: Bench, *args: Any, case: Any = CASE, **options: Any) -> dict[str, Any]:
    graph = bench.judge_graph(*args, **{"confidence": True, **options})
    found: dict[str, Any] = (await bench.invoke(graph, case))["judgment"]
    return found


async def test_the_value_is_asked_for_once_more(bench: Bench) -> None:
    bench.server.responder = telling(SURE)
    judgment = await judged(bench)
    assert judgment["value"] is True
    assert judgment["confidence"] == pytest.approx(0.75)
    assert judgment["confidence_source"] == "logprobs"
    assert judgment["probabilities"] == {
        "true": pytest.approx(0.75),
        "false": pytest.approx(0.25),
    }
    assert judgment["calibrated_on"] is None
    assert judgment["warnings"] == []
    first, second = bench.server.chats
    *same, last = first.messages
    *also, more = second.messages
    assert also == same
    assert more["role"] == last["role"]
    assert more["content"].startswith(last["content"])
    assert more["content"].removeprefix(last["content"]).strip().startswith("This time")
    assert more["content"].endswith("\nA) true\nB) false")
    assert second.schema is None
    assert second.body["max_completion_tokens"] <= 16
    assert second.body["logprobs"] is True
    assert second.body["top_logprobs"] == 20
    assert not first.body.keys() & {"logprobs", "top_logprobs"}


async def test_nothing_is_asked_for_unless_wanted(bench: Bench) -> None:
    bench.server.responder = telling(SURE)
    judgment = await judged(bench, confidence=False)
    assert judgment["confidence"] is None
    assert judgment["confidence_source"] is None
    assert judgment["probabilities"] is None
    [chat] = bench.server.chats
    assert not chat.body.keys() & {"logprobs", "top_logprobs", "n"}


async def test_confidence_is_that_of_the_verdict(bench: Bench) -> None:
    bench.server.responder = telling(SURE, verdict=False)
    judgment = await judged(bench)
    assert judgment["value"] is False
    assert judgment["confidence"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("criterion", "odds", "verdict", "case"),
    [
        (STARS, {5: 0.5, 4: 0.2, 3: 0.1, 2: 0.1, 1: 0.1}, 4, CASE),
        (PAIR, {"A": 0.3, "B": 0.6, "tie": 0.1}, "B", TWO),
    ],
)
async def test_other_scales(
    bench: Bench, criterion: Criterion, odds: Any, verdict: Any, case: Any
) -> None:
    bench.server.responder = telling(odds, verdict=verdict)
    judgment = await judged(bench, criterion, case=case)
    assert judgment["confidence"] == pytest.approx(odds[verdict])
    assert sum(judgment["probabilities"].values()) == pytest.approx(1)
    assert set(judgment["probabilities"]) == {str(one) for one in odds}


async def test_choices_with_shared_beginnings(bench: Bench) -> None:
    odds = {"full_compliance": 0.6, "full_refusal": 0.2, "partial_refusal": 0.2}
    bench.server.responder = TellingJudge(lambda _: odds, "full_refusal")
    judgment = await judged(bench, LABELS)
    assert judgment["confidence"] == pytest.approx(0.2)
    assert judgment["probabilities"]["full_compliance"] == pytest.approx(0.6)


async def test_the_models_own_number_of_alternatives_counts(bench: Bench) -> None:
    bench.server.responder = telling(SURE)
    model = bench.server.chat_model(logprobs=True, top_logprobs=2)
    judgment = await judged(bench, model=model)
    assert judgment["confidence"] == pytest.approx(0.75)
    assert [chat.body["top_logprobs"] for chat in alone(bench.server.chats)] == [2]
    assert model.top_logprobs == 2


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_model_that_streams(bench: Bench, streaming: bool) -> None:  # noqa: FBT001
    bench.server.responder = telling(SURE)
    judgment = await judged(bench, model=bench.server.chat_model(streaming=streaming))
    assert judgment["confidence"] == pytest.approx(0.75)
    assert [chat.streaming for chat in bench.server.chats] == [streaming, streaming]


@pytest.mark.parametrize("steps", [["\n", "A", ")"], [" A", " true"], ["A"], ["A", "\n", "So"]])
async def test_answers_as_other_servers_write_them(bench: Bench, steps: list[str]) -> None:
    odds = {"A": 0.5, " A": 0.1, " B": 0.2, "The": 0.2}
    tokens: Any = [(one, odds) if one.strip() == "A" else one for one in steps]
    reply = with_logprobs("".join(steps), tokens)
    bench.server.responder = TellingJudge(lambda _: reply)
    assert (await judged(bench))["confidence"] == pytest.approx(0.75)


def rejecting(chat: ChatRequest) -> ReplyLike:
    assert is_alone(chat)
    return error(400, "'logprobs' is not supported with this model.")


FAILURES: dict[str, tuple[Callable[[ChatRequest], ReplyLike], str]] = {
    "rejected": (rejecting, "'logprobs' is not supported with this model"),
    "not told": (lambda _: {"value": True}, "gpt-4.1-mini answered without them"),
    "refused": (lambda _: refusal("I will not."), "the model refused: I will not"),
    "cut off": (lambda _: truncated("It is"), "it was cut off at the output limit"),
    "filtered": (lambda _: content_filter(), "a content filter stopped it"),
    "prose": (
        lambda _: with_logprobs("Yes, it is.", ["Yes", ", it is."]),
        "a permitted value is not among the alternatives",
    ),
    "one value": (
        lambda _: with_logprobs("A", [("A", {"A": 1.0})]),
        "a permitted value is not among the alternatives that gpt-4.1-mini gave",
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_what_fails_is_said_and_leaves_the_verdict(
    bench: Bench, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply, why = FAILURES[kind]
    bench.server.responder = TellingJudge(reply, verdict=False)
    with caplog.at_level(logging.WARNING, logger=confidence.logger.name):
        judgment = await judged(bench)
    assert judgment["value"] is False
    assert judgment["rationale"]
    assert judgment["confidence"] is None
    assert judgment["probabilities"] is None
    assert judgment["confidence_source"] is None
    [warning] = judgment["warnings"]
    assert warning.startswith("No confidence by log-probabilities: ")
    assert why in warning
    assert "give samples=5" in warning
    assert warning in caplog.text
    assert len(bench.server.chats) == 2


class Plain(BaseChatModel):
    """A chat model whose class knows nothing of log-probabilities."""

    inner: Any

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        result: ChatResult = self.inner._generate(messages, **kwargs)
        return result

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        return self.inner.with_structured_output(schema, **kwargs)


async def test_a_chat_class_without_log_probabilities(bench: Bench) -> None:
    bench.server.responder = telling(SURE)
    judgment = await judged(bench, model=Plain(inner=bench.server.chat_model()))
    assert judgment["confidence"] is None
    [warning] = judgment["warnings"]
    assert "Plain has no `logprobs` and `top_logprobs`; give samples=5" in warning
    assert len(bench.server.chats) == 1


@pytest.mark.parametrize(
    "criterion",
    [
        SHARE,
        Criterion(
            name="many",
            instructions="Which?",
            scale=Categorical(choices=tuple(f"c{n}" for n in range(21))),
        ),
    ],
    ids=["continuous", "many"],
)
async def test_a_scale_of_too_many_values(bench: Bench, criterion: Criterion) -> None:
    bench.server.responder = telling(SURE, verdict=7 if criterion is SHARE else "c3")
    judgment = await judged(bench, criterion)
    assert judgment["confidence"] is None
    assert "the scale has over 20 values; give samples=5" in judgment["warnings"][0]
    assert len(bench.server.chats) == 1


async def test_in_both_orders_the_mean_counts(bench: Bench) -> None:
    def prefers_here(chat: ChatRequest) -> dict[str, float]:
        here_first = chat.text.rindex("Here.") < chat.text.rindex("There.")
        return {"A": 0.7, "B": 0.2, "tie": 0.1} if here_first else {"A": 0.3, "B": 0.4, "tie": 0.3}

    bench.server.responder = TellingJudge(
        prefers_here,
        lambda chat: "A" if chat.text.rindex("Here.") < chat.text.rindex("There.") else "B",
    )
    judgment = await judged(bench, PAIR, case=TWO, swap=True)
    assert judgment["value"] == "A"
    assert judgment["probabilities"] == {
        "A": pytest.approx((0.7 + 0.4) / 2),
        "B": pytest.approx((0.2 + 0.3) / 2),
        "tie": pytest.approx((0.1 + 0.3) / 2),
    }
    assert judgment["confidence"] == pytest.approx(0.55)
    assert judgment["confidence_source"] == "logprobs"
    assert len(alone(bench.server.chats)) == len(verdicts(bench.server.chats)) == 2


@pytest.mark.parametrize("fails", ["straight", "swapped", "both"])
async def test_in_both_orders_one_that_fails_is_said(bench: Bench, fails: str) -> None:
    def odds(chat: ChatRequest) -> Any:
        order = "straight" if chat.text.rindex("Here.") < chat.text.rindex("There.") else "swapped"
        if fails in ("both", order):
            return error(400, f"No, not {order}.")
        return {"A": 0.6, "B": 0.3, "tie": 0.1}

    bench.server.responder = TellingJudge(odds, "tie")
    judgment = await judged(bench, PAIR, case=TWO, swap=True)
    assert judgment["value"] == "tie"
    assert judgment["confidence"] is None
    [warning] = judgment["warnings"]
    assert f"not {'straight' if fails == 'both' else fails}" in warning


async def test_beside_a_judge_that_names_guidelines(bench: Bench) -> None:
    bench.server.responder = telling(SURE)
    await bench.add_guideline("Say sorry first.")
    graph = bench.judge_graph(confidence=True, cite_guidelines=True)
    judgment = (await bench.invoke(graph, CASE))["judgment"]
    assert judgment["confidence"] == pytest.approx(0.75)
    [first], [second] = verdicts(bench.server.chats), alone(bench.server.chats)
    assert first.schema is not None
    assert "broken_guidelines" in first.schema["properties"]
    assert second.schema is None


async def test_a_verdict_that_had_to_be_asked_for_again(bench: Bench) -> None:
    said = iter(["of course", True])
    bench.server.responder = TellingJudge(lambda _: SURE, lambda _: next(said))
    judgment = await judged(bench)
    assert judgment["confidence"] == pytest.approx(0.75)
    first, _, last = bench.server.chats
    assert len(last.messages) == len(first.messages)
