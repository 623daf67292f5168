"""`QualityGateMiddleware`: a quality gate for langchain's `create_agent` (extra `agents`)."""

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired, get_type_hints

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.runtime import Runtime
from langgraph.types import Command
from typing_extensions import TypedDict, Unpack

from memalign_graph import conversation
from memalign_graph.conversation import Turn
from memalign_graph.errors import InvalidInputError
from memalign_graph.gate import GateVerdict, QualityGate, new_turn
from memalign_graph.gate_nodes import keep_last
from memalign_graph.io import IO, sync_async_methods
from memalign_graph.runtime import StateUpdate
from memalign_graph.settings import GateOptions
from memalign_graph.types import Criterion

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
    from langchain.agents.middleware.types import (
        ExtendedModelResponse,
        OmitFromInput,
        PrivateStateAttr,
    )
except ImportError as error:
    raise ImportError(
        "QualityGateMiddleware needs the package langchain: pip install 'memalign-graph[agents]'."
    ) from error

MESSAGES = "messages"


class QualityGateMiddleware(AgentMiddleware[Any, Any, Any]):
    """Judges an agent's answer, and sends it back if it does not pass.

    When the agent is done, its answer is judged. If it does not pass, it goes back to the model
    with the critique, at most `max_revisions` times. With `review="exhausted"` an expert is then
    asked by an interrupt, and the memory learns from the reply. The `GateVerdict` is in the agent's
    state under the gate's name: `result["quality_gate"]["status"]`. It is empty if a guard, a limit
    or another gate's fallback ended the turn. Create the agent with a store, which holds the
    judge's memory, and with a checkpointer if experts are asked.

    Args:
        criterion: What is judged.
        tools: True to show the judge the names and descriptions of the tools that the model was
            offered, so that it can judge a missing call.
        options: The gate's options (`memalign_graph.settings.Gate`) and the judge's (`Judge`).

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """

    def __init__(
        self, criterion: Criterion, *, tools: bool = False, **options: Unpack[GateOptions]
    ) -> None:
        super().__init__()
        if tools and (options.get("example") or options.get("sees") == "answer"):
            raise InvalidInputError(
                "tools: True needs sees='turn' or sees='conversation', and no `example`. Change "
                "these, or leave out `tools`."
            )
        self._shows_tools = tools
        self._gate = QualityGate(criterion, options)
        self._turn_key = self._gate.turn_key
        self.state_schema = _state_schema(self._gate.name, self._turn_key)

    @property
    def name(self) -> str:
        return self._gate.name

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Clear the verdict of an earlier turn, and save the settings of this one."""
        return {self.name: {}, self._turn_key: new_turn(state.get(MESSAGES))}

    def after_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """Record whether the model answered: a guard's or a limit's message is not judged."""
        answer, turn = _last(state, AIMessage), {**(state.get(self._turn_key) or {})}
        # A structured response is the answer, also beside calls of other tools.
        model_answered = (turn.pop("called", False) and answer is not None) and (
            state.get("structured_response") is not None
            or self._ends_with_result(state, answer)
            or not answer.tool_calls
        )
        spoke = model_answered and (_last_human_id(state) or True)
        return {self._turn_key: {**turn, "spoke": spoke}}

    async def _wrap_model_call(self, io: IO, request: Any, handler: Any) -> Any:
        """Record that the model was called, and the tools that it was offered."""
        response = await io.call_either(lambda: handler(request), lambda: handler(request))
        steps = [tool.name for tool in request.tools if not getattr(tool, "return_direct", True)]
        turn = {**(request.state.get(self._turn_key) or {}), "steps": steps, "called": True}
        turn |= conversation.request_in(request.state[MESSAGES], turn.get("asked_id"))
        if self._shows_tools:
            turn["tools"] = _describe(request.tools)
        return ExtendedModelResponse(response, Command(update={self._turn_key: turn}))

    wrap_model_call, awrap_model_call = sync_async_methods(_wrap_model_call)

    async def _after_agent(self, io: IO, state: Any, runtime: Runtime[Any]) -> StateUpdate:
        """Judge the answer, and send it back if it does not pass."""
        turn = conversation.read_turn(
            state[MESSAGES],
            state.get(self._turn_key) or {},
            structured=state.get("structured_response"),
        )
        turn_state = turn.state
        verdict: Any = {}
        if self._model_answered(state, turn):
            example = self._gate.example_in(state, turn, MESSAGES)
            verdict, turn_state = await self._gate.decide(io, example, turn)
        elif turn.is_revised and turn.is_last_question:
            # A thread of an earlier version has the verdict only in the public key.
            verdict = {**turn_state.get("verdict", state.get(self.name)), "status": "exhausted"}
        update: StateUpdate = {self.name: verdict, self._turn_key: turn_state}
        messages = self._gate.messages_after(verdict, turn) if verdict else []
        if verdict.get("status") == "revise":
            # The gate of a subagent may write its own verdict into the public key.
            update |= {"jump_to": "model", self._turn_key: {**turn_state, "verdict": verdict}}
        elif messages and turn.structured is not None:
            update["structured_response"] = None
        return update | ({MESSAGES: messages} if messages else {})

    after_agent, aafter_agent = map(  # type: ignore[assignment] # `hook_config` is typed loosely
        hook_config(can_jump_to=["model"]), sync_async_methods(_after_agent)
    )

    def _model_answered(self, state: Any, turn: Turn) -> bool:
        """Return whether the model ended the turn, and not a guard, a limit or another gate."""
        answer, spoke = _last(state, AIMessage), turn.state.get("spoke")
        if answer is None or conversation.is_from_gate(answer):
            return False
        # If a guard ended the turn before this gate's hooks ran, `spoke` is an earlier turn's.
        spoke_now = bool(spoke) and spoke in (True, _last_human_id(state))
        return spoke_now or self._ends_with_result(state, answer)

    def _ends_with_result(self, state: Any, answer: AIMessage) -> bool:
        """Return whether the last message is a tool's result that is the model's answer.

        The tool has `return_direct`, or makes a structured response. A tool that this gate was not
        offered counts: its result may be the answer.
        """
        messages, turn = state[MESSAGES], state.get(self._turn_key) or {}
        # As in `create_agent`, a result's name precedes that of its call.
        named = {each.tool_call_id: each.name for each in messages if isinstance(each, ToolMessage)}
        names = {named.get(str(call["id"])) or call["name"] for call in answer.tool_calls}
        return isinstance(messages[-1], ToolMessage) and names.isdisjoint(turn.get("steps", ()))


def _last(state: Any, kind: type[Any]) -> Any:
    """Return the last message of a kind, if there is one."""
    messages = reversed(state.get(MESSAGES) or [])
    return next((message for message in messages if isinstance(message, kind)), None)


def _last_human_id(state: Any) -> str | None:
    return getattr(_last(state, HumanMessage), "id", None)


def _describe(tools: Sequence[Any]) -> str:
    """List the tools' names and descriptions."""
    lines = ["The assistant's tools:"]
    for tool in tools:
        try:
            function = convert_to_openai_tool(tool).get("function", tool)
        except ValueError:  # a provider's own, such as {"google_search": {}}
            function = {"name": next(iter(tool), "")}
        name, about = function.get("name", function.get("type")), function.get("description")
        lines.append(" ".join(f"- {name}: {about or ''}".split()))
    return "\n".join(lines)


def _state_schema(name: str, turn_key: str) -> type[Any]:
    hints = get_type_hints(AgentState, include_extras=True)
    if not {name, turn_key}.isdisjoint(hints):
        raise InvalidInputError(f"name: {name!r} is a key of every agent's state. Choose another.")
    own = {
        # Subagents may write their verdicts in one step.
        name: NotRequired[Annotated[GateVerdict | dict[str, Any], OmitFromInput, keep_last]],
        turn_key: NotRequired[Annotated[dict[str, Any] | None, PrivateStateAttr]],
    }
    made: type[Any] = TypedDict("QualityGateState", {**hints, **own})  # type: ignore[misc] # named by the user
    return made
