"""What commands read and write: criteria with the settings of their judge, records, databases."""

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

if TYPE_CHECKING:
    from memalign_graph.types import Criterion

STDIN = "-"
"""What names the standard input, or output."""

EXAMPLE_FIELDS = ("inputs", "outputs", "reference_outputs")
FEEDBACK_FIELDS = (*EXAMPLE_FIELDS, "value", "rationale", "author", "id", "given_at")
"""What feedback can have in any file."""
_JSON_FIELDS = {"example", "judgment", "thread_id"}
"""What feedback can have beyond that in JSON, as this package writes it."""
_LEARN_SETTINGS = ("learn_from", "guard", "batch_size", "replay_cases", "judge_cases")
_RANGE = re.compile(r"\s*(-?\d+)\s*(?:-|\.\.)\s*(-?\d+)\s*")
_SQLITE = b"SQLite format 3\0"
_LEAST_ID_CHARS = 4


@dataclass(frozen=True)
class CriterionFile:
    """What is judged, and how: the settings that are evaluated are those that are deployed."""

    path: str
    criterion: "Criterion"
    judge: dict[str, Any]
    learn: dict[str, Any]


def read_text(path: Path | str, option: str) -> str:
    """Read a file of text, or the standard input."""
    name = name_of(path)
    try:
        data = sys.stdin.buffer.read() if str(path) == STDIN else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where = f"{option}: {name}, line {line}"
        raise InvalidInputError(
            f"{where}: this is not UTF-8 text: save the file as UTF-8."
        ) from error
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"{option}: {name} can't be read: {problem}.") from error


def name_of(path: Path | str) -> str:
    """Name a file in a sentence."""
    return "the standard input" if str(path) == STDIN else str(path)


def load_criterion(path: str) -> CriterionFile:
    """Read a criterion from a file in YAML or JSON."""
    from pydantic import ValidationError

    from memalign_graph.types import Criterion

    where = f"--criterion: {path}"
    given = _parse(read_text(path, "--criterion"), where, is_json=path.endswith(".json"))
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if not isinstance(given, dict):
        raise InvalidInputError(
            f"{where} is not one criterion: give an object such as name: support_tone, "
            "instructions: Is the reply appropriate?, scale: boolean."
        )
    settings = [given.pop(name, None) or {} for name in ("judge", "learn")]
    judge, learn = (dict(section) if isinstance(section, dict) else None for section in settings)
    if judge is None or learn is None or learn.keys() - {*_LEARN_SETTINGS}:
        raise InvalidInputError(
            f"{where}: judge and learn hold settings by name, such as k: 3; learn has "
            f"{', '.join(_LEARN_SETTINGS)}."
        )
    days = judge.get("keep_judgments")
    if isinstance(days, int | float):
        judge["keep_judgments"] = timedelta(days=days)
    try:
        if "scale" in given:
            given["scale"] = _scale(given["scale"])
        return CriterionFile(path, Criterion.model_validate(given), judge, learn)
    except ValidationError as error:
        raise InvalidInputError(f"{where}: {explain(error)}") from error
    except ValueError as error:
        raise InvalidInputError(f"{where}: {error}") from error


def _parse(text: str, where: str, *, is_json: bool) -> Any:
    yaml: Any = import_module("yaml")
    try:
        return json.loads(text) if is_json else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        kind, problem = "JSON" if is_json else "YAML", " ".join(str(error).split())
        raise InvalidInputError(f"{where} is no {kind}: {problem}.") from error


def _scale(given: Any) -> Any:
    """Spell out a short way to write a scale."""
    if isinstance(given, str) and (found := _RANGE.fullmatch(given)):
        low, high = int(found[1]), int(found[2])
        return {"type": "numeric", "minimum": low, "maximum": high, "integer": True}
    if given in ("boolean", "pairwise"):
        return {"type": given}
    if isinstance(given, list):
        given = {"choices": given}
    if not isinstance(given, dict) or not given.keys() & {"type", "choices", "minimum", "maximum"}:
        raise ValueError(
            f"the scale {given!r} is not known: write boolean, pairwise, a range of whole numbers "
            "such as 1-5, a list of choices, or an object with a type (boolean, categorical, "
            "numeric, pairwise)."
        )
    choices = given.get("choices")
    if isinstance(choices, list) and any(isinstance(choice, bool) for choice in choices):
        raise ValueError(
            "scale: YAML reads a bare yes, no, on or off as a truth value: put the choices in "
            'quotes, as in ["yes", "no"], or write scale: boolean.'
        )
    return {"type": "categorical" if "choices" in given else "numeric", **given}


