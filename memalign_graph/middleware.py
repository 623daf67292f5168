"""`QualityGateMiddleware`: a quality gate for langchain's `create_agent` (extra `agents`)."""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, get_type_hints

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.runtime import Runtime
from typing_extensions import TypedDict, Unpack

from memalign_graph.errors import InvalidInputError
from memalign_graph.gate.critique import critique_message
from memalign_graph.gate.example import (
    GATE_SOURCE,
    SOURCE,
    ExampleFrom,
    check_example,
    example_in,
    wrote,
)
from memalign_graph.gate.gate import (
    DEFAULT_MAX_REVISIONS,
    DEFAULT_NAME,
    GateReview,
    JudgeGraph,
    Passage,
    make_gate,
)
from memalign_graph.gate.keys import GateKeys, is_loop_key
from memalign_graph.gate.loop import Loop, begin_turn
from memalign_graph.gate.verdict import GateVerdict, OnJudgeError, Passes
from memalign_graph.graphs.options import ReviewOptions
from memalign_graph.identity import check_json
from memalign_graph.io import AWAITING, BLOCKING, IO, run
from memalign_graph.nodes.base import Run, Update, current_run
from memalign_graph.types import Criterion

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
    from langchain.agents.middleware.types import OmitFromInput, PrivateStateAttr
except ImportError as error:
    raise ImportError(
        "QualityGateMiddleware needs the package langchain: pip install 'memalign-graph[agents]'."
    ) from error

MESSAGES = "messages"
"""Where an agent's messages are."""


class QualityGateMiddleware(AgentMiddleware[Any, Any, Any]):
    """Judges what an agent is about to answer, and sends back what does not pass.

    When the agent is done, its answer is judged. One that does not pass goes back to the model
    with the critique, at most `max_revisions` times; then, if `review="exhausted"`, an expert is
    asked by an interrupt, and memory learns from the word. The verdict, a `GateVerdict`, is in the
    agent's state under the gate's name: `result["quality_gate"]["status"]`. It is empty where
    the model was not what spoke last: where a guard ended the turn, or another gate's fallback.

    The agent is created with a store, where the judge's memory lies, and with a checkpointer where
    experts are asked.
    """

    def __init__(
        self,
        criterion: Criterion,
        *,
        passes: Passes | None = None,
        max_revisions: int = DEFAULT_MAX_REVISIONS,
        on_judge_error: OnJudgeError = "closed",
        review: GateReview = "never",
        example: ExampleFrom | None = None,
        fallback: str | None = None,
        name: str = DEFAULT_NAME,
        **judge: Unpack[ReviewOptions],
    ) -> None:
        """Make a gate for an agent."""
        super().__init__()
        _check_fallback(fallback)
        check_example(example)
        keys = GateKeys(name, MESSAGES, critique=None, verdicts=None)
        self._gate = make_gate(
            criterion,
            name=name,
            passes=passes,
            max_revisions=max_revisions,
            escalates=False,
            review=review,
            on_judge_error=on_judge_error,
            **judge,
        )
        self._example = example
        self._loop = keys.loop
        self._fallback = fallback
        self.state_schema = _state_schema(name, self._loop)

    @property
    def name(self) -> str:
        """The gate's name."""
        return self._gate.name

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Forget the verdict of an earlier turn, and keep what this one begins with."""
        return {self.name: {}, self._loop: begin_turn(current_run(), state.get(MESSAGES))}

    def after_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Note whether the model answered: what others say instead is not judged as its answer."""
        answer = _last_answer(state)
        # The message of a tool that makes a structured response comes with the model's own.
        spoke = answer is not None and (_ends_with_tool(state) or not answer.tool_calls)
        return {self._loop: {**(state.get(self._loop) or {}), "spoke": spoke}}

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Judge the answer, and send it back where it does not pass."""
        return run(self._decide(BLOCKING, state, current_run(), self._gate.graph))

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Async twin of `after_agent`."""
        return await self._decide(AWAITING, state, current_run(), self._gate.graph)

    async def _decide(self, io: IO, state: Any, run_: Run, graph: JudgeGraph) -> Update:
        kept = state.get(self._loop) or {}
        answer = _last_answer(state)
        # A tool that answers directly speaks after the model, and for it.
        spoke = kept.get("spoke") or _ends_with_tool(state)
        if answer is None or wrote(answer) or not spoke:
            return self._given_up(state, kept)
        passage = Passage(
            found=example_in(state, self._example, MESSAGES, turn=kept),
            loop=kept,
        )
        verdict, loop = await self._gate.decide(io, passage, graph, run_)
        update: Update = {self.name: verdict, self._loop: {**loop}}
        if self._example is None and passage.example is not None:
            update[self._loop]["inputs"] = passage.example.inputs
        if verdict["status"] == "revise":
            critique = critique_message(verdict["critique"], self.name)
            sent_back = [*kept.get("sent_back", []), *_answer_ids(state), str(critique.id)]
            update[self._loop] |= {"sent_back": sent_back, "spoke": False}
            return {**update, MESSAGES: [critique], "jump_to": "model"}
        if not verdict["let_through"]:
            update |= self._instead(state)
        return update

    def _given_up(self, state: Any, kept: Mapping[str, Any]) -> Update:
        """Let a turn end that the model did not end: by a guard, a limit, or another gate."""
        verdict = state.get(self.name) or {}
        if verdict.get("status") != "revise" or not _is_of_this_turn(state, kept):
            return {self.name: {}}
        return {self.name: {**verdict, "status": "exhausted"}, **self._instead(state)}

    def _instead(self, state: Any) -> Update:
        """Put the fallback in the place of the turn's answers: they are not there to be read."""
        if self._fallback is None:
            return {}
        gone = {*_sent_back(state), *_answer_ids(state)}
        there = [one.id for one in state[MESSAGES] if one.id in gone]
        message = AIMessage(self._fallback, additional_kwargs={SOURCE: GATE_SOURCE})
        update: Update = {MESSAGES: [*map(RemoveMessage, there), message]}
        if state.get("structured_response") is not None:
            update["structured_response"] = None
        return update


