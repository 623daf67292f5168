"""This package's part: the alignment and judge graphs, by their public interface.

What the package imports when it is first needed is imported here, as the peer's is: rows are about
what is done, and the time to import has a row of its own.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import faiss  # noqa: F401 - imported before anything is timed
import langgraph.store.sqlite  # noqa: F401 - likewise
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from benchmarks import data, plan
from benchmarks.remote import Measured, Remote
from memalign_graph import (
    Criterion,
    JudgeMemory,
    create_alignment_graph,
    create_judge_graph,
    create_panel_graph,
)
from memalign_graph.local import open_local_store

CRITERION = Criterion(name=data.NAME, instructions=data.INSTRUCTIONS)
"""What is judged."""

Results = dict[str, list[Measured]]
"""Measurements by what was measured."""


class Ours:
    """The package as its README uses it, in front of the model server."""

    def __init__(self, job: plan.Job) -> None:
        self.remote = Remote(job.server)
        """The model server."""
        self.sizes = job.sizes
        """How much of everything."""
        self.model = ChatOpenAI(model=plan.MODEL, max_retries=0)
        """The chat model."""
        self.embeddings = OpenAIEmbeddings(
            model=plan.EMBEDDINGS,
            dimensions=plan.DIMENSIONS,
            check_embedding_ctx_length=False,
            max_retries=0,
        )
        """The embeddings."""
        self.loop = asyncio.Runner()
        """The one event loop: the clients' connections belong to it."""

    def alignment_graph(self, store: BaseStore) -> Any:
        """Return the graph that learns.

        Args:
            store: Where the memory is.
        """
        builder = create_alignment_graph(CRITERION, model=self.model, embeddings=self.embeddings)
        return builder.compile(store=store)

    def judge_graph(self, store: BaseStore) -> Any:
        """Return the graph that judges.

        Args:
            store: Where the memory is.
        """
        builder = create_judge_graph(CRITERION, model=self.model, embeddings=self.embeddings)
        return builder.compile(store=store)

    def memory(self, store: BaseStore) -> JudgeMemory:
        """Return the memory.

        Args:
            store: Where it is.
        """
        return JudgeMemory(store, CRITERION, embeddings=self.embeddings)


def feedback(records: Sequence[data.Record]) -> list[dict[str, Any]]:
    """Write records as feedback.

    Args:
        records: The records.

    Returns:
        What the alignment graph takes.
    """
    return [
        case(record) | {"value": record.value, "rationale": record.rationale, "author": "ann"}
        for record in records
    ]


def case(record: data.Record) -> dict[str, Any]:
    """Write a record's reply as a case to judge.

    Args:
        record: The record.

    Returns:
        What the judge graph takes.
    """
    return {"inputs": {"question": record.question}, "outputs": record.answer}


def session(job: plan.Job) -> Results:
    """Measure what one process does, from aligning to forgetting.

    Args:
        job: What is asked for.

    Returns:
        The measurements.
    """
    ours, sizes = Ours(job), job.sizes
    results: Results = {}
    large = feedback(data.records(sizes.large))
    if job.wants("align"):
        small = feedback(data.records(sizes.small, seed=3))
        results["align_small"] = align_anew(ours, job.folder, small, sizes.repeats)
        with ours.remote.without_latency():
            results["align_zero"] = align_anew(ours, job.folder, large, sizes.repeats)
    repeats = sizes.repeats if job.wants("align") else 1
    results["align_large"] = align_anew(ours, job.folder, large, repeats)
    with open_local_store(job.folder / "memory.db") as store:
        results |= judging(ours, job, store)
        if job.wants("panel"):
            results |= panels(ours, store)
        if job.wants("change"):
            results |= changing(ours, store)
    if job.wants("judge", "concurrency"):
        variant = InMemoryStore()
        with ours.remote.without_latency():
            ours.alignment_graph(variant).invoke({"feedback": large})
        results |= {f"{key}_in_memory": one for key, one in judging(ours, job, variant).items()}
    return results


def align_anew(
    ours: Ours, folder: Path, given: Sequence[dict[str, Any]], repeats: int
) -> list[Measured]:
    """Align an empty memory some times; the last one stays as `memory.db`.

    Args:
        ours: The package.
        folder: Where the memory is kept.
        given: The feedback.
        repeats: How often.

    Returns:
        What each time took.

    Raises:
        RuntimeError: If not all feedback was taken in, or nothing was learned from it.
    """
    measured = []
    for _ in range(repeats):
        for left in folder.glob("memory.db*"):
            left.unlink()
        with open_local_store(folder / "memory.db") as store:
            graph, memory = ours.alignment_graph(store), ours.memory(store)
            one = ours.remote.measure(partial(graph.invoke, {"feedback": given}))
            learned = {"episodes": len(memory.episodes()), "guidelines": len(memory.guidelines())}
        if learned["episodes"] != len(given) or not learned["guidelines"]:
            raise RuntimeError(f"Of {len(given)} records, memory has {learned}.")
        measured.append(one | {"learned": learned})
    return measured


