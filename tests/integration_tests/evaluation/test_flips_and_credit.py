"""Flips and guideline credit, of a model that obeys the guidelines in its prompt."""

from collections import Counter
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.results import GuidelineCredit
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    by_rules,
    contents,
    judged,
    judgings,
    marker,
    memory_of,
    remember,
    remembered,
    shown,
    word,
    words,
)
from tests.loopback import LoopbackServer, Together

TRUE = [word(number, values=(True,)) for number in range(8)]


def credit_by_text(found: list[GuidelineCredit]) -> dict[str, GuidelineCredit]:
    return {one.guideline.text.split()[1]: one for one in found}


async def test_credit(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=by_rules(wrong=(1, 3)))
    memory = memory_of(server)
    remember(memory, *TRUE[:6])
    for rule in (
        "On #helpful it is true of cases 1 3, as said.",
        "On #useless name the order; true if it is named.",
        "On #harmful it is false of cases 0 4, always.",
        "On #both it is false of cases 2 5, always.",
        "On #either it is true of cases 2, of others none.",
    ):
        memory.add_guideline(rule)
    was = contents(memory)
    found = await call("guideline_credit", memory)
    assert contents(memory) == was
    assert [(one.guideline.text.split()[1], one.worth) for one in found] == [
        ("#harmful", "harmful"),
        ("#both", "harmful"),
        ("#useless", "useless"),
        ("#either", "useful"),
        ("#helpful", "useful"),
    ]
    by_text = credit_by_text(found)
    assert {one.shown_for for one in found} == {6}
    helpful, harmful = by_text["#helpful"], by_text["#harmful"]
    assert (helpful.helped, helpful.harmed, harmful.helped, harmful.harmed) == (2, 0, 0, 2)
    changed = {one.example.inputs: (one.after, one.before) for one in harmful.changed}
    assert changed == {TRUE[0]["inputs"]: (False, True), TRUE[4]["inputs"]: (False, True)}
    assert by_text["#useless"].changed == []
    # One judgment a case, and one more a guideline.
    assert len(judgings(server)) == 6 * (1 + 5)


async def test_credit_judges_cases_as_if_they_were_new(
    call: Caller, server: LoopbackServer
) -> None:
    """Their own episodes are not shown, of any expert; all others may be."""
    memory = memory_of(server)
    remember(memory, *TRUE[:4])
    remember(memory, word(2, author="bob", rationale="Bob: because2so, too."))
    memory.add_guideline("On #x thank them; true if they are thanked.")
    await call("guideline_credit", memory, k=50)
    assert len(judgings(server)) == 8
    samples = set()
    for seed in (0, 1, 2, 0):
        (found,) = await call("guideline_credit", memory, cases=2, seed=seed)
        assert found.shown_for == 2
        samples.add(frozenset(judged(chat) for chat in judgings(server)[-4:]))
    assert 1 < len(samples) < 4
    for chat in judgings(server):
        assert shown(chat) == {0, 1, 2, 3} - {judged(chat)}
        assert marker(judged(chat)) not in chat.text


async def test_limit_is_kept(call: Caller, server: LoopbackServer) -> None:
    memory, since = remembered(server, TRUE[:5])
    for number in range(5):
        memory.add_guideline(f"On #{number} it is false of cases {number} 4, indeed.")
    server.responder = Together(2, Model(judge=by_rules()))
    await call("guideline_credit", memory, max_concurrency=2)
    await call("flips", memory, since=since, max_concurrency=2)
    await call.evaluate(CRITERION, words(6), max_concurrency=2, batch_size=1)
    assert server.peak_chats == 2


