"""Labelled cases out of feedback, their division into folds, and predictions that need no judge.

All feedback on one item goes the same way, so that nothing a judge learned from is what it is
measured on.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from memalign_graph.agreement import consensus, consensus_value
from memalign_graph.errors import InvalidInputError
from memalign_graph.identity import digest
from memalign_graph.memory.feedback import check_feedback
from memalign_graph.scales import Categorical, Numeric, Scale, Value
from memalign_graph.types import (
    Criterion,
    Episode,
    Example,
    Feedback,
    FeedbackLike,
    RecalledExample,
    parse_feedback,
)


def _known_grouping(group_by: object) -> object:
    if group_by in ("example", "inputs") or callable(group_by):
        return group_by
    raise ValueError(
        f"{group_by!r} is not known: give 'example', 'inputs', or a function that takes an Example "
        "and returns the name of its item."
    )


GroupBy = Annotated[
    Literal["example", "inputs"] | Callable[[Example], str], PlainValidator(_known_grouping)
]
"""What counts as one item: the same example, the same inputs, or what a function returns."""

BASELINES = MAJORITY, MEDIAN, KNN, EVIDENCE = "majority", "median", "kNN", "evidence"
"""The predictions that ask no judge."""


@dataclass(frozen=True)
class LabelledCase:
    """An example whose value experts gave, with all they said on it, oldest first."""

    example: Example
    expected: Value
    feedback: tuple[Feedback, ...]
    group: str
    """Names the item it belongs to."""


@dataclass(frozen=True)
class Fold:
    """What is learned from, and what is judged."""

    train: tuple[Feedback, ...]
    test: tuple[LabelledCase, ...]

    @property
    def feedback(self) -> list[Feedback]:
        """What experts said of both."""
        return [*self.train, *(item for case in self.test for item in case.feedback)]


def parse_feedback_list(
    feedback: Iterable[FeedbackLike], criterion: Criterion, name: str = "feedback"
) -> list[Feedback]:
    """Read and check feedback; of two words of one expert on one example the newer counts."""
    if isinstance(feedback, Feedback | dict | str) or not isinstance(feedback, Iterable):
        raise InvalidInputError(
            f"{name}: give a list of Feedback, or of objects with `inputs`, `outputs` and `value`."
        )
    newest: dict[str, Feedback] = {}
    for index, fields in enumerate(feedback):
        try:
            item = check_feedback(parse_feedback(fields), criterion)
        except InvalidInputError as error:
            raise InvalidInputError(f"{name}[{index}]: {error}") from error
        known = newest.get(item.episode_id)
        if known is None or known.given_at <= item.given_at:
            newest[item.episode_id] = item
    return list(newest.values())


def _normalized(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value


def group_of(example: Example, group_by: GroupBy) -> str:
    """Name the item an example belongs to."""
    if group_by == "example":
        # As memory compares them: twins are never both learned from and judged.
        parts = {"inputs": example.inputs, "outputs": example.outputs}
        return Example(**{name: _normalized(part) for name, part in parts.items()}).id
    return digest(example.inputs) if group_by == "inputs" else str(group_by(example))


def labelled_cases(
    feedback: Sequence[Feedback], criterion: Criterion, group_by: GroupBy = "example"
) -> list[LabelledCase]:
    """Gather feedback by example; examples on which nobody gave a value are left out."""
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
    """Divide feedback into folds that are alike in their labels, all of one item in the same."""
    cases = labelled_cases(feedback, criterion, group_by)
    groups = [case.group for case in cases]
    if len(set(groups)) < folds:
        raise InvalidInputError(
            f"folds: {folds} folds need at least as many items with a value, and there are "
            f"{len(set(groups))}: give more feedback, fewer folds, or another `group_by`."
        )
    labels = _strata([case.expected for case in cases], criterion.scale)
    chosen = stratified_folds(groups, labels, folds, seed)
    return [make_fold(feedback, [cases[at] for at in test], group_by) for test in chosen]


def stratified_folds(
    groups: Sequence[str], labels: Sequence[str], folds: int, seed: int
) -> list[list[int]]:
    """Divide cases into folds with similar labels; returns positions, a group always in one fold.

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
    """Judge cases, and learn from the feedback but for what is on the same items."""
    aside = {case.group for case in test}
    train = tuple(item for item in feedback if group_of(item.example, group_by) not in aside)
    return Fold(train, tuple(test))


def baselines(
    train: Sequence[Value], recalled: Sequence[RecalledExample] | None, scale: Scale
) -> dict[str, Value]:
    """Predict a case by what was learned from: one value for all, or that of similar cases."""
    if not train:
        return {}
    [(most, _)] = Counter(train).most_common(1)
    predictions = {MAJORITY: most}
    if is_ordered(scale):
        predictions[MEDIAN] = consensus(train, scale)
    if recalled is not None:
        # Similar cases on which nobody gave a value predict what most cases have.
        near = knn_prediction(recalled, scale)
        predictions[KNN] = predictions.get(MEDIAN, most) if near is None else near
    return predictions


def knn_prediction(recalled: Sequence[RecalledExample], scale: Scale) -> Value | None:
    """Return what the most similar examples say, without looking at the case itself."""
    known = [consensus_value(example.episodes, scale) for example in recalled]
    values = [value for value in known if value is not None]
    if not values:
        return None
    if isinstance(scale, Numeric):
        mean = fmean(map(float, values))
        return scale.validate_value(round(mean) if scale.integer else mean)
    return consensus(values[::-1], scale)


def is_ordered(scale: Scale) -> bool:
    """Tell whether some mistakes are smaller than others."""
    return isinstance(scale, Numeric) or (isinstance(scale, Categorical) and scale.ordered)


def _strata(values: Sequence[Value], scale: Scale) -> list[str]:
    """Name the label of each case; of a number, which part of the range it lies in."""
    if isinstance(scale, Numeric):
        ranked = sorted(map(float, values))
        cuts = ranked[:: max(len(ranked) // 4, 1)]
        return [str(sum(float(value) > cut for cut in cuts)) for value in values]
    return [scale.render(value) for value in values]
