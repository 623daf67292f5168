"""What a judgment's value is, and how sure it is: the verdict alone, or all the evidence.

A `Bench` is fitted to the cases in memory, and decides on new ones. It is made anew when memory
changed, in milliseconds, and kept for as long as it does not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from memalign_graph.agreement import reach
from memalign_graph.evidence.calibration import Calibration, calibrate
from memalign_graph.evidence.cases import NEIGHBOURS, Case, CaseTable
from memalign_graph.evidence.estimates import (
    Estimates,
    Verdicts,
    Votes,
    Weighing,
)
from memalign_graph.evidence.nearest import Floats, Near
from memalign_graph.evidence.places import places_of
from memalign_graph.evidence.scores import Kind, stated_scores, weighed_scores, weighed_shares
from memalign_graph.evidence.votes import Kernel
from memalign_graph.evidence.weighing import MIN_CASES, fit_weighing
from memalign_graph.scales import Numeric, Scale, Value
from memalign_graph.types import ConfidenceSource, Decide, Evidence, Neighbour, Probabilities

_UNKNOWN = "The verdict decides: the case has no embedding, so that no similar cases were found."


@dataclass(frozen=True)
class Said:
    """What the judge said of a case."""

    verdict: Value
    """Its verdict."""

    probabilities: Mapping[str, float] | None = None
    """How likely it holds each value, where that was measured."""

    source: ConfidenceSource | None = None
    """What they were measured by."""


@dataclass(frozen=True)
class Decision:
    """What becomes of it."""

    value: Value
    """The judgment's value."""

    confidence: float | None
    """How likely it is the expert's."""

    confidence_source: ConfidenceSource | None
    """What that was measured by."""

    calibrated_on: int | None
    """On how many decisions the confidence is calibrated; None if it is raw."""

    evidence: Evidence | None
    """What it was weighed from."""

    @classmethod
    def of(cls, said: Said) -> "Decision":
        """Take the judge at its word."""
        return cls(said.verdict, None, None, None, None)


@dataclass(frozen=True)
class Bench:
    """What decides, fitted to the cases in memory."""

    scale: Scale
    """The criterion's scale."""

    cases: Sequence[Case]
    """The cases that the judge had judged."""

    kernel: Kernel
    """How neighbours are weighed."""

    weighing: Weighing | None
    """Weighs verdict and vote; None where only the verdict counts, or there is too little."""

    calibrations: Mapping[Kind, Calibration] = field(default_factory=dict)
    """Tell how often decisions like one were right; of the kinds of which there are enough."""

    confidences: Sequence[float | None] = ()
    """How sure the decision on each case is, as if it were new; None where that can't be told."""

    agreed: Sequence[bool] = ()
    """Whether the decision on each case, as if it were new, agrees with the experts."""

    def decide(
        self, said: Said, near: Sequence[tuple[Case, float]] | None, mode: Decide
    ) -> Decision:
        """Decide on a new case."""
        votes, nearest = self._votes(near or ())
        verdicts = Verdicts.of(self.scale, said.verdict, said.probabilities)
        estimates = None
        if self.weighing is not None and near is not None:
            estimates = self.weighing.estimate(verdicts, votes)
        by_evidence = estimates is not None and self.uses_evidence
        numbers = estimates.numbers if estimates is not None and by_evidence else verdicts.numbers
        value = places_of(self.scale).value(float(numbers[0])) if by_evidence else said.verdict
        [confidence] = verdicts.stated.tolist()
        source, calibration = said.source, None
        if not by_evidence and not math.isnan(confidence):
            calibration = self.calibrations.get("stated")
            scores = stated_scores(verdicts.stated)
        elif estimates is not None:
            kind, scores = weighed_scores(
                self.scale, numbers, verdicts, estimates, votes=votes, nearest=nearest
            )
            calibration, source = self.calibrations.get(kind), "evidence"
            [confidence] = weighed_shares(numbers, estimates).tolist()
        if calibration is not None:
            [confidence] = calibration.confidences(scores).tolist()
        known = not math.isnan(confidence)
        return Decision(
            value=value,
            confidence=min(max(confidence, 0.0), 1.0) if known else None,
            confidence_source=source if known else None,
            calibrated_on=None if calibration is None else calibration.cases,
            evidence=self._evidence(said, estimates, near, votes) if mode == "evidence" else None,
        )

    @property
    def uses_evidence(self) -> bool:
        """Whether the evidence decides: it foretold the experts in memory better than the judge."""
        return self.weighing is not None and self.weighing.is_better

    def _votes(self, near: Sequence[tuple[Case, float]]) -> tuple[Votes, Floats]:
        import numpy as np

        number = places_of(self.scale).number
        similarities = np.full((1, NEIGHBOURS), -np.inf)
        values = np.zeros((1, NEIGHBOURS))
        for place, (case, similarity) in enumerate(near):
            similarities[0, place] = similarity
            values[0, place] = number(case.value)
        return Votes(self.kernel.weights(similarities), values), similarities[:, 0]

    def _evidence(
        self,
        said: Said,
        estimates: Estimates | None,
        near: Sequence[tuple[Case, float]] | None,
        votes: Votes,
    ) -> Evidence:
        weighing = self.weighing
        weighed: dict[str, Any] = {}
        if estimates is not None:
            shares, [vote] = estimates.shares, estimates.vote
            weighed = {
                "estimate": places_of(self.scale).value(float(estimates.numbers[0])),
                "probabilities": None if shares is None else self._by_name(shares[0]),
                "vote": float(vote) if shares is None else self._by_name(vote),
            }
        return Evidence(
            decided_by="evidence" if weighed and self.uses_evidence else "verdict",
            reason=_UNKNOWN if near is None else self._reason(),
            verdict=said.verdict,
            **weighed,
            neighbours=[
                Neighbour(
                    example_id=case.example_id,
                    episode_ids=list(case.episode_ids),
                    value=case.value,
                    similarity=similarity,
                    weight=float(weight),
                )
                for (case, similarity), weight in zip(near or (), votes.weights[0], strict=False)
            ],
            weights={} if weighing is None else weighing.weights,
            cases=len(self.cases),
            verdict_error=None if weighing is None else weighing.verdict_error,
            evidence_error=None if weighing is None else weighing.evidence_error,
        )

    def _by_name(self, shares: Floats) -> Probabilities:
        return dict(zip(places_of(self.scale).names, shares.tolist(), strict=True))

    def _reason(self) -> str:
        count = len(self.cases)
        if self.weighing is None and count < MIN_CASES:
            cases = "1 case" if count == 1 else f"{count} cases"
            return (
                f"The verdict decides: memory has {cases} with the judge's verdict and an "
                f"expert's value, and it takes {MIN_CASES} to weigh them."
            )
        if self.weighing is None:
            return (
                f"The verdict decides: the experts gave all {count} cases in memory that have the "
                "judge's verdict the same value."
            )
        off, judge = self.weighing.evidence_error, self.weighing.verdict_error
        what = "off by" if isinstance(self.scale, Numeric) else "wrong on a share of"
        who, but = "verdict", ", which is no more than chance may bring"
        if self.uses_evidence:
            who, but = "evidence", ""
        elif off >= judge:
            but = ", which is no better"
        return (
            f"The {who} decides: on {count} cases in memory, each left out, the evidence is "
            f"{what} {off:.3g}, and the judge's verdict {judge:.3g}{but}."
        )