def database_path(path: Path, option: str, *, holds: str | None = None) -> None:
    """Check an SQLite file without making or changing it; `holds` names a table it has to have."""
    problem = None
    if str(path) == ":memory:":
        problem = "would be gone with the command: name a file"
    elif path.is_file() and path.stat().st_size and not _is_database(path):
        problem = "is no SQLite file, so it is left as it is: name another"
    elif holds and not has_table(path, holds):
        problem = "holds no memory: `memalign align` makes one" if path.exists() else "is not there"
    if problem:
        raise InvalidInputError(f"{option}: {path} {problem}.")


def has_table(path: Path, name: str) -> bool:
    """Tell whether there is an SQLite file with a table, without changing the file."""
    if not path.exists():
        return False
    address = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(query, (name,)).fetchone() is not None


def output_path(path: Path, option: str, *sources: Path | str | None) -> None:
    """Check a file that is to be written, so that no other is lost by a slip of the pen."""
    problem = None
    there = [Path(source) for source in sources if source and Path(source).exists()]
    if not path.parent.is_dir():
        problem = f"can't be made: there is no folder {path.parent}"
    elif path.exists() and any(path.samefile(source) for source in there):
        problem = "is also read from: name another file"
    elif path.is_file() and _is_database(path):
        problem = "is a database, so it is left as it is: name another file"
    if problem:
        raise InvalidInputError(f"{option}: {path} {problem}.")


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def find_id(given: str, ids: Iterable[str], what: str) -> str:
    """Find the one id that begins as given."""
    typed = given.strip().lower()
    found = sorted({key for key in ids if key.startswith(typed)})
    if typed in found:
        return typed
    if len(typed) < _LEAST_ID_CHARS:
        problem = f"is too short to name a {what}: give {_LEAST_ID_CHARS} characters or more"
    elif len(found) == 1:
        return found[0]
    elif found:
        some = ", ".join(key[: len(typed) + 4] for key in found[:3])
        problem = f"names {len(found)} of them ({some}, …): give more of the id"
    else:
        problem = f"names no {what}: `memalign memory list` and `history` show the ids"
    raise InvalidInputError(f"ID: {given!r} {problem}.")


@dataclass(frozen=True)
class Records:
    """The records of one file, by the names this package knows."""

    source: str
    rows: list[tuple[int, dict[str, Any]]]
    """Each with the line it begins on, or in a list of JSON, which of the list it is."""
    unit: str = "line"

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The fields of each record."""
        return [fields for _, fields in self.rows]

    def place(self, index: int) -> str:
        """Say where a record is, such as `line 7`."""
        return f"{self.unit} {self.rows[index][0]}"


def read_records(
    path: str, option: str, columns: Sequence[str] | None, warn: Callable[[str], None]
) -> Records:
    """Read a file of records whole: by its suffix, or by how it begins where that says nothing."""
    mapping = _mapping(columns or ())
    text, source = read_text(path, option), name_of(path)
    where = f"{option}: {source}"
    suffix = Path(path).suffix.lower()
    if suffix not in (".jsonl", ".ndjson", ".json", ".csv", ".tsv"):
        suffix = {"{": ".jsonl", "[": ".json"}.get(text.lstrip()[:1], ".csv")
    header: list[str] = []
    if suffix in (".csv", ".tsv"):
        header, rows = _table(text, where)
    else:
        rows = _json_records(text, where, is_list=suffix == ".json")
    if not rows:
        raise InvalidInputError(f"{where}: it has no records.")
    names = header or list(dict.fromkeys(name for _, fields in rows for name in fields))
    for field, wanted in mapping.items():
        if missing := [name for name in wanted if name not in names]:
            raise InvalidInputError(
                f"--field {field}={','.join(wanted)}: {source} has no column {missing[0]!r}: it "
                f"has {', '.join(filter(None, names))}."
            )
    taken = {name for wanted in mapping.values() for name in wanted}
    own = {*FEEDBACK_FIELDS, *_JSON_FIELDS} - mapping.keys() - taken
    if unused := ", ".join(name for name in names if name and name not in own | taken):
        warn(f"{option}: not used: {unused} (--field FIELD=COLUMN names what a column is).")
    read = [(place, _fields(fields, mapping, own)) for place, fields in rows]
    return Records(source, read, "record" if suffix == ".json" else "line")


def example_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Take from a record what makes an example."""
    inside = fields.get("example")
    source = inside if isinstance(inside, Mapping) else fields
    return {name: source[name] for name in EXAMPLE_FIELDS if name in source}


