"""`memalign align`: files in, a report out, a memory that has learned."""

import json
from typing import Any

import pytest

from memalign_graph.alignment.report import AlignmentReport
from tests.conftest import distillings
from tests.integration_tests.cli.support import ANN, BOB, Shell
from tests.loopback import error


def test_align_learns_from_lines_and_tells_people(shell: Shell) -> None:
    ran = shell.align(ANN, BOB)
    assert ran.status == 0
    assert "feedback: 2 new, 0 changed, 0 known already, 0 not taken" in ran.out
    assert "guidelines: 1 added, 0 revised, 0 retired" in ran.out
    assert "heed the expert" in ran.out
    assert "chat model openai:gpt-4.1-mini, embeddings openai:text-embedding-3-small" in ran.err
    guidelines, episodes, _ = shell.opened()
    assert len(guidelines) == 1
    assert {(one.author, one.value, one.feedback_id) for one in episodes} == {
        ("ann", False, "f-1"),
        ("bob", True, "f-2"),
    }


def test_json_is_one_alignment_report(shell: Shell) -> None:
    ran = shell.align(ANN, {"inputs": "x"}, options=["--json"])
    assert ran.status == 4
    report = AlignmentReport.model_validate(ran.document)
    assert report.feedback.new == 1
    [rejected] = report.rejected
    assert rejected.reason.startswith("line 2: ")


def test_labels_as_pandas_writes_them(shell: Shell) -> None:
    rows = [
        {**ANN, "inputs": str(n), "rationale": why, "value": value, "author": by}
        for n, (value, why, by) in enumerate(
            [("1.0", "", "ann"), ("0.0", "Cold.", "NaN"), ("", "Kind.", ""), ("NaN", "Ok.", "<NA>")]
        )
    ]
    shell.write_csv("f.csv", *rows)
    ran = shell.run("align", "-c", "tone.yaml", "-f", "f.csv")
    assert (ran.status, "4 new" in ran.out) == (0, True)
    read = {one.example.inputs: (one.value, one.rationale, one.author) for one in shell.opened()[1]}
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
    assert ran.document["feedback"]["new"] == 2  # a row without a label says nothing


def test_a_second_run_costs_nothing(shell: Shell) -> None:
    shell.align(ANN)
    calls = len(shell.server.chats), len(shell.server.embeddings)
    ran = shell.align(ANN)
    assert ran.status == 0
    assert "0 new, 0 changed, 1 known already" in ran.out
    assert "memory unchanged at version" in ran.out
    assert (len(shell.server.chats), len(shell.server.embeddings)) == calls


def test_rejected_records_are_named_by_their_line(shell: Shell) -> None:
    lines = [ANN, {**BOB, "value": "perhaps"}, {"inputs": "a", "value": True}]
    ran = shell.align(*lines)
    assert ran.status == 4
    assert "not taken: line 2: value: 'perhaps' is not on the scale" in ran.out
    assert "not taken: line 3: outputs: is missing: give it." in ran.out
    assert len(shell.opened()[1]) == 1


def test_csv_as_a_spreadsheet_of_another_country_writes_it(shell: Shell) -> None:
    record = {
        "inputs": 'She said "no", twice;\nthen left.',
        "outputs": '{"a": 1}',
        "label": "no",
        "comment": "Too cold.\n\nSay sorry.",
        "author": "",
        "split": "train",
    }
    path = shell.write_csv("f.csv", record, delimiter=";")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b";;;;;\r\n\r\n")
    options = ["--field", "value=label", "--field", "rationale=comment"]
    ran = shell.run("align", "-c", "tone.yaml", "-f", "f.csv", *options)
    assert ran.status == 0
    [episode] = shell.opened()[1]
    assert episode.example.inputs == record["inputs"]
    assert episode.example.outputs == '{"a": 1}'  # a cell is text, whatever it looks like
    assert (episode.value, episode.author) == (False, None)
    assert episode.rationale == record["comment"]
    assert "not used: split" in ran.err


@pytest.mark.parametrize("name", ["f.json", "f.tsv"])
def test_other_files_by_their_suffix(shell: Shell, name: str) -> None:
    if name == "f.json":
        shell.write(name, json.dumps([ANN, BOB]))
    else:
        shell.write_csv(name, ANN, BOB, delimiter="\t")
    assert shell.run("align", "-c", "tone.yaml", "-f", name).status == 0
    assert len(shell.opened()[1]) == 2


