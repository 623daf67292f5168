"""Judges tool calls, and learns from people's decisions on them."""

import json
import logging
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.constants import START, TAG_NOSTREAM
from langgraph.graph import StateGraph
from langgraph.types import Send
from pydantic import Field
from typing_extensions import TypedDict

from memalign_graph import state as schemas
from memalign_graph.conversation import critique_text, questions_in, with_notes_as_results
from memalign_graph.errors import InvalidInputError, MemAlignError, excerpt
from memalign_graph.graphs import add_judging, add_learning
from memalign_graph.identity import digest, storable
from memalign_graph.io import IO, sync_async_methods
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.recall import index_missing
from memalign_graph.memory.traces import texts_in
from memalign_graph.nodes.review import decide_review, make_feedback
from memalign_graph.prompts.fences import Words, repeats, split_words
from memalign_graph.prompts.judge import CASE_TOO_LONG
from memalign_graph.runtime import (
    JudgeResources,
    Node,
    NodeCall,
    StateUpdate,
    call_graph,
    has_answer,
    is_resuming,
    saved_thread_id,
    signed_in,
)
from memalign_graph.scales import Boolean, PassRule, require_bool
from memalign_graph.settings import Judge, MemAlignContext, Settings, Uncertain, typed
from memalign_graph.transcript import read_messages
from memalign_graph.types import Criterion, Example, Feedback, Judgment, parse_example
from memalign_graph.untrusted_text import repeats_tool_text

logger = logging.getLogger(__name__)

OnFail = Literal["ask", "refuse"]
KEEP_CALLS = timedelta(days=30)
"""How long judged calls are kept for later feedback, unless `keep_judgments` is given."""

_REJECTION = "User rejected the tool call for `{}`"
"""The beginning of what the model gets if a person rejects a call; a reason may follow."""
_MAX_VALUE_CHARS, _MAX_CHANGE_CHARS = 1_000, 4_000
"""The maximum lengths of a value, and of all changes, in the comment that an edit makes."""
_SHORT = re.compile(r"[\w.@:/+-]{0,64}", re.ASCII)
_REFUSED = {"memalign": "refused"}
"""The artifact of the message in place of a refused call's result."""


def _is_always_ask(value: Any) -> bool:
    is_list = isinstance(value, list | tuple)
    return all(isinstance(name, str) for name in value) if is_list else callable(value)


class Approval(Settings):
    """Which tool calls run without a question."""

    on_fail: OnFail = "ask"
    """What happens to a call that the judge is sure is wrong: `ask` a person, or `refuse` it, so
    that the model gets the critique as the tool's error. An unsure judge always asks a person."""
    always_ask: Annotated[
        Sequence[str] | Callable[[dict[str, Any]], bool],
        typed(_is_always_ask, "a list of tool names, or a function of a call"),
    ] = ()
    """The tools that never run without a question, or a function of a call (`name`, `args`, `id`)
    that returns True for such calls."""
    target_agreement: float = Field(default=0.95, gt=0, le=0.9999)
    """The share of calls run without a question that must be right. People's decisions on calls
    that the judge passed show it, at a level of 95 %. To show 0.95 takes 82 decisions."""
    sample_share: float = Field(default=0.05, ge=0, le=1)
    """The share of calls asked about at random."""
    author: Callable[[Any], str | None] | None = None
    """A function of LangGraph's `Runtime` that names the person who decides; None for the user that
    an Agent Server has authenticated, if any."""


def refused_tools(messages: Sequence[Any], asked_ids: Collection[str] = ()) -> set[str]:
    """Return the tools of calls that the judge or a person refused in this turn."""
    questions = questions_in(messages, asked_ids)
    return {
        message.name
        for message in messages[questions[-1] if questions else 0 :]
        if isinstance(message, ToolMessage) and message.status == "error" and message.name
        if message.artifact == _REFUSED or message.text.startswith(_REJECTION.format(message.name))
    }


class _CallState(schemas.ReviewRunState):
    forced: list[str]  # reasons to ask a person, independent of the verdict
    shared: dict[str, Any]  # the fields that the feedback on all decided calls shares
    decided: list[dict[str, Any]]
    """Arguments of `make_feedback`, for the call that was shown and for an edited call."""


