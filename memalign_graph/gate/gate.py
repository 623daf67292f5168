"""The gate itself: an answer judged, and what becomes of it. The rest is wiring around it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphInterrupt
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import Unpack

from memalign_graph.context import MemAlignContext, Review, own_context
from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.gate.critique import critique_text
from memalign_graph.gate.loop import Loop, kept_context, times_sent_back
from memalign_graph.gate.verdict import GateStatus, GateVerdict, OnJudgeError, Passes, PassRule
from memalign_graph.graphs.judging import create_review_graph
from memalign_graph.graphs.options import (
    ReviewOptions,
    check_choice,
    check_count,
    check_criterion,
    check_review,
)
from memalign_graph.io import IO
from memalign_graph.nodes.base import Run
from memalign_graph.types import Criterion, Example, Feedback, Guideline, Judgment

logger = logging.getLogger(__name__)

GateReviewMode = Literal["never", "always", "exhausted", "uncertain"]
"""When a gate asks the expert, in a word: see `GateReview`."""

GateReview = GateReviewMode | Callable[[Judgment], bool]
"""When a gate asks the expert, by an interrupt.

- `never`: not at all.
- `always`: about every judgment.
- `exhausted`: about an answer that did not pass when no revision is left.
- `uncertain`: about judgments that are likely to be wrong, whether the answer passed or not; see
  `create_review_graph`, whose options for it a gate takes, too.
- A function of the `Judgment`: where it says so.
"""

JudgeGraph = CompiledStateGraph[Any, Any, Any, Any]
"""What a gate judges with."""

DEFAULT_MAX_REVISIONS = 2
"""How often an answer is sent back, unless told otherwise."""

DEFAULT_NAME = "quality_gate"
"""A gate's name, unless it is given one."""

_TOLD = ("status", "revisions", "value", "decided_by", "critique", "error")
"""What of a verdict is streamed as a custom event; while the judge is at work (`judging`), or an
expert is asked (`asking`), all but two are None."""

_JUDGING = ("retrieve_episodes", "assemble_guidelines", "judge", "decide_review")


