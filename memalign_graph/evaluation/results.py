"""What an evaluation finds: one `Report`, to be read, saved, shown, or compared with another."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from memalign_graph.agreement import Agreement, agree
from memalign_graph.errors import InvalidInputError, needs_extra
from memalign_graph.evaluation.metrics import Comparison, Estimate, JudgeScores, Prediction
from memalign_graph.models import Usage
from memalign_graph.scales import Value
from memalign_graph.types import Criterion, Episode, Example, FrozenModel, Guideline, Judgment

BASE, ALIGNED = "base", "aligned"
"""The judge without memory, and with what it learned, where `evaluate` is told no other judges."""

TurnedBy = Literal["guideline", "guidelines", "removed", "episodes"]
"""What turned a case.

- `guideline`: a new guideline; without it alone the case would still be right.
- `guidelines`: the new guidelines, no one of them alone.
- `removed`: guidelines that are not there any more, or have other words; with them back it would
  still be right.
- `episodes`: the new episodes in the prompt; it is wrong with the old guidelines, too.
"""

Worth = Literal["harmful", "useless", "useful"]
"""Whether a guideline turns more verdicts away from the experts than towards them, or fewer."""


class ExpertLabel(FrozenModel):
    """What one expert said on a case."""

    author: str | None
    value: Value | None
    comment: str | None
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
    """What was asked of models for one judge and one purpose; calls are those that were paid."""

    judge: str
    stage: str  # `learn`, `judge`, `curve`, `credit`, `flips` or `report`
    purpose: str  # `judge`, `confidence`, `distil`, `compare` or `embed`
    cached_calls: int = 0  # answers that were there from before
    seconds: float = 0.0  # how long models took, also at the time for what is cached


class _ChangedCase(FrozenModel):
    example: Example
    expected: Value


class Flip(_ChangedCase):
    """A seen case that was right and no longer is."""

    experts: list[ExpertLabel]
    before: Value
    after: Value
    rationale: str  # the judge's, now
    turned_by: TurnedBy
    guidelines: list[Guideline]  # those that turned it


class ChangedVerdict(_ChangedCase):
    """A verdict that one guideline makes another."""

    with_it: Value
    without_it: Value


class GuidelineCredit(FrozenModel):
    """What one guideline does to the verdicts on the cases it is shown for."""

    guideline: Guideline
    shown_for: int  # on how many of the cases tried it was in the prompt
    helped: int  # how many verdicts agree with the experts with it and not without
    harmed: int  # how many agree without it and not with it
    changed: list[ChangedVerdict]  # also those that are right or wrong either way

    @property
    def worth(self) -> Worth:
        """What it is worth on these cases."""
        if self.harmed > self.helped:
            return "harmful"
        return "useful" if self.helped > self.harmed else "useless"


class LearningStep(FrozenModel):
    """The judge after so much feedback."""

    feedback: int
    guidelines: int
    unseen: JudgeScores  # on the cases that were set aside
    seen: JudgeScores | None  # on those it has learned from; None before any
    flips: list[Flip]  # seen cases that were right at the step before and no longer are


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


class CaseChange(_ChangedCase):
    """A case that one report has right and another wrong."""

    before: Value
    after: Value
    rationale: str
    guidelines: list[str]  # in the judge's prompt now, and not before
    removed: list[str]  # the other way round


class ReportComparison(FrozenModel):
    """What became of the cases that two reports share."""

    judge: str
    cases: int
    better: list[CaseChange]
    worse: list[CaseChange]

    def to_markdown(self) -> str:
        """Return it as Markdown."""
        from memalign_graph.evaluation.report import comparison_markdown

        return comparison_markdown(self)


class Report(FrozenModel):
    """Everything an evaluation found."""

    criterion: Criterion
    settings: RunSettings
    judges: list[str]
    """The first is what others are compared with, the last what the report is about."""
    cases: list[EvaluatedCase]
    scores: list[JudgeScores]  # those of the baselines come first
    comparisons: list[Comparison]  # on the same draws of cases
    memories: list[FoldMemory]
    experts: Agreement  # how far they agree among themselves
    usage: list[UsageRow]  # every call, by judge and purpose
    warnings: list[str]  # what has to be known to read the numbers
    guidelines: list[Guideline]  # learned from all the feedback together
    sources: list[Episode]  # the episodes that they rest on
    credit: list[GuidelineCredit] = Field(default_factory=list)
    curve: LearningCurve | None = None

    def of(self, judge: str) -> JudgeScores:
        """Return the scores of a judge or a baseline."""
        known = {scores.judge: scores for scores in self.scores}
        if judge not in known:
            raise KeyError(f"{judge!r} was not measured: there is {list(known)}")
        return known[judge]

    def metric(self, judge: str, name: str) -> Estimate:
        """Return one number."""
        return self.of(judge).metrics.get(name, Estimate())

    def comparison(self, judge: str, against: str) -> Comparison | None:
        """Return one judge beside another, if they were compared."""
        pairs = {(pair.judge, pair.against): pair for pair in self.comparisons}
        return pairs.get((judge, against))

    def is_right(self, case: EvaluatedCase, judge: str) -> bool | None:
        """Tell whether a judge is right on a case; None where it gave no verdict."""
        value = case.value_of(judge)
        return None if value is None else agree(self.criterion.scale, value, case.expected)

    def wrong(self, judge: str) -> list[EvaluatedCase]:
        """Return the cases on which a judge disagrees with the experts."""
        return [case for case in self.cases if self.is_right(case, judge) is False]

    def guidelines_for(self, case: EvaluatedCase, judge: str) -> list[Guideline]:
        """Return the guidelines in a judge's prompt on a case."""
        shown = case.judgments[judge].guideline_ids if judge in case.judgments else []
        known = {
            guideline.id: guideline
            for memory in self.memories
            if (memory.fold, memory.judge) == (case.fold, judge)
            for guideline in memory.guidelines
        }
        return [known[key] for key in shown if key in known]

    def compare(self, before: "Report", judge: str | None = None) -> ReportComparison:
        """Tell which cases of an earlier report got better or worse, and by which guideline."""
        now, then = judge or self.judges[-1], judge or before.judges[-1]
        known = {case.example.id: case for case in before.cases}
        shared = [(known[c.example.id], c) for c in self.cases if c.example.id in known]
        if not shared:
            raise InvalidInputError("before: the reports share no case: give one of the same data.")
        better: list[CaseChange] = []
        worse: list[CaseChange] = []
        for old, new in shared:
            was, is_now = old.value_of(then), new.value_of(now)
            is_right = self.is_right(new, now)
            if was is None or is_now is None or before.is_right(old, then) == is_right:
                continue
            texts = [guideline.text for guideline in self.guidelines_for(new, now)]
            old_texts = [guideline.text for guideline in before.guidelines_for(old, then)]
            judgment = new.judgments.get(now)
            change = CaseChange(
                example=new.example,
                expected=new.expected,
                before=was,
                after=is_now,
                rationale=judgment.rationale if judgment else "",
                guidelines=[text for text in texts if text not in old_texts],
                removed=[text for text in old_texts if text not in texts],
            )
            (better if is_right else worse).append(change)
        return ReportComparison(judge=now, cases=len(shared), better=better, worse=worse)

    def to_pandas(self) -> Any:
        """Return a DataFrame: a row a case and judge or baseline."""
        with needs_extra("evaluation", "to_pandas"):
            import pandas as pd
        names = [scores.judge for scores in self.scores]
        return pd.DataFrame([self._row(case, name) for case in self.cases for name in names])

    def _row(self, case: EvaluatedCase, name: str) -> dict[str, Any]:
        judgment, said = case.judgments.get(name), case.predictions.get(name, Prediction())
        return {
            **case.example.to_json(),
            "example_id": case.example.id,
            "group": case.group,
            "fold": case.fold,
            "authors": [expert.author for expert in case.experts],
            "expected": case.expected,
            "judge": name,
            "value": said.value,
            "right": self.is_right(case, name),
            "confidence": said.confidence,
            "rationale": judgment.rationale if judgment else None,
            "guideline_ids": judgment.guideline_ids if judgment else [],
            "episode_ids": judgment.episode_ids if judgment else [],
            "failure": case.failures.get(name),
        }

    def to_markdown(self) -> str:
        """Return the report as Markdown for a pull request, headline first."""
        from memalign_graph.evaluation.report import render_markdown

        return render_markdown(self)

    def summary(self) -> str:
        """Return the beginning of the Markdown: headline, warnings, and the table of judges."""
        from memalign_graph.evaluation.report import render_summary

        return render_summary(self)

    def to_html(self) -> str:
        """Return the report as one HTML page that needs no network, with every case."""
        from memalign_graph.evaluation.report import render_html

        return render_html(self)

    def save(self, path: str | Path) -> Path:
        """Write the report to a file, its kind by the file's ending."""
        file = Path(path)
        kinds: dict[str, Callable[[], str]] = {
            ".html": self.to_html,
            ".md": self.to_markdown,
            ".json": lambda: self.model_dump_json(indent=1),
        }
        if file.suffix.lower() not in kinds:
            raise InvalidInputError(
                f"path: {file.name!r} does not tell what to write: end it in .html, .md or .json."
            )
        text = kinds[file.suffix.lower()]()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", errors="replace")
        return file
