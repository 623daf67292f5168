"""Ablations: what each way of judging is given, and learns from."""

import json
from collections import defaultdict
from typing import Any

import pytest

from memalign_graph.errors import InvalidInputError
from tests.conftest import CRITERION
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    earlier,
    judged,
    judgings,
    rules,
    shown,
    word,
    words,
)
from tests.loopback import ChatRequest, LoopbackServer

WAYS = ["none", "semantic only", "episodic only", "aligned", "labels only", "words only"]
GIVEN = words(6)


def by_way(server: LoopbackServer) -> dict[str, list[ChatRequest]]:
    """The judge's requests by what of the memory is in them."""
    found = defaultdict(list)
    for chat in judgings(server):
        answers = [
            json.loads(one["content"]) for one in chat.messages if one["role"] == "assistant"
        ]
        has_words = bool(answers) and bool(answers[0].get("rationale"))
        if earlier(chat) and not answers:
            found["words only"].append(chat)
        elif answers and not has_words:
            found["labels only"].append(chat)
        elif answers:
            found["aligned" if rules(chat) else "episodic only"].append(chat)
        else:
            found["semantic only" if rules(chat) else "none"].append(chat)
    return found


async def test_each_way_is_given_its_part(call: Caller, server: LoopbackServer) -> None:
    found = await call("ablate", CRITERION, GIVEN, folds=3)
    assert [one.judge for one in found.scores] == ["constant", "nearest", *WAYS]
    chats = by_way(server)
    assert {name: len(of) for name, of in chats.items()} == dict.fromkeys(WAYS, 6)
    for name in WAYS:
        assert {judged(chat) for chat in chats[name]} == set(range(6))
    for chat in chats["none"]:
        assert (shown(chat), earlier(chat), rules(chat)) == (set(), [], [])
    for chat in chats["semantic only"]:
        assert rules(chat)
        assert earlier(chat) == []
    for chat in chats["episodic only"]:
        assert len(earlier(chat)) == 4
        assert rules(chat) == []
    for chat in chats["aligned"]:
        assert len(earlier(chat)) == len(rules(chat)) == 4
    against = {one.judge: one.against for one in found.comparisons if one.against == "none"}
    assert set(against) == set(WAYS) - {"none"}


async def test_labels_only_learns_no_words(call: Caller, server: LoopbackServer) -> None:
    found = await call("ablate", CRITERION, GIVEN, folds=2)
    chats = by_way(server)
    assert len(chats["labels only"]) == 6
    for chat in chats["labels only"]:
        assert shown(chat) == set()
        assert len(earlier(chat)) == 3
    for chat in chats["words only"]:
        assert shown(chat)
        assert "The expert's value" not in chat.text
    for memory in found.memories:
        told = " ".join(one.text for one in memory.guidelines)
        assert ("because" in told) == (memory.judge != "labels only")
        assert memory.episodes == 3
    # Three ways share a memory: it is learned once.
    distilled = [chat for chat in server.chats if chat.schema_name == "guideline_operations"]
    assert len(distilled) == 2 * 3


async def test_words_only_of_experts_who_gave_none(call: Caller, server: LoopbackServer) -> None:
    """Nothing is learned, which is said."""
    given = [word(n, rationale=None) for n in range(6)]
    found = await call("ablate", CRITERION, given, folds=2)
    for case in found.cases:
        assert case.judgments["words only"].guideline_ids == []
        assert case.judgments["words only"].episode_ids == []
    told = [*found.warnings, *(one for memory in found.memories for one in memory.warnings)]
    assert any("words" in one or "rationale" in one for one in told)


async def test_other_numbers_of_examples(call: Caller, server: LoopbackServer) -> None:
    found = await call("ablate", CRITERION, GIVEN, folds=2, k=2, ks=[0, 1, 2])
    names = [one.judge for one in found.scores][2:]
    assert names == [*WAYS, "k=0", "k=1"]
    sizes = {
        name: {len(case.judgments[name].episode_ids) for case in found.cases} for name in names
    }
    assert sizes["aligned"] == {2}
    assert (sizes["k=0"], sizes["k=1"]) == ({0}, {1})


async def test_same_number_twice_is_one_way(once: Caller) -> None:
    found = await once("ablate", CRITERION, GIVEN, folds=2, ks=[1, 1])
    assert [one.judge for one in found.scores].count("k=1") == 1


async def test_other_models(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=lambda chat: chat.model == "good")
    models = {name: server.chat_model(model=name) for name in ("good", "bad")}
    found = await call("ablate", CRITERION, GIVEN, folds=2, models=models)
    names = [one.judge for one in found.scores][2:]
    assert names == [*WAYS, "good: none", "good: aligned", "bad: none", "bad: aligned"]
    for name in names:
        values = {case.value_of(name) for case in found.cases}
        assert values == {name.startswith("good")}, name
    # Each model distils for itself, unless told who does.
    assert {chat.model for chat in server.chats if chat.schema_name != "judgment"} == {
        "good",
        "bad",
        "gpt-4.1-mini",
    }
    asked(server)
    await call("ablate", CRITERION, GIVEN, folds=2, models=models, distill_model=models["good"])
    assert {chat.model for chat in server.chats if chat.schema_name != "judgment"} == {"good"}


async def test_models_by_name(
    once: Caller, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    found = await once("ablate", CRITERION, GIVEN, folds=2, models=["openai:gpt-x", "openai:gpt-x"])
    names = [one.judge for one in found.scores][8:]
    assert names == ["openai:gpt-x: none", "openai:gpt-x: aligned"]
    assert "gpt-x" in {chat.model for chat in server.chats}


async def test_told_cases(call: Caller, server: LoopbackServer) -> None:
    found = await call("ablate", CRITERION, GIVEN, test=[word(2), word(50)])
    assert found.folds == 1
    assert not any({2, 50} & shown(chat) for chat in server.chats)
    assert {len(case.judgments) for case in found.cases} == {6}


async def test_no_way_sees_its_own_case(call: Caller, server: LoopbackServer) -> None:
    given = [*GIVEN, *[word(n, author="bob", rationale=f"Bob: because{n}so.") for n in range(3)]]
    await call("ablate", CRITERION, given, folds=2)
    assert len(judgings(server)) == 36
    for chat in judgings(server):
        assert judged(chat) not in {*shown(chat), *earlier(chat)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ks": [-1]}, "k: -1 is too little"),
        ({"ks": 3}, "ks: give whole numbers"),
        ({"ks": "3"}, "ks: give whole numbers"),
        ({"ks": [1.5]}, "k: 1.5 is not"),
        ({"models": ["nonsense"]}, "model: 'nonsense' names no model"),
        ({"models": {"a": 5}}, "model"),
        ({"models": 5}, "models: "),
        ({"models": [5]}, "models: give chat models by the name"),
        ({"swap": True}, "swap: only"),
        ({"use_guidelines": False}, "use_guidelines: an ablation leaves out each part"),
        ({"use_episodes": False}, "use_episodes: an ablation leaves out each part"),
        ({"no_guidelines": True}, "no_guidelines: is not a field"),
    ],
)
async def test_what_can_not_be_used(
    once: Caller, server: LoopbackServer, options: Any, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{says}"):
        await once("ablate", CRITERION, GIVEN, folds=2, **options)
    assert asked(server) == (0, 0)


async def test_chat_models_without_names(once: Caller, server: LoopbackServer) -> None:
    with pytest.raises(InvalidInputError, match=r"^models: give chat models by the name"):
        await once("ablate", CRITERION, GIVEN, folds=2, models=[server.chat_model()])
    assert asked(server) == (0, 0)
