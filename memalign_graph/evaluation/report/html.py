"""A report as one HTML page: no network, no script, nothing but what is in it."""

import base64
import hashlib
import re
from functools import cache
from typing import Any

from memalign_graph.errors import needs_extra
from memalign_graph.evaluation.report.measures import before_and_after, title_of
from memalign_graph.evaluation.report.plots import (
    Plot,
    calibration_plot,
    curve_plot,
    judges_plot,
    scatter_plots,
)
from memalign_graph.evaluation.report.report import Report
from memalign_graph.evaluation.report.tables import Table, reliability_table
from memalign_graph.evaluation.report.view import ReportView, view

MOST_CASES = 100
"""How many of the cases still wrong a page shows."""

_MOST_FLIPS = 50
_MOST_FAILED = 20
_MOST_WARNINGS = 30
_HEAD_CHARS = 420
_HEAD_LINES = 8
_NUMBER_AND_SIGN = re.compile(r"(?<=\d) (?=%)|(?<=[<>]) (?=\d)")


def render_html(report: Report) -> str:
    """Write a report as an HTML page."""
    shown = view(report)
    styles = _templates().get_template("page.css").render()
    page: str = (
        _templates()
        .get_template("page.html.jinja")
        .render(
            view=shown,
            styles=styles,
            # The only styles that a browser is to accept are these.
            policy=f"default-src 'none'; style-src 'sha256-{_sha256(styles)}'; "
            "base-uri 'none'; form-action 'none'",
            sections=_sections(shown),
            wrong=shown.wrong[:MOST_CASES],
            flips=shown.flips[:_MOST_FLIPS],
            failed=shown.failed[:_MOST_FAILED],
            warnings=shown.warnings[:_MOST_WARNINGS],
            **_plots(report),
        )
    )
    return page


def _plots(report: Report) -> dict[str, Any]:
    evaluation, curve = report.evaluation, report.learning_curve
    calibration: Plot | None = calibration_plot(evaluation)
    bins: list[Table] = [
        reliability_table(title_of(judge), evaluation.of(judge).reliability)
        for judge in before_and_after(evaluation)
        if judge is not None and evaluation.of(judge).reliability
    ]
    return {
        "judges": judges_plot(evaluation),
        "curve": curve_plot(curve) if curve else None,
        "calibration": calibration,
        "bins": bins,
        "scatter": scatter_plots(evaluation),
    }


def _sections(shown: ReportView) -> list[tuple[str, str]]:
    """List what the page has, for its table of contents."""
    known = [
        ("answers", "Where it is right and wrong", True),
        ("learning", "Learning", shown.curve is not None),
        ("guidelines", "Guidelines", True),
        ("cases", "Cases still wrong", True),
        ("numbers", "All numbers", True),
        ("cost", "Cost", True),
        ("reading", "How to read this", True),
    ]
    return [(key, title) for key, title, is_there in known if is_there]


def fold(text: str) -> tuple[str, str]:
    """Divide a long text into what is shown at once and what is folded away."""
    end = len(text)
    lines = text.split("\n", _HEAD_LINES)
    if len(lines) > _HEAD_LINES:
        end = end - len(lines[-1]) - 1
    if end > _HEAD_CHARS:
        # At a blank, if there is one near.
        blank = text.rfind(" ", _HEAD_CHARS - 60, _HEAD_CHARS)
        end = blank if blank > 0 else _HEAD_CHARS
    if len(text) - end < _HEAD_CHARS // 4 and text.count("\n", end) < 3:  # noqa: PLR2004 - a few
        end = len(text)
    return text[:end], text[end:].removeprefix("\n")


def unbroken(text: str) -> str:
    """Keep a number and its sign on one line."""
    return _NUMBER_AND_SIGN.sub("\u00a0", text)


@cache
def _templates() -> Any:
    with needs_extra("evaluation", "a report as HTML"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(fold=fold, unbroken=unbroken)
    return environment


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
