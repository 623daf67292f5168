"""`memalign evaluate`: metrics, thresholds and the cache."""

import signal
import sys
import time
from itertools import count
from typing import Any

import pytest

from memalign_graph.evaluation import Report
from memalign_graph.local import open_local_store
from tests.integration_tests.cli.support import Ran, Shell
from tests.loopback import Rule, answer, error, refusal

FAST = ["--folds", "2"]

EXTRA = ("jinja2", "markdown_it", "openpyxl", "pandas", "tqdm")
"""What the extra `evaluation` brings."""


def record(number: int, **fields: Any) -> dict[str, Any]:
    """Feedback on one case; every second answer is bad."""
    return {
        "inputs": f"Question {number}",
        "outputs": f"Answer {number} is {'good' if number % 2 else 'poor'}.",
        "value": bool(number % 2),
        "rationale": f"Because of {number}.",
        "author": "ann",
        **fields,
    }


RECORDS = [record(number) for number in range(12)]


def evaluate(shell: Shell, *options: str, records: Any = RECORDS) -> Ran:
    shell.write_lines("feedback.jsonl", *records)
    fast = () if "--test" in options else FAST
    return shell.run("evaluate", "-c", "tone.yaml", "-f", "feedback.jsonl", *fast, *options)


@pytest.fixture
def learner(shell: Shell) -> Shell:
    """A judge that accepts everything until it has learned."""

    def knows(request: Any) -> bool:
        case = request.messages[-1]["content"]
        return "heed the expert" in request.text and "poor" in str(case).rpartition("Answer")[2]

    shell.server.rules = [Rule(knows, value=False)]
    return shell


def test_thresholds_are_met(learner: Shell) -> None:
    ran = evaluate(learner, "--min-kappa", "1", "--min-agreement", "0.9")
    assert ran.status == 0
    # It is right on all 12 cases: agreement has an exact bound, and kappa has no interval.
    assert "aligned judge's kappa of 1.00." in ran.err
    assert "agreement of 1.00 [0.74, 1.00]" in ran.err
    assert ("missed" in ran.err, "memalign: error: " in ran.err) == (False, False)
    [base] = [line for line in ran.out.splitlines() if line.strip().startswith("base ")]
    [aligned] = [line for line in ran.out.splitlines() if line.strip().startswith("aligned ")]
    assert ("0.50" in base, "1.00" in aligned) == (True, True)
    assert not (learner.folder / "memalign.db").exists()


def test_one_of_two_thresholds_is_missed(shell: Shell) -> None:
    ran = evaluate(shell, "--min-agreement", "0.9", "--min-kappa", "0")
    assert ran.status == 1
    assert "--min-kappa 0: met by the aligned judge's kappa of 0.00" in ran.err
    missed = "--min-agreement 0.9: missed by the aligned judge's agreement of 0.5"
    assert ran.error.startswith(missed)


def test_undefined_metric_misses_its_threshold(shell: Shell) -> None:
    ran = evaluate(shell, "--min-kappa", "-1", records=[record(n, value=True) for n in range(6)])
    assert ran.status == 1
    assert "missed by the aligned judge's kappa, which is not defined on these cases" in ran.err


def test_rounding_misses_no_threshold(shell: Shell) -> None:
    """The judge says 1 in all cases: 1 - 0.7 is more than 0.3 in binary."""
    scale = "{minimum: 0, maximum: 1}"
    shell.write("tone.yaml", f"name: tone\ninstructions: How kind?\nscale: {scale}\n")
    records = [record(n, value=0.7) for n in range(4)]
    assert evaluate(shell, "--max-mae", "0.29", records=records).status == 1
    ran = evaluate(shell, "--max-mae", "0.3", "--min-ccc", "-1", records=records)
    assert "--max-mae 0.3: met by the aligned judge's mae of 0.30" in ran.err
    assert "--min-ccc -1: " in ran.err


@pytest.mark.parametrize(
    ("scale", "options", "says"),
    [
        ("boolean", ["--max-mae", "1"], "--max-mae: the criterion's scale has no mae"),
        ("boolean", ["--min-agreement", "80"], "Invalid value for '--min-agreement'"),
        ("1-5", ["--max-mae", "-1"], "Invalid value for '--max-mae'"),
        ("boolean", ["--folds", "50"], "--folds: 50 folds need at least as many items"),
        ("boolean", ["--report", "r.pdf"], "--report: end the name of r.pdf in .html, .md or"),
        ("boolean", ["--report", "no/r.md"], "--report: no/r.md: the folder no does not exist"),
        ("boolean", ["--report", "feedback.jsonl"], "--report: feedback.jsonl is a database, or"),
        ("boolean", ["--test", "feedback.jsonl", "--folds", "2"], "--folds: with --test nothing"),
        ("boolean", ["--test", "none.jsonl"], "--test: none.jsonl: it can't be read"),
        ("boolean", ["--cache", "/proc/c.db"], "--cache: /proc/c.db can't be used: "),
        ("boolean", ["--cache", "postgresql://u:secret@h/x"], "--cache: a folder or URL can't be"),
        ("boolean", ["--cache", "."], "--cache: a folder or URL can't be used"),
        ("boolean", ["--cache", "r.md", "--report", "r.md"], "--report: r.md is a database, or"),
    ],
)
def test_unusable_arguments(shell: Shell, scale: str, options: list[str], says: str) -> None:
    shell.write("tone.yaml", f"name: tone\ninstructions: How kind?\nscale: {scale}\n")
    records = RECORDS if scale == "boolean" else [record(n, value=0.5) for n in range(4)]
    assert evaluate(shell, *options, records=records).refusal.startswith(says)
    assert shell.server.chats == []
    assert {path.name for path in shell.folder.iterdir()} == {"tone.yaml", "feedback.jsonl"}


