"""The options of gates: declared once, and refused in a sentence by whatever takes them."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import MessagesState, StateGraph, add_messages

from memalign_graph import (
    Criterion,
    InvalidInputError,
    JudgeOptions,
    QualityGateMiddleware,
    Uncertain,
    add_quality_gate,
    create_quality_gate_node,
    create_quality_gate_tool,
)
from memalign_graph.settings import Gate, GateOptions

CRITERION = Criterion(name="tone", instructions="Is it kind?")


async def later(_given: Any) -> bool:
    return True


GATE: list[tuple[str, Any, str]] = [
    ("name", " ", "name: give the gate a name, which is text."),
    ("name", "a:b", "name: 'a:b' can't be a node's: leave out : and |."),
    ("passes", "often", "passes: 'often' is neither True nor False."),
    ("passes", later, "passes: give a plain function, not an async one."),
    ("max_revisions", -1, "max_revisions: -1 is too little: give 0 or more."),
    ("max_revisions", True, "max_revisions: True is not a whole number: give one."),
    ("on_judge_error", "ajar", "'ajar' is not known: give 'closed' or 'open'."),
    ("on_judge_error", True, "True is not known: give 'closed' or 'open'."),
    ("review", "sometimes", "give 'never', 'always', 'exhausted', 'uncertain', or a function"),
    ("review", later, "review: give a plain function, not an async one."),
    ("example", "inputs", "example: give a function of the state that makes `inputs`"),
    ("example", later, "example: give a plain function, not an async one."),
    ("fallback", " ", "fallback: give the text that is answered instead, or None."),
    ("fallback", "half \ud800", "fallback: the text holds half of a surrogate pair"),
]


def refused(build: Callable[[], Any]) -> str:
    with pytest.raises(InvalidInputError) as caught:
        build()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def add(**options: Any) -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    return add_quality_gate(builder, CRITERION, **options)


def node(**options: Any) -> Any:
    return create_quality_gate_node(CRITERION, **options)


def tool(**options: Any) -> Any:
    return create_quality_gate_tool(CRITERION, **options)


def middleware(**options: Any) -> Any:
    return QualityGateMiddleware(CRITERION, **options)


@pytest.mark.parametrize(("option", "value", "sentence"), GATE)
def test_option_is_refused_by_name(option: str, value: Any, sentence: str) -> None:
    said = refused(lambda: add(**{option: value}))
    assert said.startswith(f"{option}: ")
    assert sentence in said


@pytest.mark.parametrize("build", [add, node, tool, middleware])
def test_whatever_takes_them_refuses_the_same(build: Callable[..., Any]) -> None:
    for option, value in (("on_judge_error", "ajar"), ("k", -1), ("modle", "x"), ("clarify", 1)):
        assert refused(lambda: build(**{option: value})) == refused(lambda: add(**{option: value}))  # noqa: B023 - called at once
    assert "modle: is not a field that is known here" in refused(lambda: build(modle="x"))
    assert 'review: "uncertain" goes by' in refused(lambda: build(review=Uncertain()))


@pytest.mark.parametrize("option", ["max_revisions", "example", "fallback"])
def test_tool_has_no_loop_to_be_told_about(option: str) -> None:
    assert refused(lambda: tool(**{option: None})).startswith(f"{option}: what is checked")


def test_node_by_hand_has_no_fallback() -> None:
    assert refused(lambda: node(fallback="Later.")).startswith("fallback: a node that is wired up")


def test_every_option_is_in_the_table_with_two_wrong_values() -> None:
    assert [option for option, _, _ in GATE] == [
        option for option in Gate.model_fields for _ in range(2)
    ]


def test_flat_keywords_are_the_fields_of_a_gate_and_of_its_judge() -> None:
    known = {*Gate.model_fields, *JudgeOptions.__annotations__, "clarify"}
    assert set(GateOptions.__annotations__) == known


def test_attributes_of_langgraph_mean_what_a_gate_takes_them_for() -> None:
    """Else ways past a gate, keys that hold no verdict, and what is returned go unseen."""
    builder: Any = StateGraph(MessagesState)
    for name in ("write", "other"):
        builder.add_node(name, lambda state: state)
    builder.add_edge("__start__", "write")
    builder.add_edge(["write", "other"], "__end__")
    builder.add_conditional_edges("other", lambda _: "write", {"again": "write"})
    assert ("__start__", "write") in builder.edges
    assert builder.waiting_edges == {(("write", "other"), "__end__")}
    [branch] = builder.branches["other"].values()
    assert branch.ends == {"again": "write"}
    assert not builder.nodes["write"].ends
    assert set(builder.channels) == {"messages"}
    assert builder.channels["messages"].operator is add_messages
    assert builder.state_schema is builder.output_schema is MessagesState
