"""A criterion in a file: YAML or JSON, with short ways to write a scale."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.types import Criterion

_RANGE = re.compile(r"\s*(-?\d+)\s*(?:-|\.\.)\s*(-?\d+)\s*")
_PLAIN_SCALES = ("boolean", "pairwise")
_FIELDS = ("name", "instructions", "scale")
_EXAMPLE = "name: support_tone, instructions: Is the reply appropriate?, scale: boolean"


def load_criterion(path: str) -> Criterion:
    """Read a criterion from a file."""
    given = _parse(path)
    if isinstance(given, list):
        if len(given) != 1:
            raise InvalidInputError(
                f"--criterion: {path} has {len(given)} criteria: give a file with one."
            )
        given = given[0]
    if not isinstance(given, dict):
        raise InvalidInputError(
            f"--criterion: {path} is no criterion: give an object such as {_EXAMPLE}."
        )
    unknown = [key for key in given if key not in _FIELDS]
    if unknown:
        raise InvalidInputError(
            f"--criterion: {path}: {unknown[0]!r} is not a field of a criterion: it has "
            f"{', '.join(_FIELDS)}."
        )
    if "scale" in given:
        given = {**given, "scale": _scale(given["scale"], path)}
    try:
        return Criterion.model_validate(given)
    except ValidationError as error:
        raise InvalidInputError(f"--criterion: {path}: {explain(error)}") from error


def _parse(path: str) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InvalidInputError(f"--criterion: there is no file {path}.") from error
    except IsADirectoryError as error:
        raise InvalidInputError(f"--criterion: {path} is a folder: name a file.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"--criterion: {path} is not UTF-8 text: save it as UTF-8."
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"--criterion: {path} can't be read: {error}.") from error
    if path.endswith(".json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"--criterion: {path} is no JSON: {error}.") from error
    yaml: Any = import_module("yaml")

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InvalidInputError(f"--criterion: {path} is no YAML: {problem}.") from error


def _scale(given: Any, path: str) -> Any:
    """Spell out a short way to write a scale."""
    if isinstance(given, str):
        found = _RANGE.fullmatch(given)
        if found:
            low, high = int(found[1]), int(found[2])
            return {"type": "numeric", "minimum": low, "maximum": high, "integer": True}
        if given.strip() in _PLAIN_SCALES:
            return {"type": given.strip()}
        raise InvalidInputError(
            f"--criterion: {path}: the scale {given!r} is not known: write boolean, pairwise, a "
            "range of whole numbers such as 1-5, a list of choices, or an object with a type "
            "(boolean, categorical, numeric, pairwise)."
        )
    if isinstance(given, list):
        given = {"choices": given}
    if not isinstance(given, dict):
        raise InvalidInputError(
            f"--criterion: {path}: scale: write boolean, pairwise, a range such as 1-5, a list of "
            f"choices, or an object with a type, not {given!r}."
        )
    if any(isinstance(choice, bool) for choice in _choices(given)):
        raise InvalidInputError(
            f"--criterion: {path}: scale: YAML reads a bare yes, no, on or off as a truth value: "
            'put the choices in quotes, as in ["yes", "no"], or write scale: boolean.'
        )
    if "type" in given:
        return given
    if "choices" in given:
        return {"type": "categorical", **given}
    if "minimum" in given or "maximum" in given:
        return {"type": "numeric", **given}
    raise InvalidInputError(
        f"--criterion: {path}: scale: type is missing: boolean, categorical, numeric or pairwise."
    )


def _choices(scale: dict[Any, Any]) -> list[Any]:
    choices = scale.get("choices")
    return choices if isinstance(choices, list) else []
