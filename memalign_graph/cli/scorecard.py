"""What an evaluation found, as text for a terminal. Pure functions."""

from memalign_graph.cli.reports import count, item, table
from memalign_graph.evaluation import Estimate, JudgeScores, Report

_METRICS = ("agreement", "exact_match", "kappa", "mae", "ccc", "auc", "ece")
"""The metrics shown, where they are there; the report has all."""


def estimate_text(found: Estimate) -> str:
    """Write a number with its interval."""
    if found.value is None:
        return "not defined"
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} (95 % interval {found.low:.2f} to {found.high:.2f})"


def evaluation_text(report: Report) -> str:
    """Tell what the judges are worth."""
    shown = [name for name in _METRICS if any(name in one.metrics for one in report.scores)]
    rows = [_row(one, shown) for one in report.scores]
    how = (
        "on cases set aside" if report.settings.folds == 1 else f"in {report.settings.folds} folds"
    )
    parts = [
        f"{count(len(report.cases), 'case')} that the judge had not learned from, {how}",
        table(rows, ["judge", "cases", *shown]),
        "[...] is the 95 % interval",
        "\n".join(item(one, "note: ") for one in report.warnings),
    ]
    return "\n\n".join(part for part in parts if part)


def _row(scores: JudgeScores, shown: list[str]) -> list[str]:
    cases = f"{scores.cases}" + (f" ({scores.failed} failed)" if scores.failed else "")
    return [scores.judge, cases, *(_cell(scores.metrics.get(name)) for name in shown)]


def _cell(found: Estimate | None) -> str:
    if found is None or found.value is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
