"""Evaluation: how far judges agree with experts on cases that they did not learn from.

`evaluate` measures judges and baselines and returns a report. `learning_curve` measures one judge
as its memory grows. `ablations` lists variants of a judge that each lack a part. `flips` lists
cases that were right at an earlier version and are wrong now. `migrate` compares a judge with the
same one on another model. Each but `ablations` has an async version whose name begins with `a`.
Needs the extra `evaluation`.
"""

from memalign_graph.evaluation.evaluate import aevaluate, alearning_curve, evaluate, learning_curve
from memalign_graph.evaluation.experiment import EvaluationOptions, ablations
from memalign_graph.evaluation.report import Report
from memalign_graph.evaluation.stored_cases import Migration, aflips, amigrate, flips, migrate

__all__ = [
    "EvaluationOptions",
    "Migration",
    "Report",
    "ablations",
    "aevaluate",
    "aflips",
    "alearning_curve",
    "amigrate",
    "evaluate",
    "flips",
    "learning_curve",
    "migrate",
]
