"""Guidelines that were retired or merged: gone, by what and why, while what calls for it stands."""

from tests.unit_tests.memory.support import Bench, op, said


async def test_a_retired_guideline_goes_and_the_commit_says_why(bench: Bench) -> None:
    [one] = await bench.remember(said())
    await bench.learn(op("add", one, text="Be warm."))
    [rule] = await bench.do("guidelines")
    learned = await bench.learn(op("retire", one, guideline_id=rule.id))
    assert await bench.do("guidelines") == []
    [retired] = (await bench.do("history"))[0].retired
    assert (retired.guideline_id, retired.superseded_by) == (rule.id, None)
    assert retired.reason == "Newer feedback says otherwise."
    again = await bench.learn(op("retire", one, guideline_id=rule.id))
    assert again["memory_version"] == learned["memory_version"]


async def test_what_took_its_place_is_named_and_the_loser_comes_back_with_its_end(
    bench: Bench,
) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Always."))
    [rule] = await bench.do("guidelines")
    await bench.learn(op("retire", two, guideline_id=rule.id, text="Never.", reason="Newer."))
    [standing] = await bench.do("guidelines")
    assert (standing.text, standing.episode_ids) == ("Never.", [two.id])
    [retired] = (await bench.do("history"))[0].retired
    assert (retired.superseded_by, retired.reason) == (standing.id, "Newer.")
    await bench.do("forget", two.id)
    [back] = await bench.do("guidelines")
    assert (back.id, back.text, back.episode_ids) == (rule.id, "Always.", [one.id])


async def test_settled_by_id_the_loser_comes_back_with_the_end_of_the_winner(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Always."), op("add", two, text="Never."))
    always, never = [rule.id for rule in await bench.do("guidelines")]
    await bench.learn(op("retire", guideline_id=always, superseded_by=never))
    assert await bench.guidelines() == {"Never.": {two.id}}
    await bench.do("forget", two.id)
    assert await bench.guidelines() == {"Always.": {one.id}}


async def test_a_rule_said_again_stands_again(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Always."))
    [rule] = await bench.do("guidelines")
    await bench.learn(op("retire", guideline_id=rule.id))
    await bench.learn(op("add", two, text="ALWAYS"))
    [again] = await bench.do("guidelines")
    assert (again.id, again.episode_ids) == (rule.id, [two.id])


async def test_a_winner_taken_away_by_hand_brings_nothing_back(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Always."), op("add", two, text="Never."))
    always, never = [rule.id for rule in await bench.do("guidelines")]
    await bench.learn(op("retire", guideline_id=always, superseded_by=never))
    await bench.do("remove_guideline", never)
    assert await bench.do("guidelines") == []


async def test_merged_its_sources_are_the_winners(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Always."), op("add", two, text="At all times."))
    first, second = [rule.id for rule in await bench.do("guidelines")]
    await bench.learn(op("merge", guideline_id=second, superseded_by=first))
    assert await bench.guidelines() == {"Always.": {one.id, two.id}}
    await bench.do("forget", one.id)
    [rule] = await bench.do("guidelines")
    assert (rule.text, rule.status, rule.episode_ids) == ("Always.", "pending", [two.id])
