"""The commands that judge and learn: align, judge, evaluate, review."""

from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.criterion import CriterionFile
from memalign_graph.cli.files import check_database, check_output
from memalign_graph.cli.options import (
    DEFAULT_MEMORY,
    CriterionOption,
    Field,
    JudgeFlags,
    MaxConcurrency,
    Place,
    Status,
)
from memalign_graph.cli.records import Record, example_of, read_records
from memalign_graph.cli.terminal import Terminal, count
from memalign_graph.errors import InvalidInputError, MemAlignError, needs_extra

if TYPE_CHECKING:
    from memalign_graph.evaluation import Report
    from memalign_graph.settings import Judge
    from memalign_graph.types import Feedback

Limit = Annotated[float | None, typer.Option(metavar="X", help="Exit with 1 where it is missed.")]
Text = Annotated[str | None, typer.Option(help="Of one example.")]
Verdict = dict[str, Any]
"""What came of one example: its line and id, and its judgment, or why there is none."""


def _finished(running: Coroutine[Any, Any, Any]) -> Any:
    """Run what is awaited, so that Ctrl-C ends it in order."""
    import asyncio  # not where --help would wait for it

    return asyncio.run(running)


def align(
    *,
    place: Place,
    flags: JudgeFlags,
    terminal: Terminal,
    feedback: Annotated[
        str | None, typer.Option("--feedback", "-f", metavar="FILE", help="What experts said.")
    ] = None,
    pending: Annotated[
        bool,
        typer.Option("--pending", help="No file: distil what an earlier run, or a forget, left."),
    ] = False,
    field: Field = None,
    max_concurrency: MaxConcurrency = 32,
) -> int:
    """Learn from much feedback at once; what the memory knows already costs nothing.

    A run that failed or was stopped pays only for what is left when it is made again. A record that
    can't be used is listed, and keeps no other out.
    """
    from memalign_graph.graphs import create_alignment_graph

    if (feedback is None) is not pending:
        raise InvalidInputError("--feedback: give a file, or --pending: one of the two.")
    place.check(must_exist=pending)
    records: list[Record] = []
    rejected: dict[int, str] = {}
    if feedback:
        records, rejected = _read(feedback, "--feedback", field, place.criterion, terminal)
    usable = [index for index in range(len(records)) if index not in rejected]
    judge = flags.judge(place.criterion, terminal)
    builder = create_alignment_graph(judge.criterion, **judge.options, **place.criterion.learn)
    terminal.note(f"memory {place}")
    given = [records[index][1] for index in usable]
    report = _finished(_align(builder, place, given, max_concurrency, terminal))
    rejected |= {usable[item["index"]]: item["reason"] for item in report["rejected"]}
    report["rejected"] = [
        {"index": index, "reason": f"{records[index][0]}: {reason.removeprefix('example.')}"}
        for index, reason in sorted(rejected.items())
    ]
    report["feedback"]["rejected"] = len(rejected)
    terminal.result(report)
    return Status.PARTLY if rejected else Status.DONE


async def _align(
    builder: Any, place: Place, feedback: list[Any], max_concurrency: int, terminal: Terminal
) -> dict[str, Any]:
    from memalign_graph.local import open_store_async

    state: Any = {}
    async with open_store_async(place.memory) as store:
        parts = builder.compile(store=store).astream(
            {"feedback": feedback},
            {"max_concurrency": max_concurrency},
            context=place.context,
            stream_mode=["custom", "values"],
        )
        with terminal.progress() as progress:
            async for mode, part in parts:
                if mode == "values":
                    state = part
                elif part.get("type") == "alignment_progress":
                    progress(part["stage"], part["done"], part["of"])
    return dict(state["report"])


