"""Aligning a judge with much feedback at once.

- `batches`: feedback packed into batches that fit the model's window.
- `reply_cache`: models' answers kept until they are committed, so that none is paid for twice.
- `merging`, `consolidate`: many proposals made into one set of guidelines.
- `cases`, `replay`: seen cases judged again, so that no guideline breaks what worked.
- `redistill`: guidelines that lost a source, distilled again from the others.
- `report`: what an alignment did.
"""
