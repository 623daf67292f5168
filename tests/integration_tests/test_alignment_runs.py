"""Runs of an alignment: what is learned and reported, what it costs, and what is refused."""

import asyncio
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from memalign_graph import (
    ChatModelError,
    Criterion,
    InvalidInputError,
    Numeric,
    create_alignment_graph,
)
from tests.conftest import CASE, COLD, EVERY_WAY, Bench, thread
from tests.integration_tests.alignment_support import (
    COMPARE,
    DISTIL,
    Model,
    add,
    align,
    alignment,
    asked,
    builder,
    by_text,
    commits,
    each_its_words,
    embedded,
    progress_of,
    record,
    records,
    retire,
    revise,
    said,
    sources,
    version,
)
from tests.loopback import Answer, ChatRequest, Together, answer, error
from tests.loopback.wire import usage as tokens_of

NOTHING = "0" * 32


@EVERY_WAY
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
    bench.server.script("Well.")
    report = await align(bench, records(12, topics=3), alignment(bench, batch_size=4))
    chats = bench.server.chats
    assert (len(asked(bench, DISTIL)), len(asked(bench, COMPARE)), len(chats)) == (4, 1, 5)
    answers = [answer("Well."), *map(answered, chats[1:])]
    counted = [tokens_of(chat, one) for chat, one in zip(chats, answers, strict=True)]
    cost = report["cost"]
    assert cost["chat_calls"] == 5
    assert cost["input_tokens"] == sum(one["prompt_tokens"] for one in counted)
    assert cost["output_tokens"] == sum(one["completion_tokens"] for one in counted)
    assert (cost["embedding_calls"], cost["texts_embedded"]) == (1, 12)
    assert len(embedded(bench)) == 12
    assert cost["seconds"] > 0


async def test_calls_of_a_run_that_failed_and_went_on_are_counted_once(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, model=bench.server.chat_model(max_retries=0), batch_size=2)
    down = error(500, retry_after=0)
    bench.server.responder = Model(
        distil=lambda one: down if "case 3" in one.text else each_its_words(one)
    )
    with pytest.raises(ChatModelError):
        await align(bench, records(6), graph)
    bench.server.responder = Model()
    report = (await bench.invoke(graph, None))["report"]
    assert report["cost"]["chat_calls"] == 4
    assert (report["cost"]["texts_embedded"], report["cost"]["embedding_calls"]) == (6, 1)


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


async def test_expert_who_agrees_costs_no_chat_call(bench: Bench) -> None:
    judged = (await bench.invoke(bench.judge_graph(), CASE))["judgment"]
    bench.server.chats.clear()
    agreeing = {**CASE, "value": judged["value"], "judgment": judged}
    report = await align(bench, [agreeing])
    assert (report["feedback"]["new"], report["cost"]["chat_calls"]) == (1, 0)
    assert bench.server.chats == []
    assert [one.status for one in await bench.episodes()] == ["distilled"]


def answered(request: ChatRequest) -> Answer:
    """What the model answers."""
    reply = Model()(request)
    assert isinstance(reply, Answer)
    return reply


def _ids(report: dict[str, Any]) -> set[str]:
    return {key for one in report["guidelines"]["added"] for key in one["episode_ids"]}


async def test_unchanged_feedback_costs_nothing(bench: Bench) -> None:
    bench.server.responder = Model()
    given = records(30, topics=4)
    first = await align(bench, given, alignment(bench, batch_size=10))
    before = await commits(bench), await bench.guidelines(), await bench.episodes()
    bench.server.chats.clear()
    bench.server.embeddings.clear()
    for on in ("t", "u"):
        report = await align(bench, given[::-1], alignment(bench, batch_size=10), on)
        assert report["feedback"] == {"new": 0, "changed": 0, "unchanged": 30, "rejected": 0}
        assert report["guidelines"] == {"added": [], "revised": [], "retired": []}
        assert (report["conflicts"], report["batches"]) == ([], 0)
        assert {**report["cost"], "seconds": 0} == {
            "chat_calls": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "embedding_calls": 0,
            "texts_embedded": 0,
            "seconds": 0,
        }
        assert report["memory_version_before"] == report["memory_version_after"]
        assert report["memory_version_after"] == first["memory_version_after"]
    assert (bench.server.chats, bench.server.embeddings) == ([], [])
    assert (await commits(bench), await bench.guidelines(), await bench.episodes()) == before


