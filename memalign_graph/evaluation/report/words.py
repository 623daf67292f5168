"""Numbers as people write them, and texts of others made safe to show. Pure functions."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from memalign_graph.evaluation.scores import Estimate
from memalign_graph.scales import Numeric, Scale, Value

MOST_CHARS = 10_000
"""Longer texts are cut, with a note that says so."""

MINUS = "\u2212"
"""A true minus sign, as wide as a plus."""

NOT_DEFINED = "n/a"
"""Stands where there is no number."""

_UNFIT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, halves of surrogate pairs, and what turns the direction of writing: none may
reach a page, where it could not be written or would make text read other than it is."""

_LINE_ENDS = re.compile(r"\r\n?|[\u0085\u2028\u2029]")
_MINUTE, _HOUR = 60, 3600
_LEAST_SECONDS = 10
_SURE = 1e-9


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write how many there are."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float) -> str:
    """Write a share, so that only all is 100 % and only none is 0 %."""
    rounded = round(share * 100)
    if rounded == 100 and share < 1 - _SURE:  # noqa: PLR2004 - all
        return "> 99 %"
    if rounded == 0 and share > _SURE:
        return "< 1 %"
    return f"{rounded} %"


def points(difference: float) -> str:
    """Write the difference of two shares, with its sign."""
    digits = 1 if 0 < abs(difference) * 100 < 1 else 0
    return signed(difference * 100, digits)


def decimal(value: float, digits: int) -> str:
    """Write a number with so many decimals."""
    text = f"{value:,.{digits}f}"
    if text.startswith("-"):
        return text[1:] if float(text.replace(",", "")) == 0 else f"{MINUS}{text[1:]}"
    return text


def signed(value: float, digits: int) -> str:
    """Write a number with so many decimals, and with its sign."""
    text = decimal(value, digits)
    is_zero = not any(one in text for one in "123456789")
    return text if value < 0 or is_zero else f"+{text}"


def digits_for(scale: Scale) -> int:
    """Tell how many decimals a distance on this scale needs."""
    if not isinstance(scale, Numeric):
        return 2
    magnitude = math.floor(math.log10(scale.maximum - scale.minimum))
    if magnitude <= 0:
        return min(2 - magnitude, 10)
    return 1 if magnitude < 3 else 0  # noqa: PLR2004 - thousands


def show(scale: Scale, value: Value | None) -> str:
    """Write a value of a scale."""
    if value is None:
        return "no value"
    if isinstance(scale, Numeric) and isinstance(value, float):
        step = digits_for(scale) + 1
        return f"{round(value, step):.{step}f}".rstrip("0").rstrip(".").replace("-", MINUS)
    return clean(scale.show(value), most=200)


def interval(found: Estimate) -> tuple[float, float] | None:
    """Return the interval of a number, if there is one."""
    return None if found.low is None or found.high is None else (found.low, found.high)


def duration(seconds: float) -> str:
    """Write how long something took."""
    if seconds < _LEAST_SECONDS:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR:,} h {whole % _HOUR // _MINUTE} min"


def listed(parts: Sequence[str]) -> str:
    """Join words as a sentence does."""
    if len(parts) < 2:  # noqa: PLR2004 - one and another
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def clean(text: str, *, most: int = MOST_CHARS) -> str:
    """Make a text of others fit to be shown."""
    kept = _UNFIT.sub("\ufffd", _LINE_ENDS.sub("\n", text[:most]))
    left = len(text) - most
    return f"{kept}… [{count(left, 'more character')}, not shown]" if left > 0 else kept


def one_line(text: str, most: int) -> str:
    """Put the beginning of a text on one line."""
    # Blanks are gathered before cutting, but not those of a whole book.
    line = " ".join(clean(text[: most * 10], most=most * 10).split())
    whole = len(line) <= most and len(text) <= most * 10
    return line if whole else f"{line[:most].rstrip()}…"


def as_text(value: Any) -> str:
    """Write what an application was given, or answered, as people read it."""
    if isinstance(value, str):
        return value
    messages = value if isinstance(value, list) else None
    if isinstance(value, dict) and list(value) == ["messages"]:
        messages = value["messages"]
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        return "\n\n".join(f"{one['role']}: {one['content']}" for one in messages)
    if isinstance(value, dict) and value and not any(map(_is_nested, value.values())):
        return "\n".join(f"{key}: {_plain(one)}" for key, one in value.items())
    return json.dumps(value, ensure_ascii=False, indent=2)


def _is_message(one: Any) -> bool:
    # A message with more to it, such as a call of a tool, is shown whole.
    return (
        isinstance(one, dict)
        and set(one) == {"role", "content"}
        and all(isinstance(part, str) for part in one.values())
    )


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
