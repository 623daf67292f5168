"""The exceptions and warnings this package raises, each with one sentence that names the mend."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_MESSAGE_BY_TYPE = {
    "missing": "is missing: give it.",
    "extra_forbidden": "is not a field that is known here: check its spelling, or leave it out.",
    "bool_type": "{input!r} is neither True nor False: give one of them.",
    "int_type": "{input!r} is not a whole number: give one.",
    "float_type": "{input!r} is not a number: give one.",
    "greater_than": "{input!r} is too little: give more than {gt}.",
    "greater_than_equal": "{input!r} is too little: give {ge} or more.",
    "less_than": "{input!r} is too much: give less than {lt}.",
    "less_than_equal": "{input!r} is too much: give at most {le}.",
    "literal_error": "{input!r} is not known: give {expected}.",
    "is_instance_of": "{input!r} is none: give a {class}.",
    "time_delta_type": "{input!r} is no length of time: give one such as timedelta(days=30).",
}
"""What to say where pydantic's own words do not name the mend, by its error type."""


class MemAlignError(Exception):
    """Base class of every error raised on purpose by this package."""

    node: str | None = None
    """The node of this package that it comes from, where it comes from one."""


class InvalidInputError(MemAlignError, ValueError):
    """What the caller gave cannot be used; raised before any model is called or item written."""


class ChatModelError(MemAlignError):
    """A chat model could not be reached or answered with an error; the cause is chained."""

    is_refusal: bool = False
    """Whether the provider refused this one prompt, so that another may be answered."""


class ModelAnswerError(MemAlignError):
    """A chat model's answer stayed unusable after it had been shown what was wrong with it."""

    is_refusal: bool = False
    """Whether a content filter stopped the answer, or the model refused to give one."""


def is_about_prompt(error: BaseException) -> bool:
    """Return whether a model failed at one prompt, so that another may have been answered."""
    is_refused = isinstance(error, ChatModelError) and error.is_refusal
    return is_refused or isinstance(error, ModelAnswerError)


class EmbeddingError(MemAlignError):
    """An embedding call failed or returned vectors that cannot be used; the cause is chained."""


class StoreError(MemAlignError):
    """A store failed; the cause is chained. Doing the same again stores nothing twice."""


class MemAlignWarning(UserWarning):
    """Something works, but not the way the caller probably expects."""


def excerpt(text: str, chars: int) -> str:
    """Return the beginning of a text that is too long for a sentence."""
    return text if len(text) <= chars else f"{text[:chars]}…"


def describe_validation_error(error: "ValidationError") -> str:
    """Put a pydantic error into one sentence that names the field and what is wrong with it."""
    first, *more = error.errors(include_url=False)
    *parents, last = first["loc"] or ("",)
    members = [other["loc"][-1] for other in more if [*other["loc"][:-1]] == parents != []]
    if members and len(members) == len(more) and first["input"] is more[0]["input"]:
        # A union is as many errors as it has members.
        field, kinds = ".".join(map(str, parents)), ", ".join(map(str, [last, *members[:-1]]))
        return (
            f"{field}: {first['input']!r} is neither {kinds} nor {members[-1]}: give one of them."
        )
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in _MESSAGE_BY_TYPE:
        message = _MESSAGE_BY_TYPE[first["type"]].format(
            input=first["input"], **first.get("ctx", {})
        )
    field = ".".join(map(str, first["loc"]))
    sentence = message if message.startswith(field) else f"{field}: {message}"
    return f"{sentence} (and {len(more)} more)" if more else sentence


@contextmanager
def require_extra(extra: str, what: str) -> Iterator[None]:
    """Turn a failed import in the block into one sentence that names the extra."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f'{what} needs the extra "{extra}": pip install "memalign-graph[{extra}]"',
            name=error.name,
        ) from error


def first_line(error: BaseException) -> str:
    return excerpt(str(error).strip().partition("\n")[0], 300)
