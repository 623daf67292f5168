"""Gates put into graphs: as a node wired up in one call, or as a node to wire up oneself."""

from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Annotated, Any, get_type_hints

from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.graph import END, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict, Unpack, is_typeddict

from memalign_graph.effects import Operation, arun, run
from memalign_graph.errors import InvalidInputError
from memalign_graph.gate.critique import critique_message
from memalign_graph.gate.example import ExampleFrom, example_in
from memalign_graph.gate.gate import (
    DEFAULT_MAX_REVISIONS,
    DEFAULT_NAME,
    Gate,
    GateReview,
    JudgeGraph,
    make_gate,
)
from memalign_graph.gate.verdict import GateStatus, OnJudgeError, Passes
from memalign_graph.graphs.options import Graph, ReviewOptions
from memalign_graph.nodes.base import Run, Update, current_run
from memalign_graph.types import Criterion


def add_quality_gate(
    builder: Graph,
    criterion: Criterion,
    *,
    after: str | Sequence[str] | None = None,
    accept: str = END,
    revise: str | None = None,
    escalate: str | None = None,
    passes: Passes | None = None,
    max_revisions: int = DEFAULT_MAX_REVISIONS,
    on_judge_error: OnJudgeError = "closed",
    review: GateReview = "never",
    example: ExampleFrom | None = None,
    messages_key: str = "messages",
    critique_key: str | None = None,
    verdicts_key: str | None = None,
    name: str = DEFAULT_NAME,
    **judge: Unpack[ReviewOptions],
) -> Graph:
    """Put a judge into a graph: an answer that does not pass goes back to be revised.

    The gate's verdict, a `GateVerdict`, goes into the state under the gate's name, and into what
    the graph returns unless that has a schema of its own: `result["quality_gate"]["status"]`. It
    is the last one on its thread, whatever way a later run took.

    Args:
        builder: The graph, not yet compiled. It is to be compiled with a store, where the judge's
            memory lies; a memory is set per run under `memalign` in the graph's context.
        criterion: What is judged.
        after: The node whose answer is judged, or several; None to lead edges to the gate oneself.
        accept: Where an answer goes that passed.
        revise: The writer, where an answer goes that did not pass; None to send none back.
        escalate: Where an answer goes when revisions have run out, or the judge failed; None to
            end there.
        passes: Which values pass: the lowest on a `Numeric` or ordered scale, else the one that
            does; several; or a function of the value. True unless told, on a `Boolean` scale.
        max_revisions: How often an answer is sent back.
        on_judge_error: `closed`, or `open` to let an answer through when the judge fails.
        review: When the expert is asked, by an interrupt: `never`, `always`, `exhausted` (when an
            answer did not pass and no revision is left), or a function of the `Judgment`. The
            expert's word goes before the judge's, and memory learns from it.
        example: A function of the state that gives `inputs` and `outputs`; unless given, the last
            human message and what an AI wrote since.
        messages_key: Where the messages are.
        critique_key: A key of the state where the critique goes, as text; empty once an answer has
            passed. Unless given, it is added to the messages.
        verdicts_key: A key of the state that gathers every verdict in a list.
        name: Names the gate's node, and the key of its verdict.
        judge: The judge's own options: see `create_review_graph`.

    Returns:
        The builder.

    Raises:
        InvalidInputError: If an option can't be used, or the graph leads past the gate.
    """
    sources = [after] if isinstance(after, str) else list(after or ())
    _check_place(builder, name, sources)
    gate = make_gate(
        criterion,
        name=name,
        passes=passes,
        max_revisions=max_revisions if revise is not None else 0,
        escalates=escalate is not None,
        review=review,
        on_judge_error=on_judge_error,
        **judge,
    )
    keys = _GateKeys(name, messages_key, critique_key, verdicts_key)
    gated = keys.extend(builder)
    node = _gate_node(gate, keys, example, builder.state_schema)
    builder.add_node(name, node, input_schema=gated)
    if keys.returns_all(builder):
        builder.output_schema = gated
    for source in sources:
        builder.add_edge(source, name)
    closed = END if escalate is None else escalate
    ways: dict[GateStatus, str | None] = {
        "accepted": accept,
        "revise": revise,
        "escalated": escalate,
        "exhausted": END if escalate is None else None,
        "judge_error": accept if on_judge_error == "open" else closed,
    }
    builder.add_conditional_edges(
        name, _way_out(name), {status: way for status, way in ways.items() if way is not None}
    )
    return builder


