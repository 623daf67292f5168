"""The scale rows: judging with 100,000 episodes, and whether the right ones are recalled."""

import json
import time

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, hashing
from benchmarks.answers import guideline_text
from benchmarks.ours import Ours, Results, case, feedback, one_by_one
from benchmarks.plan import DIMENSIONS, Job
from memalign_graph import JudgeMemory
from memalign_graph.local import open_local_store

_AT_ONCE = 5_000
"""How many episodes are remembered in one go."""

_GUIDELINES = 100

_K = 5

_TIE = 1e-5
"""Similarities that differ by less are equal: either episode is right."""


def scale(job: Job) -> Results:
    """Fill a memory, open it anew, judge with it, and compare what it recalls with brute force.

    Args:
        job: What is asked for.

    Returns:
        The measurements: `scale` (one a judgment), `scale_open` and `scale_recall`.
    """
    ours = Ours(job)
    records = data.records(job.sizes.scale)
    path = job.folder / "scale.db"
    with ours.remote.without_latency(), open_local_store(path) as store:
        memory = ours.memory(store)
        began = time.perf_counter()
        for first in range(0, len(records), _AT_ONCE):
            memory.remember(feedback(records[first : first + _AT_ONCE]))
        filled_s = time.perf_counter() - began
        for number in range(_GUIDELINES):
            memory.add_guideline(guideline_text(number))
    unseen = data.records(job.sizes.judgments + 2, seed=2)
    cases = [case(record) for record in unseen]
    with open_local_store(path) as store:
        graph = ours.judge_graph(store)
        opened = ours.remote.measure(lambda: graph.invoke(cases[0]))
        judged = one_by_one(ours, graph, cases)
        with ours.remote.without_latency():
            share = recall_share(ours.memory(store), records, unseen)
    return {
        "scale": judged,
        "scale_open": [opened | {"filled_s": filled_s}],
        "scale_recall": [{"recall": share}],
    }


def recall_share(
    memory: JudgeMemory, records: list[data.Record], unseen: list[data.Record]
) -> float:
    """Compare what a memory recalls with an exact search over everything in it.

    Args:
        memory: The memory.
        records: What is in it.
        unseen: The cases to recall for.

    Returns:
        The share of the true nearest five that were recalled.
    """
    known = np.stack([_embedded(record) for record in records])
    place_of = {record.answer: place for place, record in enumerate(records)}
    hits = 0
    for record in unseen:
        similarities = known @ _embedded(record)
        fifth = np.partition(similarities, -_K)[-_K]
        recalled = memory.recall(case(record), k=_K)
        places = [place_of[str(one.example.outputs)] for one in recalled]
        hits += int((similarities[places] >= fifth - _TIE).sum())
    return hits / (_K * len(unseen))


def _embedded(record: data.Record) -> NDArray[np.float32]:
    return hashing.embed(f"{record.question}\n\n{record.answer}", DIMENSIONS)


def main() -> None:
    """Do one job."""
    job, path = Job.from_arguments()
    path.write_text(json.dumps(scale(job)))


if __name__ == "__main__":
    main()
