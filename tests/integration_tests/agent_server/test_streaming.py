"""Runs on the Agent Server as a client streams them."""

from typing import Any

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.conftest import judgings
from tests.integration_tests.agent_server.support import CASE, case, new_thread, run
from tests.integration_tests.alignment_support import progress_of
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside

RETRIEVAL = ["assemble_guidelines", "retrieve_episodes"]


def stream(
    client: SyncLangGraphClient, thread: str, graph: str, **given: Any
) -> dict[str, list[Any]]:
    """Run a graph; returns what was streamed, by the kind of event."""
    events: dict[str, list[Any]] = {}
    modes: Any = ["updates", "custom"]
    for part in client.runs.stream(thread, graph, stream_mode=modes, **given):
        events.setdefault(part.event, []).append(part.data)
    assert set(events) <= {"metadata", "updates", "custom"}, events
    return events


def nodes(events: dict[str, list[Any]]) -> list[str]:
    """The nodes that have run, in order."""
    return [name for update in events["updates"] for name in update]


def test_judge_is_streamed_node_by_node(client: SyncLangGraphClient) -> None:
    thread = new_thread(client)
    events = stream(client, thread, "judge", input=CASE, context={"namespace": ["streamed"]})
    *first, last = nodes(events)
    assert (sorted(first), last) == (RETRIEVAL, "judge")
    assert "custom" not in events
    judgment = events["updates"][-1]["judge"]["judgment"]
    kept: Any = client.threads.get_state(thread)["values"]
    assert judgment == kept["judgment"]
    assert judgment["thread_id"] == thread


def test_review_streams_its_question_and_what_it_learned(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    thread = new_thread(client)
    context = {"namespace": ["streamed_review"]}
    events = stream(client, thread, "review", input=CASE, context=context)
    *first, judge, question = nodes(events)
    assert (sorted(first), judge, question) == (RETRIEVAL, "judge", "__interrupt__")
    [interrupt] = events["updates"][-1]["__interrupt__"]
    assert interrupt["value"]["action_requests"][0]["name"] == "review_judgment"
    reply = {interrupt["id"]: {"value": False, "rationale": "Too cold."}}
    events = stream(client, thread, "review", command={"resume": reply})
    assert nodes(events) == ["collect_feedback", "distill_feedback", "commit_memory"]
    [guideline] = events["updates"][-1]["commit_memory"]["learned"]["guidelines"]
    assert "Too cold." in guideline["text"]
    assert len(judgings(server)) == 1


def test_alignment_streams_its_progress(client: SyncLangGraphClient) -> None:
    said = [{**case(number), "rationale": f"Reason {number}."} for number in range(3)]
    thread = new_thread(client)
    context = {"namespace": ["streamed_align"]}
    events = stream(client, thread, "align", input={"feedback": said}, context=context)
    stages = list(dict.fromkeys(one["stage"] for one in events["custom"]))
    assert stages == ["remember", "distill", "consolidate", "commit"]
    for stage in stages:
        steps = progress_of(events["custom"], stage)
        assert steps == sorted(steps)
        done, of = steps[-1]
        assert done == of > 0
    assert nodes(events)[0] == "remember_feedback"
    assert nodes(events)[-1] == "commit_alignment"
    report = events["updates"][-1]["commit_alignment"]["report"]
    assert report["feedback"]["new"] == 3
    again = run(client, thread, "align", input={"feedback": said}, context=context)
    assert again["report"]["feedback"]["unchanged"] == 3
