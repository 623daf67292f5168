"""One judgment: read `verdict.run_judge` first, then what it calls.

`case` has what is judged and what memory gives for it, `pairwise` the two orders of outputs,
`again` judging as if some episodes were not there, and `pinned` a memory as it stood.
"""
