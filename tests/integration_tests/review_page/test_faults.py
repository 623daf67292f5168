"""Faults around the review page: failing servers and models, unusual names."""

import asyncio
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph_sdk.errors import ConflictError, NotFoundError

from memalign_graph import (
    Criterion,
    Example,
    Feedback,
    JudgeMemory,
    create_judge_graph,
    create_panel_graph,
)
from memalign_graph.review import ReviewQueue, create_review_app
from memalign_graph.review.forms import parse_form
from memalign_graph.review.queue import NotOpenError
from memalign_graph.review.requests import SignIn
from memalign_graph.review.tasks import Reviewer
from memalign_graph.review.threads import resume
from tests.builders import keep_reviewed
from tests.conftest import CRITERION
from tests.integration_tests.review_page.conftest import (
    NAME,
    Expert,
    Office,
    Threads,
    learn_nothing,
    refusal,
)
from tests.loopback import Rule, error

ASKS = {"question": "What is cold in it?"}
COLD: Any = {"value": False, "rationale": "Too cold."}
People = tuple[Threads, Reviewer, Reviewer]


@pytest.mark.parametrize("who", ["ann", "bob"])
async def test_answer_to_a_question_belongs_to_its_author(office: Office, who: str) -> None:
    server, queue = Threads(office, clarify=True), office.queue()
    ann, answering = (Reviewer(name, True, client=server) for name in ("ann", who))
    office.server.rules = [Rule(lambda chat: chat.schema_name == "feedback_question", reply=ASKS)]
    first = await server.start("Wait.")
    [notice] = await office.reply(queue, ann, first, value=False, rationale="Too cold.")
    assert "A question about your comment waits" in notice
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}
    question = await server.question(server.ids[0])
    task = await queue.open(answering, question)
    reply = parse_form(task.case, {"rationale": "No greeting."}, who)
    [notice] = await office.reply(queue, answering, question, task.case, **reply)
    assert notice.startswith("Learned:" if who == "ann" else "Your answer is stored")
    joined = 'Too cold.\n(Asked back: "What is cold in it?")\nNo greeting.'
    if who == "bob":
        assert await office.feedback() == {
            ("ann", "Wait."): (False, "Too cold."),
            ("bob", "Wait."): (None, "What is cold in it?\nNo greeting."),
        }
        return
    assert await office.feedback() == {("ann", "Wait."): (False, joined)}
    # A late second answer is joined to the comment and does not replace it.
    [notice] = await office.reply(queue, ann, question, task.case, rationale="No name.")
    assert "answered before" in notice
    joined = joined.replace("No greeting.", "No name.")
    assert await office.feedback() == {("ann", "Wait."): (False, joined)}


async def test_page_waits_for_another_run_on_the_thread(office: Office, people: People) -> None:
    server, ann, _ = people
    question = await server.start("Wait.")
    server.faults.append(refusal(ConflictError, 409))
    [notice] = await office.reply(office.queue(), ann, question, **COLD)
    assert notice.startswith("Learned:")


def serve_panel(server: Threads, office: Office) -> None:
    models: Any = {"model": office.judge.model, "embeddings": office.judge.embeddings}
    panel = create_panel_graph([CRITERION], review="always", **models)
    server.graph = panel.compile(checkpointer=InMemorySaver(), store=office.store)


@pytest.mark.parametrize("kind", ["review", "panel", "question"])
@pytest.mark.parametrize("is_taken_back", [False, True])
async def test_answer_changed_while_waiting_for_another_run_is_learned_in_its_new_form(
    office: Office, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_taken_back: bool
) -> None:
    server, queue = Threads(office, clarify=kind == "question"), office.queue()
    ann = Reviewer("ann", True, client=server)
    if kind == "panel":
        serve_panel(server, office)
    office.server.rules = [Rule(lambda chat: chat.schema_name == "feedback_question", reply=ASKS)]
    question, reply = await server.start("Wait."), {NAME: COLD} if kind == "panel" else COLD
    if kind == "question":
        await office.reply(queue, ann, question, **COLD)
        question, reply = await server.question(server.ids[0]), {"rationale": "No greeting."}
    server.faults.append(refusal(ConflictError, 409))
    sleep = asyncio.sleep

    async def change(delay: float) -> None:
        if not delay:  # in other modules
            return await sleep(0)
        monkeypatch.setattr("asyncio.sleep", sleep)
        [episode] = await office.memory.aepisodes()
        if is_taken_back:
            await office.memory.aforget(episode.id)
        else:
            await office.memory.arevise(episode.id, {"value": True, "rationale": None})
        return None

    monkeypatch.setattr("memalign_graph.review.threads.asyncio.sleep", change)
    notices = await office.reply(queue, ann, question, **reply)
    expected = {} if is_taken_back else {("ann", "Wait."): (True, None)}
    is_learned = not is_taken_back and kind != "question"  # the question stays open
    assert (await office.feedback(), bool(notices)) == (expected, is_learned)


