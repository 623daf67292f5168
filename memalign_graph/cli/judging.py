"""`memalign judge`: judge examples now, or write and read the files of a batch API."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import has_table
from memalign_graph.cli.options import (
    DEFAULT_MEMORY,
    Field,
    JudgeFlags,
    MaxConcurrency,
    MemoryLocation,
    Status,
    option_errors,
)
from memalign_graph.cli.records import Record, example_of, read_records
from memalign_graph.cli.terminal import Terminal, pluralize
from memalign_graph.errors import InvalidInputError, MemAlignError, StoreError
from memalign_graph.local.stores import open_store, open_store_async

if TYPE_CHECKING:
    from memalign_graph.settings import Judge


def judge(
    *,
    examples: Annotated[str | None, typer.Option("--examples", "-e", metavar="FILE")] = None,
    field: Field = None,
    inputs: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    outputs: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    reference_outputs: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    prepare: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    collect: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None,
    location: MemoryLocation,
    flags: JudgeFlags,
    max_concurrency: MaxConcurrency = 32,
    terminal: Terminal,
) -> int:
    """Judge examples. If one fails, its line has the reason, and the others are judged.

    With --prepare and --collect a batch API judges, at half the price: OpenAI's, or vLLM's
    `run-batch`.

    Options:
        examples: File of examples.
        inputs: Inputs of a single example.
        outputs: Outputs of a single example.
        reference_outputs: Outputs that would be right.
        prepare: Write requests for a batch API to FILE; call no model.
        collect: Read a batch API's answers; call no model. --examples is the file of the batch's
            cases; --prepare writes the requests without an answer. May be repeated.
    """
    from memalign_graph.types import parse_example

    # A memory that is named must exist, so that a misspelled name is not judged without memory.
    location.check(must_exist=location.memory != DEFAULT_MEMORY)
    texts = {"inputs": inputs, "outputs": outputs, "reference_outputs": reference_outputs}
    example = {name: text for name, text in texts.items() if text is not None}
    if (examples is None) is not bool(example):
        raise InvalidInputError("--examples: give either a file or --inputs and --outputs.")
    if collect and not examples:
        raise InvalidInputError("--examples: with --collect give the file of the batch's cases.")
    if example:
        with option_errors():
            parse_example(example)
    settings = flags.judge(location.criterion, terminal)
    judging = _Judging(location, settings, terminal)
    if collect and examples:
        judging.collect(examples, collect, prepare)
        return judging.report()
    records: list[Record] = [("line 1", example)]
    if examples:
        records = read_records(examples, "--examples", field, terminal.warn)
    cases, unreadable = [], {}
    for index, (place, record) in enumerate(records):
        fields = record if isinstance(record, dict) else {}
        if isinstance(record, InvalidInputError):
            unreadable[index] = record
        judging.rows.append({"line": int(place.split()[1]), "id": fields.get("id")})
        cases.append(example_of(fields))
    if prepare:
        return judging.prepare(prepare, cases, unreadable)
    for index, error in unreadable.items():
        judging.add(index, error)
    asyncio.run(judging.judge(cases, max_concurrency))
    return judging.report(is_single=bool(example))


_OPTION_BY_FIELD = {"cases": "--examples", "answers": "--collect", "path": "--prepare"}


@dataclass
class _Judging:
    """One run of the command, with the judgments or errors of its examples.

    As JSON, they are written in order, as they come.
    """

    location: MemoryLocation
    settings: "Judge"
    terminal: Terminal
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The line and id of each example."""
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The finished rows, by the example's index."""
    errors: list[MemAlignError] = field(default_factory=list)
    _written: int = 0

    async def judge(self, examples: list[dict[str, Any]], max_concurrency: int) -> None:
        """Judge the examples that are not finished."""
        from memalign_graph.graphs import create_judge_graph

        location, settings, terminal = self.location, self.settings, self.terminal
        indexes = [index for index in range(len(examples)) if index not in self.lines]
        if not indexes:
            return  # and make no memory
        async with self._open(open_store_async) as store:
            memory = location.memory_in(store, settings.embeddings)
            terminal.note(f"memory {location}: guidelines: {len(await memory.aguidelines())}")
            self._warn_if_empty(await memory.aversion())
            graph = create_judge_graph(settings.criterion, **settings.options).compile(store=store)
            judged = graph.abatch_as_completed(
                [examples[index] for index in indexes],
                {"max_concurrency": max_concurrency},
                return_exceptions=True,
                context=location.context,
            )
            with terminal.progress() as progress:
                async for position, result in judged:
                    outcome = result if isinstance(result, Exception) else result["judgment"]
                    self.add(indexes[position], outcome)
                    progress("judged", len(self.lines), len(examples))

    def prepare(self, path: Path, examples: list[Any], unreadable: Mapping[int, Any]) -> Status:
        """Write the requests of a batch; returns the exit status."""
        from memalign_graph.bulk import prepare_batch

        rows = [{**row, **case} for row, case in zip(self.rows, examples, strict=True)]
        with option_errors(**_OPTION_BY_FIELD), self._open(open_store) as store:
            batch = prepare_batch(self.settings, rows, path, store=store, **self.location.context)
        self._warn_if_empty(batch.version)
        for index, error in batch.errors.items():
            reason = unreadable.get(index, error)
            self.terminal.warn(f"line {rows[index]['line']}: not judged: {reason}")
        result = {"requests": batch.requests, "cases": str(batch.cases), "version": batch.version}
        self.terminal.result(result)
        if len(batch.errors) == len(rows):
            return Status.USAGE_ERROR
        return Status.PARTIAL if batch.errors else Status.DONE

    def collect(self, cases: str, answers: list[Path], again: Path | None) -> None:
        """Read the answers to a batch; requests without one are written to `again`."""
        from memalign_graph.bulk import UnansweredError, collect_batch

        options = {**self.location.context, "again": again}
        with (
            option_errors(**_OPTION_BY_FIELD),
            self._open(open_store) as store,
            self.terminal.progress() as progress,
        ):
            judged = collect_batch(self.settings, cases, answers, store=store, **options)
            for index, (row, outcome) in enumerate(judged):
                self.rows.append({"line": index + 1, **row})  # a batch of Python has no lines
                result = outcome if isinstance(outcome, MemAlignError) else outcome.to_json()
                self.add(index, result)
                progress("collected", index + 1, index + 1)
        if unanswered := sum(isinstance(error, UnansweredError) for error in self.errors):
            where = f"they are in {again}" if again else "--prepare FILE writes them"
            requests = pluralize(unanswered, "request")
            self.terminal.warn(f"{requests} or more without an answer: {where}.")

    def _open(self, open_store: Callable[..., Any]) -> Any:
        """Open the store; an empty one if there is no memory and none is to be made."""
        from langgraph.store.memory import InMemoryStore

        memory, keeps = self.location.memory, self.settings.keep_judgments is not None
        has_store = keeps or has_table(memory, "store")
        return open_store(memory) if has_store else nullcontext(InMemoryStore())

    def _warn_if_empty(self, version: str) -> None:
        from memalign_graph.memory.facts import EMPTY_VERSION

        if version == EMPTY_VERSION:
            self.terminal.warn(f"{self.location} is empty: judging by the criterion alone.")

    def add(self, index: int, outcome: Mapping[str, Any] | Exception) -> None:
        """Add a judgment or why there is none; raises an error that is not of one example."""
        judged: dict[str, Any] = {"judgment": outcome, "error": None}
        if isinstance(outcome, MemAlignError) and not isinstance(outcome, StoreError):
            self.errors.append(outcome)
            judged = {"judgment": None, "error": str(outcome)}
            self.terminal.warn(f"line {self.rows[index]['line']}: not judged: {outcome}")
        elif isinstance(outcome, Exception):
            raise outcome
        self.lines[index] = {**self.rows[index], **judged}
        while self.terminal.as_json and self._written in self.lines:
            self.terminal.document(self.lines[self._written], indent=None)
            self._written += 1

    def report(self, *, is_single: bool = False) -> Status:
        """Print the results; returns the exit status."""
        lines, failed = [self.lines[index] for index in sorted(self.lines)], len(self.errors)
        if not self.terminal.as_json:
            is_whole = is_single and not failed
            rows = {"judgments": list(map(_table_row, lines))}
            self.terminal.result(lines[0]["judgment"] if is_whole else rows)
        if failed == len(lines):
            are_invalid = all(isinstance(error, InvalidInputError) for error in self.errors)
            return Status.USAGE_ERROR if are_invalid else Status.MODEL_FAILED
        return Status.PARTIAL if failed else Status.DONE


def _table_row(line: dict[str, Any]) -> dict[str, Any]:
    failed = {"value": "-", "rationale": f"not judged: {line['error']}"}
    judgment: dict[str, Any] = line["judgment"] or failed
    evidence = judgment.get("evidence") or {}
    return {**judgment, **line, "decided_by": evidence.get("decided_by")}
