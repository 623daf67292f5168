"""A judge's memory, kept in any LangGraph store.

- `judge_memory`, `life`: `JudgeMemory`, what users call. Everything else is what it does, as
  operations (see `memalign_graph.io`) and pure functions:
- `recall`, `changes`, `lessons`, `by_hand`: what is known, said, learned and written by hand.
- `judgments`: verdicts kept for a while, for an expert who answers later.
- `reviews`, `review_report`, `oversight`: what was asked, and how far a judge is trusted.
- `forgetting`, `purge`, `erasure`: what is taken back, and erased for good.
- `history`, `portable`: what it was before, and how it moves.
- `learning`, `cascade`, `words`: what becomes of guidelines and of experts' words; pure.
- `rivals`: two writers at one moment.
- `access`, `items`, `layout`, `records`: the way to the store, what lies there, and commits.
- `view`, `embedding`, `index`: what a process derives from the store; vectors and their index.
"""
