"""Deciding by evidence: `python -m benchmarks.evidence --data DIR`, `--overhead` or `--bound`.

With `--data`, what the experts' values of like cases say of labelled rows, beside the mean of the
five nearest: mean distance (MAE) and concordance (CCC), with the embedded embeddings and no model.
With `--overhead`, what evidence adds to a judgment: after a change of the memory all is fitted
anew, else only the new case is decided on. With `--bound`, how often a threshold is granted to a
judge that agrees with the experts a little less often than the target says.
"""

import argparse
import json
import os
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from langgraph.store.memory import InMemoryStore

from benchmarks.agreement.ours import criterion_of, example_of
from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    Feedback,
    JudgeMemory,
    Judgment,
    Numeric,
)
from memalign_graph.evaluation.metrics import concordance
from memalign_graph.evidence.confidence import Said
from memalign_graph.evidence.process import Process, decide_case
from memalign_graph.evidence.trust import LEFT_OUT_LEVEL, LEVEL, trusted
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.embedding import embed
from memalign_graph.memory.facts import Fact, Item
from memalign_graph.memory.index.retrieval_text import text_of
from memalign_graph.memory.index.vectors import vector_key
from memalign_graph.memory.view import MemoryView
from memalign_graph.scales import Scale, Value

SCALES: dict[str, Scale] = {
    "Boolean, with probabilities": Boolean(),
    "5 choices": Categorical(choices=tuple("abcde")),
    "Numeric, 0 to 10": Numeric(minimum=0, maximum=10),
}
_CLUSTERS = 20
_TARGET = 0.9
_JUST_BELOW = 0.8999
_SIZES = ((30, 6), (60, 6), (60, 12), (100, 6), (100, 12), (200, 12), (400, 12), (1_000, 30))
_NEAREST = 5


def score(path: Path) -> list[float]:
    """Learn a file's training rows, and score its test rows: MAE and CCC, twice."""
    from memalign_graph.local import LocalEmbeddings

    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    memory = JudgeMemory(InMemoryStore(), criterion_of(rows[0]), embeddings=LocalEmbeddings())
    memory.remember(
        [{**example_of(row), "value": row["label"]} for row in rows if row["split"] == "train"]
    )
    access, said = memory.access, (list[float](), list[float]())
    lowest = access.criterion.scale.validate_value(rows[0]["range"][0])
    test = [row for row in rows if row["split"] == "test"]
    truth = [float(row["label"]) for row in test]
    for row in test:
        text, _ = text_of(row["inputs"], row["outputs"])
        [vector] = run(embed(BLOCKING, access, {"row": text})).values()
        decided = decide_case(BLOCKING, access, Said(lowest), "evidence", vector=vector)
        evidence: Any = run(decided).evidence
        said[0].append(float(evidence.estimate))
        said[1].append(float(np.mean([one.value for one in evidence.neighbours[:_NEAREST]])))
    scored = []
    for values in said:
        given, weights = np.array(values), np.ones((1, len(truth)))
        [ccc] = concordance(np.array(truth), given, weights)
        scored += [float(np.abs(given - truth).mean()), float(np.nan_to_num(ccc))]
    return scored


def overhead(scale: Scale, episodes: int, dimension: int, times: int) -> dict[str, list[float]]:
    """Time decisions after a change of a memory of judged cases, and without one: a processor's."""
    rng = random.Random(0)  # noqa: S311 - nothing secret
    centres = np.random.default_rng(0).normal(size=(_CLUSTERS, dimension))

    def vectors(texts: Any) -> list[list[float]]:
        numbers = [int(text.split("\n")[0].removeprefix("Case ")) for text in texts]
        drawn = [np.random.default_rng(number).normal(size=dimension) for number in numbers]
        near = [centres[number % _CLUSTERS] for number in numbers]
        return [(one + other).tolist() for one, other in zip(drawn, near, strict=True)]

    def value(number: int) -> Value:
        if isinstance(scale, Numeric):
            return min(max(rng.gauss(number % 10, 1.5), 0.0), 10.0)
        return "abcde"[number % 5] if isinstance(scale, Categorical) else rng.random() < number % 2

    def word(number: int) -> Feedback:
        truth, sure = value(number), rng.uniform(0.5, 1)
        verdict = truth if rng.random() < 0.7 else value(rng.randrange(_CLUSTERS))  # noqa: PLR2004 - a fair judge
        judgment = Judgment(
            criterion="overhead",
            example_id="",
            value=verdict,
            rationale="So it is.",
            memory_version="",
            probabilities={"true": sure if verdict else 1 - sure, "false": 1 - sure}
            if isinstance(scale, Boolean)
            else None,
        )
        fields = {"inputs": f"Case {number}", "outputs": "An answer.", "value": truth}
        return Feedback.model_validate({**fields, "judgment": judgment})

    criterion = Criterion(name="overhead", instructions="How good?", scale=scale)
    memory = JudgeMemory(InMemoryStore(), criterion, embeddings=vectors)
    ids = [one.id for one in memory.remember([word(number) for number in range(episodes)])]
    found: dict[str, list[float]] = {"changed": [], "unchanged": []}
    for number in range(episodes, episodes + times):
        memory.forget(ids[number - episodes])
        memory.remember(word(number))
        access = memory.access
        run(access.refresh(BLOCKING))  # as was done when similar cases were looked for
        [vector] = run(embed(BLOCKING, access, {"new": f"Case {number + 1}"})).values()
        for taken in found.values():
            began, said = time.process_time(), Said(value(number))
            run(decide_case(BLOCKING, access, said, "evidence", vector=vector))
            taken.append(time.process_time() - began)
    return found


