"""`memalign judge`: judge examples with what the memory holds."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import example_of, output_path
from memalign_graph.cli.options import (
    Field,
    JudgeFlags,
    MaxConcurrency,
    Place,
    Status,
    read_named,
)
from memalign_graph.cli.terminal import Terminal, count
from memalign_graph.errors import InvalidInputError, MemAlignError

if TYPE_CHECKING:
    from memalign_graph.settings import Judge

Text = Annotated[str | None, typer.Option(help="Of one example.")]


@dataclass
class Verdict:
    """What came of one example."""

    line: int
    id: str | None
    judgment: dict[str, Any] | None = None
    error: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was judged, or can't be."""
        return bool(self.judgment or self.error)


def judge(
    *,
    place: Place,
    flags: JudgeFlags,
    terminal: Terminal,
    examples: Annotated[
        str | None, typer.Option("--examples", "-e", metavar="FILE", help="What to judge.")
    ] = None,
    inputs: Text = None,
    outputs: Text = None,
    reference_outputs: Text = None,
    field: Field = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Write the judgments there, as JSONL."),
    ] = None,
    max_concurrency: MaxConcurrency = 32,
) -> int:
    """Judge examples; one that fails keeps no other from being judged: its line tells why."""
    from memalign_graph.reading import read_example

    # A file that is named has to be there: a slip of the pen is no reason to judge without it.
    place.check(must_exist=place.memory != Path("memalign.db"))
    texts = {"inputs": inputs, "outputs": outputs, "reference_outputs": reference_outputs}
    rows = [(1, {name: text for name, text in texts.items() if text is not None})]
    if (examples is None) is not bool(rows[0][1]):
        raise InvalidInputError("--examples: give a file, or --inputs and --outputs: one of both.")
    if examples:
        rows = read_named(examples, "--examples", field, terminal).rows
    if output:
        output_path(output, "--output", examples)
    verdicts, wanted = [], {}
    for index, (line, fields) in enumerate(rows):
        verdict = Verdict(line, str(fields["id"]) if fields.get("id") is not None else None)
        try:
            read_example(example_of(fields))
            wanted[index] = example_of(fields)
        except InvalidInputError as error:
            if not examples:
                raise InvalidInputError(f"--{error}") from error
            verdict.error = str(error)
        verdicts.append(verdict)
    deployed = flags.judge(place.criterion, terminal)
    with output.open("w", encoding="utf-8") if output else nullcontext() as file:

        def write(verdict: Verdict) -> None:
            if file:
                file.write(json.dumps(asdict(verdict), ensure_ascii=False) + "\n")
                file.flush()
            if terminal.as_json:
                terminal.document(asdict(verdict), indent=None)

        judging = _judge(place, deployed, terminal, wanted, verdicts, write, max_concurrency)
        status = asyncio.run(judging)
    failed = [verdict for verdict in verdicts if verdict.error is not None]
    if terminal.as_json:
        pass  # each was written as it came
    elif output:
        terminal.line(f"{count(len(verdicts) - len(failed), 'judgment')} in {output}")
    elif examples or failed:
        terminal.table(*_columns(verdicts))
    else:
        terminal.fields(_in_full(verdicts[0].judgment or {}))
    for verdict in failed:
        terminal.warn(f"line {verdict.line}: not judged: {verdict.error}")
    if failed and len(failed) < len(verdicts):
        return Status.PARTLY
    return status if failed else Status.DONE


async def _judge(
    place: Place,
    judge: "Judge",
    terminal: Terminal,
    examples: Mapping[int, dict[str, Any]],
    verdicts: Sequence[Verdict],
    write: Callable[[Verdict], None],
    max_concurrency: int,
) -> Status:
    """Judge side by side, and write each verdict once those before it are written."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.graphs import create_judge_graph
    from memalign_graph.local import open_local_store_async
    from memalign_graph.memory.judge_memory import JudgeMemory

    builder = create_judge_graph(judge.criterion, **judge.options)
    status, indexes, written, done = Status.UNUSABLE, list(examples), 0, 0
    async with AsyncExitStack() as stack:
        store: Any = InMemoryStore()
        if place.memory.exists() or judge.keep_judgments is not None:
            store = await stack.enter_async_context(open_local_store_async(place.memory))
            memory = JudgeMemory(
                store, judge.criterion, **place.context, embeddings=judge.embeddings
            )
            terminal.note(f"memory {place}: {count(len(await memory.aguidelines()), 'guideline')}")
            if not (await memory.aversion()).strip("0"):
                terminal.warn(f"{place} holds nothing: judged by the criterion alone.")
            if len(examples) > 1 and ((judge.use_episodes and judge.k) or judge.measures):
                # Examples side by side need not all embed what lacks vectors.
                with suppress(MemAlignError):
                    await memory.arecall(examples[indexes[0]], 1)
        else:
            terminal.note(f"there is no {place.memory}: judged by the criterion alone")
        judged = builder.compile(store=store).abatch_as_completed(
            list(examples.values()),
            {"max_concurrency": max_concurrency},
            return_exceptions=True,
            context=place.context,
        )
        with terminal.progress() as progress:
            async for position, result in judged:
                verdict = verdicts[indexes[position]]
                if isinstance(result, MemAlignError):
                    verdict.error, status = str(result), max(status, Status.of(result))
                elif isinstance(result, BaseException):
                    raise result
                else:
                    verdict.judgment = result["judgment"]
                while written < len(verdicts) and verdicts[written].is_done:
                    write(verdicts[written])
                    written += 1
                done += 1
                progress("judged", done, len(examples))
    for verdict in verdicts[written:]:
        write(verdict)
    return status


def _columns(verdicts: Sequence[Verdict]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the header and the rows of a table, without columns in which there is nothing."""
    rows = []
    for verdict in verdicts:
        judgment = verdict.judgment or {}
        rows.append(
            {
                "line": str(verdict.line),
                "id": verdict.id or "",
                "value": _shown(judgment.get("value", "-")),
                "confidence": _confidence(judgment),
                "decided by": (judgment.get("evidence") or {}).get("decided_by", ""),
                "rationale": judgment.get("rationale") or f"not judged: {verdict.error}",
            }
        )
    header = [name for name in rows[0] if any(row[name] for row in rows)]
    return header, [tuple(row[name] for name in header) for row in rows]


def _in_full(judgment: Mapping[str, Any]) -> dict[str, Any]:
    evidence = judgment["evidence"]
    return {
        "value": _shown(judgment["value"]),
        "rationale": judgment["rationale"],
        "judged by": f"{count(len(judgment['guideline_ids']), 'guideline')}, "
        f"{count(len(judgment['episode_ids']), 'episode')}",
        "confidence": _confidence(judgment),
        "decided by": evidence
        and f"{evidence['decided_by']}; the judge says "
        f"{_shown(evidence['verdict'])}. {evidence['reason']}",
        "breaks": ", ".join(key[:8] for key in judgment["broken_guideline_ids"]),
        "note": " ".join(judgment["warnings"]),
    }


def _confidence(judgment: Mapping[str, Any]) -> str:
    """Tell how sure the judge is, by what, and whether that is calibrated; empty if unknown."""
    if judgment.get("confidence") is None:
        return ""
    cases = judgment["calibrated_on"]
    how = "raw" if cases is None else f"calibrated on {count(cases, 'case')}"
    return f"{judgment['confidence']:.2f} by {judgment['confidence_source']}, {how}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
