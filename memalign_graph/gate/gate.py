"""The gate itself: an answer judged, and what becomes of it. The rest is wiring around it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from langgraph.graph.state import CompiledStateGraph
from typing_extensions import Unpack

from memalign_graph.context import MemAlignContext, Review, own_context
from memalign_graph.effects import Call, Operation
from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.gate.critique import critique_text
from memalign_graph.gate.example import NO_ANSWER
from memalign_graph.gate.verdict import GateStatus, GateVerdict, OnJudgeError, Passes, PassRule
from memalign_graph.graphs.judging import create_judge_graph, create_review_graph
from memalign_graph.graphs.options import ReviewOptions, check_choice, check_criterion
from memalign_graph.nodes.base import Run
from memalign_graph.types import Criterion, Example, Feedback, Guideline, Judgment

logger = logging.getLogger(__name__)

GateReview = Literal["never", "always", "exhausted"] | Callable[[Judgment], bool]
"""When a gate asks the expert, by an interrupt.

- `never`: not at all.
- `always`: about every judgment.
- `exhausted`: about an answer that did not pass when no revision is left.
- A function of the `Judgment`: where it says so.
"""

JudgeGraph = CompiledStateGraph[Any, Any, Any, Any]
"""What a gate judges with."""

DEFAULT_MAX_REVISIONS = 2
"""How often an answer is sent back, unless told otherwise."""

DEFAULT_NAME = "quality_gate"
"""A gate's name, unless it is given one."""

_JUDGING = ("retrieve_episodes", "assemble_guidelines", "judge")


@dataclass(frozen=True)
class Gate:
    """A judge, which values pass, and what becomes of an answer."""

    name: str
    """Names the gate, and the key in the state where its verdict goes."""

    criterion: Criterion
    """What is judged."""

    rule: PassRule
    """Which values pass."""

    graph: JudgeGraph
    """Judges, asks the expert, and learns."""

    max_revisions: int
    """How often an answer is sent back."""

    escalates: bool
    """Whether there is somewhere to escalate to."""

    review: GateReview
    """When the expert is asked."""

    on_judge_error: OnJudgeError
    """What becomes of an answer where the judge fails."""

    def decide(
        self,
        example: Example | None,
        graph: JudgeGraph,
        last: Mapping[str, Any] | None,
        run: Run,
    ) -> Operation[GateVerdict]:
        """Judge an answer, and say what becomes of it.

        Args:
            example: The example; None where there is no answer to judge.
            graph: The gate's own, as the caller names it: LangGraph looks there for subgraphs.
            last: The gate's last verdict, which tells how often the answer was sent back.
            run: The run.

        Returns:
            The verdict.

        Raises:
            InvalidInputError: If the gate can't judge such an example, or a setting can't be used.
        """
        sent_back = last["revisions"] if last and last.get("status") == "revise" else 0
        if example is None:
            verdict = self._verdict(sent_back, critique=NO_ANSWER)
        else:
            self._tell(run, status="judging", revisions=sent_back)
            try:
                judged = yield self._judging(example, graph, sent_back, run)
            except MemAlignError as error:
                if isinstance(error, InvalidInputError) or error.node not in _JUDGING:
                    raise
                verdict = self._failed(sent_back, error)
            else:
                verdict = self._read(judged, sent_back)
        self._tell(
            run,
            status=verdict["status"],
            revisions=verdict["revisions"],
            value=verdict["value"],
            decided_by=verdict["decided_by"],
            critique=verdict["critique"],
            error=verdict["error"],
        )
        return verdict

    def _judging(self, example: Example, graph: JudgeGraph, sent_back: int, run: Run) -> Call:
        context: MemAlignContext | None = None
        if self.review == "exhausted" and sent_back < self.max_revisions:
            own = own_context(run.context) or MemAlignContext()
            context = own.model_copy(update={"review": "never"})
        fields: Any = example.to_json()
        return Call(
            lambda: graph.invoke(fields, context=context),
            lambda: graph.ainvoke(fields, context=context),
        )

    def _read(self, judged: Mapping[str, Any], sent_back: int) -> GateVerdict:
        judgment = Judgment.model_validate(judged["judgment"])
        said = judged.get("feedback")
        feedback = None if said is None else Feedback.model_validate(said)
        value = judgment.value
        if feedback is not None and feedback.value is not None:
            value = feedback.value
        # An expert who has something to say and names no value does not approve.
        approves = feedback is None or feedback.value is not None
        more: dict[str, Any] = {
            "value": value,
            "decided_by": "judge" if feedback is None else "expert",
            "judgment": judged["judgment"],
            "feedback": said,
            "learned": judged.get("learned"),
        }
        if approves and self.rule.passes(value):
            return self._verdict(sent_back, passed=True, **more)
        broken = [Guideline.model_validate(one) for one in judged.get("broken_guidelines") or []]
        critique = critique_text(self.criterion, judgment, broken=broken, feedback=feedback)
        return self._verdict(sent_back, critique=critique, **more)

    def _verdict(self, sent_back: int, *, passed: bool = False, **more: Any) -> GateVerdict:
        status: GateStatus = "escalated" if self.escalates else "exhausted"
        revisions = sent_back
        if passed:
            status = "accepted"
        elif sent_back < self.max_revisions:
            status = "revise"
            revisions += 1
        return self._fill(status, passed=passed, let_through=passed, revisions=revisions, **more)

    def _failed(self, sent_back: int, error: MemAlignError) -> GateVerdict:
        opens = self.on_judge_error == "open"
        logger.warning(
            "The judge of the gate %r failed, and the gate is %s: the answer %s. %s",
            self.name,
            self.on_judge_error,
            "goes on unjudged" if opens else "does not pass",
            error,
        )
        return self._fill(
            "judge_error", passed=False, let_through=opens, revisions=sent_back, error=str(error)
        )

    def _fill(self, status: GateStatus, **more: Any) -> GateVerdict:
        blank: dict[str, Any] = dict.fromkeys(
            ("value", "decided_by", "judgment", "feedback", "learned", "error")
        )
        verdict: Any = {"gate": self.name, "status": status, **blank, "critique": "", **more}
        checked: GateVerdict = verdict
        return checked

    def _tell(self, run: Run, **more: Any) -> None:
        run.write(
            {
                "type": "quality_gate",
                "gate": self.name,
                "criterion": self.criterion.name,
                "max_revisions": self.max_revisions,
                **more,
            }
        )


