"""The cases of a memory that the evidence model is fitted to, and their values as numbers."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from math import nan

import numpy as np

from memalign_graph.agreement import (
    agreement_tolerance,
    consensus,
    is_ordered,
    value_or_none,
    values_agree,
)
from memalign_graph.evidence.confidence import RawVerdict
from memalign_graph.evidence.regression import Floats
from memalign_graph.memory.facts import LONG_AGO
from memalign_graph.memory.index import Vector
from memalign_graph.memory.memory_state import EpisodeRow, PastVerdict
from memalign_graph.memory.view import MemoryView
from memalign_graph.models import name_in_key
from memalign_graph.scales import Boolean, Numeric, Scale, Value

MIN_CASES = 5  # for an evidence model, and verdicts to compare it with
ALWAYS_ASKED = {"always_ask", "untrusted_text", "refused_before", "too_long"}
"""The reasons to ask about a tool call that no verdict outweighs."""
_DATE = re.compile(r"-\d{4}-\d{2}-\d{2}$")  # suffix that a provider adds to a model's name
_THIRDS = ("low", "middle", "high")
MAX_CASES = 1_000  # the newest: fitting more takes seconds at each change of a memory


@dataclass(frozen=True)
class PastDecision:
    """One judgment of a case, and the value that experts gave in answer to it."""

    value: Value
    """Their consensus."""
    verdict: RawVerdict | None = None
    """The present judge's; None if there is only the experts' value of the case."""
    judged_at: datetime = LONG_AGO
    """The time of the first answer; a comment that is added later does not change it."""
    is_told: bool = False
    """Whether the judge was told the value by these experts' feedback. Then only wrong verdicts
    count."""
    is_always_asked: bool = False
    """Whether no verdict could have spared the question."""


@dataclass(frozen=True)
class EvidenceCase:
    """An example with experts' values."""

    vector_key: str
    """Examples with the same text share it."""
    vector: Vector
    example_id: str
    episode_ids: list[str]
    value: Value
    """The consensus of all its experts."""
    decisions: Sequence[PastDecision]
    """One for each judgment that counts; if there are none, one without a verdict."""

    @property
    def decision(self) -> PastDecision:
        """The one that is compared with the evidence: the first, before the judge was told."""
        return min(self.decisions, key=lambda decision: decision.is_told)


def load_cases(
    view: MemoryView,
    scale: Scale,
    judge_key: str | None = None,
    max_cases: int | None = None,
    *,
    by_others: bool = False,
) -> list[EvidenceCase]:
    """Return the newest cases of a memory, sorted by example id.

    Only verdicts of the judge with this key count; without a key, those of the judge that gave the
    newest one. With `by_others` those of all other judges count instead.
    """
    is_present = _present_judge(view, judge_key)
    sources = {guideline.id: {*guideline.episode_ids} for guideline in view.guidelines}
    keys = (row.vector_key for row in view.labeled_rows())
    vectors = view.vectors(islice(dict.fromkeys(keys), max_cases or MAX_CASES))
    rows_by_example: dict[str, list[EpisodeRow]] = defaultdict(list)
    for key in vectors:
        for row in view.rows_for_vector(key):
            rows_by_example[row.example_id].append(row)

    cases = []
    for example_id, rows in sorted(rows_by_example.items()):
        rows.sort(key=lambda row: (row.given_at, row.id))
        if not (values := _values(rows, scale)):
            continue
        judged = [row for row in rows if (it := row.past_verdict) and is_present(it) != by_others]
        own_ids, value = {row.id for row in rows}, consensus(values, scale)
        decisions = _decisions(judged, value, own_ids, sources, scale) or [PastDecision(value)]
        key = rows[0].vector_key
        case = EvidenceCase(key, vectors[key], example_id, sorted(own_ids), value, decisions)
        cases.append(case)
    return cases


def _values(rows: Sequence[EpisodeRow], scale: Scale) -> list[Value]:
    return [value for row in rows if (value := value_or_none(row.value, scale)) is not None]


