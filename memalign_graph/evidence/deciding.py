"""What a judgment's value is, and how sure it is: the verdict alone, or all the evidence.

A `Bench` is fitted to the cases in memory, and decides on new ones. It is made anew when memory
changed, in milliseconds, and kept for as long as it does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from memalign_graph.agreement import agree
from memalign_graph.evidence.calibration import Calibration, calibrate
from memalign_graph.evidence.cases import NEIGHBOURS, Case, CaseTable, Floats, Near
from memalign_graph.evidence.votes import Kernel
from memalign_graph.evidence.weighing import (
    MIN_CASES,
    Estimate,
    Votes,
    Weighing,
    fit_weighing,
    place_of,
)
from memalign_graph.judgment import ConfidenceSource, Decide, Evidence, Neighbour
from memalign_graph.scales import Numeric, Scale, Value

_SURE = 1e-3
"""How near to 0 or 1 a raw confidence counts when it is calibrated."""


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
        """Take the judge at its word.

        Args:
            said: What it said.

        Returns:
            A decision without a confidence.
        """
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

    calibration: Calibration | None = None
    """Tells how often decisions like one were right; None while there are too few."""

    known: Sequence[int] = field(default_factory=list)
    """Which of the cases it was fitted to."""

    agreed: Sequence[bool] = field(default_factory=list)
    """Whether the decision on each case, as if it were new, agrees with the experts."""

    def decide(
        self, said: Said, near: Sequence[tuple[Case, float]] | None, mode: Decide
    ) -> Decision:
        """Decide on a new case.

        Args:
            said: What the judge said.
            near: The voters nearest to it, with their similarities; None where they are unknown.
            mode: Whether to weigh the evidence.

        Returns:
            The decision.
        """
        votes = self._votes(near or ())
        estimate = None
        if self.weighing is not None and near is not None:
            estimate = self.weighing.estimate(said.verdict, said.probabilities, votes)
        by_evidence = estimate is not None and self.uses_evidence
        value = estimate.value if estimate is not None and by_evidence else said.verdict
        score = _score(
            self.scale,
            said,
            estimate,
            value,
            votes,
            by_evidence=by_evidence,
            near_by=_nearest(near or ()),
        )
        raw, source = _raw(self.scale, said, estimate, value, by_evidence=by_evidence)
        confidence, calibrated_on = raw, None
        if score is not None and self.calibration is not None:
            confidence = self.calibration.confidence(score)
            calibrated_on = self.calibration.cases
            source = source or "evidence"
        return Decision(
            value=value,
            confidence=None if confidence is None else min(max(confidence, 0.0), 1.0),
            confidence_source=source if confidence is not None else None,
            calibrated_on=calibrated_on,
            evidence=self._evidence(said, estimate, near, votes) if mode == "evidence" else None,
        )

    @property
    def uses_evidence(self) -> bool:
        """Whether the evidence decides: it foretold the experts in memory better than the judge."""
        return self.weighing is not None and self.weighing.is_better

    def _votes(self, near: Sequence[tuple[Case, float]]) -> Votes:
        import numpy as np

        similarities = np.full((1, NEIGHBOURS), -np.inf)
        values = np.zeros((1, NEIGHBOURS))
        for place, (case, similarity) in enumerate(near):
            similarities[0, place] = similarity
            values[0, place] = place_of(self.scale, case.value)
        return Votes(self.kernel.weights(similarities), values)

    def _evidence(
        self,
        said: Said,
        estimate: Estimate | None,
        near: Sequence[tuple[Case, float]] | None,
        votes: Votes,
    ) -> Evidence:
        weighing = self.weighing
        decides = estimate is not None and self.uses_evidence
        return Evidence(
            decided_by="evidence" if decides else "verdict",
            reason=_UNKNOWN if near is None else self._reason(),
            verdict=said.verdict,
            estimate=None if estimate is None else estimate.value,
            probabilities=None if estimate is None else estimate.probabilities,
            vote=None if estimate is None else estimate.vote,
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

    def _reason(self) -> str:
        count = len(self.cases)
        if self.weighing is None and count < MIN_CASES:
            return (
                f"The verdict decides: memory has {count} cases with the judge's verdict and an "
                f"expert's value, and it takes {MIN_CASES} to weigh them."
            )
        if self.weighing is None:
            return (
                f"The verdict decides: the experts gave all {count} cases in memory the same value."
            )
        off, judge = self.weighing.evidence_error, self.weighing.verdict_error
        what = "off by" if isinstance(self.scale, Numeric) else "wrong on a share of"
        who, than = ("evidence", "") if self.uses_evidence else ("verdict", "no better: ")
        return (
            f"The {who} decides: on {count} cases in memory, each left out, the evidence is "
            f"{than}{what} {off:.3g}, and the judge's verdict {judge:.3g}."
        )


def bench_of(table: CaseTable, scale: Scale, mode: Decide) -> Bench:
    """Return what decides with the cases of a memory, fitted anew only where they changed.

    Args:
        table: The cases, brought up to date; its lock held.
        scale: The criterion's scale.
        mode: Whether to weigh the evidence.

    Returns:
        The bench.

    Raises:
        ImportError: If there is enough to fit and scikit-learn is not installed.
    """
    kept = _benches.setdefault(table, {})
    known = kept.get(mode)
    if known is None or known[0] != table.generation:
        known = kept[mode] = (table.generation, fit_bench(table, scale, mode))
    return known[1]


_benches: WeakKeyDictionary[CaseTable, dict[str, tuple[int, Bench]]] = WeakKeyDictionary()


def fit_bench(table: CaseTable, scale: Scale, mode: Decide) -> Bench:
    """Fit what decides to the cases of a memory.

    Args:
        table: The cases, brought up to date; its lock held.
        scale: The criterion's scale.
        mode: Whether to weigh the evidence.

    Returns:
        The bench.

    Raises:
        ImportError: If there is enough to fit and scikit-learn is not installed.
    """
    cases = table.judged()
    near = table.near_judged(cases) if mode == "evidence" else None
    if near is None:
        return _calibrated(Bench(scale, cases, Kernel(1.0), None), None, None)
    values = table.by_slot(lambda case: place_of(scale, case.value))[near.slots]
    kernel = _kernel(scale, cases, near, values)
    votes = Votes(kernel.weights(near.similarities), values)
    weighing = fit_weighing(scale, cases, votes)
    return _calibrated(Bench(scale, cases, kernel, weighing), votes, near)


def _kernel(scale: Scale, cases: Sequence[Case], near: Near, values: Floats) -> Kernel:
    import numpy as np

    truth = np.array([place_of(scale, one.value) for one in cases])
    if isinstance(scale, Numeric):
        return Kernel.fitted(near, values, truth)
    places = np.unique(np.append(truth, values))
    return Kernel.fitted(
        near,
        (values[:, :, None] == places).astype(float),
        (truth[:, None] == places).astype(float),
    )


def _calibrated(bench: Bench, votes: Votes | None, near: Near | None) -> Bench:
    import numpy as np

    scores, agreed, known = [], [], []
    for index, case in enumerate(bench.cases):
        said = Said(case.verdict if case.verdict is not None else case.value, case.probabilities)
        estimate = None if bench.weighing is None else bench.weighing.left_out[index]
        by_evidence = estimate is not None and bench.uses_evidence
        value = estimate.value if estimate is not None and by_evidence else said.verdict
        agreed.append(agree(bench.scale, value, case.value))
        own = None if votes is None else Votes(votes.weights[[index]], votes.values[[index]])
        nearest = None if near is None else float(near.similarities[index, 0])
        score = _score(
            bench.scale, said, estimate, value, own, by_evidence=by_evidence, near_by=nearest
        )
        if score is not None:
            known.append(index)
            scores.append(score[0])
    right = np.array([float(agreed[index]) for index in known])
    calibration = calibrate(np.array(scores), right) if scores else None
    return Bench(bench.scale, bench.cases, bench.kernel, bench.weighing, calibration, known, agreed)


def _raw(
    scale: Scale, said: Said, estimate: Estimate | None, value: Value, *, by_evidence: bool
) -> tuple[float | None, ConfidenceSource | None]:
    """Return a decision's confidence before it is calibrated."""
    name = scale.render(value)
    if said.probabilities is not None and not by_evidence:
        return said.probabilities.get(name), said.source
    if estimate is not None and estimate.probabilities is not None:
        return estimate.probabilities[name], "evidence"
    return None, None


