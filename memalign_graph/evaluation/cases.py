"""Labelled cases out of feedback, and how they are divided into what is learned and what is not.

All feedback on one item goes the same way, so that nothing a judge learned from is what it is
measured on.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memalign_graph.agreement import majority_value
from memalign_graph.errors import InvalidInputError, needs_extra
from memalign_graph.identity import digest
from memalign_graph.reading import FeedbackLike, read_feedback
from memalign_graph.scales import Value
from memalign_graph.types import Criterion, Episode, Example, Feedback

GroupBy = Literal["example", "inputs"] | Callable[[Example], str]
"""What counts as one item: the same example, the same inputs, or what a function returns."""

_MIN_FOLDS = 2


@dataclass(frozen=True)
class LabelledCase:
    """An example whose value experts gave, with all they said on it."""

    example: Example
    """The example."""

    expected: Value
    """The value that counts of those they gave."""

    feedback: tuple[Feedback, ...]
    """Every expert's word on it, oldest first."""

    group: str
    """Names the item it belongs to."""


@dataclass(frozen=True)
class Fold:
    """One way of dividing the feedback."""

    train: tuple[Feedback, ...]
    """What is learned from."""

    test: tuple[LabelledCase, ...]
    """What is judged."""


def read_all(
    feedback: Iterable[FeedbackLike], criterion: Criterion, name: str = "feedback"
) -> list[Feedback]:
    """Read and check feedback; of two words of one expert on one example the newer counts."""
    if isinstance(feedback, Feedback | dict | str) or not isinstance(feedback, Iterable):
        raise InvalidInputError(
            f"{name}: give a list of Feedback, or of objects with `inputs`, `outputs` and `value`."
        )
    read: dict[str, Feedback] = {}
    for place, given in enumerate(feedback):
        try:
            one = read_feedback(given)
        except InvalidInputError as error:
            raise InvalidInputError(f"{name}[{place}]: {error}") from error
        if one.value is not None:
            try:
                value = criterion.scale.validate_value(one.value)
            except ValueError as error:
                raise InvalidInputError(f"{name}[{place}].value: {error}") from error
            one = one.model_copy(update={"value": value})
        known = read.get(one.episode_id)
        if known is None or known.given_at <= one.given_at:
            read[one.episode_id] = one
    return list(read.values())


def labelled_cases(
    feedback: Sequence[Feedback], criterion: Criterion, group_by: GroupBy = "example"
) -> list[LabelledCase]:
    """Gather feedback by example; examples on which nobody gave a value are left out."""
    by_example: dict[str, list[Feedback]] = {}
    for one in feedback:
        by_example.setdefault(one.example.id, []).append(one)
    cases = []
    for words in by_example.values():
        words.sort(key=lambda one: (one.given_at, one.episode_id))
        episodes = [Episode.from_feedback(one) for one in words]
        expected = majority_value(episodes, criterion.scale)
        if expected is not None:
            example = words[0].example
            group = group_of(example, group_by)
            cases.append(LabelledCase(example, expected, tuple(words), group))
    return cases


def group_of(example: Example, group_by: GroupBy) -> str:
    """Name the item an example belongs to."""
    if group_by == "example":
        return example.id
    if group_by == "inputs":
        return digest(example.inputs)
    if not callable(group_by):
        raise InvalidInputError(
            f"group_by: {group_by!r} is not known: give 'example', 'inputs', or a function that "
            "takes an Example and returns the name of its item."
        )
    return str(group_by(example))


def check_count(name: str, count: Any, *, least: int = 1, most: int | None = None) -> int:
    """Check an option that counts something."""
    is_whole = isinstance(count, int) and not isinstance(count, bool)
    if is_whole and least <= count and (most is None or count <= most):
        return int(count)
    span = f"from {least} on" if most is None else f"from {least} to {most:,}"
    raise InvalidInputError(f"{name}: {count!r} is not a whole number {span}.")


def make_folds(
    feedback: Sequence[Feedback],
    criterion: Criterion,
    *,
    folds: int,
    group_by: GroupBy = "example",
    seed: int = 0,
) -> list[Fold]:
    """Divide feedback into folds, all of one item in the same."""
    check_count("folds", folds, least=_MIN_FOLDS)
    cases = labelled_cases(feedback, criterion, group_by)
    groups = [case.group for case in cases]
    if len(set(groups)) < folds:
        raise InvalidInputError(
            f"folds: {folds} folds need at least as many items with a value, and there are "
            f"{len(set(groups))}: give more feedback, fewer folds, or another `group_by`."
        )
    with needs_extra("evaluation", "cross-validation"):
        from sklearn.model_selection import GroupKFold
    splitter = GroupKFold(n_splits=folds, shuffle=True, random_state=seed)
    divided = []
    for _, places in splitter.split(cases, groups=groups):
        test = tuple(cases[place] for place in sorted(places))
        divided.append(Fold(train=_without(feedback, test, group_by), test=test))
    return divided


def hold_out(
    feedback: Sequence[Feedback],
    criterion: Criterion,
    *,
    share: float,
    group_by: GroupBy = "example",
    seed: int = 0,
) -> Fold:
    """Set a share of the items aside to be judged."""
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise InvalidInputError(f"test_share: {share!r} is not a number above 0 and below 1.")
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    cases = labelled_cases(feedback, criterion, group_by)
    groups = list(dict.fromkeys(case.group for case in cases))
    chance.shuffle(groups)
    aside = set(groups[: round(share * len(groups))])
    test = tuple(case for case in cases if case.group in aside)
    train = _without(feedback, test, group_by)
    if not test or not train:
        raise InvalidInputError(
            f"feedback: {len(groups)} items with a value are too few to set a share of {share} "
            "aside: give more feedback."
        )
    return Fold(train=train, test=test)


def _without(
    feedback: Sequence[Feedback], test: Sequence[LabelledCase], group_by: GroupBy
) -> tuple[Feedback, ...]:
    aside = {case.group for case in test}
    return tuple(one for one in feedback if group_of(one.example, group_by) not in aside)
