"""`memalign align`: learn from much feedback at once."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import Records, read_records
from memalign_graph.cli.options import Field, JudgeFlags, MaxConcurrency, Place, Status, naming
from memalign_graph.cli.terminal import Terminal, count, one_line
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.alignment.report import AlignmentReport


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
    from memalign_graph.alignment.report import AlignmentReport
    from memalign_graph.graphs import create_alignment_graph

    if (feedback is None) is not pending:
        raise InvalidInputError("--feedback: give a file, or --pending: one of the two.")
    place.check(must_exist=pending)
    records = (
        read_records(feedback, "--feedback", field, terminal.warn) if feedback else Records("", [])
    )
    judge = flags.judge(place.criterion, terminal)
    with naming(place.criterion, {}):
        builder = create_alignment_graph(judge.criterion, **judge.options, **place.criterion.learn)
    terminal.note(f"memory {place}")
    document = asyncio.run(_align(builder, place, records, max_concurrency, terminal))
    for rejected in document["rejected"]:
        reason = rejected["reason"].removeprefix("example.")
        rejected["reason"] = f"{records.place(rejected['index'])}: {reason}"
    report = AlignmentReport.model_validate(document)
    terminal.result(document, *_lines(report))
    return Status.PARTLY if report.rejected else Status.DONE


async def _align(
    builder: Any, place: Place, records: Records, max_concurrency: int, terminal: Terminal
) -> dict[str, Any]:
    from memalign_graph.local import open_local_store_async

    state: Any = {}
    async with open_local_store_async(place.memory) as store:
        parts = builder.compile(store=store).astream(
            {"feedback": [fields for _, fields in records.rows]},
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


def _lines(report: "AlignmentReport") -> Iterator[str]:
    """Tell what an alignment did."""
    counts, cost, replay, guidelines = (
        report.feedback,
        report.cost,
        report.replay,
        report.guidelines,
    )
    yield (
        f"feedback: {counts.new} new, {counts.changed} changed, {counts.unchanged} known already, "
        f"{counts.rejected} not taken"
    )
    yield from (f"  not taken: {rejected.reason}" for rejected in report.rejected)
    if report.judged_cases:
        yield f"judged: {count(report.judged_cases, 'case')}, as if no expert had spoken of it yet"
    changes = {name: getattr(guidelines, name) for name in ("added", "revised", "retired")}
    yield "guidelines: " + ", ".join(f"{len(group)} {name}" for name, group in changes.items())
    for name, group in changes.items():
        for change in group:
            sources = count(len(change.episode_ids), "comment")
            yield f"  {name}: {one_line(change.text, 2_000)} (from {sources})"
    for conflict in report.conflicts:
        first, second = (one_line(one.text, 2_000) for one in (conflict.first, conflict.second))
        stays, goes = (first, second) if conflict.newer == "first" else (second, first)
        yield f"contradiction, in which the newer word stays:\n  stays: {stays}\n  goes: {goes}"
    if replay:
        yield (
            f"replay: {count(replay.cases, 'case')} judged again: {replay.agreed_before} agreed "
            f"before, of which {replay.agree_after} do now; {replay.newly_agree} newly agree"
        )
        yield from (f"  dropped, since it broke one: {case.guideline}" for case in replay.broken)
    yield from (f"note: {warning}" for warning in report.warnings)
    yield (
        f"cost: {count(cost.chat_calls, 'chat call')}, {cost.input_tokens:,} tokens in, "
        f"{cost.output_tokens:,} out, {count(cost.texts_embedded, 'text')} embedded, "
        f"{cost.seconds:.1f} s"
    )
    before, after = report.memory_version_before[:8], report.memory_version_after[:8]
    changed = f"from version {before} to" if before != after else "unchanged at version"
    yield f"memory {changed} {after}"
