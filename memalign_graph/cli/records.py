"""Read feedback and examples from files of spreadsheets, pandas and other tools.

A record that cannot be read becomes an error in its place; the others are still read.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalign_graph.cli.files import errors_in, parse_json, read_text, repeated
from memalign_graph.errors import InvalidInputError, excerpt, require_extra

if TYPE_CHECKING:
    from memalign_graph.scales import Scale

_EXAMPLE_FIELDS = ("inputs", "outputs", "reference_outputs")
_FIELDS = (*_EXAMPLE_FIELDS, "value", "rationale", "author", "id", "given_at")
_TEXT_FIELDS = {"rationale", "author", "id"}
_JSON_FIELDS = ("example", "judgment", "thread_id")
"""Further fields of feedback in JSON that this package writes."""
_BOOLEANS = {
    True: "wahr ja vrai oui vero sì si verdadero sí verdadeiro sim waar sant ja prawda tak sand "
    "sann tosi pravda igaz истина doğru",
    False: "falsch nein faux non falso no não onwaar nee falskt nej fałsz nie falsk usann epätosi "
    "nepravda hamis ложь yanl\u0131ş yanliş",
}
_BOOLEAN_WORDS = {word: value for value, words in _BOOLEANS.items() for word in words.split()}
"""True and false in other languages, as spreadsheets write them."""
_WHOLE_NUMBER = re.compile(r"-?\d+(\.0)?")
_THOUSAND = 1_000
_THOUSANDS = re.compile(r"-?\d{1,3},\d{3}")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_GAPS = ("nan", "NaN", "<NA>", "NaT", "None", "null")
_FIRST_DAY = datetime(1899, 12, 30, tzinfo=UTC)  # day 0 of spreadsheets
_EXCEL_DAYS = (20_000, 80_000)  # 1954 to 2119

Fields = dict[str, Any]
Record = tuple[str, Fields | InvalidInputError]
"""A place such as `line 7`, and the record's fields or why it cannot be read."""


def read_records(
    path: str,
    option: str,
    columns: Sequence[str] | None,
    warn: Callable[[str], None],
    scale: "Scale | None" = None,
) -> list[Record]:
    """Read a file of records; its suffix names the format, or else its first character."""
    mapping, where = _mapping(columns or ()), f"{option}: {path}"
    with errors_in(where):
        rows = _rows(path)
        if not rows:
            raise InvalidInputError("it has no records.")
        read = [row for _, row in rows if isinstance(row, dict)]
        columns_of, unused = _columns_of_fields(read, mapping)
    if unused:
        warn(f"{where}: not used: {_listed(unused)} (--field FIELD=COLUMN names what a column is).")
    records: list[Record] = [
        (at, _fields_of(row, columns_of, scale) if isinstance(row, dict) else row)
        for at, row in rows
    ]
    for name in ("id", "author"):
        _unify_numbers([fields for _, fields in records if isinstance(fields, dict)], name)
    return records


def example_of(fields: Mapping[str, Any]) -> Fields:
    inside = fields.get("example")
    source = inside if isinstance(inside, Mapping) else fields
    return {name: source[name] for name in _EXAMPLE_FIELDS if name in source}


def _mapping(columns: Sequence[str]) -> dict[str, list[str]]:
    """Parse --field: the columns of each field."""
    mapping: dict[str, list[str]] = {}
    for column in columns:
        field, _, names = (part.strip() for part in column.partition("="))
        if field not in _FIELDS or not names or field in mapping:
            raise InvalidInputError(
                f"--field: {column!r} is not understood: write FIELD=COLUMN, such as value=label, "
                f"once for each field; fields are {', '.join(_FIELDS)}."
            )
        columns_of_field = names.split(",") if field == "outputs" else [names]
        mapping[field] = [name.strip() for name in columns_of_field]
    return mapping


