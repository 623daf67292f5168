"""Check JSON for storage, hash it to ids, and check names."""

import hashlib
import json
import math
from typing import Any

from memalign_graph.errors import show_value

_MAX_DEPTH = 100
_KEY_CHARS = 50  # in a path


def check_json(value: Any, name: str, depth: int = 0) -> None:  # noqa: C901 - a case for each type of JSON
    """Check that a value is JSON that every store accepts."""
    if depth > _MAX_DEPTH:
        root = name.partition("[")[0]
        raise ValueError(f"{root} is nested deeper than {_MAX_DEPTH} levels. Flatten it.")
    match value:
        case str():
            _check_text(value, name)
        case int() if not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} has an integer beyond 64 bits. Pass it as a string.")
        case float() if not math.isfinite(value):
            raise ValueError(f"{name} has {value}, which is not JSON. Use null or a string.")
        case list():
            for index, item in enumerate(value):
                check_json(item, f"{name}[{index}]", depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueError(
                        f"{name} has the key {show_value(key)}. JSON keys are strings."
                    )
                _check_text(key, f"a key of {name}")
                # Shortened: a long key would be copied for each item below it.
                check_json(item, f"{name}[{key[:_KEY_CHARS]!r}]", depth + 1)
        case _ if not (value is None or isinstance(value, int | float)):
            raise ValueError(
                f"{name} has a value of type {type(value).__name__}, which is not JSON. Pass text, "
                "numbers, booleans, null, lists and dicts; messages in a list of their own, a "
                "model as its `model_dump(mode='json')`."
            )


def _check_text(text: str, name: str) -> None:
    if "\x00" in text:
        raise ValueError(f"{name} has a NUL character, which some stores refuse. Remove it.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has half of a surrogate pair at position {error.start}, which is not valid "
            "Unicode. Decode it again with errors='replace'."
        ) from error


def storable(text: str) -> str:
    """Return a text without NUL and halves of surrogate pairs, which stores refuse."""
    return text.replace("\x00", "").encode(errors="replace").decode()


# Made once: `json.dumps` with options makes an encoder at each call.
_canonical_json = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
).encode


def digest(value: Any) -> str:
    """Hash a JSON value to an id: the first 128 bits of SHA-256 of its canonical JSON, in hex."""
    return hashlib.sha256(_canonical_json(value).encode()).hexdigest()[:32]


def draw(text: str) -> float:
    """Return a pseudo-random number from 0 to 1, the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / (1 << 48)


def episode_id(example_id: str, author: str | None, feedback_id: str | None) -> str:
    voice = ["anonymous"]
    if author is not None:
        voice = ["author", author]
    elif feedback_id is not None:
        voice = ["feedback", feedback_id]
    return digest([example_id, *voice])


def asked_id(question: str, model: str) -> str:
    """Hash a check question, and add the model's name."""
    return f"{digest(question)[:16]}:{model}"


def check_label(label: Any, name: str) -> str:
    """Check a name that becomes part of a store namespace."""
    if not isinstance(label, str):
        raise ValueError(f"{name} is not a string: {show_value(label)}.")
    if not label or label != label.strip() or "." in label or not label.isprintable():
        raise ValueError(
            f"{name} must not be empty, have a dot or a control character, or begin or end with a "
            f"space: {show_value(label)}. Use letters, digits, `-` and `_`."
        )
    return label
