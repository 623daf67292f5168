"""What models are asked: pure functions, text in, messages out.

- `judge`: the judge's prompt and its answer.
- `distill`: the distiller's prompt and its answer.
- `fences`: untrusted text made safe and short.
"""
