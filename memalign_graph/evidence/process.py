"""What experts said of like cases, as kernel regression, with the judge's verdict as a feature.

Fitted anew when memory changed, so that what was forgotten leaves no trace. Each case left out of
what is said of it, the fit tells how good it is; it decides only where that is beyond chance.

Sources (the regression names its own):
A. Datta et al., Hierarchical nearest-neighbor Gaussian process models, 2016;
D. H. Wolpert, Stacked generalization, 1992; J. Platt, Probabilistic outputs for support vector
machines, 1999.
"""

import asyncio
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from itertools import islice
from math import floor, isnan, log10, nan
from typing import Any, Literal

import numpy as np

from memalign_graph.agreement import agree, majority, on_scale, reach
from memalign_graph.errors import EmbeddingError
from memalign_graph.evidence.compare import COUNTED, is_better, loses
from memalign_graph.evidence.confidence import Decision, Said
from memalign_graph.evidence.features import Features, log_odds
from memalign_graph.evidence.regression import VOTERS, Floats, Regression, soft
from memalign_graph.evidence.trust import Trust
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.cache import evict_views
from memalign_graph.memory.embedding import index_missing
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.standing import EpisodeRow, JudgedRow
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import name_in_key
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import Decide, Decider, Evidence, Neighbour

logger = logging.getLogger(__name__)

Kind = Literal["stated", "evidence"]  # of a confidence: what the judge states, or the evidence
MIN_CASES = 10  # to weigh anything; and so many verdicts to weigh those
MIN_CALIBRATING = 20  # decisions that experts spoke on
MAX_CASES = 1_000  # the newest: more would take seconds at each change of a memory
SMALL = 1e-6  # of a similarity, what rounding may change
COMPARED = 5  # of the most similar cases a majority is looked for among so many
_SHOWN = 10
_FEW_MARKS = 12  # experts that use so few different numbers are followed in that
_MOVED = (
    "The memory changed before the judge was asked: similar cases are weighed as of version {}."
)
_UNKNOWN = "The verdict decides: the case has no embedding, so that no similar cases were found."
_UNLIKE = (
    "The verdict decides: no case in memory is as similar to this one as cases there are to each "
    "other, near-duplicates aside."
)
UNLIKE_SHARE = 0.05  # how rare it is to be as unlike all others: it takes 19 cases to tell
_TWINS = "The verdict decides: memory has fewer than {} cases that are no near-duplicates."

_THIRDS = ("low", "middle", "high")

_PENALTY = 0.1
"""Of the ridge regression that blends the verdict and the estimate, in squares of the range."""

_PARTS = (1.0, 0.75, 0.5, 0.25)  # of the way that are tried where a class would lose

_LEAST_SLOPE = 1e-3
"""Calibrated confidences keep the order of their scores: ranked by what was fitted to their own
labels, decisions would look better than they are."""


@dataclass(frozen=True)
class Case:
    """An example that experts valued, and what the present judge said before it could know that."""

    key: str
    """Of its vector, which examples with one text share."""
    vector: Vector
    example_id: str
    episode_ids: list[str]
    given: list[Value]
    value: Value
    said: Said | None
    judged_at: datetime
    """When feedback on that verdict was given."""


IsPresent = Callable[[JudgedRow], bool]
"""Whether a stored verdict is the present judge's."""


def is_present(view: MemoryView, judge_key: str | None) -> IsPresent:
    """Return what tells verdicts of a judge; without a key, of that which gave the newest one."""
    name: str | None = name_in_key(judge_key or "")
    if judge_key is None:
        newest = next((row.judged for row in view.newest() if row.judged is not None), None)
        judge_key, name = (newest.judge_key, newest.model) if newest else (None, None)

    def is_its(judged: JudgedRow) -> bool:
        if judged.judge_key is not None or not (name or judge_key is None):
            return judged.judge_key == judge_key
        # Stored by an earlier version: the model's name has to do.
        return name in (judged.model, judged.model and _DATE.sub("", judged.model))

    return is_its


_DATE = re.compile(r"-\d{4}-\d{2}-\d{2}$")  # what a provider adds to the name that was asked for


