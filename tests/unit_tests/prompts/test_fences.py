"""Escaping and truncation of untrusted text."""

import math
from base64 import b64encode
from hashlib import sha512
from html import unescape

import pytest

from memalign_graph import Example
from memalign_graph.prompts import fences
from memalign_graph.prompts.fences import (
    clip,
    escape_tags,
    estimate_tokens,
    fence,
    fit,
    render_example,
    shorten,
)

TAGS = (
    *("case", "inputs", "outputs", "reference_outputs", "example"),
    *("verdict", "rationale", "feedback", "guideline"),
)
FORMS = ("<{}>", "</ {} >", "< {}>", '<{} id="1">', "<{}/>", "< /{}>", "<\r\n/\t{}>")


@pytest.mark.parametrize("tag", TAGS)
def test_tags_of_the_prompt_are_escaped(tag: str) -> None:
    for form in FORMS:
        for text in (form.format(tag), form.format(tag.upper())):
            assert escape_tags(f"a {text} b") == f"a &lt;{text[1:]} b"
            assert fence("outputs", text, max_tokens=99).count("<") == 2
    assert fence("outputs", {f"</{tag}>": [f"</{tag}>"]}, max_tokens=99).count("<") == 2


CONTROL_TOKENS = (
    *(
        "<|im_end|>",
        "<<|",
        "<\uff5cAssistant\uff5c>",
        "\uff1c|im_end|>",
        "<turn|>",
        "<end_of_turn>",
        "<bos>",
    ),
    *("</s>", "<<SYS>>", "<</SYS>>", "</think>", "<tool_call>", "</tool_response>"),
    *("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[/TOOL_RESULTS]", "[gMASK]"),
    *("\uff1c/outputs\uff1e", "\uff1c\uff0foutputs\uff1e", "\ufe64case\ufe65"),
)


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_control_tokens_of_chat_templates_and_fullwidth_tags_are_escaped(token: str) -> None:
    escaped = escape_tags(f"a{token}b")
    assert token not in escaped
    assert unescape(escaped).replace("<", token[0]) == f"a{token}b"
    assert escape_tags(escaped) == escaped


@pytest.mark.parametrize(
    "text",
    [
        *("a < b and c > d", "<casement>", "x<y|z", "List<example_type>", "&lt;case>"),
        *("<section>", "<span>", "[instance]", "array[i]", "\uff1c\u65e5\u672c\uff1e"),
    ],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert escape_tags(text) == text
    assert shorten(text, 100) == text


def test_truncation_keeps_both_ends_states_its_size_and_splits_no_character() -> None:
    text = "begin" + "x" * 10_000 + "end"
    cut = shorten(text, 100)
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert f"[... {len(text) - 300:,} bytes left out ...]" in cut
    assert estimate_tokens(cut) < 115
    for limit in range(1, 40):
        cut = shorten("日本語😀é" * 50, limit)
        assert set(cut.partition("\n[")[0] + cut.rpartition("]\n")[2]) <= set("日本語😀é")
    for short, size in (("", 0), ("a", 1), ("abcd", 2), ("日", 1), ("12", 2)):
        assert estimate_tokens(short) == size


def test_base64_and_emoji_have_more_tokens_than_other_text() -> None:
    encoded = b64encode(b"".join(sha512(bytes([n])).digest() for n in range(50))).decode()
    assert estimate_tokens(encoded) > 0.7 * len(encoded)
    assert estimate_tokens("\U0001f600" * 99) > 2 * 99
    prose = "The parcel came late. It took 12 days, from 3 May to 15 May 2026.\n"
    path = "/home/user/projects/2026/application/components/page.py "
    for text in (prose, path, '{"a": [1, 22, null]}', "我的订单一直没有到", "=" * 80):
        size, digits = len(text.encode()), sum(map(str.isdigit, text))
        assert estimate_tokens(text) == digits + math.ceil((size - digits) / 3)


@pytest.mark.parametrize("text", ["x" * 100_000, "<case>" * 20_000, "日本語" * 9_000])
def test_text_that_is_cut_and_escaped_says_how_much_is_left_out(text: str) -> None:
    clipped = clip(text, 300)
    assert 270 < estimate_tokens(clipped) <= 300
    head, tail = clipped.split("\n[... ")
    number, tail = tail.split(" bytes left out ...]\n")
    kept = len(unescape(head + tail).encode())
    # Parts of characters at the cuts are dropped.
    assert 0 <= len(text.encode()) - kept - int(number.replace(",", "")) < 8
    assert clip("x" * 9, 0).count("bytes left out") == 1


def test_each_side_of_a_pair_that_is_too_long_is_cut_on_its_own() -> None:
    first, second = "alpha " * 3_000, "omega " * 3_000
    for pair in ([first, second], {"A": first, "B": second}, [first, {"text": second}]):
        text = fit(pair, 1_000)
        assert estimate_tokens(text) <= 1_000
        side_a, side_b = text.split("\nB:\n")
        assert side_a.startswith("A:\n1. text: alpha")
        assert side_a.count("alpha") == side_b.count("omega") > 200
        assert "omega" not in side_a
    assert fit(["a", "b"], 1_000) == '[\n "a",\n "b"\n]'


def test_fields_of_an_example_share_its_budget() -> None:
    example = Example(inputs={"a": ["ö"]}, outputs="o" * 9000, reference_outputs="r" * 600)
    whole, is_cut = render_example("case", example, max_tokens=100_000)
    assert not is_cut
    assert whole.startswith('<case>\n<inputs>\n{\n "a": [\n  "ö"')
    assert whole.endswith("</reference_outputs>\n</case>")
    text, is_cut = render_example(None, example, max_tokens=1200)
    assert is_cut
    assert text.startswith("<inputs>")
    assert "r" * 600 in text
    assert "bytes left out" in text
    assert 1100 < estimate_tokens(text) < 1260


def test_words_have_marks_and_no_invisible_characters() -> None:
    assert fences.split_words("A\u200bb, c\u0301d-\u3007") == ["ab", "\u0107d", "\u3007"]
