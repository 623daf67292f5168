"""The commands align, evaluate and review."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.criterion import CriterionFile
from memalign_graph.cli.files import check_database, check_output_path
from memalign_graph.cli.options import (
    CacheOption,
    CriterionOption,
    Field,
    JudgeFlags,
    MaxConcurrency,
    MemoryLocation,
    Status,
    option_errors,
    run_async,
)
from memalign_graph.cli.records import Record, read_records
from memalign_graph.cli.terminal import Terminal
from memalign_graph.errors import InvalidInputError, require_extra

if TYPE_CHECKING:
    from memalign_graph.evaluation import Report
    from memalign_graph.settings import Judge
    from memalign_graph.types import Feedback

ThresholdOption = Annotated[
    float | None,
    typer.Option(metavar="X", help="Exit with status 1 if it is missed."),
]


def align(
    *,
    location: MemoryLocation,
    flags: JudgeFlags,
    terminal: Terminal,
    feedback: Annotated[
        str | None, typer.Option("--feedback", "-f", metavar="FILE", help="Feedback of experts.")
    ] = None,
    pending: Annotated[
        bool,
        typer.Option(
            "--pending", help="Distil the feedback that is pending in the memory; no file."
        ),
    ] = False,
    field: Field = None,
    max_concurrency: MaxConcurrency = 32,
) -> int:
    """Learn from a file of feedback; feedback that the memory already has costs nothing.

    After a failed or stopped run, the next one pays only for the rest. Records that can't be used
    are listed, and the others are used.
    """
    from memalign_graph.types import parse_feedback

    if (feedback is None) is not pending:
        raise InvalidInputError("--feedback: give either a file or --pending.")
    location.check(must_exist=pending)
    records: list[Record] = []
    rejected: dict[int, str] = {}
    if feedback:
        records, rejected = _read(feedback, "--feedback", field, location.criterion, terminal)
    usable = [index for index in range(len(records)) if index not in rejected]
    judge = flags.judge(location.criterion, terminal)
    terminal.note(f"memory {location}")
    feedback_items: list[Any] = [records[index][1] for index in usable]
    report, pending_ids = run_async(
        _align(judge, location, feedback_items, max_concurrency, terminal)
    )
    rejected |= {usable[item["index"]]: item["reason"] for item in report["rejected"]}
    report["rejected"] = [
        {"index": index, "reason": f"{records[index][0]}: {reason.removeprefix('example.')}"}
        for index, reason in sorted(rejected.items())
    ]
    report["feedback"]["rejected"] = len(rejected)
    terminal.result(report)
    used = {parse_feedback(fields).episode_id for fields in feedback_items}
    not_learned = pending_ids if pending else pending_ids & used
    return Status.PARTIAL if rejected or not_learned else Status.DONE


async def _align(
    judge: "Judge",
    location: MemoryLocation,
    feedback: list[Any],
    max_concurrency: int,
    terminal: Terminal,
) -> tuple[dict[str, Any], set[str]]:
    """Run the alignment; returns its report, and the ids of all feedback that is still pending."""
    from memalign_graph.graphs import create_alignment_graph
    from memalign_graph.local import open_store_async
    from memalign_graph.memory.judge_memory import JudgeMemory

    builder: Any = create_alignment_graph(
        judge.criterion, **judge.options, **location.criterion.learn
    )
    state: Any = {}
    async with open_store_async(location.memory) as store:
        parts = builder.compile(store=store).astream(
            {"feedback": feedback},
            {"max_concurrency": max_concurrency},
            context=location.context,
            stream_mode=["custom", "values"],
        )
        with terminal.progress() as progress:
            async for mode, part in parts:
                if mode == "values":
                    state = part
                elif part.get("type") == "alignment_progress":
                    progress(part["stage"], part["done"], part["of"])
        memory = JudgeMemory(
            store, judge.criterion, **location.context, embeddings=judge.embeddings
        )
        episodes = await memory.aepisodes()
    pending_ids = {episode.id for episode in episodes if episode.status == "pending"}
    return dict(state["report"]), pending_ids


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the aligned judge."""

    min_agreement: ThresholdOption = None
    min_kappa: ThresholdOption = None
    min_ccc: ThresholdOption = None
    max_mae: ThresholdOption = None


