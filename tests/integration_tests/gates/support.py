"""Helpers for tests of gates: writers, gated graphs and judge answers."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from memalign_graph import Criterion, GateVerdict, add_quality_gate, create_quality_gate_node
from memalign_graph.gate_nodes import keep_last
from tests.conftest import CRITERION, Bench, Graph, judgings
from tests.loopback import LoopbackServer, Rule

Builder = StateGraph[Any, Any, Any, Any]
"""A graph that is not compiled yet."""

QUESTION = "My order never came."
REASON = "Too cold: it must say sorry first."
LENGTH = Criterion(name="length", instructions="Is the reply short enough?")


class Writer:
    """A node that writes drafts and records its inputs."""

    def __init__(self, *drafts: str) -> None:
        self.drafts = drafts
        self.seen: list[Any] = []

    def __call__(self, state: Any) -> dict[str, Any]:
        self.seen.append(state)
        return {"messages": [AIMessage(self._draft())]}

    def _draft(self) -> str:
        index = len(self.seen)
        return self.drafts[index - 1] if index <= len(self.drafts) else f"Draft {index}."


def verdict(value: Any, rationale: str = REASON, **more: Any) -> dict[str, Any]:
    return {"rationale": rationale, "value": value, **more}


def always(value: Any, rationale: str = REASON) -> list[Rule]:
    return [Rule(lambda _: True, value=value, rationale=rationale)]


def judge_rule(word: str, value: Any, rationale: str = REASON) -> Rule:
    """Answer with a value if the prompt contains a text."""
    return Rule(lambda chat: word in chat.text, value=value, rationale=rationale)


def models(bench: Bench, **options: Any) -> dict[str, Any]:
    """The judge's models, without retries."""
    arguments = {
        "model": bench.server.chat_model(max_retries=0),
        "embeddings": bench.server.embedder(max_retries=0),
    }
    return {**arguments, **options}


def asked(text: str = QUESTION) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def writing(writer: Any, state: Any = MessagesState, **options: Any) -> Builder:
    """A graph with a writer, without a gate."""
    builder: Builder = StateGraph(state, **options)
    builder.add_node("write", writer)
    builder.add_edge(START, "write")
    return builder


def gated(
    bench: Bench,
    writer: Any,
    criterion: Criterion = CRITERION,
    *,
    state: Any = MessagesState,
    **options: Any,
) -> Graph:
    """A graph with a writer and a gate."""
    return bench.compile(gate_on(bench, writing(writer, state), criterion, **options))


def gather(verdicts: list[GateVerdict], verdict: GateVerdict) -> list[GateVerdict]:
    """A caller's reducer that keeps every verdict."""
    return [*verdicts, verdict]


class WithCritique(MessagesState):
    critique: Annotated[str, keep_last]


class Counted(MessagesState):
    quality_gate: dict[str, Any]


class Kept(MessagesState):
    quality_gate: GateVerdict


def gate_on(
    bench: Bench,
    builder: Builder,
    criterion: Criterion = CRITERION,
    *,
    after: str | Sequence[str] | None = "write",
    revise: str | None = "write",
    **options: Any,
) -> Builder:
    """Add a gate with the bench's models to a graph."""
    options = {"after": after, "revise": revise, **models(bench, **options)}
    return add_quality_gate(builder, criterion, **options)


def gate_of(state: Any) -> Any:
    return state["quality_gate"] if isinstance(state, dict) else state.quality_gate


def ended(state: Any) -> tuple[str, int]:
    """How a turn ended: the status and the revisions of the gate's verdict."""
    verdict = gate_of(state)
    return verdict["status"], verdict["revisions"]


def wired(bench: Bench, writer: Any, state: Any, **options: Any) -> Graph:
    """The same graph with edges added by hand."""
    builder = writing(writer, state)
    node = create_quality_gate_node(CRITERION, **models(bench, **options))
    builder.add_node("quality_gate", node)
    builder.add_edge("write", "quality_gate")
    ways: dict[Any, str] = {"revise": "write", "accepted": "__end__", "exhausted": "__end__"}
    ways["judge_error"] = "__end__"
    builder.add_conditional_edges("quality_gate", lambda state: gate_of(state)["status"], ways)
    return bench.compile(builder)


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.text for message in messages]


def outputs(server: LoopbackServer) -> list[str]:
    return [_inside("outputs", _inside("case", chat.text)) for chat in judgings(server)]


def inputs(server: LoopbackServer) -> list[str]:
    return [_inside("inputs", _inside("case", chat.text)) for chat in judgings(server)]


def pending(result: Mapping[str, Any]) -> dict[str, Any]:
    [interrupt] = result["__interrupt__"]
    action: dict[str, Any] = interrupt.value["action_requests"][0]
    return action


def _inside(tag: str, text: str) -> str:
    _, opened, rest = text.rpartition(f"<{tag}>\n")
    inside, closed, _ = rest.partition(f"\n</{tag}>")
    assert opened
    assert closed
    return inside
