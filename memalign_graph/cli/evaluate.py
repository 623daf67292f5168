"""`memalign evaluate`: how far the judge agrees with the experts, with thresholds for a build."""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from memalign_graph.cli.files import CriterionFile, database_path, output_path, read_records
from memalign_graph.cli.options import (
    CriterionOption,
    Field,
    JudgeFlags,
    MaxConcurrency,
    Status,
)
from memalign_graph.cli.terminal import Terminal, count, table
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.evaluation import Report
    from memalign_graph.evaluation.metrics import Estimate
    from memalign_graph.types import Feedback

_METRICS = ("agreement", "exact_match", "kappa", "mae", "ccc", "auc", "ece")
"""The metrics shown, where they are there; the report has all."""
_LEARN = ("learn_from", "guard", "batch_size")
"""What of the file's `learn` an evaluation can be told."""

Limit = Annotated[float | None, typer.Option(metavar="X", help="Exit with 1 where it is missed.")]


@dataclass(frozen=True)
class Thresholds:
    """What the aligned judge has to reach, or to stay below."""

    min_agreement: Limit = None
    min_kappa: Limit = None
    min_ccc: Limit = None
    max_mae: Limit = None


@dataclass(frozen=True)
class Evaluating:
    """How it is evaluated, by the names of `evaluate`."""

    folds: Annotated[int, typer.Option(min=2, help="Of the cross-validation.")] = 5
    seed: Annotated[int, typer.Option(min=0, help="Of the folds.")] = 0
    group_by: Annotated[
        Literal["example", "inputs"], typer.Option(help="What goes into one fold.")
    ] = "example"
    learning_curve: Annotated[
        bool, typer.Option("--learning-curve", help="Also with 2, 5, 10, ... pieces of feedback.")
    ] = False
    credit_cases: Annotated[
        int, typer.Option(min=0, help="Cases on which each guideline is left out.")
    ] = 0
    cache: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Keeps models' answers for the next run.")
    ] = None
    max_concurrency: MaxConcurrency = 32


def evaluate(
    *,
    feedback: Annotated[
        str, typer.Option("--feedback", "-f", metavar="FILE", help="What experts said.")
    ],
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Learn from --feedback, test on this.")
    ] = None,
    field: Field = None,
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write it there: .html, .md or .json.")
    ] = None,
    thresholds: Thresholds,
    options: Evaluating,
    criterion: CriterionOption,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Measure how far the judge agrees with the experts, before and after it learns from them.

    By cross-validation, unless --test is given; in a memory of its own: yours stays as it is.
    """
    from memalign_graph.evaluation import aevaluate

    limits = {name: limit for name, limit in asdict(thresholds).items() if limit is not None}
    _check_limits(limits, criterion)
    _check_files(feedback, test, options.cache, report, criterion.path)
    given, left_out = _read(feedback, "--feedback", field, criterion, terminal)
    tested, more = _read(test, "--test", field, criterion, terminal) if test else (None, 0)
    learn = {name: criterion.learn[name] for name in _LEARN if name in criterion.learn}
    judge = flags.judge(criterion, terminal)
    with terminal.progress() as progress:
        evaluating = aevaluate(
            criterion.criterion,
            given,
            test=tested,
            progress=lambda done, of: progress("evaluated", done, of),
            **asdict(options),
            **learn,
            **judge.options,
        )
        measured = asyncio.run(evaluating)
    terminal.result(measured.to_json(), *_parts(measured))
    if report:
        measured.save(report)
        terminal.note(f"report in {report}")
    met = [_meets(measured, name, limit, terminal) for name, limit in limits.items()]
    if not all(met):
        return Status.MISSED
    failed = left_out + more + measured.of("aligned").failed
    return Status.PARTLY if failed else Status.DONE


def _check_files(
    feedback: str, test: str | None, cache: Path | None, report: Path | None, criterion: str
) -> None:
    if report:
        output_path(report, "--report", feedback, test, criterion)
        if report.suffix.lower() not in (".html", ".md", ".json"):
            raise InvalidInputError(f"--report: end the name of {report} in .html, .md or .json.")
    if cache:
        database_path(cache, "--cache")
    if feedback == test:
        raise InvalidInputError("--test: it is the same file as --feedback: leave it out.")


def _check_limits(limits: dict[str, float], file: CriterionFile) -> None:
    """Check that the thresholds are numbers, and that the scale has their metrics."""
    from memalign_graph.scales import Numeric

    scale = file.criterion.scale
    is_number = isinstance(scale, Numeric)
    has = ["min_agreement", *(["min_ccc", "max_mae"] if is_number else [])]
    has += ["min_kappa"] if not isinstance(scale, Numeric) or scale.integer else []
    for name, limit in limits.items():
        if not math.isfinite(limit):
            raise InvalidInputError(f"{_flag(name)}: {limit} is no number.")
        if name not in has:
            raise InvalidInputError(
                f"{_flag(name)}: there is no {name[4:]} on the criterion's scale, which is "
                f"{scale.type}: give {' or '.join(map(_flag, has))}."
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(
    path: str, option: str, columns: list[str] | None, file: CriterionFile, terminal: Terminal
) -> tuple[list["Feedback"], int]:
    """Read feedback, and tell of records that can't be used, and how many they are."""
    from memalign_graph.memory.operations import check_feedback
    from memalign_graph.reading import read_feedback

    records = read_records(path, option, columns, terminal.warn)
    feedback = []
    for index, fields in enumerate(records.fields):
        try:
            feedback.append(check_feedback(read_feedback(fields), file.criterion))
        except InvalidInputError as error:
            terminal.warn(f"{option}: {records.source}, {records.place(index)}: {error}")
    if not feedback:
        raise InvalidInputError(f"{option}: {records.source}: no record can be used.")
    return feedback, len(records.rows) - len(feedback)


def _meets(report: "Report", name: str, limit: float, terminal: Terminal) -> bool:
    """Hold the aligned judge against a threshold, and say how it stands to it."""
    metric = name[4:]
    found = report.metric("aligned", metric)
    is_met, how = False, ", which is not defined on these cases: give more, with different values"
    if found.value is not None:
        is_met = found.value <= limit if name == "max_mae" else found.value >= limit
        how = f" of {_shown(found)}"
    verdict = "met" if is_met else "missed"
    tell = terminal.note if is_met else terminal.error
    tell(f"{_flag(name)} {limit:g}: {verdict} by the aligned judge's {metric}{how}.")
    return is_met


def _shown(found: "Estimate | None") -> str:
    if found is None or found.value is None:
        return "-"
    interval = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{interval}"


def _parts(report: "Report") -> Iterator[str | Table]:
    """Tell what the judges are worth."""
    folds = report.settings.folds
    how = "on cases set aside" if folds == 1 else f"in {folds} folds"
    cases = count(len(report.cases), "case")
    yield f"{cases} that the judge had not learned from, {how}\n"
    shown = [name for name in _METRICS if any(name in one.metrics for one in report.scores)]
    rows = []
    for scores in report.scores:
        failed = f" ({scores.failed} failed)" if scores.failed else ""
        metrics = [_shown(scores.metrics.get(name)) for name in shown]
        rows.append([scores.judge, f"{scores.cases}{failed}", *metrics])
    yield table(["judge", "cases", *shown], rows)
    yield "\n[...] is the 95 % interval"
    yield from (f"note: {warning}" for warning in report.warnings)
