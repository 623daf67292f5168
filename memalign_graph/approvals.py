"""Approvals that teach: a judge tells which tool calls may run, a person decides on the rest."""

import json
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
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
from memalign_graph.conversation import is_question, read_key
from memalign_graph.errors import EmbeddingError, InvalidInputError, MemAlignError
from memalign_graph.graphs import add_judging, add_learning
from memalign_graph.identity import digest
from memalign_graph.io import ASYNC, IO, SYNC, run_sync, sync_async_methods
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.judgments import keep_judgment, log_review, utc_now
from memalign_graph.nodes.review import decide_review, make_feedback, order_after_stored
from memalign_graph.runtime import (
    JudgeResources,
    Node,
    NodeCall,
    StateUpdate,
    is_resuming,
    saved_thread_id,
)
from memalign_graph.scales import Boolean, require_bool
from memalign_graph.settings import Judge, JudgeOptions, MemAlignContext, Settings, Uncertain
from memalign_graph.settings import judge_context as read_context
from memalign_graph.tracing import emit_evaluation
from memalign_graph.transcript import read_messages
from memalign_graph.types import (
    Criterion,
    Example,
    Feedback,
    Judgment,
    ReviewChoice,
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
"""How long judged calls are kept for later feedback where `keep_judgments` does not say."""

_STATE_KEY = "memalign_approvals"
_EDITS_KEY = "hitl_edited_tool_calls"  # of the state of HumanInTheLoopMiddleware
_REASON = " with reason: "  # before the person's words in what the model is told of a rejection
_HITL_OPTIONS = ("description_prefix", "edit_notice", "interrupt_mode")


class Approval(Settings):
    """Which tool calls run without a question."""

    on_fail: OnFail = "ask"
    """What becomes of a call that the judge is sure is wrong: `ask` a person, or `refuse` it: the
    model gets the critique as the tool's error. Until the judge is that sure, a person is asked."""
    always_ask: tuple[str, ...] | list[str] | Callable[[dict[str, Any]], bool] = ()
    """The tools that never run without a question, or a function of a call (`name`, `args`, `id`)
    that tells so."""
    target_agreement: float = Field(default=0.95, gt=0, lt=1)
    """How many of the calls that run without a question are to be right, as a share: shown by
    people's decisions on calls that the judge passed, at a level of 95 %. 0.95 takes 82 of them."""
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
    """Tell whether an address, amount or identifier comes from a tool and not from the user.

    The value has to stand in a tool's result since the user last spoke, and in nothing that the
    user wrote. An argument is such a field if one of the words of its name says so, as in
    `recipient_email`, `orderId` or `amount`.
    """
    questions = [place for place, message in enumerate(messages) if is_question(message)]
    since = questions[-1] if questions else 0
    written = [messages[place].text for place in questions]
    returned = [message.text for message in messages[since:] if isinstance(message, ToolMessage)]
    return any(
        _stands_in(value, returned) and not _stands_in(value, written)
        for value in _destinations(args, named=False)
    )


def _destinations(value: Any, *, named: bool) -> Iterator[str]:
    """Return the values of the fields whose names say that they are a destination or an amount."""
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


def _stands_in(value: str, texts: Sequence[str]) -> bool:
    """Tell whether a value stands in a text, and not as a part of a longer word or number."""
    pattern = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)
    return any(pattern.search(text) for text in texts)


class _CallState(schemas.ReviewRunState):
    forced: list[ReviewReason]  # why a person is asked, whatever the judge says


class _LessonState(schemas.ReviewRunState):
    lesson: dict[str, Any]


class _RulingState(TypedDict):
    cases: list[dict[str, Any]]
    run: str  # names the run that gave the rulings
    rulings: Annotated[dict[str, Any], operator.or_]


Call = Mapping[str, Any]
"""A tool call as LangChain writes it: `name`, `args` and `id`."""

Ruling = Mapping[str, Any]
"""What was decided on a call, as JSON: the `judgment` with its `review`, the guidelines that the
call breaks, and the `settings` it was judged with. Without a judgment a person is asked."""


