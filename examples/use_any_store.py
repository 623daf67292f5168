"""The same memory in several LangGraph stores: in memory or in an SQLite file, sync or async.

Another graph finds in the file what was learned; only the new case is embedded.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Feedback, JudgeMemory, create_judge_graph
from memalign_graph.local import open_local_store
from memalign_graph.models import models_from_environment

CRITERION = Criterion(name="support_tone", instructions="Is the reply appropriate?")
FEEDBACK = {
    "inputs": "My order never came.",
    "outputs": "Check the tracking page.",
    "value": False,
    "rationale": "Too cold: no word of regret.",
    "author": "ann",
}
CASE = {"inputs": "My parcel is lost.", "outputs": "Check the tracking page again."}


def teach(store: BaseStore) -> None:
    """Store feedback, and add a guideline by hand."""
    _, embeddings = models_from_environment()
    memory = JudgeMemory(store, CRITERION, namespace=("shop", "emea"), embeddings=embeddings)
    memory.remember(Feedback.model_validate(FEEDBACK))
    memory.add_guideline("A reply about a loss begins with a word of regret.", author="ann")


async def judge(store: BaseStore) -> None:
    """Judge a case with the memory in the store."""
    model, embeddings = models_from_environment()
    builder = create_judge_graph(CRITERION, model=model, embeddings=embeddings, k=1)
    graph = builder.compile(store=store)
    result = await graph.ainvoke(CASE, context={"namespace": ("shop", "emea")})
    judgment = result["judgment"]
    print(
        f"{type(store).__name__}: {judgment['value']} with {len(judgment['guideline_ids'])} "
        f"guideline(s) and {len(judgment['episode_ids'])} episode(s) in the prompt"
    )


def main(path: Path) -> None:
    """Use a store in memory, then one in a file that is closed and opened again."""
    in_memory = InMemoryStore()
    teach(in_memory)
    asyncio.run(judge(in_memory))
    with open_local_store(path) as store:
        teach(store)
    with open_local_store(path) as store:
        asyncio.run(judge(store))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/memory.sqlite"))
