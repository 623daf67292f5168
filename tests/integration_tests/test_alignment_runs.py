"""Alignment runs: results, reports, usage and errors."""

from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from memalign_graph import InvalidInputError
from tests.conftest import EVERY_WAY, Bench
from tests.integration_tests.alignment_model import (
    COMPARE,
    DISTIL,
    Model,
    add,
    guideline_per_comment,
    retire,
    revise,
)
from tests.integration_tests.alignment_support import (
    align,
    alignment,
    asked,
    builder,
    by_text,
    comment,
    commits,
    embedded,
    progress_of,
    record,
    records,
    version,
)
from tests.loopback import ChatRequest, answer
from tests.loopback.wire import usage as tokens_of

NOTHING = "0" * 32


@EVERY_WAY
async def test_report_has_the_outcome_of_new_feedback(bench: Bench) -> None:
    bench.server.responder = Model()
    report = await align(bench, records(12, topics=3), alignment(bench, batch_size=4))
    assert report["feedback"] == {"new": 12, "changed": 0, "unchanged": 0, "rejected": 0}
    assert (report["rejected"], report["batches"], report["warnings"]) == ([], 3, [])
    assert (report["conflicts"], report["decisions"], report["replay"]) == ([], None, None)
    episodes = await bench.episodes()
    guidelines = await bench.guidelines()
    assert {episode.status for episode in episodes} == {"distilled"}
    assert report["guidelines"]["revised"] == report["guidelines"]["retired"] == []
    nothing = {"before": None, "superseded_by": None, "reason": None}
    assert report["guidelines"]["added"] == [
        {"id": item.id, "text": item.text, "episode_ids": item.episode_ids, **nothing}
        for item in guidelines
    ]
    assert [item.text for item in guidelines] == [record(n)["rationale"] for n in range(3)]
    by_number = {episode.example.inputs: episode.id for episode in episodes}
    for topic, guideline in enumerate(guidelines):
        wanted = [by_number[record(n)["inputs"]] for n in range(topic, 12, 3)]
        assert guideline.episode_ids == wanted
    assert report["memory_version_before"] == NOTHING
    assert report["memory_version_after"] == await version(bench)


async def test_reported_usage_matches_the_servers_count(bench: Bench) -> None:
    model, answers = Model(), list[Any]([answer("Well.")])

    def counted(chat: ChatRequest) -> Any:
        answers.append(model(chat))
        return answers[-1]

    bench.server.responder = counted
    bench.server.script("Well.")
    graph = alignment(bench, batch_size=4).with_config(max_concurrency=1)
    report = await align(bench, records(12, topics=3), graph)
    chats = bench.server.chats
    assert (len(asked(bench, DISTIL)), len(asked(bench, COMPARE)), len(chats)) == (4, 1, 5)
    tokens = [tokens_of(chat, item) for chat, item in zip(chats, answers, strict=True)]
    cost = report["cost"]
    assert cost["chat_calls"] == 5
    assert cost["input_tokens"] == sum(item["prompt_tokens"] for item in tokens)
    assert cost["output_tokens"] == sum(item["completion_tokens"] for item in tokens)
    assert (cost["embedding_calls"], cost["texts_embedded"]) == (1, 12)
    assert len(embedded(bench)) == 12
    assert cost["seconds"] > 0


async def test_report_lists_revised_and_retired_guidelines(bench: Bench) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    first = await align(bench, [comment(1, "On #a name it."), comment(2, "On #b name it.")])
    a, b = first["guidelines"]["added"]
    changes = [
        revise("G1", "On #a name the order number.", "F1"),
        retire("G2", "", "F2"),
        add("On #c thank them.", "F1", "F2"),
    ]
    bench.server.responder = Model(distil=lambda _: {"operations": changes})
    report = await align(bench, [record(3), record(4)])
    *_, three, four = [item.id for item in await bench.episodes()]
    [added] = report["guidelines"]["added"]
    [revised] = report["guidelines"]["revised"]
    [retired] = report["guidelines"]["retired"]
    assert (added["text"], added["episode_ids"]) == ("On #c thank them.", [three, four])
    assert (revised["id"], revised["before"]) == (a["id"], a["text"])
    assert revised["text"] == "On #a name the order number."
    assert revised["episode_ids"] == [*a["episode_ids"], three]
    for name in ("id", "text", "episode_ids"):
        assert retired[name] == b[name]
    assert (bool(retired["reason"]), retired["superseded_by"]) == (True, None)
    assert report["memory_version_before"] == first["memory_version_after"]
    assert report["memory_version_after"] == await version(bench)


