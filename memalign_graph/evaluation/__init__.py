"""The evaluation lab: does the judge agree with the experts, and is it getting better?

`evaluate` measures judges on cases that they did not learn from, beside baselines, and makes a
report; `learning_curve` follows one as its memory grows; `ablations` lists the judges that lack a
part; `flips` finds what worked and no longer does; `guideline_credit` tells which guideline changes
which verdicts. Each has an async twin whose name begins with `a`. It needs the extra `evaluation`.
"""

from memalign_graph.evaluation.credit import aflips, aguideline_credit, flips, guideline_credit
from memalign_graph.evaluation.evaluate import aevaluate, alearning_curve, evaluate, learning_curve
from memalign_graph.evaluation.experiment import EvaluationOptions, ablations
from memalign_graph.evaluation.report import Report

__all__ = [
    "EvaluationOptions",
    "Report",
    "ablations",
    "aevaluate",
    "aflips",
    "aguideline_credit",
    "alearning_curve",
    "evaluate",
    "flips",
    "guideline_credit",
    "learning_curve",
]
