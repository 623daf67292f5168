"""A judge's memory, kept in any LangGraph store.

- `judge_memory`: `JudgeMemory`, what users call.
- `recall`, `changes`, `by_hand`: what it does, as operations (see `memalign_graph.effects`).
- `access`: the way to the store; `layout`: where things lie in it; `records`: commits, versions.
- `view`, `vectors`: what is derived from the store in this process; the FAISS index.
- `cascade`, `learning`, `retrieval_text`: pure functions.
"""

from memalign_graph.memory.forgetting import Forgotten
from memalign_graph.memory.judge_memory import JudgeMemory

__all__ = ["Forgotten", "JudgeMemory"]