async def test_answer_is_stored_if_the_model_fails(office: Office, people: People) -> None:
    server, ann, _ = people
    question = await server.start("Wait.")
    office.server.responder = lambda _: error(500, "It broke.")
    [notice] = await office.reply(office.queue(), ann, question, **COLD)
    assert notice.startswith("Your answer is stored, and learned from later: ")
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}


async def test_answer_that_was_delivered_is_accepted(office: Office, people: People) -> None:
    server, ann, _ = people
    queue, question = office.queue(), await server.start("Wait.")
    task = await queue.open(ann, question)

    async def reply() -> Any:
        return {**COLD, "author": "ann"}

    await resume(server, question, task.case, reply)
    [notice] = await office.reply(queue, ann, question, task.case, **COLD)
    assert notice.startswith("This case was answered before. Your answer is stored")
    # Another comment with the same value is another answer.
    await office.reply(queue, ann, question, task.case, value=False, rationale="Too short.")
    assert await office.feedback() == {("ann", "Wait."): (False, "Too short.")}


async def test_missing_and_foreign_tasks_do_not_open(office: Office, people: People) -> None:
    server, ann, _ = people
    queue, question = office.queue(), await server.start("Wait.")
    assert await queue.claim_next(ann) == question
    server.ids.clear()  # answered elsewhere, and still in the cached listing
    with pytest.raises(NotOpenError):
        await queue.open(ann, question)
    assert await queue.claim_next(ann) is None
    with pytest.raises(NotOpenError):
        await queue.open(ann, f"t-{uuid4()}-1")
    with pytest.raises(NotOpenError):
        await queue.open(ann, "t-../../assistants-1")
    other = ReviewQueue([replace_criterion(office, "other")], store=office.store)
    await server.start("Send a photo.")
    assert (await other.list_tasks(ann))[0] == []


def replace_criterion(office: Office, name: str) -> Any:
    criterion = Criterion(name=name, instructions="Is it?")
    return office.judge.model_copy(update={"criterion": criterion})


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


async def test_answer_to_an_outdated_judgment_is_refused_and_stays_in_the_form(
    office: Office, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, visitor, _ = people
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: visitor)
    await server.start("Wait.")
    queue = office.queue()
    ann = await office.expert("", queue).get("/review/next")
    case, form = ann.here, {"value": "false", "rationale": "Too cold."}
    named = hidden(ann, "judgment_id")
    await ann.post(f"{case}/answer", **form, judgment_id="0" * 32)
    assert "judged this case again" in ann.text
    assert "Too cold." in ann.text
    assert hidden(ann, "judgment_id") == named
    assert await office.feedback() == {}
    await ann.post(f"{case}/answer", **form, judgment_id=named)
    await queue.answers.drain()
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}
    assert queue.answers.take_notices(visitor)[0][1].startswith("Learned:")


@pytest.mark.parametrize("kind", ["review", "panel"])
async def test_page_names_the_judgment_in_each_answer(office: Office, kind: str) -> None:
    server = Threads(office)
    if kind == "panel":
        serve_panel(server, office)
    queue, ann = office.queue(), Reviewer("ann", True, client=server)
    question = await server.start("Wait.")
    task = await queue.open(ann, question)
    reply: Any = {NAME: COLD} if kind == "panel" else COLD
    [judgment] = task.case["judgments"].values()
    earlier = {**task.case, "judgments": {NAME: {**judgment, "id": "0" * 32}}}
    [notice] = await office.reply(queue, ann, question, earlier, **reply)
    assert "the answer is to the judgment" in notice
    assert await server.question(server.ids[0]) == question  # it is still pending
    [notice] = await office.reply(queue, ann, question, task.case, **reply)
    assert notice.startswith("Learned:")


def hidden(expert: Expert, name: str) -> str:
    match = re.search(rf'name="{name}" value="([^"]+)', expert.page.text)
    assert match is not None
    return match[1]


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


async def test_name_with_a_slash_is_accepted(office: Office) -> None:
    name = "Ton/höflich? 100%"
    office.judge = replace_criterion(office, name)
    graph = create_judge_graph(office.judge.criterion, **office.judge.options)
    await graph.compile(store=office.store).ainvoke({"inputs": "Where?", "outputs": "Wait."})
    queue, ann = await office.begin()
    await office.answer(queue, ann)
    for page in ("learned", "mine", "standing"):
        await ann.get(f"/review/{page}/{quote(name)}")
        assert (ann.page.status_code, name in ann.text) == (200, True), page
    await ann.get(f"/review/learned/{quote(name)}")
    await ann.post(f"/review/learned/{quote(name)}/add", text="Says sorry.")
    assert "Says sorry." in ann.text


