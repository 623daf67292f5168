"""`memalign judge`: judge examples with what the memory holds."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import example_of, read_records
from memalign_graph.cli.options import (
    DEFAULT_MEMORY,
    Field,
    JudgeFlags,
    MaxConcurrency,
    Place,
    Status,
)
from memalign_graph.cli.terminal import Terminal, count, listed, table
from memalign_graph.errors import InvalidInputError, MemAlignError

if TYPE_CHECKING:
    from memalign_graph.settings import Judge

Text = Annotated[str | None, typer.Option(help="Of one example.")]
Verdict = dict[str, Any]
"""What came of one example: its line and id, and its judgment, or why there is none."""
_IN_FULL = ("guideline_ids", "episode_ids", "broken_guideline_ids", "warnings")


def judge(
    *,
    examples: Annotated[
        str | None, typer.Option("--examples", "-e", metavar="FILE", help="What to judge.")
    ] = None,
    field: Field = None,
    inputs: Text = None,
    outputs: Text = None,
    reference_outputs: Text = None,
    place: Place,
    flags: JudgeFlags,
    max_concurrency: MaxConcurrency = 32,
    terminal: Terminal,
) -> int:
    """Judge examples; one that fails keeps no other from being judged: its line tells why."""
    # A file that is named has to be there: a slip of the pen is no reason to judge without it.
    place.check(must_exist=place.memory != DEFAULT_MEMORY)
    texts = {"inputs": inputs, "outputs": outputs, "reference_outputs": reference_outputs}
    example = {name: text for name, text in texts.items() if text is not None}
    if (examples is None) is not bool(example):
        raise InvalidInputError("--examples: give a file, or --inputs and --outputs: one of both.")
    rows = [(1, example)]
    if examples:
        rows = read_records(examples, "--examples", field, terminal.warn).rows
    verdicts = [_verdict(line, fields) for line, fields in rows]
    if example and verdicts[0]["error"]:
        raise InvalidInputError(f"--{verdicts[0]['error']}")
    deployed = flags.judge(place.criterion, terminal)
    usable = {
        at: example_of(fields) for at, (_, fields) in enumerate(rows) if not verdicts[at]["error"]
    }
    asyncio.run(_judge(place, deployed, usable, max_concurrency, verdicts, terminal))
    failed = [verdict for verdict in verdicts if verdict["error"]]
    if not terminal.as_json:
        judgment = verdicts[0]["judgment"] if example else None
        terminal.result(None, _in_full(judgment) if judgment else _table(verdicts))
    for verdict in failed:
        terminal.warn(f"line {verdict['line']}: not judged: {verdict['error']}")
    if len(failed) == len(verdicts):
        return Status.MODEL_FAILED if usable else Status.UNUSABLE
    return Status.PARTLY if failed else Status.DONE


def _verdict(line: int, fields: Mapping[str, Any]) -> Verdict:
    from memalign_graph.reading import read_example

    problem, key = None, fields.get("id")
    try:
        read_example(example_of(fields))
    except InvalidInputError as error:
        problem = str(error)
    name = None if key is None else str(key)
    return {"line": line, "id": name, "judgment": None, "error": problem}


async def _judge(
    place: Place,
    judge: "Judge",
    examples: Mapping[int, dict[str, Any]],
    max_concurrency: int,
    verdicts: list[Verdict],
    terminal: Terminal,
) -> None:
    """Judge side by side; as JSON, each verdict is written once those before it are."""
    from langgraph.store.memory import InMemoryStore

    from memalign_graph.graphs import create_judge_graph
    from memalign_graph.local import open_local_store_async
    from memalign_graph.memory.judge_memory import JudgeMemory

    unwritten = iter(verdicts)
    upcoming = next(unwritten, None)

    def write() -> None:
        nonlocal upcoming
        while terminal.as_json and upcoming and (upcoming["judgment"] or upcoming["error"]):
            terminal.document(upcoming, indent=None)
            upcoming = next(unwritten, None)

    write()
    store: Any = InMemoryStore()
    async with AsyncExitStack() as stack:
        if place.memory.exists() or judge.keep_judgments is not None:
            store = await stack.enter_async_context(open_local_store_async(place.memory))
            options = {**place.context, "embeddings": judge.embeddings}
            memory = JudgeMemory(store, judge.criterion, **options)
            terminal.note(f"memory {place}: {count(len(await memory.aguidelines()), 'guideline')}")
            if not (await memory.aversion()).strip("0"):
                terminal.warn(f"{place} holds nothing: judged by the criterion alone.")
            if len(examples) > 1 and ((judge.use_episodes and judge.k) or judge.measures):
                # Examples side by side need not all embed what lacks vectors.
                with suppress(MemAlignError):
                    await memory.arecall(next(iter(examples.values())), 1)
        else:
            terminal.note(f"there is no {place.memory}: judged by the criterion alone")
        graph = create_judge_graph(judge.criterion, **judge.options).compile(store=store)
        results = graph.abatch_as_completed(
            list(examples.values()),
            {"max_concurrency": max_concurrency},
            return_exceptions=True,
            context=place.context,
        )
        with terminal.progress() as progress:
            done, places = 0, list(examples)
            async for position, result in results:
                verdict = verdicts[places[position]]
                if isinstance(result, MemAlignError):
                    verdict["error"] = str(result)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    verdict["judgment"] = result["judgment"]
                done += 1
                progress("judged", done, len(examples))
                write()


def _in_full(judgment: Mapping[str, Any]) -> Any:
    reason = (judgment["evidence"] or {}).get("reason")
    more = {name: judgment[name] for name in _IN_FULL}
    return listed({**_cells(judgment), "because": reason, **more})


def _table(verdicts: list[Verdict]) -> Any:
    rows = []
    for verdict in verdicts:
        failed = {"value": "-", "rationale": f"not judged: {verdict['error']}"}
        cells = _cells(verdict["judgment"] or failed)
        rows.append({"line": str(verdict["line"]), "id": verdict["id"] or "", **cells})
    header = [name for name in rows[0] if any(row[name] for row in rows)]
    return table(header, ([row[name] for name in header] for row in rows))


def _cells(judgment: Mapping[str, Any]) -> dict[str, str]:
    """Tell a judgment: its value, how sure the judge is and by what, what decided, and why."""
    value, confidence = judgment["value"], ""
    if judgment.get("confidence") is not None:
        cases = judgment["calibrated_on"]
        how = "raw" if cases is None else f"calibrated on {count(cases, 'case')}"
        confidence = f"{judgment['confidence']:.2f} by {judgment['confidence_source']}, {how}"
    return {
        "value": str(value).lower() if isinstance(value, bool) else str(value),
        "confidence": confidence,
        "decided by": (judgment.get("evidence") or {}).get("decided_by", ""),
        "rationale": judgment["rationale"],
    }
