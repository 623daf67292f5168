"""This package's part: the base judge, and the judge that learned, each on all test rows."""

import sys
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.agreement.rows import Row, Task, Verdicts
from memalign_graph import Boolean, Categorical, Criterion, Example, Numeric, Pairwise
from memalign_graph.evaluation import evaluate
from memalign_graph.evaluation.results import ALIGNED, BASE
from memalign_graph.local import LocalEmbeddings
from memalign_graph.scales import Scale

_AUTHOR = "expert"


def criterion_of(row: Row) -> Criterion:
    """Return the criterion that a row belongs to.

    Args:
        row: Any row of its file.

    Returns:
        The criterion.
    """
    # A dot separates the labels of a namespace.
    name = row["criterion"].replace(".", "_")
    return Criterion(name=name, instructions=row["instructions"], scale=_scale(row))


def example_of(row: Row) -> dict[str, Any]:
    """Return what a judge is shown of a row.

    Args:
        row: The row.

    Returns:
        `inputs`, `outputs` and `reference_outputs`.
    """
    return {name: row[name] for name in ("inputs", "outputs", "reference_outputs")}


def feedback_of(row: Row) -> dict[str, Any]:
    """Return a training row as feedback.

    Args:
        row: The row.

    Returns:
        The fields of `Feedback`.
    """
    said = {"value": row["label"], "rationale": row["feedback"], "author": _AUTHOR}
    return {**example_of(row), **said}


def run(task: Task) -> None:
    """Evaluate the judge on the test rows, before and after it learned from the training rows.

    Args:
        task: What to do; what models answered before is not asked again.
    """
    test = task.rows("test")
    criterion = criterion_of(test[0])
    folder = Path(task.folder) / task.name
    report = evaluate(
        criterion,
        [feedback_of(row) for row in task.rows("train")],
        test=[feedback_of(row) for row in test],
        credit_cases=task.credit,
        cache=folder / "answers.db",
        progress=False,
        max_concurrency=1,
        seed=task.seed,
        model=ChatOpenAI(
            model=task.model,
            base_url=task.server,
            api_key=SecretStr("none"),
            temperature=0,
            max_completion_tokens=512,
            timeout=1800,
            profile={"max_input_tokens": task.window},
        ),
        embeddings=LocalEmbeddings(),
        k=task.k,
    )
    report.save(folder / "report.json")
    cases = {case.example.id: case for case in report.cases}
    for side, judge in (("base", BASE), ("ours", ALIGNED)):
        verdicts = Verdicts(task, side)
        verdicts.clear()
        for row in test:
            case = cases[Example(**example_of(row)).id]
            judgment = case.judgments.get(judge)
            if judgment is None:
                verdicts.add(row, error=case.failures[judge])
            else:
                verdicts.add(row, value=judgment.value, rationale=judgment.rationale)


def _scale(row: Row) -> Scale:
    match row["scale"]:
        case "bool":
            return Boolean()
        case "categorical":
            return Categorical(choices=row["choices"])
        case "pairwise":
            return Pairwise(allow_tie=False)
        case "numeric":
            low, high = row["range"]
            return Numeric(minimum=low, maximum=high, integer=high - low > 1)
        case unknown:
            raise ValueError(f"scale: {unknown!r} is not known.")


if __name__ == "__main__":
    run(Task.from_text(sys.argv[1]))
