"""This package's part: the alignment and judge graphs, by their public interface.

What the package imports when it is first needed is imported here, as the peer's is: rows are about
what is done, and the time to import has a row of its own.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import faiss  # noqa: F401 - imported before anything is timed
import langgraph.store.sqlite  # noqa: F401 - likewise
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

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

CRITERION = Criterion(name=data.NAME, instructions=data.INSTRUCTIONS)

_AT_ONCE = 5_000  # how many episodes are remembered in one go
_GUIDELINES = 100  # beside 100,000 episodes


class Ours:
    """The package as its README uses it, on a `SqliteStore` in a file."""

    def __init__(self, file: str = "memory.db") -> None:
        self.file, self.stack = Path(file), ExitStack()
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

    def keep(self) -> None:
        """Close the file."""
        self.stack.close()


def session(job: Job) -> Results:
    """Measure what one process does; and, of ours alone, a panel beside one criterion."""
    ours = Ours()
    results = plan.session(ours, job)
    if "panel" not in job.groups:
        return results
    ours.open()
    repeats, measure = job.repeats, plan.Remote(job.server).measure
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


def scale(job: Job) -> Results:
    """Fill a memory, open it anew, and judge with it; its search is exact, as any flat one."""
    ours, remote, records = Ours("scale.db"), plan.Remote(job.server), data.records(job.scale)
    ours.begin()
    began = time.perf_counter()
    with remote.without_latency():
        for first in range(0, len(records), _AT_ONCE):
            ours.memory.remember(ours.prepare(records[first : first + _AT_ONCE]))
        for number in range(_GUIDELINES):
            ours.memory.add_guideline(data.guideline_text(number))
    filled_s = time.perf_counter() - began
    ours.keep()
    cases = [record.case for record in data.records(job.judgments + 2, seed=2)]
    ours.open()
    opened = remote.measure(partial(ours.judge, cases[0])) | {"filled_s": filled_s}
    judged = [remote.measure(partial(ours.judge, case)) for case in cases]
    ours.keep()
    return {"scale_open": [opened], "scale": judged[2:]}


if __name__ == "__main__":
    plan.do_job(session=session, reopen=reopen, scale=scale)
