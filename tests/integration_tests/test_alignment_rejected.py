"""Records that can't be used: told with the reason, and keeping no other record out."""

from datetime import datetime
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Criterion, InvalidInputError, Numeric
from tests.conftest import CRITERION, Bench, thread
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    Model,
    add,
    align,
    alignment,
    builder,
    embedded,
    record,
    records,
)

GRADE = Criterion(
    name="grade", instructions="How good?", scale=Numeric(minimum=1, maximum=5, integer=True)
)
DEPTH: Any = "end"
for _ in range(200):
    DEPTH = [DEPTH]

UNUSABLE: dict[str, tuple[Any, str]] = {
    "unlabelled": ({**record(1), "value": None, "rationale": None}, "value or a rationale"),
    "blank-words": ({**record(1), "value": None, "rationale": "  "}, "value or a rationale"),
    "no-inputs": ({**record(1), "inputs": ""}, "inputs"),
    "blank-outputs": ({**record(1), "outputs": "\n "}, "outputs"),
    "missing-outputs": ({"inputs": "Hello?", "rationale": "No."}, "outputs"),
    "empty": ({}, "example"),
    "nul": ({**record(1), "rationale": "Too\x00cold."}, "rationale"),
    "nul-in-inputs": ({**record(1), "inputs": {"a": "\x00"}}, "inputs"),
    "surrogate": ({**record(1), "outputs": "\ud800"}, "outputs"),
    "deep": ({**record(1), "inputs": DEPTH}, "inputs"),
    "not-json": ({**record(1), "inputs": {1, 2}}, "inputs"),
    "nan": ({**record(1), "inputs": float("nan")}, "inputs"),
    "value-off-scale": ({**record(1), "value": "maybe"}, "value"),
    "value-of-wrong-kind": ({**record(1), "value": ["no"]}, "value"),
    "rationale-of-wrong-kind": ({**record(1), "rationale": 7}, "rationale"),
    "author-of-wrong-kind": ({**record(1), "author": ["ann"]}, "author"),
    "author-with-nul": ({**record(1), "author": "a\x00"}, "author"),
    "given-at-no-date": ({**record(1), "given_at": "some day"}, "given_at"),
    "unknown-field": ({**record(1), "ratoinale": "No."}, "ratoinale"),
    "text": ("Too cold.", "feedback"),
    "nothing": (None, "feedback"),
    "list": ([record(1)], "feedback"),
    "number": (7, "feedback"),
    "key-no-text": ({**record(1), 7: "x"}, "7"),
}


@pytest.mark.parametrize("unusable", list(UNUSABLE))
async def test_unusable_record_is_told_and_keeps_no_other_out(bench: Bench, unusable: str) -> None:
    bench.server.responder = Model()
    given, field = UNUSABLE[unusable]
    report = await align(bench, [record(10), given, record(11)])
    assert report["feedback"] == {"new": 2, "changed": 0, "unchanged": 0, "rejected": 1}
    [rejected] = report["rejected"]
    assert rejected["index"] == 1
    assert field in rejected["reason"]
    assert "\n" not in rejected["reason"]
    assert 20 < len(rejected["reason"]) < 400
    assert len(report["guidelines"]["added"]) == len(await bench.guidelines()) == 2
    assert len(embedded(bench)) == 2


@BOTH_WAYS
async def test_all_unusable_records_are_told_at_once(bench: Bench) -> None:
    bench.server.responder = Model()
    bad = [one for one, _ in UNUSABLE.values() if not isinstance(one, dict) or 7 not in one]
    bad = [one for one in bad if one != UNUSABLE["surrogate"][0]]  # no checkpointer keeps it
    bad = [one for one in bad if one != UNUSABLE["not-json"][0]]
    report = await align(bench, [*bad, record(10)])
    assert [one["index"] for one in report["rejected"]] == list(range(len(bad)))
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": len(bad)}


@pytest.mark.parametrize(
    "value", [0, 6, 2.5, "good", True, float("inf"), 10**400, 1e308], ids=lambda one: str(one)[:9]
)
async def test_value_off_a_numeric_scale_is_told(bench: Bench, value: Any) -> None:
    bench.server.responder = Model()
    # Without a checkpointer: none keeps an integer beyond 64 bits.
    graph = builder(bench, GRADE).compile(store=bench.store)
    report = await align(bench, [record(1, value=value), record(2, value=5)], graph, None)
    [rejected] = report["rejected"]
    assert rejected["index"] == 0
    assert rejected["reason"].startswith("value: ")
    assert report["feedback"]["new"] == 1


