"""Gates and panels that decide by evidence: the value routes, and what decided is shown."""

from typing import Any

import pytest
from langgraph.graph import END

from memalign_graph import (
    Criterion,
    InvalidInputError,
    Judgment,
    add_quality_gate,
    create_panel_graph,
)
from tests.conftest import CRITERION, Bench, Graph
from tests.integration_tests.evidence.judging_support import (
    Judge,
    case,
    earlier,
    learn,
    measurings,
    truth,
    verdicts,
    words,
)
from tests.integration_tests.gates.support import Writer, asked, models, writing
from tests.loopback import answer

NEXT = 34
"""A case like those that experts found wrong, and the judge finds right."""


class Coin:
    """A judge that is right on every other case of each topic, and always sure."""

    def __call__(self, chat: Any) -> Any:
        if "Case " not in chat.text.rpartition("<case>")[2]:
            return answer({"rationale": "Nothing to see.", "value": True})
        return Judge(
            value=lambda number: truth(number) if number // 4 % 2 else not truth(number),
            belief=lambda _: 0.8,
        )(chat)


async def taught(bench: Bench, **options: Any) -> None:
    bench.server.responder = Coin()
    await learn(bench, words(24), "learn", **options)
    bench.server.chats.clear()


def gate(bench: Bench, draft: int = NEXT, **options: Any) -> Graph:
    """A graph whose answer the gate is to judge as one of the cases."""
    builder = writing(Writer(*[str(case(draft)["outputs"])] * 3))
    options = {"revise": "write", "max_revisions": 1, "decide": "evidence", **options}
    given: Any = lambda _: case(draft)  # noqa: E731 - a caller's own function
    return bench.compile(
        add_quality_gate(
            builder, CRITERION, after="write", example=given, **models(bench, **options)
        )
    )


async def test_the_evidence_routes(bench: Bench) -> None:
    await taught(bench)
    assert not truth(NEXT)
    found = await bench.invoke(gate(bench), asked())
    verdict = found["quality_gate"]
    assert (verdict["status"], verdict["value"], verdict["decided_by"]) == (
        "exhausted",
        False,
        "judge",
    )
    judgment = Judgment.model_validate(verdict["judgment"])
    assert judgment.evidence is not None
    assert (judgment.evidence.decided_by, judgment.evidence.verdict) == ("evidence", True)
    # The judge's words speak for the answer, which did not pass.
    assert f"Seen {NEXT}." not in verdict["critique"]
    assert "Experts did not accept the answers most like this one." in verdict["critique"]
    by_verdict = await bench.invoke(gate(bench, decide="verdict"), asked(), "verdict")
    assert by_verdict["quality_gate"]["status"] == "accepted"
    assert by_verdict["quality_gate"]["judgment"]["evidence"] is None


async def test_where_both_refuse_the_judges_reason_is_told(bench: Bench) -> None:
    await taught(bench)
    number = NEXT - 4  # the judge is right on this one
    found = await bench.invoke(gate(bench, number), asked())
    assert found["quality_gate"]["value"] is False
    assert f"Seen {number}." in found["quality_gate"]["critique"]


async def test_how_sure_a_gate_is(bench: Bench) -> None:
    await taught(bench, confidence=True)
    found = await bench.invoke(gate(bench, confidence=True), asked())
    judgment = found["quality_gate"]["judgment"]
    assert judgment["probabilities"]["true"] == pytest.approx(0.8)
    assert judgment["confidence"] is not None
    assert len(measurings(bench)) == len(verdicts(bench))


async def test_an_expert_is_shown_both(bench: Bench) -> None:
    await taught(bench)
    graph = gate(bench, review="always")
    stopped = await bench.invoke(graph, asked())
    [request] = stopped["__interrupt__"][0].value["action_requests"]
    assert "### The judge says: true" in request["description"]
    assert "### The evidence says: false" in request["description"]
    assert request["args"]["value"] is False
    done = await bench.resume(graph, {"value": False, "rationale": "Say sorry."})
    assert done["quality_gate"]["decided_by"] == "expert"
    assert "Say sorry." in done["messages"][2].text


async def test_confirmed_words_are_not_those_of_an_outvoted_judge(bench: Bench) -> None:
    await taught(bench)
    review = bench.review_graph(review="always", decide="evidence")
    await bench.review(review, {"value": False}, case(NEXT), "review")
    bench.server.chats.clear()
    await bench.invoke(bench.judge_graph(k=20), case(NEXT + 4), "next")
    [chat] = verdicts(bench)
    assert NEXT in earlier(chat)
    # What the judge said for true is no reason for false.
    assert f"Seen {NEXT}." not in chat.text


OTHER = Criterion(name="length", instructions="Is the reply short?")


def panel(bench: Bench, **options: Any) -> Graph:
    return bench.compile(create_panel_graph([CRITERION, OTHER], **models(bench, **options)))


async def test_each_judge_of_a_panel_weighs_its_own_memory(bench: Bench) -> None:
    await taught(bench, confidence=True)
    await learn(bench, words(24, value=True), "other", criterion=OTHER)
    bench.server.chats.clear()
    embedded = len(bench.server.embeddings)
    graph = panel(bench, decide="evidence", confidence=True, k=0)
    found = await bench.invoke(graph, case(NEXT))
    tone, length = (found["judgments"][name] for name in (CRITERION.name, OTHER.name))
    assert tone["value"] is False
    assert (tone["evidence"]["decided_by"], tone["evidence"]["verdict"]) == ("evidence", True)
    assert tone["evidence"]["neighbours"]
    assert (length["value"], length["evidence"]["decided_by"]) == (True, "verdict")
    assert length["evidence"]["cases"] == 24
    assert tone["probabilities"]["true"] == pytest.approx(0.8)
    assert not any(earlier(chat) for chat in verdicts(bench))
    assert len(bench.server.embeddings) == embedded + 1


async def test_a_panels_form_shows_both(bench: Bench) -> None:
    await taught(bench)
    stopped = await bench.invoke(panel(bench, decide="evidence", review="always"), case(NEXT))
    [request] = stopped["__interrupt__"][0].value["action_requests"]
    assert request["args"][CRITERION.name] is False
    assert "The judge itself says true, because:" in request["description"]


async def test_a_panel_by_the_verdict_is_as_it_was(bench: Bench) -> None:
    await taught(bench)
    found = await bench.invoke(panel(bench, k=0), case(NEXT))
    assert found["judgments"][CRITERION.name]["value"] is True
    assert found["judgments"][CRITERION.name]["evidence"] is None
    assert measurings(bench) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decide": "votes"}, "decide: 'votes' is not known"),
        ({"samples": 2}, "samples: they measure"),
        ({"confidence": "yes"}, "confidence: 'yes' is neither"),
    ],
)
def test_what_can_not_be_used(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{says}"):
        create_panel_graph([CRITERION], **options)
    builder = writing(Writer("A draft."))
    with pytest.raises(InvalidInputError, match=f"^{says}"):
        add_quality_gate(builder, CRITERION, after="write", accept=END, **options)
