"""`memalign judge` and `memalign batch`: with or without a memory."""

import re
import sqlite3
import threading
from dataclasses import replace
from typing import Any

import pytest
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

from memalign_graph import Judge, Judgment
from memalign_graph.bulk import prepare_batch
from memalign_graph.local import open_local_store
from memalign_graph.models import models_from_environment
from tests.conftest import judgings
from tests.integration_tests.cli.support import ANN, BOB, CRITERION, Shell
from tests.integration_tests.evidence.judging_support import Judge as UncertainJudge
from tests.integration_tests.evidence.judging_support import case, truth, words
from tests.loopback import Answer, Rule, error
from tests.loopback.batches import answer_batch, lines_of, write_lines

CASE = {"inputs": "The plate is cracked.", "outputs": "Sorry! Send us a photo."}
ONE = ["--inputs", CASE["inputs"], "--outputs", CASE["outputs"]]


def test_single_example_prints_the_whole_judgment(shell: Shell) -> None:
    shell.align(ANN)
    shell.server.rules = [Rule(lambda _: True, value=False, rationale="It blames the customer.")]
    ran = shell.run("judge", "-c", "tone.yaml", *ONE, "--reference-outputs", "A word of regret.")
    assert ran.status == 0
    output = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert output["value"].rstrip() == "false"
    assert output["rationale"].rstrip() == "It blames the customer."
    assert {"guideline_ids", "episode_ids"} <= output.keys()
    prompt = judgings(shell.server)[-1].text
    assert "A word of regret." in prompt
    assert "heed the expert" in prompt


def test_file_becomes_a_table(shell: Shell) -> None:
    shell.align(ANN)
    ran = shell.judge({**CASE, "id": "p-1"}, {"inputs": "only"}, {**CASE, "inputs": {"a": [1]}})
    assert ran.status == 4
    rows = ran.out.strip().splitlines()
    assert rows[0] == "judgments: 3"
    assert rows[1].split() == ["line", "id", "value", "decided_by", "episode_ids", "rationale"]
    assert rows[2].split()[:3] == ["1", "p-1", "true"]
    assert "not judged: outputs: is missing. Add it." in rows[3]
    assert rows[4].split()[:2] == ["3", "true"]
    assert "warning: line 2: not judged: outputs: is missing" in ran.err


def test_decider_and_confidence_are_printed(shell: Shell) -> None:
    shell.server.responder = UncertainJudge(value=truth, belief=lambda _: 0.8)
    shell.settings(judge={"k": 0, "confidence": True}, learn={"judge_cases": True})
    assert shell.align(*words(24)).status == 0
    shell.settings(judge={"k": 0, "confidence": True, "decide": "evidence"})
    command = ["judge", "-c", "tone.yaml", "--inputs", str(case(34)["inputs"])]
    command += ["--outputs", str(case(34)["outputs"])]
    result = shell.run(*command).out
    for text in ("\nconfidence ", "\nconfidence_source ", "\nevidence decided_by ", "24 cases"):
        assert text in result
    [line] = shell.run(*command, "--json").lines
    judgment = Judgment.model_validate(line["judgment"])
    assert judgment.evidence is not None
    assert re.search(rf"decided_by +{judgment.evidence.decided_by} ", result)


def test_json_lines_come_in_the_order_of_the_file(shell: Shell) -> None:
    lock = threading.Lock()
    seen: list[int] = []

    def slow_at_first(request: Any) -> Any:
        with lock:
            seen.append(1)
            is_first = len(seen) == 1
        reply = shell.server.judge(request)
        assert isinstance(reply, Answer)
        return replace(reply, latency_s=0.3) if is_first else reply

    shell.align(ANN)
    shell.server.responder = slow_at_first
    ran = shell.judge(*({**CASE, "inputs": str(n), "id": n} for n in range(9)), options=["--json"])
    assert ran.status == 0
    assert [line["id"] for line in ran.lines] == [str(n) for n in range(9)]
    assert [line["line"] for line in ran.lines] == list(range(1, 10))
    assert all(Judgment.model_validate(line["judgment"]).guideline_ids for line in ran.lines)
    assert {line["error"] for line in ran.lines} == {None}


