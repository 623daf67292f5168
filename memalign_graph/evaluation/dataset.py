"""Labelled cases from feedback, folds, and baselines that need no judge.

All feedback on one item is in one fold, so that no judge is measured on what it learned from.
"""

import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from memalign_graph.agreement import consensus, consensus_value, is_ordered
from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import digest
from memalign_graph.memory.feedback import parse_record
from memalign_graph.memory.index import retrieval_text
from memalign_graph.memory.memory_state import merge_feedback
from memalign_graph.scales import PLAIN_FUNCTION, Numeric, Scale, Value
from memalign_graph.types import (
    Criterion,
    Episode,
    Example,
    Feedback,
    FeedbackLike,
    RecalledExample,
)


def _known_grouping(group_by: object) -> object:
    if inspect.iscoroutinefunction(group_by):
        raise ValueError(PLAIN_FUNCTION)
    if group_by in ("example", "inputs") or callable(group_by):
        return group_by
    raise ValueError(
        f"{group_by!r} is not known: give 'example', 'inputs', or a function that takes an Example "
        "and returns the name of its item."
    )


GroupBy = Annotated[
    Literal["example", "inputs"] | Callable[[Example], str], PlainValidator(_known_grouping)
]
"""What makes one item: the same example, the same inputs, or a function's result."""

BASELINES = MAJORITY, MEDIAN, KNN, EVIDENCE = "majority", "median", "kNN", "evidence"
"""The predictions that need no judge."""


@dataclass(frozen=True)
class LabelledCase:
    """An example with its consensus value and all feedback on it, oldest first."""

    example: Example
    expected: Value
    feedback: tuple[Feedback, ...]
    group: str  # the item it belongs to


@dataclass(frozen=True)
class Fold:
    """Feedback to learn from, and cases to judge."""

    train: tuple[Feedback, ...]
    test: tuple[LabelledCase, ...]

    @property
    def feedback(self) -> list[Feedback]:
        """The feedback on both."""
        return [*self.train, *(item for case in self.test for item in case.feedback)]


def parse_feedback_list(
    feedback: Iterable[FeedbackLike], criterion: Criterion, name: str = "feedback"
) -> list[Feedback]:
    """Parse and check feedback; that of one expert on an example is merged, as in memory.

    It loses the verdicts that it answers: another judge gave them, or this one with the whole
    memory, held-out cases included.
    """
    if isinstance(feedback, Feedback | dict | str) or not isinstance(feedback, Iterable):
        raise InvalidInputError(
            f"{name}: give a list of Feedback, or of objects with `inputs`, `outputs` and `value`."
        )
    merged: dict[str, Feedback] = {}
    for index, fields in enumerate(feedback):
        try:
            item = parse_record(fields, criterion).model_copy(update={"judgment": None})
        except InvalidInputError as error:
            raise InvalidInputError(f"{name}[{index}]: {error}") from error
        if earlier := merged.get(item.episode_id):
            kept = merge_feedback(*map(Episode.from_feedback, (earlier, item)))
            names = ("value", "rationale", "given_at")
            item = item.model_copy(update={name: getattr(kept, name) for name in names})
        merged[item.episode_id] = item
    return list(merged.values())


def _normalized(value: Any) -> Any:
    """Return a JSON value without differences in spaces."""
    if isinstance(value, dict):
        return {name: _normalized(part) for name, part in value.items()}
    if isinstance(value, list):
        return list(map(_normalized, value))
    return " ".join(value.split()) if isinstance(value, str) else value


def group_of(example: Example, group_by: GroupBy) -> str:
    """Return the key of the item that an example belongs to."""
    if group_by == "example":
        # As memory compares examples, by the text that it embeds: an episode shown to the judge is
        # never the judged case. A dict's keys are not part of it.
        return digest(_normalized(retrieval_text(example)[0]))
    return digest(_normalized(example.inputs)) if group_by == "inputs" else str(group_by(example))


def labelled_cases(
    feedback: Sequence[Feedback], criterion: Criterion, group_by: GroupBy = "example"
) -> list[LabelledCase]:
    """Group feedback by example; leaves out examples without a value."""
    by_example: dict[str, list[Feedback]] = {}
    for item in feedback:
        by_example.setdefault(item.example.id, []).append(item)
    cases = []
    for items in by_example.values():
        items.sort(key=lambda item: (item.given_at, item.episode_id))
        expected = consensus_value(map(Episode.from_feedback, items), criterion.scale)
        if expected is not None:
            example = items[0].example
            group = group_of(example, group_by)
            cases.append(LabelledCase(example, expected, tuple(items), group))
    return cases


