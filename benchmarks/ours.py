"""This package's side: the alignment and judge graphs, by their public interface.

What the package imports lazily is imported here, as on the peer's side: rows are without the time
to import.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import faiss  # noqa: F401 - imported before anything is timed
import langgraph.store.sqlite  # noqa: F401 - the same
import numpy.ma  # noqa: F401 - the same
import openai.resources.chat.completions.completions
import openai.resources.embeddings  # imported before anything is timed, too
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import StateGraph

import memalign_graph.evidence.deciding
import memalign_graph.nodes.align  # noqa: F401 - the same
from benchmarks import plan
from benchmarks.plan import Job, Record, Results
from memalign_graph import (
    Criterion,
    Feedback,
    JudgeMemory,
    create_alignment_graph,
    create_judge_graph,
    create_panel_graph,
)
from memalign_graph.local import open_local_store
from memalign_graph.state import ExampleInput, JudgeOutput, JudgeState

CRITERION = Criterion(name=plan.NAME, instructions=plan.INSTRUCTIONS)
_FILE = "memory.db"


class Ours:
    """The package as its README uses it, on a `SqliteStore` in a file."""

    def __init__(self) -> None:
        self.stack, self.loop = ExitStack(), asyncio.new_event_loop()
        # As of models that the package makes from strings.
        clients: Any = {"http_async_client": openai.DefaultAioHttpClient()}
        self.options: Any = {
            "model": ChatOpenAI(model=plan.MODEL, max_retries=0, **clients),
            "embeddings": OpenAIEmbeddings(
                model=plan.EMBEDDINGS,
                dimensions=plan.DIMENSIONS,
                check_embedding_ctx_length=False,
                **clients,
            ),
        }

    def to_feedback(self, records: list[Record]) -> list[Record]:
        return records

    def reset(self) -> None:
        self.persist()
        for left in Path().glob(f"{_FILE}*"):
            left.unlink()
        self.open()

    def open(self) -> None:
        self.store = self.stack.enter_context(open_local_store(_FILE))
        self.alignment_graph = self.compiled(create_alignment_graph, CRITERION)
        self.judge_graph = self.compiled(create_judge_graph, CRITERION)

    def compiled(self, create: Callable[..., Any], judged: Any) -> Any:
        return create(judged, **self.options).compile(store=self.store)

    def memory_of(self, criterion: Criterion) -> JudgeMemory:
        return JudgeMemory(self.store, criterion, embeddings=self.options["embeddings"])

    def align(self, feedback: list[Record]) -> None:
        report = self.alignment_graph.invoke({"feedback": feedback})["report"]
        if report["feedback"]["new"] != len(feedback) or not report["guidelines"]["added"]:
            raise RuntimeError(f"Of {len(feedback)} records not all were learned: {report}")

    def remove(self, feedback: Record) -> None:
        self.memory_of(CRITERION).forget(Feedback.model_validate(feedback).episode_id)

    def judge(self, case: dict[str, Any]) -> None:
        self.judge_graph.invoke(case)

    def judge_all(self, cases: list[dict[str, Any]], at_once: int) -> None:
        self.judge_graph.batch(cases, {"max_concurrency": at_once})

    def judge_all_async(self, cases: list[dict[str, Any]], **config: Any) -> None:
        self.loop.run_until_complete(self.judge_graph.abatch(cases, config))

    def persist(self) -> None:
        self.stack.close()


class _InstantChat(ChatOpenAI):
    """A chat model that costs LangChain's part of a call alone."""

    async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
        answer = AIMessage('{"rationale": "It names the step that follows.", "value": true}')
        return ChatResult(generations=[ChatGeneration(message=answer)])


class _InstantEmbeddings(OpenAIEmbeddings):
    async def aembed_documents(self, texts: list[str], *_: Any, **__: Any) -> list[list[float]]:
        return [[float(len(text) % n + 1) for n in range(1, 1 + plan.DIMENSIONS)] for text in texts]


class _Prompts(BaseCallbackHandler):
    """Collects the prompts of a chat model."""

    def __init__(self) -> None:
        self.prompts: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: list[Any], **_: Any) -> None:  # noqa: ARG002 - LangChain's signature
        self.prompts += messages


