"""The help that every command has."""

import argparse
from collections.abc import Iterator

import pytest

from memalign_graph.cli import main
from memalign_graph.cli.entry import _command
from memalign_graph.cli.exits import TABLE, ExitStatus
from memalign_graph.cli.parser import build_parser

COMMANDS = {
    "align",
    "demo",
    "evaluate",
    "judge",
    "memory",
    "memory export",
    "memory forget",
    "memory history",
    "memory import",
    "memory list",
    "memory rollback",
    "memory show",
}


def parsers(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield f"{name} {word}".strip(), inner
                yield from parsers(inner, f"{name} {word}".strip())


def test_there_are_these_commands() -> None:
    assert {name for name, _ in parsers(build_parser())} == COMMANDS


@pytest.mark.parametrize("name", sorted(COMMANDS - {"demo"}))
def test_every_option_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: memalign {name}")
    parser = dict(parsers(build_parser()))[name]
    for action in parser._actions:
        if action.option_strings:
            assert action.help, action.option_strings
            assert any(one.startswith("--") for one in action.option_strings)


@pytest.mark.parametrize("name", sorted(COMMANDS - {"demo", "memory"}))
def test_every_command_has_what_runs_it(name: str) -> None:
    parser = dict(parsers(build_parser()))[name]
    assert callable(_command(argparse.Namespace(run=parser.get_default("run"))))


def test_the_statuses_are_all_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert TABLE in capsys.readouterr().out
    told = {int(line.split()[0]) for line in TABLE.splitlines()[1:]}
    assert told == {int(status) for status in ExitStatus}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("memalign-graph 0.")
