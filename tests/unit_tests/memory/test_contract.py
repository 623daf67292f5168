"""Every operation in every kind of store, sync and async."""

from datetime import UTC, datetime, timedelta
from typing import Any

from memalign_graph.io import ASYNC, SYNC
from memalign_graph.memory.history import Commit, history
from tests.unit_tests.memory.driver import EMPTY, FEEDBACK, LASTING, Actor
from tests.unit_tests.memory.purging import MARK, left_in, planted
from tests.unit_tests.memory.support import EVERY_STORE, QUERY, Bench, comment, dump, op

pytestmark = EVERY_STORE


async def test_example_survives_every_store(bench: Bench, reopen: Any) -> None:
    inputs = {"text": "ß 🙂 \u2028", "list": [1, 2.5, True, None, {}], "": 2**62, "float": 3.0}
    inputs |= {"z": {"second": 1e16, "first": -0.0}, "a": 1}
    [episode] = await bench.remember(comment(inputs))
    bench.embedded()
    reopen()
    [stored] = await bench.do("episodes")
    assert stored == episode
    assert dump(stored.to_json()) == dump(episode.to_json())  # also the order of its keys
    assert stored.example.id == episode.example_id
    [recalled] = await bench.do("recall", QUERY)
    assert recalled.example == episode.example
    assert len(bench.embedded()) == 1  # the query alone


async def test_retired_guideline_returns_when_its_successor_is_gone(bench: Bench) -> None:
    [episode, two] = await bench.remember(comment("one"), comment("two"))
    await bench.learn(op("add", episode, text="Always."))
    [guideline] = await bench.do("guidelines")
    await bench.learn(op("retire", two, guideline_id=guideline.id, text="Never.", reason="Newer."))
    [line] = await bench.do("guidelines")
    assert (line.text, line.episode_ids) == ("Never.", [two.id])
    [retired] = (await bench.do("history"))[0].retired
    assert (retired.superseded_by, retired.reason) == (line.id, "Newer.")
    forgotten = await bench.do("forget", two.id)
    assert [guideline.text for guideline in forgotten.guidelines_removed] == ["Never."]
    [back] = await bench.do("guidelines")
    assert (back.id, back.text, back.episode_ids) == (guideline.id, "Always.", [episode.id])


async def test_history_has_actor_time_reason_and_size_newest_first(bench: Bench) -> None:
    before = datetime.now(UTC)
    feedback = [comment(name, author="ann") for name in ("one", "two")]
    [episode, two] = await bench.remember(*feedback)
    await bench.learn(op("add", episode, text="Of one."), op("add", episode, two, text="Of both."))
    await bench.do("revise", two.id, {"rationale": "Another word."})
    await bench.do("forget", episode.id, by="eve")
    await bench.do("rollback", EMPTY, author="bob")
    commits: list[Commit] = await bench.do("history")
    io = ASYNC if bench.awaits else SYNC
    assert await history(io, bench.memory().access, 3) == commits[:3]
    assert [(item.reason, item.author) for item in commits] == [
        ("rollback", "bob"), ("forget", "eve"), ("revise", "ann"), ("learn", None),
        ("remember", "ann"),
    ]  # fmt: skip
    parts = [(item.episodes, item.guidelines) for item in commits]
    counts = [[(part.added, part.changed, part.removed) for part in both] for both in parts]
    assert counts == [
        [(0, 0, 1), (0, 0, 0)],
        [(0, 0, 1), (0, 0, 2)],
        [(0, 1, 0), (0, 1, 0)],
        [(0, 2, 0), (2, 0, 0)],
        [(2, 0, 0), (0, 0, 0)],
    ]
    times = [item.at for item in commits]
    assert times == sorted(times, reverse=True)
    assert before - timedelta(seconds=1) < times[-1] < times[0] < before + timedelta(minutes=1)
    assert commits[0].version == await bench.do("version") == EMPTY


async def test_diff_lists_additions_removals_and_changes(bench: Bench) -> None:
    [episode, two] = await bench.remember(comment("one"), comment("two"))
    guideline = await bench.do("add_guideline", "Kept.")
    gone = await bench.do("add_guideline", "Gone.")
    start = await bench.do("version")
    await bench.do("forget", episode.id)
    after = await bench.do("revise", two.id, {"rationale": "Another word."})
    [three] = await bench.remember(comment("three"))
    reworded = await bench.do("edit_guideline", guideline.id, "Reworded.")
    await bench.do("remove_guideline", gone.id)
    added = await bench.do("add_guideline", "Added.")
    end = await bench.do("version")

    for diffs in (await bench.do("diff", start), await bench.do("diff", start, end)):
        assert (diffs.episodes.added, diffs.episodes.removed) == ([three], [episode])
        [change] = diffs.episodes.changed
        assert (change.before, change.after) == (two, after)
        assert (diffs.guidelines.added, diffs.guidelines.removed) == ([added], [gone])
        [change] = diffs.guidelines.changed
        assert (change.before, change.after) == (guideline, reworded)
    back = await bench.do("diff", end, start)
    assert (back.episodes.added, back.episodes.removed) == ([episode], [three])
    same = await bench.do("diff", end)
    assert (same.episodes.added, same.episodes.removed, same.episodes.changed) == ([], [], [])


async def test_purged_feedback_leaves_no_trace_and_does_not_return(bench: Bench) -> None:
    [episode, item] = await bench.remember(comment("kept", author="bob"), planted("zqxold"))
    await bench.learn(op("add", item, text="zqxold"), op("add", item, episode, text="zqxold, kept"))
    await bench.remember(planted())
    version = await bench.do("version")
    await bench.do("forget", author="zqxann", purge=True, by="eve")
    assert left_in(await bench.items()) == []
    [newest, *_] = await bench.do("history")
    assert (newest.reason, newest.author) == ("purge", "eve")
    assert (newest.episodes.removed, newest.guidelines.removed) == (1, 1)
    restored = await bench.do("rollback", version)
    assert item.id in restored.missing
    assert [(each.id, each.status) for each in restored.episodes] == [(episode.id, "pending")]
    assert left_in(await bench.items()) == []
    assert await bench.recall("kept", k=9) == ["kept"]
    assert MARK not in await bench.do("export_jsonl")


STEPS = 60


async def test_every_version_can_be_read_and_restored(bench: Bench, reopen: Any) -> None:
    await bench.remember(*FEEDBACK)
    # What is imported has vectors of another embedder.
    actor = Actor(bench.memory(), 1, [name for name in LASTING if name != "import"])
    seen: dict[str, list[Any]] = {}
    for _ in range(STEPS):
        await actor.act(ASYNC if bench.awaits else SYNC)
        now = await bench.contents()
        assert seen.setdefault(await bench.do("version"), now) == now
    reopen()
    assert len(seen) > STEPS / 4
    assert actor.done.count("return") > 1
    for version, contents in seen.items():
        then = await bench.do("at", version)
        assert [guideline.to_json() for guideline in (*then.episodes, *then.guidelines)] == contents
        assert then.missing == []
    bench.embedded()
    for version in actor.random.sample(list(seen), 8):
        restored = await bench.do("rollback", version)
        assert await bench.contents() == seen[version]
        assert await bench.do("version") == restored.version == version
        assert (restored.missing, restored.episodes) == ([], await bench.do("episodes"))
        inputs = {episode.example.inputs for episode in restored.episodes}
        assert set(await bench.recall("new", k=50)) == inputs
    assert set(bench.embedded()) == {"new\n\na"}
    versions = {commit.version for commit in await bench.do("history")}
    assert set(seen) <= {*versions, EMPTY}
