"""The examples, run against the loopback model, and the demo, run as a user would."""

import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memalign_graph import JudgeMemory
from memalign_graph.cli import main
from memalign_graph.local import open_local_store
from tests.conftest import CRITERION, judgings
from tests.integration_tests.cli.support import Ran
from tests.loopback import ChatRequest, LoopbackServer, Rule

ROOT = Path(__file__).parents[2]
GOOD_SQL = "SELECT SUM(total) FROM orders WHERE status <> 'cancelled'"
CERTIFIED = "SELECT MAX(total) FROM finance.certified_orders"


@pytest.fixture
def server(environment_server: LoopbackServer) -> LoopbackServer:
    return environment_server


def writes(request: ChatRequest) -> bool:
    return request.schema is None


EXAMPLES: dict[str, tuple[list[Rule], list[str]]] = {
    "quickstart": (
        [Rule(when=lambda request: "sorry" in request.text, value=False)],
        ["'action': 'add'", "it must say sorry", "\nFalse - "],
    ),
    "review_in_the_loop": (
        [],
        ["Refused:", "'awful' is not on the scale", "Learned:", "names the next step"],
    ),
    "use_any_store": (
        [],
        [
            "InMemoryStore: True with 1 guideline(s) and 1 episode(s) in the prompt\n",
            "SqliteStore: True with 1 guideline(s) and 1 episode(s) in the prompt\n",
        ],
    ),
    "evaluate_with_langsmith": (
        [Rule(when=lambda chat: "says sorry first" in chat.text, value=False)],
        [
            *["support_tone = True, with 0 guideline(s) and 0 episode(s)"] * 3,
            "After:",
            *["support_tone = False, with 1 guideline(s) and 1 episode(s)"] * 3,
        ],
    ),
    "align_many": (
        [],
        [
            "distill: 100%|",
            "feedback: {'new': 7, 'changed': 0, 'unchanged': 0, 'rejected': 0}",
            "disagree on 1 of 2 case(s)",
        ],
    ),
    "memory_life": (
        [],
        [
            "commits: ['align', 'remember']\n",
            "rolled back, the same version: True",
            "not restored, since purged: 2",
            "still in the file: False",
            "moved, the same: True",
        ],
    ),
    "ask_when_unsure": (
        [Rule(when=lambda chat: "Sorry" not in str(chat.messages[-1]["content"]), value=False)],
        ["Judged 48 replies and asked about ", "by evidence, calibrated on", "% of cases"],
    ),
    "quality_gate": (
        [Rule(when=lambda chat: "tracking page" in chat.text, value=False, rationale="No sorry.")],
        ["revise: The answer did not pass.", "No sorry.", "\naccepted: I am sorry that"],
    ),
    "agent_with_a_gate": (
        [
            Rule(when=lambda chat: writes(chat) and "did not pass" in chat.text, reply=GOOD_SQL),
            Rule(when=writes, reply="SELECT SUM(total) FROM orders"),
            Rule(when=lambda _: True, value=False),
        ],
        [f"ai: {GOOD_SQL}", "\naccepted, as the expert decided\n"],
    ),
    "approvals": (
        [Rule(lambda chat: '"amount": 900' in str(chat.messages[-1]["content"]), value=False)],
        ["Of 40 calls ", " were asked about; 0 ran that", "Without a question:", "above 100"],
    ),
    "judge_a_trajectory": (
        [
            Rule(
                when=lambda chat: (
                    "must look the order up" in chat.text
                    and "called look_up" not in str(chat.messages[-1]["content"])
                ),
                value=False,
            )
        ],
        [
            *("1. user: I want my money back", '1. called refund(order="A7")'),
            "   returned: Paid back: 89 EUR.\n2. assistant (final answer): Done",
            *("Learned:", "must look the order up", "\nhasty: False", "\ncareful: True"),
        ],
    ),
    "panel_of_criteria": (
        [],
        [
            "Learned:",
            "Zeros for all columns are no imputation.",
            "\nScore 0.80, passed: False, veto: ['metrics']\n",
        ],
    ),
    "feedback_later": (
        [],
        ["Judged: True\n", "Waiting for feedback: [True]\n", "must begin with an apology"],
    ),
    "self_evaluating_loop": (
        [
            Rule(when=lambda chat: writes(chat) and "experts say" in chat.text, reply=CERTIFIED),
            Rule(when=writes, reply="SELECT COUNT(*) FROM orders"),
            Rule(when=lambda chat: CERTIFIED in chat.text, value="certified"),
        ],
        [
            *("writes: ", "writes: ", "asks the expert", "exhausted: ", "== What is the highest"),
            *("writes: ", "accepted: it passed.", "Guidelines:", "finance.certified_orders"),
        ],
    ),
}
"""Rules of the model, and what is printed, in this order."""

JUDGED = {"quality_gate": 2, "agent_with_a_gate": 2, "panel_of_criteria": 9}
"""How often a verdict is asked for, where none is to be asked for again."""