def granted(episodes: int, clusters: int, *, follows: bool, times: int) -> list[float]:
    """Simulate memories whose decisions are right in just under 90 %: how many get a threshold.

    Cases lie in clusters of one value each, of which experts give the other a tenth of the time;
    the judge says the cluster's, or tosses a coin. Without log-probabilities the evidence scores.
    """
    rng, counts = np.random.default_rng(7), np.zeros(2)
    scale, start = Boolean(), datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    for _ in range(times):
        cluster = rng.integers(0, clusters, episodes)
        vectors = rng.normal(size=(clusters, 16))[cluster] + 0.3 * rng.normal(size=(episodes, 16))
        own = cluster % 2 == 0
        truths = own == (rng.random(episodes) < _JUST_BELOW)
        verdicts = own if follows else rng.random(episodes) < 0.5  # noqa: PLR2004 - a coin
        view = MemoryView("simulated")
        words: dict[str, Item] = {}
        found: dict[str, Any] = {}
        for at, vector in enumerate(vectors):
            key = str(at)
            episode = {
                "example": {"inputs": key, "outputs": ""},
                "example_id": key,
                "value": bool(truths[at]),
                "given_at": start,
                "judgment": {"value": bool(verdicts[at])},
            }
            words[key] = {"key": key, "content": key, "word": key, "episode": episode}
            unit = (vector / np.linalg.norm(vector)).astype(np.float32)
            found[vector_key("simulated", text_of(key, "")[0])] = unit
        said = Fact(id="1", at_us=1, reason="simulate", said={key: key for key in words})
        view.add([said], words, found)
        calibration = Process(view, scale).calibration("evidence", "evidence")
        past = calibration.decisions if calibration else []
        levels = (LEVEL, LEFT_OUT_LEVEL)
        counts += [trusted(past, _TARGET, level).threshold is not None for level in levels]
    return [float(count) / times for count in counts]


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder of labelled rows, a file a criterion")
    parser.add_argument("--sets", default="saf_*", help="which files of it")
    parser.add_argument("--overhead", action="store_true", help="time decisions")
    parser.add_argument("--bound", action="store_true", help="count thresholds that are granted")
    parser.add_argument("--episodes", type=int, default=1_000, help="judged cases in memory")
    parser.add_argument("--dimension", type=int, default=512, help="of the vectors")
    parser.add_argument("--times", type=int, default=20, help="decisions of each sort")
    parser.add_argument("--memories", type=int, default=1_000, help="simulated, of each sort")
    options = parser.parse_args()
    write = sys.stdout.write
    if options.data:
        write(
            "| criterion | evidence: MAE | CCC | five nearest: MAE | CCC |\n|---|---|---|---|---|\n"
        )
        paths = sorted(options.data.glob(f"{options.sets}.jsonl"))
        table = {path.stem: score(path) for path in paths}
        table["mean"] = np.mean(list(table.values()), axis=0).tolist()
        for name, scores in table.items():
            write(f"| {name} | {' | '.join(f'{number:.3f}' for number in scores)} |\n")
    if options.bound:
        write("| cases | clusters | judge | tested at 95 % | as it is |\n|---|---|---|---|---|\n")
        for episodes, clusters in _SIZES:
            for follows in (False, True):
                shares = granted(episodes, clusters, follows=follows, times=options.memories)
                judge = "the cluster's value" if follows else "a coin"
                line = " | ".join(f"{100 * share:.1f} %" for share in shares)
                write(f"| {episodes:,} | {clusters} | {judge} | {line} |\n")
                sys.stdout.flush()
    if options.overhead:
        write(f"{options.episodes:,} judged cases, {options.dimension} dimensions; ")
        write(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n\n")
        write("| scale | after a change: median | p95 | without: median | p95 |\n")
        write("|---|---|---|---|---|\n")
        for name, scale in SCALES.items():
            times = overhead(scale, options.episodes, options.dimension, options.times)
            cells = [np.quantile(one, share) for one in times.values() for share in (0.5, 0.95)]
            write(f"| {name} | {' | '.join(f'{1_000 * cell:.2f} ms' for cell in cells)} |\n")


if __name__ == "__main__":
    main()