async def test_guideline_that_lost_one_of_its_sources_is_distilled_again(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench)
    await align(bench, [record(n, topic="a") for n in (1, 2, 3)], graph)
    [before] = await bench.guidelines()
    edited = said(1, "On #b thank them.", given_at=record(9)["given_at"])
    report = await align(bench, [edited], graph)
    reworded, new = await bench.guidelines()
    assert reworded.id == before.id
    assert reworded.episode_ids == before.episode_ids[1:]
    assert "case 1" in before.text
    assert "case 1" not in reworded.text
    assert new.text == "On #b thank them."
    assert report["cost"]["chat_calls"] == 2
    [revised] = report["guidelines"]["revised"]
    assert (revised["id"], revised["before"]) == (before.id, before.text)
    assert report["guidelines"]["retired"] == []


async def test_feedback_that_could_not_be_distilled_is_taken_along(bench: Bench) -> None:
    graph = bench.review_graph(model=bench.server.chat_model(max_retries=0))
    await bench.invoke(graph, CASE)
    bench.server.script(error(500, retry_after=0))
    with pytest.raises(ChatModelError):
        await bench.resume(graph, COLD)
    bench.server.responder = Model(distil=each_its_words)
    report = await align(bench, [said(1, "On #a name it.")], on="u")
    assert report["feedback"]["new"] == 1
    assert sources(await bench.guidelines()) == {COLD["rationale"]: 1, "On #a name it.": 1}
    assert {one.status for one in await bench.episodes()} == {"distilled"}
    assert len(asked(bench, DISTIL)) == 2


LABELS = [record(n, rationale=None) for n in range(4)]
WORDS = [said(n, f"On #{n} name it.", value=None) for n in range(4, 8)]
BOTH = [said(n, f"On #{n} name it.") for n in range(8, 12)]


async def test_learn_from_labels_alone(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, learn_from="labels")
    report = await align(bench, [*LABELS, *WORDS, *BOTH], graph)
    assert report["feedback"] == {"new": 8, "changed": 0, "unchanged": 0, "rejected": 4}
    assert [one["index"] for one in report["rejected"]] == [4, 5, 6, 7]
    for one in report["rejected"]:
        assert one["reason"].startswith("value: the record has none")
        assert "learn_from='labels'" in one["reason"]
    assert {one.rationale for one in await bench.episodes()} == {None}
    assert "<rationale>" not in asked(bench, DISTIL)[0].text
    assert asked(bench, DISTIL)[0].text.count("The expert's value: ") == 8
    again = await align(bench, [*LABELS, *WORDS, *BOTH], graph)
    assert (again["feedback"]["unchanged"], again["cost"]["chat_calls"]) == (8, 0)


async def test_learn_from_words_alone(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, learn_from="words")
    report = await align(bench, [*LABELS, *WORDS, *BOTH], graph)
    assert report["feedback"] == {"new": 8, "changed": 0, "unchanged": 0, "rejected": 4}
    assert [one["index"] for one in report["rejected"]] == [0, 1, 2, 3]
    for one in report["rejected"]:
        assert one["reason"].startswith("rationale: the record has none")
    assert {one.value for one in await bench.episodes()} == {None}
    assert "The expert's value" not in asked(bench, DISTIL)[0].text
    assert len(await bench.guidelines()) == 8
    assert (report["agreement"]["examples"], report["agreement"]["alpha"]) == (0, None)