class _RulingState(TypedDict):
    cases: list[dict[str, Any]]
    rulings: Annotated[dict[str, Any], operator.or_]


Call = Mapping[str, Any]
"""A tool call as LangChain writes it: `name`, `args` and `id`."""


@dataclass(frozen=True)
class Situation:
    """What precedes the calls of a message."""

    messages: Sequence[Any] | None  # None if they are not known
    refused: Collection[str]  # the tools of calls that were refused in this turn
    settings: dict[str, Any]
    runtime: Any
    message: Any = None  # with the calls
    asked_ids: Collection[str] = ()  # of the messages that began turns, as far as they are known


@dataclass(frozen=True)
class Ruling:
    """What was decided on a call."""

    call: Call
    situation: Situation
    content: Mapping[str, Any]
    """As JSON: the `judgment` with its `review`, the `broken` guidelines, and the `settings` it was
    judged with. Without a judgment, a person is asked."""

    @property
    def verdict(self) -> bool | None:
        """Whether the call runs or is refused without a person; None if a person is asked."""
        judgment = self.content.get("judgment")
        return None if judgment is None or judgment["review"]["asks"] else judgment["value"]


class CallJudge:
    """Decides which calls run, are refused, or go to a person; and learns from the person."""

    def __init__(
        self,
        criterion: Criterion,
        interrupt_on: Mapping[str, Mapping[str, Any]],
        options: Mapping[str, Any],
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
        self._interrupt_on = interrupt_on
        always_ask: Any = self.approval.always_ask
        if not callable(always_ask):
            named, always_ask = always_ask, lambda call: call["name"] in named
            if unknown := [name for name in named if name not in interrupt_on]:
                raise InvalidInputError(
                    f"always_ask: {unknown[0]!r} is not a tool in `interrupt_on`. Add it there, or "
                    "remove it here."
                )
        self._always_ask = always_ask
        uncertain = Uncertain(
            target_agreement=self.approval.target_agreement, sample_share=self.approval.sample_share
        )
        resources = JudgeResources(judge, uncertain)
        judging: Any = StateGraph(_CallState, context_schema=MemAlignContext)
        add_judging(judging, resources)
        judging.add_node(Node(self._decide_call, resources, name="decide_review"))
        judging.add_edge("judge", "decide_review")
        self._judge = judging.compile().with_config(tags=[TAG_NOSTREAM])
        learning: Any = StateGraph(_CallState, context_schema=MemAlignContext)
        learning.add_node(Node(self._store_decision, resources, name="store", is_first=True))
        learning.add_edge(START, "store")
        add_learning(learning, resources, after="store")
        self._learner = learning.compile().with_config(tags=[TAG_NOSTREAM])
        # LangGraph stores the result of a subgraph that has ended. A resumed task gets the same
        # ruling again, also if judging failed.
        rules: Any = StateGraph(_RulingState)
        rules.add_node("rule", RunnableLambda(self.rule, self.arule))
        rules.add_conditional_edges(
            START, lambda state: [Send("rule", case) for case in state["cases"]], ["rule"]
        )
        self._rules = rules.compile()

    async def _decide_call(self, step: NodeCall) -> StateUpdate:
        """Decide whether a person is asked, log it, and keep the call for later feedback."""
        forced = list(step.state["forced"])
        if not step.judgment.value and self.approval.on_fail == "ask":
            forced.append("judged_wrong")
        if any(warning.startswith(CASE_TOO_LONG) for warning in step.judgment.warnings):
            forced.append("too_long")
        if not step.finds_similar:
            forced.append("no_similar_episode")
        return await decide_review(step, forced=forced)

    async def rulings(
        self, io: IO, calls: list[Call], selected: list[Call], situation: Situation, *, judges: bool
    ) -> dict[str, Ruling]:
        """Judge the selected calls of a message, or have a person asked; return the rulings by key.

        A resumed task gets the rulings on the calls that were selected before it was interrupted:
        LangGraph stores them, and then ignores the cases. If none are stored, an answer may have
        arrived, and must count: so no judgment may let the call run, or refuse it.
        """
        is_saved = saved_thread_id(situation.runtime) is not None
        judges = judges and not (is_saved and (is_resuming() or has_answer()))
        settings = {"settings": situation.settings}
        cases = [
            {"key": call_key(call), "fields": judges and self._fields(call, situation), **settings}
            for call in selected
        ]
        # Saved before a person is asked, even if the run saves its thread only at its end.
        options: Any = {"durability": "sync"} if is_saved else {}
        contents = (await call_graph(io, self._rules, {"cases": cases}, **options))["rulings"]
        return {
            key: Ruling(call, situation, contents[key])
            for call in calls
            if (key := call_key(call)) in contents
        }

    def _fields(self, call: Call, situation: Situation) -> dict[str, Any] | None:
        """Return what is judged, and why a person is asked anyway; None if it can't be judged."""
        messages = situation.messages
        example = call_example(call, messages)
        if example is None or not call["id"]:
            logger.warning(
                "A person is asked about the call of %r: it has no id, it is not in the state's "
                "`messages`, or they are not JSON.",
                call["name"],
            )
            return None
        own = {name: call[name] for name in ("name", "args", "id")}
        # A call that nobody may approve does not run, such as one that the person's text answers.
        never_runs = "approve" not in self._interrupt_on[call["name"]]["allowed_decisions"]
        is_named = require_bool(self._always_ask(own), "always_ask")
        forced = ["always_ask"] if never_runs or is_named else []
        said = [*(messages or ()), situation.message]
        if repeats_tool_text(call["args"], said, situation.asked_ids):
            forced.append("untrusted_text")
        if call["name"] in situation.refused:
            # A model that tries arguments until one passes is not what the bound was measured on.
            forced.append("refused_before")
        return {"inputs": example.inputs, "outputs": example.outputs, "forced": forced}

    async def _rule(self, io: IO, case: dict[str, Any]) -> StateUpdate:
        ruling: dict[str, Any] = {"settings": case["settings"]}
        try:
            if case["fields"]:
                context = MemAlignContext(**{**case["settings"], "review": "uncertain"})
                result = await call_graph(io, self._judge, case["fields"], context=context)
                broken = [guideline["text"] for guideline in result.get("broken_guidelines") or ()]
                ruling |= {"judgment": result["judgment"], "broken": broken}
        except MemAlignError as error:
            message = "The call of %r could not be judged, and a person is asked: %s"
            logger.warning(message, case["fields"]["outputs"]["name"], error)
        return {"rulings": {case["key"]: ruling}}

    rule, arule = sync_async_methods(_rule)

    def refusal(self, ruling: Ruling) -> ToolMessage:
        """Return what the model gets in place of the result of a refused call."""
        call, rule = ruling.call, PassRule.of(self.criterion.scale, None)
        judgment = Judgment.model_validate(ruling.content["judgment"])
        broken = ruling.content["broken"]
        critique = critique_text(self.criterion, rule, judgment, None, broken, "call")
        text = f"The call of `{call['name']}` was refused and did not run. {critique}"
        return ToolMessage(
            text, name=call["name"], tool_call_id=call["id"], status="error", artifact=_REFUSED
        )

    async def learn(self, io: IO, ruling: Ruling, decision: Any) -> None:
        """Learn from a decision: the call that runs, or the `ToolMessage` in its place.

        A failure is logged. The decision is still carried out.
        """
        call, situation = ruling.call, ruling.situation
        example = call_example(call, situation.messages)
        is_message = isinstance(decision, ToolMessage)
        if example is None or (is_message and decision.status != "error"):
            return  # a response does not say whether the call was right
        is_edit = not is_message and _action(decision) != _action(call)
        comment = difference(call, decision) if is_edit else ""
        if is_message:
            # Without a reason, the message names the call's id, which may be a model's text.
            begin = f"{_REJECTION.format(call['name'])} with reason: "
            comment = decision.text.removeprefix(begin) if decision.text.startswith(begin) else ""
        # A decision that is read again has the same id, and is stored once.
        feedback_id = digest([saved_thread_id(situation.runtime), call_key(call)])
        author = (self.approval.author or signed_in)(situation.runtime)
        shared = {"id": feedback_id, "author": author}
        # A store that refuses the comment would lose the decision.
        fields = {"value": not (is_message or is_edit), "rationale": storable(comment)}
        judgment = ruling.content.get("judgment")
        decided = [{"fields": fields, "example": example.to_json(), "judgment": judgment}]
        if is_edit and (better := call_example(decision, situation.messages)):
            decided += [{"fields": {"value": True}, "example": better.to_json(), "judgment": None}]
        task = {"decided": decided, "shared": shared}
        try:
            context = MemAlignContext(**ruling.content["settings"])
            learned: StateUpdate = {}
            # LangGraph first gives the results of runs that began before: of an earlier answer, or
            # of this one. That counts once, whoever resumes the thread later.
            while learned.get("decided") != decided:
                learned = await call_graph(io, self._learner, task, context=context)
        except (MemAlignError, ValueError) as error:
            message = "The decision on the call of %r counts, but nothing was learned from it: %s"
            logger.warning(message, call["name"], error)

    async def _store_decision(self, step: NodeCall) -> StateUpdate:
        decided, shared = step.state["decided"], step.state["shared"]
        await step.access.refresh(step.io)
        items = [
            make_feedback(step, **{**each, "fields": shared | each["fields"]}) for each in decided
        ]
        feedback = [Feedback.model_validate(item) for item in items]
        await remember(step.io, step.access, feedback, embeds=False)  # before a model is called
        view = await step.access.refresh(step.io)
        await index_missing(step.io, step.access, view)
        return {
            "judge_run": {"example": decided[0]["example"], "settings": step.settings},
            "judge_lesson": {},
            "feedback": items[0],
        }


def call_example(call: Call, messages: Sequence[Any] | None) -> Example | None:
    """Return what is judged: the conversation so far, and the call; None if it is not JSON."""
    try:
        said = with_notes_as_results(messages or ())
        inputs = read_messages(said, "messages", lenient=True)
        if inputs is None and messages != []:
            return None
        return parse_example({"inputs": inputs or "(no messages)", "outputs": _action(call)})
    except (ValueError, TypeError):
        return None


def call_key(call: Call) -> str:
    """Return a hash of a call's id and content."""
    parts = [call.get("id"), call["name"], call["args"]]
    return digest(json.dumps(parts, sort_keys=True, default=str))


def check_edit(edited: Any) -> None:
    """Check an edited call. In `batched` mode langchain runs the original one in place of None."""
    fields = edited if isinstance(edited, Mapping) else {}
    if not (isinstance(fields.get("name"), str) and isinstance(fields.get("args"), dict)):
        raise InvalidInputError(
            f"edited_action: {excerpt(repr(edited), 200)} is not a call. Give the tool's `name` as "
            "text and its `args` as an object."
        )


def difference(call: Call, edited: Call) -> str:
    """Describe what an edit changed.

    Of the judged call only short values and names are quoted: its sentences could be learned as the
    person's.
    """
    before, after = call["args"], edited["args"]
    names = {name: name if _SHORT.fullmatch(name) else "an argument" for name in before | after}
    changes = [f"{names[name]} is left out" for name in before if name not in after]
    if edited["name"] != call["name"]:
        changes.append(f"the tool is {_json(edited['name'])}, not {_json(call['name'])}")
    judged = split_words("\n".join(texts_in(before)))
    for name, new in after.items():
        if name not in before or before[name] != new:
            is_shown = name in before and _SHORT.fullmatch(str(before[name]))
            old = f", not {_json(before[name])}" if is_shown else ""
            changes.append(f"{names[name]} is {_own_text(new, judged)}{old}")
    return f"In the right call {excerpt('; '.join(changes), _MAX_CHANGE_CHARS)}."


def _own_text(value: Any, judged: Sequence[str]) -> str:
    """Return a new value as JSON; of one that repeats the judged words, only the other words."""
    texts, known = [*texts_in(value)], {*judged}
    words = split_words(text := "\n".join(texts))
    own = [word for word in words if word not in known]
    is_copied = len(words) - len(own) > max(len(own), 1) or repeats(text, Words(judged), Words())
    if not is_copied or _SHORT.fullmatch("".join(texts)):
        return _json(value)
    return f"reworded, with {_json(' '.join(own))}" if own else "reworded"


def _json(value: Any) -> str:
    return excerpt(json.dumps(value, ensure_ascii=False, default=str), _MAX_VALUE_CHARS)


def _action(call: Call) -> dict[str, Any]:
    return {"name": call["name"], "args": call["args"]}
