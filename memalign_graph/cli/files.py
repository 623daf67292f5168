"""What commands read: criteria and the settings of their judge, records, ids, databases."""

import csv
import io
import json
import math
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalign_graph.errors import InvalidInputError, explain
from memalign_graph.local import postgres
from memalign_graph.local.postgres import is_postgres, without_secrets

if TYPE_CHECKING:
    from memalign_graph.types import Criterion

STDIN = "-"
"""What names the standard input, or output."""

_EXAMPLE_FIELDS = ("inputs", "outputs", "reference_outputs")
_FIELDS = (*_EXAMPLE_FIELDS, "value", "rationale", "author", "id", "given_at")
_JSON_FIELDS = {"example", "judgment", "thread_id"}
"""What feedback can have besides `_FIELDS`, as this package writes it."""
_SETTINGS = {
    "judge": None,  # by the judge itself
    "learn": {"learn_from", "guard", "batch_size", "replay_cases", "judge_cases"},
    "evaluate": {"folds", "seed", "group_by", "learning_curve"},
}
"""What the sections of a criterion's file may hold."""
_RANGE = re.compile(r"\s*(-?\d+)\s*(?:-|\.\.)\s*(-?\d+)\s*")
_SQLITE = b"SQLite format 3\0"
_LEAST_ID_CHARS = 4

Record = tuple[str, dict[str, Any]]
"""Where it is, such as `line 7`, and its fields."""


@dataclass(frozen=True)
class CriterionFile:
    """What is judged, and how: the settings that are evaluated are those that are deployed."""

    path: str
    criterion: "Criterion"
    judge: dict[str, Any]
    learn: dict[str, Any]
    evaluate: dict[str, Any]


def read_text(path: str, option: str) -> str:
    """Read a file of text, or the standard input."""
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(
            f"{option}: {path}, line {line}: this is not UTF-8 text: save the file as UTF-8."
        ) from error
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"{option}: {path} can't be read: {problem}.") from error


def load_criterion(path: str) -> CriterionFile:
    """Read a criterion from a file in YAML or JSON."""
    from pydantic import ValidationError

    from memalign_graph.types import Criterion

    yaml: Any = import_module("yaml")
    where, text = f"--criterion: {path}", read_text(path, "--criterion")
    try:
        content = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InvalidInputError(f"{where} is no YAML or JSON: {problem}.") from error
    if not isinstance(content, dict):
        raise InvalidInputError(
            f"{where} is no criterion: give an object such as name: support_tone, instructions: Is "
            "the reply appropriate?, scale: boolean."
        )
    sections = {name: content.pop(name, None) or {} for name in _SETTINGS}
    for name, known in _SETTINGS.items():
        if not isinstance(sections[name], dict) or (known and sections[name].keys() - known):
            names = ", ".join(sorted(known or ("k", "model", "swap")))
            raise InvalidInputError(f"{where}: {name}: give settings by name: {names}.")
    if isinstance(days := sections["judge"].get("keep_judgments"), int | float):
        sections["judge"]["keep_judgments"] = timedelta(days=days)
    try:
        if "scale" in content:
            content["scale"] = _scale(content["scale"])
        return CriterionFile(path, Criterion.model_validate(content), **sections)
    except ValueError as error:
        problem = explain(error) if isinstance(error, ValidationError) else str(error)
        raise InvalidInputError(f"{where}: {problem}") from error


def _scale(scale: Any) -> Any:
    """Spell out a short way to write a scale."""
    if isinstance(scale, str):
        if found := _RANGE.fullmatch(scale):
            low, high = int(found[1]), int(found[2])
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


def check_database(place: str | Path, option: str, *, holds: str | None = None) -> None:
    """Check a database without making or changing it; `holds` names a table it has to have."""
    problem, path = None, Path(place)
    is_file = not is_postgres(place)
    if str(place) == ":memory:":
        problem = "would be gone with the command: name a file"
    elif is_file and path.is_dir():
        problem = "is a folder: name a file"
    elif is_file and path.is_file() and path.stat().st_size and not _is_database(path):
        problem = "is no SQLite file, so it is left as it is: name another"
    elif holds and not has_table(place, holds):
        is_there = not is_file or path.exists()
        problem = "holds no memory: `memalign align` makes one" if is_there else "is not there"
    if problem:
        raise InvalidInputError(f"{option}: {shown_place(place)} {problem}.")


def shown_place(place: str | Path) -> str:
    """Return where a database is, as it can be shown."""
    return without_secrets(str(place)) if is_postgres(place) else str(place)


def has_table(place: str | Path, name: str) -> bool:
    """Tell whether there is a database with a table, without changing it."""
    if is_postgres(place):
        return postgres.has_table(str(place), name)
    path = Path(place)
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(query, (name,)).fetchone() is not None


