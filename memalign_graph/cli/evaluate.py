"""`memalign evaluate`: how far the judge agrees with the experts, with thresholds for a build."""

import asyncio
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from memalign_graph.cli.files import CriterionFile, database_path, output_path
from memalign_graph.cli.options import (
    CriterionOption,
    Field,
    JudgeFlags,
    MaxConcurrency,
    Status,
    read_named,
)
from memalign_graph.cli.terminal import Terminal, count
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.evaluation import Estimate, Evaluation, Report
    from memalign_graph.types import Feedback

_METRICS = ("agreement", "exact_match", "kappa", "mae", "ccc", "auc", "ece")
"""The metrics shown, where they are there; the report has all."""

Limit = Annotated[float | None, typer.Option(metavar="X", help="Exit with 1 where it is missed.")]


def evaluate(
    *,
    criterion: CriterionOption,
    flags: JudgeFlags,
    terminal: Terminal,
    feedback: Annotated[
        str, typer.Option("--feedback", "-f", metavar="FILE", help="What experts said.")
    ],
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Learn from --feedback, test on this.")
    ] = None,
    field: Field = None,
    folds: Annotated[int, typer.Option(min=2, help="Of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the folds.")] = 0,
    group_by: Annotated[
        Literal["example", "inputs"], typer.Option(help="What goes into one fold.")
    ] = "example",
    learning_curve: Annotated[
        bool, typer.Option("--learning-curve", help="Also with 2, 5, 10, ... pieces of feedback.")
    ] = False,
    credit_cases: Annotated[
        int, typer.Option(min=0, help="Cases on which each guideline is left out.")
    ] = 0,
    cache: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Keeps models' answers for the next run.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write it there: .html, .md or .json.")
    ] = None,
    min_agreement: Limit = None,
    min_kappa: Limit = None,
    min_ccc: Limit = None,
    max_mae: Limit = None,
    max_concurrency: MaxConcurrency = 32,
) -> int:
    """Measure how far the judge agrees with the experts, before and after it learns from them.

    By cross-validation, unless --test is given; in a memory of its own: yours stays as it is.
    """
    from memalign_graph.evaluation import aevaluate

    given = {
        "--min-agreement": min_agreement,
        "--min-kappa": min_kappa,
        "--min-ccc": min_ccc,
        "--max-mae": max_mae,
    }
    limits = {option: limit for option, limit in given.items() if limit is not None}
    _check_limits(limits, criterion)
    if report:
        output_path(report, "--report", feedback, test, criterion.path)
        if report.suffix.lower() not in (".html", ".md", ".json"):
            raise InvalidInputError(f"--report: end the name of {report} in .html, .md or .json.")
    if cache:
        database_path(cache, "--cache")
    if feedback == test:
        raise InvalidInputError("--test: it is the same file as --feedback: leave it out.")
    said, left_out = _read(feedback, "--feedback", field, criterion, terminal)
    options: dict[str, Any] = {
        name: criterion.learn[name]
        for name in ("learn_from", "guard", "batch_size")
        if name in criterion.learn
    }
    if test:
        options["test"], more = _read(test, "--test", field, criterion, terminal)
        left_out += more
    judge = flags.judge(criterion, terminal)
    with terminal.progress() as progress:

        def show(done: int, of: int) -> None:
            if sys.stderr.isatty():  # what there is to do grows on the way: no line is the last
                progress("evaluated", done, of)

        evaluating = aevaluate(
            criterion.criterion,
            said,
            folds=folds,
            seed=seed,
            group_by=group_by,
            learning_curve=learning_curve,
            credit_cases=credit_cases,
            cache=cache,
            max_concurrency=max_concurrency,
            progress=show,
            **options,
            **judge.options,
        )
        measured = asyncio.run(evaluating)
    if terminal.as_json:
        terminal.document(measured.to_json())
    else:
        _show(measured.evaluation, terminal)
    if report:
        measured.save(report)
        terminal.note(f"report in {report}")
    if not all([_meets(measured, option, limit, terminal) for option, limit in limits.items()]):
        return Status.MISSED
    return Status.PARTLY if left_out or measured.evaluation.of("aligned").failed else Status.DONE


def _check_limits(limits: dict[str, float], file: CriterionFile) -> None:
    """Check that the thresholds are numbers, and that the scale has their metrics."""
    from memalign_graph.scales import Numeric

    scale = file.criterion.scale
    has = ["--min-agreement"]
    has += ["--min-ccc", "--max-mae"] if isinstance(scale, Numeric) else []
    has += [] if isinstance(scale, Numeric) and not scale.integer else ["--min-kappa"]
    for option, limit in limits.items():
        if not math.isfinite(limit):
            raise InvalidInputError(f"{option}: {limit} is no number to hold a metric against.")
        if option not in has:
            raise InvalidInputError(
                f"{option}: there is no {option[6:]} on the criterion's scale, which is "
                f"{scale.type}: give {' or '.join(has)}."
            )


def _read(
    path: str, option: str, columns: list[str] | None, file: CriterionFile, terminal: Terminal
) -> tuple[list["Feedback"], int]:
    """Read feedback, and tell of records that can't be used, and how many they are."""
    from memalign_graph.memory.operations import check_feedback
    from memalign_graph.reading import read_feedback

    records = read_named(path, option, columns, terminal)
    feedback = []
    for index, fields in enumerate(records.fields):
        try:
            feedback.append(check_feedback(read_feedback(fields), file.criterion))
        except InvalidInputError as error:
            terminal.warn(f"{option}: {records.source}, {records.place(index)}: {error}")
    if not feedback:
        raise InvalidInputError(f"{option}: {records.source}: no record can be used.")
    return feedback, len(records.rows) - len(feedback)


def _meets(report: "Report", option: str, limit: float, terminal: Terminal) -> bool:
    """Hold the aligned judge against a threshold, and say how it stands to it."""
    name = option[6:]
    found = report.metric("aligned", name)
    if found.value is None:
        terminal.error(
            f"{option} {limit:g}: the aligned judge's {name} is not defined on these cases: give "
            "more of them, with different values."
        )
        return False
    is_met = found.value <= limit if option == "--max-mae" else found.value >= limit
    tell = terminal.note if is_met else terminal.error
    verdict = "met" if is_met else "missed"
    tell(f"{option} {limit:g}: {verdict} by the aligned judge's {name} of {_shown(found)}.")
    return is_met


def _shown(found: "Estimate | None") -> str:
    if found is None or found.value is None:
        return "-"
    interval = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{interval}"


def _show(evaluation: "Evaluation", terminal: Terminal) -> None:
    """Tell what the judges are worth."""
    how = "on cases set aside" if evaluation.folds == 1 else f"in {evaluation.folds} folds"
    cases = count(len(evaluation.cases), "case")
    terminal.line(f"{cases} that the judge had not learned from, {how}", "")
    shown = [name for name in _METRICS if any(name in one.metrics for one in evaluation.scores)]
    rows = []
    for scores in evaluation.scores:
        failed = f" ({scores.failed} failed)" if scores.failed else ""
        metrics = [_shown(scores.metrics.get(name)) for name in shown]
        rows.append([scores.judge, f"{scores.cases}{failed}", *metrics])
    terminal.table(["judge", "cases", *shown], rows)
    terminal.line("", "[...] is the 95 % interval")
    terminal.line(*(f"note: {warning}" for warning in evaluation.warnings))
