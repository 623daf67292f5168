"""The benchmark runs: small sizes, ours alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_measures_and_writes_its_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "--quick", "--no-peer"),
            *("--rows", "change", "--results", str(tmp_path)),
        ],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "one more on 120, texts embedded | 1 |" in done.stdout
    assert (tmp_path / "quick.md").read_text(encoding="utf-8") in done.stdout
    assert json.loads((tmp_path / "quick.json").read_text(encoding="utf-8"))