def check_output(path: Path, option: str, *sources: str | None) -> None:
    """Check a file that is to be written, so that no other is lost by a slip of the pen."""
    if not path.parent.is_dir():
        raise InvalidInputError(f"{option}: {path}: there is no folder {path.parent}: make it.")
    read = [Path(source) for source in sources if source and Path(source).exists()]
    if path.is_file() and (_is_database(path) or any(map(path.samefile, read))):
        raise InvalidInputError(f"{option}: {path} is a database, or read from: name another file.")


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def find_id(beginning: str, ids: Iterable[str], what: str) -> str:
    """Find the one id that begins like this."""
    typed = beginning.strip().lower()
    found = sorted({key for key in ids if key.startswith(typed)})
    if typed in found:
        return typed
    if len(found) == 1 and len(typed) >= _LEAST_ID_CHARS:
        return found[0]
    raise InvalidInputError(
        f"ID: {beginning!r} names {len(found) or 'no'} {what}: give {_LEAST_ID_CHARS} characters "
        "or more of one id; `memalign memory list` and `history` show them."
    )


def read_records(
    path: str, option: str, columns: Sequence[str] | None, warn: Callable[[str], None]
) -> list[Record]:
    """Read a file of records whole: by its suffix, or by how it begins where that says nothing."""
    mapping = _mapping(columns or ())
    text, where, suffix = read_text(path, option), f"{option}: {path}", Path(path).suffix.lower()
    if suffix not in (".jsonl", ".json", ".csv", ".tsv"):
        suffix = {"{": ".jsonl", "[": ".json"}.get(text.lstrip()[:1], ".csv")
    rows = _table(text, where) if suffix in (".csv", ".tsv") else _json(text, where, suffix)
    if not rows:
        raise InvalidInputError(f"{where}: it has no records.")
    names = list(dict.fromkeys(name for _, fields in rows for name in fields))
    taken = {name for wanted in mapping.values() for name in wanted}
    if missing := sorted(taken - {*names}):
        there = ", ".join(filter(None, names))
        raise InvalidInputError(f"--field: {path} has no column {missing[0]!r}: it has {there}.")
    own = {*_FIELDS, *_JSON_FIELDS} - mapping.keys() - taken
    if unused := ", ".join(name for name in names if name and name not in own | taken):
        warn(f"{option}: not used: {unused} (--field FIELD=COLUMN names what a column is).")
    records = []
    for at, row in rows:
        fields = {name: value for name, value in row.items() if name in own}
        for field, (first, *others) in mapping.items():
            values = [row.get(name) for name in (first, *others)]
            fields[field] = values if others else values[0]
        told = {name: value for name, value in fields.items() if not _is_gap(name, value)}
        records.append((at, told))
    return records


def example_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Take from a record what makes an example."""
    inside = fields.get("example")
    source = inside if isinstance(inside, Mapping) else fields
    return {name: source[name] for name in _EXAMPLE_FIELDS if name in source}


def _mapping(columns: Sequence[str]) -> dict[str, list[str]]:
    """Read which columns the fields are in."""
    mapping: dict[str, list[str]] = {}
    for column in columns:
        field, _, names = (part.strip() for part in column.partition("="))
        if field not in _FIELDS or not names or field in mapping:
            raise InvalidInputError(
                f"--field: {column!r} is not understood: write FIELD=COLUMN, such as value=label, "
                f"once for each field; fields are {', '.join(_FIELDS)}."
            )
        mapping[field] = (
            [name.strip() for name in names.split(",")] if field == "outputs" else [names]
        )
    return mapping


def _is_gap(name: str, value: Any) -> bool:
    """Tell whether this is how pandas writes that there is nothing."""
    if isinstance(value, str):
        return name not in ("inputs", "outputs") and value.strip() in ("nan", "NaN", "<NA>", "NaT")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _json(text: str, where: str, suffix: str) -> list[Record]:
    lines = [(f"line {at}", line) for at, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows: list[tuple[str, Any]] = []
    for at, line in lines if suffix == ".jsonl" else [("line 1", text)] * bool(lines):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"{where}, {at}: this is no JSON: {error}.") from error
        rows.append((at, value))
    if suffix == ".json" and rows and isinstance(rows[0][1], list):
        rows = [(f"record {number}", fields) for number, fields in enumerate(rows[0][1], 1)]
    for at, fields in rows:
        if not isinstance(fields, dict):
            raise InvalidInputError(f"{where}, {at}: give an object with inputs and outputs.")
    return rows


def _table(text: str, where: str) -> list[Record]:
    """Read a table; its header tells what parts the cells, semicolons in some countries."""
    csv.field_size_limit(2**31 - 1)
    delimiter = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(filter(None, reader), [])]
        rows = [
            (f"line {reader.line_num}", cells) for cells in reader if any(map(str.strip, cells))
        ]
    except csv.Error as error:
        where = f"{where}, line {reader.line_num}"
        raise InvalidInputError(f"{where}: {error}: check its quotes.") from error
    if len({*names}) < len(names):
        raise InvalidInputError(f"{where}: two columns have the same name: {', '.join(names)}.")
    for at, cells in rows:
        if len(cells) != len(names):
            raise InvalidInputError(
                f"{where}, {at}: it has not {len(names)} cells, as the header has: put a cell that "
                "holds the delimiter or a line break in quotes."
            )
    return [
        (
            at,
            {name: cell if cell.strip() else None for name, cell in zip(names, cells, strict=True)},
        )
        for at, cells in rows
    ]
