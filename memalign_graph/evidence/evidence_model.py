"""The evidence model: experts' values of similar cases, with the judge's verdict as a feature.

It is refitted when the memory changes, so that what was forgotten leaves no trace. Each case in
memory is also estimated without itself and its near-duplicates: that tells how far the model can be
trusted beside the judge.

Source (the regression names its own): D. H. Wolpert, Stacked generalization, 1992.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import floor, isnan, log10, nan
from typing import Any, Literal

import numpy as np

from memalign_graph.agreement import consensus, values_agree
from memalign_graph.evidence.calibration import Calibration
from memalign_graph.evidence.cases import Case, cases_at, is_present
from memalign_graph.evidence.compare import COUNTED, is_better, loses
from memalign_graph.evidence.encoding import ValueEncoding
from memalign_graph.evidence.features import CheckFeatures, log_odds
from memalign_graph.evidence.regression import (
    MAX_NEIGHBORS,
    Floats,
    KernelRegression,
    softmax_weights,
)
from memalign_graph.evidence.threshold import Trust
from memalign_graph.evidence.verdicts import Decision, RawVerdict
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Decide, Decider, Evidence, Neighbour

Kind = Literal["stated", "evidence"]  # of a confidence: what the judge states, or the evidence
MIN_CASES = 10  # to weigh anything; and so many verdicts to weigh those
MIN_CALIBRATING = 20  # decisions that experts spoke on
SMALL = 1e-6  # of a similarity, what rounding may change
COMPARED = 5  # of the most similar cases a majority is looked for among so many
_SHOWN = 10
_MAX_DISTINCT_VALUES = 12  # experts that use so few different numbers are followed in that
_UNKNOWN = "The verdict decides: the case has no embedding, so that no similar cases were found."
_UNLIKE = (
    "The verdict decides: no case in memory is as similar to this one as cases there are to each "
    "other, near-duplicates aside."
)
NOVELTY_QUANTILE = 0.05  # how rare it is to be as unlike all others: it takes 19 cases to tell
_TWINS = "The verdict decides: memory has fewer than {} cases that are no near-duplicates."

_PENALTY = 0.1
"""Of the ridge regression that blends the verdict and the estimate, in squares of the range."""

_SHARES_TRIED = (1.0, 0.75, 0.5, 0.25)  # of the way that are tried where a class would lose


Neighbors = tuple[Floats, Floats]
"""The places of the cases that are most similar to another, and how similar they are to it."""

_NO_NEIGHBORS: Neighbors = (np.zeros(0, int), np.zeros(0))


@dataclass(frozen=True)
class LeaveOneOut:
    """What the evidence says of the cases in memory, each left out."""

    rows: Floats  # those with a verdict where they are enough, else all
    judge: float | None  # how far the verdict moves an estimate; None where too few cases have one
    weight: float
    """How far a decision goes from the baseline to the estimate; 0 where the verdict decides. The
    baseline is the judge's verdict; without verdicts the median, or the majority."""
    estimates: Floats  # as far as decisions go
    numbers: Floats
    errors: Floats
    baseline_errors: Floats
    curve: Calibration | None
    """How often unordered choices with some share of an estimate are the experts'."""


