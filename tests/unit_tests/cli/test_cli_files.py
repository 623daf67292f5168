"""Criterion files, records, ids and terminal output."""

import io
import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from memalign_graph import Boolean, Categorical, Criterion, InvalidInputError, Numeric, Pairwise
from memalign_graph.cli import main, options
from memalign_graph.cli.app import app
from memalign_graph.cli.files import load_criterion
from memalign_graph.cli.memory import find_id
from memalign_graph.cli.records import example_of, read_records
from memalign_graph.cli.terminal import Terminal, clean, table
from memalign_graph.evaluation.experiment import Options

warnings: list[str] = []
HEAD = "name: tone\ninstructions: Is it kind?\n"
_FLAGS = {"cache", "max_concurrency", "progress"}  # the command's own
EVIL = "\x1b[2J \x07\x08\r\x9b31m \u202e\u2066 \x7f \x00 \U000e0041"


def load(folder: Path, content: str, name: str = "c.yaml") -> Criterion:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return load_criterion(str(path)).criterion


def records(folder: Path, name: str, content: str, *columns: str) -> Any:
    path = folder / name
    path.write_bytes(content.encode())
    return read_records(str(path), "--feedback", columns, warnings.append)


def fields(read: Any) -> list[Any]:
    return [fields for _, fields in read]


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("", Boolean()),
        ("scale: pairwise", Pairwise()),
        ("scale: {type: pairwise, allow_tie: false}", Pairwise(allow_tie=False)),
        ("scale: 1-5", Numeric(minimum=1, maximum=5, integer=True)),
        ("scale: -2..2", Numeric(minimum=-2, maximum=2, integer=True)),
        ("scale: {minimum: 0, maximum: 1}", Numeric(minimum=0, maximum=1)),
        ("scale: [poor, fair, good]", Categorical(choices=("poor", "fair", "good"))),
        ('scale: ["yes", "no"]', Categorical(choices=("yes", "no"))),
    ],
)
def test_scales(tmp_path: Path, scale: str, expected: Any) -> None:
    read = load(tmp_path, HEAD + scale)
    assert read == Criterion(name="tone", instructions="Is it kind?", scale=expected)


def test_every_option_of_an_evaluation_is_accepted(tmp_path: Path) -> None:
    arguments = {"folds": 3, "seed": 1, "group_by": "inputs", "learning_curve": True}
    arguments |= {"resamples": 200, "sizes": [2, 5]}
    load(tmp_path, f"{HEAD}evaluate: {json.dumps(arguments)}")
    assert load_criterion(str(tmp_path / "c.yaml")).evaluate == arguments
    assert arguments.keys() == Options.model_fields.keys() - _FLAGS


def test_json_as_this_package_writes_it(tmp_path: Path) -> None:
    criterion = Criterion(name="a", instructions="b?", scale=Boolean())
    assert load(tmp_path, json.dumps(criterion.to_json(), indent="\t"), "c.json") == criterion
    assert load(tmp_path, "\ufeff" + json.dumps(criterion.to_json()), "c.yml") == criterion