def judge(
    *,
    examples: Annotated[
        str | None, typer.Option("--examples", "-e", metavar="FILE", help="What to judge.")
    ] = None,
    field: Field = None,
    inputs: Text = None,
    outputs: Text = None,
    reference_outputs: Text = None,
    prepare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask nothing: write the requests there, as a batch."),
    ] = None,
    collect: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Ask nothing: read the answers to a batch there; --examples is the file of its "
            "cases, and --prepare takes what has no answer. May be repeated.",
        ),
    ] = None,
    place: Place,
    flags: JudgeFlags,
    max_concurrency: MaxConcurrency = 32,
    terminal: Terminal,
) -> int:
    """Judge examples; one that fails keeps no other from being judged: its line tells why.

    With --prepare and --collect a batch API judges, at half the price: OpenAI's, or vLLM's
    `run-batch`.
    """
    # A file that is named has to be there: a slip of the pen is no reason to judge without it.
    place.check(must_exist=place.memory != DEFAULT_MEMORY)
    texts = {"inputs": inputs, "outputs": outputs, "reference_outputs": reference_outputs}
    example = {name: text for name, text in texts.items() if text is not None}
    if (examples is None) is not bool(example):
        raise InvalidInputError("--examples: give a file, or --inputs and --outputs: one of both.")
    if collect:
        if not examples:
            raise InvalidInputError(
                "--examples: with --collect give the file of the batch's cases."
            )
        deployed = flags.judge(place.criterion, terminal)
        verdicts, errors = _collect(place, deployed, (examples, collect, prepare), terminal)
        return _told(verdicts, errors, terminal)
    rows: list[Record] = [("line 1", example)]
    if examples:
        rows = read_records(examples, "--examples", field, terminal.warn)
    deployed = flags.judge(place.criterion, terminal)
    verdicts = [_verdict(at, fields) for at, fields in rows]
    given = [example_of(fields) if isinstance(fields, dict) else {} for _, fields in rows]
    if prepare:
        return _prepare(place, deployed, prepare, verdicts, given, terminal)
    errors = _finished(_judge(place, deployed, given, max_concurrency, verdicts, terminal))
    return _told(verdicts, errors, terminal, is_alone=bool(example))


def _told(
    verdicts: list[Verdict],
    errors: list[MemAlignError],
    terminal: Terminal,
    *,
    is_alone: bool = False,
) -> Status:
    """Tell verdicts, but for JSON, which is told as it comes, and what ended them."""
    is_unusable = all(isinstance(error, InvalidInputError) for error in errors)
    if is_alone and errors and is_unusable:
        raise InvalidInputError(f"--{errors[0]}")
    if is_alone and not errors and not terminal.as_json:
        terminal.result(verdicts[0]["judgment"])
    elif not terminal.as_json:
        terminal.result({"judgments": [_row(verdict) for verdict in verdicts]})
    for verdict in verdicts:
        if verdict["error"]:
            terminal.warn(f"line {verdict['line']}: not judged: {verdict['error']}")
    if len(errors) == len(verdicts):
        return Status.UNUSABLE if is_unusable else Status.MODEL_FAILED
    return Status.PARTLY if errors else Status.DONE


def _verdict(at: str, fields: Mapping[str, Any] | InvalidInputError) -> Verdict:
    error = str(fields) if isinstance(fields, InvalidInputError) else None
    key = None if isinstance(fields, InvalidInputError) else fields.get("id")
    line, key = int(at.split()[1]), None if key is None else str(key)
    return {"line": line, "id": key, "judgment": None, "error": error}


def _row(verdict: Verdict) -> dict[str, Any]:
    """Return what a table shows of a verdict."""
    failed: Verdict = {"value": "-", "rationale": f"not judged: {verdict['error']}"}
    judgment: Verdict = verdict["judgment"] or failed
    evidence = judgment.get("evidence") or {}
    return {**judgment, **verdict, "decided_by": evidence.get("decided_by")}


def _prepare(
    place: Place,
    judge: "Judge",
    path: Path,
    verdicts: list[Verdict],
    examples: list[dict[str, Any]],
    terminal: Terminal,
) -> int:
    """Write the requests of a batch."""
    from memalign_graph.bulk import prepare_batch

    rows = [{**verdict, **fields} for verdict, fields in zip(verdicts, examples, strict=True)]
    with _opened(place, judge) as store:
        batch = prepare_batch(judge, rows, path, store=store, **place.context)
    for at, error in batch.errors.items():
        terminal.warn(f"line {verdicts[at]['line']}: not judged: {error}")
    document = {"requests": batch.requests, "cases": str(batch.cases), "version": batch.version}
    terminal.result(document)
    if len(batch.errors) == len(rows):
        return Status.UNUSABLE
    return Status.PARTLY if batch.errors else Status.DONE


def _collect(
    place: Place, judge: "Judge", files: tuple[str, list[Path], Path | None], terminal: Terminal
) -> tuple[list[Verdict], list[MemAlignError]]:
    """Judge with the answers to a batch; as JSON, each verdict is written at once."""
    from memalign_graph.bulk import UnansweredError, collect_batch

    verdicts: list[Verdict] = []
    errors: list[MemAlignError] = []
    cases, answers, again = files
    with _opened(place, judge) as store, terminal.progress() as progress:
        judged = collect_batch(judge, cases, answers, store=store, **place.context, again=again)
        for row, outcome in judged:
            if isinstance(outcome, MemAlignError):
                errors.append(outcome)
                verdicts.append({**row, "error": str(outcome)})
            else:
                verdicts.append({**row, "judgment": outcome.to_json()})
            progress("collected", len(verdicts), len(verdicts))
            if terminal.as_json:
                terminal.document(verdicts[-1], indent=None)
    if unanswered := sum(isinstance(error, UnansweredError) for error in errors):
        where = f"in {again}" if again else "to be had with --prepare FILE"
        terminal.warn(f"{count(unanswered, 'request')} or more without an answer: {where}.")
    return verdicts, errors


