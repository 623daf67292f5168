"""Parts of prompts: untrusted text in tags that it cannot close, shortened to a token budget.

Also n-grams, to find what two texts share in any script. Scripts without spaces are split into
overlapping pieces of a few characters; of a Hangul word only the beginning counts, as its ending is
a particle.
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from memalign_graph.agreement import consensus_value
from memalign_graph.errors import excerpt
from memalign_graph.memory.guidelines import normalize_text
from memalign_graph.transcript import Step, goal_tools_answer, render, sides_of, transcripts_in
from memalign_graph.types import Criterion, Episode, Example

_TAGS = "case|inputs|outputs|reference_outputs|example|verdict|rationale|feedback|guideline"
# Of the chat templates of widespread models: `<|im_end|>`, `<turn|>`, `</s>`, `[/INST]` and others.
_TOKENS = (
    r"[|\uff5c]|\w{1,40}\|>|/?sys>>|/?s>|(?:bos|eos)(?:_token)?>|(?:start|end)_of_turn>|"
    r"/?(?:think|tool_calls?|tool_response)>"
)
_BRACKETED = r"inst|system_prompt|available_tools|tool_(?:calls|content|results)|think|gmask"
# Also in fullwidth forms. Possessive, so that the text after a "<" is read once. One set has all
# brackets: `re` skips to its characters, and would try two alternatives at each position.
_TAG_OR_CONTROL_TOKEN = re.compile(
    rf"[<\uff1c\ufe64\[](?:(?<!\[)(?=[\s/\uff0f]*+(?:{_TAGS})\b|{_TOKENS})"
    rf"|(?<=\[)(?=/?(?:{_BRACKETED})\]))",
    re.IGNORECASE,
)
_IMITATED_STEP = re.compile(
    r"(?:^|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])[ \t]*+(?:(?<=[ \t])returned: |\d+\. (?:called "
    r"[^\n(]{1,64}\(|[^\n:]{1,64} returned: |(?:user|assistant|system)\b[^\n:]{0,80}: ))"
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{64,}")
_MAX_BYTES_PER_TOKEN = 3  # of `estimate_tokens`


def estimate_tokens(text: str) -> int:
    """Estimate a text's tokens, rather too many than too few."""
    # English has about four bytes a token, code and other scripts about three.
    data = text.encode()
    others = len(data.translate(None, b"0123456789"))
    tokens = len(data) - others + math.ceil(others / 3)
    # An emoji is two tokens or more. Base64 has a token for two bytes, and many digits.
    tokens += len(data) - len(data.translate(None, b"\xf0\xf1\xf2\xf3\xf4"))
    if len(data) - others > len(data) // 20:
        tokens += sum(map(len, _BASE64.findall(data))) // 3
    return tokens


def sent_tokens(value: Any, max_tokens: int) -> int:
    """Estimate the tokens of a value as a prompt has it, which cuts it to `max_tokens`."""
    # More bytes than these have `max_tokens` in any case.
    text = as_text(value)[: _MAX_BYTES_PER_TOKEN * max_tokens]
    return min(estimate_tokens(escape_tags(text)), max_tokens)


def fence(tag: str, value: Any, *, max_tokens: int) -> str:
    return _in_tag(tag, fit(value, max_tokens))


