"""The text of an example that is embedded, to find similar examples."""

import json
from typing import Any

from memalign_graph.transcript import goal_tools_answer, transcripts_in
from memalign_graph.types import Example

MAX_BYTES = 8_000
"""The longest text to embed, in UTF-8 bytes: a text has at most as many tokens as bytes, and
common embedding models accept 8,191 tokens."""
_PART_BYTES = (4_000, 1_000, 2_996)  # a transcript's goal, tools and answer


def retrieval_text(example: Example) -> tuple[str, bool]:
    """Return the text to embed, and whether it was truncated."""
    return text_of(example.inputs, example.outputs)


def text_of(inputs: Any, outputs: Any) -> tuple[str, bool]:
    if transcripts_in(inputs) or transcripts_in(outputs):
        return _transcript_text(inputs, outputs)
    return _json_text(inputs, outputs)


def past_texts(example: Example) -> set[str]:
    """Return all texts of an example that may have been embedded, also before version 0.3."""
    inputs, outputs = example.inputs, example.outputs
    return {text_of(inputs, outputs)[0], _json_text(inputs, outputs)[0]}


def _json_text(inputs: Any, outputs: Any) -> tuple[str, bool]:
    inputs, outputs = _plain(inputs), _plain(outputs)
    room = MAX_BYTES - 2
    half = room // 2
    spare = max(0, half - len(outputs.encode()))
    cut_inputs = _cut(inputs, half + spare)
    cut_outputs = _cut(outputs, room - len(cut_inputs.encode()))
    truncated = len(cut_inputs) < len(inputs) or len(cut_outputs) < len(outputs)
    return f"{cut_inputs}\n\n{cut_outputs}", truncated


def _transcript_text(inputs: Any, outputs: Any) -> tuple[str, bool]:
    """Write the goal, the tools in the order of use, and the answer."""
    goals: list[str] = []
    tools: list[str] = []
    answers: list[str] = []
    for value, texts in ((inputs, goals), (outputs, answers)):
        transcripts = transcripts_in(value)
        for steps in transcripts.values():
            asked, used, answered = goal_tools_answer(steps)
            goals += asked
            tools += used
            answers += [answered] if texts is answers else []
        texts.extend([] if transcripts else [_plain(value)])
    parts = "\n".join(dict.fromkeys(goals)), " ".join(tools), "\n".join(answers)
    shown = [_cut_middle(part, room) for part, room in zip(parts, _PART_BYTES, strict=True)]
    return "\n\n".join(shown), shown != [*parts]


def _cut_middle(text: str, limit: int) -> str:
    data = text.encode()
    if len(data) <= limit:
        return text
    head, tail = data[: limit * 2 // 3], data[len(data) - limit // 3 :]
    return head.decode(errors="ignore") + tail.decode(errors="ignore")


def _plain(value: Any) -> str:
    """Write a JSON value as text, a dict without its keys."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(_plain(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(_plain(item) for item in value)
    return json.dumps(value)


def _cut(text: str, limit: int) -> str:
    # Sliced first, so that huge texts are not encoded whole.
    return text[:limit].encode()[:limit].decode(errors="ignore")
