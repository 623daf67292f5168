"""The page on an Agent Server: interrupted threads, and who can see and answer them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.browser.support import Bring, case, in_thread
from tests.integration_tests.agent_server import support
from tests.loopback import LoopbackServer

pytestmark = pytest.mark.browser

AUTH = Path(__file__).with_name("users.py")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two servers: one without authentication, and one with users."""
    ways: list[dict[str, Any]] = [{}, {"auth": {"path": f"{AUTH}:auth"}}]
    with LoopbackServer() as models, ExitStack() as stack:
        yield tuple(  # type: ignore[misc]
            stack.enter_context(support.langgraph_dev(tmp_path_factory.mktemp("s"), models, **more))
            for more in ways
        )
        assert models.errors == []


def client_of(url: str, user: str = "") -> SyncLangGraphClient:
    return get_sync_client(url=url, headers={"cookie": f"user={user}"} if user else None)


def ask(client: SyncLangGraphClient, number: int, graph: str = "review") -> str:
    """Run the graph on a new thread until it interrupts."""
    thread = support.new_thread(client)
    support.ask(client, thread, graph, input=case(number))
    return thread


def question_of(client: SyncLangGraphClient, thread: str) -> str:
    return f"t-{thread}-{support.pending(client, thread)[0]}"


def has_ended(client: SyncLangGraphClient, thread: str) -> bool:
    """Whether a run ends within 30 seconds; the page learns in the background."""
    for _ in range(300):
        if client.threads.get(thread)["status"] == "idle":
            return True
        time.sleep(0.1)
    return False


def feedback_on(client: SyncLangGraphClient, number: int) -> set[tuple[Any, Any, Any]]:
    """The feedback on a case: author, value and comment."""
    episodes = in_thread(lambda: support.memory_of(client, "memalign").episodes())
    own_tasks = [item for item in episodes if item.example.outputs == case(number)["outputs"]]
    return {(item.author, item.value, item.rationale) for item in own_tasks}


def test_threads_panels_and_judgments_share_a_queue(urls: tuple[str, str], expert: Bring) -> None:
    with client_of(urls[0]) as client:
        threads = [ask(client, 1), ask(client, 2, "panel")]
        support.run(client, None, "judge", input=case(3))
        zoe = expert(urls[0], "zoe")
        zoe.go("/next")
        for _ in range(3):
            zoe.see("case")
            if zoe.page.locator("fieldset").count() == 2:
                zoe.press("2")
            zoe.answer("2", "So cold.")
        zoe.see("queue")
        # The run of an answer may find that another run has already learned from it.
        assert zoe.notice().startswith(("Learned:", "Your answer is stored."))
        assert all(has_ended(client, thread) for thread in threads)
        for number in (1, 2, 3):
            assert feedback_on(client, number) == {("zoe", False, "So cold.")}


def test_users_see_their_threads_and_sign_answers(urls: tuple[str, str], expert: Bring) -> None:
    url = urls[1]
    assert httpx.get(f"{url}/review", trust_env=False).status_code == 401
    with client_of(url, "ann") as ann_client, client_of(url, "bob") as bob_client:
        own_tasks = question_of(ann_client, ask(ann_client, 6))
        others = question_of(bob_client, ask(bob_client, 7))
        ann = expert(url, "bob")
        ann.context.add_cookies([{"name": "user", "value": "ann", "url": url}])
        ann.go(on="queue")
        assert (case(6)["outputs"] in ann.text, case(7)["outputs"] in ann.text) == (True, False)
        assert "not checked" not in ann.text
        for path in (f"/case/{others}", f"/case/{others}/nearest"):
            ann.go(path)
            assert "answered, no longer kept, or was never asked" in ann.text
        ann.go(f"/case/{own_tasks}", on="case")
        ann.fill("2", "Mine.")
        ann.page.evaluate(  # regardless of the author in the form
            """["who", "author"].forEach(name => document.querySelector("main form").append(
            Object.assign(document.createElement("input"), {name, value: "bob"})))"""
        )
        ann.press("Enter")
        ann.page.wait_for_selector("h1:text('wait')")
        assert ann.notice().startswith("Learned:")
        assert feedback_on(ann_client, 6) == {("ann", False, "Mine.")}
        assert support.pending(bob_client, others[2:38])
