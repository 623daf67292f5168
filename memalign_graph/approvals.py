"""Approvals: tool calls that run, are refused, or go to a person; for agents and `ToolNode`s."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import ensure_config
from typing_extensions import Unpack

from memalign_graph.call_judge import CallJudge, OnFail, Ruling, Situation
from memalign_graph.conversation import is_question, read_key
from memalign_graph.errors import InvalidInputError
from memalign_graph.io import IO, sync_async_functions, sync_async_methods
from memalign_graph.models import drop_oldest
from memalign_graph.runtime import StateUpdate, is_resuming
from memalign_graph.settings import JudgeOptions, context_settings
from memalign_graph.tool_calls import Call, call_key, check_edit, refused_tools
from memalign_graph.types import Criterion

try:
    from langchain.agents.middleware.human_in_the_loop import (
        HumanInTheLoopMiddleware,
        InterruptMode,
        InterruptOnConfig,
    )
    from langchain.agents.middleware.types import PrivateStateAttr
except ImportError as error:
    raise ImportError(
        "Approvals need langchain 1.4.7 or newer: pip install 'memalign-graph[agents]'."
    ) from error

logger = logging.getLogger(__name__)

_STATE_KEY = "memalign_approvals"
_NO_DECISIONS = {"refused": [], "decided": [], "edits": {}, "is_resumed": False}
_EDITS_KEY = "hitl_edited_tool_calls"  # in the state of HumanInTheLoopMiddleware
_HITL_OPTIONS = ("description_prefix", "edit_notice", "interrupt_mode")
_MAX_TASKS = 10_000
_ASKED_AGAIN = (
    "Nothing was learned from the decision on the call of %r. The model was asked again, as in a "
    "subgraph with checkpointer=False, and this may be another call than the one that was shown."
)


class ApprovalOptions(JudgeOptions, total=False):
    """The options of `Approval`, of LangChain's middleware and of the `Judge`, by name."""

    on_fail: OnFail
    always_ask: Sequence[str] | Callable[[dict[str, Any]], bool]
    target_agreement: float
    sample_share: float
    author: Callable[[Any], str | None] | None
    description_prefix: str
    edit_notice: str | None
    interrupt_mode: InterruptMode


class ApprovalState(HumanInTheLoopMiddleware.state_schema):  # type: ignore[misc, valid-type] # a class
    """The state of langchain's middleware, and what this one keeps of a turn."""

    memalign_approvals: Annotated[dict[str, Any], PrivateStateAttr]


