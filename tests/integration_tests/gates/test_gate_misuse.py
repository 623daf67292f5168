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
    Boolean,
    Categorical,
    Criterion,
    InvalidInputError,
    Numeric,
    Pairwise,
    add_quality_gate,
    create_quality_gate_node,
)
from tests.conftest import CRITERION, ONE_WAY, Bench
from tests.integration_tests.gates.support import Builder, Writer, gated, models, writing

pytestmark = ONE_WAY


async def later(_given: Any) -> bool:
    return True


TWICE = ("name", "messages_key", "critique_key", "verdicts_key")
"""Any of those that share a key may be named."""

OPTIONS: dict[str, tuple[dict[str, Any], str | tuple[str, ...]]] = {
    "max_revisions-negative": ({"max_revisions": -1}, "max_revisions"),
    "max_revisions-text": ({"max_revisions": "2"}, "max_revisions"),
    "max_revisions-float": ({"max_revisions": 1.5}, "max_revisions"),
    "max_revisions-bool": ({"max_revisions": True}, "max_revisions"),
    "max_revisions-none": ({"max_revisions": None}, "max_revisions"),
    "on_judge_error": ({"on_judge_error": "ajar"}, "on_judge_error"),
    "on_judge_error-bool": ({"on_judge_error": True}, "on_judge_error"),
    "review": ({"review": "sometimes"}, "review"),
    "review-none": ({"review": None}, "review"),
    "review-bool": ({"review": True}, "review"),
    "review-async": ({"review": later}, "review"),
    "name-empty": ({"name": " "}, "name"),
    "name-number": ({"name": 5}, "name"),
    "name-colon": ({"name": "a:b"}, "name"),
    "name-end": ({"name": "__end__"}, "name"),
    "name-of-messages": ({"name": "messages"}, TWICE),
    "passes-async": ({"passes": later}, "passes"),
    "passes-word": ({"passes": "often"}, "passes"),
    "passes-empty": ({"passes": []}, "passes"),
    "example": ({"example": "inputs"}, "example"),
    "example-async": ({"example": later}, "example"),
    "messages_key-number": ({"messages_key": 5}, "messages_key"),
    "messages_key-none": ({"messages_key": None}, "messages_key"),
    "critique_key-number": ({"critique_key": 5}, "critique_key"),
    "critique_key-empty": ({"critique_key": ""}, "critique_key"),
    "critique_key-is-the-messages": ({"critique_key": "messages"}, TWICE),
    "critique_key-is-the-verdict": ({"critique_key": "quality_gate"}, TWICE),
    "verdicts_key-number": ({"verdicts_key": 5}, "verdicts_key"),
    "verdicts_key-is-the-verdict": ({"verdicts_key": "quality_gate"}, TWICE),
    "verdicts_key-is-the-messages": ({"verdicts_key": "messages"}, TWICE),
    "model": ({"model": 5}, "model"),
    "distill_model": ({"distill_model": 5}, "distill_model"),
    "distill_model-asked": ({"distill_model": 5, "review": "always"}, "distill_model"),
    "embeddings": ({"embeddings": 5}, "embeddings"),
    "k": ({"k": -1}, "k"),
    "swap": ({"swap": True}, "swap"),
    "on_embedding_error": ({"on_embedding_error": "ignore"}, "on_embedding_error"),
    "use_episodes": ({"use_episodes": 1}, "use_episodes"),
    "keep_judgments": ({"keep_judgments": 5}, "keep_judgments"),
}
PLACES: dict[str, tuple[dict[str, Any], str | tuple[str, ...]]] = {
    "after-number": ({"after": 5}, "after"),
    "after-list-of-numbers": ({"after": [5]}, "after"),
    "accept-none": ({"accept": None}, "accept"),
    "accept-number": ({"accept": 5}, "accept"),
    "revise-number": ({"revise": 5}, "revise"),
    "escalate-number": ({"escalate": 5}, "escalate"),
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


SCORE = Numeric(minimum=1, maximum=5)
GRADES = Categorical(choices=("poor", "fair", "good"), ordered=True)
PASSES: dict[str, tuple[Any, Any]] = {
    "boolean-number": (Boolean(), 1),
    "boolean-text": (Boolean(), "maybe"),
    "boolean-set": (Boolean(), {"maybe"}),
    "numeric-none": (SCORE, None),
    "numeric-bool": (SCORE, True),
    "numeric-high": (SCORE, 6),
    "numeric-nan": (SCORE, float("nan")),
    "numeric-text": (SCORE, "four"),
    "numeric-set": (SCORE, {4, 9}),
    "numeric-mapping": (SCORE, {"min": 4}),
    "numeric-empty": (SCORE, ()),
    "integer-half": (Numeric(minimum=1, maximum=5, integer=True), 3.5),
    "grades-none": (GRADES, None),
    "grades-unknown": (GRADES, "great"),
    "grades-number": (GRADES, 2),
    "grades-set": (GRADES, ["fair", "great"]),
    "pairwise-none": (Pairwise(), None),
    "pairwise-true": (Pairwise(), True),
    "pairwise-tie": (Pairwise(allow_tie=False), "tie"),
    "object": (SCORE, object()),
}


@pytest.mark.parametrize("case", list(PASSES))
def test_rule_that_is_not_on_the_scale_is_told(bench: Bench, case: str) -> None:
    scale, passes = PASSES[case]
    criterion = Criterion(name="quality", instructions="How good is it?", scale=scale)
    refused(lambda: gated(bench, Writer(), criterion, passes=passes), "passes")


def test_unknown_option_is_named(bench: Bench) -> None:
    for wrong in ("modle", "cite_guidelines", "max_revision"):
        given: dict[str, Any] = {wrong: True}
        with pytest.raises((TypeError, InvalidInputError), match=wrong):
            gated(bench, Writer(), **given)


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


def test_key_that_can_not_hold_one_verdict_is_told(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="quality_gate") as caught:
        gated(bench, Writer(), state=Gathered)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["revise", "accept", "escalate"])
def test_way_to_a_node_that_is_not_there_is_told_when_compiled(bench: Bench, option: str) -> None:
    builder = writing(Writer())
    given: dict[str, Any] = {"after": "write", **models(bench), option: "nobody"}
    add_quality_gate(builder, CRITERION, **given)
    with pytest.raises(ValueError, match="nobody"):
        bench.compile(builder)