async def test_criterion_name_may_contain_a_comma(office: Office) -> None:
    plain, name = office.judge, "tone, and warmth"
    office.judge = replace_criterion(office, name)
    graph = create_judge_graph(office.judge.criterion, **office.judge.options)
    await graph.compile(store=office.store).ainvoke({"inputs": "Where?", "outputs": "Wait."})
    queue = ReviewQueue([plain, office.judge], store=office.store)
    ann = await office.expert("ann", queue).get("/review/next")
    assert ann.here.startswith("/review/case/")
    assert f"{name} · just now" in (await ann.get("/review")).text


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


async def test_failure_of_store_or_server_is_shown(
    office: Office, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ann, _ = people
    await server.start("Wait.")
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: ann)
    expert = office.expert("", office.queue())
    server.faults.append(refusal(NotFoundError, 404))
    await expert.get("/review")
    assert (expert.page.status_code, "That did not work" in expert.text) == (400, True)
    assert "1 case waits" in (await expert.get("/review")).text


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


async def test_unverified_name_sees_no_case_or_notice_of_another_account(office: Office) -> None:
    server, queue = Threads(office), office.queue()
    question = await server.start("Wait.")
    ann = Reviewer("ann", True, client=server, account="ann")
    eve = Reviewer("ann", client=Threads(office), account="eve")  # sees no threads
    task = await queue.open(ann, question)
    with pytest.raises(NotOpenError):
        await queue.open(eve, question, late=True)
    await queue.answer(ann, question, task.case, {**COLD, "author": "ann"})
    await queue.answers.drain()
    assert queue.answers.take_notices(eve) == []
    assert len(queue.answers.take_notices(ann)) == 1
    server.ids.clear()
    await queue.open(ann, question, late=True)


async def test_expert_without_a_name_is_sent_to_the_name_form(office: Office) -> None:
    _, ann = await office.begin("Wait.")
    forgot = Expert(
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_review_app(office.queue())),
            base_url="http://127.0.0.1",
            cookies=ann.http.cookies,
            follow_redirects=True,
        ),
        ann.page,
    )
    office.open.append(forgot.http)
    await forgot.post(f"{ann.here}/answer", value="false")
    assert 'name="back" value="/review"' in forgot.page.text


async def test_kept_judgment_with_an_interrupt_is_one_task(office: Office) -> None:
    server = Threads(office, keep_judgments=timedelta(days=1))
    question = await server.start("Wait.")
    queue, ann = office.queue(), Reviewer("ann", True, client=server)
    tasks, count = await queue.list_tasks(ann)
    assert ([item.id for item in tasks], count) == ([question], 1)


