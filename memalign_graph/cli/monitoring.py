"""The commands that watch a judge in production: rate and migrate."""

from typing import TYPE_CHECKING, Annotated

import typer

from memalign_graph.cli.files import check_database
from memalign_graph.cli.options import (
    CacheOption,
    JudgeFlags,
    MaxConcurrency,
    MemoryLocation,
    Status,
    option_errors,
)
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
        typer.Option(metavar="VALUE[,VALUE]", help="Lowest passing value, or all of them."),
    ] = None,
    answered_at_random: Annotated[
        bool,
        typer.Option(
            "--answered-at-random",
            help="Count all answers as a random sample: experts answered every judgment, or a "
            "sample that you drew.",
        ),
    ] = False,
    location: MemoryLocation,
    terminal: Terminal,
) -> int:
    """Estimate how many outputs really pass, with 95 % intervals.

    From the judgments that are kept and the experts' answers to a random sample of them. Calls no
    model.
    """
    scale, passing = location.criterion.criterion.scale, None
    if passes is not None:
        try:
            values = [scale.validate_value(part.strip()) for part in passes.split(",")]
        except ValueError as error:
            raise InvalidInputError(f"--passes: {error}") from error
        passing = values if values[1:] else values[0]
    location.check(must_exist=True)
    with location.open(may_create=True) as memory, option_errors():
        overall = memory.pass_rate(by=by, passes=passing, answered_at_random=answered_at_random)
    estimates = ("rate", "judge", "labels_alone")
    rows = [
        {
            **group.to_json(),
            "group": name,
            **{estimate: _interval(getattr(group, estimate)) for estimate in estimates},
        }
        for name, group in {"all": overall, **overall.groups}.items()
    ]
    terminal.result(overall.to_json(), shown=[table(rows)])
    if not overall.judgments:
        terminal.warn("no judgment is kept: set keep_judgments, in days, under `judge:`.")
    elif overall.more_labels:
        goal = "an interval of 5 % of the range to each side"
        if overall.rate.value is None:
            goal = "an estimate"
        terminal.note(f"{goal} takes {overall.more_labels:,} more answers to the random sample.")
    return Status.DONE


def migrate(
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model to compare with; by default the stored verdicts."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Store the new verdicts in place of the old ones.")
    ] = False,
    target_agreement: Annotated[
        float, typer.Option(help="Target agreement of `review: uncertain`.")
    ] = 0.9,
    cache: CacheOption = None,
    max_concurrency: MaxConcurrency = 32,
    location: MemoryLocation,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Compare the judge with the same one on another model, on the cases in memory.

    Each case is judged without its own feedback. Without --to, the present judge is compared with
    the stored verdicts, as after an update or a change of the file. With --apply, calibration uses
    the new verdicts; then set the model in the criterion's file.
    """
    from memalign_graph.evaluation import migrate as compare

    if cache:
        check_database(cache, "--cache")
    judge = flags.judge(location.criterion, terminal)
    with (
        location.open() as memory,
        terminal.progress() as progress,
        option_errors(model="--to" if to else "--memory", memory="--memory"),
    ):
        result = compare(
            memory,
            to,
            apply=apply,
            target_agreement=target_agreement,
            cache=cache,
            max_concurrency=max_concurrency,
            progress=lambda done, total: progress("judged", done, total),
            **judge.options,
        )
    summary = {
        "cases": result.cases,
        "agreement before": _interval(result.before),
        "agreement after": _interval(result.after),
        "difference": _interval(result.difference),
        "verdicts that change": len(result.changed),
        "more labels until unasked": result.more_labels,
        "calls": {f"{row.judge} {row.purpose}": row.chat_calls for row in result.usage},
        "tokens in and out": {
            f"{row.judge} {row.purpose}": [row.input_tokens, row.output_tokens]
            for row in result.usage
        },
    }
    changed = [{**case.to_json(), "text": str(case.example.inputs)} for case in result.changed]
    terminal.result(result.to_json(), shown=[key_value_table(summary), table(changed)])
    for example_id, reason in result.failures.items():
        terminal.warn(f"case {example_id[:8]}: not judged: {reason}")
    if not apply:
        terminal.note("nothing is changed: --apply stores the new verdicts.")
    return Status.PARTIAL if result.failures else Status.DONE


def _interval(estimate: "Estimate | Measured") -> str:
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
