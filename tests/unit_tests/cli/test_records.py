"""Records as pandas, Excel, Google Sheets, LangSmith and Argilla write them, in `files/`."""

import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd
import pytest

from memalign_graph import Boolean, Categorical, InvalidInputError, Numeric
from memalign_graph.cli.records import read_records
from memalign_graph.memory.feedback import check_feedback
from memalign_graph.types import parse_feedback
from tests.conftest import CRITERION

FILES = Path(__file__).parent / "files"
ASKED = ["My order never came.", "The cup broke.", "When do you open?"]


def read(name: str, *columns: str, scale: Any = None, folder: Path = FILES) -> list[Any]:
    records = read_records(
        str(folder / name), "--feedback", columns, lambda _: None, scale or Boolean()
    )
    return [fields for _, fields in records]


def read_text(folder: Path, text: str, *columns: str, name: str = "f.csv", **options: Any) -> Any:
    (folder / name).write_bytes(text.encode())
    return read(name, *columns, folder=folder, **options)


def feedback(rows: list[Any]) -> list[Any]:
    return [check_feedback(parse_feedback(row), CRITERION) for row in rows]


@pytest.mark.parametrize("orientation", ["columns", "index", "split", "table", "records", "lines"])
def test_pandas_in_every_orientation(orientation: str) -> None:
    ending = "jsonl" if orientation == "lines" else "json"
    rows = feedback(read(f"pandas_{orientation}.{ending}"))
    assert [(row.example.inputs, row.value, row.author) for row in rows] == list(
        zip(ASKED, (False, True, True), ("ann", "bob", None), strict=True)
    )


def test_unusable_rows_of_pandas(tmp_path: Path) -> None:
    table = '{"columns": ["inputs", "outputs"], "data": [["a", "b"], ["a"]]}'
    first, ragged = read_text(tmp_path, table, name="f.json")
    assert first == {"inputs": "a", "outputs": "b"}
    assert "it has 1 cells" in str(ragged)
    assert all('orient="records"' in str(row) for row in read("pandas_values.json"))


def test_table_of_pandas_without_a_suffix(tmp_path: Path) -> None:
    columns = '{"inputs": {"0": "a", "1": "b"}, "outputs": {"0": "c", "1": "d"}}'
    rows = read_text(tmp_path, columns, name="f")
    assert rows == [{"inputs": "a", "outputs": "c"}, {"inputs": "b", "outputs": "d"}]
    rows = read_text(tmp_path, f"{columns}\n{columns}\n", name="f")
    assert [row["inputs"] for row in rows] == [{"0": "a", "1": "b"}] * 2


def test_line_that_is_no_json_does_not_reject_other_lines(tmp_path: Path) -> None:
    good = '{"inputs": "Hi", "outputs": "Ho", "value": true}'
    rows = read_text(tmp_path, f'{good}\n{good[:-9]}\n[1]\n"x"\n{good}\n', name="f.jsonl")
    assert [type(row) for row in rows] == [dict, *[InvalidInputError] * 3, dict]
    assert [str(row)[:20] for row in rows[1:4]] == [
        "this is not JSON: Un",
        "give an object with ",
        "give an object with ",
    ]


@pytest.mark.parametrize(("name", "at"), [("f.jsonl", "line 2"), ("f.json", "record 2")])
def test_record_with_two_names_of_a_field_does_not_reject_others(
    tmp_path: Path, name: str, at: str
) -> None:
    good = '{"Inputs": "Hi", "INPUT": "x", "outputs": "Ho"}'
    records = [good, '{"Inputs": "a", "INPUTS": "c", "outputs": "b"}', good]
    text = "\n".join(records) if name == "f.jsonl" else f"[{','.join(records)}]"
    (tmp_path / name).write_text(text)
    first, (where, error), last = read_records(str(tmp_path / name), "-f", None, lambda _: None)
    assert (where, str(error)) == (at, "two fields are called inputs. Rename one.")
    assert [fields for _, fields in (first, last)] == [{"inputs": "Hi", "outputs": "Ho"}] * 2


def test_numbers_in_fields_of_text_are_text(tmp_path: Path) -> None:
    text = (
        '{"inputs": "Hi", "outputs": "Ho", "rationale": 5.0, "author": 7, "id": 2}\n'
        '{"inputs": "Hey", "outputs": "Ho", "rationale": "Fine.", "author": NaN}'
    )
    rows = feedback(read_text(tmp_path, text, name="f.jsonl"))
    assert [(row.rationale, row.author) for row in rows] == [("5", "7"), ("Fine.", None)]


def test_one_record_whose_fields_are_objects_is_no_table(tmp_path: Path) -> None:
    text = '{"inputs": {"text": "Hi"}, "outputs": {"text": "Hello"}}'
    [row] = read_text(tmp_path, text, name="f.json")
    assert row == {"inputs": {"text": "Hi"}, "outputs": {"text": "Hello"}}