def judging(ours: Ours, job: plan.Job, store: BaseStore) -> Results:
    """Measure judgments one by one, and many at once.

    Args:
        ours: The package.
        job: What is asked for.
        store: Where the memory is.

    Returns:
        The measurements.
    """
    sizes, measure = job.sizes, ours.remote.measure
    results: Results = {}
    cases = [case(record) for record in data.records(sizes.concurrent + 50, seed=2)]
    graph = ours.judge_graph(store)
    if job.wants("judge", "concurrency"):
        results["judge"] = one_by_one(ours, graph, cases[: sizes.judgments + 2])
    if job.wants("concurrency"):
        config = {"max_concurrency": sizes.at_once}
        chosen = cases[: sizes.concurrent]
        results["concurrent"] = [
            measure(lambda: graph.batch(chosen, config)) for _ in range(sizes.repeats)
        ]

        async def judge_all() -> None:
            await graph.abatch(chosen, config)

        results["concurrent_async"] = [
            measure(lambda: ours.loop.run(judge_all())) for _ in range(sizes.repeats)
        ]
    return results


def panels(ours: Ours, store: BaseStore) -> Results:
    """Measure one example judged by one criterion and by many, which have memories, too.

    Args:
        ours: The package.
        store: Where the memories are.

    Returns:
        The measurements.
    """
    repeats, measure = ours.sizes.repeats, ours.remote.measure
    names = [f"{CRITERION.name}_{number}" for number in range(ours.sizes.criteria)]
    criteria = [CRITERION.model_copy(update={"name": name}) for name in names]
    known = feedback(data.records(20, seed=6))
    for criterion in criteria:
        JudgeMemory(store, criterion, embeddings=ours.embeddings).remember(known)
    unseen = [case(record) for record in data.records(2 * repeats + 2, seed=7)]
    results: Results = {}
    for key, chosen in {"panel_one": criteria[:1], "panel": criteria}.items():
        builder = create_panel_graph(chosen, model=ours.model, embeddings=ours.embeddings)
        graph = builder.compile(store=store)
        graph.invoke(unseen.pop())  # warms up
        results[key] = [measure(partial(graph.invoke, unseen.pop())) for _ in range(repeats)]
    return results


def one_by_one(ours: Ours, graph: Any, cases: Sequence[dict[str, Any]]) -> list[Measured]:
    """Measure judgments one after another; the first two only warm up.

    Args:
        ours: The package.
        graph: The graph that judges.
        cases: The cases.

    Returns:
        What each took, with its prompt.
    """
    measured = [ours.remote.measure(partial(graph.invoke, one), prompts=True) for one in cases]
    return measured[2:]


def changing(ours: Ours, store: BaseStore) -> Results:
    """Measure one more piece of feedback, and one forgotten.

    Args:
        ours: The package.
        store: Where the memory is.

    Returns:
        The measurements.
    """
    repeats, measure = ours.sizes.repeats, ours.remote.measure
    graph, memory = ours.alignment_graph(store), ours.memory(store)
    fresh = feedback(data.records(repeats, seed=4))
    one_more = [measure(partial(graph.invoke, {"feedback": [one]})) for one in fresh]
    ids = [episode.id for episode in memory.episodes()]
    chosen = ids[:: max(1, len(ids) // repeats)][:repeats]
    remove_one = [measure(partial(memory.forget, one)) for one in chosen]
    return {"one_more": one_more, "remove_one": remove_one}


def reopen(job: plan.Job) -> Results:
    """Measure opening the memory that a session left, and the first judgment with it.

    Args:
        job: What is asked for.

    Returns:
        The measurement.
    """
    unseen = case(data.records(job.attempt + 1, seed=5)[-1])

    def work() -> None:
        ours = Ours(job)
        with open_local_store(job.folder / "memory.db") as store:
            ours.judge_graph(store).invoke(unseen)

    return {"reopen": [Remote(job.server).measure(work)]}


def main() -> None:
    """Do one job."""
    job, path = plan.Job.from_arguments()
    results = {"session": session, "reopen": reopen}[job.what](job)
    path.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
