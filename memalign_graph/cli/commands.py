"""The commands align, evaluate, review, rate and migrate."""

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import CriterionFile, check_output_path
from memalign_graph.cli.options import (
    CacheOption,
    CriterionOption,
    Field,
    JudgeFlags,
    MaxConcurrency,
    MemoryLocation,
    Status,
    flag_of,
    option_errors,
)
from memalign_graph.cli.records import read_records
from memalign_graph.cli.terminal import Terminal, clean, key_value_table, table
from memalign_graph.errors import InvalidInputError, require_extra
from memalign_graph.local.stores import open_store_async

if TYPE_CHECKING:
    from memalign_graph.evaluation import Report
    from memalign_graph.evaluation.metrics import Estimate as Measured
    from memalign_graph.evidence.mean import Estimate
    from memalign_graph.settings import LearnFrom
    from memalign_graph.types import Feedback


def align(
    *,
    location: MemoryLocation,
    flags: JudgeFlags,
    terminal: Terminal,
    feedback: Annotated[str | None, typer.Option("--feedback", "-f", metavar="FILE")] = None,
    pending: Annotated[bool, typer.Option("--pending")] = False,
    field: Field = None,
    max_concurrency: MaxConcurrency = 32,
) -> int:
    """Learn from a file of feedback; feedback that the memory already has costs nothing.

    After a failed or stopped run, the next one pays only for the rest. Records that can't be used
    are listed, and the others are used.

    Options:
        feedback: File of feedback.
        pending: Distill the feedback that is pending in the memory; no file.
    """
    from memalign_graph.graphs import create_alignment_graph

    if (feedback is None) is not pending:
        raise InvalidInputError("--feedback: give either a file or --pending.")
    location.check(must_exist=pending)
    judge = flags.judge(location.criterion, terminal)
    learn = location.criterion.learn
    with option_errors(**location.criterion.setting_names("learn")):
        builder = create_alignment_graph(judge.criterion, **judge.options, **learn)
    items: list[Feedback] = []
    rejected: list[dict[str, Any]] = []
    if feedback:
        source = (feedback, "--feedback", field, location.criterion, terminal)
        items, rejected = _read(*source, learn.get("learn_from", "both"))
    terminal.note(f"memory {location}")

    async def run() -> tuple[Any, set[str]]:
        """Align; returns the report, and the ids of all feedback that is still pending."""
        state: Any = {}
        async with open_store_async(location.memory) as store:
            graph: Any = builder.compile(store=store)
            settings = {"max_concurrency": max_concurrency}
            options: Any = {"context": location.context, "stream_mode": ["custom", "values"]}
            with terminal.progress() as progress:
                async for mode, part in graph.astream({"feedback": items}, settings, **options):
                    if mode == "values":
                        state = part
                    elif part.get("type") == "alignment_progress":
                        progress(part["stage"], part["done"], part["of"])
            episodes = await location.memory_in(store, judge.embeddings).aepisodes()
        return state["report"], {item.id for item in episodes if item.status == "pending"}

    report, pending_ids = asyncio.run(run())
    report["rejected"], report["feedback"]["rejected"] = rejected, len(rejected)
    terminal.result(report)
    if not pending:
        pending_ids &= {item.episode_id for item in items}
    return Status.PARTIAL if rejected or pending_ids else Status.DONE


