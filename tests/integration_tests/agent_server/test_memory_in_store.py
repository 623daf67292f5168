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
    ask,
    at_once,
    case,
    items,
    memory_of,
    new_thread,
    resume,
    run,
)
from tests.integration_tests.alignment_model import Model, add, each_its_words, feedback_in
from tests.loopback import ChatRequest, LoopbackServer, ReplyLike

pytestmark = pytest.mark.outside

LONGEST_WORD = 64


def texts(value: Any) -> Iterator[str]:
    """All text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def test_what_is_stored_is_json_that_people_can_read(client: SyncLangGraphClient) -> None:
    asked = {"inputs": {"question": "Où est mon colis ?"}, "outputs": "Regardez le suivi."}
    said = {"value": False, "rationale": "Trop froid : il manque un mot d'excuse.", "author": "Zoë"}
    thread = new_thread(client)
    question = ask(client, thread, input=asked, context={"namespace": ["read"]})
    learned = resume(client, thread, {question["id"]: said})["learned"]
    [word] = items(client, "read", "words")
    episode = word["value"]["episode"]
    assert episode["example"] == {**asked, "reference_outputs": None}
    assert {name: episode[name] for name in said} == said
    assert memory_of(client, "read").version() == learned["memory_version"]
    found = client.store.list_namespaces(prefix=["read"], max_depth=3)["namespaces"]
    assert [list(place) for place in found] == [
        ["read", MEMORY, kind] for kind in sorted((*KINDS, "vectors"))
    ]
    shown = {kind: [item["value"] for item in items(client, "read", kind)] for kind in KINDS}
    assert all(shown.values())
    assert json.loads(json.dumps(shown)) == shown
    assert [
        word for text in texts(shown) for word in text.split() if len(word) > LONGEST_WORD
    ] == []


def words(number: int) -> str:
    """What an expert says on a case."""
    return f"Case {number} has to say sorry."


def test_reviews_and_an_alignment_at_once_lose_nothing(
    client: SyncLangGraphClient, server: LoopbackServer
) -> None:
    server.responder = Model(distil=each_its_words)
    context = {"namespace": ["at_once"]}
    reviews, aligned = range(6), (6, 7, 8)
    threads = [new_thread(client) for _ in reviews]
    asked = at_once(
        lambda number: ask(client, threads[number], input=case(number // 2), context=context),
        reviews,
    )
    feedback = [{**case(number), "rationale": words(number)} for number in aligned]

    def learn(number: int) -> Any:
        if number not in reviews:
            return run(client, None, "align", input={"feedback": feedback}, context=context)
        word = {"rationale": words(number), "author": f"expert {number % 2}"}
        return resume(client, threads[number], {asked[number]["id"]: word})

    *results, report = at_once(learn, [*reviews, 6])
    assert [result["feedback"]["rationale"] for result in results] == list(map(words, reviews))
    assert report["report"]["feedback"]["new"] == len(aligned)
    memory = check_memory(client, "at_once", list(map(words, [*reviews, *aligned])))
    assert len({episode.example_id for episode in memory.episodes()}) == 3 + len(aligned)
    assert len(judgings(server)) == len(reviews)


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
