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

_DEMO_COLUMNS = ["case", "expert", "before", "after"]


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
    memory = ["--memory", str(tmp_path / "demo.sqlite")]
    command = ["-m", "memalign_graph.demo", *memory]
    first = run_example(server, *command)
    assert [line for line in first.splitlines() if line.split() == _DEMO_COLUMNS]
    assert (
        len([line for line in first.splitlines() if line.rstrip().endswith(("true", "false"))]) >= 4
    )
    chats = len(server.chats)
    server.chats.clear()
    run_example(server, *command)
    assert len(server.chats) < chats, "what is known is not distilled again"
    other = tmp_path / "demo.sqlite.csv"
    other.write_text("mine")
    server.chats.clear()
    typed = "\n\nskip\nfalse\nNever from the raw tables.\n" + "skip\n" * 9
    printed = run_example(server, *command, "--fresh", "--interactive", "-q", typed=typed)
    assert printed.count(" taught") == 5
    assert other.read_text() == "mine"
    assert any("Never from the raw tables." in chat.text for chat in server.chats)


@pytest.mark.parametrize("is_down", [True, False])
def test_the_demo_says_in_a_sentence_why_it_stopped(
    server: LoopbackServer,
    tmp_path: Path,
    is_down: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    environment = {**os.environ, **server.environment}
    if is_down:
        environment["OPENAI_BASE_URL"] = environment["OPENAI_API_BASE"] = "http://127.0.0.1:9/v1"
    notes = tmp_path / "notes.txt"
    notes.write_text("" if is_down else "These are my notes, and no database at all. " * 50)
    done = subprocess.run(
        [sys.executable, "-m", "memalign_graph.demo", "--memory", str(notes), "--fresh"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == (3 if is_down else 2)
    assert "memalign: error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert is_down or notes.read_text().startswith("These are my notes")


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