def test_a_file_whose_name_says_nothing_is_read_by_how_it_begins(shell: Shell) -> None:
    shell.write_csv("f.txt", ANN)
    assert shell.run("align", "-c", "tone.yaml", "-f", "f.txt").status == 0
    shell.write_lines("g", BOB)
    assert shell.run("align", "-c", "tone.yaml", "-f", "g").status == 0
    assert len(shell.opened()[1]) == 2


def test_pairwise_outputs_from_two_columns(shell: Shell) -> None:
    shell.write("pair.yaml", "name: pair\ninstructions: Which is better?\nscale: pairwise\n")
    shell.write_csv("f.csv", {"inputs": "q", "a": "one", "b": "two", "value": "b"})
    ran = shell.run("align", "-c", "pair.yaml", "-f", "f.csv", "--field", "outputs=a,b")
    assert ran.status == 0
    listed = shell.run("memory", "list", "-c", "pair.yaml", "--json").document
    [episode] = listed["episodes"]
    assert episode["example"]["outputs"] == ["one", "two"]
    assert episode["value"] == "B"


def test_settings_reach_the_graph_and_flags_go_before_them(shell: Shell) -> None:
    shell.settings(
        judge={"distill_model": "openai:small"}, learn={"batch_size": 1, "learn_from": "words"}
    )
    assert shell.align(ANN).status == 0
    assert shell.align(BOB, options=["--distill-model", "openai:big"]).status == 0
    assert [chat.model for chat in distillings(shell.server)] == ["small", "big"]
    assert {one.value for one in shell.opened()[1]} == {None}


def test_replay_is_reported(shell: Shell) -> None:
    shell.settings(learn={"guard": "replay"})
    assert "replay: " in shell.align(ANN, BOB, options=["--k", "1"]).out
    ran = shell.align({**ANN, "inputs": "Again."}, options=["--json"])
    assert ran.document["replay"]["cases"] >= 1


def test_memory_and_namespace_keep_memories_apart(shell: Shell) -> None:
    where = ["--memory", "shop.db", "--namespace", "shop.emea"]
    assert shell.align(ANN, options=where).status == 0
    assert not (shell.folder / "memalign.db").exists()
    guidelines, episodes, _ = shell.opened("shop.db", namespace=("shop", "emea"))
    assert (len(guidelines), len(episodes)) == (1, 1)
    assert shell.opened("shop.db")[1] == []


def test_pending_feedback_is_distilled_without_a_file(shell: Shell) -> None:
    shell.server.responder = lambda _: error(400, "The model is asleep.")
    ran = shell.align(ANN)
    assert ran.status == 3
    assert "The model is asleep." in ran.error
    shell.server.responder = shell.server.judge
    assert [one.status for one in shell.opened()[1]] == ["pending"]
    ran = shell.run("align", "-c", "tone.yaml", "--pending")
    assert ran.status == 0
    assert "guidelines: 1 added" in ran.out
    assert [one.status for one in shell.opened()[1]] == ["distilled"]


def test_conflicts_are_told(shell: Shell) -> None:
    def model(request: Any) -> Any:
        if request.schema_name == "guideline_relations":
            return {"duplicates": [], "contradictions": [[1, 2]]}
        return shell.server.judge(request)

    shell.server.responder = model
    shell.settings(learn={"batch_size": 1})
    ran = shell.align(ANN, BOB)
    assert ran.status == 0
    assert "contradiction, in which the newer word stays:" in ran.out
    assert "Short and to the point." in ran.out.partition("stays: ")[2].partition("goes: ")[0]


def test_quiet_leaves_stderr_to_warnings(shell: Shell) -> None:
    ran = shell.align(ANN, options=["-q"])
    assert ran.err == ""
    ran = shell.align({**BOB, "note": "x"}, options=["-q"])
    [line] = ran.err.splitlines()
    assert line.startswith("memalign: warning: --feedback: not used: note")


def test_the_key_is_never_shown(shell: Shell) -> None:
    shell.server.script(*[error(401, "Incorrect API key provided: sk-loopback-secret.")] * 3)
    ran = shell.align(ANN)
    assert ran.status == 3
    assert "sk-loopback-secret" not in ran.out + ran.err
    assert "***" in ran.error


def test_a_model_that_answers_nonsense_is_status_3(shell: Shell) -> None:
    shell.server.responder = lambda _: "I would rather talk of something else."
    ran = shell.align(ANN)
    assert ran.status == 3
    assert len(shell.opened()[1]) == 1