ROW = {"inputs": "q", "outputs": "a"}


async def test_a_word_that_a_newer_one_outdates_is_told(bench: Bench) -> None:
    first = {**ROW, "rationale": "Something else.", "given_at": "2026-01-01T00:00:00Z"}
    given = [first, {**ROW, "value": False, "rationale": "Too cold."}]
    report = await align(bench, given, alignment(bench))
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": 0}
    [warning] = report["warnings"]
    assert warning.startswith("1 record(s) do not count")
    assert [one.rationale for one in await bench.episodes()] == ["Too cold."]


GRADE = Criterion(
    name="grade", instructions="How good?", scale=Numeric(minimum=1, maximum=5, integer=True)
)
DEPTH: Any = "end"
for _ in range(200):
    DEPTH = [DEPTH]

UNUSABLE: list[tuple[Any, str]] = [
    ({**record(1), "value": None, "rationale": "  "}, "value or a rationale"),
    ({**record(1), "inputs": ""}, "inputs"),
    ({**record(1), "outputs": "\n "}, "outputs"),
    ({"inputs": "Hello?", "rationale": "No."}, "outputs"),
    ({}, "example"),
    ({**record(1), "rationale": "Too\x00cold."}, "rationale"),
    ({**record(1), "outputs": "\ud800"}, "outputs"),
    ({**record(1), "inputs": DEPTH}, "inputs"),
    ({**record(1), "inputs": {1, 2}}, "inputs"),
    ({**record(1), "inputs": float("nan")}, "inputs"),
    ({**record(1), "value": "maybe"}, "value"),
    ({**record(1), "value": ["no"]}, "value"),
    ({**record(1), "rationale": 7}, "rationale"),
    ({**record(1), "author": "a\x00"}, "author"),
    ({**record(1), "given_at": "some day"}, "given_at"),
    ({**record(1), "ratoinale": "No."}, "ratoinale"),
    ("Too cold.", "feedback"),
    (None, "feedback"),
    ([record(1)], "feedback"),
    ({**record(1), 7: "x"}, "7"),
]


async def test_unusable_records_are_told_and_keep_no_other_out(bench: Bench) -> None:
    bench.server.responder = Model()
    # Without a checkpointer: none keeps all of these.
    graph = builder(bench).compile(store=bench.store)
    given = [record(10), *(bad for bad, _ in UNUSABLE), record(11)]
    report = await align(bench, given, graph, None)
    count = len(UNUSABLE)
    assert report["feedback"] == {"new": 2, "changed": 0, "unchanged": 0, "rejected": count}
    for number, (rejected, (_, field)) in enumerate(
        zip(report["rejected"], UNUSABLE, strict=True), start=1
    ):
        assert rejected["index"] == number
        assert field in rejected["reason"]
        assert "\n" not in rejected["reason"]
        assert 20 < len(rejected["reason"]) < 400
    assert len(report["guidelines"]["added"]) == len(await bench.guidelines()) == 2
    assert len(embedded(bench)) == 2


async def test_values_off_a_numeric_scale_are_told(bench: Bench) -> None:
    values = [0, 6, 2.5, "good", True, float("inf"), 10**400, 1e308]
    bench.server.responder = Model()
    # Without a checkpointer: none keeps an integer beyond 64 bits.
    graph = builder(bench, GRADE).compile(store=bench.store)
    given = [record(n, value=value) for n, value in enumerate([*values, 5])]
    report = await align(bench, given, graph, None)
    assert [one["index"] for one in report["rejected"]] == list(range(len(values)))
    assert {one["reason"][:7] for one in report["rejected"]} == {"value: "}
    assert report["feedback"]["new"] == 1