def run_example(name: str, path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [name, str(path)])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_prints_the_expected_output(
    server: LoopbackServer, name: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rules, expected_output = EXAMPLES[name]
    printed = rest = run_example(name, tmp_path / "memory.sqlite", capsys, monkeypatch)
    for part in expected_output:
        _, line, rest = rest.partition(part)
        assert line, f"{part!r} is not in its place in:\n{printed}"
    assert len(judgings(server)) == JUDGED.get(name, len(judgings(server)))
    if name == "self_evaluating_loop":
        assert printed.count("asks the expert") == 1
    if name == "ask_when_unsure":
        assert 29 <= int(printed.partition("asked about ")[2].split()[0]) < 44


def test_gate_example_escalates_to_a_person(
    server: LoopbackServer, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rules = [Rule(when=lambda _: True, value=False)]
    printed = run_example("quality_gate", tmp_path, capsys, monkeypatch)
    assert printed.splitlines()[-1].startswith("escalated: A colleague will write to you")


def test_evaluation_example_writes_a_report(
    server: LoopbackServer, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "out" / "report.html"
    printed = run_example("evaluate_a_judge", report, capsys, monkeypatch)
    names = [line.split()[0] for line in printed.splitlines() if "agreement" in line]
    assert names == ["majority", "kNN", "evidence", "base", "aligned"]
    page = report.read_text(encoding="utf-8")
    assert "support_tone" in page
    assert "http:" not in page
    assert "https:" not in page


def test_walkthrough_prints_the_documented_output(
    server: LoopbackServer, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_the_rule(chat: ChatRequest) -> bool:
        is_taught = "must say sorry first" in chat.text
        return is_taught and "form on our site" in str(chat.messages[-1]["content"])

    server.rules = [Rule(when=breaks_the_rule, value=False)]
    monkeypatch.chdir(tmp_path)
    printed = run_example("walkthrough", tmp_path, capsys, monkeypatch)
    page = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
    code, outputs = (
        "".join(re.findall(f"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
        for language in ("python", "text")
    )
    assert printed == outputs
    written = (ROOT / "examples" / "walkthrough.py").read_text(encoding="utf-8")
    program = written.split('"""\n\n', 1)[1]
    lines = [line for line in program.splitlines() if line and not re.match(r"# \d\. ", line)]
    assert [line for line in code.splitlines() if line] == lines


def test_every_example_is_run() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {*EXAMPLES, "evaluate_a_judge", "walkthrough"}


Demo = Callable[..., Ran]


@pytest.fixture
def demo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Demo:
    """Runs the demo in this process, which imports everything once."""

    def run(*options: str, typed: str = "", **environment: str) -> Ran:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        capsys.readouterr()
        status = main(["demo", *options])
        return Ran(int(status), *capsys.readouterr())

    return run


def test_demo_learns_once(server: LoopbackServer, tmp_path: Path, demo: Demo) -> None:
    def mentions_duplex(chat: ChatRequest) -> bool:
        return "main requirement for piggybacking is a two-way/duplex" in chat.text

    server.rules = [Rule(when=mentions_duplex, value=0.25)]
    path = tmp_path / "demo.sqlite"
    memory = ("--memory", str(path))
    command = [sys.executable, "-m", "memalign_graph.cli", "demo", *memory]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    expected_output = subprocess.check_output(command, env=environment, text=True, timeout=300)
    lines = [line.split() for line in expected_output.splitlines()]
    assert ["case", "expert", "before", "after"] in lines
    assert ["0.0", "1.0", "0.25"] in [line[-3:] for line in lines], "a wrong answer, found out"
    assert ["#" * 20, "1.00", "#" * 5, "0.25"] in [line[1:] for line in lines]
    learned = "When judging, heed the expert: The response states both the requirements correctly."
    assert f"- {learned}\n  from training-2.3-49; not measured yet" in expected_output
    assert re.search(
        r"On 8 unseen cases the judge was 0\.44 away from the experts before it learned, and "
        r"0\.\d\d after: (nearer|farther) by 0\.\d\d \(90 % interval of the gain -?0\.\d\d to "
        r"-?0\.\d\d",
        expected_output,
    )
    chats = len(server.chats)
    server.chats.clear()
    again = demo(*memory, "--json")
    assert "an earlier run learned from all cases" in again.err
    assert 16 <= len(server.chats) < chats, "what is known is not distilled again"
    result = again.document
    assert [row["expert"] for row in result["cases"]] == [0, 1] * 3 + [0.5, 1]
    assert [guideline["text"] for guideline in result["guidelines"]] == [learned]


def test_demo_accepts_a_typed_comment(server: LoopbackServer, tmp_path: Path, demo: Demo) -> None:
    path = tmp_path / "demo.sqlite"
    memory = ("--memory", str(path))
    with open_local_store(path) as store:
        JudgeMemory(store, CRITERION, embeddings="local").add_guideline("Mine.")
    scripted = demo(*memory, "--sql")
    assert "the expert on revenue-march: False: A query for the business" in scripted.err
    assert "right on 2 of 4 unseen cases before it learned, and on 2 after." in scripted.out
    server.chats.clear()
    typed = "false\nNever from the raw tables.\nskip\nquit\n"
    options = ("--sql", "--fresh", "--interactive", "-q")
    assert "  from revenue-march; not measured" in demo(*memory, *options, typed=typed).out
    sent = "".join(chat.text for chat in server.chats)
    assert "Never from the raw tables." in sent
    assert "leave out cancelled orders" not in sent
    with open_local_store(path) as store:
        assert JudgeMemory(store, CRITERION, embeddings="local").guidelines()


@pytest.mark.parametrize(
    ("url", "notes", "status"), [("http://127.0.0.1:9/v1", "", 3), ("", "No base. " * 199, 2)]
)
def test_demo_errors_are_one_sentence(
    server: LoopbackServer, tmp_path: Path, demo: Demo, url: str, notes: str, status: int
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(notes)
    addresses = dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), url or server.base_url)
    done = demo("--memory", str(path), "--fresh", **addresses)
    assert (done.status, bool(done.error)) == (status, True)
    assert "Traceback" not in done.err
    assert not notes or path.read_text() == notes
