"""`--decide evidence`, `--confidence`, `--samples` and `--judge-cases` on the command line."""

from collections.abc import Sequence
from dataclasses import replace
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
from tests.loopback import Answer

NEXT = 34
"""A case like those that experts found wrong, and the judge finds right."""
ONE = ["--inputs", str(case(NEXT)["inputs"]), "--outputs", str(case(NEXT)["outputs"])]
ALONE = ["--no-guidelines", "--k", "0"]


def coin(number: int) -> bool:
    """A judge that is right on every other case of each topic."""
    return truth(number) if number // 4 % 2 else not truth(number)


@pytest.fixture
def taught(shell: Shell) -> Shell:
    """A folder whose memory has cases that the judge was asked about."""
    shell.server.responder = Judge(value=coin, belief=lambda one: 0.8 if coin(one) else 0.3)
    ran = shell.align(*words(24), options=["--judge-cases", "--confidence", *ALONE])
    assert ran.status == 0
    assert "judged: 24 cases, as if no expert had spoken of it yet" in ran.out
    assert "memalign: judge 24 of 24" in ran.err
    shell.server.chats.clear()
    return shell


def judge(shell: Shell, *options: str, case: Sequence[str] = ONE) -> Ran:
    return shell.run("judge", "-c", "tone.yaml", *case, *ALONE, *options)


def test_align_judges_as_it_is_told_to(shell: Shell) -> None:
    shell.server.responder = Judge()
    shell.align(*words(3), options=["--judge-cases", "--no-episodes", "--json"])
    judged = [chat for chat in shell.server.chats if chat.schema_name == "judgment"]
    assert sorted(map(number_of, judged)) == [0, 1, 2]
    assert not any(earlier(chat) for chat in judged)
    _, episodes, _ = shell.opened()
    assert all(one.judgment is not None for one in episodes)
    ran = shell.align(*words(3), options=["--judge-cases", "--no-episodes", "--json"])
    assert ran.document["judged_cases"] == 0


def test_one_judgment_tells_what_decided_and_how_sure_it_is(taught: Shell) -> None:
    ran = judge(taught, "--decide", "evidence", "--confidence")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0] == "value      false"
    [sure] = [one for one in lines if one.startswith("confidence ")]
    assert sure.endswith((" by evidence, raw", " by evidence, calibrated on 24 cases"))
    text = " ".join(ran.out.split())
    assert "decided by evidence; the judge says true. The evidence decides: on 24 cases" in text


def test_the_verdict_is_calibrated_too(taught: Shell) -> None:
    ran = judge(taught, "--confidence")
    [sure] = [one for one in ran.out.splitlines() if one.startswith("confidence ")]
    assert " by logprobs, " in sure
    assert "decided by" not in ran.out
    assert ran.out.splitlines()[0] == "value      true"


def test_samples_alone_ask_for_confidence(shell: Shell) -> None:
    inner = Judge()

    def quiet(chat: Any) -> Any:
        reply = inner(chat)
        return replace(reply, logprobs=None) if isinstance(reply, Answer) else reply

    shell.server.responder = quiet
    ran = judge(shell, "--samples", "2")
    assert "confidence 1.00 by samples, raw" in ran.out
    assert len(shell.server.chats) == 1 + 1 + 2


def test_a_table_has_columns_for_it(taught: Shell) -> None:
    cases = [{**case(number), "id": f"c{number}"} for number in (NEXT, NEXT + 4)]
    ran = taught.judge(
        *cases, {"inputs": "only"}, options=[*ALONE, "--decide", "evidence", "--confidence"]
    )
    head, _, first, second, broken = ran.out.splitlines()[:5]
    assert head.split() == ["line", "id", "value", "confidence", "decided", "by", "rationale"]
    for row in (first, second):
        assert "false" in row
        assert " by evidence, " in row
    assert "not judged" in broken
    plain = taught.judge(*cases, options=ALONE)
    assert plain.out.splitlines()[0].split() == ["line", "id", "value", "rationale"]


def test_json_has_everything(taught: Shell) -> None:
    ran = judge(taught, "--decide", "evidence", "--confidence", "--json")
    [line] = ran.lines
    judgment = Judgment.model_validate(line["judgment"])
    assert judgment.evidence is not None
    assert judgment.evidence.decided_by == "evidence"
    assert judgment.evidence.neighbours
    assert judgment.probabilities is not None
    assert judgment.confidence is not None


def test_without_a_memory_the_verdict_decides(shell: Shell) -> None:
    shell.server.responder = Judge()
    ran = judge(shell, "--decide", "evidence")
    assert ran.status == 0
    text = " ".join(ran.out.split())
    assert (
        "decided by verdict; the judge says true. The verdict decides: memory has 0 cases" in text
    )


def test_evaluate_shows_all_three(shell: Shell) -> None:
    shell.server.responder = Judge(value=coin)
    shell.write_lines("feedback.jsonl", *words(24))
    shell.write_lines("test.jsonl", *[word(number) for number in range(40, 48)])
    options = ["--test", "test.jsonl", "--resamples", "20", "--credit-cases", "0", "--json"]
    ran = shell.run(
        "evaluate", "-c", "tone.yaml", "-f", "feedback.jsonl", "--decide", "evidence", *ALONE,
        *options,
    )  # fmt: skip
    report = Report.model_validate(ran.document)
    found = {one.judge: one.metrics["agreement"].value for one in report.scores}
    assert found["base"] == found["aligned verdict"] == 0.5
    assert found["aligned"] == 1.0
    judged = [chat for chat in shell.server.chats if chat.schema_name == "judgment"]
    assert not any(earlier(chat) for chat in judged)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--samples", "-1"], "samples: -1 is too little"),
        (["--samples", "51"], "samples: 51 is too much: give at most 50"),
        (["--samples", "many"], "--samples"),
        (["--decide", "votes"], "--decide"),
    ],
)
def test_what_can_not_be_used(shell: Shell, options: list[str], says: str) -> None:
    ran = judge(shell, *options)
    assert ran.status == 2
    assert says in ran.err
    assert shell.server.chats == []
