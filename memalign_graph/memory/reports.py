"""Reports on judgments: what `review="uncertain"` asked and the agreement, and the pass rate.

The pass rate is the judge's own rate, corrected by experts' labels on a random sample.
"""

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, get_args

from pydantic import Field

from memalign_graph.agreement import consensus_value, value_or_none, values_agree
from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.drift import Drift, find_drift
from memalign_graph.evidence.mean import MIN_LABELS, Estimate, estimate_mean, more_labels
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.judgments import (
    KeptJudgment,
    ReviewLogEntry,
    is_log_expired,
    kept_judgments,
    read_review_log,
)
from memalign_graph.scales import PLAIN_FUNCTION, Numeric, Passes, PassRule, Scale, Value
from memalign_graph.types import Episode, Example, FrozenModel, ReviewReason

GroupBy = str | Callable[[Example], Any]
"""`day` or `week` (UTC), a field such as `inputs.region`, or a function of the example."""

_SPANS = ("day", "week")
_UNKNOWN = "unknown"  # the group of cases without the field
_MARGIN = 0.05
_TIMELY = timedelta(days=14)
"""Answers within this time count in the order of their judgments, later ones as they are given."""


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
    asked, in spite of other reasons."""
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
    the last in memory, independent of `since` and `until`."""


async def review_report(
    io: IO, access: MemoryAccess, *, since: date | None = None, until: date | None = None
) -> ReviewReport:
    for name, day in (("since", since), ("until", until)):
        # A datetime is a date too, but its day depends on the time zone.
        if day is not None and type(day) is not date:
            raise InvalidInputError(f"{name}: expected a date such as date.today(), got {day!r}.")
    if since is not None and until is not None and until < since:
        raise InvalidInputError(f"until: {until} is before since, {since}.")
    log, episodes = await read_review_log(io, access), await access.all_episodes(io)
    return report_of(log, episodes, access.criterion.scale, since or date.min, until or date.max)


def report_of(
    log: Sequence[ReviewLogEntry],
    episodes: Sequence[Episode],
    scale: Scale,
    since: date = date.min,
    until: date = date.max,
) -> ReviewReport:
    items = [item for item in log if since <= item.date <= until]
    answers = answered_judgments(episodes, scale)
    agreed = {key: values_agree(scale, *values) for key, values in answers.items()}
    by_day: defaultdict[date, list[ReviewLogEntry]] = defaultdict(list)
    for item in items:
        by_day[item.date].append(item)
    return ReviewReport(
        since=min(by_day, default=None),
        until=max(by_day, default=None),
        days=[ReviewDay(day=day, **_counts(by_day[day], agreed)) for day in sorted(by_day)],
        drift=find_drift(_drawn(log, episodes, agreed)),
        **_counts(items, agreed),
    )


def _drawn(
    log: Iterable[ReviewLogEntry], episodes: Iterable[Episode], agreed: Mapping[str, bool]
) -> list[tuple[str, date, bool]]:
    """Return the answered judgments of the sample in order, and whether the judge agreed.

    In the order of judgments alone, a backlog that is answered newest first would raise alarms; in
    that of answers, experts who take longer where the judge is wrong.

    Judgments with other reasons to ask count, too: what is uncertain changes as the memory grows.
    Other verdicts than the present one of an answer count, too. If that one is not in the log, as
    after `migrate`, it has replaced those before the answer.
    """
    sampled, places = _sampled(log, episodes), dict[str, tuple[datetime, datetime]]()
    logged_at = {item.judgment_id: item.at for item in log}
    for episode in episodes:
        present = episode.judgment and episode.judgment.id
        first_given_at = min(episode.created_at, episode.given_at)  # an edit has a new date
        for key in episode.verdicts.keys() & sampled:
            at = logged_at.get(key, first_given_at)  # the log has no older judgments
            if present in (None, key) or present in logged_at or at > episode.given_at:
                places.setdefault(key, (max(at + _TIMELY, first_given_at), at))
    return [
        (key, places[key][1].astimezone(UTC).date(), agreed[key])
        for key in sorted(places.keys() & agreed, key=lambda key: (places[key], key))
    ]


