"""What goes wrong around the page: servers that refuse or stop, models that fail, odd names."""

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from langgraph_sdk.errors import ConflictError, NotFoundError

from memalign_graph import (
    Criterion,
    MemAlignError,
    create_judge_graph,
    create_panel_graph,
    create_review_graph,
)
from memalign_graph.review import ReviewQueue, create_review_app
from memalign_graph.review.requests import SignIn
from memalign_graph.review.tasks import Reviewer
from memalign_graph.review.threads import resume
from tests.conftest import CRITERION
from tests.integration_tests.review_page.test_page import NAME, Expert, Office, office
from tests.loopback import Rule, error

__all__ = ["office"]

ASKS = {"question": "What is cold in it?"}


def refusal(kind: Any, status: int) -> Exception:
    response = httpx.Response(status, request=httpx.Request("GET", "http://api"))
    fault: Exception = kind("It is not so.", response=response, body=None)
    return fault


class Threads:
    """An Agent Server with one review graph, as far as a desk asks it."""

    def __init__(self, office: Office, **options: Any) -> None:
        builder = create_review_graph(
            CRITERION, **{**office.judge.options, "keep_judgments": None, **options}
        )
        self.graph = builder.compile(checkpointer=InMemorySaver(), store=office.store)
        self.threads = self.runs = self
        self.ids: list[str] = []
        self.faults: list[Exception] = []
        self.status = "success"

    def _config(self, thread_id: str) -> Any:
        return {"configurable": {"thread_id": thread_id}}

    async def start(self, outputs: str) -> str:
        self.ids.append(str(uuid4()))
        example = {"inputs": "Where is my order?", "outputs": outputs}
        await self.graph.ainvoke(example, self._config(self.ids[-1]))
        return await self.question(self.ids[-1])

    async def question(self, thread_id: str) -> str:
        state = await self.graph.aget_state(self._config(thread_id))
        return f"t-{thread_id}-{state.interrupts[0].id}"

    async def get(self, thread_id: str, run_id: str | None = None) -> Mapping[str, Any]:
        if run_id is not None:
            return {"status": self.status}
        if thread_id not in self.ids:
            raise refusal(NotFoundError, 404)
        state = await self.graph.aget_state(self._config(thread_id))
        waiting = [
            {"id": it.id, "value": it.value, "response_schema": it.response_schema}
            for it in state.interrupts
        ]
        return {
            "thread_id": thread_id,
            "created_at": "2026-01-01T00:00:00+00:00",
            "metadata": {"assistant_id": "review", "graph_id": "review"},
            "interrupts": {"task": waiting} if waiting else {},
            "values": state.values,
        }

    async def get_history(self, thread_id: str, limit: int) -> list[dict[str, Any]]:
        return []

    async def count(self, **_: Any) -> int:
        return len(self.ids)

    async def search(self, **_: Any) -> list[Mapping[str, Any]]:
        if self.faults:
            raise self.faults.pop(0)
        found = [await self.get(thread_id) for thread_id in self.ids]
        return [thread for thread in found if thread["interrupts"]]

    async def create(self, thread_id: str, _: str, *, command: Any, **__: Any) -> dict[str, str]:
        if self.faults:
            raise self.faults.pop(0)
        try:
            await self.graph.ainvoke(Command(**command), self._config(thread_id))
        except MemAlignError:
            self.status = "error"
        return {"run_id": "1"}

    async def join(self, *_: str) -> None:
        pass


async def nothing(*_: object) -> None:
    """Stands for learning on a server that stops before it."""


async def answered(at: ReviewQueue, visitor: Reviewer, question: str, **reply: Any) -> list[str]:
    found = await at.open(visitor, question)
    assert found is not None
    await at.answer(visitor, question, found.case, {**reply, "author": visitor.name})
    await at.answers.drain()
    return [text for _, text in at.answers.take_notices(visitor.name)]


@pytest.fixture
def people(office: Office) -> tuple[Threads, Reviewer, Reviewer]:
    server = Threads(office)
    ann, bob = (Reviewer(it, True, client=server) for it in ("ann", "bob"))
    return server, ann, bob


