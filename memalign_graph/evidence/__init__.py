"""How sure the judge is, when similar cases decide, and when an expert is asked.

`confidence` measures the judge. `cases` are what experts said and the judge before; `regression`
estimates their values, `comparison` tests estimates against verdicts, and `evidence_model` decides
on a case by both. `threshold` is the confidence from which on nobody is asked, and `deciding` the
way in. `checks` asks guidelines as questions, and `value_from_checks` makes a value of a small
model's answers. `mean` and `drift` are statistics of the cases that are drawn at random.
"""
