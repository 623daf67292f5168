"""Backward flips: what was right, is not any more, and what turned it."""

from collections import Counter
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph.errors import InvalidInputError
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    by_rules,
    contents,
    judged,
    judgings,
    memory_of,
    remember,
    remembered,
    shown,
    word,
)
from tests.loopback import LoopbackServer

TRUE = [word(number, values=(True,)) for number in range(8)]


async def test_flip_by_a_guideline(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=by_rules(wrong=(4,)))
    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    memory.add_guideline("On #good thank them; true if they are thanked.")
    bad = memory.add_guideline("On #bad it is false of cases 1 3 4, always.")
    was = contents(memory)
    flips = await call("backward_flips", memory, since=since)
    assert contents(memory) == was
    # Of case 4 the judge was wrong before.
    assert [flip.example.inputs for flip in flips] == [TRUE[1]["inputs"], TRUE[3]["inputs"]]
    for flip in flips:
        assert (flip.turned_by, flip.guidelines) == ("guideline", [bad])
    # Each is judged as the deployed judge would: with its own episode.
    assert all(judged(chat) in shown(chat) for chat in judgings(server))


async def test_flip_by_guidelines_together(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=by_rules())
    memory, since = remembered(server, TRUE[:5])
    both = [
        memory.add_guideline(f"On #{name} it is false of cases 2, {name}.") for name in ("a", "b")
    ]
    (flip,) = await call("backward_flips", memory, since=since)
    assert flip.turned_by == "guidelines"
    assert flip.guidelines == both


async def test_flip_by_episodes(call: Caller, server: LoopbackServer) -> None:
    """The judge follows what else it is shown, and no guideline has a part in it."""
    server.responder = Model(judge=lambda chat: 60 not in shown(chat))
    memory, since = remembered(server, TRUE[:5])
    remember(memory, word(60, values=(False,)))
    memory.add_guideline("On #good thank them; true if they are thanked.")
    flips = await call("backward_flips", memory, since=since, k=10)
    assert len(flips) == 5
    assert {(flip.turned_by, len(flip.guidelines)) for flip in flips} == {("episodes", 0)}


@pytest.mark.parametrize("besides", [False, True])
async def test_flip_by_a_guideline_that_went(
    call: Caller, server: LoopbackServer, *, besides: bool
) -> None:
    """What is new and has no part in it is not named."""
    server.responder = Model(judge=by_rules(wrong=(2,)))
    rule = "On #keep it is true of cases 2, which look false."
    memory, _ = remembered(server, TRUE[:5])
    kept = memory.add_guideline(rule)
    since = memory.version()
    memory.remove_guideline(kept.id)
    if besides:
        memory.add_guideline("On #good thank them; true if they are thanked.")
    (flip,) = await call("backward_flips", memory, since=since)
    assert flip.turned_by == "removed"
    assert [one.text for one in flip.guidelines] == [rule]


async def test_flip_by_a_guideline_in_other_words(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=by_rules())
    memory, _ = remembered(server, TRUE[:5])
    rule = memory.add_guideline("On #x it is false of cases 90, always.")
    since = memory.version()
    edited = memory.edit_guideline(rule.id, "On #x it is false of cases 2 90, always.")
    (flip,) = await call("backward_flips", memory, since=since)
    assert flip.turned_by == "guideline"
    assert [one.text for one in flip.guidelines] == [edited.text]


async def test_no_flips_where_nothing_is_new(call: Caller, server: LoopbackServer) -> None:
    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    assert await call("backward_flips", memory, since=since) == []
    # One call a case: nothing changed, so the same prompt is not asked twice.
    assert len(judgings(server)) == 5


async def test_no_flips_of_an_empty_memory(call: Caller, server: LoopbackServer) -> None:
    memory = memory_of(server)
    assert await call("backward_flips", memory, since=memory.version()) == []
    assert await call("guideline_credit", memory) == []
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
    flips = await call("backward_flips", memory, since=since)
    assert [flip.example.inputs for flip in flips] == [TRUE[2]["inputs"]]


@pytest.mark.parametrize("since", ["nonsense", "", None, 7])
async def test_version_that_never_was(call: Caller, server: LoopbackServer, since: Any) -> None:
    memory, _ = remembered(server, TRUE[:5])
    asked(server)
    with pytest.raises(InvalidInputError, match="never had the version"):
        await call("backward_flips", memory, since=since)
    assert asked(server) == (0, 0)


@pytest.mark.parametrize("memory", [None, "memory", InMemoryStore()])
async def test_what_is_no_memory(call: Caller, memory: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^memory: give a JudgeMemory"):
        await call("backward_flips", memory, since="x")
    with pytest.raises(InvalidInputError, match=r"^memory: give a JudgeMemory"):
        await call("guideline_credit", memory)


async def test_memory_brings_its_own_embeddings(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key for the default ones, too; and nothing is embedded again."""
    from memalign_graph.evaluation import backward_flips, guideline_credit

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory, since = remembered(server, TRUE[:5])
    memory.add_guideline("On #good thank them; true if they are thanked.")
    asked(server)
    options: dict[str, Any] = {"model": server.chat_model(), "progress": False}
    assert backward_flips(memory, since=since, **options) == []
    assert len(guideline_credit(memory, **options)) == 1
    assert server.embeddings == []


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\r", "\x1d"])
async def test_memory_of_any_text(call: Caller, server: LoopbackServer, mark: str) -> None:
    """Lines that only some call lines."""
    memory = memory_of(server)
    remember(memory, {**TRUE[0], "inputs": f"Case 0: one{mark}two", "rationale": f"a{mark}b"})
    memory.add_guideline(f"On #x thank them{mark}; true if thanked.")
    assert len(await call("guideline_credit", memory)) == 1
    assert await call("backward_flips", memory, since=memory.version()) == []


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
    await call("backward_flips", memory, since=since)
    assert Counter(chat.text for chat in judgings(server)) == deployed
