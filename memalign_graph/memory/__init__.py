"""A judge's memory: a log of facts in a LangGraph store, and the state folded from it.

- `judge_memory`: `JudgeMemory`, the public class.
- `facts`, `episode_row`, `memory_state`: the log, feedback records, and the fold; pure.
- `view`, `cache`: one memory in a process, and the process's memories.
- `layout`, `access`: namespaces in the store, and reading and writing facts.
- `index`, `embedding`, `recall`: vectors, and similar examples.
- `feedback`, `operations`, `guidelines`, `learning`, `checks`: changes, and measuring guidelines.
- `history`, `jsonl`, `purge`, `external_traces`: versions, export and import, and erasing.
- `judgments`, `review_report`, `pass_rate`: kept judgments, the review log, and their reports.
"""
