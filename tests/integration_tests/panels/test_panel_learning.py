"""What an expert says of a criterion goes to its memory, and to no other."""

import pytest

from memalign_graph import Criterion
from tests.conftest import CASE, OTHER, Bench, distillings, judgings
from tests.integration_tests.panels.support import (
    ASPECTS,
    COLD,
    DOWN,
    FACTS,
    LENGTH,
    MIXED,
    NINE,
    PAIR,
    THREE,
    TONE,
    approved,
    asks_about,
    fails_to_distil,
    judged,
    judged_names,
    learned_texts,
    reviewed,
    values_of,
)
from tests.loopback import Reply, Rule, Together, refusal, truncated

HEED = "When judging, heed the expert: "


async def test_each_word_teaches_its_criterion_alone(bench: Bench) -> None:
    reply = {
        "tone": {"value": False, "rationale": "Say sorry."},
        "facts": "Name the order.",
        "author": "ann",
    }
    given = await bench.review(reviewed(bench), reply)
    assert await learned_texts(bench, THREE) == {
        "tone": [f"{HEED}Say sorry."],
        "facts": [f"{HEED}Name the order."],
        "length": [],
    }
    assert given["learned"].keys() == given["feedback"].keys() == {"tone", "facts"}
    for one in (TONE, FACTS):
        [episode] = await bench.episodes(criterion=one)
        assert given["learned"][one.name]["episode_ids"] == [episode.id]
        assert (episode.author, episode.thread_ids) == ("ann", ["t"])
        assert episode.judgment is not None
        assert episode.judgment.criterion == one.name
        assert given["learned"][one.name]["guidelines"][0]["action"] == "add"
    assert await bench.episodes(criterion=LENGTH) == []
    assert len(distillings(bench.server)) == 2


async def test_verdicts_are_not_made_again_on_resume(bench: Bench) -> None:
    graph = reviewed(bench, NINE)
    asked = await bench.invoke(graph, CASE)
    before = (await bench.state(graph)).values["judgments"]
    given = await bench.resume(graph, dict.fromkeys(ASPECTS, 1))
    assert judged_names(bench.server) == sorted(ASPECTS)
    assert given["judgments"] == before
    assert asked["judgments"] == before
    assert values_of(given) == dict.fromkeys(ASPECTS, 3)
    assert given["learned"].keys() == set(ASPECTS)


async def test_nine_are_distilled_at_once(bench: Bench) -> None:
    graph = reviewed(bench, NINE)
    await bench.invoke(graph, CASE)
    bench.server.responder = Together(len(NINE), bench.server.judge, "guideline_operations")
    given = await bench.resume(graph, {name: f"Look at the {name}." for name in ASPECTS})
    assert given["errors"] == {}
    texts = await learned_texts(bench, NINE)
    assert texts == {name: [f"{HEED}Look at the {name}."] for name in ASPECTS}


async def test_next_panel_and_a_plain_judge_use_what_was_learned(bench: Bench) -> None:
    graph = reviewed(bench)
    await bench.review(graph, {"tone": COLD})
    bench.server.chats.clear()
    await bench.invoke(graph, OTHER, "u")
    plain = await bench.invoke(bench.judge_graph(TONE), OTHER, "plain")
    other = await bench.invoke(bench.judge_graph(FACTS), OTHER, "other")
    assert len(plain["judgment"]["guideline_ids"]) == len(plain["judgment"]["episode_ids"]) == 1
    assert other["judgment"]["guideline_ids"] == other["judgment"]["episode_ids"] == []
    heeding = [chat for chat in judgings(bench.server) if f"{HEED}{COLD['rationale']}" in chat.text]
    assert len(heeding) == 2
    assert all(asks_about("tone")(chat) for chat in heeding)
    assert len(judgings(bench.server)) == len(THREE) + 2


async def test_what_a_plain_review_learned_the_panel_uses(bench: Bench) -> None:
    await bench.review(bench.review_graph(TONE), COLD, on="review")
    given = await bench.invoke(reviewed(bench), OTHER)
    assert len(given["judgments"]["tone"]["guideline_ids"]) == 1
    assert given["judgments"]["facts"]["guideline_ids"] == []


async def test_approving_confirms_every_value_without_a_model(bench: Bench) -> None:
    given = await bench.review(reviewed(bench), approved())
    assert distillings(bench.server) == []
    assert given["learned"].keys() == {one.name for one in THREE}
    for one in THREE:
        [episode] = await bench.episodes(criterion=one)
        assert (episode.value, episode.rationale, episode.status) == (True, None, "distilled")


