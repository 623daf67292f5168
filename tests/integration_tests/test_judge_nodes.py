"""The nodes in a graph of one's own, the clients they share, and what they leave in a thread."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from memalign_graph import (
    InvalidInputError,
    JudgeNodes,
    create_review_graph,
    models,
)
from memalign_graph.models import resolve_chat_model, resolve_embeddings
from memalign_graph.state import ReviewState
from tests.conftest import CASE, COLD, CRITERION, Bench, operations, thread


class Support(ReviewState):
    """A state of one's own."""

    customer: str


class Bare(TypedDict, total=False):
    """A state without the judge's channels."""

    inputs: Any
    outputs: Any
    judgment: dict[str, Any]


@dataclass
class BareDataclass:
    """The same as a dataclass."""

    inputs: Any = None
    outputs: Any = None
    judgment: dict[str, Any] = field(default_factory=dict)


def own_graph(bench: Bench, state: Any, *names: str) -> Any:
    nodes = JudgeNodes(
        CRITERION, model=bench.server.chat_model(), embeddings=bench.server.embedder()
    )
    builder: Any = StateGraph(state)
    for before, name in zip((START, *names), (*names, END), strict=True):
        if name != END:
            builder.add_node(name, getattr(nodes, name))
        builder.add_edge(before, name)
    return bench.compile(builder)


async def test_graph_of_ones_own_judges_asks_and_learns_as_ours(bench: Bench) -> None:
    names = ("retrieve_episodes", "assemble_guidelines", "judge", "collect_feedback")
    graph = own_graph(bench, Support, *names, "distill_feedback", "commit_memory")
    await bench.add_guideline("Begin with a word of regret.")
    asked = await bench.invoke(graph, {**CASE, "customer": "carol"})
    assert "Begin with a word of regret." in bench.server.chats[-1].text
    assert asked["judgment"]["guideline_ids"] == [one.id for one in await bench.guidelines()]
    bench.server.script(operations({"action": "add", "text": "Say sorry first."}))
    done = await bench.resume(graph, COLD)
    assert done["learned"]["guidelines"][0]["text"] == "Say sorry first."
    assert done["customer"] == "carol"


@pytest.mark.parametrize("state", [Bare, BareDataclass])
@pytest.mark.parametrize("names", [("judge",), ("retrieve_episodes", "judge")])
async def test_state_without_the_channels_is_refused(
    bench: Bench, state: Any, names: tuple[str, ...]
) -> None:
    await bench.add_guideline("Begin with a word of regret.")
    with pytest.raises(InvalidInputError, match=r"'judge_run'.*memalign_graph\.state\.JudgeState"):
        await bench.invoke(own_graph(bench, state, *names), CASE)
    assert bench.server.chats == []


async def test_graph_makes_one_client_of_each_string(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def chat(model: Any) -> Any:
        made.append(model)
        return resolve_chat_model(bench.server.chat_model())

    monkeypatch.setattr(models, "resolve_chat_model", chat)

    def embeddings(named: Any) -> Any:
        made.append(named)
        return resolve_embeddings(bench.server.embedder())

    monkeypatch.setattr(models, "resolve_embeddings", embeddings)
    graph = bench.compile(create_review_graph(CRITERION, clarify=True))
    await bench.invoke(graph, CASE)
    await bench.resume(graph, COLD)
    await bench.invoke(graph, CASE, "u")
    assert sorted(made) == ["openai:gpt-4.1-mini", "openai:text-embedding-3-small"]


async def test_what_a_judgment_writes_is_what_the_prompt_holds(bench: Bench) -> None:
    """300 guidelines and 20 episodes: what stands and was not shown is not checkpointed."""
    memory = bench.memory()
    for number in range(300):
        memory.add_guideline(f"Rule {number}: the reply names thing {number}, and thanks for it.")
    memory.remember(
        [
            {"inputs": f"q{number}", "outputs": "a" * 400, "value": True, "rationale": "ok " * 30}
            for number in range(20)
        ]
    )
    await bench.invoke(bench.judge_graph(), {"inputs": "q", "outputs": "first"})
    writes = [entry.pending_writes for entry in bench.saver.list(thread("t"))]
    kept = sum(len(bench.saver.serde.dumps_typed(written)[1]) for written in writes)
    assert 20_000 < kept < 80_000
