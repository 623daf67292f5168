"""A judge's memory: a log of facts in a LangGraph store, and the state folded from it.

- `judge_memory`: `JudgeMemory`, the public class.
- `facts`, `memory_state`: the log, and its fold into episodes and guidelines; pure.
- `view`, `access`: the memories of a process, and reading and writing facts in a store.
- `index`, `recall`: vectors, and similar examples.
- `feedback`, `guidelines`, `learning`, `checks`: changes, and measuring guidelines.
- `history`, `jsonl`: versions, export and import.
- `purge`, `traces`, `external_traces`: erasing feedback, and what repeats it.
- `judgments`, `reports`: kept judgments, the review log, and what they show.
"""
