"""The evidence model: experts' values of similar cases, with the judge's verdict as a feature.

It is a function of the cases in memory and is refitted when the memory changes, so that forgotten
feedback leaves no trace. Leave-one-out decides whether the evidence or the judge's verdict counts:
each case in memory is also estimated without itself and its near-duplicates.

Source (`regression` names its own): D. H. Wolpert, Stacked generalization, 1992.
"""

import threading
from collections.abc import Sequence
from functools import cached_property
from math import floor, isnan, log10, nan
from typing import Any, Literal, NamedTuple

import numpy as np

from memalign_graph.agreement import consensus, values_agree
from memalign_graph.evidence.cases import MIN_CASES, EvidenceCase, ValueEncoding
from memalign_graph.evidence.comparison import (
    MIN_CALIBRATING,
    Calibration,
    blend,
    blend_weight,
    is_better,
    judge_coefficient,
    loses_no_class,
)
from memalign_graph.evidence.confidence import Decision, RawVerdict, log_odds
from memalign_graph.evidence.regression import NO_NEIGHBORS, Floats, KernelRegression, Neighbors
from memalign_graph.evidence.threshold import (
    LEFT_OUT_LEVEL,
    LEVEL,
    Trust,
    find_threshold_by_verdict,
)
from memalign_graph.memory.index import Vector
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Decide, Decider, Evidence, Neighbour, Probabilities

Kind = Literal["stated", "verdict", "estimate"]
"""What a confidence is of: the judge's own probability of its verdict, or the verdict or the
evidence's estimate, scored by similar cases."""

_SMALL = 1e-6  # rounding error of a similarity

_NOVELTY_QUANTILE = 0.05  # of the similarities between cases in memory: it takes 19 cases
_MAX_COMPARED = 30  # the newest verdicts: the judge learns, and its old verdicts no longer count
_MUST_GAIN = 10  # of these, the newest
_MAX_DISTINCT_VALUES = 12  # if experts use no more numbers, estimates are rounded to these
_MIN_SHARE = 0.02  # of a choice, in the probabilities
_BLEND_STEPS = (1.0, 0.75, 0.5, 0.25)  # parts of the fitted weight, tried until no class loses
_MAX_SHOWN = 10  # neighbors in an explanation


class LeaveOneOut(NamedTuple):
    """Estimates of the cases in memory, each without itself and its near-duplicates."""

    rows: Floats
    """The index of the cases: those with a verdict if they are enough, otherwise all."""
    judge: float | None
    """The coefficient of the judge's verdict in an estimate; None if too few cases have one."""
    weight: float | None
    """The weight of the estimate beside the baseline; None if the verdict decides. The baseline is
    the judge's verdict; without verdicts the experts' consensus over all cases."""
    estimates: Floats
    """Ordered ones with the weight applied."""
    numbers: Floats
    error: float
    baseline_error: float


class _Estimate(NamedTuple):
    """The evidence's estimate of a new case."""

    targets: Floats
    value: Value
    probabilities: Probabilities | None
    """How likely each choice is the experts'."""
    vote: Floats
    """The neighbors' shares of each choice, or their mean; then those of the judge's values."""