def _in_tag(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"


def as_text(value: Any, max_chars: int | None = None) -> str:
    """Return a value as text: messages as numbered steps, within about `max_chars`."""
    if transcripts := transcripts_in(value):
        return render(transcripts, max_chars)
    if isinstance(value, dict) and len(value) == 1:
        [only] = value.values()
        value = only if isinstance(only, str) else value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    # An answer that imitates a transcript is one step of it.
    return render({"": [Step("text", text)]}) if _IMITATED_STEP.search(text) else text


def headline(value: Any, max_chars: int) -> str:
    """Return the beginning of a value, or of a transcript's answer, on one line."""
    answer = goal_tools_answer(transcripts_in(value).get("", []))[2]
    return excerpt(" ".join((answer or as_text(value)).split()), max_chars)


def fit(value: Any, max_tokens: int) -> str:
    """Return a value as text within a budget, with the prompt's tags escaped."""
    transcripts, sides = transcripts_in(value), sides_of(value)
    if sides and not transcripts and sent_tokens(value, max_tokens + 1) > max_tokens:
        # Each side is cut on its own, so that the border between them stays.
        transcripts = {title: [Step("text", as_text(side))] for title, side in sides.items()}
    if not transcripts:
        return clip(as_text(value), max_tokens)
    text = render(transcripts, max_tokens, lambda text: estimate_tokens(escape_tags(text)))
    return shorten(escape_tags(text), max_tokens)


def escape_tags(text: str) -> str:
    """Escape the prompt's tags and control tokens in a text."""
    return _TAG_OR_CONTROL_TOKEN.sub(lambda mark: "&#91;" if mark[0] == "[" else "&lt;", text)


def clip(text: str, max_tokens: int) -> str:
    """Shorten a text, then escape it, which is linear in the budget; shorten more if that adds."""
    budget, clipped = max_tokens, escape_tags(shorten(text, max_tokens))
    while budget > 0 and (size := estimate_tokens(clipped)) > max_tokens:
        budget = budget * max_tokens // size
        clipped = escape_tags(shorten(text, budget))
    return clipped


def shorten(text: str, max_tokens: int) -> str:
    """Cut the middle out of a text that is too long."""
    if len(text) <= _MAX_BYTES_PER_TOKEN * max_tokens and estimate_tokens(text) <= max_tokens:
        return text
    data = text.encode()
    max_bytes = max(max_tokens, 1) * len(data) // estimate_tokens(text)
    head, tail = data[: max_bytes * 2 // 3], data[len(data) - max_bytes // 3 :]
    left_out = len(data) - len(head) - len(tail)
    return (
        f"{head.decode(errors='ignore')}\n[... {left_out:,} bytes left out ...]\n"
        f"{tail.decode(errors='ignore')}"
    )


def numbered(texts: Iterable[str], start: int = 1) -> list[str]:
    return [f"{number}. {escape_tags(text)}" for number, text in enumerate(texts, start)]


def render_criterion(criterion: Criterion) -> str:
    return (
        f'Criterion "{criterion.name}":\n{criterion.instructions.strip()}\n\n'
        f"The value is {criterion.scale.describe()}"
    )


def render_example(tag: str | None, example: Example, *, max_tokens: int) -> tuple[str, bool]:
    """Return an example with each part in its tag, and whether something was cut."""
    values = {"inputs": example.inputs, "outputs": example.outputs}
    if example.reference_outputs is not None:
        values["reference_outputs"] = example.reference_outputs
    # Shorten first, so that of a huge text only what can be shown is escaped.
    escaped = {name: fit(value, 2 * max_tokens) for name, value in values.items()}
    sizes = {name: estimate_tokens(_in_tag(name, text)) for name, text in escaped.items()}
    is_cut = sum(sizes.values()) > max_tokens
    if is_cut:
        limits = _split_budget(sizes, max_tokens)
        escaped = {name: fit(values[name], limit) for name, limit in limits.items()}
    text = "\n".join(_in_tag(name, part) for name, part in escaped.items())
    return text if tag is None else _in_tag(tag, text), is_cut


def _split_budget(sizes: dict[str, int], budget: int) -> dict[str, int]:
    """Divide a budget: small parts get what they need, large ones share the rest."""
    limits: dict[str, int] = {}
    for done, name in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        limits[name] = min(sizes[name], budget // (len(sizes) - done))
        budget -= limits[name]
    return limits


def render_feedback(
    episodes: Sequence[Episode],
    criterion: Criterion,
    *,
    names: Sequence[str] | None = None,
    has_label: bool,
    max_tokens: int,
) -> tuple[list[str], bool]:
    """Return lines with the experts' feedback on one example, and whether something was cut."""
    lines: list[str] = []
    several = len(episodes) > 1
    label = "The expert's reason:\n" if has_label else ""
    for number, episode in enumerate(episodes):
        name = f"{names[number] if names else number + 1}. " if several else ""
        if episode.value is not None:
            lines.append(f"{name}The expert's value: {criterion.scale.show(episode.value)}")
        if episode.rationale is not None:
            comment = fence("rationale", episode.rationale, max_tokens=max_tokens)
            lines.append(f"{name}{label}{comment}")
    value = consensus_value(episodes, criterion.scale)
    if several and value is not None:
        lines.append(f"The value that counts here: {criterion.scale.show(value)}")
    return lines, any(estimate_tokens(episode.rationale or "") > max_tokens for episode in episodes)


def strict_object_schema(properties: Mapping[str, Any], **head: str) -> dict[str, Any]:
    """Return the JSON Schema of an object with exactly these properties."""
    return {
        **head,
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def list_in(answer: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list in a model's answer; a `ValueError` if there is none."""
    items = answer.get(name)
    if not isinstance(items, list):
        raise ValueError(f'it has no list of "{name}"')
    return items


_HANGUL = "\uac00-\ud7a3"
_HAN = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"  # and kana
_THAI = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # and Lao, Burmese and Khmer
_STRETCH = (
    f"([{_HANGUL}]{{1,2}})[{_HANGUL}]*|(?P<han>[{_HAN}]+)|(?P<thai>[{_THAI}]+)"
    f"|([^ {_HANGUL}{_HAN}{_THAI}]+)"
)
_FORMAT = "Cf"  # Unicode's category of characters without a width, which may split a word unseen
_PIECE_CHARS = {"han": 2, "thai": 3}  # about as informative as a word
_NGRAM_SIZE = 6  # words in a row that two texts do not share by chance
_MIN_REPEATED_WORDS = 4  # shorter texts may match by chance

STOP_WORDS = """\
a an and are as at be but by case criterion do does for guideline has have if in is it its must no \
not of on or output outputs rule s should so t than that the then this to value when whether which \
with
값 값은 값이 값을 해야 한다 합니다 하면 않으면 아니면 있다 없다 경우 기준 규칙
值 是 为 则 不 的 时 必须 应该 应当 如果 标准 规则
値 は が を に の と も です ます である でない なければならない べき 場合 基準 規則
ค่า คือ เป็น ต้อง ควร ถ้า หาก ไม่ แล้ว และ ที่ จะ มี เกณฑ์ กฎ
يجب أن إذا هو هي هذا هذه في من على لا لم ليس كان كانت تكون يكون القيمة المعيار القاعدة
"""
"""Words without content. In a language that is missing here all words count as content, so that a
rule is kept rather than refused."""


def is_placeholder(text: str) -> bool:
    """Return whether a model filled a field with a word that stands for nothing."""
    return normalize_text(text) in ("none", "nothing", "null", "n/a", "empty")


def split_words(text: str) -> list[str]:
    return [
        stretch[start : start + (size or len(stretch))]
        for stretch, size in _tokenize(text)
        for start in range(max(len(stretch) - size, 0) + 1 if size else 1)
    ]


class Words:
    """The words of a long text, whose n-grams are built once for many comparisons."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = words
        self._ngrams: dict[int, set[tuple[str, ...]]] = {}

    def ngrams(self, size: int) -> set[tuple[str, ...]]:
        if size not in self._ngrams:
            starts = range(len(self.words) - size + 1)
            self._ngrams[size] = {tuple(self.words[start : start + size]) for start in starts}
        return self._ngrams[size]


def repeats(text: str, source: Words, known: Words) -> bool:
    """Return whether a text repeats a run of a source's words that is not in `known` words."""
    words = Words(split_words(text))
    size = min(_NGRAM_SIZE, len(words.words))
    if size < _MIN_REPEATED_WORDS:
        return False
    copied = words.ngrams(size) & source.ngrams(size)
    return bool(copied and copied - known.ngrams(size))


def adds_information(text: str, known: str) -> bool:
    """Return whether a text has a word (or character, without spaces) that `known` lacks."""
    pieces = set(split_words(known))
    for stretch, size in _tokenize(text):
        known_places = {
            place
            for length in (range(1, size + 1) if size else [len(stretch)])
            for start in range(len(stretch) - length + 1)
            if stretch[start : start + length] in pieces
            for place in range(start, start + length)
        }
        if len(known_places) < len(stretch):
            return True
    return False


def _tokenize(text: str) -> Iterator[tuple[str, int]]:
    """Yield words with 0, and runs of a script without spaces with the size of their pieces."""
    words = "".join(map(_word_character, normalize_text(text)))
    for match in re.finditer(_STRETCH, words):
        yield match[match.lastindex or 0], _PIECE_CHARS.get(match.lastgroup or "", 0)


@lru_cache(maxsize=10_000)  # several scripts, not all of Unicode
def _word_character(character: str) -> str:
    """Return the character, a space if no word has it, or nothing if it is invisible."""
    category = unicodedata.category(character)
    if category == _FORMAT:
        return ""
    return character if category[0] in "LMN" else " "