async def test_flip_by_a_guideline(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=by_rules(wrong=(4,)))
    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    memory.add_guideline("On #good thank them; true if they are thanked.")
    bad = memory.add_guideline("On #bad it is false of cases 1 3 4, always.")
    was = contents(memory)
    found = await call("flips", memory, since=since)
    assert contents(memory) == was
    # Of case 4 the judge was wrong before.
    assert [flip.example.inputs for flip in found] == [TRUE[1]["inputs"], TRUE[3]["inputs"]]
    for flip in found:
        assert (flip.guidelines, flip.removed) == ([bad], [])
    # Each is judged as the deployed judge would: with its own episode.
    assert all(judged(chat) in shown(chat) for chat in judgings(server))


@pytest.mark.parametrize("besides", [False, True])
async def test_flip_by_a_guideline_that_went(
    call: Caller, server: LoopbackServer, *, besides: bool
) -> None:
    server.responder = Model(judge=by_rules(wrong=(2,)))
    rule = "On #keep it is true of cases 2, which look false."
    memory, _ = remembered(server, TRUE[:5])
    kept = memory.add_guideline(rule)
    since = memory.version()
    memory.remove_guideline(kept.id)
    if besides:
        memory.add_guideline("On #good thank them; true if they are thanked.")
    (flip,) = await call("flips", memory, since=since)
    assert [one.text for one in flip.removed] == [rule]
    assert len(flip.guidelines) == besides


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("flips", {"since": "nonsense"}, "never had the version"),
        ("flips", {"since": None}, "never had the version"),
        ("flips", {"memory": InMemoryStore(), "since": "x"}, "^memory: give a JudgeMemory"),
        ("guideline_credit", {"memory": None}, "^memory: give a JudgeMemory"),
        ("guideline_credit", {"cases": 0}, "^cases: "),
        ("guideline_credit", {"cases": True}, "^cases: "),
    ],
)
async def test_what_can_not_be_used(
    call: Caller, server: LoopbackServer, name: str, options: dict[str, Any], says: str
) -> None:
    memory, _ = remembered(server, TRUE[:5])
    asked(server)
    with pytest.raises(InvalidInputError, match=says):
        await call(name, **{"memory": memory, **options})
    assert asked(server) == (0, 0)


async def test_cases_of_which_experts_spoke_anew_are_no_flips(
    call: Caller, server: LoopbackServer
) -> None:
    """What the expert changed the word on, or another expert spoke of, was not broken."""
    server.responder = Model(judge=by_rules())
    memory, since = remembered(server, TRUE[:5])
    memory.add_guideline("On #bad it is false of cases 0 1 2, always.")
    first = next(one for one in memory.episodes() if one.example.inputs == TRUE[0]["inputs"])
    memory.revise(first.id, {"value": False, "rationale": "It is late."})
    remember(memory, word(1, values=(True,), author="bob"))
    found = await call("flips", memory, since=since)
    assert [flip.example.inputs for flip in found] == [TRUE[2]["inputs"]]


async def test_memory_brings_its_own_embeddings(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key for the default ones, too; and nothing is embedded again."""
    from memalign_graph.evaluation import flips, guideline_credit

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory, since = remembered(server, TRUE[:5])
    memory.add_guideline("On #good thank them; true if they are thanked.")
    asked(server)
    options: dict[str, Any] = {"model": server.chat_model(), "progress": False}
    assert flips(memory, since=since, **options) == []
    assert len(guideline_credit(memory, **options)) == 1
    assert server.embeddings == []


async def test_seen_cases_are_judged_as_the_deployed_judge_would(
    call: Caller, server: LoopbackServer
) -> None:
    """To the letter: what a flip says happens in production, too."""
    from memalign_graph import create_judge_graph

    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    graph: Any = create_judge_graph(CRITERION, **call.models()).compile(store=memory.access.store)
    for one in memory.episodes():
        graph.invoke({"inputs": one.example.inputs, "outputs": one.example.outputs})
    deployed = Counter(chat.text for chat in judgings(server))
    asked(server)
    await call("flips", memory, since=since)
    assert Counter(chat.text for chat in judgings(server)) == deployed