class ApprovalMiddleware(HumanInTheLoopMiddleware[Any, Any, Any]):
    """Asks a person about an agent's tool calls, until a judge knows which ones are right.

    A drop-in for langchain's `HumanInTheLoopMiddleware`: the same `interrupt_on`, interrupts and
    decisions. Each call that it would ask about is judged first. The call runs without a question
    only if the judge passes it, and decisions in memory show that calls which the judge passed with
    at least that confidence are right at the rate `target_agreement`. A person is asked about
    everything else: at first about each call; later about calls that `always_ask` or the rule on
    untrusted text selects, whose tool does not allow `approve`, or that are drawn at random; and
    about calls that could not be judged, have no id, or were changed after a decision.

    The memory learns from each decision: an approved call is right; an edited call is wrong, and
    the new one is right; a rejected call is wrong, and the message gives the reason. A response
    teaches nothing. Create the agent with a store, which holds the judge's memory, and with a
    checkpointer.

    Args:
        criterion: What a right call is; with the scale `Boolean()`. The judge is shown the
            conversation so far as `inputs`, and `{"name": ..., "args": ...}` as `outputs`.
        interrupt_on: The tools whose calls are judged, as `HumanInTheLoopMiddleware` takes them:
            `allowed_decisions`, `description` and `when` have the same effect.
        options: `memalign_graph.call_judge.Approval`'s, those of `HumanInTheLoopMiddleware`
            (`interrupt_mode`, `description_prefix`, `edit_notice`), and the judge's (`Judge`).
            `keep_judgments` is 30 days by default: for that time a call can be marked wrong later.

    Raises:
        InvalidInputError: If an option is invalid; ValueError for one of langchain's; ImportError
            if an extra is missing.
    """

    state_schema = ApprovalState

    def __init__(
        self,
        criterion: Criterion,
        interrupt_on: dict[str, bool | InterruptOnConfig],
        **options: Unpack[ApprovalOptions],
    ) -> None:
        own: dict[str, Any] = {**options}
        self._hitl_options = {name: own.pop(name) for name in _HITL_OPTIONS if name in own}
        super().__init__(interrupt_on, **self._hitl_options)
        self._calls = CallJudge(criterion, self.interrupt_on, own)
        self._first_calls: dict[Any, str] = {}
        self._has_compared_tools = False

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Save the run's settings, and clear the decisions of an earlier turn."""
        last = [None, *(state.get("messages") or ())][-1]
        earlier = (state.get(_STATE_KEY) or {}).get("asked_ids", [])
        asked_ids = [*earlier, last.id] if is_question(last) else earlier
        own = {"settings": _settings(runtime, {}), "asked_ids": asked_ids}
        return {_STATE_KEY: own, _EDITS_KEY: {}}

    async def _wrap_model_call(self, io: IO, request: Any, handler: Any) -> Any:
        """Warn at the first call of the model about names in `interrupt_on` that are no tools."""
        tools = {read_key(tool, "name") for tool in request.tools}
        unknown = sorted(self.interrupt_on.keys() - tools)
        if unknown and not self._has_compared_tools:
            message = "interrupt_on: the model was not offered %s, only %s. If a name is misspelt, "
            message += "the tool's calls run without a question."
            logger.warning(message, ", ".join(unknown), ", ".join(sorted(filter(None, tools))))
        self._has_compared_tools = True
        return await io.call_either(lambda: handler(request), lambda: handler(request))

    wrap_model_call, awrap_model_call = sync_async_methods(_wrap_model_call)

    def _is_selected(self, request: Any) -> bool:
        """Return whether a tool's own condition holds for a call."""
        when = self.interrupt_on[request.tool_call["name"]].get("when")
        return when is None or bool(when(request))

    def _asking(
        self, mode: InterruptMode, when: Callable[[Any], bool]
    ) -> HumanInTheLoopMiddleware[Any, Any, Any]:
        """Return langchain's middleware with a mode, and a condition in place of the tools' own."""
        configs: Any = {name: {**own, "when": when} for name, own in self.interrupt_on.items()}
        options: Any = {**self._hitl_options, "interrupt_mode": mode}
        return HumanInTheLoopMiddleware(configs, **options)

    async def _after_model(self, io: IO, state: Any, runtime: Any) -> StateUpdate | None:
        """Record what was refused; in `batched` mode, decide on the last message's calls."""
        saved = {**_NO_DECISIONS, **(state.get(_STATE_KEY) or {})}
        own = {**saved, "refused": _refused(state["messages"], saved), "is_resumed": is_resuming()}
        is_batched = self.interrupt_mode == "batched"
        update = await self._decide(io, state, runtime, own) if is_batched else {}
        return {**update, **({} if own == saved else {_STATE_KEY: own})} or None

    def _gated_calls(self, state: Any, runtime: Any) -> tuple[list[Call], list[Call]]:
        """Return the last message's calls of tools in `interrupt_on`, and those that are judged."""
        calls: list[Call] = []
        selected: list[Call] = []

        def collect(request: Any) -> bool:
            calls.append(request.tool_call)
            if self._is_selected(request):
                selected.append(request.tool_call)
            return False

        self._asking("batched", collect).after_model(state, runtime)
        return calls, selected

    async def _decide(self, io: IO, state: Any, runtime: Any, own: StateUpdate) -> StateUpdate:
        """Judge the calls, ask about some in one interrupt, and record which ones may run."""
        calls, selected = self._gated_calls(state, runtime)
        ids = [call["id"] for call in calls]
        # Langchain's own middleware may have edited other calls of the message. What is left of an
        # earlier message is dropped, and of an earlier turn if `before_agent` did not run.
        mine, edited = own["edits"], (_STATE_KEY in state and state.get(_EDITS_KEY)) or {}
        others = {
            key: edit for key, edit in edited.items() if key not in ids and edit != mine.get(key)
        }
        own["edits"] = {}
        if not calls:
            return {_EDITS_KEY: others} if state.get(_EDITS_KEY) else {}
        # LangChain matches answers to calls by id. The others are asked about one by one, when run.
        unique = [call for call in calls if call["id"] and ids.count(call["id"]) == 1]
        to_judge = [call for call in unique if call in selected]
        situation = _situation(state, ids[0], own, runtime)
        rulings = await self._calls.rulings(io, unique, to_judge, situation, judges=True)
        asked = [ruling for ruling in rulings.values() if ruling.verdict is None]
        asked_calls = [ruling.call for ruling in asked]
        asking = self._asking("batched", lambda request: request.tool_call in asked_calls)
        update = asking.after_model(state, runtime) or {}
        own["edits"] = edits = update.get(_EDITS_KEY) or {}
        for edited in edits.values():
            check_edit(edited)
        replies = [*update.get("messages", ())]
        answers = {each.tool_call_id: each for each in replies if isinstance(each, ToolMessage)}
        decisions = edits | answers
        if asked and not is_resuming():
            logger.warning(_ASKED_AGAIN, asked[0].call["name"])
        for ruling in asked if is_resuming() else ():
            await self._calls.learn(io, ruling, decisions.get(ruling.call["id"], ruling.call))
        refused = [self._calls.refusal(each) for each in rulings.values() if each.verdict is False]
        replies += refused
        ended = answers.keys() | {refusal.tool_call_id for refusal in refused}
        decided = [each.call for each in rulings.values() if each.call["id"] not in ended]
        own["decided"] = [call_key({**call, **edits.get(call["id"], {})}) for call in decided]
        update |= {_EDITS_KEY: {**others, **edits}} if _EDITS_KEY in update else {}
        if refused and "structured_response" in state:
            # The model gave its answer before it knew that the call would be refused.
            update["structured_response"] = None
        return update | ({"messages": replies} if replies else {})

    after_model, aafter_model = sync_async_methods(_after_model)

    async def _wrap_tool_call(self, io: IO, request: Any, handler: Any) -> Any:
        """Run a call that was decided on; judge any other call, and ask about it if needed."""
        call = request.tool_call
        if call["name"] not in self.interrupt_on:
            return await io.call_either(lambda: handler(request), lambda: handler(request))
        ruling = await self._ruling(io, request)
        if isinstance(ruling, ToolMessage):
            return ruling
        runs: list[Any] = []

        async def run(io: IO, to_run: Any) -> Any:
            runs.append(to_run)
            if ruling is not None:  # stored before the tool runs: it must not run twice
                await self._calls.learn(io, ruling, to_run.tool_call)
            return await io.call_either(lambda: handler(to_run), lambda: handler(to_run))

        asking = self._asking("batched" if ruling is None else "per_call", lambda _: True)
        blocking, awaiting = sync_async_functions(run)
        result = await io.call_either(
            lambda: asking.wrap_tool_call(request, blocking),
            lambda: asking.awrap_tool_call(request, awaiting),
        )
        if ruling is not None and not runs:  # a message in place of the call
            await self._calls.learn(io, ruling, result)
        return result

    wrap_tool_call, awrap_tool_call = sync_async_methods(_wrap_tool_call)

    async def _ruling(self, io: IO, request: Any) -> Ruling | ToolMessage | None:
        """Return the ruling on a call that a person is asked about; None for a call that runs."""
        call, key = request.tool_call, call_key(request.tool_call)
        edits = read_key(request.state, _EDITS_KEY) or {}
        to_run = {**call, **edits.get(call["id"], {})}
        saved = read_key(request.state, _STATE_KEY) or {}
        task = ensure_config().get("metadata", {}).get("langgraph_checkpoint_ns")
        is_batched = self.interrupt_mode == "batched"
        is_in_graph = task is not None or bool(saved)  # a thread may have lost its context
        if is_batched and (not is_in_graph or call_key(to_run) in saved.get("decided", ())):
            return None
        selected = [call] if self._is_selected(request) else []
        if selected and not self._is_first(key, task):
            return _second_call(call)
        situation = _situation(request.state, call["id"], saved, request.runtime)
        # A person is asked about a call that `batched` mode did not decide on, or, if the mode was
        # changed, about one on which an answer was lost.
        judges = not (is_batched or saved.get("is_resumed"))
        rulings = await self._calls.rulings(io, [call], selected, situation, judges=judges)
        ruling = rulings.get(key)
        if ruling is None and selected:
            # Another call of the task was ruled on before the run was interrupted.
            self._first_calls.pop(task, None)
            return _second_call(call)
        if ruling is None or ruling.verdict:
            return None
        return ruling if ruling.verdict is None else self._calls.refusal(ruling)

    def _is_first(self, key: str, task: str | None) -> bool:
        """Return whether a call is the first in its task of the graph.

        LangGraph matches the answers and the subgraphs of one task by their order, but a `ToolNode`
        runs the calls of a task concurrently. So a second call in a task does not run.
        """
        drop_oldest(self._first_calls, _MAX_TASKS)
        return self._first_calls.setdefault(task, key) == key


