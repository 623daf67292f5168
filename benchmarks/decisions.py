"""Whether `decide="auto"` does harm: `python -m benchmarks.decisions [--data DIR] [--seeds N]`.

Worlds that are made up, and with `--data` yes/no sets of labelled rows (JSONL with `inputs`,
`outputs`, `label`, `split` and `scale`), with a made-up judge that is right on 80 %: 60 rows of
train are in memory, 60 of test are new, as they are and with few bad ones left.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memalign_graph import Example
from memalign_graph.local import LocalEmbeddings
from memalign_graph.memory.index.retrieval_text import retrieval_text
from tests.unit_tests.evidence.decision_worlds import (
    HELPED,
    NOT_KNOWN,
    WORLDS,
    YES_NO,
    Measured,
    change,
    judged,
    simulate,
    turned,
)
from tests.unit_tests.evidence.worlds import Item, normalised

_ROWS, _SIZE, _KEPT_BAD = 400, 60, 0.15


def row(name: str, found: Sequence[Measured]) -> str:
    """Write a line of the table."""
    cells = [name, f"{np.mean([one.decides for one in found]):.0%}"]
    for pairs in ([one.agreement for one in found], [one.caught for one in found]):
        before, after, error = change(pairs)
        cells += [f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f} ± {error:.3f}"]
    return f"| {' | '.join(cells)} |"


def labelled(directory: Path) -> Iterator[tuple[str, list[dict[str, Any]], Any]]:
    """Read the yes/no sets, with the vectors of their rows."""
    for path in sorted(directory.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:_ROWS]]
        if rows[0].get("scale") == "bool":
            cases = [Example(inputs=one["inputs"], outputs=one["outputs"]) for one in rows]
            texts = [retrieval_text(case)[0] for case in cases]
            yield path.stem, rows, normalised(LocalEmbeddings().embed_documents(texts))


def sampled(rows: Sequence[dict[str, Any]], vectors: Any, thin: bool, seed: int) -> Measured:  # noqa: FBT001 - both
    """Judge rows of a set by a judge that is right on 80 %."""
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
    for name, rows, vectors in labelled(args.data):
        for thin in (False, True):
            found = [sampled(rows, vectors, thin, seed) for seed in seeds]
            print(row(f"{name}{', thinned' if thin else ''}", found), flush=True)


if __name__ == "__main__":
    main()