def _decisions(
    judged: Sequence[EpisodeRow],
    case_value: Value,
    own_ids: set[str],
    sources: Mapping[str, set[str]],
    scale: Scale,
) -> list[PastDecision]:
    """Return what experts answered to each judgment of a case, if that proves anything."""
    answers_by_judgment: dict[str | None, list[EpisodeRow]] = defaultdict(list)
    for row in judged:
        answers_by_judgment[row.content["judgment"].get("id")].append(row)
    decisions = []
    for answers in answers_by_judgment.values():
        pasts = [row.past_verdict for row in answers if row.past_verdict]
        past, values = pasts[0], _values(answers, scale)
        verdict = value_or_none(past.verdict, scale)
        value = consensus(values, scale) if values else case_value
        # A guideline that comes from this case alone tells its value, too.
        is_told = not own_ids.isdisjoint(past.shown) or any(
            sources.get(key) and sources[key] <= own_ids for key in past.guideline_ids
        )
        if verdict is None or (is_told and values_agree(scale, verdict, value)):
            continue
        # `migrate` also gives a verdict to feedback that nobody was asked for.
        review = next((past.review for past in pasts if past.review is not None), {})
        decision = PastDecision(
            value=value,
            verdict=RawVerdict(verdict, past.probabilities),
            judged_at=answers[0].first_given_at,
            is_told=is_told,
            is_always_asked=not ALWAYS_ASKED.isdisjoint(review.get("reasons") or ()),
        )
        decisions.append(decision)
    return decisions


def _present_judge(view: MemoryView, judge_key: str | None) -> Callable[[PastVerdict], bool]:
    """Return the test whether the present judge gave a verdict."""
    name: str | None = name_in_key(judge_key or "")
    if judge_key is None:
        newest = next(filter(None, (row.past_verdict for row in view.labeled_rows())), None)
        judge_key, name = (newest.judge_key, newest.model) if newest else (None, None)

    def is_present(past: PastVerdict) -> bool:
        if past.judge_key is not None or not (name or judge_key is None):
            return past.judge_key == judge_key
        # Verdicts of earlier versions have no key: compare the model's name.
        return name in (past.model, past.model and _DATE.sub("", past.model))

    return is_present


class ValueEncoding:
    """Encodes values as numbers, and unordered choices as one-hot rows."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.choices: Sequence[Value] = ()
        self.low, self.tolerance = 0.0, 0.0
        if isinstance(scale, Numeric):
            self.low, self.span = scale.minimum, scale.maximum - scale.minimum
            self.tolerance = 0.0 if scale.integer else agreement_tolerance(scale)
        else:
            self.choices = (True, False) if isinstance(scale, Boolean) else scale.choices
            self.span = len(self.choices) - 1.0
        self.names = [scale.render(choice) for choice in self.choices]
        self.is_ordered = is_ordered(scale)

    def numbers(self, values: Sequence[Value]) -> Floats:
        """Return numeric values as they are, and choices as their index."""
        numbers = [self.choices.index(value) for value in values] if self.choices else values
        return np.array(numbers, dtype=float)

    def value(self, number: float) -> Value:
        """Return the value of a number."""
        return self.choices[int(number)] if self.choices else self.scale.validate_value(number)

    def rows(self, values: Sequence[Value]) -> Floats:
        """Return values as rows of targets."""
        numbers = self.numbers(values)[:, None]
        return numbers if self.is_ordered else (numbers == np.arange(len(self.names))).astype(float)

    def classes(self, numbers: Floats) -> Floats:
        """Return the index of each number's choice, or of its third of an ordered scale."""
        if not self.is_ordered:
            return numbers.astype(int)
        return np.clip(np.floor(3 * (numbers - self.low) / self.span), 0, 2).astype(int)

    def class_names(self, numbers: Floats) -> list[str]:
        """Name the class of each number."""
        names = _THIRDS if self.is_ordered else self.names
        return [names[index] for index in self.classes(numbers)]

    def class_name(self, value: Value) -> str:
        """Name the class of a value."""
        return self.class_names(self.numbers([value]))[0]

    def errors(self, numbers: Floats, truth: Floats) -> Floats:
        """Return the absolute errors of numbers; for choices 0 or 1."""
        distances = np.abs(numbers - truth)
        return (distances > 0).astype(float) if self.choices else distances

    def verdict_rows(self, verdicts: Sequence[RawVerdict]) -> Floats:
        """Return the judge's probabilities as rows of targets; without them, its verdicts.

        On an ordered scale a row is the mean of the values, weighted by their probabilities.
        """
        rows = self.rows([verdict.value for verdict in verdicts])
        for row, verdict in zip(rows, verdicts, strict=True):
            shares = verdict.probabilities or {}
            if self.is_ordered:
                values = {name: value_or_none(name, self.scale) for name in shares}
                present = {name: value for name, value in values.items() if value is not None}
                weights = [shares[name] for name in present]
                if sum(weights) > 0:
                    row[:] = np.average(self.numbers(list(present.values())), weights=weights)
            elif all(name in shares for name in self.names):
                row[:] = [shares[name] for name in self.names]
        return rows

    def stated(self, verdict: RawVerdict) -> float:
        """Return the judge's own probability of its verdict; NaN if it was not measured."""
        return (verdict.probabilities or {}).get(self.scale.render(verdict.value), nan)