def test_failing_example_does_not_stop_the_others(shell: Shell) -> None:
    shell.align(ANN)
    shell.server.rules = [Rule(lambda item: "poison" in item.text, reply=error(400, "No poison."))]
    ran = shell.judge(CASE, {**CASE, "inputs": "poison"}, CASE, options=["--json"])
    assert ran.status == 4
    assert [line["judgment"] is None for line in ran.lines] == [False, True, False]
    assert "No poison." in ran.lines[1]["error"]
    ran = shell.judge({**CASE, "inputs": "poison"}, {"inputs": "x"}, options=["--json"])
    assert (ran.status, len(ran.lines)) == (3, 2)
    assert shell.judge({"inputs": "x"}, {"outputs": "y"}, options=["--json"]).status == 2


def test_named_memory_must_exist_and_not_be_empty(shell: Shell) -> None:
    error = shell.run("judge", "-c", "tone.yaml", "-m", "typo.db", *ONE).refusal
    assert error.startswith("--memory: typo.db has no memory: `memalign align` makes one")
    assert shell.server.chats == []
    shell.align(ANN)
    shell.write("other.yaml", "name: other\ninstructions: Is it true?\n")
    ran = shell.run("judge", "-c", "other.yaml", *ONE)
    assert ran.status == 0
    assert "warning: memalign.db (namespace memalign, criterion other) is empty" in ran.err


def test_flags_override_the_settings_of_the_file(shell: Shell) -> None:
    shell.align(ANN, BOB)
    shell.settings(judge={"use_guidelines": False, "k": 1})
    for flag, shown in (((), 1), (("--k", "2"), 2), (("--k", "0"), 0)):
        [line] = shell.run("judge", "-c", "tone.yaml", *ONE, *flag, "--json").lines
        assert line["judgment"]["guideline_ids"] == []
        assert len(line["judgment"]["episode_ids"]) == shown


def test_escape_sequences_never_reach_the_terminal(shell: Shell) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 fine \u202egnp\x9b31m"
    shell.server.rules = [Rule(lambda _: True, value=True, rationale=evil)]
    for options in ([], ["--json"]):
        ran = shell.judge({**CASE, "id": evil}, options=options)
        assert ran.status == 0
        for text in (ran.out, ran.err):
            assert not set(text) & set("\x1b\x07\u202e\x9b")
    assert ran.lines[0]["judgment"]["rationale"] == evil
    assert ran.lines[0]["id"] == evil
    shell.align({**ANN, "rationale": evil, "author": evil})
    ids = shell.ids()
    for arguments in (["list"], ["history"], ["show", ids["guideline"]], ["show", ids[evil]]):
        output = shell.memory(*arguments)
        assert output.status == 0
        assert not set(output.out) & set("\x1b\x07\u202e\x9b")


@pytest.mark.parametrize("status", [400, 401])
def test_key_that_a_provider_repeats_is_in_no_result(shell: Shell, status: int) -> None:
    shell.server.responder = lambda _: error(status, "Refused: sk-loopback-secret.")
    for options in ([], ["--json"]):
        ran = shell.judge(CASE, options=options)
        assert (ran.status, "***" in ran.out, "***" in ran.err) == (3, True, True)
        assert "sk-loopback-secret" not in ran.out + ran.err


JUDGE = ("judge", "-c", "tone.yaml", "-e")
COLLECT = (*JUDGE, "batch.cases.jsonl", "--collect", "results.jsonl")


def test_batch_names_the_reason_why_a_record_cannot_be_read(shell: Shell) -> None:
    rows = "inputs,outputs\nWhere?,Here.\nWhen?,Now.,Then.\n"
    (shell.folder / "e.csv").write_text(rows, encoding="utf-8")
    _, unread = shell.run(*JUDGE, "e.csv", "--json").lines
    ran = shell.run(*JUDGE, "e.csv", "--prepare", "batch.jsonl")
    assert ran.status == 4
    assert f"line 3: not judged: {unread['error']}" in " ".join(ran.err.split())


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
    assert re.search(r"\n\d +\d +- +not judged: The request", ran.out)
    shell.server.chats.clear()
    write_lines(shell.folder / "more.jsonl", whole[:1])
    ran = shell.run(*COLLECT, "--collect", "more.jsonl", "--json")
    assert (ran.status, shell.server.chats) == (4, [])
    lines = ran.lines
    for made in (*lines, *at_once):
        (made["judgment"] or {}).pop("id", None)
    assert lines == at_once


