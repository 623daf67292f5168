"""What `review="uncertain"` came to: how much was asked, why, and how often the judge was right."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, get_args

from pydantic import Field

from memalign_graph.agreement import agree, majority_value, on_scale
from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.trust import interval, is_blind
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.judgments import ReviewItem, all_reviews
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Episode, FrozenModel, ReviewReason


class ReviewAgreement(FrozenModel):
    """How often judgments that an expert was asked about agree with what the expert said."""

    asked: int
    """How many judgments an expert was asked about."""

    answered: int
    """How many of these have an expert's value in memory; what was forgotten since has none."""

    agreeing: int
    """How many of these it agrees with, as the judge's value was at the time."""

    agreement: float | None
    """The share of the answered that agree; None if there are none."""

    low: float
    """What the share is not below: an exact interval at a level of 95 % (Clopper and Pearson)."""

    high: float
    """What it is not above."""


class ReviewCounts(FrozenModel):
    """What was asked, and why."""

    judgments: int
    """How many judgments were made."""

    coverage: float | None
    """The share of them that nobody was asked about; None if there are none."""

    reasons: dict[ReviewReason, int]
    """How many of them have each reason; one can have several, and with `no_budget` was not asked
    about for the others."""

    asked: ReviewAgreement
    """All judgments that an expert was asked about: the doubtful ones, mostly."""

    sample: ReviewAgreement
    """Those that were asked about by chance alone: an estimate of the agreement on what nobody was
    asked about, which choosing has not biased. If `high` is below the target, the judge has
    drifted, or the cases have."""


class ReviewDay(ReviewCounts):
    """The same of one day."""

    day: date
    """The day, in UTC."""


class ReviewReport(ReviewCounts):
    """What was asked in some time, and why."""

    since: date | None
    """The first day with a judgment; None if there is none."""

    until: date | None
    """The last day with one."""

    days: list[ReviewDay] = Field(default_factory=list)
    """Day by day, those without a judgment left out."""


async def review_report(
    io: IO, access: MemoryAccess, *, since: date | None = None, until: date | None = None
) -> ReviewReport:
    """Report what was asked, and why."""
    _check_day("since", since)
    _check_day("until", until)
    if since is not None and until is not None and until < since:
        raise InvalidInputError(f"until: {until} is before since, {since}.")
    items = await all_reviews(io, access, since=since, until=until)
    episodes = await access.all_episodes(io) if items else []
    return report_of(items, episodes, access.criterion.scale)


def report_of(
    items: Iterable[ReviewItem], episodes: Iterable[Episode], scale: Scale
) -> ReviewReport:
    """Make a report of the log and of what the experts said."""
    agreed = _agreed(episodes, scale)
    by_day: defaultdict[date, list[ReviewItem]] = defaultdict(list)
    for item in items:
        by_day[item.date].append(item)
    everything = [item for day in by_day.values() for item in day]
    return ReviewReport(
        since=min(by_day, default=None),
        until=max(by_day, default=None),
        days=[
            ReviewDay(day=day, **_counts(of_day, agreed)) for day, of_day in sorted(by_day.items())
        ],
        **_counts(everything, agreed),
    )


def _agreed(episodes: Iterable[Episode], scale: Scale) -> dict[str, bool]:
    """Tell of judgments that experts gave a value on whether they agree with it."""
    verdicts: dict[str, Value] = {}
    answers: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        verdicts |= episode.verdicts
        for judgment_id in episode.verdicts:
            answers[judgment_id].append(episode)
    agreed = {}
    for judgment_id, several in answers.items():
        got, expected = on_scale(verdicts[judgment_id], scale), majority_value(several, scale)
        if got is not None and expected is not None:
            agreed[judgment_id] = agree(scale, got, expected)
    return agreed


def _counts(items: Sequence[ReviewItem], agreed: Mapping[str, bool]) -> dict[str, Any]:
    asked = [one for one in items if one.asked]
    counts = Counter(reason for one in items for reason in one.reasons)
    return {
        "judgments": len(items),
        "coverage": 1 - len(asked) / len(items) if items else None,
        "reasons": {reason: counts[reason] for reason in get_args(ReviewReason) if counts[reason]},
        "asked": _agreement(asked, agreed),
        "sample": _agreement([one for one in asked if is_blind(one.reasons)], agreed),
    }


def _agreement(asked: Sequence[ReviewItem], agreed: Mapping[str, bool]) -> ReviewAgreement:
    answers = [agreed[one.judgment_id] for one in asked if one.judgment_id in agreed]
    low, high = interval(sum(answers), len(answers))
    return ReviewAgreement(
        asked=len(asked),
        answered=len(answers),
        agreeing=sum(answers),
        agreement=sum(answers) / len(answers) if answers else None,
        low=low,
        high=high,
    )


def _check_day(name: str, given: Any) -> None:
    # A datetime is a date, too, but whose day it is depends on where.
    if given is not None and type(given) is not date:
        raise InvalidInputError(f"{name}: {given!r} is no day: give a date, such as date.today().")
