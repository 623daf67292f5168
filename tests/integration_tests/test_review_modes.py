"""When a review interrupts, and failures of reviews and learning."""

import operator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import (
    ChatModelError,
    Criterion,
    EmbeddingError,
    Episode,
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
from tests.loopback import LoopbackServer, Rule, refusal, truncated


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
    graph = bench.review_graph()
    first = await bench.review(graph, COLD)
    second = await bench.invoke(graph, OTHER)
    assert second["judgment"]["id"] != first["judgment"]["id"]
    assert (second["feedback"], second["learned"]) == (None, None)
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


@EVERY_WAY
async def test_streams_have_each_node_and_the_models_tokens(bench: Bench) -> None:
    graph = bench.review_graph()
    modes: Any = {"stream_mode": ["updates", "messages"]}

    async def parts(graph_input: Any) -> tuple[list[str], str, set[str]]:
        streamed = await bench.stream(graph, graph_input, **modes)
        nodes = [next(iter(part)) for mode, part in streamed if mode == "updates"]
        messages = [part for mode, part in streamed if mode == "messages"]
        text = "".join(str(message.content) for message, _ in messages)
        return nodes, text, {data["langgraph_node"] for _, data in messages}

    nodes, text, of = await parts(CASE)
    assert nodes == ["retrieve_episodes", "assemble_guidelines", "judge", "__interrupt__"]
    assert of == {"judge"}
    assert "nothing to say against it" in text
    nodes, text, of = await parts(Command(resume=COLD))
    assert nodes == ["collect_feedback", "distill_feedback", "commit_memory"]
    assert of == {"distill_feedback"}
    assert str(COLD["rationale"]) in text


class Parent(TypedDict, total=False):
    inputs: Any
    outputs: Any
    judgment: dict[str, Any]
    feedback: dict[str, Any] | None
    learned: dict[str, Any] | None
    steps: Annotated[list[str], operator.add]


@dataclass
class ParentContext:
    user: str
    memalign: Any = None


def step(name: str) -> Any:
    return lambda _: {"steps": [name]}


def parent_graph(bench: Bench) -> Graph:
    builder = StateGraph(Parent, context_schema=ParentContext)
    builder.add_node("answer", step("answer"))
    builder.add_node("review", create_review_graph(CRITERION, **bench.models()).compile())
    builder.add_node("done", step("done"))
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "review")
    builder.add_edge("review", "done")
    builder.add_edge("done", END)
    return bench.compile(builder)


@EVERY_WAY
async def test_subgraph_under_a_parent_with_its_own_context(bench: Bench) -> None:
    graph = parent_graph(bench)
    own_values = ParentContext(user="ann", memalign={"namespace": ["team"]})
    contexts = (("memalign", None), ("memalign", ParentContext(user="ann")), ("team", own_values))
    for number, (namespace, context) in enumerate(contexts):
        on, case = f"t{number}", {**CASE, "outputs": f"Answer {number}."}
        requests = await bench.invoke(graph, case, on, context=context)
        assert len(requests["__interrupt__"]) == 1
        result = await bench.resume(graph, COLD, on)
        assert result["steps"] == ["answer", "done"]
        assert result["feedback"]["value"] is False
        assert len(result["learned"]["guidelines"]) == 1
        episodes = await bench.episodes(namespace=(namespace))
        assert on in [episode.thread_ids[0] for episode in episodes]
    assert len(judgings(bench.server)) == len(distillings(bench.server)) == 3


class Two(Parent, total=False):
    tone: Any
    length: Any


@EVERY_WAY
async def test_two_reviews_inside_nodes_are_resumed_by_interrupt_id(bench: Bench) -> None:
    builder = StateGraph(Two)
    for name in ("tone", "length"):
        builder.add_node(f"review_{name}", call_of(bench, name))
        builder.add_edge(START, f"review_{name}")
    graph = bench.compile(builder)
    requests = await bench.invoke(graph, CASE)
    replies: dict[str, Any] = {
        interrupt.id: f"On {interrupt.value['action_requests'][0]['description'].split()[1]}."
        for interrupt in requests["__interrupt__"]
    }
    assert sorted(replies.values()) == ["On length.", "On tone."]
    assert "neither a value" in await bench.refuse(graph, {key: {} for key in replies})
    result = await bench.resume(graph, replies)
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
FAILURES: dict[str, tuple[Any, ...]] = {
    "down": (DOWN,),
    "prose": ("Well.", "Well."),
    "truncated": (truncated('{"oper'), truncated('{"oper')),
    "refused": (refusal(), refusal()),
}
WORDS = {"rationale": COLD["rationale"]}


def set_verdict(bench: Bench, value: Any) -> None:
    bench.server.rules = [Rule(lambda _: True, value=value)]


