"""`memalign judge`: judge examples with what the memory holds."""

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memalign_graph.cli.exits import MODEL_ERRORS, ExitStatus
from memalign_graph.cli.opening import Place, read_models, read_named, read_place
from memalign_graph.cli.options import evidence_options, positive, told
from memalign_graph.cli.output import Output, clean
from memalign_graph.cli.places import open_memory, output_path
from memalign_graph.cli.records import example_fields
from memalign_graph.cli.reports import judgment_text, judgments_text
from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.graphs import create_judge_graph
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.reading import read_example
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY


@dataclass(frozen=True)
class Case:
    """One example to judge."""

    number: int
    """Its line in its file, or which of the list it is; 1 for one on the command line."""

    id: str | None
    """The id it has in its file."""

    example: dict[str, Any] | None
    """Its fields; None if it can't be used."""

    error: str | None = None
    """Why it can't be used."""


@dataclass(frozen=True)
class Verdict:
    """What came of one example."""

    case: Case
    """The example."""

    judgment: dict[str, Any] | None
    """The judgment; None if there is none."""

    error: str | None
    """Why there is none."""

    model_failed: bool = False
    """Whether a model is to blame."""

    def to_json(self) -> dict[str, Any]:
        """Return the line of JSON that tells of it."""
        return {
            "line": self.case.number,
            "id": self.case.id,
            "judgment": self.judgment,
            "error": self.error,
        }


Write = Callable[[Verdict], None]
"""Takes each verdict as it comes, in the order of the examples."""


def run_judge(parsed: Namespace, output: Output) -> int:
    """Judge one example, or a file of them."""
    # A file that is named has to be there: a slip of the pen is no reason to judge without it.
    place = read_place(parsed, must_exist=parsed.memory is not None)
    cases = _read_cases(parsed, output)
    target = output_path(parsed.output, "--output", parsed.examples)
    concurrency = positive(parsed.max_concurrency, "--max-concurrency") or DEFAULT_MAX_CONCURRENCY
    model, embeddings = read_models(parsed, output)
    builder = create_judge_graph(
        place.criterion,
        model=model,
        embeddings=embeddings,
        use_guidelines=not parsed.no_guidelines,
        use_episodes=not parsed.no_episodes,
        swap=parsed.swap,
        cite_guidelines=parsed.cite_guidelines,
        **evidence_options(parsed),
        **told(k=parsed.k, max_guideline_tokens=parsed.max_guideline_tokens),
    )
    has_memory = place.path.exists()
    _tell_memory(place, output, has_memory=has_memory)
    shows = not parsed.no_episodes and parsed.k != 0
    recalls = has_memory and (shows or parsed.decide == "evidence")
    judging = _Judging(builder, place, has_memory, concurrency, embeddings, recalls)
    with _sink(target, output) as write:
        verdicts = asyncio.run(
            judging.judge(cases, write, lambda done, of: output.progress("judged", done, of))
        )
    output.close_progress()
    _tell(verdicts, parsed, output)
    return _status(verdicts)


def _tell_memory(place: Place, output: Output, *, has_memory: bool) -> None:
    if not has_memory:
        output.note(f"there is no {place.path}: judged by the criterion alone, without a memory")
        return
    with open_memory(place.path, place.criterion, place.namespace, must_exist=False) as memory:
        known = len(memory.guidelines()), len(memory.episodes())
    output.note(f"memory {place}: {known[0]} guideline(s), {known[1]} episode(s)")
    if known == (0, 0):
        output.warn(f"{place} holds nothing: judged by the criterion alone.")


def _read_cases(parsed: Namespace, output: Output) -> list[Case]:
    if parsed.examples is None:
        if parsed.outputs is None:
            raise InvalidInputError("--outputs: say what was answered to --inputs.")
        example = told(
            inputs=parsed.inputs,
            outputs=parsed.outputs,
            reference_outputs=parsed.reference_outputs,
        )
        read_example(example)
        return [Case(1, None, example)]
    if parsed.outputs is not None or parsed.reference_outputs is not None:
        raise InvalidInputError(
            "--outputs: --examples brings its own outputs: give one of the two."
        )
    records = read_named(parsed, parsed.examples, "--examples", output)
    return [
        _case(row.place, fields)
        for row, fields in zip(records.table.rows, records.fields, strict=True)
    ]


def _case(number: int, fields: dict[str, Any]) -> Case:
    key = fields.get("id")
    name = None if key is None else str(key)
    example = example_fields(fields)
    try:
        read_example(example)
    except InvalidInputError as error:
        return Case(number, name, None, str(error))
    return Case(number, name, example)