class CallJudge:
    """Judges tool calls, and learns from what people decide on them."""

    def __init__(
        self, criterion: Criterion, tools: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        rest: dict[str, Any] = {"keep_judgments": KEEP_CALLS, "cite_guidelines": True, **options}
        own = {name: rest.pop(name) for name in Approval.model_fields if name in rest}
        judge = Judge(criterion=criterion, **rest)
        if not isinstance(criterion.scale, Boolean):
            raise InvalidInputError(
                "criterion: a call is right or wrong: give a criterion with the scale Boolean()."
            )
        if not judge.measures:
            raise InvalidInputError(
                "decide: 'verdict' alone does not tell how sure the judge is, so that every call "
                "would be asked about: leave it out, or give confidence=True, too."
            )
        self.criterion = criterion
        self.approval = Approval(**own)
        always_ask = self.approval.always_ask
        unknown = [] if callable(always_ask) else [name for name in always_ask if name not in tools]
        if unknown:
            raise InvalidInputError(
                f"always_ask: {unknown[0]!r} is no tool of `interrupt_on`: add it there, or leave "
                "it out."
            )
        uncertain = Uncertain(
            target_agreement=self.approval.target_agreement, sample_share=self.approval.sample_share
        )
        # What is kept also says whether a person was asked: it is kept once that is known.
        self._kept_for = judge.keep_judgments
        resources = JudgeResources(judge.but(keep_judgments=None), uncertain)
        judging: Any = StateGraph(_CallState, context_schema=MemAlignContext)
        add_judging(judging, resources)
        judging.add_node(Node(self._decide_call, resources, name="decide_review"))
        judging.add_edge("judge", "decide_review")
        self._judge = judging.compile().with_config(tags=[TAG_NOSTREAM])
        learning: Any = StateGraph(_LessonState, context_schema=MemAlignContext)
        learning.add_node(Node(self._take_decision, resources, name="take_decision", is_first=True))
        learning.add_edge(START, "take_decision")
        add_learning(learning, resources, after="take_decision")
        self._teacher = learning.compile().with_config(tags=[TAG_NOSTREAM])
        # A task that is resumed gets the result of a graph that has ended in it again: an answer
        # meets the ruling that led to the question, also where judging had failed.
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
        judgment = Judgment.model_validate((await decide_review(step, is_final=False))["judgment"])
        choice: Any = judgment.review
        forced = list(step.state["forced"])
        if not judgment.value and self.approval.on_fail == "ask":
            forced.append("judged_wrong")
        if forced:
            reasons = [*forced, *choice.reasons]
            choice = ReviewChoice(asks=True, reasons=reasons, threshold=choice.threshold)
            judgment = judgment.model_copy(update={"review": choice})
            await log_review(step.io, step.access, judgment, choice, utc_now())
        emit_evaluation(judgment, asked=choice.asks)
        vector = (step.state["judge_memory"] or {}).get("vector")
        kept = await keep_judgment(
            step.io, step.access, judgment, step.example, vector, self._kept_for
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
        """Judge calls of one message; those without a ruling are asked about."""
        cases = []
        for call in calls:
            example = call_example(call, messages) if call.get("id") else None
            if example is None:
                message = "A person is asked about a call of %r: it has no id, or is no JSON."
                logger.warning(message, call["name"])
                continue
            forced: list[ReviewReason] = []
            if self._always_asks(call):
                forced.append("always_ask")
            if repeats_tool_text(call["args"], messages):
                forced.append("untrusted_text")
            fields = {"inputs": example.inputs, "outputs": example.outputs, "forced": forced}
            key = call_key(call)
            cases.append({"key": key, "tool": call["name"], "fields": fields, "settings": settings})
        if not cases:
            return {}
        task: Any = {"cases": cases, "run": uuid4().hex}
        # Kept before the question is asked, also where the run saves its thread at its end alone.
        is_saved = runtime is not None and saved_thread_id(runtime) is not None
        how: Any = {"durability": "sync"} if is_saved else {}
        result = await io.call_either(
            lambda: self._rules.invoke(task, **how), lambda: self._rules.ainvoke(task, **how)
        )
        if is_saved and is_resuming() and result["run"] == task["run"]:
            # The rulings that led to the questions are lost. These are others, and an answer that
            # is there already must count.
            return {}
        return dict(result["rulings"])

    def _always_asks(self, call: Call) -> bool:
        always_ask = self.approval.always_ask
        if not callable(always_ask):
            return call["name"] in always_ask
        own = {name: call.get(name) for name in ("name", "args", "id")}
        return require_bool(always_ask(own), "always_ask")

    async def _rule(self, io: IO, case: dict[str, Any]) -> StateUpdate:
        context, fields = MemAlignContext(**case["settings"]), case["fields"]
        ruling: dict[str, Any] = {"settings": case["settings"]}
        try:
            result = await io.call_either(
                lambda: self._judge.invoke(fields, context=context),
                lambda: self._judge.ainvoke(fields, context=context),
            )
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
        """Return what the model gets instead of the result of a call that is refused."""
        asked = self.criterion.instructions.strip()
        parts = [
            f"The call of `{call['name']}` was refused and did not run. It was to be: {asked}",
            f"The review says: {ruling['judgment']['rationale']}",
            *(f"What it has to heed: {text}" for text in ruling["broken"]),
        ]
        return _error("\n\n".join(parts), call)

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

        If that fails, the decision still stands.
        """
        example = call_example(call, messages)
        is_message = isinstance(decision, ToolMessage)
        if example is None or (is_message and decision.status != "error"):
            return  # a response says nothing of the call
        is_edit = not is_message and _action(decision) != _action(call)
        better = call_example(decision, messages) if is_edit else None
        comment = decision.text.partition(_REASON)[2] if is_message else ""
        comment = difference(call, decision) if is_edit else comment
        # What no store keeps must not cost the decision.
        comment = comment.encode(errors="replace").decode().replace("\0", "")
        lesson = {
            "key": call_key(call),
            "example": example.to_json(),
            "judgment": ruling.get("judgment"),
            "said": {
                "value": not (is_message or is_edit),
                "rationale": comment,
                "author": self._author(runtime),
            },
            "better": better and better.to_json(),
        }
        task, context = {"lesson": lesson}, MemAlignContext(**ruling["settings"])
        try:
            await io.call_either(
                lambda: self._teacher.invoke(task, context=context),
                lambda: self._teacher.ainvoke(task, context=context),
            )
        except (MemAlignError, ValueError) as error:
            message = "The decision on the call of %r stands, and nothing was learned from it: %s"
            logger.warning(message, call["name"], error)

    async def _take_decision(self, step: NodeCall) -> StateUpdate:
        lesson = step.state["lesson"]
        example = Example.model_validate(lesson["example"])
        judgment = lesson["judgment"] and Judgment.model_validate(lesson["judgment"])
        # A decision that is read again has the same id, and is stored once.
        fields = {**lesson["said"], "id": digest([step.thread_id, lesson["key"]])}
        undated = make_feedback(fields, example, judgment, step)
        feedback = await order_after_stored(step, undated)
        feedback_items = [Feedback.model_validate(feedback)]
        if lesson["better"] is not None:
            right = {**fields, "value": True, "rationale": None}
            better = Example.model_validate(lesson["better"])
            feedback_items.append(Feedback(example=better, thread_id=step.thread_id, **right))
        try:
            await remember(step.io, step.access, feedback_items)
        except EmbeddingError:
            # Its vector is made when memory is next searched.
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
    """Return what is judged: the conversation so far, and the call; None if it is no JSON."""
    try:
        inputs = read_messages(list(messages), "messages", lenient=True)
        if inputs is None and messages:
            return None
        return parse_example({"inputs": inputs or "(no messages)", "outputs": _action(call)})
    except (ValueError, TypeError):
        return None


def call_key(call: Call) -> str:
    """Name a call by its id and its content."""
    parts = [call.get("id"), call["name"], call["args"]]
    return digest(json.dumps(parts, sort_keys=True, default=str))


def difference(call: Call, edited: Call) -> str:
    """Say in words what an edit changed."""
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
    """Return what the judge says of a call; None where a person is asked."""
    judgment = ruling.get("judgment")
    return None if judgment is None or judgment["review"]["asks"] else judgment["value"]


def settings_of(runtime: Any, saved: Any) -> dict[str, Any]:
    """Return the settings for judging: of the run's context, or those that the run began with."""
    own = read_context(getattr(runtime, "context", None))
    return saved or {} if own is None else own.model_dump(mode="json", exclude_unset=True)


# LangChain's middleware

_CHOOSE: ContextVar[Callable[[Call], bool]] = ContextVar("choose")
"""Tells of a call whether it is asked about, while LangChain's middleware looks for those."""


@contextmanager
def _choosing(choose: Callable[[Call], bool]) -> Iterator[None]:
    token = _CHOOSE.set(choose)
    try:
        yield
    finally:
        _CHOOSE.reset(token)


def _chosen(config: InterruptOnConfig) -> InterruptOnConfig:
    """Add to a tool's own `when` that the call was chosen."""
    own = config.get("when")

    def when(request: Any) -> bool:
        return (own is None or own(request)) and _CHOOSE.get()(request.tool_call)

    return {**config, "when": when}


class ApprovalMiddleware(HumanInTheLoopMiddleware[Any, Any, Any]):
    """Asks a person about an agent's tool calls, until a judge knows which ones are right.

    A drop-in for langchain's `HumanInTheLoopMiddleware`: the same `interrupt_on`, interrupts and
    decisions. Each call that it would ask about is judged first. The call runs without a question
    only if the judge passes it, and decisions in memory show that calls which the judge passed with
    at least that confidence are right as often as `target_agreement` says. Everything else is asked
    about: at first each call; calls that `always_ask` or the rule on untrusted text names, or that
    are drawn at random; and calls that could not be judged, have no id, or changed since.

    Each decision teaches: an approved call is right; an edited one is wrong, and the new one is
    right; a rejected one is wrong, and the message says why. A response teaches nothing. Create the
    agent with a store, which holds the judge's memory, and with a checkpointer.

    Args:
        criterion: What a right call is; with the scale `Boolean()`. The judge is shown the
            conversation so far as `inputs`, and `{"name": ..., "args": ...}` as `outputs`.
        interrupt_on: The tools whose calls are judged, as `HumanInTheLoopMiddleware` takes them:
            `allowed_decisions`, `description` and `when` do what they do there.
        options: `Approval`'s, those of `HumanInTheLoopMiddleware` (`interrupt_mode`,
            `description_prefix`, `edit_notice`), and the judge's (`Judge`), of which
            `keep_judgments` is 30 days unless given: so long a call can be marked wrong later.

    Raises:
        InvalidInputError: If an option can't be used; ValueError for one of langchain's;
            ImportError where an extra is missing.
    """

    def __init__(
        self,
        criterion: Criterion,
        interrupt_on: dict[str, bool | InterruptOnConfig],
        **options: Unpack[ApprovalOptions],
    ) -> None:
        own: dict[str, Any] = {**options}
        asking = {name: own.pop(name) for name in _HITL_OPTIONS if name in own}
        super().__init__(interrupt_on, **asking)
        self._calls = CallJudge(criterion, list(self.interrupt_on), own)
        configs: Any = self.interrupt_on
        chosen: Any = {name: _chosen(config) for name, config in configs.items()}
        self._batched = HumanInTheLoopMiddleware[Any, Any, Any](
            chosen, **{**asking, "interrupt_mode": "batched"}
        )
        self._per_call = HumanInTheLoopMiddleware[Any, Any, Any](
            configs, **{**asking, "interrupt_mode": "per_call"}
        )
        hints = get_type_hints(HumanInTheLoopMiddleware.state_schema, include_extras=True)
        hints[_STATE_KEY] = NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]
        self.state_schema = TypedDict("ApprovalState", hints)  # type: ignore[misc] # made here

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Keep the settings that the run begins with, and forget what was decided before."""
        settings = settings_of(runtime, None)
        return {_STATE_KEY: {"settings": settings, "decided": []}}

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Judge the calls of the last message, and ask about some of them in one interrupt."""
        return run_sync(self._decide(SYNC, state, runtime))

    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return await self._decide(ASYNC, state, runtime)

    async def _decide(self, io: IO, state: Any, runtime: Any) -> dict[str, Any] | None:
        if self.interrupt_mode == "per_call":
            return None
        gated: list[Call] = []
        with _choosing(lambda call: bool(gated.append(call))):  # type: ignore[func-returns-value] # none is chosen
            update = self._batched.after_model(state, runtime)
        if not gated:
            return update
        saved = state.get(_STATE_KEY) or {}
        settings = settings_of(runtime, saved.get("settings"))
        places = [n for n, each in enumerate(state["messages"]) if isinstance(each, AIMessage)]
        messages = state["messages"][: places[-1]]
        rulings: dict[str, Ruling] = {call_key(call): {"settings": settings} for call in gated}
        rulings |= await self._calls.rulings(io, gated, messages, settings, runtime)
        refused = [call for call in gated if verdict(rulings[call_key(call)]) is False]
        asked = [call for call in gated if verdict(rulings[call_key(call)]) is None]
        with _choosing(lambda call: call in asked):
            update = self._batched.after_model(state, runtime) or {}
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

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Run a call that was decided on; judge and ask about another one here."""
        return run_sync(self._wrap(SYNC, request, handler))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await self._wrap(ASYNC, request, handler)

    async def _wrap(self, io: IO, request: Any, handler: Any) -> Any:
        ruling = await self._ruling(io, request)
        if isinstance(ruling, ToolMessage):
            return ruling
        asking = self._batched if ruling is None else self._per_call
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
        if not decisions:  # a message in the place of the call
            await learn(io, result)
        return result

    async def _ruling(self, io: IO, request: Any) -> Ruling | ToolMessage | None:
        """Return the ruling that a person is asked by; None for a call that runs."""
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
        settings = settings_of(request.runtime, (saved or {}).get("settings"))
        ruling: Ruling = {"settings": settings}
        if not is_batched:
            rulings = await self._calls.rulings(io, [call], messages, settings, request.runtime)
            ruling = rulings.get(call_key(call), ruling)
        value = verdict(ruling)
        if value is False:
            return self._calls.refusal(call, ruling)
        return None if value else ruling


_ONE_CALL = "`{}` did not run: a step takes one call that needs approval. Call it again."


def _around(request: Any) -> tuple[list[Any], Sequence[Call]]:
    """Return the messages before the one with a call, and that one's calls."""
    state, call_id = request.state, request.tool_call["id"]
    messages = list(state if isinstance(state, list) else read_key(state, "messages") or ())
    for place in reversed(range(len(messages))):
        calls = getattr(messages[place], "tool_calls", None) or ()
        if any(call["id"] == call_id for call in calls):
            return messages[:place], calls
    return messages, ()


def _shares_task() -> bool:
    """Tell whether all calls of a message run in one task, as in a `ToolNode` led to by an edge.

    LangGraph matches the answers and the subgraphs of one task by their order, and threads have
    none.
    """
    try:
        path = get_config().get("metadata", {}).get("langgraph_path", ())
    except RuntimeError:
        return False
    return tuple(path[:1]) == ("__pregel_pull",)


@dataclass(frozen=True)
class ApprovalWrapper:
    """Decides on tool calls for a `ToolNode`; `awaiting` is its async twin."""

    middleware: ApprovalMiddleware

    def __call__(self, request: Any, handler: Any) -> Any:
        """Run, refuse or ask about a call."""
        return self.middleware.wrap_tool_call(request, handler)

    @property
    def awaiting(self) -> Callable[[Any, Any], Any]:
        """The same for `awrap_tool_call`."""
        return self.middleware.awrap_tool_call


def create_approval_wrapper(
    criterion: Criterion,
    interrupt_on: dict[str, bool | InterruptOnConfig],
    **options: Unpack[ApprovalOptions],
) -> ApprovalWrapper:
    """Create what `ApprovalMiddleware` does for a `ToolNode` in a graph of one's own.

    `ToolNode(tools, wrap_tool_call=approve, awrap_tool_call=approve.awaiting)`. Each question is an
    interrupt of its own (`interrupt_mode="per_call"`). Where a message has several calls, lead each
    to the node by a `Send` with a list of that call alone; by a plain edge only the first of those
    that need approval is decided on, and the model is told to call the others again. Messages are
    read from the state's key `messages`; each resume has to be given the run's context again.

    Args:
        criterion: What a right call is.
        interrupt_on: The tools whose calls are judged.
        options: As those of `ApprovalMiddleware`, without `interrupt_mode`.

    Returns:
        The wrapper.

    Raises:
        InvalidInputError: If an option can't be used; ImportError where an extra is missing.
    """
    if "interrupt_mode" in options:
        raise InvalidInputError("interrupt_mode: a wrapper asks about each call: leave it out.")
    options["interrupt_mode"] = "per_call"
    return ApprovalWrapper(ApprovalMiddleware(criterion, interrupt_on, **options))
