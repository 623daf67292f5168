"""Checks as features: how likely cases meet the guidelines that stand, as standardised log-odds.

Source: H. Hashemi et al., LLM-Rubric, 2024: answers to small questions, weighed by few labels.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from memalign_graph.evidence.regression import Floats
from memalign_graph.memory.view import MemoryView
from memalign_graph.memory.worth import answers_in, is_of, measured
from memalign_graph.scales import Scale

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
