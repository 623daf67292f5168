"""Checks as features: how likely cases meet the guidelines that stand, as standardised log-odds.

Source: H. Hashemi et al., LLM-Rubric, 2024: answers to small questions, weighed by few labels.
"""

import math
from collections.abc import Container, Mapping, Sequence

import numpy as np

from memalign_graph.agreement import majority, on_scale
from memalign_graph.evidence.regression import Floats
from memalign_graph.memory.view import MemoryView
from memalign_graph.memory.worth import answers_in, is_of, measured
from memalign_graph.prompts.judge import nearest
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Criterion, Probabilities

_WIDTH = 0.5  # of a case's reach in a vote, in squares of the answers' spread
_HALF_WEIGHT_CASES = 8  # as many cases give a vote half the weight of what it is pooled with
_PRIOR = 0.05  # the share that each value has from no case
_LEAST_SPREAD = 0.05
"""Added to that of the answers: what is all but the same on all cases is not blown up."""


class Features:
    """A column for each question that was asked, of one model, on enough of some cases."""

    def __init__(
        self, view: MemoryView, scale: Scale, example_ids: Sequence[str], *, least: int
    ) -> None:
        """Scale them by these cases."""
        _, guidelines = measured(view, scale)
        standing = [one for one in guidelines if one.status != "unproven"]
        questions = {one.question for one in standing if one.question}
        self._answers = {
            asked: found
            for asked, found in sorted(answers_in(view).items() if questions else ())
            if any(is_of(asked, question) for question in questions)
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
    besides: Container[str],
) -> tuple[Probabilities, int] | None:
    """Return the share of each value among cases with similar checks, and how many cases vote.

    `own` has the probability that the case meets each guideline, by `asked_id`. Cases count by how
    near they are in the log-odds of the checks; `besides` are vector keys of cases with no vote.
    """
    known, scale = answers_in(view), criterion.scale
    rows: dict[str, list[Value]] = {}
    for row in view.rows():
        value = on_scale(row.value, scale)
        is_asked = any(row.example_id in known.get(asked, ()) for asked in own)
        if value is not None and is_asked and row.vector_key not in besides:
            rows.setdefault(row.example_id, []).append(value)
    if not rows:
        return None
    answers = [[known.get(asked, {}).get(key, math.nan) for asked in own] for key in rows]
    table = log_odds(np.array([list(own.values()), *answers]))
    table = table[:, ~np.isnan(table[1:]).all(axis=0)]
    off = (table[1:] - table[0]) / (np.nanstd(table[1:], axis=0) + _LEAST_SPREAD)
    weights = np.exp(-np.nanmean(off**2, axis=1) / _WIDTH)
    votes = dict.fromkeys(map(scale.render, values), _PRIOR * float(weights.sum()) + 1e-6)
    for weight, given in zip(weights.tolist(), rows.values(), strict=True):
        votes[scale.render(nearest(values, majority(given, scale)))] += weight
    total = sum(votes.values())
    return {name: share / total for name, share in votes.items()}, len(rows)


def pooled(judged: Probabilities, votes: Probabilities, cases: int) -> Probabilities:
    """Multiply probabilities with those of a vote, which counts more the more cases it has."""
    weight = cases / (cases + _HALF_WEIGHT_CASES)
    product = {name: share * votes[name] ** weight for name, share in judged.items()}
    total = sum(product.values()) or 1.0
    return {name: share / total for name, share in product.items()}
