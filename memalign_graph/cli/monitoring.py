"""The commands for a judge in production: rate and migrate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memalign_graph.cli.files import check_database
from memalign_graph.cli.options import JudgeFlags, MaxConcurrency, MemoryLocation, Status
from memalign_graph.cli.terminal import Terminal, key_value_table, table
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.evaluation.metrics import Estimate as Measured
    from memalign_graph.evidence.ppi import Estimate


def rate(
    *,
    by: Annotated[
        str | None,
        typer.Option(metavar="day|week|FIELD", help="Group by it, such as inputs.region."),
    ] = None,
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
    location: MemoryLocation,
    terminal: Terminal,
) -> int:
    """Estimate how many outputs really pass, with 95 % intervals.

    By the judgments that are kept, corrected by the experts' answers to those that were drawn at
    random. It asks no model.
    """
    scale, passing = location.criterion.criterion.scale, None
    location.check(must_exist=True)
    with location.open(may_create=True) as memory:
        try:
            if passes is not None:
                values = [scale.validate_value(part.strip()) for part in passes.split(",")]
                passing = values if values[1:] else values[0]
            found = memory.pass_rate(by=by, passes=passing, answered_at_random=answered_at_random)
        except InvalidInputError as error:
            raise InvalidInputError(f"--{error}") from error
        except ValueError as error:
            raise InvalidInputError(f"--passes: {error}") from error
    rows = [
        {
            **group.to_json(),
            "group": name,
            "rate": _written(group.rate),
            "judge": _written(group.judge),
            "labels_alone": _written(group.labels_alone),
        }
        for name, group in {"all": found, **found.groups}.items()
    ]
    terminal.result(found.to_json(), shown=[table(rows)])
    if not found.judgments:
        terminal.warn("no judgment is kept: give keep_judgments, in days, under `judge:`.")
    elif found.more_labels:
        what = "an interval of 5 % of the range to each side"
        if found.rate.value is None:
            what = "an estimate"
        terminal.note(f"{what} takes {found.more_labels:,} more answers drawn at random.")
    return Status.DONE


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
                to,
                apply=apply,
                target_agreement=target_agreement,
                cache=cache,
                max_concurrency=max_concurrency,
                progress=lambda done, of: progress("judged", done, of),
                **judge.options,
            )
        except InvalidInputError as error:
            flag = "--to" if to and str(error).startswith("model:") else "--memory"
            raise InvalidInputError(f"{flag}: {str(error).partition(': ')[2]}") from error
    summary = {
        "cases": found.cases,
        "agreement before": _written(found.before),
        "agreement after": _written(found.after),
        "difference": _written(found.difference),
        "verdicts that change": len(found.changed),
        "more labels until unasked": found.more_labels,
        "calls": {f"{row.judge} {row.purpose}": row.chat_calls for row in found.usage},
        "tokens": sum(row.input_tokens + row.output_tokens for row in found.usage),
    }
    changed = [{**case.to_json(), "text": str(case.example.inputs)} for case in found.changed]
    terminal.result(found.to_json(), shown=[key_value_table(summary), table(changed)])
    for example_id, why in found.failures.items():
        terminal.warn(f"case {example_id[:8]}: not judged: {why}")
    if not apply:
        terminal.note("nothing is changed: --apply stores the new verdicts.")
    return Status.PARTIAL if found.failures else Status.DONE


def _written(estimate: "Estimate | Measured") -> str:
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
