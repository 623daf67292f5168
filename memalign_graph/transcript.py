"""Messages as values: stored as OpenAI-style JSON, written as numbered steps.

A step is what somebody said, or a tool call with its result. Where there is too little room, one
level cuts all texts: what tools return to that length, words and calls to four times as much. Each
step is named, or counted where even the names do not fit. Nothing here escapes the texts for a
prompt; but their lines are indented, so that a text can't begin a step.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    "tool": "tool",
}
_FIELDS = ("role", "type", "content", "tool_calls", "invalid_tool_calls", "tool_call_id", "name")
_STORED = {"role", "content", "tool_calls", "tool_call_id", "name"}
# Parts of a message's content: a model's thinking is not what it said, and its calls stand in
# `tool_calls` as well.
_TEXT_PARTS = ("text", "input_text", "output_text")
_UNSAID_PARTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
_CALL_PARTS = ("tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta")
_BINARY_PARTS = ("image", "audio", "video", "file", "document", "media")
_BINARY_KEYS = {"image_url", "inline_data", "base64", "file_id", "file_data"}

_WORDS_WEIGHT = 4  # of words and calls; 1 of what tools return
_NAME_CHARS = 64
_MAX_COUNTED = 20  # names of the steps that are left out
_MARK = " [...] "  # in the place of what was cut


class Step(NamedTuple):
    """What was said, what a tool returned without a call, or a call with its result."""

    who: str
    """`user`, `assistant` or `system`, with the name if there is one; or the tool's name."""
    text: str
    """The words, or the call's arguments."""
    is_call: bool = False
    result: str | None = None
    """What the tool returned; None if nothing came back, or nothing was called."""
    is_answer: bool = False
    """Whether these are the words that the messages end with, and an assistant's."""

    @property
    def parts(self) -> list[tuple[str, str, int]]:
        """Its labels, their texts, and how much each counts in a cut."""
        if not self.is_call:
            who = f"{self.who} (final answer)" if self.is_answer else self.who
            return [(f"{who}: ", self.text, _WORDS_WEIGHT)]
        called = [(f"called {self.who}", self.text, _WORDS_WEIGHT)] if self.text else []
        label = "returned: " if called else f"{self.who} returned: "
        return called if self.result is None else [*called, (label, self.result, 1)]


def read_messages(value: Any, name: str, *, lenient: bool = False) -> Any:
    """Return a list of LangChain or OpenAI-style messages as OpenAI-style JSON, ids left out.

    None if the value is no list of messages. Content that is no text is refused; `lenient` puts
    its name in brackets instead, and takes away what no store keeps.
    """
    listed = value if isinstance(value, list) else []
    items = [fields for item in listed if (fields := _fields(item)) is not None]
    if not items or len(items) < len(listed):
        return None
    messages: list[dict[str, Any]] = []
    called: set[str] = set()
    for index, fields in enumerate(items):
        calls, role = fields["tool_calls"], fields["role"]
        content = _text(fields.get("content"), role, None if lenient else f"{name}[{index}]")
        if lenient:
            content = content.replace("\x00", "").encode(errors="replace").decode()
        message = {"role": role, "content": content}
        speaker = fields.get("name")
        if role == "tool":
            message["tool_call_id"] = str(fields.get("tool_call_id") or "")
            # LangChain repeats the tool's name, OpenAI does not.
            speaker = None if message["tool_call_id"] in called else speaker
        if isinstance(speaker, str) and speaker:
            message["name"] = speaker
        if calls:
            message["tool_calls"] = calls
            called |= {call["id"] for call in calls}
        messages.append(message)
    return messages


