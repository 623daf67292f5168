"""What was measured, as tables: each judge, the differences with paired intervals, each seed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.judging import Plan
from memalign_graph.evaluation import metrics
from memalign_graph.evaluation.baselines import constant_value, nearest_value
from memalign_graph.scales import Numeric, Scale, Value
from memalign_graph.types import RecalledExample

JUDGES = ("constant", "nearest", "base", "verdict", "evidence")
"""One value for all; the mean or majority of the most similar; the judge without memory; the judge
with memory; the evidence."""

_AGAINST = ("base", "nearest", "verdict")
_DRAWS = 2_000


@dataclass(frozen=True)
class Column:
    """One judge on one seed's rows."""

    values: list[float]
    """What it said, as numbers."""

    beliefs: list[float]
    """How much it believes in `true`; of numbers the value again."""


@dataclass(frozen=True)
class Scored:
    """One criterion's rows, seed after seed."""

    ids: list[str]
    """The test row of each place: seeds judge the same ones."""

    truth: NDArray[np.float64]
    """The human's value."""

    columns: dict[str, Column]
    """By judge."""

    is_numeric: bool
    """Whether the values are numbers."""


Metric = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], float | None]
"""Of truth, values and beliefs."""


def metrics_of(scored: Scored) -> dict[str, Metric]:
    """Return the metrics of a criterion, the first to be looked at first.

    Args:
        scored: Its rows.

    Returns:
        By name; of `mae` less is better.
    """
    if scored.is_numeric:
        return {
            "mae": lambda truth, values, _: float(np.abs(truth - values).mean()),
            "ccc": lambda truth, values, _: metrics.concordance(truth, values),
        }
    return {
        "accuracy": lambda truth, values, _: float((truth == values).mean()),
        "auc": lambda truth, _, beliefs: metrics.roc_auc([one > 0 for one in truth], list(beliefs)),
    }


def read(plans: Sequence[Plan]) -> Scored:
    """Read the verdicts of one criterion.

    Args:
        plans: Its seeds.

    Returns:
        The rows.
    """
    scale = plans[0].criterion().scale
    ids: list[str] = []
    truth: list[float] = []
    columns = {name: Column([], []) for name in JUDGES}
    for plan in plans:
        kept = json.loads(plan.path.read_text(encoding="utf-8"))
        train = [scale.validate_value(one) for one in kept["train"]]
        for row in kept["test"]:
            if row["base"] is None or row["evidence"] is None:
                continue  # told below the table
            ids.append(row["id"])
            truth.append(float(scale.validate_value(row["label"])))
            for name, (value, belief) in _said(scale, train, row).items():
                columns[name].values.append(float(value))
                columns[name].beliefs.append(belief)
    return Scored(ids, np.array(truth), columns, isinstance(scale, Numeric))


def _said(
    scale: Scale, train: Sequence[Value], row: Mapping[str, Any]
) -> dict[str, tuple[Value, float]]:
    near = [RecalledExample.model_validate(one) for one in row["nearest"]]
    shares = [float(one.episodes[0].value or 0) for one in near]
    constant, nearest = constant_value(train, scale), nearest_value(near, scale)
    base, judgment = row["base"], row["evidence"]
    weighed = judgment["evidence"]
    decided = weighed if weighed["decided_by"] == "evidence" else judgment
    return {
        "constant": (constant or 0.0, 0.5),
        "nearest": (nearest or 0.0, float(np.mean(shares)) if shares else 0.5),
        "base": (base["value"], _belief(base, base["value"])),
        "verdict": (weighed["verdict"], _belief(judgment, weighed["verdict"])),
        "evidence": (judgment["value"], _belief(decided, judgment["value"])),
    }


def _belief(said: Mapping[str, Any], value: Value) -> float:
    probabilities = said.get("probabilities") or {}
    return float(probabilities.get("true", value))


