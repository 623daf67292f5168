"""Judge a dataset with two workers of a real Ray."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import ray
from langchain_openai import ChatOpenAI

from memalign_graph import Criterion, Judge, JudgeMemory
from memalign_graph.integrations.ray import judge_dataset
from memalign_graph.local import open_store

QUESTION = "Is the reply appropriate for the customer?"
CRITERION = Criterion(name="support_tone", instructions=QUESTION)
SAID = {"inputs": "My order never came.", "outputs": "Look at the page.", "value": False}


def rows(count: int) -> list[dict[str, Any]]:
    """Rows: the second is empty, and the server refuses the third."""
    bad = {1: " ", 2: "poison"}
    return [
        {"row": n, "inputs": f"Order {n} never came.", "outputs": bad.get(n, "Send a photo.")}
        for n in range(count)
    ]


def main(folder: Path, count: int, batch_size: int) -> None:
    place = folder / "memory.db"

    def judge() -> Judge:
        model = ChatOpenAI(model="gpt-4.1-mini", default_headers={"x-worker": str(os.getpid())})
        return Judge(criterion=CRITERION, model=model, embeddings="openai:loopback", k=1)

    ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    seen: Counter[int] = Counter()
    versions: Counter[str | None] = Counter()
    errors: dict[int, str] = {}
    with open_store(place) as store:
        memory = JudgeMemory(store, CRITERION, embeddings="openai:loopback")
        memory.remember(SAID)
        memory.add_guideline("Say sorry first.")
        version = memory.version()
        dataset = ray.data.from_items(rows(count))
        judged = judge_dataset(dataset, judge, store=place, concurrency=2, batch_size=batch_size)
        for batch in judged.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in batch.to_pylist():
                seen[row["row"]] += 1
                versions[row["memory_version"]] += 1
                if row["error"]:
                    errors[row["row"]] = row["error"]
                else:
                    assert json.loads(row["judgment"])["episode_ids"]
            if len(seen) >= count // 2:
                memory.add_guideline("Learned meanwhile.")
    result = {
        "rows": len(seen),
        "doubled": seen.total() - len(seen),
        "errors": errors,
        "versions": versions == {version: count - len(errors), None: len(errors)},
    }
    (folder / "told.json").write_text(json.dumps(result))  # Ray writes to stdout, too


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
