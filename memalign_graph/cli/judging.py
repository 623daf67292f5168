"""`memalign judge`: judge examples at once, or write and read the files of a batch API."""

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.options import (
    DEFAULT_MEMORY,
    Field,
    JudgeFlags,
    MaxConcurrency,
    MemoryLocation,
    Status,
    run_async,
)
from memalign_graph.cli.records import Record, example_of, read_records
from memalign_graph.cli.terminal import Terminal, pluralize
from memalign_graph.errors import InvalidInputError, MemAlignError

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from memalign_graph.settings import Judge

ExampleTextOption = Annotated[str | None, typer.Option(help="Text of a single example.")]


def judge(
    *,
    examples: Annotated[
        str | None, typer.Option("--examples", "-e", metavar="FILE", help="Examples to judge.")
    ] = None,
    field: Field = None,
    inputs: ExampleTextOption = None,
    outputs: ExampleTextOption = None,
    reference_outputs: ExampleTextOption = None,
    prepare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write requests for a batch API to FILE; ask no model."),
    ] = None,
    collect: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Read a batch API's answers; ask no model. --examples is the file of the batch's "
            "cases; --prepare takes the requests without an answer. May be repeated.",
        ),
    ] = None,
    location: MemoryLocation,
    flags: JudgeFlags,
    max_concurrency: MaxConcurrency = 32,
    terminal: Terminal,
) -> int:
    """Judge examples. If one fails, the others are still judged; its line has the reason.

    With --prepare and --collect a batch API judges, at half the price: OpenAI's, or vLLM's
    `run-batch`.
    """
    # A memory that is named must exist: after a slip of the pen nothing is judged without it.
    location.check(must_exist=location.memory != DEFAULT_MEMORY)
    texts = {"inputs": inputs, "outputs": outputs, "reference_outputs": reference_outputs}
    example = {name: text for name, text in texts.items() if text is not None}
    if (examples is None) is not bool(example):
        raise InvalidInputError("--examples: give either a file or --inputs and --outputs.")
    lines = _Lines(terminal, is_single=bool(example))
    if collect:
        if not examples:
            raise InvalidInputError(
                "--examples: with --collect give the file of the batch's cases."
            )
        settings = flags.judge(location.criterion, terminal)
        _collect(location, settings, (examples, collect, prepare), lines)
        return lines.report()
    records: list[Record] = [("line 1", example)]
    if examples:
        records = read_records(examples, "--examples", field, terminal.warn)
    settings = flags.judge(location.criterion, terminal)
    for at, fields in records:
        key = None if isinstance(fields, InvalidInputError) else fields.get("id")
        lines.rows.append({"line": int(at.split()[1]), "id": None if key is None else str(key)})
    usable = [example_of(fields) if isinstance(fields, dict) else {} for _, fields in records]
    if prepare:
        return _prepare(location, settings, prepare, usable, lines)
    for index, (_, fields) in enumerate(records):
        if isinstance(fields, InvalidInputError):
            lines.add(index, fields)
    run_async(_judge(location, settings, usable, max_concurrency, lines))
    return lines.report()


@dataclass
class _Lines:
    """The results of examples, in their order; as JSON, each is written as soon as it can be."""

    terminal: Terminal
    is_single: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    """What names an example: its line and id."""
    _results: dict[int, dict[str, Any]] = field(default_factory=dict)
    _errors: list[MemAlignError] = field(default_factory=list)
    _written: int = 0

    def add(self, index: int, outcome: Mapping[str, Any] | MemAlignError) -> None:
        """Take the judgment of an example, as JSON, or what went wrong with it."""
        is_error = isinstance(outcome, MemAlignError)
        if isinstance(outcome, MemAlignError):
            self._errors.append(outcome)
        self._results[index] = {
            **self.rows[index],
            "judgment": None if is_error else outcome,
            "error": str(outcome) if is_error else None,
        }
        while self.terminal.as_json and self._written in self._results:
            self.terminal.document(self._results[self._written], indent=None)
            self._written += 1

    def has(self, index: int) -> bool:
        """Tell whether an example has its result."""
        return index in self._results

    def count_errors(self, kind: type[MemAlignError]) -> int:
        """Count the examples that failed in some way."""
        return sum(isinstance(error, kind) for error in self._errors)

    def report(self) -> Status:
        """Write the results for people, and the reasons of failures; returns the exit status."""
        results = [self._results[index] for index in sorted(self._results)]
        is_unusable = self.count_errors(InvalidInputError) == len(self._errors)
        if self.is_single and self._errors and is_unusable:
            raise InvalidInputError(f"--{self._errors[0]}")
        if not self.terminal.as_json:
            is_single = self.is_single and not self._errors
            rows = {"judgments": list(map(_table_row, results))}
            self.terminal.result(results[0]["judgment"] if is_single else rows)
        for result in results:
            if result["error"]:
                self.terminal.warn(f"line {result['line']}: not judged: {result['error']}")
        if len(self._errors) == len(results):
            return Status.USAGE_ERROR if is_unusable else Status.MODEL_FAILED
        return Status.PARTIAL if self._errors else Status.DONE


