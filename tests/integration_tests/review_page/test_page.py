"""The review page without a browser: what is stored, what is told, and what is refused."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from typing import Any

import httpx
import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Categorical,
    Criterion,
    Feedback,
    Judge,
    JudgeMemory,
    Numeric,
    Pairwise,
    create_judge_graph,
)
from memalign_graph.interrupts import case_payload
from memalign_graph.review import ReviewQueue, create_review_app, leases
from memalign_graph.review.forms import fields_of, parse_form
from memalign_graph.review.tasks import Reviewer
from tests.conftest import CRITERION
from tests.loopback import LoopbackServer, error

NAME = CRITERION.name


@dataclass
class Expert:
    """A browser, as far as these tests need one."""

    http: httpx.AsyncClient
    page: Any = None

    @property
    def here(self) -> str:
        return str(self.page.url.path)

    @property
    def text(self) -> str:
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.page.text)).split())

    @property
    def notices(self) -> list[str]:
        return re.findall(r'class="notice[^>]*>([^<]+)', self.page.text)

    async def get(self, path: str) -> "Expert":
        self.page = await self.http.get(path)
        return self

    async def post(self, path: str, **form: str) -> "Expert":
        token = re.search(r'name="token" value="([^"]+)', self.page.text)
        sent = {"token": token[1] if token else "", **form}
        self.page = await self.http.post(path, data=sent)
        return self

    async def answer(self, **form: str) -> "Expert":
        """Answer the case that is open."""
        return await self.post(f"{self.here}/answer", **form)


@dataclass
class Office:
    """A desk over one store, and experts who sit at it."""

    server: LoopbackServer
    store: InMemoryStore
    judge: Judge
    open: list[httpx.AsyncClient]

    def desk(self) -> ReviewQueue:
        return ReviewQueue([self.judge], store=self.store)

    def expert(self, name: str, at: ReviewQueue) -> Expert:
        transport = httpx.ASGITransport(app=create_review_app(at, name=name))
        http = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", follow_redirects=True
        )
        self.open.append(http)
        return Expert(http)

    async def judged(self, *outputs: Any) -> None:
        graph = create_judge_graph(CRITERION, **self.judge.options).compile(store=self.store)
        for shown in outputs:
            await graph.ainvoke({"inputs": "Where is my order?", "outputs": shown})

    @property
    def memory(self) -> JudgeMemory:
        return JudgeMemory(self.store, CRITERION, embeddings=self.judge.embeddings)

    async def said(self) -> dict[tuple[str, Any], tuple[Any, str | None]]:
        episodes = await self.memory.aepisodes()
        return {(str(it.author), it.example.outputs): (it.value, it.rationale) for it in episodes}


@pytest.fixture
async def office(server: LoopbackServer) -> Any:
    judge = Judge(
        criterion=CRITERION,
        model=server.chat_model(max_retries=0),
        embeddings=server.embedder(),
        keep_judgments=timedelta(days=1),
    )
    made = Office(server, InMemoryStore(), judge, [])
    yield made
    for http in made.open:
        await http.aclose()


async def test_answer_is_learned_and_the_expert_told(office: Office) -> None:
    await office.judged("Wait.", "Send a photo.")
    at = office.desk()
    ann = await office.expert("ann", at).get("/review/next")
    assert "The loopback judge" not in ann.text  # hidden until there is an answer
    case, page = ann.here, ann.page
    await ann.post(f"{case}/effect", value="false", rationale="Too cold.")
    assert "The loopback judge finds nothing" in ann.text
    assert await office.said() == {}  # a preview stores nothing
    ann.page = page
    await ann.answer(value="false", rationale="Too cold.")
    assert 'Your answer is stored. <a href="/review/mine/support_tone"' in ann.page.text
    await at.answers.drain()
    assert await office.said() == {("ann", "Wait."): (False, "Too cold.")}
    assert (await ann.get("/review")).notices == [
        "Learned: When judging, heed the expert: Too cold."
    ]
    assert (await ann.get("/review")).notices == []
    assert "1 case waits" in ann.text
    assert "Too cold." in (await ann.get(f"/review/learned/{NAME}")).text
    assert "0 of 1 (0%)" in (await ann.get(f"/review/standing/{NAME}")).text


async def test_nobody_is_offered_what_another_looks_at(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.judged("One.", "Two.")
    at = office.desk()
    ann, bob = office.expert("ann", at), office.expert("bob", at)
    first = (await ann.get("/review/next")).here
    assert (await bob.get("/review/next")).here != first
    assert "ann" in (await bob.get(first)).text
    await bob.post(f"{first}/skip")
    assert bob.here != first
    monkeypatch.setattr(leases, "LEASE", timedelta(0))
    assert [it.skipped for it in (await at.list_tasks(Reviewer("bob")))[0]] == [False, True]


async def test_case_that_was_judged_twice_is_offered_and_answered_twice(office: Office) -> None:
    await office.judged("Wait.", "Wait.")
    at = office.desk()
    ann = office.expert("ann", at)
    for _ in range(2):
        await (await ann.get("/review/next")).answer(value="true")
        await at.answers.drain()
    assert (await office.desk().list_tasks(Reviewer("ann")))[0] == []
    assert "2 of 2 (100%)" in (await ann.get(f"/review/standing/{NAME}")).text


async def test_a_server_that_stops_waits_for_what_is_being_learned(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.judged("Wait.")
    at, learned = office.desk(), list[str]()

    async def learn(_: object, task_id: str, *__: object) -> None:
        await asyncio.sleep(0.5)
        learned.append(task_id)

    monkeypatch.setattr(at.answers, "_learn", learn)
    app = create_review_app(at)
    async with app.router.lifespan_context(app):
        ann = await office.expert("ann", at).get("/review/next")
        await ann.answer(value="false")
        assert learned == []
    assert len(learned) == 1


async def test_two_answers_to_one_case_are_both_kept(office: Office) -> None:
    await office.judged("Wait.")
    at = office.desk()
    ann, bob = office.expert("ann", at), office.expert("bob", at)
    await ann.get("/review/next")
    await bob.get(ann.here)
    await asyncio.gather(ann.answer(value="false", rationale="Too cold."), bob.answer(value="true"))
    await at.answers.drain()
    told = {("ann", "Wait."): (False, "Too cold."), ("bob", "Wait."): (True, None)}
    assert await office.said() == told
    assert "Cases in dispute" in (await ann.get(f"/review/learned/{NAME}")).text


async def test_words_outlast_a_failing_model_a_stopped_server_and_the_judgment(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.judged("One.", "Two.")
    at = office.desk()
    ann = await office.expert("ann", at).get("/review/next")
    office.server.responder = lambda _: error(500, "It broke.")
    await ann.answer(value="false", rationale="Too cold.")
    await at.answers.drain()
    assert "kept, and learned from later" in (await ann.get("/review")).notices[0]
    # A server that stops with the answer written down and nothing done yet.
    office.server.responder = office.server.judge

    async def stop(*_: object) -> None:
        pass

    monkeypatch.setattr(at.answers, "_learn", stop)
    await ann.get("/review/next")
    await ann.answer(value="false", rationale="Too short.")
    for item in await office.store.asearch(("memalign", NAME, "judgments")):
        await office.store.adelete(item.namespace, item.key)
    again = office.desk()
    await office.expert("ann", again).get("/review")
    await again.answers.drain()
    words = {words for _, words in (await office.said()).values()}
    assert words == {"Too cold.", "Too short."}


async def test_own_words_are_changed_and_taken_back_by_their_expert_alone(office: Office) -> None:
    await office.judged("Wait.")
    at = office.desk()
    ann, bob = office.expert("ann", at), office.expert("bob", at)
    await ann.get("/review/next")
    await ann.answer(value="false", rationale="Too cold.")
    await at.answers.drain()
    [episode] = await office.memory.aepisodes()
    await ann.get(f"/review/mine/{NAME}")
    await bob.get(f"/review/learned/{NAME}")
    change = {"episode_id": episode.id, "value": "false", "rationale": "Too short."}
    assert (await bob.post(f"/review/mine/{NAME}", **change)).page.status_code == 400
    await bob.get(f"/review/learned/{NAME}")
    await bob.post(f"/review/learned/{NAME}/take-back", episode_id=episode.id)
    assert await office.said() == {("ann", "Wait."): (False, "Too cold.")}
    assert "Too short." in (await ann.post(f"/review/mine/{NAME}", **change)).text
    await ann.post(f"/review/learned/{NAME}/take-back", episode_id=episode.id)
    assert await office.said() == {}


async def test_rules_are_written_changed_and_rolled_back(office: Office) -> None:
    ann = await office.expert("ann", office.desk()).get(f"/review/learned/{NAME}")
    await ann.post(f"/review/learned/{NAME}/add", text="Says sorry first.")
    version = await office.memory.aversion()
    [rule] = await office.memory.aguidelines()
    assert rule.author == "ann"
    await ann.post(f"/review/learned/{NAME}/edit", guideline_id=rule.id, text="Says sorry.")
    assert (await ann.get(f"/review/learned/{NAME}/changes/{version}")).text == "Says sorry first."
    await ann.get(f"/review/learned/{NAME}")
    await ann.post(f"/review/learned/{NAME}/rollback", version=version)
    assert [it.text for it in await office.memory.aguidelines()] == ["Says sorry first."]
    await ann.post(f"/review/learned/{NAME}/remove", guideline_id=rule.id)
    assert await office.memory.aguidelines() == []


FORGED: dict[str, Callable[[Expert], Any]] = {
    "another site": lambda ann: ann.http.headers.update({"origin": "http://evil.example"}),
    "no token": lambda ann: ann.http.cookies.delete("memalign_token"),
    "another host": lambda ann: ann.http.headers.update({"host": "evil.example"}),
}


@pytest.mark.parametrize("how", FORGED)
async def test_what_another_site_sends_is_refused(office: Office, how: str) -> None:
    await office.judged("Wait.")
    ann = await office.expert("ann", office.desk()).get("/review/next")
    FORGED[how](ann)
    await ann.answer(value="false", rationale="Too cold.")
    assert ann.page.status_code == 403
    assert await office.said() == {}


async def test_bad_answers_are_told_at_the_form(office: Office) -> None:
    await office.judged("Wait.")
    ann = await office.expert("ann", office.desk()).get("/review/next")
    case = ann.here
    await ann.post(f"{case}/answer", rationale="  ")
    assert "Choose a value, write why, or both." in ann.text
    await ann.post(f"{case}/answer", value="7", rationale="Too cold.")
    assert "is not on the scale" in ann.text
    assert "Too cold." in ann.text
    await ann.get(case)
    assert (await ann.post(f"{case}/answer", rationale="x" * 300_000)).page.status_code == 403
    assert (await ann.get("/review/case/t-no-such")).page.status_code == 404
    assert "no criterion 'other'" in (await ann.get("/review/learned/other")).text


async def test_judged_text_stays_text(office: Office) -> None:
    hostile = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    await office.judged(hostile)
    ann = await office.expert("ann", office.desk()).get("/review/next")
    assert "<script>alert" not in ann.page.text
    assert "<img" not in ann.page.text
    assert ann.page.headers["content-security-policy"].startswith("default-src 'self'")
    assert "&lt;script&gt;alert(1)" in (await ann.get("/review")).page.text


async def test_effect_tells_who_said_otherwise_and_which_rule_may_come(office: Office) -> None:
    await office.judged("Wait.")
    example: Any = {"inputs": "Where is my order?", "outputs": "Wait."}
    await office.memory.aremember(Feedback(**example, value=True, rationale="Fine.", author="bob"))
    ann = await office.expert("ann", office.desk()).get("/review/next")
    case, page, form = ann.here, ann.page, {"value": "false", "rationale": "Too cold."}
    await ann.post(f"{case}/effect", **form)
    assert "bob : Yes Fine." in ann.text
    ann.page = page
    await ann.post(f"{case}/rule", **form)
    assert "When judging, heed the expert: Too cold." in ann.text
    assert [it.author for it in await office.memory.aepisodes()] == ["bob"]


def test_a_criterions_name_is_shown_as_it_is_written() -> None:
    criteria = [Criterion(name=name, instructions="Is it?") for name in ("GDPR", "tone of iOS")]
    case = case_payload("panel", criteria)
    assert [field.label for field in fields_of(case, {})] == [
        "GDPR: your answer",
        "GDPR: why, in your own words",
        "tone of iOS: your answer",
        "tone of iOS: why, in your own words",
    ]
    alone = case_payload("review", criteria[:1])
    labels = [field.label for field in fields_of(alone, {})]
    assert labels == ["Your answer", "Why, in your own words"]


@pytest.mark.parametrize(
    ("minimum", "maximum", "keys"),
    [(1, 5, "1 2 3 4 5"), (0, 10, "0 1 2 3 4 5 6 7 8 9 -"), (-1, 1, "- 0 1"), (12, 13, "- -")],
)
def test_the_key_of_a_mark_is_its_digit(minimum: int, maximum: int, keys: str) -> None:
    scale = Numeric(minimum=minimum, maximum=maximum, integer=True)
    case = case_payload("review", [Criterion(name="c", instructions="Is it?", scale=scale)])
    assert [option.key or "-" for option in fields_of(case, {})[0].options] == keys.split()


def test_forms_write_what_the_graphs_read() -> None:
    scales: dict[str, Any] = {
        "choice": Categorical(choices=("poor", "good")),
        "marks": Numeric(minimum=1, maximum=5, integer=True),
        "share": Numeric(minimum=0, maximum=1),
        "pair": Pairwise(),
    }
    criteria = [
        Criterion(name=name, instructions="Is it?", scale=scale) for name, scale in scales.items()
    ]
    case = case_payload("panel", criteria)
    kinds = {
        it.name: (it.kind, len(it.options)) for it in fields_of(case, {}) if it.kind != "words"
    }
    assert kinds == {
        "choice.value": ("choice", 2),
        "marks.value": ("choice", 5),
        "share.value": ("number", 0),
        "pair.value": ("choice", 3),
    }
    filled = {"marks.value": "4", "share.value": "0.5", "pair.rationale": "A is kinder."}
    assert parse_form(case, filled, "ann") == {
        "marks": {"value": 4},
        "share": {"value": 0.5},
        "pair": {"rationale": "A is kinder."},
        "author": "ann",
    }
    conflicts = [{"id": "C1", "newer": "second", "first": {"text": "a"}, "second": {"text": "b"}}]
    case = case_payload("conflicts", criteria[:1], conflicts=conflicts)
    assert parse_form(case, {"C1": "second"}, "ann") == {"C1": "second"}
    case = case_payload("question", criteria[:1], asked=["What is cold?"], said={"author": "bob"})
    assert parse_form(case, {"rationale": "No greeting."}, "ann") == {"rationale": "No greeting."}
