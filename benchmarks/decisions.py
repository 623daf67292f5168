"""Measure whether `decide="auto"` does harm.

Run `python -m benchmarks.decisions [--data DIR] [--seeds N]`. Without `--data` it simulates worlds.
With `--data` it reads sets of labeled rows (JSONL with `inputs`, `outputs`, `label`, `split`,
`scale` and `range`). On yes/no sets a simulated judge is right on 80 %; 60 train rows are in memory
and 60 test rows are new, once as they are and once with few bad ones. On numeric sets the evidence
estimates the test rows without a judge, compared with the five nearest cases and the median.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memalign_graph import Example, Numeric
from memalign_graph.evaluation.metrics import concordance
from memalign_graph.local import LocalEmbeddings
from memalign_graph.memory.index import retrieval_text
from tests.unit_tests.evidence.decision_worlds import (
    HELPED,
    NOT_KNOWN,
    WORLDS,
    Measured,
    change,
    judged,
    simulate,
    turned,
)
from tests.unit_tests.evidence.worlds import YES_NO, Item, decided, model_of, normalised

_ROWS, _SIZE, _KEPT_BAD = 400, 60, 0.15


def row(name: str, found: Sequence[Measured]) -> str:
    cells = [name, f"{np.mean([each.decides for each in found]):.0%}"]
    for pairs in ([each.agreement for each in found], [each.caught for each in found]):
        before, after, error = change(pairs)
        cells += [f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f} ± {error:.3f}"]
    return f"| {' | '.join(cells)} |"


def labelled(directory: Path, scale: str) -> Iterator[tuple[str, list[dict[str, Any]], Any]]:
    for path in sorted(directory.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:_ROWS]]
        if rows[0].get("scale") == scale:
            cases = [Example(inputs=row["inputs"], outputs=row["outputs"]) for row in rows]
            texts = [retrieval_text(case)[0] for case in cases]
            yield path.stem, rows, normalised(LocalEmbeddings().embed_documents(texts))


def sampled(rows: Sequence[dict[str, Any]], vectors: Any, thin: bool, seed: int) -> Measured:  # noqa: FBT001 - both
    """Judge rows of a set with a judge that is right on 80 %."""
    rng, both = np.random.default_rng(seed), []
    for is_train in (True, False):
        kept = [
            at
            for at in rng.permutation(len(rows)).tolist()
            if (rows[at]["split"] == "train") == is_train
            and (not thin or rows[at]["label"] or rng.random() < _KEPT_BAD)
        ]
        labels = [(at, bool(rows[at]["label"])) for at in kept[:_SIZE]]
        both.append([Item(vectors[at], label, turned(rng, label, 0.8)) for at, label in labels])
    return judged(both[0], both[1], YES_NO)


def without_judge(rows: Sequence[dict[str, Any]], vectors: Any, count: int, seed: int) -> Any:
    """Estimate test rows from some train rows: mean error in shares of the range, and CCC."""
    low, high = rows[0]["range"]
    scale = Numeric(minimum=low, maximum=high)
    labels = np.array([row["label"] for row in rows], dtype=float)
    is_train = np.array([row["split"] == "train" for row in rows])
    some = np.random.default_rng(seed).permutation(np.flatnonzero(is_train))[:count]
    new = np.flatnonzero(~is_train)
    median = float(np.median(labels[some]))
    model = model_of([Item(vectors[at], float(labels[at]), None) for at in some], scale)
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
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=24)
    args = parser.parse_args()
    seeds = range(args.seeds)
    columns = ("agreement: judge", "auto", "change", "bad caught: judge", "auto", "change")
    head = f"| {{}} | decides | {' | '.join(columns)} |\n|---|{'---:|' * 7}"
    if args.data is None:
        print(head.format("world, reviews in memory"))
        for name, world in {**WORLDS, **HELPED, **NOT_KNOWN}.items():
            for count in world.counts:
                print(row(f"{name}, {count}", simulate(world, count, seeds)), flush=True)
        return
    print(head.format("set, share of bad rows"))
    for name, rows, vectors in labelled(args.data, "bool"):
        for thin in (False, True):
            found = [sampled(rows, vectors, thin, seed) for seed in seeds]
            print(row(f"{name}{', thinned' if thin else ''}", found), flush=True)
    print("\n| labels | evidence: distance, CCC | five nearest | median |\n|---:|---:|---:|---:|")
    numeric = list(labelled(args.data, "numeric"))
    for count in (10, 20, 40):
        found = [without_judge(*each[1:], count, seed) for each in numeric for seed in range(4)]
        cells = [f"{distance:.3f}, {ccc:.2f}" for distance, ccc in np.mean(found, axis=0)]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
