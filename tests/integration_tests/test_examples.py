"""The examples, run as a user would, against the loopback model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration_tests.examples_support import example_server, run_example
from tests.loopback import ChatRequest, LoopbackServer, Rule

__all__ = ["example_server"]


def test_the_quickstart_judges_by_what_it_learned(server: LoopbackServer) -> None:
    server.rules.append(Rule(when=lambda request: "sorry" in request.text, value=False))
    printed = run_example(server, "examples/quickstart.py")
    assert "it must say sorry" in printed
    assert "'action': 'add'" in printed
    assert printed.splitlines()[-1].startswith("False - ")


def test_review_in_the_loop_asks_again_and_learns(server: LoopbackServer) -> None:
    printed = run_example(server, "examples/review_in_the_loop.py")
    assert "Not taken:" in printed
    assert "'awful' is not on the scale" in printed
    assert "names the next step" in printed.partition("Learned:")[2]


def test_use_any_store_judges_the_same_in_ram_and_in_a_file(
    server: LoopbackServer, tmp_path: Path
) -> None:
    printed = run_example(server, "examples/use_any_store.py", str(tmp_path / "memory.sqlite"))
    assert printed.splitlines() == [
        "InMemoryStore: True with 1 guideline(s) and 1 episode(s) in the prompt",
        "SqliteStore: True with 1 guideline(s) and 1 episode(s) in the prompt",
    ]


def test_evaluating_a_judge_writes_a_report_and_costs_nothing_twice(
    server: LoopbackServer, tmp_path: Path
) -> None:
    report = tmp_path / "out" / "report.html"
    first = run_example(server, "examples/evaluate_a_judge.py", str(report))
    names = [line.split()[0] for line in first.splitlines() if "agreement" in line]
    assert names == ["majority", "kNN", "evidence", "base", "aligned"]
    page = report.read_text(encoding="utf-8")
    assert "support_tone" in page
    assert "http:" not in page
    assert "https:" not in page
    asked = len(server.chats)
    assert run_example(server, "examples/evaluate_a_judge.py", str(report)) == first
    assert len(server.chats) == asked


def test_an_evaluation_with_langsmith_shows_what_the_expert_said(server: LoopbackServer) -> None:
    server.rules.append(Rule(when=lambda chat: "says sorry first" in chat.text, value=False))
    printed = run_example(server, "examples/evaluate_with_langsmith.py")
    before, _, after = printed.partition("After:")
    assert before.count("support_tone = True, with 0 guideline(s) and 0 expert's word(s)") == 3
    assert after.count("support_tone = False, with 1 guideline(s) and 1 expert's word(s)") == 3


def test_the_demo_learns_and_starts_aligned_the_second_time(
    server: LoopbackServer, tmp_path: Path
) -> None:
    command = ["-m", "memalign_graph.demo", "--memory", str(tmp_path / "demo.sqlite")]
    first = run_example(server, *command)
    assert first.count("the memory is empty") == 2
    assert "Guidelines in memory, with the feedback they came from:" in first
    assert "must read finance.certified_orders" in first
    chats = len(server.chats)
    second = run_example(server, *command)
    assert second.count("starting aligned") == 2
    assert len(server.chats) - chats < chats, "what is known is not distilled again"


def test_the_demo_takes_answers_from_the_terminal(server: LoopbackServer, tmp_path: Path) -> None:
    command = ["-m", "memalign_graph.demo", "--interactive", "--cases", "sql"]
    memory = str(tmp_path / "demo.sqlite")
    printed = run_example(
        server, *command, "--memory", memory, typed="\ns\nfalse Never from the raw tables.\n"
    )
    assert "the judge is right" in printed
    assert "skipped: nothing is stored" in printed
    assert "Never from the raw tables." in printed


def test_the_demo_says_in_a_sentence_that_the_model_is_down(
    server: LoopbackServer, tmp_path: Path
) -> None:
    environment = {**os.environ, **server.environment, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    environment["OPENAI_API_BASE"] = environment["OPENAI_BASE_URL"]
    done = subprocess.run(
        [sys.executable, "-m", "memalign_graph.demo", "--memory", str(tmp_path / "demo.sqlite")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "could not be reached" in done.stderr or "failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_starting_over_removes_the_memory_and_no_other_file(
    server: LoopbackServer, tmp_path: Path
) -> None:
    other = tmp_path / "demo.sqlite.csv"
    other.write_text("mine")
    command = ["-m", "memalign_graph.demo", "--cases", "saf"]
    memory = ["--memory", str(tmp_path / "demo.sqlite")]
    run_example(server, *command, *memory)
    assert "the memory is empty" in run_example(server, *command, *memory, "--fresh")
    assert other.read_text() == "mine"


@pytest.mark.parametrize("arguments", [["--fresh"], []])
def test_a_memory_that_is_no_database_is_left_as_it_is(
    server: LoopbackServer, tmp_path: Path, arguments: list[str]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("These are my notes, and no database at all. " * 50)
    done = subprocess.run(
        [sys.executable, "-m", "memalign_graph.demo", "--memory", str(notes), *arguments],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "The demo stopped:" in done.stderr
    assert "Traceback" not in done.stderr
    assert notes.read_text().startswith("These are my notes")


def test_align_many_shows_a_bar_and_costs_nothing_the_second_time(
    server: LoopbackServer, tmp_path: Path
) -> None:
    memory = str(tmp_path / "memory.sqlite")
    first = run_example(server, "examples/align_many.py", memory)
    assert "distill: 100%|" in first
    assert "feedback: {'new': 7, 'changed': 0, 'unchanged': 0, 'rejected': 0}" in first
    assert "1 of 2 case(s)" in first
    assert "added: " in first
    second = run_example(server, "examples/align_many.py", memory)
    assert "'unchanged': 7" in second
    assert second.splitlines()[-1] == "0 chat call(s), 0 text(s) embedded"


def test_align_many_takes_a_file_and_says_what_it_does_not_take(
    server: LoopbackServer, tmp_path: Path
) -> None:
    file = tmp_path / "feedback.jsonl"
    file.write_text('{"inputs": "q", "outputs": "a", "value": true}\n\n{"inputs": "q"}\n')
    printed = run_example(server, "examples/align_many.py", str(tmp_path / "m.sqlite"), str(file))
    assert "not taken: record 1: example.outputs: is missing: give it." in printed


def test_memory_life_goes_back_takes_back_and_moves(server: LoopbackServer) -> None:
    printed = run_example(server, "examples/memory_life.py")
    assert printed.splitlines()[0] == "commits: ['align', 'remember']"
    assert "what was purged stays away: 0" not in printed
    assert "rolled back, byte for byte: True" in printed
    assert "still in the file: False" in printed
    assert "moved, the same: True" in printed


def test_ask_when_unsure_stops_asking_about_what_it_can_be_trusted_with(
    server: LoopbackServer,
) -> None:
    def is_cold(request: ChatRequest) -> bool:
        return "Sorry" not in str(request.messages[-1]["content"])

    server.rules.append(Rule(when=is_cold, value=False))
    printed = run_example(server, "examples/ask_when_unsure.py")
    asked = re.search(r"Judged 48 replies and asked about (\d+) of them", printed)
    assert asked is not None, printed
    assert 29 <= int(asked[1]) < 44
    assert "by evidence, calibrated on" in printed
    assert "% of cases" in printed