def evaluate(
    *,
    feedback: Annotated[
        str, typer.Option("--feedback", "-f", metavar="FILE", help="Feedback of experts.")
    ],
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Learn from --feedback, and test on FILE.")
    ] = None,
    field: Field = None,
    report: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Write the report to FILE: .html, .md or .json.", metavar="FILE"
        ),
    ] = None,
    thresholds: Thresholds,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Number of folds of the cross-validation.")
    ] = None,
    cache: CacheOption = None,
    max_concurrency: MaxConcurrency = 32,
    criterion: CriterionOption,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Measure how often the judge agrees with the experts, before and after it learns from them.

    By cross-validation, or on the cases of --test. Your memory is neither read nor changed.
    """
    from memalign_graph.evaluation import aevaluate
    from memalign_graph.evaluation.metrics import measures_of

    limits = {name: limit for name, limit in asdict(thresholds).items() if limit is not None}
    for name in limits:
        if name[4:] not in measures_of(criterion.criterion.scale):
            raise InvalidInputError(
                f"{_flag(name)}: the criterion's scale has no {name[4:]}. Leave it out."
            )
    if report:
        check_output_path(report, "--report", feedback, test, criterion.path)
        if report.suffix.lower() not in (".html", ".md", ".json"):
            raise InvalidInputError(f"--report: end the name of {report} in .html, .md or .json.")
    if cache:
        check_database(cache, "--cache")
    if not terminal.as_json or (report and report.suffix.lower() != ".json"):
        with require_extra("evaluation", "A readable report"):
            import jinja2  # noqa: F401 - is it there, before any call is paid for?
    training, rejected = _read_all(feedback, "--feedback", field, criterion, terminal)
    tested, more = _read_all(test, "--test", field, criterion, terminal) if test else (None, 0)
    settings = {**criterion.learn, **criterion.evaluate, **({"folds": folds} if folds else {})}
    judge = flags.judge(criterion, terminal)
    with terminal.progress() as progress:
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
        measured = run_async(evaluating)
    markdown = None if terminal.as_json else measured.summary()
    terminal.result(measured.to_json(), markdown=markdown)
    if report:
        measured.save(report)
        terminal.note(f"report in {report}")
    met = [_check_threshold(measured, name, limit, terminal) for name, limit in limits.items()]
    if not all(met):
        return Status.THRESHOLD_MISSED
    failed = rejected + more + measured.of("aligned").failed
    return Status.PARTIAL if failed else Status.DONE


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(
    path: str, option: str, columns: list[str] | None, file: CriterionFile, terminal: Terminal
) -> tuple[list[Record], dict[int, str]]:
    """Read records of feedback; returns them, and the reasons of those that can't be used."""
    from memalign_graph.memory.feedback import check_feedback
    from memalign_graph.types import parse_feedback

    criterion = file.criterion
    records = read_records(path, option, columns, terminal.warn, criterion.scale)
    rejected: dict[int, str] = {}
    for index, (_, fields) in enumerate(records):
        try:
            if isinstance(fields, InvalidInputError):
                raise fields
            check_feedback(parse_feedback(fields), criterion)
        except InvalidInputError as error:
            rejected[index] = str(error)
    if len(rejected) == len(records):
        raise InvalidInputError(
            f"{option}: {path}: no record can be used. The first, {records[0][0]}: {rejected[0]}"
        )
    return records, rejected


def _read_all(
    path: str, option: str, columns: list[str] | None, file: CriterionFile, terminal: Terminal
) -> tuple[list["Feedback"], int]:
    """Read feedback; warns of records that can't be used, and counts them."""
    from memalign_graph.types import parse_feedback

    records, rejected = _read(path, option, columns, file, terminal)
    for index, reason in rejected.items():
        terminal.warn(f"{option}: {path}, {records[index][0]}: {reason}")
    usable: list[Any] = [fields for at, (_, fields) in enumerate(records) if at not in rejected]
    return list(map(parse_feedback, usable)), len(rejected)


def _check_threshold(report: "Report", name: str, limit: float, terminal: Terminal) -> bool:
    """Print whether the aligned judge meets a threshold, and return it."""
    metric = report.metric("aligned", name[4:])
    is_met, value = (
        False,
        ", which is not defined on these cases: give more, with different values",
    )
    if metric.value is not None:
        is_met = metric.value <= limit if name == "max_mae" else metric.value >= limit
        interval = "" if metric.low is None else f" [{metric.low:.2f}, {metric.high:.2f}]"
        value = f" of {metric.value:.2f}{interval}"
    write, outcome = (terminal.note, "met") if is_met else (terminal.error, "missed")
    write(f"{_flag(name)} {limit:g}: {outcome} by the aligned judge's {name[4:]}{value}.")
    return is_met


def review(
    *,
    author: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the expert without sign-in."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address that the page listens on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 for any free port.")
    ] = 8765,
    user_header: Annotated[
        str | None,
        typer.Option(
            metavar="HEADER",
            help="Header in which a reverse proxy names the signed-in user, such as "
            "X-Forwarded-User. Without it the page answers this machine only.",
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="IP address or network that the proxy calls from; this machine unless given.",
        ),
    ] = None,
    web: Annotated[bool, typer.Option("--web", hidden=True)] = False,
    location: MemoryLocation,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Serve the review page, on which experts answer the judgments that were kept.

    A graph with `keep_judgments`, or this setting under `judge:` in the file, keeps judgments.
    """
    del web  # accepted because the page was an option until 0.3
    if not user_header and host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidInputError(
            f"--host: on {host} others could answer without signing in. Put a reverse proxy with a "
            "login in front of the page, and give --user-header and --proxy."
        )
    location.check(must_exist=True)
    judge = flags.judge(location.criterion, terminal)
    page: dict[str, Any] = {"name": author or "", "user_header": user_header, "proxy": proxy}
    run_async(_serve(location, judge, (host, port), page, terminal))
    return Status.DONE


async def _serve(
    location: MemoryLocation,
    judge: "Judge",
    address: tuple[str, int],
    page: dict[str, Any],
    terminal: Terminal,
) -> None:
    """Serve the review page of a memory until the process is stopped."""
    from memalign_graph.local import open_store_async
    from memalign_graph.review import ReviewQueue, create_review_app, serve_page

    async with open_store_async(location.memory) as store:
        queue = ReviewQueue([judge], **location.context, store=store)
        with option_errors():
            app = create_review_app(queue, **page)
        await serve_page(app, *address, terminal.note)
