"""What the Agent Server serves: graphs, their schemas, and sentences where input can't be used."""

from typing import Any

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from tests.integration_tests.agent_server.support import CASE, memory_of, new_thread, run

pytestmark = pytest.mark.outside


def served(client: SyncLangGraphClient) -> dict[str, str]:
    """The assistants that the server made of its graphs, by graph."""
    made = client.assistants.search(metadata={"created_by": "system"})
    return {one["graph_id"]: one["assistant_id"] for one in made}


def test_all_graphs_are_listed_with_their_schemas(client: SyncLangGraphClient) -> None:
    assistants = served(client)
    assert set(assistants) == {"align", "fan_out", "feedback", "judge", "panel", "review"}
    schemas = client.assistants.get_schemas(assistants["review"])
    assert schemas["input_schema"] is not None
    assert schemas["output_schema"] is not None
    assert set(schemas["input_schema"]["properties"]) == {"inputs", "outputs", "reference_outputs"}
    assert set(schemas["output_schema"]["properties"]) == {"judgment", "feedback", "learned"}


def test_the_context_shows_as_a_form(client: SyncLangGraphClient) -> None:
    schema = client.assistants.get_schemas(served(client)["review"])["context_schema"]
    assert schema is not None
    form = schema["properties"]
    assert set(form) == {"namespace", "k", "model", "review"}
    assert all(field["description"] for field in form.values())
    assert (form["k"]["minimum"], form["k"]["maximum"], form["k"]["default"]) == (0, 100, 5)
    assert form["namespace"]["default"] == ["memalign"]
    assert form["review"]["default"] == "always"


def test_many_comments_are_learned_at_once(client: SyncLangGraphClient) -> None:
    context = {"namespace": ["many"]}
    said = [{**CASE, "rationale": f"Reason {n}.", "author": f"expert {n}"} for n in range(3)]
    thread = new_thread(client)
    given: dict[str, Any] = {"feedback": [*said, {"inputs": "no outputs"}]}
    report = run(client, thread, "align", input=given, context=context)["report"]
    assert report["feedback"] == {"new": 3, "changed": 0, "unchanged": 0, "rejected": 1}
    kept = [one.id for one in memory_of(client, "many").guidelines()]
    assert [one["id"] for one in report["guidelines"]["added"]] == kept != []
    again = run(client, thread, "align", input=given, context=context)["report"]
    assert again["feedback"]["unchanged"] == 3
    assert again["cost"]["chat_calls"] == 0


def test_bad_input_is_told_in_a_sentence(client: SyncLangGraphClient) -> None:
    result = run(client, None, "judge", input={"inputs": "", "outputs": "x"})
    assert result["__error__"] == {
        "error": "InvalidInputError",
        "message": "inputs: must not be empty: pass the text or JSON value to judge.",
    }
