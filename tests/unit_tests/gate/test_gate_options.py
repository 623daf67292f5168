"""The options of a gate, and which values pass."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from langchain_core.messages import AnyMessage
from langgraph.graph import END, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import tools_condition
from langgraph.types import Command
from typing_extensions import TypedDict

from memalign_graph import (
    Boolean,
    Categorical,
    InvalidInputError,
    JudgeOptions,
    Numeric,
    Pairwise,
    QualityGateMiddleware,
    Uncertain,
    add_quality_gate,
    create_quality_gate_node,
    create_quality_gate_tool,
)
from memalign_graph.scales import PassRule
from memalign_graph.settings import Gate, GateOptions
from tests.conftest import CRITERION
from tests.integration_tests.gates.support import Writer, writing


async def later(_given: Any) -> bool:
    return True


GATE: list[tuple[str, Any, str]] = [
    ("name", " ", "name: expected a text that is not blank."),
    ("name", "a:b", "name: 'a:b' is not a node name. It may not contain : or |."),
    ("passes", "often", "passes: 'often' is neither True nor False."),
    ("passes", later, "passes: give a plain function, not an async one."),
    ("max_revisions", -1, "max_revisions: -1 is below the minimum of 0. Use 0 or more."),
    ("max_revisions", True, "max_revisions: True is not a whole number."),
    ("on_judge_error", "ajar", "'ajar' is not known: give 'closed' or 'open'."),
    ("on_judge_error", True, "True is not known: give 'closed' or 'open'."),
    ("review", "sometimes", "give 'never', 'always', 'exhausted', 'uncertain', or a function"),
    ("review", later, "review: give a plain function, not an async one."),
    ("example", "inputs", "example: expected a function of the state that returns `inputs`"),
    ("example", later, "example: give a plain function, not an async one."),
    ("sees", "everything", "sees: 'everything' is not known: give 'turn', 'answer' or"),
    ("sees", None, "sees: None is not known"),
    ("fallback", " ", "fallback: expected the text to answer instead, or None."),
    ("fallback", "half \ud800", "fallback: the text has half of a surrogate pair"),
]
PLACES: list[tuple[str, Any, str]] = [
    ("name", "messages", "name: the keys of the verdict, the messages and the critique are"),
    ("critique_key", "messages", "name: the keys of the verdict"),
    ("critique_key", "quality_gate", "name: the keys of the verdict"),
    ("name", "write", "name: the graph already has a node 'write'"),
    ("critique_key", "critique", "critique_key: the state has no key 'critique'."),
]


def refused(build: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        build(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def add(builder: Any = None, **options: Any) -> Any:
    made = writing(Writer()) if builder is None else builder
    return add_quality_gate(made, CRITERION, **{"after": "write", "revise": "write", **options})


def node(**options: Any) -> Any:
    return create_quality_gate_node(CRITERION, **options)


def tool(**options: Any) -> Any:
    return create_quality_gate_tool(CRITERION, **options)


def middleware(**options: Any) -> Any:
    return QualityGateMiddleware(CRITERION, **options)


@pytest.mark.parametrize(("option", "value", "sentence"), [*GATE, *PLACES])
def test_invalid_option_leaves_the_graph_unchanged(option: str, value: Any, sentence: str) -> None:
    builder = writing(Writer())
    before = (set(builder.nodes), set(builder.edges), dict(builder.branches))
    assert sentence in refused(add, builder, **{option: value})
    assert (set(builder.nodes), set(builder.edges), dict(builder.branches)) == before


def test_every_builder_refuses_the_same_options() -> None:
    twice = [option for option in Gate.model_fields for _ in range(2)]
    assert [option for option, _, _ in GATE] == twice
    wrong: list[tuple[str, Any]] = [("on_judge_error", "ajar"), ("k", -1), ("clarify", 1)]
    for build in (add, node, tool, middleware):
        for option, value in [*wrong, ("distill_model", 5), ("modle", "x")]:
            assert refused(build, **{option: value}) == refused(add, **{option: value})
        assert "modle: is not a known field" in refused(build, modle="x")
        unmeasured = refused(build, review=Uncertain(), decide="verdict")
        assert 'review: "uncertain" needs a confidence' in unmeasured
    assert "name: the keys of the verdict" in refused(node, name="messages")


def test_options_that_only_some_builders_take() -> None:
    for option in ("max_revisions", "example", "fallback"):
        assert refused(tool, **{option: None}).startswith(f"{option}: the agent chooses")
    assert refused(tool, review="exhausted").startswith("review: a tool counts no revisions")
    assert refused(middleware, tools=True, sees="answer").startswith(
        "tools: True needs sees='turn'"
    )
    assert refused(middleware, tools=True, example=dict).startswith("tools: True needs sees='turn'")
    assert refused(node, fallback="Later.").startswith("fallback: a node without edges")
    assert refused(add, fallback="Later.", escalate="write").startswith("fallback: the node of")
    for name in ("messages", "structured_response", "jump_to"):
        message = refused(middleware, name=name)
        assert message.startswith(f"name: '{name}' is a key of every agent")


def test_keywords_match_the_fields_of_gate_and_judge() -> None:
    field_names = {*Gate.model_fields, *JudgeOptions.__annotations__, "clarify"}
    assert set(GateOptions.__annotations__) == field_names


def test_tool_is_described_by_its_criterion_by_default() -> None:
    assert CRITERION.instructions in tool().description
    assert tool(description="Check it.").description == "Check it."


@pytest.mark.parametrize("criterion", [None, "tone", {"name": "tone", "instructions": "?"}])
def test_criterion_or_builder_of_another_type_is_refused(criterion: Any) -> None:
    for build in (QualityGateMiddleware, create_quality_gate_node, create_quality_gate_tool):
        assert refused(build, criterion).startswith("criterion: ")
    assert refused(add_quality_gate, writing(Writer()), criterion).startswith("criterion: ")
    keyless: list[Any] = [dict, Annotated[list[AnyMessage], add_messages]]
    builders = [StateGraph(state) for state in keyless]
    for builder in (writing(Writer()).compile(), StateGraph, criterion, *builders):
        assert refused(add_quality_gate, builder, CRITERION).startswith("builder: ")


def routes_onward(_state: MessagesState) -> Command[Literal["publish"]]:
    return Command(goto="publish")


PAST: dict[str, Callable[[Any], Any]] = {
    "edge": lambda builder: builder.add_edge("write", "publish"),
    "end": lambda builder: builder.set_finish_point("write"),
    "choice": lambda builder: builder.add_conditional_edges(
        "write", tools_condition, ["tools", END]
    ),
    "waiting": lambda builder: builder.add_edge(["write", "other"], "publish"),
    "command": lambda builder: builder.add_node("leads_on", routes_onward),
}


@pytest.mark.parametrize("case", list(PAST))
def test_edge_past_the_gate_is_refused(case: str) -> None:
    builder = writing(Writer())
    for name in ("publish", "other", "third"):
        builder.add_node(name, Writer())
    PAST[case](builder)
    source = "leads_on" if case == "command" else "write"
    for after in (source, ["third", source]):
        message = refused(add, builder, after=after)
        assert message.startswith(f"after: {source!r} ")
        chooses = "Leave `after` out, and route it to the gate instead" in message
        assert chooses is (case in ("choice", "command"))


def test_parallel_and_chained_gates() -> None:
    builder = add(name="tone", fallback="Later.")
    message = refused(add, builder, name="facts", after="tone")
    assert message.endswith("or by accept='facts' if it is a gate.")
    message = refused(add, builder, name="short", fallback="Later.")
    assert message.startswith("fallback: 'tone', which judges the same answer concurrently")
    add(builder, name="short")


class Draft(TypedDict, total=False):
    question: str
    draft: str


class Unreduced(TypedDict):
    messages: list[Any]


STATES: list[tuple[Any, dict[str, Any], Sequence[str]]] = [
    (Draft, {}, ("critique_key: ", "'messages'")),
    (Unreduced, {}, ("critique_key: ", "'messages'")),
    (Unreduced, {"revise": None, "fallback": "Later."}, ("fallback: ", "add_messages")),
    (Draft, {"revise": None, "fallback": "Later."}, ("fallback: ", "add_messages")),
]


@pytest.mark.parametrize(("state", "options", "words"), STATES)
def test_state_needs_the_keys(state: Any, options: dict[str, Any], words: Sequence[str]) -> None:
    message = refused(add, writing(Writer(), state), **options)
    assert message.startswith(words[0])
    assert all(text in message for text in words)


GRADES = Categorical(choices=("Poor", "Fair", "Good"), ordered=True)
NAMES = Categorical(choices=("Refund", "Sorry", "Rude"))
SCORE = Numeric(minimum=-1, maximum=1)
STARS = Numeric(minimum=1, maximum=5, integer=True)

CASES: dict[str, tuple[Any, Any, list[Any], list[Any]]] = {
    "boolean": (Boolean(), None, [True], [False]),
    "boolean-false": (Boolean(), False, [False], [True]),
    "boolean-set": (Boolean(), {"no"}, [False], [True]),
    "numeric": (SCORE, 0.5, [0.5, 1.0], [0.4999, -1.0, 0.0]),
    "numeric-text": (STARS, "4", [4, 5], [1, 2, 3]),
    "numeric-set": (STARS, {1, 5}, [1, 5], [2, 3, 4]),
    "numeric-range": (STARS, range(2, 4), [2, 3], [1, 4, 5]),
    "ordered": (GRADES, "fair", ["Fair", "Good"], ["Poor"]),
    "ordered-highest": (GRADES, "Good", ["Good"], ["Poor", "Fair"]),
    "ordered-set": (GRADES, ("fair",), ["Fair"], ["Poor", "Good"]),
    "names": (NAMES, "sorry", ["Sorry"], ["Refund", "Rude"]),
    "pairwise": (Pairwise(), "b", ["B"], ["A", "tie"]),
    "pairwise-set": (Pairwise(), {"A", "tie"}, ["A", "tie"], ["B"]),
    "function": (STARS, {1: np.bool_(True), 2: 1, 3: ["x"]}.get, [1, 2, 3], [4, 5]),
}


@pytest.mark.parametrize("case", list(CASES))
def test_passing_and_failing_values(case: str) -> None:
    scale, passes, good, bad = CASES[case]
    pass_rule = PassRule.of(scale, passes)
    assert [pass_rule.passes(value) for value in good] == [True] * len(good)
    assert [pass_rule.passes(value) for value in bad] == [False] * len(bad)


class Later:
    """Called like a function, but awaited."""

    async def __call__(self, value: Any) -> bool:
        return False


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("passes", [later, Later(), lambda _: later(1)])
def test_awaitable_result_of_a_rule_raises(passes: Any) -> None:
    with pytest.raises(InvalidInputError, match="passes: "):
        assert not PassRule.of(STARS, passes).passes(3)


def test_rule_that_returns_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^passes: .* 'no'. Return True or False"):
        PassRule.of(STARS, lambda _: "no").passes(3)


def test_arguments_are_copied() -> None:
    allowed = [4]
    pass_rule = PassRule.of(STARS, allowed)
    allowed.append(1)
    assert not pass_rule.passes(1)


WRONG: dict[str, tuple[Any, Any]] = {
    "boolean-text": (Boolean(), "maybe"),
    "numeric-nan": (SCORE, float("nan")),
    "numeric-set": (SCORE, {0, 9}),
    "grades-unknown": (GRADES, "great"),
    "pairwise-tie": (Pairwise(allow_tie=False), "tie"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_rule_that_is_not_on_the_scale_is_refused(case: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^passes: ") as caught:
        PassRule.of(*WRONG[case])
    assert "\n" not in str(caught.value)