def _cases_at(
    view: MemoryView, key: str, vector: Vector, scale: Scale, is_its: IsPresent
) -> list[Case]:
    """Return the cases whose examples have a vector."""
    by_example: dict[str, list[EpisodeRow]] = defaultdict(list)
    for row in sorted(view.rows_at(key), key=lambda row: (row.given_at, row.id)):
        by_example[row.example_id].append(row)
    cases = (_case_of(key, vector, by_example[one], scale, is_its) for one in sorted(by_example))
    return [case for case in cases if case]


def _case_of(
    key: str, vector: Vector, rows: list[EpisodeRow], scale: Scale, is_its: IsPresent
) -> Case | None:
    given = [value for row in rows if (value := on_scale(row.value, scale)) is not None]
    if not given:
        return None
    ids, said, judged_at = sorted(row.id for row in rows), None, rows[0].given_at
    for row in reversed(rows):
        judged = row.judged
        if judged is not None and is_its(judged) and set(ids).isdisjoint(judged.shown):
            verdict = on_scale(judged.verdict, scale)
            if verdict is not None:
                said, judged_at = Said(verdict, judged.probabilities), row.given_at
    value = majority(given, scale) if given[1:] else given[0]
    return Case(key, vector, rows[0].example_id, ids, given, value, said, judged_at)


Near = tuple[Floats, Floats]
"""The places of the cases that are most similar to another, and how similar they are to it."""


class Encoding:
    """How values are regressed on: numbers and choices in order as positions, others one-hot."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.choices: Sequence[Value] = ()
        self.low, self.near = 0.0, 0.0
        if isinstance(scale, Numeric):
            self.low, self.span = scale.minimum, scale.maximum - scale.minimum
            self.near = 0.0 if scale.integer else reach(scale)
        else:
            self.choices = (True, False) if isinstance(scale, Boolean) else scale.choices
            self.span = len(self.choices) - 1.0
        self.names = [scale.render(choice) for choice in self.choices]
        ranks = isinstance(scale, Categorical) and scale.ordered
        self.is_ordered = ranks or isinstance(scale, Numeric)

    def numbers(self, values: Sequence[Value]) -> Floats:
        """Return numbers themselves, or the places of choices."""
        places = [self.choices.index(value) for value in values] if self.choices else values
        return np.array(places, dtype=float)

    def value(self, number: float) -> Value:
        """Return the value that a number stands for."""
        return self.choices[int(number)] if self.choices else self.scale.validate_value(number)

    def rows(self, values: Sequence[Value]) -> Floats:
        """Return values as rows of targets."""
        numbers = self.numbers(values)[:, None]
        return numbers if self.is_ordered else (numbers == np.arange(len(self.names))).astype(float)

    def classes(self, numbers: Floats) -> Floats:
        """Return which choice numbers are, or which third of an ordered scale they are in."""
        if not self.is_ordered:
            return numbers.astype(int)
        return np.clip(np.floor(3 * (numbers - self.low) / self.span), 0, 2).astype(int)

    def class_of(self, value: Value) -> str:
        """Name the class of a value."""
        [number] = self.classes(self.numbers([value]))
        return _THIRDS[number] if self.is_ordered else self.names[number]

    def errors(self, numbers: Floats, truth: Floats) -> Floats:
        """Measure how far numbers are off: the distance, of choices 0 or 1."""
        off = np.abs(numbers - truth)
        return (off > 0).astype(float) if self.choices else off

    def believed(self, said: Sequence[Said]) -> Floats:
        """Return the judge's probabilities as rows of targets; its verdicts where it has none.

        In an order they come to the mean of the values that they name.
        """
        rows = self.rows([one.verdict for one in said])
        for at, one in enumerate(said):
            shares = one.probabilities or {}
            if self.is_ordered:
                named = [(on_scale(name, self.scale), share) for name, share in shares.items()]
                known = [(value, share) for value, share in named if value is not None]
                if sum(share for _, share in known) > 0:
                    values, weights = zip(*known, strict=True)
                    rows[at] = np.average(self.numbers(values), weights=weights)
            elif all(name in shares for name in self.names):
                rows[at] = [shares[name] for name in self.names]
        return rows

    def stated(self, said: Said) -> float:
        """Return how likely the judge holds its verdict; NaN where that was not measured."""
        return (said.probabilities or {}).get(self.scale.render(said.verdict), nan)


@dataclass(frozen=True)
class Calibration:
    """How often decisions of some score were right: a logistic curve that rises."""

    scores: Floats
    agreed: Floats
    slope: float
    intercept: float
    rows: Floats = ()
    """The cases that were decided on, by their place in memory."""
    values: Sequence[Value] = ()
    """What was decided."""

    @classmethod
    def fitted(
        cls, scores: Floats, agreed: Floats, rows: Floats = (), values: Sequence[Value] = ()
    ) -> "Calibration":
        """Fit it to decisions that experts spoke on."""
        right = int(agreed.sum())
        targets = np.where(agreed, (right + 1) / (right + 2), 1 / (len(agreed) - right + 2))
        features, penalty = np.stack((scores, np.ones_like(scores)), axis=1), np.diag([1.0, 1e-6])
        found = np.zeros(2)
        for _ in range(50):
            fitted = _sigmoid(features @ found)
            gradient = features.T @ (fitted - targets) + penalty @ found
            curvature = features.T @ (features * (fitted * (1 - fitted))[:, None]) + penalty
            # No further than 1: a full step may lead too far where the curve flattens.
            found = found - np.clip(np.linalg.solve(curvature, gradient), -1, 1)
        if found[0] < _LEAST_SLOPE:
            found = np.array([_LEAST_SLOPE, log_odds(targets.mean())])
        slope, intercept = found.tolist()
        return cls(scores, agreed, slope, intercept, rows, values)

    def confidences(self, scores: Floats) -> Floats:
        """Return how likely decisions are right."""
        return _sigmoid(self.slope * scores + self.intercept)

    @property
    def decisions(self) -> list[tuple[float, bool]]:
        """The confidence of each decision in memory, and whether it agrees with the experts."""
        confidences = self.confidences(self.scores).tolist()
        return list(zip(confidences, self.agreed.tolist(), strict=True))


@dataclass(frozen=True)
class Weighing:
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
    curve: Calibration
    """How often choices that have some share of an estimate are the experts'."""


