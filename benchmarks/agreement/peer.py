"""The peer's part: MLflow's MemAlign, in its own environment and by its public interface.

Nothing of this project's package is imported here, and nothing that its environment lacks.
"""

import sys
import time
from pathlib import Path
from typing import Any, Literal

import dspy
import mlflow
from mlflow.entities import AssessmentSource, Trace
from mlflow.genai.judges import make_judge
from mlflow.genai.judges.optimizers import MemAlignOptimizer

from benchmarks.agreement.rows import Row, Task, Verdicts

_EXPERT = AssessmentSource(source_type="HUMAN", source_id="expert")

_REFERENCE = "reference"


def run(task: Task) -> None:
    """Learn from the training rows, and judge the test rows.

    Args:
        task: What to do; verdicts that are there already are not made again.
    """
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    mlflow.set_experiment("agreement")
    test = task.rows("test")
    verdicts = Verdicts(task, "peer")
    known = verdicts.known()
    if all(row["id"] in known for row in test):
        return
    judge = make_judge(
        name=test[0]["criterion"].replace(".", "_"),
        instructions=_instructions(test[0]),
        model=f"openai:/{task.model}",
        feedback_value_type=_value_type(test[0]),
        inference_params={"temperature": 0, "max_tokens": 512},
    )
    optimizer = MemAlignOptimizer(
        reflection_lm=f"openai:/{task.model}",
        embedding_model="openai:/text-embedding-3-small",
        retrieval_k=task.k,
    )
    aligned = judge.align(traces=_traces(task, judge.name), optimizer=optimizer)
    learned = [one.guideline_text for one in aligned._semantic_memory]  # noqa: SLF001 - it has no public name
    path = Path(task.folder) / task.name / "peer-guidelines.txt"
    path.write_text("\n".join(learned))
    for row in test:
        if row["id"] in known:
            continue
        began = time.perf_counter()
        try:
            answer = aligned(**_case(row))
            said: dict[str, Any] = {"value": answer.value, "rationale": answer.rationale}
            if answer.error is not None:
                said = {"error": str(answer.error)}
        except mlflow.MlflowException as error:
            said = {"error": str(error)}
        verdicts.add(row, **said, seconds=round(time.perf_counter() - began, 2))


def _traces(task: Task, name: str) -> list[Trace]:
    """Store training rows as traces with the expert's assessment, and read them back."""
    made = []
    for row in task.rows("train"):
        with mlflow.start_span("case") as span:
            span.set_inputs(row["inputs"])
            span.set_outputs(row["outputs"])
        made.append((span.trace_id, row))
    mlflow.flush_trace_async_logging()
    for trace_id, row in made:
        mlflow.log_feedback(
            trace_id=trace_id,
            name=name,
            value=row["label"],
            rationale=row["feedback"],
            source=_EXPERT,
        )
        if row["reference_outputs"] is not None:
            mlflow.log_expectation(
                trace_id=trace_id, name=_REFERENCE, value=row["reference_outputs"], source=_EXPERT
            )
    return [mlflow.get_trace(trace_id) for trace_id, _ in made]


def _case(row: Row) -> dict[str, Any]:
    case = {"inputs": row["inputs"], "outputs": row["outputs"]}
    if row["reference_outputs"] is not None:
        case["expectations"] = {_REFERENCE: row["reference_outputs"]}
    return case


def _instructions(row: Row) -> str:
    parts = [row["instructions"], "The inputs: {{ inputs }}", "The outputs: {{ outputs }}"]
    if row["reference_outputs"] is not None:
        parts.append("The reference: {{ expectations }}")
    return "\n".join(parts)


def _value_type(row: Row) -> Any:
    match row["scale"]:
        case "bool":
            return bool
        case "numeric":
            low, high = row["range"]
            return int if high - low > 1 else float
        case _:
            return Literal[tuple(row["choices"])]


if __name__ == "__main__":
    run(Task.from_text(sys.argv[1]))