async def test_unchanged_feedback_causes_no_model_call(bench: Bench) -> None:
    bench.server.responder = Model()
    feedback = records(30, topics=4)
    first = await align(bench, feedback, alignment(bench, batch_size=10))
    before = await commits(bench), await bench.guidelines(), await bench.episodes()
    bench.server.chats.clear()
    bench.server.embeddings.clear()
    for on in ("t", "u"):
        report = await align(bench, feedback[::-1], alignment(bench, batch_size=10), on)
        assert report["feedback"] == {"new": 0, "changed": 0, "unchanged": 30, "rejected": 0}
        assert report["guidelines"] == {"added": [], "revised": [], "retired": []}
        assert (report["conflicts"], report["batches"]) == ([], 0)
        assert not any({**report["cost"], "seconds": 0}.values())
        assert report["memory_version_before"] == report["memory_version_after"]
        assert report["memory_version_after"] == first["memory_version_after"]
    assert (bench.server.chats, bench.server.embeddings) == ([], [])
    assert (await commits(bench), await bench.guidelines(), await bench.episodes()) == before


async def test_active_guidelines_that_the_prompt_lacks_are_compared(bench: Bench) -> None:
    for number, episode in enumerate(await bench.remember(*records(60))):
        words = (
            f"name the order {number} and the date of the order and the way in which it was paid"
        )
        bench.teach(f"On #{number} the reply has to {words}, number {number}.", episode)
    bench.server.responder = Model()
    model = bench.server.chat_model(profile={"max_input_tokens": 4096})
    feedback = [comment(100, "On #5 name the order 5.", author="bob")]
    await align(bench, feedback, alignment(bench, model=model))
    assert "On #5 the reply" not in asked(bench, DISTIL)[0].text
    counts = [len(rule.episode_ids) for rule in await bench.guidelines()]
    assert sorted(counts) == [*[1] * 59, 2]


async def test_each_warning_of_a_report_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server.responder = Model()
    bench.server.refused_text = "Refused"
    model = bench.server.chat_model(profile={"max_input_tokens": 4_096})
    long, late = "very long " * 4_000, "2020-01-01T00:00:00Z"
    feedback = [
        record(0, inputs=long),
        record(0, inputs=long, value=True, given_at=late),
        record(1, inputs="Refused"),
    ]
    report = await align(bench, feedback, alignment(bench, model=model))
    assert len(report["warnings"]) == 3
    logged = [f"Memory of 'support_tone': {text}" for text in report["warnings"]]
    assert caplog.messages == logged


@pytest.mark.parametrize(
    ("learn_from", "first", "absent"),
    [("labels", "value", "<rationale>"), ("words", "rationale", "The expert's value")],
)
async def test_learn_from_only_labels_or_only_comments(
    bench: Bench, learn_from: Any, first: str, absent: str
) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = alignment(bench, learn_from=learn_from)
    feedback = [record(0, value=None), record(1, rationale=None), record(2)]
    report = await align(bench, feedback, graph)
    assert report["feedback"] == {"new": 2, "changed": 0, "unchanged": 0, "rejected": 1}
    [rejected] = report["rejected"]
    assert rejected["reason"].startswith(
        f"{first}: the record has none, but learn_from={learn_from!r}"
    )
    left_out = "rationale" if learn_from == "labels" else "value"
    assert {getattr(episode, left_out) for episode in await bench.episodes()} == {None}
    assert absent not in asked(bench, DISTIL)[0].text
    again = await align(bench, feedback, graph)
    assert (again["feedback"]["unchanged"], again["cost"]["chat_calls"]) == (2, 0)


ROW = {"inputs": "q", "outputs": "a"}


async def test_feedback_superseded_by_newer_feedback_is_reported(bench: Bench) -> None:
    first = {**ROW, "rationale": "Something else.", "given_at": "2026-01-01T00:00:00Z"}
    feedback = [first, {**ROW, "value": False, "rationale": "Too cold."}]
    report = await align(bench, feedback, alignment(bench))
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": 0}
    [warning] = report["warnings"]
    assert warning.startswith("1 record(s) do not count")
    assert [episode.rationale for episode in await bench.episodes()] == ["Too cold."]


