"""Consolidating: guidelines are merged and settled, and none is lost."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memalign_graph import (
    ChatModelError,
    Guideline,
    InvalidInputError,
    JudgeMemory,
    ModelAnswerError,
    create_judge_graph,
)
from tests.loopback import error
from tests.unit_tests.memory.support import CRITERION, Bench, asks, interleaved, op, said

NONE: dict[str, Any] = {"duplicates": [], "contradictions": []}


def relations(
    duplicates: list[list[int]] | None = None, contradictions: list[list[int]] | None = None
) -> dict[str, Any]:
    """What the model answers; rules are numbered from 1 in the order of the guidelines."""
    return {"duplicates": duplicates or [], "contradictions": contradictions or []}


def with_model(bench: Bench, **options: Any) -> JudgeMemory:
    return bench.memory(model=bench.server.chat_model(**options))


async def consolidate(bench: Bench, *replies: Any, **options: Any) -> dict[str, Any]:
    bench.server.script(*replies)
    done: dict[str, Any] = await bench.do("consolidate", memory=with_model(bench, **options))
    return done


async def rules(bench: Bench, *texts: str) -> tuple[list[Any], list[Guideline]]:
    """Guidelines of one source each, the later the newer."""
    start = datetime(2025, 1, 1, tzinfo=UTC)
    episodes = await bench.remember(
        *(
            said(f"case {place}", given_at=start + timedelta(days=place))
            for place in range(len(texts))
        )
    )
    changes = [op("add", one, text=text) for one, text in zip(episodes, texts, strict=True)]
    await bench.learn(*changes)
    return episodes, await bench.do("guidelines")


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


async def test_groups_that_overlap_are_one(bench: Bench) -> None:
    episodes, _ = await rules(bench, "A.", "B.", "C.", "D.")
    await consolidate(bench, relations([[1, 2], [3, 4], [4, 2]]))
    assert await bench.guidelines() == {"A.": {one.id for one in episodes}}


@pytest.mark.parametrize("newer", [0, 1])
async def test_of_two_that_contradict_the_newer_word_wins(bench: Bench, newer: int) -> None:
    days = [datetime(2025, 1, day, tzinfo=UTC) for day in ((2, 1) if newer == 0 else (1, 2))]
    episodes = await bench.remember(*(said(f"{day}", given_at=day) for day in days))
    texts = ["Always apologise.", "Never apologise."]
    await bench.learn(*(op("add", e, text=t) for e, t in zip(episodes, texts, strict=True)))
    both = await bench.do("guidelines")
    await consolidate(bench, relations(contradictions=[[2, 1]]))
    [winner] = await bench.do("guidelines")
    assert winner == both[newer]
    [retired] = (await bench.do("history"))[0].retired
    assert (retired.guideline_id, retired.superseded_by) == (both[1 - newer].id, winner.id)
    assert retired.reason


async def test_the_loser_is_out_of_the_prompt(near: Bench) -> None:
    await rules(near, "Always apologise.", "Never apologise.")
    await consolidate(near, relations(contradictions=[[1, 2]]))
    builder = create_judge_graph(
        CRITERION, model=near.server.chat_model(), embeddings=near.embeddings
    )
    builder.compile(store=near.store).invoke({"inputs": "q", "outputs": "a"})
    assert "Never apologise." in near.server.chats[-1].text
    assert "Always apologise." not in near.server.chats[-1].text


async def test_what_contradicts_is_never_merged_though_called_a_duplicate(bench: Bench) -> None:
    await rules(bench, "Always apologise.", "Never apologise.", "One always apologises.")
    await consolidate(bench, relations([[1, 2, 3]], [[1, 2]]))
    everything = await bench.do("guidelines")
    [never] = [one for one in everything if one.text == "Never apologise."]
    assert (never.status, len(never.episode_ids)) == ("standing", 1)


async def test_what_is_written_by_hand_is_never_changed(bench: Bench) -> None:
    await rules(bench, "Say sorry.", "Never say sorry.")
    own = await bench.do("add_guideline", "Apologise, always.", author="ann")
    await consolidate(bench, relations([[1, 3]], [[2, 3]]))
    assert await bench.do("guidelines") == [own]
    retired = (await bench.do("history"))[0].retired
    assert {gone.superseded_by for gone in retired} == {own.id}
    assert len(retired) == 2


async def test_two_experts_who_contradict_or_repeat_each_other_both_stand(bench: Bench) -> None:
    texts = ("Always.", "Never.", "Always, I say.")
    own = [await bench.do("add_guideline", text) for text in texts]
    await consolidate(bench, relations([[1, 3]], [[1, 2]]))
    assert await bench.do("guidelines") == own


async def test_experts_who_contradict_each_other_shield_no_third(bench: Bench) -> None:
    for text in ("Always.", "Never."):
        await bench.do("add_guideline", text)
    await rules(bench, "Seldom.")
    await consolidate(bench, relations(contradictions=[[1, 2], [1, 3]]))
    assert [rule.text for rule in await bench.do("guidelines")] == ["Always.", "Never."]


async def test_again_it_changes_nothing(bench: Bench) -> None:
    await rules(bench, "Say sorry.", "One must apologise.", "Never apologise.", "Be brief.")
    await consolidate(bench, relations([[1, 2]], [[1, 3]]))
    contents, commits = await bench.contents(), len(await bench.do("history"))
    again = await consolidate(bench, NONE)
    assert again["guidelines"] == []
    assert await bench.contents() == contents
    assert len(await bench.do("history")) == commits
    shown = bench.server.chats[-1].text
    assert "Be brief." in shown
    assert "One must apologise." not in shown


async def test_it_can_be_rolled_back(bench: Bench) -> None:
    await rules(bench, "Say sorry.", "One must apologise.", "Never apologise.")
    version, contents = await bench.do("version"), await bench.contents()
    await consolidate(bench, relations([[1, 2]], [[1, 3]]))
    await bench.do("rollback", version)
    assert await bench.contents() == contents


@pytest.mark.parametrize("texts", [(), ("Alone.",)])
async def test_nothing_to_compare_asks_no_one(bench: Bench, texts: tuple[str, ...]) -> None:
    if texts:
        await rules(bench, *texts)
    done = await consolidate(bench)
    assert (done["guidelines"], bench.server.chats) == ([], [])
    assert done["memory_version"] == await bench.do("version")


async def test_without_a_model_it_says_what_to_do(near: Bench) -> None:
    with pytest.raises(InvalidInputError, match=r"^model: consolidating needs a chat model: open"):
        await near.do("consolidate")


async def test_a_guideline_without_words_gets_them_first_and_is_compared(bench: Bench) -> None:
    one, two, three = await bench.remember(said("one"), said("two"), said("three"))
    await bench.learn(op("add", one, two, text="Of both."), op("add", three, text="Say sorry."))
    await bench.do("forget", one.id)
    wording = {"operations": [{"text": "One must apologise.", "action": "add"}]}
    await consolidate(bench, wording, relations([[1, 2]]))
    [rule] = await bench.do("guidelines")
    assert (rule.text, set(rule.episode_ids)) == ("One must apologise.", {two.id, three.id})


WRONG: list[Any] = [
    "prose",
    {"duplicates": []},
    {"duplicates": [[1, 9]], "contradictions": []},
    {"duplicates": [[0, 1]], "contradictions": []},
    {"duplicates": [], "contradictions": [[1, 2, 3]]},
    {"duplicates": [["1", "2"]], "contradictions": []},
    {"duplicates": [1, 2], "contradictions": []},
    {"duplicates": [[True, 2]], "contradictions": []},
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_answer_that_can_not_be_used_is_told_and_asked_for_again(
    near: Bench, wrong: Any
) -> None:
    await rules(near, "A.", "B.", "C.")
    contents = await near.contents()
    with pytest.raises(ModelAnswerError, match="compare guidelines"):
        await consolidate(near, wrong, wrong)
    assert await near.contents() == contents
    await consolidate(near, wrong, relations([[1, 2]]))
    assert [rule.text for rule in await near.do("guidelines")] == ["A.", "C."]
    assert "can't be used" in near.server.chats[-1].text


async def test_a_call_that_fails_changes_nothing(bench: Bench) -> None:
    await rules(bench, "A.", "B.")
    contents = await bench.contents()
    with pytest.raises(ChatModelError):
        await consolidate(bench, error(500), max_retries=0)
    assert await bench.contents() == contents


async def test_what_says_nothing_is_passed_over(near: Bench) -> None:
    await rules(near, "A.", "B.")
    contents = await near.contents()
    await consolidate(near, relations([[], [1], [2, 2]], [[], [1], [2, 2]]))
    assert await near.contents() == contents


@pytest.mark.parametrize("forgotten", [0, 1])
@pytest.mark.parametrize("kind", ["duplicates", "contradictions"])
async def test_what_is_forgotten_meanwhile_takes_nothing_else_along(
    near: Bench, kind: str, forgotten: int
) -> None:
    episodes, both = await rules(near, "A.", "B.")
    near.server.script(relations(**{kind: [[1, 2]]}))
    interleaved(
        with_model(near)._consolidate,
        asks,
        lambda: near.memory().forget(episodes[forgotten].id),
    )
    assert await near.do("guidelines") == [both[1 - forgotten]]


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_the_model_says_no_source_and_no_rule_is_lost(
    near: Bench, seed: int
) -> None:
    choices = random.Random(seed)  # noqa: S311 - a test's choices
    count = choices.randint(2, 9)
    await rules(near, *(f"Rule {number}." for number in range(count)))
    for rule in await near.do("guidelines"):
        if choices.random() < 0.25:
            await near.do("edit_guideline", rule.id, f"By hand: {rule.text}")
    for text in ("Own one.", "Own two."):
        await near.do("add_guideline", text)
    before = await near.do("guidelines")

    def some(most: int) -> list[list[int]]:
        numbers = range(1, len(before) + 1)
        return [
            choices.sample(numbers, choices.randint(2, 2 if most == 2 else min(most, len(before))))
            for _ in range(choices.randint(0, 4))
        ]

    await consolidate(near, relations(some(4), some(2)))
    after = {one.id: one for one in await near.do("guidelines")}
    commits = await near.do("history")
    winners = {one.guideline_id: one.superseded_by for done in commits for one in done.retired}
    for rule in before:
        if rule.origin == "expert":
            assert after[rule.id] == rule
        elif rule.id in after:
            assert after[rule.id].text == rule.text
            assert set(after[rule.id].episode_ids) >= set(rule.episode_ids)
        else:
            winner = winners[rule.id]
            while winner in winners:
                winner = winners[winner]
            assert winner in after
    assert after
