"""Consolidating: guidelines are merged and settled, within the model's window; none is lost."""

import re
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest

from memalign_graph import ChatModelError, Guideline, InvalidInputError, ModelAnswerError
from memalign_graph.prompts.fences import estimate_tokens
from tests.loopback import ChatRequest, error
from tests.unit_tests.memory.support import EVERY_STORE, Bench, asks, interleaved, op, said

START = datetime(2025, 1, 1, tzinfo=UTC)
WINDOW = 2_000


def relations(
    duplicates: list[list[int]] | None = None, contradictions: list[list[int]] | None = None
) -> dict[str, Any]:
    """What the model answers; rules are numbered from 1 in the order of the guidelines."""
    return {"duplicates": duplicates or [], "contradictions": contradictions or []}


async def consolidate(bench: Bench, *replies: Any) -> dict[str, Any]:
    bench.server.script(*replies)
    memory = bench.memory(model=bench.server.chat_model())
    done: dict[str, Any] = await bench.do("consolidate", memory=memory)
    return done


async def rules(bench: Bench, *texts: str) -> tuple[list[Any], list[Guideline]]:
    """Guidelines of one source each, the later the newer."""
    words = [
        said(f"case {place}", given_at=START + timedelta(days=place)) for place in range(len(texts))
    ]
    episodes = await bench.remember(*words)
    changes = [op("add", one, text=text) for one, text in zip(episodes, texts, strict=True)]
    await bench.learn(*changes)
    return episodes, await bench.do("guidelines")


@EVERY_STORE
async def test_duplicates_become_the_oldest_with_the_sources_of_both(bench: Bench) -> None:
    [one, two, three], [first, _, other] = await rules(
        bench, "Say sorry.", "One must apologise.", "Be brief."
    )
    done = await consolidate(bench, relations([[2, 1]]))
    assert await bench.guidelines() == {"Say sorry.": {one.id, two.id}, "Be brief.": {three.id}}
    assert [rule.id for rule in await bench.do("guidelines")] == [first.id, other.id]
    assert [entry["action"] for entry in done["guidelines"]] == ["merge"]
    assert done["memory_version"] == await bench.do("version")
    assert (await bench.do("history"))[0].reason == "consolidate"
    assert await bench.items("drafts") == []
    assert (await consolidate(bench, relations()))["guidelines"] == []


@pytest.mark.parametrize("newer", [0, 1])
async def test_of_two_that_contradict_the_newer_word_wins(bench: Bench, newer: int) -> None:
    days = [START, START + timedelta(days=1)][:: 1 if newer else -1]
    episodes = await bench.remember(*(said(f"{day}", given_at=day) for day in days))
    texts = ["Always apologise.", "Never apologise."]
    await bench.learn(*(op("add", e, text=t) for e, t in zip(episodes, texts, strict=True)))
    both = await bench.do("guidelines")
    await consolidate(bench, relations(contradictions=[[2, 1]]))
    assert await bench.do("guidelines") == [both[newer]]
    [retired] = (await bench.do("history"))[0].retired
    assert (retired.guideline_id, retired.superseded_by) == (both[1 - newer].id, both[newer].id)
    assert retired.reason


async def test_what_is_written_by_hand_is_never_changed(bench: Bench) -> None:
    own = [await bench.do("add_guideline", text) for text in ("Always.", "Never.", "Always, say I")]
    await rules(bench, "Say sorry.", "Never say sorry.")
    await consolidate(bench, relations([[1, 3, 4]], [[1, 2], [1, 5]]))
    assert await bench.do("guidelines") == own
    retired = (await bench.do("history"))[0].retired
    assert {gone.superseded_by for gone in retired} == {own[0].id}
    assert len(retired) == 2


@pytest.mark.parametrize("texts", [(), ("Alone.",)])
async def test_nothing_to_compare_asks_no_one(bench: Bench, texts: tuple[str, ...]) -> None:
    await rules(bench, *texts)
    done = await consolidate(bench)
    assert (done["guidelines"], bench.server.chats) == ([], [])
    assert done["memory_version"] == await bench.do("version")
    with pytest.raises(InvalidInputError, match=r"^model: consolidating needs a chat model: open"):
        await bench.do("consolidate")


