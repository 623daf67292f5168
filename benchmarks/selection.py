"""Labels that selected cases save, beside random ones: `python -m benchmarks.selection --data DIR`.

No chat model is asked. An expert's labels are revealed as they are asked for, a few at a time, and
after each one the labelled cases foretell those held out: each gets the similarity-weighted vote of
its five nearest, on a scale of numbers their mean. Selected cases come from
`JudgeMemory.select_for_review`; other ways to choose, and random orders, are told the same.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.memory import InMemoryStore
from numpy.typing import NDArray

from benchmarks.agreement.ours import criterion_of, example_of
from memalign_graph import Boolean, Criterion, Example, JudgeMemory, Numeric
from memalign_graph.evidence import design
from memalign_graph.memory.index.retrieval_text import retrieval_text

Floats = NDArray[np.float64]

RANDOM = "random"
SELECTED = "selected"

_NEAREST = 5
_BACKLOG_SHARE = 0.6
_COUNTS = (3, 5, 10, 15, 20, 30, 40)
_SMALL = 1e-3

_HELPED = 0.9
"""Labels help where those at random bring the error below this share of what it is at first: where
the nearest cases tell nothing, it does not matter which they are."""


@dataclass(frozen=True)
class Rows:
    """The labelled rows of one criterion."""

    criterion: Criterion
    examples: list[Example]
    labels: list[Any]
    vectors: Floats
    """Normalised, a row an example."""
    truth: Floats
    """A row an example: 1 for its value and 0 for others; of numbers the share of the range."""

    def of(self, places: Sequence[int]) -> "Rows":
        """Return some of the rows."""
        return Rows(
            self.criterion,
            [self.examples[at] for at in places],
            [self.labels[at] for at in places],
            self.vectors[places],
            self.truth[places],
        )


Ask = Callable[[list[int], int], list[int]]
"""Chooses what to label next, given what is labelled and how many are wanted."""


class KnownVectors(Embeddings):
    """The embedded embeddings, each text once; kept in a folder where one is given."""

    def __init__(self, folder: Path | None) -> None:
        self._known: dict[str, list[float]] = {}
        self._file = None if folder is None else folder / "vectors.npz"
        if self._file is not None and self._file.exists():
            with np.load(self._file) as kept:
                texts = json.loads(str(kept["texts"]))
                self._known = dict(zip(texts, kept["vectors"].tolist(), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts."""
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        if new:
            from memalign_graph.local import LocalEmbeddings

            self._known.update(zip(new, LocalEmbeddings().embed_documents(new), strict=True))
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                np.savez(
                    self._file,
                    texts=json.dumps(list(self._known)),
                    vectors=np.array(list(self._known.values()), dtype=np.float32),
                )
        return [self._known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Embed one text."""
        return self.embed_documents([text])[0]


def read(paths: Sequence[Path], split: str, embeddings: Embeddings) -> Rows:
    """Read the rows of a criterion, or of several with one scale as if they were one.

    Args:
        paths: The files.
        split: Which rows: `train` or `test`.
        embeddings: Embeds them.

    Returns:
        The rows; those that are the same case count once, as they do in a backlog.
    """
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in map(json.loads, lines) if row["split"] == split]
    criterion = criterion_of(rows[0])
    scale = criterion.scale
    if any(criterion_of(row).scale != scale for row in rows):
        raise SystemExit(f"--sets: {', '.join(path.stem for path in paths)} differ in their scales")
    cases = {
        example.id: (example, scale.validate_value(row["label"]))
        for row in rows
        if (example := Example.model_validate(example_of(row)))
    }.values()
    examples, labels = [one for one, _ in cases], [label for _, label in cases]
    texts = [retrieval_text(example)[0] for example in examples]
    vectors = np.array(embeddings.embed_documents(texts))
    if isinstance(scale, Numeric):
        numbers = np.array(labels, dtype=float)[:, None]
        truth = (numbers - scale.minimum) / (scale.maximum - scale.minimum)
    else:
        choices = (True, False) if isinstance(scale, Boolean) else scale.choices
        truth = np.array([[float(label == one) for one in choices] for label in labels])
    normalised = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return Rows(criterion, examples, labels, normalised, truth)


def by_memory(backlog: Rows, embeddings: Embeddings) -> Ask:
    """Return what `select_for_review` chooses, of a memory that was told each label."""
    memory = JudgeMemory(InMemoryStore(), backlog.criterion, embeddings=embeddings)
    place = {example.id: at for at, example in enumerate(backlog.examples)}
    told: set[int] = set()

    def ask(labelled: list[int], n: int) -> list[int]:
        new = [at for at in labelled if at not in told]
        told.update(new)
        if new:
            memory.remember(
                [{"example": backlog.examples[at], "value": backlog.labels[at]} for at in new]
            )
        return [place[one.example.id] for one in memory.select_for_review(backlog.examples, n)]

    return ask


def by_coverage(backlog: Rows) -> Ask:
    """Return what lies nearest to all cases (Nemhauser et al., 1978, facility location)."""
    similar = backlog.vectors @ backlog.vectors.T

    def ask(labelled: list[int], n: int) -> list[int]:
        asked = list(labelled)
        for _ in range(n):
            covered = similar[:, asked].max(axis=1) if asked else np.zeros(len(similar))
            gains = np.maximum(similar - covered[:, None], 0).sum(axis=0).round(6)
            gains[asked] = -1
            asked.append(int(gains.argmax()))
        return asked[len(labelled) :]

    return ask


def by_distance(backlog: Rows) -> Ask:
    """Return what is farthest from all that is labelled (Sener and Savarese, 2018, k-center)."""
    similar = backlog.vectors @ backlog.vectors.T

    def ask(labelled: list[int], n: int) -> list[int]:
        asked = list(labelled) or [int(similar.sum(axis=0).argmax())]
        while len(asked) < len(labelled) + n:
            nearest = similar[:, asked].max(axis=1)
            nearest[asked] = np.inf
            asked.append(int(nearest.argmin()))
        return asked[len(labelled) :]

    return ask


def by_doubt(backlog: Rows) -> Ask:
    """Return what the nearest labelled cases differ about most, whatever it is like."""
    cover = by_coverage(backlog)

    def ask(labelled: list[int], n: int) -> list[int]:
        if not labelled:
            return cover(labelled, n)
        vectors = backlog.vectors.astype(np.float32)
        near, rows = design.nearest_known(vectors, vectors[labelled], _NEAREST)
        said = backlog.truth[labelled][rows]
        if isinstance(backlog.criterion.scale, Numeric):
            doubts = design.number_doubts(near, said[:, :, 0], said[:, :, 0] ** 2)
        else:
            doubts = design.share_doubts(near, said)
        doubts[labelled] = -1
        return [int(at) for at in np.argsort(-doubts, kind="stable")[:n]]

    return ask


def errors(order: Sequence[int], backlog: Rows, held_out: Rows) -> list[float]:
    """Measure how far the vote is off the held-out labels, after each label.

    Args:
        order: The cases in the order in which they are labelled.
        backlog: Where they come from.
        held_out: What is foretold.

    Returns:
        The share of wrong values, of which a tie is a part; of numbers the mean distance, as a
        share of the range.
    """
    similar = held_out.vectors @ backlog.vectors[list(order)].T
    said = backlog.truth[list(order)]
    found = []
    for count in range(1, len(order) + 1):
        near = np.argsort(-similar[:, :count], axis=1, kind="stable")[:, :_NEAREST]
        weights = np.maximum(np.take_along_axis(similar, near, axis=1), _SMALL)
        votes = np.einsum("ij,ijk->ik", weights, said[near])
        votes /= weights.sum(axis=1, keepdims=True)
        if isinstance(backlog.criterion.scale, Numeric):
            found.append(float(np.abs(votes - held_out.truth).mean()))
        else:
            first = votes >= votes.max(axis=1, keepdims=True) - 1e-9
            right = (first * held_out.truth).sum(axis=1) / first.sum(axis=1)
            found.append(float(1 - right.mean()))
    return found


def measure(rows: Rows, options: argparse.Namespace, embeddings: Embeddings) -> dict[str, Floats]:
    """Label the backlog in each way, in several splits.

    Args:
        rows: All rows.
        options: How many labels, seeds, and labels at a time.
        embeddings: What embedded them.

    Returns:
        By way: the mean error after each label.
    """
    found: dict[str, list[list[float]]] = {}
    for seed in range(options.seeds):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(rows.examples)).tolist()
        size = int(_BACKLOG_SHARE * len(order))
        backlog, held_out = rows.of(order[:size]), rows.of(order[size:])
        labels = min(options.labels, size)
        ways = {
            SELECTED: by_memory(backlog, embeddings),
            "coverage": by_coverage(backlog),
            "farthest first": by_distance(backlog),
            "doubt alone": by_doubt(backlog),
        }
        for way, ask in ways.items():
            asked: list[int] = []
            while len(asked) < labels:
                asked += ask(asked, min(options.step, labels - len(asked)))
            found.setdefault(way, []).append(errors(asked, backlog, held_out))
        by_chance = [
            errors(rng.permutation(size)[:labels].tolist(), backlog, held_out)
            for _ in range(options.orders)
        ]
        found.setdefault(RANDOM, []).append(np.mean(by_chance, axis=0).tolist())
    return {way: np.mean(curves, axis=0) for way, curves in found.items()}


def labels_needed(curve: Floats, target: float) -> int | None:
    """Return from how many labels on an error is no higher than a target.

    Args:
        curve: The error after each label.
        target: The target.

    Returns:
        The number; None if it is higher after the last label.
    """
    above = np.flatnonzero(curve > target + 1e-9)
    first = int(above[-1]) + 2 if len(above) else 1
    return first if first <= len(curve) else None


def table(found: Mapping[str, Mapping[str, Floats]], counts: Sequence[int]) -> str:
    """Write what was measured as Markdown.

    Args:
        found: By criterion and way: the error after each label.
        counts: After how many labels errors are shown.

    Returns:
        A table by criterion, and one by way.
    """
    head = ["criterion", *(f"{count} labels" for count in counts), "labels for the same"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name, curves in found.items():
        chance, selected = curves[RANDOM], curves[SELECTED]
        shown = [count for count in counts if count <= len(chance)]
        cells = [f"{chance[at - 1]:.3f} → {selected[at - 1]:.3f}" for at in shown]
        cells += [""] * (len(counts) - len(shown))
        needed = labels_needed(selected, float(chance[-1]))
        same = f"{len(chance)} → {needed or f'more than {len(chance)}'}"
        lines.append(_line([name, *cells, same]))
    every = list(found.values())
    helped = [one for one in every if one[RANDOM][-1] < _HELPED * one[RANDOM][counts[0] - 1]]
    lines += ["", *_ways("every criterion", every, counts)]
    if helped:
        lines += ["", *_ways("where labels at random help", helped, counts)]
    return "\n".join(lines)


def _ways(name: str, found: Sequence[Mapping[str, Floats]], counts: Sequence[int]) -> Iterable[str]:
    columns = [f"{count} labels" for count in counts]
    head = [f"error beside random, {name}", *columns, "mean", "lower on", "median labels"]
    yield _line(head)
    yield _line(["---"] * len(head))
    for way in found[0]:
        if way != RANDOM:
            yield _way(way, found, counts)


def _way(way: str, found: Sequence[Mapping[str, Floats]], counts: Sequence[int]) -> str:
    ratios = [np.log((one[way] + _SMALL) / (one[RANDOM] + _SMALL)) for one in found]
    cells = []
    for count in counts:
        there = [ratio[count - 1] for ratio in ratios if len(ratio) >= count]
        cells.append(_percent(there) if there else "")
    means = [float(np.mean(ratio)) for ratio in ratios]
    error = np.std(means) / np.sqrt(len(means))
    lower = sum(one < 0 for one in means)
    needed = [
        labels_needed(one[way], float(one[RANDOM][-1])) or len(one[RANDOM]) + 1 for one in found
    ]
    return _line(
        [
            way,
            *cells,
            f"{_percent(means)} ± {100 * error:.1f}",
            f"{lower} of {len(means)}",
            f"{np.median(needed):g} of {np.median([len(one[RANDOM]) for one in found]):g}",
        ]
    )


def _percent(logs: Sequence[float]) -> str:
    return f"{100 * np.expm1(np.mean(logs)):+.1f} %"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure on each criterion, and print the tables."""
    options = _options()
    embeddings = KnownVectors(options.vectors)
    names = options.sets or sorted(path.stem for path in options.data.glob("*.jsonl"))
    found = {}
    for name in names:
        paths = sorted(options.data.glob(f"{name}.jsonl"))
        rows = read(paths, options.split, embeddings)
        found[name] = measure(rows, options, embeddings)
        print(f"{name} done", file=sys.stderr, flush=True)
    counts = [one for one in _COUNTS if one <= options.labels] or [options.labels]
    print(
        f"Errors of random → selected cases, {options.seeds} splits of the {options.split} rows, "
        f"{options.step} labels at a time; the last column: labels at random, and selected ones "
        "from which on the error is no higher.\n"
    )
    print(table(found, counts))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.selection", description=main.__doc__
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the folder of labelled rows, a file a criterion")
    add("--sets", type=_words, help="criteria, commas between; with * some as one")
    add("--seeds", type=int, default=20, help="in how many ways the rows are split")
    add("--split", choices=("train", "test"), default="train", help="which rows")
    add("--labels", type=int, default=20, help="how many cases are labelled")
    add("--step", type=int, default=5, help="how many are asked for at a time")
    add("--orders", type=int, default=10, help="how many random orders each split has")
    add("--vectors", type=Path, help="a folder to keep the rows' vectors in from run to run")
    return parser.parse_args()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