def as_markdown(criteria: Mapping[str, Sequence[Plan]], command: str) -> str:
    """Write the tables.

    Args:
        criteria: The seeds of each criterion.
        command: What made it.

    Returns:
        Markdown.
    """
    lines = [
        "# Deciding by evidence",
        "",
        f"Made by `{command}`.",
        "",
        "95 % intervals: bootstrap over the test rows, of all seeds together; differences are",
        "paired. The seeds judge the same test rows and learn other training rows.",
        "",
        _row(
            "criterion", "rows, seeds", "metric", *JUDGES, *(f"evidence less {x}" for x in _AGAINST)
        ),
        "|---" * (3 + len(JUDGES) + len(_AGAINST)) + "|",
    ]
    seeds = ["", "By seed:", "", _row("criterion", "seed", "metric", *JUDGES, "decided")]
    seeds.append("|---" * (4 + len(JUDGES)) + "|")
    for name, plans in criteria.items():
        scored = read(plans)
        for metric, measure in metrics_of(scored).items():
            rows = f"{len(set(scored.ids))}, {len(plans)}"
            lines.append(_row(name, rows, metric, *_cells(scored, measure)))
        for plan in plans:
            one = read([plan])
            for metric, measure in metrics_of(one).items():
                found = [_number(_measure(one, judge, measure)) for judge in JUDGES]
                seeds.append(_row(name, str(plan.seed), metric, *found, _by(plan)))
    missing = [_missing(plan) for plans in criteria.values() for plan in plans]
    told = [one for one in missing if one] or ["Every judge gave a verdict on every row."]
    return "\n".join([*lines, "", *told, *seeds, ""])


def _missing(plan: Plan) -> str:
    rows = json.loads(plan.path.read_text(encoding="utf-8"))["test"]
    failed = {side: sum(row[side] is None for row in rows) for side in ("base", "evidence")}
    if not any(failed.values()):
        return ""
    base, memory = failed["base"], failed["evidence"]
    return (
        f"- {plan.name}, seed {plan.seed}: no verdict on {base} rows without memory and {memory} "
        "with it; those rows are in no number."
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(scored: Scored, measure: Metric) -> list[str]:
    draws = _draws(scored.ids)
    cells = []
    for judge in JUDGES:
        value = _measure(scored, judge, measure)
        spread = [_measure(scored, judge, measure, draw) for draw in draws]
        cells.append(_with_interval(value, spread))
    for other in _AGAINST:
        apart = _less(_measure(scored, "evidence", measure), _measure(scored, other, measure))
        spread = [
            _less(
                _measure(scored, "evidence", measure, draw), _measure(scored, other, measure, draw)
            )
            for draw in draws
        ]
        cells.append(_with_interval(apart, spread, sign="+"))
    return cells


def _draws(ids: Sequence[str]) -> list[NDArray[np.int_]]:
    """Draw whole test rows: a row that several seeds judged counts once."""
    places: dict[str, list[int]] = {}
    for place, one in enumerate(ids):
        places.setdefault(one, []).append(place)
    every = [np.array(one) for one in places.values()]
    chooser = np.random.default_rng(0)
    return [
        np.concatenate([every[one] for one in chooser.integers(0, len(every), len(every))])
        for _ in range(_DRAWS)
    ]


def _measure(
    scored: Scored, judge: str, measure: Metric, drawn: NDArray[np.int_] | None = None
) -> float | None:
    column = scored.columns[judge]
    at = np.arange(len(scored.ids)) if drawn is None else drawn
    return measure(scored.truth[at], np.array(column.values)[at], np.array(column.beliefs)[at])


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _with_interval(value: float | None, spread: Sequence[float | None], *, sign: str = "") -> str:
    there = [one for one in spread if one is not None]
    if value is None or not there:
        return _number(value)
    low, high = np.quantile(there, [0.025, 0.975])
    return f"{value:{sign}.3f} ({low:{sign}.2f} to {high:{sign}.2f})"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _by(plan: Plan) -> str:
    kept = json.loads(plan.path.read_text(encoding="utf-8"))
    judged = next(row["evidence"] for row in kept["test"] if row["evidence"] is not None)
    return str(judged["evidence"]["decided_by"])