async def test_values_are_brought_onto_the_scale(bench: Bench) -> None:
    bench.server.responder = Model()
    kind = Criterion(name="kind", instructions="Which?", scale=Categorical(choices=("Good", "Bad")))
    assert CRITERION.scale == Boolean()
    report = await align(bench, [record(1, value="no"), record(2, value="yes")])
    assert report["rejected"] == []
    assert {one.value for one in await bench.episodes()} == {True, False}
    report = await align(
        bench, [record(1, value="Good"), record(2, value="great")], alignment(bench, kind), "u"
    )
    assert [one["index"] for one in report["rejected"]] == [1]
    assert "Good" in report["rejected"][0]["reason"]


@BOTH_WAYS
async def test_a_megabyte_of_text_is_taken(bench: Bench) -> None:
    bench.server.responder = Model()
    big = "word " * 200_000
    report = await align(
        bench,
        [record(1), record(2, inputs=big), record(3, outputs={"text": big}), record(4)],
    )
    assert report["feedback"]["new"] == 4
    assert len(report["guidelines"]["added"]) == 4
    [warning] = report["warnings"]
    assert warning.startswith("2 record(s) were too long")
    for chat in bench.server.chats:
        assert len(chat.text) < 60_000
    assert max(map(len, embedded(bench))) < 60_000
    found = {one.example.inputs for one in await bench.episodes()}
    assert big in found


@BOTH_WAYS
async def test_a_megabyte_of_reasons_is_taken(bench: Bench) -> None:
    bench.server.responder = Model()
    big = f"On #1 name it. {'word ' * 200_000}"
    bench.server.script({"operations": [add("On #1 name it.")]})
    report = await align(bench, [record(1, rationale=big), record(2)])
    assert report["feedback"]["new"] == 2
    [episode] = [one for one in await bench.episodes() if one.value]
    assert episode.rationale == big.strip()
    assert episode.id in report["warnings"][0]
    assert max(len(chat.text) for chat in bench.server.chats) < 20_000


@pytest.mark.parametrize(
    "feedback", [None, "Too cold.", record(1), 7, {"a": [record(1)]}], ids=lambda one: str(one)[:9]
)
async def test_feedback_that_is_no_list_is_an_error(bench: Bench, feedback: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^feedback: give a list of Feedback"):
        await align(bench, feedback)
    assert (bench.server.chats, bench.server.embeddings) == ([], [])


async def test_missing_feedback_is_an_error(bench: Bench) -> None:
    with pytest.raises(Exception, match="feedback"):
        alignment(bench).invoke({}, thread("t"))


@BOTH_WAYS
async def test_earliest_and_latest_dates_are_taken(bench: Bench) -> None:
    bench.server.responder = Model()
    dates = [
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59-05:00",
        datetime(2026, 1, 1),  # noqa: DTZ001 - a date without a zone is what is tried
        datetime.max,  # noqa: DTZ901 - likewise
        datetime.min,  # noqa: DTZ901 - likewise
    ]
    given = [record(n, given_at=date) for n, date in enumerate(dates)]
    report = await align(bench, given)
    assert report["rejected"] == []
    assert len(report["guidelines"]["added"]) == 5
    assert (await align(bench, given))["feedback"]["unchanged"] == 5


@BOTH_WAYS
async def test_order_of_a_list_with_gaps(bench: Bench) -> None:
    bench.server.responder = Model()
    given: list[Any] = records(6)
    given[1] = given[4] = None
    report = await align(bench, given)
    assert [one["index"] for one in report["rejected"]] == [1, 4]
    assert (await align(bench, given))["feedback"] == {
        "new": 0,
        "changed": 0,
        "unchanged": 4,
        "rejected": 2,
    }


@BOTH_WAYS
async def test_what_the_model_proposes_and_teaches_nothing_is_told(bench: Bench) -> None:
    parrot = add(record(1)["outputs"], "F1")
    bench.server.responder = Model(
        distil=lambda _: {"operations": [parrot, add("Name the order.", "F2")]}
    )
    report = await align(bench, [record(1), record(2)])
    assert [one["text"] for one in report["guidelines"]["added"]] == ["Name the order."]
    [warning] = report["warnings"]
    assert warning.startswith(
        f'The model\'s guideline "{record(1)["outputs"]}" was not kept, since'
    )


@BOTH_WAYS
async def test_new_wording_that_teaches_nothing_is_told(bench: Bench) -> None:
    """A guideline lost a source, and what it was to say instead is the output itself."""
    bench.server.responder = Model()
    await align(bench, [record(1, "a"), record(2, "a")])
    [guideline] = await bench.guidelines()
    first, second = [one for one in await bench.episodes() if one.id in guideline.episode_ids]
    memory = bench.memory()
    await memory.aforget(first.id) if bench.awaits else memory.forget(first.id)
    parrot = {"operations": [add(str(second.example.outputs))]}
    bench.server.responder = Model(distil=lambda _: parrot)
    report = await align(bench, [])
    assert await bench.guidelines() == []
    [warning] = report["warnings"]
    assert "was not kept, since it repeats the output" in warning
