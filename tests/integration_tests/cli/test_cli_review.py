"""`memalign review` serves the page or explains why it cannot."""

import signal
import socket
import subprocess
import sys

import httpx
import pytest

from tests.integration_tests.cli.support import ANN, Shell

CASE = {name: ANN[name] for name in ("inputs", "outputs")}


@pytest.fixture
def waiting(shell: Shell) -> Shell:
    """An open review task."""
    shell.settings(judge={"keep_judgments": 30})
    assert shell.judge(CASE).status == 0
    return shell


def open_page(process: "subprocess.Popen[str]", **headers: str) -> str:
    """Open the page of a started command."""
    assert process.stderr is not None
    address = next(line for line in process.stderr if "/review" in line)
    url = f"http://{address.partition('http://')[2].partition(' ')[0]}"
    response = httpx.get(url, headers=headers, trust_env=False, timeout=60)
    assert response.status_code == 200, response.text
    return response.text


def test_page_is_served_on_a_free_port_until_stopped(waiting: Shell) -> None:
    process = waiting.process("review", "-c", "tone.yaml", "--author", "ann", "--port", "0")
    assert CASE["outputs"] in open_page(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err


def test_proxy_header_names_the_expert(waiting: Shell) -> None:
    options = ["--host", "localhost", "--port", "0", "--user-header", "X-Forwarded-User"]
    process = waiting.process("review", "-c", "tone.yaml", *options)
    sent = {"Host": "reviews.example.com", "X-Forwarded-For": "203.0.113.9"}
    page = open_page(process, **sent, **{"X-Forwarded-User": "ann"})
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert (">ann<" in page, CASE["outputs"] in page) == (True, True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--host", "10.0.0.1"], "--host: on 10.0.0.1 others could answer without signing in"),
        (["--user-header", "X-User", "--proxy", "nginx"], "--proxy: 'nginx' is not an IP address"),
        (["--proxy", "10.0.0.7"], "--proxy: also name the header with the user's name"),
        (["--user-header", ""], "--user-header: '' is not the name of a header."),
        (["--user-header", "X User:"], "--user-header: 'X User:' is not the name of a header."),
    ],
)
def test_public_page_needs_a_sign_in(waiting: Shell, options: list[str], problem: str) -> None:
    assert waiting.run("review", "-c", "tone.yaml", *options).refusal.startswith(problem)


def test_port_in_use_is_named(waiting: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = waiting.run("review", "-c", "tone.yaml", "--port", str(port))
    assert ran.status == 2
    assert ran.error.startswith(f"--port: {port} cannot be used")
    assert f":{port}/review" not in ran.err


def test_missing_extra_is_named_first(waiting: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("memalign_graph.review")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = waiting.run("review", "-c", "tone.yaml")
    assert 'pip install "memalign-graph[review]"' in ran.refusal
