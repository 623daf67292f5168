"""The review page over HTTP, its experts, and a fake Agent Server client."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from langgraph_sdk.errors import NotFoundError

from memalign_graph import (
    Criterion,
    Judge,
    JudgeMemory,
    MemAlignError,
    create_judge_graph,
    create_review_graph,
)
from memalign_graph.review import ReviewQueue, create_review_app
from memalign_graph.review.answers import Answer
from memalign_graph.review.tasks import Reviewer
from tests.conftest import CRITERION
from tests.loopback import LoopbackServer

NAME = CRITERION.name


@dataclass
class Expert:
    """An expert's HTTP session."""

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
        return await self.post(f"{self.here}/answer", **form)


@dataclass
class Office:
    """A review page's queue over one store, and its experts."""

    server: LoopbackServer
    store: InMemoryStore
    judge: Judge
    open: list[httpx.AsyncClient]

    def queue(self) -> ReviewQueue:
        return ReviewQueue([self.judge], store=self.store)

    def expert(self, name: str, at: ReviewQueue) -> Expert:
        transport = httpx.ASGITransport(app=create_review_app(at, name=name))
        http = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", follow_redirects=True
        )
        self.open.append(http)
        return Expert(http)

    async def begin(
        self, *outputs: Any, name: str = "ann", queue: ReviewQueue | None = None
    ) -> tuple[ReviewQueue, Expert]:
        """Judge outputs, and open the first case of a queue."""
        await self.judged(*outputs)
        queue = queue or self.queue()
        return queue, await self.expert(name, queue).get("/review/next")

    async def answer(self, queue: ReviewQueue, expert: Expert, **form: str) -> None:
        """Answer the open case, and wait until it is learned from."""
        await expert.answer(**(form or {"value": "false", "rationale": "Too cold."}))
        await queue.answers.drain()

    async def reply(
        self, queue: ReviewQueue, reviewer: Reviewer, task_id: str, case: Any = None, **reply: Any
    ) -> list[str]:
        """Answer a task as the page does; returns the notices."""
        if case is None:
            task = await queue.open(reviewer, task_id)
            case = task.case
        await queue.answer(Answer(reviewer, task_id, case, {"author": reviewer.name, **reply}))
        await queue.answers.drain()
        return [text for _, text in queue.answers.take_notices(reviewer)]

    async def judgment_ids(self) -> list[str]:
        return [item.key for item in await self.store.asearch(("memalign", NAME, "judgments"))]

    async def remove_judgments(self) -> None:
        for item in await self.store.asearch(("memalign", NAME, "judgments")):
            await self.store.adelete(item.namespace, item.key)

    async def judged(self, *outputs: Any) -> None:
        graph = create_judge_graph(CRITERION, **self.judge.options).compile(store=self.store)
        for output in outputs:
            await graph.ainvoke({"inputs": "Where is my order?", "outputs": output})

    @property
    def memory(self) -> JudgeMemory:
        return JudgeMemory(self.store, CRITERION, embeddings=self.judge.embeddings)

    async def feedback(self) -> dict[tuple[str, Any], tuple[Any, str | None]]:
        episodes = await self.memory.aepisodes()
        return {
            (str(episode.author), episode.example.outputs): (episode.value, episode.rationale)
            for episode in episodes
        }


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


def refusal(kind: Any, status: int) -> Exception:
    response = httpx.Response(status, request=httpx.Request("GET", "http://api"))
    fault: Exception = kind("It is not so.", response=response, body=None)
    return fault


