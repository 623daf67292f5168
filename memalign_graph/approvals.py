"""Approvals: a judge lets tool calls run, and learns from people's decisions on the others."""

import json
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, get_type_hints
from uuid import uuid4

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.config import get_config
from langgraph.constants import START, TAG_NOSTREAM
from langgraph.graph import StateGraph
from langgraph.types import Send
from pydantic import Field
from typing_extensions import TypedDict, Unpack

from memalign_graph import state as schemas
from memalign_graph.conversation import critique_text, is_question, read_key
from memalign_graph.errors import EmbeddingError, InvalidInputError, MemAlignError
from memalign_graph.graphs import add_judging, add_learning
from memalign_graph.identity import digest
from memalign_graph.io import ASYNC, IO, SYNC, run_sync, sync_async_methods
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.judgments import keep_judgment
from memalign_graph.nodes.review import decide_review, make_feedback
from memalign_graph.runtime import (
    JudgeResources,
    Node,
    NodeCall,
    StateUpdate,
    call_graph,
    is_resuming,
    saved_thread_id,
)
from memalign_graph.scales import Boolean, PassRule, require_bool
from memalign_graph.settings import (
    Judge,
    JudgeOptions,
    MemAlignContext,
    Settings,
    Uncertain,
    context_settings,
)
from memalign_graph.transcript import read_messages
from memalign_graph.types import (
    Criterion,
    Example,
    Feedback,
    Judgment,
    ReviewReason,
    parse_example,
)

try:
    from langchain.agents.middleware.human_in_the_loop import (
        HumanInTheLoopMiddleware,
        InterruptMode,
        InterruptOnConfig,
    )
    from langchain.agents.middleware.types import PrivateStateAttr
except ImportError as error:
    raise ImportError(
        "Approvals need langchain 1.4.7 or newer: pip install 'memalign-graph[agents]' "
        "'langchain>=1.4.7'."
    ) from error

logger = logging.getLogger(__name__)

OnFail = Literal["ask", "refuse"]
KEEP_CALLS = timedelta(days=30)
"""How long judged calls are kept for later feedback, unless `keep_judgments` is given."""

_STATE_KEY = "memalign_approvals"
_EDITS_KEY = "hitl_edited_tool_calls"  # in the state of HumanInTheLoopMiddleware
_REASON = " with reason: "  # precedes the person's message in what the model gets on a rejection
_HITL_OPTIONS = ("description_prefix", "edit_notice", "interrupt_mode")


class Approval(Settings):
    """Which tool calls run without a question."""

    on_fail: OnFail = "ask"
    """What happens to a call that the judge is sure is wrong: `ask` a person, or `refuse` it, so
    that the model gets the critique as the tool's error. An unsure judge always asks a person."""
    always_ask: tuple[str, ...] | list[str] | Callable[[dict[str, Any]], bool] = ()
    """The tools that never run without a question, or a function of a call (`name`, `args`, `id`)
    that returns True for such calls."""
    target_agreement: float = Field(default=0.95, gt=0, lt=1)
    """The share of calls run without a question that must be right. People's decisions on calls
    that the judge passed show it, at a level of 95 %. To show 0.95 takes 82 decisions."""
    sample_share: float = Field(default=0.05, ge=0, le=1)
    """The share of calls asked about at random."""
    author: Callable[[Any], str | None] | None = None
    """A function of LangGraph's `Runtime` that names the person who decides; None for the user that
    an Agent Server has authenticated, if any."""


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


