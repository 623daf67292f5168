"""Guidelines as a report shows them: where they come from, and what they do. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from memalign_graph.evaluation.credit import GuidelineCredit
from memalign_graph.evaluation.report.cases import Word
from memalign_graph.evaluation.report.measures import Tone
from memalign_graph.evaluation.report.report import Report
from memalign_graph.evaluation.report.words import as_text, clean, count, listed, one_line, show
from memalign_graph.scales import Scale
from memalign_graph.types import Episode, Guideline

_CASE_CHARS = 160
_MOST_SOURCES = 20
_MOST_CHANGED = 20
_MOST_AUTHORS = 4


@dataclass(frozen=True)
class Source:
    """A piece of feedback that a guideline rests on."""

    word: Word
    """What the expert said."""

    about: str
    """The beginning of what it was said on."""


@dataclass(frozen=True)
class Changed:
    """A verdict that the guideline changes."""

    about: str
    """The beginning of the case."""

    expected: str
    """The experts' value."""

    with_it: str
    """The verdict with the guideline."""

    without_it: str
    """The verdict without it."""


@dataclass(frozen=True)
class GuidelineView:
    """A guideline."""

    text: str
    """The rule."""

    origin: str
    """What it rests on, in words."""

    sources: list[Source]
    """The feedback it rests on, as far as it is at hand."""

    more_sources: int
    """How much more there is."""

    worth: str
    """What it does, in a word or two; empty where that was not tried."""

    tone: Tone
    """Whether that is good."""

    credit: str
    """What it does, in a sentence; empty where that was not tried."""

    changed: list[Changed]
    """The verdicts it changes."""

    status: str
    """Why the judge is not given it; empty where it is."""


def guideline_views(report: Report) -> list[GuidelineView]:
    """List the guidelines."""
    scale = report.evaluation.criterion.scale
    sources = {one.id: one for one in report.sources}
    credit = {one.guideline.id: one for one in report.credit}
    rank = {key: place for place, key in enumerate(credit)}
    ordered = sorted(report.guidelines, key=lambda one: rank.get(one.id, len(rank)))
    return [_view(scale, one, sources, credit.get(one.id)) for one in ordered]


def _view(
    scale: Scale,
    guideline: Guideline,
    sources: dict[str, Episode],
    credit: GuidelineCredit | None,
) -> GuidelineView:
    found = [sources[key] for key in guideline.episode_ids if key in sources]
    shown = [_source(scale, one) for one in found[:_MOST_SOURCES]]
    worth, tone = _worth(credit)
    return GuidelineView(
        text=clean(guideline.text),
        origin=_origin(guideline, found),
        sources=shown,
        more_sources=len(guideline.episode_ids) - len(shown),
        worth=worth,
        tone=tone,
        credit=_credit(credit),
        changed=_changed(scale, credit),
        status=_status(guideline),
    )


def _source(scale: Scale, episode: Episode) -> Source:
    word = Word(
        who=clean(episode.author, most=80) if episode.author else "An expert",
        value="" if episode.value is None else show(scale, episode.value),
        words=clean(episode.rationale or "", most=4_000),
    )
    return Source(word, one_line(as_text(episode.example.outputs), _CASE_CHARS))


def _origin(guideline: Guideline, found: Sequence[Episode]) -> str:
    number = len(guideline.episode_ids)
    if guideline.origin == "expert":
        by = clean(guideline.author, most=80) if guideline.author else "an expert"
        rests = f"; it also rests on {count(number, 'piece')} of feedback" if number else ""
        return f"Written by {by}{rests}."
    if not number:
        return "No feedback that it rests on is known."
    authors = list(dict.fromkeys(clean(one.author, most=80) for one in found if one.author))
    named = authors[:_MOST_AUTHORS]
    if len(authors) > _MOST_AUTHORS:
        named.append(count(len(authors) - _MOST_AUTHORS, "other"))
    by = f" by {listed(named)}" if named else ""
    return f"Rests on {count(number, 'piece')} of feedback{by}."


def _worth(credit: GuidelineCredit | None) -> tuple[str, Tone]:
    if credit is None:
        return "", "plain"
    if not credit.shown_for:
        return "Never shown", "warn"
    match credit.worth:
        case "harmful":
            return "Does harm", "bad"
        case "useful":
            return "Helps", "good"
        case "useless":
            return ("Harms as often as it helps" if credit.harmed else "Turns nothing"), "warn"


def _credit(credit: GuidelineCredit | None) -> str:
    if credit is None:
        return ""
    if not credit.shown_for:
        return "It was in the prompt for none of the cases tried."
    if not credit.helped and not credit.harmed:
        return (
            f"Left out, it would change none of the {count(credit.shown_for, 'verdict')} tried "
            "between right and wrong."
        )
    return (
        f"Of {count(credit.shown_for, 'verdict')} tried with and without it, it makes "
        f"{credit.helped:,} right and {credit.harmed:,} wrong."
    )


def _changed(scale: Scale, credit: GuidelineCredit | None) -> list[Changed]:
    return [
        Changed(
            about=one_line(as_text(one.example.outputs), _CASE_CHARS),
            expected=show(scale, one.expected),
            with_it=show(scale, one.with_it),
            without_it=show(scale, one.without_it),
        )
        for one in (credit.changed if credit else [])[:_MOST_CHANGED]
    ]


def _status(guideline: Guideline) -> str:
    if guideline.status == "pending":
        return "Some of its sources were taken back; it is to be worded anew."
    return ""
