"""The memory in the Agent Server's own store: as its API shows it, and used by several at once."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from memalign_graph import JudgeMemory
from tests.conftest import distillings, judgings
from tests.integration_tests.agent_server.support import (
    KINDS,
    MEMORY,
    AgentServer,
    ask,
    at_once,
    case,
    items,
    memory_of,
    new_thread,
    resume,
    run,
)
from tests.integration_tests.alignment_support import Model, add, each_its_words, feedback_in
from tests.loopback import ChatRequest, LoopbackServer, ReplyLike

pytestmark = pytest.mark.outside

ASKED = {"inputs": {"question": "Où est mon colis ?"}, "outputs": "Regardez le suivi."}
SAID = {"value": False, "rationale": "Trop froid : il manque un mot d'excuse.", "author": "Zoë"}
LONGEST_WORD = 64


def texts(value: Any) -> Iterator[str]:
    """All text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


@pytest.fixture(scope="module")
def review(agent_server: AgentServer) -> dict[str, Any]:
    """A review that taught one guideline to the memory in `read`."""
    client = agent_server.client
    thread = new_thread(client)
    asked = ask(client, thread, input=ASKED, context={"namespace": ["read"]})
    result: dict[str, Any] = resume(client, thread, {asked["id"]: SAID})
    return {**result, "thread": thread}


def test_word_is_what_the_expert_said(client: SyncLangGraphClient, review: dict[str, Any]) -> None:
    [item] = items(client, "read", "words")
    episode = item["value"]["episode"]
    assert item["key"] == item["value"]["key"]
    assert [episode["id"]] == review["learned"]["episode_ids"]
    assert episode["example"] == {**ASKED, "reference_outputs": None}
    assert {name: episode[name] for name in SAID} == SAID
    assert episode["thread_ids"] == [review["thread"]]
    assert episode["judgment"]["value"] is True
    got = client.store.get_item(["read", MEMORY, "words"], item["key"])
    assert got["value"] == item["value"]


def test_facts_tell_who_when_and_what(client: SyncLangGraphClient, review: dict[str, Any]) -> None:
    stored, learned = (one["value"] for one in items(client, "read", "facts"))
    [episode_id] = review["learned"]["episode_ids"]
    [word] = items(client, "read", "words")
    assert (stored["reason"], learned["reason"]) == ("remember", "learn")
    assert stored["author"] == learned["author"] == SAID["author"]
    assert stored["at"] < learned["at"]
    assert stored["said"] == {episode_id: word["key"]}
    assert list(learned["read"]) == [episode_id]
    [guideline] = learned["guidelines"]
    [told] = review["learned"]["guidelines"]
    assert (guideline["id"], guideline["text"]) == (told["guideline_id"], told["text"])
    assert SAID["rationale"] in guideline["text"]
    assert list(guideline["sources"]) == [episode_id]
    head = client.store.get_item(["read", MEMORY, "head"], "head")
    assert head["value"]["id"] == learned["id"]
    assert memory_of(client, "read").version() == review["learned"]["memory_version"]


def test_what_is_shown_is_json_that_people_can_read(
    client: SyncLangGraphClient, review: dict[str, Any]
) -> None:
    found = client.store.list_namespaces(prefix=["read"], max_depth=3)["namespaces"]
    assert [list(one) for one in found] == [
        ["read", MEMORY, kind] for kind in sorted((*KINDS, "vectors"))
    ]
    shown = {kind: [one["value"] for one in items(client, "read", kind)] for kind in KINDS}
    assert all(shown.values())
    assert json.loads(json.dumps(shown)) == shown
    assert [one for text in texts(shown) for one in text.split() if len(one) > LONGEST_WORD] == []
    [vector] = items(client, "read", "vectors")
    assert len(vector["value"]["vector"]) > LONGEST_WORD


def words(number: int) -> str:
    """What an expert says on a case."""
    return f"Case {number} has to say sorry."


def test_reviews_that_are_resumed_at_once_lose_nothing(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    server.responder = Model(distil=each_its_words)
    context = {"namespace": ["at_once"]}
    numbers = range(6)
    threads = [new_thread(client) for _ in numbers]
    asked = at_once(
        lambda number: ask(client, threads[number], input=case(number // 2), context=context),
        numbers,
    )
    results = at_once(
        lambda number: resume(
            client,
            threads[number],
            {asked[number]["id"]: {"rationale": words(number), "author": f"expert {number % 2}"}},
        ),
        numbers,
    )
    said = [words(number) for number in numbers]
    assert [one["feedback"]["rationale"] for one in results] == said
    memory = check_memory(client, "at_once", said)
    assert len({one.example_id for one in memory.episodes()}) == 3
    assert len(judgings(server)) == 6
    judged = run(client, None, "judge", input=case(0), context=context)["judgment"]
    assert judged["guideline_ids"] == [one.id for one in memory.guidelines()]


def test_reviews_and_an_alignment_at_once_lose_nothing(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    server.responder = Model(distil=each_its_words)
    context = {"namespace": ["mixed"]}
    threads = [new_thread(client) for _ in range(3)]
    asked = at_once(
        lambda number: ask(client, threads[number], input=case(number), context=context), range(3)
    )
    feedback = [{**case(number), "rationale": words(number)} for number in (3, 4, 5)]

    def learn(number: int) -> Any:
        if number == 3:
            return run(client, None, "align", input={"feedback": feedback}, context=context)
        return resume(client, threads[number], {asked[number]["id"]: words(number)})

    *reviews, aligned = at_once(learn, range(4))
    assert [one["feedback"]["rationale"] for one in reviews] == [words(n) for n in range(3)]
    assert aligned["report"]["feedback"]["new"] == 3
    check_memory(client, "mixed", [words(n) for n in range(6)])


def test_words_that_another_review_passed_over_are_not_lost(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def distil(request: ChatRequest) -> ReplyLike:
        handles = {text: handle for handle, text in feedback_in(request).items()}
        own = words(0) if words(0) in handles else words(1)
        if own == words(1):
            arrived.set()
            assert go_on.wait(300)
        return {"operations": [add(own, handles[own])]}

    server.responder = Model(distil=distil)
    context = {"namespace": ["passed_over"]}
    threads = [new_thread(client) for _ in range(2)]
    at_once(
        lambda number: ask(client, threads[number], input=case(number), context=context), range(2)
    )
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(resume, client, threads[1], words(1))
        assert arrived.wait(300)
        resume(client, threads[0], words(0))
        go_on.set()
    assert [list(feedback_in(one).values()) for one in distillings(server)] == [
        [words(1)],
        [words(1), words(0)],
    ]
    assert [one["text"] for one in slow.result()["learned"]["guidelines"]] == [words(1)]
    check_memory(client, "passed_over", [words(0), words(1)])


def check_memory(client: SyncLangGraphClient, namespace: str, said: list[str]) -> JudgeMemory:
    """Every expert's words are the text of one guideline, which has that episode for its source."""
    memory = memory_of(client, namespace)
    episodes = memory.episodes()
    assert sorted(str(one.rationale) for one in episodes) == said
    assert {one.status for one in episodes} == {"distilled"}
    assert {one.text: one.episode_ids for one in memory.guidelines()} == {
        one.rationale: [one.id] for one in episodes
    }
    return memory
