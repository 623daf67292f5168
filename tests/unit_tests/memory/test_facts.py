"""Facts: what each holds, how they order, and that none is changed."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import JudgeMemory
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory import learning
from memalign_graph.memory.facts import clock, new_id
from tests.unit_tests.memory.acting import Actor
from tests.unit_tests.memory.support import (
    CRITERION,
    Bench,
    Opener,
    dump,
    hashed,
    interleaved,
    op,
    said,
)
from tests.unit_tests.memory.test_same_moment import commits


async def facts(bench: Bench) -> list[dict[str, Any]]:
    """The facts in the store, in their order."""
    items = await bench.items("facts")
    assert [item.key for item in items] == [item.value["id"] for item in items]
    return sorted((item.value for item in items), key=lambda value: str(value["id"]))


async def test_a_fact_can_be_read_by_people(bench: Bench) -> None:
    [one] = await bench.remember(said("one", "Too cold.", author="ann"))
    await bench.learn(op("add", one, text="Be warm."))
    first, learned = await facts(bench)
    assert (first["reason"], first["author"], learned["guidelines"][0]["text"]) == (
        "remember", "ann", "Be warm.",
    )  # fmt: skip
    assert datetime.fromisoformat(first["at"]).timestamp() * 1e6 == first["at_us"]
    assert first["id"].startswith(f"{first['at_us']}-")
    [word] = await bench.items("words")
    assert list(first["said"].items()) == [(one.id, word.key)]
    assert word.value["episode"] == one.to_json()
    [vector] = await bench.items("vectors")
    assert vector.value["vector"] not in dump([first, learned, word.value])


async def test_a_fact_names_its_reason_and_author(bench: Bench) -> None:
    await bench.remember(said(author="ann"), said("two", author="ann"))
    versions = [await bench.do("version")]
    await bench.remember(said(author="bob"), said(author="eve"))
    versions.append(await bench.do("version"))
    rule = await bench.do("add_guideline", "Be warm.", author="eve")
    versions.append(await bench.do("version"))
    await bench.do("remove_guideline", rule.id)
    versions.append(await bench.do("version"))
    assert [(one["reason"], one.get("author")) for one in await facts(bench)] == [
        ("remember", "ann"), ("remember", None), ("add_guideline", "eve"),
        ("remove_guideline", None),
    ]  # fmt: skip
    assert [one.version for one in await bench.do("history")] == versions[::-1]
    assert versions[3] == versions[1]
    assert len(set(versions)) == 3


async def test_no_fact_is_changed_by_what_comes_later(near: Bench) -> None:
    actor, before = Actor(near.memory(), seed=3), dict[tuple[Any, ...], Any]()
    for _ in range(40):
        run(actor.act(BLOCKING))
        items = [*await near.items("facts"), *await near.items("words")]
        now = {(*item.namespace, item.key): item.value for item in items}
        assert {key: now[key] for key in before} == before
        before = now


@pytest.mark.parametrize("count", [2, 5])
def test_n_learners_of_one_rule_write_n_facts(any_opener: Opener, count: int) -> None:
    memories = [JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in range(count)]
    episodes = memories[0].remember([said(f"case {number}") for number in range(count)])

    def learn(number: int) -> None:
        if number == count:
            return
        words = {episodes[number].id: episodes[number].word}
        operation = partial(
            learning.learn,
            access=memories[number].access,
            operations=[op("add", episodes[number], text="Say sorry.")],
            read=words,
        )
        interleaved(operation, commits, lambda: learn(number + 1))

    learn(0)
    assert len(memories[0].history()) == 1 + count
    for memory in memories:
        [rule] = memory.guidelines()
        assert set(rule.episode_ids) == {one.id for one in episodes}
        assert memory.version() == memories[0].version()


def test_keys_are_unique_and_sort_by_time() -> None:
    with ThreadPoolExecutor(8) as pool:
        times = list(pool.map(lambda _: clock.now_us(), range(2_000)))
    keys = [new_id(at_us) for at_us in sorted(times)]
    assert len(set(keys)) == len(set(times)) == 2_000
    assert keys == sorted(keys)
    assert len({new_id(times[0]) for _ in range(100)}) == 100


def test_the_clock_leaves_room_for_what_is_made_at_once() -> None:
    first = clock.now_us(ticks=1_000_000)
    assert clock.now_us() >= first + 1_000_000


def test_a_version_names_content_and_not_how_it_came_about() -> None:
    given = datetime(2026, 1, 1, tzinfo=UTC)
    here, there = (JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed) for _ in "12")
    assert here.version() == "0" * 32
    one, two, three = (said(name, given_at=given) for name in ("one", "two", "three"))
    here.remember([one, two])
    for word in (three, two, one):
        there.remember(word)
    assert here.version() != there.version()
    there.forget(three.episode_id)
    assert here.version() == there.version()
