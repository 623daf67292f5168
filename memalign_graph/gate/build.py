"""Gates put into graphs: as a node wired up in one call, or as a node to wire up oneself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_type_hints

from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel
from typing_extensions import Unpack, is_typeddict

from memalign_graph.errors import InvalidInputError
from memalign_graph.gate.example import (
    ExampleFrom,
    check_example,
    example_in,
    own_critiques,
)
from memalign_graph.gate.gate import (
    DEFAULT_MAX_REVISIONS,
    DEFAULT_NAME,
    Gate,
    GateReview,
    JudgeGraph,
    Passage,
    make_gate,
)
from memalign_graph.gate.keys import BEGINNING, GateKeys, read_key
from memalign_graph.gate.loop import begin_turn
from memalign_graph.gate.verdict import GateStatus, OnJudgeError, Passes
from memalign_graph.graphs.options import Graph, ReviewOptions
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.nodes.base import OperationNode, Run, State, Update, current_run
from memalign_graph.types import Criterion


class GateNode(RunnableLambda[Any, Any]):
    """A gate's node, to be told from others."""


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
    the graph returns unless that has a schema of its own: `result["quality_gate"]["status"]`. A
    node beside the graph's first ones, `<name>.before_turn`, takes away what an earlier turn on
    the thread left: the verdict is empty until there is one.

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
            answer did not pass and no revision is left), `uncertain` (where the judge is likely to
            be wrong), or a function of the `Judgment`. The expert's word goes before the judge's,
            and memory learns from it.
        example: A function of the state that gives `inputs` and `outputs`; unless given, the last
            human message and what an AI wrote since.
        messages_key: Where the messages are.
        critique_key: A key of the state where the critique goes, as text; empty once an answer has
            passed. Unless given, it is added to the messages.
        verdicts_key: A key of the state that gathers every verdict on the thread in a list.
        name: Names the gate's node, and the key of its verdict.
        judge: The judge's own options: see `create_review_graph`.

    Returns:
        The builder.

    Raises:
        InvalidInputError: If an option can't be used, or the graph leads past the gate.
    """
    keys = GateKeys(name, messages_key, critique_key, verdicts_key)
    sources = _check_place(builder, name, after, accept=accept, revise=revise, escalate=escalate)
    keys.check(builder, revises=revise is not None)
    check_example(example)
    gate = make_gate(
        criterion,
        name=name,
        passes=passes,
        max_revisions=max_revisions,
        escalates=escalate is not None,
        review=review,
        on_judge_error=on_judge_error,
        **judge,
    )
    if revise is None:
        gate = replace(gate, max_revisions=0)
    seen, shown = keys.extend(builder)
    node = _gate_node(gate, keys, example, builder.state_schema, keeps=True)
    builder.add_node(name, node, input_schema=seen)
    if shown is not None:
        _return_also(builder, shown)
    builder.add_node(keys.beginning, _beginning(builder, keys, sources), input_schema=seen)
    builder.add_edge(START, keys.beginning)
    for source in sources:
        builder.add_edge(source, name)
    closed = END if escalate is None else escalate
    ends: dict[GateStatus, str] = {"accepted": accept}
    if revise is not None:
        ends["revise"] = revise
    ends["exhausted" if escalate is None else "escalated"] = closed
    ends["judge_error"] = accept if on_judge_error == "open" else closed
    # One label for all statuses that share an end: LangGraph draws one line for them.
    labels = {end: " / ".join(one for one in ends if ends[one] == end) for end in ends.values()}
    builder.add_conditional_edges(
        name,
        _way_out(name, {status: labels[end] for status, end in ends.items()}),
        {label: end for end, label in labels.items()},
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

    The state needs a key of the gate's name, by which revisions are counted, too; edges go by
    `state[name]["status"]`. The gate knows its last verdict alone: a turn that was broken off while
    an answer was being revised counts against the next one, and a context has to be given with
    every resume.

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
    keys = GateKeys(name, messages_key, critique_key, verdicts_key)
    check_example(example)
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
    return _gate_node(gate, keys, example, dict, keeps=False)


def _gate_node(
    gate: Gate,
    keys: GateKeys,
    example: ExampleFrom | None,
    state_schema: type[Any],
    *,
    keeps: bool,
) -> GateNode:
    """Make the node. Its functions name the judge's graph, so that LangGraph finds the subgraph."""

    async def decide(io: IO, state: Any, run_: Run, graph: JudgeGraph) -> Update:
        own = state if example is None else _as_parents(state, state_schema)
        loop = read_key(state, keys.loop if keeps else keys.verdict) or {}
        if not keeps and not loop:
            # Wired by hand into a state that keeps no verdict, the conversation tells.
            count = own_critiques(state, keys.messages, keys.verdict)
            loop = {"status": "revise", "revisions": count} if count else {}
        passage = Passage(
            found=example_in(own, example, keys.messages, turn=loop if keeps else {}),
            loop=loop,
        )
        verdict, kept = await gate.decide(io, passage, graph, run_)
        was_revising = loop.get("status") == "revise"
        return keys.update(verdict, kept, was_revising=was_revising, keeps=keeps)

    def judge(state: Any) -> Update:
        return run(decide(BLOCKING, state, current_run(), gate.graph))

    async def ajudge(state: Any) -> Update:
        return await decide(AWAITING, state, current_run(), gate.graph)

    return GateNode(judge, ajudge, name=gate.name)


