"""What a gated graph returns, and what it leaves of its parent's schemas."""

import json
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.managed import RemainingSteps
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from memalign_graph import GateVerdict, create_feedback_graph
from tests.conftest import CRITERION, Bench
from tests.integration_tests.gates.support import (
    IN_MEMORY,
    Builder,
    Gathered,
    Writer,
    always,
    asked,
    gate_on,
    gated,
    models,
    verdict,
    writing,
)


class Answer(TypedDict):
    answer: str


class Asking(TypedDict):
    question: str


class Private(Asking, Answer, total=False):
    critique: str


def keep(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """A user's own reducer: gathers statuses beside the verdict."""
    return {**new, "seen": [*(old or {}).get("seen", []), new["status"]]}


def question_and_answer(state: Any) -> dict[str, Any]:
    return {"inputs": state["question"], "outputs": state["answer"]}


async def test_verdict_is_returned_though_the_state_does_not_declare_it(bench: Bench) -> None:
    given = await bench.invoke(gated(bench, Writer(), name="tone"), asked())
    assert set(given) == {"messages", "tone"}
    assert json.loads(json.dumps(given["tone"])) == given["tone"]
    assert (await bench.state(gated(bench, Writer(), name="tone"))).values["tone"] == given["tone"]


@IN_MEMORY
async def test_output_schema_of_ones_own_is_left_alone(bench: Bench) -> None:
    builder: Builder = StateGraph(Private, input_schema=Asking, output_schema=Answer)
    builder.add_node("write", lambda _: {"answer": "Sorry!"})
    builder.add_edge(START, "write")
    options: dict[str, Any] = {"example": question_and_answer, "critique_key": "critique"}
    gate_on(bench, builder, CRITERION, **options)
    graph = bench.compile(builder)
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(graph, {"question": "Where is it?"})
    assert given == {"answer": "Sorry!"}
    values = (await bench.state(graph)).values
    assert (values["quality_gate"]["status"], values["critique"]) == ("accepted", "")
    assert list(graph.get_input_jsonschema()["properties"]) == ["question"]
    assert list(graph.get_output_jsonschema()["properties"]) == ["answer"]


@IN_MEMORY
async def test_output_schema_of_ones_own_can_name_the_verdict(bench: Bench) -> None:
    class Output(TypedDict):
        answer: str
        quality_gate: GateVerdict

    builder: Builder = StateGraph(Private, input_schema=Asking, output_schema=Output)
    builder.add_node("write", lambda _: {"answer": "Sorry!"})
    builder.add_edge(START, "write")
    options: dict[str, Any] = {"example": question_and_answer, "critique_key": "critique"}
    gate_on(bench, builder, CRITERION, **options)
    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(bench.compile(builder), {"question": "Where is it?"})
    assert set(given) == {"answer", "quality_gate"}
    assert given["quality_gate"]["revisions"] == 1


@IN_MEMORY
async def test_input_schema_is_left_alone(bench: Bench) -> None:
    graph = gated(bench, Writer(), revise=None, critique_key="critique")
    assert list(graph.get_input_jsonschema()["properties"]) == ["messages"]
    returned = set(graph.get_output_jsonschema()["properties"])
    assert returned == {"messages", "quality_gate", "critique"}


async def test_key_declared_with_a_reducer_of_ones_own(bench: Bench) -> None:
    class State(MessagesState):
        quality_gate: Annotated[dict[str, Any], keep]

    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(gated(bench, Writer(), state=State), asked())
    assert given["quality_gate"]["seen"] == ["revise", "accepted"]
    assert given["quality_gate"]["revisions"] == 1


@IN_MEMORY
async def test_key_declared_as_a_verdict(bench: Bench) -> None:
    class State(MessagesState):
        quality_gate: GateVerdict

    bench.server.rules = always(False)
    given = await bench.invoke(gated(bench, Writer(), state=State, max_revisions=1), asked())
    assert given["quality_gate"]["status"] == "exhausted"


@IN_MEMORY
@pytest.mark.parametrize("hint", [GateVerdict | None, dict[str, Any] | None, Any])
async def test_key_declared_by_a_strict_pydantic_state(bench: Bench, hint: Any) -> None:
    class State(BaseModel):
        model_config = ConfigDict(extra="forbid")
        messages: Annotated[list[AnyMessage], add_messages] = []
        quality_gate: hint = None

    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(gated(bench, Writer(), state=State), asked())
    assert (given["quality_gate"]["status"], given["quality_gate"]["revisions"]) == ("accepted", 1)


async def test_strict_pydantic_state_need_not_declare_it(bench: Bench) -> None:
    class State(BaseModel):
        model_config = ConfigDict(extra="forbid")
        messages: Annotated[list[AnyMessage], add_messages] = []
        tries: int = 0

    seen: list[Any] = []

    def example(state: State) -> dict[str, Any]:
        seen.append(state)
        return {"inputs": "Q", "outputs": state.messages[-1].text}

    bench.server.script(verdict(False), verdict(True))
    graph = gated(bench, Writer(), state=State, example=example)
    given = await bench.invoke(graph, State(messages=[HumanMessage("Hello")]))
    assert given["quality_gate"]["status"] == "accepted"
    assert [type(one) for one in seen] == [State, State]


async def test_all_verdicts_of_a_thread_are_gathered_by_a_reducer_of_ones_own(bench: Bench) -> None:
    graph = gated(bench, Writer(), state=Gathered, max_revisions=1)
    bench.server.script(verdict(False), verdict(True), verdict(True))
    await bench.invoke(graph, asked())
    given = await bench.invoke(graph, asked("The cup is broken."))
    statuses = [one["status"] for one in given["quality_gate"]]
    assert statuses == ["revise", "accepted", "accepted"]


@IN_MEMORY
async def test_state_with_a_managed_value(bench: Bench) -> None:
    class State(MessagesState):
        remaining_steps: RemainingSteps

    def write(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{state['remaining_steps']} steps left.")]}

    bench.server.script(verdict(False), verdict(True))
    given = await bench.invoke(gated(bench, write, state=State), asked())
    assert set(given) == {"messages", "quality_gate"}
    assert given["quality_gate"]["status"] == "accepted"


@IN_MEMORY
async def test_two_gates_return_both_verdicts(bench: Bench) -> None:
    builder = writing(Writer())
    gate_on(bench, builder, CRITERION, revise=None, name="first", accept="second")
    gate_on(bench, builder, CRITERION, after=None, revise=None, name="second")
    given = await bench.invoke(bench.compile(builder), asked())
    assert set(given) == {"messages", "first", "second"}


async def test_judgment_in_the_verdict_can_be_spoken_of_later(bench: Bench) -> None:
    from datetime import timedelta

    given = await bench.invoke(gated(bench, Writer(), keep_judgments=timedelta(days=1)), asked())
    later = bench.compile(create_feedback_graph(CRITERION, **models(bench)))
    said = {
        "judgment_id": given["quality_gate"]["judgment"]["id"],
        "reply": {"value": False, "rationale": "Too cold."},
    }
    learned = await bench.invoke(later, said, "later")
    [episode] = await bench.episodes()
    assert learned["learned"]["episode_ids"] == [episode.id]
    assert episode.example.outputs == "Draft 1."
