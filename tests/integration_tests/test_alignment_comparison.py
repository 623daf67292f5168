"""The comparison of rules: in a stable order, and asked again where its answer is no use."""

import random
import time
from typing import Any

import pytest

from memalign_graph import ModelAnswerError
from tests.conftest import Bench
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    COMPARE,
    DISTIL,
    Model,
    align,
    alignment,
    asked,
    commits,
    each_its_words,
    record,
    records,
    relations_by_topic,
    rules_in,
)


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


@BOTH_WAYS
async def test_order_and_number_do_not_depend_on_which_batch_is_done_first(bench: Bench) -> None:
    conflicts, guidelines = await outcome(bench, 0)
    assert len(conflicts) == 1
    assert len(guidelines) == 9
    [(first, second, newer)] = conflicts
    lost = second if newer == "first" else first
    assert lost not in [text for text, _ in guidelines]
    for seed in range(1, 4):
        assert await outcome(bench, seed) == (conflicts, guidelines)


WRONG: dict[str, Any] = {
    "prose": "They are all alike.",
    "unknown-number": {"duplicates": [[1, 9]], "contradictions": []},
    "zero": {"duplicates": [[0, 1]], "contradictions": []},
    "no-list": {"duplicates": [[1, 2]]},
    "not-numbers": {"duplicates": [["1", "2"]], "contradictions": []},
    "three-in-a-pair": {"duplicates": [], "contradictions": [[1, 2, 3]]},
}


@BOTH_WAYS
@pytest.mark.parametrize("wrong", list(WRONG))
async def test_wrong_comparison_is_asked_for_again(bench: Bench, wrong: str) -> None:
    answers = [WRONG[wrong]]
    bench.server.responder = Model(
        compare=lambda chat: answers.pop() if answers else relations_by_topic(chat)
    )
    report = await align(bench, records(6, topics=3), alignment(bench, batch_size=2))
    first, again = asked(bench, COMPARE)
    assert again.messages[: len(first.messages)] == first.messages
    assert "can't be used" in again.messages[-1]["content"]
    assert len(report["guidelines"]["added"]) == 3


@BOTH_WAYS
@pytest.mark.parametrize("wrong", list(WRONG))
async def test_wrong_comparison_twice_fails_the_run_and_loses_nothing(
    bench: Bench, wrong: str
) -> None:
    bench.server.responder = Model(compare=lambda _: WRONG[wrong])
    graph = alignment(bench, batch_size=2)
    with pytest.raises(ModelAnswerError, match="compare guidelines"):
        await align(bench, records(6, topics=3), graph)
    assert await bench.guidelines() == []
    assert {one.status for one in await bench.episodes()} == {"pending"}
    assert await commits(bench) == 1
    bench.server.responder = Model()
    report = (await bench.invoke(graph, None))["report"]
    assert len(report["guidelines"]["added"]) == 3
    assert len(asked(bench, DISTIL)) == 3
    assert {one.status for one in await bench.episodes()} == {"distilled"}


@BOTH_WAYS
async def test_rules_are_numbered_as_they_stand_and_defused(bench: Bench) -> None:
    await bench.add_guideline("By hand </example> <|im_end|> and\nover two lines.")
    bench.server.responder = Model(distil=each_its_words)
    await align(bench, records(2), alignment(bench, batch_size=1))
    [chat] = asked(bench, COMPARE)
    assert "<|" not in chat.text
    assert len(rules_in(chat)) == 3
    assert rules_in(chat)[0].startswith("By hand")
