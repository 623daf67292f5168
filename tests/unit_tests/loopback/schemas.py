"""Schemas as the package sends them, for the tests of the loopback server."""

from collections.abc import Awaitable, Callable
from typing import Any

VERDICT = {"rationale": "Cold in tone.", "value": False}


def judgment_schema(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": "judgment",
        "type": "object",
        "properties": {"rationale": {"type": "string"}, "value": value},
        "required": ["rationale", "value"],
        "additionalProperties": False,
    }


YES_OR_NO = judgment_schema({"type": "boolean"})

DISTILLED = {
    "title": "distilled",
    "type": "object",
    "properties": {
        "operations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": ["add", "revise", "retire"]},
                    "guideline": {"type": "string"},
                    "text": {"type": "string"},
                    "feedback": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["action", "guideline", "text", "feedback"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["operations"],
    "additionalProperties": False,
}

Ask = Callable[..., Awaitable[dict[str, Any]]]
"""Asks a model for structured output."""
