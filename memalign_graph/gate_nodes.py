"""Gates as nodes: what a gate adds to a graph, and what it checks there."""

import operator
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, get_type_hints

from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.channels import BinaryOperatorAggregate, LastValue
from langgraph.graph import END, START, StateGraph, add_messages
from typing_extensions import TypedDict, Unpack, is_typeddict

from memalign_graph import conversation
from memalign_graph.errors import InvalidInputError
from memalign_graph.gate import QualityGate, new_turn, reject_options
from memalign_graph.graphs import Graph
from memalign_graph.io import ASYNC, IO, SYNC, run_sync
from memalign_graph.runtime import StateUpdate
from memalign_graph.settings import Gate, GateOptions
from memalign_graph.types import Criterion

_TURN_START_SUFFIX = ".before_turn"
_SENT_BACK = "_quality_gates_sent_back"  # ids of drafts that no critique marks, for all gates


def keep_last(_old: Any, new: Any) -> Any:
    """Keep the last write of a step: gates that run concurrently under `Send` share one key."""
    return new


class _TurnChannel(BinaryOperatorAggregate[Any]):
    """Keeps what a gate wrote, also if its turn began in the same step."""

    def update(self, values: Sequence[Any]) -> bool:
        by_gates = [each for each in values if isinstance(each, Mapping) and "turn" in each]
        return super().update(by_gates or values)


def _last_verdict(state: Any, name: str) -> Mapping[str, Any]:
    """Return the last verdict; the caller's reducer may collect verdicts in a list."""
    verdicts: Any = conversation.read_key(state, name) or {}
    return verdicts[-1] if isinstance(verdicts, list) else verdicts  # type: ignore[no-any-return] # a verdict


class GateNode(RunnableLambda[Any, Any]):
    """A gate as a node of a graph."""

    def __init__(
        self,
        gate: QualityGate,
        messages_key: str,
        critique_key: str | None,
        state_schema: type[Any] | None = None,
    ) -> None:
        keys = [gate.name, messages_key, critique_key]
        if len({*keys}) < len(keys):
            raise InvalidInputError(
                f"name: the keys of the verdict, the messages and the critique are {keys}. Use "
                "different ones."
            )
        self.gate = gate
        self.messages_key = messages_key
        self.critique_key = critique_key
        self._state_schema = state_schema
        """The class of the state that `example` gets; None if the node's own input has it."""
        awaiting = partial(self._decide, ASYNC)
        super().__init__(lambda state: run_sync(self._decide(SYNC, state)), awaiting, gate.name)

    @property
    def deps(self) -> list[Runnable[Any, Any]]:
        """The node's subgraphs, under the name that LangGraph reads."""
        return [self.gate.graph]

    async def _decide(self, io: IO, state: Any) -> StateUpdate:
        gate, settings = self.gate, self.gate.settings
        messages = conversation.read_key(state, self.messages_key)
        if self._state_schema is not None:
            turn_state = conversation.read_key(state, gate.turn_key) or {}
        else:
            # The caller can write this key: only what the gate counts is read.
            verdict = _last_verdict(state, gate.name)
            turn_state = {name: verdict[name] for name in conversation.COUNTED if name in verdict}
        sent_back = conversation.read_key(state, _SENT_BACK) or ()
        turn = conversation.read_turn(messages, turn_state, sent_back=sent_back)
        is_uncounted = self._state_schema is None and not turn_state
        if is_uncounted and conversation.is_revision_request(turn.messages, gate.name):
            raise InvalidInputError(
                f"name: the graph state has no key {gate.name!r}, where the gate counts revisions. "
                f"Add {gate.name}: dict to the state class."
            )
        parent = state if settings.example is None else _as_parents(state, self._state_schema)
        example = gate.example_in(parent, turn, self.messages_key)
        verdict, turn_state = await gate.decide(io, example, turn)
        update: StateUpdate = {gate.name: verdict}
        if self._state_schema is not None:
            update[gate.turn_key] = turn_state
        messages = gate.messages_after(verdict, turn)
        if self.critique_key is not None and verdict["status"] == "revise":
            update[self.critique_key], messages = verdict["critique"], []
            if self._state_schema is not None:
                rejected = conversation.rejected_ids(turn.messages, turn)
                update[_SENT_BACK] = dict.fromkeys(rejected, True)
        elif self.critique_key is not None and turn.is_revised:
            # Another gate's critique may be in the key: only that gate removes it.
            update[self.critique_key] = ""
        return update | ({self.messages_key: messages} if messages else {})


def _as_parents(state: Any, schema: type[Any] | None) -> Any:
    """Return the state as the parent's nodes get it."""
    if schema is None or not isinstance(state, Mapping) or is_typeddict(schema):
        return state
    return schema(**{key: state[key] for key in get_type_hints(schema) if key in state})


