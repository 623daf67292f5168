"""The command-line page has all flags and exit statuses."""

import re
from pathlib import Path

import pytest
import typer

from memalign_graph.cli.app import app
from memalign_graph.cli.options import Status

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
TEXT = PAGE.read_text("utf-8")
SHARED = {"--criterion", "--memory", "--namespace", "--model", "--embeddings", "--k"}
SHARED |= {"--json", "--quiet", "--help", "--web"}


def flags_of(name: str) -> set[str]:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined] # a group's
    return {flag for option in command.params for flag in option.opts if flag.startswith("--")}


@pytest.mark.parametrize("name", ["align", "judge", "evaluate", "review", "rate", "migrate"])
def test_each_flag_of_a_command_is_in_its_row(name: str) -> None:
    [row] = re.findall(rf"^\| `{name}` \|.*$", TEXT, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", row)) == flags_of(name) - SHARED


def test_each_flag_of_the_demo_is_in_its_table() -> None:
    text = PAGE.with_name("models.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE)) == flags_of("demo") - {"--help"}


def test_each_exit_status_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(",")} == {*Status}
