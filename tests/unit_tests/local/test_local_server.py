"""The embedded model's server and chat model, with a stand-in for llama.cpp."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import memalign_graph
from memalign_graph.local import LocalModelError, chat, local_chat_model
from memalign_graph.local.chat import start_server, stop_server

STAND_IN = """
import json, os, sys, threading, types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class CommonParams:
    def __init__(self):
        self.model = types.SimpleNamespace(path="")
        self.cpuparams = types.SimpleNamespace(n_threads=0)
        self.cpuparams_batch = types.SimpleNamespace(n_threads=0)

class Server:
    def __init__(self, params):
        if "broken" in params.model.path:
            print("0.1 E llama_model_load: tensor is missing", file=sys.stderr, flush=True)
            raise RuntimeError("Failed to init server.")
        if "crash" in params.model.path:
            os.abort()
        if "stuck" in params.model.path:
            sys.stdin = types.SimpleNamespace(read=threading.Event().wait)
        class Handler(BaseHTTPRequestHandler):
            def answer(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            def do_GET(self):
                self.answer(200, {})
            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.headers["Authorization"] != "Bearer " + params.api_keys[0]:
                    return self.answer(401, {"error": {"message": "who are you?"}})
                asked["n_ctx"] = params.n_ctx
                asked["threads"] = params.cpuparams.n_threads
                message = {"role": "assistant", "content": json.dumps(asked)}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self.answer(200, {"id": "1", "object": "chat.completion", "created": 1,
                                  "model": asked["model"], "choices": [choice]})
            def log_message(self, *args):
                pass
        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        self.listening_address = "http://127.0.0.1:%d" % http.server_port
"""


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the server process import the fake llama.cpp and find fake weights."""
    (tmp_path / "xllamacpp.py").write_text(STAND_IN)
    root = Path(memalign_graph.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    monkeypatch.setattr(chat, "find_weights", lambda: Path("weights.gguf"))
    monkeypatch.setattr(chat, "find_spec", lambda _: True)
    yield tmp_path
    stop_server()


def is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(address):  # noqa: S310 - loopback http
            return True
    except OSError:
        return False


def test_threads_share_one_server_until_it_stops() -> None:
    with ThreadPoolExecutor(8) as pool:
        [first] = set(pool.map(lambda _: start_server(), range(16)))
    assert is_up(first.base_url)
    stop_server()
    assert not is_up(first.base_url)
    second = start_server()
    assert second != first
    assert is_up(second.base_url)
    assert chat._running is not None
    chat._running[0].kill()
    chat._running[0].wait()
    assert start_server() != second


def test_server_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "find_weights", lambda: Path("stuck.gguf"))
    address = start_server().base_url
    stop_server()
    assert not is_up(address)


def test_failed_start_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "find_weights", lambda: Path("broken.gguf"))
    with pytest.raises(LocalModelError, match=r"Failed to init.*tensor is missing.*broken\.gguf"):
        start_server()
    monkeypatch.setattr(chat, "find_weights", lambda: Path("crash.gguf"))
    with pytest.raises(LocalModelError, match="ended with status"):
        start_server()
    monkeypatch.setattr(chat, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r'embedded chat model needs the extra "local"'):
        start_server()


def test_server_ends_when_its_parent_is_killed(stand_in: Path) -> None:
    script = stand_in / "parent.py"
    script.write_text(
        "import time\n"
        "from memalign_graph.local import chat\n"
        "chat.find_weights = lambda: 'weights.gguf'\n"
        "chat.find_spec = lambda name: True\n"
        "print(chat.start_server().base_url, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        assert is_up(address)
        parent.kill()
    deadline = time.monotonic() + 120
    while is_up(address) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_up(address)


def test_chat_model_starts_the_server_and_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    model = local_chat_model(max_tokens=7)
    assert chat._running is None
    answer = json.loads(model.invoke("hello").text)
    assert model.profile is not None
    assert model.profile["max_input_tokens"] == 8192
    window = model.profile["max_input_tokens"] + model.profile["max_output_tokens"]
    assert (answer["n_ctx"], answer["temperature"]) == (window, 0)
    stop_server()
    schema = {"title": "V", "type": "object", "properties": {"model": {"type": "string"}}}
    bound = model.with_structured_output(schema, method="json_schema", include_raw=True)
    for _ in range(2):  # each in an event loop of its own
        result: Any = asyncio.run(bound.ainvoke("hello"))
        assert result["parsed"]["model"] == "qwen2.5-coder-1.5b-instruct"
        assert result["parsed"]["max_completion_tokens"] == 7
        assert result["parsed"]["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("limit", "threads"), [("250000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", 8)]
)
def test_cpu_limit_of_a_container_bounds_the_threads(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, limit: str, threads: int
) -> None:
    (stand_in / "cpu.max").write_text(limit)
    monkeypatch.setattr(chat, "_CPU_LIMIT", stand_in / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert json.loads(local_chat_model().invoke("hello").text)["threads"] == threads


def test_neither_a_cancelled_call_nor_the_end_of_the_process_waits_for_the_weights() -> None:
    program = (
        "import asyncio, threading\n"
        "from memalign_graph.local import chat, local_chat_model\n"
        "begun = threading.Event()\n"
        "chat.find_weights = lambda: begun.set() or threading.Event().wait()\n"
        "chat.find_spec = lambda name: True\n"
        "async def main():\n"
        "    calling = asyncio.create_task(local_chat_model().ainvoke('hello'))\n"
        "    await asyncio.to_thread(begun.wait)\n"
        "    calling.cancel()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
