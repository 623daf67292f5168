"""The judge of tool calls: which ones run without a question, and what decisions teach.

`approvals.py` asks for rulings on the calls of a message (`CallJudge.rulings`):

1. `_to_judge` says what is judged, and why a person is asked whatever the judge says.
2. `_rule` has the call judged. `_decide_call` adds the reasons that follow from the judgment, and
   has the confidence compared with the bound.
3. The `Ruling` says whether the call runs, is refused, or goes to a person. `CallJudge.learn` gets
   the person's decision.
"""

import logging
import operator
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
from memalign_graph.conversation import critique_text
from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.graphs import add_judging, add_learning
from memalign_graph.identity import digest, storable
from memalign_graph.io import IO, sync_async_methods
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.recall import index_missing
from memalign_graph.nodes.review import decide_review, make_feedback
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
from memalign_graph.tool_calls import (
    Call,
    action_of,
    call_example,
    call_key,
    describe_edit,
    refusal_message,
    rejection_reason,
)
from memalign_graph.types import Criterion, Feedback, Judgment
from memalign_graph.untrusted_text import repeats_tool_text

logger = logging.getLogger(__name__)

OnFail = Literal["ask", "refuse"]
KEEP_CALLS = timedelta(days=30)
"""How long judged calls are kept for later feedback, unless `keep_judgments` is given."""


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


class _Rulings(TypedDict):
    """The state of the graph that gives a ruling on each call of a message."""

    cases: list[dict[str, Any]]  # the calls' `key`, what is judged of them (`judged`), `settings`
    rulings: Annotated[dict[str, Any], operator.or_]  # the `content` of each `Ruling` by key


class _JudgedCall(schemas.ReviewRunState):
    """The state of the graph that judges one call."""

    forced: list[str]  # reasons to ask a person, independent of the verdict


class _Decision(schemas.ReviewRunState):
    """The state of the graph that learns from a person's decision on one call."""

    person: dict[str, Any]  # the `id` and the `author` of the feedback
    decided: list[dict[str, Any]]
    """Arguments of `make_feedback`, for the call that was shown and for an edited call."""


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
        judging: Any = StateGraph(_JudgedCall, context_schema=MemAlignContext)
        add_judging(judging, resources)
        judging.add_node(Node(self._decide_call, resources, name="decide_review"))
        judging.add_edge("judge", "decide_review")
        self._judge = judging.compile().with_config(tags=[TAG_NOSTREAM])
        learning: Any = StateGraph(_Decision, context_schema=MemAlignContext)
        learning.add_node(Node(self._store_decision, resources, name="store", is_first=True))
        learning.add_edge(START, "store")
        add_learning(learning, resources, after="store")
        self._learner = learning.compile().with_config(tags=[TAG_NOSTREAM])
        # LangGraph stores the result of a subgraph that has ended. A resumed task gets the same
        # ruling again, also if judging failed.
        rules: Any = StateGraph(_Rulings)
        rules.add_node("rule", RunnableLambda(self.rule, self.arule))
        rules.add_conditional_edges(
            START, lambda state: [Send("rule", case) for case in state["cases"]], ["rule"]
        )
        self._rules = rules.compile()

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
        cases = [
            {
                "key": call_key(call),
                "judged": self._to_judge(call, situation) if judges else None,
                "settings": situation.settings,
            }
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

    def _to_judge(self, call: Call, situation: Situation) -> dict[str, Any] | None:
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
        """Return the ruling on one call; without a judgment if judging fails."""
        judged, settings = case["judged"], case["settings"]
        content: dict[str, Any] = {"settings": settings}
        if judged is not None:
            try:
                context = MemAlignContext(**{**settings, "review": "uncertain"})
                result = await call_graph(io, self._judge, judged, context=context)
                broken = [guideline["text"] for guideline in result.get("broken_guidelines") or ()]
                content |= {"judgment": result["judgment"], "broken": broken}
            except MemAlignError as error:
                message = "The call of %r could not be judged, and a person is asked: %s"
                logger.warning(message, judged["outputs"]["name"], error)
        return {"rulings": {case["key"]: content}}

    rule, arule = sync_async_methods(_rule)

    async def _decide_call(self, node_call: NodeCall) -> StateUpdate:
        """Decide whether a person is asked, log it, and keep the call for later feedback."""
        forced = list(node_call.state["forced"])
        if not node_call.judgment.value and self.approval.on_fail == "ask":
            forced.append("judged_wrong")
        if any(warning.startswith(CASE_TOO_LONG) for warning in node_call.judgment.warnings):
            forced.append("too_long")
        if not node_call.finds_similar:
            forced.append("no_similar_episode")
        return await decide_review(node_call, forced=forced)

    def refusal(self, ruling: Ruling) -> ToolMessage:
        """Return what the model gets in place of the result of a refused call."""
        judgment = Judgment.model_validate(ruling.content["judgment"])
        rule, broken = PassRule.of(self.criterion.scale, None), ruling.content["broken"]
        critique = critique_text(self.criterion, rule, judgment, None, broken, "call")
        return refusal_message(ruling.call, critique)

    async def learn(self, io: IO, ruling: Ruling, decision: Any) -> None:
        """Learn from a decision: the call that runs, or the `ToolMessage` in its place.

        A failure is logged. The decision is still carried out.
        """
        call, situation = ruling.call, ruling.situation
        example = call_example(call, situation.messages)
        if example is None:
            return
        better = None  # the edited call
        if not isinstance(decision, ToolMessage):
            is_right = action_of(decision) == action_of(call)
            comment = "" if is_right else describe_edit(call, decision)
            better = None if is_right else call_example(decision, situation.messages)
        elif decision.status == "error":
            is_right, comment = False, rejection_reason(decision, call)
        else:
            return  # a response does not say whether the call was right
        # A store that refuses the comment would lose the decision.
        fields = {"value": is_right, "rationale": storable(comment)}
        judgment = ruling.content.get("judgment")
        decided = [{"fields": fields, "example": example.to_json(), "judgment": judgment}]
        if better is not None:
            decided += [{"fields": {"value": True}, "example": better.to_json(), "judgment": None}]
        # A decision that is read again has the same id, and is stored once.
        feedback_id = digest([saved_thread_id(situation.runtime), call_key(call)])
        author = (self.approval.author or signed_in)(situation.runtime)
        state = {"decided": decided, "person": {"id": feedback_id, "author": author}}
        try:
            context = MemAlignContext(**ruling.content["settings"])
            learned: StateUpdate = {}
            # LangGraph first gives the results of runs that began before: of an earlier answer, or
            # of this one. That counts once, also if another person resumes the thread later.
            while learned.get("decided") != decided:
                learned = await call_graph(io, self._learner, state, context=context)
        except (MemAlignError, ValueError) as error:
            message = "The decision on the call of %r counts, but nothing was learned from it: %s"
            logger.warning(message, call["name"], error)

    async def _store_decision(self, node_call: NodeCall) -> StateUpdate:
        """Store the feedback; the nodes after this one learn from that on the call shown."""
        io, access, state = node_call.io, node_call.access, node_call.state
        decided, person = state["decided"], state["person"]
        await access.refresh(io)
        items = [
            make_feedback(node_call, **{**each, "fields": person | each["fields"]})
            for each in decided
        ]
        feedback = [Feedback.model_validate(item) for item in items]
        await remember(io, access, feedback, embeds=False)  # before a model is called
        await access.refresh(io)
        await index_missing(io, access)
        return {
            "judge_run": {"example": decided[0]["example"], "settings": node_call.settings},
            "judge_lesson": {},
            "feedback": items[0],
        }