def _second_call(call: Call) -> ToolMessage:
    text = (
        f"`{call['name']}` did not run: a step takes one call that needs approval. Call it again."
    )
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error")


def _settings(runtime: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the run began with, changed by those in the present context."""
    own = context_settings(getattr(runtime, "context", None)) or {}
    return {**(saved.get("settings") or {}), **own}


def _refused(messages: Sequence[Any] | None, saved: Mapping[str, Any]) -> list[str]:
    """Return the tools whose calls were refused in this turn, also by messages removed since."""
    refused = refused_tools(messages or (), saved.get("asked_ids", ()))
    return sorted(refused.union(saved.get("refused", ())))


def _situation(state: Any, call_id: str | None, saved: StateUpdate, runtime: Any) -> Situation:
    """Return what precedes the message with a call; without messages if the state lacks it."""
    messages = state if isinstance(state, list) else read_key(state, "messages") or ()
    before = caller = None
    for place, message in enumerate(messages):
        calls = getattr(message, "tool_calls", None) or ()
        if any(call["id"] == call_id for call in calls):
            before, caller = list(messages[:place]), message
    refused, settings = _refused(before, saved), _settings(runtime, saved)
    return Situation(before, refused, settings, runtime, caller, saved.get("asked_ids", ()))


class ApprovalWrapper:
    """Decides on a `ToolNode`'s calls: itself as `wrap_tool_call`, `awaiting` for async runs."""

    def __init__(self, middleware: ApprovalMiddleware) -> None:
        self._middleware = middleware
        self.awaiting: Callable[[Any, Any], Any] = middleware.awrap_tool_call

    def __call__(self, request: Any, handler: Any) -> Any:
        """Run, refuse or ask about a call."""
        return self._middleware.wrap_tool_call(request, handler)


def create_approval_wrapper(
    criterion: Criterion,
    interrupt_on: dict[str, bool | InterruptOnConfig],
    **options: Unpack[ApprovalOptions],
) -> ApprovalWrapper:
    """Create a wrapper that does for a `ToolNode` what `ApprovalMiddleware` does for an agent.

    `ToolNode(tools, wrap_tool_call=approve, awrap_tool_call=approve.awaiting)`. Each question is an
    interrupt of its own (`interrupt_mode="per_call"`). If a message has several calls, route each
    to the node by a `Send` with a list of that call alone. Of calls that share a task, as after a
    plain edge, one that needs approval is decided on, and the model is asked to call the others
    again. Messages are read from the state's key `messages`; with another key, a person is asked
    about every call. Pass the run's context again with each resume.

    Args:
        criterion: What a right call is.
        interrupt_on: The tools whose calls are judged.
        options: As those of `ApprovalMiddleware`, without `interrupt_mode`.

    Returns:
        The wrapper.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    if "interrupt_mode" in options:
        raise InvalidInputError("interrupt_mode: a wrapper always asks per call. Leave it out.")
    options["interrupt_mode"] = "per_call"
    return ApprovalWrapper(ApprovalMiddleware(criterion, interrupt_on, **options))