def make_folds(
    feedback: Sequence[Feedback], criterion: Criterion, folds: int, group_by: GroupBy, seed: int
) -> list[Fold]:
    """Divide feedback into folds with similar labels, an item always in one fold."""
    cases = labelled_cases(feedback, criterion, group_by)
    groups = [case.group for case in cases]
    if len(set(groups)) < folds:
        raise InvalidInputError(
            f"folds: {folds} folds need at least as many items with a value, and there are "
            f"{len(set(groups))}. Give more feedback, fewer folds, or another `group_by`."
        )
    labels = _strata([case.expected for case in cases], criterion.scale)
    positions = stratified_folds(groups, labels, folds, seed)
    return [make_fold(feedback, [cases[i] for i in test], group_by) for test in positions]


def stratified_folds(
    groups: Sequence[str], labels: Sequence[str], folds: int, seed: int
) -> list[list[int]]:
    """Divide cases into folds with similar labels, a group always in one fold; returns positions.

    The largest groups are placed first, each where it adds least to the sum over labels of squared
    counts. No fold stays empty if there are as many groups as folds.
    """
    members: dict[str, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    order = list(members)
    random.Random(seed).shuffle(order)  # noqa: S311 - nothing secret
    order.sort(key=lambda group: -len(members[group]))
    totals = Counter(labels)
    chosen: list[list[int]] = [[] for _ in range(folds)]
    counts = [Counter[str]() for _ in range(folds)]
    for placed, group in enumerate(order):
        added = Counter(labels[position] for position in members[group])

        def cost(fold: int, added: Counter[str] = added) -> tuple[float, int]:
            terms = (
                ((counts[fold][label] + more) ** 2 - counts[fold][label] ** 2) / totals[label]
                for label, more in added.items()
            )
            return sum(terms), len(chosen[fold])

        empty = [fold for fold in range(folds) if not chosen[fold]]
        best = min(empty if len(empty) >= len(order) - placed else range(folds), key=cost)
        chosen[best] += members[group]
        counts[best] += added
    return [sorted(fold) for fold in chosen]


def make_fold(
    feedback: Sequence[Feedback], test: Sequence[LabelledCase], group_by: GroupBy
) -> Fold:
    """Return a fold that learns from all feedback on other items than those it judges."""
    held_out = {case.group for case in test}
    train = tuple(item for item in feedback if group_of(item.example, group_by) not in held_out)
    return Fold(train, tuple(test))


def baselines(
    train: Sequence[Value], recalled: Sequence[RecalledExample] | None, scale: Scale
) -> dict[str, Value]:
    """Predict a case by the labels of the other folds: a constant, or that of similar cases."""
    if not train:
        return {}
    [(most_common, _)] = Counter(train).most_common(1)
    predictions = {MAJORITY: most_common}
    if is_ordered(scale):
        predictions[MEDIAN] = consensus(train, scale)
    if recalled is not None:
        # If no similar case has a value, the constant is the prediction.
        value = knn_prediction(recalled, scale)
        predictions[KNN] = predictions.get(MEDIAN, most_common) if value is None else value
    return predictions


def knn_prediction(recalled: Sequence[RecalledExample], scale: Scale) -> Value | None:
    """Return the mean of the most similar examples' values, or the most frequent one."""
    labels = [consensus_value(example.episodes, scale) for example in recalled]
    values = [value for value in labels if value is not None]
    if not values:
        return None
    if isinstance(scale, Numeric):
        mean = fmean(map(float, values))
        return scale.validate_value(round(mean) if scale.integer else mean)
    return consensus(values[::-1], scale)


def _strata(values: Sequence[Value], scale: Scale) -> list[str]:
    """Return the stratum of each case: its label, or the quartile of its number."""
    if isinstance(scale, Numeric):
        ranked = sorted(map(float, values))
        cuts = ranked[:: max(len(ranked) // 4, 1)]
        return [str(sum(float(value) > cut for cut in cuts)) for value in values]
    return [scale.render(value) for value in values]
