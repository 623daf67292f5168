"""The rule on untrusted text: whether a call's address, amount or identifier is a tool's words."""

import html
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from memalign_graph.conversation import questions_in
from memalign_graph.memory.traces import texts_in
from memalign_graph.transcript import ENCODED_BYTES, OWN_PARTS

_DESTINATION = re.compile(
    r"(?:to|b?cc|recipient|e?mail|address|ur[li]|link|domain|host|phone|iban|account|wallet|payee|"
    r"amount|price|sum|total|id|uuid|number)(?:e?s)?",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # the word of `IDs` or `TOaddress`
_WORD_AFTER_CAPITALS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # the words of `USDAmount`
_PART = re.compile(r"[^\s<>,;:()\[\]{}|\"`\u201c\u201d\u00ab\u00bb$\u00a3\u00a5\u20a0-\u20cf]+")
"""A part of a value, such as the address in `Bob <bob@example.com>` or the amount in `$5`."""
# Letters of other scripts are the text around an address or a number, such as Chinese words.
_LETTERS = re.compile("[a-z0-9]+")
# At most eight groups, so that the work is linear. Groups are not possessive (`(...)++`), which
# Python 3.11 before 3.11.5 matches wrongly.
_NUMBER = re.compile(
    r"(?<![a-z0-9])(?<!\d[.,])"
    r"(\d{1,3}(?:[ ,.'\u2019]\d{3}){1,8}(?![ ,.'\u2019]\d{3})|\d{1,2}(?:,\d\d(?!\d))+,\d{3}|\d++)"
    r"(?:[.,](\d++))?(?![a-z0-9]|[.,]\d)"
)
_UNSEEN = re.compile(  # control characters, and what has no width
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SHORT_WORD = re.compile(r"\b\w{1,2}\b")
_ARABIC_SIGNS = {0x066B: ".", 0x066C: ","}  # of decimals and of thousands
_DIGIT_OR_DASH = re.compile(r"(?![0-9])\d|[\u2010-\u2015\u2212]")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))|&#?\w{1,99};?", re.DOTALL)
_MAX_DECODINGS = 3
_MAX_DESTINATIONS = 1_000


def repeats_tool_text(
    args: Mapping[str, Any], messages: Sequence[Any], asked_ids: Collection[str] = ()
) -> bool:
    """Return whether an address, amount or identifier comes from a tool and not from the user.

    The value, or a part of it with an `@` or a digit, occurs in a tool's result since the user's
    last message, and in nothing that the user wrote. The words of an argument's name show that it
    is such a field, as in `recipient_email`, `orderId` or `amount`. The last message has the call.
    """
    if not (values := dict.fromkeys(_destinations(args, named=False))):
        return False
    questions = questions_in(messages, asked_ids)
    since = messages[questions[-1] + 1 if questions else 0 :]
    caller = getattr(messages[-1], "name", None)
    texts = {text for message in since for text in _returned_texts(message, caller)}
    # Small numbers occur by chance in the bytes of a picture.
    texts = {ENCODED_BYTES.sub(lambda data: _SHORT_WORD.sub("", data[0]), text) for text in texts}
    returned = [_with_words(decoded) for text in texts for decoded in _decodings(text)]
    written = [_with_words(messages[place].text, is_users=True) for place in questions]
    return (len(values) > _MAX_DESTINATIONS and bool(returned)) or any(
        _occurs_in(value, returned) and not _occurs_in(value, written) for value in values
    )


def _comparable(text: str) -> str:
    """Return a text without what a model may leave out or change when it copies an address."""
    text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text)).casefold()
    text = text.translate(_ARABIC_SIGNS)
    return _DIGIT_OR_DASH.sub(lambda each: str(unicodedata.digit(each[0], "-")), text)


def _with_words(text: str, *, is_users: bool = False) -> tuple[str, set[str]]:
    """Return a text as values are compared with it, with its numbers, and its words."""
    # An unseen character may part two words or split one.
    text = "\n".join(dict.fromkeys(map(_comparable, (text, _UNSEEN.sub(" ", text)))))
    text = " ".join([text, *_numbers(text, is_users=is_users)])
    return text, {*_LETTERS.findall(text)}


def _numbers(text: str, *, is_users: bool = False) -> Iterator[str]:
    """Yield the formatted numbers of a text as a program writes them: `$1,000.50` is `1000.5`."""
    for number in _NUMBER.finditer(text):
        digits = "".join(filter(str.isdigit, number[1]))
        decimals = (number[2] or "").rstrip("0")
        plain = f"{digits}.{decimals}" if decimals else digits
        may_be_small = is_users and "." in number[1] and not number[2]  # 1.000 is 1 in English
        if plain != number[0] and not may_be_small:
            yield plain


def _decodings(text: str) -> Iterator[str]:
    """Yield a text, then without the escapes of JSON, Markdown and HTML, which may be nested."""
    yield text
    for _ in range(_MAX_DECODINGS):
        decoded = _ESCAPE.sub(_decode, text)
        if decoded == text:
            return
        yield (text := decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _decode(escape: re.Match[str]) -> str:
    code, character = escape.groups()
    if code:
        return chr(int(code, 16))
    if character:
        return " " if character in "bfnrt" else character
    return html.unescape(escape[0])


def _returned_texts(message: Any, caller: str | None) -> set[str]:
    """Return what tools say in a message: JSON or a document counts as well as text.

    What another agent than the caller says may be a tool's text, too.
    """
    content = getattr(message, "content", None)
    if isinstance(message, AIMessage) and message.name == caller:
        # A provider runs some tools itself, such as a web search, within the model's message.
        parts = content if isinstance(content, list) else []
        parts = [part for part in parts if isinstance(part, dict)]
        ran = [part for part in parts if part.get("type") not in OWN_PARTS]
        cited = [part.get(name) for part in parts for name in ("citations", "annotations")]
        texts = {*texts_in([ran, cited])}
        return {str(ran), *texts} if texts else set()
    # A note of middleware may be a summary of tools' results.
    if not isinstance(message, AIMessage | ToolMessage | HumanMessage):
        return set()
    # `str` also writes numbers, but not all texts as they are.
    return {message.text, str(content), *texts_in(content)}


def _destinations(value: Any, *, named: bool) -> Iterator[str]:
    """Yield the values of fields whose names mean an address, an amount or an identifier."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            words = _WORD.findall(str(name)) + _WORD_AFTER_CAPITALS.findall(str(name))
            is_named = any(map(_DESTINATION.fullmatch, words))
            yield from _destinations(part, named=named or is_named)
            yield from _distinctive_parts(_comparable(str(name))) if named else ()
    elif isinstance(value, list):
        for part in value:
            yield from _destinations(part, named=named)
    elif named and isinstance(value, str | int | float) and not isinstance(value, bool):
        text = _comparable(str(value)).strip()
        yield from [text] if text else []
        yield from _distinctive_parts(text)
        yield from _numbers(text)


def _distinctive_parts(text: str) -> Iterator[str]:
    parts = (part.strip("'\u2018\u2019.!?") for part in _PART.findall(text))
    return (part for part in parts if re.search(r"[@\d]", part))


def _occurs_in(value: str, texts: Sequence[tuple[str, set[str]]]) -> bool:
    """Return whether a text has a value, and not as a part of a longer word or number."""
    words, literal = _LETTERS.findall(value), re.escape(value)
    # `re` finds a beginning that is literal fast.
    pattern = rf"{literal}(?![a-z0-9])(?<![a-z0-9]{literal})"
    return any(
        known.issuperset(words) and (value in known or re.search(pattern, text))
        for text, known in texts
    )
