"""Words that can't be used: told in a sentence, before a model is called or anything is stored."""

from datetime import timedelta
from typing import Any

import pytest

from memalign_graph import (
    Boolean,
    InvalidInputError,
    Numeric,
    create_feedback_graph,
    create_judge_graph,
)
from tests.conftest import COLD, CRITERION, Bench
from tests.integration_tests.later_feedback.support import (
    DAY,
    age,
    content,
    feedback_graph,
    judge,
    kept,
    tell,
)

SCORE = CRITERION.model_copy(update={"scale": Numeric(minimum=1, maximum=5, integer=True)})


async def refuse(bench: Bench, judgment_id: Any, reply: Any, **options: Any) -> str:
    """Give a word that is not taken; returns why, if nothing was called or stored."""
    before, calls = await content(bench), len(bench.server.chats)
    embedded = len(bench.server.embeddings)
    with pytest.raises(InvalidInputError) as caught:
        await tell(bench, judgment_id, reply, **options)
    assert await content(bench) == before
    assert (len(bench.server.chats), len(bench.server.embeddings)) == (calls, embedded)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("judgment_id", ["unknown", "0" * 32, "a.b", "%", "*"])
async def test_unknown_id_is_told(bench: Bench, judgment_id: str) -> None:
    await judge(bench)
    told = await refuse(bench, judgment_id, COLD)
    assert told.startswith(f"judgment_id: no judgment {judgment_id!r} is kept in memalign/")
    assert CRITERION.name in told


@pytest.mark.parametrize("judgment_id", ["", None, 7, ["a"], {"id": "a"}], ids=str)
async def test_id_that_is_none_is_told(bench: Bench, judgment_id: Any) -> None:
    assert "give the `id` of a judgment" in await refuse(bench, judgment_id, COLD)


async def test_id_that_is_missing_is_told(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="give the `id` of a judgment"):
        await bench.invoke(feedback_graph(bench), {"reply": COLD})


async def test_judgment_past_its_time_is_told_as_unknown(bench: Bench) -> None:
    judgment = await judge(bench)
    await age(bench, judgment["id"], 2 * DAY)
    assert "its time is over" in await refuse(bench, judgment["id"], COLD)
    assert await kept(bench) == []


async def test_judgment_of_another_namespace_is_told_as_unknown(bench: Bench) -> None:
    judgment = await judge(bench, context={"namespace": ["team-a"]})
    for context in (None, {"namespace": ["team-b"]}, {"namespace": ["team-a", "sub"]}):
        assert "another namespace" in await refuse(bench, judgment["id"], COLD, context=context)


async def test_judgment_by_another_criterion_is_told_as_unknown(bench: Bench) -> None:
    judgment = await judge(bench)
    other = CRITERION.model_copy(update={"name": "brevity"})
    assert "memalign/brevity" in await refuse(bench, judgment["id"], COLD, criterion=other)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        7,
        True,
        "",
        "  ",
        {},
        {"value": None},
        {"rationale": " "},
        {"value": "perhaps"},
        {"value": 0.5},
        {"verdict": False},
        {"value": False, "author": 7},
        {"value": False, "rationale": "half \ud800"},
        {"rationale": "nul \x00"},
        {"author": "ann"},
        {"type": "maybe"},
        {"decisions": []},
        {"decisions": "approve"},
        {"decisions": [{"type": "approve"}, {"type": "approve"}]},
        {"decisions": [{"type": "edit"}]},
        {"decisions": [{"type": "reject"}]},
        {"inputs": "x", "outputs": "y", "value": False},
    ],
    ids=ascii,
)
async def test_word_that_can_not_be_used_is_told(bench: Bench, reply: Any) -> None:
    judgment = await judge(bench)
    assert (await refuse(bench, judgment["id"], reply)).startswith("reply: ")


async def test_word_that_is_missing_is_told(bench: Bench) -> None:
    judgment = await judge(bench)
    with pytest.raises(InvalidInputError, match=r"^reply: "):
        await bench.invoke(feedback_graph(bench), {"judgment_id": judgment["id"]})


async def test_value_of_a_scale_that_has_changed_meanwhile_is_told(bench: Bench) -> None:
    judgment = await judge(bench, criterion=SCORE)
    assert judgment["value"] == 5
    boolean = SCORE.model_copy(update={"scale": Boolean()})
    told = await refuse(bench, judgment["id"], {"type": "approve"}, criterion=boolean)
    assert "not on the scale" in told
    given = await tell(bench, judgment["id"], {"value": False}, criterion=boolean)
    assert given["feedback"]["value"] is False


async def test_refused_word_can_be_given_again(bench: Bench) -> None:
    judgment = await judge(bench)
    await refuse(bench, judgment["id"], {"value": "perhaps"})
    given = await tell(bench, judgment["id"], COLD)
    assert given["learned"]["guidelines"]


async def test_graph_without_a_store_is_told(bench: Bench) -> None:
    options: Any = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    graph = create_feedback_graph(CRITERION, **options).compile()
    with pytest.raises(InvalidInputError, match=r"^store: "):
        await bench.invoke(graph, {"judgment_id": "x", "reply": COLD})


@pytest.mark.parametrize("given", [30, 0, "30 days", timedelta(0), timedelta(days=-1), True])
def test_length_of_time_that_is_none_is_told(bench: Bench, given: Any) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^keep_judgments: .* is (no length of time|too little)"
    ):
        create_judge_graph(CRITERION, keep_judgments=given)


@pytest.mark.parametrize(
    ("options", "field"), [({"model": 7}, "model"), ({"embeddings": 7}, "embeddings")]
)
def test_option_that_can_not_be_used_is_told(
    bench: Bench, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{field}: "):
        create_feedback_graph(CRITERION, **options)


def test_criterion_that_is_none_is_told(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match=r"^criterion: "):
        create_feedback_graph("is it kind?")  # type: ignore[arg-type]
