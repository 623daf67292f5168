"""Messages as values: LangChain's and OpenAI-style messages, read as OpenAI-style JSON."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from memalign_graph.identity import storable

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    "tool": "tool",
}
_FIELDS = (
    *("role", "type", "content", "tool_calls", "invalid_tool_calls", "tool_call_id", "name"),
    *("additional_kwargs", "response_metadata", "artifact"),
)
# Types of content parts. Thinking is not part of the message, and calls are in `tool_calls` too.
_TEXT_PARTS = ("text", "input_text", "output_text")
_UNSAID_PARTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
_CALL_PARTS = (
    *("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "input_json_delta"),
    *("function_call", "custom_tool_call"),
)
OWN_PARTS = (*_TEXT_PARTS, "refusal", *_UNSAID_PARTS, *_CALL_PARTS)
"""Types of content that a model writes itself; others are of tools that its provider ran."""
_BINARY_PARTS = ("image", "audio", "video", "file", "document", "media")
_BINARY_KEYS = {"image_url", "inline_data", "base64", "file_id", "file_data"}


def read_messages(value: Any, name: str, *, lenient: bool = False) -> Any:
    """Return LangChain or OpenAI-style messages as OpenAI-style JSON without message ids.

    Returns None if the value is not a list of messages. Raises a `ValueError` for content that is
    not text; `lenient` puts its type in brackets instead, and removes characters that no store
    keeps.
    """
    clean = storable if lenient else str
    listed = value if isinstance(value, list) else []
    items = [message_fields(item, clean) for item in listed]
    if not items or None in items:
        if not lenient and any(map(_is_langchains, listed)):
            index = items.index(None)
            raise ValueError(
                f"{name}[{index}] is a {type(listed[index]).__name__}, which is not a message by a "
                "user, an assistant, a tool or the system. Leave it out."
            )
        return None
    messages: list[dict[str, Any]] = []
    called: set[str] = set()
    for index, fields in enumerate(filter(None, items)):
        role, where = fields["role"], None if lenient else f"{name}[{index}]"
        content = _text(fields.get("content"), role, where)
        message = {"role": role, "content": clean(content or _refusal_beside(fields))}
        speaker = fields.get("name")
        if role == "tool":
            call_id = message["tool_call_id"] = clean(str(fields.get("tool_call_id") or ""))
            # LangChain repeats the tool's name, OpenAI does not. Without an id only the name tells
            # which call a result belongs to.
            speaker = None if call_id and call_id in called else speaker
        if isinstance(speaker, str) and speaker:
            message["name"] = clean(speaker)
        if calls := fields["tool_calls"]:
            message["tool_calls"] = calls
            called |= {call["id"] for call in calls}
        messages.append(message)
    return messages


def _refusal_beside(fields: Mapping[str, Any]) -> str:
    """Return a refusal that is next to the content, where Chat Completions has it."""
    more = fields.get("additional_kwargs")
    refusal = {**(more if isinstance(more, Mapping) else {}), **fields}.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _is_langchains(item: Any) -> bool:
    return hasattr(item, "model_dump") and hasattr(item, "content")


def message_fields(item: Any, clean: Callable[[str], str] = str) -> dict[str, Any] | None:
    """Return a message's fields with OpenAI's name of its role; None if it is not a message."""
    if _is_langchains(item):
        item = {name: getattr(item, name, None) for name in _FIELDS}
    if not isinstance(item, Mapping):
        return None
    match item:  # LangChain's serialization in traces and histories
        case {"lc": 1, "id": [*_, kind], "kwargs": Mapping() as inner}:
            item = {"type": kind, **inner}
        case {"type": kind, "data": Mapping() as inner, **rest} if not rest:
            item = {"type": kind, **inner}
    kind = str(item.get("role") or item.get("type"))
    role = _ROLES.get(kind.removesuffix("Chunk").removesuffix("Message").lower())
    content, calls = item.get("content"), _calls(item, clean)
    parts = content if isinstance(content, list) else []
    is_read = isinstance(content, str | list | None)
    is_read = is_read and all(isinstance(part, str | Mapping) for part in parts)
    says_nothing = "content" not in item and not calls
    kinds = [part.get("type") for part in parts if isinstance(part, Mapping)]
    # Anthropic's calls and results are in the content alone.
    is_anthropics = "tool_calls" not in item and ("tool_use" in kinds or "tool_result" in kinds)
    is_other = is_anthropics or item.get("function_call")
    if role is None or calls is None or not is_read or says_nothing or is_other:
        return None
    return {**item, "role": role, "tool_calls": calls}


def _calls(fields: Mapping[str, Any], clean: Callable[[str], str]) -> list[dict[str, Any]] | None:
    """Return a message's tool calls in OpenAI's format; None if one is not a call."""
    groups = [fields.get(name) or [] for name in ("tool_calls", "invalid_tool_calls")]
    if not all(isinstance(group, list) for group in groups):
        return None
    valid, invalid = groups
    calls = []
    for index, call in enumerate([*valid, *invalid]):
        own = call.model_dump() if hasattr(call, "model_dump") else call
        if not isinstance(own, Mapping):
            return None
        function = own.get("function") or own.get("custom") or own
        name = function.get("name") if isinstance(function, Mapping) else None
        if name is None and function is own and index >= len(valid):
            name = ""  # a model wrote none
        if not isinstance(name, str):
            return None
        written = (function.get(key) for key in ("arguments", "args", "input"))
        arguments = clean(_arguments(next(filter(None, written), {})))
        call_id = clean(str(own.get("id") or ""))
        function = {"name": clean(name), "arguments": arguments}
        calls.append({"id": call_id, "type": "function", "function": function})
    return calls


def _arguments(arguments: Any) -> str:
    """Return a call's arguments as canonical JSON, from JSON text or an object."""
    try:
        return dump_json(json.loads(arguments) if isinstance(arguments, str) else arguments)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(arguments, str):
            return arguments  # a model may write invalid JSON, which is judged as it is
        raise ValueError(f"a tool call's arguments are not JSON: {error}.") from error


def dump_json(value: Any) -> str:
    """Return canonical JSON that any store keeps."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    # Half of a surrogate pair stays escaped.
    return text.encode(errors="backslashreplace").decode()


def _text(content: Any, role: str, where: str | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = [part if isinstance(part, str) else _part_text(part, where) for part in content]
    # A model's text may be split within a word.
    return ("" if role == "assistant" else "\n").join(text for text in texts if text)


def _part_text(part: Mapping[str, Any], where: str | None) -> str:
    kind = str(part.get("type"))
    if kind in _TEXT_PARTS or kind == "refusal":
        return str(part.get("refusal" if kind == "refusal" else "text") or "")
    if kind in _UNSAID_PARTS or kind in _CALL_PARTS:
        return ""
    if not any(name in kind for name in _BINARY_PARTS) and _BINARY_KEYS.isdisjoint(part):
        with suppress(ValueError, TypeError, RecursionError):
            return dump_json(part)
    if where is not None:
        raise ValueError(
            f"{where} holds content of the type {kind!r}, which is not text: describe it in words, "
            "or leave it out."
        )
    return f"[{kind}]"
