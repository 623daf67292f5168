"""This package's part: the base judge, and the judge that learned, each on all test rows."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.store.base import BaseStore
from pydantic import SecretStr

from benchmarks.agreement.rows import Row, Task, Verdicts
from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    JudgeMemory,
    MemAlignError,
    Numeric,
    Pairwise,
    create_alignment_graph,
    create_judge_graph,
)
from memalign_graph.graphs.options import JudgeOptions
from memalign_graph.local import LocalEmbeddings, open_local_store
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
    """Judge the test rows without memory, learn from the training rows, and judge them again.

    Args:
        task: What to do; verdicts that are there already are not made again.
    """
    criterion = criterion_of(task.rows("test")[0])
    model = ChatOpenAI(
        model=task.model,
        base_url=task.server,
        api_key=SecretStr("none"),
        temperature=0,
        max_completion_tokens=512,
        timeout=1800,
        profile={"max_input_tokens": task.window},
    )
    options: JudgeOptions = {"model": model, "embeddings": LocalEmbeddings(), "k": task.k}
    base: JudgeOptions = {**options, "use_guidelines": False, "use_episodes": False}
    with open_local_store(Path(task.folder) / task.name / "memory.db") as store:
        _judge(task, "base", store, create_judge_graph(criterion, **base))
        if not JudgeMemory(store, criterion, embeddings=LocalEmbeddings()).guidelines():
            graph = create_alignment_graph(
                criterion, model=model, embeddings=LocalEmbeddings(), k=task.k
            ).compile(store=store)
            feedback = [feedback_of(row) for row in task.rows("train")]
            report = graph.invoke({"feedback": feedback})["report"]
            path = Path(task.folder) / task.name / "ours-alignment.json"
            path.write_text(json.dumps(report, indent=1, ensure_ascii=False))
        _judge(task, "ours", store, create_judge_graph(criterion, **options))


def _judge(task: Task, side: str, store: BaseStore, graph: Any) -> None:
    verdicts = Verdicts(task, side)
    known = verdicts.known()
    judge = graph.compile(store=store)
    for row in task.rows("test"):
        if row["id"] in known:
            continue
        began = time.perf_counter()
        try:
            judgment = judge.invoke(example_of(row))["judgment"]
        except MemAlignError as error:
            said = {"error": str(error)}
        else:
            said = {"value": judgment["value"], "rationale": judgment["rationale"]}
        verdicts.add(row, **said, seconds=round(time.perf_counter() - began, 2))


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