# What follows reads and changes attributes of a `StateGraph` that LangGraph does not document.


def _keys(builder: Graph, schema: Any) -> dict[str, Any]:
    """Return a schema's keys with their types, without those that LangGraph fills."""
    hints = get_type_hints(schema, include_extras=True) if isinstance(schema, type) else {}
    return {key: hint for key, hint in hints.items() if key in builder.channels}


def _gate_at(builder: Graph, name: str) -> QualityGate | None:
    runnable = builder.nodes[name].runnable if name in builder.nodes else None
    return runnable.gate if isinstance(runnable, GateNode) else None


def _check_edges(builder: Graph, source: str, gate: Gate) -> None:
    destinations = [end for start, end in builder.edges if start == source]
    destinations += [end for starts, end in builder.waiting_edges if source in starts]
    for destination in destinations:
        other_gate = _gate_at(builder, destination)
        if other_gate is None:
            raise InvalidInputError(
                f"after: {source!r} also leads to {destination!r}, past the gate. Remove that "
                f"edge, and use accept={destination!r}."
            )
        if gate.fallback is not None and other_gate.settings.fallback is not None:
            raise InvalidInputError(
                f"fallback: {destination!r}, which judges the same answer concurrently, has one, "
                "too. Give it to one of them, or make this gate the other's `accept`."
            )
    node = builder.nodes.get(source)
    chooses = builder.branches.get(source) or (node is not None and node.ends)
    if chooses or _gate_at(builder, source):
        raise InvalidInputError(
            f"after: {source!r} chooses its next node itself. Leave `after` out, and route it to "
            f"the gate instead of the end, such as {{'tools': 'tools', END: {gate.name!r}}}, or "
            f"by accept={gate.name!r} if it is a gate."
        )


def _check_keys(builder: Graph, node: GateNode, *, revises: bool) -> None:
    messages_key, critique_key = node.messages_key, node.critique_key
    messages = builder.channels.get(messages_key)
    takes_removals = getattr(messages, "operator", None) is add_messages
    if node.gate.settings.fallback is not None and not takes_removals:
        raise InvalidInputError(
            f"fallback: no message can be removed from {messages_key!r}. Its reducer must be "
            "add_messages."
        )
    if revises and critique_key is None and isinstance(messages, LastValue | None):
        raise InvalidInputError(
            f"critique_key: a critique can't be added to the state's key {messages_key!r}. Name "
            "another key for it, or give this one a reducer, such as add_messages."
        )
    if revises and critique_key is not None and critique_key not in builder.channels:
        raise InvalidInputError(
            f"critique_key: the state has no key {critique_key!r}. Add it, for the writer to read."
        )


def _no_verdict(builder: Graph, name: str) -> StateUpdate:
    """Return the update that clears the verdict of an earlier turn; a reducer keeps all of them."""
    if name in _keys(builder, builder.state_schema):
        if not isinstance(builder.channels[name], _TurnChannel):
            return {}
        # A pydantic model need not accept an empty verdict.
        fields = getattr(builder.state_schema, "model_fields", {})
        if name in fields:
            default = fields[name].get_default(call_default_factory=True)
            return {} if fields[name].is_required() else {name: default}
    return {name: {}}


def _add_node(builder: Graph, node: GateNode) -> None:
    name, turn_key, messages_key = node.gate.name, node.gate.turn_key, node.messages_key
    declared = _keys(builder, builder.state_schema)
    returned = _keys(builder, builder.output_schema)
    if isinstance(builder.channels.get(name), LastValue):
        builder.channels[name] = _TurnChannel(Any, keep_last)
    added: dict[str, Any] = {name: Annotated[dict[str, Any], _TurnChannel(dict, keep_last)]}
    if node.critique_key is not None:
        added[node.critique_key] = Annotated[str, keep_last]
    public = {**added, **declared, **returned}
    # The turn's state is not returned: a gate with this name in a parent graph has its own.
    private = {
        turn_key: Annotated[dict[str, Any], _TurnChannel(dict, keep_last)],
        _SENT_BACK: Annotated[dict[str, bool], operator.or_],
    }
    node_input: Any = TypedDict("GateView", {**public, **private})  # type: ignore[misc] # made here
    output: Any = TypedDict("GatedOutput", public)  # type: ignore[misc] # made here

    async def begin_turn(state: Any) -> StateUpdate:
        first = [end for start, end in builder.edges if start == START]
        leads_nowhere = all(node.endswith(_TURN_START_SUFFIX) for node in first)
        if leads_nowhere and START not in builder.branches:
            raise InvalidInputError(
                "builder: no edge leads from START into the graph. Add one to its first node."
            )
        turn = new_turn(conversation.read_key(state, messages_key))
        return {**_no_verdict(builder, name), turn_key: turn}

    turn_start = f"{name}{_TURN_START_SUFFIX}"
    builder.add_node(name, node, input_schema=node_input)
    # The input schema of this node also declares the returned keys to LangGraph.
    # LangGraph's timeouts are for async nodes.
    beginning = RunnableLambda(lambda state: run_sync(begin_turn(state)), begin_turn, turn_start)
    builder.add_node(turn_start, beginning, input_schema=output)
    builder.add_edge(START, turn_start)
    if returned.keys() >= declared.keys():
        builder.output_schema = output


