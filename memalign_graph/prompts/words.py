"""What two texts share, in any script: with blanks between the words, or without.

Nothing here goes by how long a text or a word is. A script without blanks is read in overlapping
pieces of a few characters, Hangul by the beginnings of its words, since endings hang on them.
"""

import re
import unicodedata
from collections.abc import Iterator

from memalign_graph.memory.learning import plain_words

_RUN_WORDS = 6
"""So many words in a row that two texts have are no coincidence."""

_WORD_CHARS = {"hangul": 2, "han": 2, "thai": 3}
"""About how many characters say what a word says, where words have no blanks or change endings."""

_SCRIPTS = {
    "hangul": "\uac00-\ud7a3",
    "han": "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff",
    "thai": "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff",
}
"""Hangul; Chinese characters and kana; Thai, Lao, Burmese and Khmer."""

_STRETCH = "".join(f"(?P<{script}>[{characters}]+)|" for script, characters in _SCRIPTS.items())
_STRETCH += f"[^ {''.join(_SCRIPTS.values())}]+"

OF_ANY_RULE = """\
a an and are as at be but by case criterion do does for guideline has have if in is it its must no \
not of on or output outputs rule s should so t than that the then this to value when whether which \
with
값 값은 값이 값을 해야 한다 합니다 하면 않으면 아니면 있다 없다 경우 기준 규칙
值 是 为 则 不 的 时 必须 应该 应当 如果 标准 规则
値 は が を に の と も です ます である でない なければならない べき 場合 基準 規則
ค่า คือ เป็น ต้อง ควร ถ้า หาก ไม่ แล้ว และ ที่ จะ มี เกณฑ์ กฎ
يجب أن إذا هو هي هذا هذه في من على لا لم ليس كان كانت تكون يكون القيمة المعيار القاعدة
"""
"""Words that say nothing of what a rule is about. Where a language is missing, its own count as
content: a rule is rather kept than refused."""


def words(text: str) -> list[str]:
    """Return the words of a text; of a script without blanks, its overlapping pieces."""
    return [piece for script, stretch in _stretches(text) for piece in _pieces(script, stretch)]


def word_runs(text: str) -> set[tuple[str, ...]]:
    """Return what two texts share only where one repeats the other: runs of several words."""
    pieces = words(text)
    return {tuple(pieces[at : at + _RUN_WORDS]) for at in range(len(pieces) - _RUN_WORDS + 1)}


def says_more(text: str, known: str) -> bool:
    """Tell whether a text has a word that is not known."""
    pieces = set(words(known))
    return not all(_is_known(script, stretch, pieces) for script, stretch in _stretches(text))


def _stretches(text: str) -> Iterator[tuple[str | None, str]]:
    """Divide a text at its blanks, and where its script changes."""
    characters = (
        character if unicodedata.category(character)[0] in "LMN" else " "
        for character in plain_words(text)
    )
    for stretch in re.finditer(_STRETCH, "".join(characters)):
        yield stretch.lastgroup, stretch[0]


def _pieces(script: str | None, stretch: str) -> list[str]:
    size = _WORD_CHARS.get(script or "", len(stretch))
    last = 0 if script == "hangul" else max(len(stretch) - size, 0)
    return [stretch[at : at + size] for at in range(last + 1)]


def _is_known(script: str | None, stretch: str, pieces: set[str]) -> bool:
    """Tell whether a word is known; where there are no blanks, whether every character is."""
    if script is None or script == "hangul":
        return _pieces(script, stretch)[0] in pieces
    known = {
        place
        for size in range(1, _WORD_CHARS[script] + 1)
        for at in range(len(stretch) - size + 1)
        if stretch[at : at + size] in pieces
        for place in range(at, at + size)
    }
    return len(known) == len(stretch)
