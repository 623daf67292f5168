"""Messages as values, and as numbered steps for prompts, for embedding, and for people.

LangChain's and OpenAI-style messages are stored as OpenAI-style JSON. A step is a message's text,
or a tool call with its result. If the steps do not fit, all texts are cut to one length: results to
that length, messages and calls to four times as much. If not even the names of the steps fit, the
middle steps are counted by name. Texts are not escaped for a prompt, but their lines are indented,
so that no line of a text looks like a step.
"""

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

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


_TEXT_WEIGHT = 4  # of messages and calls; results have 1
_NAME_CHARS = 64
_MAX_COUNTED = 20  # names of steps left out
_MARK = " [...] "  # replaces what was cut
_LABEL_END = re.compile(r"[()<>]|:(?!\w)")
ENCODED_BYTES = re.compile(r"(?<![^\"',])[A-Za-z0-9+/]{500,}+={0,2}(?![^\"'\\])")
"""A long text in base64, or the end of a data URL, alone or in a value that is written as text."""


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
        parts = fields.get("content")
        if role == "assistant" and isinstance(parts, list):
            for part in map(_unwrapped, filter(is_provider_run, parts)):
                tool, result = str(part.get("name") or part["type"]), _part_text(part, where)
                ran = {"role": "tool", "tool_call_id": "", "name": clean(tool)}
                messages.append({**ran, "content": clean(result)})
            parts = [part for part in parts if not is_provider_run(part)]
        content = _text(parts, role, where)
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


def is_binary(part: Mapping[str, Any]) -> bool:
    """Return whether a part of a message's content is a picture, a file or the like."""
    match part:
        case {"source_type": "text"} | {"source": {"type": "text" | "content"}}:
            return False
    kind = str(part.get("type"))
    is_named = any(name in kind for name in _BINARY_PARTS) and kind != "file_search_call"
    return kind not in OWN_PARTS and (is_named or not _BINARY_KEYS.isdisjoint(part))


def is_provider_run(part: Any) -> bool:
    """Return whether a part of a model's content is of a tool that the model's provider ran."""
    own = _unwrapped(part) if isinstance(part, Mapping) else {}
    return isinstance(own.get("type"), str) and own["type"] not in OWN_PARTS and not is_binary(own)


