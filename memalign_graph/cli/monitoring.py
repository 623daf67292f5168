"""The commands for a judge in production: rate."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.options import Place, Status
from memalign_graph.cli.terminal import Terminal, table
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
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
    place: Place,
    terminal: Terminal,
) -> int:
    """Estimate how many outputs really pass, with 95 % intervals.

    By the judgments that are kept, corrected by the experts' answers to those that were drawn at
    random. It asks no model.
    """
    scale = place.criterion.criterion.scale
    passing: Any = None
    if passes is not None:
        try:
            values = [scale.validate_value(part.strip()) for part in passes.split(",")]
        except ValueError as error:
            raise InvalidInputError(f"--passes: {error}") from error
        passing = values if values[1:] else values[0]
    place.check(must_exist=True)
    with place.open(is_new=True) as memory:
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


def _written(estimate: "Estimate") -> str:
    if estimate.value is None:
        return "-"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