_DESTINATION = re.compile(
    r"to|b?cc|recipients?|e?mail|address|ur[li]|link|domain|host|phone|iban|account|wallet|payee|"
    r"amount|price|sum|total|ids?|uuid|number",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def repeats_tool_text(args: Mapping[str, Any], messages: Sequence[Any]) -> bool:
    """Return whether an address, amount or identifier comes from a tool and not from the user.

    The value occurs in a tool's result since the user's last message, and in nothing that the user
    wrote. The words of an argument's name show that it is such a field, as in `recipient_email`,
    `orderId` or `amount`.
    """
    questions = [place for place, message in enumerate(messages) if is_question(message)]
    since = questions[-1] if questions else 0
    written = [messages[place].text for place in questions]
    returned = [message.text for message in messages[since:] if isinstance(message, ToolMessage)]
    return any(
        _occurs_in(value, returned) and not _occurs_in(value, written)
        for value in _destinations(args, named=False)
    )


def _destinations(value: Any, *, named: bool) -> Iterator[str]:
    """Yield the values of fields whose names mean an address, an amount or an identifier."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            is_named = any(map(_DESTINATION.fullmatch, _WORD.findall(str(name))))
            yield from _destinations(part, named=named or is_named)
    elif isinstance(value, list):
        for part in value:
            yield from _destinations(part, named=named)
    elif named and isinstance(value, str | int | float) and not isinstance(value, bool):
        text = f"{value:.15g}" if isinstance(value, float) else str(value).strip()
        yield from [text] if text else []


def _occurs_in(value: str, texts: Sequence[str]) -> bool:
    """Return whether a text has a value, and not as a part of a longer word or number."""
    pattern = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)
    return any(pattern.search(text) for text in texts)


class _CallState(schemas.ReviewRunState):
    forced: list[ReviewReason]
    """Why a person is asked, whatever the judge's verdict is."""
    lesson: dict[str, Any]
    """A person's decision to learn from."""


class _RulingState(TypedDict):
    cases: list[dict[str, Any]]
    run: str
    """Identifies the run that made the rulings."""
    rulings: Annotated[dict[str, Any], operator.or_]


Call = Mapping[str, Any]
"""A tool call as LangChain writes it: `name`, `args` and `id`."""

Ruling = Mapping[str, Any]
"""What was decided on a call, as JSON: the `judgment` with its `review`, the `broken` guidelines,
and the `settings` it was judged with. Without a judgment, a person is asked."""


class CallJudge:
    """Judges tool calls, and learns from people's decisions on them."""

    def __init__(
        self, criterion: Criterion, tools: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        rest: dict[str, Any] = {"keep_judgments": KEEP_CALLS, "cite_guidelines": True, **options}
        own = {name: rest.pop(name) for name in Approval.model_fields if name in rest}
        judge = Judge(criterion=criterion, **rest)
        if not isinstance(criterion.scale, Boolean):
            raise InvalidInputError(
                "criterion: a tool call is either right or wrong. Use a criterion with "
                "scale=Boolean()."
            )
        if not judge.measures:
            raise InvalidInputError(
                "decide: 'verdict' gives no confidence, so a person would be asked about every "
                "call. Leave it out, or set confidence=True."
            )
        self.criterion = criterion
        self.approval = Approval(**own)
        always_ask = self.approval.always_ask
        unknown = [] if callable(always_ask) else [name for name in always_ask if name not in tools]
        if unknown:
            raise InvalidInputError(
                f"always_ask: {unknown[0]!r} is not a tool in `interrupt_on`. Add it there, or "
                "remove it here."
            )
        uncertain = Uncertain(
            target_agreement=self.approval.target_agreement, sample_share=self.approval.sample_share
        )
        # `_decide_call` keeps the judgment, since it must also record whether a person was asked.
        self._keep_for = judge.keep_judgments
        resources = JudgeResources(judge.but(keep_judgments=None), uncertain)
        judging: Any = StateGraph(_CallState, context_schema=MemAlignContext)
        add_judging(judging, resources)
        judging.add_node(Node(self._decide_call, resources, name="decide_review"))
        judging.add_edge("judge", "decide_review")
        self._judge = judging.compile().with_config(tags=[TAG_NOSTREAM])
        learning: Any = StateGraph(_CallState, context_schema=MemAlignContext)
        learning.add_node(Node(self._take_decision, resources, name="take_decision", is_first=True))
        learning.add_edge(START, "take_decision")
        add_learning(learning, resources, after="take_decision")
        self._learner = learning.compile().with_config(tags=[TAG_NOSTREAM])
        # LangGraph stores the result of a subgraph that has ended. A resumed task gets the same
        # ruling again, also if judging failed.
        rules: Any = StateGraph(_RulingState)
        blocking, awaiting = sync_async_methods(CallJudge._rule)
        node = RunnableLambda(partial(blocking, self), partial(awaiting, self), "rule")
        rules.add_node("rule", node)
        rules.add_conditional_edges(
            START, lambda state: [Send("rule", case) for case in state["cases"]], ["rule"]
        )
        self._rules = rules.compile()

    async def _decide_call(self, step: NodeCall) -> StateUpdate:
        """Decide whether a person is asked, log it, and keep the call for later feedback."""
        forced = list(step.state["forced"])
        if not step.judgment.value and self.approval.on_fail == "ask":
            forced.append("judged_wrong")
        update = await decide_review(step, forced=forced)
        judgment = Judgment.model_validate(update["judgment"])
        vector = (step.state["judge_memory"] or {}).get("vector")
        kept = await keep_judgment(
            step.io, step.access, judgment, step.example, vector, self._keep_for
        )
        return {"judgment": kept.to_json()}

    async def rulings(
        self,
        io: IO,
        calls: Sequence[Call],
        messages: Sequence[Any],
        settings: dict[str, Any],
        runtime: Any,
    ) -> dict[str, Ruling]:
        """Judge calls of one message; return the rulings by `call_key`."""
        unjudged: dict[str, Ruling] = {call_key(call): {"settings": settings} for call in calls}
        cases = []
        for call in calls:
            example = call_example(call, messages) if call.get("id") else None
            if example is None:
                message = "A person is asked about the call of %r: it has no id, or is not JSON."
                logger.warning(message, call["name"])
                continue
            reasons: dict[ReviewReason, bool] = {
                "always_ask": self._always_asks(call),
                "untrusted_text": repeats_tool_text(call["args"], messages),
            }
            forced = [reason for reason, holds in reasons.items() if holds]
            fields = {"inputs": example.inputs, "outputs": example.outputs, "forced": forced}
            key = call_key(call)
            cases.append({"key": key, "tool": call["name"], "fields": fields, "settings": settings})
        if not cases:
            return unjudged
        task: Any = {"cases": cases, "run": uuid4().hex}
        # Saved before a person is asked, even if the run saves its thread only at its end.
        is_saved = runtime is not None and saved_thread_id(runtime) is not None
        options: Any = {"durability": "sync"} if is_saved else {}
        result = await call_graph(io, self._rules, task, **options)
        if is_saved and is_resuming() and result["run"] == task["run"]:
            # The rulings behind the questions were lost. An answer may have arrived, and must
            # count: so no new ruling may let the call run, or refuse it.
            return unjudged
        rulings: dict[str, Ruling] = result["rulings"]
        return unjudged | rulings

    def _always_asks(self, call: Call) -> bool:
        always_ask = self.approval.always_ask
        if not callable(always_ask):
            return call["name"] in always_ask
        own = {name: call.get(name) for name in ("name", "args", "id")}
        return require_bool(always_ask(own), "always_ask")

    async def _rule(self, io: IO, case: dict[str, Any]) -> StateUpdate:
        ruling: dict[str, Any] = {"settings": case["settings"]}
        try:
            context = MemAlignContext(**case["settings"])
            result = await call_graph(io, self._judge, case["fields"], context=context)
            broken = [guideline["text"] for guideline in result.get("broken_guidelines") or ()]
            ruling |= {"judgment": result["judgment"], "broken": broken}
        except MemAlignError as error:
            message = "The call of %r could not be judged, and a person is asked: %s"
            logger.warning(message, case["tool"], error)
        return {"rulings": {case["key"]: ruling}}

    def _author(self, runtime: Any) -> str | None:
        if self.approval.author is not None:
            return self.approval.author(runtime)
        user = getattr(getattr(runtime, "server_info", None), "user", None)
        return None if user is None else str(user.identity)

    def refusal(self, call: Call, ruling: Ruling) -> ToolMessage:
        """Return what the model gets in place of the result of a refused call."""
        rule = PassRule.of(self.criterion.scale, None)
        judgment = Judgment.model_validate(ruling["judgment"])
        critique = critique_text(self.criterion, rule, judgment, None, ruling["broken"], "call")
        return _error(f"The call of `{call['name']}` was refused and did not run. {critique}", call)

    async def learn(
        self,
        io: IO,
        decision: Any,
        *,
        call: Call,
        ruling: Ruling,
        messages: Sequence[Any],
        runtime: Any,
    ) -> None:
        """Learn from a decision: the call that runs, or the `ToolMessage` in its place.

        A failure is logged. The decision is still carried out.
        """
        example = call_example(call, messages)
        is_message = isinstance(decision, ToolMessage)
        if example is None or (is_message and decision.status != "error"):
            return  # a response does not say whether the call was right
        is_edit = not is_message and _action(decision) != _action(call)
        better = call_example(decision, messages) if is_edit else None
        comment = decision.text.partition(_REASON)[2] if is_message else ""
        comment = difference(call, decision) if is_edit else comment
        # Stores refuse lone surrogates and NUL. The decision must be stored even so.
        comment = comment.encode(errors="replace").decode().replace("\0", "")
        feedback = {
            "value": not (is_message or is_edit),
            "rationale": comment,
            "author": self._author(runtime),
        }
        lesson = {
            "key": call_key(call),
            "example": example.to_json(),
            "judgment": ruling.get("judgment"),
            "feedback": feedback,
            "better": better and better.to_json(),
        }
        try:
            context = MemAlignContext(**ruling["settings"])
            await call_graph(io, self._learner, {"lesson": lesson}, context=context)
        except (MemAlignError, ValueError) as error:
            message = "The decision on the call of %r counts, but nothing was learned from it: %s"
            logger.warning(message, call["name"], error)

    async def _take_decision(self, step: NodeCall) -> StateUpdate:
        """Store a decision: at most two items of feedback, on the call and on the edited call."""
        lesson = step.state["lesson"]
        example = Example.model_validate(lesson["example"])
        judgment = lesson["judgment"] and Judgment.model_validate(lesson["judgment"])
        # A decision that is read again has the same id, and is stored once.
        fields = {**lesson["feedback"], "id": digest([step.thread_id, lesson["key"]])}
        feedback = await make_feedback(step, fields, example, judgment)
        feedback_items = [Feedback.model_validate(feedback)]
        if lesson["better"] is not None:
            right = {**fields, "value": True, "rationale": None}
            better = Example.model_validate(lesson["better"])
            feedback_items.append(Feedback(example=better, thread_id=step.thread_id, **right))
        try:
            await remember(step.io, step.access, feedback_items)
        except EmbeddingError:
            # The vectors are computed when the memory is next searched.
            await remember(step.io, step.access, feedback_items, embeds=False)
        return {
            "judge_run": {"example": lesson["example"], "settings": step.settings},
            "judge_memory": {},
            "judge_lesson": {},
            "judgment": lesson["judgment"],
            "feedback": feedback,
            "learned": None,
        }


def call_example(call: Call, messages: Sequence[Any]) -> Example | None:
    """Return what is judged: the conversation so far, and the call; None if it is not JSON."""
    try:
        inputs = read_messages(list(messages), "messages", lenient=True)
        if inputs is None and messages:
            return None
        return parse_example({"inputs": inputs or "(no messages)", "outputs": _action(call)})
    except (ValueError, TypeError):
        return None


def call_key(call: Call) -> str:
    """Return a hash of a call's id and content."""
    parts = [call.get("id"), call["name"], call["args"]]
    return digest(json.dumps(parts, sort_keys=True, default=str))


def difference(call: Call, edited: Call) -> str:
    """Describe what an edit changed."""
    before = {"the tool": call["name"], **call["args"]}
    after = {"the tool": edited["name"], **edited["args"]}
    changes = [f"{name} is left out" for name in before if name not in after]
    for name, new in after.items():
        if name not in before or before[name] != new:
            old = f", not {_json(before[name])}" if name in before else ""
            changes.append(f"{name} is {_json(new)}{old}")
    return f"In the right call {'; '.join(changes)}."


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _action(call: Call) -> dict[str, Any]:
    return {"name": call["name"], "args": call["args"]}


def _error(text: str, call: Call) -> ToolMessage:
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error")


def verdict(ruling: Ruling) -> bool | None:
    """Return whether a call runs or is refused without a person; None if a person is asked."""
    judgment = ruling.get("judgment")
    return None if judgment is None or judgment["review"]["asks"] else judgment["value"]


def _settings(runtime: Any, saved: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings in the run's context; without one, those that the run began with."""
    own = context_settings(getattr(runtime, "context", None))
    return own if own is not None else (saved or {}).get("settings") or {}


def _only_if(config: InterruptOnConfig, is_chosen: Callable[[Call], bool]) -> InterruptOnConfig:
    """Add a condition on the call to a tool's own `when`."""
    own = config.get("when")
    return {
        **config,
        "when": lambda request: (own is None or own(request)) and is_chosen(request.tool_call),
    }


class ApprovalMiddleware(HumanInTheLoopMiddleware[Any, Any, Any]):
    """Asks a person about an agent's tool calls, until a judge knows which ones are right.

    A drop-in for langchain's `HumanInTheLoopMiddleware`: the same `interrupt_on`, interrupts and
    decisions. Each call that it would ask about is judged first. The call runs without a question
    only if the judge passes it, and decisions in memory show that calls which the judge passed with
    at least that confidence are right at the rate `target_agreement`. A person is asked about
    everything else: at first about each call; about calls that `always_ask` or the rule on
    untrusted text selects, or that are drawn at random; and about calls that could not be judged,
    have no id, or were changed after a decision.

    The memory learns from each decision: an approved call is right; an edited call is wrong, and
    the new one is right; a rejected call is wrong, and the message gives the reason. A response
    teaches nothing. Create the agent with a store, which holds the judge's memory, and with a
    checkpointer.

    Args:
        criterion: What a right call is; with the scale `Boolean()`. The judge is shown the
            conversation so far as `inputs`, and `{"name": ..., "args": ...}` as `outputs`.
        interrupt_on: The tools whose calls are judged, as `HumanInTheLoopMiddleware` takes them:
            `allowed_decisions`, `description` and `when` have the same effect.
        options: `Approval`'s, those of `HumanInTheLoopMiddleware` (`interrupt_mode`,
            `description_prefix`, `edit_notice`), and the judge's (`Judge`). `keep_judgments` is 30
            days by default: for that time a call can be marked wrong later.

    Raises:
        InvalidInputError: If an option is invalid; ValueError for one of langchain's; ImportError
            if an extra is missing.
    """

    def __init__(
        self,
        criterion: Criterion,
        interrupt_on: dict[str, bool | InterruptOnConfig],
        **options: Unpack[ApprovalOptions],
    ) -> None:
        own: dict[str, Any] = {**options}
        self._hitl_options = {name: own.pop(name) for name in _HITL_OPTIONS if name in own}
        super().__init__(interrupt_on, **self._hitl_options)
        self._calls = CallJudge(criterion, list(self.interrupt_on), own)
        hints = get_type_hints(HumanInTheLoopMiddleware.state_schema, include_extras=True)
        hints[_STATE_KEY] = NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]
        self.state_schema = TypedDict("ApprovalState", hints)  # type: ignore[misc] # made here

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Save the run's settings, and clear the decisions of an earlier turn."""
        return {_STATE_KEY: {"settings": _settings(runtime, None), "decided": []}}

    def _langchains(
        self, mode: InterruptMode, is_chosen: Callable[[Call], bool] | None = None
    ) -> HumanInTheLoopMiddleware[Any, Any, Any]:
        """Return langchain's middleware in a mode, for all gated calls or for chosen ones."""
        configs: dict[str, Any] = {**self.interrupt_on}
        if is_chosen is not None:
            configs = {name: _only_if(config, is_chosen) for name, config in configs.items()}
        options: dict[str, Any] = {**self._hitl_options, "interrupt_mode": mode}
        return HumanInTheLoopMiddleware(configs, **options)

    async def _decide(self, io: IO, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Judge the calls of the last message, and ask about some of them in one interrupt."""
        if self.interrupt_mode == "per_call":
            return None
        gated: list[Call] = []
        # `append` returns None: the calls are collected, and no question is asked.
        update = self._langchains("batched", gated.append).after_model(state, runtime)  # type: ignore[arg-type]
        if not gated:
            return update
        saved = state.get(_STATE_KEY) or {}
        settings = _settings(runtime, saved)
        is_answer = [isinstance(message, AIMessage) for message in state["messages"]]
        messages = state["messages"][: len(is_answer) - 1 - is_answer[::-1].index(True)]
        rulings = await self._calls.rulings(io, gated, messages, settings, runtime)
        refused = [call for call in gated if verdict(rulings[call_key(call)]) is False]
        asked = [call for call in gated if verdict(rulings[call_key(call)]) is None]
        asking = self._langchains("batched", lambda call: call in asked)
        update = asking.after_model(state, runtime) or {}
        replies = [*update.get("messages", ())]
        answered = {each.tool_call_id: each for each in replies if isinstance(each, ToolMessage)}
        edits = update.get(_EDITS_KEY) or {}
        for call in asked:
            ruling, call_id = rulings[call_key(call)], call["id"]
            decision: Any = answered.get(call_id, edits.get(call_id, call))
            learn = partial(self._calls.learn, call=call, ruling=ruling, messages=messages)
            await learn(io, decision, runtime=runtime)
        replies += [self._calls.refusal(call, rulings[call_key(call)]) for call in refused]
        update |= {"messages": replies} if replies else {}
        ended = answered.keys() | {call["id"] for call in refused}
        may_run = [call_key(call) for call in gated if call["id"] not in ended]
        return {**update, _STATE_KEY: {**saved, "decided": may_run}}

    after_model, aafter_model = sync_async_methods(_decide)

    async def _wrap(self, io: IO, request: Any, handler: Any) -> Any:
        """Run a call that was decided on; judge any other call, and ask about it if needed."""
        ruling = await self._ruling(io, request)
        if isinstance(ruling, ToolMessage):
            return ruling
        asking = self._langchains("batched" if ruling is None else "per_call")
        decisions: list[Any] = []

        async def learn(io: IO, decision: Any) -> None:
            decisions.append(decision)
            if ruling is not None:
                context = {"messages": _around(request)[0], "runtime": request.runtime}
                call = request.tool_call
                await self._calls.learn(io, decision, call=call, ruling=ruling, **context)

        def run(to_run: Any) -> Any:
            run_sync(learn(SYNC, to_run.tool_call))
            return handler(to_run)

        async def arun(to_run: Any) -> Any:
            await learn(ASYNC, to_run.tool_call)
            return await handler(to_run)

        result = await io.call_either(
            lambda: asking.wrap_tool_call(request, run),
            lambda: asking.awrap_tool_call(request, arun),
        )
        if not decisions:  # a message in place of the call
            await learn(io, result)
        return result

    wrap_tool_call, awrap_tool_call = sync_async_methods(_wrap)

    async def _ruling(self, io: IO, request: Any) -> Ruling | ToolMessage | None:
        """Return the ruling on a call that a person is asked about; None for a call that runs."""
        call, saved = request.tool_call, read_key(request.state, _STATE_KEY)
        config: Any = self.interrupt_on.get(call["name"])
        is_batched = self.interrupt_mode == "batched"
        # Without the middleware's state there is no agent around, and nothing was decided before.
        if config is None or (is_batched and (not saved or call_key(call) in saved["decided"])):
            return None
        if (when := config.get("when")) is not None and not when(request):
            return None
        messages, siblings = _around(request)
        gated = [sibling for sibling in siblings if sibling["name"] in self.interrupt_on]
        if _shares_task() and gated[:1] not in ([], [call]):
            return _error(_ONE_CALL.format(call["name"]), call)
        settings = _settings(request.runtime, saved)
        ruling: Ruling = {"settings": settings}
        if not is_batched:
            rulings = await self._calls.rulings(io, [call], messages, settings, request.runtime)
            ruling = rulings[call_key(call)]
        value = verdict(ruling)
        if value is False:
            return self._calls.refusal(call, ruling)
        return None if value else ruling


_ONE_CALL = "`{}` did not run: a step takes one call that needs approval. Call it again."


def _around(request: Any) -> tuple[list[Any], Sequence[Call]]:
    """Return the messages before the one with a call, and all calls of that message."""
    state, call_id = request.state, request.tool_call["id"]
    messages = list(state if isinstance(state, list) else read_key(state, "messages") or ())
    for place in reversed(range(len(messages))):
        calls = getattr(messages[place], "tool_calls", None) or ()
        if any(call["id"] == call_id for call in calls):
            return messages[:place], calls
    return messages, ()


def _shares_task() -> bool:
    """Return whether all calls of a message run in one task, as after a plain edge to a `ToolNode`.

    LangGraph matches the answers and the subgraphs of one task by their order, which threads do
    not keep.
    """
    path = get_config().get("metadata", {}).get("langgraph_path", ())
    return tuple(path[:1]) == ("__pregel_pull",)


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
    to the node by a `Send` with a list of that call alone. After a plain edge only the first call
    that needs approval is decided on, and the model is told to call the others again. Messages are
    read from the state's key `messages`. Pass the run's context again with each resume.

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