async def test_a_question_back_is_no_lost_answer(office: Office) -> None:
    server, at = Threads(office, clarify=True), office.desk()
    ann, bob = (Reviewer(it, True, client=server) for it in ("ann", "bob"))
    office.server.rules = [Rule(lambda chat: chat.schema_name == "feedback_question", reply=ASKS)]
    first = await server.start("Wait.")
    told = await answered(at, ann, first, value=False, rationale="Too cold.")
    assert "A question about your words waits" in told[0]
    assert await office.said() == {("ann", "Wait."): (False, "Too cold.")}
    back = await server.question(server.ids[0])
    found = await at.open(bob, back)
    assert found is not None
    await at.answer(bob, back, found.case, {"rationale": "No greeting."})
    await at.answers.drain()
    assert [text.partition(":")[0] for _, text in at.answers.take_notices("bob")] == ["Learned"]
    words = 'Too cold.\n(Asked back: "What is cold in it?")\nNo greeting.'
    assert await office.said() == {("ann", "Wait."): (False, words)}
    # Another answer to it comes late: it is joined to the words, not put in their place.
    await at.answer(ann, back, found.case, {"rationale": "No name.", "author": "ann"})
    await at.answers.drain()
    assert "Somebody else" in at.answers.take_notices("ann")[0][1]
    joined = words.replace("No greeting.", "No name.")
    assert await office.said() == {("ann", "Wait."): (False, joined)}


async def test_another_run_on_the_thread_is_waited_for(
    office: Office, people: tuple[Threads, Reviewer, Reviewer]
) -> None:
    server, ann, _ = people
    question = await server.start("Wait.")
    server.faults.append(refusal(ConflictError, 409))
    [told] = await answered(office.desk(), ann, question, value=False, rationale="Too cold.")
    assert told.startswith("Learned:")


async def test_a_model_that_fails_leaves_the_words(
    office: Office, people: tuple[Threads, Reviewer, Reviewer]
) -> None:
    server, ann, _ = people
    question = await server.start("Wait.")
    office.server.responder = lambda _: error(500, "It broke.")
    [told] = await answered(office.desk(), ann, question, value=False, rationale="Too cold.")
    assert told.startswith("Your answer is kept, and learned from later: ")
    assert await office.said() == {("ann", "Wait."): (False, "Too cold.")}


async def test_an_answer_handed_on_by_a_server_that_stopped_is_ones_own(
    office: Office, people: tuple[Threads, Reviewer, Reviewer]
) -> None:
    server, ann, _ = people
    at, question = office.desk(), await server.start("Wait.")
    found = await at.open(ann, question)
    assert found is not None
    reply = {"value": False, "rationale": "Too cold.", "author": "ann"}
    await resume(server, question, found.case, reply)
    await at.answer(ann, question, found.case, reply)
    await at.answers.drain()
    assert [text.partition(":")[0] for _, text in at.answers.take_notices("ann")] == ["Learned"]
    # Other words with the same value are no repetition.
    await at.answer(ann, question, found.case, {**reply, "rationale": "Too short."})
    await at.answers.drain()
    assert await office.said() == {("ann", "Wait."): (False, "Too short.")}


async def test_what_is_not_there_or_not_of_this_desk_is_no_dead_end(
    office: Office, people: tuple[Threads, Reviewer, Reviewer]
) -> None:
    server, ann, _ = people
    at, question = office.desk(), await server.start("Wait.")
    assert await at.claim_next(ann) == question
    server.ids.clear()  # answered elsewhere: the list does not know yet
    assert await at.open(ann, question) is None
    assert await at.claim_next(ann) is None
    assert await at.open(ann, f"t-{uuid4()}-1") is None
    assert await at.open(ann, "t-../../assistants-1") is None
    other = ReviewQueue([replace_criterion(office, "other")], store=office.store)
    await server.start("Send a photo.")
    assert (await other.list_tasks(ann))[0] == []


