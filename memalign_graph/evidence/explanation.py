"""Why the verdict or the evidence decided: `judgment["evidence"]`."""

from typing import TYPE_CHECKING, Any

from memalign_graph.evidence.cases import MIN_CASES
from memalign_graph.evidence.regression import Neighbors
from memalign_graph.evidence.verdicts import RawVerdict
from memalign_graph.types import Decide, Evidence, Neighbour

if TYPE_CHECKING:
    from memalign_graph.evidence.evidence_model import Estimate, EvidenceModel

_MAX_SHOWN = 10  # neighbors

_NO_VECTOR = "The verdict decides: the case has no embedding, so that no similar cases were found."
_UNLIKE = (
    "The verdict decides: no case in memory is as similar to this one as cases there are to each "
    "other, near-duplicates aside."
)
_FEW_CASES = (
    "The verdict decides: memory has {} case{} with an expert's value, and it takes {} to weigh "
    "them."
)
_FEW_VERDICTS = (
    "The verdict decides: of {} cases in memory with an expert's value {} have the judge's own "
    "verdict, too, and it takes {} to weigh it."
)
_TOO_FEW_DISTINCT = (
    "The verdict decides: memory has fewer than {} cases that are no near-duplicates."
)
_ONE_VALUE = "The verdict decides: the experts gave all cases that count the same value."
_COMPARED = "The {} decides: on {} cases in memory, each left out, the evidence is {}, and {}{}."
_NOT_BETTER = ": not better beyond chance, each class counting alike"


def explain(
    model: "EvidenceModel",
    verdict: RawVerdict,
    mode: Decide,
    neighbors: Neighbors,
    estimate: "Estimate | None",
    *,
    decides: bool,
) -> Evidence:
    """Explain a decision: what decided, by which cases, and how good that is."""
    fields: dict[str, Any] = {}
    if model.needs_fit(mode):
        fields = _quality(model)
        voters = zip(*(array[:_MAX_SHOWN].tolist() for array in neighbors), strict=True)
        fields["neighbours"] = [
            Neighbour(
                example_id=model.cases[row].example_id,
                episode_ids=model.cases[row].episode_ids,
                value=model.cases[row].value,
                similarity=similarity,
                weight=share,
            )
            for row, similarity, share in voters
        ]
        if estimate is not None:
            names, vote = model.encoding.names, estimate.vote.tolist()
            is_ordered = model.encoding.is_ordered
            fields["vote"] = vote[0] if is_ordered else dict(zip(names, vote, strict=False))
            fields["estimate"] = estimate.value
            fields["probabilities"] = estimate.probabilities
    return Evidence(
        decided_by="evidence" if decides else "verdict",
        reason=_reason(model, mode, neighbors, decides=decides),
        verdict=verdict.value,
        cases=len(model.cases),
        **fields,
    )


def _quality(model: "EvidenceModel") -> dict[str, Any]:
    """Return the fields that say how good the evidence is, and what makes it up."""
    leave_one_out = model.leave_one_out
    if leave_one_out is None:
        return {}
    # Of a verdict that is kept, the weights are those of the estimate beside it.
    weight, judge = leave_one_out.weight or 1.0, leave_one_out.judge
    fields: dict[str, Any] = {"evidence_error": float(leave_one_out.errors.mean())}
    fields["weights"] = {"neighbours": weight * (1 - (judge or 0.0))}
    if judge is not None:
        fields["verdict_error"] = float(leave_one_out.baseline_errors.mean())
        fields["weights"]["judge"] = 1 - weight + weight * judge
    return fields


def _reason(model: "EvidenceModel", mode: Decide, neighbors: Neighbors, *, decides: bool) -> str:
    count, leave_one_out = len(model.cases), None
    if model.needs_fit(mode):
        leave_one_out = model.leave_one_out
        if count and not len(neighbors.rows):
            return _NO_VECTOR
    if count < MIN_CASES:
        return _FEW_CASES.format(count, "s" * (count != 1), MIN_CASES)
    if not model.needs_fit(mode):
        return _FEW_VERDICTS.format(count, len(model.judged), MIN_CASES)
    if leave_one_out is None:
        is_varied = len(model.distinct_values) > 1
        return _TOO_FEW_DISTINCT.format(MIN_CASES) if is_varied else _ONE_VALUE
    if leave_one_out.weight and not decides:
        return _UNLIKE
    measure = "wrong on a share of" if model.encoding.choices else "off by"
    other = "one value for all" if leave_one_out.judge is None else "the judge's verdict"
    return _COMPARED.format(
        "evidence" if decides else "verdict",
        len(leave_one_out.rows),
        f"{measure} {leave_one_out.errors.mean():.3g}",
        f"{other} {leave_one_out.baseline_errors.mean():.3g}",
        "" if decides else _NOT_BETTER,
    )