class Threads:
    """A fake Agent Server client with one review graph."""

    def __init__(self, office: Office, namespace: Any = ("memalign",), **options: Any) -> None:
        changed = {**office.judge.options, "keep_judgments": None, **options}
        builder = create_review_graph(CRITERION, **changed)
        self.graph = builder.compile(checkpointer=InMemorySaver(), store=office.store)
        self.threads = self.runs = self
        self.context: Any = {"namespace": namespace}
        self.ids: list[str] = []
        self.faults: list[Exception] = []
        self.status = "success"
        self.is_run_deleted = False
        """Whether the run that asked is deleted."""
        self.asked_with: dict[str, Any] = {}
        """Other settings of the run that asked."""
        self.resumed_with: dict[str, Any] = {}

    def _config(self, thread_id: str) -> Any:
        return {"configurable": {"thread_id": thread_id}}

    async def start(self, outputs: str) -> str:
        self.ids.append(str(uuid4()))
        example = {"inputs": "Where is my order?", "outputs": outputs}
        await self.graph.ainvoke(example, self._config(self.ids[-1]), context=self.context)
        return await self.question(self.ids[-1])

    async def question(self, thread_id: str) -> str:
        state = await self.graph.aget_state(self._config(thread_id))
        return f"t-{thread_id}-{state.interrupts[0].id}"

    async def get(self, thread_id: str, run_id: str | None = None) -> Mapping[str, Any]:
        if run_id == "asking":
            if self.is_run_deleted:
                raise refusal(NotFoundError, 404)
            given = {"context": self.context, "config": {}, **self.asked_with}
            return {"assistant_id": "review", "kwargs": given}
        if run_id is not None:
            return {"status": self.status}
        thread = await self._thread(thread_id)
        return {**thread, "interrupts": {} if self.status == "error" else thread["interrupts"]}

    async def _thread(self, thread_id: str) -> Mapping[str, Any]:
        if thread_id not in self.ids:
            raise refusal(NotFoundError, 404)
        state = await self.graph.aget_state(self._config(thread_id))
        waiting = _as_json(state.interrupts)
        return {
            "thread_id": thread_id,
            "created_at": "2026-01-01T00:00:00+00:00",
            "updated_at": datetime.now(UTC).isoformat(),
            "metadata": {"assistant_id": "review", "graph_id": "review"},
            "interrupts": {"task": waiting} if waiting else {},
            "values": state.values,
        }

    async def get_state(self, thread_id: str) -> Mapping[str, Any]:
        thread = await self._thread(thread_id)
        [waiting] = thread["interrupts"].values() or [[]]
        return {"interrupts": waiting, "metadata": {"run_id": "asking"}}

    async def get_history(self, thread_id: str, limit: int) -> list[dict[str, Any]]:
        history = self.graph.aget_state_history(self._config(thread_id), limit=limit)
        return [{"interrupts": _as_json(state.interrupts)} async for state in history]

    async def count(self, **_: Any) -> int:
        return len(self.ids)

    async def search(self, *, select: list[str], **_: Any) -> list[Mapping[str, Any]]:
        if self.faults:
            raise self.faults.pop(0)
        threads = [await self.get(thread_id) for thread_id in self.ids]
        waiting = [thread for thread in threads if thread["interrupts"]]
        return [{name: thread[name] for name in select} for thread in waiting]

    async def create(self, thread_id: str, *, command: Any, **options: Any) -> dict[str, str]:
        if self.faults:
            raise self.faults.pop(0)
        self.resumed_with = options
        context = options["config"]["configurable"] or None
        try:
            await self.graph.ainvoke(Command(**command), self._config(thread_id), context=context)
        except MemAlignError:
            self.status = "error"
        return {"run_id": "1"}

    async def join(self, *_: str) -> None:
        pass


def _as_json(interrupts: Any) -> list[dict[str, Any]]:
    fields = ("id", "value", "response_schema")
    return [{name: getattr(each, name) for name in fields} for each in interrupts]


@pytest.fixture
def people(office: Office) -> tuple[Threads, Reviewer, Reviewer]:
    server = Threads(office)
    ann, bob = (Reviewer(name, True, client=server) for name in ("ann", "bob"))
    return server, ann, bob


async def learn_nothing(*_: object) -> None:
    """Replaces learning on a server that stops first."""


def with_criterion(judge: Judge, name: str) -> Judge:
    return judge.model_copy(update={"criterion": Criterion(name=name, instructions="Is it?")})
