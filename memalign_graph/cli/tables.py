"""Files of records: lines of JSON, a list in JSON, or a table of comma-separated values.

A file is read whole before anything else happens: one that can't be read as what it says it is is
refused in one sentence with the number of the line. Whether a record can be used is asked later.
"""

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from memalign_graph.errors import InvalidInputError

Format = Literal["jsonl", "json", "csv", "tsv"]
"""How a file writes its records."""

STDIN = "-"
"""What names the standard input."""

_BY_SUFFIX: dict[str, Format] = {
    "": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
_DELIMITERS = ",;\t"
_MAX_CELL_CHARS = 2**31 - 1


@dataclass(frozen=True)
class Row:
    """One record as its file has it."""

    place: int
    """The line it begins on; in a JSON list, which of the list it is. From 1 on."""

    fields: dict[str, Any]
    """Its fields, by the file's own names."""


@dataclass(frozen=True)
class Table:
    """A file's records."""

    source: str
    """What to call the file."""

    unit: Literal["line", "record"]
    """What `Row.place` counts."""

    rows: list[Row]
    """The records, in the file's order."""

    columns: list[str]
    """The names of all fields, in the order they first come."""

    def place(self, row: Row) -> str:
        """Say where a record is, such as `line 7`."""
        return f"{self.unit} {row.place}"


def read_table(source: str, option: str, given: Format | None = None) -> Table:
    """Read a file of records."""
    name = "the standard input" if source == STDIN else source
    kind = given or _kind(source, option)
    text = _decode(_read(source, option), f"{option}: {name}")
    where = f"{option}: {name}"
    header: list[str] = []
    if kind == "json":
        rows = list(_json_list(text, where))
    elif kind == "jsonl":
        rows = list(_json_lines(text, where))
    else:
        header, rows = _cells(text, where, "\t" if kind == "tsv" else None)
    if not rows:
        raise InvalidInputError(f"{where}: it has no records.")
    columns = header or list(dict.fromkeys(name for row in rows for name in row.fields))
    return Table(name, "record" if kind == "json" else "line", rows, columns)


def _kind(source: str, option: str) -> Format:
    if source == STDIN:
        return "jsonl"
    suffix = Path(source).suffix.lower()
    kind = _BY_SUFFIX.get(suffix)
    if kind is None:
        raise InvalidInputError(
            f"{option}: the suffix of {source} is not known: name a .jsonl, .csv, .tsv or .json "
            "file, or say what it is with --format."
        )
    return kind


def _read(source: str, option: str) -> bytes:
    if source == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except FileNotFoundError as error:
        raise InvalidInputError(f"{option}: there is no file {source}.") from error
    except IsADirectoryError as error:
        raise InvalidInputError(f"{option}: {source} is a folder: name a file.") from error
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{option}: {source} can't be read: {error}.") from error


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(
            f"{where}, line {line}: this is not UTF-8 text: save the file as UTF-8."
        ) from error


def _json_lines(text: str, where: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield Row(number, _object(_loads(line, f"{where}, line {number}"), where, number))


def _json_list(text: str, where: str) -> Iterator[Row]:
    given = _loads(text, where) if text.strip() else []
    if not isinstance(given, list):
        raise InvalidInputError(
            f"{where}: a .json file holds a list of records; lines of JSON go into a .jsonl file."
        )
    for number, one in enumerate(given, start=1):
        yield Row(number, _object(one, where, number, unit="record"))


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidInputError(f"{where}: it is nested too deep.") from error
    except ValueError as error:
        raise InvalidInputError(f"{where}: this is no JSON: {error}.") from error


def _object(value: Any, where: str, number: int, unit: str = "line") -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise InvalidInputError(
        f"{where}, {unit} {number}: give an object, such as "
        f'{{"inputs": ..., "outputs": ...}}, not a value of type {type(value).__name__}.'
    )


def _cells(text: str, where: str, delimiter: str | None) -> tuple[list[str], list[Row]]:
    header: list[str] = []
    rows: list[Row] = []
    for number, cells in _csv_rows(text, where, delimiter or _delimiter(text)):
        if not any(cell.strip() for cell in cells):
            continue
        if not header:
            header = _header(cells, f"{where}, line {number}")
            continue
        if len(cells) != len(header):
            raise InvalidInputError(
                f"{where}, line {number}: it has {len(cells)} cells where the header has "
                f"{len(header)}: put a cell that holds the delimiter or a line break in quotes."
            )
        told = {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}
        rows.append(Row(number, told))
    return header, rows


def _csv_rows(text: str, where: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Read rows with the number of the line each begins on."""
    csv.field_size_limit(_MAX_CELL_CHARS)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = (
                "a cell begins with a quote that nothing closes"
                if "unexpected end" in str(error)
                else str(error)
            )
            raise InvalidInputError(f"{where}, line {number}: {problem}.") from error
        yield number, cells


def _delimiter(text: str) -> str:
    """Tell by the header what parts the cells: spreadsheets of some countries write semicolons."""
    header = next((line for line in text.split("\n") if line.strip()), "")
    return max(_DELIMITERS, key=header.count)


def _header(cells: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        problem = f"two columns are called {twice[0]!r}" if twice[0] else "columns have no name"
        raise InvalidInputError(f"{where}: {problem}: the first line names each column once.")
    return names
