"""The evidence model: experts' values of similar cases, with the judge's verdict as a feature.

It is a function of the cases in memory, and is refitted when the memory changes, so that what was
forgotten leaves no trace. Leave-one-out tells how far it can be trusted beside the judge: each case
in memory is also estimated without itself and its near-duplicates.

Source (`regression` names its own): D. H. Wolpert, Stacked generalization, 1992.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, isnan, log10, nan
from typing import Any, Literal

import numpy as np

from memalign_graph.agreement import consensus, values_agree
from memalign_graph.evidence.cases import EvidenceCase, ValueEncoding
from memalign_graph.evidence.regression import (
    NO_NEIGHBORS,
    Calibration,
    Floats,
    KernelRegression,
    Neighbors,
    class_loses,
    is_better,
)
from memalign_graph.evidence.threshold import Trust
from memalign_graph.evidence.verdicts import Decision, RawVerdict, log_odds
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Decide, Evidence, Neighbour

Kind = Literal["stated", "evidence"]
"""Of a confidence: what the judge states, or what the evidence measures."""

MIN_CASES = 10  # to weigh anything, and verdicts to weigh those
MIN_CALIBRATING = 20  # past decisions
SMALL = 1e-6  # of a similarity, what rounding may change
NOVELTY_QUANTILE = 0.05  # how rare it is to be as unlike all others: it takes 19 cases to tell

_MAX_COMPARED = 30
"""The newest verdicts that are compared: the judge learns, and its old verdicts are another's."""
_MAX_SHOWN = 10  # neighbors
_MAX_DISTINCT_VALUES = 12
"""Where experts use no more different numbers, estimates are rounded to these."""
_BLEND_PENALTY = 0.1
"""Of the ridge regression that blends verdict and estimate, in squares of the range."""
_BLEND_STEPS = (1.0, 0.75, 0.5, 0.25)
"""Parts of the fitted weight, tried in turn where a class would lose."""

_NO_VECTOR = "The verdict decides: the case has no embedding, so that no similar cases were found."
_UNLIKE = (
    "The verdict decides: no case in memory is as similar to this one as cases there are to each "
    "other, near-duplicates aside."
)
_TOO_FEW_DISTINCT = (
    "The verdict decides: memory has fewer than {} cases that are no near-duplicates."
)
_ONE_VALUE = "The verdict decides: the experts gave all cases that count the same value."


@dataclass(frozen=True)
class LeaveOneOut:
    """What the evidence says of the cases in memory, each left out with its near-duplicates."""

    rows: Floats
    """The cases with a verdict where they are enough, otherwise all."""
    judge: float | None
    """How far the verdict moves an estimate; None where too few cases have one."""
    weight: float
    """How far a decision goes from the baseline to the estimate; 0 where the verdict decides. The
    baseline is the judge's verdict; without verdicts the median, or the majority."""
    estimates: Floats
    """With the weight applied."""
    numbers: Floats
    errors: Floats
    baseline_errors: Floats
    curve: Calibration | None
    """How often unordered choices with some share of an estimate are the experts'."""