def _unwrapped(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part, or what LangChain's wrapper of a provider's own part holds."""
    own = part.get("value") if part.get("type") == "non_standard" else None
    return own if isinstance(own, Mapping) else part


def _part_text(part: Mapping[str, Any], where: str | None) -> str:
    part = _unwrapped(part)
    kind = str(part.get("type"))
    if kind in _TEXT_PARTS or kind == "refusal":
        return str(part.get("refusal" if kind == "refusal" else "text") or "")
    if kind in _UNSAID_PARTS or kind in _CALL_PARTS:
        return ""
    if not is_binary(part):
        with suppress(ValueError, TypeError, RecursionError):
            return ENCODED_BYTES.sub(_MARK.strip(), dump_json(part))
    if where is not None:
        raise ValueError(
            f"{where} holds content of the type {kind!r}, which is not text: describe it in words, "
            "or leave it out."
        )
    return f"[{kind}]"


class Step(NamedTuple):
    """A message's text, a tool call with its result, or a result without a call."""

    who: str  # `user`, `assistant` or `system`, and its name if it has one; or the tool's name
    text: str  # or the arguments of a call
    is_call: bool = False
    result: str | None = None
    is_answer: bool = False  # the last message, if it is an assistant's text

    @property
    def parts(self) -> list[tuple[str, str, int]]:
        """Labels, their texts, and the texts' weights."""
        if not self.is_call:
            who = f"{self.who} (final answer)" if self.is_answer else self.who
            return [(f"{who}: ", self.text, _TEXT_WEIGHT)]
        called = [(f"called {self.who}", self.text, _TEXT_WEIGHT)] if self.text else []
        label = "returned: " if called else f"{self.who} returned: "
        return called if self.result is None else [*called, (label, self.result, 1)]


def _is_messages(value: Any) -> bool:
    """Return whether a JSON value is a list of messages as `read_messages` returns it."""
    with suppress(ValueError):
        return isinstance(value, list) and value == read_messages(value, "")
    return False


def sides_of(value: Any) -> dict[str, Any]:
    """Return the two sides of a pair by title; empty if the value is not a pair."""
    pair = dict(zip("AB", value, strict=False)) if isinstance(value, list) else value
    is_pair = isinstance(pair, dict) and pair.keys() == {"A", "B"} and len(value) == len(pair)
    return pair if is_pair else {}


def transcripts_in(value: Any) -> dict[str, list[Step]]:
    """Return the steps of a transcript, or of the two transcripts of a pair, by title."""
    if _is_messages(value):
        return {"": steps_of(value)}
    sides = sides_of(value)
    are_transcripts = all(map(_is_messages, sides.values()))
    return {title: steps_of(side) for title, side in sides.items()} if are_transcripts else {}


def steps_of(messages: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Divide stored messages into steps; each result belongs to its call."""
    steps: list[Step] = []
    # Places of calls by id; without ids by name, and all of them under no name.
    called: defaultdict[tuple[str, str], deque[int]] = defaultdict(deque)
    for message in messages:
        who, text = message["role"], message["content"]
        name = _name(message.get("name") or "")
        if who == "tool":
            call_id = message.get("tool_call_id") or ""
            waiting = called[call_id, "" if call_id else name]
            while waiting and steps[waiting[0]].result is not None:
                waiting.popleft()
            if waiting:
                steps[waiting[0]] = steps[waiting[0]]._replace(result=text)
            else:
                steps.append(Step(name or "a tool", "", is_call=True, result=text))
            continue
        if text.strip():
            steps.append(Step(f"{who} {name}" if name else who, text))
        calls = message.get("tool_calls") or ()
        for call in filter(itemgetter("id"), calls):
            called.pop((call["id"], ""), None)  # some models number the calls of each message
        for call in calls:
            call_id, function = call["id"], call["function"]
            name = _name(function["name"])
            for key in {(call_id, ""), (call_id, "" if call_id else name)}:
                called[key].append(len(steps))
            steps.append(Step(name, _call_text(function), is_call=True))
    is_answered = messages[-1]["role"] == "assistant" and messages[-1]["content"].strip()
    if steps and is_answered and not steps[-1].is_call:
        steps[-1] = steps[-1]._replace(is_answer=True)
    return steps


def _name(name: str) -> str:
    """Return a name on one line, without the characters that end a label."""
    return " ".join(_LABEL_END.sub(" ", name[: 2 * _NAME_CHARS]).split())[:_NAME_CHARS]


def _call_text(function: Mapping[str, str]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return f"({function['arguments']})"
    pairs = (f"{dump_json(key)[1:-1]}={dump_json(argument)}" for key, argument in arguments.items())
    return f"({', '.join(pairs)})"


def render(
    transcripts: Mapping[str, Sequence[Step]],
    max_size: int | None = None,
    measure: Callable[[str], int] = len,
) -> str:
    """Render the numbered steps of transcripts by title, at the highest level that fits.

    The level is the length to which texts are cut; below 0, how many steps are left out.
    `measure` is at least a third of a text's length.
    """
    parts = [part for steps in transcripts.values() for step in steps for part in step.parts]
    longest = max((len(text) for _, text, _ in parts), default=0)
    if max_size is None:
        return _render_at(transcripts, longest)

    def length(level: int) -> int:
        return sum(min(len(text), weight * level) for _, text, weight in parts)

    def size(level: int) -> int:
        return measure(_render_at(transcripts, level))

    highest = bisect_right(range(longest + 1), 3 * max_size, key=length) - 1
    levels = range(-max(map(len, transcripts.values())), highest + 1)
    best = len(levels) if size(highest) <= max_size else bisect_right(levels, max_size, key=size)
    return _render_at(transcripts, levels[max(best - 1, 0)])


def _render_at(transcripts: Mapping[str, Sequence[Step]], level: int) -> str:
    texts = {title: "\n".join(_lines(steps, level)) for title, steps in transcripts.items()}
    return "\n".join(f"{title}:\n{text}" if title else text for title, text in texts.items())


def _lines(steps: Sequence[Step], level: int) -> Iterator[str]:
    left_out = max(min(-level, len(steps) - 2), 0)
    begin = (len(steps) - left_out) // 2
    end = begin + left_out
    for number, step in enumerate(steps, start=1):
        if not begin < number <= end:
            # `splitlines` knows all line breaks: no line of a text may look like a step or result.
            texts = [
                "\n      ".join(f"{label}{_cut(text, max(weight * level, 0))}".splitlines())
                for label, text, weight in step.parts
            ]
            yield f"{number}. " + "\n   ".join(texts)
        elif number == end:
            counts = Counter(step.who for step in steps[begin:end]).most_common()
            names = ", ".join(f"{count} of {who}" for who, count in counts[:_MAX_COUNTED])
            names += ", and others" if len(counts) > _MAX_COUNTED else ""
            yield f"[... steps {begin + 1} to {end} left out: {names} ...]"


def _cut(text: str, max_length: int) -> str:
    """Cut the middle out of a text, if that makes it shorter."""
    if len(text) <= max_length + len(_MARK):
        return text
    return f"{text[: max_length * 2 // 3]}{_MARK}{text[len(text) - max_length // 3 :]}".strip()


def goal_tools_answer(steps: Sequence[Step]) -> tuple[list[str], list[str], str]:
    """Return the users' texts, the names of the tools called in order, and the last answer."""
    texts = [(step.who.partition(" ")[0], step.text) for step in steps if not step.is_call]
    answers = [text for who, text in texts if who == "assistant"]
    requests = [text for who, text in texts if who == "user"]
    return requests, [step.who for step in steps if step.is_call], answers[-1] if answers else ""
