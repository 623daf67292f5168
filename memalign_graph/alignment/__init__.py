"""Learning from feedback.

- `distill`: distills feedback into proposals, and redistills guidelines that lost a source.
- `comment_questions`: turns one comment into a check question, for small models.
- `merge`: merges proposals into one set of guidelines.
- `replay`: judges seen cases again and drops guidelines that regress them.
- `reply_cache`: caches models' replies until they are committed.
- `report`: the report of an alignment.
"""
