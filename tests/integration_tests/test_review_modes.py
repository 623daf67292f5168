"""When a review interrupts, and failures of reviews and learning."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import (
    ChatModelError,
    Criterion,
    EmbeddingError,
    Judgment,
    MemAlignWarning,
    create_review_graph,
)
from tests.conftest import (
    CASE,
    COLD,
    CRITERION,
    DOWN,
    EVERY_WAY,
    OTHER,
    Bench,
    Graph,
    distillings,
    judgings,
    operations,
)
from tests.loopback import ChatRequest, LoopbackServer, Rule, refusal, truncated


async def test_callable_decides_on_the_judgment_once(bench: Bench) -> None:
    seen: list[Judgment] = []

    def asks(judgment: Judgment) -> bool:
        seen.append(judgment)
        return judgment.value is False

    graph = bench.review_graph(review=asks)
    assert "__interrupt__" not in await bench.invoke(graph, CASE, "a")
    bench.server.rules = [Rule(lambda _: True, value=False)]
    result = await bench.review(graph, {"type": "approve"}, OTHER, "b")
    assert [item.value for item in seen] == [True, False]
    assert seen[1].id == result["judgment"]["id"]


async def test_second_run_on_a_thread_contains_nothing_of_the_first(bench: Bench) -> None:
    graph = patient_graph(bench)
    first = await bench.review(graph, COLD)
    bench.server.script(DOWN)
    with pytest.raises(ChatModelError):
        await bench.invoke(graph, OTHER)
    assert (await bench.state(graph)).interrupts == ()
    second = await bench.invoke(graph, None)
    assert second["judgment"]["id"] != first["judgment"]["id"]
    assert (second["feedback"], second["learned"]) == (None, None)
    assert OTHER["outputs"] in judgings(bench.server)[-1].text
    ignored = await bench.resume(graph, {"type": "ignore"})
    assert (ignored["feedback"], ignored["learned"]) == (None, None)
    assert len(await bench.episodes()) == 1


async def test_without_a_checkpointer_it_warns(bench: Bench) -> None:
    graph = bench.review_graph()
    graph.checkpointer = None
    with pytest.warns(MemAlignWarning, match="without a checkpointer"):
        result = await bench.invoke(graph, CASE, "t")
    assert result["judgment"]["value"] is True
    assert result["judgment"]["thread_id"] is None


async def test_streams_have_each_node_and_the_models_tokens(bench: Bench) -> None:
    graph, modes = bench.review_graph(), ["updates", "messages"]
    for graph_input, expected, node, said in (
        (
            CASE,
            ["retrieve_episodes", "assemble_guidelines", "judge", "__interrupt__"],
            "judge",
            "nothing to say against it",
        ),
        (
            Command(resume=COLD),
            ["collect_feedback", "distill_feedback", "commit_memory"],
            "distill_feedback",
            COLD["rationale"],
        ),
    ):
        streamed = await bench.stream(graph, graph_input, stream_mode=modes)
        assert [next(iter(part)) for mode, part in streamed if mode == "updates"] == expected
        messages = [part for mode, part in streamed if mode == "messages"]
        assert {data["langgraph_node"] for _, data in messages} == {node}
        assert said in "".join(str(message.content) for message, _ in messages)


class Parent(TypedDict, total=False):
    inputs: Any
    outputs: Any
    judgment: dict[str, Any]
    feedback: dict[str, Any] | None
    learned: dict[str, Any] | None
    tone: Any
    length: Any


@dataclass
class ParentContext:
    user: str
    memalign: Any = None


@EVERY_WAY
async def test_subgraph_under_a_parent_with_its_own_context(bench: Bench) -> None:
    builder = StateGraph(Parent, context_schema=ParentContext)
    builder.add_node("review", create_review_graph(CRITERION, **bench.models()).compile())
    builder.add_edge(START, "review")
    graph = bench.compile(builder)
    own_values = ParentContext(user="ann", memalign={"namespace": ["team"]})
    contexts = (("memalign", None), ("memalign", ParentContext(user="ann")), ("team", own_values))
    for number, (namespace, context) in enumerate(contexts):
        on, case = f"t{number}", {**CASE, "outputs": f"Answer {number}."}
        requests = await bench.invoke(graph, case, on, context=context)
        assert len(requests["__interrupt__"]) == 1
        result = await bench.resume(graph, COLD, on)
        assert result["feedback"]["value"] is False
        assert len(result["learned"]["guidelines"]) == 1
        episodes = await bench.episodes(namespace=namespace)
        assert on in [episode.thread_ids[0] for episode in episodes]
    assert len(judgings(bench.server)) == len(distillings(bench.server)) == 3


@EVERY_WAY
async def test_two_reviews_inside_nodes_are_resumed_by_interrupt_id(bench: Bench) -> None:
    builder = StateGraph(Parent)
    for name in ("tone", "length"):
        builder.add_node(f"review_{name}", call_of(bench, name))
        builder.add_edge(START, f"review_{name}")
    graph = bench.compile(builder)
    requests = await bench.invoke(graph, CASE, durability="exit")
    replies: dict[str, Any] = {
        interrupt.id: f"On {interrupt.value['action_requests'][0]['description'].split()[1]}."
        for interrupt in requests["__interrupt__"]
    }
    assert sorted(replies.values()) == ["On length.", "On tone."]
    assert "neither a value" in await bench.refuse(graph, {key: {} for key in replies})
    for key, reply in replies.items():
        result = await bench.resume(graph, {key: reply}, durability="exit")
    for name in ("tone", "length"):
        assert result[name]["feedback"]["rationale"] == f"On {name}."
        assert len(await bench.guidelines(criterion=criterion_of(name))) == 1
    assert len(judgings(bench.server)) == 2


def criterion_of(name: str) -> Criterion:
    return Criterion(name=name, instructions=f"Is the {name} right?")


def call_of(bench: Bench, key: str) -> Any:
    """A node that calls a graph, sync or async."""
    inner: Graph = create_review_graph(criterion_of(key), **bench.models()).compile()

    def call(state: Any) -> Any:
        return {key: inner.invoke({name: state[name] for name in CASE})}

    async def acall(state: Any) -> Any:
        return {key: await inner.ainvoke({name: state[name] for name in CASE})}

    return acall if bench.awaits else call


APPROVE = {"type": "approve"}
WORDS = {"rationale": COLD["rationale"]}
FAILURES: list[tuple[Any, ...]] = [
    (DOWN,),
    ("Well.", "Well."),
    (truncated('{"oper'), truncated('{"oper')),
    (refusal(), refusal()),
]


def patient_graph(bench: Bench) -> Graph:
    return bench.review_graph(model=bench.server.chat_model(max_retries=0))


async def contents(bench: Bench) -> tuple[Any, Any, str]:
    """The value, comment and status of the one episode."""
    [episode] = await bench.episodes()
    return episode.value, episode.rationale, episode.status


async def test_approving_a_corrected_case_keeps_comment_and_guidelines(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD, on="a")
    guidelines = await bench.guidelines()
    bench.server.rules = [Rule(lambda _: True, value=False)]
    for _ in range(2):
        learned = (await bench.review(graph, APPROVE, on="b"))["learned"]
        assert await contents(bench) == (False, COLD["rationale"], "distilled")
        assert await bench.guidelines() == guidelines != []
        assert learned["guidelines"] == []
    [episode] = await bench.episodes()
    assert learned["episode_ids"] == [episode.id]
    assert episode.thread_ids == ["a", "b"]
    assert len(episode.verdicts) == 3  # each judgment that was answered
    assert (len(judgings(bench.server)), len(distillings(bench.server))) == (3, 1)


async def test_value_alone_extends_or_replaces_a_comment(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, WORDS, on="a")
    assert await contents(bench) == (None, COLD["rationale"], "distilled")
    [before], guidelines = await bench.episodes(), await bench.guidelines()
    await bench.review(graph, {"value": False}, on="b")
    assert await contents(bench) == (False, COLD["rationale"], "distilled")
    [episode] = await bench.episodes()
    assert episode.created_at == before.created_at
    assert await bench.guidelines() == guidelines != []
    await bench.review(graph, APPROVE, on="c")  # the judge still says true
    assert await contents(bench) == (True, None, "distilled")
    assert await bench.guidelines() == []
    assert len(distillings(bench.server)) == 1


@pytest.mark.parametrize(
    ("options", "distils"), [({}, "gpt-other"), ({"distill_model": "openai:gpt-own"}, "gpt-own")]
)
async def test_model_of_the_context_distills_unless_distill_model_is_set(
    bench: Bench, environment_server: LoopbackServer, options: Any, distils: str
) -> None:
    graph = bench.review_graph(model="openai:gpt-own", **options)
    await bench.invoke(graph, CASE, context={"model": "openai:gpt-other"})
    await bench.resume(graph, COLD)  # the resumed run has no context
    requests = [(chat.schema_name, chat.model) for chat in environment_server.chats]
    assert requests == [("judgment", "gpt-other"), ("guideline_operations", distils)]


class Unstructured(FakeListChatModel):
    """A model without structured output."""


@pytest.mark.parametrize(
    ("distiller", "reason"),
    [("openai:gpt-own", "OPENAI_API_KEY"), (Unstructured(responses=[]), "structured output")],
)
async def test_unusable_distill_model_loses_no_reply(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, distiller: Any, reason: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    graph = bench.review_graph(distill_model=distiller)
    await bench.invoke(graph, CASE)
    learned = (await bench.resume(graph, COLD))["learned"]
    [episode] = await bench.episodes()
    assert await contents(bench) == (False, COLD["rationale"], "pending")
    assert (learned["episode_ids"], learned["guidelines"]) == ([], [])
    [warning] = learned["warnings"]
    assert f"Feedback {episode.id} is stored, but nothing was distilled from it" in warning
    assert reason in warning
    await bench.review(bench.review_graph(), WORDS, OTHER, on="mended")
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


@pytest.mark.parametrize("failure", FAILURES)
async def test_feedback_that_could_not_be_distilled_is_stored(bench: Bench, failure: Any) -> None:
    graph = patient_graph(bench)
    await bench.invoke(graph, CASE)
    bench.server.script(*failure)
    learned = (await bench.resume(graph, COLD))["learned"]
    [old] = await bench.episodes()
    assert await contents(bench) == (False, COLD["rationale"], "pending")
    assert (learned["episode_ids"], learned["guidelines"]) == ([], [])
    assert any(f"Feedback {old.id}" in warning for warning in learned["warnings"])
    # An approval keeps it pending; the next comment distills both.
    bench.server.rules = [Rule(lambda _: True, value=False)]
    await bench.review(graph, APPROVE, on="again")
    assert await contents(bench) == (False, COLD["rationale"], "pending")
    await bench.invoke(graph, OTHER, "u")
    bench.server.script(
        operations(
            {"action": "add", "text": "From the old one.", "feedback": ["F1"]},
            {"action": "add", "text": "From the new one.", "feedback": ["F2"]},
            {"action": "add", "text": "From both.", "feedback": ["F2", "f1", "F1"]},
        )
    )
    result = await bench.resume(graph, {"rationale": "Ask for the order's number."}, "u")
    [new] = [episode for episode in await bench.episodes() if episode.id != old.id]
    assert {guideline.text: guideline.episode_ids for guideline in await bench.guidelines()} == {
        "From the new one.": [new.id],
        "From the old one.": [old.id],
        "From both.": [new.id, old.id],
    }
    assert result["learned"]["episode_ids"] == sorted([old.id, new.id])


@pytest.mark.parametrize(
    ("action", "text", "left"),
    [("retire", "", []), ("retire", "Always say sorry.", []),
     ("revise", "Always say sorry.", ["Always say sorry."])],
)  # fmt: skip
async def test_older_feedback_leaves_the_newer_guideline_of_the_same_expert(
    bench: Bench, action: str, text: str, left: list[str]
) -> None:
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    bench.server.script(operations({"action": "add", "text": "Never say sorry."}))
    await bench.resume(graph, {**COLD, "author": "ann"})
    older = {**OTHER, "rationale": "Say SORRY.", "author": "ann", "given_at": "2026-01-01T00:00Z"}
    await bench.remember(older)
    change = {"action": action, "guideline": "G1", "text": text, "feedback": ["F1"]}
    more = {"action": "add", "text": "Ask for the order's number.", "feedback": ["F2"]}
    await bench.invoke(graph, {**CASE, "inputs": "Where is it?"}, "u")
    bench.server.script(operations(change, more))
    reply = {"value": False, "rationale": "It needs the number.", "author": "ann"}
    learned = (await bench.resume(graph, reply, "u"))["learned"]
    texts = [guideline.text for guideline in await bench.guidelines()]
    assert texts == ["Never say sorry.", *left, "Ask for the order's number."]
    [warning] = learned["warnings"]
    assert warning.startswith("'Never say sorry.' stays")


async def test_feedback_is_kept_if_embedding_fails(bench: Bench) -> None:
    graph = bench.review_graph(embeddings=bench.server.embedder(max_retries=0))
    await bench.invoke(graph, CASE)
    bench.server.script_embeddings(DOWN)
    with pytest.raises(EmbeddingError):
        await bench.resume(graph, COLD)
    assert await bench.episodes() == []
    assert (await bench.state(graph)).values["feedback"]["rationale"] == COLD["rationale"]
    await bench.invoke(graph, None)
    assert [episode.status for episode in await bench.episodes()] == ["distilled"]


async def test_older_comments_come_before_values_and_unused_feedback_is_read_three_times(
    bench: Bench,
) -> None:
    values = [{"inputs": f"Label {n}", "outputs": "Fine.", "value": True} for n in range(20)]
    await bench.remember(*values)
    await bench.remember({**OTHER, "rationale": "It must name the REFUND."})

    judge = bench.server.judge

    def learn_newest(chat: ChatRequest) -> Any:
        if chat.schema_name != "guideline_operations":
            return judge(chat)
        newest = re.findall(r"Feedback (F\d+)", chat.text)[-1]
        return operations({"action": "add", "text": "Say sorry first.", "feedback": [newest]})

    bench.server.responder = learn_newest
    graph = bench.review_graph()
    pending: list[int] = []
    for number in range(4):
        case = {**CASE, "inputs": f"Order {number} never came."}
        done = await bench.review(graph, COLD, case, on=str(number))
        assert len(done["learned"]["episode_ids"]) == (1 if number in (0, 1, 3) else 21)
        pending.append(sum(each.status == "pending" for each in await bench.episodes()))
    shown = [(c.text.count("Label "), "REFUND" in c.text) for c in distillings(bench.server)]
    assert shown == [(19, True), (19, True), (19, True), (1, False)]
    assert pending == [21, 21, 1, 1]
