"""Measure whether `decide="auto"` does harm.

Run `python -m benchmarks.decisions [--data DIR] [--seeds N]`. Without `--data` it simulates worlds.
With `--data` it reads sets of rows with numbers as labels, as `benchmarks.agreement` does: the
evidence estimates the test rows without a judge, compared with the five nearest cases and the
median.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import Row, load_rows, scale_of
from memalign_graph import Example
from memalign_graph.evaluation.metrics import concordance
from memalign_graph.local import LocalEmbeddings
from memalign_graph.memory.index import retrieval_text
from tests.unit_tests.evidence.decision_worlds import (
    HELPED,
    NOT_KNOWN,
    WORLDS,
    Measured,
    change,
    simulate,
)
from tests.unit_tests.evidence.worlds import Item, decided, model_of, normalised

_COLUMNS = ("agreement: judge", "auto", "change", "bad caught: judge", "auto", "change")


def table_row(name: str, measured: Sequence[Measured]) -> str:
    cells = [name, f"{np.mean([each.decides for each in measured]):.0%}"]
    for pairs in ([each.agreement for each in measured], [each.caught for each in measured]):
        before, after, error = change(pairs)
        cells += [f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f} ± {error:.3f}"]
    return f"| {' | '.join(cells)} |"


def embedded(rows: Sequence[Row]) -> Any:
    cases = [Example(inputs=row["inputs"], outputs=row["outputs"]) for row in rows]
    return normalised(LocalEmbeddings().embed_documents([retrieval_text(it)[0] for it in cases]))


def without_judge(rows: Sequence[Row], vectors: Any, count: int, seed: int) -> Any:
    """Estimate test rows from some train rows: mean error in shares of the range, and CCC."""
    low, high = rows[0]["range"]
    labels = np.array([row["label"] for row in rows], dtype=float)
    is_train = np.array([row["split"] == "train" for row in rows])
    some = np.random.default_rng(seed).permutation(np.flatnonzero(is_train))[:count]
    new = np.flatnonzero(~is_train)
    median = float(np.median(labels[some]))
    learned = [Item(vectors[at], float(labels[at]), None) for at in some]
    model = model_of(learned, scale_of(rows[0]))
    items = [Item(vectors[at], float(labels[at]), median) for at in new]
    near = np.argsort(-(vectors[new] @ vectors[some].T), axis=1)[:, :5]
    once = np.ones((1, len(new)))
    estimates = (
        np.array([decided(model, item).value for item in items], dtype=float),
        labels[some][near].mean(axis=1),
        np.full(len(new), median),
    )
    return [
        (np.abs(each - labels[new]).mean() / (high - low), concordance(labels[new], each, once)[0])
        for each in estimates
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=24)
    args = parser.parse_args()
    if args.data is None:
        print(
            f"| world, reviews in memory | decides | {' | '.join(_COLUMNS)} |\n|---|{'---:|' * 7}"
        )
        for name, world in {**WORLDS, **HELPED, **NOT_KNOWN}.items():
            for count in world.counts:
                measured = simulate(world, count, range(args.seeds))
                print(table_row(f"{name}, {count}", measured), flush=True)
        return
    names = sorted({path.name.partition(".jsonl")[0] for path in args.data.glob("*.jsonl*")})
    sets = [rows for name in names if (rows := load_rows(args.data, name))[0]["scale"] == "numeric"]
    embedded_sets = [(rows, embedded(rows)) for rows in sets]
    print("| labels | evidence: distance, CCC | five nearest | median |\n|---:|---:|---:|---:|")
    for count in (10, 20, 40):
        found = [without_judge(*one, count, seed) for one in embedded_sets for seed in range(4)]
        cells = [f"{distance:.3f}, {ccc:.2f}" for distance, ccc in np.mean(found, axis=0)]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
