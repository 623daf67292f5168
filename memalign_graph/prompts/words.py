"""What two texts share, in any script: with blanks between the words, or without.

Nothing here goes by how long a text or a word is. A script without blanks is read in overlapping
pieces of a few characters, Hangul by the beginnings of its words, since endings hang on them.
"""

import re
import unicodedata
from collections.abc import Iterator

from memalign_graph.memory.learning import plain_words

_HANGUL = "\uac00-\ud7a3"
_HAN = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"  # and kana
_THAI = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # and Lao, Burmese and Khmer
_STRETCH = (
    f"([{_HANGUL}]{{1,2}})[{_HANGUL}]*|(?P<han>[{_HAN}]+)|(?P<thai>[{_THAI}]+)"
    f"|([^ {_HANGUL}{_HAN}{_THAI}]+)"
)
_PIECE_CHARS = {"han": 2, "thai": 3}  # that say about what a word says
_RUN_WORDS = 6  # in a row that two texts have are no coincidence

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
    return [
        stretch[at : at + (size or len(stretch))]
        for stretch, size in _stretches(text)
        for at in range(max(len(stretch) - size, 0) + 1 if size else 1)
    ]


def word_runs(text: str) -> set[tuple[str, ...]]:
    """Return what two texts share only where one repeats the other: runs of several words."""
    pieces = words(text)
    return {tuple(pieces[at : at + _RUN_WORDS]) for at in range(len(pieces) - _RUN_WORDS + 1)}


def says_more(text: str, known: str) -> bool:
    """Tell whether a text has a word, or without blanks a character, that is in no known piece."""
    pieces = set(words(known))
    for stretch, size in _stretches(text):
        known_places = {
            place
            for length in (range(1, size + 1) if size else [len(stretch)])
            for at in range(len(stretch) - length + 1)
            if stretch[at : at + length] in pieces
            for place in range(at, at + length)
        }
        if len(known_places) < len(stretch):
            return True
    return False


def _stretches(text: str) -> Iterator[tuple[str, int]]:
    """Divide a text into words, and stretches without blanks with the size of their pieces."""
    characters = (
        character if unicodedata.category(character)[0] in "LMN" else " "
        for character in plain_words(text)
    )
    for match in re.finditer(_STRETCH, "".join(characters)):
        yield match[match.lastindex or 0], _PIECE_CHARS.get(match.lastgroup or "", 0)
