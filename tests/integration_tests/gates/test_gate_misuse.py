"""What can't work is told in one sentence that names the field, when the graph is built."""

import operator
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from langchain_core.messages import AnyMessage
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import (
    InvalidInputError,
    add_quality_gate,
    create_quality_gate_node,
)
from tests.conftest import CRITERION, Bench
from tests.integration_tests.gates.support import (
    Builder,
    Writer,
    gate_on,
    gated,
    models,
    writing,
)

TWICE = ("name", "messages_key", "critique_key")
"""Any of those that share a key may be named."""

KEYS: dict[str, tuple[dict[str, Any], str | tuple[str, ...]]] = {
    "name-of-messages": ({"name": "messages"}, TWICE),
    "messages_key-number": ({"messages_key": 5}, "messages_key"),
    "messages_key-none": ({"messages_key": None}, "messages_key"),
    "critique_key-number": ({"critique_key": 5}, "critique_key"),
    "critique_key-empty": ({"critique_key": ""}, "critique_key"),
    "critique_key-is-the-messages": ({"critique_key": "messages"}, TWICE),
    "critique_key-is-the-verdict": ({"critique_key": "quality_gate"}, TWICE),
}
OPTIONS: dict[str, tuple[dict[str, Any], str | tuple[str, ...]]] = {
    "max_revisions": ({"max_revisions": -1}, "max_revisions"),
    "distill_model-asked": ({"distill_model": 5, "review": "always"}, "distill_model"),
    **KEYS,
}
PLACES: dict[str, tuple[dict[str, Any], str | tuple[str, ...]]] = {
    "after-number": ({"after": 5}, "after"),
    "after-list-of-numbers": ({"after": [5]}, "after"),
    "accept-none": ({"accept": None}, "accept"),
    "accept-number": ({"accept": 5}, "accept"),
    "revise-number": ({"revise": 5}, "revise"),
    "escalate-number": ({"escalate": 5}, "escalate"),
    "fallback-and-escalate": ({"fallback": "Later.", "escalate": "write"}, "fallback"),
}


def refused(build: Callable[[], Any], field: str | tuple[str, ...]) -> str:
    with pytest.raises(InvalidInputError) as caught:
        build()
    sentence = str(caught.value)
    assert sentence.startswith(field)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("case", [*OPTIONS, *PLACES])
def test_bad_option_is_told_and_leaves_the_graph_as_it_was(bench: Bench, case: str) -> None:
    options, field = {**OPTIONS, **PLACES}[case]
    builder = writing(Writer())
    before = (set(builder.nodes), set(builder.edges), dict(builder.branches))
    given = {"after": "write", "revise": "write", **models(bench, **options)}
    refused(lambda: add_quality_gate(builder, CRITERION, **given), field)
    assert (set(builder.nodes), set(builder.edges), dict(builder.branches)) == before


@pytest.mark.parametrize("case", list(OPTIONS))
def test_bad_option_of_a_node_is_told(bench: Bench, case: str) -> None:
    options, field = OPTIONS[case]
    refused(lambda: create_quality_gate_node(CRITERION, **models(bench, **options)), field)


@pytest.mark.parametrize("criterion", [None, "tone", {"name": "tone", "instructions": "?"}])
def test_criterion_of_another_kind_is_told(bench: Bench, criterion: Any) -> None:
    refused(lambda: gated(bench, Writer(), criterion), "criterion")


@pytest.mark.parametrize("kind", ["compiled", "none", "class"])
def test_builder_of_another_kind_is_told(bench: Bench, kind: str) -> None:
    builders = {"compiled": writing(Writer()).compile(), "none": None, "class": StateGraph}
    given: Any = builders[kind]
    refused(lambda: add_quality_gate(given, CRITERION, **models(bench)), "builder")


@pytest.mark.parametrize("schema", [dict, Annotated[list[AnyMessage], add_messages]])
def test_state_without_keys_is_told(bench: Bench, schema: Any) -> None:
    builder: Builder = StateGraph(schema)
    builder.add_node("write", lambda state: state)
    builder.add_edge(START, "write")
    with pytest.raises(InvalidInputError) as caught:
        add_quality_gate(builder, CRITERION, after="write", **models(bench))
    assert "\n" not in str(caught.value)


