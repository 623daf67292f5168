"""Untrusted text in a prompt: fenced in tags it cannot close, and kept to a length."""

import json
import math
import re
from typing import Any

_BYTES_PER_TOKEN = 3
"""A cautious estimate: English has about four bytes a token, code and other scripts about three."""

_DIGITS = "0123456789"

_TAGS = "case|inputs|outputs|reference_outputs|example|verdict|rationale|feedback|guideline"
_TAG = re.compile(rf"<(?=\s*/?\s*(?:{_TAGS})\b)", re.IGNORECASE)
_CONTROL_TOKEN = re.compile(r"<(?=\|)")


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a text has, rather too many than too few."""
    digits = sum(map(text.count, _DIGITS))
    return digits + math.ceil((len(text.encode()) - digits) / _BYTES_PER_TOKEN)


def fence(tag: str, value: Any, *, max_tokens: int | None = None) -> str:
    """Put an application's or an expert's text between tags."""
    text = defuse(as_text(value))
    if max_tokens is not None:
        text = shorten(text, max_tokens)
    return f"<{tag}>\n{text}\n</{tag}>"


def as_text(value: Any) -> str:
    """Write a JSON value for a prompt."""
    if isinstance(value, dict) and len(value) == 1:
        [only] = value.values()
        value = only if isinstance(only, str) else value
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def defuse(text: str) -> str:
    """Take from a text what a prompt would read as its own structure."""
    return _CONTROL_TOKEN.sub("&lt;", _TAG.sub("&lt;", text))


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
