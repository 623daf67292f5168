"""`memalign align`: learn from much feedback at once."""

import asyncio
from argparse import Namespace
from typing import Any

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.cli.exits import ExitStatus
from memalign_graph.cli.opening import Place, read_models, read_named, read_place
from memalign_graph.cli.options import evidence_options, positive, told
from memalign_graph.cli.output import Output
from memalign_graph.cli.reports import alignment_text
from memalign_graph.graphs import create_alignment_graph


def run_align(parsed: Namespace, output: Output) -> int:
    """Learn from a file of feedback."""
    place = read_place(parsed, must_exist=parsed.pending)
    records = None if parsed.pending else read_named(parsed, parsed.feedback, "--feedback", output)
    concurrency = positive(parsed.max_concurrency, "--max-concurrency")
    model, embeddings = read_models(parsed, output)
    builder = create_alignment_graph(
        place.criterion,
        model=model,
        embeddings=embeddings,
        use_guidelines=not parsed.no_guidelines,
        use_episodes=not parsed.no_episodes,
        swap=parsed.swap,
        judge_cases=parsed.judge_cases,
        **evidence_options(parsed),
        **told(
            distill_model=parsed.distill_model,
            learn_from=parsed.learn_from,
            guard=parsed.guard,
            batch_size=parsed.batch_size,
            replay_cases=parsed.replay_cases,
            k=parsed.k,
            max_guideline_tokens=parsed.max_guideline_tokens,
        ),
    )
    output.note(f"memory {place}")
    config = told(max_concurrency=concurrency)
    feedback = records.fields if records else []
    report = asyncio.run(_align(builder, place, feedback, config, output))
    places = [records.place(one.index) for one in report.rejected] if records else []
    if output.as_json:
        output.document(_json(report, places))
    else:
        output.line(alignment_text(report, places, place.criterion.scale))
    return ExitStatus.PARTLY if report.rejected else ExitStatus.DONE


async def _align(
    builder: Any, place: Place, feedback: list[Any], config: dict[str, Any], output: Output
) -> AlignmentReport:
    from memalign_graph.local import open_local_store_async

    state: Any = {}
    async with open_local_store_async(place.path) as store:
        graph = builder.compile(store=store)
        parts = graph.astream(
            {"feedback": feedback},
            config,
            context={"namespace": list(place.namespace)},
            stream_mode=["custom", "values"],
        )
        async for mode, part in parts:
            if mode == "values":
                state = part
            elif part.get("type") == "alignment_progress":
                output.progress(part["stage"], part["done"], part["of"])
    output.close_progress()
    return AlignmentReport.model_validate(state["report"])


def _json(report: AlignmentReport, places: list[str]) -> dict[str, Any]:
    """Return the report; the reason of each rejected record begins with its place in its file."""
    document = report.to_json()
    for one, place in zip(document["rejected"], places, strict=True):
        one["reason"] = f"{place}: {one['reason']}"
    return document
