"""Threads of an Agent Server on the review page."""

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_sdk.errors import ConflictError, NotFoundError

from memalign_graph import (
    Criterion,
    Example,
    Feedback,
    JudgeMemory,
    Numeric,
    create_panel_graph,
    create_review_graph,
)
from memalign_graph.memory.judgments import utc_now
from memalign_graph.review import ReviewQueue
from memalign_graph.review.answers import Answer
from memalign_graph.review.forms import parse_form
from memalign_graph.review.queue import NotOpenError
from memalign_graph.review.requests import SignIn
from memalign_graph.review.tasks import Reviewer
from tests.conftest import CRITERION
from tests.integration_tests.review_page.conftest import (
    NAME,
    Expert,
    Office,
    Threads,
    refusal,
    with_criterion,
)
from tests.loopback import Rule, error

ASKS = {"question": "What is cold in it?"}
COLD: Any = {"value": False, "rationale": "Too cold."}
People = tuple[Threads, Reviewer, Reviewer]


async def start(office: Office, people: People, place: str) -> str:
    """Ask about a case on a thread, or keep its judgment; returns the task's id."""
    if place == "thread":
        return await people[0].start("Wait.")
    await office.judged("Wait.")
    return f"j-{NAME}-{(await office.judgment_ids())[0]}"


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
    assert "answered before, or its thread is gone." in notice
    joined = joined.replace("No greeting.", "No name.")
    assert await office.feedback() == {("ann", "Wait."): (False, joined)}


def serve_panel(server: Threads, office: Office, *others: Criterion) -> None:
    models: Any = {"model": office.judge.model, "embeddings": office.judge.embeddings}
    panel = create_panel_graph([CRITERION, *others], review="always", **models)
    server.graph = panel.compile(checkpointer=InMemorySaver(), store=office.store)


@pytest.mark.parametrize("kind", ["review", "question"])
async def test_waiting_case_is_answered_on_the_scale_that_is_served(
    office: Office, kind: str
) -> None:
    server, queue = Threads(office, clarify=kind == "question"), office.queue()
    ann, form = Reviewer("ann", True, client=server), {"value": "3", "rationale": "Too cold."}
    office.server.rules = [Rule(lambda chat: chat.schema_name == "feedback_question", reply=ASKS)]
    task_id = await server.start("Wait.")
    expected: Any = (3, "Too cold.")
    if kind == "question":
        await office.reply(queue, ann, task_id, **COLD)
        task_id, form = await server.question(server.ids[0]), {"rationale": "No greeting."}
        expected = (None, 'Too cold.\n(Asked back: "What is cold in it?")\nNo greeting.')
    scale = Numeric(minimum=1, maximum=5, integer=True)
    served = CRITERION.model_copy(update={"scale": scale})
    judge = office.judge.model_copy(update={"criterion": served})
    options: Any = {**judge.options, "keep_judgments": None, "clarify": kind == "question"}
    graph, saver = create_review_graph(served, **options), server.graph.checkpointer
    server.graph = graph.compile(checkpointer=saver, store=office.store)
    queue = ReviewQueue([judge], store=office.store)
    case = (await queue.open(ann, task_id)).case
    [notice] = await office.reply(queue, ann, task_id, case, **parse_form(case, form, "ann"))
    assert notice.startswith("Learned:")
    assert await office.feedback() == {("ann", "Wait."): expected}


