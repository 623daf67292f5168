"""Words that can't be used: told in a sentence, before a model is called or anything is stored."""

from typing import Any

import pytest

from memalign_graph import Boolean, InvalidInputError, Numeric, create_feedback_graph
from tests.conftest import COLD, CRITERION, Bench
from tests.integration_tests.later_feedback.support import (
    age,
    everything,
    feedback_graph,
    judge,
    kept,
    tell,
)


def content(bench: Bench) -> tuple[Any, ...]:
    """All that the store holds, and how often a model was asked."""
    stored = sorted((item.namespace, item.key, str(item.value)) for item in everything(bench))
    return stored, len(bench.server.chats), len(bench.server.embeddings)


async def refuse(bench: Bench, given: Any, context: Any = None, **options: Any) -> str:
    """Give a word that is not taken; returns why, if nothing was called or stored."""
    before = content(bench)
    with pytest.raises(InvalidInputError) as caught:
        await bench.invoke(feedback_graph(bench, **options), given, "told", context=context)
    assert content(bench) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


NO_ID = "give the `id` of a judgment"
IDS: list[tuple[Any, str]] = [
    ("unknown", f"judgment_id: no judgment 'unknown' is kept in memalign/{CRITERION.name}"),
    ("a.b", "no judgment 'a.b' is kept"),
    ("%", "no judgment '%' is kept"),
    ("", NO_ID),
    (None, NO_ID),
    ({"id": "a"}, NO_ID),
]


async def test_what_can_not_be_used_or_is_left_out_is_told_and_can_be_given_again(
    bench: Bench,
) -> None:
    judgment_id = (await judge(bench))["id"]
    for unknown, why in IDS:
        assert why in await refuse(bench, {"judgment_id": unknown, "reply": COLD})
    for reply in (None, 7, " ", {"value": "perhaps"}, {"verdict": False}, {"decisions": []}):
        why = await refuse(bench, {"judgment_id": judgment_id, "reply": reply})
        assert why.startswith("reply: ")
    # Nor is it taken from an earlier run on the thread.
    assert (await refuse(bench, {"judgment_id": judgment_id})).startswith("reply: ")
    assert NO_ID in await refuse(bench, {"reply": COLD})
    assert (await tell(bench, judgment_id, COLD))["learned"]["guidelines"]


async def test_judgment_past_its_time_or_of_another_memory_is_unknown(bench: Bench) -> None:
    given = {"judgment_id": (await judge(bench))["id"], "reply": COLD}
    assert "another namespace" in await refuse(bench, given, {"namespace": ["memalign", "sub"]})
    other = CRITERION.model_copy(update={"name": "brevity"})
    assert "memalign/brevity" in await refuse(bench, given, criterion=other)
    age(bench, given["judgment_id"])
    assert "its time is over" in await refuse(bench, given)
    assert kept(bench) == []


async def test_value_of_a_scale_that_has_changed_meanwhile_is_told(bench: Bench) -> None:
    score = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})
    judgment = await judge(bench, criterion=score)
    assert judgment["value"] == 5
    boolean = score.model_copy(update={"scale": Boolean()})
    given = {"judgment_id": judgment["id"], "reply": {"type": "approve"}}
    assert "not on the scale" in await refuse(bench, given, criterion=boolean)
    taken = await tell(bench, judgment["id"], {"value": False}, criterion=boolean)
    assert taken["feedback"]["value"] is False


async def test_graph_without_a_store_is_told(bench: Bench) -> None:
    options: Any = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    graph = create_feedback_graph(CRITERION, **options).compile()
    with pytest.raises(InvalidInputError, match=r"^store: "):
        await bench.invoke(graph, {"judgment_id": "x", "reply": COLD})