def test_unusable_records_are_named_and_excluded(learner: Shell) -> None:
    records = [*RECORDS, {"inputs": "x", "value": True}]
    cases = [record(number) for number in range(20, 26)]
    learner.write_csv("test.csv", *cases, record(26, value="perhaps"))
    ran = evaluate(learner, "--test", "test.csv", records=records)
    assert ran.status == 4
    assert "--feedback: feedback.jsonl, line 13: " in ran.err
    assert "--test: test.csv, line 8: value: 'perhaps' is not on the scale" in ran.err
    assert "no record can be used" in evaluate(learner, records=[{"inputs": "x"}]).refusal


def test_separate_test_set_and_reports(learner: Shell) -> None:
    learner.write_csv("test.csv", *(record(n) for n in range(20, 26)))
    ran = evaluate(learner, "--test", "test.csv", "--report", "r.html", "--json")
    assert ran.status == 0, ran.err
    report = Report.model_validate(ran.document)
    assert len(report.cases) == 6
    assert report.metric("aligned", "kappa").value == 1
    assert (learner.folder / "r.html").read_text(encoding="utf-8").startswith("<")


def test_case_without_verdict_is_reported(learner: Shell) -> None:
    refused = Rule(lambda chat: "Answer 2 " in chat.text, reply=refusal())
    learner.server.rules = [refused, *learner.server.rules]
    assert evaluate(learner, "--json").status == 4


def test_feedback_that_stays_pending_is_reported(shell: Shell) -> None:
    refused = error(400, "Content policy.")
    rule = Rule(lambda chat: chat.schema_name == "guideline_operations", reply=refused)
    shell.server.rules = [rule]
    ran = evaluate(shell, "--min-agreement", "0.1", "--json")
    assert ran.status == 4
    report = Report.model_validate(ran.document)
    assert [memory.pending for memory in report.memories] == [6, 6]
    [warning] = report.warnings
    assert warning.startswith("aligned: 12 warnings while it learned; the first: Feedback ")


def test_second_run_with_a_cache_calls_no_model(learner: Shell) -> None:
    learner.settings(evaluate={"group_by": "inputs", "learning_curve": True})
    first = evaluate(learner, "--cache", "evaluation.db", "--json")
    count = len(learner.server.chats), len(learner.server.embeddings)
    second = evaluate(learner, "--cache", "evaluation.db", "--json")
    assert (first.status, second.status) == (0, 0)
    assert second.document["scores"] == first.document["scores"]
    assert first.document["curve"]["steps"]
    assert (len(learner.server.chats), len(learner.server.embeddings)) == count


def test_a_terminated_run_is_cached(shell: Shell) -> None:
    shell.write_lines("feedback.jsonl", *RECORDS)
    arguments = ["-c", "tone.yaml", "-f", "feedback.jsonl", *FAST, "--cache", "e.db"]
    answered, calls = 4, count()

    def stuck(request: Any) -> Any:
        # Counted here, since concurrent requests could all miss the limit in the server's own list.
        late = answer("{}", latency_s=600)
        return shell.server.judge(request) if next(calls) < answered else late

    def kept() -> int:
        with open_local_store(shell.folder / "e.db") as store:
            return len(store.search(("memalign_evaluation", "answers"), limit=100))

    shell.server.responder = stuck
    process = shell.process("evaluate", *arguments)
    deadline = time.monotonic() + 240
    while len(shell.server.chats) <= answered and time.monotonic() < deadline:
        time.sleep(0.02)
    while kept() < answered and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143
    assert err.splitlines()[-1] == "memalign: error: stopped; what was committed before stays."
    assert "Traceback" not in err
    assert kept() == answered


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXTRA:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_extra")
@pytest.mark.parametrize("options", [["--json"], ["--json", "--report", "report.json"]])
def test_json_report_needs_no_extra(learner: Shell, options: list[str]) -> None:
    ran = evaluate(learner, *options)
    assert ran.status == 0, ran.err
    assert "aligned" in str(ran.document)


@pytest.mark.usefixtures("without_extra")
@pytest.mark.parametrize("options", [[], ["--json", "--report", "report.html"]])
def test_html_report_names_its_missing_extra(learner: Shell, options: list[str]) -> None:
    ran = evaluate(learner, *options)
    assert (ran.status, 'pip install "memalign-graph[evaluation]"' in ran.error) == (2, True)
    assert (ran.out, learner.server.chats) == ("", [])


@pytest.mark.parametrize(("learn", "reads"), [({}, True), ({"learn_from": "labels"}, False)])
def test_settings_of_the_file_count(learner: Shell, learn: dict[str, str], *, reads: bool) -> None:
    learner.settings(learn=learn)
    assert evaluate(learner, "--json").status == 0
    lessons = [c.text for c in learner.server.chats if c.schema_name == "guideline_operations"]
    assert any("Because of" in lesson for lesson in lessons) == reads
