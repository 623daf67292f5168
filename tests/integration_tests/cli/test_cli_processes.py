"""The command line as processes: its entry points, pipes, signals, terminals, two at once."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration_tests.cli.support import ANN, BOB, Shell
from tests.loopback import answer

_WAIT_S = 240.0


def test_the_entry_point_and_the_module_are_one(shell: Shell) -> None:
    script = Path(sys.executable).with_name("memalign")
    if not script.exists():
        pytest.skip("the package is not installed as a distribution")
    by_script = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    by_module = shell.process("--version")
    out, _ = by_module.communicate(timeout=_WAIT_S)
    assert by_script.stdout == out
    assert out.startswith("memalign-graph ")


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
    process = shell.process("align", "-c", "tone.yaml", "-f", "-", stdin=subprocess.PIPE)
    _, err = process.communicate("nonsense", timeout=_WAIT_S)
    assert process.returncode == 2
    assert "--feedback: -: it has no records" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["memory", "list", "-c", "tone.yaml"],
        ["memory", "list", "-c", "tone.yaml", "--json"],
        ["memory", "export", "-c", "tone.yaml", "-"],
        ["judge", "-c", "tone.yaml", "-e", "feedback.jsonl", "--json", "-q"],
        ["align", "-c", "tone.yaml", "-f", "feedback.jsonl", "-q"],
    ],
)
def test_a_reader_that_went_away(shell: Shell, arguments: list[str]) -> None:
    shell.align({**ANN, "inputs": "x" * 200_000})
    read, write = os.pipe()
    os.close(read)
    process = shell.process(*arguments, stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 141
    assert "Broken" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["align", "judge"])
def test_ctrl_c_ends_at_once_and_loses_nothing(shell: Shell, command: str) -> None:
    shell.align(BOB)
    shell.server.reset()
    shell.server.responder = lambda _: answer("{}", latency_s=600)
    shell.write_lines("f.jsonl", *({**ANN, "inputs": str(n)} for n in range(5)))
    option = "-f" if command == "align" else "-e"
    process = shell.process(command, "-c", "tone.yaml", option, "f.jsonl")
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
    known = len(shell.opened()[1])
    assert known == (6 if command == "align" else 1)
    assert shell.run("align", "-c", "tone.yaml", "--pending").status == 0


def test_two_processes_at_once(shell: Shell) -> None:
    shell.settings(learn={"batch_size": 5})
    shell.align(ANN)
    shell.server.latency_s = 0.1
    shell.write_lines("a.jsonl", *({**ANN, "inputs": f"a {n}"} for n in range(20)))
    shell.write_lines("b.jsonl", *({**BOB, "inputs": f"b {n}"} for n in range(20)))
    command = ["align", "-c", "tone.yaml", "-f"]
    all_three = [shell.process(*command, name) for name in ("a.jsonl", "b.jsonl")]
    all_three.append(shell.process("judge", "-c", "tone.yaml", "-e", "a.jsonl", "-q"))
    for process in all_three:
        _, err = process.communicate(timeout=_WAIT_S)
        assert process.returncode == 0, err
    _, episodes, _ = shell.opened()
    assert len(episodes) == 41
    assert {one.status for one in episodes} == {"distilled"}


@pytest.mark.parametrize(("typed", "status"), [("y\n", 0), ("n\n", 2), ("\x03", 130)])
def test_a_question_at_a_terminal(shell: Shell, typed: str, status: int) -> None:
    shell.align(ANN)
    master, slave = pty.openpty()
    arguments = ["memory", "forget", "-c", "tone.yaml", "--author", "ann"]
    process = shell.process(
        *arguments, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    seen = _until(master, b"[y/N]")
    if typed == "\x03":
        # Pressed again, as people do: one that comes just before it waits for a line is not seen.
        deadline = time.monotonic() + _WAIT_S
        while process.poll() is None and time.monotonic() < deadline:
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(5)
    else:
        os.write(master, typed.encode())
    assert process.wait(_WAIT_S) == status
    seen += _rest(master)
    os.close(master)
    assert b"Forget 1 episode? [y/N]" in seen
    assert b"Traceback" not in seen
    assert len(shell.opened()[1]) == (0 if status == 0 else 1)


def test_progress_at_a_terminal(shell: Shell) -> None:
    shell.settings(learn={"batch_size": 2})
    shell.write_lines("f.jsonl", *({**ANN, "inputs": str(n)} for n in range(6)))
    master, slave = pty.openpty()
    process = shell.process("align", "-c", "tone.yaml", "-f", "f.jsonl", stderr=slave)
    os.close(slave)
    out, _ = process.communicate(timeout=_WAIT_S)
    seen = _rest(master).decode()
    os.close(master)
    assert process.returncode == 0
    assert "memalign: distill 3 of 3" in seen
    assert '"new": 6' in out


def test_ascii_terminals_get_what_they_can_show(shell: Shell) -> None:
    shell.align({**ANN, "inputs": "Où est ma commande ?", "author": "Zoë"})
    shell.environment["PYTHONIOENCODING"] = "ascii"
    for options in ([], ["--json"]):
        process = shell.process("memory", "list", "-c", "tone.yaml", *options)
        out, err = process.communicate(timeout=_WAIT_S)
        assert process.returncode == 0, err
    assert json.loads(out)["episodes"][0]["author"] == "Zoë"


def _until(master: int, text: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + _WAIT_S
    while text not in seen and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 4096)
    return seen


def _rest(master: int) -> bytes:
    """Read what a process that has ended left on its terminal."""
    seen = b""
    while select.select([master], [], [], 0.2)[0]:
        try:
            part = os.read(master, 4096)
        except OSError:  # Linux says so where nobody holds the other end
            break
        if not part:
            break
        seen += part
    return seen
