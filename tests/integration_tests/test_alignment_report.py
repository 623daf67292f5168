"""The report: what became of the feedback and of the guidelines, and what it cost."""

import time
from typing import Any

import pytest

from memalign_graph import ChatModelError, Feedback
from tests.conftest import CASE, COLD, Bench
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    COMPARE,
    DISTIL,
    Model,
    add,
    align,
    alignment,
    asked,
    by_text,
    each_its_words,
    embedded,
    feedback_in,
    record,
    records,
    retire,
    revise,
    said,
    version,
)
from tests.loopback import Answer, ChatRequest, answer, error, truncated
from tests.loopback.wire import usage as tokens_of

NOTHING = "0" * 32


async def test_report_tells_what_became_of_new_feedback(bench: Bench) -> None:
    bench.server.responder = Model()
    report = await align(bench, records(12, topics=3), alignment(bench, batch_size=4))
    assert report["feedback"] == {"new": 12, "changed": 0, "unchanged": 0, "rejected": 0}
    assert (report["rejected"], report["batches"], report["warnings"]) == ([], 3, [])
    assert (report["conflicts"], report["decisions"], report["replay"]) == ([], None, None)
    episodes = await bench.episodes()
    guidelines = await bench.guidelines()
    assert {one.status for one in episodes} == {"distilled"}
    assert report["guidelines"]["revised"] == report["guidelines"]["retired"] == []
    assert report["guidelines"]["added"] == [
        {
            "id": one.id,
            "text": one.text,
            "episode_ids": one.episode_ids,
            "before": None,
            "superseded_by": None,
            "reason": None,
        }
        for one in guidelines
    ]
    assert [one.text for one in guidelines] == [record(n)["rationale"] for n in range(3)]
    by_number = {one.example.inputs: one.id for one in episodes}
    for topic, guideline in enumerate(guidelines):
        wanted = [by_number[record(n)["inputs"]] for n in range(topic, 12, 3)]
        assert guideline.episode_ids == wanted
    assert report["memory_version_before"] == NOTHING
    assert report["memory_version_after"] == await version(bench)


async def test_cost_is_what_the_server_counted(bench: Bench) -> None:
    bench.server.responder = Model()
    bench.server.latency_s = 0.05
    start = time.time()
    report = await align(bench, records(12, topics=3), alignment(bench, batch_size=4))
    chats = bench.server.chats
    assert (len(asked(bench, DISTIL)), len(asked(bench, COMPARE)), len(chats)) == (3, 1, 4)
    counted = [tokens_of(chat, answered(chat)) for chat in chats]
    cost = report["cost"]
    assert cost["chat_calls"] == 4
    assert cost["input_tokens"] == sum(one["prompt_tokens"] for one in counted)
    assert cost["output_tokens"] == sum(one["completion_tokens"] for one in counted)
    assert (cost["embedding_calls"], cost["texts_embedded"]) == (1, 12)
    assert len(embedded(bench)) == 12
    assert 0.1 <= cost["seconds"] <= time.time() - start


@BOTH_WAYS
async def test_answers_that_could_not_be_used_are_counted_too(bench: Bench) -> None:
    bench.server.responder = Model()
    bench.server.script("Well.")
    cost = (await align(bench, [record(1)]))["cost"]
    assert (cost["chat_calls"], len(bench.server.chats)) == (2, 2)
    first, again = bench.server.chats
    wanted = [tokens_of(first, answer("Well.")), tokens_of(again, answered(again))]
    assert cost["input_tokens"] == sum(one["prompt_tokens"] for one in wanted)
    assert cost["output_tokens"] == sum(one["completion_tokens"] for one in wanted)


@BOTH_WAYS
async def test_tokens_of_an_answer_that_was_cut_off_are_counted(bench: Bench) -> None:
    bench.server.responder = Model()
    cut = truncated('{"operations": [{"text": "On #1 and on and on')
    bench.server.script(cut)
    cost = (await align(bench, [record(1)]))["cost"]
    first, again = bench.server.chats
    wanted = [tokens_of(first, cut), tokens_of(again, answered(again))]
    assert cost["chat_calls"] == 2
    assert cost["input_tokens"] == sum(one["prompt_tokens"] for one in wanted)
    assert cost["output_tokens"] == sum(one["completion_tokens"] for one in wanted)


@BOTH_WAYS
async def test_calls_of_a_run_that_failed_and_went_on_are_counted_once(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, model=bench.server.chat_model(max_retries=0), batch_size=2)
    down = error(500, retry_after=0)
    bench.server.responder = Model(distil=lambda one: down if "case 3" in one.text else rules(one))
    with pytest.raises(ChatModelError):
        await align(bench, records(6), graph)
    bench.server.responder = Model()
    report = (await bench.invoke(graph, None))["report"]
    assert report["cost"]["chat_calls"] == 4
    assert (report["cost"]["texts_embedded"], report["cost"]["embedding_calls"]) == (6, 1)


