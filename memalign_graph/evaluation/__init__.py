"""The evaluation lab: does the judge agree with the experts, and is it getting better?

`cross_validate` measures a judge before and after it learned, on cases it did not learn from;
`learning_curve` follows it as its memory grows; `ablate` takes parts of the memory away;
`backward_flips` finds what worked and no longer does; `guideline_credit` tells which guideline
changes which verdicts; `evaluate` does it all and makes a report. Each has an async twin whose name
begins with `a`. It needs the extra `evaluation`.
"""

from memalign_graph.evaluation.ablation import aablate, ablate
from memalign_graph.evaluation.answers import Spent
from memalign_graph.evaluation.credit import (
    ChangedVerdict,
    GuidelineCredit,
    aguideline_credit,
    guideline_credit,
)
from memalign_graph.evaluation.cross_validation import across_validate, cross_validate
from memalign_graph.evaluation.evaluate import aevaluate, evaluate
from memalign_graph.evaluation.flips import Flip, abackward_flips, backward_flips
from memalign_graph.evaluation.learning import (
    LearningCurve,
    LearningStep,
    alearning_curve,
    learning_curve,
)
from memalign_graph.evaluation.options import EvaluationOptions
from memalign_graph.evaluation.report import Report
from memalign_graph.evaluation.results import EvaluatedCase, Evaluation
from memalign_graph.evaluation.scores import Comparison, Estimate, JudgeScores

__all__ = [
    "ChangedVerdict",
    "Comparison",
    "Estimate",
    "EvaluatedCase",
    "Evaluation",
    "EvaluationOptions",
    "Flip",
    "GuidelineCredit",
    "JudgeScores",
    "LearningCurve",
    "LearningStep",
    "Report",
    "Spent",
    "aablate",
    "abackward_flips",
    "ablate",
    "across_validate",
    "aevaluate",
    "aguideline_credit",
    "alearning_curve",
    "backward_flips",
    "cross_validate",
    "evaluate",
    "guideline_credit",
    "learning_curve",
]