@dataclass(frozen=True)
class Passage:
    """What a gate is to decide on, and what it knows of earlier passes."""

    found: Example | str
    """The example; or why there is no answer that can be judged, in words for the writer."""

    loop: Mapping[str, Any] | None
    """What the gate kept; None if nothing."""

    @property
    def example(self) -> Example | None:
        """The example, if there is one."""
        return None if isinstance(self.found, str) else self.found

    @property
    def sent_back(self) -> int:
        """How often an answer to this has been sent back."""
        return times_sent_back(self.loop)


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

    async def decide(
        self, io: IO, passage: Passage, graph: JudgeGraph, run: Run
    ) -> tuple[GateVerdict, Loop]:
        """Judge an answer, and say what becomes of it."""
        known = passage.loop or {}
        settings = known.get("settings")
        if isinstance(passage.found, str):
            verdict = self._verdict(passage.sent_back, critique=passage.found)
        else:
            under_way = {**dict.fromkeys(_TOLD), "revisions": passage.sent_back}
            if not run.resuming:
                self._tell(run, {**under_way, "status": "judging"})
            try:
                judged = await self._judge(io, passage, graph, run)
            except GraphInterrupt:
                self._tell(run, {**under_way, "status": "asking"})
                raise
            except MemAlignError as error:
                if isinstance(error, InvalidInputError) or error.node not in _JUDGING:
                    raise
                verdict = self._failed(passage.sent_back, error)
            else:
                verdict = self._read(judged, passage.sent_back)
                # When to ask is the context's to say, and not what this pass made of it.
                asks = (settings or {}).get("review")
                settings = {**judged["judge_settings"], "review": asks}
        if passage.example is not None:
            verdict = {**verdict, "example_id": passage.example.id}
        self._tell(run, {name: value for name, value in verdict.items() if name in _TOLD})
        loop: Loop = {
            "status": verdict["status"],
            "revisions": verdict["revisions"],
            "settings": settings,
        }
        kept: Any = known
        return verdict, {**kept, **loop}

    async def _judge(self, io: IO, passage: Passage, graph: JudgeGraph, run: Run) -> Any:
        context = own_context(run.context)
        if context is None:
            context = kept_context(passage.loop)
        if self.review == "exhausted" and passage.sent_back < self.max_revisions:
            context = context or MemAlignContext()
            if context.review is None:
                context = context.model_copy(update={"review": "never"})
        fields: Any = passage.example.to_json() if passage.example else {}
        return await io.call(
            lambda: graph.invoke(fields, context=context),
            lambda: graph.ainvoke(fields, context=context),
        )

    def _read(self, judged: Mapping[str, Any], revisions: int) -> GateVerdict:
        judgment = Judgment.model_validate(judged["judgment"])
        said = judged.get("feedback")
        feedback = None if said is None else Feedback.model_validate(said)
        # An expert who has something to say and names no value does not approve.
        value = judgment.value if feedback is None else feedback.value
        more: dict[str, Any] = {
            "value": value,
            "decided_by": "judge" if feedback is None else "expert",
            "judgment": judged["judgment"],
            "feedback": said,
            "learned": judged.get("learned"),
        }
        if value is not None and self.rule.passes(value):
            return self._verdict(revisions, passed=True, **more)
        broken = [Guideline.model_validate(one) for one in judged.get("broken_guidelines") or []]
        critique = critique_text(
            self.criterion,
            judgment,
            broken=broken,
            feedback=feedback,
            wanted=self.rule.wanted,
            outweighed=judgment.verdict != judgment.value and self.rule.passes(judgment.verdict),
        )
        return self._verdict(revisions, critique=critique, **more)

    def _verdict(self, revisions: int, *, passed: bool = False, **more: Any) -> GateVerdict:
        status: GateStatus = "escalated" if self.escalates else "exhausted"
        if passed:
            status = "accepted"
        elif revisions < self.max_revisions:
            status = "revise"
            revisions += 1
        return self._fill(
            status=status, passed=passed, let_through=passed, revisions=revisions, **more
        )

    def _failed(self, revisions: int, error: MemAlignError) -> GateVerdict:
        opens = self.on_judge_error == "open"
        logger.warning(
            "The judge of the gate %r failed, and the gate is %s: the answer %s. %s",
            self.name,
            self.on_judge_error,
            "goes on unjudged" if opens else "does not pass",
            error,
        )
        return self._fill(
            status="judge_error", let_through=opens, revisions=revisions, error=str(error)
        )

    def _fill(
        self,
        *,
        status: GateStatus,
        revisions: int,
        let_through: bool,
        passed: bool = False,
        critique: str = "",
        error: str | None = None,
        **more: Any,
    ) -> GateVerdict:
        return {
            "gate": self.name,
            "example_id": None,
            "status": status,
            "passed": passed,
            "let_through": let_through,
            "value": more.get("value"),
            "decided_by": more.get("decided_by"),
            "critique": critique,
            "revisions": revisions,
            "judgment": more.get("judgment"),
            "feedback": more.get("feedback"),
            "learned": more.get("learned"),
            "error": error,
        }

    def _tell(self, run: Run, verdict: Mapping[str, Any]) -> None:
        about = {"gate": self.name, "criterion": self.criterion.name}
        bound = {"max_revisions": self.max_revisions}
        run.write({"type": "quality_gate", **about, **bound, **verdict})


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
    """Check the options of a gate, and make it."""
    unknown = [option for option in judge if option not in ReviewOptions.__annotations__]
    if unknown:
        raise InvalidInputError(
            f"{unknown[0]}: a gate has no such option: of the judge's it has "
            f"{', '.join(ReviewOptions.__annotations__)}."
        )
    if not isinstance(name, str) or not name.strip():
        raise InvalidInputError("name: give the gate a name, which is text.")
    check_count("max_revisions", max_revisions, least=0)
    check_choice("on_judge_error", on_judge_error, get_args(OnJudgeError))
    check_criterion(criterion)
    rule = PassRule.of(criterion.scale, passes)
    graph = create_review_graph(
        criterion, review=_asks(review, rule), cite_guidelines=True, **judge
    )
    return Gate(
        name=name,
        criterion=criterion,
        rule=rule,
        # What the judge writes is no message of the application's.
        graph=graph.compile().with_config(tags=[TAG_NOSTREAM]),
        max_revisions=max_revisions,
        escalates=escalates,
        review=review,
        on_judge_error=on_judge_error,
    )


def _asks(review: GateReview, rule: PassRule) -> Review:
    check_review(review, modes=get_args(GateReviewMode))
    if review == "exhausted":

        def misses(judgment: Judgment) -> bool:
            return not rule.passes(judgment.value)

        return misses
    return review
