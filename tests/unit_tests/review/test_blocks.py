"""Examples rendered as blocks: types and size limits."""

from typing import Any

import pytest

from memalign_graph.review.blocks import Block, arguments_of, sections_of
from memalign_graph.review.tasks import title_of


def outputs(value: Any, **options: Any) -> tuple[Block, ...]:
    section = sections_of({"inputs": "?", "outputs": value}, **options)[1]
    return tuple(section.blocks)


def text_of(blocks: Any) -> str:
    """Return all text, collapsed or not."""
    texts = [text for block in blocks for text in (block.text, block.folded)]
    return "".join([*texts, *(text_of(parts) for block in blocks for _, parts in block.rows)])


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("<b>plain</b>", ["text"]),
        ("SELECT name\nFROM customers", ["text"]),
        ({"rows": 3}, ["table"]),
        (["one text of several that a search found", "and a second one"], ["table"]),
        ([1, 2, 3], ["text"]),
        ([{"type": "ai", "content": "Hello"}], ["turns"]),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], ["turns"]),
        ({"A": "this", "B": "that"}, ["sides"]),
        ([], ["text"]),
    ],
)
def test_value_is_rendered_by_its_type(value: Any, kinds: list[str]) -> None:
    assert [block.kind for block in outputs(value)] == kinds


def test_values_under_keys() -> None:
    call = {"name": "refund", "args": {"invoice": 4472}}
    answer = {"role": "ai", "content": "", "tool_calls": [call]}
    messages = [{"role": "human", "content": "Hi"}, answer]
    [table] = outputs({"messages": messages, "sql": "select 1", "deep": {"a": {}}})
    rows = dict(table.rows)
    kinds = [block.kind for blocks in rows.values() for block in blocks]
    assert kinds == ["turns", "text", "table"]
    assert [role for role, _ in rows["messages"][0].rows] == ["1. user", "2. called refund"]
    assert "4472" in text_of(rows["messages"])


def test_two_outputs_are_shown_side_by_side() -> None:
    [pair] = outputs(["first", "second"], pairwise=True)
    displayed = [(name, text_of(blocks)) for name, blocks in pair.rows]
    assert displayed == [("A", "first"), ("B", "second")]


def test_long_text_is_collapsed_and_complete() -> None:
    for text in ("word " * 1_000, "line\n" * 30 + "end"):
        [block] = outputs(text)
        assert block.folded
        assert "".join(text_of([block]).split()) == "".join(text.split())


@pytest.mark.parametrize("blank", [" ", "\t", "\u2028"])
@pytest.mark.parametrize("blanks", [100, 999, 1_000, 2_000])
def test_long_text_with_leading_blanks_is_shown_once(blank: str, blanks: int) -> None:
    text = blank * blanks + "x" * 1_500
    assert text_of(outputs(text)) == text


@pytest.mark.parametrize("calls", ["refund", 5, {"name": "refund"}, None, []])
def test_tool_calls_of_any_type_are_shown(calls: Any) -> None:
    [chat] = outputs([{"role": "assistant", "content": "Done.", "tool_calls": calls}])
    displayed = text_of([chat])
    assert "Done." in displayed
    assert not calls or str(calls if isinstance(calls, int) else "refund") in displayed


def test_outputs_without_text_have_a_title() -> None:
    assert title_of([{"role": "assistant", "content": ""}]) == "(empty)"


def test_one_megabyte_is_truncated_with_a_note() -> None:
    chat = [{"role": "user", "content": "x"}] * 30_000
    for value in ("word " * 200_000, {"a": "word " * 200_000}, chat, [[1] * 500] * 500):
        [section] = sections_of({"outputs": value})
        assert len(text_of(section.blocks)) <= 200_000
        assert section.left_out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm /tmp/\u202efdp.gnp\u202c now", r"rm /tmp/\u202efdp.gnp\u202c now"),
        ("\u2066hidden\u2069 \x1b[2J\x08\x00\x9b", r"\u2066hidden\u2069 \x1b[2J\x08\x00\x9b"),
        ("\u200f100 > 20, 5\u061c - 90\u200e", r"\u200f100 > 20, 5\u061c - 90\u200e"),
        ("Fine.\U000e0001\U000e004f\U000e007f", r"Fine.\U000e0001\U000e004f\U000e007f"),
        ("שלום\u200f, one\ttab\r\nand a line \U0001f469\u200d\U0001f4bb", None),
    ],
)
def test_invisible_and_bidirectional_characters_are_escaped(text: str, shown: str | None) -> None:
    shown = text if shown is None else shown
    assert text_of(outputs(text)) == shown
    call = {"name": text, "args": {text: text}}
    tool, arguments = outputs(call)
    assert (text_of([tool]), arguments.rows[0][0]) == (shown, shown)
    [argument] = arguments_of(call, {"name": "x", "args": {}})
    assert (argument.name, text_of(argument.blocks)) == (shown, shown)
    assert title_of(text) == " ".join(shown.split())
