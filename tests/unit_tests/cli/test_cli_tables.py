"""Files of records: what is read, where each record is, and which columns are which."""

import io
import json
import sys
from pathlib import Path

import pytest

from memalign_graph import InvalidInputError
from memalign_graph.cli.records import example_fields, read_mapping, read_records
from memalign_graph.cli.tables import Table, read_table


def table(folder: Path, name: str, content: str | bytes) -> Table:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(str(path), "--feedback")


def test_lines_are_counted_with_those_that_are_blank(tmp_path: Path) -> None:
    read = table(tmp_path, "f.jsonl", '\n{"a": 1}\r\n \n{"b": "x\\u2028y"}')
    assert [(row.place, row.fields) for row in read.rows] == [(2, {"a": 1}), (4, {"b": "x\u2028y"})]
    assert read.columns == ["a", "b"]
    assert read.place(read.rows[1]) == "line 4"


def test_a_line_break_of_unicode_is_no_end_of_a_line(tmp_path: Path) -> None:
    line = json.dumps({"a": "one\u2028two\x85three\x0cfour"}, ensure_ascii=False)
    read = table(tmp_path, "f.jsonl", line)
    assert len(read.rows) == 1


def test_a_list_counts_its_records(tmp_path: Path) -> None:
    read = table(tmp_path, "f.json", '[{"a": 1}, {"a": 2}]')
    assert [read.place(row) for row in read.rows] == ["record 1", "record 2"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_tables_of_all_countries(tmp_path: Path, delimiter: str, line_break: str) -> None:
    lines = ["inputs|outputs|value", '"a|b"|"c\n""d"""|yes', "||", "e|f|"]
    text = line_break.join(lines).replace("|", delimiter)
    read = table(tmp_path, "f.csv", "\ufeff" + text)
    first, second = read.rows
    assert first.fields == {"inputs": f"a{delimiter}b", "outputs": 'c\n"d"', "value": "yes"}
    assert second.fields == {"inputs": "e", "outputs": "f"}  # an empty cell is missing
    assert first.place == 2
    assert second.place == 5


def test_cells_stay_as_they_are(tmp_path: Path) -> None:
    read = table(tmp_path, "f.csv", 'a,b,c,d,e\n 1 ,007,"{""x"": 1}",=1+1,NaN\n')
    assert list(read.rows[0].fields.values()) == [" 1 ", "007", '{"x": 1}', "=1+1", "NaN"]


def test_an_index_column_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text(",inputs,outputs,value\n0,a,b,yes\n", encoding="utf-8")
    records = read_records(str(path), "--feedback")
    assert records.fields == [{"inputs": "a", "outputs": "b", "value": "yes"}]
    assert records.ignored == []


def test_a_column_that_is_empty_everywhere_is_still_a_column(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("inputs,outputs,label\na,b,\n", encoding="utf-8")
    records = read_records(str(path), "--feedback", columns=["value=label"])
    assert records.fields == [{"inputs": "a", "outputs": "b"}]


def test_columns_by_other_names(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    record = {"question": "q", "outputs": "o", "value": "model's", "label": True, "note": 1, "x": 2}
    path.write_text(json.dumps(record), encoding="utf-8")
    columns = ["inputs=question", "value=label"]
    records = read_records(str(path), "--feedback", columns=columns)
    assert records.fields == [{"inputs": "q", "outputs": "o", "value": True}]
    assert records.ignored == ["value", "note", "x"]


def test_one_column_for_two_fields(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"inputs": "q", "outputs": "o", "said": "no"}', encoding="utf-8")
    records = read_records(str(path), "-f", columns=["value=said", "rationale=said"])
    assert records.fields[0]["value"] == records.fields[0]["rationale"] == "no"


def test_a_column_taken_for_another_field_is_not_its_own_too(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"inputs": "q", "outputs": "o", "rationale": "no"}', encoding="utf-8")
    records = read_records(str(path), "-f", columns=["value=rationale"])
    assert records.fields == [{"inputs": "q", "outputs": "o", "value": "no"}]


def test_mappings() -> None:
    assert read_mapping(["value = label ", "outputs=a, b"]) == {
        "value": ["label"],
        "outputs": ["a", "b"],
    }
    assert read_mapping(["value=a,b"]) == {"value": ["a,b"]}
    with pytest.raises(InvalidInputError, match="'value' is given twice"):
        read_mapping(["value=a", "value=b"])


def test_examples_of_records() -> None:
    assert example_fields({"inputs": 1, "outputs": 2, "value": 3}) == {"inputs": 1, "outputs": 2}
    inside = {"inputs": 1, "outputs": 2, "reference_outputs": 3}
    assert example_fields({"example": inside, "inputs": 4}) == inside


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO('{"a": "ü"}'.encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_table("-", "--feedback").rows[0].fields == {"a": "ü"}


def test_a_cell_of_megabytes(tmp_path: Path) -> None:
    big = "x" * 5_000_000
    assert table(tmp_path, "f.csv", f"a,b\n{big},c\n").rows[0].fields["a"] == big