@pytest.mark.parametrize("orientation", ["columns", "index"])
@pytest.mark.parametrize("index", [["r-1", "r-2"], [-1, 2]])
def test_table_with_an_index_of_text_is_not_one_record(
    tmp_path: Path, orientation: Any, index: list[Any]
) -> None:
    table = pd.DataFrame({"inputs": ["Hi", "Hey"], "outputs": ["Ho", "No"]}, index=index)
    with pytest.raises(InvalidInputError, match=r'f\.json: this may be .* orient="records"'):
        read_text(tmp_path, table.to_json(orient=orientation), name="f.json")


def test_integers_that_pandas_made_floats_are_restored(tmp_path: Path) -> None:
    rows = feedback(read("pandas_gaps.csv"))
    assert [(row.id, row.author) for row in rows] == [("1", "7"), (None, "8"), ("3", None)]
    [row] = read_text(tmp_path, "inputs,outputs,value,id,author\nHi,Ho,TRUE,1,7\n")
    assert (row["id"], row["author"]) == ("1", "7")
    text = '{"inputs": "Hi", "outputs": "Ho", "value": true, "author": 7, "id": 1.0}'
    [item] = feedback(read_text(tmp_path, text, name="f.jsonl"))
    assert (item.id, item.author) == ("1", "7")
    # Values that are not numbers are unchanged.
    rows = read_text(tmp_path, "inputs,outputs,id\na,b,1.0\nc,d,v2\n")
    assert [row["id"] for row in rows] == ["1.0", "v2"]


def test_tsv_is_read_by_its_tabs(tmp_path: Path) -> None:
    rows = read_text(tmp_path, "inputs\toutputs\ta, b, c, d\nHi, you\tHo\t1\n", name="f.tsv")
    assert rows == [{"inputs": "Hi, you", "outputs": "Ho"}]


def test_excel_with_blank_trailing_columns() -> None:
    rows = feedback(read("excel.csv"))
    assert [(row.value, row.rationale) for row in rows] == [(False, "Too cold."), (True, None)]


def test_german_excel_export() -> None:
    first, second = feedback(read("excel_german.csv"))
    assert (first.value, second.value) == (False, True)
    assert first.example.outputs == "Check the\ntracking page.", "a quoted line break is one"
    assert first.given_at.isoformat() == "2024-05-01T12:00:00+00:00"
    assert second.given_at.isoformat() == "2024-05-02T00:00:00+00:00"


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("Of ann, bob, eve", '"Of ann, bob, eve";outputs\na;b\n'),
        ("Of ann,\nbob", '"Of ann,\nbob";outputs\r\na;b\r\n'),
        ("Of ann, bob", "\nsep=|\nOf ann, bob|outputs\na|b\n"),
    ],
)
def test_delimiter_of_a_table_with_commas_in_its_header(
    tmp_path: Path, column: str, text: str
) -> None:
    rows = read_text(tmp_path, text, f"inputs={column}")
    assert rows == [{"inputs": "a", "outputs": "b"}]


def test_ragged_row_of_google_sheets_does_not_reject_other_rows() -> None:
    first, ragged, last = read("google_sheets.csv")
    assert [feedback.value for feedback in feedback([first, last])] == [False, True]
    assert isinstance(ragged, InvalidInputError)
    assert str(ragged).startswith("it has 3 cells, and the header has 4")


def test_excel_workbook() -> None:
    first, second = feedback(read("excel.xlsx"))
    assert (first.value, first.author, first.id) == (False, "7", "1")
    assert (second.value, second.author, second.id) == (True, "8", "2")
    assert first.example.outputs == "Check the\ntracking page."
    assert (first.rationale, second.rationale) == ("Too cold.", None)
    assert first.given_at.isoformat() == "2024-05-01T12:00:00+00:00"


