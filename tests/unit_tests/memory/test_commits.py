"""Commits: what each holds, and how they order."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from memalign_graph import JudgeMemory
from memalign_graph.memory import operations
from memalign_graph.memory.records import clock, commit_id, revision_of, version_of, weight
from tests.unit_tests.memory.support import (
    CRITERION,
    Bench,
    Opener,
    hashed,
    interleaved,
    op,
    said,
    writes,
)


async def ordered(bench: Bench, kind: str) -> list[dict[str, Any]]:
    items = await bench.items(kind)
    assert [item.key for item in items] == [item.value["id"] for item in items]
    return sorted((item.value for item in items), key=lambda value: str(value["id"]))


async def commits(bench: Bench) -> list[dict[str, Any]]:
    return await ordered(bench, "facts")


async def changes(bench: Bench) -> list[list[dict[str, Any]]]:
    """What each commit changed, in the order of the commits."""
    found = await ordered(bench, "changes")
    assert [one["id"] for one in found] == [one["id"] for one in await commits(bench)]
    return [one["changes"] for one in found]


async def test_a_commit_holds_an_integer_time_of_sixteen_digits(bench: Bench) -> None:
    await bench.remember(said())
    [commit] = await commits(bench)
    assert isinstance(commit["at_us"], int)
    assert len(str(commit["at_us"])) == 16
    assert commit["id"].startswith(f"{commit['at_us']}-")


async def test_a_commit_names_its_reason_author_and_version(bench: Bench) -> None:
    await bench.remember(said(author="ann"), said("two", author="ann"))
    versions = [await bench.do("version")]
    await bench.remember(said(author="bob"), said(author="eve"))
    versions.append(await bench.do("version"))
    rule = await bench.do("add_guideline", "Be warm.", author="eve")
    versions.append(await bench.do("version"))
    await bench.do("remove_guideline", rule.id)
    versions.append(await bench.do("version"))
    found = await commits(bench)
    assert [(one["reason"], one["author"]) for one in found] == [
        ("remember", "ann"), ("remember", None), ("add_guideline", "eve"),
        ("remove_guideline", None),
    ]  # fmt: skip
    assert [one["version"] for one in found] == versions
    assert versions[3] == versions[1]
    assert len(set(versions)) == 3


async def test_a_commits_parents_are_the_newest_its_writer_saw(bench: Bench) -> None:
    for name in ("one", "two", "three"):
        await bench.remember(said(name))
    first, second, third = await commits(bench)
    assert (first["parents"], second["parents"], third["parents"]) == (
        [], [first["id"]], [second["id"]],
    )  # fmt: skip


async def test_a_commit_keeps_what_was_before(bench: Bench) -> None:
    [one] = await bench.remember(said())
    [edited] = await bench.remember(said(rationale="Another word."))
    await bench.do("forget", one.id)
    made, changed, gone = await changes(bench)
    about = {"kind": "episodes", "id": one.id, "purged": False}
    assert made == [
        {**about, "revision": revision_of(one.to_json()), "before": None, "after": None}
    ]
    assert changed[0]["before"] == one.to_json()
    assert changed[0]["revision"] == revision_of(edited.to_json())
    assert gone == [{**about, "revision": None, "before": edited.to_json(), "after": None}]


async def test_a_commit_says_how_much_it_changed_and_not_what(bench: Bench) -> None:
    [one, _] = await bench.remember(said("one", "PLANTED"), said("two", "PLANTED"))
    await bench.learn(op("add", one, text="PLANTED rule."))
    await bench.remember(said("one", "Another word."), said("three"))
    first, learned, last = await commits(bench)
    assert first["episodes"] == {"added": 2, "changed": 0, "removed": 0}
    assert first["guidelines"] == {"added": 0, "changed": 0, "removed": 0}
    assert learned["episodes"] == {"added": 0, "changed": 2, "removed": 0}
    assert learned["guidelines"] == {"added": 1, "changed": 0, "removed": 0}
    assert last["episodes"] == {"added": 1, "changed": 1, "removed": 0}
    assert last["guidelines"] == {"added": 0, "changed": 0, "removed": 1}
    assert "PLANTED" not in str([first, learned, last])


async def test_a_commit_keeps_a_guideline_before_and_after(bench: Bench) -> None:
    rule = await bench.do("add_guideline", "Be warm.")
    after = await bench.do("edit_guideline", rule.id, "Be kind.")
    _, [edited] = await changes(bench)
    assert (edited["before"], edited["after"]) == (rule.to_json(), after.to_json())


async def test_a_commit_names_every_item_it_changed_and_no_other(bench: Bench) -> None:
    [one, _] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Be warm."))
    await bench.remember(said("one", "Another word."), said("two"))
    last = (await changes(bench))[-1]
    rules = [change for change in last if change["kind"] == "guidelines"]
    assert [change["id"] for change in last if change not in rules] == [one.id]
    assert [(change["revision"], change["before"]["text"]) for change in rules] == [
        (None, "Be warm.")
    ]


def test_writers_that_did_not_see_each_other_are_both_parents_of_the_next(
    any_opener: Opener,
) -> None:
    here, there, later = (JudgeMemory(any_opener(), CRITERION, embeddings=hashed) for _ in "123")
    interleaved(
        lambda io: operations.add_guideline(io, here.access, "Of one.", author=None),
        writes,
        lambda: there.add_guideline("Of two."),
    )
    assert len(later.guidelines()) == 2
    later.version()
    both = later.access.view.heads
    assert len(both) == 2
    later.add_guideline("Of three.")
    here.version()
    [newest] = here.access.view.heads
    assert newest not in both
    assert here.version() == there.version() == later.version()


def test_keys_are_unique_and_sort_by_time() -> None:
    with ThreadPoolExecutor(8) as pool:
        times = list(pool.map(lambda _: clock.now_us(), range(2_000)))
    keys = [commit_id(at_us) for at_us in sorted(times)]
    assert len(set(keys)) == len(set(times)) == 2_000
    assert keys == sorted(keys)
    assert len({commit_id(times[0]) for _ in range(100)}) == 100


def test_the_clock_leaves_room_for_what_is_made_at_once() -> None:
    first = clock.now_us(ticks=1_000_000)
    assert clock.now_us() >= first + 1_000_000


def test_a_version_names_content_and_not_how_it_came_about() -> None:
    weights = [weight(f"item {number}", "revision") for number in range(5)]
    assert version_of(sum(weights)) == version_of(sum(reversed(weights)))
    assert version_of(sum(weights) - weights[2]) != version_of(sum(weights))
    assert version_of(sum(weights) - weights[2] + weights[2]) == version_of(sum(weights))
    assert weight("a", "b") != weight("b", "a")
    assert len(version_of(0)) == 32