def processor_time(ours: Ours, job: Job) -> list[dict[str, float]]:
    """Measure the processor time of a judgment, of its parts, and of bare calls."""
    schema = {"title": "verdict", "type": "object", "properties": {"value": {"type": "boolean"}}}
    chat = ours.options["model"].with_structured_output(schema, method="json_schema")
    cases, seen, instant = plan.cases(job.concurrent, seed=8), _Prompts(), _InstantChat()
    instants: Any = {"model": instant, "embeddings": _InstantEmbeddings(model=plan.EMBEDDINGS)}
    without: Any = create_judge_graph(CRITERION, **instants).compile(store=ours.store)
    builder: Any = StateGraph(JudgeState, input_schema=ExampleInput, output_schema=JudgeOutput)
    builder.add_sequence([(name, lambda _: {"judgment": {}}) for name in ("one", "two", "three")])
    empty = builder.set_entry_point("one").compile()
    at_once: Any = {"max_concurrency": job.at_once}

    async def for_each(call: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> None:
        limit = asyncio.Semaphore(job.at_once)

        async def bounded(item: Any) -> None:
            async with limit:
                await call(item)

        await asyncio.gather(*map(bounded, items))

    async def bare_calls() -> None:
        embed = ours.options["embeddings"].aembed_documents
        await for_each(chat.ainvoke, seen.prompts)
        await for_each(embed, [[str(case)] for case in cases])

    works: dict[str, Callable[[], Any]] = {
        "judged": lambda: ours.judge_graph.abatch(cases, at_once),
        "bare": bare_calls,
        "without_clients": lambda: without.abatch(cases, at_once),
        "langchain": lambda: for_each(instant.ainvoke, seen.prompts),
        "langgraph": lambda: empty.abatch(cases, at_once),
    }

    def cpu_ms(work: Callable[[], Any]) -> float:
        start = time.process_time()
        ours.loop.run_until_complete(work())
        return 1_000 * (time.process_time() - start) / len(cases)

    with plan.ServerControl(job.server).without_latency():
        ours.judge_all_async(cases, **at_once, callbacks=[seen])
        # The first of six rounds warms up.
        rounds = [{name: cpu_ms(work) for name, work in works.items()} for _ in range(6)][1:]
    for times in rounds:
        times["own"] = times["without_clients"] - times["langchain"] - times["langgraph"]
    return rounds


def session(job: Job) -> Results:
    """Measure what one process does, and the rows that only this package has."""
    ours, measure = Ours(), plan.ServerControl(job.server).measure
    results = plan.session(ours, job)
    ours.open()
    if "concurrency" in job.groups:
        cases = plan.cases(job.concurrent, seed=9)
        judge_all = partial(ours.judge_all_async, cases, max_concurrency=job.at_once)
        results["concurrent_async"] = [measure(judge_all) for _ in range(job.repeats)]
    if "cpu" in job.groups:
        results["cpu"] = processor_time(ours, job)
    if "panel" in job.groups:
        names = [f"{CRITERION.name}_{number}" for number in range(job.criteria)]
        criteria = [CRITERION.model_copy(update={"name": name}) for name in names]
        for criterion in criteria:
            ours.memory_of(criterion).remember(plan.records(20, seed=6))
        for row, chosen in {"panel_one": criteria[:1], "panel": criteria}.items():
            graph = ours.compiled(create_panel_graph, chosen)
            unseen = plan.cases(job.repeats + 1, seed=7 if row == "panel" else 10)
            graph.invoke(unseen.pop())  # warms up
            results[row] = [measure(partial(graph.invoke, case)) for case in unseen]
    ours.persist()
    return results


def reopen(job: Job) -> Results:
    """Measure opening the memory that a session left, and the first judgment with it."""
    unseen = plan.cases(job.attempt + 1, seed=5)[-1]

    def work() -> None:
        ours = Ours()
        ours.open()
        ours.judge(unseen)
        ours.persist()

    return {"reopen": [plan.ServerControl(job.server).measure(work)]}


if __name__ == "__main__":
    plan.run_job(session=session, reopen=reopen)