@BOTH_WAYS
async def test_report_tells_of_revised_and_retired_guidelines(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    first = await align(bench, [said(1, "On #a name it."), said(2, "On #b name it.")])
    a, b = first["guidelines"]["added"]
    bench.server.responder = Model(
        distil=lambda _: {
            "operations": [
                revise("G1", "On #a name the order number.", "F1"),
                retire("G2", "", "F2"),
                add("On #c thank them.", "F1", "F2"),
            ]
        }
    )
    report = await align(bench, [record(3), record(4)])
    three, four = [one.id for one in await bench.episodes() if one.id not in _ids(first)]
    [added] = report["guidelines"]["added"]
    [revised] = report["guidelines"]["revised"]
    [retired] = report["guidelines"]["retired"]
    assert (added["text"], added["episode_ids"]) == ("On #c thank them.", [three, four])
    assert (revised["id"], revised["before"]) == (a["id"], "On #a name it.")
    assert (revised["text"], revised["episode_ids"]) == (
        "On #a name the order number.",
        [*a["episode_ids"], three],
    )
    assert (retired["id"], retired["text"], retired["episode_ids"]) == (
        b["id"],
        "On #b name it.",
        b["episode_ids"],
    )
    assert retired["reason"]
    assert retired["superseded_by"] is None
    assert report["memory_version_before"] == first["memory_version_after"]
    assert report["memory_version_after"] == await version(bench)


@BOTH_WAYS
async def test_guideline_with_a_new_source_alone_is_told_as_revised(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    await align(bench, [said(1, "On #a name it.")])
    report = await align(bench, [said(2, "on #a  NAME it")])
    assert report["guidelines"]["added"] == []
    [revised] = report["guidelines"]["revised"]
    assert (revised["before"], len(revised["episode_ids"])) == (None, 2)


@BOTH_WAYS
async def test_empty_list(bench: Bench) -> None:
    report = await align(bench, [])
    assert report["feedback"] == {"new": 0, "changed": 0, "unchanged": 0, "rejected": 0}
    assert report["guidelines"] == {"added": [], "revised": [], "retired": []}
    assert report["memory_version_before"] == report["memory_version_after"] == NOTHING
    assert report["batches"] == report["cost"]["chat_calls"] == 0
    assert (bench.server.chats, bench.server.embeddings) == ([], [])


async def test_feedback_objects_and_fields_are_the_same(bench: Bench) -> None:
    bench.server.responder = Model()
    given = records(4)
    mixed = [Feedback.model_validate(one) if n % 2 else one for n, one in enumerate(given)]
    first = await align(bench, mixed)
    assert first["feedback"]["new"] == 4
    assert (await align(bench, given))["feedback"]["unchanged"] == 4


async def test_feedback_objects_outlast_a_failure_of_the_first_node(bench: Bench) -> None:
    """The checkpoint holds them when the run goes on, also under strict msgpack."""
    bench.server.responder = Model()
    graph = alignment(bench, embeddings=bench.server.embedder(max_retries=0))
    bench.server.script_embeddings(error(500, retry_after=0))
    given = [Feedback.model_validate(one) for one in records(3)]
    with pytest.raises(Exception, match="failed"):
        await align(bench, given, graph)
    report = (await bench.invoke(graph, None))["report"]
    assert (report["feedback"]["new"], report["rejected"]) == (3, [])
    assert len(report["guidelines"]["added"]) == 3


async def test_feedback_objects_outlast_a_failure_of_a_later_node(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, model=bench.server.chat_model(max_retries=0))
    bench.server.script(*[error(500, retry_after=0)] * 2)
    with pytest.raises(ChatModelError):
        await align(bench, [Feedback.model_validate(one) for one in records(3)], graph)
    report = (await bench.invoke(graph, None))["report"]
    assert len(report["guidelines"]["added"]) == 3


@BOTH_WAYS
async def test_same_word_twice_in_one_call(bench: Bench) -> None:
    bench.server.responder = Model()
    report = await align(bench, [record(1), record(2), record(1)])
    assert report["feedback"] == {"new": 2, "changed": 0, "unchanged": 1, "rejected": 0}
    assert len(await bench.episodes()) == 2
    assert sorted(by_text(report["guidelines"]["added"]).values()) == [1, 1]
    assert len(embedded(bench)) == 2


@BOTH_WAYS
async def test_of_two_words_of_one_author_in_one_call_the_newer_counts(bench: Bench) -> None:
    bench.server.responder = Model()
    old, new = said(1, "On #a be short."), said(1, "On #b be long.")
    newer = {**new, "given_at": record(9)["given_at"]}
    report = await align(bench, [newer, old])
    [episode] = await bench.episodes()
    assert episode.rationale == "On #b be long."
    assert list(by_text(report["guidelines"]["added"])) == ["On #b be long."]
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": 0}
    [warning] = report["warnings"]
    assert warning.startswith("1 record(s) do not count, since there is a newer word")
    assert "On #a" not in asked(bench, DISTIL)[0].text


@BOTH_WAYS
async def test_expert_who_agrees_costs_no_chat_call(bench: Bench) -> None:
    judged = (await bench.invoke(bench.judge_graph(), CASE))["judgment"]
    bench.server.chats.clear()
    agreeing = {**CASE, "value": judged["value"], "judgment": judged}
    report = await align(bench, [agreeing])
    assert (report["feedback"]["new"], report["cost"]["chat_calls"]) == (1, 0)
    assert bench.server.chats == []
    assert [one.status for one in await bench.episodes()] == ["distilled"]


@BOTH_WAYS
async def test_words_taken_up_by_a_review_are_known_to_an_alignment(bench: Bench) -> None:
    await bench.review(bench.review_graph(), COLD)
    chats = len(bench.server.chats)
    report = await align(bench, [{**CASE, **COLD}], on="u")
    assert report["feedback"]["unchanged"] == 1
    assert len(bench.server.chats) == chats
    assert len(await bench.guidelines()) == 1


def answered(request: ChatRequest) -> Answer:
    """What the model answers."""
    reply = Model()(request)
    assert isinstance(reply, Answer)
    return reply


def rules(request: ChatRequest) -> Any:
    return {"operations": [add(words, one) for one, words in feedback_in(request).items()]}


def _ids(report: dict[str, Any]) -> set[str]:
    return {key for one in report["guidelines"]["added"] for key in one["episode_ids"]}
