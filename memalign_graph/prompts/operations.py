"""The distiller's answer: its schema, and operations read from it with ids for handles."""

from typing import Any

from memalign_graph.memory.by_hand import MAX_GUIDELINE_CHARS
from memalign_graph.memory.learning import GuidelineOperation, plain_words
from memalign_graph.prompts.distill import DistillPrompt
from memalign_graph.prompts.idle import why_idle
from memalign_graph.types import Guideline


def operations_schema(prompt: DistillPrompt) -> dict[str, Any]:
    """Return the JSON Schema of the answer to a prompt."""
    # The text comes first: a small model that has to choose the action first tends to copy the
    # guideline it has chosen.
    properties: dict[str, Any] = {
        "text": {
            "type": "string",
            "description": "The guideline, one sentence; empty if one is only retired.",
        },
        "action": {"type": "string", "enum": ["add"]},
    }
    if prompt.guidelines:
        properties["action"]["enum"] += ["revise", "retire"]
        properties["guideline"] = {
            "type": "string",
            "enum": ["none", *prompt.guidelines],
            "description": "The handle of the guideline to revise or retire; none to add.",
        }
    if len(prompt.episodes) > 1:
        properties["feedback"] = {
            "type": "array",
            "items": {"type": "string", "enum": list(prompt.episodes)},
            "description": "The handles of the feedback this comes from.",
        }
    operation = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "title": "guideline_operations",
        "description": "Changes to the guidelines.",
        "type": "object",
        "properties": {
            "operations": {
                "type": "array",
                "items": operation,
                "maxItems": prompt.most_operations,
            }
        },
        "required": ["operations"],
        "additionalProperties": False,
    }


def read_operations(
    answer: dict[str, Any], prompt: DistillPrompt, *, drop_idle: bool = False
) -> list[GuidelineOperation]:
    """Check a distiller's answer, and put ids for its handles."""
    operations = answer.get("operations")
    if not isinstance(operations, list):
        raise ValueError('it has no list of "operations"')
    read = [_read_operation(operation, prompt) for operation in operations]
    idle = {index: why for index, one in enumerate(read) if (why := _why_idle(one, prompt))}
    if idle and not drop_idle:
        raise ValueError(next(iter(idle.values())))
    return [one for index, one in enumerate(read) if index not in idle]


def _why_idle(operation: GuidelineOperation, prompt: DistillPrompt) -> str | None:
    return why_idle(
        operation,
        criterion=prompt.criterion,
        guidelines=prompt.guidelines,
        episodes=list(prompt.episodes.values()),
        asked=prompt.asked,
    )


def _read_operation(operation: Any, prompt: DistillPrompt) -> GuidelineOperation:
    if not isinstance(operation, dict):
        raise ValueError("an operation is no object")
    action = operation.get("action")
    if action not in ("add", "revise", "retire"):
        raise ValueError(f'the action {action!r} is none of "add", "revise" and "retire"')
    guideline = _read_guideline(operation, action, prompt)
    text = " ".join(str(operation.get("text") or "").split())
    if action != "retire" and not text:
        raise ValueError(f'an operation to {action} a guideline has no "text"')
    if len(text) > MAX_GUIDELINE_CHARS:
        raise ValueError(f"a guideline has more than {MAX_GUIDELINE_CHARS:,} characters")
    if action == "retire" and guideline and plain_words(text) == plain_words(guideline.text):
        text = ""  # a model that fills in whatever there is repeats what it retires
    return GuidelineOperation(
        action=action,
        guideline_id=guideline.id if guideline else None,
        text=text or None,
        before=guideline.text if guideline and action == "revise" else None,
        episode_ids=_read_sources(operation, prompt),
    )


def _read_guideline(
    operation: dict[str, Any], action: str, prompt: DistillPrompt
) -> Guideline | None:
    if action == "add":
        return None
    handle = str(operation.get("guideline") or "").strip().upper()
    if handle not in prompt.guidelines:
        raise ValueError(
            f"{handle!r} is no guideline that can be changed: there are "
            f"{', '.join(prompt.guidelines) or 'none'}"
        )
    return prompt.guidelines[handle]


def _read_sources(operation: dict[str, Any], prompt: DistillPrompt) -> list[str]:
    named = operation.get("feedback")
    handles = [str(one).strip().upper() for one in named] if isinstance(named, list) else []
    if not handles and len(prompt.episodes) == 1:
        handles = list(prompt.episodes)
    unknown = [handle for handle in handles if handle not in prompt.episodes]
    if unknown or not handles:
        raise ValueError(
            f"an operation names {', '.join(map(repr, unknown)) or 'no'} feedback: there is "
            f"{', '.join(prompt.episodes)}"
        )
    return list(dict.fromkeys(prompt.episodes[handle].id for handle in handles))
