"""The peer's side: MLflow's MemAlign, in its own environment, by its public interface.

Nothing of this project's package is imported here.
"""

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import dspy
import mlflow
from mlflow.entities import AssessmentSource, Trace
from mlflow.genai.judges import make_judge
from mlflow.genai.judges.optimizers import MemAlignOptimizer
from mlflow.genai.scorers import get_scorer

from benchmarks import plan
from benchmarks.plan import Job, Results

_EXPERT = AssessmentSource(source_type="HUMAN", source_id="ann")
_FIELDS = "The inputs: {{ inputs }}\nThe outputs: {{ outputs }}"
_REFERENCE = "reference"
_BATCH = 50  # records that it distils by one call


class Peer:
    """MemAlign as its documentation uses it."""

    def __init__(
        self, name: str, instructions: str, model: str, k: int = 5, **options: Any
    ) -> None:
        model, embeddings = f"openai:/{model}", f"openai:/{plan.EMBEDDINGS}"
        self.experiment = mlflow.set_experiment("benchmark")
        self.empty = make_judge(name=name, instructions=instructions, model=model, **options)
        self.aligned = self.empty
        self.optimizer = MemAlignOptimizer(
            reflection_lm=model, embedding_model=embeddings, retrieval_k=k
        )

    @classmethod
    def of(cls, job: Job) -> "Peer":
        """Return the peer of the speed program."""
        if not job.cache:
            dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
        instructions = f"{plan.INSTRUCTIONS} {_FIELDS}"
        return cls(plan.NAME, instructions, plan.MODEL, feedback_value_type=bool)

    def to_feedback(self, records: Sequence[plan.Record]) -> list[Any]:
        return self.store(
            [{**it, "label": it["value"], "feedback": it["rationale"]} for it in records]
        )

    def store(self, rows: Sequence[dict[str, Any]]) -> list[Trace]:
        """Store rows as traces with an expert's assessment, and read them back."""
        ids = []
        for row in rows:
            with mlflow.start_span("case") as span:
                span.set_inputs(row["inputs"])
                span.set_outputs(row["outputs"])
            ids.append(span.trace_id)
        mlflow.flush_trace_async_logging()
        for trace_id, row in zip(ids, rows, strict=True):
            fields = {"name": self.empty.name, "value": row["label"], "rationale": row["feedback"]}
            mlflow.log_feedback(trace_id=trace_id, source=_EXPERT, **fields)
            if row.get("reference_outputs") is not None:
                expected = {"name": _REFERENCE, "value": row["reference_outputs"]}
                mlflow.log_expectation(trace_id=trace_id, source=_EXPERT, **expected)
        return list(map(mlflow.get_trace, ids))

    def reset(self) -> None:
        self.aligned = self.empty

    def align(self, feedback: list[Any]) -> None:
        """Align the judge, and check that it learned what the benchmark's server taught."""
        before = len(getattr(self.aligned, "_semantic_memory", []))
        self.aligned = self.aligned.align(traces=feedback, optimizer=self.optimizer)
        learned = len(self.aligned._semantic_memory) - before  # noqa: SLF001 - it has no public name
        full, rest = divmod(len(feedback), _BATCH)
        if self.empty.name == plan.NAME and learned != (taught := 5 * full + min(5, 2 * rest)):
            raise RuntimeError(f"The peer learned {learned} guidelines of {taught}.")

    def remove(self, trace: Any) -> None:
        self.aligned.unalign(traces=[trace])

    def judge(self, case: dict[str, Any]) -> None:
        """Judge a case, and check that the answer was understood."""
        answer = self.aligned(**case)
        if answer.value is not True:
            raise RuntimeError(f"The peer's judge did not understand the answer: {answer}")

    def judge_all(self, cases: list[dict[str, Any]], at_once: int) -> None:
        with ThreadPoolExecutor(at_once) as executor:
            list(executor.map(self.judge, cases))

    def persist(self) -> None:
        self.aligned.register(experiment_id=self.experiment.experiment_id)


def reopen(job: Job) -> Results:
    """Measure loading the judge that a session registered, and its first judgment."""
    peer, unseen = Peer.of(job), plan.cases(job.attempt + 1, seed=5)[-1]

    def work() -> None:
        peer.aligned = get_scorer(name=plan.NAME, experiment_id=peer.experiment.experiment_id)
        peer.judge(unseen)

    return {"reopen": [plan.ServerControl(job.server).measure(work)]}


def judge_rows(task: dict[str, Any], results: Path) -> None:
    """Learn from labelled rows, judge others, and write a line for each; see `agreement`."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    first, has_reference = task["test"][0], task["test"][0]["reference_outputs"] is not None
    low, high = first["range"] or (0, 0)
    kinds = {"bool": bool, "numeric": int if high - low > 1 else float}
    more = ["The reference: {{ expectations }}"] if has_reference else []
    peer = Peer(
        first["criterion"].replace(".", "_"),
        "\n".join([first["instructions"], _FIELDS, *more]),
        task["model"],
        feedback_value_type=kinds.get(first["scale"]) or Literal[tuple(first["choices"] or ())],
        inference_params={"temperature": 0, "max_tokens": 512},
        k=task["k"],
    )
    if task["train"]:
        peer.align(peer.store(task["train"]))
    learned = [rule.guideline_text for rule in getattr(peer.aligned, "_semantic_memory", [])]
    for row in task["test"]:
        expected = {_REFERENCE: row["reference_outputs"]}
        case = {name: row[name] for name in ("inputs", "outputs")}
        start = time.perf_counter()
        try:
            answer = peer.aligned(**case, **({"expectations": expected} if has_reference else {}))
            verdict = {"value": answer.value, "rationale": answer.rationale}
        except mlflow.MlflowException as error:
            verdict = {"value": None, "rationale": str(error)}
        measured = {"seconds": time.perf_counter() - start, "learned": learned}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": row["id"], **verdict, **measured}) + "\n")


if __name__ == "__main__":
    if sys.argv[1].endswith(".json"):
        judge_rows(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
    else:
        plan.run_job(session=lambda job: plan.session(Peer.of(job), job), reopen=reopen)