async def test_same_word_again_is_the_same_episode(bench: Bench) -> None:
    graph = reviewed(bench)
    await bench.review(graph, {"tone": COLD, "author": "ann"})
    again = await bench.review(graph, {"tone": COLD, "author": "ann"}, on="u")
    assert again["learned"]["tone"]["guidelines"] == []
    assert len(await bench.episodes(criterion=TONE)) == 1
    await bench.review(graph, {"tone": COLD, "author": "bob"}, on="v")
    assert len(await bench.episodes(criterion=TONE)) == 2


async def test_values_are_stored_as_their_scales_write_them(bench: Bench) -> None:
    reply = {
        "polite": "no",
        "grade": "2",
        "share": "0.5",
        "level": "fair",
        "kind": "COMPLAINT",
        "better": "b",
    }
    await bench.review(reviewed(bench, MIXED), reply, PAIR)
    stored = {one.name: (await bench.episodes(criterion=one))[0].value for one in MIXED}
    assert stored == {
        "polite": False,
        "grade": 2,
        "share": 0.5,
        "level": "Fair",
        "kind": "Complaint",
        "better": "B",
    }
    assert type(stored["polite"]) is bool
    assert type(stored["grade"]) is int


FAILURES: dict[str, Reply | str] = {
    "down": DOWN,
    "prose": "Well.",
    "truncated": truncated('{"oper'),
    "refused": refusal(),
}


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_distilling_that_fails_for_one_is_said_and_the_others_learn(
    bench: Bench, failure: str
) -> None:
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    bench.server.rules = [fails_to_distil("facts", FAILURES[failure])]
    given = await bench.resume(graph, dict.fromkeys(("tone", "facts", "length"), COLD))
    assert given["learned"].keys() == {"tone", "length"}
    assert given["errors"].keys() == {"facts"}
    assert given["errors"]["facts"].startswith("The feedback is kept, and distilled by the next ")
    assert "\n" not in given["errors"]["facts"]
    assert given["feedback"].keys() == {"tone", "facts", "length"}
    assert (await bench.state(graph)).next == ()
    statuses = {one.name: (await bench.episodes(criterion=one))[0].status for one in THREE}
    assert statuses == {"tone": "distilled", "facts": "pending", "length": "distilled"}
    assert (await learned_texts(bench, [FACTS]))["facts"] == []


async def test_pending_feedback_is_taken_along_by_the_next_panel(bench: Bench) -> None:
    graph = reviewed(bench)
    await bench.invoke(graph, CASE)
    bench.server.rules = [fails_to_distil("facts")]
    await bench.resume(graph, {"facts": "The old word.", "tone": COLD})
    bench.server.rules = []
    bench.server.chats.clear()
    given = await bench.review(graph, {"facts": "The new word."}, OTHER, "u")
    [request] = distillings(bench.server)
    assert "The old word." in request.text
    assert "The new word." in request.text
    assert given["errors"] == {}
    assert {one.status for one in await bench.episodes(criterion=FACTS)} == {"distilled"}


async def test_expert_can_judge_what_the_judge_could_not(bench: Bench) -> None:
    unusable = {"rationale": "No.", "value": "?"}
    bench.server.rules = [*judged(tone=False)]
    bench.server.rules.append(_unusable("facts", unusable))
    graph = reviewed(bench)
    asked = await bench.invoke(graph, CASE)
    assert asked["judgments"].keys() == {"tone", "length"}
    given = await bench.resume(graph, {"facts": {"value": False, "rationale": "Wrong."}})
    assert given["feedback"]["facts"]["judgment"] is None
    [episode] = await bench.episodes(criterion=FACTS)
    assert (episode.value, episode.rationale) == (False, "Wrong.")
    assert await learned_texts(bench, [FACTS]) == {"facts": [f"{HEED}Wrong."]}


def _unusable(name: str, reply: dict[str, str]) -> Rule:
    return Rule(asks_about(name), reply=reply)


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a_rationale_of"],
        ["Ton der Antwort", "Größe", "丁寧さ"],
        ["value", "args", "rationale"],
    ],
    ids=["prefix", "unicode", "fields"],
)
async def test_names_of_any_kind_keep_their_memories_apart(bench: Bench, names: list[str]) -> None:
    criteria = [Criterion(name=name, instructions=f"Is {name} right?") for name in names]
    graph = reviewed(bench, criteria)
    given = await bench.review(graph, {name: f"Words on {name}." for name in names})
    assert given["learned"].keys() == set(names)
    texts = await learned_texts(bench, criteria)
    assert texts == {name: [f"{HEED}Words on {name}."] for name in names}