class Process:
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
        self.encoding = Encoding(scale)
        self.lock = threading.RLock()  # held while it is used: much of it is fitted then
        self.like: Regression | None = None
        is_its = is_present(view, judge_key)
        cases = [
            case
            for key, vector in vectors.items()
            for case in _cases_at(view, key, vector, scale, is_its)
            if case.example_id not in besides
        ]
        self.take(sorted(cases, key=lambda case: case.example_id))
        example_ids = [case.example_id for case in self.cases]
        self.features = Features(view, scale, example_ids, least=MIN_CASES)

    def take(self, cases: list[Case]) -> None:
        self.cases = cases
        self._vectors = np.array([case.vector for case in cases])
        self.truth = self.encoding.numbers([case.value for case in self.cases])
        self._marks = np.unique(self.truth)
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
        return bool(needs_none or self._has_few_verdicts(mode) or "weighing" in vars(self))

    def fit(self) -> None:
        """Fit what decisions need: for 1,000 cases it takes some tenths of a second."""
        with self.lock:
            _ = self.weighing

    def turned_by(self, new: Case) -> list[tuple[Case, Value, Value]]:
        """Tell which other cases would be estimated otherwise if memory had a case, or had it so.

        Each is left out, with what it is estimated at before and after; what moves most is first.
        """
        other = copy(self)
        for name, kind in vars(Process).items():
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
                if not agree(self.encoding.scale, was, is_now):
                    moves.append((float(np.abs(there - here).sum()), case, was, is_now))
        return [move[1:] for move in sorted(moves, key=lambda move: (-move[0], move[1].example_id))]

    def left_out(self) -> dict[str, tuple[Value, Floats]]:
        """Return what each example is estimated at without it: on the scale, and before."""
        weighing = self.weighing
        if weighing is None:
            return {}
        values = map(self.encoding.value, weighing.numbers.tolist())
        keys = [self.cases[row].example_id for row in weighing.rows]
        return dict(zip(keys, zip(values, weighing.estimates, strict=True), strict=True))

    @cached_property
    def regression(self) -> Regression:
        """What the experts said of like cases; there has to be one."""
        width, features = self._targets.shape[1] // 2, None
        if self.features.count:
            features = self.features.rows([case.example_id for case in self.cases])
        return Regression(self._vectors, self._targets, width, features, like=self.like)

    @cached_property
    def weighing(self) -> Weighing | None:
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
            judge, without = _share(moves, experts - estimates, encoding.span)
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
                weight = next((part * weight for part in _PARTS if is_safe(part * weight)), 0.0)
        else:
            gained = gains(1.0)
            # The judge may have learned of late.
            is_still = not has_judge or bool(gained[-MIN_CASES:].sum() > 0)
            weight = float(is_still and is_better(gained, classes[newest], groups[newest], kinds))
        if encoding.is_ordered and weight:
            estimates = _blend(baseline, estimates, weight)
        numbers = self._numbers(estimates)
        errors, others = (encoding.errors(those, truth) for those in (numbers, baseline))
        curve = Calibration.fitted(estimates.ravel(), (experts > 0).ravel())
        return Weighing(rows, judge, weight, estimates, numbers, errors, others, curve)

    def _left_out_usual(self, truth: Floats) -> Floats:
        """Return what fits most of the other cases: their median, or the majority of all."""
        if not self.encoding.is_ordered:
            values = [case.value for case in self.cases]
            return self.encoding.numbers([majority(values, self.encoding.scale)] * len(truth))
        return np.array([np.median(np.delete(truth, at)) for at in range(len(truth))])

    @cached_property
    def divisions(self) -> Floats:
        """How far the values of the cases most similar to each other one are apart."""
        return divisions(self.opinions(self.cases)[self.regression.nearest[:, :COMPARED]])

    def opinions(self, cases: Sequence[Case]) -> Floats:
        """Return what experts say of each: a share of the range, or the share of each choice."""
        return np.array([self.encoding.rows(case.given).mean(axis=0) for case in cases]) / (
            self.encoding.span if self.encoding.is_ordered else 1.0
        )

    def nearest(self, vector: Vector | None) -> Near:
        """Find the cases that are most similar to a new one."""
        if vector is None or not self.cases:
            return np.zeros(0, int), np.zeros(0)
        similarities = self._vectors @ vector
        # Beyond some digits the order of a sum shows.
        rows = np.argsort(-np.round(similarities, 6), kind="stable")[:VOTERS]
        return rows, similarities[rows]

    def decides(self, mode: Decide) -> bool:
        """Tell whether the evidence decides."""
        if mode == "verdict" or self._has_few_verdicts(mode):
            return False
        weighing = self.weighing
        return weighing is not None and weighing.weight > 0

    def is_like(self, similarities: Floats) -> bool:
        """Tell whether a case is as near to memory's cases as those are to each other."""
        if not len(similarities):
            return False
        own = self.regression.similarities[:, 0]
        # Where checks tell which cases are alike, texts may differ.
        share = UNLIKE_SHARE * (1 - self.regression.share)
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
        weighing = self.weighing if kind == "evidence" else None
        if kind == "evidence" and weighing is None:
            # Nothing tells decisions apart: how often verdicts agree is all that is known.
            scores = np.zeros(len(rows))
        elif weighing is not None:
            if not (decides or weighing.judge is not None):
                return None
            rows, numbers = weighing.rows, weighing.numbers if decides else numbers
            shares, voters = self.regression.shares[rows], self.regression.nearest[rows]
            scores = self._scores(weighing.estimates, numbers, shares, self.truth[voters])
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

    def decide(self, said: Said, vector: Vector | None, mode: Decide) -> Decision:
        """Decide on a new case, by the cases nearest to it."""
        encoding, value, source = self.encoding, said.verdict, said.source
        confidence, evidence = encoding.stated(said), None
        kind: Kind = "stated"
        score, decides = log_odds(confidence), False
        # On a continuous scale there is no probability that a judge could state.
        if mode != "verdict" or (isnan(confidence) and not encoding.choices):
            near = self.nearest(vector)
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
        judge = self.encoding.believed([case.said or Said(case.value) for case in cases])
        return np.hstack((experts, judge))

    def _numbers(self, estimates: Floats) -> Floats:
        """Return estimates as numbers on the scale, as fine as experts give them."""
        if not self.encoding.is_ordered:
            return estimates.argmax(axis=-1).astype(float)
        if len(self._marks) <= _FEW_MARKS:
            return self._marks[np.abs(estimates - self._marks).argmin(axis=-1)]
        low, span = self.encoding.low, self.encoding.span
        digits = 6 - floor(log10(span)) if self.encoding.near else 0
        return np.clip(np.round(estimates[..., 0], digits), low, low + span)

    def _scores(self, estimates: Floats, numbers: Floats, shares: Floats, given: Floats) -> Floats:
        """Score decisions: by their choice's estimate, or how near they are to like cases."""
        if not self.encoding.is_ordered:
            return estimates[np.arange(len(numbers)), numbers.astype(int)]
        squares = (shares * (given - numbers[:, None]) ** 2).sum(axis=1)
        return -np.sqrt(squares) / self.encoding.span

    def _chances(self, weighing: Weighing, estimate: Floats) -> dict[str, float] | None:
        """Return how likely each choice is the experts'."""
        encoding = self.encoding
        if not encoding.choices:
            return None
        if encoding.is_ordered:
            off = weighing.estimates[:, 0] - self.truth[weighing.rows]
            ranks = np.arange(len(encoding.names))
            chances = np.exp(-((ranks - estimate) ** 2) / (2 * (off**2).mean() + 0.1))
        else:
            chances = weighing.curve.confidences(estimate)
        return dict(zip(encoding.names, (chances / chances.sum()).tolist(), strict=True))

    def _evidence(
        self, said: Said, vector: Vector | None, mode: Decide, near: Near, *, decides: bool
    ) -> tuple[Evidence, Callable[[Any], float] | None]:
        """Return what the evidence says of a new case, and what scores a decision on it."""
        fields: dict[str, Any] = {"verdict": said.verdict, "cases": len(self.cases)}
        if self._has_few_verdicts(mode):
            return Evidence(decided_by="verdict", reason=self._reason(mode), **fields), None
        encoding, weighing = self.encoding, self.weighing
        if weighing is not None:
            fields["evidence_error"] = float(weighing.errors.mean())
            # Of a verdict that is kept, the weights are those of the estimate beside it.
            weight = weighing.weight or 1.0
            fields["weights"] = {"neighbours": weight * (1 - (weighing.judge or 0.0))}
            if weighing.judge is not None:
                fields["verdict_error"] = float(weighing.baseline_errors.mean())
                fields["weights"]["judge"] = 1 - weight + weight * weighing.judge
            if self.features.count:
                fields["weights"]["checks"] = self.regression.share
        rows, similarities = near
        if vector is None or not len(rows):
            reason = _UNKNOWN if self.cases else self._reason(mode)
            return Evidence(decided_by="verdict", reason=reason, **fields), None
        shares = soft(similarities[None], self.regression.temperature)
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
        is_unlike = weighing is not None and weighing.weight > 0 and not decides
        fields |= {"decided_by": decider, "reason": _UNLIKE if is_unlike else self._reason(mode)}
        if weighing is None:
            has_any = self._calibration("evidence", decides=False) is not None
            return Evidence(**fields), (lambda _: 0.0) if has_any else None
        targets = self._targets[rows]
        [vote] = shares @ targets
        features = self.features.row(said.checks) if self.features.count else None
        both = self.regression.estimate(vector, vote, features)
        estimate, usual = np.hsplit(both, 2)
        estimate = estimate + (weighing.judge or 0.0) * (encoding.believed([said])[0] - usual)
        if encoding.is_ordered and weighing.weight:
            [verdict] = encoding.numbers([said.verdict])
            baseline = float(np.median(self.truth)) if weighing.judge is None else verdict
            estimate = baseline + weighing.weight * (estimate - baseline)
        given = dict(zip(encoding.names, vote.tolist(), strict=False))
        fields["vote"] = float(vote[0]) if encoding.is_ordered else given
        fields["estimate"] = encoding.value(float(self._numbers(estimate)))
        fields["probabilities"] = self._chances(weighing, estimate)

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
        weighing = self.weighing
        if weighing is None and len(np.unique(self.truth)) > 1:
            return _TWINS.format(MIN_CASES)
        if weighing is None:
            return "The verdict decides: the experts gave all cases that count the same value."
        off, rival = weighing.errors.mean(), weighing.baseline_errors.mean()
        who = "evidence" if weighing.weight else "verdict"
        what = "wrong on a share of" if self.encoding.choices else "off by"
        whose = "one value for all" if weighing.judge is None else "the judge's verdict"
        but = "" if weighing.weight else ": not better beyond chance, each class counting alike"
        checks = self.features.count if self.regression.share else 0
        besides = f", with {checks} check{'s' * (checks != 1)}," if checks else ""
        return (
            f"The {who} decides: on {len(weighing.rows)} cases in memory, each left out, the "
            f"evidence{besides} is {what} {off:.3g}, and {whose} {rival:.3g}{but}."
        )


