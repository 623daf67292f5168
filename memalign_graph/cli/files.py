"""Files that commands read and write: criteria, databases, and others.

Agent Servers read criterion files, too, so this needs neither typer nor rich.
"""

import json
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from memalign_graph.errors import InvalidInputError, describe_validation_error, excerpt
from memalign_graph.local.stores import has_postgres_table, is_postgres

if TYPE_CHECKING:
    from memalign_graph.types import Criterion

STDIN = "-"
"""The name of the standard input or output."""

_SQLITE = b"SQLite format 3\0"
_SETTINGS = {
    "learn": {"learn_from", "guard", "batch_size", "replay_cases", "judge_cases"},
    "evaluate": {"folds", "seed", "group_by", "learning_curve", "resamples", "sizes"},
}
"""The settings in each section of a criterion file; those of `judge` are the fields of `Judge`."""
_RANGE = re.compile(r"\s*(-?\d+)\s*(?:-|\.\.)\s*(-?\d+)\s*")


@contextmanager
def errors_in(where: str) -> Iterator[None]:
    """Begin the errors of the block with the file or section that they are about."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from error


def read_text(path: str) -> str:
    """Read a text file or the standard input."""
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(
            f"line {line}: this is not UTF-8 text. Save the file as UTF-8, and a spreadsheet as "
            "CSV (UTF-8)."
        ) from error
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"it can't be read: {problem}.") from error


def check_database(location: str | Path) -> None:
    """Check that --memory is a database or may become one, without creating or changing it."""
    path = Path(location)
    try:
        is_file = not is_postgres(location)
    except InvalidInputError as error:
        raise InvalidInputError(f"--memory: {str(error).removeprefix('store: ')}") from error
    problem = None
    if str(location) == ":memory:":
        problem = "would be lost when the command ends: name a file"
    elif is_file and path.exists() and path.stat().st_size and not _is_database(path):
        problem = "is not an SQLite file and is left as it is: name another"
    if problem:
        raise InvalidInputError(f"--memory: {path} {problem}.")


def has_table(location: str | Path, name: str) -> bool:
    """Return whether a database exists and has a table, without changing it."""
    if is_postgres(location):
        return has_postgres_table(str(location), name)
    path = Path(location)
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(query, (name,)).fetchone() is not None


def check_output_path(path: Path, option: str, *sources: str | None) -> None:
    """Refuse to write over a database or another file of the command."""
    if not path.parent.is_dir():
        raise InvalidInputError(f"{option}: {path}: the folder {path.parent} does not exist.")
    others = [Path(source).resolve() for source in sources if source]
    if path.resolve() in others or _is_database(path):
        raise InvalidInputError(f"{option}: {path} is a database, or is in use: name another.")


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


@dataclass(frozen=True)
class CriterionFile:
    """A criterion, and the settings with which its judge is both evaluated and deployed."""

    path: str
    criterion: "Criterion"
    judge: dict[str, Any]
    learn: dict[str, Any]
    evaluate: dict[str, Any]

    def setting_names(self, *sections: str) -> dict[str, str]:
        """Return the names of the settings in some sections, as errors show them, by field."""
        return {
            field: f"--criterion: {self.path}: {section}.{field}"
            for section in sections
            for field in getattr(self, section)
        }


def load_criterion(path: str) -> CriterionFile:
    with errors_in(f"--criterion: {path}"):
        return _criterion_file(path, _load(path))


def load_criteria(path: str, option: str) -> list[CriterionFile]:
    """Read one criterion or a list of them from a file in YAML or JSON."""
    with errors_in(f"{option}: {path}"):
        content = _load(path)
        items = content if isinstance(content, list) else [content]
        if not items:
            raise InvalidInputError("it has no criterion in its list.")
        return [_criterion_file(path, item) for item in items]


def _load(path: str) -> Any:
    text = read_text(path)
    with suppress(json.JSONDecodeError, RecursionError):  # it may be YAML
        return parse_json(text)
    try:
        return yaml.load(text, _YamlLoader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InvalidInputError(f"it is neither YAML nor JSON: {problem}.") from error


class _YamlLoader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """YAML's safe loader, but one that refuses a key given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's
        # A key that is no scalar is refused below.
        if key := repeated(key.value for key, _ in node.value if isinstance(key.value, str)):
            raise yaml.YAMLError(f"{key} is given twice")
        return super().construct_mapping(node, deep)


def parse_json(text: str) -> Any:
    """Parse JSON that people wrote: a key given twice is refused, where `json` takes the last."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if (key := repeated(key for key, _ in pairs)) is not None:
            raise InvalidInputError(f"{key} is given twice in one object. Remove one.")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that is given twice."""
    counts = Counter(names).items()
    return next((excerpt(name, 100) for name, count in counts if count > 1), None)


def _criterion_file(path: str, content: Any) -> CriterionFile:
    from pydantic import ValidationError

    from memalign_graph.settings import Judge
    from memalign_graph.types import Criterion

    if not isinstance(content, dict):
        raise InvalidInputError(
            "this is not a criterion: give an object such as name: support_tone, instructions: Is "
            "the reply appropriate?, scale: boolean."
        )
    sections = {"judge": Judge.model_fields.keys() - {"criterion"}, **_SETTINGS}
    settings: dict[str, dict[str, Any]] = {}
    for name, known in sections.items():
        section = content.get(name) or {}
        if not isinstance(section, dict):
            raise InvalidInputError(f"{name}: give settings by name, not {section!r}.")
        for key in section:
            if key not in known:
                names = ", ".join(sorted(known))
                raise InvalidInputError(f"{name}.{key}: is not a setting: give {names}.")
        settings[name] = section
    judge = settings["judge"]
    if judge.get("keep_judgments") is not None:
        settings["judge"] = {**judge, "keep_judgments": _days(judge["keep_judgments"])}
    fields = {name: value for name, value in content.items() if name not in sections}
    if "scale" in fields:
        fields["scale"] = _scale(fields["scale"])
    try:
        criterion = Criterion.model_validate(fields)
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error)) from error
    return CriterionFile(path, criterion, **settings)


def _days(value: Any) -> timedelta:
    with suppress(TypeError, OverflowError, ValueError):
        if not isinstance(value, bool) and value > 0:  # True would be one day
            return timedelta(days=value)
    problem = f"{value!r} is not a number of days. Use one such as 30."
    raise InvalidInputError(f"judge.keep_judgments: {problem}")


def _scale(scale: Any) -> Any:
    if isinstance(scale, list):
        return {"type": "categorical", "choices": scale}
    if isinstance(scale, dict):
        return {"type": "categorical" if "choices" in scale else "numeric", **scale}
    if match := _RANGE.fullmatch(str(scale)):
        low, high = int(match[1]), int(match[2])
        return {"type": "numeric", "minimum": low, "maximum": high, "integer": True}
    return {"type": str(scale)}
