"""How sure the judge is, deciding by evidence, and what to ask the experts first."""