def create_quality_gate_node(
    criterion: Criterion,
    *,
    passes: Passes | None = None,
    max_revisions: int = DEFAULT_MAX_REVISIONS,
    escalates: bool = False,
    on_judge_error: OnJudgeError = "closed",
    review: GateReview = "never",
    example: ExampleFrom | None = None,
    messages_key: str = "messages",
    critique_key: str | None = None,
    verdicts_key: str | None = None,
    name: str = DEFAULT_NAME,
    **judge: Unpack[ReviewOptions],
) -> Runnable[Any, Any]:
    """Create a gate as a node, to wire up oneself; `add_quality_gate` does both.

    The state needs a key of the gate's name; edges go by `state[name]["status"]`.

    Args:
        criterion: What is judged.
        passes: Which values pass.
        max_revisions: How often an answer is sent back; 0 where none is.
        escalates: Whether the graph has somewhere to escalate to: `escalated` instead of
            `exhausted`.
        on_judge_error: `closed`, or `open` to let an answer through when the judge fails.
        review: When the expert is asked, by an interrupt.
        example: A function of the state that gives `inputs` and `outputs`.
        messages_key: Where the messages are.
        critique_key: A key of the state where the critique goes, as text.
        verdicts_key: A key of the state that gathers every verdict in a list.
        name: The key of the verdict.
        judge: The judge's own options: see `create_review_graph`.

    Returns:
        The node.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    gate = make_gate(
        criterion,
        name=name,
        passes=passes,
        max_revisions=max_revisions,
        escalates=escalates,
        review=review,
        on_judge_error=on_judge_error,
        **judge,
    )
    keys = _GateKeys(name, messages_key, critique_key, verdicts_key)
    return _gate_node(gate, keys, example, dict)


def latest(_old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Keep the last verdict: gates that run side by side, under `Send`, share one key.

    Args:
        _old: What is there.
        new: What is written.

    Returns:
        What is written.
    """
    return new


class _GateKeys:
    """The keys of the parent's state that a gate reads and writes."""

    def __init__(
        self, verdict: str, messages: str, critique: str | None, verdicts: str | None
    ) -> None:
        self.verdict = verdict
        self.messages = messages
        self._critique = critique
        self._verdicts = verdicts

    def extend(self, builder: Graph) -> type[Any]:
        """Make the state that the gate's node sees: the parent's, with the gate's keys."""
        state = get_type_hints(builder.state_schema, include_extras=True)
        added: dict[str, Any] = {self.verdict: Annotated[dict[str, Any], latest]}
        if self._critique is not None:
            added[self._critique] = str
        if self._verdicts is not None:
            added[self._verdicts] = Annotated[list[dict[str, Any]], add]
        own = {key: hint for key, hint in state.items() if key not in builder.managed}
        returned = get_type_hints(builder.output_schema, include_extras=True)
        hints = {**added, **own, **returned}
        made: type[Any] = TypedDict("GatedState", hints)  # type: ignore[misc] # a parent's hints
        return made

    def returns_all(self, builder: Graph) -> bool:
        """Tell whether a graph returns its whole state, since it was given no other schema."""
        returned = get_type_hints(builder.output_schema)
        return (
            returned.keys() >= get_type_hints(builder.state_schema).keys() - builder.managed.keys()
        )

    def update(self, gate: Gate, verdict: Mapping[str, Any]) -> Update:
        """Write a verdict into the state."""
        update: Update = {gate.name: verdict}
        critique = verdict["critique"]
        if self._critique is not None:
            update[self._critique] = critique
        elif verdict["status"] == "revise":
            update[self.messages] = [critique_message(critique)]
        if self._verdicts is not None:
            update[self._verdicts] = [verdict]
        return update


def _gate_node(
    gate: Gate,
    keys: _GateKeys,
    example: ExampleFrom | None,
    state_schema: type[Any],
) -> Runnable[Any, Any]:
    """Make the node. Its functions name the judge's graph, so that LangGraph finds the subgraph."""

    def decide(state: Any, run_: Run, graph: JudgeGraph) -> Operation[Update]:
        own = state if example is None else _as_parents(state, state_schema)
        found = example_in(own, example, keys.messages)
        last = state.get(gate.name) if isinstance(state, Mapping) else None
        verdict = yield from gate.decide(found, graph, last, run_)
        return keys.update(gate, verdict)

    def judge(state: Any) -> Update:
        return run(decide(state, current_run(), gate.graph))

    async def ajudge(state: Any) -> Update:
        return await arun(decide(state, current_run(), gate.graph))

    return RunnableLambda(judge, ajudge, name=gate.name)


def _as_parents(state: Any, schema: type[Any]) -> Any:
    """Give a parent's function the state as its own nodes get it."""
    if not isinstance(state, Mapping) or is_typeddict(schema) or schema is dict:
        return state
    known = get_type_hints(schema)
    fields = {key: value for key, value in state.items() if key in known}
    return schema.model_validate(fields) if issubclass(schema, BaseModel) else schema(**fields)


def _way_out(name: str) -> Callable[[Mapping[str, Any]], str]:
    def way_out(state: Mapping[str, Any]) -> str:
        verdict = state[name] if isinstance(state, Mapping) else getattr(state, name)
        return str(verdict["status"])

    return way_out


def _check_place(builder: Graph, name: str, sources: Sequence[str]) -> None:
    if not isinstance(builder, StateGraph):
        raise InvalidInputError(
            "builder: give a StateGraph that is not compiled yet, not a value of type "
            f"{type(builder).__name__}."
        )
    if name in builder.nodes:
        raise InvalidInputError(
            f"name: the graph has a node {name!r} already: give this gate a name of its own."
        )
    for source in sources:
        past = [end for start, end in builder.edges if start == source]
        past += list(builder.branches.get(source, ()))
        if past:
            raise InvalidInputError(
                f"after: {source!r} also leads to {past[0]!r}, past the gate: take that edge away, "
                "and name its end as `accept`."
            )
