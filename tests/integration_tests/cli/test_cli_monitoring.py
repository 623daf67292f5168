"""`memalign rate` and `memalign migrate`: output and errors."""

import json

from memalign_graph import Example, Feedback, JudgeMemory, Numeric
from memalign_graph.local import open_local_store
from memalign_graph.types import ReviewReason
from tests.builders import keep_reviewed
from tests.integration_tests.cli.support import ANN, BOB, CRITERION, CRITERION_YAML, Shell
from tests.loopback import Rule, error


def keep(shell: Shell, count: int) -> None:
    """Keep judgments that all pass; an expert accepts two thirds of the random sample."""
    with open_local_store(shell.folder / "memalign.db") as store:
        memory = JudgeMemory(store, CRITERION, embeddings="local")
        answers = []
        for number in range(count):
            example = Example(inputs={"region": "north"}, outputs=f"Answer {number}.")
            drawn: tuple[ReviewReason, ...] = () if number % 2 else ("sample",)
            judgment = keep_reviewed(memory.access, example, *drawn)
            if drawn or number == 1:
                answers.append(Feedback(example=example, value=number % 3 > 0, judgment=judgment))
        if answers:
            memory.remember(answers)


def test_rate_is_a_table_or_json(shell: Shell) -> None:
    keep(shell, 60)
    ran = shell.run("rate", "-c", "tone.yaml", "--by", "inputs.region")
    assert ran.status == 0
    header, first, second = ran.out.strip().splitlines()
    assert header.split() == "group judgments labels rate judge labels_alone more_labels".split()  # noqa: SIM905
    assert first.split()[:4] == ["all", "60", "30", "0.667"]
    assert second.split()[0] == "north"
    assert "an interval of 5 % of the range to each side takes" in ran.err
    document = shell.run("rate", "-c", "tone.yaml", "--json").document
    assert (document["judgments"], document["labels"]) == (60, 30)
    assert document["rate"]["low"] < 2 / 3 < document["rate"]["high"]
    options = ["--answered-at-random", "--json"]
    assert shell.run("rate", "-c", "tone.yaml", *options).document["labels"] == 31


def test_value_of_passes_is_the_lowest_one(shell: Shell) -> None:
    scale = Numeric(minimum=0, maximum=5, integer=True)
    with open_local_store(shell.folder / "memalign.db") as store:
        memory = JudgeMemory(store, CRITERION.model_copy(update={"scale": scale}))
        keep_reviewed(memory.access, Example(inputs="Q", outputs="A"), value=5)
    shell.write("tone.yaml", CRITERION_YAML.replace("boolean", "0-5"))
    for passes, rate in (("4", 1), ("3,4", 0)):
        ran = shell.run("rate", "-c", "tone.yaml", "--passes", passes, "--json")
        assert ran.document["judge"]["value"] == rate


def test_missing_data_and_invalid_arguments_are_reported(shell: Shell) -> None:
    keep(shell, 1)
    output = shell.run("rate", "-c", "tone.yaml").err
    assert "an estimate takes 9 more answers to the random sample" in output
    ran = shell.run("rate", "-c", "tone.yaml", "--namespace", "other")
    assert ran.status == 0
    assert "no judgment is kept: `memalign judge` keeps them if" in ran.err
    assert shell.run("rate", "-c", "tone.yaml", "--by", "region").error.startswith("--by: 'region'")
    assert shell.run("rate", "-c", "tone.yaml", "--passes", "maybe").error.startswith("--passes: ")
    assert shell.run("rate", "-c", "tone.yaml", "--passes", "no").status == 0


def test_migrate_previews_changes_and_applies_them_on_request(shell: Shell) -> None:
    assert shell.align(ANN, BOB).status == 0
    shell.server.rules = [Rule(lambda chat: chat.model == "gpt-new", value=False)]
    arguments = ["migrate", "-c", "tone.yaml", "--to", "openai:gpt-new", "--cache", "cache.db"]
    ran = shell.run(*arguments)
    assert ran.status == 0
    output = dict(line.split("  ", 1) for line in ran.out.splitlines() if "  " in line)
    output = {name: text.strip() for name, text in output.items()}
    assert output["agreement before"].startswith("0.500 [")
    assert output["agreement after"].startswith("0.500 [")
    assert output["verdicts that change"] == "2"
    assert output["more labels until unasked"] == '{"false": 38}'
    assert '"new judge": 2' in output["calls"]
    read, written = json.loads(output["tokens in and out"])["new judge"]
    assert read > written > 0
    assert "expected" in ran.out
    assert "--apply stores the new verdicts" in ran.err
    document = shell.run(*arguments, "--apply", "--json").document
    assert [case["after"] for case in document["changed"]] == [False, False]
    # The case on which the old model was right comes first.
    assert document["changed"][0]["expected"] is True
    assert not any(row["chat_calls"] for row in document["usage"])  # all from the cache
    _, episodes, _ = shell.opened()
    assert {episode.judgment.judge_key for episode in episodes} == {document["judge_key"]}


def test_migrate_names_a_case_without_a_verdict(shell: Shell) -> None:
    assert shell.align(ANN, BOB).status == 0
    refused = error(400, "Not allowed.", code="content_filter")
    shell.server.rules = [Rule(lambda chat: BOB["outputs"] in chat.text, reply=refused)]
    ran = shell.run("migrate", "-c", "tone.yaml", "--to", "openai:gpt-new")
    assert (ran.status, "not judged: " in ran.err) == (4, True)


def test_migrate_finds_similar_cases_by_the_embeddings_of_its_flag(shell: Shell) -> None:
    local = ["--embeddings", "local"]
    assert shell.align(ANN, BOB, options=local).status == 0
    assert shell.run("migrate", "-c", "tone.yaml", "--to", "openai:gpt-new", *local).status == 0
    assert shell.server.embeddings == []


def test_migrate_refuses_unknown_models_and_cases(shell: Shell) -> None:
    assert shell.align(ANN).status == 0
    calls = len(shell.server.chats)
    error = shell.run("migrate", "-c", "tone.yaml", "--to", "gpt-new").refusal
    assert error.startswith("--to: 'gpt-new' names no model")
    ran = shell.run("migrate", "-c", "tone.yaml", "--target-agreement", "90")
    assert (ran.status, ran.error[:36]) == (2, "--target-agreement: 90.0 is above th")
    assert len(shell.server.chats) == calls
