"""The real MLflow: its assessments as feedback, and memories that move there and back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Feedback, JudgeMemory
from memalign_graph.integrations import feedback_from_mlflow
from tests.conftest import CRITERION
from tests.integration_tests.integrations.mlflow_environment import mlflow_python, run_step
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside

Steps = Any

ANN = {
    "inputs": {"question": "My order never came."},
    "outputs": "Check the tracking page.",
    "value": False,
    "rationale": "Too cold: it must say sorry first.",
    "author": "ann",
    "given_at": "2024-05-01T10:00:00Z",
}
BOB = {
    "inputs": {"question": "The cup arrived broken."},
    "outputs": {"answer": "We are sorry. A new one is on its way."},
    "value": True,
    "rationale": "Warm, and it helps.",
    "author": "bob",
    "id": "ticket-7",
    "given_at": "2024-05-02T10:00:00Z",
}
SECOND = {**ANN, "author": "cem", "rationale": "It sends the customer away."}
NOBODY = {**ANN, "inputs": "Plain text.", "author": None, "rationale": "Cold."}
WORDS = {**ANN, "inputs": "Only words.", "value": None, "author": "dee"}
CASE = {"inputs": {"question": "My order never came!"}, "outputs": "Look at the tracking page."}
BY_HAND = "Begin with a word of regret."
DISTILLED = "A reply about a loss must say sorry first."


@pytest.fixture(scope="module")
def mlflow_server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as running:
        yield running
        assert running.errors == []


@pytest.fixture(scope="module")
def step(mlflow_server: LoopbackServer, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """Runs a step of the worker in a process of its own, on one database for all."""
    python, folder = mlflow_python(), tmp_path_factory.mktemp("mlflow")

    def run(name: str, **arguments: Any) -> dict[str, Any]:
        return run_step(python, name, arguments, mlflow_server, folder)

    return run


def exported_lines(server: LoopbackServer, criterion: Criterion = CRITERION) -> list[str]:
    """A memory with four experts' words, a distilled guideline and one by hand."""
    memory = JudgeMemory(InMemoryStore(), criterion, embeddings=server.embedder())
    stored = memory.remember([Feedback.model_validate(one) for one in (ANN, BOB, SECOND, NOBODY)])
    memory.remember(Feedback.model_validate(WORDS))
    memory.add_guideline(BY_HAND, author="ann")
    head, *lines = memory.export_jsonl().splitlines()
    # As an alignment writes it: its sources are the episodes of ann and cem.
    guideline = json.loads(next(line for line in lines if '"guideline"' in line))
    sources = [stored[0].id, stored[2].id]
    distilled = {
        **guideline,
        "id": "g" * 32,
        "text": DISTILLED,
        "episode_ids": sources,
        "origin": "distilled",
        "author": None,
    }
    return [head, json.dumps(distilled), *lines]


@pytest.fixture(scope="module")
def lines(mlflow_server: LoopbackServer) -> list[str]:
    return exported_lines(mlflow_server)


