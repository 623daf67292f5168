"""Interrupts on an Agent Server: invalid replies, concurrency, and two servers."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from memalign_graph.memory.facts import unpacked
from memalign_graph.review import threads
from tests.conftest import COLD, judgings
from tests.documents import file_of
from tests.integration_tests.agent_server.support import (
    CASE,
    KINDS,
    MEMORY,
    ask,
    case,
    check_learned,
    items,
    langgraph_dev,
    memory_of,
    new_thread,
    pending,
    refuse,
    resume,
    run,
    run_concurrently,
)
from tests.integration_tests.alignment_model import Model, guideline_per_comment
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.outside

INVALID: list[tuple[Any, bool, str]] = [
    ({"value": "perhaps"}, True, "'perhaps' is not on the scale: the value is true or false."),
    ({"rationale": " "}, False, "the reply has neither a value nor a rationale: reply with text"),
]
"""Replies, whether they are given by the question's id, and why they are not taken."""


def comment(number: int) -> str:
    return f"Case {number} has to say sorry."


def test_invalid_reply_keeps_interrupt(client: SyncLangGraphClient, server: LoopbackServer) -> None:
    example = {"inputs": {"question": "Où est mon colis ?"}, "outputs": "Regardez le suivi."}
    rationale = "Trop froid : il manque un mot d'excuse."
    feedback = {"value": False, "rationale": rationale, "author": "Zoë"}
    thread, context = new_thread(client), {"namespace": ["read"]}
    question = ask(client, thread, input=example, context=context)
    assert question["response_schema"]["properties"]["value"]["type"] == "boolean"
    for reply, by_id, reason in INVALID:
        assert reason in refuse(client, thread, {question["id"]: reply} if by_id else reply)
        assert pending(client, thread) == [question["id"]]
    assert items(client, "read", "facts") == []
    learned = resume(client, thread, {question["id"]: feedback})["learned"]
    assert pending(client, thread) == []
    assert len(judgings(server)) == 1

    # Stored items are readable.
    [item] = items(client, "read", "words")
    assert feedback["rationale"] in item["value"]["episode"]
    episode = unpacked(item["value"])["episode"]
    assert episode["example"] == {**example, "reference_outputs": None}
    assert {name: episode[name] for name in feedback} == feedback
    version = memory_of(client, "read").version()
    assert version == learned["memory_version"]
    namespaces = client.store.list_namespaces(prefix=["read"], max_depth=3)["namespaces"]
    kinds = sorted((*KINDS, "vectors"))
    assert [list(place) for place in namespaces] == [["read", MEMORY, kind] for kind in kinds]

    # An interrupt that an inbox closes stores nothing, and the next run can interrupt.
    first = ask(client, thread, context=context)
    client.threads.update_state(thread, values=None, as_node=END)
    assert pending(client, thread) == []
    assert client.threads.get(thread)["status"] == "idle"
    assert ask(client, thread, input=case(1), context=context)["id"] != first["id"]
    assert memory_of(client, "read").version() == version


def test_concurrent_learning(client: SyncLangGraphClient, server: LoopbackServer) -> None:
    server.responder = Model(distil=guideline_per_comment)
    context = {"namespace": ["at_once"]}
    reviews, aligned = range(6), (6, 7, 8)
    threads = [new_thread(client) for _ in reviews]
    interrupts = run_concurrently(
        lambda number: ask(client, threads[number], input=case(number // 2), context=context),
        reviews,
    )
    waiting = client.threads.search(ids=threads, status="interrupted")
    assert {interrupt["thread_id"] for interrupt in waiting} == set(threads)
    # The id of another thread's interrupt resumes nothing here.
    again = resume(client, threads[0], {interrupts[1]["id"]: {"rationale": "On another thread."}})
    assert [interrupt["id"] for interrupt in again["__interrupt__"]] == [interrupts[0]["id"]]
    assert items(client, "at_once", "facts") == []
    feedback = [{**case(number), "rationale": comment(number)} for number in aligned]

    def learn(number: int) -> Any:
        if number not in reviews:
            return run(client, None, "align", input={"feedback": feedback}, context=context)
        reply = {"rationale": comment(number), "author": f"expert {number % 2}"}
        return resume(client, threads[number], {interrupts[number]["id"]: reply})

    *results, report = run_concurrently(learn, [*reviews, 6])
    for number, result in enumerate(results):
        assert result["feedback"]["rationale"] == comment(number)
        assert result["feedback"]["example"]["inputs"] == f"Question {number // 2}?"
        assert result["feedback"]["thread_id"] == threads[number]
    assert report["report"]["feedback"]["new"] == len(aligned)
    assert check_learned(client, "at_once") == list(map(comment, [*reviews, *aligned]))
    assert len(judgings(server)) == len(reviews)


async def test_page_resumes_as_the_run_that_asked(client: SyncLangGraphClient) -> None:
    own = {"namespace": ["by_page"], "customer": "acme"}  # one is not in the graph's schema
    config: Any = {"configurable": own, "recursion_limit": 40}
    question = ask(client, thread := new_thread(client), config=config)
    refuse(client, thread, {"value": "perhaps"})  # a newer run without a context
    assert client.threads.get(thread)["interrupts"] == {}
    task_id = f"t-{thread}-{question['id']}"
    criteria = question["response_schema"]["x-case"]["criteria"]

    async def reply() -> Any:
        return COLD

    async with get_client(url=str(client.http.client.base_url)) as page:
        case = await threads.load_case(page, task_id, criteria)
        assert case is not None
        assert await threads.resume(page, task_id, case, reply) is not None
    assert pending(client, thread) == []
    newest: Any = client.runs.list(thread, limit=1)[0]
    assert newest["kwargs"]["context"] == own
    assert newest["kwargs"]["config"]["configurable"].items() >= own.items()
    assert newest["kwargs"]["config"]["recursion_limit"] == 40


def test_review_started_on_one_server_is_resumed_on_another_and_both_learn(
    postgres_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMALIGN_STORE", postgres_uri)
    module = tmp_path / "on_postgres.py"
    module.write_text(file_of("hosting.md", module.name))
    graphs: Any = {name: {"path": f"{module}:own_{name}"} for name in ("store", "checkpointer")}
    with ExitStack() as stack:
        models = stack.enter_context(LoopbackServer())
        clients = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            serving = langgraph_dev(tmp_path / name, models, **graphs)
            clients.append(stack.enter_context(get_sync_client(url=stack.enter_context(serving))))
        one, other = clients
        thread = new_thread(one)
        ask(one, thread)
        # Thread state is in the database, but each server keeps its own list of threads.
        other.threads.create(thread_id=thread)
        learned = resume(other, thread, COLD)["learned"]
        judgment = run(one, new_thread(one), "judge", input=CASE)["judgment"]
        assert judgment["memory_version"] == learned["memory_version"]
        assert judgment["guideline_ids"] == [
            guideline["guideline_id"] for guideline in learned["guidelines"]
        ]
        assert judgment["guideline_ids"]
        assert len(judgings(models)) == 2
