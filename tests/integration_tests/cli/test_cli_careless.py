"""Operator mistakes: each gives one sentence, and nothing is lost."""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from memalign_graph.alignment.report import AlignmentReport
from memalign_graph.cli import main
from memalign_graph.cli.app import _message_and_status
from tests.integration_tests.cli.support import ANN, CRITERION_YAML, Shell


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.jsonl", None, "--feedback: none.jsonl: it can't be read: No such file"),
        ("empty.jsonl", b"", "--feedback: empty.jsonl: it has no records."),
        ("cut.json", b'[{"inputs": "a"', "--feedback: cut.json: this is not JSON: Expecting"),
        ("deep.jsonl", b"[" * 100_000, "--feedback: deep.jsonl: no record can be used. The first"),
        ("Head.csv", b"Inputs,Outputs\na,b\n", "--feedback: Head.csv: no record can be used."),
        ("open.csv", b'a,b\na,b\n"c,d\n', "--feedback: open.csv: line 3: unexpected"),
    ],
)
def test_unreadable_files(shell: Shell, name: str, content: bytes | None, says: str) -> None:
    if content is not None:
        shell.write(name, content)
    assert shell.run("align", "-c", "tone.yaml", "-f", name).refusal.startswith(says)
    assert (shell.server.chats, shell.server.embeddings) == ([], [])
    assert not (shell.folder / "memalign.db").exists()


def test_file_can_require_a_namespace(shell: Shell) -> None:
    shell.settings(judge={"require_namespace": True})
    refusal = "--namespace: give one, as --criterion has require_namespace."
    assert shell.align(ANN).refusal == refusal
    assert shell.memory("list").refusal == refusal
    shell.align(ANN, options=["--namespace", "acme"])
    assert len(shell.memory("list", "--namespace", "acme", "--json").document["episodes"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--field", "value=x"], "--feedback: feedback.jsonl: no column is called 'x': it has inp"),
        (["--field", "outputs=a,b"], "--feedback: feedback.jsonl: no column is called 'a'"),
        (["--field", "label=value"], "--field: 'label=value' is not understood"),
        (["--k", "-1"], "--k: -1 is below the minimum of 0. Use 0 or more."),
        (["--max-concurrency", "-2"], "Invalid value for '--max-concurrency'"),
        (["--memory", ":memory:"], "--memory: :memory: would be lost when the command"),
        (["--memory", "."], "--memory: . is not an SQLite file and is left as it is"),
        (["--memory", "tone.yaml"], "--memory: tone.yaml is not an SQLite file and is left as"),
        (["--memory", "tone.yaml/x.db"], "tone.yaml: File exists"),
        (["--memory", "mysql://u:se/cr#et@h/x"], "--memory: mysql://h/x is not the URL of a"),
        (["--memory", "mysql://u:se?cret@h/x"], "--memory: mysql://... is not the URL of a"),
        (["--memory", "postgresql://u:s3%cret@h/x"], "--memory: the database can't be used: its"),
        (["--namespace", "langgraph"], "--namespace: LangGraph reserves the first label"),
        (["--namespace", "shop."], "--namespace: a label must not be empty,"),
        (["--model", "nobody:x"], "--model: 'nobody:x' "),
    ],
)
def test_options_that_cannot_be_used(shell: Shell, arguments: list[str], says: str) -> None:
    ran = shell.align(ANN, options=arguments)
    assert ran.refusal.startswith(says)
    assert "cret" not in ran.err
    assert shell.server.chats == []
    assert (shell.folder / "tone.yaml").read_text().startswith("name: support_tone")


def test_end_of_a_password_is_not_part_of_a_host_name() -> None:
    error = psycopg.OperationalError("failed to resolve host 'cret@127.0.0.1': unknown")
    problem = "the database can't be used: failed to resolve host '...127.0.0.1': unknown."
    assert _message_and_status(error) == (f"--memory: {problem}", 2)


def test_database_of_something_else(shell: Shell) -> None:
    with sqlite3.connect("app.db") as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    before = (shell.folder / "app.db").read_bytes()
    ran = shell.memory("list", "-m", "app.db")
    assert ran.error.startswith("--memory: app.db has no memory: `memalign align` makes one")
    assert (shell.folder / "app.db").read_bytes() == before
    assert not (shell.folder / "app.db.lock").exists()


