"""A panel in every store, blocking and awaited; each call on a new graph."""

from typing import Any

from memalign_graph import Aggregate
from tests.conftest import CASE, COLD, EVERY_WAY, OTHER, Bench, Graph, distillings
from tests.integration_tests.panels.support import (
    FACTS,
    LENGTH,
    NAMES,
    THREE,
    TONE,
    approved,
    fails,
    form_of,
    judged_names,
    learned_texts,
    reviewed,
)

HEED = "When judging, heed the expert: "
WHERE = {"namespace": ["shop", "emea"]}
RULE = Aggregate(weights={"tone": 2}, vetoes={"facts": True}, passes=0.5)


@EVERY_WAY
async def test_panel(bench: Bench) -> None:
    def graph() -> Graph:
        return reviewed(bench, aggregate=RULE)

    modes = ["custom", "updates"]
    parts = await bench.stream(graph(), CASE, stream_mode=modes, context=WHERE)
    events = [part for mode, part in parts if mode == "custom"]
    assert sorted(event["criterion"] for event in events) == sorted(NAMES)
    assert {(event["type"], event["value"]) for event in events} == {("panel_judgment", True)}
    nodes = [next(iter(part)) for mode, part in parts if mode == "updates"]
    assert nodes == ["retrieve_episodes", "judge_criteria", "__interrupt__"]
    state = await bench.state(graph())
    assert state.values["aggregate"]["score"] == 1.0
    form = form_of({"__interrupt__": state.interrupts})
    same = {"type": "edit", "edited_action": {"name": form["name"], "args": form["args"]}}
    replies: list[tuple[Any, str]] = [
        ("Too cold.", "a reply of type str is not understood"),
        ({"mood": 1}, "which is no criterion"),
        ({"tone": 7}, "tone: 7 is not on the scale"),
        (
            {"decisions": [same]},
            "nothing in the form was changed",
        ),
        ({"tone": False, "author": "a\x00b"}, "`author` holds a NUL character"),
    ]
    for reply, problem in replies:
        assert problem in await bench.refuse(graph(), reply)
        assert (await bench.state(graph())).interrupts[0].id == state.interrupts[0].id
    reply = {"tone": COLD, "facts": "Name the order.", "author": "ann"}
    given = await bench.resume(graph(), reply)
    assert set(given) - {*CASE, "__interrupt__"} == {
        *("judgments", "errors", "aggregate", "feedback", "learned"),
    }
    assert given["learned"].keys() == given["feedback"].keys() == {"tone", "facts"}
    assert given["judgments"] == state.values["judgments"]
    assert given["errors"] == {}
    assert given["aggregate"] == {
        "score": 0.5,
        "passed": True,
        "parts": {"tone": 0.0, "facts": 1.0, "length": 1.0},
        "vetoed_by": [],
        "missing": [],
    }
    assert judged_names(bench.server) == sorted(NAMES)
    assert len(distillings(bench.server)) == 2
    assert await learned_texts(bench, THREE, namespace=("shop", "emea")) == {
        "tone": [f"{HEED}{COLD['rationale']}"],
        "facts": [f"{HEED}Name the order."],
        "length": [],
    }
    for one in (TONE, FACTS):
        assert await bench.episodes(criterion=one) == []
        [episode] = await bench.episodes(criterion=one, namespace=("shop", "emea"))
        assert given["learned"][one.name]["episode_ids"] == [episode.id]
        assert (episode.author, episode.thread_ids) == ("ann", ["t"])
        assert episode.judgment is not None
        assert episode.judgment.id == given["judgments"][one.name]["id"]

    bench.server.rules = [fails("length")]
    given = await bench.invoke(graph(), OTHER, context=WHERE)
    assert len(given["judgments"]["tone"]["guideline_ids"]) == 1
    assert given["errors"].keys() == {"length"}
    assert given["aggregate"]["missing"] == ["length"]
    assert (given["feedback"], given["learned"]) == (None, {})
    assert "### length: not judged" in form_of(given)["description"]
    given = await bench.resume(graph(), approved())
    assert given["feedback"].keys() == given["learned"].keys() == {"tone", "facts"}
    assert len(distillings(bench.server)) == 2
    assert await bench.episodes(criterion=LENGTH, namespace=("shop", "emea")) == []
