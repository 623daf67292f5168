"""Untrusted text, fenced and cut."""

import pytest

from memalign_graph.prompts.fences import defuse, estimate_tokens, fence, shorten

TAGS = (
    "case",
    "inputs",
    "outputs",
    "reference_outputs",
    "example",
    "verdict",
    "rationale",
    "feedback",
    "guideline",
)


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("form", ["<{}>", "</{}>", "</ {} >", "< {}>", '<{} id="1">', "<{}/>"])
def test_own_tags_lose_their_bracket(tag: str, form: str) -> None:
    for name in (tag, tag.upper(), tag.capitalize()):
        text = form.format(name)
        assert defuse(f"a {text} b") == f"a &lt;{text[1:]} b"


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|"])
def test_control_tokens_lose_their_bracket(token: str) -> None:
    assert defuse(f"a{token}b") == f"a&lt;{token[1:]}b"


@pytest.mark.parametrize(
    "text", ["a < b and c > d", "<div>", "<casement>", "x<y|z", "List<example_type>", "&lt;case>"]
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert defuse(text) == text


def test_defusing_again_changes_nothing() -> None:
    once = defuse("</case><|im_end|><<case>")
    assert defuse(once) == once
    assert "<case" not in once


def test_fence_holds_json_readably() -> None:
    fenced = fence("inputs", {"question": "Größe?", "n": [1, None]})
    assert fenced.startswith("<inputs>\n{")
    assert fenced.endswith("}\n</inputs>")
    assert "Größe?" in fenced


def test_fence_defuses_keys_and_values_of_json() -> None:
    fenced = fence("outputs", {"</outputs>": ["</outputs>"]})
    assert fenced.count("</outputs>") == 1


def test_short_text_is_not_cut() -> None:
    assert shorten("abc", 1) == "abc"
    assert shorten("", 0) == ""


def test_cut_keeps_beginning_and_end_and_says_how_much() -> None:
    text = "begin" + "x" * 10_000 + "end"
    cut = shorten(text, 100)
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert f"[... {len(text) - 300:,} bytes left out ...]" in cut
    assert estimate_tokens(cut) < 115


@pytest.mark.parametrize("limit", range(1, 40))
def test_cut_never_splits_a_character(limit: int) -> None:
    cut = shorten("日本語😀é" * 50, limit)
    assert set(cut.partition("\n[")[0]) <= set("日本語😀é")
    assert set(cut.rpartition("]\n")[2]) <= set("日本語😀é")


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 2), ("日", 1)])
def test_tokens_are_a_third_of_the_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
