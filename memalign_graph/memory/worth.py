"""What guidelines are worth: how well they tell apart the cases that experts valued differently.

Source: A. R. Jonckheere, A distribution-free k-sample test against ordered alternatives, 1954. With
two values it is the test of Mann and Whitney.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import sqrt
from operator import itemgetter

from memalign_graph.agreement import majority, on_scale
from memalign_graph.identity import asked_id
from memalign_graph.memory.standing import EpisodeRow
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Boolean, Categorical, Numeric, Scale, Value
from memalign_graph.types import Guideline, Worth

MIN_CASES = 8
"""A guideline stands, whatever it was measured at, until so many cases tell of it."""

_Z_95 = 1.645
"""Of the one-sided 95 % bound below which a guideline states the opposite of the experts."""

_BY_CHANCE = 0.5  # of pairs that a guideline tells apart that says nothing of the values

Answers = Mapping[str, Mapping[str, float]]
"""How likely examples meet guidelines, by `asked_id` and example id."""


def measured(view: MemoryView, scale: Scale) -> tuple[str, list[Guideline]]:
    """Return the version, and the guidelines in it with what they are worth; not to be changed."""
    version, guidelines = view.current()
    known = view.derived.get(("guidelines", scale))
    if known is None or known[0] != version:
        known = version, _measured(view, guidelines, scale)
        view.derived["guidelines", scale] = known
    return version, known[1]


def answers_in(view: MemoryView) -> Answers:
    """Gather how likely cases in memory meet guidelines, whenever asked; not to be changed."""
    version = view.version
    known = view.derived.get("answers")
    if known is not None and known[0] == version:
        found: Answers = known[1]
        return found
    answers: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in sorted(view.rows(), key=lambda row: row.given_at):
        for asked, answer in row.judged.checks.items() if row.judged else ():
            answers[asked][row.example_id] = answer
    for asked, later in view.answers().items():
        answers[asked] |= later
    view.derived["answers"] = version, answers
    return answers


def is_of(asked: str, question: str) -> bool:
    """Tell whether it was this question that a model was asked."""
    return asked.startswith(asked_id(question, ""))


def _measured(view: MemoryView, guidelines: list[Guideline], scale: Scale) -> list[Guideline]:
    ranks = not isinstance(scale, Categorical) or scale.ordered
    is_ordered = isinstance(scale, Boolean | Numeric | Categorical) and ranks
    if not is_ordered or not any(guideline.question for guideline in guidelines):
        return guidelines
    rows, answers = view.rows(), answers_in(view)
    values = _values(rows, scale) if answers else {}
    example_of = {row.id: row.example_id for row in rows}

    def with_worth(guideline: Guideline) -> Guideline:
        question = guideline.question
        if not question:
            return guideline
        own = {example_of.get(key) for key in guideline.episode_ids}
        by_model = [
            [(values[key], found[key]) for key in found.keys() & values.keys() - own]
            for asked, found in sorted(answers.items())
            if is_of(asked, question)
        ]
        return _with_worth(guideline, max(by_model, key=len, default=[]))

    return list(map(with_worth, guidelines))


def _values(rows: Iterable[EpisodeRow], scale: Scale) -> dict[str, float]:
    """Return what experts say of each example, higher the better."""
    given: defaultdict[str, list[Value]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.given_at, row.id)):
        if (value := on_scale(row.value, scale)) is not None:
            given[row.example_id].append(value)
    counts = {key: majority(values, scale) for key, values in given.items()}
    if isinstance(scale, Categorical):
        return {key: float(scale.choices.index(str(value))) for key, value in counts.items()}
    return {key: float(value) for key, value in counts.items()}


def _with_worth(guideline: Guideline, cases: Sequence[tuple[float, float]]) -> Guideline:
    """Measure by cases: what experts say of each, and how likely it meets the guideline."""
    lower: list[float] = []
    sizes, hits = [], 0.0
    for _, group in groupby(sorted(cases), key=itemgetter(0)):
        answers = [answer for _, answer in group]
        hits += sum(bisect_left(lower, one) + bisect_right(lower, one) for one in answers) / 2
        sizes.append(len(answers))
        for answer in answers:
            insort(lower, answer)
    count = len(cases)
    pairs = (count**2 - sum(size**2 for size in sizes)) / 2
    if not pairs:
        return guideline
    spread = sum(size**2 * (2 * size + 3) for size in sizes)
    by_chance = sqrt((count**2 * (2 * count + 3) - spread) / 72) / pairs
    auc, status = hits / pairs, guideline.status
    # What lost a source is worded anew before it is measured for good; what an expert wrote stands.
    is_open = guideline.origin == "distilled" and status == "standing" and count >= MIN_CASES
    if is_open and auc + _Z_95 * by_chance < _BY_CHANCE:
        status = "unproven"
    worth = Worth(auc=auc, cases=count)
    return guideline.model_copy(update={"worth": worth, "status": status})