def test_empty_memory_of_a_batch_is_warned_of(shell: Shell) -> None:
    ran = shell.judge(CASE, options=["--prepare", "batch.jsonl"])
    assert "warning: memalign.db (namespace memalign, criterion support_tone) is empty" in ran.err


def test_failed_store_ends_judging(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure of the model, and further calls would be paid for."""
    shell.settings(judge={"keep_judgments": 30})
    assert shell.judge(CASE, CASE, options=["--prepare", "batch.jsonl"]).status == 0
    answer_batch(shell.server, shell.folder / "batch.jsonl", shell.folder / "results.jsonl")
    shell.server.chats.clear()

    def fail(*_: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    for store in (AsyncSqliteStore, SqliteStore):
        monkeypatch.setattr(store, "_batch_put_ops", fail)
    for command in (*JUDGE, "examples.jsonl", "--max-concurrency", "1"), COLLECT:
        assert re.match("--memory: .* disk is full", shell.run(*command, "--json").refusal)
    assert len(shell.server.chats) == 1


def test_no_usable_record_makes_no_memory(shell: Shell) -> None:
    shell.settings(judge={"keep_judgments": 30})
    shell.write("examples.jsonl", "no JSON\n")
    assert shell.run(*JUDGE, "examples.jsonl").status == 2
    assert not (shell.folder / "memalign.db").exists()


def test_batch_that_was_prepared_in_python_is_collected(shell: Shell) -> None:
    model, embeddings = models_from_environment()
    judge = Judge(criterion=CRITERION, model=model, embeddings=embeddings)
    rows: list[Any] = [CASE, {**CASE, "score": float("nan"), "more": [float("inf")]}]
    with open_local_store(shell.folder / "memalign.db") as store:
        prepare_batch(judge, rows, shell.folder / "batch.jsonl", store=store)
    shell.write("results.jsonl", "")
    ran = shell.run(*COLLECT, "--json")
    assert (ran.status, [line["line"] for line in ran.lines]) == (3, [1, 2])
    assert (ran.lines[1]["score"], ran.lines[1]["more"]) == (None, [None])
    assert "warning: line 2: not judged: The request 2-" in ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*COLLECT[:3], "--inputs", "x"), "--outputs: is missing"),
        ((*COLLECT[:3], "--inputs", "", "--outputs", "y"), "--inputs: must not be empty"),
        (COLLECT[:3], "--examples: give either a file"),
        ((*JUDGE, "e.jsonl", "--outputs", "y"), "--examples: give either a file"),
        ((*JUDGE, "e.jsonl", "--embeddings", "x"), "--embeddings: 'x' names no model"),
        ((*JUDGE, "e.jsonl", "--namespace", "a..b"), "--namespace: a label must not be empty,"),
        ((*COLLECT[:3], "--collect", "x.jsonl"), "--examples: give either a file"),
        ((*COLLECT[:3], "--inputs", "x", "--collect", "x"), "--examples: with --collect give"),
        ((*JUDGE, "e.jsonl", "--collect", "e.jsonl"), "--examples: e.jsonl was not written with a"),
        ((*JUDGE, "batch.cases.jsonl", "--collect", "no"), "--collect: no can't be read: No such"),
        ((*JUDGE, "e.jsonl", "--prepare", "batch.jsonl"), "--prepare: .*batch.*jsonl already"),
        ((*JUDGE, "e.jsonl", "--prepare", "no/b.jsonl"), "--prepare: .*can't be written: No such"),
    ],
)
def test_unusable_arguments(shell: Shell, arguments: Any, says: str) -> None:
    shell.judge(CASE, options=["--prepare", "batch.jsonl"])
    shell.write_lines("e.jsonl", CASE)
    assert re.match(says, shell.run(*arguments).refusal)
    assert (shell.server.chats, shell.server.embeddings) == ([], [])