_FIELDS = {"cases": "--examples", "answers": "--collect", "path": "--prepare"}
"""Where what a batch is made of was given."""


@contextmanager
def _opened(place: Place, judge: "Judge") -> Iterator[Any]:
    """Open the store for blocking calls; where there is no memory one that is empty."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.local import open_store

    is_kept = place.is_there or judge.keep_judgments is not None
    try:
        with open_store(place.memory) if is_kept else nullcontext(InMemoryStore()) as store:
            yield store
    except InvalidInputError as error:
        field, _, problem = str(error).partition(":")
        raise InvalidInputError(f"{_FIELDS.get(field, field)}:{problem}") from error


async def _judge(
    place: Place,
    judge: "Judge",
    examples: list[dict[str, Any]],
    max_concurrency: int,
    verdicts: list[Verdict],
    terminal: Terminal,
) -> list[MemAlignError]:
    """Judge side by side; as JSON, each verdict is written once those before it are."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.graphs import create_judge_graph
    from memalign_graph.local import open_store_async
    from memalign_graph.memory.judge_memory import JudgeMemory

    store: Any = InMemoryStore()
    errors: list[MemAlignError] = []
    unwritten = deque(verdicts if terminal.as_json else ())
    async with AsyncExitStack() as stack:
        if place.is_there or judge.keep_judgments is not None:
            store = await stack.enter_async_context(open_store_async(place.memory))
        memory = JudgeMemory(
            store,
            judge.criterion,
            **place.context,
            embeddings=judge.embeddings,
        )
        terminal.note(f"memory {place}: guidelines: {len(await memory.aguidelines())}")
        if not (await memory.aversion()).strip("0"):
            terminal.warn(f"{place} holds nothing: judged by the criterion alone.")
        elif len(examples) > 1 and ((judge.use_episodes and judge.k) or judge.measures):
            # Examples side by side need not all embed what lacks vectors.
            with suppress(MemAlignError):
                await memory.arecall(examples[0], 1)
        graph = create_judge_graph(judge.criterion, **judge.options).compile(store=store)
        config: Any = {"max_concurrency": max_concurrency}
        results = graph.abatch_as_completed(
            examples, config, return_exceptions=True, context=place.context
        )
        with terminal.progress() as progress:
            done = 0
            async for position, result in results:
                if isinstance(result, MemAlignError):
                    errors.append(result)
                    verdicts[position]["error"] = verdicts[position]["error"] or str(result)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    verdicts[position]["judgment"] = result["judgment"]
                done += 1
                progress("judged", done, len(examples))
                while unwritten and (unwritten[0]["judgment"] or unwritten[0]["error"]):
                    terminal.document(unwritten.popleft(), indent=None)
    return errors


