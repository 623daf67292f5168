"""Faults around the review page: failing stores and models, late answers, unusual names."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from starlette.requests import ClientDisconnect

from memalign_graph import Example, create_judge_graph
from memalign_graph.review import ReviewQueue
from memalign_graph.review.tasks import Reviewer
from tests.builders import keep_reviewed
from tests.integration_tests.review_page.conftest import (
    NAME,
    Office,
    Threads,
    learn_nothing,
    with_criterion,
)
from tests.loopback import error

COLD: Any = {"value": False, "rationale": "Too cold."}
People = tuple[Threads, Reviewer, Reviewer]


@pytest.mark.parametrize("status", [400, 401])
async def test_comment_survives_a_failing_embedder(office: Office, status: int) -> None:
    queue, ann = await office.begin("Wait.")
    office.server.script_embeddings(*[error(status, "It broke.")] * 9)
    await office.answer(queue, ann)
    office.server.script_embeddings()
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}


ODD_OUTPUTS: tuple[Any, ...] = (
    " " * 2_000 + "Wait.",
    "\n" * 3_000 + "Wait.",
    "\ufeff\u200b" * 2_000,
    "Wait." * 200_000,
    {"code": " " * 2_000, "": [""]},
    [{"role": "assistant", "content": "Wait.", "tool_calls": 5}],
)


@pytest.mark.parametrize("outputs", ODD_OUTPUTS, ids=lambda outputs: repr(outputs)[:20])
async def test_unusual_outputs_do_not_block_the_queue(office: Office, outputs: Any) -> None:
    queue, ann = await office.begin(outputs)
    case = ann.here
    for path in (case, f"{case}/nearest", "/review", case):
        assert (await ann.get(path)).page.status_code == 200
    await office.answer(queue, ann)
    for page in ("mine", "learned", "standing"):
        assert (await ann.get(f"/review/{page}/{NAME}")).page.status_code == 200
    assert [episode.rationale for episode in await office.memory.aepisodes()] == ["Too cold."]


async def test_answer_of_a_stopped_server(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.judged("Wait.", "Send a photo.")
    stopped, queue = office.queue(), office.queue()
    monkeypatch.setattr(stopped.answers, "_learn", learn_nothing)
    ann = await office.expert("ann", stopped).get("/review/next")
    await ann.answer(value="false", rationale="Too cold.")
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}
    assert [episode.status for episode in await office.memory.aepisodes()] == ["pending"]
    ann = await office.expert("ann", queue).get("/review/next")
    await office.answer(queue, ann, value="false", rationale="No photo is needed.")
    assert [episode.status for episode in await office.memory.aepisodes()] == ["distilled"] * 2


async def test_name_with_a_slash_and_a_comma_is_accepted(office: Office) -> None:
    plain, name = office.judge, "Ton/höflich, warm? 100%"
    office.judge = with_criterion(office.judge, name)
    graph = create_judge_graph(office.judge.criterion, **office.judge.options)
    await graph.compile(store=office.store).ainvoke({"inputs": "Where?", "outputs": "Wait."})
    queue = ReviewQueue([plain, office.judge], store=office.store)
    ann = await office.expert("ann", queue).get("/review")
    assert f"{name} · " in ann.text
    await office.answer(queue, await ann.get("/review/next"))
    for page in ("learned", "mine", "standing"):
        await ann.get(f"/review/{page}/{quote(name)}")
        assert (ann.page.status_code, name in ann.text) == (200, True), page
    await ann.get(f"/review/learned/{quote(name)}")
    await ann.post(f"/review/learned/{quote(name)}", action="add", text="Says sorry.")
    assert "Says sorry." in ann.text


async def test_malformed_requests_get_an_error_sentence(office: Office) -> None:
    await office.judged("Wait.")
    ann = office.expert("ann", office.queue())
    assert (await ann.get("/review/name?back=/reviewevil")).page.status_code == 200
    assert 'name="back" value="/review"' in ann.page.text
    for odd in ({"host": "[::1"}, {"host": "127.0.0.1", "origin": "http://["}):
        ann.http.headers.update(odd)
        assert (await ann.post("/review/name", who="ann")).page.status_code == 403
    del ann.http.headers["origin"]
    ann.http.cookies.set("memalign_token", '"><b>', path="/review", domain="127.0.0.1")
    await ann.get(f"/review/learned/{NAME}")
    assert "<b>" not in ann.page.text
    ann.http.cookies.delete("memalign_token")
    ann.http.cookies.set("memalign_name", "a%00nn%0Ab", path="/review")
    assert "ann b" in (await ann.get("/review")).text


@pytest.mark.parametrize("namespace", ["memalign_review", "memalign"])
async def test_comment_is_shown_again_if_the_store_fails(office: Office, namespace: str) -> None:
    class Locked(InMemoryStore):
        is_locked = False

        async def abatch(self, ops: Any) -> Any:
            ops = list(ops)
            written = {op.namespace[0] for op in ops if isinstance(op, PutOp)}
            if self.is_locked and namespace in written:
                raise sqlite3.OperationalError("database is locked")
            return await super().abatch(ops)

    office.store = store = Locked()
    queue, ann = await office.begin("Wait.")
    here, store.is_locked = ann.here, True
    await ann.answer(value="false", rationale="Too cold.")
    assert (ann.page.status_code, "database is locked" in ann.text) == (400, True)
    assert "rationale Too cold." in ann.text
    store.is_locked = False
    await (await ann.get(here)).answer(value="false", rationale="Too cold.")
    await queue.answers.drain()
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}


async def test_expert_who_gave_a_name_returns_to_the_case(office: Office) -> None:
    name, example = "tone/formal 100%", Example(inputs="Where?", outputs="Wait.")
    office.judge = with_criterion(office.judge, name)
    queue = office.queue()
    await asyncio.to_thread(keep_reviewed, queue.access(name), example, "sample")
    ann = await office.expert("ann", queue).get("/review")
    [case] = re.findall(r'<li><a href="([^"]+)', ann.page.text)
    bob = await office.expert("  ", queue).get(case)
    [back] = re.findall(r'name="back" value="([^"]+)', bob.page.text)
    await bob.post("/review/name", who="bob", back=back)
    assert (bob.page.status_code, "Wait." in bob.text) == (200, True)
    bob.http.cookies.delete("memalign_name")
    await bob.post(f"{case}/answer", value="false")  # a form is not sent again
    assert bob.here == "/review/name"
    assert 'name="back" value="/review"' in bob.page.text


async def test_address_of_a_form_shows_its_case(office: Office) -> None:
    _, ann = await office.begin("Wait.")
    shown = ann.page.text
    assert (await ann.get(f"{ann.here}/answer")).page.text == shown


async def test_stopped_request_is_no_fault_of_the_page(office: Office) -> None:
    _, ann = await office.begin("Wait.")

    class Stopped(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            raise ClientDisconnect
            yield b""

    response = await ann.http.post(f"{ann.here}/answer", content=Stopped())
    assert response.status_code == 400
    assert await office.feedback() == {}


@pytest.mark.parametrize(
    ("where", "change", "left"),
    [
        ("mine", {"value": "true", "rationale": "I was wrong."}, (True, "I was wrong.")),
        ("mine", {"value": "false", "rationale": ""}, (False, None)),
        ("mine", {"value": "true", "rationale": ""}, (True, None)),
        ("case", {"value": "true", "rationale": ""}, (True, None)),
        ("forgotten", {}, None),
        ("purged", {}, None),
    ],
)
async def test_answer_changed_before_learning_is_learned_in_its_new_form(
    office: Office, monkeypatch: pytest.MonkeyPatch, where: str, change: Any, left: Any
) -> None:
    queue, ann = await office.begin("Wait.")
    case, learn, is_changed = ann.here, queue.answers._learn, asyncio.Event()

    async def slowly(*arguments: Any) -> None:
        await is_changed.wait()
        await learn(*arguments)

    monkeypatch.setattr(queue.answers, "_learn", slowly)
    form = ann.page
    await ann.answer(value="false", rationale="Too cold.")
    if left is None:
        await office.memory.aforget(author="ann", purge=where == "purged")
    elif where == "mine":
        await ann.get(f"/review/mine/{NAME}")
        key = re.search(r'name="episode_id" value="([^"]+)', ann.page.text)
        assert key
        await ann.post(f"/review/mine/{NAME}", episode_id=key[1], **change)
    else:  # by the back button
        ann.page = form
        await ann.post(f"{case}/answer", **change)
    is_changed.set()
    await queue.answers.drain()
    assert await office.feedback() == ({("ann", "Wait."): left} if left else {})


@pytest.mark.parametrize("is_removed", [False, True])
async def test_answer_to_an_expired_judgment_is_stored_or_shown_for_copying(
    office: Office, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool
) -> None:
    _, ann = await office.begin("Wait.")
    form = {"value": "false", "rationale": "Too <cold>.\nSay sorry."}
    days_later = datetime.now(UTC) + timedelta(days=2)
    monkeypatch.setattr("memalign_graph.memory.judgments.utc_now", lambda: days_later)
    if is_removed:  # by a later judgment, or by the store
        await office.remove_judgments()
    queue = office.queue()  # of a restarted server
    other = office.expert("ann", queue)
    other.http.cookies, other.page = ann.http.cookies, ann.page
    await other.post(f"{ann.here}/answer", **form)
    await queue.answers.drain()
    if is_removed:
        assert other.page.status_code == 404
        assert "It is not stored: copy what you want to keep." in other.text
        assert "Too &lt;cold&gt;.\nSay sorry." in other.page.text
        other.page = ann.page
        await other.post(f"{ann.here}/answer", rationale=" ")
        assert "copy what you want to keep" not in other.text
        assert other.page.status_code == 404
        assert await office.feedback() == {}
    else:
        assert await office.feedback() == {("ann", "Wait."): (False, form["rationale"])}
        assert queue.answers.take_notices(Reviewer("ann"))[0][1].startswith("Your answer is stored")
    assert (await other.get(ann.here)).page.status_code == 404  # no page opens it afterwards


async def test_page_that_was_open_brings_back_nothing_that_was_purged(office: Office) -> None:
    queue, ann = await office.begin("Wait.")
    bob = await office.expert("bob", queue).get(ann.here)
    await office.answer(queue, ann)
    await office.memory.aforget(author="ann", purge=True)
    await bob.answer(value="false", rationale="Too short.")
    assert (bob.page.status_code, await office.feedback()) == (404, {})
    assert "rationale Too short." in bob.text


async def test_judgment_that_expires_soon_is_not_offered(office: Office) -> None:
    office.judge = office.judge.but(keep_judgments=timedelta(minutes=9))
    await office.judged("Wait.")
    assert await office.queue().list_tasks(Reviewer("ann")) == ([], 0)


@pytest.mark.parametrize("change", [{"edit": "Say sorry, and why."}, {"remove": ""}], ids=str)
async def test_reworded_guideline_is_not_changed(office: Office, change: dict[str, str]) -> None:
    guideline = await office.memory.aadd_guideline("Say sorry first.", author="ann")
    bob = await office.expert("bob", office.queue()).get(f"/review/learned/{NAME}")
    assert 'name="was" value="Say sorry first."' in bob.page.text
    await office.memory.aedit_guideline(guideline.id, "Say when it will come.", author="ann")
    [(action, text)] = change.items()
    sent = {"guideline_id": guideline.id, "was": "Say sorry first.", "text": text}
    await bob.post(f"/review/learned/{NAME}", action=action, **sent)
    assert bob.page.status_code == 400
    assert "This rule was changed since" in bob.text
    assert text in bob.text, "what was written is shown to be copied"
    [guideline] = await office.memory.aguidelines()
    assert guideline.text == "Say when it will come."


async def test_answered_case_opens_no_more_but_takes_the_answer_of_an_open_page(
    office: Office,
) -> None:
    await office.judged("Wait.")
    queue = office.queue()
    ann, bob = office.expert("ann", queue), office.expert("bob", queue)
    case = (await ann.get("/review/next")).here
    await office.answer(queue, ann)
    for expert in (ann, bob):
        assert (await expert.get(case)).page.status_code == 404
        assert "This case is answered" in expert.text
    # A page that is open already can still show the verdict.
    assert (await bob.get(f"{case}?show=verdict")).page.status_code == 200
    await office.answer(queue, bob, value="true")
    expected = {("ann", "Wait."): (False, "Too cold."), ("bob", "Wait."): (True, None)}
    assert await office.feedback() == expected
    assert "Cases in dispute" in (await ann.get(f"/review/learned/{NAME}")).text


async def test_leases_are_removed_after_a_day(office: Office) -> None:
    await office.judged("Wait.")
    queue, now = office.queue(), datetime.now(UTC)
    for hours in (23, 25):
        seen = (now - timedelta(hours=hours)).isoformat()
        lease = {"question": f"j-{hours}", "who": "bob", "since": seen, "seen": seen}
        key = f"j-{hours}:bob"
        await office.store.aput(("memalign_review", "leases"), key, {**lease, "skipped": True})
    await office.expert("ann", queue).get("/review/next")
    names = {lease.key.partition(":")[2]: lease.key for lease in await queue.leases.all()}
    assert (len(names), names["bob"]) == (2, "j-23:bob")
    assert len(await queue.leases.all()) == 2
