"""This package's part: the alignment and judge graphs, by their public interface.

What the package imports when it is first needed is imported here, as the peer's is: rows are about
what is done, and the time to import has a row of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import faiss  # noqa: F401 - imported before anything is timed
import langgraph.store.sqlite  # noqa: F401 - likewise
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import StateGraph

from benchmarks import data, plan
from benchmarks.plan import Job, Results
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

CRITERION = Criterion(name=data.NAME, instructions=data.INSTRUCTIONS)


class Ours:
    """The package as its README uses it, on a `SqliteStore` in a file."""

    def __init__(self, file: str = "memory.db") -> None:
        self.file, self.stack, self.loop = Path(file), ExitStack(), asyncio.new_event_loop()
        self.options: Any = {
            "model": ChatOpenAI(model=plan.MODEL, max_retries=0),
            "embeddings": OpenAIEmbeddings(
                model=plan.EMBEDDINGS, dimensions=plan.DIMENSIONS, check_embedding_ctx_length=False
            ),
        }

    def prepare(self, records: Sequence[data.Record]) -> list[Any]:
        """Write records as feedback."""
        said = [{"value": it.value, "rationale": it.rationale, "author": "ann"} for it in records]
        return [record.case | more for record, more in zip(records, said, strict=True)]

    def begin(self) -> None:
        """Begin with an empty file."""
        self.keep()
        for left in Path().glob(f"{self.file}*"):
            left.unlink()
        self.open()

    def open(self) -> None:
        """Open the file, and compile what works on it."""
        self.store = store = self.stack.enter_context(open_local_store(self.file))
        self.memory = self.memory_of(CRITERION)
        self.alignment_graph: Any = create_alignment_graph(CRITERION, **self.options).compile(
            store=store
        )
        self.judge_graph: Any = create_judge_graph(CRITERION, **self.options).compile(store=store)

    def memory_of(self, criterion: Criterion) -> JudgeMemory:
        """Return the memory of a criterion."""
        return JudgeMemory(self.store, criterion, embeddings=self.options["embeddings"])

    def align(self, given: list[Any]) -> None:
        """Learn by the alignment graph."""
        report = self.alignment_graph.invoke({"feedback": given})["report"]
        if report["feedback"]["new"] != len(given) or not report["guidelines"]["added"]:
            raise RuntimeError(f"Of {len(given)} records not all were learned: {report}")

    def remove(self, given: Any) -> None:
        """Forget a record."""
        self.memory.forget(Feedback.model_validate(given).episode_id)

    def judge(self, case: dict[str, Any]) -> None:
        """Judge by the judge graph."""
        self.judge_graph.invoke(case)

    def judge_all(self, cases: list[dict[str, Any]], at_once: int) -> None:
        """Judge by the judge graph's `batch`."""
        self.judge_graph.batch(cases, {"max_concurrency": at_once})

    def judge_all_async(self, cases: list[dict[str, Any]], at_once: int) -> None:
        """Judge by the judge graph's `abatch`."""
        self.loop.run_until_complete(self.judge_graph.abatch(cases, {"max_concurrency": at_once}))

    def keep(self) -> None:
        """Close the file."""
        self.stack.close()


class _Instant(ChatOpenAI):
    """LangChain's part of a call of a chat model, without a client's."""

    async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
        answer = AIMessage('{"rationale": "It names the step that follows.", "value": true}')
        return ChatResult(generations=[ChatGeneration(message=answer)])


class _InstantEmbeddings(OpenAIEmbeddings):
    async def aembed_documents(self, texts: list[str], *_: Any, **__: Any) -> list[list[float]]:
        return [[float(len(text) % n + 1) for n in range(1, 1 + plan.DIMENSIONS)] for text in texts]


class _Prompts(BaseCallbackHandler):
    """The prompts that a chat model was given."""

    def __init__(self) -> None:
        self.prompts: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: list[Any], **_: Any) -> None:  # noqa: ARG002 - as it is called
        """Keep them."""
        self.prompts += messages


