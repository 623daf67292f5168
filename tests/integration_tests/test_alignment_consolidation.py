"""Proposals of many batches brought together with each other and with what stands."""

import random
import time
from typing import Any

import pytest

from memalign_graph import ModelAnswerError
from tests.conftest import CASE, Bench, judgings
from tests.integration_tests.alignment_support import (
    COMPARE,
    DISTIL,
    Model,
    align,
    alignment,
    asked,
    by_text,
    commits,
    each_its_words,
    record,
    records,
    retire,
    retired,
    said,
    sources,
)

ALWAYS = "On #sorry always apologise for what went wrong."
NEVER = "On #sorry never apologise for what went wrong."
WORDS = Model(distil=each_its_words)


async def test_duplicates_in_other_words_become_one_with_both_sources(bench: Bench) -> None:
    bench.server.responder = WORDS
    one, other = "On #name name the order.", "On #name say which order it is."
    report = await align(bench, [said(1, one), said(2, other)], alignment(bench, batch_size=1))
    [guideline] = await bench.guidelines()
    assert (guideline.text, len(guideline.episode_ids)) == (one, 2)
    assert by_text(report["guidelines"]["added"]) == {one: 2}
    assert [chat.schema_name for chat in bench.server.chats].count(COMPARE) == 1


@pytest.mark.parametrize("turned", [False, True], ids=["newer-last", "newer-first"])
async def test_contradiction_is_settled_by_the_newer_word(bench: Bench, turned: bool) -> None:  # noqa: FBT001
    bench.server.responder = WORDS
    given = [said(1, ALWAYS), said(2, NEVER)]
    report = await align(bench, given[::-1] if turned else given, alignment(bench, batch_size=1))
    assert [one.text for one in await bench.guidelines()] == [NEVER]
    [conflict] = report["conflicts"]
    assert {conflict["first"]["text"], conflict["second"]["text"]} == {ALWAYS, NEVER}
    assert conflict[conflict["newer"]]["text"] == NEVER
    assert by_text(report["guidelines"]["added"]) == {NEVER: 1}
    await bench.invoke(bench.judge_graph(k=0), CASE)
    prompt = judgings(bench.server)[-1].text
    assert NEVER in prompt
    assert ALWAYS not in prompt


@pytest.mark.parametrize("batch_size", [1, 50])
async def test_retire_with_a_rule_instead(bench: Bench, batch_size: int) -> None:
    bench.server.responder = WORDS
    graph = alignment(bench, batch_size=batch_size)
    await align(bench, [said(1, ALWAYS)], graph)
    bench.server.responder = Model(distil=lambda _: {"operations": [retire("G1", NEVER)]})
    report = await align(bench, [record(3)], graph)
    assert sources(await bench.guidelines()) == {NEVER: 1}
    [winner] = await bench.guidelines()
    assert [one.superseded_by for one in await retired(bench)] == [winner.id]
    assert by_text(report["guidelines"]["added"]) == {NEVER: 1}
    [conflict] = report["conflicts"]
    assert conflict["second"]["guideline_id"] == winner.id


async def test_hand_written_guideline_wins_and_stays(bench: Bench) -> None:
    await bench.add_guideline(ALWAYS)
    [by_hand] = await bench.guidelines()
    bench.server.responder = WORDS
    given = [
        said(1, NEVER),
        said(2, "On #sorry it always apologises."),
        said(3, "on #sorry ALWAYS apologise for what went wrong"),
        said(4, "On #name name it."),
    ]
    report = await align(bench, given, alignment(bench, batch_size=1))
    standing = await bench.guidelines()
    assert standing[0] == by_hand
    assert sources(standing) == {ALWAYS: 0, "On #name name it.": 1}
    assert report["conflicts"][0]["newer"] == "first"
    assert "(written by an expert, can't be changed): " + ALWAYS in asked(bench, DISTIL)[0].text


async def outcome(bench: Bench, seed: int) -> Any:
    """What an alignment of 40 records comes to when its batches take random times."""
    waits = random.Random(seed)  # noqa: S311 - nothing secret

    def slow(chat: Any) -> Any:
        time.sleep(waits.random() / 20)
        return each_its_words(chat)

    bench.server.responder = Model(distil=slow)
    given = [
        record(
            n, rationale=f"On #{n % 9} {'never' if n % 27 == 5 else 'always'} name it, said {n}."
        )
        for n in range(40)
    ]
    namespace = f"run{seed}"
    context = {"namespace": [namespace]}
    report = await align(bench, given, alignment(bench, batch_size=4), f"t{seed}", context=context)
    inputs = {one.id: one.example.inputs for one in await bench.episodes(namespace=(namespace,))}
    return (
        [
            (one["first"]["text"], one["second"]["text"], one["newer"])
            for one in report["conflicts"]
        ],
        [
            (one.text, [inputs[key] for key in one.episode_ids])
            for one in await bench.guidelines(namespace=(namespace,))
        ],
    )


async def test_order_and_number_do_not_depend_on_which_batch_is_done_first(bench: Bench) -> None:
    conflicts, guidelines = await outcome(bench, 0)
    assert len(conflicts) == 1
    assert len(guidelines) == 9
    [(first, second, newer)] = conflicts
    lost = second if newer == "first" else first
    assert lost not in [text for text, _ in guidelines]
    for seed in range(1, 3):
        assert await outcome(bench, seed) == (conflicts, guidelines)


async def test_wrong_comparison_twice_fails_the_run_and_loses_nothing(bench: Bench) -> None:
    bench.server.responder = Model(compare=lambda _: "They are all alike.")
    graph = alignment(bench, batch_size=2)
    with pytest.raises(ModelAnswerError, match="compare guidelines"):
        await align(bench, records(6, topics=3), graph)
    first, again = asked(bench, COMPARE)
    assert again.messages[: len(first.messages)] == first.messages
    assert "can't be used" in again.messages[-1]["content"]
    assert await bench.guidelines() == []
    assert {one.status for one in await bench.episodes()} == {"pending"}
    assert await commits(bench) == 1
    bench.server.responder = Model()
    report = (await bench.invoke(graph, None))["report"]
    assert len(report["guidelines"]["added"]) == 3
    assert len(asked(bench, DISTIL)) == 3
    assert {one.status for one in await bench.episodes()} == {"distilled"}
