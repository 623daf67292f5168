"""Cases and guidelines as a report shows them. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from memalign_graph.agreement import agree
from memalign_graph.evaluation.flips import Flip
from memalign_graph.evaluation.learning import LearningCurve
from memalign_graph.evaluation.report.measures import before_and_after
from memalign_graph.evaluation.report.words import as_text, clean, count, percent, show
from memalign_graph.evaluation.results import EvaluatedCase, Evaluation, ExpertWord
from memalign_graph.scales import Numeric, Pairwise, Scale
from memalign_graph.types import Example

_PAIR = 2
_MOST_WORDS = 10
"""More experts on one case than that are counted only."""

_WORDS_CHARS = 4_000
_MOST_RULES = 40
_RULE_CHARS = 1_000


@dataclass(frozen=True)
class Passage:
    """A text of a case, with what it is."""

    title: str
    """What it is."""

    text: str
    """The text."""


@dataclass(frozen=True)
class Word:
    """What one expert said."""

    who: str
    """Who; `An expert` if not known."""

    value: str
    """The value, as the scale shows it."""

    words: str
    """Why, in the expert's words; empty for none."""


@dataclass(frozen=True)
class CaseView:
    """A case that the judge has wrong, or gave no verdict on."""

    number: int
    """Its place among all cases, from 1 on."""

    passages: list[Passage]
    """What was judged."""

    expected: str
    """The experts' value."""

    experts: list[Word]
    """What each of them said."""

    more_experts: int
    """How many more there are."""

    differ: bool
    """Whether they differ among themselves."""

    verdict: str
    """The judge's value; empty if it gave none."""

    rationale: str
    """Why, in the judge's words; why there is no verdict if it gave none."""

    sure: str
    """How sure it was; empty if it did not tell."""

    before: str
    """Its value before learning; empty if there is none."""

    was_right: bool
    """Whether it was right before learning."""

    guidelines: list[str]
    """The guidelines in its prompt."""

    similar: int
    """How many similar cases were in its prompt."""

    warnings: list[str]
    """What the judge had to do without."""


@dataclass(frozen=True)
class FlipView:
    """A case that was right at one step of the learning curve and no longer at the next."""

    step: str
    """When."""

    passages: list[Passage]
    """What was judged."""

    expected: str
    """The experts' value."""

    experts: list[Word]
    """What each of them said."""

    before: str
    """The verdict before."""

    after: str
    """The verdict then."""

    rationale: str
    """Why, in the judge's words."""

    turned_by: str
    """What turned it, in words."""

    guidelines: list[str]
    """The guidelines that did."""


def wrong_cases(evaluation: Evaluation) -> list[CaseView]:
    """List the cases that are still wrong after learning."""
    before, after = before_and_after(evaluation)
    main = after or before
    if main is None:
        return []
    earlier = before if before != main else None
    scale = evaluation.criterion.scale
    numbers = {id(case): number for number, case in enumerate(evaluation.cases, 1)}

    def weight(case: EvaluatedCase) -> tuple[bool, float, float, int]:
        distance = 0.0
        if isinstance(scale, Numeric):
            distance = abs(float(case.value_of(main) or 0) - float(case.expected))
        sure = case.judgments[main].confidence if main in case.judgments else None
        was_right = _was_right(scale, case, earlier)
        return not was_right, -distance, -(sure or 0.0), numbers[id(case)]

    wrong = sorted(evaluation.wrong(main), key=weight)
    return [_view(evaluation, case, numbers[id(case)], main, earlier) for case in wrong]


def failed_cases(evaluation: Evaluation) -> list[CaseView]:
    """List the cases that the judge gave no verdict on after learning."""
    before, after = before_and_after(evaluation)
    main = after or before
    if main is None:
        return []
    earlier = before if before != main else None
    return [
        _view(evaluation, case, number, main, earlier)
        for number, case in enumerate(evaluation.cases, 1)
        if case.value_of(main) is None
    ]


