"""The commands for a judge in production: rate and migrate."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import check_database
from memalign_graph.cli.options import JudgeFlags, MaxConcurrency, MemoryLocation, Status
from memalign_graph.cli.terminal import Terminal, key_value_table, pluralize, table
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.evaluation import Migration
    from memalign_graph.evaluation.metrics import Estimate as Measured
    from memalign_graph.evidence.ppi import Estimate
    from memalign_graph.memory.pass_rate import RateEstimates

Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="DAY")]


def rate(
    *,
    by: Annotated[
        str | None,
        typer.Option(metavar="day|week|FIELD", help="Group by it, such as inputs.region."),
    ] = None,
    since: Day = None,
    until: Day = None,
    passes: Annotated[
        str | None,
        typer.Option(metavar="VALUE[,VALUE]", help="The lowest value that passes, or those that."),
    ] = None,
    answered_at_random: Annotated[
        bool,
        typer.Option(
            "--answered-at-random",
            help="Count all answers: experts answered every judgment, or some drawn at random.",
        ),
    ] = False,
    margin: Annotated[
        float, typer.Option(help="How far the interval may reach, as a share of the range.")
    ] = 0.05,
    location: MemoryLocation,
    terminal: Terminal,
) -> int:
    """Estimate how many outputs really pass, with 95 % intervals.

    By the judgments that are kept, corrected by the experts' answers to those that were drawn at
    random. It asks no model.
    """
    scale = location.criterion.criterion.scale
    passing: Any = None
    if passes is not None:
        try:
            values = [scale.validate_value(part.strip()) for part in passes.split(",")]
        except ValueError as error:
            raise InvalidInputError(f"--passes: {error}") from error
        passing = values if values[1:] else values[0]
    location.check(must_exist=True)
    with location.open(may_create=True) as memory:
        try:
            estimated = memory.pass_rate(
                by=by,
                since=since and since.date(),
                until=until and until.date(),
                passes=passing,
                answered_at_random=answered_at_random,
                margin=margin,
            )
        except InvalidInputError as error:
            raise InvalidInputError(f"--{error}") from error
    rows = [_row(name, group) for name, group in estimated.groups.items()]
    shown = [table([_row("all", estimated), *rows])]
    terminal.result(estimated.to_json(), shown=shown)
    if not estimated.judgments:
        terminal.warn("no judgment is kept: give keep_judgments, in days, under `judge:`.")
    elif estimated.more_labels:
        terminal.note(
            f"{estimated.more_labels:,} more answers drawn at random make it exact to "
            f"{margin:.0%} of the range."
        )
    return Status.DONE


def _row(name: str, group: "RateEstimates") -> dict[str, Any]:
    counts = {"group": name, "judgments": group.judgments, "labels": group.labels}
    ways = {"rate": group.rate, "judge": group.judge, "labels_alone": group.labels_alone}
    written = {way: _written(estimate) for way, estimate in ways.items()}
    return {**counts, **written, "more_labels": group.more_labels}


def _written(estimate: "Estimate | Measured") -> str:
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def migrate(
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model to change to; none: what is stored."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Store the new verdicts in place of the old ones.")
    ] = False,
    target_agreement: Annotated[
        float, typer.Option(help="What review: uncertain is to hold.")
    ] = 0.9,
    cache: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Keeps models' answers for the next run.")
    ] = None,
    max_concurrency: MaxConcurrency = 32,
    location: MemoryLocation,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Compare the judge with the same one on another model, on the cases in memory.

    Each case is judged without its own feedback. Without --to the present judge is compared with
    the verdicts that are stored: after an update, or a change of the file. With --apply calibration
    goes on with the new verdicts; then set the model in the criterion's file.
    """
    from memalign_graph.evaluation import migrate as compare

    if cache:
        check_database(cache, "--cache")
    judge = flags.judge(location.criterion, terminal)
    with location.open() as memory, terminal.progress() as progress:
        try:
            found = compare(
                memory,
                judge,
                to,
                apply=apply,
                target_agreement=target_agreement,
                cache=cache,
                max_concurrency=max_concurrency,
                progress=lambda done, of: progress("judged", done, of),
            )
        except InvalidInputError as error:
            flag = "--to" if to and str(error).startswith(("model:", "to:")) else "--memory"
            raise InvalidInputError(f"{flag}: {str(error).partition(': ')[2]}") from error
    terminal.result(found.to_json(), shown=_shown(found))
    for example_id, why in found.failures.items():
        terminal.warn(f"case {example_id[:8]}: not judged: {why}")
    if not apply:
        terminal.note("nothing is changed: --apply stores the new verdicts.")
    return Status.PARTIAL if found.failures else Status.DONE


def _shown(found: "Migration") -> list[Any]:
    """Return what a migration found as a list and two tables."""
    labels = {
        verdict: "more than can be said: too often wrong" if more is None else more
        for verdict, more in found.more_labels.items()
    }
    summary = {
        "cases": found.cases,
        "agreement before": _written(found.before),
        "agreement after": _written(found.after),
        "difference": _written(found.difference),
        "verdicts that change": len(found.changed),
        "labels until nobody is asked": labels or f"{found.trust.needed} with a confidence",
        "applied": "yes" if found.applied else "no",
    }
    usage = [f"{row.judge} {row.purpose}: {_spent(row)}" for row in found.usage]
    changed = [{**case.to_json(), "text": str(case.example.inputs)} for case in found.changed]
    parts = [key_value_table(summary), *usage]
    return [*parts, table(changed)] if changed else parts


def _spent(row: Any) -> str:
    calls = row.chat_calls or row.embedding_calls
    tokens = f", {row.input_tokens:,} + {row.output_tokens:,} tokens" if row.chat_calls else ""
    return f"{pluralize(calls, 'call')}{tokens}"