def test_json_key_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"c\.json: k is given twice in one object\."):
        load(tmp_path, '{"name": "a", "instructions": "b", "judge": {"k": 1, "k": 2}}', "c.json")
    good = '{"inputs": "a", "outputs": "b", "value": true}'
    twice = (f'{good[:-1]}, "value": false}}', '{"inputs": [{"": 1, "": 2}], "outputs": "b"}')
    read = records(tmp_path, "f.jsonl", "\n".join([good, *twice]))
    assert [str(problem)[:24] for problem in fields(read)[1:]] == [
        "value is given twice in ",
        " is given twice in one o",
    ]
    assert fields(read)[0]["value"] is True
    with pytest.raises(InvalidInputError, match=r"f\.json: value is given twice"):
        records(tmp_path, "f.json", f"[{good}, {twice[0]}]")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not a criterion: give an object such as"),
        ("name: a\n\tinstructions: b", "is neither YAML nor JSON: "),
        ("!!python/object/apply:os.system [ls]", "is neither YAML nor JSON: "),
        (HEAD + "model: x", "model: is not a known field"),
        ("name: tone", "instructions: is missing."),
        ("name: a\ninstructions: b\njudge: {k: 1}\njudge: {swap: true}", "judge is given twice"),
        ("name: a\ninstructions: b\njudge: {k: 1, k: 2}", "k is given twice"),
        ("name: 1\ninstructions: b", "name: 1 is not text. Put it in quotes."),
        ("name: a\ninstructions: b\nscale: bool", "scale: 'bool' is not known: give one of 'bool"),
        (HEAD + "scale: 5", "scale: '5' is not known: give one of 'boolean', "),
        (HEAD + "scale: [yes, no]", "choices.0: True is not text. Put it in quotes."),
        (HEAD + "scale: {choices: 5}", "choices"),
        (HEAD + "scale: {type: boolean, foo: 1}", "foo"),
    ],
)
def test_invalid_criterion_files(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^--criterion: .*c\.yaml") as caught:
        load(tmp_path, content)
    assert says in str(caught.value)


def test_line_numbers_include_blank_lines(tmp_path: Path) -> None:
    read = records(tmp_path, "f.jsonl", '\n{"inputs": 1}\r\n \n{"inputs": "x\u2028y\x85z"}')
    assert read == [("line 2", {"inputs": 1}), ("line 4", {"inputs": "x\u2028y\x85z"})]
    assert records(tmp_path, "f.json", '[{"inputs": 1}, {"inputs": 2}]')[1][0] == "record 2"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_tables_in_each_encoding(tmp_path: Path, delimiter: str, line_break: str) -> None:
    lines = ["inputs|outputs|value", '"a|b"|"c\n""d"""|yes', "||", "e|f|"]
    text = line_break.join(lines).replace("|", delimiter)
    read = records(tmp_path, "f.csv", "\ufeff" + text)
    assert read == [
        ("line 3", {"inputs": f"a{delimiter}b", "outputs": 'c\n"d"', "value": "yes"}),
        ("line 5", {"inputs": "e", "outputs": "f"}),  # an empty cell is missing
    ]


def test_cells_are_not_converted(tmp_path: Path) -> None:
    text = ',inputs,outputs,id,author\n0, 1 ,NaN,007,"{""x"": 1}"\n'
    read = records(tmp_path, "f.csv", text)  # a column without a name is an index
    assert fields(read) == [{"inputs": " 1 ", "outputs": "NaN", "id": "007", "author": '{"x": 1}'}]
    assert warnings == []


def test_renamed_columns(tmp_path: Path) -> None:
    text = '{"question": "q", "outputs": "o", "value": "model\'s", "label": true, "x": 2}'
    read = records(tmp_path, "f.jsonl", text, "inputs=question", "value = label ")
    assert fields(read) == [{"inputs": "q", "outputs": "o", "value": True}]
    assert "/f.jsonl: not used: value, x (--field" in warnings.pop()
    with pytest.raises(InvalidInputError, match="once for each field"):
        records(tmp_path, "f.csv", "a\nb\n", "value=a", "value=a")


def test_examples_of_records() -> None:
    assert example_of({"inputs": 1, "outputs": 2, "value": 3}) == {"inputs": 1, "outputs": 2}
    inside = {"inputs": 1, "outputs": 2, "reference_outputs": 3}
    assert example_of({"example": inside, "inputs": 4}) == inside


def test_id_prefixes() -> None:
    ids = ["abcd1111", "abcd2222", "beef0000", "beef00001"]
    for typed, result in (("abcd1", ids[0]), (" BEEF0000 ", "beef0000")):
        assert find_id(typed, ids, "episode") == result
    for typed, says in (
        ("abcd", "'abcd' names 2 versions: give 4 characters or more of one id"),
        ("abc", "'abc' names 2 versions: give 4"),
        ("bee", "'bee' names 2 versions: give 4"),
        ("", "names 4 versions"),
        ("ffff", "'ffff' names no versions"),
    ):
        with pytest.raises(InvalidInputError, match=says):
            find_id(typed, ids, "versions")


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert clean("a\x1b[31mb\u202e") == "a\\x1b[31mb\\u202e"
    assert clean("tab\tand\nline, ü, 漢字, 🙂") == "tab\tand\nline, ü, 漢字, 🙂"
    terminal = Terminal()
    terminal.result({"a": EVIL, "b": [EVIL], "c": [{"text": EVIL}]})
    # An example's keys are untrusted text, and its lists are not printed as tables.
    terminal.result({"example": {"inputs": {EVIL: [{"worth": {"q": 1}}]}, "outputs": ["Bye."]}})
    terminal.document({EVIL: EVIL})
    out, _ = capsys.readouterr()
    assert out.replace("\n", "").isprintable()
    assert {"worth", "Bye."} <= set(re.findall(r"[\w.]+", out))
    assert json.loads(out[out.index("{\n") :]) == {EVIL: EVIL}


def test_table_shows_the_auc_of_guidelines(capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"status": "unproven", "worth": {"auc": 5 / 6, "cases": 12}, "text": "Be brief."}
    Terminal().result({"guidelines": [measured, {"status": "standing", "text": "Say why."}]})
    output = " ".join(capsys.readouterr().out.split())
    expected = "status measured text unproven 83 % on 12 cases Be brief. standing Say why."
    assert output == f"guidelines: 2 {expected}"


def test_table_of_changes_shows_the_fields_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    episode = {"id": "e1", "example": {"inputs": "long " * 50}, "value": True, "rationale": "Warm."}
    changed = {"before": episode, "after": {**episode, "value": False, "rationale": "Cold."}}
    Terminal().result({"changed": [changed]})
    output = " ".join(capsys.readouterr().out.split())
    shown = "id before after e1 value True rationale Warm. value False rationale Cold."
    assert output == f"changed: 1 {shown}"


def test_table_in_a_narrow_terminal_is_complete() -> None:
    changes = {"added": 12, "changed": 3, "removed": 0}
    row = {"line": 123, "version": "ab12" * 8, "at": "2026-11-27T23:55:18.123456Z"}
    row |= {"author": "katharina.schneider@example.com", "confidence": 5 / 6}
    output = io.StringIO()
    shown = table([{**row, "episodes": changes, "guidelines": changes, "reason": "remember"}])
    Console(file=output, width=80).print(shown)
    assert {"123", "ab12ab12", "0.833", "remember"} <= {*output.getvalue().split()}


def test_messages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-1234567890")
    for terminal in (Terminal(), Terminal(quiet=True)):
        terminal.note("note")
        for _ in range(2):  # shown once, and does not look like another message
            terminal.warn("bad\nmemalign: error: key: sk-1234567890")
        with terminal.progress() as progress:
            for done in range(4):
                progress("judged", done, 3)
    out, err = capsys.readouterr()
    warning = "memalign: warning: bad memalign: error: key: ***\n"
    assert (out, err) == ("", f"memalign: note\n{warning}memalign: judged 3 of 3\n{warning}")


def test_characters_outside_the_terminals_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", errors="backslashreplace"))
    sys.stdout.write("Zoë \udcff\n")
    Terminal().document({"a": "Zoë"})
    first, rest = raw.getvalue().split(b"\n", 1)
    assert first == b"Zo\\xeb \\udcff"
    assert json.loads(rest) == {"a": "Zoë"}


def test_every_command_and_option_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    group: Any = typer.main.get_command(app)
    inner = group.commands["memory"].commands
    commands = {**group.commands, **{f"memory {name}": each for name, each in inner.items()}}
    for name, command in commands.items():
        assert main([*name.split(), "--help"]) == 0
        assert f"Usage: memalign {name}" in capsys.readouterr().out
        options = [each for each in command.params if each.param_type_name == "option"]
        assert [option.name for option in options if not option.help] == []
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("memalign-graph 0.")


@pytest.mark.parametrize("group", [[], ["memory"]])
def test_groups_show_their_help(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(group) == 2
    printed = capsys.readouterr()
    assert ("Commands" in printed.out + printed.err, "error" in printed.err) == (True, False)


def test_background_command_ends_on_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts `memalign ... &`
    try:
        assert main(["--version"]) == 143
    finally:
        signal.signal(signal.SIGINT, before)


def test_windows_gets_an_event_loop_that_postgres_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[object] = []
    asyncio = SimpleNamespace(
        WindowsSelectorEventLoopPolicy=object, set_event_loop_policy=policies.append
    )
    monkeypatch.setattr(options, "asyncio", asyncio)
    monkeypatch.setattr(options, "sys", SimpleNamespace(platform="win32"))
    (tmp_path / "c.yaml").write_text(HEAD)
    criterion = load_criterion(str(tmp_path / "c.yaml"))
    for memory, is_set in (("x.db", False), ("postgresql:///x", True)):
        options.MemoryLocation(criterion, memory).check(must_exist=False)
        assert bool(policies) == is_set