def _beginning(builder: Graph, keys: GateKeys, sources: Sequence[str]) -> OperationNode:
    """Make the node that begins a turn: what an earlier one left is not this one's."""
    own = get_type_hints(builder.state_schema)

    async def begin(_io: IO, state: State, run_: Run) -> Update:
        if not _is_entered(builder):
            raise InvalidInputError(
                "builder: nothing leads from START into the graph: add an edge from START to its "
                "first node."
            )
        for source in sources:
            _check_ways(builder, source, keys.verdict)  # what was added after the gate
        if _starts_with(builder, keys.verdict):
            return {}  # it would meet the gate's own word, written in the same step
        turn = begin_turn(run_, read_key(state, keys.messages))
        # A reducer of the caller's own is made for verdicts alone.
        blank: Update = {} if keys.verdict in own else {keys.verdict: {}}
        return {**blank, keys.loop: turn}

    return OperationNode(keys.beginning, begin)


def _is_entered(builder: Graph) -> bool:
    """Tell whether a graph has a way in besides those of gates, which LangGraph takes for one."""
    ends = [end for start, end in builder.edges if start == START]
    return bool(builder.branches.get(START)) or any(not end.endswith(BEGINNING) for end in ends)


def _starts_with(builder: Graph, name: str) -> bool:
    """Tell whether a graph may go to a gate right away."""
    branches = builder.branches.get(START, {}).values()
    return (START, name) in builder.edges or any(
        one.ends is None or name in one.ends.values() for one in branches
    )


def _return_also(builder: Graph, shown: type[Any]) -> None:
    """Have a graph return the gate's keys, too."""
    keys = get_type_hints(shown)
    builder.schemas[shown] = {key: builder.channels[key] for key in keys}
    builder.output_schema = shown


def _as_parents(state: Any, schema: type[Any]) -> Any:
    """Give a parent's function the state as its own nodes get it."""
    if not isinstance(state, Mapping) or is_typeddict(schema) or schema is dict:
        return state
    known = get_type_hints(schema)
    fields = {key: value for key, value in state.items() if key in known}
    return schema.model_validate(fields) if issubclass(schema, BaseModel) else schema(**fields)


def _way_out(name: str, labels: Mapping[GateStatus, str]) -> Callable[[Any], str]:
    def way_out(state: Any) -> str:
        return labels[read_key(state, name)["status"]]

    return way_out


def _check_place(
    builder: Graph, name: str, after: Any, *, accept: Any, revise: Any, escalate: Any
) -> list[str]:
    """Check where a gate is to stand; returns the nodes before it."""
    if not isinstance(builder, StateGraph):
        raise InvalidInputError(
            "builder: give a StateGraph that is not compiled yet, not a value of type "
            f"{type(builder).__name__}."
        )
    if name in builder.nodes:
        raise InvalidInputError(
            f"name: the graph has a node {name!r} already: give this gate a name of its own."
        )
    for option, node in {"accept": accept, "revise": revise, "escalate": escalate}.items():
        if not isinstance(node, str) and (node is not None or option == "accept"):
            raise InvalidInputError(f"{option}: give the name of a node, or END.")
    sources = [after] if isinstance(after, str) else after or []
    if not isinstance(sources, Sequence) or not all(isinstance(one, str) for one in sources):
        raise InvalidInputError("after: give the name of a node, or several in a list.")
    for source in sources:
        _check_ways(builder, source, name)
    return list(sources)


def _check_ways(builder: Graph, source: str, name: str) -> None:
    """Check that a node leads to gates alone."""
    if _is_gate(builder, source):
        raise InvalidInputError(
            f"after: {source!r} is a gate: name this one, {name!r}, as its `accept`, and leave "
            "`after` out here."
        )
    ends = [end for start, end in builder.edges if start == source]
    ends += [end for starts, end in builder.waiting_edges if source in starts]
    past = [end for end in ends if end != name and not _is_gate(builder, end)]
    if past:
        raise InvalidInputError(
            f"after: {source!r} also leads to {past[0]!r}, past the gate: take that edge away, "
            "and name its end as `accept`."
        )
    node = builder.nodes.get(source)
    chooses = [f"the conditional edge {one!r}" for one in builder.branches.get(source, ())]
    chooses += ["the Command it returns"] if node is not None and node.ends else []
    if chooses:
        raise InvalidInputError(
            f"after: {source!r} chooses its way by {chooses[0]}: leave `after` out, and have that "
            f"lead to the gate instead of the end, such as {{'tools': 'tools', END: {name!r}}}."
        )


def _is_gate(builder: Graph, name: str) -> bool:
    node = builder.nodes.get(name)
    return node is not None and isinstance(node.runnable, GateNode)