async def test_a_megabyte_of_text_is_taken(bench: Bench) -> None:
    bench.server.responder = Model()
    big = "word " * 200_000
    report = await align(
        bench,
        [record(1), record(2, inputs=big), record(3, outputs={"text": big}), record(4)],
    )
    assert report["feedback"]["new"] == 4
    assert len(report["guidelines"]["added"]) == 4
    [warning] = report["warnings"]
    assert warning.startswith("2 record(s) were too long")
    for chat in bench.server.chats:
        assert len(chat.text) < 60_000
    assert max(map(len, embedded(bench))) < 60_000
    found = {one.example.inputs for one in await bench.episodes()}
    assert big in found


async def test_feedback_that_is_no_list_is_an_error(bench: Bench) -> None:
    for feedback in (None, "Too cold.", record(1), 7):
        with pytest.raises(InvalidInputError, match=r"^feedback: give a list of Feedback"):
            await align(bench, feedback)
    assert (bench.server.chats, bench.server.embeddings) == ([], [])


async def test_what_the_model_proposes_and_teaches_nothing_is_told(bench: Bench) -> None:
    parrot = add(record(1)["outputs"], "F1")
    bench.server.responder = Model(
        distil=lambda _: {"operations": [parrot, add("Name the order.", "F2")]}
    )
    report = await align(bench, [record(1), record(2)])
    assert [one["text"] for one in report["guidelines"]["added"]] == ["Name the order."]
    [warning] = report["warnings"]
    assert warning.startswith(
        f'The model\'s guideline "{record(1)["outputs"]}" was not kept, since'
    )


async def test_new_wording_that_teaches_nothing_is_told(bench: Bench) -> None:
    """A guideline lost a source, and what it was to say instead is the output itself."""
    bench.server.responder = Model()
    await align(bench, [record(1, "a"), record(2, "a")])
    [guideline] = await bench.guidelines()
    first, second = [one for one in await bench.episodes() if one.id in guideline.episode_ids]
    bench.memory().forget(first.id)
    parrot = {"operations": [add(str(second.example.outputs))]}
    bench.server.responder = Model(distil=lambda _: parrot)
    report = await align(bench, [])
    assert await bench.guidelines() == []
    [warning] = report["warnings"]
    assert "was not kept, since it repeats the output" in warning


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 7}, "model: give a chat model or a string"),
    ({"distill_model": object()}, "distill_model: give a chat model"),
    ({"k": -1}, "k: -1 is too little: give 0 or more"),
    ({"learn_from": "rationales"}, "learn_from: 'rationales' is not known: give"),
    ({"learn_from": ["labels"]}, "learn_from: ['labels'] is not known"),
    ({"conflicts": "oldest"}, "conflicts: 'oldest' is not known: give 'newest' or"),
    ({"guard": True}, "guard: True is not known: give 'replay'"),
    ({"batch_size": 0}, "batch_size: 0 is too little: give 1 or more"),
    ({"batch_size": 2.5}, "batch_size: 2.5 is not a whole number"),
    ({"replay_cases": "20"}, "replay_cases: '20' is not a whole number"),
    ({"max_guideline_tokens": -1}, "max_guideline_tokens: -1 is too little: give"),
    ({"use_guidelines": "no"}, "use_guidelines: 'no' is"),
]


async def test_what_can_not_be_used_is_told_in_one_sentence(bench: Bench) -> None:
    for options, sentence in WRONG:
        with pytest.raises(InvalidInputError) as caught:
            builder(bench, **options)
        assert str(caught.value).startswith(sentence)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"^criterion: give a Criterion"):
        create_alignment_graph("Is it polite?")  # type: ignore[arg-type]
    graph: Any = builder(bench).compile()
    with pytest.raises(InvalidInputError, match=r"^store: the graph has none"):
        await bench.invoke(graph, {"feedback": records(1)})


