"""What models are asked: pure functions, text in, messages out; answers in, checked values out.

- `judge`: the judge's prompt and its answer; `distill`: the distiller's; `compare`: guidelines
  compared with each other; `clarify`: what to ask an expert back.
- `fences`: what prompts are made of, untrusted text made safe and short; `words`: what two texts
  share, in any script.
"""