@dataclass(frozen=True)
class _Judging:
    """How examples are judged."""

    builder: Any
    """The graph, yet to be compiled."""

    place: Place
    """Which memory."""

    has_memory: bool
    """Whether the memory's file is there."""

    concurrency: int
    """How many examples are under way at a time."""

    embeddings: str
    """What finds similar cases."""

    recalls: bool
    """Whether similar cases are looked for."""

    async def judge(
        self, cases: Sequence[Case], write: Write, progress: Callable[[int, int], None]
    ) -> list[Verdict]:
        """Judge all cases side by side, and write each verdict once those before it are written."""
        ready = {case.number: Verdict(case, None, case.error) for case in cases if case.error}
        wanted = [case for case in cases if case.error is None]
        written: list[Verdict] = []

        def write_ready() -> None:
            while len(written) < len(cases) and cases[len(written)].number in ready:
                verdict = ready[cases[len(written)].number]
                written.append(verdict)
                write(verdict)

        write_ready()
        async with _open_store(self.place, has_memory=self.has_memory) as store:
            graph = self.builder.compile(store=store)
            if self.recalls and len(wanted) > 1:
                await self._warm_up(store, wanted[0])
            slots = asyncio.Semaphore(self.concurrency)
            tasks = [asyncio.create_task(self._verdict(graph, slots, case)) for case in wanted]
            try:
                for done, task in enumerate(asyncio.as_completed(tasks), start=1):
                    verdict = await task
                    ready[verdict.case.number] = verdict
                    write_ready()
                    progress(done, len(wanted))
            finally:
                for pending in tasks:
                    pending.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return written

    async def _warm_up(self, store: BaseStore, case: Case) -> None:
        """Read the memory once: examples side by side need not all embed what lacks vectors."""
        place = self.place
        memory = JudgeMemory(
            store, place.criterion, namespace=place.namespace, embeddings=self.embeddings
        )
        with suppress(MemAlignError):
            await memory.arecall(case.example or {}, 1)

    async def _verdict(self, graph: Any, slots: asyncio.Semaphore, case: Case) -> Verdict:
        context = {"namespace": list(self.place.namespace)}
        async with slots:
            try:
                result = await graph.ainvoke(case.example, context=context)
            except MemAlignError as error:
                failed = isinstance(error, MODEL_ERRORS)
                return Verdict(case, None, str(error), model_failed=failed)
        return Verdict(case, result["judgment"], None)


@asynccontextmanager
async def _open_store(place: Place, *, has_memory: bool) -> AsyncIterator[BaseStore]:
    if not has_memory:
        yield InMemoryStore()
        return
    from memalign_graph.local import open_local_store_async

    async with open_local_store_async(place.path) as store:
        yield store


@contextmanager
def _sink(path: Path | None, output: Output) -> Iterator[Write]:
    """Open what each verdict is written to as it comes: a file, stdout, or nothing."""
    if path is None:
        yield (lambda verdict: output.record(verdict.to_json())) if output.as_json else _nowhere
        return
    with path.open("w", encoding="utf-8") as file:

        def write(verdict: Verdict) -> None:
            file.write(json.dumps(verdict.to_json(), ensure_ascii=False) + "\n")
            file.flush()
            if output.as_json:
                output.record(verdict.to_json())

        yield write


def _nowhere(_: Verdict) -> None:
    """Keep a verdict for the table at the end."""


def _tell(verdicts: Sequence[Verdict], parsed: Namespace, output: Output) -> None:
    failed = [one for one in verdicts if one.error is not None]
    if not output.as_json:
        if parsed.output is None:
            is_one = parsed.examples is None and not failed
            text = judgment_text(verdicts[0].judgment or {}) if is_one else judgments_text(verdicts)
            output.line(text)
        else:
            output.line(f"{len(verdicts) - len(failed)} judgment(s) in {clean(parsed.output)}")
    for one in failed:
        where = f"line {one.case.number}: " if parsed.examples is not None else ""
        output.warn(f"{where}not judged: {one.error}")


def _status(verdicts: Sequence[Verdict]) -> int:
    failed = [one for one in verdicts if one.error is not None]
    if not failed:
        return ExitStatus.DONE
    if len(failed) < len(verdicts):
        return ExitStatus.PARTLY
    any_model = any(one.model_failed for one in failed)
    return ExitStatus.MODEL_FAILED if any_model else ExitStatus.UNUSABLE
