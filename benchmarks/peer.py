"""The peer's part: MLflow's MemAlign, run in its own environment and by its public interface.

Nothing of this project's package is imported here, and nothing that its environment lacks.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dspy
import mlflow
from mlflow.entities import AssessmentSource, Trace
from mlflow.genai.judges import make_judge
from mlflow.genai.judges.optimizers import MemAlignOptimizer
from mlflow.genai.scorers import get_scorer

from benchmarks import data, plan
from benchmarks.remote import Measured, Remote

_EXPERIMENT = "benchmark"

_INSTRUCTIONS = f"{data.INSTRUCTIONS} The question: {{{{ inputs }}}} The reply: {{{{ outputs }}}}"

_EXPERT = AssessmentSource(source_type="HUMAN", source_id="ann")

_BATCH = 50
"""How many records it distils by one call."""


class Peer:
    """MemAlign as its documentation uses it."""

    def __init__(self, job: plan.Job) -> None:
        if not job.cache:
            dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
        self.remote = Remote(job.server)
        """The model server."""
        self.sizes = job.sizes
        """How much of everything."""
        self.experiment = mlflow.set_experiment(_EXPERIMENT)
        """Where its traces and its judge are kept."""
        self.judge = make_judge(
            name=data.NAME,
            instructions=_INSTRUCTIONS,
            model=f"openai:/{plan.MODEL}",
            feedback_value_type=bool,
        )
        """The judge before it learned anything."""
        self.optimizer = MemAlignOptimizer(
            reflection_lm=f"openai:/{plan.MODEL}", embedding_model=f"openai:/{plan.EMBEDDINGS}"
        )
        """What aligns it."""

    def traces(self, count: int, seed: int = 1) -> list[Trace]:
        """Store records as traces with an expert's assessment, and read them back.

        Args:
            count: How many.
            seed: Which records.

        Returns:
            The traces, as aligning takes them.
        """
        made = []
        for record in data.records(count, seed):
            with mlflow.start_span("support") as span:
                span.set_inputs({"question": record.question})
                span.set_outputs(record.answer)
            made.append((span.trace_id, record))
        mlflow.flush_trace_async_logging()
        for trace_id, record in made:
            mlflow.log_feedback(
                trace_id=trace_id,
                name=data.NAME,
                value=record.value,
                rationale=record.rationale,
                source=_EXPERT,
            )
        return [mlflow.get_trace(trace_id) for trace_id, _ in made]

    def align(self, judge: Any, traces: Sequence[Trace]) -> Any:
        """Align a judge, and make sure that it learned what the server taught.

        Args:
            judge: The judge.
            traces: The feedback.

        Returns:
            The aligned judge.

        Raises:
            RuntimeError: If the judge learned less.
        """
        before = len(getattr(judge, "_semantic_memory", []))
        aligned = judge.align(traces=list(traces), optimizer=self.optimizer)
        learned = len(aligned._semantic_memory) - before  # noqa: SLF001 - it has no public name
        full, rest = divmod(len(traces), _BATCH)
        taught = 5 * full + min(5, 2 * rest)
        if learned != taught:
            raise RuntimeError(f"The peer learned {learned} guidelines of {taught}.")
        return aligned


def session(job: plan.Job) -> dict[str, list[Measured]]:
    """Measure what one process of the peer does.

    Args:
        job: What is asked for.

    Returns:
        The measurements by what was measured.
    """
    peer, sizes = Peer(job), job.sizes
    measure = peer.remote.measure
    results: dict[str, list[Measured]] = {}
    if job.wants("align"):
        small = peer.traces(sizes.small, seed=3)
        results["align_small"] = [
            measure(lambda: peer.align(peer.judge, small)) for _ in range(sizes.repeats)
        ]
    traces = peer.traces(sizes.large)
    kept: list[Any] = []
    repeats = sizes.repeats if job.wants("align") else 1
    results["align_large"] = [
        measure(lambda: kept.append(peer.align(peer.judge, traces))) for _ in range(repeats)
    ]
    aligned = kept[-1]
    if job.wants("align"):
        with peer.remote.without_latency():
            results["align_zero"] = [
                measure(lambda: peer.align(peer.judge, traces)) for _ in range(sizes.repeats)
            ]
    cases = [_case(record) for record in data.records(sizes.concurrent + 50, seed=2)]
    if job.wants("judge", "concurrency"):
        results["judge"] = [
            measure(partial(_judge, aligned, case), prompts=True)
            for case in cases[: sizes.judgments + 2]
        ][2:]
    if job.wants("concurrency"):
        results["concurrent"] = [
            measure(lambda: _judge_all(aligned, cases[: sizes.concurrent], sizes.at_once))
            for _ in range(sizes.repeats)
        ]
    if job.wants("change"):
        fresh = peer.traces(sizes.repeats, seed=4)
        results["one_more"] = [measure(partial(peer.align, aligned, [one])) for one in fresh]
        results["remove_one"] = [
            measure(partial(aligned.unalign, traces=[one]))
            for one in traces[:: max(1, len(traces) // sizes.repeats)][: sizes.repeats]
        ]
    if job.wants("reopen"):
        aligned.register(experiment_id=peer.experiment.experiment_id)
    return results


def reopen(job: plan.Job) -> dict[str, list[Measured]]:
    """Measure loading the judge that a session registered, and its first judgment.

    Args:
        job: What is asked for.

    Returns:
        The measurement.
    """
    peer = Peer(job)
    case = _case(data.records(job.attempt + 1, seed=5)[-1])

    def work() -> None:
        judge = get_scorer(name=data.NAME, experiment_id=peer.experiment.experiment_id)
        _judge(judge, case)

    return {"reopen": [peer.remote.measure(work)]}


def _case(record: data.Record) -> dict[str, Any]:
    return {"inputs": {"question": record.question}, "outputs": record.answer}


def _judge(judge: Any, case: dict[str, Any]) -> None:
    answer = judge(**case)
    if answer.value is not True:
        raise RuntimeError(f"The peer's judge did not understand the answer: {answer}")


def _judge_all(judge: Any, cases: Sequence[dict[str, Any]], at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as executor:
        list(executor.map(lambda case: _judge(judge, case), cases))


def main() -> None:
    """Do one job."""
    job, path = plan.Job.from_arguments()
    os.chdir(job.folder)
    results = {"session": session, "reopen": reopen}[job.what](job)
    path.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
