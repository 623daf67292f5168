"""The benchmark of what to ask first runs, and shows what is planted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.selection import labels_needed

ROOT = Path(__file__).parents[3]
KINDS = 8


def test_labels_needed_are_those_from_which_on_the_error_is_low() -> None:
    curve = np.array([0.5, 0.2, 0.4, 0.3, 0.3, 0.1])
    assert labels_needed(curve, 0.3) == 4
    assert labels_needed(curve, 0.5) == 1
    assert labels_needed(curve, 0.1) == 6
    assert labels_needed(curve, 0.05) is None


def test_selected_labels_go_further_where_each_kind_of_case_needs_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, KINDS, 200)
    # A vector tells the kind, and the kind the label: one label of each kind is all it takes.
    vectors = np.eye(KINDS)[kinds] + 0.1 * rng.normal(size=(200, KINDS))
    rows = [
        {
            "id": str(at),
            "split": "train",
            "criterion": "planted",
            "instructions": "Is it good?",
            "scale": "bool",
            "inputs": f"case {at}",
            "outputs": "a",
            "reference_outputs": None,
            "label": bool(kind % 2),
        }
        for at, kind in enumerate(kinds)
    ]
    text = "\n".join(map(json.dumps, rows))
    (tmp_path / "planted.jsonl").write_text(text, encoding="utf-8")
    texts = [f"case {at}\n\na" for at in range(200)]
    np.savez(tmp_path / "vectors.npz", texts=json.dumps(texts), vectors=vectors)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.selection", "--data", str(tmp_path)),
            *("--vectors", str(tmp_path), "--seeds", "3", "--labels", "15"),
        ],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [planted] = [line for line in done.stdout.splitlines() if line.startswith("| planted")]
    labels, selected = planted.rpartition("|")[0].rpartition("|")[2].split(" → ")
    assert int(labels) == 15
    assert int(selected) <= 11
    assert done.stdout.count("| selected |") == 2