@dataclass(frozen=True)
class Thresholds:
    """What the aligned judge has to reach, or to stay below."""

    min_agreement: Limit = None
    min_kappa: Limit = None
    min_ccc: Limit = None
    max_mae: Limit = None


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
    folds: Annotated[int | None, typer.Option(min=2, help="Of the cross-validation.")] = None,
    cache: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Keeps models' answers for the next run.")
    ] = None,
    max_concurrency: MaxConcurrency = 32,
    criterion: CriterionOption,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Measure how far the judge agrees with the experts, before and after it learns from them.

    By cross-validation, unless --test is given; in a memory of its own: yours stays as it is.
    """
    from memalign_graph.evaluation import aevaluate
    from memalign_graph.evaluation.metrics import measures_of

    limits = {name: limit for name, limit in asdict(thresholds).items() if limit is not None}
    for name in limits:
        if name[4:] not in measures_of(criterion.criterion.scale):
            raise InvalidInputError(
                f"{_flag(name)}: there is no {name[4:]} on the criterion's scale: leave it out."
            )
    if report:
        check_output(report, "--report", feedback, test, criterion.path)
        if report.suffix.lower() not in (".html", ".md", ".json"):
            raise InvalidInputError(f"--report: end the name of {report} in .html, .md or .json.")
    if cache:
        check_database(cache, "--cache")
    if not terminal.as_json or (report and report.suffix.lower() != ".json"):
        with needs_extra("evaluation", "A readable report"):  # before any call is paid for
            import jinja2  # noqa: F401 - tried here
    known, left_out = _read_all(feedback, "--feedback", field, criterion, terminal)
    tested, more = _read_all(test, "--test", field, criterion, terminal) if test else (None, 0)
    settings = {**criterion.learn, **criterion.evaluate, **({"folds": folds} if folds else {})}
    judge = flags.judge(criterion, terminal)
    with terminal.progress() as progress:
        evaluating = aevaluate(
            criterion.criterion,
            known,
            test=tested,
            progress=lambda done, of: progress("evaluated", done, of),
            cache=cache,
            max_concurrency=max_concurrency,
            **settings,
            **judge.options,
        )
        measured = _finished(evaluating)
    markdown = None if terminal.as_json else measured.summary()
    terminal.result(measured.to_json(), markdown=markdown)
    if report:
        measured.save(report)
        terminal.note(f"report in {report}")
    met = [_meets(measured, name, limit, terminal) for name, limit in limits.items()]
    if not all(met):
        return Status.MISSED
    failed = left_out + more + measured.of("aligned").failed
    return Status.PARTLY if failed else Status.DONE


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(
    path: str, option: str, columns: list[str] | None, file: CriterionFile, terminal: Terminal
) -> tuple[list[Record], dict[int, str]]:
    """Read records of feedback, and why some cannot be used, by their place."""
    from memalign_graph.memory.feedback import check_feedback
    from memalign_graph.types import read_feedback

    criterion = file.criterion
    records = read_records(path, option, columns, terminal.warn, criterion.scale)
    rejected: dict[int, str] = {}
    for index, (_, fields) in enumerate(records):
        try:
            if isinstance(fields, InvalidInputError):
                raise fields
            check_feedback(read_feedback(fields), criterion)
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
    """Read feedback, warn of records that cannot be used, and count them."""
    from memalign_graph.types import read_feedback

    records, rejected = _read(path, option, columns, file, terminal)
    for index, reason in rejected.items():
        terminal.warn(f"{option}: {path}, {records[index][0]}: {reason}")
    usable: list[Any] = [fields for at, (_, fields) in enumerate(records) if at not in rejected]
    return list(map(read_feedback, usable)), len(rejected)


def _meets(report: "Report", name: str, limit: float, terminal: Terminal) -> bool:
    """Hold the aligned judge against a threshold, and say how it stands to it."""
    found = report.metric("aligned", name[4:])
    is_met, how = False, ", which is not defined on these cases: give more, with different values"
    if found.value is not None:
        is_met = found.value <= limit if name == "max_mae" else found.value >= limit
        interval = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
        how = f" of {found.value:.2f}{interval}"
    tell, verdict = (terminal.note, "met") if is_met else (terminal.error, "missed")
    tell(f"{_flag(name)} {limit:g}: {verdict} by the aligned judge's {name[4:]}{how}.")
    return is_met


def review(
    *,
    author: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the expert, if nobody signs in.")
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
    place: Place,
    flags: JudgeFlags,
    terminal: Terminal,
) -> int:
    """Serve the review page: kept judgments, for experts to answer.

    `keep_judgments` of a graph, or under `judge:` in the criterion's file, keeps judgments.
    """
    del web  # the page was an option until 0.3
    if not user_header and host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidInputError(
            f"--host: on {host} others could answer without signing in. Put a reverse proxy with a "
            "login in front of the page, and give --user-header and --proxy."
        )
    place.check(must_exist=True)
    judge = flags.judge(place.criterion, terminal)
    page: dict[str, Any] = {"name": author or "", "user_header": user_header, "proxy": proxy}
    _finished(_serve(place, judge, (host, port), page, terminal))
    return Status.DONE


async def _serve(
    place: Place,
    judge: "Judge",
    address: tuple[str, int],
    page: dict[str, Any],
    terminal: Terminal,
) -> None:
    """Serve the review page of a memory until the program is stopped."""
    from memalign_graph.local import open_store_async
    from memalign_graph.review import ReviewQueue, create_review_app, serve_page

    async with open_store_async(place.memory) as store:
        queue = ReviewQueue([judge], **place.context, store=store)
        try:
            app = create_review_app(queue, **page)
        except InvalidInputError as error:
            raise InvalidInputError(f"--{error}") from error
        await serve_page(app, *address, terminal.note)
