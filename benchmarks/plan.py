"""What a run measures and at which sizes: known to both sides, so only the standard library."""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

GROUPS = (
    "align",
    "judge",
    "panel",
    "concurrency",
    "change",
    "reopen",
    "scale",
    "import",
    "install",
)
"""The groups of rows, in the order they are measured."""

MODEL = "gpt-4o-mini"
"""The chat model's name, on both sides: both know that its window has 128,000 tokens."""

EMBEDDINGS = "text-embedding-3-small"
"""The embedding model's name, on both sides."""

DIMENSIONS = 512
"""The vectors' length, on both sides: the peer's default."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    small: int = 50
    """Records of the small alignment: one batch of the peer."""

    large: int = 1_000
    """Records of the large alignment, and of the memory that the other rows work on."""

    judgments: int = 30
    """Judgments whose overhead is measured, after two that are not."""

    concurrent: int = 200
    """Judgments of the concurrency row."""

    at_once: int = 64
    """How many of them are under way at a time."""

    scale: int = 100_000
    """Episodes of the scale row."""

    criteria: int = 9
    """Criteria of the panel."""

    repeats: int = 3
    """How often whatever is timed once is timed."""

    def quick(self) -> "Sizes":
        """Return sizes that show only that everything runs."""
        return replace(
            self,
            small=10,
            large=120,
            judgments=5,
            concurrent=24,
            at_once=8,
            scale=3_000,
            repeats=1,
        )


@dataclass(frozen=True)
class Job:
    """One run of one side in a process of its own."""

    module: str
    """Which part it is: `ours`, `peer` or `scale`."""

    what: str
    """`session`, `reopen` or `scale`."""

    server: str
    """The model server's base URL."""

    folder: Path
    """Where the side keeps its memory from one process to the next."""

    groups: tuple[str, ...]
    """The groups of rows asked for."""

    sizes: Sizes
    """How much of everything."""

    attempt: int = 0
    """How often the same was done before: a case that comes again may be known."""

    cache: bool = False
    """Whether the peer's client may keep what it was answered."""

    def to_text(self) -> str:
        """Write the job as one argument of a command."""
        return json.dumps(asdict(self) | {"folder": str(self.folder)})

    @classmethod
    def from_arguments(cls) -> tuple["Job", Path]:
        """Read the job, and where its results go, from the command line.

        Returns:
            The job, and the file to write.
        """
        parser = argparse.ArgumentParser(description="One side's part of the benchmark.")
        parser.add_argument("job", help="the job, as JSON")
        parser.add_argument("results", type=Path, help="the file to write")
        options = parser.parse_args()
        fields: dict[str, Any] = json.loads(options.job)
        fields["folder"] = Path(fields["folder"])
        fields["groups"] = tuple(fields["groups"])
        fields["sizes"] = Sizes(**fields["sizes"])
        return cls(**fields), options.results

    def wants(self, *groups: str) -> bool:
        """Tell whether one of some groups of rows is asked for."""
        return any(group in self.groups for group in groups)
