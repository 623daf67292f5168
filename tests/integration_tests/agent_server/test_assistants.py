"""Assistants of one graph, each with a context of its own."""

from typing import Any

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.conftest import judgings
from tests.integration_tests.agent_server.support import (
    CASE,
    ask,
    at_once,
    items,
    new_thread,
    resume,
    run,
)
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside

BAD: list[tuple[dict[str, Any], str]] = [
    ({"k": 1000}, "k"),
    ({"k": "three"}, "k"),
    ({"namespace": ["a.b"]}, "namespace"),
    ({"namespace": []}, "namespace"),
    ({"namespace": ["langgraph"]}, "namespace"),
    ({"review": "sometimes"}, "review"),
]


def assistant(client: SyncLangGraphClient, graph: str = "review", **context: Any) -> str:
    """Make an assistant; returns its id."""
    made: str = client.assistants.create(graph_id=graph, context=context)["assistant_id"]
    return made


def judge(client: SyncLangGraphClient, own: str) -> Any:
    """Judge the case on a thread of its own."""
    return run(client, new_thread(client), own, input=CASE)["judgment"]


def test_assistants_with_different_namespaces_see_no_memory_but_their_own(
    client: SyncLangGraphClient,
) -> None:
    emea, apac = (assistant(client, namespace=["acme", one]) for one in ("emea", "apac"))
    thread = new_thread(client)
    asked = ask(client, thread, emea)
    reply = {asked["id"]: {"value": False, "rationale": "Too cold."}}
    [learned] = resume(client, thread, reply, emea)["learned"]["guidelines"]
    here, there = at_once(lambda own: judge(client, own), (emea, apac))
    assert here["guideline_ids"] == [learned["guideline_id"]]
    assert here["episode_ids"] == learned["episode_ids"]
    assert (there["guideline_ids"], there["episode_ids"]) == ([], [])
    assert here["memory_version"] != there["memory_version"]
    found = client.store.list_namespaces(prefix=["acme"], suffix=["facts"])["namespaces"]
    assert [list(one) for one in found] == [["acme", "emea", "support_tone", "facts"]]


def test_assistant_that_never_asks(client: SyncLangGraphClient) -> None:
    thread = new_thread(client)
    own = assistant(client, namespace=["never"], review="never")
    result = run(client, thread, own, input=CASE)
    assert set(result) == {"judgment", "feedback", "learned"}
    assert (result["feedback"], result["learned"]) == (None, None)
    state = client.threads.get_state(thread)
    assert (state["next"], state["interrupts"]) == ([], [])
    assert items(client, "never", "facts") == []


def test_assistant_has_its_own_k_and_model(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    said = [{**CASE, "outputs": f"Answer {n}.", "value": True} for n in range(3)]
    own = {"namespace": ["own"]}
    run(client, None, "align", input={"feedback": said}, context=own)
    one = assistant(client, "judge", **own, k=1, model="openai:gpt-other")
    form = assistant(client, "judge", **own, k=5, model=None, review="always")
    shown = at_once(lambda which: judge(client, which), (one, form))
    assert [len(judgment["episode_ids"]) for judgment in shown] == [1, 3]
    assert {chat.model for chat in judgings(server)} == {"gpt-other", "gpt-4.1-mini"}


@pytest.mark.parametrize("how", ["assistant", "run"])
def test_bad_context_is_told_in_a_sentence(
    client: SyncLangGraphClient, server: LoopbackServer, how: str
) -> None:
    def why(context: dict[str, Any]) -> str:
        if how == "run":
            result = run(client, None, "review", input=CASE, context=context)
        else:
            result = run(client, new_thread(client), assistant(client, **context), input=CASE)
        assert "__error__" in result, result
        return str(result["__error__"]["message"])

    sentences = at_once(why, [context for context, _ in BAD])
    assert server.chats == []
    for (context, field), sentence in zip(BAD, sentences, strict=True):
        assert field in sentence, context
        assert "\n" not in sentence, context
        assert "pydantic" not in sentence, context
