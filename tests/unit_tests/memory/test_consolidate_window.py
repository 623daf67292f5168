"""Guidelines that outgrow the model's window are compared part by part, each with those near."""

import re
from itertools import combinations
from typing import Any

import pytest

from memalign_graph import ChatModelError
from memalign_graph.prompts.fences import estimate_tokens
from tests.loopback import ChatRequest, error
from tests.unit_tests.memory.support import Bench, op, said

WINDOW = 2_000


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
    """A model that finds what says the same, and what forbids what another demands."""
    texts = shown(request)
    pairs = list(combinations(texts, 2))
    same = [[a, b] for a, b in pairs if subject(texts[a]) == subject(texts[b])]
    against = [[a, b] for a, b in same if texts[a].startswith("Never") != texts[b].startswith("N")]
    return {
        "duplicates": [pair for pair in same if pair not in against],
        "contradictions": against,
    }


async def fill(bench: Bench, count: int, words: tuple[str, ...] = ("Always", "In any case")) -> Any:
    episodes = await bench.remember(*(said(f"case {number}") for number in range(count)))
    texts = [
        f"{words[number % 2]}, on subject {number // 2}, {f'matter{number // 2} ' * 12}({number})."
        for number in range(count)
    ]
    # Those on one subject stand far apart.
    order = sorted(range(count), key=lambda number: (number % 2, number))
    await bench.learn(*(op("add", episodes[number], text=texts[number]) for number in order))
    bench.server.responder = compare
    return episodes


def memory(bench: Bench, **options: Any) -> Any:
    profile = {"max_input_tokens": WINDOW}
    return bench.memory(model=bench.server.chat_model(profile=profile, **options))


async def test_those_that_are_near_are_compared_within_the_window(bench: Bench) -> None:
    episodes = await fill(bench, 40)
    texts = [rule.text for rule in await bench.do("guidelines")]
    await bench.do("consolidate", memory=memory(bench))
    assert 2 < len(bench.server.chats) <= 40
    for chat in bench.server.chats:
        assert chat.schema_name == "guideline_relations"
        assert estimate_tokens(chat.text) < WINDOW
    found = await bench.do("guidelines")
    assert [rule.text for rule in found] == texts[:20]
    for number, rule in enumerate(found):
        assert set(rule.episode_ids) == {episodes[2 * number].id, episodes[2 * number + 1].id}


async def test_in_one_prompt_where_they_fit_with_the_same_result(near: Bench) -> None:
    await fill(near, 40)
    version = near.memory().version()
    memory(near).consolidate()
    small = [(rule.text, rule.episode_ids) for rule in near.memory().guidelines()]
    near.memory().rollback(version)
    near.server.chats.clear()
    near.memory(model=near.server.chat_model()).consolidate()
    assert len(near.server.chats) == 1
    assert [(rule.text, rule.episode_ids) for rule in near.memory().guidelines()] == small


async def test_contradictions_far_apart_are_settled(near: Bench) -> None:
    await fill(near, 40, words=("Always", "Never"))
    memory(near).consolidate()
    assert [rule.text[:5] for rule in near.memory().guidelines()] == ["Never"] * 20
    assert len(near.memory().history()[0].retired) == 20


async def test_cut_off_it_goes_on_where_it_was(near: Bench) -> None:
    await fill(near, 40)
    opened = memory(near, max_retries=0)
    calls = 0

    def failing(request: ChatRequest) -> Any:
        nonlocal calls
        calls += 1
        return error(500) if calls == 3 else compare(request)

    near.server.responder = failing
    contents = await near.contents()
    with pytest.raises(ChatModelError):
        opened.consolidate()
    assert await near.contents() == contents
    answered = len(await near.items("drafts"))
    assert answered >= 2
    first = len(near.server.chats)
    opened.consolidate()
    assert len(opened.guidelines()) == 20
    pairs = {chat.text for chat in near.server.chats}
    assert len(near.server.chats) - first == len(pairs) - answered
    assert await near.items("drafts") == []


async def test_a_rule_larger_than_half_the_window_is_compared_too(near: Bench) -> None:
    await fill(near, 6)
    [one, *_] = near.memory().episodes()
    long = f"On subject 0, {'at length ' * 150}."
    await near.learn(op("add", one, text=long))
    near.server.responder = lambda _: {"duplicates": [], "contradictions": []}
    memory(near).consolidate()
    beside = [texts for chat in near.server.chats if long in (texts := [*shown(chat).values()])]
    assert beside
    assert all(len(texts) > 1 for texts in beside)
