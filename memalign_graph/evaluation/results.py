"""Results of an evaluation: cases, memories, changed verdicts, usage."""

from datetime import datetime
from typing import Any

from pydantic import Field

from memalign_graph.evaluation.metrics import JudgeScores, Prediction
from memalign_graph.scales import Value
from memalign_graph.tracing import Usage
from memalign_graph.types import Criterion, Example, FrozenModel, Guideline, Judgment

BASE, ALIGNED = "base", "aligned"
"""The judge without memory, and with what it learned, where `evaluate` is told no other judges."""


class ExpertLabel(FrozenModel):
    """What one expert said on a case."""

    author: str | None
    value: Value | None
    rationale: str | None
    episode_id: str


class EvaluatedCase(FrozenModel):
    """A case that every judge judged without having learned from it."""

    example: Example
    group: str  # the item it belongs to
    fold: int
    expected: Value  # what most experts say
    experts: list[ExpertLabel]  # oldest first
    predictions: dict[str, Prediction]  # by judge or baseline
    judgments: dict[str, Judgment]  # by judge; those that gave no usable answer are missing
    failures: dict[str, str]  # why they are

    def value_of(self, judge: str) -> Value | None:
        """Return what a judge or a baseline says; None where it gave no verdict."""
        return self.predictions.get(judge, Prediction()).value


class FoldMemory(FrozenModel):
    """What a judge had learned when it judged a fold."""

    fold: int
    judge: str
    episodes: int
    guidelines: list[Guideline]
    warnings: list[str]  # what learning had to do without


class UsageRow(Usage):
    """Paid calls of one judge for one purpose, with their tokens."""

    judge: str
    stage: str  # `learn`, `judge`, `curve`, `flips` or `report`
    purpose: str  # as in `UsageLedger`, or `embed`
    cached_calls: int = 0  # answers from the cache, which cost nothing
    seconds: float = 0.0  # how long models took


class ChangedCase(FrozenModel):
    """A case whose verdict is another than it was, or than it is without a guideline."""

    example: Example
    expected: Value
    before: Value
    after: Value
    rationale: str  # the judge's, after
    guidelines: list[Guideline]  # what may have changed it: new ones
    removed: list[Guideline] = Field(default_factory=list)  # and those that are not there any more


class LearningStep(FrozenModel):
    """The judge after so much feedback."""

    feedback: int
    guidelines: int
    unseen: JudgeScores  # on the cases that were set aside
    seen: JudgeScores | None  # on those it has learned from; None before any
    flips: list[ChangedCase]  # seen cases that were right at the step before and no longer are


class LearningCurve(FrozenModel):
    """How a judge gets better with feedback."""

    criterion: Criterion
    steps: list[LearningStep]  # from no feedback on
    test_cases: int
    usage: list[UsageRow]


class RunSettings(FrozenModel):
    """What it takes to know, or repeat, an evaluation."""

    version: str  # of this package
    created_at: datetime
    data: str  # a digest of criterion, feedback and test cases
    feedback: int
    folds: int  # 1 where cases were set aside
    group_by: str
    seed: int
    resamples: int
    judges: dict[str, dict[str, Any]]  # each judge's model, embeddings, k and other options
