"""`--decide evidence`, `--confidence`, `--samples` and `--judge-cases` on the command line."""

from typing import Any

import pytest

from memalign_graph import Judgment
from memalign_graph.evaluation import Report
from tests.integration_tests.cli.support import Ran, Shell
from tests.integration_tests.evidence.judging_support import (
    Judge,
    case,
    earlier,
    number_of,
    truth,
    word,
    words,
)

NEXT = 34
"""A case like those that experts found wrong, and the judge finds right."""
ONE = ["--inputs", str(case(NEXT)["inputs"]), "--outputs", str(case(NEXT)["outputs"])]
ALONE = {"use_guidelines": False, "k": 0}
EVIDENCE = {**ALONE, "decide": "evidence", "confidence": True}


def coin(number: int) -> bool:
    """A judge that is right on every other case of each topic."""
    return truth(number) if number // 4 % 2 else not truth(number)


@pytest.fixture
def taught(shell: Shell) -> Shell:
    """A folder whose memory has cases that the judge was asked about."""
    shell.server.responder = Judge(value=coin, belief=lambda one: 0.8 if coin(one) else 0.3)
    shell.settings(judge={**ALONE, "confidence": True}, learn={"judge_cases": True})
    ran = shell.align(*words(24))
    assert ran.status == 0
    assert "judged: 24 cases, as if no expert had spoken of it yet" in ran.out
    assert "memalign: judge 24 of 24" in ran.err
    shell.server.chats.clear()
    return shell


def judge(shell: Shell, settings: dict[str, Any], *options: str) -> Ran:
    shell.settings(judge=settings)
    return shell.run("judge", "-c", "tone.yaml", *ONE, *options)


def test_align_judges_as_it_is_told_to(shell: Shell) -> None:
    shell.server.responder = Judge()
    shell.settings(judge={"use_episodes": False}, learn={"judge_cases": True})
    shell.align(*words(3))
    judged = [chat for chat in shell.server.chats if chat.schema_name == "judgment"]
    assert sorted(map(number_of, judged)) == [0, 1, 2]
    assert not any(earlier(chat) for chat in judged)
    _, episodes, _ = shell.opened()
    assert all(one.judgment is not None for one in episodes)
    ran = shell.align(*words(3), options=["--json"])
    assert ran.document["judged_cases"] == 0


def test_one_judgment_tells_what_decided_and_how_sure_it_is(taught: Shell) -> None:
    ran = judge(taught, EVIDENCE)
    assert ran.status == 0
    text = " ".join(ran.out.split())
    assert text.startswith("value false confidence ")
    assert " by evidence, raw" in text or " by evidence, calibrated on 24 cases" in text
    assert "decided by evidence" in text
    assert "The evidence decides: on 24 cases" in text


def test_the_verdict_is_calibrated_too(taught: Shell) -> None:
    ran = judge(taught, {**ALONE, "confidence": True})
    text = " ".join(ran.out.split())
    assert text.startswith("value true confidence ")
    assert " by logprobs, " in text
    assert "decided by" not in text


def test_a_table_has_columns_for_it(taught: Shell) -> None:
    taught.settings(judge=EVIDENCE)
    cases = [{**case(number), "id": f"c{number}"} for number in (NEXT, NEXT + 4)]
    head, first, second, broken = taught.judge(*cases, {"inputs": "only"}).out.splitlines()[:4]
    assert head.split() == ["line", "id", "value", "confidence", "decided", "by", "rationale"]
    for row in (first, second):
        assert "false" in row
        assert " by evidence, " in row
    assert "not judged" in broken
    taught.settings(judge=ALONE)
    plain = taught.judge(*cases)
    assert plain.out.splitlines()[0].split() == ["line", "id", "value", "rationale"]


def test_json_has_everything(taught: Shell) -> None:
    ran = judge(taught, EVIDENCE, "--json")
    [line] = ran.lines
    judgment = Judgment.model_validate(line["judgment"])
    assert judgment.evidence is not None
    assert judgment.evidence.decided_by == "evidence"
    assert judgment.evidence.neighbours
    assert judgment.probabilities is not None
    assert judgment.confidence is not None


def test_without_a_memory_the_verdict_decides(shell: Shell) -> None:
    shell.server.responder = Judge()
    ran = judge(shell, {**ALONE, "decide": "evidence"})
    assert ran.status == 0
    text = " ".join(ran.out.split())
    assert "decided by verdict" in text
    assert "The verdict decides: memory has 0 cases" in text


def test_evaluate_shows_all_three(shell: Shell) -> None:
    shell.server.responder = Judge(value=coin)
    shell.write_lines("feedback.jsonl", *words(24))
    shell.write_lines("test.jsonl", *[word(number) for number in range(40, 48)])
    shell.settings(judge={**ALONE, "decide": "evidence"})
    arguments = ["-c", "tone.yaml", "-f", "feedback.jsonl", "--test", "test.jsonl", "--json"]
    ran = shell.run("evaluate", *arguments)
    report = Report.model_validate(ran.document)
    found = {one.judge: one.metrics["agreement"].value for one in report.scores}
    assert found["base"] == found["aligned verdict"] == 0.5
    assert found["aligned"] == 1.0
    judged = [chat for chat in shell.server.chats if chat.schema_name == "judgment"]
    assert not any(earlier(chat) for chat in judged)