def _score(
    scale: Scale,
    said: Said,
    estimate: Estimate | None,
    value: Value,
    votes: Votes | None,
    *,
    by_evidence: bool,
    near_by: float | None,
) -> Floats | None:
    """Return what a decision's confidence is calibrated by, one row; None where there is nothing.

    Of a finite scale, the logit of its raw confidence. Of a number that was weighed, how far its
    neighbours are apart, how far judge and vote are, and how near the nearest neighbour is.
    """
    import numpy as np

    raw, _ = _raw(scale, said, estimate, value, by_evidence=by_evidence)
    if raw is not None:
        inside = min(max(raw, _SURE), 1 - _SURE)
        return np.array([[float(np.log(inside / (1 - inside)))]])
    if estimate is None or votes is None or not isinstance(scale, Numeric):
        return None
    vote: Any = estimate.vote
    span = scale.maximum - scale.minimum
    spread = np.sqrt((votes.weights * (votes.values - vote) ** 2).sum()) / span
    apart = abs(float(said.verdict) - vote) / span
    lone = 1 - near_by if near_by is not None and np.isfinite(near_by) else 1.0
    return np.array([[4 * float(spread), 4 * apart, 4 * lone]])


def _nearest(near: Sequence[tuple[Case, float]]) -> float | None:
    return near[0][1] if near else None
