"""`memalign align`: input files, report and learned memory."""

from tests.conftest import distillings
from tests.integration_tests.cli.support import ANN, BOB, Shell
from tests.loopback import error


def test_align_learns_from_json_lines_and_a_second_run_calls_no_model(shell: Shell) -> None:
    ran = shell.align(ANN, BOB)
    assert ran.status == 0
    output = " ".join(ran.out.split())
    assert 'feedback {"new": 2, "changed": 0, "unchanged": 0, "rejected": 0}' in output
    assert "guidelines added: 1 id episode_ids text " in output
    assert "heed the expert" in output
    assert "chat model openai:gpt-6-luna, embeddings openai:text-embedding-3-small" in ran.err
    guidelines, episodes, version = shell.opened()
    assert len(guidelines) == 1
    assert {(episode.author, episode.value, episode.feedback_id) for episode in episodes} == {
        ("ann", False, "f-1"),
        ("bob", True, "f-2"),
    }
    calls = len(shell.server.chats), len(shell.server.embeddings)
    again = shell.align(ANN, BOB, options=["--json"]).document
    assert (again["feedback"]["unchanged"], again["memory_version_after"]) == (2, version)
    assert (len(shell.server.chats), len(shell.server.embeddings)) == calls


def test_settings_reach_the_graph(shell: Shell) -> None:
    learn = {"batch_size": 1, "learn_from": "words"}
    shell.settings(judge={"distill_model": "openai:small"}, learn=learn)
    assert shell.align(ANN).status == 0
    assert [chat.model for chat in distillings(shell.server)] == ["small"]
    assert {item.value for item in shell.opened()[1]} == {None}
    shell.settings(learn={"guard": "replay", "judge_cases": True})
    ran = shell.align(BOB, {**BOB, "inputs": "Again."}, options=["--k", "1", "--json"])
    assert ran.document["replay"]["cases"] >= 1
    assert ran.document["judged_cases"] >= 1
    assert "memalign: judge " in ran.err


def test_records_without_what_is_learned_make_no_memory(shell: Shell) -> None:
    shell.settings(learn={"learn_from": "words"})
    label = {**BOB, "rationale": None}
    says = "--feedback: feedback.jsonl: no record can be used. The first, line 1: rationale: the"
    assert shell.align(label).refusal.startswith(says)
    assert not (shell.folder / "memalign.db").exists()
    ran = shell.align(label, ANN, options=["--json"])
    assert (ran.status, [item["index"] for item in ran.document["rejected"]]) == (4, [0])


def test_status_is_that_of_the_records_in_the_file(shell: Shell) -> None:
    assert shell.align(BOB).status == 0
    shell.server.responder = lambda _: "I would rather talk of something else."
    assert [shell.align(record).status for record in (ANN, BOB)] == [4, 0]


def test_pending_feedback_is_distilled_without_a_file(shell: Shell) -> None:
    shell.server.responder = lambda _: "I would rather talk of something else."
    ran = shell.align(ANN)
    assert ran.status == 4
    assert "could not be distilled and stays pending" in ran.out + ran.err
    shell.server.responder = lambda _: error(401, "Incorrect API key: sk-loopback-secret.")
    ran = shell.run("align", "-c", "tone.yaml", "--pending")
    assert (ran.status, "***" in ran.error) == (3, True)
    assert "sk-loopback-secret" not in ran.out + ran.err
    shell.server.responder = shell.server.judge
    assert [item.status for item in shell.opened()[1]] == ["pending"]
    ran = shell.run("align", "-c", "tone.yaml", "--pending", "--json")
    assert (ran.status, len(ran.document["guidelines"]["added"])) == (0, 1)
    assert [item.status for item in shell.opened()[1]] == ["distilled"]
