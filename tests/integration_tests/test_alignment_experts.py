"""Several experts on one case: every word kept, the majority's value shown, disagreement told."""

import json
from typing import Any

import pytest

from memalign_graph import Categorical, Criterion
from memalign_graph.agreement import krippendorff_alpha
from tests.conftest import Bench, judgings
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    DISTIL,
    Model,
    align,
    alignment,
    asked,
    each_its_words,
    embedded,
    feedback_in,
    record,
    sources,
)


def word(author: str, value: Any, rationale: str | None = None, at: int = 1) -> dict[str, Any]:
    """An expert's word on case 1."""
    given_at = record(at)["given_at"]
    return record(1, author=author, value=value, rationale=rationale, given_at=given_at)


ANN = word("ann", False, "On #a too cold.", at=1)
BOB = word("bob", True, "On #b warm enough.", at=2)
CARL = word("carl", False, "On #c no word of regret.", at=3)
THREE = [ANN, BOB, CARL]
NEAR = {"inputs": "Question 1: where is order 1?", "outputs": "Another answer."}


async def test_every_word_is_in_memory_and_in_the_judges_prompt(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    report = await align(bench, [*THREE, record(2)])
    assert report["feedback"]["new"] == 4
    episodes = [one for one in await bench.episodes() if one.author != "ann" or not one.value]
    on_case = [one for one in await bench.episodes() if one.example.inputs == ANN["inputs"]]
    assert len({one.example_id for one in on_case}) == 1
    assert {one.rationale for one in on_case} == {one["rationale"] for one in THREE}
    assert len(episodes) >= 3
    assert len(embedded(bench)) == 2
    await bench.invoke(bench.judge_graph(), NEAR, "u")
    [chat] = judgings(bench.server)
    answers = [one for one in chat.messages if one["role"] == "assistant"]
    [answer] = [one for one in answers if ANN["rationale"] in one["content"]]
    said = json.loads(answer["content"])
    for one in THREE:
        assert one["rationale"] in said["rationale"]
    assert said["value"] is False
    assert chat.text.count(ANN["outputs"]) == 1


async def test_distiller_sees_the_case_once_with_the_majority(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    await align(bench, [CARL, BOB, ANN, record(2)])
    [chat] = asked(bench, DISTIL)
    assert chat.text.count("Feedback F1, F2, F3: 3 experts on one case") == 1
    assert chat.text.count(ANN["outputs"]) == 1
    assert list(feedback_in(chat).values())[:3] == [one["rationale"] for one in THREE]
    assert "F1. The expert's value: false" in chat.text
    assert "F2. The expert's value: true" in chat.text
    assert chat.text.count("The value that counts here: false") == 1


@BOTH_WAYS
@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
async def test_of_two_values_the_newest_counts(bench: Bench, first: bool, second: bool) -> None:  # noqa: FBT001
    bench.server.responder = Model(distil=each_its_words)
    given = [word("bob", second, "On #b name it.", at=9), word("ann", first, "On #a so.", at=1)]
    report = await align(bench, given)
    [found] = report["agreement"]["disagreements"]
    assert found["majority"] is second
    shown = "true" if second else "false"
    assert f"The value that counts here: {shown}" in asked(bench, DISTIL)[0].text
    await bench.invoke(bench.judge_graph(), NEAR, "u")
    [answer] = [m for m in judgings(bench.server)[0].messages if m["role"] == "assistant"]
    assert json.loads(answer["content"])["value"] is second


@BOTH_WAYS
async def test_experts_on_one_case_stay_in_one_batch(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    given = [
        record(case, author=f"expert {n}", rationale=f"On #{case} name {n}.")
        for n in range(5)
        for case in range(4)
    ]
    report = await align(bench, given, alignment(bench, batch_size=2))
    assert report["batches"] == 4
    assert [len(feedback_in(chat)) for chat in asked(bench, DISTIL)] == [5] * 4
    assert len(embedded(bench)) == 4


async def test_disagreement_and_alpha_are_told(bench: Bench) -> None:
    bench.server.responder = Model()
    agreeing = [
        record(n, author=author, value=bool(n % 2), rationale=None)
        for n in (2, 3)
        for author in ("ann", "bob")
    ]
    report = await align(bench, [*THREE, *agreeing, record(9)])
    agreement = report["agreement"]
    units = [[False, True, False], [False, False], [True, True]]
    assert agreement["alpha"] == pytest.approx(krippendorff_alpha(units, "nominal"))
    assert (agreement["level"], agreement["examples"]) == ("nominal", 3)
    [found] = agreement["disagreements"]
    assert found["majority"] is False
    assert [(one["author"], one["value"]) for one in found["given"]] == [
        ("ann", False),
        ("bob", True),
        ("carl", False),
    ]
    ids = {one.id for one in await bench.episodes()}
    assert {one["episode_id"] for one in found["given"]} <= ids


@BOTH_WAYS
async def test_disagreement_is_streamed_before_anything_is_distilled(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, batch_size=1)
    given = {"feedback": [*THREE, record(5), record(6)]}
    events = await bench.stream(graph, given, stream_mode="custom")
    [found] = [one for one in events if one["type"] == "alignment_agreement"]
    assert (found["criterion"], found["examples"]) == ("support_tone", 1)
    assert len(found["disagreements"]) == 1
    report = (await bench.state(graph)).values["report"]
    assert {key: found[key] for key in report["agreement"]} == report["agreement"]
    stages = [one.get("stage", one["type"]) for one in events]
    assert stages.index("alignment_agreement") < stages.index("distill")


@BOTH_WAYS
async def test_agreement_is_of_the_whole_memory(bench: Bench) -> None:
    bench.server.responder = Model()
    await align(bench, [ANN])
    report = await align(bench, [BOB])
    assert report["agreement"]["examples"] == 1
    assert len(report["agreement"]["disagreements"]) == 1
    assert (await align(bench, []))["agreement"] == report["agreement"]


@BOTH_WAYS
async def test_ordered_scale_is_compared_by_rank(bench: Bench) -> None:
    choices = ("poor", "fair", "good")
    criterion = Criterion(
        name="grade", instructions="How good?", scale=Categorical(choices=choices, ordered=True)
    )
    bench.server.responder = Model(judge=lambda _: "good")
    given = [
        record(n, author=author, value=value)
        for n, values in enumerate([("poor", "poor"), ("poor", "fair"), ("good", "good")])
        for author, value in zip(("ann", "bob"), values, strict=True)
    ]
    agreement = (await align(bench, given, alignment(bench, criterion)))["agreement"]
    assert agreement["level"] == "ordinal"
    assert agreement["alpha"] == pytest.approx(
        krippendorff_alpha([[0, 0], [0, 1], [2, 2]], "ordinal")
    )


@BOTH_WAYS
async def test_one_expert_a_case_has_no_alpha(bench: Bench) -> None:
    bench.server.responder = Model()
    agreement = (await align(bench, [record(1), record(2)]))["agreement"]
    assert (agreement["alpha"], agreement["examples"], agreement["disagreements"]) == (None, 0, [])


@BOTH_WAYS
async def test_anonymous_words_with_ids_of_their_own_are_several_experts(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    given = [
        record(1, author=None, id=f"row {n}", rationale=f"On #{n} name it.", value=n > 0)
        for n in range(3)
    ]
    report = await align(bench, given)
    assert report["feedback"]["new"] == 3
    [found] = report["agreement"]["disagreements"]
    assert (found["majority"], len(found["given"])) == (True, 3)
    assert (await align(bench, given))["feedback"]["unchanged"] == 3


@BOTH_WAYS
async def test_word_of_one_expert_edited_leaves_the_others(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    await align(bench, THREE)
    edited = word("bob", False, "On #d too short.", at=8)
    report = await align(bench, [ANN, edited, CARL])
    assert report["feedback"] == {"new": 0, "changed": 1, "unchanged": 2, "rejected": 0}
    assert report["agreement"]["disagreements"] == []
    assert sources(await bench.guidelines()) == {
        "On #a too cold.": 1,
        "On #c no word of regret.": 1,
        "On #d too short.": 1,
    }
