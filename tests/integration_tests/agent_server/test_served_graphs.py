"""Graphs, schemas, assistants and streams on the Agent Server."""

from typing import Any

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.conftest import judgings
from tests.integration_tests.agent_server.support import (
    CASE,
    OTHER,
    case,
    new_thread,
    run,
    run_concurrently,
)
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside

BAD: list[dict[str, Any]] = [{"k": 1000}, {"namespace": ["a.b"]}, {"model": "openai:not-listed"}]


def assistant(client: SyncLangGraphClient, graph: str = "review", **context: Any) -> str:
    made: str = client.assistants.create(graph_id=graph, context=context)["assistant_id"]
    return made


def stream(client: SyncLangGraphClient, thread: str, graph: str, **options: Any) -> dict[str, Any]:
    """Run a graph; returns the streamed events by kind, and the nodes in order."""
    events: dict[str, Any] = {"updates": [], "custom": []}
    modes: Any = ["updates", "custom"]
    for part in client.runs.stream(thread, graph, stream_mode=modes, **options):
        events.setdefault(part.event, []).append(part.data)
    events["nodes"] = [name for update in events["updates"] for name in update]
    return events


def test_graphs_are_listed_with_schemas_and_a_form(client: SyncLangGraphClient) -> None:
    made = client.assistants.search(metadata={"created_by": "system"})
    served = {item["graph_id"]: item["assistant_id"] for item in made}
    assert set(served) == {"align", "feedback", "judge", "panel", "review"}
    schemas: Any = client.assistants.get_schemas(served["review"])
    assert set(schemas["input_schema"]["properties"]) == {"inputs", "outputs", "reference_outputs"}
    assert set(schemas["output_schema"]["properties"]) == {"judgment", "feedback", "learned"}
    form = schemas["context_schema"]["properties"]
    assert {name: field["default"] for name, field in form.items()} == {
        "namespace": ["memalign"],
        "k": None,
        "model": None,
        "review": None,
    }
    assert all(field["description"] for field in form.values())


def test_settings_of_each_assistant(client: SyncLangGraphClient, server: LoopbackServer) -> None:
    feedback = [{**CASE, "outputs": f"Answer {number}.", "value": True} for number in range(3)]
    emea: dict[str, Any] = {"namespace": ["acme", "emea"]}
    run(client, None, "align", input={"feedback": feedback}, context=emea)
    narrow = assistant(client, "judge", **emea, k=1, model=OTHER)
    wide = assistant(client, "judge", **emea, k=5, model=None)
    apac = assistant(client, namespace=["acme", "apac"], review="never")
    results = run_concurrently(
        lambda own: run(client, new_thread(client), own, input=CASE), (narrow, wide, apac)
    )
    assert [len(result["judgment"]["episode_ids"]) for result in results] == [1, 3, 0]
    assert (results[2]["feedback"], results[2]["learned"]) == (None, None)
    assert {chat.model for chat in judgings(server)} == {"gpt-other", "gpt-6-luna"}
    namespaces = client.store.list_namespaces(prefix=["acme"], suffix=["facts"])["namespaces"]
    assert [list(place) for place in namespaces] == [["acme", "emea", "support_tone", "facts"]]


def test_unusable_input_is_a_sentence(client: SyncLangGraphClient, server: LoopbackServer) -> None:
    for context in BAD:
        by_run = run(client, None, "review", input=CASE, context=context)
        assistant_id = assistant(client, **context)
        for result in (by_run, run(client, new_thread(client), assistant_id, input=CASE)):
            sentence = str(result["__error__"]["message"])
            assert next(iter(context)) in sentence
            assert "\n" not in sentence
    result = run(client, None, "judge", input={"inputs": "", "outputs": "x"})
    assert result["__error__"] == {
        "error": "InvalidInputError",
        "message": "inputs: must not be empty: pass the text or JSON value to judge.",
    }
    assert server.chats == []


def test_review_streams_each_step(client: SyncLangGraphClient, server: LoopbackServer) -> None:
    thread = new_thread(client)
    context = {"namespace": ["streamed_review"]}
    events = stream(client, thread, "review", input=CASE, context=context)
    *first, judge, question = events["nodes"]
    assert sorted(first) == ["assemble_guidelines", "retrieve_episodes"]
    assert (judge, question) == ("judge", "__interrupt__")
    judgment = events["updates"][-2]["judge"]["judgment"]
    assert judgment["thread_id"] == thread
    [interrupt] = events["updates"][-1]["__interrupt__"]
    assert interrupt["value"]["action_requests"][0]["name"] == "review_judgment"
    reply = {interrupt["id"]: {"value": False, "rationale": "Too cold."}}
    events = stream(client, thread, "review", command={"resume": reply})
    assert events["nodes"] == ["collect_feedback", "distill_feedback", "commit_memory"]
    learned = events["updates"][-1]["commit_memory"]["learned"]
    [guideline] = learned["guidelines"]
    assert "Too cold." in guideline["text"]
    assert len(judgings(server)) == 1
    judged = run(client, new_thread(client), "judge", input=CASE, context=context)["judgment"]
    assert judged["guideline_ids"] == [guideline["guideline_id"]]
    assert judged["episode_ids"] == learned["episode_ids"]


def test_alignment_streams_progress_and_learns_once(client: SyncLangGraphClient) -> None:
    feedback = [{**case(number), "rationale": f"Reason {number}."} for number in range(3)]
    thread = new_thread(client)
    graph_input: dict[str, Any] = {
        "input": {"feedback": [*feedback, {"inputs": "no outputs"}]},
        "context": {"namespace": ["streamed_align"]},
    }
    events = stream(client, thread, "align", **graph_input)
    stages = list(dict.fromkeys(event["stage"] for event in events["custom"]))
    assert stages == ["remember", "distill", "consolidate", "commit"]
    report = events["updates"][-1]["commit_alignment"]["report"]
    assert report["feedback"] == {"new": 3, "changed": 0, "unchanged": 0, "rejected": 1}
    again = run(client, thread, "align", **graph_input)["report"]
    assert (again["feedback"]["unchanged"], again["cost"]["chat_calls"]) == (3, 0)
