"""Why the verdict or the evidence decided: `judgment["evidence"]`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memalign_graph.evidence.cases import MIN_CASES, EvidenceCase, ValueEncoding
from memalign_graph.evidence.comparison import LeaveOneOut
from memalign_graph.evidence.regression import Floats, Neighbors
from memalign_graph.scales import Value
from memalign_graph.types import Evidence, Neighbour, Probabilities

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


@dataclass(frozen=True)
class Estimate:
    """What the evidence says of a new case."""

    targets: Floats
    value: Value
    probabilities: Probabilities | None
    """How likely each choice is the experts'."""
    vote: Floats
    """The neighbors' shares of each choice, or their mean; then the same of the judge's values."""


def explain(
    verdict: Value,
    cases: Sequence[EvidenceCase],
    encoding: ValueEncoding,
    leave_one_out: LeaveOneOut | None,
    neighbors: Neighbors,
    estimate: Estimate | None,
    *,
    is_weighed: bool,
    decides: bool,
) -> Evidence:
    """Explain a decision: what decided, by which cases, and how good that is.

    `is_weighed` tells whether there are enough verdicts to look at similar cases at all.
    """
    fields: dict[str, Any] = {}
    if leave_one_out is not None:
        fields["evidence_error"] = float(leave_one_out.errors.mean())
        # Of a verdict that is kept, the weights are those of the estimate beside it.
        weight = 1.0 if leave_one_out.weight is None else leave_one_out.weight
        judge = leave_one_out.judge
        fields["weights"] = {"neighbours": weight * (1 - (judge or 0.0))}
        if judge is not None:
            fields["weights"]["judge"] = 1 - weight + weight * judge
            fields["verdict_error"] = float(leave_one_out.baseline_errors.mean())
    if estimate is not None:
        vote = dict(zip(encoding.names, estimate.vote.tolist(), strict=False))
        fields["vote"] = float(estimate.vote[0]) if encoding.is_ordered else vote
        fields["estimate"] = estimate.value
        fields["probabilities"] = estimate.probabilities
    voters = zip(*(array[:_MAX_SHOWN].tolist() for array in neighbors), strict=True)
    fields["neighbours"] = [
        Neighbour(
            example_id=cases[row].example_id,
            episode_ids=cases[row].episode_ids,
            value=cases[row].value,
            similarity=similarity,
            weight=share,
        )
        for row, similarity, share in voters
    ]
    return Evidence(
        decided_by="evidence" if decides else "verdict",
        reason=_NO_VECTOR
        if is_weighed and cases and not fields["neighbours"]
        else _reason(cases, encoding, leave_one_out, is_weighed=is_weighed, decides=decides),
        verdict=verdict,
        cases=len(cases),
        **fields,
    )


def _reason(
    cases: Sequence[EvidenceCase],
    encoding: ValueEncoding,
    leave_one_out: LeaveOneOut | None,
    *,
    is_weighed: bool,
    decides: bool,
) -> str:
    count = len(cases)
    if count < MIN_CASES:
        return _FEW_CASES.format(count, "s" * (count != 1), MIN_CASES)
    if not is_weighed:
        judged = sum(case.verdict is not None for case in cases)
        return _FEW_VERDICTS.format(count, judged, MIN_CASES)
    if leave_one_out is None:
        is_varied = len({case.value for case in cases}) > 1
        return _TOO_FEW_DISTINCT.format(MIN_CASES) if is_varied else _ONE_VALUE
    if leave_one_out.weight is not None and not decides:
        return _UNLIKE
    measure = "wrong on a share of" if encoding.choices else "off by"
    other = "one value for all" if leave_one_out.judge is None else "the judge's verdict"
    return _COMPARED.format(
        "evidence" if decides else "verdict",
        len(leave_one_out.rows),
        f"{measure} {leave_one_out.errors.mean():.3g}",
        f"{other} {leave_one_out.baseline_errors.mean():.3g}",
        "" if decides else _NOT_BETTER,
    )
