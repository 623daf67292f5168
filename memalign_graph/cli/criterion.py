"""The criterion file, with its judge's settings: for the command line and Agent Servers."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memalign_graph.cli.files import read_text
from memalign_graph.errors import InvalidInputError, describe_validation_error, require_extra

if TYPE_CHECKING:
    from memalign_graph.types import Criterion

_SETTINGS = {
    "judge": None,  # checked by `Judge`
    "learn": {"learn_from", "guard", "batch_size", "replay_cases", "judge_cases"},
    "evaluate": {"folds", "seed", "group_by", "learning_curve", "resamples", "sizes"},
}
"""The settings in each section of a criterion file."""
_RANGE = re.compile(r"\s*(-?\d+)\s*(?:-|\.\.)\s*(-?\d+)\s*")


@dataclass(frozen=True)
class CriterionFile:
    """A criterion, and the settings with which its judge is both evaluated and deployed."""

    path: str
    criterion: "Criterion"
    judge: dict[str, Any]
    learn: dict[str, Any]
    evaluate: dict[str, Any]


def load_criterion(path: str) -> CriterionFile:
    """Read a criterion from a file in YAML or JSON."""
    return _parse(path, "--criterion", _load(path, "--criterion"))


def load_criteria(path: str, option: str) -> list[CriterionFile]:
    """Read one criterion or a list of them from a file in YAML or JSON."""
    content = _load(path, option)
    items = content if isinstance(content, list) else [content]
    if not items:
        raise InvalidInputError(f"{option}: {path!r} has no criterion in its list.")
    return [_parse(path, option, item) for item in items]


def _load(path: str, option: str) -> Any:
    text = read_text(path, option)
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with require_extra("cli", f"{option}: {path}: reading YAML"):
        yaml = import_module("yaml")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InvalidInputError(f"{option}: {path} is no YAML or JSON: {problem}.") from error


def _parse(path: str, option: str, content: Any) -> CriterionFile:
    from pydantic import ValidationError

    from memalign_graph.types import Criterion

    where = f"{option}: {path}"
    if not isinstance(content, dict):
        raise InvalidInputError(
            f"{where} is no criterion: give an object such as name: support_tone, instructions: Is "
            "the reply appropriate?, scale: boolean."
        )
    sections = {name: content.get(name) or {} for name in _SETTINGS}
    fields = {name: value for name, value in content.items() if name not in _SETTINGS}
    for name, known in _SETTINGS.items():
        section = sections[name]
        is_known = isinstance(section, dict) and all(
            key in known if known else isinstance(key, str) and key != "criterion"
            for key in section
        )
        if not is_known:
            names = ", ".join(sorted(known or ("k", "model", "swap")))
            raise InvalidInputError(f"{where}: {name}: give settings by name: {names}.")
    judge = dict(sections["judge"])
    if judge.get("keep_judgments") is not None:
        judge["keep_judgments"] = _days(judge["keep_judgments"], where)
    try:
        if "scale" in fields:
            fields["scale"] = _scale(fields["scale"])
        criterion = Criterion.model_validate(fields)
    except ValueError as error:
        problem = (
            describe_validation_error(error) if isinstance(error, ValidationError) else str(error)
        )
        raise InvalidInputError(f"{where}: {problem}") from error
    return CriterionFile(path, criterion, judge, sections["learn"], sections["evaluate"])


def _days(value: Any, where: str) -> timedelta:
    try:
        if isinstance(value, bool):  # it would be one day
            raise TypeError  # noqa: TRY301 - refused below, as any other type
        return timedelta(days=value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"{where}: judge.keep_judgments: {value!r} is no number of days. Write one such as 30."
        ) from error


def _scale(scale: Any) -> Any:
    """Expand the short forms of a scale."""
    if isinstance(scale, str):
        if match := _RANGE.fullmatch(scale):
            low, high = int(match[1]), int(match[2])
            return {"type": "numeric", "minimum": low, "maximum": high, "integer": True}
        return {"type": scale}
    if isinstance(scale, list):
        scale = {"choices": scale}
    if not isinstance(scale, dict):
        raise ValueError(
            f"the scale {scale!r} is not known: write boolean, pairwise, a range of whole numbers "
            "such as 1-5, a list of choices, or an object."
        )
    if any(isinstance(choice, bool) for choice in scale.get("choices") or ()):
        raise ValueError(
            "scale: YAML reads a bare yes, no, on or off as a truth value: put the choices in "
            'quotes, as in ["yes", "no"], or write scale: boolean.'
        )
    return {"type": "categorical" if "choices" in scale else "numeric", **scale}
