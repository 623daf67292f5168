"""What a gate takes out of its parent's state to be judged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from memalign_graph import Example, InvalidInputError
from tests.conftest import Bench, judgings
from tests.integration_tests.gates.support import (
    IN_MEMORY,
    QUESTION,
    REASON,
    Writer,
    always,
    asked,
    gated,
    inputs,
    outputs,
    texts,
    verdict,
    wired,
)


class TypedState(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    quality_gate: dict[str, Any]


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    quality_gate: dict[str, Any] | None = None


@dataclass
class DataclassState:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    quality_gate: dict[str, Any] | None = None


STATES = pytest.mark.parametrize("state", [TypedState, PydanticState, DataclassState])


def messages_of(state: Any) -> Sequence[AnyMessage]:
    found: Sequence[AnyMessage] = state["messages"] if isinstance(state, dict) else state.messages
    return found


def gate_of(state: Any) -> Any:
    return state["quality_gate"] if isinstance(state, dict) else state.quality_gate


async def test_revised_answer_is_judged_against_the_question_not_the_critique(
    bench: Bench,
) -> None:
    bench.server.script(verdict(False), verdict(False), verdict(True))
    await bench.invoke(gated(bench, Writer("Wait.", "Please wait.", "Sorry!")), asked())
    assert inputs(bench.server) == [QUESTION] * 3
    assert outputs(bench.server) == ["Wait.", "Please wait.", "Sorry!"]


async def test_each_turn_on_a_thread_is_judged_by_its_own_question(bench: Bench) -> None:
    graph = gated(bench, Writer("Wait.", "Sorry!", "Send a photo."))
    bench.server.script(verdict(False), verdict(True), verdict(True))
    await bench.invoke(graph, asked())
    await bench.invoke(graph, asked("The cup is broken."))
    assert inputs(bench.server) == [QUESTION, QUESTION, "The cup is broken."]
    assert outputs(bench.server) == ["Wait.", "Sorry!", "Send a photo."]


@IN_MEMORY
@STATES
async def test_parents_of_every_kind_go_round_their_loop(bench: Bench, state: Any) -> None:
    bench.server.script(verdict(False), verdict(True))
    writer = Writer()
    given = await bench.invoke(gated(bench, writer, state=state), asked())
    assert given["quality_gate"]["status"] == "accepted"
    assert REASON in messages_of(writer.seen[1])[-1].text
    assert outputs(bench.server) == ["Draft 1.", "Draft 2."]


@IN_MEMORY
@STATES
async def test_parents_of_every_kind_are_stopped_when_revisions_run_out(
    bench: Bench, state: Any
) -> None:
    bench.server.rules = always(False)
    writer = Writer()
    given = await bench.invoke(gated(bench, writer, state=state, max_revisions=1), asked())
    assert given["quality_gate"]["status"] == "exhausted"
    assert len(writer.seen) == 2


@IN_MEMORY
@STATES
async def test_gate_wired_by_hand_counts_revisions_too(bench: Bench, state: Any) -> None:
    bench.server.rules = always(False)
    writer = Writer()
    graph = wired(
        bench, writer, state, lambda given: str(gate_of(given)["status"]), max_revisions=1
    )
    graph = graph.with_config(recursion_limit=12)
    given = await bench.invoke(graph, asked())
    assert given["quality_gate"]["status"] == "exhausted"
    assert given["quality_gate"]["revisions"] == 1
    assert len(writer.seen) == 2


@IN_MEMORY
@STATES
async def test_function_is_given_the_parents_own_kind_of_state(bench: Bench, state: Any) -> None:
    seen = []

    def example(given: Any) -> dict[str, Any]:
        seen.append(given)
        return {"inputs": "Q", "outputs": messages_of(given)[-1].text, "reference_outputs": "R"}

    bench.server.rules = always(True)
    await bench.invoke(gated(bench, Writer("A"), state=state, example=example), asked())
    [given] = seen
    assert isinstance(given, dict if state is TypedState else state)
    assert texts(messages_of(given)) == [QUESTION, "A"]
    assert (inputs(bench.server), outputs(bench.server)) == (["Q"], ["A"])
    assert "<reference_outputs>\nR\n</reference_outputs>" in bench.server.chats[0].text


@IN_MEMORY
@STATES
async def test_function_is_given_the_parents_state_also_by_hand(bench: Bench, state: Any) -> None:
    seen = []

    def example(given: Any) -> Example:
        seen.append(given)
        return Example(inputs="Q", outputs="A")

    graph = wired(
        bench,
        Writer(),
        state,
        lambda given: str(gate_of(given)["status"]),
        example=example,
    )
    await bench.invoke(graph, asked())
    assert isinstance(seen[0], dict if state is TypedState else state)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  \n",
        [],
        [{"type": "image", "url": "https://example.org/a.png"}],
        [{"type": "text", "text": " "}],
    ],
)
async def test_empty_answer_never_passes_and_costs_no_call(bench: Bench, answer: Any) -> None:
    def write(_state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(answer)]}

    given = await bench.invoke(gated(bench, write, max_revisions=1), asked())
    gate = given["quality_gate"]
    assert (gate["status"], gate["passed"], gate["value"]) == ("exhausted", False, None)
    assert gate["critique"] == "There is no answer to judge: write one."
    assert (gate["judgment"], gate["decided_by"], gate["error"]) == (None, None, None)
    assert bench.server.chats == []
    assert len(given["messages"]) == 4


@pytest.mark.parametrize(
    "blank",
    [
        None,
        {"inputs": "Q", "outputs": None},
        {"inputs": "Q", "outputs": " "},
        {"inputs": "Q", "outputs": {}},
        {"inputs": "Q", "outputs": []},
        {"inputs": "Q", "outputs": {"text": "  "}},
        {"inputs": "Q", "outputs": ["", ""]},
        {"inputs": "Q", "outputs": {"answer": None, "notes": [{"text": ""}]}},
    ],
)
async def test_function_that_finds_no_answer_lets_none_pass(bench: Bench, blank: Any) -> None:
    bench.server.rules = always(True)
    graph = gated(bench, Writer(), revise=None, example=lambda _: blank)
    given = await bench.invoke(graph, asked())
    assert given["quality_gate"]["status"] == "exhausted"
    assert bench.server.chats == []


@IN_MEMORY
async def test_answers_that_are_no_text_are_judged(bench: Bench) -> None:
    bench.server.rules = always(True)
    for number, value in enumerate([0, False, {"rows": 0}]):
        graph = gated(
            bench, Writer(), example=lambda _, value=value: {"inputs": "Q", "outputs": value}
        )
        given = await bench.invoke(graph, asked(), str(number))
        assert given["quality_gate"]["status"] == "accepted"
    assert len(judgings(bench.server)) == 3


@pytest.mark.parametrize(
    ("example", "field"),
    [
        ({"inputs": "", "outputs": "A"}, "inputs"),
        ({"inputs": "Q"}, "outputs"),
        ({"inputs": "Q", "outputs": "A", "output": "B"}, "output"),
        (["Q", "A"], "example"),
        (7, "example"),
    ],
)
async def test_example_that_is_none_is_one_sentence_and_no_call(
    bench: Bench, example: Any, field: str
) -> None:
    graph = gated(bench, Writer(), example=lambda _: example, on_judge_error="open")
    with pytest.raises(InvalidInputError) as caught:
        await bench.invoke(graph, asked())
    assert str(caught.value).startswith(field)
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []


@IN_MEMORY
async def test_example_with_an_answer_of_another_type_is_told(bench: Bench) -> None:
    graph = gated(bench, Writer(), example=lambda state: {"inputs": "Q", "outputs": state})
    with pytest.raises(InvalidInputError, match="outputs"):
        await bench.invoke(graph, asked())
    assert bench.server.chats == []


@IN_MEMORY
async def test_missing_messages_are_one_sentence(bench: Bench) -> None:
    class State(TypedDict, total=False):
        answer: str

    graph = gated(bench, lambda _: {"answer": "A"}, state=State, revise=None)
    with pytest.raises(InvalidInputError, match="messages: the state has no messages there"):
        await bench.invoke(graph, {"answer": ""})


@IN_MEMORY
async def test_conversation_without_a_human_is_one_sentence(bench: Bench) -> None:
    graph = gated(bench, Writer())
    with pytest.raises(InvalidInputError, match="messages: none of the messages is human"):
        await bench.invoke(graph, {"messages": [("system", "Be kind.")]})


@IN_MEMORY
async def test_messages_under_another_key(bench: Bench) -> None:
    class State(TypedDict):
        chat: Annotated[list[AnyMessage], add_messages]

    writer = Writer()

    def write(state: Any) -> dict[str, Any]:
        return {"chat": writer(state)["messages"]}

    bench.server.script(verdict(False), verdict(True))
    graph = gated(bench, write, state=State, messages_key="chat")
    given = await bench.invoke(graph, {"chat": [("human", QUESTION)]})
    assert inputs(bench.server) == [QUESTION, QUESTION]
    assert isinstance(given["chat"][2], HumanMessage)
    assert REASON in given["chat"][2].text


@IN_MEMORY
async def test_messages_as_dicts_without_a_reducer(bench: Bench) -> None:
    class State(TypedDict, total=False):
        messages: list[Any]

    def write(state: Any) -> dict[str, Any]:
        return {"messages": [*state["messages"], {"role": "assistant", "content": "Sorry!"}]}

    bench.server.rules = always(True)
    graph = gated(bench, write, state=State, revise=None)
    given = await bench.invoke(graph, {"messages": [{"role": "user", "content": QUESTION}]})
    assert given["quality_gate"]["status"] == "accepted"
    assert (inputs(bench.server), outputs(bench.server)) == ([QUESTION], ["Sorry!"])


@pytest.mark.parametrize("spoilt", ["a\x00b", "a\ud800b"])
async def test_answer_that_no_store_keeps_does_not_pass(bench: Bench, spoilt: str) -> None:
    bench.server.rules = always(True)
    graph = gated(bench, Writer(spoilt, "Sorry!"), revise="write")
    graph.checkpointer = None  # a checkpointer would refuse to keep some of these first
    given = await bench.invoke(graph, asked(), None)
    assert given["quality_gate"]["status"] == "accepted"
    assert outputs(bench.server) == ["Sorry!"]
