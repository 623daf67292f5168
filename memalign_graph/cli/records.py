"""Records of a file as feedback or examples: columns by their names, and what is left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memalign_graph.cli.tables import Format, Row, Table, read_table
from memalign_graph.errors import InvalidInputError

EXAMPLE_FIELDS = ("inputs", "outputs", "reference_outputs")
"""What makes an example."""

FEEDBACK_FIELDS = (*EXAMPLE_FIELDS, "value", "rationale", "author", "id", "given_at")
"""What feedback can have in any file."""

_JSON_FIELDS = ("example", "judgment", "thread_id")
"""What feedback can have beyond that in JSON, as this package writes it."""


@dataclass(frozen=True)
class Records:
    """The records of one file, by the names this package knows."""

    table: Table
    """The file."""

    fields: list[dict[str, Any]]
    """The fields of each record, in the file's order."""

    ignored: list[str]
    """Columns that are not used."""

    def place(self, index: int) -> str:
        """Say where a record is."""
        return self.table.place(self.table.rows[index])


def read_records(
    source: str,
    option: str,
    *,
    given: Format | None = None,
    columns: Sequence[str] = (),
) -> Records:
    """Read a file of feedback or examples."""
    mapping = read_mapping(columns)
    table = read_table(source, option, given)
    there = set(table.columns)
    for field, names in mapping.items():
        missing = [name for name in names if name not in there]
        if missing:
            raise InvalidInputError(
                f"--field {field}={','.join(names)}: {table.source} has no column {missing[0]!r}: "
                f"it has {', '.join(filter(None, table.columns))}."
            )
    taken = {name for names in mapping.values() for name in names}
    known = {*FEEDBACK_FIELDS, *_JSON_FIELDS} - mapping.keys()
    return Records(
        table=table,
        fields=[_fields(row, mapping, known - taken) for row in table.rows],
        ignored=[name for name in table.columns if name and name not in known | taken],
    )


def read_mapping(columns: Sequence[str]) -> dict[str, list[str]]:
    """Read which columns the fields are in."""
    mapping: dict[str, list[str]] = {}
    for one in columns:
        field, equals, names = (part.strip() for part in one.partition("="))
        if not (field and equals and names):
            raise InvalidInputError(
                f"--field: {one!r} is not understood: write FIELD=COLUMN, such as value=label."
            )
        if field not in FEEDBACK_FIELDS:
            raise InvalidInputError(
                f"--field: {field!r} is not a field: it is one of {', '.join(FEEDBACK_FIELDS)}."
            )
        if field in mapping:
            raise InvalidInputError(f"--field: {field!r} is given twice: give it once.")
        several = field == "outputs" and "," in names
        mapping[field] = [name.strip() for name in names.split(",")] if several else [names]
    return mapping


def example_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Take from a record what makes an example."""
    inside = fields.get("example")
    source = inside if isinstance(inside, Mapping) else fields
    return {name: source[name] for name in EXAMPLE_FIELDS if name in source}


def _fields(row: Row, mapping: Mapping[str, list[str]], known: set[str]) -> dict[str, Any]:
    fields = {name: value for name, value in row.fields.items() if name in known}
    for field, names in mapping.items():
        values = [row.fields.get(name) for name in names]
        if len(values) > 1:
            fields[field] = values
        elif values[0] is not None:
            fields[field] = values[0]
    return fields