def add_quality_gate(
    builder: Graph,
    criterion: Criterion,
    *,
    after: str | Sequence[str] | None = None,
    accept: str = END,
    revise: str | None = None,
    escalate: str | None = None,
    messages_key: str = "messages",
    critique_key: str | None = None,
    **options: Unpack[GateOptions],
) -> Graph:
    """Add a judge to a graph: an answer that does not pass goes back to be revised.

    The `GateVerdict` is in the state under the gate's name, and in the graph's output unless that
    has a schema of its own: `result["quality_gate"]["status"]`. A node parallel to the graph's
    first ones, `<name>.before_turn`, clears the state of an earlier turn. If the state declares the
    gate's name with a reducer, that collects the verdicts.

    Args:
        builder: The graph, to be compiled with a store, which holds the judge's memory. A run's
            settings are under `memalign` in its context.
        criterion: What is judged.
        after: The node whose answer is judged, or several, without an edge past the gate; None to
            add the edges to the gate yourself.
        accept: Where an answer goes that passed.
        revise: The writer, where an answer goes that did not pass; None to send none back.
        escalate: Where an answer goes if no revision is left or the judge failed; None for the end.
            This node writes the answer, so it excludes `fallback`.
        messages_key: The state's key with the messages.
        critique_key: A key of the state for the critique as text; empty once an answer has passed.
            By default the critique is added to the messages.
        options: The gate's options (`memalign_graph.settings.Gate`) and the judge's (`Judge`).

    Returns:
        The builder.

    Raises:
        InvalidInputError: If an option is invalid, or an edge leads past the gate; ImportError if
            an extra is missing.
    """
    if not isinstance(builder, StateGraph) or not _keys(builder, builder.state_schema):
        raise InvalidInputError(
            "builder: expected a StateGraph that is not compiled, and whose state is a class with "
            "keys."
        )
    gate = QualityGate(
        criterion, options, can_revise=revise is not None, can_escalate=escalate is not None
    )
    settings = gate.settings
    node = GateNode(gate, messages_key, critique_key, builder.state_schema)
    if gate.name in builder.nodes:
        raise InvalidInputError(
            f"name: the graph already has a node {gate.name!r}. Give this gate another name."
        )
    if settings.fallback is not None and escalate is not None:
        raise InvalidInputError(
            "fallback: the node of `escalate` writes the answer. Leave out one of the two."
        )
    sources = [after] if isinstance(after, str) else after or []
    for source in sources:
        _check_edges(builder, source, settings)
    _check_keys(builder, node, revises=revise is not None)
    _add_node(builder, node)
    for source in sources:
        builder.add_edge(source, gate.name)
    closed, rejected = (END, "exhausted") if escalate is None else (escalate, "escalated")
    node_of: dict[Hashable, str] = {"accepted": accept, rejected: closed}
    if revise is not None:
        node_of["revise"] = revise
    node_of["judge_error"] = accept if settings.on_judge_error == "open" else closed

    def status_of(state: Any) -> Any:
        # `update_state(as_node=...)` may leave no verdict.
        status = _last_verdict(state, gate.name).get("status")
        return status if status in node_of else rejected

    builder.add_conditional_edges(gate.name, status_of, node_of)
    return builder


def create_quality_gate_node(
    criterion: Criterion,
    *,
    escalates: bool = False,
    messages_key: str = "messages",
    critique_key: str | None = None,
    **options: Unpack[GateOptions],
) -> Runnable[Any, Any]:
    """Create a gate as a node, to add edges to; `add_quality_gate` adds both.

    The state needs a key with the gate's name, where the gate counts revisions; edges read
    `state[name]["status"]`. Each human message begins a turn. Pass the context with each resume.

    Args:
        criterion: What is judged.
        escalates: True for the status `escalated` instead of `exhausted`.
        messages_key: The state's key with the messages.
        critique_key: A key of the state for the critique as text.
        options: The gate's options (`memalign_graph.settings.Gate`), without `fallback`, and the
            judge's (`Judge`); with `max_revisions=0` if no answer is sent back.

    Returns:
        The node.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    reject_options(options, ["fallback"], "a node without edges does not change the messages")
    gate = QualityGate(criterion, options, can_escalate=escalates)
    return GateNode(gate, messages_key, critique_key)
