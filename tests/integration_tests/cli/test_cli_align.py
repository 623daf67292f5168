"""`memalign align`: input files, report and learned memory."""

from memalign_graph.alignment.report import AlignmentReport
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


def test_json_is_one_report_that_names_rejected_records_by_their_line(shell: Shell) -> None:
    lines = [ANN, {**BOB, "value": "perhaps"}, {"inputs": "a", "value": True}]
    ran = shell.align(*lines, options=["--json"])
    assert ran.status == 4
    report = AlignmentReport.model_validate(ran.document)
    assert report.feedback.new == 1
    first, second = (rejected.reason for rejected in report.rejected)
    assert first.startswith("line 2: value: 'perhaps' is not on the scale")
    assert second == "line 3: outputs: is missing. Add it."
    assert len(shell.opened()[1]) == 1
    assert second in shell.align(*lines).out


def test_labels_as_pandas_writes_them(shell: Shell) -> None:
    rows = [
        {**ANN, "inputs": str(n), "rationale": why, "value": value, "author": by}
        for n, (value, why, by) in enumerate(
            [("1.0", "", "ann"), ("0.0", "Cold.", "NaN"), ("", "Kind.", ""), ("NaN", "Ok.", "<NA>")]
        )
    ]
    shell.write_csv("f.csv", *rows)
    assert shell.run("align", "-c", "tone.yaml", "-f", "f.csv").status == 0
    episodes = shell.opened()[1]
    read = {item.example.inputs: (item.value, item.rationale, item.author) for item in episodes}
    assert read == {
        "0": (True, None, "ann"),
        "1": (False, "Cold.", None),
        "2": (None, "Kind.", None),
        "3": (None, "Ok.", None),
    }
    shell.write("f.json", '[{"inputs": "a", "outputs": "b", "value": 1.0, "rationale": NaN}]')
    assert shell.run("align", "-c", "tone.yaml", "-f", "f.json").status == 0
    shell.write("grade.yaml", 'name: grade\ninstructions: Which?\nscale: ["1", "2"]\n')
    shell.write("f.csv", "inputs,outputs,value\na,b,1.0\nc,d,\ne,f,2.0\n")
    ran = shell.run("align", "-c", "grade.yaml", "-f", "f.csv", "-m", "g.db", "--json")
    assert ran.document["feedback"]["new"] == 2  # a row without a label is ignored


def test_pairwise_outputs_from_two_columns(shell: Shell) -> None:
    shell.write("pair.yaml", "name: pair\ninstructions: Which is better?\nscale: pairwise\n")
    shell.write_csv("f.csv", {"inputs": "q", "a": "one", "b": "two", "value": "b"})
    ran = shell.run("align", "-c", "pair.yaml", "-f", "f.csv", "--field", "outputs=a,b")
    assert ran.status == 0
    [episode] = shell.run("memory", "list", "-c", "pair.yaml", "--json").document["episodes"]
    assert (episode["example"]["outputs"], episode["value"]) == (["one", "two"], "B")


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
