"""Quality gates: a judge that lets an answer pass, or sends it back with a critique."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime
from pydantic import BaseModel, Field
from typing_extensions import TypedDict, Unpack

from memalign_graph import conversation
from memalign_graph.agreement import value_or_none
from memalign_graph.conversation import Turn, TurnState
from memalign_graph.errors import InvalidInputError, MemAlignError, StoreError
from memalign_graph.graphs import create_review_graph
from memalign_graph.io import ASYNC, IO, SYNC, run_sync
from memalign_graph.runtime import call_graph, current_runtime, is_resuming
from memalign_graph.scales import PassRule, Value
from memalign_graph.settings import Gate, GateOptions, MemAlignContext, context_settings
from memalign_graph.types import Criterion, Example, Feedback, Judgment, parse_example

logger = logging.getLogger(__name__)

GateStatus = Literal["accepted", "revise", "escalated", "exhausted", "judge_error"]
"""What happened to an answer: it passed; it goes back with the critique; no revision is left
(`escalated` if the gate has a node to escalate to, otherwise `exhausted`); or the judge failed."""


class GateVerdict(TypedDict):
    """A gate's verdict on one answer; JSON values only."""

    gate: str
    """The gate's name."""
    example_id: str | None
    """The id of the example; None if there was nothing to judge."""
    status: GateStatus
    """What happened to the answer."""
    passed: bool
    """Whether it passed; False also if the judge failed."""
    let_through: bool
    """Whether it goes on: it passed, or the judge failed and the gate is open."""
    value: Value | None
    """The value that decided; None if there is none."""
    decided_by: Literal["judge", "expert"] | None
    """Whose value it is; None if the judge failed or there was nothing to judge."""
    critique: str
    """What the writer has to change; empty if the answer passed."""
    revisions: int
    """How often an answer was sent back in this turn, including this time."""
    judgment: dict[str, Any] | None
    """The `Judgment` as JSON."""
    feedback: dict[str, Any] | None
    """The expert's `Feedback` as JSON, if an expert was asked."""
    learned: dict[str, Any] | None
    """What the memory learned from it."""
    error: str | None
    """Why the judge failed, if it did."""
    turn: str | None
    """The id of the message that began the turn; None without messages."""


_JUDGE_NODES = ("retrieve_episodes", "assemble_guidelines", "judge", "decide_review")
_EVENT_FIELDS = ("status", "revisions", "value", "decided_by", "critique", "error")
_JUDGE_FAILED_LOG = "Gate %r: the judge failed. on_judge_error is %r, so the answer %s. %s"
_CHANGED = (
    "The answer did not pass, because it was not judged: it was changed while an expert was asked, "
    "or the gate now judges other parts of the conversation."
)
NO_TURN = Turn()


def new_turn(messages: Any) -> TurnState:
    """Return a gate's private state at the beginning of a turn."""
    run = current_runtime()
    messages = messages if isinstance(messages, list | tuple) else ()
    # The caller's message is the question, even if it claims to come from a gate. In a nested graph
    # it may be the critique of the outer graph's gate.
    last = messages[-1] if messages else None
    is_nested = "|" in run.execution_info.checkpoint_ns  # separates the levels of graphs
    begins_turn = not is_nested or conversation.is_question(last)
    last_id = getattr(last, "id", None) if begins_turn else None
    places = conversation.questions_of_gate(messages, last_id)
    question: Any = messages[places[-1] if places else 0] if messages else None
    asked_id = getattr(question, "id", None)
    asked = conversation.request_in([question], asked_id)
    return {"asked_id": asked_id, **asked, "settings": _settings_of(run, NO_TURN)}


def _settings_of(run: Runtime[Any], turn: Turn) -> dict[str, Any]:
    """Return the settings that the turn began with, changed by those in the run's context."""
    own = context_settings(run.context) or {}
    settings: dict[str, Any] = turn.state.get("settings") or {}
    if not turn.has_skipped_beginning:
        # A resume may name a setting without the namespace of the turn.
        return {**settings, **own}
    if "namespace" in settings.keys() - own.keys():
        # A guess could open the memory of another customer.
        raise InvalidInputError(
            "context: this run names no namespace, but the thread's last verdict was made with "
            f'{settings["namespace"]}. Pass context={{"memalign": {{"namespace": [...]}}}} again.'
        )
    return own