@pytest.mark.parametrize("kind", ["review", "panel", "question"])
@pytest.mark.parametrize("is_taken_back", [False, True])
@pytest.mark.parametrize("is_queued", [False, True])
async def test_answer_changed_before_its_run_begins_is_learned_in_its_new_form(
    office: Office,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    *,
    is_taken_back: bool,
    is_queued: bool,
) -> None:
    """The run is queued, or waits for another run of its thread."""
    server, queue = Threads(office, clarify=kind == "question"), office.queue()
    ann, reply = Reviewer("ann", True, client=server), COLD
    asks = Rule(lambda chat: chat.schema_name == "feedback_question", reply=ASKS)
    if kind == "panel":  # with a criterion that was not judged
        other = with_criterion(office.judge, "other")
        serve_panel(server, office, other.criterion)
        queue = ReviewQueue([office.judge, other], store=office.store)
        office.server.rules = [Rule(lambda chat: NAME in chat.text, reply=error(400, "Refused."))]
        reply = {NAME: COLD}
    question = await server.start("Wait.")
    office.server.rules = [asks]
    if kind == "question":
        await office.reply(queue, ann, question, **COLD)
        question, reply = await server.question(server.ids[0]), {"rationale": "No greeting."}
    create, sleep = server.create, asyncio.sleep

    async def change_first(*args: Any, **options: Any) -> Any:
        [episode] = await office.memory.aepisodes()
        if is_taken_back:
            await office.memory.aforget(episode.id)
        else:
            await office.memory.arevise(episode.id, {"value": True, "rationale": None})
        server.create = create  # type: ignore[method-assign]
        if is_queued:
            return await create(*args, **options)
        raise refusal(ConflictError, 409)

    server.create = change_first  # type: ignore[method-assign]
    monkeypatch.setattr("memalign_graph.review.threads.asyncio.sleep", lambda _: sleep(0))
    notices = await office.reply(queue, ann, question, **reply)
    assert await office.feedback() == ({} if is_taken_back else {("ann", "Wait."): (True, None)})
    # A question about a comment that has changed stays open.
    assert is_queued or bool(notices) is (not is_taken_back and kind != "question")


@pytest.mark.parametrize("place", ["kept", "thread"])
@pytest.mark.parametrize("is_taken_back", [False, True])
async def test_answer_counts_after_one_that_a_clock_ahead_has_dated(
    office: Office,
    people: People,
    monkeypatch: pytest.MonkeyPatch,
    *,
    place: str,
    is_taken_back: bool,
) -> None:
    _, ann, _ = people
    ahead, now_ns = timedelta(seconds=40), time.time_ns
    example = Example(inputs="Where is my order?", outputs="Wait.")
    earlier = Feedback(example=example, value=True, author="ann", given_at=utc_now() + ahead)
    episode = await office.memory.aremember(earlier)
    if is_taken_back:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: now_ns() + 40 * 10**9)
            await office.memory.aforget(episode.id)
    task_id = await start(office, people, place)
    [notice] = await office.reply(office.queue(), ann, task_id, **COLD)
    assert notice.startswith("Learned:")
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}


@pytest.mark.parametrize("place", ["kept", "thread"])
async def test_answer_is_stored_if_the_model_fails(
    office: Office, people: People, place: str
) -> None:
    _, ann, _ = people
    task_id = await start(office, people, place)
    office.server.responder = lambda _: error(500, "It broke.")
    [notice] = await office.reply(office.queue(), ann, task_id, **COLD)
    assert notice.startswith("Your answer is stored, and learned from later: ")
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}


@pytest.mark.parametrize("gone", ["run", "thread", "writes"])
async def test_expert_is_told_why_a_thread_did_not_go_on(
    office: Office, people: People, gone: str
) -> None:
    server, ann, _ = people
    question, queue = await server.start("Wait."), office.queue()
    case = (await queue.open(ann, question)).case
    if gone == "run":
        server.is_run_deleted = True
    elif gone == "thread":
        server.ids.clear()
    else:  # a server that was killed has not saved the interrupt: the run asks again
        server.create = AsyncMock(return_value={"run_id": "1"})  # type: ignore[method-assign]
    [notice] = await office.reply(queue, ann, question, case, **COLD)
    reasons = {"run": "does not name the run", "thread": "thread is gone", "writes": "still waits"}
    assert reasons[gone] in notice
    assert notice.count("Your answer is stored") == 1
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}