def _check_fallback(fallback: Any) -> None:
    if fallback is None:
        return
    if not isinstance(fallback, str) or not fallback.strip():
        raise InvalidInputError("fallback: give the text that is answered instead, or None.")
    try:
        check_json(fallback, "the text")
    except ValueError as error:
        raise InvalidInputError(f"fallback: {error}") from error


def _answer_ids(state: Any) -> list[str]:
    """Name the messages that make the last answer: what the model wrote, and tools after it."""
    ids: list[str] = []
    for message in reversed(state.get(MESSAGES) or []):
        ids.append(message.id)
        if not isinstance(message, ToolMessage):
            break
    return ids


def _last_answer(state: Any) -> AIMessage | None:
    messages = state.get(MESSAGES) or []
    return next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)


def _ends_with_tool(state: Any) -> bool:
    return isinstance(state[MESSAGES][-1], ToolMessage)


def _sent_back(state: Mapping[str, Any]) -> list[str]:
    """Name the messages that were sent back in this turn, by whichever of the agent's gates."""
    kept = [one for key, one in state.items() if is_loop_key(key) and isinstance(one, dict)]
    return [message for one in kept for message in one.get("sent_back", [])]


def _is_of_this_turn(state: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Tell whether nobody has asked anything else since: a guard can end a turn before it began."""
    asked = [one.id for one in state[MESSAGES] if isinstance(one, HumanMessage) and not wrote(one)]
    begun = kept.get("asked_id")
    return begun is None or (bool(asked) and asked[-1] == begun)


def _state_schema(name: str, loop: str) -> type[Any]:
    hints = get_type_hints(AgentState, include_extras=True)
    if not {name, loop}.isdisjoint(hints):
        raise InvalidInputError(f"name: {name!r} is a key of every agent: choose another.")
    own = {
        name: NotRequired[Annotated[GateVerdict | dict[str, Any], OmitFromInput]],
        loop: NotRequired[Annotated[Loop | None, PrivateStateAttr]],
    }
    made: type[Any] = TypedDict("QualityGateState", {**hints, **own})  # type: ignore[misc] # named by the user
    return made