def replace_criterion(office: Office, name: str) -> Any:
    criterion = Criterion(name=name, instructions="Is it?")
    return office.judge.model_copy(update={"criterion": criterion})


async def test_the_words_outlast_a_failing_embedder(office: Office) -> None:
    """The first case of a memory has no vector yet."""
    await office.judged("Wait.")
    at = office.desk()
    ann = await office.expert("ann", at).get("/review/next")
    office.server.script_embeddings(*[error(400, "It broke.")] * 9)
    await ann.answer(value="false", rationale="Too cold.")
    await at.answers.drain()
    office.server.script_embeddings()
    assert await office.said() == {("ann", "Wait."): (False, "Too cold.")}


ODD_OUTPUTS: tuple[Any, ...] = (
    " " * 2_000 + "Wait.",
    "\n" * 3_000 + "Wait.",
    "\ufeff\u200b" * 2_000,
    "Wait." * 200_000,
    {"code": " " * 2_000, "": [""]},
    [{"role": "assistant", "content": "Wait.", "tool_calls": 5}],
)


@pytest.mark.parametrize("outputs", ODD_OUTPUTS, ids=lambda outputs: repr(outputs)[:20])
async def test_odd_outputs_do_not_hold_up_the_queue(office: Office, outputs: Any) -> None:
    await office.judged(outputs)
    at = office.desk()
    ann = await office.expert("ann", at).get("/review/next")
    case = ann.here
    for path in (case, f"{case}/nearest", "/review", case):
        assert (await ann.get(path)).page.status_code == 200
    await ann.answer(value="false", rationale="Too cold.")
    await at.answers.drain()
    for page in ("mine", "learned", "standing"):
        assert (await ann.get(f"/review/{page}/{NAME}")).page.status_code == 200
    assert [episode.rationale for episode in await office.memory.aepisodes()] == ["Too cold."]


async def test_two_answers_in_a_row_are_both_delivered(office: Office) -> None:
    await office.judged("Wait.")
    at = office.desk()
    ann = await office.expert("ann", at).get("/review/next")
    second_tab = await office.expert("ann", at).get(ann.here)
    await ann.answer(value="false", rationale="Too cold.")
    await second_tab.answer(value="true", rationale="It is fine.")
    await at.answers.drain()
    assert await office.said() == {("ann", "Wait."): (True, "It is fine.")}


