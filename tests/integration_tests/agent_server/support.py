"""Helpers for tests of the Agent Server."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from langgraph.store.memory import InMemoryStore
from langgraph_sdk.client import SyncLangGraphClient

from memalign_graph import Criterion, JudgeMemory
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import hashed

T = TypeVar("T")
R = TypeVar("R")

CASE = {"inputs": "Where is my parcel?", "outputs": "Look it up."}
MEMORY = "support_tone"
"""The name of the criterion that is served."""

OTHER = "openai:gpt-other"
"""The chat model that a context may choose beside the default one."""

KINDS = ("facts", "head", "words")
"""What a memory lies in, but for its vectors."""


@dataclass(frozen=True)
class AgentServer:
    """A running `langgraph dev`."""

    client: SyncLangGraphClient
    models: LoopbackServer
    """Where its chat model and its embeddings are."""


ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 300.0
RUNS_AT_ONCE = "8"


@contextmanager
def langgraph_dev(folder: Path, models: LoopbackServer, **more: Any) -> Iterator[str]:
    """Run `langgraph dev` in a folder with the project's graphs and additions."""
    config = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8")) | more
    config["dependencies"] = [str(ROOT / dependency) for dependency in config["dependencies"]]
    config["graphs"] = {name: str(ROOT / path) for name, path in config["graphs"].items()}
    config["http"] = config["http"] | {"app": str(ROOT / config["http"]["app"])}
    with started(folder, models, config) as url:
        yield url


@contextmanager
def started(folder: Path, models: LoopbackServer, config: Mapping[str, Any]) -> Iterator[str]:
    """Run `langgraph dev` in a folder, with this langgraph.json."""
    (folder / "langgraph.json").write_text(json.dumps(config), encoding="utf-8")
    port = free_port()
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"]
    command += ["--port", str(port), "--n-jobs-per-worker", RUNS_AT_ONCE]
    url = f"http://127.0.0.1:{port}"
    with serving(command, f"{url}/ok", folder, models):
        yield url


@contextmanager
def serving(
    command: Sequence[str], url: str, folder: Path, models: LoopbackServer
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server process; yields once it responds, then stops it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LANGSMITH", "LANGCHAIN"))}
    env |= models.environment | {"LANGGRAPH_STRICT_MSGPACK": "true", "MEMALIGN_MODELS": OTHER}
    log = folder / f"log-{free_port()}"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[2]} did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.2)
            yield process
        finally:
            process.terminate()
            process.wait(300)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code < 500
    except httpx.TransportError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def case(number: int) -> dict[str, str]:
    return {"inputs": f"Question {number}?", "outputs": f"Answer {number}."}


def new_thread(client: SyncLangGraphClient) -> str:
    thread: str = client.threads.create()["thread_id"]
    return thread


def run(client: SyncLangGraphClient, thread: str | None, graph: str, **options: Any) -> Any:
    """Run a graph or assistant to its end or next interrupt; returns errors as values."""
    return client.runs.wait(thread, graph, raise_error=False, **options)


def ask(client: SyncLangGraphClient, thread: str, graph: str = "review", **options: Any) -> Any:
    """Run until the first interrupt; returns it."""
    result = run(client, thread, graph, **{"input": CASE, **options})
    assert "__interrupt__" in result, result
    [interrupt] = result["__interrupt__"]
    return interrupt


def resume(client: SyncLangGraphClient, thread: str, reply: Any, graph: str = "review") -> Any:
    return run(client, thread, graph, command={"resume": reply})


def refuse(client: SyncLangGraphClient, thread: str, reply: Any, graph: str = "review") -> str:
    """Resume with an invalid reply; returns the error message."""
    result = resume(client, thread, reply, graph)
    assert "__error__" in result, result
    return str(result["__error__"]["message"])


def pending(client: SyncLangGraphClient, thread: str) -> list[str]:
    return [interrupt["id"] for interrupt in client.threads.get_state(thread)["interrupts"]]


def run_concurrently(call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Make calls concurrently; returns the results in order."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(call, items))


def memory_of(client: SyncLangGraphClient, namespace: str) -> JudgeMemory:
    store = InMemoryStore()
    for kind in KINDS:
        for item in items(client, namespace, kind):
            store.put(tuple(item["namespace"]), item["key"], dict(item["value"]), index=False)
    criterion = Criterion(name=MEMORY, instructions="Read alone.")
    return JudgeMemory(store, criterion, namespace=namespace, embeddings=hashed)


def items(client: SyncLangGraphClient, namespace: str, kind: str) -> list[Mapping[str, Any]]:
    return list(client.store.search_items([namespace, MEMORY, kind], limit=100)["items"])


def check_learned(client: SyncLangGraphClient, namespace: str) -> list[str]:
    """Check that each comment is stored and is the text of one guideline."""
    memory = memory_of(client, namespace)
    episodes = memory.episodes()
    assert {episode.status for episode in episodes} <= {"distilled"}
    assert {guideline.text: guideline.episode_ids for guideline in memory.guidelines()} == {
        episode.rationale: [episode.id] for episode in episodes
    }
    return sorted(str(episode.rationale) for episode in episodes)