@pytest.fixture(scope="module")
def exported(step: Steps, lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = step(
        "export", criterion=CRITERION.to_json(), lines=lines, awaits=False, register=True
    )
    return found


@pytest.fixture(scope="module")
def judged(step: Steps, exported: dict[str, Any], mlflow_server: LoopbackServer) -> dict[str, Any]:
    mlflow_server.chats.clear()
    mlflow_server.script('{"result": false, "rationale": "Cold."}')
    found = step("judge", case=CASE)
    return {**found, "prompts": [chat.text for chat in mlflow_server.chats], "made": exported}


def test_mlflow_loads_the_judge_with_its_guidelines(exported: dict[str, Any]) -> None:
    assert exported["type"] == "MemoryAugmentedJudge"
    assert DISTILLED in exported["instructions"]
    assert BY_HAND in exported["instructions"]
    assert CRITERION.instructions in exported["instructions"]
    by_text = {one["guideline_text"]: one for one in exported["dump"]["semantic_memory"]}
    assert by_text[BY_HAND]["source_trace_ids"] is None
    [source] = by_text[DISTILLED]["source_trace_ids"]
    assert source in exported["trace_ids"].values(), "both experts spoke of one example"


def test_what_mlflow_has_no_place_for_is_said(exported: dict[str, Any]) -> None:
    [reason] = exported["left_out"].values()
    assert "words but no value" in reason


def test_a_registered_judge_finds_our_episodes_in_another_process(judged: dict[str, Any]) -> None:
    assert judged["value"] is False
    retrieved = judged["metadata"]["retrieved_example_trace_ids"]
    assert set(retrieved) == set(judged["made"]["trace_ids"].values())
    [prompt] = judged["prompts"]
    assert DISTILLED in prompt
    for words in (ANN["rationale"], BOB["rationale"], SECOND["rationale"], NOBODY["rationale"]):
        assert str(words) in prompt


def test_an_export_by_await_is_the_same(step: Steps, lines: list[str]) -> None:
    again = step("export", criterion=CRITERION.to_json(), lines=lines, awaits=True, register=False)
    assert DISTILLED in again["instructions"]
    assert len(again["trace_ids"]) == len(set(again["trace_ids"].values())) == 3


def test_it_comes_back_as_it_went(step: Steps, judged: dict[str, Any], lines: list[str]) -> None:
    back = step("come_back", criterion=CRITERION.to_json())
    ours = [json.loads(line) for line in lines]
    went = {one["id"]: one for one in ours if one["type"] == "episode" and one["value"] is not None}
    came = {one["id"]: one for one in back["episodes"]}
    assert set(came) == set(went)
    for key, one in came.items():
        for field in ("example", "value", "rationale", "author", "feedback_id", "given_at"):
            assert one[field] == went[key][field], field
        assert one["status"] == "distilled"
    by_text = {one["text"]: one for one in back["guidelines"]}
    assert set(by_text) == {BY_HAND, DISTILLED}
    assert by_text[BY_HAND]["origin"] == "expert"
    wrote = next(one for one in ours if one.get("text") == DISTILLED)
    assert sorted(by_text[DISTILLED]["episode_ids"]) == sorted(wrote["episode_ids"])
    assert (back["rejected"], back["missing"]) == ([], [])
    assert back["same_twice"]


def test_what_memalign_learned_is_read_with_its_sources(
    step: Steps, mlflow_server: LoopbackServer
) -> None:
    mlflow_server.script(
        json.dumps(
            {
                "guidelines": [
                    {"guideline_text": "Say sorry first.", "source_trace_ids": [0]},
                    {"guideline_text": "Offer help.", "source_trace_ids": [0, 1]},
                ]
            }
        )
    )
    found = step("align_there", criterion=CRITERION.to_json(), records=[ANN, BOB])
    assert found["theirs"] == found["guidelines"] == ["Say sorry first.", "Offer help."]
    by_author = {one["author"]: one["id"] for one in found["episodes"]}
    assert found["sources"][0] == [by_author["ann"]]
    assert sorted(found["sources"][1]) == sorted(by_author.values())
    assert found["after_forgetting"] == ["Offer help."], "the other rested on ann alone"


@pytest.fixture(scope="module")
def assessed(step: Steps, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("traces")
    found: dict[str, Any] = step("assess", criterion=CRITERION.to_json(), folder=str(folder))
    return {**found, "file": folder / "traces.jsonl"}


def test_human_assessments_become_feedback(assessed: dict[str, Any]) -> None:
    found = [one for one in assessed["objects"]["feedback"] if one["author"] != "bob"]
    first = next(one for one in found if one["rationale"] == "Too cold.")
    assert (first["author"], first["value"]) == ("ann", False)
    assert first["example"] == {
        "inputs": {"question": "Where is it?"},
        "outputs": "Look it up.",
        "reference_outputs": {"expected_response": "We are sorry.", "facts": ["late", "lost"]},
    }
    [words] = [one for one in found if one["rationale"] == "Words."]
    assert (words["author"], words["value"]) == (None, None)
    assert words["id"]


def test_two_experts_and_their_own_times(assessed: dict[str, Any]) -> None:
    [bob] = [one for one in assessed["objects"]["feedback"] if one["author"] == "bob"]
    assert (bob["value"], bob["id"]) == (True, assessed["bob"])
    assert bob["given_at"].startswith("2023-11-14T22:13:20")


def test_what_is_no_expert_s_word_is_counted_and_what_is_no_value_named(
    assessed: dict[str, Any],
) -> None:
    found = assessed["objects"]
    assert found["passed_over"] == {
        "it was overridden by another": 1,
        "its source is LLM_JUDGE, which is no person": 1,
        "the name is 'helpfulness', not 'support_tone'": 1,
    }
    reasons = sorted(one["reason"] for one in found["rejected"])
    assert len(reasons) == 4
    assert any("0.6 is not on the scale" in one for one in reasons)
    assert any("[1.0, 'a'] is not on the scale" in one for one in reasons)
    assert any("the assessment is an error" in one for one in reasons)
    assert any(one.startswith("example.outputs: must not be empty") for one in reasons)


def test_an_assessment_of_a_span_is_on_that_span(assessed: dict[str, Any]) -> None:
    [inner] = [
        one for one in assessed["objects"]["feedback"] if one["example"]["outputs"] == "Found."
    ]
    assert inner["example"]["inputs"] == {"query": "Inner?"}


@pytest.mark.parametrize("form", ["dicts", "texts", "column"])
def test_every_form_of_a_trace_says_the_same(assessed: dict[str, Any], form: str) -> None:
    def told(found: dict[str, Any]) -> list[str]:
        return sorted(json.dumps(one, sort_keys=True) for one in found["feedback"])

    mine = [one for one in told(assessed[form]) if "Where is it?" in one or "Inner?" in one]
    assert mine == told(assessed["objects"])


def test_a_table_is_refused_with_the_mend(assessed: dict[str, Any]) -> None:
    assert 'search_traces(return_type="list")' in assessed["table"]


def test_a_file_of_traces_needs_no_mlflow(assessed: dict[str, Any]) -> None:
    lines = assessed["file"].read_text(encoding="utf-8").splitlines()
    found = feedback_from_mlflow(lines, CRITERION)
    assert found.model_dump(mode="json") == assessed["objects"]