class EvidenceModel:
    """What decides, fitted to a memory as it is; what is not asked for is not fitted."""

    def __init__(
        self,
        view: MemoryView,
        scale: Scale,
        vectors: Mapping[str, Vector],
        besides: Container[str] = (),
        judge_key: str | None = None,
    ) -> None:
        """Read the cases of some vectors; `besides` are ids of examples that have no vote.

        Verdicts count that the judge of this key gave; without one, that which gave the newest.
        """
        self.version = view.version
        self.encoding = ValueEncoding(scale)
        self.lock = threading.RLock()  # held while it is used: much of it is fitted then
        self.like: KernelRegression | None = None
        is_its = is_present(view, judge_key)
        cases = [
            case
            for key, vector in vectors.items()
            for case in cases_at(view, key, vector, scale, is_its)
            if case.example_id not in besides
        ]
        self.take(sorted(cases, key=lambda case: case.example_id))
        example_ids = [case.example_id for case in self.cases]
        self.features = CheckFeatures(view, scale, example_ids, least=MIN_CASES)

    def take(self, cases: list[Case]) -> None:
        self.cases = cases
        self._vectors = np.array([case.vector for case in cases])
        self.truth = self.encoding.numbers([case.value for case in self.cases])
        self._distinct_values = np.unique(self.truth)
        self._targets = self._targets_of(self.cases)
        self._judged = np.array([at for at, case in enumerate(self.cases) if case.said], dtype=int)
        said = [case.said for case in self.cases if case.said]
        self._verdicts = self.encoding.numbers([one.verdict for one in said])
        self._stated = np.array([self.encoding.stated(one) for one in said])
        self._calibrations: dict[tuple[Kind, bool], Calibration | None] = {}
        self.trusts: dict[tuple[Kind, bool, float], Trust] = {}

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes: those of its arrays."""
        parts = [*vars(self).values(), *vars(vars(self).get("regression", object)).values()]
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    def is_fitted(self, mode: Decide) -> bool:
        """Tell whether a decision needs no fit any more, or none at all."""
        needs_none = mode == "verdict" and self.encoding.choices
        return bool(needs_none or self._has_few_verdicts(mode) or "leave_one_out" in vars(self))

    def fit(self) -> None:
        """Fit what decisions need: for 1,000 cases it takes some tenths of a second."""
        with self.lock:
            _ = self.leave_one_out

    def values_changed_by(self, new: Case) -> list[tuple[Case, Value, Value]]:
        """Tell which other cases would be estimated otherwise if memory had a case, or had it so.

        Each is left out, with what it is estimated at before and after; what moves most is first.
        """
        other = copy(self)
        for name, kind in vars(EvidenceModel).items():
            if isinstance(kind, cached_property):
                vars(other).pop(name, None)
        other.like = self.regression
        kept = [case for case in self.cases if case.example_id != new.example_id]
        other.take(sorted([*kept, new], key=lambda case: case.example_id))
        before, after = self.left_out(), other.left_out()
        moves = []
        for case in kept if before else ():
            if case.example_id in before and case.example_id in after:
                (was, here), (is_now, there) = before[case.example_id], after[case.example_id]
                if not values_agree(self.encoding.scale, was, is_now):
                    moves.append((float(np.abs(there - here).sum()), case, was, is_now))
        return [move[1:] for move in sorted(moves, key=lambda move: (-move[0], move[1].example_id))]

    def left_out(self) -> dict[str, tuple[Value, Floats]]:
        """Return what each example is estimated at without it: on the scale, and before."""
        leave_one_out = self.leave_one_out
        if leave_one_out is None:
            return {}
        values = map(self.encoding.value, leave_one_out.numbers.tolist())
        keys = [self.cases[row].example_id for row in leave_one_out.rows]
        return dict(zip(keys, zip(values, leave_one_out.estimates, strict=True), strict=True))

    @cached_property
    def regression(self) -> KernelRegression:
        """What the experts said of like cases; there has to be one."""
        width, features = self._targets.shape[1] // 2, None
        if self.features.count:
            features = self.features.rows([case.example_id for case in self.cases])
        return KernelRegression(self._vectors, self._targets, width, features, like=self.like)

    @cached_property
    def leave_one_out(self) -> LeaveOneOut | None:
        """What the evidence is worth; None where cases are few, or have all one value."""
        encoding, has_judge = self.encoding, len(self._judged) >= MIN_CASES
        rows = self._judged if has_judge else np.arange(len(self.cases))
        truth = self.truth[rows]
        if len(rows) < MIN_CASES or (truth == truth[0]).all():
            return None
        groups = self.regression.groups[rows]
        if len(np.unique(groups)) < MIN_CASES:
            return None
        experts, said = np.hsplit(self._targets[rows], 2)
        estimates, usual = np.hsplit(self.regression.left_out()[rows], 2)
        judge = None
        if has_judge:
            # How far the judge is from what it usually says of like cases moves the estimate.
            moves = said - usual
            judge, without = _judge_coefficient(moves, experts - estimates, encoding.span)
            estimates = estimates + without[:, None] * moves
            baseline = self._verdicts
            times = [self.cases[row].judged_at for row in rows]
            newest = np.array(sorted(range(len(rows)), key=lambda at: (times[at], at))[-COUNTED:])
        else:
            baseline, newest = self._left_out_usual(truth), np.arange(len(rows))
        # One value for all is right on a class of its own: against that the mean counts.
        classes = encoding.classes(truth) if has_judge else np.zeros(len(rows), int)
        kinds = np.unique(encoding.classes(self.truth) if has_judge else classes)
        unit = 1.0 if encoding.choices else encoding.span

        def gains(weight: float) -> Floats:
            numbers = self._numbers(_blend(baseline, estimates, weight))
            gained = encoding.errors(baseline, truth) - encoding.errors(numbers, truth)
            return gained[newest] / unit

        def is_safe(weight: float) -> bool:
            """Tell whether no class loses beyond chance, and the newest cases win."""
            gained = gains(weight)
            return bool(gained[-MIN_CASES:].sum() > 0) and not loses(
                gained, classes[newest], groups[newest], kinds
            )

        if encoding.is_ordered:
            weight = _blend_weight(
                (estimates[:, 0] - baseline)[newest] / encoding.span,
                (truth - baseline)[newest] / encoding.span,
                groups[newest],
                pulled_to=0 if has_judge else 1,
            )
            if has_judge:
                tried = [share * weight for share in _SHARES_TRIED]
                weight = next(filter(is_safe, tried), 0.0)
        else:
            gained = gains(1.0)
            # The judge may have learned of late.
            is_still = not has_judge or bool(gained[-MIN_CASES:].sum() > 0)
            weight = float(is_still and is_better(gained, classes[newest], groups[newest], kinds))
        if encoding.is_ordered and weight:
            estimates = _blend(baseline, estimates, weight)
        numbers = self._numbers(estimates)
        errors, others = (encoding.errors(those, truth) for those in (numbers, baseline))
        curve = None
        if not encoding.is_ordered:
            curve = Calibration.fitted(estimates.ravel(), (experts > 0).ravel())
        return LeaveOneOut(rows, judge, weight, estimates, numbers, errors, others, curve)

    def _left_out_usual(self, truth: Floats) -> Floats:
        """Return what fits most of the other cases: their median, or the majority of all."""
        if not self.encoding.is_ordered:
            values = [case.value for case in self.cases]
            return self.encoding.numbers([consensus(values, self.encoding.scale)] * len(truth))
        return np.array([np.median(np.delete(truth, at)) for at in range(len(truth))])

    @cached_property
    def value_spread(self) -> Floats:
        """How far the values of the cases most similar to each other one are apart."""
        return value_spread(self.expert_means(self.cases)[self.regression.nearest[:, :COMPARED]])

    def expert_means(self, cases: Sequence[Case]) -> Floats:
        """Return what experts say of each: a share of the range, or the share of each choice."""
        return np.array([self.encoding.rows(case.given).mean(axis=0) for case in cases]) / (
            self.encoding.span if self.encoding.is_ordered else 1.0
        )

    def nearest(self, vector: Vector | None) -> Neighbors:
        """Find the cases that are most similar to a new one."""
        if vector is None or not self.cases:
            return _NO_NEIGHBORS
        similarities = self._vectors @ vector
        # Beyond some digits the order of a sum shows.
        rows = np.argsort(-np.round(similarities, 6), kind="stable")[:MAX_NEIGHBORS]
        return rows, similarities[rows]

    def decides(self, mode: Decide) -> bool:
        """Tell whether the evidence decides."""
        if mode == "verdict" or self._has_few_verdicts(mode):
            return False
        leave_one_out = self.leave_one_out
        return leave_one_out is not None and leave_one_out.weight > 0

    def is_like(self, similarities: Floats) -> bool:
        """Tell whether a case is as near to memory's cases as those are to each other."""
        if not len(similarities):
            return False
        own = self.regression.similarities[:, 0]
        # Where checks tell which cases are alike, texts may differ.
        share = NOVELTY_QUANTILE * (1 - self.regression.share)
        return bool(1 + (own <= similarities[0] + SMALL).sum() > share * (1 + len(own)))

    def _has_few_verdicts(self, mode: Decide) -> bool:
        """Tell whether nothing has to be fitted, since the verdict decides whatever it says."""
        return mode == "auto" and len(self._judged) < MIN_CASES

    def calibration(self, kind: Kind, mode: Decide) -> Calibration | None:
        """Return how confidences of a kind are calibrated; None where decisions are few."""
        return self._calibration(kind, decides=self.decides(mode))

    def _calibration(self, kind: Kind, *, decides: bool) -> Calibration | None:
        key = kind, decides
        if key not in self._calibrations:
            self._calibrations[key] = self._calibrate(kind, decides=decides)
        return self._calibrations[key]

    def past_decisions(self, kind: Kind, *, decides: bool) -> dict[str, list[tuple[float, float]]]:
        """Return the confidence of past decisions by verdict, and how far they agree.

        Near-duplicates with one verdict count as one decision, with their means.
        """
        calibration = self._calibration(kind, decides=decides)
        by_group: dict[tuple[str, int], list[tuple[float, bool]]] = defaultdict(list)
        if calibration is not None:
            groups = self.regression.groups[calibration.rows].tolist()
            every = zip(calibration.values, groups, calibration.decisions, strict=True)
            for value, group, decision in every:
                by_group[self.encoding.class_of(value), group].append(decision)
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (name, _), some in by_group.items():
            confidence, share = np.mean(some, axis=0).tolist()
            found[name].append((confidence, share))
        return found

    def _calibrate(self, kind: Kind, *, decides: bool) -> Calibration | None:
        rows, numbers, scores = self._judged, self._verdicts, log_odds(self._stated)
        leave_one_out = self.leave_one_out if kind == "evidence" else None
        if kind == "evidence" and leave_one_out is None:
            # Nothing tells decisions apart: how often verdicts agree is all that is known.
            scores = np.zeros(len(rows))
        elif leave_one_out is not None:
            if not (decides or leave_one_out.judge is not None):
                return None
            rows, numbers = leave_one_out.rows, leave_one_out.numbers if decides else numbers
            shares, voters = self.regression.shares[rows], self.regression.nearest[rows]
            scores = self._scores(leave_one_out.estimates, numbers, shares, self.truth[voters])
        known = ~np.isnan(scores)
        if known.sum() < MIN_CALIBRATING:
            return None
        agreed = np.abs(numbers - self.truth[rows]) <= self.encoding.near
        values = list(map(self.encoding.value, numbers[known].tolist()))
        return Calibration.fitted(scores[known], agreed[known], rows[known], values)

    def usual_kind(self, mode: Decide) -> Kind:
        """Return the kind of confidence that decisions have, but for some."""
        if not self.decides(mode) and self.calibration("stated", mode) is not None:
            return "stated"
        return "evidence" if mode != "verdict" or not self.encoding.choices else "stated"

    def decide(self, said: RawVerdict, vector: Vector | None, mode: Decide) -> Decision:
        """Decide on a new case, by the cases nearest to it."""
        encoding, value, source = self.encoding, said.verdict, said.source
        confidence, evidence = encoding.stated(said), None
        kind: Kind = "stated"
        score, decides = log_odds(confidence), False
        # On a continuous scale there is no probability that a judge could state.
        if mode != "verdict" or (isnan(confidence) and not encoding.choices):
            near = _NO_NEIGHBORS if self._has_few_verdicts(mode) else self.nearest(vector)
            decides = self.decides(mode) and self.is_like(near[1])
            evidence, score_of = self._evidence(said, vector, mode, near, decides=decides)
            if score_of is not None and (decides or isnan(confidence)):
                kind = source = "evidence"
                value = value if evidence.estimate is None or not decides else evidence.estimate
                confidence = (evidence.probabilities or {}).get(encoding.scale.render(value), nan)
                score = score_of(value)
        calibration = None
        if not isnan(score):
            calibration = self._calibration(kind, decides=decides)
        if calibration is not None:
            confidence = float(calibration.confidences(score))
        known = not isnan(confidence)
        return Decision(
            value=value,
            confidence=min(max(confidence, 0.0), 1.0) if known else None,
            confidence_source=source if known else None,
            calibrated_on=len(calibration.scores) if calibration else None,
            evidence=None if mode == "verdict" else evidence,
        )

    def _targets_of(self, cases: Sequence[Case]) -> Floats:
        """Return what experts say, then the judge: where it was not asked it counts as right."""
        experts = self.encoding.rows([case.value for case in cases])
        judge = self.encoding.believed([case.said or RawVerdict(case.value) for case in cases])
        return np.hstack((experts, judge))

    def _numbers(self, estimates: Floats) -> Floats:
        """Return estimates as numbers on the scale, as fine as experts give them."""
        if not self.encoding.is_ordered:
            return estimates.argmax(axis=-1).astype(float)
        if len(self._distinct_values) <= _MAX_DISTINCT_VALUES:
            return self._distinct_values[np.abs(estimates - self._distinct_values).argmin(axis=-1)]
        low, span = self.encoding.low, self.encoding.span
        digits = 6 - floor(log10(span)) if self.encoding.near else 0
        return np.clip(np.round(estimates[..., 0], digits), low, low + span)

    def _scores(self, estimates: Floats, numbers: Floats, shares: Floats, given: Floats) -> Floats:
        """Score decisions: by their choice's estimate, or how near they are to like cases."""
        if not self.encoding.is_ordered:
            return estimates[np.arange(len(numbers)), numbers.astype(int)]
        squares = (shares * (given - numbers[:, None]) ** 2).sum(axis=1)
        return -np.sqrt(squares) / self.encoding.span

    def _chances(self, leave_one_out: LeaveOneOut, estimate: Floats) -> dict[str, float] | None:
        """Return how likely each choice is the experts'."""
        encoding = self.encoding
        if not encoding.choices:
            return None
        if leave_one_out.curve is not None:
            chances = leave_one_out.curve.confidences(estimate)
        else:
            off = leave_one_out.estimates[:, 0] - self.truth[leave_one_out.rows]
            ranks = np.arange(len(encoding.names))
            chances = np.exp(-((ranks - estimate) ** 2) / (2 * (off**2).mean() + 0.1))
        return dict(zip(encoding.names, (chances / chances.sum()).tolist(), strict=True))

    def _evidence(
        self,
        said: RawVerdict,
        vector: Vector | None,
        mode: Decide,
        near: Neighbors,
        *,
        decides: bool,
    ) -> tuple[Evidence, Callable[[Any], float] | None]:
        """Return what the evidence says of a new case, and what scores a decision on it."""
        fields: dict[str, Any] = {"verdict": said.verdict, "cases": len(self.cases)}
        if self._has_few_verdicts(mode):
            return Evidence(decided_by="verdict", reason=self._reason(mode), **fields), None
        encoding, leave_one_out = self.encoding, self.leave_one_out
        if leave_one_out is not None:
            fields["evidence_error"] = float(leave_one_out.errors.mean())
            # Of a verdict that is kept, the weights are those of the estimate beside it.
            weight = leave_one_out.weight or 1.0
            fields["weights"] = {"neighbours": weight * (1 - (leave_one_out.judge or 0.0))}
            if leave_one_out.judge is not None:
                fields["verdict_error"] = float(leave_one_out.baseline_errors.mean())
                fields["weights"]["judge"] = 1 - weight + weight * leave_one_out.judge
            if self.features.count:
                fields["weights"]["checks"] = self.regression.share
        rows, similarities = near
        if vector is None or not len(rows):
            reason = _UNKNOWN if self.cases else self._reason(mode)
            return Evidence(decided_by="verdict", reason=reason, **fields), None
        shares = softmax_weights(similarities[None], self.regression.temperature)
        cases = [self.cases[row] for row in rows[:_SHOWN]]
        votes = zip(cases, similarities.tolist(), shares[0].tolist(), strict=False)
        fields["neighbours"] = [
            Neighbour(
                example_id=case.example_id,
                episode_ids=case.episode_ids,
                value=case.value,
                similarity=similarity,
                weight=share,
            )
            for case, similarity, share in votes
        ]
        decider: Decider = "evidence" if decides else "verdict"
        is_unlike = leave_one_out is not None and leave_one_out.weight > 0 and not decides
        fields |= {"decided_by": decider, "reason": _UNLIKE if is_unlike else self._reason(mode)}
        if leave_one_out is None:
            has_any = self._calibration("evidence", decides=False) is not None
            return Evidence(**fields), (lambda _: 0.0) if has_any else None
        targets = self._targets[rows]
        [vote] = shares @ targets
        features = self.features.row(said.checks) if self.features.count else None
        both = self.regression.estimate(vector, vote, features)
        estimate, usual = np.hsplit(both, 2)
        estimate = estimate + (leave_one_out.judge or 0.0) * (encoding.believed([said])[0] - usual)
        if encoding.is_ordered and leave_one_out.weight:
            [verdict] = encoding.numbers([said.verdict])
            baseline = float(np.median(self.truth)) if leave_one_out.judge is None else verdict
            estimate = baseline + leave_one_out.weight * (estimate - baseline)
        given = dict(zip(encoding.names, vote.tolist(), strict=False))
        fields["vote"] = float(vote[0]) if encoding.is_ordered else given
        fields["estimate"] = encoding.value(float(self._numbers(estimate)))
        fields["probabilities"] = self._chances(leave_one_out, estimate)

        def score_of(value: Value) -> float:
            numbers = encoding.numbers([value])
            return float(self._scores(estimate[None], numbers, shares, targets[None, :, 0])[0])

        return Evidence(**fields), score_of

    def _reason(self, mode: Decide) -> str:
        count, judged = len(self.cases), len(self._judged)
        if count < MIN_CASES:
            return (
                f"The verdict decides: memory has {count} case{'s' * (count != 1)} with an "
                f"expert's value, and it takes {MIN_CASES} to weigh them."
            )
        if self._has_few_verdicts(mode):
            return (
                f"The verdict decides: of {count} cases in memory with an expert's value {judged} "
                f"have the judge's own verdict, too, and it takes {MIN_CASES} to weigh it."
            )
        leave_one_out = self.leave_one_out
        if leave_one_out is None and len(np.unique(self.truth)) > 1:
            return _TWINS.format(MIN_CASES)
        if leave_one_out is None:
            return "The verdict decides: the experts gave all cases that count the same value."
        off, rival = leave_one_out.errors.mean(), leave_one_out.baseline_errors.mean()
        who = "evidence" if leave_one_out.weight else "verdict"
        what = "wrong on a share of" if self.encoding.choices else "off by"
        whose = "one value for all" if leave_one_out.judge is None else "the judge's verdict"
        but = (
            "" if leave_one_out.weight else ": not better beyond chance, each class counting alike"
        )
        checks = self.features.count if self.regression.share else 0
        besides = f", with {checks} check{'s' * (checks != 1)}," if checks else ""
        return (
            f"The {who} decides: on {len(leave_one_out.rows)} cases in memory, each left out, the "
            f"evidence{besides} is {what} {off:.3g}, and {whose} {rival:.3g}{but}."
        )


def value_spread(means: Floats) -> Floats:
    """Measure how far values are apart: the span of their middle half, or the minority's share."""
    if not means.shape[1]:
        return np.zeros(len(means))
    if means.shape[2] == 1:
        return np.quantile(means[:, :, 0], [0.25, 0.75], axis=1).T @ [-1, 1]
    return 1 - means.mean(axis=1).max(axis=1)


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
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    each = 1 / counts[place]
    hits, size = (each * moves * targets).sum(), (each * moves**2).sum()
    return float(np.clip((hits + _PENALTY * pulled_to) / (size + _PENALTY), 0, 1))


def _judge_coefficient(moves: Floats, targets: Floats, span: float) -> tuple[float, Floats]:
    """Fit by ridge regression how far moves go; also for each row without it."""
    hits, size = (moves * targets).sum(axis=1), (moves**2).sum(axis=1)
    without = (hits.sum() - hits) / (size.sum() - size + span**2)
    return max(float(hits.sum() / (size.sum() + span**2)), 0.0), np.maximum(without, 0.0)