def divisions(opinions: Floats) -> Floats:
    """Measure how far values are apart: the span of their middle half, or the minority's share."""
    if not opinions.shape[1]:
        return np.zeros(len(opinions))
    if opinions.shape[2] == 1:
        return np.quantile(opinions[:, :, 0], [0.25, 0.75], axis=1).T @ [-1, 1]
    return 1 - opinions.mean(axis=1).max(axis=1)


def newest(view: MemoryView, besides: Container[str] = ()) -> list[str]:
    """Return the vector keys of the newest cases, but for examples that have no vote."""
    keys = (row.vector_key for row in view.newest() if row.example_id not in besides)
    return list(islice(dict.fromkeys(keys), MAX_CASES))


def _process_of(access: MemoryAccess, judge_key: str | None) -> Process:
    """Return what decides with a memory and a judge, fitted only where the version changed."""
    view, scale = access.view, access.criterion.scale
    version = view.version, len(view.missing_texts())
    known: _Fitted | None = view.derived.get(("evidence", scale))
    if known is None or known.version != version or judge_key not in known.processes:
        vectors = view.vectors(newest(view))
        with _lock:
            known = view.derived.get(("evidence", scale))
            if known is None or known.version != version or len(known.processes) >= _MOST_JUDGES:
                view.derived["evidence", scale] = known = _Fitted(version, {})
            if judge_key not in known.processes:
                known.processes[judge_key] = Process(view, scale, vectors, judge_key=judge_key)
    return known.processes[judge_key]