_Minimum = Annotated[float | None, typer.Option(metavar="X", min=-1, max=1)]


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the aligned judge.

    Options:
        min_agreement: Exit with status 1 if agreement is below X.
        min_kappa: Exit with status 1 if kappa is below X.
        min_ccc: Exit with status 1 if the concordance (CCC) is below X.
        max_mae: Exit with status 1 if the mean absolute error is above X.
    """

    min_agreement: _Minimum = None
    min_kappa: _Minimum = None
    min_ccc: _Minimum = None
    max_mae: Annotated[float | None, typer.Option(metavar="X", min=0)] = None


def evaluate(
    *,
    feedback: Annotated[str, typer.Option("--feedback", "-f", metavar="FILE")],
    test: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    field: Field = None,
    report: Annotated[Path | None, typer.Option(dir_okay=False, metavar="FILE")] = None,
    thresholds: Thresholds,
    folds: Annotated[int | None, typer.Option(min=2)] = None,
    cache: CacheOption = None,
    max_concurrency: MaxConcurrency = 32,
    criterion: CriterionOption,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Measure how often the judge agrees with the experts, before and after it learns from them.

    It uses cross-validation, or the cases of --test. Your memory is neither read nor changed.

    Options:
        feedback: File of feedback.
        test: Learn from --feedback, and test on FILE.
        report: Write the report to FILE: .html, .md or .json.
        folds: Number of folds of the cross-validation.
    """
    from memalign_graph.evaluation import aevaluate

    if test and folds:
        raise InvalidInputError("--folds: with --test nothing is split into folds. Leave one out.")
    limits = _limits(thresholds, criterion)
    if report:
        check_output_path(report, "--report", feedback, test, criterion.path, cache)
        if report.suffix.lower() not in (".html", ".md", ".json"):
            raise InvalidInputError(f"--report: end the name of {report} in .html, .md or .json.")
    if not terminal.as_json or (report and report.suffix.lower() != ".json"):
        with require_extra("evaluation", "A readable report"):
            import jinja2  # noqa: F401 - is it there, before any call is paid for?
    training, rejected = _read(feedback, "--feedback", field, criterion, terminal)
    tested, more = _read(test, "--test", field, criterion, terminal) if test else (None, [])
    settings = {**criterion.learn, **criterion.evaluate}
    names = criterion.setting_names("judge", "learn", "evaluate")
    if folds:
        settings["folds"], names["folds"] = folds, "--folds"
    judge = flags.judge(criterion, terminal)
    with terminal.progress() as progress, option_errors(**names):
        evaluating = aevaluate(
            criterion.criterion,
            training,
            test=tested,
            progress=lambda done, total: progress("evaluated", done, total),
            cache=cache,
            max_concurrency=max_concurrency,
            **settings,
            **judge.options,
        )
        measured = asyncio.run(evaluating)
    shown: list[Any] = []
    if not terminal.as_json:
        from rich.markdown import Markdown

        shown = [Markdown(clean(measured.summary()))]
    terminal.result(measured.to_json(), shown)
    if report:
        with option_errors(path="--report"):
            measured.save(report)
        terminal.note(f"report in {report}")
    met = [_check_threshold(measured, name, limit, terminal) for name, limit in limits.items()]
    if not all(met):
        return Status.THRESHOLD_MISSED
    is_partial = rejected or more or measured.of("aligned").failed
    is_partial = is_partial or any(memory.pending for memory in measured.memories)
    return Status.PARTIAL if is_partial else Status.DONE


def _limits(thresholds: Thresholds, file: CriterionFile) -> dict[str, float]:
    """Return the thresholds that are given, by their names."""
    from memalign_graph.evaluation.metrics import measures_of

    limits = {name: limit for name, limit in asdict(thresholds).items() if limit is not None}
    for name in limits:
        metric = name[4:]  # without `min_` or `max_`
        if metric not in measures_of(file.criterion.scale):
            raise InvalidInputError(f"{flag_of(name)}: the criterion's scale has no {metric}.")
    return limits


def _read(
    path: str,
    option: str,
    columns: list[str] | None,
    file: CriterionFile,
    terminal: Terminal,
    learn_from: "LearnFrom" = "both",
) -> tuple[list["Feedback"], list[dict[str, Any]]]:
    """Read feedback; warns of records that can't be used, and returns them with the reasons."""
    from memalign_graph.memory.feedback import parse_record

    usable: list[Feedback] = []
    rejected: list[dict[str, Any]] = []
    records = read_records(path, option, columns, terminal.warn, file.criterion.scale)
    for index, (place, fields) in enumerate(records):
        try:
            if isinstance(fields, InvalidInputError):
                raise fields
            usable.append(parse_record(fields, file.criterion, learn_from))
        except InvalidInputError as error:
            reason = f"{place}: {str(error).removeprefix('example.')}"
            rejected.append({"index": index, "reason": reason})
    if not usable:
        first = rejected[0]["reason"]
        raise InvalidInputError(f"{option}: {path}: no record can be used. The first, {first}")
    for problem in rejected:
        terminal.warn(f"{option}: {path}, {problem['reason']}")
    return usable, rejected


