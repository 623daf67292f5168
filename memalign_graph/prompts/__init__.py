"""What models are asked: pure functions, text in, messages out.

- `judge`: the judge's prompt and its answer.
- `distill`, `operations`: the distiller's prompt, and its answer.
- `relations`, `narrow`: guidelines compared, and one made narrower.
- `cases`: cases and what experts said on them, as every prompt shows them; `idle`: empty answers.
- `fences`: untrusted text made safe and short.
"""