def _sampled(log: Iterable[ReviewLogEntry], episodes: Iterable[Episode]) -> set[str]:
    """Return the ids of judgments sampled at random; the log no longer has older ones."""
    sampled = {item.judgment_id for item in log if item.asked and "sample" in item.reasons}
    for judgment in filter(None, (episode.judgment for episode in episodes)):
        if judgment.review and judgment.review.asks and "sample" in judgment.review.reasons:
            sampled.add(judgment.id)
    return sampled


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
    sample = [item for item in asked if set(item.reasons) == {"sample"}]
    unasked = [item.judgment_id for item in items if not item.asked]
    counts = Counter(reason for item in items for reason in item.reasons)
    return {
        "judgments": len(items),
        "coverage": 1 - len(asked) / len(items) if items else None,
        "reasons": {reason: counts[reason] for reason in get_args(ReviewReason) if counts[reason]},
        "asked": _agreement(asked, agreed),
        "unasked": len(unasked),
        "unasked_wrong": sum(not agreed.get(judgment_id, True) for judgment_id in unasked),
        "sample": _agreement(sample, agreed),
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


class PassRate(FrozenModel):
    """The pass rate of some judgments, estimated in three ways."""

    judgments: int
    """The number of kept judgments; with a random sample, of those that could be drawn."""
    labels: int
    """The number of judgments that were sampled at random and have an expert's label."""
    rate: Estimate
    """The experts' rate over all judgments, estimated from labels and judge."""
    judge: Estimate
    """The judge's own rate. The interval does not include the judge's errors."""
    labels_alone: Estimate
    """The rate of the labels alone."""
    more_labels: int
    """The number of further labels needed: for any estimate, 10 labels, then for an interval of at
    most 5 % of the range to each side."""
    groups: dict[str, "PassRate"] = Field(default_factory=dict)
    """The estimates by day, by first day of the week, or by the value of a field."""


async def pass_rate(
    io: IO,
    access: MemoryAccess,
    *,
    by: GroupBy | None = None,
    passes: Passes | None = None,
    answered_at_random: bool = False,
) -> PassRate:
    if inspect.iscoroutinefunction(by):
        raise InvalidInputError(f"by: {PLAIN_FUNCTION}")
    scale = access.criterion.scale
    is_mean = passes is None and isinstance(scale, Numeric)
    rule = None if is_mean else PassRule.of(scale, passes)

    def number(stored: Any) -> float:
        value: Any = value_or_none(stored, scale)
        return float(value) if rule is None else float(rule.passes(value))

    kept = [
        item
        for item in await kept_judgments(io, access)
        if value_or_none(item.judgment.value, scale) is not None
    ]
    episodes = await access.all_episodes(io) if kept else []
    log = await read_review_log(io, access) if kept else []
    sampled = _sampled(log, episodes)
    if sampled and not answered_at_random:
        # Other judgments could not be drawn: a graph without review made them.
        drawable = sampled.union(entry.judgment_id for entry in log)
        kept = [item for item in kept if item.judgment.id in drawable or is_log_expired(item)]
    labels = {
        judgment_id: number(expected)
        for judgment_id, (_, expected) in answered_judgments(episodes, scale).items()
        if answered_at_random or judgment_id in sampled
    }
    bounds = (scale.minimum, scale.maximum) if is_mean and isinstance(scale, Numeric) else (0, 1)

    def estimates(items: Sequence[KeptJudgment]) -> dict[str, Any]:
        judged = {item.judgment.id: number(item.judgment.value) for item in items}
        labeled = judged.keys() & labels.keys()
        values = [labels[key] for key in labeled]
        others = [value for key, value in judged.items() if key not in labeled]
        predictions = [judged[key] for key in labeled]
        rate = estimate_mean(values, predictions, others, bounds=bounds, min_values=MIN_LABELS)
        return {
            "judgments": len(items),
            "labels": len(values),
            "rate": rate,
            "judge": estimate_mean(list(judged.values()), bounds=bounds),
            "labels_alone": estimate_mean(values, bounds=bounds, min_values=MIN_LABELS),
            "more_labels": more_labels(rate, len(values), _MARGIN * (bounds[1] - bounds[0])),
        }

    groups: defaultdict[str, list[KeptJudgment]] = defaultdict(list)
    for item in kept if by is not None else []:
        groups[_group_of(item, by)].append(item)
    if list(groups) == [_UNKNOWN] and not (callable(by) or by in _SPANS):
        raise InvalidInputError(
            f"by: {by!r} is a field of no judged case. Use 'day', 'week', or a field such as "
            "'inputs.region'; or a function of the Example."
        )
    by_name = {name: PassRate(**estimates(groups[name])) for name in sorted(groups)}
    return PassRate(**estimates(kept), groups=by_name)


def _group_of(item: KeptJudgment, by: Any) -> str:
    if callable(by):
        return str(by(item.example))
    value: Any = item.example.to_json()
    if by in _SPANS:
        day = item.judged_at and item.judged_at.astimezone(UTC).date()
        value = day and day - timedelta(day.weekday() if by == "week" else 0)
    else:
        for name in str(by).split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
    return _UNKNOWN if value is None else str(value)
