"""Learning from much feedback at once.

- `distill`: feedback into proposals, in batches; guidelines that lost a source.
- `comment_questions`: one comment as a check question, for small models.
- `merge`: many proposals made into one set of guidelines.
- `replay`: seen cases judged again, so that no guideline breaks what worked.
- `reply_cache`: models' replies kept until they are committed.
- `report`: what an alignment did.
"""
