"""The labelled rows, and what is kept of a judge's verdicts on them.

Only the standard library, since the peer's runs import this from another environment.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""One labelled case: `id`, `split`, `criterion`, `instructions`, `scale`, `choices`, `range`,
`inputs`, `outputs`, `reference_outputs`, `label` and `feedback`."""


@dataclass(frozen=True)
class Task:
    """One criterion to be compared on, as a side's process is given it."""

    data: str
    """The folder of the labelled rows."""

    name: str
    """The criterion: a file of that folder, without its ending."""

    train: int
    """How many training rows are learned from at most."""

    test: int
    """How many test rows are judged at most."""

    seed: int
    """Chooses the rows."""

    k: int
    """How many similar cases a judge is shown."""

    folder: str
    """Where verdicts and memories are kept."""

    server: str
    """The OpenAI-compatible server of chat model and embeddings."""

    model: str
    """The chat model's name there."""

    window: int
    """The chat model's context window, in tokens."""

    credit: int
    """On how many training rows our report leaves each guideline out."""

    def to_text(self) -> str:
        """Return the task as text for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Task":
        """Read a task.

        Args:
            text: What `to_text` made.

        Returns:
            The task.
        """
        return cls(**json.loads(text))

    def keep(self) -> None:
        """Write down what was done, beside the verdicts."""
        folder = Path(self.folder) / self.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "task.json").write_text(self.to_text(), encoding="utf-8")

    @classmethod
    def kept(cls, path: Path, data: Path) -> "Task":
        """Read what was done.

        Args:
            path: The file that `keep` wrote.
            data: Where the labelled rows are now.

        Returns:
            The task, with its verdicts where the file is.
        """
        task = cls.from_text(path.read_text(encoding="utf-8"))
        return replace(task, data=str(data.absolute()), folder=str(path.parents[1].absolute()))

    def rows(self, split: str) -> list[Row]:
        """Choose rows, the same in every process and for every side.

        Args:
            split: `train` or `test`.

        Returns:
            The rows, in the order they were drawn.
        """
        with (Path(self.data) / f"{self.name}.jsonl").open(encoding="utf-8") as lines:
            every = [row for row in map(json.loads, lines) if row["split"] == split]
        random.Random(self.seed).shuffle(every)  # noqa: S311 - nothing secret
        return every[: self.train if split == "train" else self.test]


class Verdicts:
    """The verdicts of one side on one criterion, a line each, kept as they come."""

    def __init__(self, task: Task, side: str) -> None:
        folder = Path(task.folder) / task.name
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{side}.jsonl"
        """The file."""

    def known(self) -> dict[str, Mapping[str, Any]]:
        """Return the verdicts that are there already, by row id."""
        return {one["id"]: one for one in self}

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        if self.path.exists():
            yield from map(json.loads, self.path.read_text(encoding="utf-8").splitlines())

    def clear(self) -> None:
        """Begin anew."""
        self.path.unlink(missing_ok=True)

    def add(self, row: Row, **verdict: Any) -> None:
        """Keep a verdict.

        Args:
            row: The row it is on.
            verdict: `value`, or `error` where there is none, and what else is worth keeping.
        """
        line = json.dumps({"id": row["id"], "label": row["label"], **verdict}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
