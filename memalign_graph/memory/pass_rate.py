"""Estimate the pass rate: the judge's rate, corrected by experts' labels on a sample."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any

from pydantic import Field

from memalign_graph.agreement import value_or_none
from memalign_graph.errors import InvalidInputError
from memalign_graph.evidence.ppi import MIN_LABELS, Estimate, estimate_mean, more_labels
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.judgments import KeptJudgment, kept_judgments, read_review_log
from memalign_graph.memory.review_report import answered_judgments
from memalign_graph.scales import Numeric, Passes, PassRule
from memalign_graph.types import Example, FrozenModel

GroupBy = str | Callable[[Example], Any]
"""`day` or `week` (UTC), a field such as `inputs.region`, or a function of the example."""

_SPANS = ("day", "week")
_MARGIN = 0.05


class PassRate(FrozenModel):
    """The pass rate of some judgments, estimated in three ways."""

    judgments: int
    """The number of kept judgments."""

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
    field = str(by).partition(".")[0]
    if not (by is None or callable(by) or by in _SPANS or field in Example.model_fields):
        raise InvalidInputError(
            f"by: {by!r} is not known. Use 'day', 'week', a field such as 'inputs.region', or a "
            "function of the Example."
        )
    scale = access.criterion.scale
    is_mean = passes is None and isinstance(scale, Numeric)
    rule = None if is_mean else PassRule.of(scale, passes)

    def number(value: Any) -> float:
        return float(value) if rule is None else float(rule.passes(value))

    kept = [
        item
        for item in await kept_judgments(io, access)
        if value_or_none(item.judgment.value, scale) is not None
    ]
    log = await read_review_log(io, access) if kept else []
    drawn = {entry.judgment_id for entry in log if entry.asked and "sample" in entry.reasons}
    answers = answered_judgments(await access.all_episodes(io) if kept else [], scale)
    labels = {
        judgment_id: number(expected)
        for judgment_id, (_, expected) in answers.items()
        if answered_at_random or judgment_id in drawn
    }
    bounds = (scale.minimum, scale.maximum) if is_mean and isinstance(scale, Numeric) else (0, 1)

    def estimates(items: Sequence[KeptJudgment]) -> dict[str, Any]:
        judged = {item.judgment.id: number(item.judgment.value) for item in items}
        labeled = judged.keys() & labels.keys()
        known = [labels[key] for key in labeled]
        others = [value for key, value in judged.items() if key not in labeled]
        how: dict[str, Any] = {"bounds": bounds, "is_share": rule is not None}
        rate = estimate_mean(
            known, [judged[key] for key in labeled], others, min_values=MIN_LABELS, **how
        )
        return {
            "judgments": len(items),
            "labels": len(known),
            "rate": rate,
            "judge": estimate_mean(list(judged.values()), **how),
            "labels_alone": estimate_mean(known, min_values=MIN_LABELS, **how),
            "more_labels": more_labels(rate, len(known), _MARGIN * (bounds[1] - bounds[0])),
        }

    groups: defaultdict[str, list[KeptJudgment]] = defaultdict(list)
    for item in kept if by is not None else []:
        groups[_group_of(item, by)].append(item)
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
        for name in by.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
    return "unknown" if value is None else str(value)