class QualityGate:
    """Judges an answer and decides what happens to it; independent of the graph around it."""

    def __init__(
        self,
        criterion: Criterion,
        options: Mapping[str, Any],
        *,
        can_revise: bool = True,
        can_escalate: bool = False,
        counts_revisions: bool = True,
    ) -> None:
        own = {name: value for name, value in options.items() if name in Gate.model_fields}
        judge: Any = {name: value for name, value in options.items() if name not in own}
        self.settings = Gate(**own)
        self.name = self.settings.name
        self.turn_key = f"_{self.name}_loop"  # of the `TurnState`
        self.max_revisions = self.settings.max_revisions if can_revise else 0
        self.can_escalate = can_escalate
        self.counts_revisions = counts_revisions
        review: Any = self.settings.review
        if review == "exhausted":
            review = lambda judgment: not self.rule.passes(judgment.value)  # noqa: E731 - once
        graph = create_review_graph(criterion, review=review, **{"cite_guidelines": True, **judge})
        self.criterion = criterion
        self.rule: PassRule = PassRule.of(criterion.scale, self.settings.passes)
        # Keeps the judge's tokens out of the application's stream of messages.
        self.graph = graph.compile().with_config(tags=[TAG_NOSTREAM])

    def example_in(self, state: Any, turn: Turn, messages_key: str) -> Example | str:
        """Return the example to judge, or a text for the writer if there is none."""
        example, sees = self.settings.example, self.settings.sees
        if example is not None:
            return conversation.parse_seen(example(state), is_models=False)
        return conversation.parse_seen(conversation.what_gate_sees(turn, messages_key, sees))

    async def decide(
        self, io: IO, example: Example | str, turn: Turn = NO_TURN
    ) -> tuple[GateVerdict, TurnState]:
        """Judge an answer; return the verdict and the turn's new state.

        `example` is a text for the writer if there is nothing to judge.
        """
        run = current_runtime()
        settings = _settings_of(run, turn)
        if isinstance(example, str):
            verdict = self._verdict(turn, critique=example)
        else:
            if not is_resuming():
                self._emit_event(run, {"status": "judging", "revisions": turn.revisions})
            try:
                verdict = await self._judge(io, example, turn, settings)
            except GraphInterrupt:
                self._emit_event(run, {"status": "asking", "revisions": turn.revisions})
                raise
            except MemAlignError as error:
                is_fatal = isinstance(error, InvalidInputError | StoreError)
                if is_fatal or error.node not in _JUDGE_NODES:
                    raise
                verdict = self._failed(turn, error)
            verdict["example_id"] = example.id
        self._emit_event(run, verdict)
        counted = {name: verdict[name] for name in conversation.COUNTED}
        return verdict, {**turn.state, "settings": settings, **counted}

    async def _judge(
        self, io: IO, example: Example, turn: Turn, settings: dict[str, Any]
    ) -> GateVerdict:
        if self.settings.review == "exhausted" and turn.revisions < self.max_revisions:
            settings = {**settings, "review": settings.get("review") or "never"}
        context = MemAlignContext(**settings)
        result = await call_graph(io, self.graph, example.to_json(), context=context)
        judgment = Judgment.model_validate(result["judgment"])
        outcome = {name: result[name] for name in ("judgment", "feedback", "learned")}
        if judgment.example_id != example.id:
            # `Command(resume=..., update=...)` changed the answer that the expert was asked about.
            return self._verdict(turn, critique=_CHANGED, **outcome)
        feedback = result["feedback"] and Feedback.model_validate(result["feedback"])
        # A comment without a value is no approval.
        value = value_or_none((feedback or judgment).value, self.criterion.scale)
        passed = value is not None and self.rule.passes(value)
        critique = ""
        if not passed:
            broken = [guideline["text"] for guideline in result.get("broken_guidelines") or []]
            critique = conversation.critique_text(
                self.criterion, self.rule, judgment, feedback, broken
            )
        return self._verdict(
            turn,
            passed=passed,
            critique=critique,
            value=value,
            decided_by="judge" if feedback is None else "expert",
            **outcome,
        )

    def messages_after(self, verdict: GateVerdict, turn: Turn) -> list[BaseMessage]:
        """Return the critique, or what replaces an answer that goes neither on nor back."""
        if verdict["status"] == "revise":
            return [conversation.critique_message(verdict["critique"], self.name)]
        if self.settings.fallback is None or verdict["let_through"]:
            return []
        return conversation.fallback_messages(turn, self.settings.fallback)

    def _failed(self, turn: Turn, error: MemAlignError) -> GateVerdict:
        fails_open = self.settings.on_judge_error == "open"
        outcome = "continues unjudged" if fails_open else "does not pass"
        logger.warning(_JUDGE_FAILED_LOG, self.name, self.settings.on_judge_error, outcome, error)
        return self._verdict(turn, status="judge_error", let_through=fails_open, error=str(error))

    def _verdict(self, turn: Turn, *, passed: bool = False, **fields: Any) -> GateVerdict:
        status: GateStatus = "escalated" if self.can_escalate else "exhausted"
        revisions = turn.revisions
        if passed:
            status = "accepted"
        elif revisions < self.max_revisions and "status" not in fields:
            status, revisions = "revise", revisions + self.counts_revisions
        verdict: Any = dict.fromkeys(GateVerdict.__annotations__)
        verdict |= {"gate": self.name, "turn": turn.asked_id, "critique": ""}
        verdict |= {"status": status, "revisions": revisions}
        return verdict | {"passed": passed, "let_through": passed, **fields}  # type: ignore[no-any-return] # of its keys

    def _emit_event(self, run: Runtime[Any], verdict: Mapping[str, Any]) -> None:
        event: dict[str, Any] = {"gate": self.name, "criterion": self.criterion.name}
        event |= {name: verdict.get(name) for name in _EVENT_FIELDS}
        run.stream_writer({"type": "quality_gate", "max_revisions": self.max_revisions, **event})


