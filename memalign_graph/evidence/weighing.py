"""The model that weighs a judge's verdict against what the most similar cases say.

Stacked generalisation (D. H. Wolpert, 1992) of two forecasters: the judge, and the neighbours'
vote. Few coefficients, a penalty on them, and each case in memory left out of what foretells it, so
that a handful of experts' verdicts is enough to fit it, and tells how good it is.
"""

from memalign_graph.evidence.estimates import Verdicts, Votes, Weighing
from memalign_graph.evidence.nearest import Floats
from memalign_graph.evidence.weighing_choices import ChoiceWeighing
from memalign_graph.evidence.weighing_numbers import NumericWeighing
from memalign_graph.scales import Numeric, Scale

MIN_CASES = 10
"""How many cases with the judge's verdict and an expert's it takes to weigh anything."""


def fit_weighing(scale: Scale, truth: Floats, verdicts: Verdicts, votes: Votes) -> Weighing | None:
    """Fit the model to the cases in memory that the judge had judged."""
    if len(truth) < MIN_CASES or (truth == truth[0]).all():
        return None
    if isinstance(scale, Numeric):
        return NumericWeighing(scale, truth, verdicts, votes)
    return ChoiceWeighing(scale, truth, verdicts, votes)