def _mapping(columns: Sequence[str]) -> dict[str, list[str]]:
    """Read which columns the fields are in."""
    mapping: dict[str, list[str]] = {}
    for column in columns:
        field, _, names = (part.strip() for part in column.partition("="))
        if field not in FEEDBACK_FIELDS or not names or field in mapping:
            raise InvalidInputError(
                f"--field: {column!r} is not understood: write FIELD=COLUMN, such as value=label, "
                f"once for each field; fields are {', '.join(FEEDBACK_FIELDS)}."
            )
        several = field == "outputs" and "," in names
        mapping[field] = [name.strip() for name in names.split(",")] if several else [names]
    return mapping


def _fields(
    row: Mapping[str, Any], mapping: Mapping[str, list[str]], own: set[str]
) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if name in own}
    for field, names in mapping.items():
        values = [row.get(name) for name in names]
        fields[field] = values if len(values) > 1 else values[0]
    return {name: value for name, value in fields.items() if not _is_gap(name, value)}


def _is_gap(name: str, value: Any) -> bool:
    """Tell whether this is how pandas writes that there is nothing."""
    if isinstance(value, str):
        return name not in ("inputs", "outputs") and value.strip() in ("nan", "NaN", "<NA>", "NaT")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _json_records(text: str, where: str, *, is_list: bool) -> list[tuple[int, dict[str, Any]]]:
    unit = "record" if is_list else "line"
    if is_list:
        rows = _loads(text, where) if text.strip() else []
        if not isinstance(rows, list):
            raise InvalidInputError(f"{where}: a .json file holds a list of records.")
        values = list(enumerate(rows, start=1))
    else:
        lines = [(at, line) for at, line in enumerate(text.split("\n"), start=1) if line.strip()]
        values = [(at, _loads(line, f"{where}, line {at}")) for at, line in lines]
    for at, value in values:
        if not isinstance(value, dict):
            raise InvalidInputError(
                f'{where}, {unit} {at}: give an object, such as {{"inputs": ..., "outputs": ...}}, '
                f"not a value of type {type(value).__name__}."
            )
    return values


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        problem = "it is nested too deep" if is_deep else f"this is no JSON: {error}"
        raise InvalidInputError(f"{where}: {problem}.") from error


def _table(text: str, where: str) -> tuple[list[str], list[tuple[int, dict[str, Any]]]]:
    """Read a table; its header tells what parts the cells, semicolons in some countries."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    csv.field_size_limit(2**31 - 1)
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    rows: list[tuple[int, dict[str, Any]]] = []
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return header, rows
        except csv.Error as error:
            is_open = "unexpected end" in str(error)
            problem = "a cell begins with a quote that nothing closes" if is_open else error
            raise InvalidInputError(f"{where}, line {line}: {problem}.") from error
        if not any(cell.strip() for cell in cells):
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            if len(set(header)) < len(header):
                raise InvalidInputError(
                    f"{where}, line {line}: two columns have the same name: {', '.join(header)}."
                )
        elif len(cells) != len(header):
            raise InvalidInputError(
                f"{where}, line {line}: it has {len(cells)} cells where the header has "
                f"{len(header)}: put a cell that holds the delimiter or a line break in quotes."
            )
        else:
            named = zip(header, cells, strict=True)
            rows.append((line, {name: cell for name, cell in named if cell.strip()}))
