"""Criteria in files: YAML, JSON, and short ways to write a scale."""

import json
from pathlib import Path
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Criterion, InvalidInputError, Numeric, Pairwise
from memalign_graph.cli.criteria import load_criterion

HEAD = "name: tone\ninstructions: Is it kind?\n"


def load(folder: Path, content: str, name: str = "c.yaml") -> Criterion:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return load_criterion(str(path))


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("", Boolean()),
        ("scale: boolean", Boolean()),
        ("scale: pairwise", Pairwise()),
        ("scale: {type: pairwise, allow_tie: false}", Pairwise(allow_tie=False)),
        ("scale: 1-5", Numeric(minimum=1, maximum=5, integer=True)),
        ("scale: -2..2", Numeric(minimum=-2, maximum=2, integer=True)),
        ("scale: {minimum: 0, maximum: 1}", Numeric(minimum=0, maximum=1)),
        ("scale: {type: numeric, minimum: 0, maximum: 1}", Numeric(minimum=0, maximum=1)),
        ("scale: [poor, fair, good]", Categorical(choices=("poor", "fair", "good"))),
        (
            "scale: {choices: [low, high], ordered: true}",
            Categorical(choices=("low", "high"), ordered=True),
        ),
        ('scale: ["yes", "no"]', Categorical(choices=("yes", "no"))),
    ],
)
def test_scales(tmp_path: Path, scale: str, expected: Any) -> None:
    read = load(tmp_path, HEAD + scale)
    assert read == Criterion(name="tone", instructions="Is it kind?", scale=expected)


@pytest.mark.parametrize("criterion", [Criterion(name="a", instructions="b?", scale=Boolean())])
def test_json_as_this_package_writes_it(tmp_path: Path, criterion: Criterion) -> None:
    assert load(tmp_path, json.dumps(criterion.to_json(), indent="\t"), "c.json") == criterion
    assert load(tmp_path, json.dumps([criterion.to_json()]), "c.json") == criterion
    assert load(tmp_path, "\ufeff" + json.dumps(criterion.to_json()), "c.yml") == criterion


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is no criterion: give an object such as"),
        ("just words", "is no criterion"),
        ("- 1\n- 2", "has 2 criteria: give a file with one"),
        ("[]", "has 0 criteria"),
        ("name: a\n\tinstructions: b", "is no YAML: "),
        ("name: *x", "is no YAML: "),
        ("!!python/object/apply:os.system [ls]", "is no YAML: "),
        (HEAD + "model: x", "'model' is not a field of a criterion: it has name, instructions, sc"),
        (HEAD + "1: x", "1 is not a field of a criterion"),
        ("name: tone", "instructions: is missing: give it."),
        ("name: ''\ninstructions: b", "the criterion's name must not be empty"),
        (HEAD + "scale: stars", "the scale 'stars' is not known: write boolean"),
        (HEAD + "scale: 5-1", "minimum must be below maximum"),
        (HEAD + "scale: 5", "scale: write boolean, pairwise, a range"),
        (HEAD + "scale:", "scale: write boolean, pairwise, a range"),
        (HEAD + "scale: {}", "scale: type is missing"),
        (HEAD + "scale: [one]", "give at least two choices"),
        (HEAD + "scale: [yes, no]", "YAML reads a bare yes, no, on or off as a truth value"),
        (HEAD + "scale: {choices: [yes, no]}", "YAML reads a bare yes"),
        (HEAD + "scale: {minimum: 1}", "maximum: is missing"),
        (HEAD + "scale: {type: stars}", "scale"),
        (HEAD + "scale: {type: boolean, foo: 1}", "foo"),
    ],
)
def test_what_is_no_criterion(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load(tmp_path, content)
    message = str(caught.value)
    assert message.startswith("--criterion: ")
    assert "c.yaml" in message
    assert says in message


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is no file"):
        load_criterion(str(tmp_path / "none.yaml"))
    with pytest.raises(InvalidInputError, match="is a folder: name a file"):
        load_criterion(str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(InvalidInputError, match="is not UTF-8 text: save it as UTF-8"):
        load_criterion(str(tmp_path / "latin.yaml"))
    with pytest.raises(InvalidInputError, match=r"c\.json is no JSON: Expecting"):
        load(tmp_path, "name: x", "c.json")
    with pytest.raises(InvalidInputError, match="is no JSON"):
        load(tmp_path, "[" * 100_000, "c.json")
