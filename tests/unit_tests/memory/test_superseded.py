"""Superseded guidelines: kept with the reason, out of the prompt, and never without an heir."""

from tests.unit_tests.memory.support import Bench, op, said


async def test_a_retired_guideline_is_kept_as_superseded(bench: Bench) -> None:
    [one] = await bench.remember(said())
    await bench.learn(op("add", one, text="Be warm."))
    [rule] = await bench.do("guidelines")
    learned = await bench.learn(op("retire", one, guideline_id=rule.id))
    assert await bench.do("guidelines") == []
    [kept] = await bench.do("guidelines", )
    assert (kept.id, kept.text, kept.status) == (rule.id, "Be warm.", "superseded")
    assert (kept.superseded_by, kept.reason) == (None, "Newer feedback says otherwise.")
    again = await bench.learn(op("retire", one, guideline_id=rule.id))
    assert again["memory_version"] == learned["memory_version"]


async def test_a_superseded_guideline_names_what_took_its_place(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Always."))
    [rule] = await bench.do("guidelines")
    await bench.learn(op("retire", two, guideline_id=rule.id, text="Never.", reason="Newer."))
    [standing] = await bench.do("guidelines")
    assert (standing.text, standing.episode_ids) == ("Never.", [two.id])
    [kept, _] = await bench.do("guidelines", )
    assert (kept.superseded_by, kept.reason) == (standing.id, "Newer.")
    assert kept.episode_ids == [one.id]


async def test_a_superseded_guideline_goes_with_any_of_its_sources(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, two, text="Always."))
    [rule] = await bench.do("guidelines")
    await bench.learn(op("retire", guideline_id=rule.id))
    forgotten = await bench.do("forget", one.id)
    assert [gone.id for gone in forgotten.guidelines_removed] == [rule.id]
    assert await bench.do("guidelines", ) == []


async def test_a_lesson_in_the_words_of_a_superseded_guideline_makes_it_stand(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Always."))
    [rule] = await bench.do("guidelines")
    await bench.learn(op("retire", guideline_id=rule.id))
    await bench.learn(op("add", two, text="ALWAYS"))
    [again] = await bench.do("guidelines")
    assert (again.id, again.superseded_by, again.reason) == (rule.id, None, None)
    assert again.episode_ids == [one.id, two.id]


async def superseded(bench: Bench) -> tuple[str, str, str]:
    """The ids of a rule that one, and of a rule that two of three episodes taught, and the third.

    The second took the place of the first."""
    one, two, three, four = await bench.remember(*map(said, ("one", "two", "three", "four")))
    await bench.learn(
        op("add", one, text="Always."),
        op("add", two, three, text="Never."),
        op("add", four, text="Seldom."),
    )
    always, never, seldom = [rule.id for rule in await bench.do("guidelines")]
    await bench.learn(op("retire", guideline_id=always, superseded_by=never))
    return always, never, seldom


async def standing(bench: Bench) -> dict[str, str | None]:
    """What superseded each guideline, by text."""
    everything = await bench.do("guidelines", )
    ids = {rule.id for rule in everything} | {None}
    assert {rule.superseded_by for rule in everything} <= ids
    return {rule.text: rule.superseded_by for rule in everything}


async def test_what_takes_the_winner_over_takes_its_place_over(bench: Bench) -> None:
    always, never, seldom = await superseded(bench)
    await bench.learn(op("merge", guideline_id=never, superseded_by=seldom))
    assert await standing(bench) == {"Always.": seldom, "Seldom.": None}
    assert len(await bench.do("guidelines")) == 1
    assert always != seldom


async def test_a_winner_worded_as_another_hands_its_place_on(bench: Bench) -> None:
    _, never, seldom = await superseded(bench)
    await bench.learn(op("revise", guideline_id=never, text="SELDOM"))
    assert await standing(bench) == {"Always.": seldom, "Seldom.": None}


async def test_when_nothing_is_left_of_the_winner_the_loser_stands_again(bench: Bench) -> None:
    _, never, _ = await superseded(bench)
    [two] = [one for one in await bench.do("episodes") if one.example.inputs == "two"]
    await bench.do("forget", two.id)
    assert (await standing(bench))["Always."] == never
    await bench.learn(op("retire", guideline_id=never))
    assert await standing(bench) == {"Always.": None, "Seldom.": None}
    assert [rule.text for rule in await bench.do("guidelines")] == ["Always.", "Seldom."]


async def test_a_winner_taken_away_by_hand_leaves_no_rule_superseded_by_nothing(
    bench: Bench,
) -> None:
    _, never, _ = await superseded(bench)
    await bench.do("remove_guideline", never)
    assert (await standing(bench))["Always."] is None


async def test_a_guideline_superseded_twice_names_the_last_of_them(bench: Bench) -> None:
    _, never, seldom = await superseded(bench)
    await bench.learn(op("retire", guideline_id=never, superseded_by=seldom))
    assert await standing(bench) == {"Always.": never, "Never.": seldom, "Seldom.": None}
    four = [one for one in await bench.do("episodes") if one.example.inputs == "four"]
    await bench.do("forget", four[0].id)
    assert await standing(bench) == {"Always.": never, "Never.": None}


async def test_a_pending_or_superseded_guideline_can_be_worded_and_taken_away_by_hand(
    bench: Bench,
) -> None:
    one, two = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, two, text="Of both."), op("add", two, text="Old."))
    both, old = [rule.id for rule in await bench.do("guidelines")]
    await bench.learn(op("retire", guideline_id=old))
    await bench.do("forget", one.id)
    after = await bench.do("edit_guideline", both, "The expert's words.", author="ann")
    assert (after.status, after.origin, after.episode_ids) == ("standing", "expert", [two.id])
    assert await bench.do("guidelines") == [after]
    for key in (both, old):
        await bench.do("remove_guideline", key)
    assert await bench.do("guidelines", ) == []