def test_name_that_is_taken_is_told(bench: Bench) -> None:
    builder = writing(Writer())
    add_quality_gate(builder, CRITERION, after="write", **models(bench))
    problem = refused(lambda: add_quality_gate(builder, CRITERION, **models(bench)), "name")
    assert "'quality_gate' already" in problem
    refused(lambda: add_quality_gate(builder, CRITERION, name="write", **models(bench)), "name")


def with_edge(builder: Builder) -> None:
    builder.add_node("write", Writer())
    builder.add_edge("write", "publish")


def with_end(builder: Builder) -> None:
    builder.add_node("write", Writer())
    builder.set_finish_point("write")


def with_branch(builder: Builder) -> None:
    builder.add_node("write", Writer())
    builder.add_conditional_edges("write", lambda _: "publish", ["publish", END])


def with_waiting_edge(builder: Builder) -> None:
    builder.add_node("write", Writer())
    builder.add_edge(["write", "other"], "publish")


def leads_on(_state: MessagesState) -> Command[Literal["publish"]]:
    return Command(goto="publish")


def with_command(builder: Builder) -> None:
    node: Any = leads_on
    builder.add_node("write", node)


@pytest.mark.parametrize(
    "lead", [with_edge, with_end, with_branch, with_waiting_edge, with_command]
)
def test_way_past_the_gate_is_told(bench: Bench, lead: Callable[[Builder], None]) -> None:
    builder: Builder = StateGraph(MessagesState)
    builder.add_node("publish", Writer())
    builder.add_node("other", Writer())
    builder.add_edge(START, "write")
    lead(builder)
    problem = refused(
        lambda: add_quality_gate(builder, CRITERION, after="write", **models(bench)), "after"
    )
    assert "'write'" in problem


def test_way_past_the_gate_of_one_of_several_writers_is_told(bench: Bench) -> None:
    builder = writing(Writer())
    builder.add_node("other", Writer())
    builder.add_edge(START, "other")
    builder.add_edge("other", END)
    given = {"after": ["write", "other"], **models(bench)}
    assert "'other'" in refused(lambda: add_quality_gate(builder, CRITERION, **given), "after")


class Draft(TypedDict, total=False):
    question: str
    draft: str


class Unreduced(TypedDict):
    messages: list[Any]


class Gathered(MessagesState):
    quality_gate: Annotated[list[Any], operator.add]


class Listed(MessagesState):
    quality_gate: list[Any]


def test_critique_that_has_nowhere_to_go_is_told(bench: Bench) -> None:
    def build() -> Any:
        return gated(
            bench,
            lambda _: {"draft": "Sorry!"},
            state=Draft,
            example=lambda state: {"inputs": state["question"], "outputs": state["draft"]},
        )

    assert "messages" in refused(build, "critique_key")


def test_critique_that_would_take_the_place_of_the_messages_is_told(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="messages") as caught:
        gated(bench, Writer(), state=Unreduced)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("state", [Gathered, Listed])
def test_key_that_can_not_take_one_verdict_is_told(bench: Bench, state: Any) -> None:
    problem = refused(lambda: gated(bench, Writer(), state=state), "name")
    assert "'quality_gate'" in problem
    assert "[*old, new]" in problem


@pytest.mark.parametrize("state", [Unreduced, Draft])
def test_fallback_that_can_take_no_answers_place_is_told(bench: Bench, state: Any) -> None:
    given = {"state": state, "revise": None, "fallback": "Later."}
    problem = refused(lambda: gated(bench, Writer(), **given), "fallback")
    assert "add_messages" in problem


def test_fallbacks_of_gates_side_by_side_are_told(bench: Bench) -> None:
    builder = gate_on(bench, writing(Writer()), name="tone", fallback="Later.")
    with pytest.raises(InvalidInputError, match="fallback: 'tone', which judges the same answer"):
        gate_on(bench, builder, name="short", fallback="Later.")
    gate_on(bench, builder, name="short")


@pytest.mark.parametrize("option", ["revise", "accept", "escalate"])
def test_way_to_a_node_that_is_not_there_is_told_when_compiled(bench: Bench, option: str) -> None:
    builder = writing(Writer())
    given: dict[str, Any] = {"after": "write", **models(bench), option: "nobody"}
    add_quality_gate(builder, CRITERION, **given)
    with pytest.raises(ValueError, match="nobody"):
        bench.compile(builder)
