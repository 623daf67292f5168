"""Checks as features: how likely cases meet the guidelines that stand, as standardised log-odds.

Source: H. Hashemi et al., LLM-Rubric, 2024: answers to small questions, weighed by few labels.
"""

import math
from collections.abc import Container, Mapping, Sequence
from itertools import islice

import numpy as np

from memalign_graph.agreement import consensus, value_or_none
from memalign_graph.evidence.regression import Floats
from memalign_graph.memory.checks import check_answers, is_answer_to, measure_guidelines
from memalign_graph.memory.view import MemoryView
from memalign_graph.prompts.judge import nearest_value
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Criterion, Probabilities

_WIDTH = 0.5  # of a case's reach in a vote, in squares of the answers' spread
_HALF_WEIGHT_CASES = 8  # so many cases halve the weight of a vote
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MAX_VOTERS = 200  # the newest cases
_PRIOR = 0.05  # the share that each value has from no case
_LEAST_SPREAD = 0.05
"""Added to that of the answers: what is all but the same on all cases is not blown up."""


class CheckFeatures:
    """A column for each question that was asked, of one model, on enough of some cases."""

    def __init__(
        self, view: MemoryView, scale: Scale, example_ids: Sequence[str], *, least: int
    ) -> None:
        """Scale them by these cases."""
        _, guidelines = measure_guidelines(view, scale)
        standing = [one for one in guidelines if one.status != "unproven"]
        questions = {one.question for one in standing if one.question}
        self._answers = {
            asked: found
            for asked, found in sorted(check_answers(view).items() if questions else ())
            if any(is_answer_to(asked, question) for question in questions)
            and sum(key in found for key in example_ids) >= least
        }
        self._mean = self._spread = np.zeros(0)
        if self._answers:
            odds = self._odds(example_ids)
            self._mean = np.nanmean(odds, axis=0)
            self._spread = np.nanstd(odds, axis=0) + _LEAST_SPREAD

    @property
    def count(self) -> int:
        """The number of columns."""
        return len(self._answers)

    def rows(self, example_ids: Sequence[str]) -> Floats:
        """Return those of cases in memory; 0 where nothing is known."""
        return self._scaled(self._odds(example_ids))

    def row(self, checks: Mapping[str, float]) -> Floats:
        """Return those of a new case, by its answers."""
        return self._scaled(
            log_odds(np.array([checks.get(asked, np.nan) for asked in self._answers]))
        )

    def _odds(self, example_ids: Sequence[str]) -> Floats:
        columns = self._answers.values()
        return log_odds(np.array([[of.get(key, np.nan) for of in columns] for key in example_ids]))

    def _scaled(self, odds: Floats) -> Floats:
        return np.nan_to_num((odds - self._mean) / self._spread).astype(np.float32)


def log_odds(shares: Floats) -> Floats:
    """Return what is added up where chances are weighed."""
    inside = np.clip(shares, 1e-3, 1 - 1e-3)
    return np.log(inside / (1 - inside))


def vote(
    view: MemoryView,
    criterion: Criterion,
    own: Mapping[str, float],
    values: Sequence[Value],
    excluded_keys: Container[str],
) -> tuple[Probabilities, float] | None:
    """Return the share of each value among cases with similar checks, and the weight of that.

    `own` has the probability that the case meets each guideline, by `asked_id`. Cases count by how
    near they are in the log-odds of the checks; `excluded_keys` are vector keys of cases without a
    vote. The weight is learned by leave-one-out, and shrunk where cases are few.
    """
    known, scale = check_answers(view), criterion.scale
    rows: dict[str, list[Value]] = {}
    for row in sorted(view.rows(), key=lambda row: row.given_at, reverse=True):
        value = value_or_none(row.value, scale)
        is_asked = any(row.example_id in known.get(asked, ()) for asked in own)
        if value is not None and is_asked and row.vector_key not in excluded_keys:
            rows.setdefault(row.example_id, []).insert(0, value)
    cases = dict(islice(rows.items(), _MAX_VOTERS))
    if not cases:
        return None
    answers = [[known.get(asked, {}).get(key, math.nan) for asked in own] for key in cases]
    table = log_odds(np.array([list(own.values()), *answers]))
    table = table[:, ~np.isnan(table[1:]).all(axis=0)]
    table /= np.nanstd(table[1:], axis=0) + _LEAST_SPREAD
    squares = (table[:, None] - table[None]) ** 2
    compared = ~np.isnan(squares)
    distances = np.where(compared, squares, 0).sum(axis=2) / np.maximum(compared.sum(axis=2), 1)
    weights = np.where(compared.any(axis=2), np.exp(-distances / _WIDTH), 0)
    np.fill_diagonal(weights, 0)
    chosen = [
        values.index(nearest_value(values, consensus(given, scale))) for given in cases.values()
    ]
    votes = weights[:, 1:] @ np.eye(len(values))[chosen]
    votes += _PRIOR * votes.sum(axis=1, keepdims=True) + 1e-6
    shares = votes / votes.sum(axis=1, keepdims=True)
    weight = _left_out_weight(shares[1:], np.array(chosen))
    names = map(scale.render, values)
    shrunk = weight * len(cases) / (len(cases) + _HALF_WEIGHT_CASES)
    return dict(zip(names, shares[0].tolist(), strict=True)), shrunk


def _left_out_weight(shares: Floats, chosen: Floats) -> float:
    """Choose how much a vote counts by what it says of each case without that case.

    Each value that several cases have counts alike, however rare it is; a value that only one case
    has can't be known without that case.
    """
    kinds, counts = np.unique(chosen, return_counts=True)
    repeated = kinds[counts > 1] if (counts > 1).any() else kinds

    def loss(weight: float) -> float:
        powers = shares**weight
        right = powers[np.arange(len(chosen)), chosen] / powers.sum(axis=1)
        each = [-np.log(right[chosen == kind]).mean() for kind in repeated]
        return float(np.mean(each))

    return min(_WEIGHTS, key=loss)


def combine_probabilities(
    judged: Probabilities, votes: Probabilities, weight: float
) -> Probabilities:
    """Multiply probabilities with those of a vote to the power of its weight."""
    product = {name: share * votes[name] ** weight for name, share in judged.items()}
    total = sum(product.values()) or 1.0
    return {name: share / total for name, share in product.items()}