def patient_graph(bench: Bench) -> Graph:
    return bench.review_graph(model=bench.server.chat_model(max_retries=0))


async def fail_to_distill(
    bench: Bench, graph: Graph, reply: Any = COLD, on: str = "t", failure: str = "down"
) -> Episode:
    """Give a reply that is stored but not distilled."""
    await bench.invoke(graph, CASE, on)
    bench.server.script(*FAILURES[failure])
    learned = (await bench.resume(graph, reply, on))["learned"]
    [episode] = await bench.episodes()
    assert (learned["episode_ids"], learned["guidelines"]) == ([], [])
    assert any(f"Feedback {episode.id}" in warning for warning in learned["warnings"])
    assert (episode.status, episode.rationale) == ("pending", reply["rationale"])
    return episode


def all_feedback(episode: Episode) -> tuple[Any, ...]:
    return episode.value, episode.rationale, episode.status


async def test_approving_a_corrected_case_keeps_comment_and_guidelines(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, COLD, on="a")
    guidelines = await bench.guidelines()
    set_verdict(bench, False)
    result = await bench.review(graph, APPROVE, on="b")
    [episode] = await bench.episodes()
    assert all_feedback(episode) == (False, COLD["rationale"], "distilled")
    assert episode.thread_ids == ["a", "b"]
    assert await bench.guidelines() == guidelines != []
    assert result["learned"]["episode_ids"] == [episode.id]
    assert result["learned"]["guidelines"] == []
    assert len(distillings(bench.server)) == 1
    assert len(judgings(bench.server)) == 2
    again = await bench.review(graph, APPROVE, on="b")
    assert again["learned"]["guidelines"] == []
    assert await bench.guidelines() == guidelines
    [episode] = await bench.episodes()
    assert len(episode.verdicts) == 3  # each judgment that was answered


async def test_value_alone_extends_or_replaces_a_comment(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.review(graph, WORDS, on="a")
    [before] = await bench.episodes()
    assert all_feedback(before) == (None, COLD["rationale"], "distilled")
    guidelines = await bench.guidelines()
    await bench.review(graph, {"value": False}, on="b")
    [episode] = await bench.episodes()
    assert all_feedback(episode) == (False, COLD["rationale"], "distilled")
    assert episode.created_at == before.created_at
    assert await bench.guidelines() == guidelines != []
    await bench.review(graph, APPROVE, on="c")  # the judge still says true
    [episode] = await bench.episodes()
    assert all_feedback(episode) == (True, None, "distilled")
    assert await bench.guidelines() == []
    assert len(distillings(bench.server)) == 1


async def test_approving_pending_feedback_keeps_it_pending(bench: Bench) -> None:
    graph = patient_graph(bench)
    await fail_to_distill(bench, graph, COLD, "a")
    set_verdict(bench, False)
    await bench.review(graph, APPROVE, on="b")
    [episode] = await bench.episodes()
    assert all_feedback(episode) == (False, COLD["rationale"], "pending")
    await bench.review(graph, WORDS, OTHER, on="c")
    assert {all_feedback(episode)[2] for episode in await bench.episodes()} == {"distilled"}


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
    assert all_feedback(episode) == (False, COLD["rationale"], "pending")
    assert (learned["episode_ids"], learned["guidelines"]) == ([], [])
    [warning] = learned["warnings"]
    assert f"Feedback {episode.id} is stored, but nothing was distilled from it" in warning
    assert reason in warning
    await bench.review(bench.review_graph(), WORDS, OTHER, on="mended")
    assert {episode.status for episode in await bench.episodes()} == {"distilled"}


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_repeating_the_review_distills_it(bench: Bench, failure: str) -> None:
    graph = patient_graph(bench)
    episode = await fail_to_distill(bench, graph, failure=failure)
    assert await bench.guidelines() == []
    assert (await bench.state(graph)).next == ()
    result = await bench.review(graph, COLD, on="again")
    assert result["learned"]["episode_ids"] == [episode.id]
    assert [episode.status for episode in await bench.episodes()] == ["distilled"]
    assert len(await bench.guidelines()) == 1


async def test_later_run_distills_the_pending_feedback(bench: Bench) -> None:
    graph = patient_graph(bench)
    old = await fail_to_distill(bench, graph)
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


async def test_failing_second_run_does_not_return_the_first_judgment(bench: Bench) -> None:
    graph = patient_graph(bench)
    await bench.review(graph, COLD)
    bench.server.script(DOWN)
    with pytest.raises(ChatModelError):
        await bench.invoke(graph, OTHER)
    assert (await bench.state(graph)).interrupts == ()
    result = await bench.invoke(graph, None)
    assert len(result["__interrupt__"]) == 1
    assert result["learned"] is None
    assert OTHER["outputs"] in judgings(bench.server)[-1].text
