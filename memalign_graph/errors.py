"""Exceptions and warnings of this package. Each message says what is wrong and what to do."""

import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "PASSWORD")
_MIN_SECRET_CHARS = 8
_NO_DATE = "{input} is not a date. Write it as 2026-01-31 or 2026-01-31T09:00:00+01:00."
_MESSAGE_BY_TYPE = {
    "missing": "is missing. Add it.",
    "extra_forbidden": "is not a known field. Check its spelling, or remove it.",
    "callable_type": "{input} is not a function.",
    "bool_type": "{input} is neither True nor False.",
    "int_type": "{input} is not a whole number.",
    "float_type": "{input} is not a number.",
    "float_parsing": "{input} is not a number.",
    "string_type": "{input} is not text. Put it in quotes.",
    "datetime_parsing": _NO_DATE,
    "datetime_from_date_parsing": _NO_DATE,
    "greater_than": "{input} is too small. Use more than {gt}.",
    "greater_than_equal": "{input} is below the minimum of {ge}. Use {ge} or more.",
    "less_than": "{input} is too large. Use less than {lt}.",
    "less_than_equal": "{input} is above the maximum of {le}. Use {le} or less.",
    "literal_error": "{input} is not known: give {expected}.",
    "union_tag_invalid": "{tag!r} is not known: give one of {expected_tags}.",
    "is_instance_of": "{input} is not a {class}.",
    "tuple_type": "{input} is not a list.",
    "time_delta_type": "{input} is not a duration. Use one such as timedelta(days=30).",
}
"""Messages by pydantic's error type, where pydantic's own message does not say what to do."""

HIDDEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""Control characters, those that reorder a text, and those that tag it invisibly."""
_HIDDEN_OR_MARK = re.compile(rf"{HIDDEN.pattern}|[\u061c\u200e\u200f]")
"""Also marks of direction, which only a text with right-to-left letters needs."""
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u0610\u0620-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_MAX_IDS = 5  # in a message
_MAX_VALUE_CHARS = 200
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _MAX_VALUE_CHARS


class MemAlignError(Exception):
    """Base class of all errors that this package raises on purpose."""

    node: str | None = None
    """The graph node that raised it, if a node of this package did."""
    is_refusal: bool = False
    """Whether this prompt, text or case can't be used, and others may still be: a provider, its
    filter or its model refused it, also for its length, or it lacks what the judge needs."""


class InvalidInputError(MemAlignError, ValueError):
    """An argument or input is invalid; raised before a model is called or an item is written."""


class ChatModelError(MemAlignError):
    """A chat model was unreachable or returned an error; the cause is chained."""


class ModelAnswerError(MemAlignError):
    """A chat model's answer was still invalid after one retry that said what was wrong."""


def is_about_prompt(error: BaseException) -> bool:
    """Return whether the failure concerns this prompt only, not the model or provider."""
    return isinstance(error, ModelAnswerError) or getattr(error, "is_refusal", False)


class EmbeddingError(MemAlignError):
    """An embedding call failed or returned invalid vectors; the cause is chained."""


class StoreError(MemAlignError):
    """A store failed; the cause is chained. A retry stores nothing twice."""


class MemAlignWarning(UserWarning):
    """Something works, but probably not the way the caller expects."""


def excerpt(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}…"


def visible(text: str) -> str:
    r"""Spell out characters that hide or reorder others, as in `\x1b`."""
    hidden = HIDDEN if _RIGHT_TO_LEFT.search(text) else _HIDDEN_OR_MARK
    return hidden.sub(lambda match: ascii(match[0])[1:-1], text)


def show_value(value: object, chars: int = _MAX_VALUE_CHARS) -> str:
    """Return a value as an error names it; of a nested one only the outer levels."""
    return excerpt(_SHORT.repr(value), chars)


def without_urls(text: str) -> str:
    """Return a message without URLs, which may contain a password, and without ends of one."""
    return re.sub(r"\b\w+://\S+|(?<=')[^'\s]*@", "...", text)


def enumerate_ids(ids: Sequence[str]) -> str:
    more = ["..."] if len(ids) > _MAX_IDS else []
    return ", ".join([*ids[:_MAX_IDS], *more])


def describe_validation_error(error: "ValidationError") -> str:
    """Describe a pydantic error in one sentence that begins with the field."""
    # A misspelt name explains why another one is missing.
    errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    first, *more = errors
    shown_input = show_value(first["input"])
    *parents, last = first["loc"] or ("",)
    members = [other["loc"][-1] for other in more if [*other["loc"][:-1]] == parents != []]
    is_union = first["type"] != "missing" and len(members) == len(more)
    if is_union and members and first["input"] is more[0]["input"]:
        # Pydantic reports one error for each member of a union.
        field, kinds = ".".join(map(str, parents)), ", ".join(map(str, [last, *members[:-1]]))
        return f"{field}: {shown_input} is neither {kinds} nor {members[-1]}."
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in _MESSAGE_BY_TYPE:
        context = first.get("ctx", {})
        message = _MESSAGE_BY_TYPE[first["type"]].format(input=shown_input, **context)
    field = ".".join(map(str, first["loc"]))
    # As in `inputs[0] holds ...`.
    is_named = isinstance(last, str) and re.match(rf"{re.escape(last)}\b", message)
    sentence = field.removesuffix(str(last)) + message if is_named else f"{field}: {message}"
    sentence = excerpt(sentence, 1_000)
    return f"{sentence} (and {len(more)} more)" if more else sentence


@contextmanager
def require_extra(extra: str, what: str) -> Iterator[None]:
    """Make a failed import in the block name the extra that has to be installed."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f'{what} needs the extra "{extra}": pip install "memalign-graph[{extra}]"',
            name=error.name,
        ) from error


@contextmanager
def write_errors(path: object) -> Iterator[None]:
    """Make a failure to write a file in the block name the file."""
    try:
        yield
    except InvalidInputError:
        raise
    except (OSError, ValueError) as error:  # such as a null byte in the path
        problem = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"path: {path} can't be written: {problem}. Free space or choose another path."
        ) from error


def without_keys(text: str) -> str:
    """Return a message without the keys and passwords of the environment."""
    for name, value in os.environ.items():
        if name.endswith(_SECRET_NAMES) and len(value) >= _MIN_SECRET_CHARS:
            text = text.replace(value, "***")
    return text


def first_line(error: BaseException) -> str:
    # A provider may repeat the key that it refuses.
    return excerpt(without_keys(str(error)).strip().partition("\n")[0], 300)
