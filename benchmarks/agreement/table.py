"""The comparison as a table: every judge on every criterion, with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langgraph.store.memory import InMemoryStore

from benchmarks.agreement.ours import criterion_of, example_of, feedback_of
from benchmarks.agreement.rows import Row, Task, Verdicts
from memalign_graph import Criterion, Example, JudgeMemory, Numeric
from memalign_graph.evaluation.dataset import KNN, MAJORITY, MEDIAN, baselines
from memalign_graph.evaluation.metrics import (
    Comparison,
    Estimate,
    JudgeScores,
    Prediction,
    score,
)
from memalign_graph.local import LocalEmbeddings
from memalign_graph.scales import Value

_JUDGES = ("constant", "nearest", "base", "ours", "peer")

_PAIRS = (("ours", "base"), ("ours", "peer"), ("peer", "base"), ("ours", "nearest"))


def as_markdown(tasks: Sequence[Task], command: str) -> str:
    """Write the table.

    Args:
        tasks: The criteria; those without verdicts are left out.
        command: What made it.

    Returns:
        Markdown: a table a criterion's headline metric, then all metrics.
    """
    lines = [
        "# Agreement with human experts",
        "",
        f"Made by `{command}`.",
        "",
        "With 95 % bootstrap intervals over the test rows; differences are paired, on the rows",
        "that both judged. `constant` is one value for all rows, `nearest` what the most similar",
        "training rows were given: neither asks a model.",
        "",
        "| criterion | rows learned, judged | metric | " + " | ".join(_JUDGES) + " | "
        "ours less base | ours less peer |",
        "|---" * (len(_JUDGES) + 5) + "|",
    ]
    found = [one for task in tasks if (one := _scored(task)) is not None]
    for task, criterion, scores, comparisons in found:
        names = ["mae", "ccc"] if isinstance(criterion.scale, Numeric) else ["agreement", "kappa"]
        by_name = {one.judge: one for one in scores}
        pairs = {(one.judge, one.against): one for one in comparisons}
        for name in names:
            cells = [
                task.name if name == names[0] else "",
                f"{len(task.rows('train'))}, {len(task.rows('test'))}" if name == names[0] else "",
                name,
                *(_cell(by_name, judge, name) for judge in _JUDGES),
                *(_difference(pairs, ("ours", other), name) for other in ("base", "peer")),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    failed = [
        f"- {task.name}: {one.judge} gave no verdict on {one.failed} rows"
        for task, _, scores, _ in found
        for one in scores
        if one.failed
    ]
    return "\n".join([*lines, "", *(failed or ["Every judge gave a verdict on every row."]), ""])


_Scored = tuple[Task, Criterion, list[JudgeScores], list[Comparison]]


def _scored(task: Task) -> _Scored | None:
    test = task.rows("test")
    said = {side: Verdicts(task, side).known() for side in ("base", "ours", "peer")}
    # A run that was cut off, or is still going on, has judged the first rows.
    there = [row for row in test if all(row["id"] in one for one in said.values() if one)]
    if not there or not said["ours"]:
        return None
    criterion = criterion_of(there[0])
    scale = criterion.scale
    expected = [scale.validate_value(row["label"]) for row in there]
    train = [scale.validate_value(row["label"]) for row in task.rows("train")]
    constant, nearest = _baselines(task, criterion, there, train)
    columns = {"constant": constant, "nearest": nearest}
    for side, known in said.items():
        if known:
            columns[side] = [_value(criterion, known, row) for row in there]
    said_by = {name: [Prediction(value=value) for value in columns[name]] for name in columns}
    pairs = [pair for pair in _PAIRS if set(pair) <= columns.keys()]
    scores, comparisons = score(
        scale, expected, [row["id"] for row in there], said_by, pairs=pairs, seed=task.seed
    )
    return task, criterion, scores, comparisons


def _baselines(
    task: Task, criterion: Criterion, rows: Sequence[Row], train: Sequence[Value]
) -> tuple[list[Value | None], list[Value | None]]:
    """Return the one value that fits most, and that of the most similar training rows."""
    memory = JudgeMemory(InMemoryStore(), criterion, embeddings=LocalEmbeddings())
    memory.remember([feedback_of(row) for row in task.rows("train")])
    predicted = [
        baselines(train, memory.recall(Example(**example_of(row)), task.k), criterion.scale)
        for row in rows
    ]
    constants = [row.get(MEDIAN, row[MAJORITY]) for row in predicted]
    return [*constants], [row[KNN] for row in predicted]


def _value(criterion: Criterion, known: Mapping[str, Mapping[str, Any]], row: Row) -> Value | None:
    value = known[row["id"]].get("value")
    if value is None:
        return None
    try:
        return criterion.scale.validate_value(value)
    except ValueError:
        return None


def _cell(scores: Mapping[str, JudgeScores], judge: str, name: str) -> str:
    if judge not in scores:
        return "not run"
    shown = _shown(scores[judge].metrics[name])
    return f"**{shown}**" if judge == "ours" else shown


def _difference(
    pairs: Mapping[tuple[str, str], Comparison], pair: tuple[str, str], name: str
) -> str:
    if pair not in pairs:
        return "not run"
    ahead = {True: " ahead", False: " behind", None: ""}[pairs[pair].is_ahead(name)]
    return _shown(pairs[pair].differences[name], sign="+") + ahead


def _shown(estimate: Estimate, sign: str = "") -> str:
    if estimate.value is None:
        return "undefined"
    text = f"{estimate.value:{sign}.3f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({estimate.low:{sign}.2f} to {estimate.high:{sign}.2f})"


def write(tasks: Sequence[Task], command: str, path: Path) -> str:
    """Write the table to a file.

    Args:
        tasks: The criteria.
        command: What made it.
        path: The file.

    Returns:
        What was written.
    """
    text = as_markdown(tasks, command)
    path.write_text(text, encoding="utf-8")
    return text