class EvidenceModel:
    """Decides on new cases by the cases in memory. Its parts are fitted when first needed."""

    def __init__(self, scale: Scale, cases: Sequence[EvidenceCase]) -> None:
        """Take the cases of a memory, in the order of their ids."""
        self.cases = list(cases)
        self.encoding = encoding = ValueEncoding(scale)
        values = [case.value for case in cases]
        self.truth = encoding.numbers(values)
        self._distinct_values = np.unique(self.truth)
        # The judge's verdicts: where it was not asked it counts as right.
        verdicts = [case.decision.verdict or RawVerdict(case.value) for case in cases]
        judged = [row for row, case in enumerate(cases) if case.decision.verdict]
        self._judged = np.array(judged, dtype=int)
        # Of verdicts after the judge was told the value only wrong ones are kept, for the bound.
        self._fair = [row for row in self._judged if not cases[row].decision.is_told]
        self._has_judge = len(self._fair) >= MIN_CASES
        self._verdicts = encoding.numbers([verdicts[row].value for row in judged])
        self._compared = {*encoding.class_names(self._verdicts)}
        self._usual_value = encoding.numbers([consensus(values, scale)] if values else [])
        self._targets = np.hstack((encoding.rows(values), encoding.verdict_rows(verdicts)))
        # Not by `functools.cache`, which would keep an outdated model until a garbage collection.
        self._calibrations: dict[Kind, Calibration | None] = {}
        self._trusts: dict[tuple[Kind, float], Trust] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """About the bytes of its arrays: the vectors, of which a fitted model has two copies."""
        return sum(case.vector.nbytes for case in self.cases) * (3 if self.is_fitted else 1)

    @property
    def is_fitted(self) -> bool:
        """Whether the slow parts are computed."""
        return "leave_one_out" in vars(self)

    def needs_fit(self, mode: Decide) -> bool:
        """Return whether a decision needs similar cases.

        A verdict on a continuous scale does, for its confidence: a judge can't state one.
        """
        if mode == "verdict":
            return not self.encoding.choices
        return mode == "evidence" or self._has_judge

    def fit(self) -> None:
        """Fit the model: for 1,000 cases it takes some tenths of a second."""
        with self._lock:
            if self.cases:
                _ = self.regression
            _ = self.leave_one_out

    @cached_property
    def regression(self) -> KernelRegression:
        """The regression over the experts' values; it takes a case."""
        vectors = np.array([case.vector for case in self.cases])
        return KernelRegression(vectors, self._targets, self._targets.shape[1] // 2)

    @cached_property
    def leave_one_out(self) -> LeaveOneOut | None:
        """Estimates of the cases in memory; None if they are few or all have one value."""
        encoding, judge = self.encoding, None
        rows = self._judged if self._has_judge else np.arange(len(self.cases))
        truth = self.truth[rows]
        if len(rows) < MIN_CASES or (truth == truth[0]).all():
            return None
        if len(np.unique(self.regression.groups[rows])) < MIN_CASES:
            return None
        experts, verdicts = np.hsplit(self._targets[rows], 2)
        estimates, usual = np.hsplit(self.regression.left_out[rows], 2)
        baseline = np.repeat(self._usual_value, len(rows))
        fair = np.isin(rows, self._fair if self._has_judge else rows)[:, None]
        if self._has_judge:
            # The judge's distance from its usual verdict on similar cases moves the estimate.
            moves = verdicts - usual
            # A judge of numbers is trusted until cases tell otherwise: it may err evenly.
            judge, without = judge_coefficient(
                moves * fair, experts - estimates, encoding.span, pulled_to=encoding.is_ordered
            )
            estimates, baseline = estimates + without[:, None] * moves, self._verdicts
        weight = self._decision_weight(rows, baseline, estimates)
        if weight is not None:
            estimates = blend(baseline, estimates, weight)
        numbers = self._numbers(estimates)
        errors = [encoding.errors(each, truth)[fair[:, 0]].mean() for each in (numbers, baseline)]
        return LeaveOneOut(rows, judge, weight, estimates, numbers, *map(float, errors))

    def _decision_weight(self, rows: Floats, baseline: Floats, estimates: Floats) -> float | None:
        """Return how far decisions go from the baseline to the estimates, by past cases."""
        encoding, has_judge = self.encoding, self._has_judge
        if has_judge:
            fair = np.flatnonzero(np.isin(rows, self._fair))
            newest = sorted(fair, key=lambda at: self.cases[rows[at]].decision.judged_at)
            newest = newest[-_MAX_COMPARED:]
            rows, baseline, estimates = rows[newest], baseline[newest], estimates[newest]
        truth, groups = self.truth[rows], self.regression.groups[rows]
        weights, is_safe = [1.0], is_better
        if encoding.is_ordered:
            fitted = blend_weight(
                (estimates[:, 0] - baseline) / encoding.span,
                (truth - baseline) / encoding.span,
                groups,
                pulled_to=0 if has_judge else 1,
            )
            if not has_judge:
                return fitted
            weights, is_safe = [part * fitted for part in _BLEND_STEPS], loses_no_class
        # Without verdicts the baseline is one value, right on one class: the mean counts.
        classes, kinds = np.zeros(len(rows), int), np.zeros(1, int)
        if has_judge:
            classes, kinds = encoding.classes(truth), np.unique(encoding.classes(self.truth))
        for weight in weights:
            numbers = self._numbers(blend(baseline, estimates, weight))
            gains = encoding.errors(baseline, truth) - encoding.errors(numbers, truth)
            gains /= 1.0 if encoding.choices else encoding.span
            # The newest cases have to gain: the judge may have learned recently.
            newest_gains = gains[-_MUST_GAIN:] if has_judge else gains
            if newest_gains.sum() > 0 and is_safe(gains, classes, groups, kinds):
                return weight
        return None

    def leave_one_out_values(self) -> dict[str, Value]:
        """Return the leave-one-out estimate of each example."""
        if self.leave_one_out is None:
            return {}
        values = map(self.encoding.value, self.leave_one_out.numbers.tolist())
        ids = [self.cases[row].example_id for row in self.leave_one_out.rows]
        return dict(zip(ids, values, strict=True))

    def values_changed_by(self, new: EvidenceCase) -> list[tuple[EvidenceCase, Value, Value]]:
        """Return the other cases whose leave-one-out estimate a new or changed case would change.

        Each has its estimate before and after.
        """
        others = [case for case in self.cases if case.example_id != new.example_id]
        cases = sorted([*others, new], key=lambda case: case.example_id)
        before = self.leave_one_out_values()
        after = EvidenceModel(self.encoding.scale, cases).leave_one_out_values()
        return [
            (case, before[key], after[key])
            for case in others
            if (key := case.example_id) in before.keys() & after.keys()
            and not values_agree(self.encoding.scale, before[key], after[key])
        ]

    def nearest(self, vector: Vector | None) -> Neighbors:
        """Return the cases that are most similar to a new one."""
        if vector is None or not self.cases:
            return NO_NEIGHBORS
        return self.regression.nearest(vector)

    def is_novel(self, neighbors: Neighbors) -> bool:
        """Return whether a case is less similar to memory than most cases there to each other."""
        if not len(neighbors.rows):
            return True
        nearest_others = self.regression.neighbors.similarities.max(axis=1, initial=-1)
        rank = 1 + (nearest_others <= neighbors.similarities[0] + _SMALL).sum()
        return bool(rank <= _NOVELTY_QUANTILE * (1 + len(self.cases)))

    def decides(self, mode: Decide) -> bool:
        """Return whether the evidence decides on cases that are like those in memory."""
        if mode == "verdict" or not self.needs_fit(mode):
            return False
        return self.leave_one_out is not None and self.leave_one_out.weight is not None

    def decide(self, verdict: RawVerdict, vector: Vector | None, mode: Decide) -> Decision:
        """Decide on a new case, by the cases nearest to it."""
        encoding, value, source = self.encoding, verdict.value, verdict.source
        confidence = encoding.stated(verdict)
        kind: Kind = "stated"
        score, evidence, decides = log_odds(confidence), None, False
        neighbors = self.nearest(vector) if self.needs_fit(mode) else NO_NEIGHBORS
        estimate = self._estimate(verdict, vector, neighbors)
        if mode != "verdict":
            evidence = self._explain(verdict.value, neighbors, estimate, mode)
            decides = evidence.decided_by == "evidence"
        if decides or (isnan(confidence) and len(neighbors.rows)):
            kind, source, score = "estimate" if decides else "verdict", "evidence", 0.0
            if estimate is not None:
                value = estimate.value if decides else value
                name = encoding.scale.render(value)
                confidence = (estimate.probabilities or {}).get(name, nan)
                numbers = encoding.numbers([value])
                [score] = self._scores(estimate.targets[None], numbers, neighbors)
        calibration = None if isnan(score) else self.calibration(kind)
        if calibration is not None:
            confidence = float(calibration.confidences(score))
        is_known = not isnan(confidence)
        return Decision(
            value=value,
            confidence=min(max(confidence, 0.0), 1.0) if is_known else None,
            confidence_source=source if is_known else None,
            calibrated_on=len(calibration.scores) if calibration else None,
            evidence=evidence,
        )

    def _estimate(
        self, verdict: RawVerdict, vector: Vector | None, neighbors: Neighbors
    ) -> _Estimate | None:
        """Estimate a new case; None if nothing can be weighed."""
        if vector is None or not len(neighbors.rows) or self.leave_one_out is None:
            return None
        leave_one_out, encoding = self.leave_one_out, self.encoding
        both, vote = self.regression.estimate(vector, neighbors)
        targets, usual = np.hsplit(both, 2)
        baseline = self._usual_value
        if leave_one_out.judge is not None:
            baseline = encoding.numbers([verdict.value])
            targets = targets + leave_one_out.judge * (encoding.verdict_rows([verdict])[0] - usual)
        if leave_one_out.weight is not None:
            [targets] = blend(baseline, targets[None], leave_one_out.weight)
        value = encoding.value(float(self._numbers(targets)))
        return _Estimate(targets, value, self._probabilities(leave_one_out, targets), vote)

    def _explain(
        self, verdict: Value, neighbors: Neighbors, estimate: _Estimate | None, mode: Decide
    ) -> Evidence:
        """Say whether evidence or verdict decides on a new case, and why."""
        leave_one_out = self.leave_one_out if self.needs_fit(mode) else None
        fields: dict[str, Any] = {}
        measured = ""
        if leave_one_out is not None:
            fields["evidence_error"] = leave_one_out.error
            # If the verdict is kept, the weights are those of the estimate.
            weight = 1.0 if leave_one_out.weight is None else leave_one_out.weight
            judge, other, count = leave_one_out.judge, "one value for all", len(self.cases)
            fields["weights"] = {"neighbours": weight * (1 - (judge or 0.0))}
            if judge is not None:
                fields["weights"]["judge"] = 1 - weight + weight * judge
                fields["verdict_error"] = leave_one_out.baseline_error
                other, count = "the judge's verdict", len(self._fair)
            measured = (
                f"on {count} cases in memory, each left out, the evidence is "
                f"{'wrong on a share of' if self.encoding.choices else 'off by'} "
                f"{leave_one_out.error:.3g}, and {other} {leave_one_out.baseline_error:.3g}"
            )
        if estimate is not None:
            shares = dict(zip(self.encoding.names, estimate.vote.tolist(), strict=False))
            fields["vote"] = float(estimate.vote[0]) if self.encoding.is_ordered else shares
            fields["estimate"] = estimate.value
            fields["probabilities"] = estimate.probabilities
        obstacle = self._obstacle(verdict, neighbors, mode, measured)
        decider: Decider = "verdict" if obstacle else "evidence"
        voters = zip(*(array[:_MAX_SHOWN].tolist() for array in neighbors), strict=True)
        return Evidence(
            decided_by=decider,
            reason=f"The {decider} decides: {obstacle or measured}.",
            verdict=verdict,
            cases=len(self.cases),
            neighbours=[
                Neighbour(
                    example_id=self.cases[row].example_id,
                    episode_ids=self.cases[row].episode_ids,
                    value=self.cases[row].value,
                    similarity=similarity,
                    weight=share,
                )
                for row, similarity, share in voters
            ],
            **fields,
        )

    def _obstacle(
        self, verdict: Value, neighbors: Neighbors, mode: Decide, measured: str
    ) -> str | None:
        """Return why the evidence does not decide on a new case; None if it does."""
        count, is_weighed = len(self.cases), self.needs_fit(mode)
        # For unordered choices each class of experts' values is compared: a stricter test.
        is_compared = self._has_judge and self.encoding.is_ordered
        why = None
        if is_weighed and count and not len(neighbors.rows):
            why = "the case has no embedding, so no similar cases were found"
        elif count < MIN_CASES:
            cases = "1 case" if count == 1 else f"{count} cases"
            why = f"memory has {cases} with an expert's value. Weighing them takes {MIN_CASES}"
        elif not is_weighed:
            why = (
                f"of {count} cases in memory with an expert's value {len(self._fair)} have the "
                f"judge's own verdict, too. Weighing it takes {MIN_CASES}"
            )
        elif self.leave_one_out is None:
            why = f"memory has fewer than {MIN_CASES} cases that are not near-duplicates"
            if len(self._distinct_values) == 1:
                why = "the experts gave all cases that count the same value"
        elif self.leave_one_out.weight is None:
            why = f"{measured}: not better beyond chance, each class counting alike"
        elif self.is_novel(neighbors):
            why = (
                "no case in memory is as similar to this one as cases there are to each other, "
                "near-duplicates aside"
            )
        elif is_compared and self.encoding.class_name(verdict) not in self._compared:
            why = "no expert has valued a case on which the judge gave a verdict like this one"
        return why

    def _probabilities(self, leave_one_out: LeaveOneOut, targets: Floats) -> Probabilities | None:
        """Return how likely each choice is the experts'."""
        if not self.encoding.choices:
            return None
        if not self.encoding.is_ordered:
            shares = np.clip(targets, _MIN_SHARE, None)
        else:
            distances = leave_one_out.estimates[:, 0] - self.truth[leave_one_out.rows]
            ranks = np.arange(len(self.encoding.names))
            shares = np.exp(-((ranks - targets) ** 2) / (2 * (distances**2).mean() + 0.1))
        return dict(zip(self.encoding.names, (shares / shares.sum()).tolist(), strict=True))

    def _numbers(self, estimates: Floats) -> Floats:
        """Return estimates as numbers on the scale, near the experts' values rounded to these."""
        if not self.encoding.is_ordered:
            return estimates.argmax(axis=-1).astype(float)
        low, span = self.encoding.low, self.encoding.span
        digits = 6 - floor(log10(span)) if self.encoding.tolerance else 0
        numbers = np.clip(np.round(estimates[..., 0], digits), low, low + span)
        known = self._distinct_values
        if len(known) > _MAX_DISTINCT_VALUES:
            return numbers
        nearest = known[np.abs(estimates - known).argmin(axis=-1)]
        step = np.diff(known).min(initial=span)
        # Beyond them: a memory with good cases alone does not make a bad one good.
        return np.where(np.abs(estimates[..., 0] - nearest) <= step / 2, nearest, numbers)

    def _scores(self, estimates: Floats, numbers: Floats, neighbors: Neighbors) -> Floats:
        """Score decisions by their choice's estimate, or by the distance of similar cases."""
        if not self.encoding.is_ordered:
            return estimates[np.arange(len(numbers)), numbers.astype(int)]
        distances = self.truth[neighbors.rows] - numbers[:, None]
        return -np.sqrt((neighbors.shares * distances**2).sum(axis=-1)) / self.encoding.span

    def calibration(self, kind: Kind) -> Calibration | None:
        """Return the calibration of a kind of confidence; None if past decisions are few."""
        if kind not in self._calibrations:
            self._calibrations[kind] = self._calibrate(kind)
        return self._calibrations[kind]

    def _calibrate(self, kind: Kind) -> Calibration | None:
        encoding = self.encoding
        leave_one_out = self.leave_one_out if kind != "stated" else None
        rows = self._judged if leave_one_out is None else leave_one_out.rows
        decisions = [
            (at, decision)
            for at, row in enumerate(rows)
            for decision in self.cases[row].decisions
            if kind == "estimate" or decision.verdict
            if kind != "stated" or not isnan(encoding.stated(decision.verdict))
        ]
        if len(decisions) < MIN_CALIBRATING:
            return None
        places = np.array([at for at, _ in decisions])
        verdicts = [decision.verdict for _, decision in decisions if decision.verdict]
        rows, numbers = rows[places], encoding.numbers([verdict.value for verdict in verdicts])
        # Without a score decisions are alike: only how often verdicts agree is known.
        scores = np.zeros(len(rows))
        if kind == "stated":
            scores = np.array([log_odds(encoding.stated(verdict)) for verdict in verdicts])
        elif leave_one_out is not None:
            estimates = leave_one_out.estimates[places]
            if leave_one_out.judge is not None:
                # From the estimate with the case's own verdict to that with the decision's.
                moves = encoding.verdict_rows(verdicts) - np.hsplit(self._targets[rows], 2)[1]
                moves *= leave_one_out.judge
                if leave_one_out.weight is not None:
                    moves = blend(numbers - self._verdicts[places], moves, leave_one_out.weight)
                estimates = estimates + moves
            if kind == "estimate":
                numbers = self._numbers(estimates)
            neighbors = Neighbors(*(array[rows] for array in self.regression.neighbors))
            scores = self._scores(estimates, numbers, neighbors)
        truth = encoding.numbers([decision.value for _, decision in decisions])
        agreed = np.abs(numbers - truth) <= encoding.tolerance
        # Calls that are always asked about say nothing of the calls that may run.
        classes = [
            None if decision.is_always_asked else name
            for name, (_, decision) in zip(encoding.class_names(numbers), decisions, strict=True)
        ]
        return Calibration(scores, agreed, rows, classes)

    def usual_kind(self, mode: Decide) -> Kind:
        """Return the usual kind of confidence."""
        if self.decides(mode):
            return "estimate"
        if self.calibration("stated") is not None:
            return "stated"
        return "verdict" if mode != "verdict" or not self.encoding.choices else "stated"

    def trust(self, kind: Kind, target: float) -> Trust:
        """Return the confidence of a kind from which on the experts agree as often as a target."""
        key = kind, target
        if key not in self._trusts:
            past = self.calibration(kind)
            once = past.by_class(self.regression.groups[past.rows]) if past else {}
            singly = past.by_class(np.arange(len(past.rows))) if past else {}
            is_scored = kind != "stated" and self.leave_one_out is not None
            level = LEFT_OUT_LEVEL if is_scored else LEVEL
            self._trusts[key] = find_threshold_by_verdict(once, target, level, singly)
        return self._trusts[key]
