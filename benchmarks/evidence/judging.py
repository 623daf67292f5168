"""The judge before and after it learned, on the same rows, with the evidence weighed and not.

A memory is given the training rows, each judged as if it were not in it; then the test rows are
judged. Nothing is distilled: small models do worse with the guidelines that they write themselves,
and evidence is what is measured here.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.store.memory import InMemoryStore

from benchmarks.agreement.ours import criterion_of, example_of, feedback_of
from benchmarks.agreement.rows import Row
from memalign_graph import Criterion, JudgeMemory, create_alignment_graph, create_judge_graph
from memalign_graph.errors import ModelAnswerError
from memalign_graph.local import LocalEmbeddings
from memalign_graph.scales import Boolean

_TEST_SEED = 0
"""Draws the test rows: the same for every seed, so that seeds differ in what was learned."""


@dataclass(frozen=True)
class Plan:
    """One criterion and seed."""

    data: Path
    """The folder of the labelled rows."""

    name: str
    """The criterion: a file of that folder, without its ending."""

    seed: int
    """Draws the training rows."""

    share: float
    """Which share of the training rows is learned."""

    test: int
    """How many test rows are judged."""

    k: int
    """How many similar cases the judge is shown, and the nearest vote among."""

    folder: Path
    """Where verdicts are kept."""

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Draw the rows.

        Returns:
            Those to learn, and those to judge.
        """
        with (self.data / f"{self.name}.jsonl").open(encoding="utf-8") as lines:
            every = [json.loads(line) for line in lines]
        train = [row for row in every if row["split"] == "train"]
        test = [row for row in every if row["split"] == "test"]
        random.Random(_TEST_SEED).shuffle(test)  # noqa: S311 - nothing secret
        random.Random(self.seed).shuffle(train)  # noqa: S311 - likewise
        return train[: int(len(train) * self.share)], test[: self.test]

    @property
    def path(self) -> Path:
        """The file of this plan's verdicts."""
        return self.folder / f"{self.name}-{self.seed}.json"

    def criterion(self) -> Criterion:
        """Return the criterion of its rows."""
        return criterion_of(self.rows()[1][0])


def judge(plan: Plan, model: BaseChatModel) -> None:
    """Judge the test rows, and keep every judgment.

    Args:
        plan: What to judge.
        model: The chat model.
    """
    train, test = plan.rows()
    criterion = plan.criterion()
    store, embeddings = InMemoryStore(), LocalEmbeddings()
    measured = isinstance(criterion.scale, Boolean)
    shared: dict[str, Any] = {
        "model": model,
        "embeddings": embeddings,
        "k": plan.k,
        "confidence": measured,
    }
    learn = create_alignment_graph(
        criterion, **shared, judge_cases=True, distill=False, use_guidelines=False
    ).compile(store=store)
    learned = learn.invoke({"feedback": [feedback_of(row) for row in train]})
    options = {"use_guidelines": False, **shared}
    base = create_judge_graph(criterion, **options, use_episodes=False).compile(
        store=InMemoryStore()
    )
    weighing = create_judge_graph(criterion, **options, decide="evidence").compile(store=store)
    memory = JudgeMemory(store, criterion, embeddings=embeddings)
    judged = []
    for row in test:
        example = example_of(row)
        near = memory.recall(example, plan.k)
        judged.append(
            {
                "id": row["id"],
                "label": row["label"],
                "base": _judged(base, example),
                "evidence": _judged(weighing, example),
                "nearest": [one.to_json() for one in near],
            }
        )
    kept = {
        "train": [row["label"] for row in train],
        "report": learned["report"],
        "trust": _trust(memory),
        "test": judged,
    }
    plan.folder.mkdir(parents=True, exist_ok=True)
    plan.path.write_text(json.dumps(kept, ensure_ascii=False, indent=1), encoding="utf-8")


def _judged(graph: Any, example: dict[str, Any]) -> Any:
    """Judge a row; None if the model gives no answer that can be used, also when asked again."""
    try:
        return graph.invoke(example)["judgment"]
    except ModelAnswerError:
        return None


def _trust(memory: JudgeMemory) -> Any:
    return memory.trust(decide="evidence").model_dump(mode="json")
