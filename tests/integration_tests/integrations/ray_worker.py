"""Judge a dataset with two workers of a real Ray."""

import json
import os
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
from langchain_openai import ChatOpenAI

from memalign_graph import Criterion, InvalidInputError, Judge, JudgeMemory
from memalign_graph.integrations.ray import judge_dataset
from memalign_graph.local import open_store

CRITERION = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
SAID = {"inputs": "My order never came.", "outputs": "Look at the page.", "value": False}


def rows(count: int) -> list[dict[str, Any]]:
    """Rows: the second is empty, and the server refuses the third."""
    bad = {1: " ", 2: "poison"}
    return [
        {"row": n, "inputs": f"Order {n} never came.", "outputs": bad.get(n, "Send a photo.")}
        for n in range(count)
    ]


def refusals(place: Path) -> list[str]:
    """Return the fields named in errors about invalid datasets and judges."""
    plain = Judge(criterion=CRITERION, model="openai:gpt-4.1-mini", embeddings="openai:loopback")
    dataset = ray.data.from_items(rows(3)).materialize()
    messages = []
    for rows_given, judge in (
        (dataset.rename_columns({"row": "value"}).materialize(), plain),
        (dataset, plain.but(keep_judgments=timedelta(days=1))),
        (dataset, plain.but(require_namespace=True)),
    ):
        try:
            judge_dataset(rows_given, judge, store=place)
        except InvalidInputError as error:
            messages.append(str(error).partition(":")[0])
    return messages


def main(folder: Path, count: int, batch_size: int) -> None:
    place = folder / "memory.db"

    def judge() -> Judge:
        model = ChatOpenAI(model="gpt-4.1-mini", default_headers={"x-worker": str(os.getpid())})
        return Judge(criterion=CRITERION, model=model, embeddings="openai:loopback", k=1)

    ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    with open_store(place) as store:
        memory = JudgeMemory(store, CRITERION, embeddings="openai:loopback")
        memory.remember(SAID)
        memory.add_guideline("Say sorry first.")
        version = memory.version()
        judged = judge_dataset(
            ray.data.from_items(rows(count)),
            judge,
            store=place,
            concurrency=2,
            batch_size=batch_size,
        )
        seen: Counter[int] = Counter()
        versions: Counter[str | None] = Counter()
        errors: dict[int, str] = {}
        begun = time.monotonic()
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
        "doubled": sum(n - 1 for n in seen.values()),
        "errors": errors,
        "versions": versions == {version: count - len(errors), None: len(errors)},
        "refused": refusals(place),
        "seconds": round(time.monotonic() - begun, 1),
    }
    (folder / "told.json").write_text(json.dumps(result))  # Ray writes to stdout, too


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
