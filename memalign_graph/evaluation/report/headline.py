"""What an evaluation found, in sentences that need no statistics. Pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass

from memalign_graph.agreement import agree
from memalign_graph.evaluation.baselines import CONSTANT, NEAREST
from memalign_graph.evaluation.report.measures import (
    Measure,
    Tone,
    before_and_after,
    comparison_of,
    measure_of,
)
from memalign_graph.evaluation.report.words import count, decimal, listed, percent, show
from memalign_graph.evaluation.results import Evaluation
from memalign_graph.evaluation.scores import (
    COVERAGE,
    Comparison,
    Estimate,
    JudgeScores,
    headline_metric,
)
from memalign_graph.scales import Numeric, Scale

_FEW = 20
"""Below so many cases a report says that they are few."""


@dataclass(frozen=True)
class Note:
    """One sentence beside the headline."""

    text: str
    """The sentence."""

    tone: Tone
    """What it means for the reader."""


@dataclass(frozen=True)
class Figure:
    """One of the large numbers."""

    title: str
    """Of which judge."""

    value: str
    """The number."""

    what: str
    """What it counts."""

    between: str
    """Its interval; empty where there is none."""


@dataclass(frozen=True)
class Headline:
    """What a reader who reads nothing else should know."""

    verdict: str
    """In a few words."""

    tone: Tone
    """Whether that is good."""

    sentences: list[str]
    """What was found."""

    notes: list[Note]
    """What has to be known beside it."""

    figures: list[Figure]
    """Before and after, as far as measured."""


def headline(evaluation: Evaluation) -> Headline:
    """Say what was found."""
    before, after = before_and_after(evaluation)
    measure = measure_of(evaluation.criterion.scale, headline_metric(evaluation.criterion.scale))
    main = after or before
    compared = comparison_of(evaluation, after, before) if after and before else None
    verdict, tone, sentence = _change(measure, compared)
    return Headline(
        verdict=verdict,
        tone=tone,
        sentences=[*_found(evaluation, measure, before, after), *([sentence] if sentence else [])],
        notes=list(_notes(evaluation, measure, before, main)),
        figures=[
            _figure(measure, evaluation.of(judge), title)
            for judge, title in ((before, "Before learning"), (after, "After learning"))
            if judge is not None
        ],
    )


def _figure(measure: Measure, scores: JudgeScores, title: str) -> Figure:
    found = scores.metrics.get(measure.key, Estimate(value=None))
    what = "average distance from the experts"
    if measure.key == "agreement":
        what = f"right on {_right(found, scores.cases)}"
    if found.value is None:
        what = "no verdict"
    between = _interval(measure, found)
    return Figure(
        title=title,
        value=measure.show(found.value),
        what=what,
        between=f"likely {between}" if between else "",
    )


def _right(found: Estimate, cases: int) -> str:
    return f"{round((found.value or 0) * cases):,} of {count(cases, 'case')}"


def _learned(evaluation: Evaluation, judge: str) -> str:
    """Say how much the judge had learned, which folds may differ in."""
    sizes = {one.episodes for one in evaluation.memories if one.judge == judge}
    if not sizes:
        return "After learning"
    least, most = min(sizes), max(sizes)
    many = f"{least:,} to " if least < most else ""
    return f"After learning from {many}{count(most, 'piece')} of feedback"


def _found(
    evaluation: Evaluation, measure: Measure, before: str | None, after: str | None
) -> Iterator[str]:
    main = after or before
    if main is None or not evaluation.cases:
        yield "No judge was measured on any case."
        return
    scores = evaluation.of(main)
    start = f"{_learned(evaluation, after)}, the" if after else "The"
    found = scores.metrics.get(measure.key, Estimate(value=None))
    if found.value is None:
        yield (
            f"{start} judge gave no verdict that can be used on any of "
            f"{count(len(evaluation.cases), 'unseen case')}."
        )
        return
    then = None
    if after and before:
        then = evaluation.of(before).metrics.get(measure.key)
    if isinstance(evaluation.criterion.scale, Numeric):
        yield from _far(evaluation.criterion.scale, measure, scores, start, then)
        return
    text = (
        f"{start} judge agrees with the experts on {round(found.value * scores.cases):,} of "
        f"{count(scores.cases, 'unseen case')} ({percent(found.value)}{_between(measure, found)})"
    )
    if then is not None and then.value is not None and before:
        cases = evaluation.of(before).cases
        of = "" if cases == scores.cases else f" of {cases:,}"
        text += f"; before, it was {round(then.value * cases):,}{of} ({percent(then.value)})"
    yield text + "."


def _far(
    scale: Numeric, measure: Measure, scores: JudgeScores, start: str, then: Estimate | None
) -> Iterator[str]:
    found = scores.metrics[measure.key]
    lowest, highest = show(scale, scale.minimum), show(scale, scale.maximum)
    interval = _interval(measure, found).replace(" to ", " and ")
    between = f" (between {interval})" if interval else ""
    text = (
        f"{start} judge's value is on average {measure.show(found.value)} away from the experts'"
        f"{between}, on a scale from {lowest} to {highest} and on "
        f"{count(scores.cases, 'unseen case')}"
    )
    if then is not None and then.value is not None:
        text += f"; before, it was {measure.show(then.value)} away"
    yield text + "."
    close = scores.metrics.get("agreement", Estimate(value=None))
    if close.value is not None:
        how = "gives exactly their value" if scale.integer else "is within a tenth of the scale"
        yield f"It {how} on {_right(close, scores.cases)} ({percent(close.value)})."


def _interval(measure: Measure, found: Estimate) -> str:
    # Where all cases are alike every draw of them is, too: that the interval has no width does not
    # mean that the number is certain.
    return "" if found.low == found.high else measure.show_interval(found)


def _between(measure: Measure, found: Estimate) -> str:
    interval = _interval(measure, found)
    return f", between {interval.replace(' to ', ' and ')}" if interval else ""


def _change(measure: Measure, compared: Comparison | None) -> tuple[str, Tone, str]:
    """Say whether learning changed anything: in few words, how good that is, in a sentence."""
    if compared is None:
        return "Measured", "plain", ""
    found = compared.differences.get(measure.key, Estimate(value=None))
    if found.value is None:
        return "Not comparable", "warn", "So nothing can be said about what learning changed."
    low, high = found.low, found.high
    if found.value == 0 and (low is None or low == high == 0):
        return "No change", "plain", "Learning changed nothing in that on these cases."
    if low is None or high is None:
        return (
            "Difference untested",
            "plain",
            "There is no interval, so whether the difference is chance is not known.",
        )
    # Of distances less is better: the ends change places when the sign is turned.
    gains = (-high, -low) if measure.less_is_better else (low, high)
    unit = " percentage points" if measure.kind == "share" else ""
    ahead = compared.is_ahead(measure.key)
    least, most = (measure.show_difference(abs(one)).lstrip("+") for one in gains)
    if ahead is None:
        span = f"{least}{unit} worse to {most}{unit} better than before"
        sentence = (
            "The difference may be chance: with other cases of the kind the judge would likely be "
            f"anything from {span}. More cases would tell."
        )
        return "May be chance", "warn", sentence
    word = "better" if ahead else "worse"
    ends = f"{least} to {most}" if ahead else f"{most} to {least}"
    return (
        f"{word.capitalize()} than before",
        "good" if ahead else "bad",
        f"That is {word} than before by more than chance is likely to do: by {ends}{unit}.",
    )


def _notes(
    evaluation: Evaluation, measure: Measure, before: str | None, main: str | None
) -> Iterator[Note]:
    if main is None:
        return
    scores = evaluation.of(main)
    if before is not None and before != main:
        yield from _turned(evaluation, before, main)
    if scores.cases:
        yield from _beside(evaluation, measure, main)
    if scores.failed:
        yield Note(
            f"On {count(scores.failed, 'case')} the judge gave no verdict that can be used; "
            f"{'it is' if scores.failed == 1 else 'they are'} in none of its numbers.",
            "warn",
        )
    if 0 < scores.cases < _FEW:
        yield Note(
            f"{count(scores.cases, 'case')} {'is' if scores.cases == 1 else 'are'} few: one case "
            "more or less can change the picture.",
            "warn",
        )
    right = scores.metrics.get("agreement", Estimate(value=None)).value
    if right == 1 and scores.cases >= _FEW:
        # The exact bound: with more errors than that, no error in so many cases would be rare.
        most = percent(1 - (1 - COVERAGE) ** (1 / scores.cases))
        yield Note(
            f"Right on all of {count(scores.cases, 'case')} does not mean always: of new cases it "
            f"may still have up to {most} wrong (95 % bound).",
            "plain",
        )
    yield from _experts(evaluation)


def _turned(evaluation: Evaluation, before: str, after: str) -> Iterator[Note]:
    scale = evaluation.criterion.scale
    mended = broken = 0
    for case in evaluation.cases:
        was, now = case.value_of(before), case.value_of(after)
        if was is None or now is None:
            continue
        was_right, is_right = agree(scale, was, case.expected), agree(scale, now, case.expected)
        mended += is_right and not was_right
        broken += was_right and not is_right
    if mended or broken:
        is_plain = "is" if mended == 1 else "are"
        yield Note(
            f"{count(mended, 'case')} that the judge had wrong before learning {is_plain} right "
            f"now; {count(broken, 'case')} that it had right {'is' if broken == 1 else 'are'} "
            "wrong now.",
            "good" if mended > broken else "plain" if mended == broken else "bad",
        )


def _beside(evaluation: Evaluation, measure: Measure, main: str) -> Iterator[Note]:
    """Hold the judge against what needs no judge."""
    outdone = []
    for other in (CONSTANT, NEAREST):
        compared = comparison_of(evaluation, main, other)
        if compared is None:
            continue
        found = compared.differences.get(measure.key, Estimate(value=None))
        if found.value is None:
            continue
        what = _described(evaluation, measure, other)
        ahead = compared.is_ahead(measure.key)
        if ahead:
            outdone.append(what)
        elif ahead is False:
            yield Note(f"It is worse than {what}.", "bad")
        elif found.value == 0:
            yield Note(f"It is no better than {what}.", "warn")
        elif found.low is not None:
            yield Note(
                f"It is not clearly better than {what}: the difference may be chance.", "warn"
            )
        else:
            better = (found.value < 0) if measure.less_is_better else (found.value > 0)
            word = "better" if better else "no better"
            yield Note(
                f"It is {word} than {what}; whether that is chance is not known.",
                "plain" if better else "warn",
            )
    if outdone:
        yield Note(
            f"It is better than {listed(outdone).replace(' and copying', ' and than copying')}.",
            "good",
        )


def _described(evaluation: Evaluation, measure: Measure, other: str) -> str:
    scale = evaluation.criterion.scale
    scores = evaluation.of(other)
    found = scores.metrics.get(measure.key, Estimate(value=None))
    if measure.key == "agreement":
        how_good = f"{_right(found, scores.cases)}, {measure.show(found.value)}"
    else:
        how_good = f"{measure.show(found.value)} away on average"
    if other == NEAREST:
        return f"copying the experts' answer to the most similar cases ({how_good})"
    return f"{_always(evaluation, scale)} ({how_good})"


def _always(evaluation: Evaluation, scale: Scale) -> str:
    said = {one.predictions[CONSTANT] for one in evaluation.cases if CONSTANT in one.predictions}
    if len(said) == 1:
        return f"always answering “{show(scale, said.pop())}”"
    middle = "middle" if isinstance(scale, Numeric) else "commonest"
    return f"always giving the {middle} answer"


def _experts(evaluation: Evaluation) -> Iterator[Note]:
    found = evaluation.experts
    if not found.examples:
        return
    same = found.examples - len(found.disagreements)
    shared = (
        f"{count(found.examples, 'case')} {'has' if found.examples == 1 else 'have'} values of "
        f"two or more experts, and on {same:,} of them they agree"
    )
    alpha = "."
    if found.alpha is not None:
        alpha = (
            f" (Krippendorff's alpha {decimal(found.alpha, 2)}; 1 is full agreement, 0 is what "
            "chance gives)."
        )
    ceiling = (
        " That is about the most that can be asked of a judge: it can hardly agree with experts "
        "more than they agree with each other."
        if found.disagreements
        else ""
    )
    yield Note(f"{shared}{alpha}{ceiling}", "plain")