def bench_of(table: CaseTable, scale: Scale, mode: Decide) -> Bench:
    """Return what decides with the cases of a memory, fitted anew only where they changed."""
    kept = _benches.setdefault(table, {})
    known = kept.get(mode)
    if known is None or known[0] != table.generation:
        known = kept[mode] = (table.generation, fit_bench(table, scale, mode))
    return known[1]


_benches: WeakKeyDictionary[CaseTable, dict[str, tuple[int, Bench]]] = WeakKeyDictionary()


def fit_bench(table: CaseTable, scale: Scale, mode: Decide) -> Bench:
    """Fit what decides to the cases of a memory."""
    cases = table.judged()
    truth, said = table.numbers()
    verdicts = Verdicts.read(said)
    if mode == "verdict" or not cases:
        return _calibrated(Bench(scale, cases, Kernel(1.0), None), truth, verdicts, None, None)
    near = table.near_judged(cases)
    values = table.values(near)
    kernel = _kernel(scale, truth, near, values)
    votes = Votes(kernel.weights(near.similarities), values)
    bench = Bench(scale, cases, kernel, fit_weighing(scale, truth, verdicts, votes))
    return _calibrated(bench, truth, verdicts, votes, near.similarities[:, 0])


def _kernel(scale: Scale, truth: Floats, near: Near, values: Floats) -> Kernel:
    import numpy as np

    if isinstance(scale, Numeric):
        return Kernel.fitted(near, values, truth)
    places = np.flatnonzero(np.bincount(np.append(truth, values).astype(np.int64)))
    return Kernel.fitted(
        near,
        (values[:, :, None] == places).astype(float),
        (truth[:, None] == places).astype(float),
    )


def _calibrated(
    bench: Bench,
    truth: Floats,
    verdicts: Verdicts,
    votes: Votes | None,
    nearest: Floats | None,
) -> Bench:
    """Tell how sure the bench's decisions are, each case in memory decided as if it were new."""
    import numpy as np

    weighing, scale = bench.weighing, bench.scale
    by_evidence = weighing is not None and bench.uses_evidence
    numbers = (
        weighing.left_out.numbers if weighing is not None and by_evidence else verdicts.numbers
    )
    right = _agreeing(scale, numbers, truth)
    stated = np.isfinite(verdicts.stated) & (not by_evidence)
    scores: list[tuple[Kind, Any, Floats]] = [
        ("stated", stated, stated_scores(verdicts.stated[stated]))
    ]
    if weighing is not None and votes is not None and nearest is not None:
        kind, every = weighed_scores(
            scale, numbers, verdicts, weighing.left_out, votes=votes, nearest=nearest
        )
        scores.append((kind, ~stated, every[~stated]))
    calibrations: dict[Kind, Calibration] = {}
    confidences = np.full(len(truth), np.nan)
    for kind, which, own in scores:
        calibration = calibrate(own, right[which])
        if calibration is not None:
            calibrations[kind] = calibration
            # By one score decisions rank as they would without their own label. Left out, the
            # right ones would rank below the wrong ones of the same score.
            ranked = own.shape[1] == 1
            confidences[which] = calibration.confidences(own) if ranked else calibration.left_out
    return replace(
        bench,
        calibrations=calibrations,
        confidences=[None if math.isnan(one) else one for one in confidences.tolist()],
        agreed=(right > 0).tolist(),
    )


def _agreeing(scale: Scale, got: Floats, expected: Floats) -> Floats:
    """Tell which values agree, as `agreement.agree` does: 1, or 0."""
    import numpy as np

    near = reach(scale) if isinstance(scale, Numeric) and not scale.integer else 0.0
    right: Floats = (np.abs(got - expected) <= near).astype(float)
    return right
