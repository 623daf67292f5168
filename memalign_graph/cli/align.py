"""`memalign align`: learn from much feedback at once."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memalign_graph.cli.files import Records, read_records
from memalign_graph.cli.options import (
    Field,
    JudgeFlags,
    MaxConcurrency,
    Place,
    Status,
    naming,
)
from memalign_graph.cli.terminal import Terminal, count, one_line
from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.alignment.report import AlignmentReport
    from memalign_graph.scales import Scale


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
    records = (
        read_records(feedback, "--feedback", field, terminal.warn) if feedback else Records("", [])
    )
    file = place.criterion
    judge = flags.judge(file, terminal)
    with naming(file, {}):
        builder = create_alignment_graph(file.criterion, **judge.options, **file.learn)
    terminal.note(f"memory {place}")
    report = asyncio.run(_align(builder, place, records.fields, max_concurrency, terminal))
    document = report.to_json()
    for rejected in document["rejected"]:
        reason = rejected["reason"].removeprefix("example.")
        rejected["reason"] = f"{records.place(rejected['index'])}: {reason}"
    terminal.result(document, *_told(type(report)(**document), file.criterion.scale))
    return Status.PARTLY if report.rejected else Status.DONE


async def _align(
    builder: Any, place: Place, feedback: list[Any], max_concurrency: int, terminal: Terminal
) -> "AlignmentReport":
    from memalign_graph.alignment.report import AlignmentReport
    from memalign_graph.local import open_local_store_async

    state: Any = {}
    async with open_local_store_async(place.memory) as store:
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
    return AlignmentReport.model_validate(state["report"])


def _told(report: "AlignmentReport", scale: "Scale") -> Iterator[str]:
    """Tell what an alignment did."""
    counts, cost, replay = report.feedback, report.cost, report.replay
    yield (
        f"feedback: {counts.new} new, {counts.changed} changed, {counts.unchanged} known already, "
        f"{counts.rejected} not taken"
    )
    yield from (f"  not taken: {rejected.reason}" for rejected in report.rejected)
    if report.judged_cases:
        yield f"judged: {count(report.judged_cases, 'case')}, as if no expert had spoken of it yet"
    if report.agreement.examples:
        alpha = report.agreement.alpha
        yield (
            f"experts: several on {count(report.agreement.examples, 'case')}, of which "
            f"{len(report.agreement.disagreements)} in dispute; Krippendorff's alpha "
            f"{'not defined' if alpha is None else f'{alpha:.2f}'}"
        )
    groups = {name: getattr(report.guidelines, name) for name in ("added", "revised", "retired")}
    yield "guidelines: " + ", ".join(f"{len(group)} {name}" for name, group in groups.items())
    for name, group in groups.items():
        for change in group:
            sources = count(len(change.episode_ids), "comment")
            yield f"  {name}: {one_line(change.text, 2_000)} (from {sources})"
            more = {"before": change.before, "because": change.reason}
            yield from (f"    {what}: {one_line(why, 2_000)}" for what, why in more.items() if why)
    for conflict in report.conflicts:
        sides = (conflict.first.text, conflict.second.text)
        stays, goes = sides if conflict.newer == "first" else sides[::-1]
        yield "contradiction, in which the newer word stays:"
        yield from (f"  stays: {one_line(stays, 2_000)}", f"  goes: {one_line(goes, 2_000)}")
    if replay:
        yield (
            f"replay: {count(replay.cases, 'case')} judged again: {replay.agreed_before} agreed "
            f"before, of which {replay.agree_after} do now; {replay.newly_agree} newly agree"
        )
        for case in replay.broken:
            turned = f"from {scale.show(case.expected)} to {scale.show(case.got)}"
            yield f"  dropped, since it turned {case.example_id[:8]} {turned}: {case.guideline}"
    yield from (f"note: {warning}" for warning in report.warnings)
    yield (
        f"cost: {count(cost.chat_calls, 'chat call')}, {cost.input_tokens:,} tokens in, "
        f"{cost.output_tokens:,} out, {count(cost.texts_embedded, 'text')} embedded, "
        f"{cost.seconds:.1f} s"
    )
    before, after = report.memory_version_before[:8], report.memory_version_after[:8]
    changed = f"from version {before} to" if before != after else "unchanged at version"
    yield f"memory {changed} {after}"