def flips(curve: LearningCurve) -> list[FlipView]:
    """List the cases that were right at one step of a learning curve and no longer at the next."""
    scale = curve.criterion.scale
    found = []
    before = 0
    for step in curve.steps:
        when = f"between {before:,} and {count(step.feedback, 'piece')} of feedback"
        found += [_flip(scale, one, when) for one in step.flips]
        before = step.feedback
    return found


def passages_of(scale: Scale, example: Example) -> list[Passage]:
    """Show what was judged."""
    outputs = example.outputs
    found = [Passage("What was given", clean(as_text(example.inputs)))]
    both: Sequence[object] = ()
    if isinstance(scale, Pairwise) and isinstance(outputs, list):
        both = outputs
    elif isinstance(scale, Pairwise) and isinstance(outputs, dict):
        both = list(outputs.values())
    if len(both) == _PAIR:
        found += [
            Passage(f"Answer {name}", clean(as_text(one)))
            for name, one in zip("AB", both, strict=True)
        ]
    else:
        found.append(Passage("What was answered", clean(as_text(outputs))))
    if example.reference_outputs is not None:
        found.append(Passage("Reference answer", clean(as_text(example.reference_outputs))))
    return found


def words_of(scale: Scale, experts: Sequence[ExpertWord]) -> list[Word]:
    """Show what experts said."""
    return [
        Word(
            who=clean(one.author, most=80) if one.author else "An expert",
            value=show(scale, one.value),
            words=clean(one.rationale or "", most=_WORDS_CHARS),
        )
        for one in experts[:_MOST_WORDS]
    ]


def _was_right(scale: Scale, case: EvaluatedCase, before: str | None) -> bool:
    value = case.value_of(before) if before else None
    return value is not None and agree(scale, value, case.expected)


def _view(
    evaluation: Evaluation, case: EvaluatedCase, number: int, main: str, before: str | None
) -> CaseView:
    scale = evaluation.criterion.scale
    judgment = case.judgments.get(main)
    was = case.value_of(before) if before else None
    given = {
        (memory.fold, one.id): one.text
        for memory in evaluation.memories
        if memory.judge == main
        for one in memory.guidelines
    }
    shown = judgment.guideline_ids if judgment else []
    values = [one.value for one in case.experts if one.value is not None]
    sure = judgment.confidence if judgment else None
    failure = case.failures.get(main, "It is not known why.")
    return CaseView(
        number=number,
        passages=passages_of(scale, case.example),
        expected=show(scale, case.expected),
        experts=words_of(scale, case.experts),
        more_experts=max(len(case.experts) - _MOST_WORDS, 0),
        differ=any(one != values[0] for one in values),
        verdict=show(scale, judgment.value) if judgment else "",
        rationale=clean(judgment.rationale if judgment else failure),
        sure="" if sure is None else percent(sure),
        before="" if was is None else show(scale, was),
        was_right=_was_right(scale, case, before),
        guidelines=[
            clean(
                given.get((case.fold, key), f"A guideline that is not kept here ({key})."),
                most=_RULE_CHARS,
            )
            for key in shown[:_MOST_RULES]
        ],
        similar=len(judgment.episode_ids) if judgment else 0,
        warnings=[clean(one, most=500) for one in judgment.warnings] if judgment else [],
    )


_TURNED = {
    "guideline": "A new guideline turned it: without it the case would still be right.",
    "guidelines": "New guidelines turned it together, none of them alone.",
    "episodes": "New cases in the judge's prompt turned it; no guideline did.",
}


def _flip(scale: Scale, flip: Flip, step: str) -> FlipView:
    return FlipView(
        step=step,
        passages=passages_of(scale, flip.example),
        expected=show(scale, flip.expected),
        experts=words_of(scale, flip.experts),
        before=show(scale, flip.before),
        after=show(scale, flip.after),
        rationale=clean(flip.rationale),
        turned_by=_TURNED[flip.turned_by],
        guidelines=[clean(one.text, most=_RULE_CHARS) for one in flip.guidelines[:_MOST_RULES]],
    )