@dataclass(frozen=True)
class _Fitted:
    """What was fitted to one version of a memory, by the judge's key."""

    version: tuple[str, int]
    processes: dict[str | None, Process]

    @property
    def nbytes(self) -> int:
        return sum(process.nbytes for process in list(self.processes.values()))


_MOST_JUDGES = 4  # of one memory that are fitted at the same time

_lock = threading.Lock()


async def current_process(
    io: IO, access: MemoryAccess, version: str | None = None, judge_key: str | None = None
) -> Process:
    """Return what decides with a memory as it is, or at a version, where that is still known.

    Without a key, verdicts of the judge that gave the newest one count. What can't be embedded is
    left out where the error is passed over.
    """
    view = access.view
    if view.version != version:
        view = await access.refresh(io)
    await index_missing(io, access, view)
    return _process_of(access, judge_key)


async def fit(io: IO, process: Process, mode: Decide) -> None:
    """Fit what a decision needs; awaited, in a thread, so that the event loop goes on."""
    if not process.is_fitted(mode):
        await io.call(process.fit, partial(asyncio.to_thread, process.fit))
        evict_views()


async def weigh_case(
    io: IO,
    access: MemoryAccess,
    mode: Decide,
    *,
    version: str,
    vector: Vector | None,
    besides: Container[str] = (),
    judge_key: str | None = None,
) -> tuple[Callable[[Said], Decision], str | None]:
    """Look for what decides on a case, before the judge is asked; returns it, and a warning.

    `version` is what the judge is shown; `besides` are ids of examples without a vote.
    """
    try:
        process = await current_process(io, access, version, judge_key)
    except EmbeddingError as error:
        # Whether that fails a judgment was decided where similar cases were looked for.
        logger.warning(
            "Judging %r: cases without vectors do not count: %s", access.criterion.name, error
        )
        process = _process_of(access, judge_key)
    if besides and any(case.example_id in besides for case in process.cases):
        vectors = access.view.vectors(newest(access.view, besides))
        process = Process(access.view, access.criterion.scale, vectors, besides, judge_key)
    await fit(io, process, mode)

    def decide(said: Said) -> Decision:
        with process.lock:
            return process.decide(said, vector, mode)

    if process.version == version:
        return decide, None
    warning = _MOVED.format(process.version)
    logger.warning("Judging %r: %s", access.criterion.name, warning)
    return decide, warning


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


def _sigmoid(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(logits, -35, 35)))


def _share(moves: Floats, targets: Floats, span: float) -> tuple[float, Floats]:
    """Fit by ridge regression how far moves go; also for each row without it."""
    hits, size = (moves * targets).sum(axis=1), (moves**2).sum(axis=1)
    without = (hits.sum() - hits) / (size.sum() - size + span**2)
    return max(float(hits.sum() / (size.sum() + span**2)), 0.0), np.maximum(without, 0.0)