async def test_an_answer_to_an_earlier_judgment_is_refused_and_kept_in_the_form(
    office: Office,
    people: tuple[Threads, Reviewer, Reviewer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, visitor, _ = people
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: visitor)
    await server.start("Wait.")
    at = office.desk()
    ann = await office.expert("", at).get("/review/next")
    case, form = ann.here, {"value": "false", "rationale": "Too cold."}
    named = hidden(ann, "judgment_id")
    await ann.post(f"{case}/answer", **form, judgment_id="0" * 32)
    assert "judged this case again" in ann.text
    assert "Too cold." in ann.text
    assert hidden(ann, "judgment_id") == named
    assert await office.said() == {}
    await ann.post(f"{case}/answer", **form, judgment_id=named)
    await at.answers.drain()
    assert await office.said() == {("ann", "Wait."): (False, "Too cold.")}
    assert at.answers.take_notices(visitor.name)[0][1].startswith("Learned:")


@pytest.mark.parametrize("kind", ["review", "panel"])
async def test_the_page_names_the_judgment_in_each_answer(office: Office, kind: str) -> None:
    server = Threads(office)
    if kind == "panel":
        panel = create_panel_graph([CRITERION], review="always", **models_of(office))
        server.graph = panel.compile(checkpointer=InMemorySaver(), store=office.store)
    at, ann = office.desk(), Reviewer("ann", True, client=server)
    question = await server.start("Wait.")
    found = await at.open(ann, question)
    assert found is not None
    said = {"value": False, "rationale": "Too cold."}
    reply = {**({NAME: said} if kind == "panel" else said), "author": "ann"}
    [judgment] = found.case["judgments"].values()
    earlier = {**found.case, "judgments": {NAME: {**judgment, "id": "0" * 32}}}
    await at.answer(ann, question, earlier, reply)
    await at.answers.drain()
    assert "the answer is to the judgment" in at.answers.take_notices("ann")[0][1]
    assert await server.question(server.ids[0]) == question  # it still waits
    await at.answer(ann, question, found.case, reply)
    await at.answers.drain()
    assert at.answers.take_notices("ann")[0][1].startswith("Learned:")


def hidden(expert: Expert, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)', expert.page.text)
    assert found is not None
    return found[1]


def models_of(office: Office) -> Any:
    return {"model": office.judge.model, "embeddings": office.judge.embeddings}


async def test_answer_of_a_server_that_stopped_is_learned_from_with_the_next_one(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.judged("Wait.", "Send a photo.")
    stopped, at = office.desk(), office.desk()
    monkeypatch.setattr(stopped.answers, "_learn", nothing)
    ann = await office.expert("ann", stopped).get("/review/next")
    await ann.answer(value="false", rationale="Too cold.")
    assert await office.said() == {("ann", "Wait."): (False, "Too cold.")}
    assert [one.status for one in await office.memory.aepisodes()] == ["pending"]
    ann = await office.expert("ann", at).get("/review/next")
    await ann.answer(value="false", rationale="No photo is needed.")
    await at.answers.drain()
    assert [one.status for one in await office.memory.aepisodes()] == ["distilled"] * 2


async def test_experts_do_not_see_whose_turn_it_is_for_others(office: Office) -> None:
    await office.judged("Wait.")
    at = office.desk()
    [mine], _ = await at.list_tasks(Reviewer("ann"))
    await at.leases.renew("ann", mine.id)
    [others], _ = await at.list_tasks(Reviewer("bob"))
    [mine], _ = await at.list_tasks(Reviewer("ann"))
    assert (mine.held_by, others.held_by) == (None, "ann")


async def test_a_name_with_a_slash_is_a_name(office: Office) -> None:
    name = "Ton/höflich? 100%"
    office.judge = replace_criterion(office, name)
    graph = create_judge_graph(office.judge.criterion, **office.judge.options)
    await graph.compile(store=office.store).ainvoke({"inputs": "Where?", "outputs": "Wait."})
    at = office.desk()
    ann = await office.expert("ann", at).get("/review/next")
    await ann.answer(value="false", rationale="Too cold.")
    await at.answers.drain()
    for page in ("learned", "mine", "standing"):
        await ann.get(f"/review/{page}/{quote(name)}")
        assert (ann.page.status_code, name in ann.text) == (200, True), page
    await ann.get(f"/review/learned/{quote(name)}")
    await ann.post(f"/review/learned/{quote(name)}/add", text="Says sorry.")
    assert "Says sorry." in ann.text


async def test_odd_requests_are_answered_in_a_sentence(office: Office) -> None:
    await office.judged("Wait.")
    ann = office.expert("ann", office.desk())
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


async def test_a_store_or_server_that_refuses_is_told(
    office: Office, people: tuple[Threads, Reviewer, Reviewer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ann, _ = people
    await server.start("Wait.")
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: ann)
    expert = office.expert("", office.desk())
    server.faults.append(refusal(NotFoundError, 404))
    await expert.get("/review")
    assert (expert.page.status_code, "That did not work" in expert.text) == (400, True)
    assert "1 case waits" in (await expert.get("/review")).text


async def test_a_case_is_opened_again_where_nobody_said_their_name(office: Office) -> None:
    await office.judged("Wait.")
    ann = await office.expert("ann", office.desk()).get("/review/next")
    forgot = Expert(
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_review_app(office.desk())),
            base_url="http://127.0.0.1",
            cookies=ann.http.cookies,
            follow_redirects=True,
        ),
        ann.page,
    )
    office.open.append(forgot.http)
    await forgot.post(f"{ann.here}/answer", value="false")
    assert 'name="back" value="/review"' in forgot.page.text


async def test_a_judgment_that_is_kept_and_asked_about_is_one_question(office: Office) -> None:
    server = Threads(office, keep_judgments=timedelta(days=1))
    question = await server.start("Wait.")
    at, ann = office.desk(), Reviewer("ann", True, client=server)
    found, count = await at.list_tasks(ann)
    assert ([it.id for it in found], count) == ([question], 1)


async def test_an_answer_outlasts_its_judgment_and_the_later_one_counts(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.judged("Wait.")
    stopped, at = office.desk(), office.desk()
    monkeypatch.setattr(stopped.answers, "_learn", nothing)  # it ends before anything is learned
    ann = Reviewer("ann")
    [question], _ = await stopped.list_tasks(ann)
    found = await stopped.open(ann, question.id)
    assert found is not None
    for item in await office.store.asearch(("memalign",), limit=100):
        if "judgments" in item.namespace:
            await office.store.adelete(item.namespace, item.key)
    late = await stopped.open(ann, question.id, late=True)
    assert late is not None
    for value, why in ((False, "Too cold."), (True, "I was wrong.")):
        reply = {"value": value, "rationale": why, "author": "ann"}
        await stopped.answer(ann, question.id, late.case, reply)
    assert await office.said() == {("ann", "Wait."): (True, "I was wrong.")}
    at.answers.take_notices("ann")
    await at.answers.drain()
    assert await office.said() == {("ann", "Wait."): (True, "I was wrong.")}


async def test_an_answer_that_is_learned_from_last_does_not_take_the_place_of_a_later_one(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.judged("Wait.")
    at, ann, later_is_learned = office.desk(), Reviewer("ann"), asyncio.Event()
    learn = at.answers._learn

    async def slowly(*arguments: Any) -> None:
        if "Too cold." in str(arguments):
            await later_is_learned.wait()
        await learn(*arguments)
        later_is_learned.set()

    monkeypatch.setattr(at.answers, "_learn", slowly)
    [question], _ = await at.list_tasks(ann)
    for value, why in ((False, "Too cold."), (True, "I was wrong.")):
        task = await at.open(ann, question.id, late=True)
        assert task is not None
        reply = {"value": value, "rationale": why, "author": "ann"}
        await at.answer(ann, question.id, task.case, reply)
    await at.answers.drain()
    assert await office.said() == {("ann", "Wait."): (True, "I was wrong.")}


@pytest.mark.parametrize("is_removed", [False, True])
async def test_an_answer_to_a_judgment_that_ended_is_stored_by_any_process_or_shown_to_be_copied(
    office: Office, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool
) -> None:
    await office.judged("Wait.")
    ann = await office.expert("ann", office.desk()).get("/review/next")
    form = {"value": "false", "rationale": "Too <cold>.\nSay sorry."}
    days_later = datetime.now(UTC) + timedelta(days=2)
    monkeypatch.setattr("memalign_graph.memory.judgments.utc_now", lambda: days_later)
    if is_removed:  # by what is judged later, or by the store
        for item in await office.store.asearch(("memalign", NAME, "judgments")):
            await office.store.adelete(item.namespace, item.key)
    at = office.desk()  # of a server that was started later
    other = office.expert("ann", at)
    other.http.cookies, other.page = ann.http.cookies, ann.page
    await other.post(f"{ann.here}/answer", **form)
    await at.answers.drain()
    if is_removed:
        assert other.page.status_code == 404
        assert "It is not stored: copy what you want to keep." in other.text
        assert "Too &lt;cold&gt;.\nSay sorry." in other.page.text
        assert await office.said() == {}
    else:
        assert await office.said() == {("ann", "Wait."): (False, form["rationale"])}
        assert at.answers.take_notices("ann")[0][1].startswith("Your answer is kept")
    assert (await other.get(ann.here)).page.status_code == 404  # nobody opens it any more


async def test_nobody_is_told_anothers_rule_as_their_own(
    office: Office, people: tuple[Threads, Reviewer, Reviewer]
) -> None:
    server, ann, bob = people
    question = await server.start("Wait.")
    at = office.desk()
    found = await at.open(ann, question)
    assert found is not None
    [told] = await answered(at, bob, question, value=True, rationale="Fine for a chat.")
    assert told.startswith("Learned:")
    await at.answer(ann, question, found.case, {"value": False, "rationale": "only the tone."})
    await at.answers.drain()
    [(_, told)] = at.answers.take_notices("ann")
    assert "Fine for a chat" not in told
    assert "your answer is kept" in told


@pytest.mark.parametrize("keep", [timedelta.max, timedelta(days=3_000 * 365)])
async def test_judgments_that_are_kept_for_ever_are_listed_with_their_age(
    office: Office, keep: timedelta
) -> None:
    office.judge = office.judge.but(keep_judgments=keep)
    await office.judged("Wait.")
    [question], _ = await office.desk().list_tasks(Reviewer("ann"))
    assert question.age == "just now"
    assert abs(datetime.now(UTC) - question.asked_at) < timedelta(minutes=5)
    # By when it was kept, whatever this page's own judge is set to.
    office.judge = office.judge.but(keep_judgments=timedelta(hours=1))
    [question], _ = await office.desk().list_tasks(Reviewer("ann"))
    assert question.age == "just now"
    assert (await office.expert("ann", office.desk()).get("/review")).page.status_code == 200


async def test_a_rule_that_another_reworded_is_not_overwritten_unseen(office: Office) -> None:
    rule = await office.memory.aadd_guideline("Say sorry first.", author="ann")
    at = office.desk()
    ann, bob = office.expert("ann", at), office.expert("bob", at)
    for one in (ann, bob):
        await one.get(f"/review/learned/{NAME}")
        assert 'name="was" value="Say sorry first."' in one.page.text
    sent = {"guideline_id": rule.id, "was": "Say sorry first."}
    path = f"/review/learned/{NAME}/edit"
    await ann.post(path, **sent, text="Say sorry before anything else.")
    await bob.post(path, **sent, text="Say sorry, and why.")
    assert bob.page.status_code == 400
    assert "Somebody has reworded this rule" in bob.text
    assert "Say sorry, and why." in bob.text, "what was written is shown to be copied"
    assert [it.text for it in await office.memory.aguidelines()] == [
        "Say sorry before anything else."
    ]


async def test_closing_one_of_two_tabs_keeps_the_case(office: Office) -> None:
    await office.judged("Wait.")
    at = office.desk()
    ann, bob = office.expert("ann", at), office.expert("bob", at)
    case = (await ann.get("/review/next")).here
    await ann.get(case)  # a second tab
    await ann.post(f"{case}/leave")
    await bob.get("/review/next")
    assert bob.here == "/review"


async def test_an_answered_case_does_not_open_as_if_new(office: Office) -> None:
    await office.judged("Wait.")
    at = office.desk()
    ann, bob = office.expert("ann", at), office.expert("bob", at)
    case = (await ann.get("/review/next")).here
    await ann.answer(value="false", rationale="Too cold.")
    await at.answers.drain()
    for one in (ann, bob):
        assert (await one.get(case)).page.status_code == 404
        assert "This case is answered" in one.text


async def test_leases_are_removed_after_a_day(office: Office) -> None:
    await office.judged("Wait.")
    at, now = office.desk(), datetime.now(UTC)
    for hours in (23, 25):
        seen = (now - timedelta(hours=hours)).isoformat()
        lease = {"question": f"j-{hours}", "who": "bob", "since": seen, "seen": seen}
        key = f"j-{hours}:bob"
        await office.store.aput(("memalign_review", "leases"), key, {**lease, "skipped": True})
    await office.expert("ann", at).get("/review/next")
    names = {lease.key.partition(":")[2]: lease.key for lease in await at.leases.all()}
    assert (len(names), names["bob"]) == (2, "j-23:bob")
    assert len(await at.leases.all()) == 2
