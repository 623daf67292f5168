"""The real `langgraph dev`, driven through `langgraph_sdk`, without a LangSmith key."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.loopback import LoopbackServer

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 90.0
CASE = {"inputs": "Where is my parcel?", "outputs": "Look it up."}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncLangGraphClient]:
    port = _free_port()
    folder = tmp_path_factory.mktemp("server")
    log = folder / "log"
    with LoopbackServer() as models, log.open("w") as output:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LANGSMITH")}
        environment |= models.environment
        _write_config(folder)
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "langgraph_cli", "dev"),
                *("--port", str(port), "--no-browser", "--no-reload"),
            ],
            cwd=folder,  # where the server keeps its state
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            with get_sync_client(url=f"http://127.0.0.1:{port}") as sdk:
                _wait_until_up(sdk, server, log)
                yield sdk
        finally:
            server.terminate()
            server.wait(20)


def _write_config(folder: Path) -> None:
    """Put the project's langgraph.json, its paths made absolute, where the server keeps state."""
    config = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8"))
    config["dependencies"] = [str(ROOT / one) for one in config["dependencies"]]
    config["graphs"] = {name: str(ROOT / entry) for name, entry in config["graphs"].items()}
    (folder / "langgraph.json").write_text(json.dumps(config), encoding="utf-8")


def _wait_until_up(sdk: SyncLangGraphClient, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            sdk.assistants.search()
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"langgraph dev did not start:\n{log.read_text()[-3000:]}")


def _run(client: SyncLangGraphClient, thread: str | None, graph: str, **kwargs: Any) -> Any:
    return client.runs.wait(thread, graph, raise_error=False, **kwargs)


def test_all_graphs_are_listed_with_their_schemas(client: SyncLangGraphClient) -> None:
    assistants = {one["graph_id"]: one["assistant_id"] for one in client.assistants.search()}
    assert set(assistants) == {"align", "judge", "review"}
    schemas = client.assistants.get_schemas(assistants["review"])
    assert schemas["input_schema"] is not None
    assert schemas["output_schema"] is not None
    assert set(schemas["input_schema"]["properties"]) == {"inputs", "outputs", "reference_outputs"}
    assert set(schemas["output_schema"]["properties"]) == {"judgment", "feedback", "learned"}


def test_the_context_shows_as_a_form(client: SyncLangGraphClient) -> None:
    [assistant] = client.assistants.search(graph_id="review")
    schema = client.assistants.get_schemas(assistant["assistant_id"])["context_schema"]
    assert schema is not None
    form = schema["properties"]
    assert set(form) == {"namespace", "k", "model", "review"}
    assert all(field["description"] for field in form.values())
    assert (form["k"]["minimum"], form["k"]["maximum"], form["k"]["default"]) == (0, 100, 5)
    assert form["namespace"]["default"] == ["memalign"]
    assert form["review"]["default"] == "always"


def test_judge_interrupt_resume_and_learn(client: SyncLangGraphClient) -> None:
    context = {"namespace": ["shop"]}
    thread = client.threads.create()["thread_id"]
    result = _run(client, thread, "review", input=CASE, context=context)
    assert "__interrupt__" in result, result
    [interrupt] = result["__interrupt__"]
    assert interrupt["value"]["action_requests"][0]["name"] == "review_judgment"

    refused = _run(client, thread, "review", command={"resume": {"value": "perhaps"}})
    assert "'perhaps' is not on the scale" in refused["__error__"]["message"]
    assert client.threads.get_state(thread)["next"] == ["collect_feedback"]

    reply = {interrupt["id"]: {"value": False, "rationale": "Too cold."}}
    result = _run(client, thread, "review", command={"resume": reply})
    [learned] = result["learned"]["guidelines"]
    assert "Too cold." in learned["text"]

    items = client.store.search_items(["shop", "support_tone", "guidelines"])["items"]
    assert [item["value"]["text"] for item in items] == [learned["text"]]

    other = client.threads.create()["thread_id"]
    judged = _run(client, other, "judge", input=CASE, context=context)["judgment"]
    assert judged["guideline_ids"] == [learned["guideline_id"]]
    assert judged["episode_ids"] == result["learned"]["episode_ids"]


def test_many_comments_are_learned_at_once(client: SyncLangGraphClient) -> None:
    context = {"namespace": ["many"]}
    said = [{**CASE, "rationale": f"Reason {n}.", "author": f"expert {n}"} for n in range(3)]
    thread = client.threads.create()["thread_id"]
    given = {"feedback": [*said, {"inputs": "no outputs"}]}
    report = _run(client, thread, "align", input=given, context=context)["report"]
    assert report["feedback"] == {"new": 3, "changed": 0, "unchanged": 0, "rejected": 1}
    items = client.store.search_items(["many", "support_tone", "guidelines"])["items"]
    assert [one["id"] for one in report["guidelines"]["added"]] == [one["key"] for one in items]
    again = _run(client, thread, "align", input=given, context=context)["report"]
    assert again["feedback"]["unchanged"] == 3
    assert again["cost"]["chat_calls"] == 0


def test_bad_input_is_told_in_a_sentence(client: SyncLangGraphClient) -> None:
    result = _run(client, None, "judge", input={"inputs": "", "outputs": "x"})
    assert result["__error__"] == {
        "error": "InvalidInputError",
        "message": "inputs: must not be empty: pass the text or JSON value to judge.",
    }