async def test_answer_without_its_judgment(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.judged("Wait.")
    queue, ann = office.queue(), Reviewer("ann")
    monkeypatch.setattr(queue.answers, "_learn", learn_nothing)
    [listed], _ = await queue.list_tasks(ann)
    await queue.open(ann, listed.id)
    await office.remove_judgments()
    task = await queue.open(ann, listed.id, late=True)
    await office.reply(queue, ann, listed.id, task.case, **COLD)
    await office.reply(queue, ann, listed.id, task.case, value=True, rationale="I was wrong.")
    assert await office.feedback() == {("ann", "Wait."): (True, "I was wrong.")}


async def test_newer_answer_is_kept(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.judged("Wait.")
    queue, ann, later_is_learned = office.queue(), Reviewer("ann"), asyncio.Event()
    learn = queue.answers._learn

    async def slowly(*arguments: Any) -> None:
        if "Too cold." in str(arguments):
            await later_is_learned.wait()
        await learn(*arguments)
        later_is_learned.set()

    monkeypatch.setattr(queue.answers, "_learn", slowly)
    [question], _ = await queue.list_tasks(ann)
    for value, why in ((False, "Too cold."), (True, "I was wrong.")):
        task = await queue.open(ann, question.id, late=True)
        reply = {"value": value, "rationale": why, "author": "ann"}
        await queue.answer(ann, question.id, task.case, reply)
    await queue.answers.drain()
    assert await office.feedback() == {("ann", "Wait."): (True, "I was wrong.")}


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


@pytest.mark.parametrize("place", ["kept", "thread"])
async def test_case_of_a_later_version_stops_no_other(
    office: Office, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    server = Threads(office)
    ann = Reviewer("ann", True, client=server)
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: ann)
    if place == "kept":
        await office.judged("Wait.")
        [item] = await office.store.asearch(("memalign", NAME, "judgments"))
        await office.store.aput(item.namespace, item.key, {**item.value, "of_later_versions": 1})
        await office.judged("Send a photo.")
    else:
        await server.start("Wait.")
        [earlier] = [await server.get(server.ids[0])]
        await server.start("Send a photo.")
        [[interrupt]] = earlier["interrupts"].values()
        interrupt["response_schema"]["x-case"]["judgments"][NAME]["of_later_versions"] = 1
        later = await server.get(server.ids[1])

        async def search(**_: Any) -> Any:
            return [earlier, later]

        monkeypatch.setattr(server, "search", search)
    expert = office.expert("", office.queue())
    assert "1 case waits" in (await expert.get("/review")).text
    assert "Send a photo." in (await expert.get("/review/next")).text
    assert (await expert.get(f"/review/standing/{NAME}")).page.status_code == 200


async def test_list_says_why_a_kept_judgment_is_asked_about(office: Office) -> None:
    midnight = datetime.now(UTC) + timedelta(days=1)
    example = Example(inputs="Where is my order?", outputs="Wait.")
    await asyncio.to_thread(keep_reviewed, office.memory.access, example, "sample", at=midnight)
    assert "drawn at random" in (await office.expert("ann", office.queue()).get("/review")).text


async def test_answer_in_another_namespace_is_not_offered_for_change(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Threads(office, namespace=["acme"])
    ann = Reviewer("ann", True, client=server)
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: ann)
    acme = JudgeMemory(
        office.store, CRITERION, namespace=["acme"], embeddings=office.judge.embeddings
    )
    other = Example(inputs="Hi.", outputs="Hello.")
    await acme.aremember(Feedback(example=other, value=True, author="ann"))
    await server.start("Wait.")
    queue = office.queue()
    expert = await office.expert("", queue).get("/review/next")
    assert "You can change an answer later" not in expert.text
    await office.answer(queue, expert)
    assert "Your answer is stored." in expert.text
    assert "Change it" not in expert.text


async def test_notice_names_no_other_answers_guideline(office: Office, people: People) -> None:
    server, ann, bob = people
    queue, question = office.queue(), await server.start("Wait.")
    task = await queue.open(ann, question)
    [notice] = await office.reply(queue, bob, question, value=True, rationale="Fine for a chat.")
    assert notice.startswith("Learned:")
    reply: Any = {"value": False, "rationale": "only the tone."}
    [notice] = await office.reply(queue, ann, question, task.case, **reply)
    assert "Fine for a chat" not in notice
    assert "Your answer is stored" in notice


@pytest.mark.parametrize("keep", [timedelta.max, timedelta(days=3_000 * 365)])
async def test_age_of_judgments_kept_without_limit(office: Office, keep: timedelta) -> None:
    office.judge = office.judge.but(keep_judgments=keep)
    await office.judged("Wait.")
    [question], _ = await office.queue().list_tasks(Reviewer("ann"))
    assert question.age == "just now"
    assert abs(datetime.now(UTC) - question.asked_at) < timedelta(minutes=5)
    # By its storage time, regardless of this page's own judge.
    office.judge = office.judge.but(keep_judgments=timedelta(hours=1))
    [question], _ = await office.queue().list_tasks(Reviewer("ann"))
    assert question.age == "just now"
    assert (await office.expert("ann", office.queue()).get("/review")).page.status_code == 200


@pytest.mark.parametrize("change", [{"edit": "Say sorry, and why."}, {"remove": ""}], ids=str)
async def test_reworded_guideline_is_not_changed(office: Office, change: dict[str, str]) -> None:
    guideline = await office.memory.aadd_guideline("Say sorry first.", author="ann")
    bob = await office.expert("bob", office.queue()).get(f"/review/learned/{NAME}")
    assert 'name="was" value="Say sorry first."' in bob.page.text
    await office.memory.aedit_guideline(guideline.id, "Say when it will come.", author="ann")
    [(action, text)] = change.items()
    sent = {"guideline_id": guideline.id, "was": "Say sorry first.", "text": text}
    await bob.post(f"/review/learned/{NAME}/{action}", **sent)
    assert bob.page.status_code == 400
    assert "This rule was reworded" in bob.text
    assert text in bob.text, "what was written is shown to be copied"
    [guideline] = await office.memory.aguidelines()
    assert guideline.text == "Say when it will come."


async def test_answered_case_does_not_open_as_a_new_case(office: Office) -> None:
    await office.judged("Wait.")
    queue = office.queue()
    ann, bob = office.expert("ann", queue), office.expert("bob", queue)
    case = (await ann.get("/review/next")).here
    await office.answer(queue, ann)
    for expert in (ann, bob):
        assert (await expert.get(case)).page.status_code == 404
        assert "This case is answered" in expert.text


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