DEPTH: Any = "end"
for _ in range(200):
    DEPTH = [DEPTH]

UNUSABLE: list[tuple[Any, str]] = [
    ({**record(1), "value": None, "rationale": "  "}, "value or a rationale"),
    ({"inputs": "Hello?", "rationale": "No."}, "outputs"),
    ({**record(1), "outputs": "\ud800"}, "outputs"),
    ({**record(1), "inputs": DEPTH}, "inputs"),
    ({**record(1), "value": "maybe"}, "value"),
    ({**record(1), "ratoinale": "No."}, "ratoinale"),
    ("Too cold.", "feedback"),
    ({**record(1), 7: "x"}, "7"),
]


async def test_unusable_records_are_reported_and_do_not_exclude_others(bench: Bench) -> None:
    bench.server.responder = Model()
    # Without a checkpointer, since none can store all of these.
    graph = builder(bench).compile(store=bench.store)
    feedback = [record(10), *(bad for bad, _ in UNUSABLE), record(11)]
    report = await align(bench, feedback, graph, None)
    count = len(UNUSABLE)
    assert report["feedback"] == {"new": 2, "changed": 0, "unchanged": 0, "rejected": count}
    pairs = zip(report["rejected"], UNUSABLE, strict=True)
    for number, (rejected, (_, field)) in enumerate(pairs, start=1):
        assert rejected["index"] == number
        assert field in rejected["reason"]
        assert "\n" not in rejected["reason"]
        assert 20 < len(rejected["reason"]) < 400
    assert len(report["guidelines"]["added"]) == len(await bench.guidelines()) == 2
    assert len(embedded(bench)) == 2


async def test_unusable_arguments_are_reported_in_one_sentence(bench: Bench) -> None:
    for feedback in (None, "Too cold.", record(1)):
        with pytest.raises(InvalidInputError, match=r"^feedback: expected a list of Feedback"):
            await align(bench, feedback)
    graph: Any = builder(bench).compile()
    with pytest.raises(InvalidInputError, match=r"^store: no LangGraph store"):
        await bench.invoke(graph, {"feedback": records(1)})


class Team(TypedDict, total=False):
    feedback: list[Any]
    report: dict[str, Any]


class TeamContext(TypedDict, total=False):
    team: str
    memalign: dict[str, Any]


@EVERY_WAY
async def test_subgraph_of_a_parent_with_its_own_context(bench: Bench) -> None:
    bench.server.responder = Model()
    parent = StateGraph(Team, context_schema=TeamContext)
    parent.add_node("learn", builder(bench, batch_size=2).compile())
    parent.add_edge(START, "learn")
    graph = bench.compile(parent)
    context: Any = {"team": "emea", "memalign": {"namespace": ["shop", "emea"]}}
    run: Any = {"context": context, "stream_mode": ["custom", "values"], "subgraphs": True}
    parts = await bench.stream(graph, {"feedback": records(6, topics=3)}, **run)
    events = [part for _, mode, part in parts if mode == "custom"]
    assert sorted(progress_of(events, "distill")) == [(1, 3), (2, 3), (3, 3)]
    state = (await bench.state(graph)).values
    assert set(state) == {"feedback", "report"}
    assert len(state["report"]["guidelines"]["added"]) == 3
    assert await bench.guidelines() == []
    assert len(await bench.guidelines(namespace=("shop", "emea"))) == 3


async def test_runs_on_one_thread_have_separate_reports(bench: Bench) -> None:
    bench.server.responder = Model(distil=guideline_per_comment)
    graph = alignment(bench, batch_size=1)
    feedback = [comment(1, "On #a always name it."), comment(2, "On #a never name it."), None]
    first = await align(bench, feedback, graph)
    assert (len(first["conflicts"]), len(first["rejected"]), first["batches"]) == (1, 1, 2)
    second = await align(bench, [comment(3, "On #b thank them.")], graph)
    assert (second["conflicts"], second["rejected"], second["batches"]) == ([], [], 1)
    assert by_text(second["guidelines"]["added"]) == {"On #b thank them.": 1}
    assert second["cost"]["chat_calls"] == second["cost"]["texts_embedded"] == 1
    assert second["memory_version_before"] == first["memory_version_after"]