class EvidenceModel:
    """What decides, fitted to the cases of a memory; what is not needed is not fitted."""

    def __init__(self, scale: Scale, cases: Sequence[EvidenceCase], version: str = "") -> None:
        """Take cases in the order of their ids, and the version of the memory that has them."""
        self.cases, self.version = list(cases), version
        self.encoding = ValueEncoding(scale)
        self.truth = self.encoding.numbers([case.value for case in cases])
        self._distinct_values = np.unique(self.truth)
        verdicts = [case.verdict for case in cases if case.verdict]
        self._judged = np.array([row for row, case in enumerate(cases) if case.verdict], dtype=int)
        self._verdicts = self.encoding.numbers([verdict.value for verdict in verdicts])
        self._stated = [log_odds(self.encoding.stated(verdict)) for verdict in verdicts]
        # What experts say, then the judge: where it was not asked it counts as right.
        experts = self.encoding.rows([case.value for case in cases])
        judge = [case.verdict or RawVerdict(case.value) for case in cases]
        self._targets = np.hstack((experts, self.encoding.verdict_rows(judge)))
        self._calibrations: dict[tuple[Kind, bool], Calibration | None] = {}
        self.trusts: dict[tuple[Kind, bool, float], Trust] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes: those of its arrays."""
        fitted = vars(self.regression) if self.is_fitted and self.cases else {}
        arrays = [*vars(self).values(), *fitted.values(), *fitted.get("neighbors", ())]
        arrays += [case.vector for case in self.cases]
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    @property
    def is_fitted(self) -> bool:
        """Whether everything that takes long was computed."""
        return "leave_one_out" in vars(self)

    def needs_fit(self, mode: Decide) -> bool:
        """Tell whether a decision needs similar cases."""
        if mode == "verdict":
            return not self.encoding.choices
        return mode == "evidence" or len(self._judged) >= MIN_CASES

    def fit(self) -> None:
        """Fit the model: for 1,000 cases it takes some tenths of a second."""
        with self._lock:
            if self.cases:
                _ = self.regression
            _ = self.leave_one_out

    @cached_property
    def regression(self) -> KernelRegression:
        """What the experts said of like cases; there has to be one."""
        vectors = np.array([case.vector for case in self.cases])
        return KernelRegression(vectors, self._targets, self._targets.shape[1] // 2)

    @cached_property
    def expert_means(self) -> Floats:
        """What experts say of each case: a share of the range, or the share of each choice."""
        unit = self.encoding.span if self.encoding.is_ordered else 1.0
        rows = [self.encoding.rows(case.expert_values).mean(axis=0) for case in self.cases]
        return np.array(rows) / unit

    @cached_property
    def leave_one_out(self) -> LeaveOneOut | None:
        """What the evidence is worth; None where cases are few, or have all one value."""
        encoding, has_judge = self.encoding, len(self._judged) >= MIN_CASES
        rows = self._judged if has_judge else np.arange(len(self.cases))
        truth = self.truth[rows]
        if len(rows) < MIN_CASES or (truth == truth[0]).all():
            return None
        if len(np.unique(self.regression.groups[rows])) < MIN_CASES:
            return None
        experts, verdicts = np.hsplit(self._targets[rows], 2)
        estimates, usual = np.hsplit(self.regression.left_out[rows], 2)
        judge = None
        if has_judge:
            # How far the judge is from what it usually says of like cases moves the estimate.
            moves = verdicts - usual
            judge, without = _judge_coefficient(moves, experts - estimates, encoding.span)
            estimates = estimates + without[:, None] * moves
        baseline = self._verdicts if has_judge else self._baseline_without_judge(truth)
        weight = self._decision_weight(rows, baseline, estimates, has_judge=has_judge)
        if encoding.is_ordered and weight:
            estimates = _blend(baseline, estimates, weight)
        numbers, curve = self._numbers(estimates), None
        if not encoding.is_ordered:
            curve = Calibration.fitted(estimates.ravel(), (experts > 0).ravel())
        errors, baseline_errors = (encoding.errors(each, truth) for each in (numbers, baseline))
        return LeaveOneOut(rows, judge, weight, estimates, numbers, errors, baseline_errors, curve)

    def _baseline_without_judge(self, truth: Floats) -> Floats:
        """Return the median of the other cases for each, or the majority of all."""
        if not self.encoding.is_ordered:
            values = [case.value for case in self.cases]
            return self.encoding.numbers([consensus(values, self.encoding.scale)] * len(truth))
        return np.array([np.median(np.delete(truth, row)) for row in range(len(truth))])

    def _decision_weight(
        self, rows: Floats, baseline: Floats, estimates: Floats, *, has_judge: bool
    ) -> float:
        """Return how far decisions go from the baseline to the estimates, by past cases."""
        encoding, truth, groups = self.encoding, self.truth[rows], self.regression.groups[rows]
        newest, classes, kinds = np.arange(len(rows)), np.zeros(len(rows), int), np.zeros(1, int)
        if has_judge:
            times = [(self.cases[row].judged_at, row) for row in rows]
            newest = np.array(sorted(newest, key=lambda at: times[at])[-_MAX_COMPARED:])
            # One value for all is right on a class of its own: without verdicts the mean counts.
            classes, kinds = encoding.classes(truth), np.unique(encoding.classes(self.truth))
        classes, groups = classes[newest], groups[newest]

        def gains(weight: float) -> Floats:
            numbers = self._numbers(_blend(baseline, estimates, weight))
            gained = encoding.errors(baseline, truth) - encoding.errors(numbers, truth)
            return gained[newest] / (1.0 if encoding.choices else encoding.span)

        def wins_lately(gained: Floats) -> bool:
            """Tell whether the newest cases win: the judge may have learned of late."""
            return not has_judge or bool(gained[-MIN_CASES:].sum() > 0)

        if not encoding.is_ordered:
            gained = gains(1.0)
            return float(wins_lately(gained) and is_better(gained, classes, groups, kinds))
        weight = _blend_weight(
            (estimates[:, 0] - baseline)[newest] / encoding.span,
            (truth - baseline)[newest] / encoding.span,
            groups,
            pulled_to=0 if has_judge else 1,
        )
        if not has_judge:
            return weight
        for part in _BLEND_STEPS:
            gained = gains(part * weight)
            if wins_lately(gained) and not class_loses(gained, classes, groups, kinds):
                return part * weight
        return 0.0

    def leave_one_out_values(self) -> dict[str, tuple[Value, Floats]]:
        """Return what each example is estimated at without it: on the scale, and before."""
        leave_one_out = self.leave_one_out
        if leave_one_out is None:
            return {}
        values = map(self.encoding.value, leave_one_out.numbers.tolist())
        ids = [self.cases[row].example_id for row in leave_one_out.rows]
        return dict(zip(ids, zip(values, leave_one_out.estimates, strict=True), strict=True))

    def values_changed_by(self, new: EvidenceCase) -> list[tuple[EvidenceCase, Value, Value]]:
        """Tell which other cases would be estimated otherwise if memory had a case, or had it so.

        Each is left out, with what it is estimated at before and after; what moves most is first.
        """
        others = [case for case in self.cases if case.example_id != new.example_id]
        cases = sorted([*others, new], key=lambda case: case.example_id)
        changed = EvidenceModel(self.encoding.scale, cases)
        before, after = self.leave_one_out_values(), changed.leave_one_out_values()
        moves = []
        for case in others if before else ():
            if case.example_id in before and case.example_id in after:
                (was, here), (is_now, there) = before[case.example_id], after[case.example_id]
                if not values_agree(self.encoding.scale, was, is_now):
                    moves.append((float(np.abs(there - here).sum()), case, was, is_now))
        return [move[1:] for move in sorted(moves, key=lambda move: (-move[0], move[1].example_id))]

    def nearest(self, vector: Vector | None) -> Neighbors:
        """Find the cases that are most similar to a new one."""
        if vector is None or not self.cases:
            return NO_NEIGHBORS
        return self.regression.nearest(vector)

    def decides(self, mode: Decide) -> bool:
        """Tell whether the evidence decides."""
        if mode == "verdict" or not self.needs_fit(mode):
            return False
        return self.leave_one_out is not None and self.leave_one_out.weight > 0

    def is_like(self, neighbors: Neighbors) -> bool:
        """Tell whether a case is as near to memory's cases as those are to each other."""
        if not len(neighbors.rows):
            return False
        nearest_others = self.regression.neighbors.similarities[:, 0]
        rank = 1 + (nearest_others <= neighbors.similarities[0] + SMALL).sum()
        return bool(rank > NOVELTY_QUANTILE * (1 + len(self.cases)))

    def decide(self, verdict: RawVerdict, vector: Vector | None, mode: Decide) -> Decision:
        """Decide on a new case, by the cases nearest to it."""
        encoding, value, source = self.encoding, verdict.value, verdict.source
        confidence, evidence = encoding.stated(verdict), None
        kind: Kind = "stated"
        score, decides = log_odds(confidence), False
        # On a continuous scale there is no probability that a judge could state.
        if mode != "verdict" or (isnan(confidence) and not encoding.choices):
            neighbors = self.nearest(vector) if self.needs_fit(mode) else NO_NEIGHBORS
            decides = self.decides(mode) and self.is_like(neighbors)
            estimate, vote = self._estimate(verdict, vector, neighbors)
            evidence = self._explain(verdict, mode, neighbors, estimate, vote, decides=decides)
            if decides or (isnan(confidence) and len(neighbors.rows)):
                kind = source = "evidence"
                value = evidence.estimate if decides and evidence.estimate is not None else value
                confidence = (evidence.probabilities or {}).get(encoding.scale.render(value), nan)
                score = 0.0
                if estimate is not None:
                    numbers = encoding.numbers([value])
                    [score] = self._scores(estimate[None], numbers, neighbors)
        calibration = None if isnan(score) else self.calibration(kind, decides=decides)
        if calibration is not None:
            confidence = float(calibration.confidences(score))
        is_known = not isnan(confidence)
        return Decision(
            value=value,
            confidence=min(max(confidence, 0.0), 1.0) if is_known else None,
            confidence_source=source if is_known else None,
            calibrated_on=len(calibration.scores) if calibration else None,
            evidence=None if mode == "verdict" else evidence,
        )

    def _estimate(
        self, verdict: RawVerdict, vector: Vector | None, neighbors: Neighbors
    ) -> tuple[Floats, Floats]:
        """Estimate a new case, with the vote on it; None where nothing can be weighed."""
        if vector is None or not len(neighbors.rows) or self.leave_one_out is None:
            return None, None
        leave_one_out, encoding = self.leave_one_out, self.encoding
        both, vote = self.regression.estimate(vector, neighbors)
        estimate, usual = np.hsplit(both, 2)
        [stated] = encoding.verdict_rows([verdict])
        estimate = estimate + (leave_one_out.judge or 0.0) * (stated - usual)
        if encoding.is_ordered and leave_one_out.weight:
            [baseline] = encoding.numbers([verdict.value])
            if leave_one_out.judge is None:
                baseline = float(np.median(self.truth))
            estimate = baseline + leave_one_out.weight * (estimate - baseline)
        return estimate, vote

    def _scores(self, estimates: Floats, numbers: Floats, neighbors: Neighbors) -> Floats:
        """Score decisions: by their choice's estimate, or how near they are to like cases."""
        if not self.encoding.is_ordered:
            return estimates[np.arange(len(numbers)), numbers.astype(int)]
        distances = self.truth[neighbors.rows] - numbers[:, None]
        return -np.sqrt((neighbors.shares * distances**2).sum(axis=-1)) / self.encoding.span

    def _numbers(self, estimates: Floats) -> Floats:
        """Return estimates as numbers on the scale, as fine as experts give them."""
        if not self.encoding.is_ordered:
            return estimates.argmax(axis=-1).astype(float)
        if len(self._distinct_values) <= _MAX_DISTINCT_VALUES:
            return self._distinct_values[np.abs(estimates - self._distinct_values).argmin(axis=-1)]
        low, span = self.encoding.low, self.encoding.span
        digits = 6 - floor(log10(span)) if self.encoding.tolerance else 0
        return np.clip(np.round(estimates[..., 0], digits), low, low + span)

    def calibration(self, kind: Kind, *, decides: bool) -> Calibration | None:
        """Return how confidences of a kind are calibrated; None where past decisions are few."""
        key = kind, decides
        if key not in self._calibrations:
            self._calibrations[key] = self._calibrate(kind, decides=decides)
        return self._calibrations[key]

    def _calibrate(self, kind: Kind, *, decides: bool) -> Calibration | None:
        rows, numbers, scores = self._judged, self._verdicts, np.array(self._stated)
        leave_one_out = self.leave_one_out if kind == "evidence" else None
        if leave_one_out is not None:
            if not (decides or leave_one_out.judge is not None):
                return None
            rows, numbers = leave_one_out.rows, leave_one_out.numbers if decides else numbers
            neighbors = Neighbors(*(array[rows] for array in self.regression.neighbors))
            scores = self._scores(leave_one_out.estimates, numbers, neighbors)
        elif kind == "evidence":
            # Nothing tells decisions apart: how often verdicts agree is all that is known.
            scores = np.zeros(len(rows))
        known = ~np.isnan(scores)
        if known.sum() < MIN_CALIBRATING:
            return None
        agreed = np.abs(numbers - self.truth[rows]) <= self.encoding.tolerance
        values = list(map(self.encoding.value, numbers[known].tolist()))
        return Calibration.fitted(scores[known], agreed[known], rows[known], values)

    def usual_kind(self, mode: Decide) -> Kind:
        """Return the kind of confidence that most decisions have."""
        if not self.decides(mode) and self.calibration("stated", decides=False) is not None:
            return "stated"
        return "evidence" if mode != "verdict" or not self.encoding.choices else "stated"

    def _explain(
        self,
        verdict: RawVerdict,
        mode: Decide,
        neighbors: Neighbors,
        estimate: Floats,
        vote: Floats,
        *,
        decides: bool,
    ) -> Evidence:
        """Explain a decision: what decided, by which cases, and how good that is."""
        fields: dict[str, Any] = {"verdict": verdict.value, "cases": len(self.cases)}
        fields["decided_by"] = "evidence" if decides else "verdict"
        fields["reason"] = self._reason(mode)
        if not self.needs_fit(mode):
            return Evidence(**fields)
        encoding, leave_one_out = self.encoding, self.leave_one_out
        if leave_one_out is not None:
            fields |= self._quality(leave_one_out)
        if not len(neighbors.rows):
            return Evidence(**{**fields, "reason": _NO_VECTOR if self.cases else fields["reason"]})
        if leave_one_out is not None and leave_one_out.weight > 0 and not decides:
            fields["reason"] = _UNLIKE
        voters = zip(*(array[:_MAX_SHOWN].tolist() for array in neighbors), strict=True)
        fields["neighbours"] = [
            Neighbour(
                example_id=self.cases[row].example_id,
                episode_ids=self.cases[row].episode_ids,
                value=self.cases[row].value,
                similarity=similarity,
                weight=share,
            )
            for row, similarity, share in voters
        ]
        if estimate is not None and leave_one_out is not None:
            by_name = dict(zip(encoding.names, vote.tolist(), strict=False))
            fields["vote"] = float(vote[0]) if encoding.is_ordered else by_name
            fields["estimate"] = encoding.value(float(self._numbers(estimate)))
            fields["probabilities"] = self._probabilities(leave_one_out, estimate)
        return Evidence(**fields)

    def _quality(self, leave_one_out: LeaveOneOut) -> dict[str, Any]:
        """Return the fields that say how good the evidence is, and what makes it up."""
        fields: dict[str, Any] = {"evidence_error": float(leave_one_out.errors.mean())}
        # Of a verdict that is kept, the weights are those of the estimate beside it.
        weight, judge = leave_one_out.weight or 1.0, leave_one_out.judge
        fields["weights"] = {"neighbours": weight * (1 - (judge or 0.0))}
        if judge is not None:
            fields["verdict_error"] = float(leave_one_out.baseline_errors.mean())
            fields["weights"]["judge"] = 1 - weight + weight * judge
        return fields

    def _probabilities(self, leave_one_out: LeaveOneOut, row: Floats) -> dict[str, float] | None:
        """Return how likely each choice is the experts'."""
        if not self.encoding.choices:
            return None
        if leave_one_out.curve is not None:
            shares = leave_one_out.curve.confidences(row)
        else:
            distances = leave_one_out.estimates[:, 0] - self.truth[leave_one_out.rows]
            ranks = np.arange(len(self.encoding.names))
            shares = np.exp(-((ranks - row) ** 2) / (2 * (distances**2).mean() + 0.1))
        return dict(zip(self.encoding.names, (shares / shares.sum()).tolist(), strict=True))

    def _reason(self, mode: Decide) -> str:
        count, judged, leave_one_out = len(self.cases), len(self._judged), None
        if count < MIN_CASES:
            return (
                f"The verdict decides: memory has {count} case{'s' * (count != 1)} with an "
                f"expert's value, and it takes {MIN_CASES} to weigh them."
            )
        if not self.needs_fit(mode):
            return (
                f"The verdict decides: of {count} cases in memory with an expert's value {judged} "
                f"have the judge's own verdict, too, and it takes {MIN_CASES} to weigh it."
            )
        leave_one_out = self.leave_one_out
        if leave_one_out is None:
            is_varied = len(self._distinct_values) > 1
            return _TOO_FEW_DISTINCT.format(MIN_CASES) if is_varied else _ONE_VALUE
        who = "evidence" if leave_one_out.weight else "verdict"
        measure = "wrong on a share of" if self.encoding.choices else "off by"
        other = "one value for all" if leave_one_out.judge is None else "the judge's verdict"
        but = ": not better beyond chance, each class counting alike" * (not leave_one_out.weight)
        return (
            f"The {who} decides: on {len(leave_one_out.rows)} cases in memory, each left out, the "
            f"evidence is {measure} {leave_one_out.errors.mean():.3g}, and {other} "
            f"{leave_one_out.baseline_errors.mean():.3g}{but}."
        )