@pytest.mark.parametrize("command", ["review", "rate", "align --pending", "memory list"])
def test_memory_that_does_not_exist(shell: Shell, command: str) -> None:
    error = shell.run(*command.split(), "-c", "tone.yaml").refusal
    assert error.startswith("--memory: memalign.db has no memory: `memalign align` makes one")
    assert not (shell.folder / "memalign.db").exists()


def test_broken_database(shell: Shell) -> None:
    shell.align(ANN)
    path = shell.folder / "memalign.db"
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 4096)
    assert shell.memory("list").refusal.startswith("--memory: ")


def test_locked_memory(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.align(ANN)
    monkeypatch.setattr("memalign_graph.local.stores.BUSY_TIMEOUT_S", 0.05)
    holder = sqlite3.connect("memalign.db.lock", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        ran = shell.memory("list")
    finally:
        holder.close()
    assert "database is locked: another process is using it, try again." in ran.refusal


def test_missing_extra_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "langgraph.store.sqlite", None)
    assert 'pip install "memalign-graph[local]"' in shell.align(ANN).refusal


def test_internal_error_shows_a_traceback(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Path:
        raise ZeroDivisionError("oops \x1b[2J sk-loopback-secret")

    monkeypatch.setattr("memalign_graph.cli.options.check_database", broken)
    assert main(["memory", "list", "-c", "tone.yaml"]) == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError: oops \\x1b[2J ***" in err
    assert "report it" in err


def test_usage_errors_are_status_2(shell: Shell) -> None:
    judge = ["judge", "-c", "none.yaml", "--inputs", "a", "--outputs", "b"]
    align = ["align", "-c", "tone.yaml", "--pending"]
    for arguments in ([*align, "-f", "x"], judge):
        ran = shell.run(*arguments)
        assert (ran.status, ran.out, "error: " in ran.err) == (2, "", True)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("judge: {keep_judgments: 10000000000}", "judge.keep_judgments: 10000000000 is not a"),
        ("judge: {keep_judgments: .nan}", "judge.keep_judgments: nan is not a number of days"),
        ("judge: {keep_judgments: 30 days}", "judge.keep_judgments: '30 days' is not a number"),
        ("judge: {keep_judgments: yes}", "judge.keep_judgments: True is not a number of days"),
        ("judge: {keep_judgments: 0}", "judge.keep_judgments: 0 is not a number of days"),
        ("judge: {criterion: x}", "judge.criterion: is not a setting: give checks, "),
        ("judge: {1: 2}", "judge.1: is not a setting: give checks, "),
        ("judge: [1]", "judge: give settings by name, not [1]."),
        ("judge: {k: -1}", "judge.k: -1 is below the minimum"),
        ("judge: {swap: true}", "judge.swap: only a criterion with"),
        ("judge: {distill_model: gpt}", "judge.distill_model: 'gpt' names no model"),
        ("learn: {k: 3}", "learn.k: is not a setting: give batch_size, guard, "),
        ("learn: {batch_size: 0}", "learn.batch_size: 0 is below the minimum of 1."),
        ("evaluate: {test_share: 0.5}", "evaluate.test_share: is not a setting: give folds, "),
    ],
)
def test_mistakes_in_a_criterion_file(shell: Shell, section: str, problem: str) -> None:
    shell.write("tone.yaml", f"{CRITERION_YAML}{section}\n")
    ran = shell.align(ANN)
    assert ran.refusal.startswith(f"--criterion: tone.yaml: {problem}")
    assert shell.server.chats == []


def test_one_bad_record_does_not_exclude_the_others(shell: Shell) -> None:
    shell.write("f.csv", "inputs,outputs,value\nHi,Ho,TRUE\nYo\nHey,No,maybe\nWhen?,At nine.,no\n")
    ran = shell.run("align", "-c", "tone.yaml", "-f", "f.csv", "--json")
    assert ran.status == 4
    report = AlignmentReport.model_validate(ran.document)
    assert (report.feedback.new, report.feedback.rejected) == (2, 2)
    ragged, off = report.rejected
    assert (ragged.index, ragged.reason[:24]) == (1, "line 3: it has 1 cells, ")
    assert (off.index, off.reason[:35]) == (2, "line 4: value: 'maybe' is not on th")
    assert off.reason in shell.run("align", "-c", "tone.yaml", "-f", "f.csv").out
    judged = shell.run("judge", "-c", "tone.yaml", "-e", "f.csv", "--json", "-q")
    assert judged.status == 4
    assert [bool(line["judgment"]) for line in judged.lines] == [True, False, True, True]
    assert judged.lines[1]["error"].startswith("it has 1 cells")