async def test_question_waits_since_it_was_asked(office: Office, people: People) -> None:
    server, ann, _ = people
    await server.start("Wait.")
    [task], _ = await office.queue().list_tasks(ann)
    assert datetime.now(UTC) - task.asked_at < timedelta(minutes=5), "the thread is older"


async def test_question_is_open_after_a_run_of_its_thread_failed(
    office: Office, people: People
) -> None:
    server, ann, _ = people
    question = await server.start("Wait.")
    server.status = "error"
    case = (await office.queue().open(ann, question)).case
    server.status = "success"
    [notice] = await office.reply(office.queue(), ann, question, case, **COLD)
    assert notice.startswith("Learned:")


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
    other = ReviewQueue([with_criterion(office.judge, "other")], store=office.store)
    await server.start("Send a photo.")
    assert (await other.list_tasks(ann))[0] == []


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


async def test_second_answer_to_a_thread_is_kept_and_its_expert_is_told(
    office: Office, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ann, bob = people
    question, queue = await server.start("Wait."), office.queue()
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: bob)
    late = await office.expert("", queue).get(f"/review/case/{question}")
    await office.reply(queue, ann, question, **COLD)
    await office.answer(queue, late, value="true")
    assert "The case was answered before" in (await late.get("/review")).notices[0]
    expected = {("ann", "Wait."): (False, "Too cold."), ("bob", "Wait."): (True, None)}
    assert await office.feedback() == expected


async def test_thread_is_resumed_with_the_settings_of_the_run_that_asked(
    office: Office, people: People
) -> None:
    server, ann, _ = people
    question, config = await server.start("Wait."), {"recursion_limit": 40, "tags": ["nightly"]}
    webhook = "https://app.example/done"
    server.asked_with = {"webhook": webhook, "config": {**config, "run_name": "own"}}
    await office.reply(office.queue(), ann, question, **COLD)
    assert server.resumed_with == {
        "assistant_id": "review",
        "multitask_strategy": "reject",  # `langgraph dev` drops one of two in silence
        "webhook": webhook,
        "config": {**config, "configurable": server.context},
    }


async def test_unverified_name_sees_no_case_or_notice_of_another_account(office: Office) -> None:
    server, queue = Threads(office), office.queue()
    question = await server.start("Wait.")
    ann = Reviewer("ann", True, client=server, account="ann")
    eve = Reviewer("ann", client=Threads(office), account="eve")  # sees no threads
    task = await queue.open(ann, question)
    with pytest.raises(NotOpenError):
        await queue.open(eve, question, late=True)
    await queue.answer(Answer(ann, question, task.case, {**COLD, "author": "ann"}))
    await queue.answers.drain()
    assert queue.answers.take_notices(eve) == []
    assert len(queue.answers.take_notices(ann)) == 1


async def test_kept_judgment_with_an_interrupt_is_one_task(office: Office) -> None:
    server = Threads(office, keep_judgments=timedelta(days=1))
    question = await server.start("Wait.")
    queue, ann = office.queue(), Reviewer("ann", True, client=server)
    tasks, count = await queue.list_tasks(ann)
    assert ([item.id for item in tasks], count) == ([question], 1)


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


async def test_task_is_not_listed_from_its_answer_on(
    office: Office, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ann, _ = people
    queue, question = office.queue(), await server.start("Wait.")
    assert [task.id for task in (await queue.list_tasks(ann))[0]] == [question]
    learn, may_learn = queue.answers._learn, asyncio.Event()

    async def slowly(answer: Answer) -> None:
        await may_learn.wait()
        await learn(answer)

    monkeypatch.setattr(queue.answers, "_learn", slowly)
    case = (await queue.open(ann, question)).case
    await queue.answer(Answer(ann, question, case, {**COLD, "author": "ann"}))
    assert await queue.list_tasks(ann) == ([], 0)  # while it is learned from
    may_learn.set()
    await queue.answers.drain()
    assert await queue.list_tasks(ann) == ([], 0)
