"""What prompts are made of: untrusted text in tags it cannot close, kept to a length."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from memalign_graph.agreement import majority_value
from memalign_graph.types import Criterion, Episode, Example

_TAGS = "case|inputs|outputs|reference_outputs|example|verdict|rationale|feedback|guideline"
_TAG_OR_CONTROL_TOKEN = re.compile(rf"<(?=\s*/?\s*(?:{_TAGS})\b|\|)", re.IGNORECASE)


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a text has, rather too many than too few."""
    # English has about four bytes a token, code and other scripts about three.
    digits = sum(map(text.count, "0123456789"))
    return digits + math.ceil((len(text.encode()) - digits) / 3)


def fence(tag: str, value: Any, *, max_tokens: int | None = None) -> str:
    """Put an application's or an expert's text between tags."""
    text = defuse(as_text(value))
    return f"<{tag}>\n{text if max_tokens is None else shorten(text, max_tokens)}\n</{tag}>"


def as_text(value: Any) -> str:
    """Write a JSON value for a prompt."""
    if isinstance(value, dict) and len(value) == 1:
        [only] = value.values()
        value = only if isinstance(only, str) else value
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def defuse(text: str) -> str:
    """Take from a text what a prompt would read as its own structure."""
    return _TAG_OR_CONTROL_TOKEN.sub("&lt;", text)


def shorten(text: str, max_tokens: int) -> str:
    """Cut the middle out of a text that is too long."""
    tokens = estimate_tokens(text)
    if tokens <= max_tokens:
        return text
    data = text.encode()
    room = max(max_tokens, 1) * len(data) // tokens
    head, tail = data[: room * 2 // 3], data[len(data) - room // 3 :]
    left_out = len(data) - len(head) - len(tail)
    return (
        f"{head.decode(errors='ignore')}\n[... {left_out:,} bytes left out ...]\n"
        f"{tail.decode(errors='ignore')}"
    )


def render_criterion(criterion: Criterion) -> str:
    """Write what is judged, and which values there are."""
    return (
        f'Criterion "{criterion.name}":\n{criterion.instructions.strip()}\n\n'
        f"The value is {criterion.scale.describe()}"
    )


def render_example(tag: str | None, example: Example, *, max_tokens: int) -> tuple[str, bool]:
    """Write an example, each of its parts fenced, and tell whether something of it was cut."""
    values = {"inputs": example.inputs, "outputs": example.outputs}
    if example.reference_outputs is not None:
        values["reference_outputs"] = example.reference_outputs
    parts = {name: fence(name, value) for name, value in values.items()}
    sizes = {name: estimate_tokens(part) for name, part in parts.items()}
    is_cut = sum(sizes.values()) > max_tokens
    if is_cut:
        limits = _share(sizes, max_tokens)
        parts = {name: fence(name, values[name], max_tokens=limits[name]) for name in limits}
    text = "\n".join(parts.values())
    return (text if tag is None else f"<{tag}>\n{text}\n</{tag}>"), is_cut


def _share(sizes: dict[str, int], budget: int) -> dict[str, int]:
    """Divide a budget: the smallest parts get what they need, the largest share the rest."""
    limits: dict[str, int] = {}
    for done, name in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        limits[name] = min(sizes[name], budget // (len(sizes) - done))
        budget -= limits[name]
    return limits


def render_words(
    episodes: Sequence[Episode],
    criterion: Criterion,
    *,
    names: Sequence[str] | None = None,
    has_label: bool = True,
    max_tokens: int,
) -> tuple[list[str], bool]:
    """Write what experts said on one example, and tell whether something of it was cut."""
    lines: list[str] = []
    several = len(episodes) > 1
    label = "The expert's reason:\n" if has_label else ""
    for number, episode in enumerate(episodes):
        name = f"{names[number] if names else number + 1}. " if several else ""
        if episode.value is not None:
            lines.append(f"{name}The expert's value: {criterion.scale.show(episode.value)}")
        if episode.rationale is not None:
            words = fence("rationale", episode.rationale, max_tokens=max_tokens)
            lines.append(f"{name}{label}{words}")
    value = majority_value(episodes, criterion.scale)
    if several and value is not None:
        lines.append(f"The value that counts here: {criterion.scale.show(value)}")
    return lines, any(estimate_tokens(episode.rationale or "") > max_tokens for episode in episodes)


def closed_schema(properties: Mapping[str, Any], **head: str) -> dict[str, Any]:
    """Make the JSON Schema of an object that has all of these properties and no other."""
    return {
        **head,
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
