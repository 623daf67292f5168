"""Flips of a model that obeys the guidelines in its prompt."""

from collections import Counter
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import InvalidInputError, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import commit_lesson
from tests.conftest import CRITERION, judgings
from tests.integration_tests.alignment_model import judge_by_guidelines, judged_case
from tests.integration_tests.evaluation.support import (
    Caller,
    Model,
    asked,
    contents,
    memory_of,
    record,
    remember,
    shown,
)
from tests.loopback import LoopbackServer, answer

TRUE = [record(number, values=(True,)) for number in range(8)]


def remembered(server: LoopbackServer, feedback: Any, *guidelines: str) -> tuple[JudgeMemory, str]:
    """A memory with some feedback and guidelines, and its version."""
    memory = memory_of(server, feedback, *guidelines)
    return memory, memory.version()


async def test_flip_by_a_guideline(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=judge_by_guidelines(wrong=(4,)))
    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    memory.add_guideline("On #good thank them; true if they are thanked.")
    bad = memory.add_guideline("On #bad it is false of cases 1 3 4, always.")
    was = contents(memory)
    flips = await call("flips", memory, since=since)
    assert contents(memory) == was
    # The judge was wrong on case 4 before.
    assert [flip.example.inputs for flip in flips] == [TRUE[1]["inputs"], TRUE[3]["inputs"]]
    for flip in flips:
        assert (flip.guidelines, flip.removed) == ([bad], [])
    # Each is judged as in production, with its own episode.
    assert all(judged_case(chat) in shown(chat) for chat in judgings(server))


@pytest.mark.parametrize("adds_another", [False, True])
async def test_flip_by_a_retired_guideline(
    call: Caller, server: LoopbackServer, *, adds_another: bool
) -> None:
    server.responder = Model(judge=judge_by_guidelines(wrong=(2,)))
    guideline = "On #keep it is true of cases 2, which look false."
    memory, _ = remembered(server, TRUE[:5])
    guideline_kept = memory.add_guideline(guideline)
    since = memory.version()
    memory.remove_guideline(guideline_kept.id)
    if adds_another:
        memory.add_guideline("On #good thank them; true if they are thanked.")
    (flip,) = await call("flips", memory, since=since)
    assert [item.text for item in flip.removed] == [guideline]
    assert len(flip.guidelines) == adds_another


async def test_guideline_that_lost_a_source_is_used(call: Caller, server: LoopbackServer) -> None:
    """As by the deployed judge: it waits to be distilled again."""
    server.responder = Model(judge=judge_by_guidelines(wrong=(2,)))
    memory = memory_of(server, TRUE[:5])
    read = {episode.id: episode.word for episode in memory.episodes()[3:]}
    text = "On #keep it is true of cases 2, which look false."
    lesson = GuidelineOperation(action="add", text=text, episode_ids=list(read))
    run_sync(commit_lesson(SYNC, memory.access, [lesson], read))
    memory.forget(next(iter(read)))
    assert [guideline.status for guideline in memory.guidelines()] == ["pending"]
    since = memory.version()
    bad = memory.add_guideline("On #bad it is false of cases 2, always.")
    (flip,) = await call("flips", memory, since=since)
    assert (flip.example.inputs, flip.guidelines) == (TRUE[2]["inputs"], [bad])


async def test_unusable_arguments(call: Caller, server: LoopbackServer) -> None:
    memory, version = remembered(server, TRUE[:5])
    asked(server)
    for since in ("nonsense", None):
        with pytest.raises(InvalidInputError, match="never had the version"):
            await call("flips", memory, since=since)
    calls: dict[str, dict[str, Any]] = {"flips": {"since": version}, "migrate": {}}
    for name, options in calls.items():
        with pytest.raises(InvalidInputError, match=r"^memory: expected a JudgeMemory"):
            await call(name, InMemoryStore(), **options)
    assert asked(server) == (0, 0)


async def test_unusable_answer_is_requested_again(call: Caller, server: LoopbackServer) -> None:
    follows, cache = judge_by_guidelines(), InMemoryStore()
    server.responder = Model(
        judge=lambda chat: answer("{}") if judged_case(chat) == 1 else follows(chat)
    )
    memory, since = remembered(server, TRUE[:3])
    memory.add_guideline("On #bad it is false of cases 1, always.")
    assert await call("flips", memory, since=since, cache=cache) == []
    server.responder = Model(judge=follows)
    [flip] = await call("flips", memory, since=since, cache=cache)
    assert flip.example.inputs == TRUE[1]["inputs"]


async def test_cases_with_new_feedback_are_not_flips(call: Caller, server: LoopbackServer) -> None:
    """Cases whose feedback changed or got another expert's feedback."""
    server.responder = Model(judge=judge_by_guidelines())
    memory, since = remembered(server, TRUE[:5])
    memory.add_guideline("On #bad it is false of cases 0 1 2, always.")
    inputs = TRUE[0]["inputs"]
    first = next(item for item in memory.episodes() if item.example.inputs == inputs)
    memory.revise(first.id, {"value": False, "rationale": "It is late."})
    remember(memory, record(1, values=(True,), author="bob"))
    flips = await call("flips", memory, since=since)
    assert [flip.example.inputs for flip in flips] == [TRUE[2]["inputs"]]


async def test_embeddings_are_kept(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No API key for default embeddings is needed, and nothing is embedded again."""
    from memalign_graph.evaluation import flips

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory, since = remembered(server, TRUE[:5])
    memory.add_guideline("On #good thank them; true if they are thanked.")
    asked(server)
    options: dict[str, Any] = {"model": server.chat_model(), "progress": False}
    assert flips(memory, since=since, **options) == []
    assert server.embeddings == []


async def test_seen_cases_get_the_deployed_prompt(call: Caller, server: LoopbackServer) -> None:
    """The prompts are identical, so a reported flip also happens in production."""
    from memalign_graph import create_judge_graph

    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    graph: Any = create_judge_graph(CRITERION, **call.models()).compile(store=memory.access.store)
    for episode in memory.episodes():
        graph.invoke({"inputs": episode.example.inputs, "outputs": episode.example.outputs})
    deployed = Counter(chat.text for chat in judgings(server))
    asked(server)
    await call("flips", memory, since=since)
    assert Counter(chat.text for chat in judgings(server)) == deployed