def reject_options(options: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    for name in names:
        if name in options:
            raise InvalidInputError(f"{name}: {why}. Leave it out.")


_ONE_CALL = "The answer was not checked: a step takes one call of this tool. Call it again."


class ToolInput(BaseModel):
    """The tool's arguments."""

    inputs: str = Field(description="What was asked for, in the words of the user.")
    outputs: str = Field(description="The whole answer, as it is to be given.")


def create_quality_gate_tool(
    criterion: Criterion, *, description: str | None = None, **options: Unpack[GateOptions]
) -> BaseTool:
    """Create a tool that judges an answer and returns what the agent has to change.

    Call it in a graph that was compiled with a store, such as `create_agent(store=...)`. If experts
    are asked, route each call to a `ToolNode` by a `Send` of its own, as `create_agent` does. The
    tool judges what the agent passes to it; only a gate after the agent can't be bypassed.

    Args:
        criterion: What is judged.
        description: The tool's description for the agent; by default made from the criterion.
        options: The gate's options (`memalign_graph.settings.Gate`), without `max_revisions`,
            `example`, `sees`, `fallback` and `review="exhausted"`, and the judge's (`Judge`); the
            `name` is `check_quality`.

    Returns:
        The tool; its messages have the `GateVerdict` as their artifact.

    Raises:
        InvalidInputError: If an option is invalid; ImportError if an extra is missing.
    """
    own = ["max_revisions", "example", "sees", "fallback"]
    reject_options(options, own, "the agent chooses what is checked, and how often")
    if options.get("review") == "exhausted":
        raise InvalidInputError(
            "review: a tool counts no revisions. Use 'never', 'always', 'uncertain' or a function."
        )
    own_options = {"name": "check_quality", **options, "max_revisions": 1}
    gate = QualityGate(criterion, own_options, counts_revisions=False)

    async def decide(io: IO, **case: str) -> tuple[str, GateVerdict]:
        try:
            example = parse_example(case)
        except InvalidInputError as error:
            raise ToolException(str(error)) from error
        verdict, _ = await gate.decide(io, example)
        judgment = verdict["judgment"]
        if judgment is not None and judgment["example_id"] != example.id:
            # LangGraph matches the subgraphs of one task by order. Concurrent calls have none.
            raise ToolException(_ONE_CALL)
        if verdict["status"] != "judge_error":
            return verdict["critique"] or "The answer passed.", verdict
        outcome = "give it as it is" if verdict["let_through"] else "it did not pass"
        return f"The answer could not be checked, and {outcome}.", verdict

    about = f"Checks an answer before it is given: {criterion.instructions.strip()}"
    return StructuredTool.from_function(
        func=lambda **case: run_sync(decide(SYNC, **case)),
        coroutine=partial(decide, ASYNC),
        name=gate.name,
        description=description or about,
        args_schema=ToolInput,
        response_format="content_and_artifact",
        handle_tool_error=True,
    )