def _blend(baseline: Floats, estimates: Floats, weight: float) -> Floats:
    """Go from the baseline some of the way to estimates; of choices there is no way between."""
    if weight == 1 or estimates.shape[1] > 1:
        return estimates
    return baseline[:, None] + weight * (estimates - baseline[:, None])


def _blend_weight(moves: Floats, targets: Floats, groups: Floats, *, pulled_to: int) -> float:
    """Fit by ridge regression how far to go from a baseline to estimates, from 0 to 1.

    Moves and targets are shares of the range. The penalty pulls the weight to 0, the baseline, or
    to 1, the estimates. Near-duplicates, a group, count as one case.
    """
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    each = 1 / counts[index]
    hits, size = (each * moves * targets).sum(), (each * moves**2).sum()
    return float(np.clip((hits + _BLEND_PENALTY * pulled_to) / (size + _BLEND_PENALTY), 0, 1))


def _judge_coefficient(moves: Floats, targets: Floats, span: float) -> tuple[float, Floats]:
    """Fit by ridge regression how far moves go; also for each row without it."""
    hits, size = (moves * targets).sum(axis=1), (moves**2).sum(axis=1)
    without = (hits.sum() - hits) / (size.sum() - size + span**2)
    return max(float(hits.sum() / (size.sum() + span**2)), 0.0), np.maximum(without, 0.0)
