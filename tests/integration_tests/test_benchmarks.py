"""The benchmarks run with small sizes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from socket import socket

import pytest

from benchmarks import agreement, approvals, one_comment
from benchmarks.agreement import DATA, load_rows
from tests.integration_tests.evaluation.support import Model
from tests.loopback import LoopbackServer

ROOT = Path(__file__).parents[2]


Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_main(main: Callable[[], None], *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        main()
        return capsys.readouterr().out

    return run_main


def test_speed_measures_and_writes_its_table(tmp_path: Path) -> None:
    options = ("--quick", "--no-peer", "--rows", "change", "--results", str(tmp_path))
    command = [sys.executable, "-m", "benchmarks", *options]
    output = subprocess.check_output(command, cwd=ROOT, text=True, timeout=300)
    assert "one more on 120, texts embedded | 1 |" in output
    assert (tmp_path / "quick.md").read_text(encoding="utf-8") in output
    assert json.loads((tmp_path / "quick.json").read_text(encoding="utf-8"))


def test_agreement_on_labelled_rows(server: LoopbackServer, tmp_path: Path, run: Run) -> None:
    server.responder = Model()
    row = {
        "criterion": "tone",
        "instructions": "Is it fine?",
        "scale": "bool",
        "range": None,
        "choices": None,
        "reference_outputs": None,
        "feedback": "So it is.",
    }
    rows = [
        {**row, "id": str(n), "split": "train" if n < 4 else "test", "label": n % 2 > 0}
        | {"inputs": f"Case {n}: where is it?", "outputs": f"On its way, number {n}."}
        for n in range(8)
    ]
    (tmp_path / "tone.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = ["--data", str(tmp_path), "--sets", "tone", "--base-url", server.base_url]
    with socket() as free:  # the answers' keys name the port
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options += ["--model", "any", "--no-peer", "--curve", "--ablations", "--port", port]
    options += ["--results", str(tmp_path / "agreement")]
    output = run(agreement.main, *options)
    assert "| tone | 4, 4 | balanced accuracy | 0.50 " in output
    assert "| mean of 1 sets |  | bad answers caught | " in output
    assert "| tone | balanced | 0.50 |" in output
    assert "- tone: prompt tokens a judgment: base " in output
    assert (tmp_path / "agreement" / "tone" / "report.html").exists()
    assert (tmp_path / "agreement.md").read_text(encoding="utf-8").strip() in output
    # Answers are kept.
    count = len(server.chats)
    assert run(agreement.main, *options) == output
    assert len(server.chats) == count


def test_agreement_judges_runs_as_a_gate(server: LoopbackServer, tmp_path: Path, run: Run) -> None:
    server.responder = Model()
    options = ["--sets", "airline_run_right:answer,airline_run_right:turn", "--train", "2"]
    output = run(
        agreement.main,
        *options,
        *("--test", "4", "--base-url", server.base_url, "--model", "any", "--no-peer"),
        *("--port", "0", "--results", str(tmp_path)),
    )
    assert "| airline_run_right:answer | 2, 4 | balanced accuracy |" in output
    assert "| airline_run_right:turn | 2, 4 | balanced accuracy |" in output


def test_longer_cases_are_excluded() -> None:
    """Excluded before the view is built, so that each view has the same cases."""
    ids = [row["id"] for row in load_rows(DATA, "airline_run_right", 3_000)]
    assert 0 < len(ids) < len(load_rows(DATA, "airline_run_right"))
    assert [row["id"] for row in load_rows(DATA, "airline_run_right:answer", 3_000)] == ids


def test_approvals_measures_each_policy(server: LoopbackServer, tmp_path: Path, run: Run) -> None:
    server.responder = Model()
    options = ["--train", "2", "--test", "4", "--base-url", server.base_url, "--model", "any"]
    options += ["--results", str(tmp_path / "approvals.md")]
    output = run(approvals.main, *options)
    assert "| 0 | always ask | 100% | 0 of 2 | 0 |" in output
    assert "| 2 | never ask | 0% | 2 of 2 | 4 |" in output
    assert "| 2 | approvals, target 0.95 | 100% | 0 of 2 | 0 |" in output
    # Answers are kept.
    count = len(server.chats)
    assert run(approvals.main, *options, "--counts") == output[output.index("| 2 |") :]
    assert len(server.chats) == count


def test_one_comment_counts_cases(
    server: LoopbackServer, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    models = ("--model", "openai:gpt-4.1-mini", "--embeddings", "openai:text-embedding-3-small")
    options = ("--limit", "1", "--comments", "1,2", *models, "--results", str(tmp_path))
    output = run(one_comment.main, *options)
    assert "| ours | 2 | development | 0 of 1 | 1 of 1 | 0 |" in output
    assert (tmp_path / "one_comment.md").read_text(encoding="utf-8") in output
