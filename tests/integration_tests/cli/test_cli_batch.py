"""`memalign judge --prepare` and `--collect`."""

import re
from typing import Any

import pytest

from tests.integration_tests.cli.support import ANN, BOB, Shell
from tests.integration_tests.cli.test_cli_judge import CASE
from tests.loopback.batches import answer_batch, lines_of, write_lines

JUDGE = ("judge", "-c", "tone.yaml", "-e")
COLLECT = (*JUDGE, "batch.cases.jsonl", "--collect", "results.jsonl")


def test_file_is_judged_by_a_batch(shell: Shell) -> None:
    shell.align(ANN, BOB)
    rows = [{**CASE, "inputs": f"Case {number}", "id": number} for number in range(5)]
    rows += [{"inputs": "only"}]
    at_once = shell.judge(*rows, options=["--json"]).lines
    shell.server.chats.clear()
    ran = shell.judge(*rows, options=["--prepare", "batch.jsonl", "--json"])
    version = at_once[0]["judgment"]["memory_version"]
    wanted = {"requests": 5, "cases": str(shell.folder / "batch.cases.jsonl"), "version": version}
    assert (ran.status, ran.document, shell.server.chats) == (4, wanted, [])
    assert "warning: line 6: not judged: outputs: is missing" in ran.err
    results = shell.folder / "results.jsonl"
    answer_batch(shell.server, shell.folder / "batch.jsonl", results)
    shell.align({**ANN, "inputs": "Learned since.", "value": True})
    whole = lines_of(results)
    write_lines(results, whole[1:])
    ran = shell.run(*COLLECT, "--json")
    assert ran.status == 4
    assert "warning: 1 request or more without an answer: --prepare FILE writes them" in ran.err
    ran = shell.run(*COLLECT, "--prepare", "again.jsonl")
    [line] = lines_of(shell.folder / "again.jsonl")
    assert line["custom_id"] == whole[0]["custom_id"]
    assert re.search(r"\n\d +\d +- +not judged: No answer to the request", ran.out)
    shell.server.chats.clear()
    write_lines(shell.folder / "more.jsonl", whole[:1])
    ran = shell.run(*COLLECT, "--collect", "more.jsonl", "--json")
    assert (ran.status, shell.server.chats) == (4, [])
    lines = ran.lines
    for made in (*lines, *at_once):
        (made["judgment"] or {}).pop("id", None)
    assert lines == at_once


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*COLLECT[:3], "--collect", "x.jsonl"), "--examples: give either a file"),
        ((*COLLECT[:3], "--inputs", "x", "--collect", "x"), "--examples: with --collect give"),
        ((*JUDGE, "e.jsonl", "--collect", "e.jsonl"), "--examples: e.jsonl was not written with a"),
        ((*JUDGE, "batch.cases.jsonl", "--collect", "no"), "--collect: no can't be read: No such"),
        (
            (*JUDGE, "e.jsonl", "--prepare", "batch.jsonl"),
            "--prepare: .*batch.*jsonl already",
        ),
        ((*JUDGE, "e.jsonl", "--prepare", "no/b.jsonl"), "--prepare: .*can't be written: No such"),
    ],
)
def test_unusable_arguments(shell: Shell, arguments: Any, says: str) -> None:
    shell.judge(CASE, options=["--prepare", "batch.jsonl"])
    shell.write_lines("e.jsonl", CASE)
    ran = shell.run(*arguments)
    assert ran.status == 2
    assert re.match(says, ran.error)
    assert shell.server.chats == []