def _columns_of_fields(
    rows: Sequence[Fields], mapping: Mapping[str, list[str]]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of each field, mapped or of its name, and the unused columns."""
    if not rows:  # no record can be read, and each has its reason
        return {}, []
    names = list(dict.fromkeys(name for row in rows for name in row))
    mapped = [name for columns in mapping.values() for name in columns]
    for name in mapped:
        if not any(name in row or _nested(row, name) is not None for row in rows):
            raise InvalidInputError(f"no column is called {name!r}: it has {_listed(names)}.")
    if not {*names, *mapping} & {"inputs", "outputs", *_JSON_FIELDS}:
        raise InvalidInputError(
            f"no column is called inputs or outputs: it has {_listed(names)}. Use --field "
            "inputs=COLUMN --field outputs=COLUMN."
        )
    own = {*_FIELDS, *_JSON_FIELDS} - mapping.keys() - {*mapped}
    used = own | {*mapped} | {name.partition(".")[0] for name in mapped}
    unused = [name for name in names if name and name not in used]
    return {**{name: [name] for name in own}, **mapping}, unused


def _listed(columns: Iterable[str]) -> str:
    return excerpt(", ".join(columns), 500)


def _nested(row: Fields, name: str) -> Any:
    """Return a column's value; `replies.0.text` is inside a list and objects."""
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _fields_of(row: Fields, columns_of: Mapping[str, list[str]], scale: "Scale | None") -> Fields:
    fields: Fields = {}
    for field, names in columns_of.items():
        values = [_nested(row, name) for name in names]
        if not any(_is_missing(field, value, scale) for value in values):  # a pair needs both
            value = values[0] if len(values) == 1 else values
            fields[field] = _converted(field, value, scale)
    return fields


def _is_missing(field: str, value: Any, scale: "Scale | None") -> bool:
    """Return whether a value is empty, as pandas writes it."""
    if not isinstance(value, str):
        return value is None or (isinstance(value, float) and math.isnan(value))
    if field == "value":
        choices = {choice.casefold() for choice in getattr(scale, "choices", ())}
        return value.strip() in _GAPS and value.strip().casefold() not in choices
    return value.strip() in _GAPS and field not in ("inputs", "outputs")


def _converted(field: str, value: Any, scale: "Scale | None") -> Any:
    """Convert dates, booleans and numbers that spreadsheets write."""
    if field in _TEXT_FIELDS and isinstance(value, int | float):
        return str(value).removesuffix(".0")
    if field == "given_at":
        return _date(value)
    return _local_value(value, scale) if field == "value" and isinstance(value, str) else value


def _unify_numbers(rows: Sequence[Fields], name: str) -> None:
    """Remove `.0` from a column of numbers: pandas writes it if the column has gaps."""
    numbered = [row for row in rows if name in row]
    if all(_WHOLE_NUMBER.fullmatch(str(row[name]).strip()) for row in numbered):
        for row in numbered:
            row[name] = str(row[name]).strip().removesuffix(".0")


def _date(value: Any) -> Any:
    """Convert a spreadsheet's day number."""
    try:
        number = float(str(value).replace(",", "."))
    except ValueError:
        return value
    low, high = _EXCEL_DAYS
    return (_FIRST_DAY + timedelta(days=number)).isoformat() if low <= number < high else value


def _local_value(value: str, scale: "Scale | None") -> Any:
    """Convert a boolean in another language, or a decimal comma, if the scale has such values."""
    kind = getattr(scale, "type", None)
    if kind == "boolean":
        return _BOOLEAN_WORDS.get(value.strip().lower(), value)
    text, maximum = value.strip(), getattr(scale, "maximum", 0)
    is_decimal = kind == "numeric" and _DECIMAL_COMMA.fullmatch(text)
    # `1,000` may be 1 or 1000: left as it is, so that the record is refused.
    is_unclear = maximum >= _THOUSAND and _THOUSANDS.fullmatch(text)
    return value.replace(",", ".") if is_decimal and not is_unclear else value


def _rows(path: str) -> list[Record]:
    """Read the rows of a file by their columns' names."""
    suffix = Path(path).suffix.lower()
    if suffix == ".xlsx":
        return _workbook(path)
    text = read_text(path)
    if suffix not in (".jsonl", ".json", ".csv", ".tsv"):
        objects = ".jsonl" if "\n" in text.strip() else ".json"
        suffix = {"{": objects, "[": ".json"}.get(text.lstrip()[:1], ".csv")
    if suffix == ".jsonl":
        return _json_lines(text)
    if suffix == ".json":
        return _json(text)
    return _table(text, "\t" if suffix == ".tsv" else ",;\t")


def _field_names(names: Collection[str]) -> list[str]:
    """Normalize the names of fields: `Reference Outputs` is `reference_outputs`."""
    free = {*_FIELDS} - {*names}
    fields = [re.sub(r"[\s-]+", "_", name.strip()).lower() for name in names]
    return [field if field in free else name for name, field in zip(names, fields, strict=True)]


def _json_lines(text: str) -> list[Record]:
    lines = enumerate(text.split("\n"), 1)
    return [(f"line {number}", _object(_parsed(line))) for number, line in lines if line.strip()]


def _json(text: str) -> list[Record]:
    """Read records, or a table in any of pandas' orientations with a numeric index."""
    content = _parsed(text) if text.strip() else []
    rows: list[Any] = [content]
    match content:
        case InvalidInputError():
            raise content
        case {"columns": [*names], "data": [*cells]} if all(isinstance(x, list) for x in cells):
            return _named([("header", names), *_numbered(cells)])
        case [*rows] | {"schema": _, "data": [*rows]}:
            pass
        case dict() if content and all(isinstance(part, dict) for part in content.values()):
            first, *others = content.values()
            is_regular = all(part.keys() == first.keys() for part in others)
            if _are_indexes(first) and is_regular:
                rows = [{name: part[key] for name, part in content.items()} for key in first]
            elif _are_indexes(content):
                rows = [first, *others]
            elif others and is_regular and len(first) > 1:
                raise InvalidInputError(
                    "this may be one record, or a table whose index is no number. Write a table by "
                    'df.to_json(path, orient="records"), and one record in a list.'
                )
    return [(at, _object(row)) for at, row in _numbered(rows)]


def _numbered(rows: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(f"record {number}", row) for number, row in enumerate(rows, 1)]


def _are_indexes(keys: Collection[str]) -> bool:
    return len(keys) > 0 and all(key.isdigit() for key in keys)


def _parsed(text: str) -> Any:
    """Parse JSON; returns the error if it is none."""
    try:
        return parse_json(text)
    except InvalidInputError as error:
        return error
    except (ValueError, RecursionError) as error:
        return InvalidInputError(f"this is not JSON: {error}.")


def _object(row: Any) -> Fields | InvalidInputError:
    """Return a record, or why it is none."""
    if isinstance(row, InvalidInputError):
        return row
    if not isinstance(row, dict):
        how = 'with pandas df.to_json(path, orient="records")'
        return InvalidInputError(f"give an object with inputs and outputs; {how}.")
    names = _field_names(row)
    if len({*names}) < len(names):
        return InvalidInputError(f"two fields are called {repeated(names)}. Rename one.")
    return dict(zip(names, row.values(), strict=True))


def _table(text: str, delimiters: str) -> list[Record]:
    """Parse CSV; the delimiter is the one that gives the header the most cells."""

    def header_cells(delimiter: str) -> int:
        lines = io.StringIO(text.lstrip(), newline="")
        return len(next(csv.reader(lines, delimiter=delimiter), ()))

    csv.field_size_limit(2**31 - 1)
    if separator := re.match(r"\s*sep=(.)\r?\n", text):  # written for Excel
        text = text.replace(f"sep={separator[1]}", "", 1)
    delimiter = separator[1] if separator else max(delimiters, key=header_cells)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [(f"line {reader.line_num}", cells) for cells in reader]
    except csv.Error as error:
        raise InvalidInputError(f"line {reader.line_num}: {error}: check its quotes.") from error
    return _named(rows)


def _workbook(path: str) -> list[Record]:
    """Read the first sheet of an Excel workbook."""
    with require_extra("evaluation", f"{path}: save it as CSV (UTF-8), or read it as it is, which"):
        import openpyxl  # noqa: F401 - used by pandas
        import pandas as pd
    try:
        sheet = pd.read_excel(path, header=None, dtype=object, keep_default_na=False)
    except Exception as error:  # a damaged file raises errors of zipfile, zlib and XML
        problem = getattr(error, "strerror", None) or "it is not an Excel workbook"
        raise InvalidInputError(f"it can't be read: {problem}. Save it as CSV (UTF-8).") from error
    # Dates become text, as in other files; numbers and booleans stay as they are.
    rows = [
        [cell.isoformat() if isinstance(cell, date) else cell for cell in row]
        for row in sheet.to_numpy().tolist()
    ]
    return _named([(f"row {at}", cells) for at, cells in enumerate(rows, 1)])


def _named(table: Sequence[tuple[str, list[Any]]]) -> list[Record]:
    """Make records of a table's rows, named by the first one; skips blank rows."""
    filled = [(at, cells) for at, cells in table if any(str(cell).strip() for cell in cells)]
    names = _field_names([str(name).strip() for _, head in filled[:1] for name in head])
    if name := repeated(filter(None, names)):
        raise InvalidInputError(f"two columns are called {name}. Rename one.")
    return [(at, _row(names, cells)) for at, cells in filled[1:]]


def _row(names: Sequence[str], cells: list[Any]) -> Fields | InvalidInputError:
    while len(cells) > len(names) and not str(cells[-1]).strip():
        cells = cells[:-1]
    if len(cells) != len(names):
        return InvalidInputError(
            f"it has {len(cells)} cells, and the header has {len(names)}: put a cell that holds "
            "the delimiter or a line break in quotes."
        )
    # A column without a name is an index, or is empty.
    return {name: _cell(cell) for name, cell in zip(names, cells, strict=True) if name}


def _cell(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    return cell.replace("\r\n", "\n") if cell.strip() else None
