"""A judge's memory, kept in any LangGraph store as a log of facts.

- `judge_memory`: `JudgeMemory`, what users call. Everything else is what it does, as operations
  (see `memalign_graph.io`) and pure functions:
- `facts`: the log. `memory_state`, `episode_row`, `feedback_merge`: the state that it adds up to;
  pure.
- `view`: the state of one memory in a process; `cache`: this process's views. `index`,
  `embedding`: their vectors.
- `access`, `layout`: the way to the store, and what lies where; only `access` writes facts.
- `feedback`: what experts say, revise and take back. `operations`: changes of guidelines as models
  propose them. `guidelines`: guidelines by hand, and operations applied. `learning`: commits of
  what models said. `checks`: answers to check questions, and the AUC of guidelines by them.
- `recall`: what is like a case. `history`, `jsonl`: what was before, and how a memory moves.
- `purge`, `external_traces`: what is erased for good, in the memory and outside of it.
- `judgments`, `review_report`: verdicts kept for a while, and what experts were asked, and why.
"""
