"""Measure guidelines: the AUC of their check answers on labeled cases.

The standard error is that of Jonckheere's test (1954); with two values, of Mann and Whitney's.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import groupby
from math import sqrt
from operator import itemgetter

from memalign_graph.agreement import consensus, value_or_none
from memalign_graph.identity import asked_id
from memalign_graph.memory.memory_state import ActiveGuidelines
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale, Value, share_of_scale
from memalign_graph.types import Guideline, Worth

MIN_CASES = 8
"""The fewest measured cases for a guideline to be `unproven`."""

_Z_95 = 1.645
"""The one-sided 95 % bound: an AUC that is below 0.5 by it means the opposite of the guideline."""

_NO_SEPARATION = 0.5

CheckAnswers = Mapping[str, Mapping[str, float]]
"""The probability that examples meet guidelines, by `asked_id` and example id."""


def measure_guidelines(view: MemoryView, scale: Scale) -> ActiveGuidelines:
    """Return the guidelines of the current version, with their worth."""

    def measured() -> ActiveGuidelines:
        current = view.current
        return current._replace(guidelines=_measured(view, current.guidelines, scale))

    return view.derive(("guidelines", scale), measured)


def check_answers(view: MemoryView) -> CheckAnswers:
    """Return the latest answer to each check question on cases in memory; read-only."""
    return view.derive("answers", lambda: _answers(view))


def consensus_values(
    view: MemoryView, scale: Scale, excluded_ids: Container[str] = ()
) -> dict[str, Value]:
    """Return the experts' consensus by example id, newest first, without excluded examples."""
    values: dict[str, list[Value]] = {}
    for row in sorted(view.rows(), key=lambda row: (row.given_at, row.id), reverse=True):
        value = value_or_none(row.value, scale)
        if value is not None and row.example_id not in excluded_ids:
            values.setdefault(row.example_id, []).insert(0, value)
    return {example_id: consensus(labels, scale) for example_id, labels in values.items()}


def _answers(view: MemoryView) -> CheckAnswers:
    answers: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in sorted(view.rows(), key=lambda row: row.given_at):
        for asked, answer in row.past_verdict.checks.items() if row.past_verdict else ():
            answers[asked][row.example_id] = answer
    for asked, later in view.answers().items():
        answers[asked] |= later
    return answers


def _measured(view: MemoryView, guidelines: list[Guideline], scale: Scale) -> list[Guideline]:
    answers = check_answers(view)
    levels = {
        key: level
        for key, value in (consensus_values(view, scale) if answers else {}).items()
        if (level := share_of_scale(value, scale)) is not None
    }
    example_ids = {row.id: row.example_id for row in view.rows()} if levels else {}

    def cases_of(guideline: Guideline) -> list[tuple[float, float]]:
        # Without the cases that it was distilled from, and of the model with most answers.
        sources = {example_ids.get(key) for key in guideline.episode_ids}
        by_model = [
            [(levels[key], by_case[key]) for key in by_case.keys() & levels.keys() - sources]
            for asked, by_case in sorted(answers.items())
            if guideline.question and asked.startswith(asked_id(guideline.question, ""))
        ]
        return max(by_model, key=len, default=[])

    return [_with_worth(guideline, cases_of(guideline)) for guideline in guidelines]


def _with_worth(guideline: Guideline, cases: Sequence[tuple[float, float]]) -> Guideline:
    """Measure a guideline on pairs of a case's value and its check's answer."""
    lower: list[float] = []
    sizes, concordant = [], 0.0
    for _, group in groupby(sorted(cases), key=itemgetter(0)):
        answers = [answer for _, answer in group]
        ranks = (bisect_left(lower, each) + bisect_right(lower, each) for each in answers)
        concordant += sum(ranks) / 2
        sizes.append(len(answers))
        lower = sorted([*lower, *answers])
    count = len(cases)
    pairs = (count**2 - sum(size**2 for size in sizes)) / 2
    if not pairs:
        return guideline
    spread = sum(size**2 * (2 * size + 3) for size in sizes)
    standard_error = sqrt((count**2 * (2 * count + 3) - spread) / 72) / pairs
    auc, status = concordant / pairs, guideline.status
    # A pending guideline is distilled again first; an expert's guideline is never `unproven`.
    can_drop = guideline.origin == "distilled" and status == "standing" and count >= MIN_CASES
    if can_drop and auc + _Z_95 * standard_error < _NO_SEPARATION:
        status = "unproven"
    return guideline.model_copy(update={"worth": Worth(auc=auc, cases=count), "status": status})
