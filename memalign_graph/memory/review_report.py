"""Report on `review="uncertain"`: what was asked, why, and how often the judge agreed."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date
from typing import Any, get_args

from pydantic import Field

from memalign_graph.agreement import consensus_value, value_or_none, values_agree
from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.drift import Drift, find_drift
from memalign_graph.evidence.ppi import estimate_mean
from memalign_graph.evidence.threshold import is_random_sample
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.judgments import ReviewLogEntry, read_review_log
from memalign_graph.scales import Scale, Value
from memalign_graph.types import Episode, FrozenModel, ReviewReason


class ReviewAgreement(FrozenModel):
    """How often the judge agreed with the experts on judgments that they were asked about."""

    asked: int
    """The number of judgments that an expert was asked about."""

    answered: int
    """The number of these with an expert's label in memory."""

    agreeing: int
    """The number of these where the judge's value at the time agrees with the label."""

    agreement: float | None
    """`agreeing / answered`; None if nothing is answered."""

    low: float
    """The lower end of its 95 % interval (Wilson)."""

    high: float
    """The upper end."""


class ReviewCounts(FrozenModel):
    """What experts were asked about, and why."""

    judgments: int
    """The number of judgments."""

    coverage: float | None
    """The share that no expert was asked about; None if there are no judgments."""

    reasons: dict[ReviewReason, int]
    """The number of judgments by reason; one can have several. With `no_budget` no expert was
    asked, whatever the other reasons."""

    asked: ReviewAgreement
    """All judgments that an expert was asked about, most of them uncertain."""

    unasked: int
    """The number of judgments that no expert was asked about; for tool calls, those that ran or
    were refused without a question."""

    unasked_wrong: int
    """The number of these that an expert later labeled differently."""

    sample: ReviewAgreement
    """The judgments sampled at random: an unbiased estimate of the agreement on those that no
    expert was asked about. If `high` is below the target, the judge or the cases have drifted."""


class ReviewDay(ReviewCounts):
    """The counts of one day."""

    day: date
    """The day, in UTC."""


class ReviewReport(ReviewCounts):
    """The counts of a period, in all and by day."""

    since: date | None
    """The first day with a judgment; None if there is none."""

    until: date | None
    """The last day with a judgment."""

    days: list[ReviewDay] = Field(default_factory=list)
    """The counts by day; days without judgments are left out."""

    drift: Drift = Drift(answers=0, evidence=1.0, has_fallen=False)
    """Whether the agreement on judgments sampled at random has fallen over time, from the first to
    the last in memory, whatever `since` and `until` are."""


async def review_report(
    io: IO, access: MemoryAccess, *, since: date | None = None, until: date | None = None
) -> ReviewReport:
    for name, day in (("since", since), ("until", until)):
        # A datetime is a date too, but its day depends on the time zone.
        if day is not None and type(day) is not date:
            raise InvalidInputError(f"{name}: expected a date such as date.today(), got {day!r}.")
    if since is not None and until is not None and until < since:
        raise InvalidInputError(f"until: {until} is before since, {since}.")
    log, scale = await read_review_log(io, access), access.criterion.scale
    episodes = await access.all_episodes(io)
    items = [
        item
        for item in log
        if (since is None or since <= item.date) and (until is None or item.date <= until)
    ]
    drift = find_drift(_drawn(log, episodes, scale))
    return report_of(items, episodes, scale).model_copy(update={"drift": drift})


def _drawn(
    log: Iterable[ReviewLogEntry], episodes: Sequence[Episode], scale: Scale
) -> list[tuple[str, date, bool]]:
    """Return the sampled judgments in the order of answers, and whether the judge agreed.

    Also those with other reasons to ask: what is uncertain changes as the memory grows.
    """
    drawn = {item.judgment_id for item in log if item.asked and "sample" in item.reasons}
    for judgment in filter(None, (episode.judgment for episode in episodes)):
        # The log no longer has older ones.
        if judgment.review and judgment.review.asks and "sample" in judgment.review.reasons:
            drawn.add(judgment.id)
    newest_first = sorted(episodes, key=lambda episode: episode.given_at, reverse=True)
    given_at = {key: episode.given_at for episode in newest_first for key in episode.verdicts}
    answers = answered_judgments(episodes, scale)
    return [
        (key, given_at[key].astimezone(UTC).date(), values_agree(scale, *answers[key]))
        for key in sorted(drawn & answers.keys(), key=lambda key: (given_at[key], key))
    ]


def report_of(
    items: Sequence[ReviewLogEntry], episodes: Iterable[Episode], scale: Scale
) -> ReviewReport:
    answers = answered_judgments(episodes, scale)
    agreed = {key: values_agree(scale, *values) for key, values in answers.items()}
    by_day: defaultdict[date, list[ReviewLogEntry]] = defaultdict(list)
    for item in items:
        by_day[item.date].append(item)
    return ReviewReport(
        since=min(by_day, default=None),
        until=max(by_day, default=None),
        days=[ReviewDay(day=day, **_counts(by_day[day], agreed)) for day in sorted(by_day)],
        **_counts(items, agreed),
    )


def answered_judgments(episodes: Iterable[Episode], scale: Scale) -> dict[str, tuple[Value, Value]]:
    """Return the judge's value and the experts' consensus of labeled judgments, by id."""
    verdicts: dict[str, Value] = {}
    answers: defaultdict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        verdicts |= episode.verdicts
        for judgment_id in episode.verdicts:
            answers[judgment_id].append(episode)
    answered = {}
    for judgment_id, several in answers.items():
        got, expected = value_or_none(verdicts[judgment_id], scale), consensus_value(several, scale)
        if got is not None and expected is not None:
            answered[judgment_id] = (got, expected)
    return answered


def _counts(items: Sequence[ReviewLogEntry], agreed: Mapping[str, bool]) -> dict[str, Any]:
    asked = [item for item in items if item.asked]
    unasked = [item.judgment_id for item in items if not item.asked]
    counts = Counter(reason for item in items for reason in item.reasons)
    return {
        "judgments": len(items),
        "coverage": 1 - len(asked) / len(items) if items else None,
        "reasons": {reason: counts[reason] for reason in get_args(ReviewReason) if counts[reason]},
        "asked": _agreement(asked, agreed),
        "unasked": len(unasked),
        "unasked_wrong": sum(not agreed.get(judgment_id, True) for judgment_id in unasked),
        "sample": _agreement([item for item in asked if is_random_sample(item.reasons)], agreed),
    }


def _agreement(asked: Sequence[ReviewLogEntry], agreed: Mapping[str, bool]) -> ReviewAgreement:
    values = [agreed[item.judgment_id] for item in asked if item.judgment_id in agreed]
    share = estimate_mean(values)
    return ReviewAgreement(
        asked=len(asked),
        answered=len(values),
        agreeing=sum(values),
        agreement=share.value,
        low=share.low,
        high=share.high,
    )
