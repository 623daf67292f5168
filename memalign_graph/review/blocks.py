"""An example as blocks for a template: conversations, tables, code and text; never HTML."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memalign_graph.errors import visible
from memalign_graph.transcript import Step, read_messages, steps_of

_TITLES = {"inputs": "Inputs", "outputs": "Outputs", "reference_outputs": "Reference outputs"}
_MAX_CHARS, _MAX_ROWS = 200_000, 2_000  # of a section
_MAX_DEPTH = 2  # of nested tables
_LINE_CHARS = 60  # a shorter list is shown on one line
_FOLD_CHARS, _FOLD_LINES, _HEAD_CHARS, _HEAD_LINES = 1_500, 25, 1_000, 16

Kind = Literal["text", "code", "tool", "table", "turns", "sides"]


@dataclass(frozen=True)
class Block:
    """One element to show; `rows` are those of a table, the steps of a chat, or A and B."""

    kind: Kind
    text: str = ""
    folded: str = ""
    rows: Sequence[tuple[str, Sequence["Block"]]] = ()


@dataclass(frozen=True)
class Section:
    """The inputs, the outputs or the reference outputs of an example."""

    title: str
    blocks: Sequence[Block]
    left_out: int  # the number of characters that are not shown


@dataclass(frozen=True)
class Argument:
    """One argument of a tool call and of the call it is compared with."""

    name: str
    blocks: Sequence[Block]
    other: Sequence[Block]
    differs: bool


def tool_call(outputs: Any) -> dict[str, Any] | None:
    """Return the outputs if they are a tool call: a `name`, `args` and nothing else."""
    is_call = isinstance(outputs, dict) and outputs.keys() == {"name", "args"}
    is_typed = is_call and isinstance(outputs["name"], str) and isinstance(outputs["args"], dict)
    return outputs if is_typed else None


def arguments_of(call: Mapping[str, Any], other: Mapping[str, Any]) -> list[Argument]:
    """Compare the arguments of two tool calls; a missing argument has no blocks."""
    arguments = []
    for name in {**call["args"], **other["args"]}:
        values = [[each["args"][name]] if name in each["args"] else [] for each in (call, other)]
        blocks, other_blocks = (
            [block for value in each for block in _SectionBuilder().blocks(value)]
            for each in values
        )
        this, that = (json.dumps(value, sort_keys=True) for value in values)
        arguments.append(Argument(visible(name), blocks, other_blocks, differs=this != that))
    return arguments


def sections_of(example_json: Mapping[str, Any], *, pairwise: bool = False) -> list[Section]:
    sections = []
    for key, title in _TITLES.items():
        value = example_json.get(key)
        if key == "outputs" and pairwise and isinstance(value, list):
            value = dict(zip("AB", value, strict=False))
        if value is None:
            continue
        builder = _SectionBuilder()
        call = tool_call(value) if key == "outputs" else None
        is_pair = key == "outputs" and isinstance(value, dict) and set(value) == {"A", "B"}
        if call is not None:
            blocks = [builder.block("tool", call["name"]), *builder.blocks(call["args"])]
        elif is_pair:
            blocks = [builder.rows("sides", value.items())]
        else:
            blocks = builder.blocks(value)
        sections.append(Section(title, blocks, builder.left_out))
    return sections


class _SectionBuilder:
    """Builds one section, up to the maximum sizes."""

    def __init__(self) -> None:
        self.chars_left, self.left_out, self.rows_left = _MAX_CHARS, 0, _MAX_ROWS

    def blocks(self, value: Any, depth: int = 0) -> list[Block]:
        if isinstance(value, str):
            return self.texts(value)
        line = json.dumps(value, ensure_ascii=False)
        messages = read_messages(value, "", lenient=True)
        is_short = not value or (isinstance(value, list) and len(line) <= _LINE_CHARS)
        if not isinstance(value, dict | list) or (is_short and messages is None):
            return [self.block("text", line)]
        if len(value) > self.rows_left or depth == _MAX_DEPTH:
            return [self.block("code", json.dumps(value, ensure_ascii=False, indent=2))]
        self.rows_left -= len(value)
        if messages is not None:
            return [self.steps(steps_of(messages))]
        named = value.items() if isinstance(value, dict) else enumerate(value, start=1)
        return [self.rows("table", named, depth + 1)]

    def rows(self, kind: Kind, named: Iterable[tuple[Any, Any]], depth: int = 0) -> Block:
        rows = [(visible(str(key)), self.blocks(value, depth)) for key, value in named]
        return Block(kind, rows=rows)

    def steps(self, steps: Iterable[Step]) -> Block:
        rows = []
        for number, step in enumerate(steps, start=1):
            for place, (label, text, _) in enumerate(step.parts):
                name = label if place else f"{number}. {label}"
                is_arguments = step.is_call and not place and step.text
                blocks = [self.block("code", text)] if is_arguments else self.texts(text)
                rows.append((visible(name.rstrip(": ")), blocks))
        return Block("turns", rows=rows)

    def texts(self, text: str) -> list[Block]:
        return [self.block("text", text.strip("\n"))] if text.strip() else []

    def block(self, kind: Kind, text: str) -> Block:
        beginning = text[: self.chars_left]
        self.chars_left -= len(beginning)
        self.left_out += len(text) - len(beginning)
        if len(beginning) <= _FOLD_CHARS and beginning.count("\n") < _FOLD_LINES:
            return Block(kind, visible(beginning))
        head = "\n".join(beginning[:_HEAD_CHARS].split("\n")[:_HEAD_LINES])
        return Block(kind, visible(head), visible(beginning[len(head) :].lstrip("\n")))
