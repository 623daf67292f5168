"""A record refused by the provider is named and blocks nothing else."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from memalign_graph import ChatModelError, EmbeddingError
from memalign_graph.evidence import confidence
from memalign_graph.io import ASYNC
from tests.conftest import CASE, DOWN, Bench, Graph, distillings, operations
from tests.integration_tests.alignment_model import COMPARE, Model, guideline_per_topic
from tests.integration_tests.alignment_support import (
    align,
    alignment,
    asked,
    record,
    records,
)
from tests.loopback import (
    ChatRequest,
    content_filter,
    context_length_exceeded,
    error,
    refusal,
    with_logprobs,
)

REFUSED = "GRUESOME"
FILTERED = error(400, "The prompt triggered the content management policy.")
TOO_LONG = context_length_exceeded()
TOO_LARGE = error(413, "Request too large on tokens per minute.", code="rate_limit_exceeded")


class Filter(Model):
    """A provider that refuses distill or judge prompts with a certain word."""

    def __init__(self, reply: Any = FILTERED, *, schema: str = "guideline_operations") -> None:
        super().__init__()
        self.schema, self.reply = schema, reply

    def __call__(self, chat: ChatRequest) -> Any:
        if chat.schema_name == self.schema and REFUSED in chat.text:
            return self.reply
        return super().__call__(chat)


def bad(number: int = 90, **fields: Any) -> dict[str, Any]:
    return record(number, inputs=f"A {REFUSED} thing happened to order {number}.", **fields)


async def review(bench: Bench, graph: Graph, feedback: dict[str, Any], on: str) -> Any:
    case = {name: feedback[name] for name in ("inputs", "outputs")}
    reply = {name: feedback[name] for name in ("value", "rationale", "author")}
    return (await bench.review(graph, {**reply, "value": False}, case, on))["learned"]


def patient(bench: Bench, **options: Any) -> Graph:
    return alignment(bench, model=bench.server.chat_model(max_retries=0), **options)


def waiting(episodes: Any) -> list[str]:
    return [episode.id for episode in episodes if episode.status == "pending"]


@pytest.mark.parametrize("reply", [FILTERED, TOO_LONG, TOO_LARGE, refusal(), content_filter()])
async def test_reviews_after_a_refused_one_learn(
    bench: Bench, reply: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server.responder = Filter(reply)
    graph = bench.review_graph(model=bench.server.chat_model(max_retries=0))
    with caplog.at_level(logging.WARNING):
        first = await review(bench, graph, bad(), "bad")
    [episode] = await bench.episodes()
    name = f"Feedback {episode.id} could not be distilled and stays pending"
    assert first["guidelines"] == []
    assert name in first["warnings"][0]
    assert name in caplog.text
    counts = []
    for number in range(1, 6):
        count = len(distillings(bench.server))
        learned = await review(bench, graph, record(number), str(number))
        assert [change["action"] for change in learned["guidelines"]] == ["add"]
        counts.append(sum(REFUSED in chat.text for chat in distillings(bench.server)[count:]))
        assert waiting(await bench.episodes()) == [episode.id]
    # It is tried three times in all, and again once it has changed.
    assert [count > 0 for count in counts] == [True, True, False, False, False]
    bench.server.responder = Model()
    bench.memory().revise(episode.id, {"rationale": "It must name the order."})
    await review(bench, graph, record(6), "6")
    assert waiting(await bench.episodes()) == []


async def test_refused_feedback_that_an_expert_repeats_is_tried_three_times(bench: Bench) -> None:
    bench.server.responder = Filter()
    graph, counts = bench.review_graph(model=bench.server.chat_model(max_retries=0)), []
    for number in range(5):
        count = len(distillings(bench.server))
        learned = await review(bench, graph, bad(), str(number))
        counts.append(len(distillings(bench.server)) - count)
    assert [count > 0 for count in counts] == [True, True, True, False, False]
    assert "could not be distilled in 3 attempts" in learned["warnings"][0]


@pytest.mark.parametrize("missing", ["value", "rationale"])
async def test_reviews_give_up_refused_feedback_that_came_in_parts(
    bench: Bench, missing: str
) -> None:
    await bench.remember({**bad(value=False), missing: None})
    await bench.remember(bad(value=False))
    [episode] = await bench.episodes()
    bench.server.responder, counts = Filter(), []
    graph = bench.review_graph(model=bench.server.chat_model(max_retries=0))
    for number in range(1, 6):
        count = len(distillings(bench.server))
        await review(bench, graph, record(number), str(number))
        counts.append(sum(REFUSED in chat.text for chat in distillings(bench.server)[count:]))
        assert waiting(await bench.episodes()) == [episode.id]
    assert [count > 0 for count in counts] == [True, True, True, False, False]


SEVERAL = [FILTERED, TOO_LONG, "Well.", {"guidelines": "none"}]


@pytest.mark.parametrize("reply", SEVERAL)
@pytest.mark.parametrize(
    ("numbers", "batch_size"),
    [(range(-1, 0), 50), (range(-7, 0), 4), (range(-12, 0), 50), ((-1, 91), 1), ((-1, 91), 4)],
)
async def test_refused_records_do_not_block_others(
    bench: Bench, reply: Any, numbers: Sequence[int], batch_size: int
) -> None:
    """Batches are packed oldest first; negative numbers come first."""
    bench.server.responder = Filter(reply)
    graph = patient(bench, batch_size=batch_size)
    report = await align(bench, [*map(bad, numbers), *records(6, topics=3)], graph)
    waits = waiting(await bench.episodes())
    assert len(waits) == len(numbers)
    assert sum(len(guideline.episode_ids) for guideline in await bench.guidelines()) == 6
    warnings = "\n".join(report["warnings"])
    assert all(f"Feedback {key} could not be distilled" in warnings for key in waits)


@pytest.mark.parametrize("reply", SEVERAL)
@pytest.mark.parametrize("count", [1, 3])
async def test_alignment_of_only_refused_records_ends(bench: Bench, reply: Any, count: int) -> None:
    bench.server.responder = Filter(reply)
    graph, calls = patient(bench), []
    for night in range(5):
        requests = len(bench.server.chats)
        report = await align(bench, [bad(number) for number in range(count)], graph, str(night))
        calls.append(len(bench.server.chats) - requests)
        assert len(waiting(await bench.episodes())) == count
        assert report["warnings"]
    assert [number > 0 for number in calls] == [True, True, True, False, False]
    assert "could not be distilled in 3 attempts" in report["warnings"][0]
    # Other settings may fix it.
    bench.server.responder = Model()
    await align(bench, [], alignment(bench, model=bench.server.chat_model(temperature=0.5)))
    assert waiting(await bench.episodes()) == []


def refuse(case: int) -> Model:
    return Model(
        distil=lambda chat: FILTERED if f"case {case}." in chat.text else guideline_per_topic(chat)
    )


async def test_prompts_of_a_halved_batch_are_compared(bench: Bench) -> None:
    bench.server.responder = refuse(5)
    await align(bench, records(8, topics=1))
    assert [len(rule.episode_ids) for rule in await bench.guidelines()] == [7]


async def test_prompts_of_a_halved_batch_are_purged_apart(bench: Bench) -> None:
    bench.server.responder = refuse(3)
    await align(bench, records(4))
    ids = [episode.id for episode in await bench.episodes()]
    forgotten = bench.memory().forget(ids[0], purge=True)
    assert forgotten.purged is not None
    assert forgotten.purged.pending == [ids[1]]


async def test_guideline_without_a_new_wording_stays(bench: Bench) -> None:
    first, second = await bench.remember(record(2), record(3, author="bob"))
    bench.teach("It names the order.", first, second)
    [before] = await bench.guidelines()
    bench.memory().forget(author="ann")
    bench.server.responder = lambda _: operations()
    calls = []
    for night in range(4):
        count = len(bench.server.chats)
        report = await align(bench, [], on=str(night))
        calls.append(sum("case 3" in chat.text for chat in bench.server.chats[count:]))
    assert [number > 0 for number in calls] == [True, True, True, False]
    assert "1 pending guideline(s) could not be distilled in 3 attempts" in report["warnings"][0]
    [after] = await bench.guidelines()
    assert (after.text, after.status) == (before.text, "pending")


async def forget_a_source(bench: Bench, *texts: str) -> None:
    """Leave guidelines pending, each with one source."""
    for number, text in enumerate(texts):
        pair = await bench.remember(record(2 * number), record(2 * number + 1, author="bob"))
        bench.teach(text, *pair)
    bench.memory().forget(author="ann")


async def test_review_asks_again_for_a_wording_that_was_not_given(bench: Bench) -> None:
    await forget_a_source(bench, "It names the order.")
    answers = [operations(), operations({"action": "add", "text": "It names the order's date."})]
    bench.server.responder = Model(
        distil=lambda chat: answers.pop(0) if "case 1." in chat.text else guideline_per_topic(chat)
    )
    for number, text in ((90, "It names the order."), (91, "It names the order's date.")):
        await review(bench, bench.review_graph(), record(number), str(number))
        assert text in [guideline.text for guideline in await bench.guidelines()]
    assert answers == []


async def test_wording_is_asked_for_again_if_another_one_fails(bench: Bench) -> None:
    await forget_a_source(bench, "It names the order.", "It gives a date.")
    model = bench.server.chat_model(max_retries=0)
    bench.server.responder = lambda chat: operations() if "case 1." in chat.text else DOWN
    with pytest.raises(ChatModelError, match="It broke"):
        await bench.call(bench.memory(model=model), "consolidate")
    count, bench.server.responder = len(bench.server.chats), Model()
    await bench.call(bench.memory(model=model), "consolidate")
    assert any("case 1." in chat.text for chat in bench.server.chats[count:])
    assert {guideline.status for guideline in await bench.guidelines()} == {"standing"}


async def test_wording_is_asked_for_again_if_judging_fails(bench: Bench) -> None:
    await forget_a_source(bench, "It names the order.")
    bench.server.responder = Model(distil=lambda _: operations(), judge=lambda _: DOWN)
    graph = patient(bench, judge_cases=True)
    for night in range(2):
        with pytest.raises(ChatModelError, match="It broke"):
            await align(bench, [], graph, str(night))
        assert len(distillings(bench.server)) == night + 1


@pytest.mark.parametrize("down", [DOWN, error(400, "It broke: your credit balance is too low.")])
@pytest.mark.parametrize("count", [1, 12])
async def test_unreachable_model_counts_no_attempt(bench: Bench, count: int, down: Any) -> None:
    bench.server.responder = Model(distil=lambda _: down)
    for night in range(4):
        with pytest.raises(ChatModelError, match="It broke"):
            await align(bench, records(count), patient(bench), str(night))
    assert len(bench.server.chats) == 4
    bench.server.responder = Model()
    await align(bench, [], patient(bench), "up")
    assert waiting(await bench.episodes()) == []


async def test_model_that_becomes_unreachable_is_not_called_again(bench: Bench) -> None:
    """Distilled feedback is kept; the rest stays pending without a counted attempt."""
    refuse = Filter()
    bench.server.responder = lambda chat: (
        DOWN if len(distillings(bench.server)) > 3 else refuse(chat)
    )
    # The whole batch and its first half are refused; the first quarter is distilled.
    await align(bench, [*records(2), bad(2), *records(5, first=3)], patient(bench))
    assert len(distillings(bench.server)) == 4
    assert len(waiting(await bench.episodes())) == 6
    bench.server.responder = Model()
    await align(bench, [], patient(bench), "up")
    assert waiting(await bench.episodes()) == []


@pytest.mark.parametrize("reply", [FILTERED, TOO_LONG])
async def test_refused_case_in_memory_does_not_block_judging_other_cases(
    bench: Bench, reply: Any
) -> None:
    bench.server.responder = Filter(reply, schema="judgment")
    await bench.remember(bad())
    graph = bench.judge_graph(model=bench.server.chat_model(max_retries=0))
    judgment = await bench.invoke(graph, {"inputs": "Where is it?", "outputs": "Soon."})
    judgment = judgment["judgment"]
    assert judgment["episode_ids"] == []
    says = "judged without similar cases, since a prompt with them was refused"
    assert says in "".join(judgment["warnings"])
    assert len(bench.server.chats) == 2


def refuse_embedding(bench: Bench) -> None:
    bench.server.responder, bench.server.refused_text = Model(), REFUSED


async def test_case_that_embeddings_refuse_is_learned_without_a_vector(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_embedding(bench)
    options: dict[str, Any] = {"embeddings": bench.server.embedder(max_retries=0)}
    report = await align(bench, [*records(9), bad()], alignment(bench, **options))
    assert report["feedback"]["new"] == 10
    assert len(report["guidelines"]["added"]) == 10
    [refused] = [each.id for each in await bench.episodes() if REFUSED in str(each.example.inputs)]
    [warning] = report["warnings"]
    assert warning.startswith("1 piece(s) of feedback have no vector")
    assert f"({refused})" in warning
    assert warning in caplog.text
    # Neither this process nor a new alignment sends the refused text again.
    count = len(bench.server.embeddings)
    assert (await align(bench, [*records(9), bad()], alignment(bench, **options)))["warnings"] == []
    judgment = (await bench.invoke(bench.judge_graph(**options), CASE))["judgment"]
    assert len(judgment["episode_ids"]) == 5
    assert refused not in judgment["episode_ids"]
    assert [request.texts for request in bench.server.embeddings[count:]] == [
        [f"{CASE['inputs']}\n\n{CASE['outputs']}"]
    ]


async def test_whole_table_may_be_refused_once_a_text_was_embedded(bench: Bench) -> None:
    refuse_embedding(bench)
    memory = bench.memory(embeddings=bench.server.embedder(max_retries=0))
    for records_read in ([record(1)], [bad(number) for number in range(25)]):
        await bench.call(memory, "remember", records_read)
    assert len(await bench.episodes()) == 26


async def test_refused_vector_is_asked_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    refuse_embedding(bench)
    options: dict[str, Any] = {"embeddings": bench.server.embedder(model="another", max_retries=0)}
    [_, refused] = await bench.remember(record(1), bad())
    caplog.clear()
    bench.server.embeddings.clear()
    for _ in range(2):
        recalled = await bench.call(bench.memory(**options), "recall", CASE)
        assert [example.episodes[0].feedback_id for example in recalled] == [record(1).get("id")]
    assert caplog.text.count("have no vector, because the embeddings refused") == 1
    assert refused.id in caplog.text
    sent = [request.texts for request in bench.server.embeddings]
    assert sum(any(REFUSED in text for text in texts) for texts in sent) == 2
    # Once it is accepted, a process that opens the memory embeds it.
    bench.server.refused_text = ""
    third: dict[str, Any] = {"embeddings": bench.server.embedder(model="a third")}
    assert len(await bench.call(bench.memory(**third), "recall", CASE)) == 2


@pytest.mark.parametrize("value", [True, False])
async def test_review_of_a_case_without_a_vector_is_stored(bench: Bench, *, value: bool) -> None:
    refuse_embedding(bench)
    graph = bench.review_graph(embeddings=bench.server.embedder(max_retries=0))
    case = {name: bad()[name] for name in ("inputs", "outputs")}
    reply = {"value": value, "rationale": "" if value else "Too cold.", "author": "ann"}
    learned = (await bench.review(graph, reply, case))["learned"]
    [episode] = await bench.episodes()
    assert episode.status == "distilled"
    [warning] = learned["warnings"]
    assert episode.id in warning


async def test_embeddings_that_refuse_everything_store_nothing(bench: Bench) -> None:
    bench.server.responder, bench.server.refused_text = Model(), "order"
    graph = alignment(bench, embeddings=bench.server.embedder(max_retries=0))
    with pytest.raises(EmbeddingError, match="refuses the input"):
        await align(bench, records(100), graph)
    assert await bench.episodes() == []
    assert len(bench.server.embeddings) < 60
    assert bench.server.chats == []


async def test_guideline_that_embeddings_refuse_does_not_stop_the_comparison(bench: Bench) -> None:
    refuse_embedding(bench)
    small_window = bench.server.chat_model(profile={"max_input_tokens": 3_300})
    texts = [f"Rule {number} #{number}: {'it names the order. ' * 20}" for number in range(16)]
    for text in [*texts, f"#1 {REFUSED} always. {texts[1]}"]:
        await bench.add_guideline(text)
    memory = bench.memory(model=small_window, embeddings=bench.server.embedder(max_retries=0))
    await bench.call(memory, "consolidate")
    assert len(asked(bench, COMPARE)) > 1
    assert any(REFUSED in chat.text for chat in asked(bench, COMPARE))


@pytest.mark.parametrize("reply", [FILTERED, TOO_LONG])
async def test_guidelines_whose_comparison_is_refused_are_kept(bench: Bench, reply: Any) -> None:
    bench.server.responder = Model(compare=lambda _: reply)
    report = await align(bench, records(6, topics=3), patient(bench, batch_size=2))
    assert len(await bench.guidelines()) >= 3
    assert any("were not compared with each other" in warning for warning in report["warnings"])


ROW = {"inputs": "It never came.", "outputs": "Check the page.", "value": False,
       "rationale": "Too cold.", "author": "ann"}  # fmt: skip
LABEL, COMMENT = ({**ROW, "rationale": None}, {**ROW, "value": None})


@pytest.mark.parametrize(
    "tables",
    [
        [[ROW]],
        [[ROW, {**ROW, "value": True, "rationale": "Fine."}]],
        [[COMMENT, LABEL]],
        [[COMMENT], [LABEL]],
        [[LABEL], [COMMENT], [ROW]],
        [[ROW], [LABEL]],
    ],
)
async def test_tables_given_again_withdraw_nothing(bench: Bench, tables: Any) -> None:
    bench.server.responder = Model()
    for table in tables:
        await align(bench, table)
    [before] = await bench.episodes()
    feedback = [row for table in tables for row in table]
    await align(bench, feedback)
    assert await bench.episodes() == [before]
    fine = {"value": True, "rationale": "I was wrong: it is fine."}
    bench.memory().revise(before.id, fine)
    await align(bench, feedback)
    [corrected] = await bench.episodes()
    assert {"value": corrected.value, "rationale": corrected.rationale} == fine
    bench.memory().forget(author="ann")
    for table in [*tables, feedback]:
        await align(bench, table)
        bench.memory().remember(table)
    assert await bench.episodes() == []
    # New feedback counts.
    await align(bench, [*feedback, {**ROW, "rationale": "It names no date."}])
    assert [episode.rationale for episode in await bench.episodes()] == ["It names no date."]
    [dated] = bench.memory().remember([{**ROW, "given_at": "2030-01-01T00:00:00Z"}])
    assert (dated.value, dated.rationale) == (False, "Too cold.")


async def test_log_probabilities_are_retried(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bench.server.chat_model()
    logprob_model = confidence.logprob_model(model)
    assert logprob_model is not None
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    bench.server.responder = lambda _: "Yes"
    # Three answers in a row count.
    bench.server.script("Yes", "Yes", with_logprobs("A", [("A", {"A": 0.9, "B": 0.1})]))
    for _ in range(6):
        assert confidence.usable_logprob_model(model) is not None
        await confidence.ask_with_logprobs(ASYNC, logprob_model, [HumanMessage("Well?")])
    assert confidence.usable_logprob_model(model) is None
    now += 599
    assert confidence.usable_logprob_model(model) is None
    now += 2
    assert confidence.usable_logprob_model(model) is not None
