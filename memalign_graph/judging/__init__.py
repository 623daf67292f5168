"""One judgment: read `verdict.run_judge` first, then what it calls.

`case` holds the example and what memory recalls for it; `again` judges with another memory than the
present one.
"""