async def test_a_guideline_that_lost_a_source_is_worded_first_and_compared(bench: Bench) -> None:
    one, two, three = await bench.remember(said("one"), said("two"), said("three"))
    await bench.learn(op("add", one, two, text="Of both."), op("add", three, text="Say sorry."))
    await bench.do("forget", one.id)
    wording = {"operations": [{"text": "One must apologise.", "action": "add"}]}
    await consolidate(bench, wording, relations([[1, 2]]))
    [rule] = await bench.do("guidelines")
    assert (rule.text, set(rule.episode_ids)) == ("One must apologise.", {two.id, three.id})


async def test_an_answer_that_can_not_be_used_twice_changes_nothing(bench: Bench) -> None:
    await rules(bench, "A.", "B.", "C.")
    contents = await bench.contents()
    wrong = {"duplicates": [[1, 9]], "contradictions": []}
    with pytest.raises(ModelAnswerError, match="compare guidelines"):
        await consolidate(bench, wrong, wrong)
    assert await bench.contents() == contents
    await consolidate(bench, wrong, relations([[1, 2]]))
    assert [rule.text for rule in await bench.do("guidelines")] == ["A.", "C."]
    assert "can't be used" in bench.server.chats[-1].text


@pytest.mark.parametrize("forgotten", [0, 1])
@pytest.mark.parametrize("kind", ["duplicates", "contradictions"])
async def test_what_is_forgotten_meanwhile_takes_nothing_else_along(
    near: Bench, kind: str, forgotten: int
) -> None:
    episodes, both = await rules(near, "A.", "B.")
    near.server.script(relations(**{kind: [[1, 2]]}))
    interleaved(
        near.memory(model=near.server.chat_model())._consolidate,
        asks,
        lambda: near.memory().forget(episodes[forgotten].id),
    )
    assert await near.do("guidelines") == [both[1 - forgotten]]


def shown(request: ChatRequest) -> dict[int, str]:
    """The rules of a request, by the numbers they have in it."""
    found = re.findall(r"^(\d+)\. (.*)$", request.messages[-1]["content"], re.MULTILINE)
    return {int(number): text for number, text in found}


def subject(text: str) -> str:
    """Rules on the same subject say the same."""
    match = re.search(r"subject (\d+)", text)
    assert match is not None
    return match[1]


def compare(request: ChatRequest) -> dict[str, Any]:
    """A model that finds what says the same."""
    texts = shown(request)
    pairs = combinations(texts, 2)
    return relations([[a, b] for a, b in pairs if subject(texts[a]) == subject(texts[b])])


async def fill(bench: Bench, count: int) -> Any:
    """Guidelines of which two each, that stand far apart, are on one subject."""
    episodes = await bench.remember(*(said(f"case {number}") for number in range(count)))
    texts = [
        f"On subject {number // 2}, {f'matter{number // 2} ' * 12}({number})."
        for number in range(count)
    ]
    order = sorted(range(count), key=lambda number: (number % 2, number))
    await bench.learn(*(op("add", episodes[number], text=texts[number]) for number in order))
    bench.server.responder = compare
    return episodes


def small(bench: Bench) -> Any:
    """The memory with a model of a small window, which does not try again by itself."""
    model = bench.server.chat_model(profile={"max_input_tokens": WINDOW}, max_retries=0)
    return bench.memory(model=model)


async def test_within_the_window_those_that_are_near_are_compared_and_none_is_paid_for_twice(
    near: Bench,
) -> None:
    episodes = await fill(near, 40)
    texts = [rule.text for rule in await near.do("guidelines")]
    calls = 0

    def failing(request: ChatRequest) -> Any:
        nonlocal calls
        calls += 1
        return error(500) if calls == 3 else compare(request)

    near.server.responder = failing
    contents = await near.contents()
    with pytest.raises(ChatModelError):
        small(near).consolidate()
    assert await near.contents() == contents
    answered, first = len(await near.items("drafts")), len(near.server.chats)
    assert answered >= 2
    small(near).consolidate()
    chats = near.server.chats
    assert 2 < len({chat.text for chat in chats}) <= 40
    assert len(chats) - first == len({chat.text for chat in chats}) - answered
    assert {chat.schema_name for chat in chats} == {"guideline_relations"}
    assert max(estimate_tokens(chat.text) for chat in chats) < WINDOW
    assert await near.items("drafts") == []
    found = await near.do("guidelines")
    assert [rule.text for rule in found] == texts[:20]
    for number, rule in enumerate(found):
        assert set(rule.episode_ids) == {episodes[2 * number].id, episodes[2 * number + 1].id}
