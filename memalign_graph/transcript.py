"""Messages as numbered steps: for prompts, for embedding, and for people.

A step is a message's text, or a tool call with its result. If the steps do not fit, all texts are
cut to one length: results to that length, messages and calls to four times as much. If not even the
names of the steps fit, the middle steps are counted by name. Texts are not escaped for a prompt,
but their lines are indented, so that no line of a text looks like a step.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from memalign_graph.messages import dump_json, read_messages

_TEXT_WEIGHT = 4  # of messages and calls; results have 1
_NAME_CHARS = 64
_MAX_COUNTED = 20  # names of steps left out
_MARK = " [...] "  # replaces what was cut
_LABEL_END = re.compile(r"[()<>]|:(?!\w)")


class Step(NamedTuple):
    """A message's text, a tool call with its result, or a result without a call."""

    who: str
    """`user`, `assistant` or `system`, with the name if there is one; or the tool's name."""
    text: str
    """The message's text, or the call's arguments."""
    is_call: bool = False
    result: str | None = None
    """What the tool returned, if anything."""
    is_answer: bool = False
    """Whether this is an assistant's text, and the last message."""

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


def transcripts_in(value: Any) -> dict[str, list[Step]]:
    """Return the steps of a transcript, or of the two transcripts of a pair, by title."""
    if _is_messages(value):
        return {"": steps_of(value)}
    pair = dict(zip("AB", value, strict=False)) if isinstance(value, list) else value
    is_pair = isinstance(pair, dict) and pair.keys() == {"A", "B"} and len(value) == len(pair)
    if not is_pair or not all(map(_is_messages, pair.values())):
        return {}
    return {title: steps_of(messages) for title, messages in pair.items()}


def steps_of(messages: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Divide stored messages into steps; each result belongs to its call."""
    steps: list[Step] = []
    waiting: dict[str, list[int]] = {}  # the calls without a result, by id
    for message in messages:
        who, text = message["role"], message["content"]
        name = _name(message.get("name") or "")
        if who == "tool":
            indices = waiting.get(message.get("tool_call_id") or "", [])
            if indices:
                named = (index for index in indices if steps[index].who == name)
                index = next(named, indices[0]) if name else indices[0]
                indices.remove(index)
                steps[index] = steps[index]._replace(result=text)
            else:
                steps.append(Step(name or "a tool", "", is_call=True, result=text))
            continue
        if text.strip():
            steps.append(Step(f"{who} {name}" if name else who, text))
        calls = message.get("tool_calls") or ()
        for call in filter(itemgetter("id"), calls):
            waiting.pop(call["id"], None)  # some models number the calls of each message
        for call in calls:
            function = call["function"]
            waiting.setdefault(call["id"], []).append(len(steps))
            steps.append(Step(_name(function["name"]), _call_text(function), is_call=True))
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
    levels = [*range(-max(map(len, transcripts.values())), 0)]
    levels += [*range(0, highest, max(highest // 64, 1)), highest]
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