def test_an_unreadable_workbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(FILES / "excel.xlsx") as whole, ZipFile(tmp_path / "cut", "w") as cut:
        for name in whole.namelist():
            cut.writestr(name, whole.read(name)[:300])
    with ZipFile(tmp_path / "ods", "w") as ods:
        ods.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        ods.writestr("content.xml", "<a/>")
    damaged = [(tmp_path / name).read_bytes() for name in ("cut", "ods")]
    for data in (b"PK\x03\x04\xff", b"inputs,outputs", *damaged):
        (tmp_path / "f.xlsx").write_bytes(data)
        unreadable = r"f\.xlsx: it can't be read: it is not an Excel workbook\. Save it as CSV"
        with pytest.raises(InvalidInputError, match=unreadable):
            read("f.xlsx", folder=tmp_path)
    with pytest.raises(InvalidInputError, match=r"none\.xlsx: it can't be read: No such file"):
        read("none.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError, match=r'save it as CSV .* the extra "evaluation"'):
        read("excel.xlsx")


def test_langsmith_and_argilla() -> None:
    rows = read("langsmith_dataset.jsonl")
    assert rows[0]["inputs"] == {"question": ASKED[0]}
    columns = ("inputs=fields.prompt", "outputs=fields.reply", "value=responses.tone.0.value")
    rows = feedback(read("argilla.json", *columns, "author=responses.tone.0.user_id"))
    first, second = ((row.value, row.author, row.id) for row in rows)
    assert (first, second) == ((False, "5b1c", "r1"), (True, "5b1c", "r2"))
    with pytest.raises(InvalidInputError, match=r"no column is called 'fields\.nothing'"):
        read("argilla.json", "inputs=fields.nothing", "outputs=fields.reply")


MISSING = ("None", "null", "nan")


# Of Excel in Danish, Norwegian, Finnish, Czech, Hungarian, Russian and Turkish.
EXCEL_TRUE = ["SAND", "SANN", "TOSI", "PRAVDA", "IGAZ", "ИСТИНА", "DOĞRU"]
EXCEL_FALSE = ["FALSK", "USANN", "EPÄTOSI", "NEPRAVDA", "HAMIS", "ЛОЖЬ", "YANLIŞ"]


def choices(*names: str) -> Categorical:
    return Categorical(choices=names)


@pytest.mark.parametrize(
    ("cells", "scale", "values"),
    [
        (["vero"], choices("falso", "vero"), ["vero"]),
        *(([word, "NaT"], choices(word, "b"), [word, None]) for word in MISSING),
        (EXCEL_TRUE, Boolean(), [True] * 7),
        (EXCEL_FALSE, Boolean(), [False] * 7),
        (["0,5"], Numeric(minimum=0, maximum=1), ["0.5"]),
        (["0,5"], choices("0,5", "1"), ["0,5"]),
        (["1,000", "0,5"], Numeric(minimum=0, maximum=5_000), ["1,000", "0.5"]),
    ],
)
def test_values_are_read_by_the_scale(
    tmp_path: Path, cells: list[str], scale: Any, values: list[Any]
) -> None:
    """A word is missing or a number only if it is no choice; 1,000 is left to be refused."""
    rows = [f"Hi;Ho {number};{cell}" for number, cell in enumerate(cells)]
    read = read_text(tmp_path, "\n".join(["inputs;outputs;value", *rows, ""]), scale=scale)
    assert [row.get("value") for row in read] == values


def test_column_that_is_exactly_called_like_its_field_counts(tmp_path: Path) -> None:
    [row] = read_text(tmp_path, "inputs,outputs,value,VALUE\nHi,Ho,1,0\n")
    assert row["value"] == "1"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("f.csv", "q,a,value\nHi,Ho,TRUE\n", "no column is called inputs or outputs: it has q, a,"),
        ("f.json", '{"columns": [0, 1], "data": [["a", "b"]]}', "inputs or outputs: it has 0, 1"),
        ("f.csv", f"{'x' * 100_000}\nb\n", "no column is called inputs or outputs: it has xxx"),
        ("f.csv", "inputs,outputs,value,value\na,b,1,0\n", "two columns are called value"),
        ("f.csv", "inputs,outputs,Value,VALUE\n", "two columns are called value"),
        ("f.json", '{"columns": ["Inputs", "INPUTS"], "data": []}', "called inputs"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name}: .*{says}") as caught:
        read_text(tmp_path, text, name=name)
    assert len(str(caught.value)) < 1_000


def test_only_the_day_numbers_of_spreadsheets_are_converted(tmp_path: Path) -> None:
    dates = {date: date for date in ("2024", "20240531", "1700000000", "2024-05-01")}
    dates |= {"45291.5": "2023-12-31T12:00:00+00:00", "45291,5": "2023-12-31T12:00:00+00:00"}
    text = "\n".join(["inputs;outputs;given_at", *(f"Hi;Ho;{date}" for date in dates)])
    assert [row["given_at"] for row in read_text(tmp_path, text)] == list(dates.values())


def test_index_in_a_list_is_of_decimal_digits(tmp_path: Path) -> None:
    text = '{"inputs": "Hi", "replies": ["Ho", "Hey"]}'
    [row] = read_text(tmp_path, text, "outputs=replies.1", name="f.jsonl")
    assert row["outputs"] == "Hey"
    with pytest.raises(InvalidInputError, match=r"no column is called 'replies\.²'"):
        read_text(tmp_path, text, "outputs=replies.²", name="f.jsonl")


def test_incomplete_pair_is_missing(tmp_path: Path) -> None:
    half, whole = read_text(tmp_path, "inputs,a,b\nHi,Ho,\nYo,x,y\n", "outputs=a,b")
    assert "outputs" not in half
    assert whole["outputs"] == ["x", "y"]