def _table_row(result: dict[str, Any]) -> dict[str, Any]:
    failed = {"value": "-", "rationale": f"not judged: {result['error']}"}
    judgment: dict[str, Any] = result["judgment"] or failed
    evidence = judgment.get("evidence") or {}
    return {**judgment, **result, "decided_by": evidence.get("decided_by")}


async def _judge(
    location: MemoryLocation,
    settings: "Judge",
    examples: list[dict[str, Any]],
    max_concurrency: int,
    lines: _Lines,
) -> None:
    """Judge examples concurrently."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.graphs import create_judge_graph
    from memalign_graph.local import open_store_async
    from memalign_graph.memory.judge_memory import JudgeMemory

    store: BaseStore = InMemoryStore()
    terminal = lines.terminal
    async with AsyncExitStack() as stack:
        if location.exists or settings.keep_judgments is not None:
            store = await stack.enter_async_context(open_store_async(location.memory))
        memory = JudgeMemory(
            store, settings.criterion, **location.context, embeddings=settings.embeddings
        )
        terminal.note(f"memory {location}: guidelines: {len(await memory.aguidelines())}")
        indexes = [index for index in range(len(examples)) if not lines.has(index)]
        if not (await memory.aversion()).strip("0"):
            terminal.warn(f"{location} holds nothing: judged by the criterion alone.")
        elif len(indexes) > 1 and ((settings.use_episodes and settings.k) or settings.measures):
            # Otherwise concurrent judgments would all embed the episodes that lack vectors.
            with suppress(MemAlignError):
                await memory.arecall(examples[indexes[0]], 1)
        graph = create_judge_graph(settings.criterion, **settings.options).compile(store=store)
        results = graph.abatch_as_completed(
            [examples[index] for index in indexes],
            {"max_concurrency": max_concurrency},
            return_exceptions=True,
            context=location.context,
        )
        with terminal.progress() as progress:
            done = len(examples) - len(indexes)
            async for position, result in results:
                is_failure = isinstance(result, BaseException)
                if isinstance(result, BaseException) and not isinstance(result, MemAlignError):
                    raise result
                lines.add(indexes[position], result if is_failure else result["judgment"])
                done += 1
                progress("judged", done, len(examples))


def _prepare(
    location: MemoryLocation,
    settings: "Judge",
    path: Path,
    examples: list[dict[str, Any]],
    lines: _Lines,
) -> int:
    """Write the requests of a batch."""
    from memalign_graph.bulk import prepare_batch

    pending = {"judgment": None, "error": None}
    rows = [{**row, **pending, **each} for row, each in zip(lines.rows, examples, strict=True)]
    with _open_store(location, settings) as store:
        batch = prepare_batch(settings, rows, path, store=store, **location.context)
    for index, error in batch.errors.items():
        lines.terminal.warn(f"line {lines.rows[index]['line']}: not judged: {error}")
    lines.terminal.result(
        {"requests": batch.requests, "cases": str(batch.cases), "version": batch.version}
    )
    if len(batch.errors) == len(rows):
        return Status.USAGE_ERROR
    return Status.PARTIAL if batch.errors else Status.DONE


def _collect(
    location: MemoryLocation,
    settings: "Judge",
    files: tuple[str, list[Path], Path | None],
    lines: _Lines,
) -> None:
    """Judge with the answers to a batch."""
    from memalign_graph.bulk import UnansweredError, collect_batch

    cases, answers, again = files
    with _open_store(location, settings) as store, lines.terminal.progress() as progress:
        judged = collect_batch(
            settings, cases, answers, store=store, **location.context, again=again
        )
        for index, (row, outcome) in enumerate(judged):
            lines.rows.append(row)
            lines.add(index, outcome if isinstance(outcome, MemAlignError) else outcome.to_json())
            progress("collected", index + 1, index + 1)
    if unanswered := lines.count_errors(UnansweredError):
        where = f"in {again}" if again else "to be had with --prepare FILE"
        lines.terminal.warn(
            f"{pluralize(unanswered, 'request')} or more without an answer: {where}."
        )


_OPTIONS = {"cases": "--examples", "answers": "--collect", "path": "--prepare"}
"""The options behind the fields that `bulk` names in its errors."""


@contextmanager
def _open_store(location: MemoryLocation, settings: "Judge") -> Iterator[Any]:
    """Open the store for blocking calls; an empty one where there is no memory."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.local import open_store

    is_kept = location.exists or settings.keep_judgments is not None
    try:
        with open_store(location.memory) if is_kept else nullcontext(InMemoryStore()) as store:
            yield store
    except InvalidInputError as error:
        name, _, problem = str(error).partition(":")
        raise InvalidInputError(f"{_OPTIONS.get(name, name)}:{problem}") from error
