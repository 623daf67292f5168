"""How sure a judge is: by log-probabilities, or by agreement of several answers."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langgraph.store.memory import InMemoryStore

from memalign_graph import Categorical, Criterion, Numeric, Pairwise
from memalign_graph.evaluation.cache import AnswerCache, UsageCounter
from memalign_graph.evidence.confidence import logprob_model
from memalign_graph.models import declare_small, model_key
from tests.conftest import CASE, Bench, judgings
from tests.integration_tests.evidence.checks_support import LETTER, SORRY, Model, rules, said_last
from tests.integration_tests.evidence.judging_support import asks_for_value, measurings
from tests.loopback import (
    ChatRequest,
    Reply,
    ReplyLike,
    error,
    refusal,
    truncated,
    with_letters,
    with_logprobs,
)
from tests.loopback.replies import as_reply

SURE = {True: 0.75, False: 0.25}
SCALE = Numeric(minimum=1, maximum=5, integer=True)
STARS = Criterion(name="stars", instructions="How many?", scale=SCALE)
SHARE = Criterion(name="share", instructions="How much?", scale=Numeric(minimum=0, maximum=10))
MANY = Criterion(
    name="many",
    instructions="Which?",
    scale=Categorical(choices=tuple(f"c{number}" for number in range(21))),
)
PAIR = Criterion(name="pair", instructions="Which is better?", scale=Pairwise())
TWO = {"inputs": "Where is it?", "outputs": ["Here.", "There."]}
REJECTED = error(400, "No logprobs here.")


@dataclass
class TellingJudge:
    """Answers with verdicts, and with odds, or what it is told, where asked for the value alone."""

    odds: Any
    verdict: Any = True

    def __call__(self, chat: ChatRequest) -> Reply:
        if not asks_for_value(chat):
            value = self.verdict(chat) if callable(self.verdict) else self.verdict
            return as_reply({"rationale": "Seen.", "value": value, "broken_guidelines": []})
        odds = self.odds(chat) if callable(self.odds) else self.odds
        if not isinstance(odds, Mapping) or "value" in odds:
            return as_reply(odds)  # type: ignore[arg-type] # no odds
        names = {
            str(value).lower() if value in (True, False) else str(value): value for value in odds
        }
        return with_letters(chat.text, {name: odds[value] for name, value in names.items()})


def saying(*values: Any) -> TellingJudge:
    """A judge without log-probabilities, whose verdicts come in turn."""
    turn = iter(values)
    return TellingJudge(REJECTED, lambda _: next(turn))


def here_first(chat: ChatRequest) -> bool:
    return chat.text.rindex("Here.") < chat.text.rindex("There.")


async def judged(
    bench: Bench, *args: Any, case: Any = CASE, at_once: int = 8, **options: Any
) -> dict[str, Any]:
    graph = bench.judge_graph(*args, **{"confidence": True, **options})
    result = await bench.invoke(graph.with_config(max_concurrency=at_once), case)
    judgment: dict[str, Any] = result["judgment"]
    return judgment


def unmeasured(judgment: dict[str, Any]) -> str:
    """The one warning of a judgment without a confidence."""
    for name in ("confidence", "confidence_source", "probabilities"):
        assert judgment[name] is None
    [warning] = judgment["warnings"]
    return str(warning)


async def test_the_value_is_asked_for_once_more_where_wanted(bench: Bench) -> None:
    bench.server.responder = TellingJudge(SURE)
    judgment = await judged(bench)
    assert (judgment["value"], judgment["confidence_source"]) == (True, "logprobs")
    assert judgment["confidence"] == pytest.approx(0.75)
    assert judgment["probabilities"] == pytest.approx({"true": 0.75, "false": 0.25})
    assert (judgment["calibrated_on"], judgment["warnings"]) == (None, [])
    first, second = bench.server.chats
    assert second.messages[:-1] == first.messages[:-1]
    last, more = (str(chat.messages[-1]["content"]) for chat in (first, second))
    assert more.startswith(f"{last}\n\nThis time")
    assert more.endswith("\nA) true\nB) false")
    assert second.schema is None
    assert second.body["max_completion_tokens"] <= 16
    assert (second.body["logprobs"], second.body["top_logprobs"]) == (True, 5)
    assert not first.body.keys() & {"logprobs", "top_logprobs"}
    plain = await judged(bench, confidence=False)
    assert (plain["confidence"], plain["probabilities"]) == (None, None)
    assert len(bench.server.chats) == 3


async def test_five_alternatives_may_measure_more_values(bench: Bench) -> None:
    """The confidence is that of the verdict, although another value is likelier."""
    tenth = Numeric(minimum=1, maximum=10, integer=True)
    criterion = Criterion(name="tenth", instructions="How good?", scale=tenth)
    peaked = {7: 0.5, 8: 0.25, 6: 0.15, 5: 0.06, 9: 0.02, **dict.fromkeys((1, 2, 3, 4, 10), 0.004)}
    bench.server.responder = TellingJudge(peaked, verdict=8)
    judgment = await judged(bench, criterion)
    assert judgment["confidence"] == pytest.approx(0.25, abs=0.01)
    assert judgment["probabilities"]["1"] == 0
    bench.server.responder = TellingJudge(dict.fromkeys(range(1, 11), 0.1), verdict=8)
    warning = unmeasured(await judged(bench, criterion))
    assert "a permitted value is not among the alternatives" in warning


@pytest.mark.parametrize(
    "choices", [("F", "D", "C", "B", "A"), ("b", "none", "a"), ("\u0131", "B", "A")]
)
async def test_choices_that_are_letters_stand_under_no_other(
    bench: Bench, choices: tuple[str, ...]
) -> None:
    grade = Criterion(name="g", instructions="Grade.", scale=Categorical(choices=choices))
    bench.server.responder = TellingJudge(with_logprobs("A", ["A"]), verdict=choices[-1])
    judgment = await judged(bench, grade)
    assert judgment["confidence"] == 1
    [chat] = measurings(bench)
    # The dotless i is "I" in uppercase, but no letter of the alphabet A to Z.
    lines = {"none": "C) none", "\u0131": "C) \u0131", "a": "A) a", "b": "B) b"}
    asked = [lines.get(choice, f"{choice}) {choice}") for choice in choices]
    assert chat.text.splitlines()[-len(choices) :] == asked


async def test_models_that_stream_with_alternatives_of_their_own(bench: Bench) -> None:
    bench.server.responder = TellingJudge(SURE)
    model = bench.server.chat_model(streaming=True, logprobs=True, top_logprobs=2)
    assert (await judged(bench, model=model))["confidence"] == pytest.approx(0.75)
    assert model.top_logprobs == 2
    assert [chat.streaming for chat in bench.server.chats] == [True, True]
    assert {chat.body["top_logprobs"] for chat in measurings(bench)} == {2}


FAILURES: dict[str, tuple[ReplyLike, str]] = {
    "rejected": (REJECTED, "No logprobs here"),
    "not told": ({"value": True}, "gpt-4.1-mini answered without them"),
    "refused": (refusal("I will not."), "the model refused: I will not"),
    "cut off": (truncated("It is"), "it was cut off at the output limit"),
    "prose": (with_logprobs("Yes.", ["Yes", "."]), "a permitted value is not among the alternat"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_what_fails_is_said_and_leaves_the_verdict(
    bench: Bench, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply, why = FAILURES[kind]
    bench.server.responder = TellingJudge(lambda _: reply, verdict=False)
    with caplog.at_level(logging.WARNING, logger="memalign_graph.evidence"):
        judgment = await judged(bench)
    assert judgment["value"] is False
    warning = unmeasured(judgment)
    assert warning.startswith("No confidence by log-probabilities: ")
    assert why in warning
    assert "Set samples=5" in warning
    assert warning in caplog.text
    assert len(bench.server.chats) == 2


async def test_after_three_silent_answers_it_is_not_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server.responder = TellingJudge(REJECTED)
    for _ in range(4):
        warning = unmeasured(await judged(bench))
    assert "gpt-4.1-mini gave none 3 times in a row. Set samples=5" in warning
    assert len(measurings(bench)) == 3
    monkeypatch.setattr("memalign_graph.evidence.confidence._WITHOUT_LOGPROBS_S", 0)
    await judged(bench)
    assert len(measurings(bench)) == 4
    assert caplog.text.count("gives no log-probabilities") == 1


@pytest.mark.parametrize("kind", FAILURES)
async def test_an_unreadable_value_is_asked_for_again(bench: Bench, kind: str) -> None:
    reply, _ = FAILURES[kind]
    await rules(bench, [SORRY])

    def small_judge(chat: ChatRequest) -> Any:
        if said_last(chat).endswith(LETTER):
            return as_reply(reply)
        return Model({SORRY: 0.9})(chat)

    bench.server.responder = small_judge
    model = declare_small(bench.server.chat_model(model=f"small-{kind}", max_retries=0))
    for _ in range(5):
        assert (await judged(bench, model=model, confidence=False))["value"] is True
    values = [chat for chat in bench.server.chats if said_last(chat).endswith(LETTER)]
    assert len(values) == 5


class Plain(BaseChatModel):
    """A chat model with log-probabilities whose limit has another name, such as ChatOllama."""

    inner: Any
    logprobs: bool | None = None
    top_logprobs: int | None = None
    num_predict: int | None = None

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        result: ChatResult = self.inner._generate(messages, **kwargs)
        return result

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        return self.inner.with_structured_output(schema, **kwargs)


async def test_what_can_not_be_measured_is_not_asked(bench: Bench) -> None:
    bench.server.responder = TellingJudge(SURE)
    plain = Plain(inner=bench.server.chat_model())
    for model in (plain, bench.server.chat_model(use_responses_api=True)):
        assert logprob_model(model) is None
    warning = unmeasured(await judged(bench, model=plain))
    assert "Plain takes no `logprobs` with `max_tokens`. Set samples=5" in warning
    for criterion, value in ((SHARE, 7), (MANY, "c3")):
        bench.server.responder = TellingJudge(SURE, value)
        warning = unmeasured(await judged(bench, criterion))
        assert "the scale has over 20 values. Set samples=5" in warning
    assert len(bench.server.chats) == 3


@pytest.mark.parametrize("fails", ["", "straight", "swapped", "both"])
async def test_in_both_orders_the_mean_counts(bench: Bench, fails: str) -> None:
    def odds(chat: ChatRequest) -> Any:
        order = "straight" if here_first(chat) else "swapped"
        if fails in ("both", order):
            return error(400, f"No, not {order}.")
        straight, swapped = {"A": 0.7, "B": 0.2, "tie": 0.1}, {"A": 0.3, "B": 0.4, "tie": 0.3}
        return straight if order == "straight" else swapped

    bench.server.responder = TellingJudge(odds, lambda chat: "A" if here_first(chat) else "B")
    judgment = await judged(bench, PAIR, case=TWO, swap=True)
    assert judgment["value"] == "A"
    if fails:
        assert f"not {'straight' if fails == 'both' else fails}" in unmeasured(judgment)
        return
    assert judgment["probabilities"] == pytest.approx({"A": 0.55, "B": 0.25, "tie": 0.2})
    assert judgment["confidence"] == pytest.approx(0.55)
    assert len(measurings(bench)) == len(judgings(bench.server)) == 2


async def test_the_share_of_samples_that_agree(bench: Bench) -> None:
    bench.server.responder = saying(True, True, False, True, False, True)
    judgment = await judged(bench, samples=5)
    assert (judgment["value"], judgment["confidence_source"]) == (True, "samples")
    assert judgment["probabilities"] == {"true": 0.6, "false": 0.4}
    [warning] = judgment["warnings"]
    assert "No logprobs here" in warning
    assert "give samples" not in warning
    first, *samples = judgings(bench.server)
    assert len(samples) == 5
    assert {str(chat.messages) for chat in samples} == {str(first.messages)}
    assert not any("logprobs" in chat.body for chat in samples)
    # None are drawn where log-probabilities tell.
    bench.server.responder = TellingJudge(SURE)
    bench.server.chats.clear()
    assert (await judged(bench, samples=5))["confidence_source"] == "logprobs"
    assert len(bench.server.chats) == 2


async def test_samples_of_numbers(bench: Bench) -> None:
    for criterion, values, probabilities in (
        (SHARE, [7.0, 6.0, 8.0, 7.3, 5.9, 8.2], {"7.0": 0.6}),
        (STARS, [4, 4, 3, 5, 4, 4], {"1": 0, "2": 0, "3": 0.2, "4": 0.6, "5": 0.2}),
    ):
        bench.server.responder = saying(*values)
        judgment = await judged(bench, criterion, samples=5)
        assert judgment["probabilities"] == pytest.approx(probabilities)
        assert judgment["confidence"] == pytest.approx(0.6)


async def test_samples_that_are_no_answers_are_said_and_not_counted(bench: Bench) -> None:
    bench.server.responder = saying(True, "perhaps", "perhaps", True, False)
    judgment = await judged(bench, samples=3, at_once=1)
    assert judgment["confidence"] == 0.5
    assert "Only 2 of 3 samples were answers" in judgment["warnings"][0]
    bench.server.responder = saying(True, *["perhaps"] * 4)
    warning = unmeasured(await judged(bench, samples=2, at_once=1))
    assert "No logprobs here" in warning
    assert "No confidence by samples: none was an answer" in warning


@pytest.mark.parametrize(
    ("setting", "own", "drawn"),
    [
        ("temperature", 0, {0.7}),
        ("temperature", 0.3, {0.3}),
        ("temperature", None, {None}),
        ("seed", 7, {8, 9}),
    ],
)
async def test_settings_of_samples(bench: Bench, setting: str, own: Any, drawn: set[Any]) -> None:
    bench.server.responder = saying(*[True] * 3)
    model = bench.server.chat_model(**{setting: own})
    await judged(bench, model=model, samples=2)
    first, *samples = judgings(bench.server)
    assert first.body.get(setting) == own
    assert {chat.body.get(setting) for chat in samples} == drawn
    assert getattr(model, setting) == own


@pytest.fixture
def everywhere() -> Iterator[None]:
    """A cache of all chat models of the process."""
    before = get_llm_cache()
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(before)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("is_own", [True, False])
async def test_a_cache_keeps_samples_apart(bench: Bench, *, is_own: bool) -> None:
    model = bench.server.chat_model(temperature=0)
    if is_own:
        note = partial(UsageCounter().add, "judge", "test")
        cache = AnswerCache(InMemoryStore(), note, model_key(model))
        model = model.model_copy(update={"cache": cache})
    bench.server.responder = TellingJudge(SURE)
    first, again = [await judged(bench, model=model, samples=5) for _ in "12"]
    assert again["probabilities"] == first["probabilities"]
    assert (len(bench.server.chats), again["warnings"]) == (2, [])
    await bench.add_guideline("Say sorry first.")  # another prompt
    bench.server.chats.clear()
    bench.server.responder = saying(True, True, False, True, False, False)
    first = await judged(bench, model=model, samples=5)
    assert first["confidence"] == pytest.approx(2 / 5)
    assert len(judgings(bench.server)) == 6
    bench.server.chats.clear()
    again = await judged(bench, model=model, samples=5)
    assert again["probabilities"] == first["probabilities"]
    assert not judgings(bench.server)
    uncached = model.model_copy(update={"cache": False})
    bench.server.responder = saying(*[True] * 6)
    assert (await judged(bench, model=uncached, samples=5))["confidence"] == 1
