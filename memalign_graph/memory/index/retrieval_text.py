"""The text that stands for an example when similar ones are looked for."""

import json
from typing import Any

from memalign_graph.types import Example

MAX_BYTES = 8_000
"""The longest text embedded, in UTF-8 bytes: no tokenizer makes more tokens than bytes, and common
embedding models take 8,191 tokens."""


def retrieval_text(example: Example) -> tuple[str, bool]:
    """Write inputs and outputs as the one text to embed."""
    return text_of(example.inputs, example.outputs)


def text_of(inputs: Any, outputs: Any) -> tuple[str, bool]:
    """Write inputs and outputs as `retrieval_text` does."""
    inputs, outputs = _plain(inputs), _plain(outputs)
    room = MAX_BYTES - 2
    half = room // 2
    spare = max(0, half - len(outputs.encode()))
    cut_inputs = _cut(inputs, half + spare)
    cut_outputs = _cut(outputs, room - len(cut_inputs.encode()))
    truncated = len(cut_inputs) < len(inputs) or len(cut_outputs) < len(outputs)
    return f"{cut_inputs}\n\n{cut_outputs}", truncated


def _plain(value: Any) -> str:
    """Write a JSON value as its words: text as it is, a dict's values without its keys."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(_plain(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(_plain(item) for item in value)
    return json.dumps(value)


def _cut(text: str, limit: int) -> str:
    # The slice bounds the work on huge texts; a character has at least one byte.
    return text[:limit].encode()[:limit].decode(errors="ignore")
