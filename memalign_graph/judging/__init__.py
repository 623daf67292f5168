"""One judgment: read `verdict.run_judge` first, then what it calls.

`case` holds the example and what memory recalls for it, `again` judges without some episodes, and
`pinned` opens a memory as of an earlier version.
"""