async def test_progress_is_streamed_until_all_is_done(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, batch_size=3)
    events = await bench.stream(graph, {"feedback": records(12)}, stream_mode="custom")
    assert {one["type"] for one in events} == {"alignment_progress"}
    assert progress_of(events, "remember") == [(0, 12), (12, 12)]
    assert sorted(progress_of(events, "distill")) == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert progress_of(events, "consolidate") == [(0, 1), (1, 1)]
    assert progress_of(events, "commit") == [(1, 1)]
    batches = [one["batch"] for one in events if one["stage"] == "distill"]
    assert sorted(batches) == [1, 2, 3, 4]
    order = [one["stage"] for one in events]
    assert order == sorted(order, key=["remember", "distill", "consolidate", "commit"].index)


class Team(TypedDict, total=False):
    """A parent's state."""

    feedback: list[Any]
    report: dict[str, Any]


class TeamContext(TypedDict, total=False):
    """A parent's context, with settings for what is below it."""

    team: str
    memalign: dict[str, Any]


@EVERY_WAY
async def test_subgraph_of_a_parent_with_a_context_of_its_own(bench: Bench) -> None:
    bench.server.responder = Model()
    parent = StateGraph(Team, context_schema=TeamContext)
    parent.add_node("learn", builder(bench, batch_size=2).compile())
    parent.add_edge(START, "learn")
    parent.add_edge("learn", END)
    graph = bench.compile(parent)
    given = {"feedback": records(6, topics=3)}
    context: Any = {"team": "emea", "memalign": {"namespace": ["shop", "emea"]}}
    events: list[Any] = []
    parts = await bench.stream(
        graph, given, context=context, stream_mode=["custom", "values"], subgraphs=True
    )
    events = [part for _, mode, part in parts if mode == "custom"]
    assert sorted(progress_of(events, "distill")) == [(1, 3), (2, 3), (3, 3)]
    state = (await bench.state(graph)).values
    assert set(state) == {"feedback", "report"}
    assert len(state["report"]["guidelines"]["added"]) == 3
    assert await bench.guidelines() == []
    assert len(await bench.guidelines(namespace=("shop", "emea"))) == 3
    report = (await bench.invoke(graph, given, "u", context=context))["report"]
    assert report["feedback"]["unchanged"] == 6


async def test_runs_on_one_thread_do_not_mix_their_reports(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, batch_size=1)
    given = [said(1, "On #a always name it."), said(2, "On #a never name it."), None]
    first = await align(bench, given, graph)
    assert (len(first["conflicts"]), len(first["rejected"]), first["batches"]) == (1, 1, 2)
    second = await align(bench, [said(3, "On #b thank them.")], graph)
    assert second["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": 0}
    assert (second["conflicts"], second["rejected"], second["batches"]) == ([], [], 1)
    assert by_text(second["guidelines"]["added"]) == {"On #b thank them.": 1}
    assert second["guidelines"]["retired"] == second["guidelines"]["revised"] == []
    assert second["cost"]["chat_calls"] == second["cost"]["texts_embedded"] == 1
    assert second["memory_version_before"] == first["memory_version_after"]
    third = await align(bench, [], graph)
    assert (third["conflicts"], third["batches"], third["cost"]["chat_calls"]) == ([], 0, 0)
    assert third["guidelines"] == {"added": [], "revised": [], "retired": []}


async def test_two_alignments_at_once_on_one_memory(bench: Bench) -> None:
    """Disjoint feedback in one memory, from one process: nothing lost, nothing doubled."""
    bench.server.responder = Together(2, Model(), DISTIL)
    graph = alignment(bench, batch_size=20)
    halves = [records(20, topics=4), records(20, topics=4, first=100)]
    await asyncio.gather(
        *(graph.ainvoke({"feedback": half}, thread(f"t{n}")) for n, half in enumerate(halves))
    )
    assert bench.server.peak_chats >= 2
    episodes = await bench.episodes()
    assert len(episodes) == 40
    assert {one.status for one in episodes} == {"distilled"}
    learned = [key for one in await bench.guidelines() for key in one.episode_ids]
    assert sorted(learned) == sorted(one.id for one in episodes)
