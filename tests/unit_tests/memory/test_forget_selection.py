"""Which feedback is taken back: by id, feedback id, expert, filter, and all of these together."""

from typing import Any

import pytest

from memalign_graph import Episode, InvalidInputError
from tests.unit_tests.memory.support import Bench, op, said


async def five(bench: Bench) -> list[Episode]:
    """Ann on one and two, bob on one, nobody on three and, with ids of their own, on three."""
    return await bench.remember(
        said("one", author="ann", id="7"),
        said("two", "Far too long.", author="ann", id="8"),
        said("one", author="bob", value=False),
        said("three", id="9"),
        said("three", thread_id="t"),
    )


async def left(bench: Bench) -> list[Episode]:
    found: list[Episode] = await bench.do("episodes")
    return found


SELECTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({"feedback_ids": "7"}, [0]),
    ({"feedback_ids": ["9", "8"]}, [1, 3]),
    ({"author": "ann"}, [0, 1]),
    ({"author": "bob"}, [2]),
    ({"author": "nobody"}, []),
    ({"where": lambda one: one.example.inputs == "three"}, [3, 4]),
    ({"where": lambda one: one.rationale and "long" in one.rationale}, [1]),
    ({"where": lambda one: "t" in one.thread_ids}, [4]),
    ({"where": lambda _: True}, [0, 1, 2, 3, 4]),
    ({"author": "ann", "where": lambda one: one.example.inputs == "one"}, [0]),
    ({"author": "bob", "feedback_ids": ["7"]}, []),
    ({"author": "ann", "feedback_ids": ["7", "9"]}, [0]),
]


@pytest.mark.parametrize(("selection", "expected"), SELECTIONS)
async def test_exactly_what_meets_all_that_is_given_is_forgotten(
    near: Bench, selection: dict[str, Any], expected: list[int]
) -> None:
    episodes = await five(near)
    forgotten = await near.do("forget", **selection)
    gone = {episodes[place].id for place in expected}
    assert set(forgotten.episode_ids) == gone
    assert await left(near) == [one for one in episodes if one.id not in gone]


async def test_by_expert_in_every_store(bench: Bench) -> None:
    episodes = await five(bench)
    await bench.learn(op("add", episodes[0], text="Ann's."), op("add", episodes[2], text="Bob's."))
    forgotten = await bench.do("forget", author="ann", by="admin")
    assert set(forgotten.episode_ids) == {episodes[0].id, episodes[1].id}
    assert [rule.text for rule in forgotten.guidelines_removed] == ["Ann's."]
    assert await bench.guidelines() == {"Bob's.": {episodes[2].id}}
    [newest, *_] = await bench.do("history")
    assert (newest.reason, newest.author, newest.episodes.removed) == ("forget", "admin", 2)


async def test_ids_and_an_expert_together(near: Bench) -> None:
    one, two, bobs, *_ = await five(near)
    forgotten = await near.do("forget", [one.id, bobs.id], author="ann")
    assert forgotten.episode_ids == [one.id]
    assert {each.id for each in await left(near)} >= {two.id, bobs.id}


async def test_ids_may_come_from_anywhere(near: Bench) -> None:
    episodes = await five(near)
    ids = (one.id for one in episodes[:2])
    assert len((await near.do("forget", ids)).episode_ids) == 2
    assert len((await near.do("forget", (episodes[2].id,))).episode_ids) == 1
    assert len((await near.do("forget", {episodes[3].id})).episode_ids) == 1


async def test_unknown_ids_are_told_in_their_order(near: Bench) -> None:
    one, *_ = await five(near)
    forgotten = await near.do("forget", ["b", one.id, "a", "b"])
    assert (forgotten.episode_ids, forgotten.unknown_ids) == ([one.id], ["b", "a"])


async def test_unknown_feedback_ids_are_told(near: Bench) -> None:
    one, *_ = await five(near)
    forgotten = await near.do("forget", feedback_ids=["nope", "7"])
    assert (forgotten.episode_ids, forgotten.unknown_ids) == ([one.id], ["nope"])


async def test_an_id_that_is_there_is_not_unknown_though_it_does_not_meet_the_rest(
    near: Bench,
) -> None:
    one, *_ = await five(near)
    forgotten = await near.do("forget", [one.id, "nope"], author="bob")
    assert (forgotten.episode_ids, forgotten.unknown_ids) == ([], ["nope"])


@pytest.mark.parametrize("purge", [False, True])
async def test_nothing_selected_is_an_error(near: Bench, *, purge: bool) -> None:
    episodes = await five(near)
    with pytest.raises(InvalidInputError, match=r"^episode_ids: say which episodes to forget"):
        await near.do("forget", purge=purge)
    assert await left(near) == episodes


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("ids", [[], ()])
async def test_an_empty_list_of_ids_forgets_nothing(near: Bench, ids: Any, *, purge: bool) -> None:
    episodes = await five(near)
    assert (await near.do("forget", ids, purge=purge)).episode_ids == []
    assert await left(near) == episodes


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"episode_ids": 5}, "episode_ids"),
    ({"episode_ids": [5]}, "episode_ids"),
    ({"episode_ids": [None]}, "episode_ids"),
    ({"feedback_ids": 5}, "feedback_ids"),
    ({"feedback_ids": [b"7"]}, "feedback_ids"),
    ({"author": ["ann"]}, "author"),
    ({"author": 3}, "author"),
    ({"where": "ann"}, "where"),
    ({"author": "ann", "by": 3}, "by"),
    ({"author": "ann", "checkpointer": "threads.db"}, "checkpointer"),
]


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize(("selection", "field"), WRONG)
async def test_what_can_not_select_is_refused_before_anything_is_done(
    near: Bench, selection: dict[str, Any], field: str, *, purge: bool
) -> None:
    await five(near)
    before = await near.items()
    with pytest.raises(InvalidInputError, match=rf"^{field}\b.*") as caught:
        await near.do("forget", purge=purge, **selection)
    assert "\n" not in str(caught.value)
    assert await near.items() == before


async def test_an_expert_is_found_by_the_name_that_was_kept(near: Bench) -> None:
    await near.remember(said(author=" ann "))
    assert len((await near.do("forget", author=" ann ")).episode_ids) == 1


async def test_a_filter_that_fails_forgets_nothing(near: Bench) -> None:
    episodes = await five(near)

    def fails(episode: Episode) -> bool:
        if episode.author == "bob":
            raise KeyError("bob")
        return True

    for purge in (False, True):
        with pytest.raises(KeyError):
            await near.do("forget", where=fails, purge=purge)
        assert await left(near) == episodes


async def test_a_memory_forgotten_whole_crashes_nothing_and_goes_on(bench: Bench) -> None:
    episodes = await five(bench)
    await bench.learn(op("add", *episodes, text="Of all."))
    await bench.do("forget", where=lambda _: True)
    assert await bench.do("episodes") == []
    assert await bench.do("guidelines") == []
    assert await bench.recall("one") == []
    await bench.remember(said("one"))
    assert await bench.recall("one") == ["one"]


async def test_no_trace_and_no_thread_is_needed(bench: Bench) -> None:
    await bench.remember(said("one", thread_id="gone", id="trace-of-elsewhere", author="ann"))
    forgotten = await bench.do("forget", feedback_ids="trace-of-elsewhere")
    assert len(forgotten.episode_ids) == 1
    assert await bench.do("episodes") == []