def processor_time(ours: Ours, job: Job) -> Results:
    """Measure the processor time of this process for a judgment, and what it is made of."""
    ours.open()
    schema = {"title": "verdict", "type": "object", "properties": {"value": {"type": "boolean"}}}
    options = ours.options
    chat = options["model"].with_structured_output(schema, method="json_schema")
    embeddings, instant = options["embeddings"], _Instant(model=plan.MODEL)
    instants: Any = {"model": instant, "embeddings": _InstantEmbeddings(model=plan.EMBEDDINGS)}
    without: Any = create_judge_graph(CRITERION, **instants).compile(store=ours.store)
    builder: Any = StateGraph(JudgeState, input_schema=ExampleInput, output_schema=JudgeOutput)

    async def nothing(_state: Any) -> dict[str, Any]:
        return {"judgment": {}}

    builder.add_sequence([(name, nothing) for name in ("one", "two", "three")])
    empty = builder.set_entry_point("one").compile()
    cases = [record.case for record in data.records(job.concurrent, seed=8)]
    at_once: Any = {"max_concurrency": job.at_once}
    seen = _Prompts()

    async def each(call: Callable[[Any], Awaitable[Any]], given: Sequence[Any]) -> None:
        limit = asyncio.Semaphore(job.at_once)

        async def one(it: Any) -> None:
            async with limit:
                await call(it)

        await asyncio.gather(*map(one, given))

    works: dict[str, Callable[[], Any]] = {
        "judged": lambda: ours.judge_graph.abatch(cases, at_once),
        "bare_chat": lambda: each(chat.ainvoke, seen.prompts),
        "bare_embedding": lambda: each(embeddings.aembed_documents, [[str(it)] for it in cases]),
        "without_clients": lambda: without.abatch(cases, at_once),
        "langchain": lambda: each(instant.ainvoke, seen.prompts),
        "langgraph": lambda: empty.abatch(cases, at_once),
    }
    run = ours.loop.run_until_complete
    with plan.Remote(job.server).without_latency():
        run(ours.judge_graph.abatch(cases, {**at_once, "callbacks": [seen]}))
        for work in works.values():
            run(work())
        found = [
            {name: _cpu_ms(run, work, cases) for name, work in works.items()} for _ in range(5)
        ]
    ours.keep()
    for one in found:
        one["bare"] = one["bare_chat"] + one["bare_embedding"]
        one["own"] = one["without_clients"] - one["langchain"] - one["langgraph"]
    return {"cpu": found}


def _cpu_ms(run: Callable[[Any], Any], work: Callable[[], Any], cases: Sequence[Any]) -> float:
    began = time.process_time()
    run(work())
    return 1_000 * (time.process_time() - began) / len(cases)


def session(job: Job) -> Results:
    """Measure what one process does, and what is of ours alone."""
    ours, measure = Ours(), plan.Remote(job.server).measure
    results = plan.session(ours, job)
    if "concurrency" in job.groups:
        ours.open()
        cases = [record.case for record in data.records(job.concurrent, seed=9)]
        judge_all = partial(ours.judge_all_async, cases, job.at_once)
        results["concurrent_async"] = [measure(judge_all) for _ in range(job.repeats)]
        ours.keep()
    if "cpu" in job.groups:
        results |= processor_time(ours, job)
    if "panel" not in job.groups:
        return results
    ours.open()
    repeats = job.repeats
    names = [f"{CRITERION.name}_{number}" for number in range(job.criteria)]
    criteria = [CRITERION.model_copy(update={"name": name}) for name in names]
    for criterion in criteria:
        ours.memory_of(criterion).remember(ours.prepare(data.records(20, seed=6)))
    unseen = [record.case for record in data.records(2 * repeats + 2, seed=7)]
    for key, chosen in {"panel_one": criteria[:1], "panel": criteria}.items():
        graph: Any = create_panel_graph(chosen, **ours.options).compile(store=ours.store)
        graph.invoke(unseen.pop())  # warms up
        results[key] = [measure(partial(graph.invoke, unseen.pop())) for _ in range(repeats)]
    ours.keep()
    return results


def reopen(job: Job) -> Results:
    """Measure opening the memory that a session left, and the first judgment with it."""
    unseen = data.records(job.attempt + 1, seed=5)[-1].case

    def work() -> None:
        ours = Ours()
        ours.open()
        ours.judge(unseen)
        ours.keep()

    return {"reopen": [plan.Remote(job.server).measure(work)]}


if __name__ == "__main__":
    plan.do_job(session=session, reopen=reopen)