def make_gate(
    criterion: Criterion,
    *,
    name: str,
    passes: Passes | None,
    max_revisions: int,
    escalates: bool,
    review: GateReview,
    on_judge_error: OnJudgeError,
    **judge: Unpack[ReviewOptions],
) -> Gate:
    """Check the options of a gate, and make it.

    Args:
        criterion: What is judged.
        name: The gate's name.
        passes: Which values pass.
        max_revisions: How often an answer is sent back.
        escalates: Whether there is somewhere to escalate to.
        review: When the expert is asked.
        on_judge_error: What becomes of an answer where the judge fails.
        judge: The judge's own options.

    Returns:
        The gate.

    Raises:
        InvalidInputError: If an option can't be used.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidInputError("name: give the gate a name, which is text.")
    if isinstance(max_revisions, bool) or not isinstance(max_revisions, int) or max_revisions < 0:
        raise InvalidInputError(
            f"max_revisions: {max_revisions!r} is not a whole number from 0 on."
        )
    check_choice("on_judge_error", on_judge_error, get_args(OnJudgeError))
    check_criterion(criterion)
    rule = PassRule.of(criterion.scale, passes)
    return Gate(
        name=name,
        criterion=criterion,
        rule=rule,
        graph=_judge_graph(criterion, rule, review, judge),
        max_revisions=max_revisions,
        escalates=escalates,
        review=review,
        on_judge_error=on_judge_error,
    )


def _judge_graph(
    criterion: Criterion, rule: PassRule, review: GateReview, judge: ReviewOptions
) -> JudgeGraph:
    if review == "never":
        options: dict[str, Any] = {**judge}
        options.pop("distill_model", None)
        return create_judge_graph(criterion, cite_guidelines=True, **options).compile()
    asks: Review
    if review == "exhausted":

        def asks(judgment: Judgment) -> bool:
            return not rule.passes(judgment.value)

    elif callable(review) or review == "always":
        asks = review
    else:
        raise InvalidInputError(
            f"review: {review!r} is not known: give 'never', 'always', 'exhausted', or a function "
            "that takes the Judgment and tells whether to ask."
        )
    return create_review_graph(criterion, review=asks, cite_guidelines=True, **judge).compile()
