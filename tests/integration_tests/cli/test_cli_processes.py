"""The command line as a process: entry points, pipes and signals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.integration_tests.cli.support import ANN, BOB, Shell
from tests.loopback import answer

_WAIT_S = 240.0


@pytest.mark.parametrize("command", [[], ["align"], ["memory", "forget"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\n"
        "from memalign_graph.cli import main\n"
        f"assert main([*{command}, '--help']) == 0\n"
        "heavy = ('faiss', 'openai', 'langchain_core', 'langgraph', 'numpy', 'sklearn')\n"
        "assert not [name for name in heavy if name in sys.modules], sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=_WAIT_S, capture_output=True)


def test_feedback_from_stdin(shell: Shell) -> None:
    process = shell.process("align", "-c", "tone.yaml", "-f", "-", stdin=subprocess.PIPE)
    out, err = process.communicate(json.dumps(ANN) + "\n" + json.dumps(BOB), timeout=_WAIT_S)
    assert process.returncode == 0, err
    assert '"new": 2' in out


def test_export_to_stdout_is_utf_8(shell: Shell) -> None:
    shell.align({**ANN, "rationale": "Zu kühl: €"})
    shell.environment["PYTHONIOENCODING"] = "cp1252"
    with (shell.folder / "memory.jsonl").open("wb") as file:
        exporting = shell.process("memory", "export", "-c", "tone.yaml", "-", stdout=file)
        _, err = exporting.communicate(timeout=_WAIT_S)
    assert exporting.returncode == 0, err
    assert shell.memory("import", "memory.jsonl", "-m", "new.db").status == 0
    assert shell.opened("new.db") == shell.opened()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["memory", "list", "-c", "tone.yaml"],
        ["memory", "export", "-c", "tone.yaml", "-"],
        ["judge", "-c", "tone.yaml", "-e", "feedback.jsonl", "--json", "-q"],
    ],
)
def test_closed_output_pipe(shell: Shell, arguments: list[str]) -> None:
    shell.align({**ANN, "inputs": "x" * 200_000})
    read, write = os.pipe()
    os.close(read)
    process = shell.process(*arguments, stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 141
    assert "Broken" not in err
    assert "Traceback" not in err


LONG_COMMANDS = {
    "align": ["-c", "tone.yaml", "-f", "f.jsonl"],
    "judge": ["-c", "tone.yaml", "-e", "f.jsonl"],
    "migrate": ["-c", "tone.yaml", "--to", "openai:new"],
    "demo": [],
}


@pytest.mark.parametrize("command", LONG_COMMANDS)
def test_ctrl_c_exits_immediately_and_loses_nothing(shell: Shell, command: str) -> None:
    shell.align(BOB)
    shell.server.reset()
    shell.server.responder = lambda _: answer("{}", latency_s=600)
    shell.write_lines("f.jsonl", *({**ANN, "inputs": str(n)} for n in range(5)))
    process = shell.process(command, *LONG_COMMANDS[command])
    deadline = time.monotonic() + _WAIT_S
    while not shell.server.chats and time.monotonic() < deadline:
        time.sleep(0.02)
    assert shell.server.chats
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "memalign: error: stopped; what was committed before stays."
    shell.server.reset()
    count = len(shell.opened()[1])
    assert count == (6 if command == "align" else 1)
    assert shell.run("align", "-c", "tone.yaml", "--pending").status == 0