def _fields(item: Any) -> dict[str, Any] | None:
    """Return a message's fields with its role in OpenAI's word; None if it is no message."""
    if hasattr(item, "model_dump") and hasattr(item, "content"):
        item = {name: getattr(item, name, None) for name in _FIELDS}
    if not isinstance(item, Mapping):
        return None
    # As LangChain serializes messages in traces and histories.
    inner = item.get("kwargs") if item.get("lc") == 1 else None
    inner = item.get("data") if item.keys() == {"type", "data"} else inner
    if isinstance(inner, Mapping):
        item = {"type": [item.get("type"), *item.get("id", ())][-1], **inner}
    kind = str(item.get("role") or item.get("type"))
    # `AIMessageChunk` is an assistant's, too.
    role = _ROLES.get(kind.removesuffix("Chunk").removesuffix("Message").lower())
    content, calls = item.get("content"), _calls(item)
    parts = content if isinstance(content, list) else []
    is_read = content is None or isinstance(content, str | list)
    is_read = is_read and all(isinstance(part, str | Mapping) for part in parts)
    says_nothing = "content" not in item and not calls
    if role is None or calls is None or not is_read or says_nothing or item.get("function_call"):
        return None
    return {**item, "role": role, "tool_calls": calls}


def _calls(fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return a message's tool calls as OpenAI writes them; None if one is no call."""
    groups = [fields.get(name) or [] for name in ("tool_calls", "invalid_tool_calls")]
    if not all(isinstance(group, list) for group in groups):
        return None
    calls = []
    for call in [call for group in groups for call in group]:
        plain = call.model_dump() if hasattr(call, "model_dump") else call
        call_fields = plain if isinstance(plain, Mapping) else {}
        function = call_fields.get("function") or call_fields.get("custom") or call_fields
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return None
        written = (function.get(name) for name in ("arguments", "args", "input"))
        arguments = _arguments(next(filter(None, written), {}))
        function = {"name": function["name"], "arguments": arguments}
        calls.append(
            {"id": str(call_fields.get("id") or ""), "type": "function", "function": function}
        )
    return calls


def _arguments(arguments: Any) -> str:
    """Write a call's arguments in one way, whether they were JSON as text or an object."""
    try:
        return _dumps(json.loads(arguments) if isinstance(arguments, str) else arguments)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(arguments, str):
            return arguments  # what a model wrote may be no JSON, and is judged all the same
        raise ValueError(f"a tool call's arguments are no JSON: {error}.") from error


def _dumps(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    # Half of a surrogate pair stays escaped, as it was.
    return text.encode(errors="backslashreplace").decode()


def _text(content: Any, role: str, where: str | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = [part if isinstance(part, str) else _part_text(part, where) for part in content]
    # A model's text comes in pieces that may end within a word.
    return ("" if role == "assistant" else "\n").join(text for text in texts if text)


def _part_text(part: Mapping[str, Any], where: str | None) -> str:
    kind = str(part.get("type"))
    if kind in _TEXT_PARTS or kind == "refusal":
        return str(part.get("refusal" if kind == "refusal" else "text") or "")
    if kind in _UNSAID_PARTS or kind in _CALL_PARTS:
        return ""
    if not any(name in kind for name in _BINARY_PARTS) and _BINARY_KEYS.isdisjoint(part):
        return _dumps(part)
    if where is not None:
        raise ValueError(
            f"{where} holds content of the type {kind!r}, which is no text: describe it in words, "
            "or leave it out."
        )
    return f"[{kind}]"


def is_messages(value: Any) -> bool:
    """Tell whether a JSON value is a list of messages as they are stored."""
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys() <= _STORED:
        return False
    texts = [text for field, text in message.items() if field != "tool_calls"]
    calls = message.get("tool_calls", [])
    return (
        message["role"] in ("system", "user", "assistant", "tool")
        and all(isinstance(text, str) for text in texts)
        and isinstance(calls, list)
        and all(map(_is_call, calls))
    )


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or function.keys() != {"name", "arguments"}:
        return False
    return all(isinstance(text, str) for text in (call.get("id"), *function.values()))


def transcripts_in(value: Any) -> dict[str, list[Step]]:
    """Return the steps of the transcript that a JSON value is, or of the two of a pair, A and B."""
    if is_messages(value):
        return {"": steps_of(value)}
    pair = dict(zip("AB", value, strict=False)) if isinstance(value, list) else value
    is_pair = isinstance(pair, dict) and pair.keys() == {"A", "B"} and len(value) == len(pair)
    if not is_pair or not all(map(is_messages, pair.values())):
        return {}
    return {title: steps_of(messages) for title, messages in pair.items()}


def steps_of(messages: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Divide messages, as they are stored, into steps; a result stands beside its call."""
    steps: list[Step] = []
    waiting: dict[str, list[int]] = {}  # the calls without a result, by id
    for message in messages:
        who, text = message["role"], message["content"]
        name = _name(message.get("name") or "")
        if who == "tool":
            indices = waiting.get(message.get("tool_call_id") or "", [])
            if indices:
                index = indices.pop(0)
                steps[index] = steps[index]._replace(result=text)
            else:
                steps.append(Step(name or "a tool", "", is_call=True, result=text))
            continue
        if text.strip():
            steps.append(Step(f"{who} {name}" if name else who, text))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            waiting.setdefault(call["id"], []).append(len(steps))
            steps.append(Step(_name(function["name"]), _call_text(function), is_call=True))
    if steps and messages[-1]["role"] == "assistant" and not steps[-1].is_call:
        steps[-1] = steps[-1]._replace(is_answer=True)
    return steps


def _name(name: str) -> str:
    return " ".join(name[: 2 * _NAME_CHARS].split())[:_NAME_CHARS]


def _call_text(function: Mapping[str, str]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return f"({function['arguments']})"
    pairs = (f"{_dumps(key)[1:-1]}={_dumps(argument)}" for key, argument in arguments.items())
    return f"({', '.join(pairs)})"


def render(steps: Sequence[Step], max_chars: int | None = None) -> str:
    """Write numbered steps, each named; within about so many characters."""
    parts = [part for step in steps for part in step.parts]
    around = sum(len(label) + 4 for label, _, _ in parts) + (len(str(len(steps))) + 2) * len(steps)
    lengths = [(len(text), weight) for _, text, weight in parts]

    def size(level: int) -> int:
        cut = sum(min(length, weight * level + len(_MARK)) for length, weight in lengths)
        return around + cut

    level = max((length for length, _ in lengths), default=0)
    if max_chars is None or size(level) <= max_chars:
        return "\n".join(_lines(steps, 1, level))
    low, high = 0, min(level, max_chars)
    while low < high:  # looks for the highest level that fits
        level = (low + high + 1) // 2
        low, high = (level, high) if size(level) <= max_chars else (low, level - 1)
    least = size(low)
    if least <= max_chars or len(steps) < 3:  # noqa: PLR2004 - a middle
        return "\n".join(_lines(steps, 1, low))
    # Not even the names fit: of the steps in the middle it says how many there were of each.
    ends = max(len(steps) * max_chars // (2 * least), 1)
    last = len(steps) - ends
    counts = Counter(step.who for step in steps[ends:last]).most_common()
    names = ", ".join(f"{number} of {who}" for who, number in counts[:_MAX_COUNTED])
    names += ", and others" if len(counts) > _MAX_COUNTED else ""
    middle = f"[... steps {ends + 1} to {last} left out: {names} ...]"
    return "\n".join([*_lines(steps[:ends], 1, 0), middle, *_lines(steps[last:], last + 1, 0)])


def _lines(steps: Sequence[Step], start: int, level: int) -> Iterator[str]:
    for number, step in enumerate(steps, start=start):
        # Whatever a text breaks its lines with: no line of it begins like a step or a result.
        parts = [
            "\n      ".join(f"{label}{_cut(text, weight * level)}".splitlines())
            for label, text, weight in step.parts
        ]
        yield f"{number}. " + "\n   ".join(parts)


def _cut(text: str, room: int) -> str:
    """Cut the middle out of a text, where that makes it shorter."""
    if len(text) <= room + len(_MARK):
        return text
    return f"{text[: room * 2 // 3]}{_MARK}{text[len(text) - room // 3 :]}".strip()


def goal_tools_answer(steps: Sequence[Step]) -> tuple[list[str], list[str], str]:
    """Return what users asked for, the tools used, in order, and the last that was answered."""
    texts = [(step.who.partition(" ")[0], step.text) for step in steps if not step.is_call]
    answers = [text for who, text in texts if who == "assistant"]
    requests = [text for who, text in texts if who == "user"]
    return requests, [step.who for step in steps if step.is_call], answers[-1] if answers else ""