def _check_threshold(report: "Report", name: str, limit: float, terminal: Terminal) -> bool:
    """Print whether the aligned judge meets a threshold, and return it."""
    metric, is_met = report.metric("aligned", name[4:]), False
    value = ", which is not defined on these cases: give more, with different values"
    if metric.value is not None:
        above = round(metric.value - limit, 9)  # 1 - 0.7 is more than 0.3 in binary
        is_met = above <= 0 if name == "max_mae" else above >= 0
        interval = "" if metric.low is None else f" [{metric.low:.2f}, {metric.high:.2f}]"
        value = f" of {metric.value:.2f}{interval}"
    write, outcome = (terminal.note, "met") if is_met else (terminal.error, "missed")
    write(f"{flag_of(name)} {limit:g}: {outcome} by the aligned judge's {name[4:]}{value}.")
    return is_met


def review(
    *,
    author: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8765,
    user_header: Annotated[str | None, typer.Option(metavar="HEADER")] = None,
    proxy: Annotated[str | None, typer.Option(metavar="ADDRESS")] = None,
    location: MemoryLocation,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Serve the review page, on which experts answer the judgments that were kept.

    A graph with `keep_judgments`, or this setting under `judge:` in the file, keeps judgments.

    Options:
        author: Name of the expert; by default the page asks for it.
        host: Address that the page listens on.
        port: Port of the page; 0 for any free port.
        user_header: Header in which a reverse proxy names the signed-in user, such as
            X-Forwarded-User. Without it the page answers this machine only.
        proxy: IP address or network that the proxy calls from; by default this machine.
    """
    if not user_header and host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidInputError(
            f"--host: on {host} others could answer without signing in. Put a reverse proxy with a "
            "login in front of the page, and give --user-header and --proxy."
        )
    location.check(must_exist=True)
    judge = flags.judge(location.criterion, terminal)

    async def serve() -> None:
        from memalign_graph.review import ReviewQueue, create_review_app, serve_page

        async with open_store_async(location.memory) as store:
            queue = ReviewQueue([judge], **location.context, store=store)
            app = create_review_app(queue, name=author or "", user_header=user_header, proxy=proxy)
            await serve_page(app, host, port, terminal.note)

    with option_errors():
        asyncio.run(serve())
    return Status.DONE


def rate(
    *,
    by: Annotated[str | None, typer.Option(metavar="day|week|FIELD")] = None,
    passes: Annotated[str | None, typer.Option(metavar="VALUE[,VALUE]")] = None,
    answered_at_random: Annotated[bool, typer.Option("--answered-at-random")] = False,
    location: MemoryLocation,
    terminal: Terminal,
) -> int:
    """Estimate how many outputs really pass, with 95 % intervals.

    It uses the judgments that are kept and the experts' answers to a random sample of them. It
    calls no model.

    Options:
        by: Group by it, such as inputs.region.
        passes: Lowest passing value, or all of them.
        answered_at_random: Count all answers as a random sample: experts answered every judgment,
            or a sample that you drew.
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
        how = "`memalign judge` keeps them if keep_judgments, in days, is set under `judge:`"
        terminal.warn(f"no judgment is kept: {how}.")
    elif overall.more_labels:
        goal = "an interval of 5 % of the range to each side"
        if overall.rate.value is None:
            goal = "an estimate"
        terminal.note(f"{goal} takes {overall.more_labels:,} more answers to the random sample.")
    return Status.DONE


def migrate(
    *,
    to: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    apply: Annotated[bool, typer.Option("--apply")] = False,
    target_agreement: float = 0.9,
    cache: CacheOption = None,
    max_concurrency: MaxConcurrency = 32,
    location: MemoryLocation,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Compare the judge with the same one on another model, on the cases in memory.

    Each case is judged without its own feedback. Without --to, the present judge is compared with
    the stored verdicts of other judges, as after an update or a change of the file. With --apply,
    calibration uses the new verdicts; then set the model in the criterion's file.

    Options:
        to: Model to compare with; by default the stored verdicts of others.
        apply: Store the new verdicts in place of the old ones.
        target_agreement: Target of `Uncertain`, for the number of missing labels.
    """
    from memalign_graph.evaluation import amigrate

    judge = flags.judge(location.criterion, terminal)
    with (
        location.open(embeddings=judge.embeddings) as memory,
        terminal.progress() as progress,
        option_errors(model="--to", memory="--memory"),
    ):
        comparing = amigrate(
            memory,
            to,
            apply=apply,
            target_agreement=target_agreement,
            cache=cache,
            max_concurrency=max_concurrency,
            progress=lambda done, total: progress("judged", done, total),
            **judge.options,
        )
        result = asyncio.run(comparing)
    summary = {
        "cases": result.cases,
        "cases with a verdict before": result.cases_before,
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
