"""What a gate takes out of its parent's state to be judged."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from memalign_graph import InvalidInputError
from tests.conftest import Bench, judgings
from tests.integration_tests.gates.support import (
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


@pytest.mark.parametrize("build", [gated, wired])
@pytest.mark.parametrize("state", [TypedState, PydanticState, DataclassState])
async def test_parents_of_every_kind_go_round_their_loop(
    bench: Bench, state: Any, build: Any
) -> None:
    seen = []

    def example(given: Any) -> dict[str, Any]:
        seen.append(given)
        messages = given["messages"] if isinstance(given, dict) else given.messages
        return {"inputs": "Q", "outputs": messages[-1].text, "reference_outputs": "R"}

    for options in ({}, {"example": example}):
        bench.server.chats.clear()
        bench.server.rules = always(False)
        writer = Writer()
        graph = build(bench, writer, state=state, max_revisions=1, **options)
        given = await bench.invoke(graph.with_config(recursion_limit=12), asked(), str(options))
        gate = given["quality_gate"]
        assert (gate["status"], gate["revisions"], len(writer.seen)) == ("exhausted", 1, 2)
        assert outputs(bench.server) == ["Draft 1.", "Draft 2."]
        assert inputs(bench.server) == ["Q" if options else QUESTION] * 2
        assert ("<reference_outputs>\nR\n" in bench.server.chats[0].text) is bool(options)
        assert REASON in texts(given["messages"])[2]
    assert {type(one) for one in seen} == {dict if state is TypedState else state}


async def test_each_turn_on_a_thread_is_judged_by_its_own_question(bench: Bench) -> None:
    graph = gated(bench, Writer("Wait.", "Please wait.", "Sorry!", "Send a photo."))
    bench.server.script(verdict(False), verdict(False), verdict(True), verdict(True))
    await bench.invoke(graph, asked())
    await bench.invoke(graph, asked("The cup is broken."))
    assert inputs(bench.server) == [*[QUESTION] * 3, "The cup is broken."]
    assert outputs(bench.server) == ["Wait.", "Please wait.", "Sorry!", "Send a photo."]


PICTURE = {"type": "image", "url": "https://example.org/a.png"}


@pytest.mark.parametrize("answer", ["  \n", [], [PICTURE], [{"type": "text", "text": " "}]])
async def test_empty_answer_never_passes_and_costs_no_call(bench: Bench, answer: Any) -> None:
    graph = gated(bench, lambda _: {"messages": [AIMessage(answer)]}, max_revisions=1)
    given = await bench.invoke(graph, asked())
    gate = given["quality_gate"]
    assert (gate["status"], gate["passed"], gate["value"]) == ("exhausted", False, None)
    assert gate["critique"] == "There is no answer to judge: write one."
    assert (gate["judgment"], gate["decided_by"], gate["error"]) == (None, None, None)
    assert bench.server.chats == []
    assert len(given["messages"]) == 4


async def test_function_may_find_no_answer_or_one_that_is_no_text(bench: Bench) -> None:
    blanks: list[Any] = [None, " ", {}, [], {"text": "  "}, ["", ""], {"a": None, "b": [{"c": ""}]}]
    found = [None, *({"inputs": "Q", "outputs": blank} for blank in blanks)]
    for number, example in enumerate(found):
        graph = gated(bench, Writer(), revise=None, example=lambda _, found=example: found)
        given = await bench.invoke(graph, asked(), str(number))
        assert given["quality_gate"]["status"] == "exhausted"
    assert bench.server.chats == []
    for answer in (0, False, {"rows": 0}):
        made = {"inputs": "Q", "outputs": answer}
        graph = gated(bench, Writer(), example=lambda _, made=made: made)
        given = await bench.invoke(graph, asked(), str(answer))
        assert given["quality_gate"]["status"] == "accepted"
    assert len(judgings(bench.server)) == 3


NO_EXAMPLES: list[tuple[Any, str]] = [
    ({"inputs": "", "outputs": "A"}, "inputs"),
    ({"inputs": "Q"}, "outputs"),
    ({"inputs": "Q", "outputs": "A", "output": "B"}, "output"),
    ({"inputs": "Q", "outputs": {"messages": [HumanMessage("Q")]}}, "outputs"),
    (["Q", "A"], "example"),
    (7, "example"),
]


@pytest.mark.parametrize(("example", "at"), NO_EXAMPLES)
async def test_example_that_is_none_is_one_sentence_and_no_call(
    bench: Bench, example: Any, at: str
) -> None:
    graph = gated(bench, Writer(), example=lambda _: example, on_judge_error="open")
    with pytest.raises(InvalidInputError) as caught:
        await bench.invoke(graph, asked())
    assert str(caught.value).startswith(at)
    assert "\n" not in str(caught.value)
    assert bench.server.chats == []


class Chat(TypedDict):
    chat: Annotated[list[AnyMessage], add_messages]


class Unreduced(TypedDict, total=False):
    messages: list[Any]


async def test_messages_under_another_key_and_as_dicts_without_a_reducer(bench: Bench) -> None:
    writer = Writer()
    bench.server.script(verdict(False), verdict(True))
    graph = gated(
        bench, lambda state: {"chat": writer(state)["messages"]}, state=Chat, messages_key="chat"
    )
    given = await bench.invoke(graph, {"chat": [("human", QUESTION)]})
    assert inputs(bench.server) == [QUESTION, QUESTION]
    assert isinstance(given["chat"][2], HumanMessage)
    assert REASON in given["chat"][2].text

    def write(state: Any) -> dict[str, Any]:
        return {"messages": [*state["messages"], {"role": "assistant", "content": "Sorry!"}]}

    graph = gated(bench, write, state=Unreduced, revise=None)
    spoken = {"messages": [{"role": "user", "content": QUESTION}]}
    given = await bench.invoke(graph, spoken, "u")
    assert given["quality_gate"]["status"] == "accepted"
    assert (inputs(bench.server)[-1], outputs(bench.server)[-1]) == (QUESTION, "Sorry!")


@pytest.mark.parametrize("spoilt", ["a\x00b", "a\ud800b"])
async def test_answer_that_no_store_keeps_does_not_pass(bench: Bench, spoilt: str) -> None:
    graph = gated(bench, Writer(spoilt, "Sorry!"))
    graph.checkpointer = None  # a checkpointer would refuse to keep some of these first
    given = await bench.invoke(graph, asked(), None)
    assert given["quality_gate"]["status"] == "accepted"
    assert outputs(bench.server) == ["Sorry!"]
