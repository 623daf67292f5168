"""What deciding by evidence adds to a judgment: `python -m benchmarks.evidence_overhead`.

A memory of 1,000 judged cases, with made-up vectors of 512 dimensions. Timed is all that comes
after the judge's verdict: bringing the evidence up to date, fitting it, calibrating it and deciding
on the new case. After a change of the memory all of it is done anew; without one only the last.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from langgraph.store.memory import InMemoryStore
from numpy.typing import NDArray

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    Feedback,
    JudgeMemory,
    Judgment,
    Numeric,
)
from memalign_graph.evidence.deciding import Said
from memalign_graph.evidence.past import decide_case
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.embedding import embed
from memalign_graph.scales import Scale, Value

_CLUSTERS = 20
_MS = 1_000
_WARM_UP = 3


@dataclass(frozen=True)
class Kind:
    """A scale, and what its judge tells."""

    name: str
    """What the table calls it."""

    scale: Scale
    """The scale."""

    value: Callable[[random.Random, int], Value]
    """Draws an expert's value for a case of some cluster."""

    measured: bool = False
    """Whether the judge tells how likely it holds each value."""


KINDS = (
    Kind("Boolean, with probabilities", Boolean(), lambda rng, at: rng.random() < at % 2, True),
    Kind("5 choices", Categorical(choices=tuple("abcde")), lambda _, at: "abcde"[at % 5]),
    Kind(
        "Numeric, 0 to 10",
        Numeric(minimum=0, maximum=10),
        lambda rng, at: min(max(rng.gauss(at % 10, 1.5), 0.0), 10.0),
    ),
)


class Memory:
    """A memory of judged cases that is changed and asked."""

    def __init__(self, kind: Kind, episodes: int, dimension: int) -> None:
        """Fill a memory.

        Args:
            kind: The scale.
            episodes: How many cases it holds.
            dimension: How long a vector is.
        """
        self._kind = kind
        self._rng = random.Random(0)  # noqa: S311 - nothing secret
        self._dimension = dimension
        self._centres = np.random.default_rng(0).normal(size=(_CLUSTERS, dimension))
        self._next = 0
        criterion = Criterion(name="overhead", instructions="How good?", scale=kind.scale)
        self.memory = JudgeMemory(InMemoryStore(), criterion, embeddings=self._embed)
        self._ids = [one.id for one in self.memory.remember(self.words(episodes))]

    def words(self, count: int) -> list[Feedback]:
        """Return experts' words on new cases.

        Args:
            count: On how many.

        Returns:
            The words.
        """
        self._next += count
        return [self._word(number) for number in range(self._next - count, self._next)]

    def change(self) -> None:
        """Let an expert speak of a new case, revise a word, or take one back."""
        kind = self._rng.choice(("remember", "revise", "forget"))
        if kind == "remember":
            self._ids += [one.id for one in self.memory.remember(self.words(1))]
            return
        at = self._rng.randrange(len(self._ids))
        if kind == "forget":
            self.memory.forget(self._ids.pop(at))
            return
        value = self._kind.value(self._rng, self._rng.randrange(_CLUSTERS))
        self.memory.revise(self._ids[at], {"value": value})

    def seconds(self) -> float:
        """Return how long deciding on a new case takes, after its verdict.

        Returns:
            The time in seconds.
        """
        [word] = self.words(1)
        access = self.memory.access
        run(access.refresh(BLOCKING))  # as was done when similar cases were looked for
        [vector] = run(embed(BLOCKING, access, {"new": str(word.example.inputs)})).values()
        judgment = word.judgment
        assert judgment is not None  # noqa: S101 - for the type checker
        said = Said(judgment.value, judgment.probabilities, "logprobs")
        began = time.perf_counter()
        decision = run(decide_case(BLOCKING, access, said, "evidence", vector=vector))
        took = time.perf_counter() - began
        assert decision.evidence is not None  # noqa: S101 - as was asked for
        return took

    def _word(self, number: int) -> Feedback:
        truth = self._kind.value(self._rng, number % _CLUSTERS)
        other = self._kind.value(self._rng, self._rng.randrange(_CLUSTERS))
        verdict = truth if self._rng.random() < 0.7 else other  # noqa: PLR2004 - a fair judge
        sure = self._rng.uniform(0.5, 1)
        odds = {"true": sure if verdict else 1 - sure, "false": 1 - sure if verdict else sure}
        judgment = Judgment(
            criterion="overhead",
            example_id="",
            value=verdict,
            rationale="So it is.",
            memory_version="",
            probabilities=odds if self._kind.measured else None,
        )
        return Feedback.model_validate(
            {
                "inputs": f"Case {number}",
                "outputs": "An answer.",
                "value": truth,
                "judgment": judgment,
            }
        )

    def _embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._vector(text).tolist() for text in texts]

    def _vector(self, text: str) -> NDArray[np.float64]:
        number = int(text.split("\n", maxsplit=1)[0].removeprefix("Case "))
        drawn = np.random.default_rng(number).normal(size=self._dimension)
        vector: NDArray[np.float64] = self._centres[number % _CLUSTERS] + drawn
        return vector


def measure(kind: Kind, episodes: int, dimension: int, times: int) -> dict[str, list[float]]:
    """Time judgments after a change of the memory, and without one.

    Args:
        kind: The scale.
        episodes: How many cases memory holds.
        dimension: How long a vector is.
        times: How many judgments of each sort.

    Returns:
        The times in seconds: `first`, `changed` and `unchanged`.
    """
    memory = Memory(kind, episodes, dimension)
    times_by: dict[str, list[float]] = {"first": [memory.seconds()], "changed": [], "unchanged": []}
    for at in range(times + _WARM_UP):
        memory.change()
        changed, unchanged = memory.seconds(), memory.seconds()
        if at >= _WARM_UP:
            times_by["changed"].append(changed)
            times_by["unchanged"].append(unchanged)
    return times_by


def as_table(found: dict[str, dict[str, list[float]]]) -> str:
    """Write the times as a table.

    Args:
        found: The times in seconds by kind.

    Returns:
        Markdown.
    """
    lines = [
        "| scale | after a change: median | p95 | without: median | p95 | the first |",
        "|---|---|---|---|---|---|",
    ]
    for name, times in found.items():
        numbers: list[Any] = []
        for sort in ("changed", "unchanged"):
            numbers += [np.median(times[sort]), np.quantile(times[sort], 0.95)]
        cells = " | ".join(f"{_MS * one:.2f} ms" for one in [*numbers, times["first"][0]])
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table and how busy the machine was."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence_overhead", description=main.__doc__
    )
    parser.add_argument("--episodes", type=int, default=1_000, help="judged cases in memory")
    parser.add_argument("--dimension", type=int, default=512, help="of the vectors")
    parser.add_argument("--times", type=int, default=100, help="judgments of each sort")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    found = {
        kind.name: measure(kind, options.episodes, options.dimension, options.times)
        for kind in KINDS
    }
    sys.stdout.write(
        f"{options.episodes:,} judged cases, {options.dimension} dimensions, {options.times} "
        f"judgments of each sort; load {before:.1f} before and {os.getloadavg()[0]:.1f} after, on "
        f"{os.cpu_count()} cores.\n\n{as_table(found)}\n"
    )


if __name__ == "__main__":
    main()
